//! HTTP/2 by hand, for clients that no library would be: frames out, frames in.

use prost::Message;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::soon;

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

pub const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// A frame, as it is sent or came.
#[derive(Debug)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

/// The bytes of a frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// What a client says first: windows as large as they can be, so that only the socket stops what
/// is sent to it.
pub fn hello() -> Vec<u8> {
    let window = u32::MAX >> 1;
    let largest = [&[0, 4][..], &window.to_be_bytes()].concat();
    let more = (window - 65_535).to_be_bytes();
    [PREFACE, &frame(SETTINGS, 0, 0, &largest), &frame(WINDOW_UPDATE, 0, 0, &more)].concat()
}

/// The headers of a call, and no more of it.
pub fn call_headers(stream: u32, authority: &str, path: &str) -> Vec<u8> {
    headers(stream, authority, path, &[])
}

fn headers(stream: u32, authority: &str, path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    let usual = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", authority),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    for (name, value) in usual.iter().chain(more) {
        block.push(0);
        for word in [name, value] {
            // One byte has room for lengths below 127.
            assert!(word.len() < 127);
            block.push(word.len() as u8);
            block.extend_from_slice(word.as_bytes());
        }
    }
    frame(HEADERS, END_HEADERS, stream, &block)
}

/// A message with the prefix that gRPC gives it.
pub fn prefixed(message: &impl Message) -> Vec<u8> {
    let length = u32::try_from(message.encoded_len()).unwrap();
    [&[0][..], &length.to_be_bytes(), &message.encode_to_vec()].concat()
}

/// A whole unary call, or one that streams its answers.
pub fn call(stream: u32, authority: &str, path: &str, message: &impl Message) -> Vec<u8> {
    let data = frame(DATA, END_STREAM, stream, &prefixed(message));
    [call_headers(stream, authority, path), data].concat()
}

/// A whole call that shows a token, or nothing.
pub fn call_with_token(
    stream: u32,
    token: Option<&str>,
    path: &str,
    message: &impl Message,
) -> Vec<u8> {
    let bearer = token.map(|token| format!("Bearer {token}"));
    let shown: Vec<_> = bearer.iter().map(|bearer| ("authorization", bearer.as_str())).collect();
    let data = frame(DATA, END_STREAM, stream, &prefixed(message));
    [headers(stream, "localhost", path, &shown), data].concat()
}

/// The next frame; none: the server hung up.
pub async fn next_frame(io: &mut (impl AsyncRead + Unpin)) -> Option<Frame> {
    let mut header = [0; 9];
    soon(io.read_exact(&mut header)).await.ok()?;
    let [high, middle, low, kind, flags, a, b, c, d] = header;
    let length = u32::from_be_bytes([0, high, middle, low]) as usize;
    let mut payload = vec![0; length];
    soon(io.read_exact(&mut payload)).await.ok()?;
    Some(Frame { kind, flags, stream: u32::from_be_bytes([a, b, c, d]), payload })
}

/// The first message that comes on a stream, which must not be reset before.
pub async fn answer<M: Message + Default>(io: &mut (impl AsyncRead + Unpin), stream: u32) -> M {
    let mut bytes = Vec::new();
    loop {
        let frame = next_frame(io).await.expect("the server hung up");
        if frame.stream != stream {
            assert_ne!(frame.kind, GOAWAY, "{frame:?}");
            continue;
        }
        assert!(frame.kind == DATA || frame.flags & END_STREAM == 0, "no answer: {frame:?}");
        assert_ne!(frame.kind, RST_STREAM, "{frame:?}");
        if frame.kind == DATA {
            bytes.extend_from_slice(&frame.payload);
        }
        if let Some(length) = bytes.get(1..5) {
            let length = u32::from_be_bytes(length.try_into().unwrap()) as usize;
            if let Some(message) = bytes.get(5..5 + length) {
                return M::decode(message).unwrap();
            }
        }
    }
}

/// Sends all of it.
pub async fn send(io: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) {
    soon(io.write_all(bytes)).await.unwrap();
}
