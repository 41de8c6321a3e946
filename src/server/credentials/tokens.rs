//! Tokens, and the file that knows them.
//!
//! ```text
//! # name  what it may do      token
//! ci      operator,owner=ci   hmac-sha256:<id>:<salt>:<hash>
//! ```
//!
//! A token is an id and a secret of 256 random bits, so that no slow hash is needed against
//! guessing; the file has a keyed hash of it, with a key of its own for each. The id finds the line,
//! the hash is compared in constant time: neither tells anything about the secret.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Write as _;
use std::sync::Arc;

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

use crate::access::{Caller, Grant};

/// How tokens begin, so that people and scanners know what they see.
const PREFIX: &str = "procyard";
const ID: usize = 8;
const SECRET: usize = 32;
const SALT: usize = 16;
const HASH: &str = "hmac-sha256";

/// Most tokens in a file.
const MOST: usize = 4096;

/// Most lines that are told to be wrong: who sees those looks at the rest.
const MOST_PROBLEMS: usize = 16;

/// All tokens of a file.
#[derive(Debug, Default)]
pub(super) struct Tokens(HashMap<String, Known>);

#[derive(Debug)]
struct Known {
    salt: Vec<u8>,
    hash: Vec<u8>,
    caller: Arc<Caller>,
}

/// A new token.
pub struct New {
    /// What its holder shows. Nobody else has it.
    pub token: String,
    /// The line that makes it known.
    pub line: String,
}

/// Makes a token for somebody.
pub fn new(name: &str, grant: &Grant) -> Result<New, String> {
    check_name(name)?;
    let (id, salt) = (hex(&random::<ID>()?), random::<SALT>()?);
    let token = format!("{PREFIX}_{id}_{}", hex(&random::<SECRET>()?));
    let hash = hmac::sign(&key(&salt), token.as_bytes());
    let line = format!("{name} {grant} {HASH}:{id}:{}:{}\n", hex(&salt), hex(hash.as_ref()));
    Ok(New { token, line })
}

/// The tokens of a file, and what is wrong with its other lines. They count apart: who is taken out
/// is not known any more, whatever else was done to the file.
pub(super) fn read(bytes: &[u8]) -> (Tokens, Vec<String>) {
    let text = String::from_utf8_lossy(bytes);
    let (mut tokens, mut problems) = (HashMap::new(), Vec::new());
    let lines = text.lines().map(str::trim).enumerate();
    for (n, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
        let added = parse(line).and_then(|(id, known)| {
            if tokens.len() == MOST {
                return Err(format!("more than {MOST} tokens"));
            }
            match tokens.entry(id) {
                Entry::Occupied(_) => Err("the token is there twice".into()),
                Entry::Vacant(free) => {
                    free.insert(known);
                    Ok(())
                }
            }
        });
        let told = problems.len() < MOST_PROBLEMS;
        problems.extend(added.err().filter(|_| told).map(|why| format!("line {}: {why}", n + 1)));
    }
    (Tokens(tokens), problems)
}

fn parse(line: &str) -> Result<(String, Known), String> {
    let form = "a name, what it may do, and a token's hash, as `procyard token new` writes them";
    let words: Vec<_> = line.split_whitespace().collect();
    let [name, grant, token] = words[..] else { return Err(form.into()) };
    check_name(name)?;
    let grant = grant.parse::<Grant>().map_err(|error| error.to_string())?;
    let (id, salt, hash) = parse_hash(token).ok_or(form)?;
    let caller = Arc::new(Caller { name: format!("token:{name}"), grant });
    Ok((id.to_owned(), Known { salt, hash, caller }))
}

/// The id of a token, its salt, and its hash.
fn parse_hash(text: &str) -> Option<(&str, Vec<u8>, Vec<u8>)> {
    let parts: Vec<_> = text.split(':').collect();
    let [HASH, id, salt, hash] = parts[..] else { return None };
    Some((id, unhex(salt)?, unhex(hash)?))
}

/// The name of the token whose line this is, even if it may do what is not known here; none: it is
/// another line.
pub(super) fn name_of(line: &str) -> Option<&str> {
    let words: Vec<_> = line.split_whitespace().collect();
    let [name, _, token] = words[..] else { return None };
    (check_name(name).is_ok() && parse_hash(token).is_some()).then_some(name)
}

/// The token in a text that has nothing else.
pub(super) fn only_token(text: &[u8]) -> Option<&str> {
    let token = str::from_utf8(text).ok()?.trim();
    let parts: Vec<_> = token.split('_').collect();
    let [PREFIX, id, secret] = parts[..] else { return None };
    let has_size = |hex, size| unhex(hex).is_some_and(|bytes| bytes.len() == size);
    (has_size(id, ID) && has_size(secret, SECRET)).then_some(token)
}

/// Names are for people, logs and counts.
fn check_name(name: &str) -> Result<(), String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
    if name.is_empty() || name.len() > 64 || !name.chars().all(fits) {
        return Err("a name has 1 to 64 letters, digits, dots, dashes, underscores or @".into());
    }
    Ok(())
}

impl Tokens {
    /// Who has this token.
    pub(super) fn find(&self, token: &str) -> Option<Arc<Caller>> {
        let Known { salt, hash, caller } = self.0.get(id(token)?)?;
        hmac::verify(&key(salt), token.as_bytes(), hash).ok()?;
        Some(Arc::clone(caller))
    }

    /// Whether the token of this id is still the caller's, and gives it the same.
    pub(super) fn knows(&self, id: &str, caller: &Caller) -> bool {
        self.0.get(id).is_some_and(|known| *known.caller == *caller)
    }

    /// Whether there is one of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.values().any(|known| of_token(&known.caller) == name)
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// All names, in their order, and what each may do.
    pub(super) fn all(&self) -> Vec<(String, Grant)> {
        let known = self.0.values().map(|known| &known.caller);
        let mut all: Vec<_> =
            known.map(|caller| (of_token(caller).to_owned(), caller.grant.clone())).collect();
        all.sort_by(|(one, _), (other, _)| one.cmp(other));
        all
    }
}

/// What finds the line of a token.
pub(super) fn id(token: &str) -> Option<&str> {
    let (prefix, rest) = token.split_once('_')?;
    rest.split_once('_').filter(|_| prefix == PREFIX).map(|(id, _)| id)
}

/// The name that a token has in its file.
fn of_token(caller: &Caller) -> &str {
    caller.name.strip_prefix("token:").unwrap_or(&caller.name)
}

fn key(salt: &[u8]) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, salt)
}

fn random<const N: usize>() -> Result<[u8; N], String> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| "the kernel has no random bytes")?;
    Ok(bytes)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = text.chars().map(|digit| digit.to_digit(16)).collect();
    let digits = digits.filter(|digits| !digits.is_empty() && digits.len() % 2 == 0)?;
    Some(digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(text: &str) -> Grant {
        text.parse().unwrap()
    }

    #[test]
    fn a_new_token_is_known_and_no_other() {
        let a = new("a", &grant("operator,owner=a")).unwrap();
        let b = new("b", &grant("viewer")).unwrap();
        let (tokens, problems) = read(format!("# tokens\n\n{}", a.line).as_bytes());
        assert!(problems.is_empty(), "{problems:?}");
        let caller = tokens.find(&a.token).unwrap();
        assert_eq!(caller.name, "token:a");
        assert_eq!(caller.grant, grant("operator,owner=a"));
        assert!(!a.line.contains(&a.token[30..]));
        let mut altered = a.token.clone();
        altered.replace_range(40..41, if &altered[40..41] == "0" { "1" } else { "0" });
        for wrong in [&b.token, &altered, &a.token[..80], "", "procyard", "procyard__", "a b"] {
            assert!(tokens.find(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_line_that_cannot_be_used_is_named_with_the_reason_and_the_others_count() {
        let line = new("a", &grant("admin")).unwrap().line;
        for (text, problem) in [
            (line.replace("admin", "root"), "line 1: \"root\" is no role"),
            (format!("\n{line}{line}"), "line 3: the token is there twice"),
            (line.replace("a ", "a/b "), "line 1: a name has"),
            (line.replace("hmac-sha256:", ""), "line 1: a name, what it may do"),
            (line.replace("hmac-sha256", "plain"), "line 1: a name, what it may do"),
        ] {
            let other = new("other", &grant("viewer")).unwrap();
            let (tokens, problems) = read(format!("{text}{}", other.line).as_bytes());
            assert!(problems.len() == 1 && problems[0].starts_with(problem), "{problems:?}");
            assert!(tokens.find(&other.token).is_some());
        }
        assert_eq!(read(b"\xff\n\xff").1.len(), 2);
        assert_eq!(read(&b"x\n".repeat(99)).1.len(), MOST_PROBLEMS);
        assert!(new("a b", &grant("admin")).is_err());
    }
}
