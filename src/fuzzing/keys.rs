//! Names of keys: each is a key or none, and a key is a few bytes that can be typed.

use crate::process::{Key, Keyboard};

/// Most bytes of a key: `ESC [ 2 4 ; 8 ~`, and some room.
const LONGEST: usize = 8;

/// Every line is a name.
pub fn keys(bytes: &[u8]) {
    for name in String::from_utf8_lossy(bytes).split('\n') {
        let Some(key) = Key::parse(name) else { continue };
        is_typed(key);
        assert_eq!(Key::parse(&format!("alt+{name}")), Key::parse(&format!("M-{name}")));
        let typed = typed(Keyboard::Terminal, key);
        if name.chars().count() == 1 {
            assert_eq!(typed, name.as_bytes(), "a character is typed as it is");
        } else {
            // A name of several letters is the same key in large ones, but for its character.
            assert!(Key::parse(&name.to_ascii_uppercase()).is_some(), "{name:?}");
        }
    }
}

/// A key is a few bytes on everything that it can be typed at.
pub(super) fn is_typed(key: Key) {
    let [pipe, terminal, application] =
        [Keyboard::Pipe, Keyboard::Terminal, Keyboard::ApplicationCursor].map(|at| typed(at, key));
    for bytes in [&pipe, &terminal, &application] {
        assert!((1..=LONGEST).contains(&bytes.len()), "{key:?} is {bytes:x?}");
        assert!(std::str::from_utf8(bytes).is_ok(), "{key:?} is {bytes:x?}");
    }
    assert_eq!(key.follows_cursor_mode(), terminal != application, "{key:?}");
}

fn typed(keyboard: Keyboard, key: Key) -> Vec<u8> {
    let mut typed = Vec::new();
    keyboard.press(key, &mut typed);
    typed
}
