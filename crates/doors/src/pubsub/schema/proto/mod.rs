//! Protocol buffer definitions: parsed, checked, and stored as tables of messages and enums.

mod binary;
mod evolve;
mod json;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

use prost_reflect::{
    Cardinality, DescriptorPool, DynamicMessage, FieldDescriptor, Kind as Described, MessageDescriptor,
};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto, OneofDescriptorProto,
};

use super::expect_short;

/// File name of a definition within its parser.
const FILE_NAME: &str = "schema.proto";

/// Indices into the tables.
type MessageId = usize;
type EnumId = usize;

/// Protocol buffer definition. Messages may contain themselves, so every traversal limits its depth.
#[derive(Debug)]
pub(super) struct Proto {
    messages: Vec<Message>,
    enums: Vec<Enum>,
    root: MessageId,
}

#[derive(Debug)]
struct Message {
    name: String,
    fields: Vec<Field>,
    by_number: HashMap<u32, usize>,
    /// Fields by both their names in the definition and their names in JSON.
    by_name: HashMap<String, usize>,
    /// Number of required fields.
    required: usize,
    /// `true` if this is the type of a map's entries: a key and a value.
    is_map_entry: bool,
}

#[derive(Debug)]
struct Enum {
    name: String,
    values: BTreeMap<String, i32>,
}

#[derive(Debug)]
struct Field {
    number: u32,
    name: String,
    kind: Kind,
    label: Cardinality,
    /// Name of the oneof that contains the field; a message has at most one field of it.
    oneof: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Double,
    Float,
    Int32,
    Int64,
    Uint32,
    Uint64,
    Sint32,
    Sint64,
    Fixed32,
    Fixed64,
    Sfixed32,
    Sfixed64,
    Bool,
    String,
    Bytes,
    Enum(EnumId),
    Message(MessageId),
    /// Message that is delimited by two tags instead of a length.
    Group(MessageId),
}

impl Proto {
    /// Parses a definition. The caller limits the size of the text; the parser limits the nesting to 31 messages.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (pool, root) = described(text)?;
        let enums: Vec<_> = pool.all_enums().collect();
        let messages: Vec<_> = pool.all_messages().collect();
        let by_name = |names: Vec<String>| names.into_iter().zip(0..).collect::<HashMap<String, usize>>();
        let ids = Ids {
            messages: by_name(messages.iter().map(|message| message.full_name().to_owned()).collect()),
            enums: by_name(enums.iter().map(|of| of.full_name().to_owned()).collect()),
        };
        Ok(Self {
            root: ids.messages[root.full_name()],
            messages: messages.iter().map(|message| Message::of(message, &ids)).collect(),
            enums: enums.iter().map(Enum::of).collect(),
        })
    }
}

/// Parses a definition into descriptors, and returns that of its message type.
fn described(text: &str) -> Result<(DescriptorPool, MessageDescriptor), String> {
    let file = protox_parse::parse(FILE_NAME, text).map_err(|error| error.to_string())?;
    if let Some(import) = file.dependency.first() {
        return Err(format!("imports are not supported: {import:?}"));
    }
    let top = file.message_type.len() + file.enum_type.len();
    if file.message_type.len() != 1 || top != 1 {
        return Err(format!("a schema defines exactly one top-level type, a message type, not {top} types"));
    }
    file.message_type.iter().try_for_each(|message| expect_short_names(file.package().len(), message))?;
    let mut pool = DescriptorPool::new();
    pool.add_file_descriptor_proto(file).map_err(|error| error.to_string())?;
    let root = pool.files().find_map(|file| file.messages().next()).ok_or("the schema has no message type")?;
    Ok((pool, root))
}

/// Returns the text of a binary message in the JSON of protocol buffers. Fails if the message cannot be read by the
/// definition, or if the text would be longer than `bytes_max`.
pub(super) fn text_of_binary(definition: &str, message: &[u8], bytes_max: usize) -> Result<String, String> {
    let (_, root) = described(definition)?;
    let message = DynamicMessage::decode(root, message).map_err(|error| error.to_string())?;
    let mut text = Bounded { bytes: Vec::new(), bytes_max };
    serde_json::to_writer(&mut text, &message).map_err(|error| error.to_string())?;
    String::from_utf8(text.bytes).map_err(|error| error.to_string())
}

/// Bytes of limited number.
struct Bounded {
    bytes: Vec<u8>,
    bytes_max: usize,
}

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.bytes_max {
            let message = format!("the text of the message has more than {} bytes", self.bytes_max);
            return Err(std::io::Error::other(message));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Checks all names in a message whose enclosing name has `outer` bytes.
fn expect_short_names(outer: usize, message: &DescriptorProto) -> Result<(), String> {
    let own = outer + 1 + message.name().len();
    let fields = message.field.iter().chain(&message.extension).map(FieldDescriptorProto::name);
    let oneofs = message.oneof_decl.iter().map(OneofDescriptorProto::name);
    let values = message.enum_type.iter().flat_map(|of| &of.value).map(EnumValueDescriptorProto::name);
    let enums = message.enum_type.iter().map(EnumDescriptorProto::name);
    let longest = fields.chain(oneofs).chain(values).chain(enums).map(str::len).max();
    expect_short(longest.map_or(own, |bytes| own + 1 + bytes))?;
    message.nested_type.iter().try_for_each(|nested| expect_short_names(own, nested))
}

/// Indices of the types of a definition by their full names.
struct Ids {
    messages: HashMap<String, MessageId>,
    enums: HashMap<String, EnumId>,
}

impl Message {
    fn of(described: &MessageDescriptor, ids: &Ids) -> Self {
        let described_fields: Vec<FieldDescriptor> = described.fields().collect();
        let fields: Vec<Field> = described_fields.iter().map(|field| Field::of(field, ids)).collect();
        let by_number = fields.iter().zip(0..).map(|(field, at)| (field.number, at)).collect();
        let names = |field: &FieldDescriptor| [field.name().to_owned(), field.json_name().to_owned()];
        let names = described_fields.iter().zip(0..).flat_map(|(field, at)| names(field).map(|name| (name, at)));
        Self {
            name: described.full_name().to_owned(),
            by_number,
            by_name: names.collect(),
            required: fields.iter().filter(|field| field.label == Cardinality::Required).count(),
            is_map_entry: described.is_map_entry(),
            fields,
        }
    }
}

impl Enum {
    fn of(described: &prost_reflect::EnumDescriptor) -> Self {
        let values = described.values().map(|value| (value.name().to_owned(), value.number()));
        Self { name: described.full_name().to_owned(), values: values.collect() }
    }
}

impl Field {
    fn of(described: &FieldDescriptor, ids: &Ids) -> Self {
        let kind = match described.kind() {
            Described::Double => Kind::Double,
            Described::Float => Kind::Float,
            Described::Int32 => Kind::Int32,
            Described::Int64 => Kind::Int64,
            Described::Uint32 => Kind::Uint32,
            Described::Uint64 => Kind::Uint64,
            Described::Sint32 => Kind::Sint32,
            Described::Sint64 => Kind::Sint64,
            Described::Fixed32 => Kind::Fixed32,
            Described::Fixed64 => Kind::Fixed64,
            Described::Sfixed32 => Kind::Sfixed32,
            Described::Sfixed64 => Kind::Sfixed64,
            Described::Bool => Kind::Bool,
            Described::String => Kind::String,
            Described::Bytes => Kind::Bytes,
            Described::Enum(of) => Kind::Enum(ids.enums[of.full_name()]),
            Described::Message(of) if described.is_group() => Kind::Group(ids.messages[of.full_name()]),
            Described::Message(of) => Kind::Message(ids.messages[of.full_name()]),
        };
        // An optional field of proto3 is in a synthetic oneof.
        let oneof = described.containing_oneof().filter(|oneof| !oneof.is_synthetic());
        Self {
            number: described.number(),
            name: described.name().to_owned(),
            kind,
            label: described.cardinality(),
            oneof: oneof.map(|oneof| oneof.name().to_owned()),
        }
    }
}
