//! Outcome of one item of a request that has many, with a message for people.

use std::collections::HashSet;
use std::hash::Hash;

use engine::Error;

use super::errors::{self, Code};

/// Failure of one item, with a message for people.
pub(super) type Failure = (Code, String);

/// Converts an error of the broker.
pub(super) fn of_error(error: Error) -> Failure {
    (errors::code(&error), error.message)
}

/// Converts an outcome into the code and message of a response.
pub(super) fn outcome_code(outcome: Result<(), Failure>) -> (Code, Option<String>) {
    match outcome {
        Ok(()) => (Code::NONE, None),
        Err((code, message)) => (code, Some(message)),
    }
}

/// Returns the items that occur more than once.
pub(super) fn twice<T: Eq + Hash + Copy>(all: impl Iterator<Item = T>) -> HashSet<T> {
    let mut seen = HashSet::new();
    all.filter(|one| !seen.insert(*one)).collect()
}

/// Failure of an item that a request names more than once.
pub(super) fn named_twice(what: &str) -> Failure {
    (Code::INVALID_REQUEST, format!("{what} is in the request twice"))
}
