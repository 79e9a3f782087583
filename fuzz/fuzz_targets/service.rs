//! Program that fuzzes `service`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::service::check(input));
