//! Program that fuzzes `redis_value`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::redis_value::check(input));
