//! The bytes of a key, as xterm sends them.

use super::{Base, Key, Modifiers};

/// What keys are typed at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keyboard {
    /// A pipe: Enter ends a line, and that is all that differs.
    Pipe,
    /// A terminal in its normal cursor mode.
    #[default]
    Terminal,
    /// A terminal whose program has asked for application cursor keys.
    ApplicationCursor,
}

impl Keyboard {
    /// Types a key.
    pub fn press(self, key: Key, typed: &mut Vec<u8>) {
        let Key { base, held } = key;
        match base {
            Base::Character(character) => {
                escaped(held, typed);
                match control(character).filter(|_| held.ctrl) {
                    Some(byte) => typed.push(byte),
                    None => typed.extend(character.encode_utf8(&mut [0; 4]).bytes()),
                }
            }
            Base::Enter => {
                escaped(held, typed);
                typed.push(if self == Keyboard::Pipe { b'\n' } else { b'\r' });
            }
            Base::Tab => {
                escaped(held, typed);
                typed.extend(if held.shift { &b"\x1b[Z"[..] } else { b"\t" });
            }
            Base::Escape => {
                escaped(held, typed);
                typed.push(0x1b);
            }
            Base::Backspace => {
                escaped(held, typed);
                typed.push(if held.ctrl { 0x08 } else { 0x7f });
            }
            Base::Up => self.cursor(held, 'A', typed),
            Base::Down => self.cursor(held, 'B', typed),
            Base::Right => self.cursor(held, 'C', typed),
            Base::Left => self.cursor(held, 'D', typed),
            Base::Home => self.cursor(held, 'H', typed),
            Base::End => self.cursor(held, 'F', typed),
            Base::Insert => numbered(held, 2, typed),
            Base::Delete => numbered(held, 3, typed),
            Base::PageUp => numbered(held, 5, typed),
            Base::PageDown => numbered(held, 6, typed),
            Base::Function(number) => function(held, number, typed),
        }
    }

    fn cursor(self, held: Modifiers, last: char, typed: &mut Vec<u8>) {
        match parameter(held) {
            Some(held) => typed.extend(format!("\x1b[1;{held}{last}").bytes()),
            None if self == Keyboard::ApplicationCursor => {
                typed.extend(format!("\x1bO{last}").bytes());
            }
            None => typed.extend(format!("\x1b[{last}").bytes()),
        }
    }
}

/// Alt is an escape before the key.
fn escaped(held: Modifiers, typed: &mut Vec<u8>) {
    if held.alt {
        typed.push(0x1b);
    }
}

/// What is held down, as the parameter of a sequence; none: nothing is.
fn parameter(held: Modifiers) -> Option<u8> {
    let Modifiers { ctrl, alt, shift } = held;
    let held = u8::from(shift) + 2 * u8::from(alt) + 4 * u8::from(ctrl);
    (held > 0).then_some(held + 1)
}

fn numbered(held: Modifiers, number: u8, typed: &mut Vec<u8>) {
    match parameter(held) {
        Some(held) => typed.extend(format!("\x1b[{number};{held}~").bytes()),
        None => typed.extend(format!("\x1b[{number}~").bytes()),
    }
}

fn function(held: Modifiers, number: u8, typed: &mut Vec<u8>) {
    match (number, parameter(held)) {
        (1..=4, None) => typed.extend([0x1b, b'O', b'O' + number]),
        (1..=4, Some(held)) => {
            typed.extend(format!("\x1b[1;{held}{}", char::from(b'O' + number)).bytes());
        }
        // The numbers have holes, where a VT220 has other keys.
        (5, _) => numbered(held, 15, typed),
        (6..=10, _) => numbered(held, number + 11, typed),
        _ => numbered(held, number + 12, typed),
    }
}

/// The control character that Ctrl makes of a character; none: it makes nothing of it.
pub(super) fn control(character: char) -> Option<u8> {
    match character {
        'a'..='z' | 'A'..='Z' | '@' | '[' | '\\' | ']' | '^' | '_' => Some(character as u8 & 0x1f),
        ' ' | '2' => Some(0),
        '3'..='7' => Some(character as u8 - b'3' + 0x1b),
        '8' | '?' => Some(0x7f),
        '/' | '-' => Some(0x1f),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(keyboard: Keyboard, name: &str) -> Vec<u8> {
        let mut typed = Vec::new();
        keyboard.press(Key::parse(name).unwrap_or_else(|| panic!("{name}")), &mut typed);
        typed
    }

    #[test]
    fn keys_are_the_bytes_that_xterm_sends() {
        for (name, bytes) in [
            ("enter", "\r"),
            ("alt+enter", "\x1b\r"),
            ("tab", "\t"),
            ("shift+tab", "\x1b[Z"),
            ("esc", "\x1b"),
            ("space", " "),
            ("backspace", "\x7f"),
            ("ctrl+backspace", "\x08"),
            ("alt+backspace", "\x1b\x7f"),
            ("delete", "\x1b[3~"),
            ("ctrl+delete", "\x1b[3;5~"),
            ("insert", "\x1b[2~"),
            ("pageup", "\x1b[5~"),
            ("shift+pagedown", "\x1b[6;2~"),
            ("up", "\x1b[A"),
            ("down", "\x1b[B"),
            ("right", "\x1b[C"),
            ("left", "\x1b[D"),
            ("home", "\x1b[H"),
            ("end", "\x1b[F"),
            ("shift+up", "\x1b[1;2A"),
            ("alt+down", "\x1b[1;3B"),
            ("ctrl+left", "\x1b[1;5D"),
            ("ctrl+alt+shift+right", "\x1b[1;8C"),
            ("ctrl+home", "\x1b[1;5H"),
            ("f1", "\x1bOP"),
            ("f4", "\x1bOS"),
            ("f5", "\x1b[15~"),
            ("f6", "\x1b[17~"),
            ("f10", "\x1b[21~"),
            ("f11", "\x1b[23~"),
            ("f12", "\x1b[24~"),
            ("shift+f1", "\x1b[1;2P"),
            ("ctrl+f5", "\x1b[15;5~"),
            ("alt+x", "\x1bx"),
            ("alt+é", "\x1bé"),
            ("shift+é", "É"),
            ("ctrl+a", "\x01"),
            ("ctrl+z", "\x1a"),
            ("ctrl+space", "\0"),
            ("ctrl+@", "\0"),
            ("ctrl+[", "\x1b"),
            ("ctrl+\\", "\x1c"),
            ("ctrl+]", "\x1d"),
            ("ctrl+^", "\x1e"),
            ("ctrl+_", "\x1f"),
            ("ctrl+/", "\x1f"),
            ("ctrl+?", "\x7f"),
            ("ctrl+alt+c", "\x1b\x03"),
            ("ctrl+shift+c", "\x03"),
        ] {
            let typed = typed(Keyboard::Terminal, name);
            assert_eq!(String::from_utf8_lossy(&typed), bytes, "{name}");
        }
    }

    #[test]
    fn the_cursor_mode_changes_the_bare_keys_of_the_cursor_and_no_others() {
        for (name, bytes) in [
            ("up", "\x1bOA"),
            ("left", "\x1bOD"),
            ("home", "\x1bOH"),
            ("end", "\x1bOF"),
            ("ctrl+up", "\x1b[1;5A"),
            ("f5", "\x1b[15~"),
            ("enter", "\r"),
        ] {
            let typed = typed(Keyboard::ApplicationCursor, name);
            assert_eq!(String::from_utf8_lossy(&typed), bytes, "{name}");
        }
    }

    #[test]
    fn on_a_pipe_enter_ends_a_line() {
        for (name, bytes) in
            [("enter", "\n"), ("alt+enter", "\x1b\n"), ("up", "\x1b[A"), ("ctrl+c", "\x03")]
        {
            assert_eq!(typed(Keyboard::Pipe, name), bytes.as_bytes(), "{name}");
        }
    }
}
