//! A filter is refused with a position or stays valid, and a combined filter means the combination of its parts.
//!
//! Input: a filter, and for each attribute of a message a line end, its key, `=` and its value.

use std::collections::BTreeMap;

use engine::limits::{FILTER_BYTES_MAX, FILTER_NESTING_MAX};
use engine::queue::Filter;

pub fn check(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let (filter_text, lines) = text.split_once('\n').unwrap_or((text, ""));
    let attributes: BTreeMap<&str, &str> = lines.lines().filter_map(|line| line.split_once('=')).collect();
    let takes = |filter: &Filter| filter.matches(|key| attributes.get(key).copied());
    let filter = match Filter::parse(filter_text) {
        Ok(filter) => filter,
        Err(error) => {
            assert!(error.message.starts_with("filter, character ") || filter_text.len() > FILTER_BYTES_MAX);
            return;
        }
    };
    assert!(filter_text.len() <= FILTER_BYTES_MAX);
    assert_eq!(filter.to_string(), filter_text);
    assert_eq!(Filter::parse(filter.as_str()), Ok(filter.clone()));
    // Combinations may be too long or too deeply nested to be filters.
    let has_room = filter_text.matches('(').count() < FILTER_NESTING_MAX;
    let built = |text: String| match Filter::parse(&text) {
        Ok(filter) => Some(filter),
        Err(error) => {
            assert!(text.len() > FILTER_BYTES_MAX || !has_room, "{text}: {error}");
            None
        }
    };
    let expected = takes(&filter);
    for (text, meaning) in [
        (format!("({filter_text})"), expected),
        (format!("NOT ({filter_text})"), !expected),
        (format!("-({filter_text})"), !expected),
        (format!("({filter_text}) AND -attributes:a"), expected && !attributes.contains_key("a")),
        (format!("attributes:a OR ({filter_text})"), expected || attributes.contains_key("a")),
    ] {
        if let Some(built) = built(text) {
            assert_eq!(takes(&built), meaning, "{built}");
        }
    }
}
