//! Validation of binary messages against an Avro definition, without building the value.

use super::super::{DEPTH_MAX, TOO_DEEP, TOO_LONG, Walk};
use super::{Avro, Type, TypeId};

/// Limit on the visited types of one value: a constant for types without bytes, plus some for each byte.
const STEPS_MIN: usize = 100_000;
const STEPS_PER_BYTE: usize = 4;

const TOO_SHORT: &str = "Not enough data to parse for schema.";

impl Avro {
    pub fn check_binary(&self, message: &[u8]) -> Result<(), String> {
        let steps = Walk::new(STEPS_MIN + STEPS_PER_BYTE * message.len());
        let mut reader = Reader { avro: self, rest: message, steps };
        reader.value(self.root, 0)?;
        if reader.rest.is_empty() { Ok(()) } else { Err(TOO_LONG.to_owned()) }
    }
}

struct Reader<'a> {
    avro: &'a Avro,
    rest: &'a [u8],
    steps: Walk,
}

impl<'a> Reader<'a> {
    fn value(&mut self, id: TypeId, depth: usize) -> Result<(), String> {
        self.steps.spend(1)?;
        if depth > DEPTH_MAX {
            return Err(TOO_DEEP.to_owned());
        }
        match &self.avro.types[id] {
            Type::Null => Ok(()),
            Type::Boolean => match self.take(1)? {
                [0 | 1] => Ok(()),
                other => Err(format!("{other:?} is not a boolean")),
            },
            Type::Int => {
                let int = self.long()?;
                i32::try_from(int).map(drop).map_err(|error| format!("{int} is not an int: {error}"))
            }
            Type::Long => self.long().map(drop),
            Type::Float => self.take(4).map(drop),
            Type::Double => self.take(8).map(drop),
            Type::Bytes => self.bytes().map(drop),
            Type::String => self.string(),
            Type::Fixed { size, .. } => self.take(*size).map(drop),
            Type::Enum(of) => self.index(of.symbols.len(), "symbols of the enum").map(drop),
            Type::Union(of) => {
                let index = self.index(of.branches.len(), "types of the union")?;
                self.value(of.branches[index], depth + 1)
            }
            Type::Array(items) => self.blocks(|reader| reader.value(*items, depth + 1)),
            Type::Map(values) => self.blocks(|reader| {
                reader.string()?;
                reader.value(*values, depth + 1)
            }),
            Type::Record(record) => record.fields.iter().try_for_each(|field| self.value(field.of, depth + 1)),
        }
    }

    /// Reads the blocks of an array or a map up to the empty block.
    fn blocks(&mut self, mut item: impl FnMut(&mut Self) -> Result<(), String>) -> Result<(), String> {
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

    fn string(&mut self) -> Result<(), String> {
        std::str::from_utf8(self.bytes()?).map(drop).map_err(|error| format!("a string is not UTF-8: {error}"))
    }

    fn index(&mut self, count: usize, of: &str) -> Result<usize, String> {
        let index = self.long()?;
        let known = usize::try_from(index).ok().filter(|index| *index < count);
        known.ok_or_else(|| format!("index {index} is not valid for {count} {of}"))
    }
}
