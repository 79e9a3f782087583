//! Program that fuzzes `pubsub_request`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::pubsub_request::check(input));
