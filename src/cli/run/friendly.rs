//! Ids that one can say and type: the command's name and a few characters by chance.

use ring::rand::{SecureRandom, SystemRandom};

/// Characters that look like no other.
const CHARACTERS: &[u8; 32] = b"23456789abcdefghjkmnpqrstuvwxyz0";
/// How many of them: a billion ids to a name.
const BY_CHANCE: usize = 6;
/// Of a name so much is kept.
const NAME: usize = 24;

/// An id for a command.
pub(super) fn id(program: &str) -> String {
    let mut random = [0; BY_CHANCE];
    // Without chance two of one name could not be told apart, and the second would be refused.
    let _ = SystemRandom::new().fill(&mut random);
    let by_chance: String =
        random.iter().map(|byte| char::from(CHARACTERS[usize::from(byte % 32)])).collect();
    format!("{}-{by_chance}", name(program))
}

/// What of a program's name may stand in an id.
fn name(program: &str) -> String {
    let word = program.split_whitespace().next().unwrap_or_default();
    let base = word.rsplit('/').find(|part| !part.is_empty()).unwrap_or_default();
    let allowed = |c: &char| c.is_ascii_alphanumeric() || "._-".contains(*c);
    let name: String = base.chars().filter(allowed).take(NAME).collect();
    let name = name.trim_start_matches(['.', '_', '-']);
    if name.is_empty() { "run".into() } else { name.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_begins_with_the_name_of_the_command() {
        let names =
            ["/usr/bin/sleep", "./a.out", "curl -s x | jq", "/", "", "--x", "größe"].map(name);
        assert_eq!(names, ["sleep", "a.out", "curl", "run", "run", "x", "gre"]);
        assert_ne!(id("sleep"), id("sleep"));
        assert_eq!(id("sleep").len(), "sleep-k3v9x2".len());
    }
}
