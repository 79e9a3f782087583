//! Permissions that each call requires. A subscription is a queue, and so is a snapshot.

use engine::security::{Operation, Resource, ResourceKind};

use super::errors::Result;
use super::map::{Ask, Door};
use super::names::{Kind, Name};
use super::proto::validate_message_request::SchemaSpec;
use super::proto::{Subscription, ValidateMessageRequest};

/// Requirement of a call; a call may have several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// This operation on the resource of this name, such as `projects/p/topics/t`.
    On(Operation, String),
    /// This operation on the broker as a whole.
    Cluster(Operation),
}

impl Need {
    pub fn on(operation: Operation, name: &str) -> Self {
        Self::On(operation, name.to_owned())
    }
}

/// Returns what a new subscription requires: it reads a topic, and publishes what fails to another.
pub(super) fn of_new_subscription(new: &Subscription) -> Vec<Need> {
    let mut needs = vec![Need::on(Operation::Create, &new.name), Need::on(Operation::Read, &new.topic)];
    needs.extend(dead_letters(new));
    needs
}

/// Returns what a change of a subscription requires. A client that sets its endpoint chooses who receives the messages.
pub(super) fn of_altered_subscription(to: &Subscription) -> Vec<Need> {
    let mut needs = vec![Need::on(Operation::Alter, &to.name)];
    if to.push_config.as_ref().is_some_and(|push| !push.push_endpoint.is_empty()) {
        needs.push(Need::on(Operation::Read, &to.name));
    }
    needs.extend(dead_letters(to));
    needs
}

fn dead_letters(subscription: &Subscription) -> Option<Need> {
    let topic = &subscription.dead_letter_policy.as_ref()?.dead_letter_topic;
    Some(Need::on(Operation::Write, topic)).filter(|_| !topic.is_empty())
}

/// Returns what checking a message requires if it names a stored schema: the answer says something about that.
pub(super) fn of_validated_message(request: &ValidateMessageRequest) -> Vec<Need> {
    match &request.schema_spec {
        Some(SchemaSpec::Name(name)) => vec![Need::on(Operation::Describe, without_revision(name))],
        _ => Vec::new(),
    }
}

/// Returns the name of a schema without the revision that may follow it.
pub(super) fn without_revision(name: &str) -> &str {
    name.split('@').next().unwrap_or(name)
}

fn kind_of(kind: Kind) -> ResourceKind {
    match kind {
        Kind::Topic => ResourceKind::Topic,
        Kind::Subscription | Kind::Snapshot => ResourceKind::Queue,
        Kind::Schema => ResourceKind::Schema,
    }
}

/// Checks that the client may make a call that requires this.
pub(super) async fn authorize(ask: &Ask, needs: &[Need]) -> Result<()> {
    let broker = &ask.door.broker;
    if broker.security.is_unlimited(&ask.identity) {
        return Ok(());
    }
    for need in needs {
        let (operation, name) = match need {
            Need::Cluster(operation) => {
                broker.security.authorize(&ask.identity, *operation, &Resource::CLUSTER)?;
                continue;
            }
            Need::On(operation, name) => (*operation, Name::parse_any(name)?),
        };
        let inner = ask.door.names.inner(&name);
        match (name.kind, operation) {
            (Kind::Topic, Operation::Create) => broker.authorize_creation(&ask.identity, &inner)?,
            (Kind::Subscription, operation) => broker.authorize_queue(&ask.identity, operation, &inner).await?,
            (kind, operation) => {
                broker.security.authorize(&ask.identity, operation, &Resource::new(kind_of(kind), &inner))?;
            }
        }
    }
    Ok(())
}

impl Ask {
    /// Returns `true` if a list shows this resource to the client.
    pub fn shows(&self, kind: Kind, inner: &str) -> bool {
        self.door.broker.is_shown(&self.identity, kind_of(kind), inner)
    }
}

/// Returns `true` if the client has a permission of Google's, such as `pubsub.topics.publish`, on a resource
/// (<https://cloud.google.com/pubsub/docs/access-control>).
pub(super) fn has_permission(door: &Door, ask: &Ask, name: &Name, permission: &str) -> bool {
    let act = permission.rsplit('.').next().unwrap_or_default();
    let security = &door.broker.security;
    let operation = match act {
        "publish" => Operation::Write,
        "consume" | "attachSubscription" | "seek" | "attach" => Operation::Read,
        "get" | "list" | "listRevisions" | "validate" => Operation::Describe,
        "create" => Operation::Create,
        "delete" => Operation::Delete,
        "update" | "updateTag" | "detachSubscription" | "commit" | "rollback" => Operation::Alter,
        "getIamPolicy" => return security.allows(&ask.identity, Operation::Describe, &Resource::CLUSTER),
        _ => return security.allows(&ask.identity, Operation::Alter, &Resource::CLUSTER),
    };
    let inner = door.names.inner(name);
    security.allows(&ask.identity, operation, &Resource::new(kind_of(name.kind), &inner))
}
