//! Names of resources, `projects/PROJECT/topics/ID`, and their names within the broker.
//!
//! In the default project both names are the same, so that all doors share topics and queues. A resource of another
//! project is named `_project.PROJECT.ID` in the broker: no Google id begins with `_`. Characters that are not allowed
//! in the broker's names are written as `_xHH`, in hexadecimal.

use std::fmt;

use super::errors::{Failure, Result};

/// Topic that a subscription shows once its topic is deleted.
pub(super) const DELETED_TOPIC: &str = "_deleted-topic_";

const ID_CHARS_MIN: usize = 3;
const ID_CHARS_MAX: usize = 255;
const OF_PROJECT: &str = "_project.";

/// Kinds of resources, named after their collections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Topic,
    Subscription,
    Snapshot,
    Schema,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Topic, Self::Subscription, Self::Snapshot, Self::Schema];

    pub fn collection(self) -> &'static str {
        match self {
            Self::Topic => "topics",
            Self::Subscription => "subscriptions",
            Self::Snapshot => "snapshots",
            Self::Schema => "schemas",
        }
    }
}

/// Name of a resource. Invariant: project and id contain only allowed characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub kind: Kind,
    pub project: String,
    pub id: String,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "projects/{}/{}/{}", self.project, self.kind.collection(), self.id)
    }
}

impl Name {
    pub fn parse(kind: Kind, text: &str) -> Result<Self> {
        let invalid = || Failure::invalid(format!("Invalid [{}] name: (name={text})", kind.collection()));
        let parts: Vec<&str> = text.split('/').collect();
        let &["projects", project, collection, id] = parts.as_slice() else {
            return Err(invalid());
        };
        if collection == kind.collection() && is_project(project) && is_id(id) {
            Ok(Self { kind, project: project.to_owned(), id: id.to_owned() })
        } else {
            Err(invalid())
        }
    }

    /// Parses a name of any kind.
    pub fn parse_any(text: &str) -> Result<Self> {
        let collection = text.split('/').nth(2).unwrap_or_default();
        let kind = Kind::ALL.into_iter().find(|kind| kind.collection() == collection);
        Self::parse(kind.unwrap_or(Kind::Topic), text)
    }
}

/// Parses the id in `projects/ID`.
pub(super) fn parse_project(text: &str) -> Result<&str> {
    let project = text.strip_prefix("projects/").filter(|project| is_project(project));
    project.ok_or_else(|| Failure::invalid(format!("Invalid [projects] name: (name={text})")))
}

/// Returns `true` if the text is a project id, including one with a domain prefix.
pub fn is_project(text: &str) -> bool {
    let is_char = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    !text.is_empty() && text.len() <= 100 && text.chars().all(is_char)
}

pub(super) fn is_id(text: &str) -> bool {
    let is_char = |c: char| c.is_ascii_alphanumeric() || "-_.~+%".contains(c);
    (ID_CHARS_MIN..=ID_CHARS_MAX).contains(&text.len())
        && text.starts_with(|c: char| c.is_ascii_alphabetic())
        && !text.starts_with("goog")
        && text.chars().all(is_char)
}

/// Mapping between the names of resources and those of the broker.
#[derive(Clone, Debug)]
pub(super) struct Names {
    default_project: String,
}

impl Names {
    pub fn new(default_project: String) -> Self {
        Self { default_project }
    }

    /// Returns the broker's name of a topic or a queue.
    pub fn inner(&self, name: &Name) -> String {
        let mut inner = self.prefix(&name.project);
        escape(&name.id, "", &mut inner);
        inner
    }

    /// Returns the prefix of all names in a project. The default project's is empty, as a prefix of all names:
    /// [`Names::outer`] tells its names apart.
    pub fn prefix(&self, project: &str) -> String {
        let mut prefix = String::new();
        if project != self.default_project {
            prefix.push_str(OF_PROJECT);
            escape(project, ".", &mut prefix);
            prefix.push('.');
        }
        prefix
    }

    /// Returns the resource for a name of the broker.
    pub fn outer(&self, kind: Kind, inner: &str) -> Name {
        let other = inner.strip_prefix(OF_PROJECT).and_then(|rest| rest.split_once('.'));
        let (project, id) = match other {
            Some((project, id)) => (unescape(project), unescape(id)),
            None => (self.default_project.clone(), unescape(inner)),
        };
        Name { kind, project, id }
    }
}

/// Writes characters that the broker's names do not allow, or not at that position, as `_xHH`.
fn escape(text: &str, also: &str, out: &mut String) {
    for (at, c) in text.char_indices() {
        let rest = &text[at + c.len_utf8()..];
        let is_plain = match c {
            // No part between dots may be empty.
            '.' => !also.contains('.') && !rest.is_empty() && !rest.starts_with('.'),
            // Escaped if it would be read as an escape.
            '_' => unescaped(&text[at..]).is_none(),
            c => c.is_ascii_alphanumeric() || c == '-',
        };
        if is_plain { out.push(c) } else { out.push_str(&format!("_x{:02X}", c as u32)) }
    }
}

/// Returns the character whose escape sequence begins the text.
fn unescaped(text: &str) -> Option<char> {
    let hex = text.strip_prefix("_x")?.get(..2)?;
    let c = char::from(u8::from_str_radix(hex, 16).ok()?);
    "~+%_.:".contains(c).then_some(c)
}

fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let (c, bytes) = unescaped(rest).map_or((c, c.len_utf8()), |escaped| (escaped, 4));
        out.push(c);
        rest = &rest[bytes..];
    }
    out
}

#[cfg(test)]
mod tests {
    use engine::TopicName;

    use super::*;

    #[test]
    fn names_map_to_distinct_broker_names_and_back() {
        let names = Names::new("thalweg".into());
        let mut seen = std::collections::HashSet::new();
        for project in ["thalweg", "a", "a.b", "example.com:shop", "_x2E", "project"] {
            for id in
                ["abc", "a.b", "a.b.c", "a..b", "ab.", "a...", "a~+%z", "a_x7E", "a_xyz", "a_x5F_x2E", "ab_", "A-9"]
            {
                let text = format!("projects/{project}/topics/{id}");
                let name = Name::parse(Kind::Topic, &text).expect(&text);
                let inner = names.inner(&name);
                TopicName::parse(&inner).expect("the broker takes it");
                assert_eq!(names.outer(Kind::Topic, &inner), name, "{inner}");
                assert!(inner.starts_with(&names.prefix(project)), "{inner}");
                assert!(seen.insert(inner), "{text}");
            }
        }
        assert_eq!(
            names.inner(&Name::parse(Kind::Topic, "projects/thalweg/topics/orders.eu").expect("valid")),
            "orders.eu"
        );
    }

    #[test]
    fn invalid_names_are_refused_as_by_the_service() {
        let long = "a".repeat(256);
        for id in ["ab", "1abc", "goog1", "a b", "ä12", "_abc", "", long.as_str(), "a:bc"] {
            let text = format!("projects/p/topics/{id}");
            let failure = Name::parse(Kind::Topic, &text).expect_err(&text);
            assert_eq!(failure, Failure::invalid(format!("Invalid [topics] name: (name={text})")));
        }
        for text in [
            "",
            "abc",
            "projects/p/subscriptions/abc",
            "projects//topics/abc",
            "projects/p/topics/abc/",
            "x/p/topics/abc",
        ] {
            assert!(Name::parse(Kind::Topic, text).is_err(), "{text}");
        }
    }
}
