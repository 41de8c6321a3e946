//! The reference: bare system calls in one small process, without RPC.
//!
//! Runs in a process apart (`apart`). `starts`, `flood` and `echo` are what it measures, `os` is
//! what they share.

pub(crate) mod echo;
pub(crate) mod flood;
mod os;
pub(crate) mod starts;
