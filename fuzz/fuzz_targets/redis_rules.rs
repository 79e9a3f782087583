//! Program that fuzzes `redis_rules`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::redis_rules::check(input));
