//! Attributes of queues, and their mapping to the settings and notes of a queue.

use std::collections::BTreeMap;

use engine::TopicName;
use engine::queue::{DedupRule, Order, QueueDefinition, QueueSettings};
use serde_json::{Map, Value};

use super::address::Place;
use super::errors::{Failure, INVALID_ATTRIBUTE_NAME, Result};
use super::names::Names;

/// Prefix of the notes of this door.
const NOTE: &str = "sqs.";
const TAG: &str = "sqs.tag.";
/// Name of the attribute with the policy of a queue.
pub(super) const POLICY: &str = "Policy";

/// Maximum size of a message with its attributes, in bytes.
pub(super) const MESSAGE_BYTES_MAX: u64 = 1 << 20;
const MESSAGE_BYTES_MIN: u64 = 1 << 10;
pub(super) const DELAY_S_MAX: u64 = 900;
pub(super) const VISIBILITY_S_MAX: u64 = 43_200;
pub(super) const WAIT_S_MAX: u64 = 20;
const RETENTION_S: (u64, u64) = (60, 1_209_600);
const RECEIVES_MAX: u64 = 1000;
const KEY_REUSE_S: (u64, u64) = (60, 86_400);
/// Maximum number of source queues that a dead-letter queue names.
const SOURCES_MAX: usize = 10;
/// Maximum number of messages that receivers of one queue hold at a time.
const IN_FLIGHT_MAX: u32 = 120_000;

const KEY_REUSE: &str = "KmsDataKeyReusePeriodSeconds";
const KEY_REUSE_DEFAULT: &str = "300";
const THROUGHPUT: &str = "FifoThroughputLimit";
const PER_GROUP: &str = "perMessageGroupId";
const PER_QUEUE: &str = "perQueue";

/// Attributes of a queue: the settings that all doors share, and the notes of this door.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attributes {
    pub settings: QueueSettings,
    pub notes: BTreeMap<String, String>,
}

/// Names of all attributes that can be read, in the order in which they are returned.
pub(super) const NAMES: [&str; 21] = [
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesDelayed",
    "ApproximateNumberOfMessagesNotVisible",
    "ContentBasedDeduplication",
    "CreatedTimestamp",
    "DeduplicationScope",
    "DelaySeconds",
    "FifoQueue",
    THROUGHPUT,
    KEY_REUSE,
    "KmsMasterKeyId",
    "LastModifiedTimestamp",
    "MaximumMessageSize",
    "MessageRetentionPeriod",
    "Policy",
    "QueueArn",
    "ReceiveMessageWaitTimeSeconds",
    "RedriveAllowPolicy",
    "RedrivePolicy",
    "SqsManagedSseEnabled",
    "VisibilityTimeout",
];

/// Queues that may name a queue as their dead-letter queue.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RedriveAllow {
    All,
    Nobody,
    /// Queues with these ARNs.
    Some(Vec<String>),
}

impl Attributes {
    /// Returns the attributes of a new queue.
    pub fn new(is_fifo: bool) -> Self {
        let settings = if is_fifo {
            QueueSettings {
                order: Order::Groups,
                is_strict: true,
                dedup: DedupRule::Queue,
                in_flight_max: IN_FLIGHT_MAX,
                ..QueueSettings::default()
            }
        } else {
            QueueSettings { order: Order::Fair, in_flight_max: IN_FLIGHT_MAX, ..QueueSettings::default() }
        };
        Self { settings, notes: BTreeMap::new() }
    }

    /// Returns the attributes of an existing queue.
    pub fn of(definition: &QueueDefinition) -> Self {
        Self { settings: definition.settings.clone(), notes: definition.notes.clone() }
    }

    fn note(&self, name: &str) -> Option<&str> {
        note(&self.notes, name)
    }

    /// Stores a note. An empty value removes it.
    fn set_note(&mut self, name: &str, value: &str) {
        let name = format!("{NOTE}{name}");
        match value {
            "" => self.notes.remove(&name),
            value => self.notes.insert(name, value.to_owned()),
        };
    }

    /// Stores a policy that was checked, or removes it.
    pub fn put_policy(&mut self, policy: Option<&str>) {
        self.set_note(POLICY, policy.unwrap_or_default());
    }

    /// Sets attributes of a queue. The caller must check that the named dead-letter queue exists.
    pub fn apply<'t>(
        &mut self,
        place: &Place,
        names: Names<'_>,
        given: impl IntoIterator<Item = (&'t str, &'t str)>,
    ) -> Result<()> {
        for (name, value) in given {
            self.set(place, names, name, value)?;
        }
        if self.note(THROUGHPUT) == Some(PER_GROUP) && self.settings.dedup != DedupRule::Group {
            let reason = "perMessageGroupId is allowed only when the value for DeduplicationScope is messageGroup.";
            return Err(Failure::attribute(THROUGHPUT, reason));
        }
        Ok(())
    }

    fn set(&mut self, place: &Place, names: Names<'_>, name: &str, value: &str) -> Result<()> {
        let only_fifo = || {
            if place.is_fifo() {
                Ok(())
            } else {
                Err(Failure::new(
                    &INVALID_ATTRIBUTE_NAME,
                    format!("You can specify the {name} only when FifoQueue is set to true."),
                ))
            }
        };
        match name {
            "VisibilityTimeout" => self.settings.lease_ms = 1000 * number(name, value, (0, VISIBILITY_S_MAX))?,
            "DelaySeconds" => self.settings.delay_ms = 1000 * number(name, value, (0, DELAY_S_MAX))?,
            "MessageRetentionPeriod" => self.settings.retention_ms = 1000 * number(name, value, RETENTION_S)?,
            "MaximumMessageSize" => {
                let bytes = number(name, value, (MESSAGE_BYTES_MIN, MESSAGE_BYTES_MAX))?;
                self.set_note(name, &bytes.to_string());
            }
            "ReceiveMessageWaitTimeSeconds" => {
                let seconds = number(name, value, (0, WAIT_S_MAX))?;
                self.set_note(name, &seconds.to_string());
            }
            KEY_REUSE => {
                let seconds = number(name, value, KEY_REUSE_S)?.to_string();
                self.set_note(name, if seconds == KEY_REUSE_DEFAULT { "" } else { &seconds });
            }
            "KmsMasterKeyId" => self.set_note(name, value),
            "SqsManagedSseEnabled" => self.set_note(name, if flag(name, value)? { "" } else { "false" }),
            "Policy" => {
                if !value.is_empty() && object(value).is_none() {
                    return Err(Failure::attribute(name, ""));
                }
                self.set_note(name, value);
            }
            "RedrivePolicy" => self.set_redrive(place, names, value)?,
            "RedriveAllowPolicy" => {
                if !value.is_empty() {
                    parse_redrive_allow(value)?;
                }
                self.set_note(name, value);
            }
            "FifoQueue" if place.is_fifo() => {
                if !flag(name, value)? {
                    return Err(Failure::attribute(name, "Modifying queue type is not supported."));
                }
            }
            "ContentBasedDeduplication" if place.is_fifo() => {
                self.set_note(name, if flag(name, value)? { "true" } else { "" });
            }
            "DeduplicationScope" => {
                only_fifo()?;
                self.settings.dedup = match value {
                    "queue" => DedupRule::Queue,
                    "messageGroup" => DedupRule::Group,
                    _ => return Err(Failure::attribute(name, "")),
                };
            }
            THROUGHPUT => {
                only_fifo()?;
                match value {
                    PER_QUEUE => self.set_note(name, ""),
                    PER_GROUP => self.set_note(name, value),
                    _ => return Err(Failure::attribute(name, "")),
                }
            }
            _ => return Err(Failure::unknown_attribute(name)),
        }
        Ok(())
    }

    fn set_redrive(&mut self, place: &Place, names: Names<'_>, value: &str) -> Result<()> {
        if value.is_empty() {
            self.settings.dead_letter = None;
            self.settings.attempts_max = 0;
            return Ok(());
        }
        let invalid = |reason: String| Failure::value("RedrivePolicy", value, &reason);
        let policy = object(value).ok_or_else(|| invalid("Redrive policy is not a valid JSON map.".into()))?;
        let known = ["deadLetterTargetArn", "maxReceiveCount"];
        if policy.keys().any(|key| !known.contains(&key.as_str())) {
            let reason = "Only following attributes are supported: [deadLetterTargetArn, maxReceiveCount].";
            return Err(invalid(reason.into()));
        }
        let member = |name: &str| {
            let missing = || invalid(format!("Redrive policy does not contain mandatory attribute: {name}."));
            policy.get(name).ok_or_else(missing)
        };
        let arn = member(known[0])?;
        let count = member(known[1])?;
        let target = arn.as_str().and_then(Place::of_arn);
        let target = target.ok_or_else(|| invalid("Invalid value for deadLetterTargetArn.".into()))?;
        let receives = match count {
            Value::Number(number) => number.as_u64(),
            Value::String(text) => text.parse().ok(),
            _ => None,
        };
        let receives = receives.filter(|receives| (1..=RECEIVES_MAX).contains(receives)).ok_or_else(|| {
            let count = count.as_str().map_or_else(|| count.to_string(), str::to_owned);
            invalid(format!(
                "Invalid value for maxReceiveCount: {count}, valid values are from 1 to 1000 both inclusive."
            ))
        })?;
        if target.is_fifo() != place.is_fifo() {
            return Err(invalid("Dead-letter queue must be same type of queue as the source.".into()));
        }
        if target.home != place.home {
            return Err(invalid("Dead-letter target owner should be same as the source.".into()));
        }
        self.settings.dead_letter = Some(TopicName::parse(&names.inner(&target))?);
        self.settings.attempts_max = receives as u32;
        Ok(())
    }

    /// Returns an attribute by name if the queue has it, except for those that change by themselves.
    pub fn get(&self, name: &str, place: &Place, names: Names<'_>) -> Option<String> {
        let settings = &self.settings;
        let fifo = |value: &str| place.is_fifo().then(|| value.to_owned());
        Some(match name {
            "VisibilityTimeout" => (settings.lease_ms / 1000).to_string(),
            "DelaySeconds" => (settings.delay_ms / 1000).to_string(),
            "MessageRetentionPeriod" => (settings.retention_ms / 1000).to_string(),
            "MaximumMessageSize" => message_bytes_max(&self.notes).to_string(),
            "ReceiveMessageWaitTimeSeconds" => wait_s(&self.notes).to_string(),
            "QueueArn" => place.arn(),
            "SqsManagedSseEnabled" => self.note(name).unwrap_or("true").to_owned(),
            "RedrivePolicy" => {
                let target = names.outer(settings.dead_letter.as_ref()?.as_str())?;
                let arn = target.arn();
                format!(r#"{{"deadLetterTargetArn":"{arn}","maxReceiveCount":{}}}"#, settings.attempts_max)
            }
            "Policy" | "RedriveAllowPolicy" | "KmsMasterKeyId" | KEY_REUSE => self.note(name)?.to_owned(),
            "FifoQueue" => fifo("true")?,
            "ContentBasedDeduplication" => fifo(self.note(name).unwrap_or("false"))?,
            "DeduplicationScope" => fifo(if settings.dedup == DedupRule::Group { "messageGroup" } else { "queue" })?,
            THROUGHPUT => fifo(self.note(name).unwrap_or(PER_QUEUE))?,
            _ => return None,
        })
    }
}

fn note<'t>(notes: &'t BTreeMap<String, String>, name: &str) -> Option<&'t str> {
    // This runs for each message, so the name of the note is composed without an allocation.
    let mut key = [0; 64];
    let length = NOTE.len() + name.len();
    let key = key.get_mut(..length)?;
    key[..NOTE.len()].copy_from_slice(NOTE.as_bytes());
    key[NOTE.len()..].copy_from_slice(name.as_bytes());
    notes.get(std::str::from_utf8(key).ok()?).map(String::as_str)
}

pub(super) fn message_bytes_max(notes: &BTreeMap<String, String>) -> u64 {
    note(notes, "MaximumMessageSize").and_then(|bytes| bytes.parse().ok()).unwrap_or(MESSAGE_BYTES_MAX)
}

/// Returns the default time in seconds that a receiver waits for a message.
pub(super) fn wait_s(notes: &BTreeMap<String, String>) -> u64 {
    note(notes, "ReceiveMessageWaitTimeSeconds").and_then(|seconds| seconds.parse().ok()).unwrap_or(0)
}

pub(super) fn dedups_by_content(notes: &BTreeMap<String, String>) -> bool {
    note(notes, "ContentBasedDeduplication").is_some()
}

/// Returns the policy of a queue as it was written.
pub(super) fn policy_text(notes: &BTreeMap<String, String>) -> Option<&str> {
    note(notes, POLICY)
}

/// Returns the policy of a queue as JSON.
pub(super) fn policy(notes: &BTreeMap<String, String>) -> Option<Map<String, Value>> {
    object(policy_text(notes)?)
}

pub(super) fn set_policy(notes: &mut BTreeMap<String, String>, policy: Option<&Map<String, Value>>) {
    let name = format!("{NOTE}{POLICY}");
    match policy {
        Some(policy) => notes.insert(name, Value::Object(policy.clone()).to_string()),
        None => notes.remove(&name),
    };
}

pub(super) fn redrive_allow(notes: &BTreeMap<String, String>) -> RedriveAllow {
    note(notes, "RedriveAllowPolicy").and_then(|text| parse_redrive_allow(text).ok()).unwrap_or(RedriveAllow::All)
}

/// Returns the tags of a queue.
pub(super) fn tags(notes: &BTreeMap<String, String>) -> impl Iterator<Item = (&str, &str)> {
    notes.range(TAG.to_owned()..).map_while(|(name, value)| Some((name.strip_prefix(TAG)?, value.as_str())))
}

pub(super) fn tag_note(key: &str) -> String {
    format!("{TAG}{key}")
}

fn parse_redrive_allow(text: &str) -> Result<RedriveAllow> {
    let invalid = |reason: &str| Failure::value("RedriveAllowPolicy", text, reason);
    let policy = object(text).ok_or_else(|| invalid("Redrive allow policy is not a valid JSON map."))?;
    let sources = match policy.get("sourceQueueArns") {
        None => None,
        Some(Value::Array(arns)) => arns.iter().map(|arn| arn.as_str().map(str::to_owned)).collect(),
        Some(_) => return Err(invalid("sourceQueueArns is not a list of ARNs.")),
    };
    let sources: Option<Vec<String>> = sources;
    match (policy.get("redrivePermission").and_then(Value::as_str), sources) {
        (Some("allowAll"), None) => Ok(RedriveAllow::All),
        (Some("denyAll"), None) => Ok(RedriveAllow::Nobody),
        (Some("byQueue"), Some(arns))
            if (1..=SOURCES_MAX).contains(&arns.len()) && arns.iter().all(|arn| Place::of_arn(arn).is_some()) =>
        {
            Ok(RedriveAllow::Some(arns))
        }
        (Some("byQueue"), _) => Err(invalid("sourceQueueArns has 1 to 10 ARNs of queues with byQueue.")),
        (Some("allowAll" | "denyAll"), Some(_)) => Err(invalid("sourceQueueArns is for byQueue only.")),
        _ => Err(invalid("redrivePermission is one of allowAll, denyAll and byQueue.")),
    }
}

fn object(text: &str) -> Option<Map<String, Value>> {
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Some(object),
        _ => None,
    }
}

fn number(name: &str, value: &str, (least, most): (u64, u64)) -> Result<u64> {
    value.parse().ok().filter(|n| (least..=most).contains(n)).ok_or_else(|| Failure::attribute(name, ""))
}

/// Returns `true` if a flag is set. The service ignores its case.
pub(super) fn is_true(value: &str) -> bool {
    value.eq_ignore_ascii_case("true")
}

fn flag(name: &str, value: &str) -> Result<bool> {
    match value {
        _ if is_true(value) => Ok(true),
        _ if value.eq_ignore_ascii_case("false") => Ok(false),
        _ => Err(Failure::attribute(name, "")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::address::Home;
    use super::*;

    fn here() -> Home {
        Home { account: "000000000000".into(), region: "us-east-1".into() }
    }

    fn set(name: &str, given: &[(&str, &str)]) -> Result<Attributes> {
        let place = Place::new(&here(), name);
        let mut attributes = Attributes::new(place.is_fifo());
        attributes.apply(&place, Names { default: &here(), tenant: None }, given.iter().copied())?;
        Ok(attributes)
    }

    fn refused(name: &str, given: &[(&str, &str)]) -> (&'static str, String) {
        let failure = set(name, given).expect_err("refused");
        (failure.code.name, failure.message.into_owned())
    }

    /// Every attribute that can be set is returned, and setting an attribute to its default is like not setting it.
    #[test]
    fn attributes_are_returned_as_set() {
        let redrive = r#"{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:000000000000:d","maxReceiveCount":3}"#;
        let given = [
            ("VisibilityTimeout", "0"),
            ("DelaySeconds", "900"),
            ("MessageRetentionPeriod", "60"),
            ("MaximumMessageSize", "1024"),
            ("ReceiveMessageWaitTimeSeconds", "20"),
            (KEY_REUSE, "60"),
            ("KmsMasterKeyId", "alias/x"),
            ("SqsManagedSseEnabled", "false"),
            ("Policy", r#"{"Statement":[]}"#),
            ("RedrivePolicy", redrive),
            ("RedriveAllowPolicy", r#"{"redrivePermission":"denyAll"}"#),
        ];
        let fifo =
            [("ContentBasedDeduplication", "true"), ("DeduplicationScope", "messageGroup"), (THROUGHPUT, PER_GROUP)];
        for (queue, given) in [("q", &given[..]), ("q.fifo", &fifo)] {
            let place = Place::new(&here(), queue);
            let home = here();
            let names = Names { default: &home, tenant: None };
            let attributes = set(queue, given).expect("valid");
            for (name, value) in given {
                assert_eq!(attributes.get(name, &place, names).as_deref(), Some(*value), "{name}");
            }
            attributes.settings.validate().expect("valid for every door");
        }
        let place = Place::new(&here(), "q");
        let home = here();
        let names = Names { default: &home, tenant: None };
        let mut attributes = set("q", &given).expect("valid");
        let back = [
            ("Policy", ""),
            ("RedrivePolicy", ""),
            ("RedriveAllowPolicy", ""),
            ("KmsMasterKeyId", ""),
            (KEY_REUSE, "300"),
        ];
        attributes.apply(&place, Names { default: &here(), tenant: None }, back).expect("valid");
        for (name, _) in back {
            assert_eq!(attributes.get(name, &place, names), None, "{name}");
        }
    }

    #[test]
    fn limits_are_those_of_the_service() {
        for (name, least, most) in [
            ("VisibilityTimeout", 0, 43_200),
            ("DelaySeconds", 0, 900),
            ("MessageRetentionPeriod", 60, 1_209_600),
            ("MaximumMessageSize", 1024, 1_048_576),
            ("ReceiveMessageWaitTimeSeconds", 0, 20),
        ] {
            for good in [least, most] {
                assert!(set("q", &[(name, &good.to_string())]).is_ok(), "{name} {good}");
            }
            for wrong in [&(least - 1).to_string(), &(most + 1).to_string(), "", "x", "1.5", "99999999999999999999"] {
                let expected = ("InvalidAttributeValue", format!("Invalid value for the parameter {name}."));
                assert_eq!(refused("q", &[(name, wrong)]), expected);
            }
        }
    }

    #[test]
    fn attributes_belong_to_their_type_of_queue() {
        let unknown = |name: &str| ("InvalidAttributeName", format!("Unknown Attribute {name}."));
        for name in
            ["FifoQueue", "ContentBasedDeduplication", "QueueArn", "ApproximateNumberOfMessages", "All", "Nonsense", ""]
        {
            assert_eq!(refused("q", &[(name, "true")]), unknown(name));
        }
        let only = |name: &str| format!("You can specify the {name} only when FifoQueue is set to true.");
        assert_eq!(refused("q", &[("DeduplicationScope", "queue")]).1, only("DeduplicationScope"));
        assert_eq!(refused("q", &[(THROUGHPUT, PER_QUEUE)]).1, only(THROUGHPUT));
        let modified = "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported.";
        assert_eq!(refused("q.fifo", &[("FifoQueue", "false")]).1, modified);
        assert!(set("q.fifo", &[("FifoQueue", "true")]).is_ok());
        assert_eq!(refused("q.fifo", &[(THROUGHPUT, PER_GROUP)]).0, "InvalidAttributeValue");
    }

    #[test]
    fn a_redrive_policy_names_a_queue_of_its_kind() {
        let arn = |name: &str| format!("arn:aws:sqs:us-east-1:000000000000:{name}");
        let policy =
            |name: &str, count: &str| format!(r#"{{"deadLetterTargetArn":"{}","maxReceiveCount":{count}}}"#, arn(name));
        for count in ["1", "1000", "\"5\""] {
            assert!(set("q", &[("RedrivePolicy", &policy("d", count))]).is_ok(), "{count}");
        }
        let wrong = [
            ("x".to_owned(), "not a valid JSON map"),
            (r#"{"maxReceiveCount":1}"#.to_owned(), "mandatory attribute: deadLetterTargetArn"),
            (format!(r#"{{"deadLetterTargetArn":"{}"}}"#, arn("d")), "mandatory attribute: maxReceiveCount"),
            (policy("d", "0"), "Invalid value for maxReceiveCount: 0,"),
            (policy("d", "1001"), "Invalid value for maxReceiveCount: 1001,"),
            (policy("d", "\"x\""), "Invalid value for maxReceiveCount: x,"),
            (policy("d.fifo", "1"), "same type of queue"),
            (policy("a/b", "1"), "Invalid value for deadLetterTargetArn"),
            (policy("d", "1,\"x\":1"), "Only following attributes are supported"),
            (policy("d", "1").replace("us-east-1", "eu-west-1"), "same as the source"),
        ];
        for (policy, reason) in wrong {
            let (code, message) = refused("q", &[("RedrivePolicy", &policy)]);
            assert!(code == "InvalidParameterValue" && message.contains(reason), "{policy}: {message}");
        }
    }

    #[test]
    fn redrive_permissions_are_checked() {
        let by = |arns: &str| format!(r#"{{"redrivePermission":"byQueue","sourceQueueArns":[{arns}]}}"#);
        let arn = r#""arn:aws:sqs:us-east-1:000000000000:a""#;
        let many = [arn; 11].join(",");
        let parsed = |text: &str| parse_redrive_allow(text);
        assert_eq!(parsed(&by(arn)), Ok(RedriveAllow::Some(vec![arn.trim_matches('"').into()])));
        assert_eq!(parsed(r#"{"redrivePermission":"allowAll"}"#), Ok(RedriveAllow::All));
        let wrong =
            [by(""), by(&many), by("1"), by("\"x\""), "{}".into(), "x".into(), r#"{"redrivePermission":"x"}"#.into()];
        for wrong in wrong {
            assert!(parsed(&wrong).is_err(), "{wrong}");
        }
    }
}
