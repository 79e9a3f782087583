//! Program that fuzzes `redis_request`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::redis_request::check(input));
