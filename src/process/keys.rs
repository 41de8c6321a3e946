//! Keys by name: what a person would press, and the bytes that a terminal makes of it. Pure.
//!
//! Owns the names (proto `Keys`, and tmux' spellings). Which bytes a key is, as xterm sends them,
//! stands in `encode`. Knows nothing of any process: whoever types says what is at the other end.

mod encode;

pub use encode::Keyboard;

/// A key that was pressed, with what was held down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    base: Base,
    held: Modifiers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
    Character(char),
    Enter,
    Tab,
    Escape,
    Backspace,
    Up,
    Down,
    Right,
    Left,
    Home,
    End,
    Insert,
    Delete,
    PageUp,
    PageDown,
    /// F1 to F12.
    Function(u8),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Modifiers {
    ctrl: bool,
    alt: bool,
    shift: bool,
}

/// Names besides characters and F1 to F12.
const NAMES: [(&str, Base); 30] = [
    ("enter", Base::Enter),
    ("return", Base::Enter),
    ("tab", Base::Tab),
    ("esc", Base::Escape),
    ("escape", Base::Escape),
    ("space", Base::Character(' ')),
    ("backspace", Base::Backspace),
    ("bspace", Base::Backspace),
    ("delete", Base::Delete),
    ("del", Base::Delete),
    ("dc", Base::Delete),
    ("up", Base::Up),
    ("down", Base::Down),
    ("left", Base::Left),
    ("right", Base::Right),
    ("arrowup", Base::Up),
    ("arrowdown", Base::Down),
    ("arrowleft", Base::Left),
    ("arrowright", Base::Right),
    ("home", Base::Home),
    ("end", Base::End),
    ("pageup", Base::PageUp),
    ("pgup", Base::PageUp),
    ("ppage", Base::PageUp),
    ("pagedown", Base::PageDown),
    ("pgdn", Base::PageDown),
    ("npage", Base::PageDown),
    ("insert", Base::Insert),
    ("ins", Base::Insert),
    ("ic", Base::Insert),
];

impl Key {
    /// What names there are, for who gave none of them.
    pub const CHOICES: &str = "a character, or enter tab esc space backspace delete up down left \
         right home end pageup pagedown insert f1 to f12, with ctrl+ alt+ shift+ before it where \
         a terminal knows such a key, as ctrl+c or C-c";

    /// A key by its name.
    pub fn parse(name: &str) -> Option<Key> {
        let mut held = Modifiers::default();
        let mut rest = name;
        while let Some(shorter) = held.take(rest) {
            rest = shorter;
        }
        let base = match single(rest) {
            Some(character) => Base::Character(character),
            None if rest.eq_ignore_ascii_case("btab") => {
                held.shift = true;
                Base::Tab
            }
            None => named(rest)?,
        };
        Key { base, held }.possible()
    }

    /// The same key, if it is one that a terminal can tell from others.
    fn possible(mut self) -> Option<Key> {
        let Base::Character(character) = self.base else { return Some(self) };
        if self.held.ctrl {
            encode::control(character)?;
        } else if self.held.shift && character != ' ' {
            // Only of letters it is known what Shift makes of them.
            let mut upper = character.to_uppercase();
            let upper = upper.next().filter(|_| upper.len() == 0 && character.is_alphabetic())?;
            self = Key { base: Base::Character(upper), held: self.held };
        }
        self.held.shift = false;
        Some(self)
    }

    /// Its bytes depend on the terminal's cursor mode.
    pub fn follows_cursor_mode(&self) -> bool {
        let cursor = matches!(
            self.base,
            Base::Up | Base::Down | Base::Right | Base::Left | Base::Home | Base::End
        );
        cursor && self.held == Modifiers::default()
    }
}

impl Modifiers {
    /// Takes one modifier from the front of a name that has something after it.
    fn take<'a>(&mut self, name: &'a str) -> Option<&'a str> {
        let at = name.find(['+', '-']).filter(|at| *at > 0 && at + 1 < name.len())?;
        let (word, tmux) = (name[..at].to_ascii_lowercase(), name[at..].starts_with('-'));
        let held = match word.as_str() {
            "ctrl" | "control" => &mut self.ctrl,
            "alt" | "meta" => &mut self.alt,
            "shift" => &mut self.shift,
            "c" if tmux => &mut self.ctrl,
            "m" if tmux => &mut self.alt,
            "s" if tmux => &mut self.shift,
            _ => return None,
        };
        *held = true;
        Some(&name[at + 1..])
    }
}

/// The only character of a text. Control characters have names.
fn single(text: &str) -> Option<char> {
    let mut characters = text.chars();
    let first = characters.next().filter(|character| !character.is_control())?;
    characters.next().is_none().then_some(first)
}

fn named(name: &str) -> Option<Base> {
    let known = NAMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
    known.map(|(_, base)| *base).or_else(|| {
        let number = name.strip_prefix(['f', 'F'])?;
        let number = number.parse().ok().filter(|_| !number.starts_with(['0', '+']))?;
        (1..=12).contains(&number).then_some(Base::Function(number))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of a key on a terminal in its normal mode.
    fn bytes(name: &str) -> Vec<u8> {
        let key = Key::parse(name).unwrap_or_else(|| panic!("{name:?} is no key"));
        let mut bytes = Vec::new();
        Keyboard::default().press(key, &mut bytes);
        bytes
    }

    #[test]
    fn each_spelling_of_a_key_is_the_same_key() {
        for spellings in [
            &["ctrl+c", "CTRL+C", "Ctrl+c", "C-c", "c-C", "ctrl-c"][..],
            &["alt+x", "M-x", "Alt+x", "m-x"],
            &["shift+tab", "S-Tab", "BTab", "btab", "SHIFT+TAB"],
            &["backspace", "BSpace", "Backspace"],
            &["esc", "Escape", "ESC"],
            &["delete", "DC"],
            &["insert", "IC"],
            &["pageup", "PPage", "PgUp", "PageUp"],
            &["pagedown", "NPage", "PgDn"],
            &["shift+up", "S-Up", "s-UP"],
            &["ctrl+alt+x", "alt+ctrl+x", "C-M-x", "M-C-x"],
            &["space", " ", "Space"],
            &["shift+a", "A", "S-a"],
            &["f12", "F12"],
        ] {
            let keys: Vec<_> = spellings.iter().map(|name| bytes(name)).collect();
            assert!(keys.iter().all(|key| *key == keys[0]), "{spellings:?}: {keys:?}");
        }
    }

    #[test]
    fn a_character_is_typed_as_it_is() {
        for name in ["a", "A", "é", "あ", "+", "-", "^", "\"", "1"] {
            assert_eq!(bytes(name), name.as_bytes());
        }
        assert_eq!((bytes("alt++"), bytes("M--")), (b"\x1b+".to_vec(), b"\x1b-".to_vec()));
        assert_eq!((bytes("alt+x"), bytes("alt+X")), (b"\x1bx".to_vec(), b"\x1bX".to_vec()));
    }

    #[test]
    fn what_names_no_key_is_none() {
        for name in [
            "", "ab", "ctrl+", "ctrl", "C-", "hyper+x", "ctrl+ab", "f0", "f13", "f01", "f+1", "ff",
            "\n", "\x03", "ctrl+é", "ctrl+0", "ctrl+.", "shift+1", "c+x", "enter ", "-x",
            "shift+ß",
        ] {
            assert_eq!(Key::parse(name), None, "{name:?}");
        }
    }

    #[test]
    fn only_the_bare_keys_of_the_cursor_follow_its_mode() {
        for (name, follows) in
            [("up", true), ("end", true), ("ctrl+up", false), ("pageup", false), ("x", false)]
        {
            assert_eq!(Key::parse(name).unwrap().follows_cursor_mode(), follows, "{name}");
        }
    }
}
