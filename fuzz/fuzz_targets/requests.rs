//! Requests: whatever a client sends is taken, or refused in words that name the fields.
//!
//! A spec that was taken comes back as one that is taken again and is equal.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| procyard::fuzzing::requests(bytes));
