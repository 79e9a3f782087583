//! Permissions that each call of each door requires, as values. The doors decide by their tables, which have these
//! rows; the reference shows them, and a test walks them.

use broker::Door;
use engine::security::{Operation, ResourceKind};

/// Permission that a call requires.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    pub operation: Operation,
    pub kind: ResourceKind,
    /// Resource that the request names, as a phrase such as `the topic`; empty for the cluster.
    pub of: &'static str,
    /// Condition under which it is required, as a phrase such as `if it does not exist`; empty if it always is.
    pub when: &'static str,
    /// Other permission that suffices in its place.
    pub or: Option<Alternative>,
    /// `true` if the response omits the resource for want of the permission, and the call is not refused.
    pub is_filter: bool,
}

/// Permission that suffices in place of another.
#[derive(Clone, Copy, Debug)]
pub struct Alternative {
    pub operation: Operation,
    pub kind: ResourceKind,
    /// Resource, as a phrase; empty for the cluster.
    pub of: &'static str,
}

impl Need {
    pub(crate) const fn new(operation: Operation, kind: ResourceKind, of: &'static str) -> Self {
        Self { operation, kind, of, when: "", or: None, is_filter: false }
    }

    pub(crate) const fn cluster(operation: Operation) -> Self {
        Self::new(operation, ResourceKind::Cluster, "")
    }

    /// Adds the condition under which the permission is required.
    pub(crate) const fn when(self, when: &'static str) -> Self {
        Self { when, ..self }
    }

    /// Adds another permission that suffices.
    pub(crate) const fn or(self, operation: Operation, kind: ResourceKind, of: &'static str) -> Self {
        Self { or: Some(Alternative { operation, kind, of }), ..self }
    }

    /// Adds a permission for the cluster, which suffices as well.
    pub(crate) const fn or_cluster(self, operation: Operation) -> Self {
        self.or(operation, ResourceKind::Cluster, "")
    }

    /// Makes the permission one that a resource in a response requires.
    pub(crate) const fn filter(self) -> Self {
        Self { is_filter: true, ..self }
    }
}

/// Call of a door.
#[derive(Clone, Debug)]
pub struct Call {
    /// Name at its door, such as `GET /v1/topics`.
    pub name: String,
    pub needs: Vec<Need>,
    /// `true` if it is answered without a login, even if the broker requires one.
    pub is_open: bool,
    /// Fact about the call that its permissions do not state, as a sentence; empty if there is none.
    pub note: &'static str,
}

impl Call {
    pub(crate) fn new(name: impl Into<String>, needs: impl Into<Vec<Need>>) -> Self {
        Self { name: name.into(), needs: needs.into(), is_open: false, note: "" }
    }

    pub(crate) fn open(self, is_open: bool) -> Self {
        Self { is_open, ..self }
    }

    pub(crate) fn note(self, note: &'static str) -> Self {
        Self { note, ..self }
    }
}

/// Calls of one door, in the order in which the reference lists them.
#[derive(Clone, Debug)]
pub struct Table {
    pub door: Door,
    /// Facts about all calls of the door, as sentences; may be empty.
    pub about: &'static str,
    pub calls: Vec<Call>,
}

/// Returns the permissions that `Broker::authorize_creation` checks.
pub(crate) const fn create_topic() -> Need {
    Need::new(Operation::Create, ResourceKind::Topic, "the topic").or_cluster(Operation::Create)
}

/// Returns the permissions that `Broker::authorize_publish` checks.
pub(crate) const fn publish() -> [Need; 2] {
    let write = Need::new(Operation::Write, ResourceKind::Topic, "the topic");
    [write, create_topic().when("if it does not exist")]
}

/// Fact about `Broker::authorize_publish`.
pub(crate) const INBOXES: &str = "The inbox of a client needs no permission: its name cannot be guessed.";

/// Returns the permissions that `Broker::authorize_queue` checks.
pub(crate) fn on_queue(operation: Operation) -> Vec<Need> {
    of_queue(operation, "the queue", "its topic", "if the queue does not own it")
}

fn of_queue(operation: Operation, queue: &'static str, topic: &'static str, when: &'static str) -> Vec<Need> {
    let mut needs = vec![Need::new(operation, ResourceKind::Queue, queue)];
    if matches!(operation, Operation::Read | Operation::Write) {
        needs.push(Need::new(operation, ResourceKind::Topic, topic).when(when));
    }
    needs
}

/// Returns the permissions that `Broker::authorize_queue_creation` checks.
pub(crate) const fn create_queue() -> [Need; 2] {
    let topic = Need::new(Operation::Read, ResourceKind::Topic, "the topic that it is over");
    [
        Need::new(Operation::Create, ResourceKind::Queue, "the queue"),
        topic.when("if it is over another topic, or over one with its name that exists"),
    ]
}

/// Returns the permissions that `Broker::authorize_dead_letters` checks.
pub(crate) const fn dead_letters() -> [Need; 2] {
    [
        Need::new(Operation::Write, ResourceKind::Topic, "the dead-letter topic")
            .when("if it sets one that no queue owns"),
        Need::new(Operation::Write, ResourceKind::Queue, "the dead-letter queue")
            .when("if it sets the topic of a queue"),
    ]
}

/// Returns the permissions that `Broker::authorize_redrive` checks.
pub(crate) fn redrive() -> Vec<Need> {
    let mut needs = vec![Need::new(Operation::Alter, ResourceKind::Queue, "the queue")];
    needs.extend(on_queue(Operation::Read));
    let to = of_queue(Operation::Write, "the destination", "its topic", "if the destination does not own it");
    needs.extend(to.into_iter().map(|need| if need.when.is_empty() { need.when("if it names one") } else { need }));
    needs.push(Need::cluster(Operation::Alter).when("if it names no destination"));
    needs
}

/// Returns the permission that `Broker::authorize_entry` checks.
pub(crate) const fn on_entry(operation: Operation) -> Need {
    Need::new(operation, ResourceKind::Cache, "the entry")
}

/// Returns the permission that `Broker::authorize_entries` checks.
pub(crate) const fn on_entries(operation: Operation) -> Need {
    Need::new(operation, ResourceKind::Cache, "all entries of the cache")
}

/// Returns the permission that `Broker::is_shown` checks for a resource of a list.
pub(crate) const fn listed(kind: ResourceKind) -> Need {
    let of = match kind {
        ResourceKind::Topic => "each topic",
        ResourceKind::Group => "each group",
        ResourceKind::Queue => "each queue",
        ResourceKind::Cache => "all entries of each cache",
        ResourceKind::Transaction | ResourceKind::Channel | ResourceKind::Schema | ResourceKind::Cluster => "each",
    };
    Need::new(Operation::Describe, kind, of).filter()
}

/// Returns the tables of all doors.
pub fn tables() -> Vec<Table> {
    vec![
        crate::native::permissions(),
        crate::http::permissions(),
        crate::kafka::permissions(),
        #[cfg(feature = "pubsub")]
        crate::pubsub::permissions(),
        #[cfg(feature = "redis")]
        crate::redis::permissions(),
        #[cfg(feature = "sqs")]
        crate::sqs::permissions(),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_call_is_listed_once_and_names_its_resources() {
        for Table { door, calls, .. } in tables() {
            let mut names = HashSet::new();
            for call in &calls {
                assert!(names.insert(&call.name), "{door:?} {} twice", call.name);
                assert!(!call.is_open || call.needs.is_empty(), "{door:?} {}", call.name);
                for need in &call.needs {
                    assert_eq!(need.kind == ResourceKind::Cluster, need.of.is_empty(), "{door:?} {}", call.name);
                }
            }
        }
    }
}
