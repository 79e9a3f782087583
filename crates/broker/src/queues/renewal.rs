//! Renewal of queues whose topic was deleted and created again.
//!
//! Such a queue begins again, with another id, over the topic that now has the name of the deleted one. If the topic is
//! created explicitly, the queue is renewed immediately. If it is created automatically, the queue is renewed on its
//! next use, and still receives all records published since the creation.

use std::sync::Arc;

use engine::Result;
use engine::queue::{QueueDefinition, QueueName};

use super::{QueueStart, check_users};
use crate::queues::Queues;
use crate::topic::Topic;
use crate::view::QueueCell;

impl Queues {
    /// Renews a queue whose topic was deleted: it begins again over the topic that now has the name. The persisted
    /// state of the old queue is ignored, since it belongs to another queue id. The caller holds `control`.
    pub(super) async fn renew(&self, cell: Arc<QueueCell>, start: QueueStart) -> Result<(Arc<QueueCell>, Arc<Topic>)> {
        let topic = self.core.topic(cell.topic.as_str())?;
        if topic.id == cell.topic_id {
            return Ok((cell, topic));
        }
        let before = cell.definition();
        let definition = QueueDefinition {
            id: self.next_id(self.core.now_ms()),
            topic_id: topic.id,
            owns_topic: before.owns_topic && topic.settings.drop_consumed,
            ..(*before).clone()
        };
        let (renewed, saved) = self.begin(definition, &topic, start).await?;
        // Receivers that wait for messages of the deleted topic are notified of the deletion.
        cell.wake_all();
        saved.wait().await?;
        Ok((renewed, topic))
    }

    /// Returns a user's queue with the topic that has its topic's name now, and renews the queue if the topic is a new
    /// one.
    pub(super) async fn renewed(&self, name: &str) -> Result<(Arc<QueueCell>, Arc<Topic>)> {
        // The group decides where a share group begins.
        check_users(name)?;
        let _control = self.hold().await?;
        let found = self.by_name.read().get(name).cloned();
        let cell = found.ok_or_else(|| self.no_such_queue(name))?;
        self.renew(cell, QueueStart::Earliest).await
    }

    /// Renews the queues over a topic that was created again. They receive all of its records.
    pub(crate) async fn follow_topic(&self, topic: &Topic) {
        // A task that restores the queues later finds the topic, too.
        if self.has_restored()
            && !self.left_over(topic).is_empty()
            && let Ok(_control) = self.hold().await
        {
            self.renew_over(topic).await;
        }
    }

    /// Renews the queues over a topic that was created again. The caller holds `control`.
    pub(super) async fn renew_over(&self, topic: &Topic) {
        for cell in self.left_over(topic) {
            if let Err(error) = self.renew(cell.clone(), QueueStart::Earliest).await {
                // The next use of the queue tries again and returns the error.
                tracing::warn!(queue = %cell.definition().name, %error, "a queue cannot be over its new topic");
            }
        }
    }

    /// Returns the queues of users over a deleted topic of this name.
    fn left_over(&self, topic: &Topic) -> Vec<Arc<QueueCell>> {
        let is_left = |(name, cell): &(&QueueName, &Arc<QueueCell>)| {
            cell.topic == topic.name && cell.topic_id != topic.id && !name.is_internal()
        };
        self.by_name.read().iter().filter(is_left).map(|(_, cell)| cell.clone()).collect()
    }
}
