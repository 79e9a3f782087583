//! The library `cmsgpack`, as in Redis (`deps/lua/src/lua_cmsgpack.c`).

use mlua::{Lua, MultiValue, Result, Table, Value};

use super::state::{Given, NO_MEMORY, OUTPUT_BYTES_MAX, function, integer, text};

/// Depth from which nested tables are written as nil.
const DEPTH_MAX: usize = 16;
/// Maximum number of values that are written at a time: a table may be part of many others.
const WRITTEN_MAX: usize = 1 << 23;
/// Maximum depth of the data that is read. Redis has no limit but its stack.
const READ_DEPTH_MAX: usize = 256;

pub(super) fn library(lua: &Lua) -> Result<Table> {
    let table = lua.create_table()?;
    table.raw_set("pack", function(lua, pack)?)?;
    table.raw_set("unpack", function(lua, |lua, args| unpack(lua, args, None, 0))?)?;
    table.raw_set(
        "unpack_one",
        function(lua, |lua, args| {
            let from = if args.len() > 1 { integer(args, 1, "unpack_one") } else { Ok(0) };
            from.map_or_else(|message| Ok(Err(message)), |from| unpack(lua, args, Some(1), from))
        })?,
    )?;
    table.raw_set(
        "unpack_limit",
        function(lua, |lua, args| {
            let from = if args.len() > 2 { integer(args, 2, "unpack_limit") } else { Ok(0) };
            match (integer(args, 1, "unpack_limit"), from) {
                (Ok(limit), Ok(from)) => unpack(lua, args, Some(limit), from),
                (Err(message), _) | (_, Err(message)) => Ok(Err(message)),
            }
        })?,
    )?;
    table.raw_set("_NAME", "cmsgpack")?;
    table.raw_set("_VERSION", "lua-cmsgpack 0.4.0")?;
    Ok(table)
}

fn pack(lua: &Lua, args: &MultiValue) -> Result<Given> {
    if args.is_empty() {
        return Ok(Err("bad argument #0 to 'pack' (MessagePack pack needs input.)".to_owned()));
    }
    let mut out = Out { bytes: Vec::new(), values: 0 };
    for value in args {
        if !append(value, &mut out, 0)? {
            return Ok(Err(NO_MEMORY.to_owned()));
        }
    }
    Ok(super::state::one(Value::String(lua.create_string(out.bytes)?)))
}

/// Data that is written.
struct Out {
    bytes: Vec<u8>,
    /// Number of values so far. Items of tables count twice, as each table is checked before it is written.
    values: usize,
}

impl Out {
    /// Counts a value. Returns `false` if it would be too much.
    fn note(&mut self, more: usize) -> bool {
        self.values += 1;
        self.values <= WRITTEN_MAX && self.bytes.len() + more <= OUTPUT_BYTES_MAX
    }
}

/// Appends a value. Returns `false` if it would be too much.
fn append(value: &Value, out: &mut Out, depth: usize) -> Result<bool> {
    if !out.note(if let Value::String(text) = value { text.as_bytes().len() } else { 0 }) {
        return Ok(false);
    }
    if let Value::Table(table) = value
        && depth < DEPTH_MAX
    {
        return append_table(table, out, depth + 1);
    }
    let out = &mut out.bytes;
    match value {
        Value::String(text) => {
            let text = text.as_bytes();
            append_head(out, text.len(), [(32, 0xa0), (1 << 8, 0xd9), (1 << 16, 0xda)], 0xdb);
            out.extend_from_slice(&text);
        }
        Value::Boolean(is_true) => out.push(if *is_true { 0xc3 } else { 0xc2 }),
        Value::Integer(number) => append_integer(*number, out),
        Value::Number(number) => append_number(*number, out),
        _ => out.push(0xc0),
    }
    Ok(true)
}

/// Appends the head of a text, an array or a map: the first that has room for the length.
fn append_head(out: &mut Vec<u8>, length: usize, heads: [(usize, u8); 3], largest: u8) {
    match heads {
        [(max, head), ..] if length < max => out.push(head | length as u8),
        [_, (max, head), _] if length < max => out.extend_from_slice(&[head, length as u8]),
        [.., (max, head)] if length < max => {
            out.push(head);
            out.extend_from_slice(&(length as u16).to_be_bytes());
        }
        _ => {
            out.push(largest);
            out.extend_from_slice(&(length as u32).to_be_bytes());
        }
    }
}

fn append_integer(number: i64, out: &mut Vec<u8>) {
    let mut with = |head: u8, bytes: &[u8]| {
        out.push(head);
        out.extend_from_slice(bytes);
    };
    match number {
        -0x20..0x80 => with(number as u8, &[]),
        0x80..0x100 => with(0xcc, &[number as u8]),
        0x100..0x1_0000 => with(0xcd, &(number as u16).to_be_bytes()),
        0x1_0000..0x1_0000_0000 => with(0xce, &(number as u32).to_be_bytes()),
        0x1_0000_0000.. => with(0xcf, &number.to_be_bytes()),
        -0x80..-0x20 => with(0xd0, &[number as u8]),
        -0x8000..-0x80 => with(0xd1, &(number as i16).to_be_bytes()),
        -0x8000_0000..-0x8000 => with(0xd2, &(number as i32).to_be_bytes()),
        _ => with(0xd3, &number.to_be_bytes()),
    }
}

fn append_number(number: f64, out: &mut Vec<u8>) {
    if number.trunc() == number && number.abs() < 9_223_372_036_854_775_808.0 {
        return append_integer(number as i64, out);
    }
    if f64::from(number as f32) == number {
        out.push(0xca);
        out.extend_from_slice(&(number as f32).to_be_bytes());
    } else {
        out.push(0xcb);
        out.extend_from_slice(&number.to_be_bytes());
    }
}

fn append_table(table: &Table, out: &mut Out, depth: usize) -> Result<bool> {
    let mut count = 0;
    let mut max = 0;
    let mut is_array = true;
    for pair in table.pairs::<Value, Value>() {
        if !out.note(0) {
            return Ok(false);
        }
        match pair?.0 {
            Value::Integer(number) if number > 0 => max = max.max(number),
            _ => is_array = false,
        }
        count += 1;
    }
    if is_array && max == count {
        append_head(&mut out.bytes, count as usize, [(16, 0x90), (0, 0), (1 << 16, 0xdc)], 0xdd);
        for at in 1..=count {
            if !append(&table.raw_get(at)?, out, depth)? {
                return Ok(false);
            }
        }
        return Ok(true);
    }
    append_head(&mut out.bytes, count as usize, [(16, 0x80), (0, 0), (1 << 16, 0xde)], 0xdf);
    for pair in table.pairs::<Value, Value>() {
        let (key, value) = pair?;
        if !append(&key, out, depth)? || !append(&value, out, depth)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns values from a position on; with a limit, the position of the rest is the first result.
fn unpack(lua: &Lua, args: &MultiValue, limit: Option<i64>, from: i64) -> Result<Given> {
    let bytes = match text(args, 0, "unpack") {
        Ok(bytes) => bytes,
        Err(message) => return Ok(Err(message)),
    };
    let length = bytes.len();
    if from < 0 || limit.is_some_and(|limit| limit < 0) {
        let text = format!("Invalid request to unpack with offset of {from} and limit of {length}.");
        return Ok(Err(text));
    }
    let Some(mut rest) = bytes.get(from as usize..) else {
        return Ok(Err(format!("Start offset {from} greater than input length {length}.")));
    };
    let mut values = MultiValue::new();
    // As in Redis, a limit of 0 reads everything.
    let limit = limit.filter(|limit| *limit > 0 || from > 0);
    while !rest.is_empty() && limit.is_none_or(|limit| (values.len() as i64) < limit) {
        match read(lua, &mut rest, 0)? {
            Ok(value) => values.push_back(value),
            Err(Wrong::Short) => return Ok(Err("Missing bytes in input.".to_owned())),
            Err(Wrong::Format) => return Ok(Err("Bad data format in input.".to_owned())),
        }
        if values.len() > VALUES_MAX {
            return Ok(Err("too many values to unpack".to_owned()));
        }
    }
    if limit.is_some() {
        let next = if rest.is_empty() { -1 } else { (length - rest.len()) as i64 };
        values.push_front(Value::Integer(next));
    }
    Ok(Ok(values))
}

/// Maximum number of values that are returned at a time: what fits on the stack of Lua.
const VALUES_MAX: usize = 7000;

enum Wrong {
    Short,
    Format,
}

fn take<'b>(rest: &mut &'b [u8], count: usize) -> std::result::Result<&'b [u8], Wrong> {
    let (taken, after) = rest.split_at_checked(count).ok_or(Wrong::Short)?;
    *rest = after;
    Ok(taken)
}

/// Reads an unsigned integer of this many bytes.
fn unsigned(rest: &mut &[u8], count: usize) -> std::result::Result<u64, Wrong> {
    Ok(take(rest, count)?.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

/// Reads a signed integer of this many bytes.
fn signed(rest: &mut &[u8], count: usize) -> std::result::Result<i64, Wrong> {
    let shift = 64 - 8 * count as u32;
    Ok((unsigned(rest, count)? << shift) as i64 >> shift)
}

fn read(lua: &Lua, rest: &mut &[u8], depth: usize) -> Result<std::result::Result<Value, Wrong>> {
    match head(rest) {
        Ok(Head::Value(value)) => Ok(Ok(value)),
        Ok(Head::Text(length)) => match take(rest, length) {
            Ok(text) => Ok(Ok(Value::String(lua.create_string(text)?))),
            Err(wrong) => Ok(Err(wrong)),
        },
        Ok(Head::Array(_) | Head::Map(_)) if depth == READ_DEPTH_MAX => Ok(Err(Wrong::Format)),
        Ok(Head::Array(count)) => {
            let table = lua.create_table()?;
            for at in 1..=count {
                match read(lua, rest, depth + 1)? {
                    Ok(value) => table.raw_set(at, value)?,
                    Err(wrong) => return Ok(Err(wrong)),
                }
            }
            Ok(Ok(Value::Table(table)))
        }
        Ok(Head::Map(count)) => {
            let table = lua.create_table()?;
            for _ in 0..count {
                match (read(lua, rest, depth + 1)?, read(lua, rest, depth + 1)?) {
                    // Nil and NaN are no keys.
                    (Ok(Value::Nil), Ok(_)) => {}
                    (Ok(Value::Number(number)), Ok(_)) if number.is_nan() => {}
                    (Ok(key), Ok(value)) => table.raw_set(key, value)?,
                    (Err(wrong), _) | (_, Err(wrong)) => return Ok(Err(wrong)),
                }
            }
            Ok(Ok(Value::Table(table)))
        }
        Err(wrong) => Ok(Err(wrong)),
    }
}

enum Head {
    Value(Value),
    Text(usize),
    Array(usize),
    Map(usize),
}

fn head(rest: &mut &[u8]) -> std::result::Result<Head, Wrong> {
    let first = take(rest, 1)?[0];
    let number = |number: f64| Head::Value(Value::Number(number));
    Ok(match first {
        0..=0x7f => number(f64::from(first)),
        0x80..=0x8f => Head::Map(usize::from(first & 15)),
        0x90..=0x9f => Head::Array(usize::from(first & 15)),
        0xa0..=0xbf => Head::Text(usize::from(first & 31)),
        0xc0 => Head::Value(Value::Nil),
        0xc2 | 0xc3 => Head::Value(Value::Boolean(first == 0xc3)),
        0xc4..=0xc6 => Head::Text(unsigned(rest, 1 << (first - 0xc4))? as usize),
        0xca => number(f64::from(f32::from_bits(unsigned(rest, 4)? as u32))),
        0xcb => number(f64::from_bits(unsigned(rest, 8)?)),
        0xcc..=0xcf => number(unsigned(rest, 1 << (first - 0xcc))? as f64),
        0xd0..=0xd3 => number(signed(rest, 1 << (first - 0xd0))? as f64),
        0xd9..=0xdb => Head::Text(unsigned(rest, 1 << (first - 0xd9))? as usize),
        0xdc | 0xdd => Head::Array(unsigned(rest, 2 << (first - 0xdc))? as usize),
        0xde | 0xdf => Head::Map(unsigned(rest, 2 << (first - 0xde))? as usize),
        0xe0.. => number(f64::from(first as i8)),
        _ => return Err(Wrong::Format),
    })
}
