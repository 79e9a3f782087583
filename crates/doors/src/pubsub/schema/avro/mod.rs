//! Avro definitions: parsed, checked, and stored as a table of types that refer to each other by index.

mod binary;
mod json;
mod resolve;
mod sink;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::expect_short;

/// Index into the table of types.
type TypeId = usize;

/// Avro definition. Named types may contain themselves, so every traversal limits its depth and steps.
#[derive(Debug)]
pub(super) struct Avro {
    types: Vec<Type>,
    root: TypeId,
}

#[derive(Debug)]
enum Type {
    Null,
    Boolean,
    Int,
    Long,
    Float,
    Double,
    Bytes,
    String,
    Array(TypeId),
    Map(TypeId),
    Union(Union),
    Fixed { name: Names, size: usize },
    Enum(Enum),
    Record(Record),
}

/// Name of a type.
#[derive(Debug, Default)]
struct Names {
    /// Name with its namespace.
    full: String,
    /// Alternative names when it reads data of another definition, without their namespaces.
    aliases: Vec<String>,
}

#[derive(Debug, Default)]
struct Union {
    branches: Vec<TypeId>,
    /// Branches by the names that JSON uses.
    by_name: HashMap<String, TypeId>,
}

#[derive(Debug)]
struct Enum {
    name: Names,
    /// Symbols in the order of the definition: a message has their numbers.
    symbols: Vec<String>,
    by_name: HashSet<String>,
    /// `true` if the reader has a default for symbols of the writer that it does not know.
    has_default: bool,
}

#[derive(Debug, Default)]
struct Record {
    name: Names,
    fields: Vec<Field>,
    by_name: HashMap<String, usize>,
}

#[derive(Debug)]
struct Field {
    name: String,
    aliases: Vec<String>,
    of: TypeId,
    has_default: bool,
}

const PRIMITIVES: [(&str, Type); 8] = [
    ("null", Type::Null),
    ("boolean", Type::Boolean),
    ("int", Type::Int),
    ("long", Type::Long),
    ("float", Type::Float),
    ("double", Type::Double),
    ("bytes", Type::Bytes),
    ("string", Type::String),
];

impl Names {
    /// Returns the name without its namespace.
    fn simple(&self) -> &str {
        simple(&self.full)
    }
}

fn simple(full: &str) -> &str {
    full.rsplit_once('.').map_or(full, |(_, name)| name)
}

impl Avro {
    /// Parses a definition. The caller limits the size of the text, and the JSON parser limits its nesting.
    pub fn parse(text: &str) -> Result<Self, String> {
        let definition: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let types = PRIMITIVES.into_iter().map(|(_, primitive)| primitive).collect();
        let mut parser = Parser { types, named: HashMap::new() };
        let root = parser.type_of(&definition, "")?;
        Ok(Self { types: parser.types, root })
    }
}

/// Returns the name of a type, which JSON also uses for a branch of a union.
fn name_of(types: &[Type], id: TypeId) -> &str {
    match &types[id] {
        Type::Fixed { name, .. } | Type::Enum(Enum { name, .. }) | Type::Record(Record { name, .. }) => &name.full,
        Type::Array(_) => "array",
        Type::Map(_) => "map",
        Type::Union(_) => "union",
        _ => PRIMITIVES[id].0,
    }
}

struct Parser {
    /// Types; the primitive types come first, each at its index in `PRIMITIVES`.
    types: Vec<Type>,
    named: HashMap<String, TypeId>,
}

impl Parser {
    fn add(&mut self, new: Type) -> TypeId {
        self.types.push(new);
        self.types.len() - 1
    }

    fn type_of(&mut self, definition: &Value, namespace: &str) -> Result<TypeId, String> {
        match definition {
            Value::String(name) => self.reference(name, namespace),
            Value::Array(branches) => self.union(branches, namespace),
            Value::Object(object) => match object.get("type") {
                Some(Value::String(kind)) => self.object(kind, object, namespace),
                Some(inner @ (Value::Object(_) | Value::Array(_))) => self.type_of(inner, namespace),
                _ => Err("a type needs the attribute \"type\"".to_owned()),
            },
            _ => Err(format!("not a type: {definition}")),
        }
    }

    fn reference(&self, name: &str, namespace: &str) -> Result<TypeId, String> {
        if let Some(primitive) = PRIMITIVES.iter().position(|(known, _)| *known == name) {
            return Ok(primitive);
        }
        let found = self.named.get(&in_namespace(name, namespace)).or_else(|| self.named.get(name));
        found.copied().ok_or_else(|| format!("unknown type: {name}"))
    }

    fn union(&mut self, definitions: &[Value], namespace: &str) -> Result<TypeId, String> {
        let mut union = Union::default();
        for definition in definitions {
            let id = self.type_of(definition, namespace)?;
            if matches!(self.types[id], Type::Union(_)) {
                return Err("a union may not immediately contain another union".to_owned());
            }
            let name = name_of(&self.types, id).to_owned();
            if let Some(again) = union.by_name.insert(name, id) {
                return Err(format!("a union may not have two types {}", name_of(&self.types, again)));
            }
            union.branches.push(id);
        }
        if union.branches.is_empty() {
            return Err("a union needs at least one type".to_owned());
        }
        Ok(self.add(Type::Union(union)))
    }

    fn object(&mut self, kind: &str, object: &Map<String, Value>, namespace: &str) -> Result<TypeId, String> {
        let inner = |attribute: &str| object.get(attribute).ok_or_else(|| format!("{kind} needs \"{attribute}\""));
        match kind {
            "array" => {
                let items = self.type_of(inner("items")?, namespace)?;
                Ok(self.add(Type::Array(items)))
            }
            "map" => {
                let values = self.type_of(inner("values")?, namespace)?;
                Ok(self.add(Type::Map(values)))
            }
            "fixed" => {
                let size = inner("size")?.as_u64().filter(|size| i32::try_from(*size).is_ok());
                let size = size.ok_or("fixed needs a \"size\" that is a whole number")? as usize;
                let name = names(object, namespace)?;
                self.define(Type::Fixed { name, size })
            }
            "enum" => {
                let symbols = inner("symbols")?.as_array().ok_or("\"symbols\" has to be a list")?;
                let new = enumeration(names(object, namespace)?, symbols, object.get("default"))?;
                self.define(Type::Enum(new))
            }
            "record" | "error" => {
                let fields = inner("fields")?.as_array().ok_or("\"fields\" has to be a list")?;
                self.record(names(object, namespace)?, fields)
            }
            // A primitive type, possibly with a logical type that specifies its meaning, or a name.
            name => self.reference(name, namespace),
        }
    }

    fn define(&mut self, new: Type) -> Result<TypeId, String> {
        let id = self.add(new);
        let name = match &self.types[id] {
            Type::Fixed { name, .. } | Type::Enum(Enum { name, .. }) | Type::Record(Record { name, .. }) => &name.full,
            _ => return Ok(id),
        };
        if PRIMITIVES.iter().any(|(known, _)| known == name) || self.named.contains_key(name) {
            return Err(format!("cannot redefine: {name}"));
        }
        self.named.insert(name.clone(), id);
        Ok(id)
    }

    fn record(&mut self, name: Names, definitions: &[Value]) -> Result<TypeId, String> {
        let namespace = name.full.rsplit_once('.').map_or(String::new(), |(namespace, _)| namespace.to_owned());
        // Defined before its fields, which may be of this type.
        let id = self.define(Type::Record(Record { name, ..Record::default() }))?;
        let mut fields = Vec::new();
        let mut by_name = HashMap::new();
        for definition in definitions {
            let object = definition.as_object().ok_or("a field has to be an object")?;
            let name = object.get("name").and_then(Value::as_str).ok_or("a field needs \"name\"")?;
            let name = expect_name(name)?.to_owned();
            let of = object.get("type").ok_or_else(|| format!("the field {name} needs \"type\""))?;
            let of = self.type_of(of, &namespace)?;
            if by_name.insert(name.clone(), fields.len()).is_some() {
                return Err(format!("duplicate field: {name}"));
            }
            let aliases = texts(object.get("aliases"))?.map(str::to_owned).collect();
            fields.push(Field { name, aliases, of, has_default: object.contains_key("default") });
        }
        if let Type::Record(record) = &mut self.types[id] {
            record.fields = fields;
            record.by_name = by_name;
        }
        Ok(id)
    }
}

fn enumeration(name: Names, definitions: &[Value], default: Option<&Value>) -> Result<Enum, String> {
    let mut symbols = Vec::new();
    let mut by_name = HashSet::new();
    for symbol in definitions {
        let symbol = expect_name(symbol.as_str().ok_or("a symbol has to be a string")?)?;
        if !by_name.insert(symbol.to_owned()) {
            return Err(format!("duplicate symbol: {symbol}"));
        }
        symbols.push(symbol.to_owned());
    }
    if let Some(default) = default.filter(|default| !default.as_str().is_some_and(|name| by_name.contains(name))) {
        return Err(format!("the default of an enum has to be one of its symbols: {default}"));
    }
    Ok(Enum { name, symbols, by_name, has_default: default.is_some() })
}

/// Returns the strings of an attribute that is a list; empty if the attribute is missing.
fn texts(value: Option<&Value>) -> Result<impl Iterator<Item = &str>, String> {
    let list = match value {
        None => &[][..],
        Some(Value::Array(list)) if list.iter().all(Value::is_string) => list,
        Some(other) => return Err(format!("aliases have to be a list of strings: {other}")),
    };
    Ok(list.iter().filter_map(Value::as_str))
}

fn names(object: &Map<String, Value>, enclosing: &str) -> Result<Names, String> {
    let name = object.get("name").and_then(Value::as_str).ok_or("a record, an enum and a fixed need \"name\"")?;
    let namespace = match object.get("namespace") {
        None | Some(Value::Null) => enclosing,
        Some(Value::String(namespace)) => namespace,
        Some(other) => return Err(format!("a namespace has to be a string: {other}")),
    };
    expect_short(name.len() + 1 + namespace.len())?;
    let full = in_namespace(name, namespace);
    full.split('.').try_for_each(|part| expect_name(part).map(drop))?;
    let aliases = texts(object.get("aliases"))?.map(|alias| simple(alias).to_owned()).collect();
    Ok(Names { full, aliases })
}

fn in_namespace(name: &str, namespace: &str) -> String {
    if name.contains('.') || namespace.is_empty() { name.to_owned() } else { format!("{namespace}.{name}") }
}

fn expect_name(name: &str) -> Result<&str, String> {
    let mut chars = name.chars();
    let is_name = chars.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_');
    if is_name { Ok(name) } else { Err(format!("illegal name: {name:?}")) }
}
