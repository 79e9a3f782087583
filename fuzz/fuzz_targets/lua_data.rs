//! Program that fuzzes `lua_data`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::lua_data::check(input));
