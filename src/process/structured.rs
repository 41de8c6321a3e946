//! Structured output: whether what a program wrote is a JSON value that can be told. Pure.
//!
//! Owns the bounds. Reading the file is the supervisor's; the value on the wire is the API's.

use serde_json::Value;

use super::StructuredOutput;

/// Largest file, bytes.
pub const MAX_BYTES: usize = 1 << 20;

/// Largest value in protobuf's form, bytes: with the largest program beside it, a record still fits
/// into the 4 MiB that clients take unless told otherwise. Lists of short numbers grow most, to more
/// than five times their text.
const MAX_WIRE_BYTES: usize = 5 << 19;

/// Lists and objects within each other. Each is three messages in protobuf's form, of which many
/// clients take a hundred within each other.
const MAX_DEPTH: usize = 32;

/// What the parser says of what is too deep even for it.
const TOO_DEEP_TO_PARSE: &str = "recursion limit exceeded";

/// What a file holds that has these bytes; none: nothing but white space.
pub fn read(bytes: Vec<u8>) -> Option<StructuredOutput> {
    if bytes.len() > MAX_BYTES {
        return Some(unusable("it holds more than 1 MiB"));
    }
    let text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            return Some(unusable(format!("it is not JSON: byte {at} is not UTF-8")));
        }
    };
    if text.trim_ascii().is_empty() {
        return None;
    }
    Some(match check(&text) {
        Ok(()) => StructuredOutput::Value(text),
        Err(why) => unusable(why),
    })
}

/// There is no value, for this reason.
pub fn unusable(why: impl Into<String>) -> StructuredOutput {
    StructuredOutput::Unusable(why.into())
}

fn check(text: &str) -> Result<(), String> {
    let too_deep = || format!("its lists and objects are more than {MAX_DEPTH} deep");
    let value: Value = serde_json::from_str(text).map_err(|error| match error.to_string() {
        why if why.starts_with(TOO_DEEP_TO_PARSE) => too_deep(),
        why => format!("it is not JSON: {why}"),
    })?;
    if depth(&value) > MAX_DEPTH {
        return Err(too_deep());
    }
    if wire_len(&value) > MAX_WIRE_BYTES {
        return Err("it takes more than 2.5 MiB in protobuf's form".into());
    }
    Ok(())
}

/// How many lists and objects are within each other. The parser bounds the recursion.
fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// Bytes of a value as a `google.protobuf.Value`.
pub fn wire_len(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) => 2,
        Value::Number(_) => 9,
        Value::String(text) => field_len(text.len()),
        Value::Array(items) => field_len(items.iter().map(|item| field_len(wire_len(item))).sum()),
        Value::Object(fields) => {
            let entry = |(name, value): (&String, &Value)| {
                // An empty name is left out.
                let name = if name.is_empty() { 0 } else { field_len(name.len()) };
                field_len(name + field_len(wire_len(value)))
            };
            field_len(fields.iter().map(entry).sum())
        }
    }
}

/// Most bytes of a value as a `google.protobuf.Value` whose text has so many. Each level of lists
/// within each other has keys and lengths besides.
pub fn max_wire_len(text_bytes: usize) -> usize {
    MAX_WIRE_BYTES.min(6 * text_bytes + 8 * MAX_DEPTH)
}

/// Bytes of a field that has so many: a tag, the length, and them.
fn field_len(bytes: usize) -> usize {
    let length = (usize::BITS - (bytes | 1).leading_zeros()).div_ceil(7) as usize;
    1 + length + bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(text: impl Into<Vec<u8>>) -> String {
        match read(text.into()) {
            Some(StructuredOutput::Unusable(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    fn taken(text: &str) -> bool {
        read(text.into()) == Some(StructuredOutput::Value(text.into()))
    }

    fn nested(depth: usize) -> String {
        "[".repeat(depth) + &"]".repeat(depth)
    }

    #[test]
    fn every_json_value_is_taken_as_it_is() {
        for text in ["null", "true", "-1.5e3", "\"ä\"", "[]", "{}", " {\"a\": [1, null]}\n"] {
            assert!(taken(text), "{text}");
        }
    }

    #[test]
    fn nothing_but_white_space_is_nothing() {
        for text in ["", "\n", " \t\r\n"] {
            assert_eq!(read(text.into()), None);
        }
    }

    #[test]
    fn what_is_not_json_is_told_with_its_place() {
        assert_eq!(why("{\n\"a\": x}"), "it is not JSON: expected value at line 2 column 6");
        assert_eq!(why("1 2"), "it is not JSON: trailing characters at line 1 column 3");
        assert_eq!(why(b"\"ab\xff\""), "it is not JSON: byte 3 is not UTF-8");
        assert!(why("1e999").contains("number out of range"));
        assert!(why("NaN").starts_with("it is not JSON: "));
    }

    #[test]
    fn the_bounds_are_where_they_are_said_to_be() {
        let large = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
        assert!(taken(&large(MAX_BYTES)));
        assert_eq!(why(large(MAX_BYTES + 1)), "it holds more than 1 MiB");
        assert!(taken(&nested(32)));
        for depth in [33, 127, 128, 5000, 500_000] {
            assert_eq!(why(nested(depth)), "its lists and objects are more than 32 deep");
        }
        let numbers = |count: usize| format!("[{}]", vec!["1"; count].join(","));
        // Each is a number of 9 bytes in a field of 11.
        let most = (MAX_WIRE_BYTES - 5) / 11;
        assert!(taken(&numbers(most)));
        assert_eq!(why(numbers(most + 1)), "it takes more than 2.5 MiB in protobuf's form");
    }
}
