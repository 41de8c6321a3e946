//! What keeper and server say to each other: bytes are messages or none, wherever they are cut,
//! and what a message says is the same when it is said again.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| procyard::fuzzing::keeper_protocol(bytes));
