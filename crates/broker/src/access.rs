//! Decisions about resources that only the views know: the topic behind a queue, and the cache behind an entry.

use engine::security::{Operation, Resource, ResourceKind};
use engine::{Result, TopicName};

use crate::broker::Broker;
use crate::security::Identity;

impl Broker {
    /// Checks that a client may perform an operation on a queue. A queue over a topic that it does not own needs the
    /// same permission on the topic: reading one reads the other.
    pub async fn authorize_queue(&self, identity: &Identity, operation: Operation, queue: &str) -> Result<()> {
        self.security.authorize(identity, operation, &Resource::queue(queue))?;
        if self.security.is_unlimited(identity) || !matches!(operation, Operation::Read | Operation::Write) {
            return Ok(());
        }
        match self.queues.get(queue).await {
            Ok(definition) if !definition.owns_topic => {
                self.security.authorize(identity, operation, &Resource::topic(definition.topic.as_str()))
            }
            // The call itself reports a queue that does not exist.
            _ => Ok(()),
        }
    }

    /// Checks that a client may have messages moved to a queue. Without a name each goes to the queue that it came
    /// from, which the messages say.
    pub fn authorize_redrive(&self, identity: &Identity, to: Option<&str>) -> Result<()> {
        match to {
            Some(to) => self.security.authorize(identity, Operation::Write, &Resource::queue(to)),
            None => self.security.authorize(identity, Operation::Alter, &Resource::CLUSTER),
        }
    }

    /// Checks that a client may create a topic: by a permission for the topic, or for the broker as a whole, as in
    /// Kafka.
    pub fn authorize_creation(&self, identity: &Identity, topic: &str) -> Result<()> {
        if self.security.allows(identity, Operation::Create, &Resource::CLUSTER) {
            return Ok(());
        }
        self.security.authorize(identity, Operation::Create, &Resource::topic(topic))
    }

    /// Checks that a client may publish to a topic, and create it if it does not exist. An inbox has a name that cannot
    /// be guessed, so a client that knows it may reply to it.
    pub fn authorize_publish(&self, identity: &Identity, topic: &str) -> Result<()> {
        if self.security.is_unlimited(identity) || is_inbox(topic) {
            return Ok(());
        }
        self.security.authorize(identity, Operation::Write, &Resource::topic(topic))?;
        if self.has_topic(topic) { Ok(()) } else { self.authorize_creation(identity, topic) }
    }

    /// Checks that a client may perform an operation on an entry of a cache. With `*` as the key it stands for all
    /// entries, and with a prefix and `*` for those with the prefix.
    pub fn authorize_entry(&self, identity: &Identity, operation: Operation, cache: &str, key: &[u8]) -> Result<()> {
        if self.security.is_unlimited(identity) {
            return Ok(());
        }
        let name = [cache.as_bytes(), b"/", key].concat();
        self.security.authorize(identity, operation, &Resource::new(ResourceKind::Cache, &name))
    }

    /// Returns `true` if a list shows this resource to the client.
    pub fn is_shown(&self, identity: &Identity, kind: ResourceKind, name: &str) -> bool {
        let shown = |name: &[u8]| self.security.allows(identity, Operation::Describe, &Resource::new(kind, name));
        if kind == ResourceKind::Cache { shown(&[name.as_bytes(), b"/*"].concat()) } else { shown(name.as_bytes()) }
    }
}

fn is_inbox(topic: &str) -> bool {
    TopicName::parse(topic).is_ok_and(|topic| topic.is_inbox())
}
