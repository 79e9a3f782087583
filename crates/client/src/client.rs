//! The client: what a program holds, and where publishers, subscriptions and requests come from.

use std::sync::Arc;
use std::time::Duration;

use engine::{Acks, Offset, PartitionId, Record, Result, SettingsChange, TopicSettings};
use wire::{Request, Response, TopicInfo};

use crate::address::Address;
use crate::connection::{Connection, Dialer, Shape};
use crate::consumer::ConsumerBuilder;
use crate::link::unexpected;
use crate::pool::Pool;
use crate::publisher::{Publisher, PublisherBuilder, publish_once};
use crate::request::Requester;
use crate::settings::ClientSettings;
use crate::subscription::SubscriptionBuilder;
use wire::response::Published;

/// How long a close may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A client of one broker. Cloning it shares its connections.
#[derive(Clone)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub dialer: Arc<Dialer>,
    pub publish: Pool,
    pub events: Pool,
    pub caches: Pool,
    pub requester: Requester,
}

impl Client {
    /// Connects to `[scheme://]host[:port]` with default settings; without a scheme it is QUIC.
    pub async fn connect(address: &str) -> Result<Self> {
        Self::connect_with(Address::parse(address)?, ClientSettings::default()).await
    }

    pub async fn connect_with(address: Address, settings: ClientSettings) -> Result<Self> {
        let client = Self::lazy(address, settings);
        client.shared.publish.connection(0).await?;
        Ok(client)
    }

    /// A client that connects with its first request.
    pub fn lazy(address: Address, settings: ClientSettings) -> Self {
        Self::over(Arc::new(Dialer::new(address, settings)))
    }

    /// A client of the same broker with connections of its own.
    pub(crate) fn sibling(&self) -> Self {
        Self::over(self.shared.dialer.clone())
    }

    fn over(dialer: Arc<Dialer>) -> Self {
        let settings = &dialer.settings;
        let events = Shape {
            streams: 0,
            connection_receive: settings.event_conn_recv_window,
            stream_receive: settings.event_stream_recv_window,
        };
        let publish = Shape { streams: settings.pub_streams_per_conn.max(1), ..events };
        let caches = Shape {
            streams: settings.cache_streams_per_conn.max(1),
            connection_receive: settings.cache_conn_recv_window,
            stream_receive: settings.cache_stream_recv_window,
        };
        Self {
            shared: Arc::new(Shared {
                publish: Pool::new(dialer.clone(), settings.pub_conn_pool, publish),
                events: Pool::new(dialer.clone(), settings.event_conn_pool, events),
                caches: Pool::new(dialer.clone(), settings.cache_conn_pool, caches),
                requester: Requester::default(),
                dialer,
            }),
        }
    }

    /// Closes all connections and waits, at most a second, until the broker knows. A client that is just
    /// dropped is found out by its silence: over QUIC that takes six seconds.
    pub async fn close(self) {
        let close = async {
            self.shared.publish.close().await;
            self.shared.events.close().await;
            self.shared.caches.close().await;
        };
        if tokio::time::timeout(CLOSE_TIMEOUT, close).await.is_err() {
            tracing::debug!("the broker did not take note of the close in time");
        }
    }

    pub fn settings(&self) -> &ClientSettings {
        &self.shared.dialer.settings
    }

    /// Publishes one record and waits for its acknowledgement. For many, use a [`Publisher`].
    pub async fn publish(&self, topic: &str, record: Record) -> Result<Published> {
        publish_once(&self.shared, topic, record, Acks::Default).await
    }

    /// Begins a publisher: it gathers records into batches and keeps many on the way.
    pub fn publisher(&self, topic: &str) -> PublisherBuilder {
        Publisher::builder(self.clone(), topic)
    }

    /// Begins a subscription to a topic, or to a pattern: `orders.*`, `orders.>`.
    pub fn subscribe(&self, topic: &str) -> SubscriptionBuilder {
        SubscriptionBuilder::new(self.clone(), topic)
    }

    /// Begins a member of a consumer group: it reads its share of the group's topics, each record once in the group,
    /// and commits how far it is.
    pub fn consumer(&self, group: &str) -> ConsumerBuilder {
        ConsumerBuilder::new(self.clone(), group)
    }

    /// Publishes a record and waits for somebody's answer, at most this long. Nobody there to answer
    /// is an error at once.
    pub async fn request(&self, topic: &str, record: Record, timeout: Duration) -> Result<Record> {
        self.shared.requester.request(self, topic, record, timeout).await
    }

    /// Answers a request that came as a message.
    pub async fn reply(&self, request: &Record, answer: Record) -> Result<()> {
        crate::request::reply(self, request, answer).await
    }

    pub async fn create_topic(&self, topic: &str, settings: TopicSettings) -> Result<TopicInfo> {
        match self.call(&Request::TopicCreate { topic: topic.to_owned(), settings }).await? {
            Response::TopicCreated(info) => Ok(info),
            other => Err(unexpected(&other)),
        }
    }

    pub async fn delete_topic(&self, topic: &str) -> Result<()> {
        match self.call(&Request::TopicDelete { topic: topic.to_owned() }).await? {
            Response::TopicDeleted => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    pub async fn describe_topic(&self, topic: &str) -> Result<TopicInfo> {
        match self.call(&Request::TopicDescribe { topic: topic.to_owned() }).await? {
            Response::TopicDescribed(info) => Ok(info),
            other => Err(unexpected(&other)),
        }
    }

    /// Gives a topic so many partitions in all; they only grow. Publishers and subscriptions that are open take
    /// note by themselves. A key may come to another partition from then on.
    pub async fn grow_topic(&self, topic: &str, partitions: u32) -> Result<TopicInfo> {
        match self.call(&Request::TopicGrow { topic: topic.to_owned(), partitions }).await? {
            Response::TopicGrown(info) => Ok(info),
            other => Err(unexpected(&other)),
        }
    }

    /// Changes settings of a topic, and leaves those that are not named.
    pub async fn alter_topic(&self, topic: &str, change: SettingsChange) -> Result<TopicInfo> {
        match self.call(&Request::TopicAlter { topic: topic.to_owned(), change }).await? {
            Response::TopicAltered(info) => Ok(info),
            other => Err(unexpected(&other)),
        }
    }

    /// Removes the records of a partition before an offset for good, or all that are there with `Offset::MAX`. Returns
    /// where it begins then: what retention has removed already stays so.
    pub async fn delete_records(&self, topic: &str, partition: PartitionId, before: Offset) -> Result<Offset> {
        match self.call(&Request::RecordsDelete { topic: topic.to_owned(), partition, before }).await? {
            Response::RecordsDeleted { start } => Ok(start),
            other => Err(unexpected(&other)),
        }
    }

    /// All topics in the order of their names.
    pub async fn list_topics(&self) -> Result<Vec<TopicInfo>> {
        let mut found: Vec<TopicInfo> = Vec::new();
        loop {
            let after = found.last().map_or(String::new(), |topic| topic.topic.clone());
            match self.call(&Request::TopicList { after, count_max: 500 }).await? {
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

    /// The broker's metrics, as Prometheus reads them.
    pub async fn stats(&self) -> Result<String> {
        match self.call(&Request::Stats).await? {
            Response::Stats(text) => Ok(text),
            other => Err(unexpected(&other)),
        }
    }

    /// Asks the broker for a sign of life.
    pub async fn ping(&self) -> Result<()> {
        match self.call(&Request::Ping).await? {
            Response::Pong => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// The batches of a partition from an offset on, with the log's start and end. At the end of the log it
    /// waits this long for more.
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
        let connection = self.control().await?;
        match connection.control.request(&request, self.settings().request_timeout + wait).await? {
            Response::Fetched { start, end, batches } => Ok((start, end, batches)),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) async fn call(&self, request: &Request) -> Result<Response> {
        self.control().await?.control.request(request, self.settings().request_timeout).await
    }

    pub(crate) async fn control(&self) -> Result<Arc<Connection>> {
        self.shared.publish.connection(0).await
    }
}
