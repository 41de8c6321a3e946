//! Recognises a file with procyard's lines: those of either log format, and what a procyard says that
//! ends before it logs.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;

use serde_json::Value;
use tracing::Level;

/// Bytes at the beginning of a file in which one of its lines must be procyard's: more than the
/// longest line has. Not the first one alone: it may be what a library has printed.
const BYTES: u64 = 8192;

/// Whether a regular file is empty or has procyard's lines.
pub(super) fn has_own_lines_or_none(file: &File) -> io::Result<bool> {
    if file.metadata()?.len() == 0 {
        return Ok(true);
    }
    // Opened again: it may be open only to be written.
    let file = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let mut text = Vec::new();
    file.take(BYTES).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).lines().any(is_own))
}

fn is_own(line: &str) -> bool {
    let is_level = |word: &str| word.parse::<Level>().is_ok_and(|level| level.as_str() == word);
    if line.starts_with('{') {
        let Ok(Value::Object(fields)) = serde_json::from_str(line) else { return false };
        let text = |name| fields.get(name).and_then(Value::as_str);
        return text("timestamp").is_some_and(is_time) && text("level").is_some_and(is_level);
    }
    let mut words = line.split_whitespace();
    line.starts_with("procyard: ")
        || words.next().is_some_and(is_time) && words.next().is_some_and(is_level)
}

/// Whether a word is a time as in `2026-01-31T12:00:00.123456Z`.
fn is_time(word: &str) -> bool {
    let form = "0000-00-00T00:00:00.000000Z";
    let fits = |(found, expected): (char, char)| match expected {
        '0' => found.is_ascii_digit(),
        _ => found == expected,
    };
    word.len() == form.len() && word.chars().zip(form.chars()).all(fits)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;
    use crate::telemetry::{Format, lines};

    fn is_log(text: &[u8]) -> bool {
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(path.path(), text).unwrap();
        let file = File::options().append(true).open(path.path()).unwrap();
        has_own_lines_or_none(&file).unwrap()
    }

    #[test]
    fn lines_of_each_format_are_recognised() {
        for format in [Format::Text, Format::Json] {
            let file = tempfile::NamedTempFile::new().unwrap();
            let writer = file.reopen().unwrap();
            let layer = lines(format, false, std::sync::Mutex::new(writer));
            let subscriber = tracing_subscriber::registry().with(layer);
            tracing::subscriber::with_default(subscriber, || {
                // One that is shortened has its fields in another order.
                tracing::warn!(long = "a".repeat(9000), "hello");
            });
            let text = std::fs::read(file.path()).unwrap();
            assert!(is_log(&text), "{}", String::from_utf8_lossy(&text));
        }
        assert!(is_log(b"") && is_log(b"other\nprocyard: it did not start\n"));
    }

    #[test]
    fn files_of_others_are_not() {
        for text in [
            "a,b,c\n1,2,3\n",
            "SQLite format 3\0",
            "2026-01-31 INFO started\n",
            "2026-01-31T12:00:00.123456Z,INFO,a\n",
            "{\"level\": \"INFO\"}\n",
            "ci viewer hmac-sha256:00:00:00\n",
            "\n",
        ] {
            assert!(!is_log(text.as_bytes()), "{text}");
        }
        let mut late = vec![b'\n'; BYTES as usize];
        late.write_all(b"procyard: hello\n").unwrap();
        assert!(!is_log(&late));
    }
}
