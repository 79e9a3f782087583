//! Program that fuzzes `pattern`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::pattern::check(input));
