//! What is written for people: that the reference is what the proto says, and that links lead
//! somewhere. What the pages tell people to run is run by `tests/readme`, `tests/security` and
//! `tests/cookbook`.

mod links;
mod markdown;
mod reference;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// A file of this repository.
fn place(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The text of a file; none, and a word about it, if this user may not read this repository.
fn text_of(path: &str) -> Option<String> {
    match std::fs::read_to_string(place(path)) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            println!("skipped: {path} may not be read by this user");
            None
        }
        // Who has not written it yet compares with nothing.
        Err(error) if error.kind() == ErrorKind::NotFound => Some(String::new()),
        Err(error) => panic!("{path}: {error}"),
    }
}
