//! Taking escape sequences out of a stream that comes in pieces.
//!
//! Owns where a stream is between two pieces: inside a sequence, or behind a byte of which the
//! next one tells whether it stays. Left out are sequences as ECMA-48 has them, and control
//! characters but for tab, line feed and carriage return. Bytes that are no UTF-8 stay.
//!
//! A line feed ends any sequence, and stays: whatever a program leaves open, the next line shows.

use crate::transcript::Chunk;

const BEL: u8 = 0x07;
const TAB: u8 = b'\t';
const LF: u8 = b'\n';
const CR: u8 = b'\r';
const CAN: u8 = 0x18;
const SUB: u8 = 0x1a;
const ESC: u8 = 0x1b;
const DEL: u8 = 0x7f;
/// The first byte of the control characters from U+0080 on, in UTF-8, and of others.
const C1: u8 = 0xc2;

/// Where a stream is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Text,
    /// Behind ESC.
    Escape,
    /// Behind ESC and something that wants more, as in `ESC ( B`.
    Designation,
    /// Behind `ESC [`.
    Control,
    /// Between the two bytes of a control character from U+0080 on.
    Character,
    /// In a string for the terminal, as a title, up to BEL or `ESC \`.
    String,
    /// The same, behind the first byte of what may be its end.
    StringCharacter,
}

/// What becomes of a byte.
enum Fate {
    Stays,
    Goes,
    /// The next byte tells.
    Waits,
}

/// Takes sequences out of one stream.
#[derive(Default)]
pub(super) struct Stripper {
    state: State,
    /// The last byte, if the next one decides on it.
    waiting: Option<Chunk>,
}

impl Stripper {
    /// What stays of the next piece: first the byte that waited, if it does, then the rest.
    pub(super) fn strip(&mut self, piece: Chunk) -> [Option<Chunk>; 2] {
        let special = |byte: &u8| *byte < b' ' && ![LF, CR, TAB].contains(byte);
        let special = |byte: &u8| special(byte) || *byte == DEL || *byte == C1;
        if self.state == State::Text && self.waiting.is_none() && !piece.data.iter().any(special) {
            return [None, Some(piece)];
        }
        let late = self.waiting.take().filter(|_| self.stays(&piece.data));
        let mut stays = Vec::with_capacity(piece.data.len());
        let mut first = None;
        for (at, byte) in piece.data.iter().enumerate() {
            let fate = self.next(*byte);
            let stay = match fate {
                Fate::Stays => true,
                Fate::Goes => false,
                Fate::Waits if at + 1 == piece.data.len() => {
                    self.waiting = Some(part(&piece, at));
                    false
                }
                Fate::Waits => self.stays(&piece.data[at + 1..]),
            };
            if stay {
                first.get_or_insert(at);
                stays.push(*byte);
            }
        }
        let rest = first.map(|first| Chunk {
            offset: piece.offset + first as u64,
            data: stays.into(),
            ..piece
        });
        [late, rest]
    }

    /// The byte that waits: it stays when nothing follows.
    pub(super) fn flush(&mut self) -> Option<Chunk> {
        self.waiting.take()
    }

    /// The chunk of the byte that waits.
    pub(super) fn waits_in(&self) -> Option<u64> {
        self.waiting.as_ref().map(|waiting| waiting.seq)
    }

    /// Whether a byte that waited stays before what follows it.
    fn stays(&mut self, following: &[u8]) -> bool {
        let control = matches!(following.first(), Some(0x80..=0x9f));
        if control {
            self.state = State::Character;
        }
        !control
    }

    fn next(&mut self, byte: u8) -> Fate {
        use State::*;
        let (state, fate) = match (self.state, byte) {
            (_, LF) => (Text, Fate::Stays),
            (_, ESC) => (Escape, Fate::Goes),
            (Text, _) => (Text, text(byte)),
            (Character, 0x9b) => (Control, Fate::Goes),
            (Character, 0x90 | 0x98 | 0x9d..=0x9f) => (String, Fate::Goes),
            (Character, _) | (_, CAN | SUB) => (Text, Fate::Goes),
            (String | StringCharacter, BEL) | (StringCharacter, 0x9c) => (Text, Fate::Goes),
            (String | StringCharacter, C1) => (StringCharacter, Fate::Goes),
            (String | StringCharacter, _) => (String, Fate::Goes),
            (Escape, b'[') => (Control, Fate::Goes),
            (Escape, b']' | b'P' | b'X' | b'^' | b'_') => (String, Fate::Goes),
            (Escape | Designation, b' '..=b'/') => (Designation, Fate::Goes),
            (Escape | Designation, b'0'..=b'~') | (Control, b'@'..=b'~') => (Text, Fate::Goes),
            // No sequence has such a byte: it was none.
            (_, 0x80..) => (Text, text(byte)),
            // Parameters; and control characters, which do not end a sequence.
            (state, _) => (state, Fate::Goes),
        };
        self.state = state;
        fate
    }
}

fn text(byte: u8) -> Fate {
    match byte {
        TAB | CR => Fate::Stays,
        C1 => Fate::Waits,
        0..b' ' | DEL => Fate::Goes,
        _ => Fate::Stays,
    }
}

/// One byte of a piece.
fn part(piece: &Chunk, at: usize) -> Chunk {
    Chunk { offset: piece.offset + at as u64, data: piece.data.slice(at..=at), ..piece.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transcript::Stream;

    /// What stays of pieces, and where it was.
    fn strip(pieces: &[&[u8]]) -> (Vec<u8>, Vec<u64>) {
        let mut stripper = Stripper::default();
        let (mut shown, mut offset) = (Vec::new(), 0);
        for piece in pieces {
            let data = bytes::Bytes::copy_from_slice(piece);
            let chunk = Chunk { seq: 1, stream: Stream::Terminal, offset, time: 0, data };
            offset += piece.len() as u64;
            shown.extend(stripper.strip(chunk).into_iter().flatten());
        }
        shown.extend(stripper.flush());
        let bytes = shown.iter().flat_map(|chunk| chunk.data.to_vec()).collect();
        (bytes, shown.iter().map(|chunk| chunk.offset).collect())
    }

    const CASES: [(&[u8], &str); 20] = [
        (b"plain\ttext\r\n", "plain\ttext\r\n"),
        (b"\x1b[31mred\x1b[0m", "red"),
        (b"\x1b[38;2;1;2;3mdeep\x1b[m", "deep"),
        (b"a\x1b]0;a title\x07b", "ab"),
        (b"a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\b", "alinkb"),
        (b"\x1bP1$r0m\x1b\\x", "x"),
        (b"\x1b_Gf=100;AAAA\x1b\\x", "x"),
        (b"\x1b(Ba\x1b#8b\x1b=c\x1b7d", "abcd"),
        (b"10%\r20%\r\n", "10%\r20%\r\n"),
        (b"lone\r\x1b[K", "lone\r"),
        (b"a\x08b\x00c\x7fd\x07", "abcd"),
        (b"\x1b]0;never closed\nnext", "\nnext"),
        (b"\x1b[31\nnext", "\nnext"),
        (b"\x1b[3\x18text", "text"),
        (b"\x1b[3\x1b[1mtext", "text"),
        ("ä\u{85}ö\u{9b}1mü\u{9d}0;title\u{9c}€©".as_bytes(), "äöü€©"),
        ("\x1b]0;✔ done\u{b0}\x07x".as_bytes(), "x"),
        ("\x1b[ä".as_bytes(), "ä"),
        ("\x1b[?25hß".as_bytes(), "ß"),
        (b"\x1b\x1b[1mx\x1b", "x"),
    ];

    #[test]
    fn sequences_and_control_characters_go_and_text_stays() {
        for (input, output) in CASES {
            let (shown, _) = strip(&[input]);
            assert_eq!(String::from_utf8_lossy(&shown), output, "{input:?}");
        }
    }

    #[test]
    fn it_does_not_matter_where_a_stream_is_cut() {
        for (input, output) in CASES {
            for at in 0..=input.len() {
                let (shown, _) = strip(&[&input[..at], &input[at..]]);
                assert_eq!(String::from_utf8_lossy(&shown), output, "{input:?} cut at {at}");
            }
            let (shown, _) = strip(&input.chunks(1).collect::<Vec<_>>());
            assert_eq!(String::from_utf8_lossy(&shown), output, "{input:?} byte by byte");
        }
    }

    #[test]
    fn bytes_that_are_no_text_stay() {
        let bytes: Vec<u8> = (0x80..=0xff).filter(|byte| *byte != C1).collect();
        assert_eq!(strip(&[&bytes]).0, bytes);
        assert_eq!(strip(&[b"a\xc2"]).0, b"a\xc2", "half a character at the end");
        assert_eq!(strip(&[b"a\xc2", b"\xa9"]).0, "a©".as_bytes());
    }

    #[test]
    fn a_piece_tells_where_its_first_byte_was() {
        assert_eq!(strip(&[b"\x1b[1mab", b"\x1b[0m", b"c\r", b"\n"]).1, [4, 10, 12]);
    }
}
