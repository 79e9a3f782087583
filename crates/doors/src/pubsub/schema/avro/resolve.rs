//! Compatibility of Avro definitions by the rules of schema resolution.

use std::collections::HashSet;

use super::super::{DEPTH_MAX, TOO_DEEP, Walk, shortened};
use super::{Avro, Enum, Names, Record, Type, TypeId, name_of};

/// Maximum number of compared pairs of types: larger definitions are refused instead of being compared for long, on a
/// thread that serves others.
const STEPS_MAX: usize = 100_000;

impl Avro {
    /// Checks that each of the two definitions can read messages of the other.
    pub fn expect_compatible(&self, other: &Self) -> Result<(), String> {
        self.reads(other)?;
        other.reads(self)
    }

    /// Checks that all messages of the writer can be read.
    pub(super) fn reads(&self, writer: &Self) -> Result<(), String> {
        let steps = Walk::new(STEPS_MAX);
        let mut pairs = Pairs { reader: self, writer, compared: HashSet::new(), order: Vec::new(), depth: 0, steps };
        pairs.compare(self.root, writer.root)
    }
}

struct Pairs<'a> {
    reader: &'a Avro,
    writer: &'a Avro,
    /// Pairs that were compared, or are being compared in an outer call: types may contain themselves.
    compared: HashSet<(TypeId, TypeId)>,
    /// The compared pairs in order: a failure also discards the pairs that were found within it.
    order: Vec<(TypeId, TypeId)>,
    depth: usize,
    steps: Walk,
}

impl Pairs<'_> {
    fn compare(&mut self, reader: TypeId, writer: TypeId) -> Result<(), String> {
        self.steps.spend(1)?;
        if self.depth > DEPTH_MAX {
            return Err(TOO_DEEP.to_owned());
        }
        if !self.compared.insert((reader, writer)) {
            return Ok(());
        }
        let before = self.order.len();
        self.order.push((reader, writer));
        self.depth += 1;
        let result = self.compare_types(reader, writer);
        self.depth -= 1;
        if result.is_err() {
            for pair in self.order.drain(before..) {
                self.compared.remove(&pair);
            }
        }
        result
    }

    fn compare_types(&mut self, reader: TypeId, writer: TypeId) -> Result<(), String> {
        let refuse = || {
            let reader = name_of(&self.reader.types, reader);
            let writer = name_of(&self.writer.types, writer);
            format!("{reader} cannot read {writer}")
        };
        let into = &self.reader.types[reader];
        let from = &self.writer.types[writer];
        self.steps.spend(into.aliases())?;
        match (into, from) {
            (_, Type::Union(of)) => of.branches.iter().try_for_each(|branch| self.compare(reader, *branch)),
            (Type::Union(of), _) => {
                let refused = refuse();
                for branch in &of.branches {
                    self.steps.spend(1)?;
                    if self.compare(*branch, writer).is_ok() {
                        return Ok(());
                    }
                }
                Err(refused)
            }
            (Type::Array(into), Type::Array(from)) | (Type::Map(into), Type::Map(from)) => self.compare(*into, *from),
            (Type::Fixed { name: into, size }, Type::Fixed { name: from, size: other })
                if size == other && is_same(into, from) =>
            {
                Ok(())
            }
            (Type::Enum(into), Type::Enum(from)) if is_same(&into.name, &from.name) => {
                self.steps.spend(from.symbols.len())?;
                match from.symbols.iter().find(|symbol| !into.by_name.contains(*symbol)) {
                    Some(symbol) if !into.has_default => Err(format!("{} has no symbol {symbol}", into.name.full)),
                    _ => Ok(()),
                }
            }
            (Type::Record(into), Type::Record(from)) if is_same(&into.name, &from.name) => self.fields(into, from),
            (into, from) if is_promoted(into, from) => Ok(()),
            _ => Err(refuse()),
        }
    }

    /// Checks that each field of the reader is a field of the writer, or has a default.
    fn fields(&mut self, into: &Record, from: &Record) -> Result<(), String> {
        for field in &into.fields {
            self.steps.spend(1 + field.aliases.len())?;
            let mut names = std::iter::once(&field.name).chain(&field.aliases);
            match names.find_map(|name| from.by_name.get(name)) {
                Some(at) => {
                    let compared = self.compare(field.of, from.fields[*at].of);
                    compared.map_err(|why| format!("{}.{}: {}", into.name.full, field.name, shortened(&why)))?;
                }
                None if field.has_default => {}
                None => {
                    let record = &into.name.full;
                    let field = &field.name;
                    return Err(format!("{record}.{field} is not in the other revision and has no default"));
                }
            }
        }
        Ok(())
    }
}

fn is_same(into: &Names, from: &Names) -> bool {
    into.simple() == from.simple() || into.aliases.iter().any(|alias| alias == from.simple())
}

/// Returns `true` if the types are the same primitive type, or `into` can represent all values of `from`.
fn is_promoted(into: &Type, from: &Type) -> bool {
    match from {
        Type::Null => matches!(into, Type::Null),
        Type::Boolean => matches!(into, Type::Boolean),
        Type::Int => matches!(into, Type::Int | Type::Long | Type::Float | Type::Double),
        Type::Long => matches!(into, Type::Long | Type::Float | Type::Double),
        Type::Float => matches!(into, Type::Float | Type::Double),
        Type::Double => matches!(into, Type::Double),
        Type::Bytes | Type::String => matches!(into, Type::Bytes | Type::String),
        _ => false,
    }
}

impl Type {
    /// Returns the number of aliases.
    fn aliases(&self) -> usize {
        match self {
            Self::Fixed { name, .. } | Self::Enum(Enum { name, .. }) | Self::Record(Record { name, .. }) => {
                name.aliases.len()
            }
            _ => 0,
        }
    }
}
