//! What must hold wherever bytes come in from elsewhere, whatever they are.
//!
//! Owns an entry for each of the targets in `fuzz/`: it takes arbitrary bytes and panics where
//! something does not hold. There for tests and with the cargo feature `fuzzing` only. A test
//! gives every entry all of its seeds, so that no target is forgotten when the code changes.

mod archive;
mod header_block;
mod input;
mod keeper_protocol;
mod keys;
mod patterns;
mod requests;
mod ring;
mod screen;
#[cfg(test)]
mod seeds;
mod views;

pub use archive::archive;
pub use header_block::header_block;
pub use keeper_protocol::keeper_protocol;
pub use keys::keys;
pub use patterns::patterns;
pub use requests::requests;
pub use ring::ring;
pub use screen::screen;
pub use views::views;

/// An entry: takes whatever there is, and panics where something does not hold.
pub type Entry = fn(&[u8]);

/// All entries, with the names of their targets.
pub const TARGETS: &[(&str, Entry)] = &[
    ("archive", archive),
    ("header_block", header_block),
    ("keeper_protocol", keeper_protocol),
    ("keys", keys),
    ("patterns", patterns),
    ("requests", requests),
    ("ring", ring),
    ("screen", screen),
    ("views", views),
];
