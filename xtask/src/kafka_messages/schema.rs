//! Schemas of Kafka's messages: JSON with comments.

use std::fmt;

use serde::Deserialize;

use crate::run::Outcome;

/// Range of versions, including both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Versions {
    pub low: i16,
    pub high: i16,
}

impl Versions {
    pub const NONE: Self = Self { low: i16::MAX, high: i16::MIN };

    pub fn is_empty(self) -> bool {
        self.low > self.high
    }

    /// Returns the versions that are in both ranges.
    pub fn within(self, other: Self) -> Self {
        Self { low: self.low.max(other.low), high: self.high.min(other.high) }
    }
}

/// Parses a range such as `3`, `1-7`, `2+` or `none`.
impl TryFrom<String> for Versions {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let number = |text: &str| text.parse::<i16>().map_err(|e| format!("the version '{text}': {e}"));
        if text == "none" {
            return Ok(Self::NONE);
        }
        if let Some(low) = text.strip_suffix('+') {
            return Ok(Self { low: number(low)?, high: i16::MAX });
        }
        let (low, high) = text.split_once('-').unwrap_or((&text, &text));
        Ok(Self { low: number(low)?, high: number(high)? })
    }
}

/// Formats the range as a Rust pattern.
impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.high {
            i16::MAX => write!(f, "{}..", self.low),
            high => write!(f, "{}..={high}", self.low),
        }
    }
}

/// Schema of a request, a response, or data within one.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Schema {
    #[serde(rename = "apiKey")]
    pub key: Option<i16>,
    #[serde(rename = "type")]
    pub kind: String,
    pub name: String,
    #[serde(rename = "validVersions")]
    pub versions: Versions,
    #[serde(rename = "flexibleVersions", default = "none")]
    pub flexible: Versions,
    #[serde(default)]
    pub fields: Vec<Field>,
    /// Structs that several fields use.
    #[serde(default)]
    pub common_structs: Vec<CommonStruct>,
}

impl Schema {
    /// Returns the first version with varint lengths and tags, if it is served; it may precede the served ones.
    pub fn flexible_since(&self, served: Versions) -> Option<i16> {
        (self.flexible.low <= served.high).then_some(self.flexible.low)
    }
}

#[derive(Debug, Deserialize)]
pub struct CommonStruct {
    pub name: String,
    pub fields: Vec<Field>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Field {
    pub name: String,
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default = "none")]
    pub versions: Versions,
    #[serde(default = "none")]
    pub nullable_versions: Versions,
    /// Default, as a text or the value itself.
    pub default: Option<serde_json::Value>,
    pub tag: Option<u32>,
    /// Kind of the thing that the value names, such as `topicName`.
    pub entity_type: Option<String>,
    /// Fields of the struct of this field, unless it is a common one.
    #[serde(default)]
    pub fields: Vec<Self>,
}

impl Field {
    pub fn default_text(&self) -> Option<String> {
        self.default.as_ref().map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
    }

    /// Returns `true` if this field, or one within it, has the name.
    pub fn has(&self, name: &str) -> bool {
        self.name == name || self.fields.iter().any(|field| field.has(name))
    }
}

fn none() -> Versions {
    Versions::NONE
}

/// Parses a text of consecutive schemas.
pub fn parse_all(text: &str) -> Outcome<Vec<Schema>> {
    let text = without_comments(text);
    let schemas = serde_json::Deserializer::from_str(&text).into_iter::<Schema>();
    schemas.collect::<Result<_, _>>().map_err(|e| format!("the schemas: {e}"))
}

fn without_comments(text: &str) -> String {
    let lines = text.lines().map(|line| {
        // A comment begins at two slashes if the number of quotes before them is even.
        let comment = line.match_indices("//").find(|(at, _)| line[..*at].matches('"').count() % 2 == 0);
        comment.map_or(line, |(at, _)| &line[..at])
    });
    lines.flat_map(|line| [line, "\n"]).collect()
}
