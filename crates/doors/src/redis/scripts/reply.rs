//! Conversions between replies and values of Lua, as in Redis (`src/script_lua.c`): `redisProtocolToLuaType` and
//! `luaReplyToRedisReply`.

use engine::cache::{parse_number, write_number};
use mlua::{Error, Lua, Result, Table, Value};

use crate::redis::command::SHOWN_BYTES_MAX;
use crate::redis::errors::Fail;
use crate::redis::writer::{Writer, write_double};

/// Maximum depth of tables in a reply. Redis ends such a script with "reached lua stack limit".
const DEPTH_MAX: usize = 128;

/// Returns the value of a reply, and the rest of the bytes. The bytes are a reply that this door wrote.
pub(super) fn to_lua<'r>(lua: &Lua, reply: &'r [u8]) -> Result<(Value, &'r [u8])> {
    let (line, rest) = split_line(reply);
    let Some((sign, text)) = line.split_first() else {
        return Ok((Value::Nil, rest));
    };
    let single = |name: &str, value: Value| -> Result<Value> {
        let table = lua.create_table_with_capacity(0, 1)?;
        table.raw_set(name, value)?;
        Ok(Value::Table(table))
    };
    let count = || usize::try_from(parse_number(text).unwrap_or_default()).ok();
    Ok(match sign {
        b':' => (Value::Number(parse_number(text).unwrap_or_default() as f64), rest),
        b'$' => match count() {
            Some(length) => (Value::String(lua.create_string(&rest[..length])?), &rest[length + 2..]),
            None => (Value::Boolean(false), rest),
        },
        b'+' => (single("ok", Value::String(lua.create_string(text)?))?, rest),
        b'-' => (Value::Table(error_table(lua, text)?), rest),
        b'_' => (Value::Nil, rest),
        b'#' => (Value::Boolean(text == b"t"), rest),
        b',' => {
            let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).unwrap_or(f64::NAN);
            (single("double", Value::Number(number))?, rest)
        }
        b'(' => (single("big_number", Value::String(lua.create_string(text)?))?, rest),
        b'=' => {
            let length = count().unwrap_or_default();
            let verbatim = lua.create_table_with_capacity(0, 2)?;
            verbatim.raw_set("format", lua.create_string(&rest[..3])?)?;
            verbatim.raw_set("string", lua.create_string(&rest[4..length])?)?;
            (single("verbatim_string", Value::Table(verbatim))?, &rest[length + 2..])
        }
        b'%' => {
            let pairs = count().unwrap_or_default();
            let map = lua.create_table_with_capacity(0, pairs)?;
            let mut rest = rest;
            for _ in 0..pairs {
                let (key, after) = to_lua(lua, rest)?;
                let (value, after) = to_lua(lua, after)?;
                map.raw_set(key, value)?;
                rest = after;
            }
            (single("map", Value::Table(map))?, rest)
        }
        b'~' => {
            let count = count().unwrap_or_default();
            let set = lua.create_table_with_capacity(0, count)?;
            let mut rest = rest;
            for _ in 0..count {
                let (member, after) = to_lua(lua, rest)?;
                set.raw_set(member, true)?;
                rest = after;
            }
            (single("set", Value::Table(set))?, rest)
        }
        _ => match count() {
            Some(count) => {
                let list = lua.create_table_with_capacity(count, 0)?;
                let mut rest = rest;
                for at in 1..=count {
                    let (value, after) = to_lua(lua, rest)?;
                    list.raw_set(at, value)?;
                    rest = after;
                }
                (Value::Table(list), rest)
            }
            None => (Value::Boolean(false), rest),
        },
    })
}

fn split_line(bytes: &[u8]) -> (&[u8], &[u8]) {
    match memchr(bytes) {
        Some(end) => (&bytes[..end], &bytes[end + 2..]),
        None => (bytes, &[]),
    }
}

fn memchr(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|byte| *byte == b'\r')
}

/// Returns the table with which an error is raised or returned.
pub(super) fn error_table(lua: &Lua, text: &[u8]) -> Result<Table> {
    let table = lua.create_table_with_capacity(0, 4)?;
    table.raw_set("err", lua.create_string(text)?)?;
    Ok(table)
}

/// Returns the text of `redis.error_reply`: with the word `ERR` if it has no other, as `luaPushErrorBuff` writes it.
pub(super) fn error_text(text: &[u8]) -> Vec<u8> {
    let text = text.strip_prefix(b"-").unwrap_or(text);
    let end = text.iter().rposition(|byte| !matches!(byte, b'\r' | b'\n')).map_or(0, |at| at + 1);
    if text.contains(&b' ') { text[..end].to_vec() } else { [b"ERR ", &text[..end]].concat() }
}

/// Message of the error for a reply that repeats the same tables: a few of them may stand for any number of values.
pub(super) const TOO_MANY: &str = "the reply of the script has far more values than its memory: it repeats tables";
/// Number of values that a reply may have, in addition to those that the memory has room for.
const VALUES_MIN: usize = 100_000;
/// Memory of a value in bytes, at least.
const LEAST_BYTES: usize = 16;

/// Writes the result of a script. `is_resp3_script` is the version that the script chose with `redis.setresp`. Fails
/// with [`TOO_MANY`] if tables are repeated so often that writing them takes long.
pub(super) fn write(lua: &Lua, value: &Value, is_resp3_script: bool, out: &mut Writer) -> Result<()> {
    let mut left = VALUES_MIN + lua.used_memory() / LEAST_BYTES;
    write_at(value, is_resp3_script, out, (0, &mut left))
}

fn write_at(value: &Value, is_resp3_script: bool, out: &mut Writer, (depth, left): (usize, &mut usize)) -> Result<()> {
    *left = left.checked_sub(1).ok_or_else(|| Error::runtime(TOO_MANY))?;
    match value {
        Value::String(text) => out.bulk(&text.as_bytes()),
        Value::Boolean(is_true) if is_resp3_script && out.is_resp3 => {
            out.put(if *is_true { b"#t\r\n" } else { b"#f\r\n" });
        }
        Value::Boolean(is_true) if is_resp3_script => out.flag(*is_true),
        Value::Boolean(true) => out.int(1),
        Value::Integer(number) => out.int(*number),
        Value::Number(number) => out.int(integer_of(*number)),
        Value::Table(_) if depth == DEPTH_MAX => out.error(&Fail::new("ERR reached lua stack limit")),
        Value::Table(table) => return write_table(table, is_resp3_script, out, (depth + 1, left)),
        _ => out.null(),
    }
    Ok(())
}

/// Converts a number as C does on x86: what does not fit is the smallest integer.
fn integer_of(number: f64) -> i64 {
    if (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&number) { number as i64 } else { i64::MIN }
}

fn write_table(
    table: &Table,
    is_resp3_script: bool,
    out: &mut Writer,
    (depth, left): (usize, &mut usize),
) -> Result<()> {
    if let Value::String(text) = table.raw_get("err")? {
        if !has_room(out, text.as_bytes().len()) {
            return Ok(());
        }
        out.error(&Fail::of_bytes(text.as_bytes().to_vec()));
        return Ok(());
    }
    if let Value::String(text) = table.raw_get("ok")? {
        if !has_room(out, text.as_bytes().len()) {
            return Ok(());
        }
        let text: Vec<u8> = text.as_bytes().iter().map(|byte| if is_end(*byte) { b' ' } else { *byte }).collect();
        out.put(b"+");
        out.put(&text);
        out.put(b"\r\n");
        return Ok(());
    }
    let double = match table.raw_get("double")? {
        Value::Number(number) => Some(number),
        Value::Integer(number) => Some(number as f64),
        _ => None,
    };
    if let Some(number) = double {
        out.double(number);
        return Ok(());
    }
    if let Value::String(text) = table.raw_get("big_number")? {
        if !has_room(out, text.as_bytes().len()) {
            return Ok(());
        }
        let text: Vec<u8> = text.as_bytes().iter().map(|byte| if is_end(*byte) { b' ' } else { *byte }).collect();
        if out.is_resp3 {
            out.put(b"(");
            out.put(&text);
            out.put(b"\r\n");
        } else {
            out.bulk(&text);
        }
        return Ok(());
    }
    if let Value::Table(verbatim) = table.raw_get("verbatim_string")?
        && let (Value::String(format), Value::String(text)) = (verbatim.raw_get("format")?, verbatim.raw_get("string")?)
    {
        if !has_room(out, text.as_bytes().len()) {
            return Ok(());
        }
        write_verbatim(&format.as_bytes(), &text.as_bytes(), out);
        return Ok(());
    }
    if let Value::Table(map) = table.raw_get("map")? {
        let at = out.bytes.len();
        let mut pairs = 0;
        for pair in map.pairs::<Value, Value>() {
            let (key, value) = pair?;
            write_at(&key, is_resp3_script, out, (depth, left))?;
            write_at(&value, is_resp3_script, out, (depth, left))?;
            if out.is_too_large {
                return Ok(());
            }
            pairs += 1;
        }
        out.begin_with(at, |out| out.map(pairs));
        return Ok(());
    }
    if let Value::Table(set) = table.raw_get("set")? {
        let at = out.bytes.len();
        let mut count = 0;
        for pair in set.pairs::<Value, Value>() {
            write_at(&pair?.0, is_resp3_script, out, (depth, left))?;
            if out.is_too_large {
                return Ok(());
            }
            count += 1;
        }
        out.begin_with(at, |out| out.set(count));
        return Ok(());
    }
    let at = out.bytes.len();
    let mut count = 0;
    loop {
        let value: Value = table.raw_get(count + 1)?;
        if value.is_nil() || out.is_too_large {
            break;
        }
        write_at(&value, is_resp3_script, out, (depth, left))?;
        count += 1;
    }
    out.begin_with(at, |out| out.array(count));
    Ok(())
}

/// Bytes around a text in a reply, at most.
const AROUND_BYTES: usize = 32;

/// Notes that the reply is too large if it has no room for a text. Returns `false` then.
fn has_room(out: &mut Writer, bytes: usize) -> bool {
    out.is_too_large |= out.bytes.len() + bytes + AROUND_BYTES > out.bytes_max;
    !out.is_too_large
}

fn is_end(byte: u8) -> bool {
    matches!(byte, b'\r' | b'\n')
}

fn write_verbatim(format: &[u8], text: &[u8], out: &mut Writer) {
    if !out.is_resp3 {
        return out.bulk(text);
    }
    let mut kind = [b' '; 3];
    kind.iter_mut().zip(format).for_each(|(to, from)| *to = *from);
    out.put(format!("={}\r\n", text.len() + 4).as_bytes());
    out.put(&kind);
    out.put(b":");
    out.put(text);
    out.put(b"\r\n");
}

/// Appends a number as an argument of a command: whole numbers without a fraction, others with 17 digits.
pub(super) fn push_number(number: f64, to: &mut Vec<u8>) {
    if number.trunc() == number && number.abs() < 1e17 && !(number == 0.0 && number.is_sign_negative()) {
        to.extend_from_slice(write_number(number as i64, &mut [0; 20]));
    } else {
        to.extend_from_slice(write_double(number).as_bytes());
    }
}

/// Returns the text of the error that ended a script, as `luaCallFunction` writes it.
pub(super) fn failure(value: &Value, name: &[u8]) -> Result<Fail> {
    let Value::Table(table) = value else {
        // The handler of errors had no memory either.
        let why = match value {
            Value::String(text) => text.as_bytes().to_vec(),
            Value::Error(error) => error.to_string().lines().next().unwrap_or_default().as_bytes().to_vec(),
            _ => b"execution failure".to_vec(),
        };
        return Ok(Fail::of_bytes([b"ERR Error running script ", name, b", ", &why].concat()));
    };
    let text_of = |name: &str| -> Result<Option<Vec<u8>>> {
        Ok(match table.raw_get(name)? {
            Value::String(text) => Some(text.as_bytes().to_vec()),
            Value::Integer(number) => Some(number.to_string().into_bytes()),
            Value::Number(number) => Some(write_double(number).into_bytes()),
            _ => None,
        })
    };
    let mut text = text_of("err")?.unwrap_or_else(|| b"ERR the error of the script has no text".to_vec());
    if let (Some(line), Some(source)) = (text_of("line")?, text_of("source")?) {
        let source = &source[..source.len().min(SHOWN_BYTES_MAX)];
        text.extend([b" script: ", name, b", on ", source, b":", &line, b"."].concat());
    }
    Ok(Fail::of_bytes(text))
}
