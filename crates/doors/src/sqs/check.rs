//! Validation of messages, in the order and with the error messages of the service.

use std::borrow::Cow;

use super::attributes::{DELAY_S_MAX, MESSAGE_BYTES_MAX};
use super::digest::{self, Attribute, Hex};
use super::errors::{
    BATCH_TOO_LONG, EMPTY_BATCH, Failure, IDS_NOT_DISTINCT, INVALID_CONTENTS, INVALID_ENTRY_ID, Result,
    TOO_MANY_ENTRIES,
};
use super::model::{AttributeValue, Int, Map, SendEntry, SendMessage, Text, required_text};

/// Maximum number of messages in one batch.
pub(super) const ENTRIES_MAX: usize = 10;
const ENTRY_ID_CHARS_MAX: usize = 80;
const ATTRIBUTES_MAX: usize = 10;
const ATTRIBUTE_NAME_BYTES_MAX: usize = 256;
const ATTRIBUTE_TYPE_BYTES_MAX: usize = 256;
/// Maximum length of a group id or a deduplication id.
const FIFO_ID_CHARS_MAX: usize = 128;
/// The only system attribute that a sender may set.
pub(super) const TRACE: &str = "AWSTraceHeader";
const CONTENTS: &str = "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF | \
                        #xE000 to #xFFFD | #x10000 to #x10FFFF";

/// Requirements of a queue for its messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub is_fifo: bool,
    pub dedups_by_content: bool,
    pub bytes_max: u64,
    /// `true` if the message is in a batch, for which some error messages differ.
    pub is_in_batch: bool,
}

/// Message that may be sent.
#[derive(Debug)]
pub(super) struct Outgoing<'t> {
    pub body: &'t str,
    pub delay_ms: Option<u64>,
    pub group: Option<&'t str>,
    pub dedup: Option<Cow<'t, str>>,
    pub attributes: Vec<Attribute<'t>>,
    pub trace: Option<&'t str>,
    pub system_attributes_md5: Option<Hex>,
}

impl<'a> From<SendMessage<'a>> for SendEntry<'a> {
    fn from(message: SendMessage<'a>) -> Self {
        Self {
            id: None,
            message_body: message.message_body,
            delay_seconds: message.delay_seconds,
            message_attributes: message.message_attributes,
            message_system_attributes: message.message_system_attributes,
            message_deduplication_id: message.message_deduplication_id,
            message_group_id: message.message_group_id,
        }
    }
}

pub(super) fn check<'t>(entry: &'t SendEntry<'_>, rules: Rules) -> Result<Outgoing<'t>> {
    let body = required_text("MessageBody", &entry.message_body)?;
    let attributes = values(&entry.message_attributes);
    if bytes_of(body, &attributes) > rules.bytes_max {
        let what = if rules.is_in_batch { "cannot be validated" } else { "are invalid" };
        let bytes_max = rules.bytes_max;
        let message = format!("One or more parameters {what}. Reason: Message must be shorter than {bytes_max} bytes.");
        return Err(Failure::parameter(message));
    }
    if !has_valid_chars(body) {
        return Err(Failure::new(&INVALID_CONTENTS, CONTENTS));
    }
    check_attributes(&entry.message_attributes)?;
    let mut system = values(&entry.message_system_attributes);
    let trace = check_system(&entry.message_system_attributes)?;
    let dedup = fifo_id("MessageDeduplicationId", &entry.message_deduplication_id)?;
    let group = fifo_id("MessageGroupId", &entry.message_group_id)?;
    let delay_ms = match (entry.delay_seconds, rules.is_fifo) {
        // The default delay of the queue applies.
        (None | Some(Int(0)), true) => None,
        (Some(Int(seconds)), true) => {
            let reason = "The request include parameter that is not valid for this queue type.";
            return Err(Failure::value("DelaySeconds", seconds, reason));
        }
        (given, false) => given.map(delay).transpose()?,
    };
    let dedup = match (rules.is_fifo, dedup) {
        (false, None) => None,
        (false, Some(id)) => {
            let reason = "The request includes a parameter that is not valid for this queue type.";
            return Err(Failure::value("MessageDeduplicationId", id, reason));
        }
        (true, _) if group.is_none() => return Err(no_group(rules.is_in_batch)),
        (true, Some(id)) => Some(Cow::Borrowed(id)),
        (true, None) if rules.dedups_by_content => Some(Cow::Owned(digest::of_content(body.as_bytes()))),
        (true, None) => {
            let message = "The queue should either have ContentBasedDeduplication enabled or \
                           MessageDeduplicationId provided explicitly";
            return Err(Failure::parameter(message));
        }
    };
    let system_attributes_md5 = digest::of_attributes(&mut system);
    Ok(Outgoing { body, delay_ms, group, dedup, attributes, trace, system_attributes_md5 })
}

fn no_group(is_in_batch: bool) -> Failure {
    let failure = Failure::missing("MessageGroupId");
    if is_in_batch { Failure::parameter(failure.message) } else { failure }
}

fn delay(Int(seconds): Int) -> Result<u64> {
    match u64::try_from(seconds) {
        Ok(seconds) if seconds <= DELAY_S_MAX => Ok(seconds * 1000),
        _ => Err(Failure::value("DelaySeconds", seconds, "DelaySeconds must be >= 0 and <= 900.")),
    }
}

/// Returns the attributes as they are digested, stored and counted, without validation.
fn values<'t>(attributes: &'t Option<Map<'_, AttributeValue<'_>>>) -> Vec<Attribute<'t>> {
    let attributes = attributes.iter().flat_map(Map::iter);
    attributes
        .map(|(name, attribute)| {
            let data_type = attribute.data_type.as_ref().map_or("", Text::as_str);
            let text = || attribute.string_value.as_ref().map_or(&b""[..], |text| text.as_str().as_bytes());
            let value = match (&attribute.binary_value, digest::is_binary(data_type)) {
                (Some(value), true) => &value.0[..],
                (None, true) => b"",
                (_, false) => text(),
            };
            Attribute { name, data_type, value }
        })
        .collect()
}

/// Returns the size of a message as its limit counts it, in bytes.
fn bytes_of(body: &str, attributes: &[Attribute<'_>]) -> u64 {
    let of_attribute = |given: &Attribute<'_>| given.name.len() + given.data_type.len() + given.value.len();
    (body.len() + attributes.iter().map(of_attribute).sum::<usize>()) as u64
}

pub(super) fn has_valid_chars(text: &str) -> bool {
    let bytes = text.as_bytes();
    let has_control = bytes.iter().any(|byte| *byte < b' ' && !matches!(byte, b'\t' | b'\n' | b'\r'));
    // U+FFFE and U+FFFF.
    let has_non_character = bytes.contains(&0xef) && bytes.windows(3).any(|c| matches!(c, [0xef, 0xbf, 0xbe | 0xbf]));
    !has_control && !has_non_character
}

fn check_attributes(attributes: &Option<Map<'_, AttributeValue<'_>>>) -> Result<()> {
    let Some(attributes) = attributes else {
        return Ok(());
    };
    if attributes.0.len() > ATTRIBUTES_MAX {
        let count = attributes.0.len();
        let message = format!("Number of message attributes [{count}] exceeds the allowed maximum [{ATTRIBUTES_MAX}].");
        return Err(Failure::parameter(message));
    }
    for (i, (name, attribute)) in attributes.iter().enumerate() {
        check_name(name)?;
        if attributes.iter().take(i).any(|(other, _)| other == name) {
            return Err(Failure::parameter(format!("Message (user) attribute name '{name}' already exists.")));
        }
        check_value(name, attribute)?;
    }
    Ok(())
}

fn check_name(name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Failure::parameter("The request must contain non-empty message (user) attribute names."));
    }
    if name.len() > ATTRIBUTE_NAME_BYTES_MAX {
        return Err(Failure::parameter("Message (user) attribute names must be shorter than 256 Bytes"));
    }
    if !name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.')) {
        let message = "Message (user) attributes name can only contain upper and lower score characters, digits, \
                       periods, hyphens and underscores. ";
        return Err(Failure::parameter(message));
    }
    let begins = |prefix: &str| name.get(..prefix.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(prefix));
    if begins("aws.") || begins("amazon.") || name.starts_with('.') || name.ends_with('.') {
        let message = "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'. These strings are \
                       reserved for internal use. Additionally, they cannot start or end with '.'.";
        return Err(Failure::parameter(message));
    }
    // Prefix of the broker's own headers.
    if begins("thalweg.") {
        let message = format!("Message (user) attribute name '{name}' is reserved: it begins with 'thalweg.'.");
        return Err(Failure::parameter(message));
    }
    Ok(())
}

fn check_value(name: &str, attribute: &AttributeValue<'_>) -> Result<()> {
    let data_type = attribute.data_type.as_ref().map_or("", Text::as_str);
    if data_type.is_empty() {
        let message = format!("The message attribute '{name}' must contain a non-empty message attribute type.");
        return Err(Failure::parameter(message));
    }
    let base = data_type.split('.').next().unwrap_or_default();
    if !matches!(base, "String" | "Number" | "Binary") {
        let message = format!(
            "The message attribute '{name}' has an invalid message attribute type, the set of supported type prefixes \
             is Binary, Number, and String."
        );
        return Err(Failure::parameter(message));
    }
    if data_type.len() > ATTRIBUTE_TYPE_BYTES_MAX {
        return Err(Failure::parameter("Message (user) attribute types must be shorter than 256 Bytes"));
    }
    let text = attribute.string_value.as_ref().map_or("", Text::as_str);
    let is_empty = match base {
        "Binary" => attribute.binary_value.as_ref().is_none_or(|value| value.0.is_empty()),
        _ => text.is_empty(),
    };
    if is_empty {
        let message = format!("Message (user) attribute '{name}' must contain a non-empty value of type '{base}'.");
        return Err(Failure::parameter(message));
    }
    if base == "Number" && !is_number(text) {
        let message = format!("Could not cast message attribute '{name}' value to number.");
        return Err(Failure::parameter(message));
    }
    if base == "Binary" || has_valid_chars(text) { Ok(()) } else { Err(Failure::parameter(CONTENTS)) }
}

/// Returns `true` if a text is a number, of any length.
fn is_number(text: &str) -> bool {
    let text = text.trim();
    text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) && text.parse::<f64>().is_ok()
}

/// Validates system attributes and returns the trace.
fn check_system<'t>(attributes: &'t Option<Map<'_, AttributeValue<'_>>>) -> Result<Option<&'t str>> {
    let mut trace = None;
    for (name, attribute) in attributes.iter().flat_map(Map::iter) {
        if name != TRACE {
            let message = format!("Message system attribute name '{name}' is invalid.");
            return Err(Failure::parameter(message));
        }
        check_value(name, attribute)?;
        if attribute.data_type.as_ref().map(Text::as_str) != Some("String") {
            let message = format!("Message system attribute '{name}' must be of type 'String'.");
            return Err(Failure::parameter(message));
        }
        trace = attribute.string_value.as_ref().map(Text::as_str);
    }
    Ok(trace)
}

/// Validates the id of a group, a deduplication or a receive attempt.
pub(super) fn fifo_id<'t>(parameter: &str, id: &'t Option<Text<'_>>) -> Result<Option<&'t str>> {
    let Some(id) = id.as_ref().map(Text::as_str) else {
        return Ok(None);
    };
    let is_valid = (1..=FIFO_ID_CHARS_MAX).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_valid {
        let reason =
            format!("{parameter} can only include alphanumeric and punctuation characters. 1 to 128 in length.");
        return Err(Failure::value(parameter, id, &reason));
    }
    Ok(Some(id))
}

/// Validates a batch, independent of its entries' type.
pub(super) fn check_batch<T>(name: &str, entries: &[T], id: impl Fn(&T) -> Option<&str>) -> Result<()> {
    let count = entries.len();
    if count == 0 {
        return Err(Failure::new(&EMPTY_BATCH, format!("There should be at least one {name} in the request.")));
    }
    if count > ENTRIES_MAX {
        let message = format!("Maximum number of entries per request are {ENTRIES_MAX}. You have sent {count}.");
        return Err(Failure::new(&TOO_MANY_ENTRIES, message));
    }
    for (i, entry) in entries.iter().enumerate() {
        let given = id(entry).ok_or_else(|| Failure::missing(&format!("{name}.{}.Id", i + 1)))?;
        let is_char = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if !(1..=ENTRY_ID_CHARS_MAX).contains(&given.len()) || !given.bytes().all(is_char) {
            let message = "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can \
                           be at most 80 letters long.";
            return Err(Failure::new(&INVALID_ENTRY_ID, message));
        }
        if entries[..i].iter().any(|other| id(other) == Some(given)) {
            return Err(Failure::new(&IDS_NOT_DISTINCT, format!("Id {given} repeated.")));
        }
    }
    Ok(())
}

/// Validates all messages of a batch together. If one of these checks fails, none is sent.
pub(super) fn check_send_batch(entries: &[SendEntry<'_>], rules: Rules) -> Result<()> {
    for entry in entries.iter().filter(|_| rules.is_fifo) {
        if entry.message_deduplication_id.is_none() && !rules.dedups_by_content {
            let message = "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId \
                           provided explicitly";
            return Err(Failure::parameter(message));
        }
        if entry.message_group_id.is_none() {
            return Err(no_group(true));
        }
    }
    let bytes = |entry: &SendEntry<'_>| {
        let body = entry.message_body.as_ref().map_or("", Text::as_str);
        bytes_of(body, &values(&entry.message_attributes))
    };
    let sent: u64 = entries.iter().map(bytes).sum();
    if sent > MESSAGE_BYTES_MAX {
        let message =
            format!("Batch requests cannot be longer than {MESSAGE_BYTES_MAX} bytes. You have sent {sent} bytes.");
        return Err(Failure::new(&BATCH_TOO_LONG, message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::model::Blob;
    use super::*;

    const STANDARD: Rules =
        Rules { is_fifo: false, dedups_by_content: false, bytes_max: MESSAGE_BYTES_MAX, is_in_batch: false };
    const FIFO: Rules = Rules { is_fifo: true, ..STANDARD };

    fn text(text: &str) -> Text<'_> {
        Text(text.into())
    }

    fn message(body: &str) -> SendEntry<'_> {
        SendEntry { message_body: Some(text(body)), ..SendEntry::default() }
    }

    fn refused(entry: &SendEntry<'_>, rules: Rules) -> (&'static str, String) {
        let failure = check(entry, rules).map(drop).expect_err("refused");
        (failure.code.name, failure.message.into_owned())
    }

    fn with<'t>(name: &'t str, data_type: &'t str, value: &'t str) -> SendEntry<'t> {
        let binary_value = data_type.starts_with("Binary").then(|| Blob(value.as_bytes().to_vec()));
        let string_value = binary_value.is_none().then(|| text(value));
        let attribute = AttributeValue { data_type: Some(text(data_type)), string_value, binary_value };
        SendEntry { message_attributes: Some(Map(vec![(text(name), attribute)])), ..message("x") }
    }

    #[test]
    fn a_body_has_a_size_and_characters_that_xml_has() {
        let missing = ("MissingParameter", "The request must contain the parameter MessageBody.".to_owned());
        assert_eq!(refused(&message(""), STANDARD), missing);
        assert_eq!(refused(&SendEntry::default(), STANDARD), missing);
        for good in ["\t\n\r ~", "\u{d7ff}\u{e000}\u{fffd}\u{10000}\u{10ffff}"] {
            assert!(check(&message(good), STANDARD).is_ok(), "{good:?}");
        }
        for wrong in ["\0", "a\u{b}", "\u{1f}", "\u{fffe}", "x\u{ffff}"] {
            assert_eq!(refused(&message(wrong), STANDARD).0, "InvalidMessageContents", "{wrong:?}");
        }
        let rules = Rules { bytes_max: 1024, ..STANDARD };
        assert!(check(&message(&"x".repeat(1024)), rules).is_ok());
        let too_long = "One or more parameters are invalid. Reason: Message must be shorter than 1024 bytes.";
        assert_eq!(refused(&message(&"x".repeat(1025)), rules), ("InvalidParameterValue", too_long.to_owned()));
        let mut with_attribute = with("n", "String", "vv");
        let body = "x".repeat(1024 - 9);
        with_attribute.message_body = Some(text(&body));
        assert!(check(&with_attribute, rules).is_ok());
        assert!(check(&with_attribute, Rules { bytes_max: 1023, ..rules }).is_err());
    }

    #[test]
    fn attributes_have_names_types_and_values() {
        for (name, data_type, value) in [
            ("a", "String", "x"),
            ("a.b-c_1", "String.custom", "x"),
            ("a", "Number", "-1.5e10"),
            ("a", "Number.int", "0012345678901234567890"),
            ("a", "Binary.gif", "\0"),
            (&"n".repeat(256), "String", "x"),
            ("fooAWS.x", "String", "x"),
        ] {
            assert!(check(&with(name, data_type, value), STANDARD).is_ok(), "{name} {data_type} {value}");
        }
        for (name, data_type, value) in [
            ("", "String", "x"),
            (&"n".repeat(257), "String", "x"),
            ("a b", "String", "x"),
            (".a", "String", "x"),
            ("a.", "String", "x"),
            ("AWS.a", "String", "x"),
            ("amazon.a", "String", "x"),
            ("Thalweg.id", "String", "x"),
            ("a", "", "x"),
            ("a", "string", "x"),
            ("a", "StringList", "x"),
            ("a", "Number", "abc"),
            ("a", "Number", "inf"),
            ("a", "String", "\u{1}"),
            ("a", &format!("String.{}", "x".repeat(250)), "x"),
        ] {
            assert_eq!(
                refused(&with(name, data_type, value), STANDARD).0,
                "InvalidParameterValue",
                "{name} {data_type}"
            );
        }
        for kind in ["String", "Number", "Binary"] {
            let message = format!("Message (user) attribute 'a' must contain a non-empty value of type '{kind}'.");
            assert_eq!(refused(&with("a", kind, ""), STANDARD).1, message);
        }
        let attribute =
            || AttributeValue { data_type: Some(text("String")), string_value: Some(text("x")), binary_value: None };
        let names: Vec<String> = (0..11).map(|n| format!("a{n}")).collect();
        let many = |names: &[String]| {
            let entries = names.iter().map(|name| (text(name), attribute())).collect();
            check(&SendEntry { message_attributes: Some(Map(entries)), ..message("x") }, STANDARD).map(drop)
        };
        assert!(many(&names[..10]).is_ok());
        assert!(many(&names).is_err_and(|failure| failure.message.contains("[11]")));
        assert!(many(&[names[0].clone(), names[0].clone()]).is_err_and(|failure| failure.message.contains("already")));
    }

    #[test]
    fn only_the_trace_is_a_system_attribute() {
        let with_system = |name: &'static str, data_type: &'static str| SendEntry {
            message_system_attributes: with(name, data_type, "Root=1").message_attributes,
            ..message("x")
        };
        let traced = with_system(TRACE, "String");
        let traced = check(&traced, STANDARD).expect("valid");
        assert!(traced.trace == Some("Root=1") && traced.system_attributes_md5.is_some());
        for (name, data_type) in [("Other", "String"), (TRACE, "Number"), (TRACE, "Binary")] {
            assert_eq!(refused(&with_system(name, data_type), STANDARD).0, "InvalidParameterValue");
        }
    }

    #[test]
    fn a_fifo_queue_asks_for_a_group_and_an_id() {
        let entry = |group: Option<&'static str>, dedup: Option<&'static str>| SendEntry {
            message_group_id: group.map(text),
            message_deduplication_id: dedup.map(text),
            ..message("body")
        };
        let no_group = "The request must contain the parameter MessageGroupId.".to_owned();
        assert_eq!(refused(&entry(None, Some("d")), FIFO), ("MissingParameter", no_group.clone()));
        let batch = Rules { is_in_batch: true, ..FIFO };
        assert_eq!(refused(&entry(None, Some("d")), batch), ("InvalidParameterValue", no_group));
        assert!(refused(&entry(Some("g"), None), FIFO).1.starts_with("The queue should either have Content"));
        let by_content = Rules { dedups_by_content: true, ..FIFO };
        let given = entry(Some("g"), None);
        let dedup = check(&given, by_content).expect("valid").dedup;
        assert_eq!(dedup.as_deref(), Some(digest::of_content(b"body").as_str()));
        let own = entry(Some("g"), Some("d"));
        assert_eq!(check(&own, by_content).expect("valid").dedup.as_deref(), Some("d"));
        assert!(refused(&entry(None, Some("d")), STANDARD).1.contains("not valid for this queue type"));
        assert!(check(&entry(Some("g"), None), STANDARD).is_ok(), "a group of a fair queue");
    }

    #[test]
    fn ids_of_fifo_queues_have_a_length_and_characters() {
        let long = "x".repeat(129);
        for (id, is_valid) in
            [("a!~", true), (&long[..128], true), ("", false), (&long, false), ("a b", false), ("ä", false)]
        {
            let entry = SendEntry { message_group_id: Some(text(id)), ..message("x") };
            assert_eq!(check(&entry, STANDARD).is_ok(), is_valid, "{id}");
        }
        let entry = SendEntry { message_group_id: Some(text("")), ..message("x") };
        let message = "Value  for parameter MessageGroupId is invalid. Reason: MessageGroupId can only include \
                       alphanumeric and punctuation characters. 1 to 128 in length.";
        assert_eq!(refused(&entry, STANDARD).1, message);
    }

    #[test]
    fn a_delay_is_for_standard_queues() {
        let delayed = |seconds| SendEntry {
            delay_seconds: Some(Int(seconds)),
            message_group_id: Some(text("g")),
            message_deduplication_id: None,
            ..message("x")
        };
        for (seconds, ms) in [(0, 0), (900, 900_000)] {
            assert_eq!(check(&delayed(seconds), STANDARD).expect("valid").delay_ms, Some(ms));
        }
        for seconds in [-1, 901, i64::MIN, i64::MAX] {
            let reason = format!(
                "Value {seconds} for parameter DelaySeconds is invalid. Reason: DelaySeconds must be >= 0 and <= 900."
            );
            assert_eq!(refused(&delayed(seconds), STANDARD).1, reason);
        }
        let by_content = Rules { dedups_by_content: true, ..FIFO };
        assert_eq!(check(&delayed(0), by_content).expect("valid").delay_ms, None);
        let reason = "Value 2 for parameter DelaySeconds is invalid. Reason: The request include parameter that is not \
                      valid for this queue type.";
        assert_eq!(refused(&delayed(2), by_content).1, reason);
    }

    #[test]
    fn a_batch_has_a_few_entries_with_ids_of_their_own() {
        let code = |ids: &[&str]| check_batch("E", ids, |id| Some(id)).map_err(|failure| failure.code.shape);
        let many: Vec<String> = (0..11).map(|n| n.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(code(&many[..10]), Ok(()));
        assert_eq!(code(&many), Err("TooManyEntriesInBatchRequest"));
        assert_eq!(code(&[]), Err("EmptyBatchRequest"));
        assert_eq!(code(&["a", "b", "a"]), Err("BatchEntryIdsNotDistinct"));
        for wrong in ["", "a:b", "ä", &"x".repeat(81)] {
            assert_eq!(code(&[wrong]), Err("InvalidBatchEntryId"), "{wrong}");
        }
        let missing = check_batch("E", &[Some("a"), None], |id| *id).expect_err("refused");
        assert_eq!(missing, Failure::missing("E.2.Id"));
    }

    #[test]
    fn a_batch_is_no_longer_than_one_message_may_be() {
        let half = "x".repeat(1 << 19);
        let one_more = "x".repeat((1 << 19) + 1);
        assert_eq!(check_send_batch(&[message(&half), message(&half)], STANDARD), Ok(()));
        let failure = check_send_batch(&[message(&half), message(&one_more)], STANDARD).expect_err("refused");
        let text = "Batch requests cannot be longer than 1048576 bytes. You have sent 1048577 bytes.";
        assert_eq!((failure.code.shape, &*failure.message), ("BatchRequestTooLong", text));
        let failure = check_send_batch(&[message("x")], FIFO).expect_err("refused");
        assert_eq!(failure.code.name, "InvalidParameterValue");
    }
}
