//! Whether a program has asked for application cursor keys (DECCKM).

use vte::{Params, Parser, Perform};

/// The cursor mode of a terminal, as far as its output was fed.
#[derive(Default)]
pub struct CursorMode {
    parser: Parser,
    seen: Seen,
}

#[derive(Default)]
struct Seen {
    application: bool,
}

impl CursorMode {
    /// Goes on with more output. A sequence may lie across pieces.
    pub fn feed(&mut self, output: &[u8]) {
        self.parser.advance(&mut self.seen, output);
    }

    /// The keys of the cursor are the application's.
    pub fn is_application(&self) -> bool {
        self.seen.application
    }
}

impl Perform for Seen {
    fn csi_dispatch(&mut self, params: &Params, intermediates: &[u8], ignore: bool, last: char) {
        match (intermediates, last) {
            _ if ignore => {}
            (b"?", 'h' | 'l') if params.iter().any(|param| param == [1]) => {
                self.application = last == 'h';
            }
            // DECSTR, the soft reset.
            (b"!", 'p') => self.application = false,
            _ => {}
        }
    }

    fn esc_dispatch(&mut self, intermediates: &[u8], _ignore: bool, last: u8) {
        // RIS, the full reset.
        if intermediates.is_empty() && last == b'c' {
            self.application = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(pieces: &[&[u8]]) -> bool {
        let mut mode = CursorMode::default();
        pieces.iter().for_each(|piece| mode.feed(piece));
        mode.is_application()
    }

    #[test]
    fn the_last_word_counts() {
        for (output, application) in [
            (&b""[..], false),
            (b"text\x1b[?1htext", true),
            (b"\x1b[?1h\x1b[?1l", false),
            (b"\x1b[?1h\x1b=", true),
            (b"\x1b[?25;1;7h", true),
            (b"\x1b[?1h\x1b[?25;1l", false),
            (b"\x1b[?1h\x1bc", false),
            (b"\x1b[?1h\x1b[!p", false),
            (b"\x1b[1h", false),
            (b"\x1b[?10h\x1b[?11h", false),
            (b"\x1b[?1h\x1b(c", true),
            (b"\x1b[?1:1h", false),
            (b"\x1b]0;\x1b[?1h\x07", true),
            (b"\x1b]0;[?1h\x07", false),
        ] {
            assert_eq!(after(&[output]), application, "{:?}", String::from_utf8_lossy(output));
        }
    }

    #[test]
    fn a_sequence_may_lie_across_pieces() {
        let output = "é\u{1b}[?25;1hé".as_bytes();
        for at in 0..=output.len() {
            assert!(after(&[&output[..at], &output[at..]]), "cut at {at}");
        }
        let bytes: Vec<&[u8]> = output.chunks(1).collect();
        assert!(after(&bytes));
    }
}
