//! Files of transcripts: what is before the first block that is not whole is read, and nothing
//! else; and there is an end of it.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| procyard::fuzzing::archive(bytes));
