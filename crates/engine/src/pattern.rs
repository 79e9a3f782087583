//! Topics of a subscription: one name, or a pattern with `*` and `>`.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::glob;
use crate::ids::{TopicName, is_name_char};
use crate::limits::TOPIC_NAME_BYTES_MAX;

/// Name or pattern: `orders.*` matches one token, `orders.>` one or more to the end; text without a wildcard is a name.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Pattern {
    Topic(TopicName),
    Wildcard(Box<str>),
    Rule(Rule),
}

/// Behavior of a subscription whose named topic does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Missing {
    /// Subscription is refused: reading creates nothing, and a typo is an error.
    #[default]
    Refuse = 0,
    /// Topic is created with the broker's settings for topics that are used for the first time.
    Create = 1,
    /// Subscription waits and begins with the first record of the topic once that is created.
    Wait = 2,
}

impl Missing {
    pub const ALL: [Self; 3] = [Self::Refuse, Self::Create, Self::Wait];

    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|missing| *missing as u8 == code)
    }
}

/// Topics that a subscriber of another protocol describes in a syntax that only its door knows.
#[derive(Clone)]
pub struct Rule {
    text: Arc<str>,
    /// Owner of the rule if its meaning depends on that: the same text may match other topics for another owner.
    whose: Arc<str>,
    takes: Arc<dyn Fn(&TopicName) -> bool + Send + Sync>,
    /// Glob pattern that matches the names of all these topics, if there is one.
    glob: Option<Arc<str>>,
}

impl Rule {
    pub fn new(text: &str, whose: &str, takes: impl Fn(&TopicName) -> bool + Send + Sync + 'static) -> Self {
        Self { text: text.into(), whose: whose.into(), takes: Arc::new(takes), glob: None }
    }

    /// Sets a glob pattern that matches the names of all topics of the rule. Other sites of a mesh know them by it.
    pub fn with_glob(self, glob: &str) -> Self {
        Self { glob: Some(glob.into()), ..self }
    }

    pub(crate) fn glob(&self) -> Option<&str> {
        self.glob.as_deref()
    }
}

impl PartialEq for Rule {
    fn eq(&self, other: &Self) -> bool {
        (&self.text, &self.whose) == (&other.text, &other.whose)
    }
}

impl Eq for Rule {}

impl Hash for Rule {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.text, &self.whose).hash(state);
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule").field("text", &self.text).field("whose", &self.whose).finish_non_exhaustive()
    }
}

impl Pattern {
    pub fn parse(text: &str) -> Result<Self> {
        if !text.contains(['*', '>']) {
            return TopicName::parse(text).map(Self::Topic);
        }
        if text.len() > TOPIC_NAME_BYTES_MAX {
            return Err(Error::invalid(format!("a pattern has at most {TOPIC_NAME_BYTES_MAX} characters")));
        }
        let tokens: Vec<&str> = text.split('.').collect();
        for (i, token) in tokens.iter().enumerate() {
            let is_last = i + 1 == tokens.len();
            let is_valid = match *token {
                "*" => true,
                ">" => is_last,
                word => !word.is_empty() && word.chars().all(is_name_char),
            };
            if !is_valid {
                return Err(Error::invalid(format!(
                    "pattern '{text}': '*' stands for one whole part between dots, '>' for the rest and only at the end"
                )));
            }
        }
        Ok(Self::Wildcard(text.into()))
    }

    pub fn matches(&self, topic: &TopicName) -> bool {
        match self {
            Self::Topic(name) => name == topic,
            Self::Wildcard(pattern) => wildcard_matches(pattern, topic.as_str()),
            Self::Rule(rule) => (rule.takes)(topic),
        }
    }

    /// Returns text with which the names of all matching topics begin.
    pub fn literal_start(&self) -> &str {
        match self {
            Self::Topic(name) => name.as_str(),
            Self::Wildcard(pattern) => pattern.split(['*', '>']).next().unwrap_or_default(),
            Self::Rule(rule) => {
                let start = glob::literal_start(rule.glob().unwrap_or_default().as_bytes());
                std::str::from_utf8(start).unwrap_or_default()
            }
        }
    }

    pub fn as_str(&self) -> &str {
        match self {
            Self::Topic(name) => name.as_str(),
            Self::Wildcard(pattern) => pattern,
            Self::Rule(rule) => &rule.text,
        }
    }
}

pub(crate) fn wildcard_matches(pattern: &str, topic: &str) -> bool {
    let mut tokens = topic.split('.');
    for want in pattern.split('.') {
        match (want, tokens.next()) {
            (">", Some(_)) => return true,
            ("*", Some(_)) => {}
            (word, Some(token)) if word == token => {}
            _ => return false,
        }
    }
    tokens.next().is_none()
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_match_tokens() {
        let cases = [
            ("orders", "orders", true),
            ("orders.*", "orders.eu", true),
            ("orders.*", "orders", false),
            ("orders.*", "orders.eu.west", false),
            ("orders.>", "orders.eu.west", true),
            ("orders.>", "orders", false),
            ("*.eu", "orders.eu", true),
            ("*.eu", "orders.us", false),
            (">", "anything.at.all", true),
            ("*", "one", true),
            ("*", "one.two", false),
        ];
        for (pattern, topic, expected) in cases {
            let pattern = Pattern::parse(pattern).expect("valid pattern");
            let topic = TopicName::parse(topic).expect("valid name");
            assert_eq!(pattern.matches(&topic), expected, "{pattern} {topic}");
            assert!(!expected || topic.as_str().starts_with(pattern.literal_start()), "{pattern} {topic}");
        }
        for bad in ["a*", "a.>.b", "a..*", ">.a", "*.", "a b.*"] {
            assert!(Pattern::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_pattern_has_a_literal_start() {
        let cases =
            [("orders", "orders"), ("orders.*.eu", "orders."), ("orders.>", "orders."), ("*.eu", ""), (">", "")];
        for (pattern, start) in cases {
            assert_eq!(Pattern::parse(pattern).expect("valid pattern").literal_start(), start);
        }
        let rule = Rule::new("a:[bc]*", "test", |_| true);
        assert_eq!(Pattern::Rule(rule.clone()).literal_start(), "");
        assert_eq!(Pattern::Rule(rule.with_glob("a_x3a_*")).literal_start(), "a_x3a_");
    }
}
