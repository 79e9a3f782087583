//! Patterns and names are refused or stay valid, and a match follows the reference.
//!
//! Input: a pattern, a line end, and the name of a topic.

use engine::limits::TOPIC_NAME_BYTES_MAX;
use engine::{Pattern, TopicName};

pub fn check(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let (pattern_text, topic_text) = text.split_once('\n').unwrap_or((text, ""));
    let topic = TopicName::parse(topic_text).ok();
    if let Some(topic) = &topic {
        check_topic(topic, topic_text);
    }
    let Ok(pattern) = Pattern::parse(pattern_text) else {
        assert!(TopicName::parse(pattern_text).is_err(), "every name is a pattern");
        return;
    };
    assert_eq!(pattern.as_str(), pattern_text);
    assert_eq!(pattern.to_string(), pattern_text);
    assert!(pattern_text.len() <= TOPIC_NAME_BYTES_MAX);
    assert_eq!(Pattern::parse(pattern.as_str()), Ok(pattern.clone()));
    if let Some(topic) = &topic {
        assert_eq!(pattern.matches(topic), is_match(pattern_text, topic_text), "{pattern} {topic}");
    }
}

/// Implements the documented meaning: `*` is one token, `>` one or more up to the end.
fn is_match(pattern: &str, topic: &str) -> bool {
    let (want, rest) = pattern.split_once('.').map_or((pattern, None), |(want, rest)| (want, Some(rest)));
    let (token, more) = topic.split_once('.').map_or((topic, None), |(token, more)| (token, Some(more)));
    let is_first = want == ">" || want == "*" || want == token;
    is_first
        && match (rest, more) {
            (None, None) => true,
            (None, Some(_)) => want == ">",
            (Some(_), None) => false,
            (Some(rest), Some(more)) => is_match(rest, more),
        }
}

fn check_topic(topic: &TopicName, text: &str) {
    let matches = |pattern: &str| Pattern::parse(pattern).expect("a valid pattern").matches(topic);
    assert_eq!(topic.as_str(), text);
    assert_eq!(Pattern::parse(text), Ok(Pattern::Topic(topic.clone())));
    assert!(matches(text), "a name matches itself");
    assert!(matches(">"), "everything matches >");
    let tokens: Vec<&str> = text.split('.').collect();
    for (i, token) in tokens.iter().enumerate() {
        assert!(!token.is_empty());
        let with_star: Vec<&str> = [&tokens[..i], &["*"], &tokens[i + 1..]].concat();
        assert!(matches(&with_star.join(".")), "* is any token");
        let with_rest: Vec<&str> = [&tokens[..i], &[">"]].concat();
        assert!(matches(&with_rest.join(".")), "> is any end");
    }
    let too_many = vec!["*"; tokens.len() + 1].join(".");
    if too_many.len() <= TOPIC_NAME_BYTES_MAX {
        assert!(!matches(&too_many), "a token more than there is");
    }
}
