//! Names of keys: each is a key or none, and a key is a few bytes that can be typed.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| procyard::fuzzing::keys(bytes));
