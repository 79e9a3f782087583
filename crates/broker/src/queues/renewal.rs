//! Queues whose topic was deleted, and is created again.
//!
//! Such a queue begins anew, with another id, over the topic that has the name of its own now. Where topics are created
//! by name that happens at once; where they come by themselves, with the next use of the queue, which still finds all
//! that was published since.

use std::sync::Arc;

use engine::Result;
use engine::queue::{QueueDefinition, QueueName};

use super::{QueueCell, QueueStart, check_users};
use crate::broker::Broker;
use crate::timers::now_ms;
use crate::topics::Topic;

impl Broker {
    /// A queue whose topic was deleted begins anew over the one that has its name now. What was written down of the
    /// other counts for nothing, as that was of another queue. `control` is held.
    pub(super) async fn renew(&self, cell: Arc<QueueCell>, start: QueueStart) -> Result<(Arc<QueueCell>, Arc<Topic>)> {
        let topic = self.topic(cell.topic.as_str())?;
        if topic.id == cell.topic_id {
            return Ok((cell, topic));
        }
        let before = cell.definition();
        let definition = QueueDefinition {
            id: self.next_queue_id(now_ms()),
            topic_id: topic.id,
            owns_topic: before.owns_topic && topic.settings.drop_consumed,
            ..(*before).clone()
        };
        let (renewed, saved) = self.begin(definition, &topic, start).await?;
        // Whoever waits for messages of the topic of before learns that it is gone.
        cell.wake_all();
        saved.lasts().await?;
        Ok((renewed, topic))
    }

    /// A queue of a user over the topic that has the name of its own now, with that.
    pub(super) async fn renewed_queue(&self, name: &str) -> Result<(Arc<QueueCell>, Arc<Topic>)> {
        // Where a share group begins is for the group to say.
        check_users(name)?;
        let queues = self.queues_there();
        let _control = queues.control.lock().await;
        let found = queues.by_name.read().get(name).cloned();
        let cell = found.ok_or_else(|| queues.no_such_queue(name))?;
        self.renew(cell, QueueStart::Earliest).await
    }

    /// Queues over a topic that was created anew get all of it.
    pub(crate) async fn renew_queues_over(&self, topic: &Topic) {
        // Whoever finds the queues again finds the topic, too.
        if self.has_restored_queues() && !self.left_over(topic).is_empty() {
            let _control = self.queues_there().control.lock().await;
            self.renew_over(topic).await;
        }
    }

    /// The same with `control` held.
    pub(super) async fn renew_over(&self, topic: &Topic) {
        for cell in self.left_over(topic) {
            if let Err(error) = self.renew(cell.clone(), QueueStart::Earliest).await {
                // Whoever uses it tries again, and is told.
                tracing::warn!(queue = %cell.definition().name, %error, "a queue cannot be over its new topic");
            }
        }
    }

    /// Queues of users over a topic of this name that was another.
    fn left_over(&self, topic: &Topic) -> Vec<Arc<QueueCell>> {
        let is_left = |(name, cell): &(&QueueName, &Arc<QueueCell>)| {
            cell.topic == topic.name && cell.topic_id != topic.id && !name.is_internal()
        };
        self.queues_there().by_name.read().iter().filter(is_left).map(|(_, cell)| cell.clone()).collect()
    }
}
