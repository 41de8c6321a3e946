//! Views: what is shown and what is left out are together what was printed, in every kind of
//! answer; and where an answer has room, it is the same however the output was cut.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| procyard::fuzzing::views(bytes));
