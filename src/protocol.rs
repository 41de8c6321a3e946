//! The protocol between server and keeper: length-delimited protobuf over a stream socket,
//! with descriptors beside it.
//!
//! Owns the messages, their framing, which versions understand each other (`version`), the
//! conversions to and from the project's own words (`convert`) and moving bytes with descriptors
//! (`socket`). Knows neither end.

mod convert;
pub mod socket;
mod version;

use bytes::{Buf, BufMut, BytesMut};
use prost::Message;

pub(crate) use convert::size;
pub use version::{BEFORE, VERSION, Version};

/// The messages as prost makes them from `proto/procyard/keeper/v1`.
#[expect(clippy::large_enum_variant, reason = "messages are looked at one by one, not kept")]
pub mod pb {
    include!(concat!(env!("OUT_DIR"), "/procyard.keeper.v1.rs"));
}

/// Largest message. A Spawn may carry megabytes of arguments only to be told that the kernel
/// does not take them.
const MAX_MESSAGE: usize = 16 << 20;

/// The bytes are not what this protocol says.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    /// The length before a message is too large.
    #[error("a message of {0} bytes")]
    TooLong(usize),
    /// A message cannot be decoded.
    #[error("a message that cannot be decoded")]
    Malformed(#[from] prost::DecodeError),
}

/// Appends a message behind its length.
pub fn encode(message: &impl Message, to: &mut impl BufMut) {
    to.put_u32_le(message.encoded_len() as u32);
    message.encode_raw(to);
}

/// Appends a request behind its length: its number, and what was encoded without it.
pub fn encode_request(number: u64, encoded: &[u8], to: &mut impl BufMut) {
    let number = pb::ToKeeper { request: number, body: None };
    to.put_u32_le((number.encoded_len() + encoded.len()) as u32);
    number.encode_raw(to);
    to.put_slice(encoded);
}

/// Takes the next whole message off the front of what was received.
pub fn decode<M: Message + Default>(from: &mut BytesMut) -> Result<Option<M>, ProtocolError> {
    let Some(length) = from.first_chunk::<4>() else {
        return Ok(None);
    };
    let len = u32::from_le_bytes(*length) as usize;
    if len > MAX_MESSAGE {
        return Err(ProtocolError::TooLong(len));
    }
    if from.len() < 4 + len {
        return Ok(None);
    }
    from.advance(4);
    Ok(Some(M::decode(from.split_to(len))?))
}

/// The message would be refused by the other end's [`decode`].
pub fn too_long(message: &impl Message) -> bool {
    message.encoded_len() > MAX_MESSAGE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_being_cut_anywhere() {
        let mut wire = Vec::new();
        for version in [1, 300] {
            encode(&pb::Hello { version, release: String::new() }, &mut wire);
        }
        let mut received = BytesMut::new();
        let mut versions = Vec::new();
        for byte in wire {
            received.extend_from_slice(&[byte]);
            while let Some(hello) = decode::<pb::Hello>(&mut received).unwrap() {
                versions.push(hello.version);
            }
        }
        assert_eq!(versions, [1, 300]);
    }

    #[test]
    fn request_is_the_same_when_encoded_before_its_number_is_known() {
        let body = Some(pb::to_keeper::Body::Release(pb::Release { key: 7 }));
        let encoded = pb::ToKeeper { request: 0, body: body.clone() }.encode_to_vec();
        let mut wire = BytesMut::new();
        encode_request(300, &encoded, &mut wire);
        let request = decode(&mut wire).unwrap();
        assert_eq!(request, Some(pb::ToKeeper { request: 300, body }));
    }

    #[test]
    fn a_length_out_of_bounds_is_refused_before_anything_is_kept_for_it() {
        let mut received = BytesMut::from(&u32::MAX.to_le_bytes()[..]);
        assert!(matches!(decode::<pb::Hello>(&mut received), Err(ProtocolError::TooLong(_))));
    }
}
