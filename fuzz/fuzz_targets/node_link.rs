//! Program that fuzzes `node_link`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::node_link::check(input));
