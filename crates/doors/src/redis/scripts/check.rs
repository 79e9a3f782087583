//! Check of the libraries of scripts that read and write data, for fuzzing.

use std::cell::LazyCell;

use mlua::{Function, Lua, LuaOptions, StdLib};

use super::state::STATE_BYTES_MAX;
use super::{json, msgpack, packed};

thread_local! {
    static CHECK: LazyCell<(Lua, Function)> = LazyCell::new(|| new().expect("invariant: the libraries load"));
}

fn new() -> mlua::Result<(Lua, Function)> {
    let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH;
    let lua = Lua::new_with(libraries, LuaOptions::new().catch_rust_panics(false))?;
    lua.set_memory_limit(STATE_BYTES_MAX)?;
    let check = lua.load(include_str!("check.lua")).set_name("=check").into_function()?;
    let check = check.bind((json::library(&lua)?, msgpack::library(&lua)?, packed::library(&lua)?))?;
    Ok((lua, check))
}

/// Reads data with a library, 0 for `cjson`, 1 for `cmsgpack` and 2 for `struct` with a format, and checks that what is
/// read survives being written and read. Returns `true` if the data is valid; panics if a value changes. For fuzzing.
pub fn check_data(library: u8, format: &[u8], data: &[u8]) -> bool {
    CHECK.with(|check| {
        let (lua, check) = &**check;
        let texts = lua.create_string(format).and_then(|format| Ok((format, lua.create_string(data)?)));
        let (format, data) = texts.expect("invariant: inputs are small");
        match check.call::<bool>((library, format, data)) {
            Ok(is_valid) => is_valid,
            // The limit of memory holds for the check as well.
            Err(mlua::Error::MemoryError(_)) => false,
            Err(error) => panic!("{error}"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_data_is_read_and_written_again() {
        assert!(check_data(0, b"", br#"{"a":[1,2.5,null,"x",{}],"1":false}"#));
        assert!(check_data(1, b"", b"\x93\x01\xcb\x3f\xf8\0\0\0\0\0\0\x81\xa1a\xc0"));
        assert!(check_data(2, b">I2 s b", b"\x01\x02text\0\xff"));
        assert!(!check_data(0, b"", b"{"));
        assert!(!check_data(1, b"", b"\xc1"));
        assert!(!check_data(2, b"q", b"x"));
    }
}
