//! Terminals: whatever is printed on one makes a picture of its size, the same however the output
//! is cut.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| procyard::fuzzing::screen(bytes));
