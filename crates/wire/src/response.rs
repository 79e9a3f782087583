//! Answers and pushes of a broker.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use engine::{Error, ErrorKind, Offset, PartitionId, RecordBatch, Result, TopicSettings};

use crate::backups::BackupResponse;
use crate::caches::CacheResponse;
use crate::cluster::Cluster;
use crate::connections::ConnectionResponse;
use crate::field::{Fields, get_flags, get_option, put_flags, put_option, put_str};
use crate::frame::{Frame, put_frame, put_frame_before};
use crate::groups::GroupResponse;
use crate::kind::response as kind;
use crate::mesh::MeshResponse;
use crate::negotiate::Features;
use crate::nodes::ClusterResponse;
use crate::queues::QueueResponse;
use crate::security::SecurityResponse;
use crate::values::{get_error, get_settings, put_error, put_settings};

/// Answer of a broker, with the fields of its body.
#[derive(Clone, Debug, PartialEq)]
pub enum Response {
    /// Answers [`Request::Hello`](crate::Request::Hello).
    Hello(HelloOk),
    /// Acknowledges [`Request::Publish`](crate::Request::Publish).
    Published(Published),
    /// Answers [`Request::Subscribe`](crate::Request::Subscribe).
    Subscribed {
        /// Number of the subscription that the client chose.
        subscription: u32,
        /// Partitions that the subscription reads; for a pattern those that match now.
        sources: Vec<SourceInfo>,
    },
    /// Answers [`Request::Unsubscribe`](crate::Request::Unsubscribe).
    Unsubscribed,
    /// Answers [`Request::Fetch`](crate::Request::Fetch).
    Fetched {
        /// Offset at which the log begins.
        start: Offset,
        /// Offset at which the log ends.
        end: Offset,
        /// Batches in the order of their offsets; the first may begin before the requested offset.
        batches: Vec<RecordBatch>,
    },
    /// Answers [`Request::TopicCreate`](crate::Request::TopicCreate).
    TopicCreated(TopicInfo),
    /// Answers [`Request::TopicDelete`](crate::Request::TopicDelete).
    TopicDeleted,
    /// Answers [`Request::TopicDescribe`](crate::Request::TopicDescribe).
    TopicDescribed(TopicInfo),
    /// Answers [`Request::TopicGrow`](crate::Request::TopicGrow).
    TopicGrown(TopicInfo),
    /// Answers [`Request::TopicAlter`](crate::Request::TopicAlter).
    TopicAltered(TopicInfo),
    /// Answers [`Request::RecordsDelete`](crate::Request::RecordsDelete).
    RecordsDeleted {
        /// Offset at which the partition begins now.
        start: Offset,
    },
    /// Answers [`Request::TopicList`](crate::Request::TopicList).
    Topics {
        /// Topics in the order of their names.
        topics: Vec<TopicInfo>,
        /// `true` if no topic follows the last one.
        is_last: bool,
    },
    /// Answers [`Request::Stats`](crate::Request::Stats).
    Stats(String),
    /// Answers [`Request::Ping`](crate::Request::Ping).
    Pong,
    /// Answers [`Request::Login`](crate::Request::Login).
    Login {
        /// `true` if the client is logged in; `false` if the mechanism needs another message.
        is_done: bool,
        /// Message of the mechanism.
        message: Vec<u8>,
    },
    /// Identity that no other publisher has. Answers [`Request::InitProducer`](crate::Request::InitProducer).
    Producer {
        /// Id of the producer.
        id: i64,
        /// Epoch of the producer.
        epoch: i16,
    },
    /// Answer about consumer groups.
    Group(GroupResponse),
    /// Answer about users and access control entries.
    Security(SecurityResponse),
    /// Answer about queues.
    Queue(QueueResponse),
    /// Answer about caches.
    Cache(CacheResponse),
    /// Answer about the nodes of a cluster.
    Cluster(ClusterResponse),
    /// Answer about the mesh of sites.
    Mesh(MeshResponse),
    /// Answer about a backup.
    Backup(BackupResponse),
    /// Answer about open connections of clients.
    Connection(ConnectionResponse),
    /// Error of a request; with correlation id 0 the last frame of a stream.
    Error(Error),
}

/// Properties of the connection and of the broker, after a hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelloOk {
    /// Version of the protocol on this connection.
    pub version: u16,
    /// Features on this connection.
    pub features: Features,
    /// Maximum bytes of a body that the broker accepts.
    pub body_bytes_max: u32,
    /// Maximum number of unanswered publishes that the broker accepts on one connection.
    pub publishes_in_flight_max: u32,
    /// Number that differs after each start of the broker, at which the offsets of topics in memory begin again.
    pub instance: u64,
    /// Name and version of the broker.
    pub server: String,
    /// Cluster that the broker belongs to. Only a connection with [`Features::CLUSTER`] can name it.
    pub cluster: Option<Cluster>,
}

/// Guarantee of an acknowledgement, in rising order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Batch is in the broker's memory, with its offset.
    Accepted = 1,
    /// Disk has confirmed the batch: it survives a killed broker and a power cut.
    Committed = 2,
}

impl Level {
    fn from_code(code: u8) -> Result<Self> {
        match code {
            1 => Ok(Self::Accepted),
            2 => Ok(Self::Committed),
            other => Err(Error::malformed(format!("an acknowledgement level is 1 or 2, not {other}"))),
        }
    }

    /// Returns the name for display: `accepted` or `committed`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Committed => "committed",
        }
    }
}

/// Acknowledgement of one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// Partition that has the batch.
    pub partition: PartitionId,
    /// Offset of the first record.
    pub base_offset: Offset,
    /// Guarantee that the acknowledgement gives.
    pub level: Level,
    /// Number of subscriptions and queue groups that read the partition at that moment; 0 for a duplicate batch.
    pub receivers: u32,
    /// Number of partitions of the topic, so that a publisher notices its growth.
    pub partitions: u32,
}

/// Partition that a subscription reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceInfo {
    /// Name of the topic.
    pub topic: String,
    /// Number of the partition.
    pub partition: PartitionId,
    /// Offset of the first record that is delivered.
    pub start: Offset,
    /// Offset at which the log ended when the subscription began.
    pub end: Offset,
}

/// Description of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicInfo {
    /// Name of the topic.
    pub topic: String,
    /// Settings of the topic.
    pub settings: TopicSettings,
    /// Queue that owns the topic; empty if none does.
    pub owner: String,
    /// Partitions in the order of their numbers.
    pub partitions: Vec<PartitionInfo>,
}

/// Extent of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionInfo {
    /// Offset of the oldest record.
    pub start: Offset,
    /// Offset after the newest record.
    pub end: Offset,
    /// Total bytes of all batches.
    pub bytes: u64,
    /// Number of live subscribers.
    pub subscribers: u32,
}

/// Frame that a broker sends without a request for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Push {
    /// Batch for a subscription.
    Deliver {
        /// Number of the subscription.
        subscription: u32,
        /// Partition that has the batch.
        partition: PartitionId,
        /// Topic that has the batch, for subscriptions of a pattern; otherwise empty.
        topic: String,
        /// Bytes of one record batch, not yet checked.
        batch: Bytes,
    },
    /// Records that the subscription does not receive.
    Gap {
        /// Number of the subscription.
        subscription: u32,
        /// Partition with the gap.
        partition: PartitionId,
        /// Topic with the gap, for subscriptions of a pattern; otherwise empty.
        topic: String,
        /// Offset of the first missing record.
        from: Offset,
        /// Offset after the last missing record.
        to: Offset,
    },
    /// End of a subscription.
    Ended {
        /// Number of the subscription.
        subscription: u32,
        /// Reason of the end.
        error: Error,
    },
    /// Announcement that the broker is about to close the connection.
    GoAway {
        /// Reason of the close.
        error: Error,
    },
}

impl Response {
    /// Appends the answer as one frame.
    pub fn encode(&self, correlation: u32, buf: &mut BytesMut) {
        match self {
            Self::Hello(hello) => put_frame(buf, kind::HELLO_OK, correlation, |b| {
                b.put_u16(hello.version);
                b.put_u64(hello.features.0);
                b.put_u32(hello.body_bytes_max);
                b.put_u32(hello.publishes_in_flight_max);
                b.put_u64(hello.instance);
                put_str(b, &hello.server);
                if hello.features.contains(Features::CLUSTER) {
                    put_option(b, hello.cluster.as_ref(), |b, cluster| cluster.put(b));
                }
            }),
            Self::Published(published) => put_frame(buf, kind::PUBLISHED, correlation, |b| {
                b.put_u32(published.partition);
                b.put_u64(published.base_offset);
                b.put_u8(published.level as u8);
                b.put_u32(published.receivers);
                b.put_u32(published.partitions);
            }),
            Self::Subscribed { subscription, sources } => put_frame(buf, kind::SUBSCRIBED, correlation, |b| {
                b.put_u32(*subscription);
                b.put_u32(sources.len() as u32);
                for source in sources {
                    put_str(b, &source.topic);
                    b.put_u32(source.partition);
                    b.put_u64(source.start);
                    b.put_u64(source.end);
                }
            }),
            Self::Unsubscribed => put_frame(buf, kind::UNSUBSCRIBED, correlation, |_| {}),
            Self::Fetched { start, end, batches } => put_frame(buf, kind::FETCHED, correlation, |b| {
                b.put_u64(*start);
                b.put_u64(*end);
                b.put_u32(batches.len() as u32);
                for batch in batches {
                    b.put_u32(batch.len() as u32);
                    b.put_slice(batch.bytes());
                }
            }),
            Self::TopicCreated(info) => put_frame(buf, kind::TOPIC_CREATED, correlation, |b| put_topic(b, info)),
            Self::TopicDeleted => put_frame(buf, kind::TOPIC_DELETED, correlation, |_| {}),
            Self::TopicDescribed(info) => put_frame(buf, kind::TOPIC_DESCRIBED, correlation, |b| put_topic(b, info)),
            Self::TopicGrown(info) => put_frame(buf, kind::TOPIC_GROWN, correlation, |b| put_topic(b, info)),
            Self::TopicAltered(info) => put_frame(buf, kind::TOPIC_ALTERED, correlation, |b| put_topic(b, info)),
            Self::RecordsDeleted { start } => put_frame(buf, kind::RECORDS_DELETED, correlation, |b| b.put_u64(*start)),
            Self::Topics { topics, is_last } => put_frame(buf, kind::TOPICS, correlation, |b| {
                b.put_u8(u8::from(*is_last));
                b.put_u32(topics.len() as u32);
                for topic in topics {
                    put_topic(b, topic);
                }
            }),
            Self::Stats(text) => put_frame(buf, kind::STATS, correlation, |b| b.put_slice(text.as_bytes())),
            Self::Pong => put_frame(buf, kind::PONG, correlation, |_| {}),
            Self::Login { is_done, message } => put_frame(buf, kind::LOGIN, correlation, |b| {
                b.put_u8(u8::from(*is_done));
                b.put_slice(message);
            }),
            Self::Producer { id, epoch } => put_frame(buf, kind::PRODUCER, correlation, |b| {
                b.put_i64(*id);
                b.put_i16(*epoch);
            }),
            Self::Group(response) => put_frame(buf, response.kind(), correlation, |b| response.put(b)),
            Self::Security(response) => put_frame(buf, response.kind(), correlation, |b| response.put(b)),
            Self::Queue(response) => put_frame(buf, response.kind(), correlation, |b| response.put(b)),
            Self::Cache(response) => put_frame(buf, response.kind(), correlation, |b| response.put(b)),
            Self::Cluster(response) => put_frame(buf, kind::CLUSTER, correlation, |b| response.put(b)),
            Self::Mesh(response) => put_frame(buf, kind::MESH, correlation, |b| response.put(b)),
            Self::Backup(response) => put_frame(buf, kind::BACKUP, correlation, |b| response.put(b)),
            Self::Connection(response) => put_frame(buf, kind::CONNECTION, correlation, |b| response.put(b)),
            Self::Error(error) => put_frame(buf, kind::ERROR, correlation, |b| put_error(b, error)),
        }
    }

    /// Reads an answer from its frame. An unknown kind is `unsupported`, a wrong body is `malformed`.
    pub fn decode(frame: Frame) -> Result<Self> {
        let mut f = Fields::new(frame.body.freeze());
        let response = match frame.kind {
            kind::HELLO_OK => Self::Hello(get_hello(&mut f)?),
            kind::PUBLISHED => Self::Published(Published {
                partition: f.u32()?,
                base_offset: f.u64()?,
                level: Level::from_code(f.u8()?)?,
                receivers: f.u32()?,
                partitions: f.u32()?,
            }),
            kind::SUBSCRIBED => {
                let subscription = f.u32()?;
                let count = f.count(22)?;
                let sources = (0..count).map(|_| get_source(&mut f)).collect::<Result<_>>()?;
                Self::Subscribed { subscription, sources }
            }
            kind::UNSUBSCRIBED => Self::Unsubscribed,
            kind::FETCHED => {
                let start = f.u64()?;
                let end = f.u64()?;
                let count = f.count(4)?;
                let batches = (0..count).map(|_| get_batch(&mut f)).collect::<Result<_>>()?;
                Self::Fetched { start, end, batches }
            }
            kind::TOPIC_CREATED => Self::TopicCreated(get_topic(&mut f)?),
            kind::TOPIC_DELETED => Self::TopicDeleted,
            kind::TOPIC_DESCRIBED => Self::TopicDescribed(get_topic(&mut f)?),
            kind::TOPIC_GROWN => Self::TopicGrown(get_topic(&mut f)?),
            kind::TOPIC_ALTERED => Self::TopicAltered(get_topic(&mut f)?),
            kind::RECORDS_DELETED => Self::RecordsDeleted { start: f.u64()? },
            kind::TOPICS => {
                let is_last = f.u8()? != 0;
                let count = f.count(26)?;
                Self::Topics { topics: (0..count).map(|_| get_topic(&mut f)).collect::<Result<_>>()?, is_last }
            }
            kind::STATS => {
                let text = String::from_utf8(f.rest().into())
                    .map_err(|e| Error::malformed(format!("the statistics are not UTF-8: {e}")))?;
                return Ok(Self::Stats(text));
            }
            kind::PONG => Self::Pong,
            kind::LOGIN => {
                let is_done = f.bool()?;
                return Ok(Self::Login { is_done, message: f.rest().into() });
            }
            kind::PRODUCER => Self::Producer { id: f.i64()?, epoch: f.i16()? },
            kind::GROUP_TURN..=kind::OFFSETS_RESET => Self::Group(GroupResponse::get(frame.kind, &mut f)?),
            kind::USER_PUT..=kind::ACLS | kind::MEMBER_SET..=kind::SECURITY => {
                Self::Security(SecurityResponse::get(frame.kind, &mut f)?)
            }
            kind::QUEUE_CREATED..=kind::REDRIVE_CANCELLED => Self::Queue(QueueResponse::get(frame.kind, &mut f)?),
            kind::CACHE_GOT..=kind::CACHE_FLUSHED | kind::CACHE_CREATED..=kind::CACHES => {
                Self::Cache(CacheResponse::get(frame.kind, &mut f)?)
            }
            kind::CLUSTER => Self::Cluster(ClusterResponse::get(&mut f)?),
            kind::MESH => Self::Mesh(MeshResponse::get(&mut f)?),
            kind::BACKUP => Self::Backup(BackupResponse::get(&mut f)?),
            kind::CONNECTION => Self::Connection(ConnectionResponse::get(&mut f)?),
            kind::ERROR => Self::Error(get_error(&mut f)?),
            unknown => return Err(unknown_kind(unknown)),
        };
        f.end()?;
        Ok(response)
    }
}

impl Push {
    /// Returns `true` if a frame of this kind is a push rather than an answer.
    pub fn is_push(frame_kind: u8) -> bool {
        frame_kind & 0xe0 == 0x40
    }

    /// Appends the push as one frame.
    pub fn encode(&self, buf: &mut BytesMut) {
        match self {
            Self::Deliver { subscription, partition, topic, batch } => {
                put_deliver_head(buf, *subscription, *partition, topic, batch.len());
                buf.put_slice(batch);
            }
            Self::Gap { subscription, partition, topic, from, to } => put_frame(buf, kind::GAP, 0, |b| {
                b.put_u32(*subscription);
                b.put_u32(*partition);
                put_str(b, topic);
                b.put_u64(*from);
                b.put_u64(*to);
            }),
            Self::Ended { subscription, error } => put_frame(buf, kind::ENDED, 0, |b| {
                b.put_u32(*subscription);
                put_error(b, error);
            }),
            Self::GoAway { error } => put_frame(buf, kind::GO_AWAY, 0, |b| put_error(b, error)),
        }
    }

    /// Reads a push from its frame. An unknown kind is `unsupported`, a wrong body is `malformed`.
    pub fn decode(frame: Frame) -> Result<Self> {
        let mut f = Fields::new(frame.body.freeze());
        let push = match frame.kind {
            kind::DELIVER => {
                let subscription = f.u32()?;
                let partition = f.u32()?;
                let topic = f.str()?;
                return Ok(Self::Deliver { subscription, partition, topic, batch: f.rest() });
            }
            kind::GAP => {
                Self::Gap { subscription: f.u32()?, partition: f.u32()?, topic: f.str()?, from: f.u64()?, to: f.u64()? }
            }
            kind::ENDED => Self::Ended { subscription: f.u32()?, error: get_error(&mut f)? },
            kind::GO_AWAY => Self::GoAway { error: get_error(&mut f)? },
            unknown => return Err(unknown_kind(unknown)),
        };
        f.end()?;
        Ok(push)
    }
}

/// Writes a delivery without its batch of `batch_bytes` bytes, which has to follow.
pub fn put_deliver_head(
    buf: &mut BytesMut,
    subscription: u32,
    partition: PartitionId,
    topic: &str,
    batch_bytes: usize,
) {
    put_frame_before(buf, kind::DELIVER, 0, batch_bytes, |b| {
        b.put_u32(subscription);
        b.put_u32(partition);
        put_str(b, topic);
    });
}

fn unknown_kind(kind: u8) -> Error {
    Error::new(ErrorKind::Unsupported, format!("unknown response kind {kind:#04x}"))
}

fn get_hello<B: Buf>(f: &mut Fields<B>) -> Result<HelloOk> {
    let hello = HelloOk {
        version: f.u16()?,
        features: Features(f.u64()?),
        body_bytes_max: f.u32()?,
        publishes_in_flight_max: f.u32()?,
        instance: f.u64()?,
        server: f.str()?,
        cluster: None,
    };
    let names_cluster = hello.features.contains(Features::CLUSTER);
    let cluster = if names_cluster { get_option(f, Cluster::get)? } else { None };
    Ok(HelloOk { cluster, ..hello })
}

fn get_source<B: Buf>(f: &mut Fields<B>) -> Result<SourceInfo> {
    Ok(SourceInfo { topic: f.str()?, partition: f.u32()?, start: f.u64()?, end: f.u64()? })
}

fn get_batch<B: Buf>(f: &mut Fields<B>) -> Result<RecordBatch> {
    let length = f.u32()? as usize;
    RecordBatch::parse(f.bytes(length)?)
}

fn put_topic(b: &mut BytesMut, info: &TopicInfo) {
    put_str(b, &info.topic);
    put_settings(b, &info.settings);
    put_flags(b, &[info.settings.drop_consumed, info.settings.keeps_unacked]);
    put_str(b, &info.owner);
    b.put_u32(info.partitions.len() as u32);
    for partition in &info.partitions {
        b.put_u64(partition.start);
        b.put_u64(partition.end);
        b.put_u64(partition.bytes);
        b.put_u32(partition.subscribers);
    }
}

fn get_topic<B: Buf>(f: &mut Fields<B>) -> Result<TopicInfo> {
    let topic = f.str()?;
    let settings = get_settings(f)?;
    let [drop_consumed, keeps_unacked] = get_flags(f)?;
    let settings = TopicSettings { drop_consumed, keeps_unacked, ..settings };
    let owner = f.str()?;
    let count = f.count(28)?;
    let partitions = (0..count)
        .map(|_| Ok(PartitionInfo { start: f.u64()?, end: f.u64()?, bytes: f.u64()?, subscribers: f.u32()? }))
        .collect::<Result<_>>()?;
    Ok(TopicInfo { topic, settings, owner, partitions })
}
