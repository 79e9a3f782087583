//! The library `cjson`, as in Redis (`deps/lua/src/lua_cjson.c`), with its default settings, which cannot be changed.

use mlua::{Lua, MultiValue, Result, Table, Value};

use super::state::{Given, NO_MEMORY, OUTPUT_BYTES_MAX, function, one, text, type_of};
use crate::redis::writer::write_double;

/// Maximum depth of tables, and of JSON.
const DEPTH_MAX: usize = 1000;
/// A table whose largest index is more than this many times the number of its items is refused.
const SPARSE_RATIO: usize = 2;
/// Largest index up to which a table with gaps is an array in any case.
const SPARSE_SAFE: usize = 10;
/// Maximum number of values that are written at a time: a table may be part of many others.
const VALUES_MAX: usize = 1 << 23;
/// Maximum number of bytes as which a byte of a text is written.
const ESCAPE_BYTES_MAX: usize = 6;
/// Significant digits of numbers.
const DIGITS: usize = 14;

pub(super) fn library(lua: &Lua) -> Result<Table> {
    let table = lua.create_table()?;
    table.raw_set("encode", function(lua, encode)?)?;
    table.raw_set("decode", function(lua, decode)?)?;
    // There is one buffer for each call.
    table.raw_set("encode_keep_buffer", function(lua, |_, _| Ok(one(Value::Boolean(true))))?)?;
    table.raw_set("null", Value::NULL)?;
    table.raw_set("_NAME", "cjson")?;
    table.raw_set("_VERSION", "2.1.0")?;
    Ok(table)
}

fn encode(lua: &Lua, args: &MultiValue) -> Result<Given> {
    let [value] = args.iter().collect::<Vec<_>>()[..] else {
        return Ok(Err("bad argument #1 to 'encode' (expected 1 argument)".to_owned()));
    };
    let mut out = Out { bytes: Vec::new(), values: 0 };
    Ok(match append(value, &mut out, 0)? {
        Ok(()) => one(Value::String(lua.create_string(out.bytes)?)),
        Err(message) => Err(message),
    })
}

type Appended = std::result::Result<(), String>;

/// JSON that is written.
struct Out {
    bytes: Vec<u8>,
    /// Number of values so far. Items of tables count twice, as each table is checked before it is written.
    values: usize,
}

impl Out {
    fn note(&mut self, more: usize) -> Appended {
        self.values += 1;
        let is_full = self.values > VALUES_MAX || self.bytes.len() + more > OUTPUT_BYTES_MAX;
        if is_full { Err(NO_MEMORY.to_owned()) } else { Ok(()) }
    }

    fn note_text(&mut self, text: &[u8]) -> Appended {
        let is_short = self.bytes.len() + text.len() * ESCAPE_BYTES_MAX <= OUTPUT_BYTES_MAX;
        self.note(if is_short { 0 } else { text.iter().map(escaped_len).sum() })
    }
}

fn append(value: &Value, out: &mut Out, depth: usize) -> Result<Appended> {
    let noted = if let Value::String(text) = value { out.note_text(&text.as_bytes()) } else { out.note(0) };
    if let Err(message) = noted {
        return Ok(Err(message));
    }
    if let Value::Table(table) = value
        && depth < DEPTH_MAX
    {
        return append_table(table, out, depth + 1);
    }
    let out = &mut out.bytes;
    match value {
        Value::Nil => out.extend_from_slice(b"null"),
        value if value.is_null() => out.extend_from_slice(b"null"),
        Value::Boolean(is_true) => out.extend_from_slice(if *is_true { b"true" } else { b"false" }),
        Value::Integer(number) => out.extend_from_slice(digits(*number as f64, DIGITS).as_bytes()),
        Value::Number(number) if !number.is_finite() => {
            return Ok(Err("Cannot serialise number: must not be NaN or Inf".to_owned()));
        }
        Value::Number(number) => out.extend_from_slice(digits(*number, DIGITS).as_bytes()),
        Value::String(text) => append_text(&text.as_bytes(), out),
        Value::Table(_) => return Ok(Err(format!("Cannot serialise, excessive depth ({})", depth + 1))),
        value => return Ok(Err(format!("Cannot serialise {}: type not supported", type_of(value)))),
    }
    Ok(Ok(()))
}

fn append_table(table: &Table, out: &mut Out, depth: usize) -> Result<Appended> {
    let length = match array_length(table, out)? {
        Ok(length) => length,
        Err(message) => return Ok(Err(message)),
    };
    if let Some(length) = length.filter(|length| *length > 0) {
        out.bytes.push(b'[');
        for at in 1..=length {
            if at > 1 {
                out.bytes.push(b',');
            }
            if let Err(message) = append(&table.raw_get(at)?, out, depth)? {
                return Ok(Err(message));
            }
        }
        out.bytes.push(b']');
        return Ok(Ok(()));
    }
    out.bytes.push(b'{');
    let mut is_first = true;
    for pair in table.pairs::<Value, Value>() {
        let (key, value) = pair?;
        if !std::mem::take(&mut is_first) {
            out.bytes.push(b',');
        }
        match &key {
            Value::String(text) => {
                let text = text.as_bytes();
                if let Err(message) = out.note_text(&text) {
                    return Ok(Err(message));
                }
                append_text(&text, &mut out.bytes);
            }
            Value::Integer(number) => out.bytes.extend(format!("\"{}\"", digits(*number as f64, DIGITS)).bytes()),
            Value::Number(number) => out.bytes.extend(format!("\"{}\"", digits(*number, DIGITS)).bytes()),
            key => return Ok(Err(format!("Cannot serialise {}: table key must be a number or string", type_of(key)))),
        }
        out.bytes.push(b':');
        if let Err(message) = append(&value, out, depth)? {
            return Ok(Err(message));
        }
    }
    out.bytes.push(b'}');
    Ok(Ok(()))
}

/// Returns the length of a table that is an array: its keys are whole numbers from 1 on.
fn array_length(table: &Table, out: &mut Out) -> Result<std::result::Result<Option<usize>, String>> {
    let mut max = 0;
    let mut items = 0;
    for pair in table.pairs::<Value, Value>() {
        if let Err(message) = out.note(0) {
            return Ok(Err(message));
        }
        match pair?.0 {
            Value::Integer(number) if number >= 1 => {
                max = max.max(usize::try_from(number).unwrap_or(usize::MAX));
                items += 1;
            }
            _ => return Ok(Ok(None)),
        }
    }
    if max > SPARSE_SAFE && max > items * SPARSE_RATIO {
        return Ok(Err("Cannot serialise table: excessively sparse array".to_owned()));
    }
    Ok(Ok(Some(max)))
}

/// Returns the number of bytes as which `append_text` writes a byte.
fn escaped_len(byte: &u8) -> usize {
    match byte {
        b'"' | b'\\' | b'/' | 8 | b'\t' | b'\n' | 12 | b'\r' => 2,
        0..=31 | 127 => ESCAPE_BYTES_MAX,
        _ => 1,
    }
}

fn append_text(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for byte in text {
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'/' => out.extend_from_slice(b"\\/"),
            8 => out.extend_from_slice(b"\\b"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\n' => out.extend_from_slice(b"\\n"),
            12 => out.extend_from_slice(b"\\f"),
            b'\r' => out.extend_from_slice(b"\\r"),
            0..=31 | 127 => out.extend(format!("\\u{byte:04x}").bytes()),
            byte => out.push(*byte),
        }
    }
    out.push(b'"');
}

/// Formats a number with this many significant digits, as `%g` of C does.
pub(super) fn digits(number: f64, digits: usize) -> String {
    if !number.is_finite() || number == 0.0 {
        return write_double(number);
    }
    let text = format!("{number:.*e}", digits - 1);
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let trimmed = |text: &str| {
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text.to_owned() }
    };
    if (-4..digits as i32).contains(&exponent) {
        let places = (digits as i32 - 1 - exponent) as usize;
        return trimmed(&format!("{number:.places$}"));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trimmed(mantissa), exponent.abs())
}

fn decode(lua: &Lua, args: &MultiValue) -> Result<Given> {
    if args.len() != 1 {
        return Ok(Err("bad argument #1 to 'decode' (expected 1 argument)".to_owned()));
    }
    let text = match text(args, 0, "decode") {
        Ok(text) => text,
        Err(message) => return Ok(Err(message)),
    };
    if text.len() >= 2 && (text[0] == 0 || text[1] == 0) {
        return Ok(Err("JSON parser does not support UTF-16 or UTF-32".to_owned()));
    }
    let mut parser = Parser { lua, text: &text, at: 0, depth: 0 };
    let parsed = parser.next().map_err(Wrong::of).and_then(|token| parser.value(token)).and_then(|value| {
        let token = parser.next().map_err(Wrong::of)?;
        if matches!(token.kind, Kind::End) { Ok(value) } else { Err(expected("the end", &token)) }
    });
    match parsed {
        Ok(value) => Ok(one(value)),
        Err(Wrong::Text(message)) => Ok(Err(message)),
        Err(Wrong::Lua(error)) => Err(error),
    }
}

/// Token of JSON, and its position.
struct Token {
    kind: Kind,
    at: usize,
}

enum Kind {
    ObjectBegin,
    ObjectEnd,
    ArrayBegin,
    ArrayEnd,
    Text(Vec<u8>),
    Number(f64),
    Boolean(bool),
    Null,
    Colon,
    Comma,
    End,
    Error(&'static str),
}

enum Wrong {
    Text(String),
    Lua(mlua::Error),
}

impl Wrong {
    fn of(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

impl From<mlua::Error> for Wrong {
    fn from(error: mlua::Error) -> Self {
        Self::Lua(error)
    }
}

fn expected(what: &str, token: &Token) -> Wrong {
    let found = match token.kind {
        Kind::ObjectBegin => "T_OBJ_BEGIN",
        Kind::ObjectEnd => "T_OBJ_END",
        Kind::ArrayBegin => "T_ARR_BEGIN",
        Kind::ArrayEnd => "T_ARR_END",
        Kind::Text(_) => "T_STRING",
        Kind::Number(_) => "T_NUMBER",
        Kind::Boolean(_) => "T_BOOLEAN",
        Kind::Null => "T_NULL",
        Kind::Colon => "T_COLON",
        Kind::Comma => "T_COMMA",
        Kind::End => "T_END",
        Kind::Error(found) => found,
    };
    Wrong::Text(format!("Expected {what} but found {found} at character {}", token.at + 1))
}

struct Parser<'t> {
    lua: &'t Lua,
    text: &'t [u8],
    at: usize,
    depth: usize,
}

impl Parser<'_> {
    fn next(&mut self) -> std::result::Result<Token, std::convert::Infallible> {
        while matches!(self.text.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
        let at = self.at;
        let rest = &self.text[at..];
        let mut single = |kind: Kind| {
            self.at += 1;
            kind
        };
        let kind = match rest {
            [] => Kind::End,
            [b'{', ..] => single(Kind::ObjectBegin),
            [b'}', ..] => single(Kind::ObjectEnd),
            [b'[', ..] => single(Kind::ArrayBegin),
            [b']', ..] => single(Kind::ArrayEnd),
            [b':', ..] => single(Kind::Colon),
            [b',', ..] => single(Kind::Comma),
            [b'"', ..] => return Ok(self.string(at)),
            [b'-' | b'0'..=b'9', ..] => self.number(rest),
            [b't', b'r', b'u', b'e', ..] => self.word(4, Kind::Boolean(true)),
            [b'f', b'a', b'l', b's', b'e', ..] => self.word(5, Kind::Boolean(false)),
            [b'n', b'u', b'l', b'l', ..] => self.word(4, Kind::Null),
            // Numbers that JSON does not have, which the default settings accept.
            [a, b, c, ..] if is_any(&[*a, *b, *c], b"nan") => self.word(3, Kind::Number(f64::NAN)),
            [a, b, c, ..] if is_any(&[*a, *b, *c], b"inf") => {
                let length = if is_any(&rest[..rest.len().min(8)], b"infinity") { 8 } else { 3 };
                self.word(length, Kind::Number(f64::INFINITY))
            }
            _ => Kind::Error("invalid token"),
        };
        Ok(Token { kind, at })
    }

    fn word(&mut self, length: usize, kind: Kind) -> Kind {
        self.at += length;
        kind
    }

    /// Parses a number as C's `strtod` does, which accepts more than JSON.
    fn number(&mut self, rest: &[u8]) -> Kind {
        let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        let longest = rest.iter().position(|byte| !is_part(byte)).unwrap_or(rest.len()).min(64);
        for length in (1..=longest).rev() {
            if let Some(number) = crate::redis::commands::args::nearest_float(&rest[..length]) {
                self.at += length;
                return Kind::Number(number);
            }
        }
        Kind::Error("invalid number")
    }

    fn string(&mut self, begin: usize) -> Token {
        let mut text = Vec::new();
        let mut at = begin + 1;
        let wrong = |why, at| Token { kind: Kind::Error(why), at };
        loop {
            match self.text.get(at) {
                None => return wrong("unexpected end of string", at),
                Some(b'"') => break,
                Some(b'\\') => match self.text.get(at + 1) {
                    Some(b'u') => {
                        let Some((character, length)) = unicode(&self.text[at..]) else {
                            return wrong("invalid unicode escape code", at);
                        };
                        text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                        at += length;
                    }
                    Some(escaped) => {
                        text.push(match escaped {
                            b'"' | b'\\' | b'/' => *escaped,
                            b'b' => 8,
                            b't' => b'\t',
                            b'n' => b'\n',
                            b'f' => 12,
                            b'r' => b'\r',
                            _ => return wrong("invalid escape code", at),
                        });
                        at += 2;
                    }
                    None => return wrong("unexpected end of string", at + 1),
                },
                Some(byte) => {
                    text.push(*byte);
                    at += 1;
                }
            }
        }
        self.at = at + 1;
        Token { kind: Kind::Text(text), at: begin }
    }

    fn token(&mut self) -> Token {
        match self.next() {
            Ok(token) => token,
            Err(never) => match never {},
        }
    }

    fn deeper(&mut self) -> std::result::Result<(), Wrong> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            let at = self.at;
            return Err(Wrong::Text(format!(
                "Found too many nested data structures ({}) at character {at}",
                self.depth
            )));
        }
        Ok(())
    }

    fn value(&mut self, token: Token) -> std::result::Result<Value, Wrong> {
        Ok(match token.kind {
            Kind::Text(text) => Value::String(self.lua.create_string(text)?),
            Kind::Number(number) => Value::Number(number),
            Kind::Boolean(is_true) => Value::Boolean(is_true),
            Kind::Null => Value::NULL,
            Kind::ObjectBegin => self.object()?,
            Kind::ArrayBegin => self.array()?,
            _ => return Err(expected("value", &token)),
        })
    }

    fn object(&mut self) -> std::result::Result<Value, Wrong> {
        self.deeper()?;
        let table = self.lua.create_table()?;
        let mut token = self.token();
        if matches!(token.kind, Kind::ObjectEnd) {
            self.depth -= 1;
            return Ok(Value::Table(table));
        }
        loop {
            let Kind::Text(key) = token.kind else {
                return Err(expected("object key string", &token));
            };
            let colon = self.token();
            if !matches!(colon.kind, Kind::Colon) {
                return Err(expected("colon", &colon));
            }
            let next = self.token();
            let value = self.value(next)?;
            table.raw_set(self.lua.create_string(key)?, value)?;
            token = self.token();
            match token.kind {
                Kind::ObjectEnd => break,
                Kind::Comma => token = self.token(),
                _ => return Err(expected("comma or object end", &token)),
            }
        }
        self.depth -= 1;
        Ok(Value::Table(table))
    }

    fn array(&mut self) -> std::result::Result<Value, Wrong> {
        self.deeper()?;
        let table = self.lua.create_table()?;
        let mut token = self.token();
        if matches!(token.kind, Kind::ArrayEnd) {
            self.depth -= 1;
            return Ok(Value::Table(table));
        }
        for at in 1.. {
            let value = self.value(token)?;
            table.raw_set(at, value)?;
            token = self.token();
            match token.kind {
                Kind::ArrayEnd => break,
                Kind::Comma => token = self.token(),
                _ => return Err(expected("comma or array end", &token)),
            }
        }
        self.depth -= 1;
        Ok(Value::Table(table))
    }
}

fn is_any(text: &[u8], word: &[u8]) -> bool {
    text.eq_ignore_ascii_case(word)
}

/// Returns the character of an escape such as `\u00e9`, or of two for a character beyond them, and the length.
fn unicode(text: &[u8]) -> Option<(char, usize)> {
    let unit = |text: &[u8]| {
        let digits = text.strip_prefix(b"\\u")?.get(..4)?;
        digits.iter().try_fold(0, |value, digit| Some(value << 4 | char::from(*digit).to_digit(16)?))
    };
    let first = unit(text)?;
    if !(0xd800..0xe000).contains(&first) {
        return Some((char::from_u32(first)?, 6));
    }
    let second = unit(text.get(6..)?).filter(|second| (0xdc00..0xe000).contains(second))?;
    Some((char::from_u32(0x10000 + (first.checked_sub(0xd800)? << 10) + (second - 0xdc00))?, 12))
}
