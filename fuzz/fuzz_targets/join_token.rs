//! Program that fuzzes `join_token`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::join_token::check(input));
