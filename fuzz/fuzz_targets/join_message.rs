//! Program that fuzzes `join_message`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::join_message::check(input));
