//! The library `struct`, as in Redis (`deps/lua/src/lua_struct.c`) on a 64-bit machine with little endian.

use mlua::{Lua, MultiValue, Result, Table, Value};

use super::state::{Given, NO_MEMORY, OUTPUT_BYTES_MAX, function, integer, number, one, text};

/// Maximum size of an integer in bytes.
const INTEGER_BYTES_MAX: usize = 32;
/// Alignment of the option `!` without a number.
const ALIGN: usize = 8;
/// Maximum number of values that are returned at a time: what fits on the stack of Lua.
const VALUES_MAX: usize = 7000;

pub(super) fn library(lua: &Lua) -> Result<Table> {
    let table = lua.create_table()?;
    table.raw_set(
        "pack",
        function(lua, |lua, args| match pack(args) {
            Ok(bytes) => Ok(one(Value::String(lua.create_string(bytes)?))),
            Err(message) => Ok(Err(message)),
        })?,
    )?;
    table.raw_set("unpack", function(lua, unpack)?)?;
    table.raw_set(
        "size",
        function(lua, |_, args| Ok(size(args).map(|size| [Value::Integer(size as i64)].into_iter().collect())))?,
    )?;
    Ok(table)
}

type Outcome<T> = std::result::Result<T, String>;

/// Reader of a format: its options with their sizes.
struct Format {
    text: Vec<u8>,
    at: usize,
    is_big: bool,
    align: usize,
    of: &'static str,
}

impl Format {
    fn new(args: &MultiValue, of: &'static str) -> Outcome<Self> {
        Ok(Self { text: text(args, 0, of)?, at: 0, is_big: false, align: 1, of })
    }

    fn number(&mut self, default: usize) -> Outcome<usize> {
        let digits = self.text[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            return Ok(default);
        }
        let digits = &self.text[self.at..self.at + digits];
        self.at += digits.len();
        let parsed = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<i32>().ok());
        parsed.map(|number| number as usize).ok_or("integral size overflow".to_owned())
    }

    /// Returns the next option, its size, and the bytes before it that align it.
    fn next(&mut self, position: usize) -> Outcome<Option<(u8, usize, usize)>> {
        while let Some(option) = self.text.get(self.at).copied() {
            self.at += 1;
            let size = match option {
                0 => return Ok(None),
                b'B' | b'b' | b'x' => 1,
                b'H' | b'h' => 2,
                b'f' => 4,
                b'L' | b'l' | b'T' | b'd' => 8,
                b'c' => self.number(1)?,
                b'i' | b'I' => {
                    let size = self.number(4)?;
                    if size > INTEGER_BYTES_MAX {
                        let max = INTEGER_BYTES_MAX;
                        return Err(format!("integral size {size} is larger than limit of {max}"));
                    }
                    size
                }
                b's' => 0,
                b' ' => continue,
                b'>' | b'<' => {
                    self.is_big = option == b'>';
                    continue;
                }
                b'!' => {
                    let align = self.number(ALIGN)?;
                    if !align.is_power_of_two() {
                        return Err(format!("alignment {align} is not a power of 2"));
                    }
                    self.align = align;
                    continue;
                }
                other => {
                    let (of, other) = (self.of, char::from(other));
                    return Err(format!("bad argument #1 to '{of}' (invalid format option '{other}')"));
                }
            };
            let aligned = size.min(self.align);
            // Redis computes with bits, also for sizes that are no powers of two.
            let before = if size == 0 || option == b'c' {
                0
            } else {
                aligned.wrapping_sub(position & (aligned - 1)) & (aligned - 1)
            };
            return Ok(Some((option, size, before)));
        }
        Ok(None)
    }
}

fn pack(args: &MultiValue) -> Outcome<Vec<u8>> {
    let mut format = Format::new(args, "pack")?;
    let mut out = Vec::new();
    let mut arg = 1;
    while let Some((option, size, before)) = format.next(out.len())? {
        check_room(&out, before + size)?;
        out.resize(out.len() + before, 0);
        match option {
            b'x' => out.push(0),
            b'f' | b'd' => {
                let value = number(args, arg, "pack")?;
                let bytes =
                    if option == b'f' { (value as f32).to_le_bytes().to_vec() } else { value.to_le_bytes().to_vec() };
                push(&mut out, &bytes, format.is_big);
                arg += 1;
            }
            b'c' | b's' => {
                let value = text(args, arg, "pack")?;
                arg += 1;
                let length = if size == 0 { value.len() } else { size };
                check_room(&out, length)?;
                let bytes = value.get(..length);
                out.extend_from_slice(
                    bytes.ok_or_else(|| format!("bad argument #{} to 'pack' (string too short)", arg + 1))?,
                );
                if option == b's' {
                    out.push(0);
                }
            }
            _ => {
                let value = number(args, arg, "pack")?;
                let value = if value < 0.0 { value as i64 as u64 } else { value as u64 };
                let mut bytes = value.to_le_bytes().to_vec();
                // As in Redis, an integer has 64 bits.
                bytes.resize(size, 0);
                push(&mut out, &bytes, format.is_big);
                arg += 1;
            }
        }
    }
    Ok(out)
}

fn check_room(out: &[u8], more: usize) -> Outcome<()> {
    if out.len() + more > OUTPUT_BYTES_MAX { Err(NO_MEMORY.to_owned()) } else { Ok(()) }
}

/// Appends bytes that are in the order of little endian.
fn push(out: &mut Vec<u8>, bytes: &[u8], is_big: bool) {
    if is_big { out.extend(bytes.iter().rev()) } else { out.extend_from_slice(bytes) }
}

fn unpack(lua: &Lua, args: &MultiValue) -> Result<Given> {
    let read = || -> Outcome<(Format, Vec<u8>, usize)> {
        let format = Format::new(args, "unpack")?;
        let data = text(args, 1, "unpack")?;
        let from = if args.get(2).is_none_or(Value::is_nil) { 1 } else { integer(args, 2, "unpack")? };
        let from = usize::try_from(from).ok().and_then(|from| from.checked_sub(1));
        Ok((format, data, from.ok_or("bad argument #3 to 'unpack' (offset must be 1 or greater)".to_owned())?))
    };
    let (mut format, data, mut at) = match read() {
        Ok(read) => read,
        Err(message) => return Ok(Err(message)),
    };
    let mut values = MultiValue::new();
    let short = || Ok(Err("bad argument #2 to 'unpack' (data string too short)".to_owned()));
    loop {
        let (option, mut size, before) = match format.next(at) {
            Ok(Some(next)) => next,
            Ok(None) => break,
            Err(message) => return Ok(Err(message)),
        };
        at += before;
        let Some(rest) = data.get(at..).filter(|rest| rest.len() >= size) else {
            return short();
        };
        if values.len() == VALUES_MAX {
            return Ok(Err("stack overflow (too many results)".to_owned()));
        }
        match option {
            b'x' => {}
            b'f' | b'd' => {
                let value = unsigned(&rest[..size], format.is_big);
                let value =
                    if option == b'f' { f64::from(f32::from_bits(value as u32)) } else { f64::from_bits(value) };
                values.push_back(Value::Number(value));
            }
            b'c' => {
                if size == 0 {
                    // The size is the value before.
                    let given = match values.pop_back() {
                        Some(Value::Number(number)) if number >= 0.0 => number as usize,
                        _ => return Ok(Err("format 'c0' needs a previous size".to_owned())),
                    };
                    if rest.len() < given {
                        return short();
                    }
                    size = given;
                }
                values.push_back(Value::String(lua.create_string(&rest[..size])?));
            }
            b's' => {
                let Some(end) = rest.iter().position(|byte| *byte == 0) else {
                    return Ok(Err("unfinished string in data".to_owned()));
                };
                values.push_back(Value::String(lua.create_string(&rest[..end])?));
                size = end + 1;
            }
            _ => {
                let bits = unsigned(&rest[..size], format.is_big);
                let is_signed = option.is_ascii_lowercase();
                let value = match 64u32.checked_sub(8 * size as u32) {
                    Some(shift @ 0..=63) if is_signed => ((bits << shift) as i64 >> shift) as f64,
                    _ if is_signed => bits as i64 as f64,
                    _ => bits as f64,
                };
                values.push_back(Value::Number(value));
            }
        }
        at += size;
    }
    values.push_back(Value::Integer(at as i64 + 1));
    Ok(Ok(values))
}

/// Returns the last eight bytes as an integer.
fn unsigned(bytes: &[u8], is_big: bool) -> u64 {
    let push = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
    if is_big { bytes.iter().fold(0, push) } else { bytes.iter().rev().fold(0, push) }
}

fn size(args: &MultiValue) -> Outcome<usize> {
    let mut format = Format::new(args, "size")?;
    let mut position = 0;
    while let Some((option, size, before)) = format.next(position)? {
        match option {
            b's' => return Err("bad argument #1 to 'size' (option 's' has no fixed size)".to_owned()),
            b'c' if size == 0 => return Err("bad argument #1 to 'size' (option 'c0' has no fixed size)".to_owned()),
            _ => position += before + size,
        }
    }
    Ok(position)
}
