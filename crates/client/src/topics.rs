//! Administration of topics: their settings, partitions and batches.

use std::time::Duration;

use engine::{ErrorKind, Offset, PartitionId, Result, SettingsChange, Storage, TopicSettings};
use wire::{Request, Response, TopicInfo};

use crate::client::Client;
use crate::link::unexpected;
use crate::session::Session;

impl Client {
    /// Creates a topic with these settings. Succeeds if the topic already exists with the same settings.
    pub async fn create_topic(&self, topic: &str, settings: TopicSettings) -> Result<TopicInfo> {
        match self.session.call(&Request::TopicCreate { topic: topic.to_owned(), settings }).await? {
            Response::TopicCreated(info) => Ok(info),
            other => Err(unexpected(&other)),
        }
    }

    /// Deletes a topic with all its records.
    pub async fn delete_topic(&self, topic: &str) -> Result<()> {
        match self.session.call(&Request::TopicDelete { topic: topic.to_owned() }).await? {
            Response::TopicDeleted => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Returns the settings of a topic and the offsets of its partitions.
    pub async fn describe_topic(&self, topic: &str) -> Result<TopicInfo> {
        describe_topic(&self.session, topic).await
    }

    /// Raises the number of partitions of a topic to `partitions`; it cannot shrink. Open publishers and subscriptions
    /// notice that by themselves. A key may be assigned to another partition from then on.
    pub async fn grow_topic(&self, topic: &str, partitions: u32) -> Result<TopicInfo> {
        match self.session.call(&Request::TopicGrow { topic: topic.to_owned(), partitions }).await? {
            Response::TopicGrown(info) => Ok(info),
            other => Err(unexpected(&other)),
        }
    }

    /// Changes settings of a topic. Settings that `change` does not name keep their values.
    pub async fn alter_topic(&self, topic: &str, change: SettingsChange) -> Result<TopicInfo> {
        match self.session.call(&Request::TopicAlter { topic: topic.to_owned(), change }).await? {
            Response::TopicAltered(info) => Ok(info),
            other => Err(unexpected(&other)),
        }
    }

    /// Permanently deletes the records of a partition before an offset; `Offset::MAX` deletes all existing records.
    /// Returns the resulting start of the partition, which may be higher than `before` if retention has already removed
    /// more.
    pub async fn delete_records(&self, topic: &str, partition: PartitionId, before: Offset) -> Result<Offset> {
        match self.session.call(&Request::RecordsDelete { topic: topic.to_owned(), partition, before }).await? {
            Response::RecordsDeleted { start } => Ok(start),
            other => Err(unexpected(&other)),
        }
    }

    /// Returns all topics in the order of their names.
    pub async fn list_topics(&self) -> Result<Vec<TopicInfo>> {
        let mut found: Vec<TopicInfo> = Vec::new();
        loop {
            let after = found.last().map_or(String::new(), |topic| topic.topic.clone());
            match self.session.call(&Request::TopicList { after, count_max: 500 }).await? {
                Response::Topics { topics, is_last } => {
                    found.extend(topics);
                    if is_last {
                        return Ok(found);
                    }
                }
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// Returns the batches of a partition from an offset on, with the log's start and end. At the end of the log, the
    /// call waits up to `wait` for more. One call returns up to 4 MiB, or one larger batch.
    pub async fn fetch(
        &self,
        topic: &str,
        partition: u32,
        offset: u64,
        wait: Duration,
    ) -> Result<(u64, u64, Vec<engine::RecordBatch>)> {
        let request = Request::Fetch {
            topic: topic.to_owned(),
            partition,
            offset,
            bytes_max: 4 << 20,
            wait_ms: u32::try_from(wait.as_millis()).unwrap_or(u32::MAX),
        };
        match self.session.call_within(&request, self.settings().request_timeout + wait).await? {
            Response::Fetched { start, end, batches } => Ok((start, end, batches)),
            other => Err(unexpected(&other)),
        }
    }
}

/// Returns `true` if a topic and its offsets survive a restart of the broker.
pub(crate) async fn is_kept(session: &Session, topic: &str) -> Result<bool> {
    match describe_topic(session, topic).await {
        Ok(topic) => Ok(topic.settings.storage != Storage::Memory),
        Err(error) if error.kind == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

pub(crate) async fn describe_topic(session: &Session, topic: &str) -> Result<TopicInfo> {
    match session.call(&Request::TopicDescribe { topic: topic.to_owned() }).await? {
        Response::TopicDescribed(info) => Ok(info),
        other => Err(unexpected(&other)),
    }
}
