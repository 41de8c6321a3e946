//! The modes that the window is in, since a process that is looked at has chosen them.
//!
//! Owns what there is to undo when it is left: known from what was printed on the window, so that
//! nobody has to be asked, who may be gone by then. Reads what is printed and changes none of it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::sync::{Mutex, MutexGuard, PoisonError};

use vte::{Params, Parser, Perform};

use crate::cli::print;

/// Private modes that the next program would suffer from: keys of the cursor, colours inverted, the
/// origin, wrapping, the cursor hidden, margins, the mouse and how it is told of, the focus, bracketed
/// paste, output held back; and the alternate screen.
const MINDED: [u16; 19] =
    [1, 5, 6, 7, 9, 25, 47, 69, 1000, 1002, 1003, 1004, 1005, 1006, 1015, 1047, 1049, 2004, 2026];
/// The alternate screen, which any of them leaves.
const ALTERNATE: [u16; 3] = [47, 1047, 1049];
/// Modes that are usually on: wrapping, and the cursor shown.
const USUALLY_ON: [u16; 2] = [7, 25];

/// There is one window. None: nobody minds.
static WINDOW: Mutex<Option<Window>> = Mutex::new(None);

/// The window on which a process is looked at.
#[derive(Default)]
pub(super) struct Window {
    parser: Parser,
    modes: Modes,
    left: bool,
}

/// Modes other than the usual.
#[derive(Default)]
struct Modes {
    private: BTreeSet<u16>,
    keypad: bool,
    /// Keys are told in a way of xterm's own (modifyOtherKeys).
    other_keys: bool,
    /// How often another way to tell keys was put on top (kitty's).
    pushed_keys: u16,
    /// What is printed pushes the rest of its line aside.
    inserts: bool,
    /// Only some rows scroll.
    region: bool,
    /// Letters are shown as lines.
    graphics: bool,
    /// The cursor has another shape.
    shape: bool,
}

/// From now on, what is printed on the window is minded, if stdout is one.
pub(super) fn watch() {
    if io::stdout().is_terminal() {
        window().get_or_insert_default();
    }
}

/// The window, for whoever prints on it: the next one waits.
pub(super) fn window() -> MutexGuard<'static, Option<Window>> {
    WINDOW.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prints on the window.
pub(in crate::cli) fn print(text: &[u8]) -> io::Result<()> {
    watch();
    let mut window = window();
    print::to_stdout(text)?;
    window.iter_mut().for_each(|window| window.printed(text));
    Ok(())
}

/// Nothing more will be printed on it: undoes the modes it was left in. Whether that leaves the
/// alternate screen.
pub(in crate::cli) fn leave() -> bool {
    let left = window().as_mut().map(Window::leave);
    let (undo, alternate) = left.unwrap_or_default();
    let _ = print::to_stdout(undo.as_bytes());
    alternate
}

impl Window {
    /// This was.
    pub(super) fn printed(&mut self, output: &[u8]) {
        self.parser.advance(&mut self.modes, output);
    }

    /// Nothing that comes late is to be printed on it.
    pub(super) fn is_left(&self) -> bool {
        self.left
    }

    /// What brings it back into its usual modes, and whether it leaves the alternate screen.
    fn leave(&mut self) -> (String, bool) {
        self.left = true;
        let modes = std::mem::take(&mut self.modes);
        (modes.undo(), modes.private.iter().any(|mode| ALTERNATE.contains(mode)))
    }
}

impl Modes {
    fn undo(&self) -> String {
        let mut undo = String::new();
        if self.pushed_keys > 0 {
            // Each screen has its own: before the alternate one is left.
            let _ = write!(undo, "\x1b[<{}u", self.pushed_keys);
        }
        for mode in &self.private {
            let last = if USUALLY_ON.contains(mode) { 'h' } else { 'l' };
            // Cannot fail: a String takes everything.
            let _ = write!(undo, "\x1b[?{mode}{last}");
        }
        for (chosen, back) in [
            (self.keypad, "\x1b>"),
            (self.other_keys, "\x1b[>4m"),
            (self.inserts, "\x1b[4l"),
            // This moves the cursor, which is to stay.
            (self.region, "\x1b7\x1b[r\x1b8"),
            (self.graphics, "\x1b(B"),
            (self.shape, "\x1b[0 q"),
        ] {
            undo.push_str(if chosen { back } else { "" });
        }
        undo
    }

    fn private(&mut self, mode: u16, on: bool) {
        if on == USUALLY_ON.contains(&mode) {
            let same = |other: &u16| ALTERNATE.contains(&mode) && ALTERNATE.contains(other);
            self.private.retain(|other| *other != mode && !same(other));
        } else if MINDED.contains(&mode) {
            self.private.insert(mode);
        }
    }
}

impl Perform for Modes {
    fn csi_dispatch(&mut self, params: &Params, intermediates: &[u8], ignore: bool, last: char) {
        let mut numbers = params.iter().map(|param| param[0]);
        match (intermediates, last) {
            _ if ignore => {}
            (b"?", 'h' | 'l') => numbers.for_each(|mode| self.private(mode, last == 'h')),
            (b">", 'm') if numbers.next() == Some(4) => {
                self.other_keys = numbers.next().unwrap_or(0) > 0;
            }
            (b">", 'n') if numbers.next() == Some(4) => self.other_keys = false,
            (b">", 'u') => self.pushed_keys = self.pushed_keys.saturating_add(1),
            (b"<", 'u') => {
                let popped = numbers.next().unwrap_or(0).max(1);
                self.pushed_keys = self.pushed_keys.saturating_sub(popped);
            }
            (b"", 'h' | 'l') if numbers.any(|mode| mode == 4) => self.inserts = last == 'h',
            (b"", 'r') => self.region = numbers.any(|row| row > 0),
            (b" ", 'q') => self.shape = numbers.next().unwrap_or(0) > 0,
            // DECSTR, the soft reset.
            (b"!", 'p') => {
                self.private.retain(|mode| ![1, 6, 7, 25].contains(mode));
                (self.keypad, self.inserts, self.region, self.graphics) = Default::default();
            }
            _ => {}
        }
    }

    fn esc_dispatch(&mut self, intermediates: &[u8], _ignore: bool, last: u8) {
        match (intermediates, last) {
            (b"", b'=') => self.keypad = true,
            (b"", b'>') => self.keypad = false,
            (b"(", set) => self.graphics = set != b'B',
            // RIS, the full reset.
            (b"", b'c') => *self = Modes::default(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(printed: &str) -> (String, bool) {
        let mut window = Window::default();
        // A sequence may lie across pieces.
        printed.as_bytes().chunks(1).for_each(|byte| window.printed(byte));
        window.leave()
    }

    #[test]
    fn what_was_chosen_is_undone_and_nothing_else() {
        for (printed, undone, alternate) in [
            ("text \x1b[31m\x1b[2J\x1b[?12h", "", false),
            ("\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l", true),
            ("\x1b[?1049h\x1b[?1049l", "", false),
            ("\x1b[?47h\x1b[?1049l", "", false),
            ("\x1b[?1h\x1b=", "\x1b[?1l\x1b>", false),
            ("\x1b[?1h\x1b=\x1b[?1l\x1b>", "", false),
            ("\x1b[?1000;1006;2004h", "\x1b[?1000l\x1b[?1006l\x1b[?2004l", false),
            ("\x1b[?1000;1006;2004h\x1b[?1000;1006l", "\x1b[?2004l", false),
            ("\x1b[?7l\x1b[?7l", "\x1b[?7h", false),
            ("\x1b[?7h\x1b[?25h", "", false),
            ("\x1b[>4;2m", "\x1b[>4m", false),
            ("\x1b[>4;2m\x1b[>4;m", "", false),
            ("\x1b[?1;1004h\x1b[?25l\x1b=\x1b[!p", "\x1b[?1004l", false),
            ("\x1b[?1049;1003h\x1b=\x1bc", "", false),
            ("\x1b[3;10r", "\x1b7\x1b[r\x1b8", false),
            ("\x1b[3;10r\x1b[r", "", false),
            ("\x1b(0lqk\x1b[4h", "\x1b[4l\x1b(B", false),
            ("\x1b(0lqk\x1b(B\x1b[4h\x1b[4l", "", false),
            ("\x1b[4 q\x1b[>1u\x1b[>5u\x1b[<u", "\x1b[<1u\x1b[0 q", false),
            ("\x1b[4 q\x1b[ q\x1b[>1u\x1b[<9u", "", false),
        ] {
            assert_eq!(left(printed), (undone.to_owned(), alternate), "{printed:?}");
        }
    }
}
