//! Program that fuzzes `producers`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::producers::check(input));
