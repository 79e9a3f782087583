//! Compatibility of protocol buffer definitions: optional fields may be added or removed, and all others must stay.

use std::collections::HashMap;

use prost_reflect::Cardinality;

use super::{Enum, Field, Kind, Message, Proto};

impl Proto {
    pub fn expect_compatible(&self, other: &Self) -> Result<(), String> {
        let own = &self.messages[self.root].name;
        let others = &other.messages[other.root].name;
        if own != others {
            return Err(format!("the message type {others} cannot be renamed to {own}"));
        }
        let others: HashMap<&str, &Message> =
            other.messages.iter().map(|message| (message.name.as_str(), message)).collect();
        for message in &self.messages {
            if let Some(old) = others.get(message.name.as_str()) {
                self.expect_same_fields(message, other, old)?;
                other.expect_optional(old, message)?;
                self.expect_optional(message, old)?;
            }
        }
        let others: HashMap<&str, &Enum> = other.enums.iter().map(|of| (of.name.as_str(), of)).collect();
        for own in &self.enums {
            let Some(old) = others.get(own.name.as_str()) else {
                continue;
            };
            for (name, number) in &own.values {
                if old.values.get(name).is_some_and(|other| other != number) {
                    return Err(format!("the value {}.{name} cannot be edited", own.name));
                }
            }
        }
        Ok(())
    }

    /// Checks that fields in both messages, matched by number or by name, are the same.
    fn expect_same_fields(&self, message: &Message, other: &Self, old: &Message) -> Result<(), String> {
        for field in &message.fields {
            let by_number = old.by_number.get(&field.number);
            let by_name = old.by_name.get(&field.name).filter(|at| old.fields[**at].name == field.name);
            for at in by_number.into_iter().chain(by_name) {
                let was = &old.fields[*at];
                let is_same = field.number == was.number
                    && field.name == was.name
                    && field.label == was.label
                    && field.oneof == was.oneof
                    && self.type_name(field.kind) == other.type_name(was.kind);
                if !is_same {
                    return Err(format!("the field {}.{} cannot be edited", message.name, was.name));
                }
            }
        }
        Ok(())
    }

    /// Checks that the fields that only one of the messages has are optional.
    fn expect_optional(&self, message: &Message, other: &Message) -> Result<(), String> {
        let is_fixed =
            |field: &&Field| field.label != Cardinality::Optional && !other.by_number.contains_key(&field.number);
        match message.fields.iter().find(is_fixed) {
            None => Ok(()),
            Some(field) => {
                Err(format!("the field {}.{} is not optional: it cannot be added or removed", message.name, field.name))
            }
        }
    }

    fn type_name(&self, kind: Kind) -> (String, &str) {
        match kind {
            Kind::Enum(id) => ("enum".to_owned(), &self.enums[id].name),
            Kind::Message(id) => ("message".to_owned(), &self.messages[id].name),
            Kind::Group(id) => ("group".to_owned(), &self.messages[id].name),
            kind => (format!("{kind:?}"), ""),
        }
    }
}
