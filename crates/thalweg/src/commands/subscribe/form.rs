//! Output formats of a record: its value, JSON, columns, or a template.

use std::io::{self, Write};

use client::{Batch, RecordView};
use engine::nearest;
use engine::streams::ID_HEADER;
use serde_json::{Map, Value, json};

use crate::args::{Output, Subscribe};
use crate::commands::time::format_time;
use crate::output::{Failure, Result, USAGE};

/// Placeholders that a template may contain.
const PLACEHOLDERS: [(&str, Field); 6] = [
    ("topic", Field::Topic),
    ("partition", Field::Partition),
    ("offset", Field::Offset),
    ("time", Field::Time),
    ("key", Field::Key),
    ("value", Field::Value),
];

pub enum Form {
    /// The value and a line feed; for a record without a value, its headers as JSON.
    Text,
    /// The topic, a tab, the value and a line feed; for a record without a value, its headers as JSON.
    Named,
    /// The value only.
    Raw,
    Json,
    Table,
    Template(Vec<Piece>),
}

/// A part of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Literal(String),
    Field(Field),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Topic,
    Partition,
    Offset,
    Time,
    Key,
    Value,
}

impl Form {
    pub fn new(args: &Subscribe, is_json: bool, is_terminal: bool) -> Result<Self> {
        if let Some(template) = &args.format {
            let pieces = parse(template).map_err(|why| Failure::new(USAGE, format!("--format {template}: {why}")))?;
            return Ok(Self::Template(pieces));
        }
        // The records of several topics must be distinguishable.
        let default = match (super::is_pattern(&args.topic), is_terminal) {
            (false, _) => Output::Text,
            (true, true) => Output::Table,
            (true, false) => Output::Named,
        };
        Ok(match args.output.unwrap_or(default) {
            _ if is_json => Self::Json,
            Output::Text => Self::Text,
            Output::Named => Self::Named,
            Output::Raw => Self::Raw,
            Output::Json => Self::Json,
            Output::Table => Self::Table,
        })
    }

    pub fn write_head(&self, out: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Table => {
                writeln!(out, "{:<20} {:>4} {:>10} {:<24} {:<16} VALUE", "TOPIC", "PART", "OFFSET", "TIME", "KEY")
            }
            Self::Text | Self::Named | Self::Raw | Self::Json | Self::Template(_) => Ok(()),
        }
    }

    pub fn write(&self, out: &mut impl Write, batch: &Batch, record: &RecordView<'_>) -> io::Result<()> {
        let key = record.key.unwrap_or_default();
        let value = record.value.unwrap_or_default();
        match self {
            Self::Raw => return out.write_all(value),
            Self::Text if record.value.is_none() => out.write_all(headers_as_text(record).as_bytes())?,
            Self::Text => out.write_all(value)?,
            Self::Named => {
                write!(out, "{}\t", batch.topic)?;
                match record.value {
                    Some(value) => out.write_all(value)?,
                    None => out.write_all(headers_as_text(record).as_bytes())?,
                }
            }
            Self::Json => write!(out, "{}", to_json(batch, record))?,
            Self::Table => write!(
                out,
                "{:<20} {:>4} {:>10} {:<24} {:<16} {}",
                batch.topic,
                batch.partition,
                record.offset,
                format_time(record.timestamp_ms),
                String::from_utf8_lossy(key),
                String::from_utf8_lossy(value)
            )?,
            Self::Template(pieces) => {
                for piece in pieces {
                    match piece {
                        Piece::Literal(text) => out.write_all(text.as_bytes())?,
                        Piece::Field(Field::Topic) => out.write_all(batch.topic.as_bytes())?,
                        Piece::Field(Field::Partition) => write!(out, "{}", batch.partition)?,
                        Piece::Field(Field::Offset) => write!(out, "{}", record.offset)?,
                        Piece::Field(Field::Time) => out.write_all(format_time(record.timestamp_ms).as_bytes())?,
                        Piece::Field(Field::Key) => out.write_all(key)?,
                        Piece::Field(Field::Value) => out.write_all(value)?,
                    }
                }
            }
        }
        out.write_all(b"\n")
    }
}

/// Parses a template: `{{name}}` is a field, `\n`, `\t` and `\\` have their usual meanings, and all other text is
/// literal.
fn parse(template: &str) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut literal = String::new();
    let mut rest = template;
    while let Some(first) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("{{") {
            let (name, after) = after.split_once("}}").ok_or("'{{' has no '}}' after it")?;
            if !literal.is_empty() {
                pieces.push(Piece::Literal(std::mem::take(&mut literal)));
            }
            pieces.push(Piece::Field(field(name.trim())?));
            rest = after;
        } else if let Some(after) = rest.strip_prefix('\\') {
            let escaped = after.chars().next().ok_or("a backslash ends it; write \\\\ for one")?;
            literal.push(match escaped {
                'n' => '\n',
                't' => '\t',
                '\\' => '\\',
                other => return Err(format!("'\\{other}' is unknown; \\n, \\t and \\\\ are known")),
            });
            rest = &after[escaped.len_utf8()..];
        } else {
            literal.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    if pieces.is_empty() {
        return Err("it has no placeholder such as {{value}}; text, raw, json and table are for --output".to_owned());
    }
    if !literal.is_empty() {
        pieces.push(Piece::Literal(literal));
    }
    Ok(pieces)
}

fn field(name: &str) -> Result<Field, String> {
    if let Some((_, field)) = PLACEHOLDERS.iter().find(|(known, _)| *known == name) {
        return Ok(*field);
    }
    let known = PLACEHOLDERS.map(|(name, _)| name);
    let hint = match nearest(name, known.into_iter()) {
        Some(nearest) => format!("; did you mean {{{{{nearest}}}}}?"),
        None => format!("; there are {}", known.join(", ")),
    };
    Err(format!("{{{{{name}}}}} is unknown{hint}"))
}

/// Returns the text for a record without a value: its headers as a JSON object, or nothing if it has no header except
/// the id of an entry.
fn headers_as_text(record: &RecordView<'_>) -> String {
    let mut headers = headers_to_json(record);
    headers.remove(ID_HEADER);
    if headers.is_empty() { String::new() } else { Value::Object(headers).to_string() }
}

fn headers_to_json(record: &RecordView<'_>) -> Map<String, Value> {
    let text = |value: Option<&[u8]>| value.map_or(Value::Null, bytes_to_json);
    record.headers().map(|(name, value)| (String::from_utf8_lossy(name).into_owned(), text(value))).collect()
}

/// Converts a record to JSON. Bytes that are not text are marked as such and written in hexadecimal.
fn to_json(batch: &Batch, record: &RecordView<'_>) -> Value {
    let text = |bytes: Option<&[u8]>| bytes.map_or(Value::Null, bytes_to_json);
    json!({
        "topic": &*batch.topic,
        "partition": batch.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": text(record.key),
        "value": text(record.value),
        "headers": headers_to_json(record),
    })
}

fn bytes_to_json(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => Value::String(text.to_owned()),
        Err(_) => json!({ "hex": bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_fields_and_the_text_between_them() {
        let literal = |text: &str| Piece::Literal(text.to_owned());
        assert_eq!(
            parse("{{offset}}:{ {{ key }}\\t{{value}}\\n\\\\ä").expect("valid"),
            [
                Piece::Field(Field::Offset),
                literal(":{ "),
                Piece::Field(Field::Key),
                literal("\t"),
                Piece::Field(Field::Value),
                literal("\n\\ä"),
            ]
        );
    }

    #[test]
    fn a_wrong_template_is_refused_with_the_correct_form() {
        for (template, why) in [
            ("{{ofset}}", "{{ofset}} is unknown; did you mean {{offset}}?"),
            ("{{headers of it}}", "{{headers of it}} is unknown; there are topic, partition, offset, time, key, value"),
            ("{{value}} {{key", "'{{' has no '}}' after it"),
            ("json", "it has no placeholder such as {{value}}; text, raw, json and table are for --output"),
            ("a\\", "a backslash ends it; write \\\\ for one"),
            ("\\r", "'\\r' is unknown; \\n, \\t and \\\\ are known"),
        ] {
            assert_eq!(parse(template), Err(why.to_owned()), "{template}");
        }
    }
}
