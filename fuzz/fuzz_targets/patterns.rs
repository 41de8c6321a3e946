//! Patterns: each is refused in words, or found in output however that is cut.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| procyard::fuzzing::patterns(bytes));
