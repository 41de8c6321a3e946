//! The keys that leave a process alone, found among all that is typed. Pure.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;

/// The keys, typed one after the other; none: there are no such keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct DetachKeys(Vec<u8>);

impl DetachKeys {
    /// Those of Docker.
    pub(in crate::cli) const USUAL: &str = "ctrl-p,ctrl-q";
}

impl FromStr for DetachKeys {
    type Err = String;

    fn from_str(text: &str) -> Result<DetachKeys, String> {
        if text.is_empty() || text == "none" {
            return Ok(DetachKeys(Vec::new()));
        }
        let key = |name: &str| match *name.as_bytes() {
            [byte @ b' '..=b'~'] => Ok(byte),
            [b'c', b't', b'r', b'l', b'-' | b'+', byte @ (b'a'..=b'z' | b'@' | b'['..=b'_')] => {
                Ok(byte.to_ascii_uppercase() - b'@')
            }
            _ => Err(format!("{name:?} is no key; as in {}, or none", DetachKeys::USUAL)),
        };
        Ok(DetachKeys(text.split(',').map(key).collect::<Result<_, _>>()?))
    }
}

impl fmt::Display for DetachKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, key) in self.0.iter().enumerate() {
            let between = if n > 0 { " " } else { "" };
            match key {
                0..b' ' => {
                    write!(f, "{between}ctrl-{}", (key + b'@').to_ascii_lowercase() as char)?
                }
                _ => write!(f, "{between}{}", *key as char)?,
            }
        }
        Ok(())
    }
}

/// Looks for them.
#[derive(Debug)]
pub(super) struct Lookout {
    keys: DetachKeys,
    /// Typed, and maybe the beginning of them.
    held: Vec<u8>,
}

impl Lookout {
    pub(super) fn new(keys: DetachKeys) -> Lookout {
        Lookout { keys, held: Vec::new() }
    }

    /// What of it is for the process, and whether the keys were found behind that.
    pub(super) fn pass(&mut self, typed: Bytes) -> (Bytes, bool) {
        let DetachKeys(keys) = &self.keys;
        if keys.is_empty() || self.held.is_empty() && !typed.contains(&keys[0]) {
            return (typed, false);
        }
        let mut passed = Vec::with_capacity(self.held.len() + typed.len());
        for byte in typed {
            self.held.push(byte);
            if self.held == *keys {
                self.held.clear();
                return (passed.into(), true);
            }
            while !keys.starts_with(&self.held) {
                passed.push(self.held.remove(0));
            }
        }
        (passed.into(), false)
    }

    /// Whether something is held back.
    pub(super) fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// Gives it up: the next key was a while in coming.
    pub(super) fn release(&mut self) -> Bytes {
        std::mem::take(&mut self.held).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookout(keys: &str) -> Lookout {
        Lookout::new(keys.parse().unwrap())
    }

    #[test]
    fn they_are_found_however_they_come_and_nothing_else_is_lost() {
        let mut whole = lookout(DetachKeys::USUAL);
        assert_eq!(whole.pass("ab\x10\x11cd".into()), ("ab".into(), true));
        let mut parts = lookout(DetachKeys::USUAL);
        assert_eq!(parts.pass("\x10".into()), (Bytes::new(), false));
        assert!(parts.holds());
        assert_eq!(parts.pass("\x10x\x10".into()), ("\x10\x10x".into(), false));
        assert_eq!(parts.release(), "\x10");
        assert_eq!(parts.pass("\x11".into()), ("\x11".into(), false));
        let mut thrice = lookout("a,a,b");
        assert_eq!(thrice.pass("aaab".into()), ("a".into(), true));
        assert_eq!(lookout("none").pass("\x10\x11".into()), ("\x10\x11".into(), false));
    }

    #[test]
    fn they_are_written_as_they_are_read() {
        let keys = |text: &str| text.parse::<DetachKeys>();
        assert_eq!(keys("ctrl-p,ctrl-q").unwrap().to_string(), "ctrl-p ctrl-q");
        assert_eq!(keys("ctrl-],d").unwrap(), DetachKeys(vec![0x1d, b'd']));
        assert!(keys("ctrl-!").is_err() && keys("up").is_err() && keys("a,,b").is_err());
    }
}
