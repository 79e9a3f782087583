//! Settings of a queue by name, as in requests, options and files.

use std::fmt;
use std::str::FromStr;

use super::{DedupRule, Filter, QueueSettings};
use crate::error::{Error, Result};
use crate::ids::TopicName;

/// Value of one setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingValue {
    Count(u64),
    Flag(bool),
    /// Text; empty if the setting is not set.
    Text(String),
}

impl fmt::Display for SettingValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl QueueSettings {
    /// Returns all settings with their names.
    pub fn named(&self) -> [(&'static str, SettingValue); 18] {
        use SettingValue::{Count, Flag, Text};
        let text = |text: &dyn ToString| Text(text.to_string());
        [
            ("lease_ms", Count(self.lease_ms)),
            ("delay_ms", Count(self.delay_ms)),
            ("retention_ms", Count(self.retention_ms)),
            ("order", text(&self.order.name())),
            ("dedup", text(&self.dedup.name())),
            ("attempts_max", Count(self.attempts_max.into())),
            ("dead_letter", text(&self.dead_letter.as_ref().map_or("", TopicName::as_str))),
            ("backoff_ms_min", Count(self.backoff_ms.0)),
            ("backoff_ms_max", Count(self.backoff_ms.1)),
            ("in_flight_max", Count(self.in_flight_max.into())),
            ("messages_max", Count(self.messages_max)),
            ("bytes_max", Count(self.bytes_max)),
            ("overflow", text(&self.overflow.name())),
            ("filter", text(&self.filter.as_ref().map_or(String::new(), Filter::to_string))),
            ("is_strict", Flag(self.is_strict)),
            ("returns_following", Flag(self.returns_following)),
            ("keeps_acked", Flag(self.keeps_acked)),
            ("isolation", text(&self.isolation.name())),
        ]
    }

    /// Describes every setting that differs in `other`, as `lease_ms is 30000, not 60000`.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let shown = |value: SettingValue| match value {
            SettingValue::Text(text) if text.is_empty() => "none".to_owned(),
            value => value.to_string(),
        };
        let pairs = self.named().into_iter().zip(other.named());
        let differ = pairs.filter(|((_, this), (_, other))| this != other);
        differ.map(|((name, this), (_, other))| format!("{name} is {}, not {}", shown(this), shown(other))).collect()
    }

    /// Sets one setting by name. [`QueueSettings::validate`] checks the combination of all settings.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        match name {
            "lease_ms" => self.lease_ms = parse(name, value)?,
            "delay_ms" => self.delay_ms = parse(name, value)?,
            "retention_ms" => self.retention_ms = parse(name, value)?,
            "order" => self.order = value.parse()?,
            "dedup" => self.dedup = value.parse()?,
            "attempts_max" => self.attempts_max = parse(name, value)?,
            "dead_letter" => self.dead_letter = unless_empty(value, TopicName::parse)?,
            "backoff_ms_min" => self.backoff_ms.0 = parse(name, value)?,
            "backoff_ms_max" => self.backoff_ms.1 = parse(name, value)?,
            "in_flight_max" => self.in_flight_max = parse(name, value)?,
            "messages_max" => self.messages_max = parse(name, value)?,
            "bytes_max" => self.bytes_max = parse(name, value)?,
            "overflow" => self.overflow = value.parse()?,
            "filter" => self.filter = unless_empty(value, Filter::parse)?,
            "is_strict" => self.is_strict = parse(name, value)?,
            "returns_following" => self.returns_following = parse(name, value)?,
            "keeps_acked" => self.keeps_acked = parse(name, value)?,
            "isolation" => self.isolation = value.parse()?,
            unknown => {
                let known = self.named().map(|(name, _)| name).join(", ");
                return Err(Error::invalid(format!("a queue has no setting '{unknown}'; it has {known}")));
            }
        }
        Ok(())
    }
}

fn parse<T: FromStr<Err: fmt::Display>>(name: &str, value: &str) -> Result<T> {
    value.parse().map_err(|why| Error::invalid(format!("{name}: '{value}' is not valid here: {why}")))
}

fn unless_empty<T>(value: &str, parse: impl Fn(&str) -> Result<T>) -> Result<Option<T>> {
    Some(value).filter(|value| !value.is_empty()).map(parse).transpose()
}

impl DedupRule {
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Queue => "queue",
            Self::Group => "group",
        }
    }
}

impl FromStr for DedupRule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|rule| rule.name() == text);
        known.ok_or_else(|| Error::invalid(format!("dedup is off, queue or group, not '{text}'")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::producers::Isolation;
    use crate::queue::{Order, QueueOverflow};

    #[test]
    fn each_setting_is_set_by_the_name_that_it_is_shown_with() {
        let mut wanted = QueueSettings {
            lease_ms: 1,
            delay_ms: 2,
            retention_ms: 3,
            order: Order::Groups,
            attempts_max: 4,
            dead_letter: Some(TopicName::parse("dead").expect("a name")),
            backoff_ms: (5, 6),
            is_strict: true,
            returns_following: true,
            in_flight_max: 7,
            messages_max: 8,
            bytes_max: 9,
            overflow: QueueOverflow::DropOldest,
            filter: Some(Filter::parse("attributes:colour").expect("a filter")),
            keeps_acked: true,
            isolation: Isolation::Uncommitted,
            dedup: DedupRule::Group,
        };
        let mut set = QueueSettings::default();
        for (name, value) in wanted.named() {
            set.set(name, &value.to_string()).expect("valid");
        }
        assert_eq!(set, wanted);
        for none in ["dead_letter", "filter"] {
            wanted.set(none, "").expect("none");
        }
        assert_eq!((wanted.dead_letter, wanted.filter), (None, None));
    }

    #[test]
    fn errors_name_the_wrong_setting() {
        let refused = |name, value| QueueSettings::default().set(name, value).expect_err("must be refused").message;
        assert!(refused("lease", "1").starts_with("a queue has no setting 'lease'; it has lease_ms, "));
        assert!(refused("lease_ms", "-1").starts_with("lease_ms: '-1' is not valid here: "));
        assert!(refused("is_strict", "yes").starts_with("is_strict: 'yes' is not valid here: "));
        assert_eq!(refused("dedup", "on"), "dedup is off, queue or group, not 'on'");
    }
}
