//! What a client of HTTP/2 says is followed alike however it is cut; only an authority changes,
//! and nothing of another protocol does.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| procyard::fuzzing::header_block(bytes));
