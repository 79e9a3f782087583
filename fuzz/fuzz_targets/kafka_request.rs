//! Program that fuzzes `kafka_request`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::kafka_request::check(input));
