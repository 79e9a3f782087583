//! Program that fuzzes `mesh_invitation`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::mesh_invitation::check(input));
