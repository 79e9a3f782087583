//! Permissions that each call requires. A subscription is a queue, and so is a snapshot.

use engine::security::{Operation, Resource, ResourceKind};

use super::errors::Result;
use super::map::{Ask, Door};
use super::names::{Kind, Name};

/// What a call requires.
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
    for need in needs {
        let (operation, name) = match need {
            Need::Cluster(operation) => {
                broker.security.authorize(&ask.identity, *operation, &Resource::CLUSTER)?;
                continue;
            }
            // The call itself refuses a name that is not valid.
            Need::On(operation, name) => match Name::parse_any(name) {
                Ok(name) => (*operation, name),
                Err(_) => continue,
            },
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
