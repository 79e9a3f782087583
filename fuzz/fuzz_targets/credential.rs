//! Program that fuzzes `credential`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::credential::check(input));
