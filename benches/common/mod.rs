//! What the benches share.
//!
//! `suite` has the options and goes through a bench's list of figures; `figures` and `table` make
//! numbers of what was measured; `raw` is the reference, in a small process of its own (`apart`);
//! `programs` are the children, `serve` is a procyard, and `usage` what the kernel says of it.

#![allow(dead_code, reason = "each bench uses a part")]

pub(crate) mod apart;
pub(crate) mod figures;
pub(crate) mod programs;
pub(crate) mod raw;
pub(crate) mod serve;
pub(crate) mod suite;
mod table;
pub(crate) mod usage;

pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;
