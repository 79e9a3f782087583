//! Program that fuzzes `node_manifest`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::node_manifest::check(input));
