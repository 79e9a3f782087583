//! Program that fuzzes `response`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::response::check(input));
