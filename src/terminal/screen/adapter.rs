//! In front of the emulator: what programs on an xterm print and `vt100` does not know, said in
//! what it does know.
//!
//! Owns what the emulator does not have: character sets, tab stops, insert mode, printing without
//! wrapping, titles. Where xterm and tmux differ it does as tmux. Every sequence is read here and
//! written anew, so that none reaches the emulator in a spelling that it takes for another.

use std::borrow::Cow;
use std::fmt::Write;

use vte::{Params, Perform};

use super::attributes;
use super::charset::Charsets;
use super::tabs::Tabs;

/// Stands for the replacement character, which the emulator drops. No text has it.
const STAND_IN: char = '\u{10ffff}';

/// Titles that are put aside at most; xterm keeps ten.
const MOST_TITLES: usize = 10;

/// What lies between the output and the emulator.
pub(super) struct Adapter {
    emulator: vt100::Parser,
    /// On its way to the emulator.
    out: String,
    charsets: Charsets,
    /// As they were when the cursor was saved.
    saved_charsets: Charsets,
    tabs: Tabs,
    insert: bool,
    no_wrap: bool,
    title: String,
    titles: Vec<String>,
}

/// A text of the emulator as it is meant.
pub(super) fn shown(text: &str) -> String {
    text.replace(STAND_IN, "\u{fffd}")
}

impl Adapter {
    pub(super) fn new(emulator: vt100::Parser) -> Adapter {
        Adapter {
            emulator,
            out: String::new(),
            charsets: Charsets::default(),
            saved_charsets: Charsets::default(),
            tabs: Tabs::default(),
            insert: false,
            no_wrap: false,
            title: String::new(),
            titles: Vec::new(),
        }
    }

    /// The emulator, with all that came so far.
    pub(super) fn emulator(&mut self) -> &mut vt100::Parser {
        self.emulator.process(self.out.as_bytes());
        self.out.clear();
        &mut self.emulator
    }

    /// The title of the window.
    pub(super) fn title(&self) -> &str {
        &self.title
    }

    /// Row and column of the cursor, and how many columns there are. Behind the last column it
    /// waits for the next character.
    fn place(&mut self) -> (u16, u16, u16) {
        let screen = self.emulator().screen();
        let (row, col) = screen.cursor_position();
        (row, col, screen.size().1.get())
    }

    fn say(&mut self, sequence: std::fmt::Arguments<'_>) {
        // Cannot fail: a String takes everything.
        let _ = self.out.write_fmt(sequence);
    }

    /// Has what follows happen where the cursor is, which it would move.
    fn in_place(&mut self, sequences: &str) {
        let (row, col, cols) = self.place();
        self.out.push_str(sequences);
        self.say(format_args!("\x1b[{};{}H", row + 1, col.min(cols - 1) + 1));
    }

    fn column(&mut self, col: u16) {
        self.say(format_args!("\x1b[{}G", col + 1));
    }

    /// Before a character in a mode of printing that the emulator does not have.
    fn make_room(&mut self, character: char) {
        let width = width(character);
        let (_, col, cols) = self.place();
        if width == 0 || width > cols {
            return;
        }
        if self.no_wrap && col + width > cols {
            self.column(cols - width);
        }
        if self.insert && col + width <= cols {
            self.say(format_args!("\x1b[{width}@"));
        }
    }

    fn tab(&mut self, count: u16) {
        let (_, col, cols) = self.place();
        let stop = self.tabs.after(col, count, cols);
        if stop > col {
            self.column(stop);
        }
    }

    fn save_cursor(&mut self) {
        self.saved_charsets = self.charsets;
        self.out.push_str("\x1b7");
    }

    fn restore_cursor(&mut self) {
        self.charsets = self.saved_charsets;
        self.out.push_str("\x1b8");
    }

    /// A DEC private mode.
    fn mode(&mut self, mode: u16, on: bool) {
        match mode {
            7 => self.no_wrap = !on,
            47 | 1047 | 1049 => self.alternate(mode == 1049, on),
            1048 if on => self.save_cursor(),
            1048 => self.restore_cursor(),
            _ => self.say(format_args!("\x1b[?{mode}{}", if on { 'h' } else { 'l' })),
        }
    }

    /// Shows the alternate screen, always an empty one, or the usual one. The cursor stays where
    /// it is, or goes back to where it was.
    fn alternate(&mut self, with_cursor: bool, on: bool) {
        if self.emulator().screen().alternate_screen() == on {
            return;
        }
        match (with_cursor, on) {
            (true, true) => {
                self.saved_charsets = self.charsets;
                self.in_place("\x1b[?1049h");
            }
            (true, false) => {
                self.charsets = self.saved_charsets;
                self.out.push_str("\x1b[?1049l");
            }
            (false, true) => self.in_place("\x1b[?47h\x1b[?6l\x1b[r\x1b[2J"),
            (false, false) => self.in_place("\x1b[?47l"),
        }
    }

    fn soft_reset(&mut self) {
        (self.insert, self.no_wrap, self.charsets) = (false, false, Charsets::default());
        self.in_place("\x1b[?6l\x1b[r\x1b[?25h\x1b[?1l\x1b>\x1b[m");
    }

    fn reset(&mut self) {
        (self.insert, self.no_wrap) = (false, false);
        (self.charsets, self.saved_charsets) = Default::default();
        self.tabs = Tabs::default();
        self.out.push_str("\x1bc");
    }

    /// DECALN: a screen full of E.
    fn align(&mut self) {
        let (rows, cols) = self.emulator().screen().size();
        let row = "E".repeat(cols.get().into());
        self.out.push_str("\x1b[?6l\x1b[r");
        for at in 1..=rows.get() {
            self.say(format_args!("\x1b[{at}H{row}"));
        }
        self.out.push_str("\x1b[H");
    }

    /// Puts the title aside (22) or takes it back (23).
    fn stack_titles(&mut self, params: &Params) {
        let mut params = params.iter().map(|param| param[0]);
        match (params.next(), params.next().unwrap_or(0)) {
            (Some(22), 0 | 2) if self.titles.len() < MOST_TITLES => {
                self.titles.push(self.title.clone());
            }
            (Some(23), 0 | 2) => self.title = self.titles.pop().unwrap_or(self.title.clone()),
            _ => {}
        }
    }

    /// A sequence that the emulator knows too.
    fn pass(&mut self, params: &Params, private: &str, last: char) {
        self.say(format_args!("\x1b[{private}"));
        for (at, param) in params.iter().enumerate() {
            self.say(format_args!("{}{}", if at > 0 { ";" } else { "" }, param[0]));
        }
        self.out.push(last);
    }

    fn control(&mut self, params: &Params, last: char) {
        let count = params.iter().next().map_or(1, |param| param[0].max(1));
        match last {
            'm' => attributes::write(params, &mut self.out),
            'a' => self.pass(params, "", 'C'),
            'e' => self.pass(params, "", 'B'),
            'b' => {
                let (_, col, cols) = self.place();
                let fits = count.min(cols.saturating_sub(col));
                if fits > 0 {
                    self.say(format_args!("\x1b[{fits}b"));
                }
            }
            'g' => match params.iter().next() {
                Some([3]) => self.tabs.clear(),
                _ => {
                    let (_, col, _) = self.place();
                    self.tabs.set(col, false);
                }
            },
            'h' | 'l' if params.iter().any(|param| param == [4]) => self.insert = last == 'h',
            'I' => self.tab(count),
            'Z' => {
                let (_, col, _) = self.place();
                let stop = self.tabs.before(col, count);
                self.column(stop);
            }
            's' => self.save_cursor(),
            'u' => self.restore_cursor(),
            't' => self.stack_titles(params),
            '@' | '`' | 'A'..='H' | 'J'..='M' | 'P' | 'S' | 'T' | 'X' | 'd' | 'f' | 'r' => {
                self.pass(params, "", last);
            }
            _ => {}
        }
    }
}

impl Perform for Adapter {
    fn print(&mut self, character: char) {
        let character = match self.charsets.map(character) {
            char::REPLACEMENT_CHARACTER => STAND_IN,
            control if control.is_control() => return,
            other => other,
        };
        if self.insert || self.no_wrap {
            self.make_room(character);
        }
        self.out.push(character);
    }

    fn execute(&mut self, control: u8) {
        match control {
            b'\t' => self.tab(1),
            0x08 | 0x0a..=0x0d => self.out.push(control.into()),
            0x0e | 0x0f => self.charsets.shift(control == 0x0e),
            _ => {}
        }
    }

    fn esc_dispatch(&mut self, intermediates: &[u8], _ignore: bool, last: u8) {
        match (intermediates, last) {
            ([place @ (b'(' | b')')], set) => self.charsets.choose(*place, set),
            (b"#", b'8') => self.align(),
            (b"", b'7') => self.save_cursor(),
            (b"", b'8') => self.restore_cursor(),
            (b"", b'c') => self.reset(),
            (b"", b'D') => self.out.push('\n'),
            (b"", b'E') => self.out.push_str("\r\n"),
            (b"", b'M' | b'=' | b'>') => self.say(format_args!("\x1b{}", char::from(last))),
            (b"", b'H') => {
                let (_, col, _) = self.place();
                self.tabs.set(col, true);
            }
            _ => {}
        }
    }

    fn csi_dispatch(&mut self, params: &Params, intermediates: &[u8], ignore: bool, last: char) {
        match (intermediates, last) {
            _ if ignore => {}
            (b"", _) => self.control(params, last),
            (b"?", 'h' | 'l') => {
                params.iter().for_each(|param| self.mode(param[0], last == 'h'));
            }
            (b"?", 'J' | 'K') => self.pass(params, "", last),
            (b"!", 'p') => self.soft_reset(),
            _ => {}
        }
    }

    fn osc_dispatch(&mut self, params: &[&[u8]], _bell: bool) {
        // The title may have the character that separates the parameters.
        if let [b"0" | b"2", title @ ..] = params {
            let title = title.join(&b';');
            let title: Cow<'_, str> = String::from_utf8_lossy(&title);
            self.title = title.chars().filter(|character| !character.is_control()).collect();
        }
    }
}

/// Columns that a character takes, in the opinion of the emulator.
fn width(character: char) -> u16 {
    if character.is_ascii() {
        return 1;
    }
    let mut small = vt100::Parser::new(
        std::num::NonZeroU16::MIN,
        std::num::NonZeroU16::MIN.saturating_add(3),
        0,
    );
    small.process(character.encode_utf8(&mut [0; 4]).as_bytes());
    small.screen().cursor_position().1
}
