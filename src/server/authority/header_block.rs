//! One HPACK header block, walked as it comes in: the value of `:authority` is blotted out.
//!
//! Owns the forms of RFC 7541 section 6: integers and the lengths of strings. It keeps no table
//! and decodes no string, and never changes a length.

/// The static table's entry for `:authority`.
const AUTHORITY_INDEX: u32 = 1;

/// The same name in letters: gRPC-core spells it out.
const AUTHORITY: &[u8] = b":authority";

/// The name in letters, Huffman-coded.
const AUTHORITY_HUFFMAN: &[u8] = &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];

/// What a value is overwritten with: an `X`, which any host name may hold. Its Huffman code is one
/// of the few of exactly eight bits, so a coded value keeps its length and needs no padding.
///
/// A plain value keeps its decoded length too, and with it the size of its entry in the dynamic
/// table. A coded one gets shorter (whoever codes does it because it saves bytes), so this side
/// evicts later than the client believes: its table begins with all that the client's holds.
const BLOT: u8 = b'X';
const BLOT_HUFFMAN: u8 = 0xfc;

/// A position in a header block. Blocks arrive in pieces, cut anywhere.
#[derive(Debug)]
pub(super) struct HeaderBlock(State);

#[derive(Clone, Copy, Debug)]
enum State {
    /// A field begins.
    Field,
    /// A number that did not fit into the byte it began in.
    Number { means: Number, value: u32, shift: u32 },
    /// The length of a name begins.
    NameLength,
    /// In a name; `same` while all of it so far is `:authority`.
    Name { left: u32, at: usize, same: bool, huffman: bool },
    /// The length of a value begins.
    ValueLength { authority: bool },
    /// In a value, to be overwritten with the blot if there is one.
    Value { left: u32, blot: Option<u8> },
    /// Nonsense, which HTTP/2 refuses by itself.
    Lost,
}

/// What a number says.
#[derive(Clone, Copy, Debug)]
enum Number {
    /// A whole field of the table, or the table's new size.
    Other,
    /// The entry of the table that has the field's name; 0: the name follows in letters.
    NameIndex,
    NameLength {
        huffman: bool,
    },
    ValueLength {
        huffman: bool,
        authority: bool,
    },
}

impl HeaderBlock {
    /// A block of which nothing has come yet.
    pub(super) fn new() -> HeaderBlock {
        HeaderBlock(State::Field)
    }

    /// Walks over the next piece.
    pub(super) fn walk(&mut self, mut bytes: &mut [u8]) {
        while let Some(&first) = bytes.first() {
            let (next, taken) = match self.0 {
                State::Field => (field(first), 1),
                State::Number { means, value, shift } => (longer(means, value, shift, first), 1),
                State::NameLength => {
                    let huffman = first & 0x80 != 0;
                    (number(Number::NameLength { huffman }, first, 7), 1)
                }
                State::ValueLength { authority } => {
                    let huffman = first & 0x80 != 0;
                    (number(Number::ValueLength { huffman, authority }, first, 7), 1)
                }
                State::Name { left, at, same, huffman } => {
                    let taken = bytes.len().min(left as usize);
                    let wanted = if huffman { AUTHORITY_HUFFMAN } else { AUTHORITY };
                    let same = same && wanted.get(at..at + taken) == Some(&bytes[..taken]);
                    let left = left - taken as u32;
                    (State::in_name(left, at + taken, same, huffman), taken)
                }
                State::Value { left, blot } => {
                    let taken = bytes.len().min(left as usize);
                    if let Some(blot) = blot {
                        bytes[..taken].fill(blot);
                    }
                    (State::in_value(left - taken as u32, blot), taken)
                }
                State::Lost => return,
            };
            self.0 = next;
            bytes = &mut bytes[taken..];
        }
    }
}

impl State {
    /// In a name, or at its end.
    fn in_name(left: u32, at: usize, same: bool, huffman: bool) -> State {
        let whole = if huffman { AUTHORITY_HUFFMAN.len() } else { AUTHORITY.len() };
        match left {
            0 => State::ValueLength { authority: same && at == whole },
            left => State::Name { left, at, same, huffman },
        }
    }

    /// In a value, or at its end.
    fn in_value(left: u32, blot: Option<u8>) -> State {
        if left == 0 { State::Field } else { State::Value { left, blot } }
    }
}

/// What the first byte of a field begins.
fn field(first: u8) -> State {
    match first {
        0x80.. => number(Number::Other, first, 7),
        0x40.. => number(Number::NameIndex, first, 6),
        0x20.. => number(Number::Other, first, 5),
        _ => number(Number::NameIndex, first, 4),
    }
}

/// A number that begins in the lowest `bits` of a byte, and ends there unless they are all ones.
fn number(means: Number, first: u8, bits: u32) -> State {
    let most = (1 << bits) - 1;
    let value = u32::from(first) & most;
    if value == most { State::Number { means, value, shift: 0 } } else { known(means, value) }
}

/// The next byte of a number.
fn longer(means: Number, value: u32, shift: u32, byte: u8) -> State {
    // Four more bytes are enough for anything that fits into a frame.
    if shift > 21 {
        return State::Lost;
    }
    let value = value + (u32::from(byte & 0x7f) << shift);
    if byte & 0x80 == 0 {
        known(means, value)
    } else {
        State::Number { means, value, shift: shift + 7 }
    }
}

/// What follows a number.
fn known(means: Number, value: u32) -> State {
    match means {
        Number::Other => State::Field,
        Number::NameIndex if value == 0 => State::NameLength,
        Number::NameIndex => State::ValueLength { authority: value == AUTHORITY_INDEX },
        Number::NameLength { huffman } => State::in_name(value, 0, true, huffman),
        Number::ValueLength { huffman, authority } => {
            let blot = if huffman { BLOT_HUFFMAN } else { BLOT };
            State::in_value(value, authority.then_some(blot))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What becomes of a block, which must not depend on where it is cut.
    fn walked(block: &[u8]) -> Vec<u8> {
        let mut whole = block.to_vec();
        HeaderBlock::new().walk(&mut whole);
        for cut in 0..=block.len() {
            let mut bytes = block.to_vec();
            let mut walk = HeaderBlock::new();
            let (left, right) = bytes.split_at_mut(cut);
            walk.walk(left);
            walk.walk(right);
            assert_eq!(bytes, whole, "cut at {cut}");
        }
        whole
    }

    #[test]
    fn an_authority_named_by_index_is_blotted_out() {
        for first in [0x41, 0x01, 0x11] {
            let block = [&[0x83, first, 5], &b"a%2Fb"[..], &[0x86]].concat();
            assert_eq!(walked(&block), [&[0x83, first, 5], &b"XXXXX"[..], &[0x86]].concat());
        }
    }

    #[test]
    fn an_authority_named_in_letters_is_blotted_out() {
        let block = b"\x40\x0a:authority\x05a%2Fb\x86";
        assert_eq!(walked(block), b"\x40\x0a:authority\x05XXXXX\x86");
        let huffman = [&[0x40, 0x88], AUTHORITY_HUFFMAN, b"\x01%\x86"].concat();
        assert_eq!(walked(&huffman), [&[0x40, 0x88], AUTHORITY_HUFFMAN, b"\x01X\x86"].concat());
    }

    #[test]
    fn a_coded_authority_stays_coded() {
        // www.example.com, as in RFC 7541, C.4.1.
        let value = [0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
        let block = [&[0x82, 0x86, 0x84, 0x41, 0x8c], &value[..]].concat();
        assert_eq!(walked(&block)[5..], [0xfc; 12]);
    }

    #[test]
    fn all_else_is_left_as_it_is() {
        let long = [&b"\x40\x0a:authoritx\x7f\x80\x01"[..], &[b'%'; 255]].concat();
        let blocks: [&[u8]; 6] = [
            b"\x40\x09:authorit\x02%%",
            b"\x40\x0b:authorityy\x02%%",
            b"\x44\x03%2F\x3f\xe1\x1f\x5f\x00\x03%%%",
            b"\x40\x00\x02%%\x41\x00",
            b"\xff\xff\xff\xff\xff\xff\xff\xff\x41\x01%",
            &long,
        ];
        for block in blocks {
            assert_eq!(walked(block), block, "{block:x?}");
        }
    }
}
