//! Cutting what came from outside down to what fits into an error.
//!
//! An error travels in HTTP/2 headers, and many clients refuse more than 8 KiB of them: nothing
//! that a caller sent is repeated at full length.

use std::fmt::Write;

/// Bytes of a quoted text, before the mark that says it goes on.
const QUOTED: usize = 48;

/// The beginning of a text, at most `most` bytes and a mark that says it goes on.
pub(crate) fn clip(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let mut end = most;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &text[..end])
}

/// A text in quotes, with escapes for what does not show.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for char in text.chars() {
        if quoted.len() > QUOTED {
            quoted.push('…');
            break;
        }
        // Cannot fail: a String takes everything.
        let _ = match char {
            '\'' => write!(quoted, "'"),
            other => write!(quoted, "{}", other.escape_debug()),
        };
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_text_stays_as_it_is() {
        assert_eq!(clip("abc", 3), "abc");
        assert_eq!(quoted("a'b\"\n"), r#""a'b\"\n""#);
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(clip("äöü", 3), "ä…");
        let long = "\u{1}".repeat(1 << 20);
        assert!(quoted(&long).len() < 64, "{}", quoted(&long));
    }
}
