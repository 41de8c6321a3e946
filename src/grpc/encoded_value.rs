//! A `google.protobuf.Value` in its encoded form.
//!
//! The generated messages have this type in its place. An answer is encoded on the main thread: for this
//! value that is a copy, however many values it consists of.

use prost::bytes::{Buf, BufMut};
use prost::encoding::{DecodeContext, WireType, bytes, encode_key, encode_varint};
use prost::encoding::{fixed64, skip_field, uint64};
use prost::{DecodeError, Message};

/// The bytes of a `google.protobuf.Value`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncodedValue(Vec<u8>);

impl EncodedValue {
    /// A value whose encoded form has these bytes.
    pub fn new(encoded: Vec<u8>) -> EncodedValue {
        EncodedValue(encoded)
    }

    /// Decodes the value.
    pub fn to_value(&self) -> Result<prost_types::Value, DecodeError> {
        prost_types::Value::decode(self.0.as_slice())
    }
}

impl Message for EncodedValue {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        buf.put_slice(&self.0);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        match wire_type {
            WireType::Varint => {
                let mut value = 0;
                uint64::merge(wire_type, &mut value, buf, ctx)?;
                encode_key(tag, wire_type, &mut self.0);
                encode_varint(value, &mut self.0);
            }
            WireType::SixtyFourBit => {
                let mut value = 0;
                fixed64::merge(wire_type, &mut value, buf, ctx)?;
                encode_key(tag, wire_type, &mut self.0);
                self.0.put_u64_le(value);
            }
            WireType::LengthDelimited => {
                let mut value = Vec::new();
                bytes::merge(wire_type, &mut value, buf, ctx)?;
                encode_key(tag, wire_type, &mut self.0);
                encode_varint(value.len() as u64, &mut self.0);
                self.0.extend(value);
            }
            WireType::StartGroup | WireType::EndGroup | WireType::ThirtyTwoBit => {
                skip_field(wire_type, tag, buf, ctx)?;
            }
        }
        Ok(())
    }

    fn encoded_len(&self) -> usize {
        self.0.len()
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}
