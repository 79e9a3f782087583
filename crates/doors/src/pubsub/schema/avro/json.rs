//! Validation of JSON messages against an Avro definition, in one pass without building the value.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::super::json::{JsonKind, check_json, mismatch};
use super::{Avro, Type, TypeId, name_of};

impl Avro {
    pub fn check_json(&self, message: &[u8]) -> Result<(), String> {
        check_json(message, self.value(self.root))
    }

    fn value(&self, id: TypeId) -> Expect<'_> {
        Expect { avro: self, id }
    }
}

/// Visitor that expects a value of this type.
#[derive(Clone, Copy)]
struct Expect<'a> {
    avro: &'a Avro,
    id: TypeId,
}

impl Expect<'_> {
    fn of(&self) -> &Type {
        &self.avro.types[self.id]
    }

    fn refuse<E: Error>(&self, found: JsonKind) -> E {
        let expected = match self.of() {
            Type::Null => "null",
            Type::Boolean => "boolean",
            Type::Int | Type::Long => "number_integer",
            Type::Float | Type::Double => "number",
            Type::Bytes | Type::String | Type::Fixed { .. } | Type::Enum(_) => "string",
            Type::Array(_) => "array",
            Type::Map(_) | Type::Record(_) => "object",
            Type::Union(_) => "an object with the type as its key, or null",
        };
        mismatch(found, expected)
    }

    fn is_nullable(&self) -> bool {
        match self.of() {
            Type::Null => true,
            Type::Union(of) => of.by_name.contains_key("null"),
            _ => false,
        }
    }
}

impl<'de> DeserializeSeed<'de> for Expect<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Expect<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of the schema")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        if self.is_nullable() { Ok(()) } else { Err(self.refuse(JsonKind::Null)) }
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        if matches!(self.of(), Type::Boolean) { Ok(()) } else { Err(self.refuse(JsonKind::Boolean)) }
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        match self.of() {
            Type::Long | Type::Float | Type::Double => Ok(()),
            Type::Int if i32::try_from(value).is_ok() => Ok(()),
            Type::Int => Err(E::custom(format_args!("{value} is not an int"))),
            _ => Err(self.refuse(JsonKind::Integer)),
        }
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        match (i64::try_from(value), self.of()) {
            (Ok(value), _) => self.visit_i64(value),
            (Err(_), Type::Float | Type::Double) => Ok(()),
            (Err(_), Type::Int | Type::Long) => Err(E::custom(format_args!("{value} is not a long"))),
            (Err(_), _) => Err(self.refuse(JsonKind::Integer)),
        }
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        match self.of() {
            Type::Float | Type::Double => Ok(()),
            _ => Err(self.refuse(JsonKind::Float)),
        }
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        // Each byte is written as the character with its number.
        let bytes = || text.chars().try_fold(0, |count, c| (u32::from(c) < 256).then_some(count + 1));
        match self.of() {
            Type::String => Ok(()),
            Type::Bytes if bytes().is_some() => Ok(()),
            Type::Fixed { size, .. } if bytes() == Some(*size) => Ok(()),
            Type::Bytes | Type::Fixed { .. } => {
                let name = name_of(&self.avro.types, self.id);
                Err(E::custom(format_args!("the string does not have the bytes of {name}")))
            }
            Type::Enum(of) if of.by_name.contains(text) => Ok(()),
            Type::Enum(of) => Err(E::custom(format_args!("{} has no symbol {text:?}", of.name.full))),
            _ => Err(self.refuse(JsonKind::String)),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Type::Array(of) = self.of() else {
            return Err(self.refuse(JsonKind::Array));
        };
        while items.next_element_seed(self.avro.value(*of))?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        match self.of() {
            Type::Map(values) => {
                while entries.next_key::<IgnoredAny>()?.is_some() {
                    entries.next_value_seed(self.avro.value(*values))?;
                }
                Ok(())
            }
            Type::Union(of) => {
                let name = entries.next_key::<String>()?.unwrap_or_default();
                let branch = of.by_name.get(&name);
                let branch = branch.ok_or_else(|| A::Error::custom(format_args!("the union has no type {name:?}")))?;
                entries.next_value_seed(self.avro.value(*branch))?;
                match entries.next_key::<IgnoredAny>()? {
                    None => Ok(()),
                    Some(_) => Err(A::Error::custom("a value of a union has one key")),
                }
            }
            Type::Record(record) => {
                let mut is_present = vec![false; record.fields.len()];
                while let Some(name) = entries.next_key::<String>()? {
                    let at = record.by_name.get(&name).copied();
                    let at = at.ok_or_else(|| A::Error::custom(format_args!("unknown field {name:?}")))?;
                    if std::mem::replace(&mut is_present[at], true) {
                        return Err(A::Error::custom(format_args!("the field {name:?} is set twice")));
                    }
                    entries.next_value_seed(self.avro.value(record.fields[at].of))?;
                }
                match is_present.iter().position(|is_present| !is_present) {
                    None => Ok(()),
                    Some(at) => Err(A::Error::custom(format_args!("missing field {:?}", record.fields[at].name))),
                }
            }
            _ => Err(self.refuse(JsonKind::Object)),
        }
    }
}
