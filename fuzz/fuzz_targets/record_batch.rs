//! Program that fuzzes `record_batch`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::record_batch::check(input));
