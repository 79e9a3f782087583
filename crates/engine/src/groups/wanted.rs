//! Topics that a member subscribes to.

use crate::ids::TopicName;
use crate::pattern::Pattern;

/// Topics that a subscription includes. Names are looked up, so that only patterns are compared with a topic.
pub(super) struct Wanted<'a> {
    /// Patterns that are names of topics, in the order of the names.
    names: Vec<&'a Pattern>,
    patterns: Vec<&'a Pattern>,
}

impl<'a> Wanted<'a> {
    pub(super) fn of(patterns: impl Iterator<Item = &'a Pattern>) -> Self {
        let mut wanted: Vec<&Pattern> = patterns.collect();
        sort(&mut wanted);
        let (names, patterns) = wanted.into_iter().partition(|pattern| matches!(pattern, Pattern::Topic(_)));
        Self { names, patterns }
    }

    pub(super) fn has(&self, topic: &TopicName) -> bool {
        self.names.binary_search_by(|name| name.as_str().cmp(topic.as_str())).is_ok()
            || self.patterns.iter().any(|pattern| pattern.matches(topic))
    }
}

/// Sorts patterns by name and removes duplicates.
pub(super) fn sort<P: std::borrow::Borrow<Pattern>>(patterns: &mut Vec<P>) {
    patterns.sort_unstable_by(|a, b| a.borrow().as_str().cmp(b.borrow().as_str()));
    patterns.dedup_by(|a, b| a.borrow() == b.borrow());
}
