//! Lets clients in that name a Unix socket by its path.
//!
//! gRPC-core (Python, C++, Ruby, …) sends the percent-encoded path of the socket as `:authority`,
//! gRPC-Java the bare path; by RFC 3986 neither is one, and the HTTP/2 library resets the stream
//! before anyone else sees the request (grpc#38142, h2#487). On a Unix socket the authority says
//! nothing: the path was what led here. So it is overwritten on its way in, byte for byte, by a
//! name that is one.
//!
//! Owns the frames of HTTP/2 as far as it takes to find the header blocks. It is pure: bytes in,
//! the same number of bytes out. It never holds one back, leaves HTTP/1 alone, and says nothing
//! about broken input: the library does.

use self::header_block::HeaderBlock;

mod header_block;

/// What a client that speaks HTTP/2 says first.
pub(crate) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const PADDED: u8 = 0x08;
const PRIORITY: u8 = 0x20;

/// A position in what one client sends.
#[derive(Debug)]
pub(crate) struct Frames {
    state: State,
    block: HeaderBlock,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// In the preface, of which this much was right.
    Preface { matched: usize },
    /// In the header of a frame.
    Header { bytes: [u8; 9], have: usize },
    /// The frame of this length tells next how much padding ends it.
    Padding { length: usize, priority: usize },
    /// In a frame: bytes that do not matter, then some of a header block, then more that do not.
    Payload { before: usize, block: usize, after: usize },
    /// HTTP/1, or nonsense.
    Other,
}

impl Frames {
    /// A client that has sent nothing yet.
    pub(crate) fn new() -> Frames {
        Frames { state: State::Preface { matched: 0 }, block: HeaderBlock::new() }
    }

    /// Follows the next bytes and overwrites what is in them of an authority.
    pub(crate) fn follow(&mut self, mut bytes: &mut [u8]) {
        while let Some(&first) = bytes.first() {
            let (next, taken) = match self.state {
                State::Preface { matched } => {
                    let taken = bytes.len().min(PREFACE.len() - matched);
                    (State::preface(matched, &bytes[..taken]), taken)
                }
                State::Header { bytes: mut header, have } => {
                    let taken = bytes.len().min(header.len() - have);
                    header[have..have + taken].copy_from_slice(&bytes[..taken]);
                    (self.header(header, have + taken), taken)
                }
                State::Padding { length, priority } => (State::padded(length, priority, first), 1),
                State::Payload { before: 0, block: 0, after } => {
                    let taken = bytes.len().min(after);
                    (State::payload(0, 0, after - taken), taken)
                }
                State::Payload { before: 0, block, after } => {
                    let taken = bytes.len().min(block);
                    self.block.walk(&mut bytes[..taken]);
                    (State::payload(0, block - taken, after), taken)
                }
                State::Payload { before, block, after } => {
                    let taken = bytes.len().min(before);
                    (State::payload(before - taken, block, after), taken)
                }
                State::Other => return,
            };
            self.state = next;
            bytes = &mut bytes[taken..];
        }
    }

    /// What follows the first `have` bytes of a frame's header.
    fn header(&mut self, bytes: [u8; 9], have: usize) -> State {
        if have < bytes.len() {
            return State::Header { bytes, have };
        }
        let [high, middle, low, kind, flags, ..] = bytes;
        let length = u32::from_be_bytes([0, high, middle, low]) as usize;
        let priority = if flags & PRIORITY != 0 { 5 } else { 0 };
        if kind == HEADERS {
            self.block = HeaderBlock::new();
        }
        match kind {
            HEADERS if flags & PADDED != 0 && length > 0 => State::Padding { length, priority },
            HEADERS => State::of_headers(length, priority, 0),
            CONTINUATION => State::payload(0, length, 0),
            _ => State::payload(length, 0, 0),
        }
    }
}

impl State {
    fn preface(matched: usize, bytes: &[u8]) -> State {
        let now = matched + bytes.len();
        if &PREFACE[matched..now] != bytes {
            State::Other
        } else if now < PREFACE.len() {
            State::Preface { matched: now }
        } else {
            State::payload(0, 0, 0)
        }
    }

    fn padded(length: usize, priority: usize, padding: u8) -> State {
        State::of_headers(length - 1, priority, padding.into())
    }

    /// A HEADERS frame of which `length` bytes are to come.
    fn of_headers(length: usize, priority: usize, padding: usize) -> State {
        match length.checked_sub(priority + padding) {
            Some(block) => State::payload(priority, block, padding),
            None => State::Other,
        }
    }

    /// In a frame's payload, or past it.
    fn payload(before: usize, block: usize, after: usize) -> State {
        match before + block + after {
            0 => State::Header { bytes: [0; 9], have: 0 },
            _ => State::Payload { before, block, after },
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// All that grpcio 1.85 (Python) sends on `unix:run/procyard.sock` for two calls at once.
    pub(in crate::server) const RECORDED: &[&[u8]] = &[
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\0\0\x24\x04\0\0\0\0\0\0\x02\0\0\0\0\0\x03\0\0\0\0\0\x04\0@\0\0\0\x05\0@\0\0\0\x06\0\0@\0",
        b"\xfe\x03\0\0\0\x01\0\0\x04\x08\0\0\0\0\0\0\x3f\0\x01\0\0\0\x04\x01\0\0\0\0",
        b"\0\0\xdd\x01\x04\0\0\0\x01@\x05:path\x1c/grpc.health.v1.Health/Check",
        b"@\x0a:authority\x13run%2Fprocyard.sock",
        b"\x83\x86@\x0ccontent-type\x10application/grpc@\x02te\x08trailers",
        b"@\x14grpc-accept-encoding\x17identity, deflate, gzip",
        b"@\x0auser-agent0grpc-python/1.85.1 grpc-c/58.0.0 (linux; chttp2)",
        b"\0\0\x04\x08\0\0\0\0\x01\0\0\0\x05\0\0\x05\0\x01\0\0\0\x01\0\0\0\0\0",
        b"\0\0\x08\x01\x04\0\0\0\x03\xc3\xc2\x83\x86\xc1\xc0\xbf\xbe",
        b"\0\0\x04\x08\0\0\0\0\x03\0\0\0\x05\0\0\x05\0\x01\0\0\0\x03\0\0\0\0\0",
        b"\0\0\x04\x08\0\0\0\0\0\0\0\0\x0a",
    ];

    fn followed(pieces: &mut [&mut [u8]]) -> Vec<u8> {
        let mut frames = Frames::new();
        pieces.iter_mut().for_each(|piece| frames.follow(piece));
        pieces.concat()
    }

    fn replaced(bytes: &[u8], from: &str, to: &str) -> Vec<u8> {
        assert_eq!(from.len(), to.len());
        let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
        [&bytes[..at], to.as_bytes(), &bytes[at + to.len()..]].concat()
    }

    #[test]
    fn a_recorded_client_gets_a_valid_authority_wherever_its_bytes_are_cut() {
        let recorded = RECORDED.concat();
        assert_eq!(recorded.len(), 405);
        let valid = replaced(&recorded, "run%2Fprocyard.sock", "XXXXXXXXXXXXXXXXXXX");
        for cut in 0..=recorded.len() {
            let mut bytes = recorded.clone();
            let (left, right) = bytes.split_at_mut(cut);
            assert_eq!(followed(&mut [left, right]), valid, "cut at {cut}");
        }
        let mut bytes = recorded.clone();
        let mut single: Vec<&mut [u8]> = bytes.chunks_mut(1).collect();
        assert_eq!(followed(&mut single), valid);
    }

    #[test]
    fn padding_priority_and_continuation_are_understood() {
        let mut bytes = PREFACE.to_vec();
        // Padded, with a priority: 1 + 5 + 4 + 2 bytes. The value goes on in the next frame.
        bytes.extend(b"\0\0\x0c\x01\x28\0\0\0\x01\x02\x80\0\0\0\x10\x83\x41\x04%pp");
        bytes.extend(b"\0\0\x04\x09\x04\0\0\0\x01%%%\x86");
        // What looks like an authority in data is data.
        bytes.extend(b"\0\0\x03\x00\x01\0\0\0\x01\x41\x01%");
        bytes.extend(b"\0\0\x03\x01\x04\0\0\0\x03\x41\x01%");
        let mut expected = bytes.clone();
        let len = expected.len();
        expected[24 + 9 + 9] = b'X';
        expected[24 + 21 + 9..][..3].fill(b'X');
        expected[len - 1] = b'X';
        assert_eq!(followed(&mut [&mut bytes]), expected);
    }

    #[test]
    fn other_protocols_pass_untouched() {
        for other in [&b"POST /x HTTP/1.1\r\nhost: a%2Fb\r\n\r\n"[..], b"PRI * HTTP/1.1\r\n\r\n"] {
            assert_eq!(followed(&mut [&mut other.to_vec()]), other);
        }
    }

    proptest::proptest! {
        #[test]
        fn whatever_comes_is_followed_alike_in_pieces(
            bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200),
            kind in proptest::sample::select(vec![0u8, 1, 9]),
            flags in proptest::prelude::any::<u8>(),
            size in 1usize..50,
        ) {
            let frame = [PREFACE, &[0, 0, 100, kind, flags, 0, 0, 0, 1][..], &bytes].concat();
            let whole = followed(&mut [&mut frame.clone()]);
            let mut cut = frame.clone();
            let mut pieces: Vec<&mut [u8]> = cut.chunks_mut(size).collect();
            assert_eq!(followed(&mut pieces), whole);
        }
    }
}
