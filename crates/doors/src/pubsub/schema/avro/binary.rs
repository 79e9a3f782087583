//! Binary messages of an Avro definition: their validation, without building the value, and their text in Avro's JSON
//! encoding (<https://avro.apache.org/docs/1.11.1/specification/#json-encoding>).

use super::super::{DEPTH_MAX, TOO_DEEP, TOO_LONG, Walk};
use super::sink::{Sink, Text};
use super::{Avro, Type, TypeId, name_of};

/// Limit on the visited types of one value: a constant for types without bytes, plus some for each byte.
const STEPS_MIN: usize = 100_000;
const STEPS_PER_BYTE: usize = 4;

const TOO_SHORT: &str = "Not enough data to parse for schema.";

impl Avro {
    pub fn check_binary(&self, message: &[u8]) -> Result<(), String> {
        self.read(message, ()).map(drop)
    }

    /// Returns the text of a message in Avro's JSON encoding. Fails if the message does not conform, or if the text
    /// would be longer than `bytes_max`.
    pub fn text_of_binary(&self, message: &[u8], bytes_max: usize) -> Result<String, String> {
        self.read(message, Text::new(bytes_max)).map(Text::into_string)
    }

    /// Reads a whole message into a sink.
    fn read<S: Sink>(&self, message: &[u8], sink: S) -> Result<S, String> {
        let steps = Walk::new(STEPS_MIN + STEPS_PER_BYTE * message.len());
        let mut reader = Reader { avro: self, rest: message, steps, sink };
        reader.value(self.root, 0)?;
        if reader.rest.is_empty() { Ok(reader.sink) } else { Err(TOO_LONG.to_owned()) }
    }
}

struct Reader<'a, S> {
    avro: &'a Avro,
    rest: &'a [u8],
    steps: Walk,
    sink: S,
}

impl<'a, S: Sink> Reader<'a, S> {
    fn value(&mut self, id: TypeId, depth: usize) -> Result<(), String> {
        self.steps.spend(1)?;
        if depth > DEPTH_MAX {
            return Err(TOO_DEEP.to_owned());
        }
        match &self.avro.types[id] {
            Type::Null => self.sink.raw("null"),
            Type::Boolean => match self.take(1)? {
                [0] => self.sink.raw("false"),
                [1] => self.sink.raw("true"),
                other => Err(format!("{other:?} is not a boolean")),
            },
            Type::Int => {
                let int = self.long()?;
                i32::try_from(int).map_err(|error| format!("{int} is not an int: {error}"))?;
                self.sink.integer(int)
            }
            Type::Long => {
                let long = self.long()?;
                self.sink.integer(long)
            }
            Type::Float => {
                let float = f32::from_le_bytes(self.array()?);
                self.sink.float(float)
            }
            Type::Double => {
                let double = f64::from_le_bytes(self.array()?);
                self.sink.float(double)
            }
            Type::Bytes => {
                let bytes = self.bytes()?;
                self.sink.bytes(bytes)
            }
            Type::String => {
                let string = self.string()?;
                self.sink.string(string)
            }
            Type::Fixed { size, .. } => {
                let bytes = self.take(*size)?;
                self.sink.bytes(bytes)
            }
            Type::Enum(of) => {
                let index = self.index(of.symbols.len(), "symbols of the enum")?;
                self.sink.string(&of.symbols[index])
            }
            Type::Union(of) => {
                let index = self.index(of.branches.len(), "types of the union")?;
                let branch = of.branches[index];
                if matches!(self.avro.types[branch], Type::Null) {
                    return self.value(branch, depth + 1);
                }
                self.sink.raw("{")?;
                self.sink.string(name_of(&self.avro.types, branch))?;
                self.sink.raw(":")?;
                self.value(branch, depth + 1)?;
                self.sink.raw("}")
            }
            Type::Array(items) => {
                self.sink.raw("[")?;
                self.blocks(|reader| reader.value(*items, depth + 1))?;
                self.sink.raw("]")
            }
            Type::Map(values) => {
                self.sink.raw("{")?;
                self.blocks(|reader| {
                    let key = reader.string()?;
                    reader.sink.string(key)?;
                    reader.sink.raw(":")?;
                    reader.value(*values, depth + 1)
                })?;
                self.sink.raw("}")
            }
            Type::Record(record) => {
                self.sink.raw("{")?;
                for (number, field) in record.fields.iter().enumerate() {
                    self.sink.raw(if number > 0 { "," } else { "" })?;
                    self.sink.string(&field.name)?;
                    self.sink.raw(":")?;
                    self.value(field.of, depth + 1)?;
                }
                self.sink.raw("}")
            }
        }
    }

    /// Reads the blocks of an array or a map up to the empty block.
    fn blocks(&mut self, mut item: impl FnMut(&mut Self) -> Result<(), String>) -> Result<(), String> {
        let mut is_first = true;
        loop {
            let count = self.long()?;
            if count == 0 {
                return Ok(());
            }
            // A negative count is followed by the size of the block in bytes, for readers that skip it.
            let end = match (count < 0).then(|| self.long()).transpose()? {
                None => None,
                Some(bytes) => {
                    let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= self.rest.len());
                    Some(self.rest.len() - bytes.ok_or(TOO_SHORT)?)
                }
            };
            for _ in 0..count.unsigned_abs() {
                self.steps.spend(1)?;
                self.sink.raw(if is_first { "" } else { "," })?;
                is_first = false;
                item(self)?;
            }
            if end.is_some_and(|end| end != self.rest.len()) {
                return Err("a block of an array or a map does not have the announced length".to_owned());
            }
        }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(TOO_SHORT)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (array, rest) = self.rest.split_first_chunk().ok_or(TOO_SHORT)?;
        self.rest = rest;
        Ok(*array)
    }

    /// Reads a variable-length integer in zigzag encoding.
    fn long(&mut self) -> Result<i64, String> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            if shift == 63 && byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok((value >> 1) as i64 ^ -((value & 1) as i64));
            }
        }
        Err("an integer has more than 64 bits".to_owned())
    }

    fn bytes(&mut self) -> Result<&'a [u8], String> {
        let length = self.long()?;
        let length = usize::try_from(length).map_err(|error| format!("{length} is not a length: {error}"))?;
        self.take(length)
    }

    fn string(&mut self) -> Result<&'a str, String> {
        std::str::from_utf8(self.bytes()?).map_err(|error| format!("a string is not UTF-8: {error}"))
    }

    fn index(&mut self, count: usize, of: &str) -> Result<usize, String> {
        let index = self.long()?;
        let known = usize::try_from(index).ok().filter(|index| *index < count);
        known.ok_or_else(|| format!("index {index} is not valid for {count} {of}"))
    }
}
