//! A ring that nobody wrote, or that was torn: it is refused, or read to an end within its bounds.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| procyard::fuzzing::ring(bytes));
