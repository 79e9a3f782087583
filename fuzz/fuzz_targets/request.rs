//! Program that fuzzes `request`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::request::check(input));
