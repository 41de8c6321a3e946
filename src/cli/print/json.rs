//! Messages as the JSON that protobuf defines for them, as other clients print it, too.

use std::sync::LazyLock;

use prost::{Message, Name};
use prost_reflect::{DescriptorPool, DynamicMessage, SerializeOptions};

use crate::grpc::pb;

static MESSAGES: LazyLock<Option<DescriptorPool>> =
    LazyLock::new(|| DescriptorPool::decode(pb::FILE_DESCRIPTORS).ok());

/// A message as one line of JSON.
pub(in crate::cli) fn json<M: Message + Name>(message: &M) -> String {
    try_json(message).unwrap_or_else(|| "null".into())
}

/// None: the message is not one of the API.
fn try_json<M: Message + Name>(message: &M) -> Option<String> {
    let descriptor = MESSAGES.as_ref()?.get_message_by_name(&M::full_name())?;
    let known = DynamicMessage::decode(descriptor, message.encode_to_vec().as_slice()).ok()?;
    let mut line = Vec::new();
    let mut to_line = serde_json::Serializer::new(&mut line);
    known.serialize_with_options(&mut to_line, &SerializeOptions::new()).ok()?;
    String::from_utf8(line).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_the_json_that_protobuf_defines() {
        let exit = pb::Exit { code: Some(0), outcome: 1, final_seq: 7, ..Default::default() };
        let process = pb::Process { id: "a".into(), exit: Some(exit), ..Default::default() };
        let expected =
            r#"{"id":"a","exit":{"outcome":"OUTCOME_SUCCEEDED","code":0,"finalSeq":"7"}}"#;
        assert_eq!(json(&process), expected);
        let chunk = pb::Chunk { data: "hi\n".into(), ..Default::default() };
        assert_eq!(json(&chunk), r#"{"data":"aGkK"}"#);
    }
}
