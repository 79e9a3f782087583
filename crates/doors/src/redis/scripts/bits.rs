//! The library `bit`: operations on integers of 32 bits, as in Redis (`deps/lua/src/lua_bit.c`).

use mlua::{Lua, MultiValue, Result, Table, Value};

use super::state::{Given, function, number, one};

/// Number that is added to a double so that its lowest bits are those of the integer.
const WRAP: f64 = 6_755_399_441_055_744.0;

pub(super) fn library(lua: &Lua) -> Result<Table> {
    let table = lua.create_table()?;
    let with = |name: &'static str, of: fn(&[u32]) -> u32| {
        function(lua, move |_, args| Ok(all(args, name).and_then(|args| integer(of(&args)))))
    };
    table.raw_set("tobit", with("tobit", |args| args[0])?)?;
    table.raw_set("bnot", with("bnot", |args| !args[0])?)?;
    table.raw_set("bswap", with("bswap", |args| args[0].swap_bytes())?)?;
    table.raw_set("band", with("band", |args| args.iter().fold(u32::MAX, |all, one| all & one))?)?;
    table.raw_set("bor", with("bor", |args| args.iter().fold(0, |all, one| all | one))?)?;
    table.raw_set("bxor", with("bxor", |args| args.iter().fold(0, |all, one| all ^ one))?)?;
    let shift = |name: &'static str, of: fn(u32, u32) -> u32| {
        function(lua, move |_, args| {
            let shifted = bits(args, 0, name).and_then(|value| Ok(of(value, bits(args, 1, name)? & 31)));
            Ok(shifted.and_then(integer))
        })
    };
    table.raw_set("lshift", shift("lshift", |value, by| value << by)?)?;
    table.raw_set("rshift", shift("rshift", |value, by| value >> by)?)?;
    table.raw_set("arshift", shift("arshift", |value, by| (value as i32 >> by) as u32)?)?;
    table.raw_set("rol", shift("rol", u32::rotate_left)?)?;
    table.raw_set("ror", shift("ror", u32::rotate_right)?)?;
    table.raw_set(
        "tohex",
        function(lua, |lua, args| match hex(args) {
            Ok(text) => Ok(one(Value::String(lua.create_string(text)?))),
            Err(message) => Ok(Err(message)),
        })?,
    )?;
    Ok(table)
}

fn bits(args: &MultiValue, at: usize, of: &str) -> std::result::Result<u32, String> {
    Ok((number(args, at, of)? + WRAP).to_bits() as u32)
}

fn all(args: &MultiValue, of: &str) -> std::result::Result<Vec<u32>, String> {
    (0..args.len().max(1)).map(|at| bits(args, at, of)).collect()
}

fn integer(bits: u32) -> Given {
    one(Value::Integer(i64::from(bits as i32)))
}

fn hex(args: &MultiValue) -> std::result::Result<String, String> {
    let value = bits(args, 0, "tohex")?;
    let digits = if args.len() > 1 { bits(args, 1, "tohex")? as i32 } else { 8 };
    let count = digits.unsigned_abs().min(8) as usize;
    let text = if digits < 0 { format!("{value:08X}") } else { format!("{value:08x}") };
    Ok(text[8 - count..].to_owned())
}
