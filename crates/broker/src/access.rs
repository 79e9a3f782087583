//! Decisions about resources that only the views know: the topic behind a queue, and the cache behind an entry.

use engine::security::{Operation, Resource, ResourceKind};
use engine::{ErrorKind, Result, TopicName};

use crate::broker::Broker;
use crate::queues::Receive;
use crate::security::Identity;
use crate::view::Received;

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
            Ok(_) => Ok(()),
            // The call itself reports a queue that does not exist.
            Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Receives messages of a queue for a client that may read it, and fails as soon as it may not any more.
    pub async fn receive(&self, identity: &Identity, queue: &str, receive: &Receive) -> Result<Vec<Received>> {
        let check = || self.authorize_queue(identity, Operation::Read, queue);
        self.security.while_permitted(check, self.queues.receive(queue, receive)).await?
    }

    /// Checks that a client may create a queue over a topic, or over the one with the queue's name: if that exists
    /// already, the queue reads it.
    pub async fn authorize_queue_creation(&self, identity: &Identity, queue: &str, topic: Option<&str>) -> Result<()> {
        self.security.authorize(identity, Operation::Create, &Resource::queue(queue))?;
        let read = match topic {
            Some(topic) => topic,
            None if self.has_topic(queue) && self.queues.get(queue).await.is_err() => queue,
            None => return Ok(()),
        };
        self.security.authorize(identity, Operation::Read, &Resource::topic(read))
    }

    /// Checks that a client may have the messages of a queue moved to another: it takes them from the one, and sends
    /// them to the other. Without a name each goes to the queue that it came from, which the messages say.
    pub async fn authorize_redrive(&self, identity: &Identity, queue: &str, to: Option<&str>) -> Result<()> {
        self.authorize_queue(identity, Operation::Alter, queue).await?;
        self.authorize_queue(identity, Operation::Read, queue).await?;
        match to {
            Some(to) => self.authorize_queue(identity, Operation::Write, to).await,
            None => self.security.authorize(identity, Operation::Alter, &Resource::CLUSTER),
        }
    }

    /// Checks that a client may have failed messages published to a topic, which may be that of another queue. Without
    /// a name none are published.
    pub async fn authorize_dead_letters(&self, identity: &Identity, topic: &str) -> Result<()> {
        if topic.is_empty() || self.security.is_unlimited(identity) {
            return Ok(());
        }
        match self.queues.get(topic).await {
            Ok(queue) if queue.topic.as_str() == topic => self.authorize_queue(identity, Operation::Write, topic).await,
            _ => self.security.authorize(identity, Operation::Write, &Resource::topic(topic)),
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
        if self.security.is_unlimited(identity) {
            return Ok(());
        }
        if is_inbox(topic) {
            return self.security.check_valid(identity);
        }
        self.security.authorize(identity, Operation::Write, &Resource::topic(topic))?;
        if self.has_topic(topic) { Ok(()) } else { self.authorize_creation(identity, topic) }
    }

    /// Checks that a client may perform an operation on an entry of a cache.
    pub fn authorize_entry(&self, identity: &Identity, operation: Operation, cache: &str, key: &[u8]) -> Result<()> {
        if self.security.is_unlimited(identity) {
            return Ok(());
        }
        let name = entry_name(cache, key);
        self.security.authorize(identity, operation, &Resource::new(ResourceKind::Cache, &name))
    }

    /// Checks that a client may perform an operation on all entries of a cache whose keys begin with `prefix`.
    pub fn authorize_entries(
        &self,
        identity: &Identity,
        operation: Operation,
        cache: &str,
        prefix: &[u8],
    ) -> Result<()> {
        if self.security.is_unlimited(identity) {
            return Ok(());
        }
        let name = entry_name(cache, prefix);
        self.security.authorize(identity, operation, &Resource::all(ResourceKind::Cache, &name))
    }

    /// Returns `true` if a list shows this resource to the client.
    pub fn is_shown(&self, identity: &Identity, kind: ResourceKind, name: &str) -> bool {
        let shown = |resource: &Resource<'_>| self.security.allows(identity, Operation::Describe, resource);
        match kind {
            ResourceKind::Cache => shown(&Resource::all(kind, &entry_name(name, b""))),
            _ => shown(&Resource::new(kind, name)),
        }
    }
}

/// Returns the name of an entry as a resource.
fn entry_name(cache: &str, key: &[u8]) -> Vec<u8> {
    [cache.as_bytes(), b"/", key].concat()
}

fn is_inbox(topic: &str) -> bool {
    TopicName::parse(topic).is_ok_and(|topic| topic.is_inbox())
}
