//! The verbs of a topic, and their meaning for each view: create, grow, alter, delete, describe.
//!
//! Functions that carry out a verb in a view:
//!
//! | View | create | grow | alter | delete |
//! |---|---|---|---|---|
//! | queues | `Queues::follow_topic` | `Queues::check_growth`, `Queues::grow` | | `Queues::delete`, `delete_any` |
//! | groups | `Groups::tick` | `Groups::tick` | | `GroupTable::topic_removed`, then `Groups::tick` |
//! | transactions | | | | `TransactionTable::topic_forgotten` |
//! | streams | `StreamTable::topic_created` | `why_no_stream` | `why_no_stream` | `StreamTable::topic_removed` |
//! | caches | | | | `Caches::unlist_deleted_streams` |
//!
//! An empty cell means that the view has nothing that the verb changes. `Groups::tick` runs when the catalog has a new
//! version. `why_no_stream` is called at each use of a stream, and refuses a topic that has become unsuitable.
//! Describing reads the owner of a topic from the queues (`Queues::owner_of`) and nothing from other views.
//!
//! Views below this file create and remove topics, too: a queue or a stream has its own topic. So what groups,
//! transactions and streams forget with a topic is in their [`TopicObserver`](crate::core::TopicObserver), which
//! `Core` calls for every topic.
//!
//! New partitions are used once their growth is committed, since an acknowledged record in one must not be lost with
//! it. A deletion and an alteration take effect with their entry: what is published after the entry is after the
//! deletion in the log, and has the new settings. If the entry fails, the journal accepts nothing more, and the next
//! start has the topic as it was before.

use std::sync::Arc;

use engine::queue::QueueName;
use engine::{Error, ErrorKind, Result, SettingsChange, TopicName, TopicSettings};
use tokio::sync::Semaphore;

use crate::broker::Broker;
use crate::fetch::aside_in_turn;
use crate::topic::{Topic, TopicStatus, refuse_internal};

/// Turn of the long list of topics that is being collected.
static LONG_LISTS: Semaphore = Semaphore::const_new(1);

impl Broker {
    /// Creates a topic, and returns when it is durable. A topic that exists with the same settings is not an error.
    /// Settings that are not named are those of the broker.
    ///
    /// Queues over a deleted topic of this name read the new one from its beginning.
    pub async fn create_topic(&self, name: &str, settings: TopicSettings) -> Result<TopicStatus> {
        let act = async {
            settings.mesh.check_chosen()?;
            let topic = self.create_resolved(name, settings).await?;
            self.queues.follow_topic(&topic).await;
            Ok(self.status_of(&topic))
        };
        self.core.audited("create topic", name, act).await
    }

    /// Creates a copy of a topic of another site with these settings, and returns when it is durable. One that exists
    /// keeps its settings.
    pub async fn create_copy(&self, name: &TopicName, settings: TopicSettings) -> Result<TopicStatus> {
        let topic = self.create_copy_resolved(name, settings).await?;
        self.queues.follow_topic(&topic).await;
        Ok(self.status_of(&topic))
    }

    /// Grows a topic to this number of partitions, and returns when they are durable. The number can only rise:
    /// records stay where they are, and a key whose partition changes would lose its order. A topic that has this
    /// number already is not an error.
    ///
    /// Subscriptions to the topic or to a pattern that it matches, and its queues, read the new partitions from their
    /// first record.
    pub async fn grow_topic(&self, name: &str, partitions: u32) -> Result<TopicStatus> {
        let act = async {
            let held = self.queues.hold().await?;
            let check = |topic: &Topic| self.queues.check_growth(topic, partitions);
            let (topic, commit) = self.propose_growth(name, partitions, check)?;
            let core = self.core.clone();
            let queues = self.queues.clone();
            let apply = move || {
                let grown = core.apply_growth(&topic, partitions, |grown, had| queues.grow(grown, had));
                // No queue is created until all of them read the new partitions.
                drop(held);
                grown
            };
            if commit.is_done() {
                return Ok(self.status_of(&*apply()?));
            }
            // As a separate task it completes even if the caller leaves.
            let grown = tokio::spawn(async move { commit.wait().await.and_then(|()| apply()) });
            let grown = grown.await.unwrap_or_else(|gone| {
                Err(Error::new(
                    ErrorKind::ShuttingDown,
                    format!("the broker stopped before the topic was grown: {gone}"),
                ))
            });
            Ok(self.status_of(&*grown?))
        };
        self.core.audited("grow topic", name, act).await
    }

    /// Changes settings of a topic, and returns when they are durable. They apply to what is published from then on,
    /// to the next sweep of retention and to the next compaction.
    pub async fn alter_topic(&self, name: &str, change: SettingsChange) -> Result<TopicStatus> {
        let act = async {
            let (topic, commit) = self.alter(name, change)?;
            commit.wait().await?;
            Ok(self.status_of(&topic))
        };
        self.core.audited("alter topic", name, act).await
    }

    /// Deletes a topic with its records, and returns when that is durable. Its subscriptions end.
    ///
    /// The queue that a topic was created with is deleted with it, and so are the queues of share groups, the offsets
    /// of groups, the state of transactions and the key of a stream.
    pub async fn delete_topic(&self, name: &str) -> Result<()> {
        let act = async {
            refuse_internal(name)?;
            if let Some(queue) = self.queues.over(name).await?.into_iter().find(|queue| queue.owns_topic) {
                return self.queues.delete(queue.name.as_str()).await;
            }
            let shares = self.queues.of_share_groups().await?;
            for (_, queue) in shares.into_iter().filter(|(_, queue)| queue.topic.as_str() == name) {
                self.queues.delete_any(queue.name.as_str()).await?;
            }
            let commit = self.remove(name)?;
            self.caches.unlist_deleted_streams();
            commit.wait().await
        };
        self.core.audited("delete topic", name, act).await
    }

    /// Describes a topic.
    pub fn describe_topic(&self, name: &str) -> Result<TopicStatus> {
        Ok(self.status_of(&*self.topic(name)?))
    }

    /// Describes up to `count_max` topics whose names come after `after`, in the order of their names; inboxes are
    /// left out, and so are topics that are not shown. The second value is `true` if no topic follows.
    pub fn list_topics(
        &self,
        after: &str,
        count_max: usize,
        is_shown: impl Fn(&str) -> bool,
    ) -> (Vec<TopicStatus>, bool) {
        let (topics, is_last) = self.topics_after(after, count_max, is_shown);
        (topics.iter().map(|topic| self.status_of(topic)).collect(), is_last)
    }

    /// Describes topics as [`Broker::list_topics`] does. If the broker has many partitions, pages are collected one at
    /// a time on a thread that serves no connection, and further requests wait.
    pub async fn page_of_topics(
        self: &Arc<Self>,
        after: &str,
        count_max: usize,
        is_shown: impl Fn(&str) -> bool + Send + 'static,
    ) -> Result<(Vec<TopicStatus>, bool)> {
        if !self.joins_in_slices() {
            return Ok(self.list_topics(after, count_max, is_shown));
        }
        let broker = self.clone();
        let after = after.to_owned();
        aside_in_turn(&LONG_LISTS, move || Ok(broker.list_topics(&after, count_max, is_shown))).await
    }

    fn status_of(&self, topic: &Topic) -> TopicStatus {
        let owner: Option<QueueName> = self.queues.owner_of(topic);
        topic.status(owner)
    }
}
