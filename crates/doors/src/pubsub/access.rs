//! Permissions that each call requires. A subscription is a queue, and so is a snapshot.

use std::borrow::Cow;

use engine::ErrorKind;
use engine::security::{Operation, Pattern, PatternKind, Resource, ResourceKind, TenantName};

use super::errors::{Failure, Result};
use super::map::{Ask, Door, RPCS, Rpc};
use super::names::{Kind, Name, parse_project};
use super::proto::seek_request::Target;
use super::proto::validate_message_request::SchemaSpec;
use super::proto::{
    SeekRequest, Subscription, Topic, UpdateSubscriptionRequest, UpdateTopicRequest, ValidateMessageRequest,
};
use super::{OPEN, stream};
use crate::permissions::{self, Call, Table};

/// Requirement of a call; a call may have several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// This operation on the resource of this name, such as `projects/p/topics/t`.
    On(Operation, String),
    /// This operation on the broker as a whole.
    Cluster(Operation),
    /// A list of what is in this project, such as `projects/p`. It requires the operation on the broker as a whole, if
    /// it shows more than its reader may describe. A client of a tenant sees what is the tenant's.
    List(Option<Operation>, String),
}

impl Need {
    pub fn on(operation: Operation, name: &str) -> Self {
        Self::On(operation, name.to_owned())
    }
}

/// Permission that a call requires, and the resource of a request of it.
pub(super) struct Rule<Q> {
    pub need: permissions::Need,
    /// Returns the name of the resource, or of the project that a list is about; empty if the request names none.
    pub name: fn(&Q) -> Cow<'_, str>,
}

impl<Q> Rule<Q> {
    /// Returns what a request requires; `None` if the condition of the rule does not hold. What a list shows is checked
    /// when it is made, and the topic of a subscription with the subscription.
    pub fn of(&self, request: &Q) -> Option<Need> {
        let permissions::Need { operation, kind, when, is_filter, .. } = self.need;
        let name = (self.name)(request);
        if is_filter {
            return (!name.is_empty()).then(|| Need::List(None, name.into_owned()));
        }
        if kind == ResourceKind::Cluster {
            let of_project = |name: Cow<'_, str>| Need::List(Some(operation), name.into_owned());
            return Some(if name.is_empty() { Need::Cluster(operation) } else { of_project(name) });
        }
        (when.is_empty() || !name.is_empty()).then(|| Need::On(operation, name.into_owned()))
    }
}

pub(super) const fn topic(operation: Operation) -> permissions::Need {
    permissions::Need::new(operation, ResourceKind::Topic, "the topic")
}

pub(super) const fn subscription(operation: Operation) -> permissions::Need {
    permissions::Need::new(operation, ResourceKind::Queue, "the subscription")
}

/// The topic of a subscription, whose messages a client receives.
pub(super) const fn its_topic(operation: Operation) -> permissions::Need {
    permissions::Need::new(operation, ResourceKind::Topic, "its topic").when("if the subscription does not own it")
}

pub(super) const fn snapshot(operation: Operation) -> permissions::Need {
    permissions::Need::new(operation, ResourceKind::Queue, "the snapshot")
}

pub(super) const fn schema(operation: Operation) -> permissions::Need {
    permissions::Need::new(operation, ResourceKind::Schema, "the schema")
}

pub(super) const fn cluster(operation: Operation) -> permissions::Need {
    permissions::Need::cluster(operation)
}

pub(super) const fn dead_letters() -> permissions::Need {
    permissions::Need::new(Operation::Write, ResourceKind::Topic, "the dead-letter topic").when("if it names one")
}

pub(super) const fn listed(kind: ResourceKind, of: &'static str) -> permissions::Need {
    permissions::Need::new(Operation::Describe, kind, of).filter()
}

/// Returns the topic to which a subscription publishes the messages that fail.
pub(super) fn dead_letters_of(subscription: &Subscription) -> Cow<'_, str> {
    let policy = subscription.dead_letter_policy.as_ref();
    policy.map_or("", |policy| &policy.dead_letter_topic).into()
}

/// Returns the name of a subscription whose change sets an endpoint: a client that sets it chooses who receives the
/// messages.
pub(super) fn pushed(request: &UpdateSubscriptionRequest) -> Cow<'_, str> {
    let has_endpoint = |to: &&Subscription| to.push_config.as_ref().is_some_and(|push| !push.push_endpoint.is_empty());
    request.subscription.as_ref().filter(has_endpoint).map_or("", |to| &to.name).into()
}

/// Returns the schema that a topic has.
pub(super) fn schema_of(topic: &Topic) -> Cow<'_, str> {
    topic.schema_settings.as_ref().map_or("", |settings| without_revision(&settings.schema)).into()
}

/// Returns the schema that a change of a topic sets.
pub(super) fn schema_of_update(request: &UpdateTopicRequest) -> Cow<'_, str> {
    let mut paths = request.update_mask.iter().flat_map(|mask| &mask.paths);
    match &request.topic {
        Some(topic) if paths.any(|path| path.starts_with("schema_settings")) => schema_of(topic),
        _ => "".into(),
    }
}

/// Returns the stored schema that a message is checked with: the answer says something about it.
pub(super) fn schema_of_message(request: &ValidateMessageRequest) -> Cow<'_, str> {
    match &request.schema_spec {
        Some(SchemaSpec::Name(name)) => without_revision(name).into(),
        _ => "".into(),
    }
}

/// Returns the snapshot to which a subscription seeks.
pub(super) fn snapshot_of(request: &SeekRequest) -> Cow<'_, str> {
    match &request.target {
        Some(Target::Snapshot(name)) => name.as_str().into(),
        _ => "".into(),
    }
}

/// Returns the permissions that each call requires.
pub(crate) fn permissions() -> Table {
    let call = |rpc: &Rpc| {
        let name = rpc.path.rsplit('/').next().unwrap_or_default();
        Call::new(name, rpc.needs)
    };
    let mut calls: Vec<Call> = RPCS.iter().map(call).collect();
    calls.push(Call::new("StreamingPull", stream::NEEDS));
    for path in OPEN {
        calls.push(Call::new(format!("GET {path}"), []).open(true));
    }
    let about = "A refused call has the code `PERMISSION_DENIED`, over gRPC and REST alike. Subscriptions and \
                 snapshots are queues. In entries, a resource of the default project has the last part of its name, \
                 such as `orders`.";
    Table { door: broker::Door::Pubsub, about, calls }
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

/// Returns the pattern of the entries that are about one resource.
pub(super) fn pattern_of(door: &Door, name: &Name) -> Pattern {
    Pattern { kind: kind_of(name.kind), name: door.names.inner(name), matching: PatternKind::Literal }
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
            Need::List(operation, project) => {
                match (ask.identity.tenant(), operation) {
                    (Some(tenant), _) => check_project(ask, tenant, project)?,
                    (None, Some(operation)) => {
                        broker.security.authorize(&ask.identity, *operation, &Resource::CLUSTER)?;
                    }
                    (None, None) => {}
                }
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

/// Refuses a list of another project to a client of a tenant. The default project has names of all tenants that are no
/// Google projects.
fn check_project(ask: &Ask, tenant: &TenantName, project: &str) -> Result<()> {
    let prefix = ask.door.names.prefix(parse_project(project)?);
    let is_own = tenant.owns(&prefix) || prefix.is_empty() && !tenant.is_project();
    if is_own { Ok(()) } else { Err(ask.door.broker.security.refuse(&ask.identity, &format!("list {project}")).into()) }
}

impl Ask {
    /// Returns `true` if a list whose reader may describe the cluster shows this resource: all to a client that has no
    /// tenant.
    pub fn shows_all(&self, kind: Kind, inner: &str) -> bool {
        self.identity.tenant().is_none() || self.shows(kind, inner)
    }

    /// Returns `true` if a list shows this resource to the client.
    pub fn shows(&self, kind: Kind, inner: &str) -> bool {
        self.door.broker.is_shown(&self.identity, kind_of(kind), inner)
    }
}

/// Returns what a permission of Google's, such as `pubsub.topics.publish`, is here
/// (<https://cloud.google.com/pubsub/docs/access-control#permissions>); `None` if it is none of this kind of resource.
fn need_of(name: &Name, permission: &str) -> Option<Need> {
    let act = permission.strip_prefix("pubsub.")?.strip_prefix(name.kind.collection())?.strip_prefix('.')?;
    let operation = match (name.kind, act) {
        (_, "getIamPolicy") => return Some(Need::Cluster(Operation::Describe)),
        (_, "setIamPolicy") => return Some(Need::Cluster(Operation::Alter)),
        (Kind::Snapshot | Kind::Schema, "list") => return Some(Need::Cluster(Operation::Describe)),
        (_, "get" | "list") | (Kind::Schema, "listRevisions" | "validate") => Operation::Describe,
        (_, "create") => Operation::Create,
        (_, "delete") => Operation::Delete,
        (Kind::Topic, "publish") => Operation::Write,
        (Kind::Topic, "update" | "updateTag") => Operation::AlterConfigs,
        (Kind::Topic, "attachSubscription")
        | (Kind::Subscription, "consume")
        | (Kind::Snapshot, "seek")
        | (Kind::Schema, "attach") => Operation::Read,
        (Kind::Topic, "detachSubscription")
        | (Kind::Subscription | Kind::Snapshot, "update")
        | (Kind::Schema, "commit" | "rollback") => Operation::Alter,
        _ => return None,
    };
    Some(Need::On(operation, name.to_string()))
}

/// Returns `true` if the client has a permission of Google's on a resource. A refusal is not counted.
pub(super) async fn has_permission(ask: &Ask, name: &Name, permission: &str) -> Result<bool> {
    let need = need_of(name, permission)
        .ok_or_else(|| Failure::invalid(format!("Permission {permission} is not valid for this resource.")))?;
    let broker = &ask.door.broker;
    let may = |operation, resource: &Resource<'_>| broker.security.allows(&ask.identity, operation, resource);
    let Need::On(operation, _) = need else {
        let Need::Cluster(operation) = need else { return Ok(false) };
        return Ok(may(operation, &Resource::CLUSTER));
    };
    let inner = ask.door.names.inner(name);
    if name.kind == Kind::Topic && operation == Operation::Create && may(operation, &Resource::CLUSTER) {
        return Ok(true);
    }
    if !may(operation, &Resource::new(kind_of(name.kind), &inner)) {
        return Ok(false);
    }
    if name.kind != Kind::Subscription || operation != Operation::Read || broker.security.is_unlimited(&ask.identity) {
        return Ok(true);
    }
    // Reading a subscription is reading its topic.
    match broker.queues.get(&inner).await {
        Ok(queue) => Ok(queue.owns_topic || may(operation, &Resource::topic(queue.topic.as_str()))),
        Err(error) if error.kind == ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_of_the_service_are_known_for_their_kind() {
        let of = |text: &str, permission: &str| need_of(&Name::parse_any(text).expect("a name"), permission);
        let [topic, subscription] = ["projects/p/topics/orders", "projects/p/subscriptions/billing"];
        let [snapshot, schema] = ["projects/p/snapshots/before", "projects/p/schemas/order"];
        let on = |operation, name| Some(Need::on(operation, name));
        for (name, permission, wanted) in [
            (topic, "pubsub.topics.publish", on(Operation::Write, topic)),
            (topic, "pubsub.topics.update", on(Operation::AlterConfigs, topic)),
            (topic, "pubsub.topics.attachSubscription", on(Operation::Read, topic)),
            (subscription, "pubsub.subscriptions.consume", on(Operation::Read, subscription)),
            (subscription, "pubsub.subscriptions.update", on(Operation::Alter, subscription)),
            (snapshot, "pubsub.snapshots.list", Some(Need::Cluster(Operation::Describe))),
            (schema, "pubsub.schemas.commit", on(Operation::Alter, schema)),
            (topic, "pubsub.topics.setIamPolicy", Some(Need::Cluster(Operation::Alter))),
            (topic, "pubsub.topics.consume", None),
            (topic, "pubsub.subscriptions.consume", None),
            (topic, "pubsub.topicsxpublish", None),
            (topic, "pubsub.topics.", None),
            (topic, "storage.objects.get", None),
        ] {
            assert_eq!(of(name, permission), wanted, "{name} {permission}");
        }
    }
}
