//! A line of the log that fits: it names its call whatever it says, and is an object where it is to
//! be one. Owns what is left out of one that is too long.

use serde_json::Value;

use super::Format;

/// Bytes of each text in an object that is too long: as many of these as fit.
const SHORTER: [usize; 4] = [1024, 256, 64, 16];

/// The line, which has this many bytes at most and names a call, if it is about one. There is
/// nothing in an id that would have to be escaped.
pub(super) fn fitting(line: &str, format: Format, request: Option<&str>, most: usize) -> String {
    let line = line.trim_end_matches('\n');
    let end = match (format, request) {
        (Format::Json, Some(request)) => format!(",\"request\":\"{request}\"}}\n"),
        (Format::Json, None) => "}\n".into(),
        (Format::Text, Some(request)) => format!(" request={request}\n"),
        (Format::Text, None) => "\n".into(),
    };
    let room = most.saturating_sub(end.len());
    let shorter;
    let line = match format {
        Format::Text => &line[..boundary(line, room)],
        // Its last brace is the end's.
        Format::Json if line.len() <= room + 1 => line,
        Format::Json => {
            shorter = shortened(line, room + 1);
            &shorter
        }
    };
    let begin = match format {
        Format::Text => line,
        Format::Json => line.strip_suffix('}').unwrap_or(line),
    };
    format!("{begin}{end}")
}

/// An object of at most so many bytes, with shorter texts.
fn shortened(object: &str, most: usize) -> String {
    let fields = match serde_json::from_str(object) {
        Ok(Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let shorter = SHORTER.into_iter().map(|bytes| {
        let mut fields = fields.clone();
        for value in fields.values_mut() {
            if let Value::String(text) = value {
                text.truncate(boundary(text, bytes));
            }
        }
        Value::Object(fields).to_string()
    });
    let fits = shorter.into_iter().find(|object| object.len() <= most);
    fits.unwrap_or_else(|| r#"{"message":"too long a line"}"#.into())
}

/// The end of the last letter that ends within so many bytes.
fn boundary(text: &str, most: usize) -> usize {
    (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_its_call_in_either_format() {
        let named = |line, format| fitting(line, format, Some("a-1"), 100);
        assert_eq!(named("it is {so}\n", Format::Text), "it is {so} request=a-1\n");
        let object = named("{\"message\":\"}\"}\n", Format::Json);
        assert_eq!(object, "{\"message\":\"}\",\"request\":\"a-1\"}\n");
        assert_eq!(fitting("so\n", Format::Text, None, 100), "so\n");
        assert_eq!(fitting("{\"a\":1}\n", Format::Json, None, 100), "{\"a\":1}\n");
    }

    #[test]
    fn a_line_that_is_too_long_still_names_its_call_and_is_an_object() {
        let most = 4096;
        for letter in ["a", "é", "\u{1b}", "\""] {
            for len in [most - 40, most, 3 * most] {
                let message = letter.repeat(len);
                let line = fitting(&format!("{message}\n"), Format::Text, Some("a-1"), most);
                assert!(line.ends_with(" request=a-1\n") && line.len() <= most);
                let fields = serde_json::json!({"level": "INFO", "message": message, "number": 7});
                let line = fitting(&format!("{fields}\n"), Format::Json, Some("a-1"), most);
                assert!(line.ends_with('\n') && line.len() <= most);
                let read: Value = serde_json::from_str(&line).unwrap();
                assert_eq!((&read["request"], &read["level"]), (&"a-1".into(), &"INFO".into()));
                assert!(!read["message"].as_str().unwrap().is_empty());
            }
        }
        let many: serde_json::Map<_, _> =
            (0..1000).map(|n| (n.to_string(), Value::from(n))).collect();
        let line = fitting(&Value::Object(many).to_string(), Format::Json, Some("a-1"), most);
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["request"], "a-1");
    }

    #[test]
    fn a_line_that_just_fits_is_whole() {
        for (line, format) in [("abc", Format::Text), ("{\"a\":1}", Format::Json)] {
            assert_eq!(fitting(line, format, None, line.len() + 1), format!("{line}\n"));
        }
    }
}
