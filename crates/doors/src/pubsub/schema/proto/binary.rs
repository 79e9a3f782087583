//! Validation of binary messages against a protocol buffer definition, without building the message.

use std::collections::HashSet;

use prost_reflect::Cardinality;

use super::super::{DEPTH_MAX, TOO_DEEP};
use super::{Field, Kind, MessageId, Proto};

const TOO_SHORT: &str = "the message ends in the middle of a field";

/// Wire type of a field, which determines its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wire {
    Varint,
    Fixed64,
    Length,
    GroupStart,
    GroupEnd,
    Fixed32,
}

impl Wire {
    fn of(kind: Kind) -> Self {
        match kind {
            Kind::Int32 | Kind::Int64 | Kind::Uint32 | Kind::Uint64 | Kind::Sint32 | Kind::Sint64 => Self::Varint,
            Kind::Bool | Kind::Enum(_) => Self::Varint,
            Kind::Double | Kind::Fixed64 | Kind::Sfixed64 => Self::Fixed64,
            Kind::Float | Kind::Fixed32 | Kind::Sfixed32 => Self::Fixed32,
            Kind::String | Kind::Bytes | Kind::Message(_) => Self::Length,
            Kind::Group(_) => Self::GroupStart,
        }
    }
}

impl Proto {
    /// Checks a message. Unknown fields are accepted, as by every reader of such messages.
    pub fn check_binary(&self, message: &[u8]) -> Result<(), String> {
        let mut reader = Reader { rest: message };
        self.message(self.root, &mut reader, None, 0)
    }

    /// Reads fields up to the end, or up to the tag that ends this group.
    fn message(&self, id: MessageId, reader: &mut Reader<'_>, group: Option<u32>, depth: usize) -> Result<(), String> {
        if depth > DEPTH_MAX {
            return Err(TOO_DEEP.to_owned());
        }
        let message = &self.messages[id];
        let mut required = HashSet::new();
        loop {
            if group.is_none() && reader.rest.is_empty() {
                break;
            }
            let (number, wire) = reader.tag()?;
            if wire == Wire::GroupEnd {
                if group == Some(number) {
                    break;
                }
                return Err(format!("the group {number} ends without a start"));
            }
            let Some(at) = message.by_number.get(&number) else {
                reader.skip(number, wire, depth)?;
                continue;
            };
            let field = &message.fields[*at];
            self.field(field, wire, reader, depth).map_err(|why| format!("{}.{}: {why}", message.name, field.name))?;
            if field.label == Cardinality::Required {
                required.insert(number);
            }
        }
        if required.len() < message.required {
            let is_missing = |field: &&Field| field.label == Cardinality::Required && !required.contains(&field.number);
            let missing = message.fields.iter().find(is_missing).map_or("", |field| &field.name);
            return Err(format!("{} needs the field {missing}", message.name));
        }
        Ok(())
    }

    fn field(&self, field: &Field, wire: Wire, reader: &mut Reader<'_>, depth: usize) -> Result<(), String> {
        let own = Wire::of(field.kind);
        if wire == own {
            return self.value(field, reader, depth);
        }
        // Numbers may be packed together after one length.
        let is_packable = field.label == Cardinality::Repeated && own != Wire::Length && own != Wire::GroupStart;
        if is_packable && wire == Wire::Length {
            let mut packed = Reader { rest: reader.length_delimited()? };
            while !packed.rest.is_empty() {
                self.value(field, &mut packed, depth)?;
            }
            return Ok(());
        }
        Err(format!("its wire type is {wire:?}, not {own:?}"))
    }

    fn value(&self, field: &Field, reader: &mut Reader<'_>, depth: usize) -> Result<(), String> {
        match field.kind {
            Kind::Message(id) => {
                let mut inner = Reader { rest: reader.length_delimited()? };
                self.message(id, &mut inner, None, depth + 1)
            }
            Kind::Group(id) => self.message(id, reader, Some(field.number), depth + 1),
            Kind::String => {
                let text = reader.length_delimited()?;
                std::str::from_utf8(text).map(drop).map_err(|error| format!("a string is not UTF-8: {error}"))
            }
            Kind::Bytes => reader.length_delimited().map(drop),
            kind if Wire::of(kind) == Wire::Varint => reader.varint().map(drop),
            kind => reader.take(if Wire::of(kind) == Wire::Fixed64 { 8 } else { 4 }).map(drop),
        }
    }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(TOO_SHORT)?;
        self.rest = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, String> {
        let mut value = 0;
        for shift in (0..70).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err("an integer has more than ten bytes".to_owned())
    }

    fn length_delimited(&mut self) -> Result<&'a [u8], String> {
        let length = self.varint()?;
        let length = usize::try_from(length).map_err(|error| format!("{TOO_SHORT}: {error}"))?;
        self.take(length)
    }

    fn tag(&mut self) -> Result<(u32, Wire), String> {
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).ok().filter(|number| (1..1 << 29).contains(number));
        let number = number.ok_or_else(|| format!("{} is not a field number", tag >> 3))?;
        let wire = match tag & 7 {
            0 => Wire::Varint,
            1 => Wire::Fixed64,
            2 => Wire::Length,
            3 => Wire::GroupStart,
            4 => Wire::GroupEnd,
            5 => Wire::Fixed32,
            other => return Err(format!("{other} is not a wire type")),
        };
        Ok((number, wire))
    }

    /// Skips an unknown field.
    fn skip(&mut self, number: u32, wire: Wire, depth: usize) -> Result<(), String> {
        if depth > DEPTH_MAX {
            return Err(TOO_DEEP.to_owned());
        }
        match wire {
            Wire::Varint => self.varint().map(drop),
            Wire::Fixed64 => self.take(8).map(drop),
            Wire::Length => self.length_delimited().map(drop),
            Wire::Fixed32 => self.take(4).map(drop),
            Wire::GroupEnd => Err(format!("the group {number} ends without a start")),
            Wire::GroupStart => loop {
                match self.tag()? {
                    (end, Wire::GroupEnd) if end == number => return Ok(()),
                    (inner, wire) => self.skip(inner, wire, depth + 1)?,
                }
            },
        }
    }
}
