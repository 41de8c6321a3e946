//! Colours and attributes (SGR), in the spelling that the emulator knows.
//!
//! It takes colours as `38;5;n` and `38;2;r;g;b` only, and would take the parameters of what it
//! does not know, as the colour of an underline, for attributes of their own.

use std::fmt::Write;

use vte::Params;

/// Writes one SGR sequence as the emulator takes it.
pub(super) fn write(params: &Params, out: &mut String) {
    let params: Vec<&[u16]> = params.iter().collect();
    let mut left = &params[..];
    let mut kept: Vec<u16> = Vec::new();
    while let Some((param, rest)) = left.split_first() {
        left = rest;
        match param {
            [which @ (38 | 48 | 58)] => {
                let long = match rest {
                    [[2], _, _, _, ..] => 4,
                    [[5], _, ..] => 2,
                    _ => rest.len(),
                };
                let colour: Vec<u16> = rest[..long].iter().map(|part| part[0]).collect();
                left = &rest[long..];
                colour_of(*which, &colour, &mut kept);
            }
            // With colons there may be a colour space before the colours.
            [which @ (38 | 48 | 58), 2, _, r, g, b, ..] => {
                colour_of(*which, &[2, *r, *g, *b], &mut kept);
            }
            [which @ (38 | 48 | 58), colour @ ..] => colour_of(*which, colour, &mut kept),
            [4, 0] => kept.push(24),
            // Double and curly underlines are underlines.
            [4, _] | [21] => kept.push(4),
            [59] => {}
            [plain] => kept.push(*plain),
            _ => {}
        }
    }
    // Without parameters it would mean a reset.
    if kept.is_empty() {
        return;
    }
    out.push_str("\x1b[");
    for (at, param) in kept.iter().enumerate() {
        // Cannot fail: a String takes everything.
        let _ = write!(out, "{}{param}", if at > 0 { ";" } else { "" });
    }
    out.push('m');
}

/// A colour of the text or its background, if it is whole.
fn colour_of(which: u16, colour: &[u16], kept: &mut Vec<u16>) {
    let whole = matches!(colour, [2, _, _, _] | [5, _]);
    let fits = colour.iter().all(|part| *part <= 255);
    if which != 58 && whole && fits {
        kept.push(which);
        kept.extend(colour);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Only(String);

    impl vte::Perform for Only {
        fn csi_dispatch(&mut self, params: &Params, _: &[u8], _: bool, _: char) {
            write(params, &mut self.0);
        }
    }

    fn written(given: &str) -> String {
        let mut only = Only(String::new());
        vte::Parser::new().advance(&mut only, format!("\x1b[{given}m").as_bytes());
        only.0
    }

    #[test]
    fn every_spelling_of_a_colour_is_known() {
        for (given, known) in [
            ("", "0"),
            ("0", "0"),
            ("1;31", "1;31"),
            ("38;5;208;1", "38;5;208;1"),
            ("38:5:208;1", "38;5;208;1"),
            ("48;2;1;2;3;4", "48;2;1;2;3;4"),
            ("48:2:1:2:3;4", "48;2;1;2;3;4"),
            ("48:2::1:2:3;4", "48;2;1;2;3;4"),
            ("4:3", "4"),
            ("4:0", "24"),
            ("21", "4"),
        ] {
            assert_eq!(written(given), format!("\x1b[{known}m"), "{given}");
        }
    }

    #[test]
    fn what_is_unknown_is_left_out_whole() {
        for (given, known) in [("58;5;1;7", "7"), ("58:2::1:2:3;7", "7"), ("1;59", "1")] {
            assert_eq!(written(given), format!("\x1b[{known}m"), "{given}");
        }
        for given in ["58;5;1", "38;5", "38;2;1", "38;5;256", "59", "58:5:1"] {
            assert_eq!(written(given), "", "{given}");
        }
    }
}
