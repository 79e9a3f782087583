//! Program that fuzzes `mesh_link`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::mesh_link::check(input));
