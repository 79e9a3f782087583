//! Program that fuzzes `queue_filter`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::queue_filter::check(input));
