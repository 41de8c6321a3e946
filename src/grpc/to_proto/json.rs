//! JSON on the wire: `google.protobuf.Value`.

use prost::encoding::encode_varint;
use serde_json::Value;

use crate::grpc::EncodedValue;
use crate::process::structured::wire_len;

/// Keys of fields: of a `Value`, of a `Struct` and a `ListValue`, and of the entries of a `Struct`.
const NULL_VALUE: u8 = 0x08;
const NUMBER_VALUE: u8 = 0x11;
const STRING_VALUE: u8 = 0x1a;
const BOOL_VALUE: u8 = 0x20;
const STRUCT_VALUE: u8 = 0x2a;
const LIST_VALUE: u8 = 0x32;
const FIELDS: u8 = 0x0a;
const VALUES: u8 = 0x0a;
const ENTRY_KEY: u8 = 0x0a;
const ENTRY_VALUE: u8 = 0x12;

/// Encodes a JSON text. Numbers become doubles: of whole numbers beyond 2^53 the last digits
/// are lost, as everywhere in JSON's protobuf form.
pub(super) fn value(text: &str) -> Result<EncodedValue, serde_json::Error> {
    serde_json::from_str(text).map(|json| encode(&json))
}

/// Encodes from the end to the beginning: each length then follows what it counts, and the time
/// does not depend on how deep values lie within each other.
fn encode(json: &Value) -> EncodedValue {
    let mut bytes = Vec::with_capacity(wire_len(json));
    put_reversed(json, &mut bytes);
    bytes.reverse();
    EncodedValue::new(bytes)
}

fn put_reversed(json: &Value, bytes: &mut Vec<u8>) {
    let begin = bytes.len();
    match json {
        Value::Null => bytes.extend([0, NULL_VALUE]),
        Value::Bool(value) => bytes.extend([u8::from(*value), BOOL_VALUE]),
        Value::Number(number) => {
            // Every number has a double next to it.
            bytes.extend(number.as_f64().unwrap_or(f64::NAN).to_be_bytes());
            bytes.push(NUMBER_VALUE);
        }
        Value::String(text) => {
            bytes.extend(text.bytes().rev());
            put_length(begin, STRING_VALUE, bytes);
        }
        Value::Array(items) => {
            for item in items.iter().rev() {
                let begin = bytes.len();
                put_reversed(item, bytes);
                put_length(begin, VALUES, bytes);
            }
            put_length(begin, LIST_VALUE, bytes);
        }
        Value::Object(fields) => {
            for (name, value) in fields.iter().rev() {
                let begin = bytes.len();
                put_reversed(value, bytes);
                put_length(begin, ENTRY_VALUE, bytes);
                if !name.is_empty() {
                    let begin = bytes.len();
                    bytes.extend(name.bytes().rev());
                    put_length(begin, ENTRY_KEY, bytes);
                }
                put_length(begin, FIELDS, bytes);
            }
            put_length(begin, STRUCT_VALUE, bytes);
        }
    }
}

/// Puts the length of what was put since `begin`, and the key of the field that it is.
fn put_length(begin: usize, key: u8, bytes: &mut Vec<u8>) {
    let mut length = [0; 10];
    let mut unused = length.as_mut_slice();
    encode_varint((bytes.len() - begin) as u64, &mut unused);
    let used = 10 - unused.len();
    bytes.extend(length[..used].iter().rev());
    bytes.push(key);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::structured::max_wire_len;
    use proptest::prelude::*;
    use prost::Message;
    use prost_types::value::Kind;
    use prost_types::{ListValue, Struct};

    /// A value as protobuf's own types have it.
    fn convert(json: Value) -> prost_types::Value {
        let kind = match json {
            Value::Null => Kind::NullValue(0),
            Value::Bool(value) => Kind::BoolValue(value),
            Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap()),
            Value::String(text) => Kind::StringValue(text),
            Value::Array(items) => {
                Kind::ListValue(ListValue { values: items.into_iter().map(convert).collect() })
            }
            Value::Object(fields) => {
                let fields = fields.into_iter().map(|(name, value)| (name, convert(value)));
                Kind::StructValue(Struct { fields: fields.collect() })
            }
        };
        prost_types::Value { kind: Some(kind) }
    }

    #[test]
    fn every_kind_of_value_becomes_its_own() {
        let Some(Kind::StructValue(Struct { fields })) =
            value(r#"{"n":null,"b":true,"i":9007199254740993,"f":-0.5,"s":"ä","l":[1,[]],"o":{}}"#)
                .unwrap()
                .to_value()
                .unwrap()
                .kind
        else {
            panic!("no object")
        };
        let kind = |name: &str| fields[name].kind.clone().unwrap();
        assert_eq!(kind("n"), Kind::NullValue(0));
        assert_eq!(kind("b"), Kind::BoolValue(true));
        assert_eq!(kind("i"), Kind::NumberValue(9_007_199_254_740_992.0));
        assert_eq!(kind("f"), Kind::NumberValue(-0.5));
        assert_eq!(kind("s"), Kind::StringValue("ä".into()));
        assert_eq!(kind("o"), Kind::StructValue(Struct::default()));
        let Kind::ListValue(ListValue { values }) = kind("l") else { panic!("no list") };
        assert_eq!(values.len(), 2);
    }

    #[test]
    fn shortest_texts_are_within_the_bound_of_their_wire_length() {
        for depth in [0, 1, 31] {
            for item in ["0", "[]", "{}", "\"\"", "null", "{\"a\":0}"] {
                for count in [1, 2, 9000] {
                    let (open, close) = ("[".repeat(depth), "]".repeat(depth));
                    let text = format!("{open}[{}]{close}", vec![item; count].join(","));
                    let bytes = value(&text).unwrap().encoded_len();
                    assert!(bytes <= max_wire_len(text.len()), "{depth} {item} {count}: {bytes}");
                }
            }
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            ".{0,200}".prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 64, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Into::into),
                prop::collection::btree_map(".{0,3}", inner, 0..8)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// The bound is counted where the wire is not known.
        #[test]
        fn a_value_takes_as_many_bytes_as_were_counted(json in any_json()) {
            prop_assert_eq!(convert(json.clone()).encoded_len(), wire_len(&json));
        }

        #[test]
        fn value_is_encoded_as_protobuf_does(json in any_json()) {
            let encoded = encode(&json);
            prop_assert_eq!(encoded.encoded_len(), wire_len(&json));
            prop_assert_eq!(encoded.to_value().unwrap(), convert(json.clone()));
            prop_assert!(encoded.encoded_len() <= max_wire_len(json.to_string().len()));
            // A client that decodes and encodes it again changes nothing.
            let copy = EncodedValue::decode(encoded.encode_to_vec().as_slice()).unwrap();
            prop_assert_eq!(copy, encoded);
        }
    }
}
