//! The picture on a terminal: its output, played at the sizes that it had.
//!
//! Owns one emulator (the crate `vt100`). What that does not know is put into words that it does
//! know, in front of it (`adapter`).

mod adapter;
mod attributes;
mod charset;
mod tabs;

use std::num::NonZeroU16;

use vte::Parser;

use crate::process::Size;
use adapter::Adapter;

/// A terminal, as far as its output was fed.
pub struct Screen {
    parser: Parser,
    adapter: Adapter,
    /// The beginning of a character whose end is yet to come.
    cut: Vec<u8>,
}

/// What a terminal shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Rows from top to bottom, without the spaces at their ends.
    pub rows: Vec<String>,
    /// Row and column of the cursor, from 0.
    pub cursor: (u16, u16),
    /// The cursor is shown.
    pub cursor_visible: bool,
    /// The alternate screen is shown.
    pub alternate: bool,
    /// The title of the window.
    pub title: String,
    /// Draws it on an empty terminal of its size.
    pub ansi: String,
    /// Brings a terminal in its usual state into the modes of this one, before it is drawn.
    pub modes: String,
    /// The size.
    pub size: Size,
}

impl Screen {
    /// An empty terminal. One that will be resized keeps rows that have left it at the top, as
    /// they come back when it grows.
    pub fn new(size: Size, will_be_resized: bool) -> Screen {
        let (rows, cols) = sides(size);
        let kept = if will_be_resized { usize::from(Size::MAX) } else { 0 };
        Screen {
            parser: Parser::new(),
            adapter: Adapter::new(vt100::Parser::new(rows, cols, kept)),
            cut: Vec::new(),
        }
    }

    /// Goes on with more output. A sequence or a character may lie across pieces.
    ///
    /// The parser gets whole characters only: it may lose what follows one that it got in pieces.
    pub fn feed(&mut self, output: &[u8]) {
        let mut joined = std::mem::take(&mut self.cut);
        let output = if joined.is_empty() {
            output
        } else {
            joined.extend_from_slice(output);
            &joined
        };
        let (whole, cut) = output.split_at(output.len() - unfinished(output));
        self.parser.advance(&mut self.adapter, whole);
        self.cut.extend_from_slice(cut);
        self.adapter.emulator();
    }

    /// Gives it another size.
    pub fn resize(&mut self, size: Size) {
        let (rows, cols) = sides(size);
        self.adapter.emulator().screen_mut().set_size(rows, cols);
    }

    /// What it shows now.
    pub fn picture(&mut self) -> Picture {
        let title = self.adapter.title().to_owned();
        let screen = self.adapter.emulator().screen();
        let (rows, cols) = screen.size();
        let (rows, cols) = (rows.get(), cols.get());
        let (row, col) = screen.cursor_position();
        let texts = screen.rows(0, cols);
        Picture {
            rows: texts.map(|row| adapter::shown(row.trim_end_matches(' '))).collect(),
            // Behind the last column it waits for the next character in the last one.
            cursor: (row, col.min(cols - 1)),
            cursor_visible: !screen.hide_cursor(),
            alternate: screen.alternate_screen(),
            ansi: adapter::shown(&screen.contents_formatted()),
            modes: modes(screen),
            size: Size { rows, cols },
            title,
        }
    }
}

/// What was chosen of the alternate screen, the keys and the mouse. Whether the cursor is shown is
/// said by whatever draws the screen.
fn modes(screen: &vt100::Screen) -> String {
    let usual = vt100::Parser::new(NonZeroU16::MIN, NonZeroU16::MIN, 0);
    let alternate = if screen.alternate_screen() { "\x1b[?1049h" } else { "" };
    format!("{alternate}{}", screen.input_mode_diff(usual.screen()))
}

/// How many bytes at the end begin a character that does not end there.
fn unfinished(output: &[u8]) -> usize {
    // Characters have up to four bytes, and all but the first of them look alike.
    let mut lengths = 1..=output.len().min(3);
    let begins = lengths.find(|length| output[output.len() - length] & 0xc0 != 0x80);
    let cut = begins.filter(|length| {
        let parsed = std::str::from_utf8(&output[output.len() - length..]);
        parsed.is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
    });
    cut.unwrap_or(0)
}

/// A size is never 0: one that were would be shown as 1.
fn sides(size: Size) -> (NonZeroU16, NonZeroU16) {
    let side = |side| NonZeroU16::new(side).unwrap_or(NonZeroU16::MIN);
    (side(size.rows), side(size.cols))
}

#[cfg(test)]
mod tests;
