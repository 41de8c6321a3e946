//! JSON on the wire: `google.protobuf.Value`.

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};

/// A JSON text as a value. Numbers become doubles: of whole numbers beyond 2^53 the last digits
/// are lost, as everywhere in JSON's protobuf form.
pub(super) fn value(text: &str) -> Result<Value, serde_json::Error> {
    serde_json::from_str(text).map(convert)
}

fn convert(json: serde_json::Value) -> Value {
    let kind = match json {
        serde_json::Value::Null => Kind::NullValue(0),
        serde_json::Value::Bool(value) => Kind::BoolValue(value),
        // Every number has a double next to it.
        serde_json::Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or(f64::NAN)),
        serde_json::Value::String(text) => Kind::StringValue(text),
        serde_json::Value::Array(items) => {
            Kind::ListValue(ListValue { values: items.into_iter().map(convert).collect() })
        }
        serde_json::Value::Object(fields) => {
            let fields = fields.into_iter().map(|(name, value)| (name, convert(value)));
            Kind::StructValue(Struct { fields: fields.collect() })
        }
    };
    Value { kind: Some(kind) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::structured::wire_len;
    use proptest::prelude::*;
    use prost::Message;

    #[test]
    fn every_kind_of_value_becomes_its_own() {
        let Some(Kind::StructValue(Struct { fields })) =
            value(r#"{"n":null,"b":true,"i":9007199254740993,"f":-0.5,"s":"ä","l":[1,[]],"o":{}}"#)
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

    fn any_json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            ".{0,200}".prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 64, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Into::into),
                prop::collection::btree_map(".{0,3}", inner, 0..8)
                    .prop_map(|fields| serde_json::Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// The bound is counted where the wire is not known.
        #[test]
        fn a_value_takes_as_many_bytes_as_were_counted(json in any_json()) {
            prop_assert_eq!(convert(json.clone()).encoded_len(), wire_len(&json));
        }
    }
}
