//! Which versions of the protocol understand each other: neighbours.
//!
//! Owns the numbers and what differs between them. The server says the version that it would
//! like; a keeper that does not know it refuses, and the server says the one before. So both may
//! be the older one, by one version, and everything further apart is refused with both named.

/// Version that this binary speaks; goes up when an older other end would misunderstand.
pub const VERSION: u32 = 4;

/// The one before, which is still understood.
pub const BEFORE: u32 = VERSION - 1;

/// The version from which on keepers confine and limit whole trees: one before would start the same
/// unprotected.
const CONFINES: u32 = 4;

/// A version that both ends of a connection speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version(u32);

impl Version {
    /// What a server wants to speak, if a keeper of this binary can; else why not.
    pub fn of_server(version: u32) -> Result<Version, String> {
        let refused = || format!("the server speaks version {version}, the keeper {}", spoken());
        (BEFORE..=VERSION).contains(&version).then_some(Version(version)).ok_or_else(refused)
    }

    /// What a keeper said that it speaks from now on, if a server of this binary can; else why not.
    pub fn of_keeper(version: u32) -> Result<Version, String> {
        let refused = || format!("the keeper speaks version {version}, the server {}", spoken());
        (BEFORE..=VERSION).contains(&version).then_some(Version(version)).ok_or_else(refused)
    }

    /// Its number.
    pub fn number(self) -> u32 {
        self.0
    }

    /// The keeper knows roots, sandboxes, how to withhold privileges, and limits of whole trees. One
    /// that does not would ignore them.
    pub fn confines(self) -> bool {
        self.0 >= CONFINES
    }
}

fn spoken() -> String {
    format!("versions {BEFORE} and {VERSION}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_understand_each_other_and_others_are_refused_with_both_named() {
        for version in [BEFORE, VERSION] {
            assert_eq!(Version::of_server(version), Ok(Version(version)));
            assert_eq!(Version::of_keeper(version), Ok(Version(version)));
        }
        for version in [0, BEFORE - 1, VERSION + 1, u32::MAX] {
            for refused in [Version::of_server(version), Version::of_keeper(version)] {
                let words = refused.unwrap_err();
                assert!(words.contains(&format!("speaks version {version},")), "{words}");
                assert!(words.contains(&spoken()), "{words}");
            }
        }
    }
}
