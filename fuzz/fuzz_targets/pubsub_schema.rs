//! Program that fuzzes `pubsub_schema`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::pubsub_schema::check(input));
