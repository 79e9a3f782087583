//! What a broker answers, and what it sends unasked.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use engine::{Error, ErrorKind, Offset, PartitionId, RecordBatch, Result, TopicSettings};

use crate::caches::CacheResponse;
use crate::field::{Fields, get_flags, put_flags, put_str};
use crate::frame::{Frame, put_frame, put_frame_before};
use crate::groups::GroupResponse;
use crate::kind::response as kind;
use crate::negotiate::Features;
use crate::queues::QueueResponse;
use crate::security::SecurityResponse;
use crate::values::{get_error, get_settings, put_error, put_settings};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    Hello(HelloOk),
    Published(Published),
    Subscribed {
        subscription: u32,
        sources: Vec<SourceInfo>,
    },
    Unsubscribed,
    Fetched {
        start: Offset,
        end: Offset,
        batches: Vec<RecordBatch>,
    },
    TopicCreated(TopicInfo),
    TopicDeleted,
    TopicDescribed(TopicInfo),
    TopicGrown(TopicInfo),
    TopicAltered(TopicInfo),
    /// Where the partition begins now.
    RecordsDeleted {
        start: Offset,
    },
    Topics {
        topics: Vec<TopicInfo>,
        is_last: bool,
    },
    Stats(String),
    Pong,
    /// An identity that nobody was given before.
    Producer {
        id: i64,
        epoch: i16,
    },
    Group(GroupResponse),
    Security(SecurityResponse),
    Queue(QueueResponse),
    Cache(CacheResponse),
    Error(Error),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelloOk {
    pub version: u16,
    pub features: Features,
    pub body_bytes_max: u32,
    /// Publishes that the broker takes on one connection before the first is answered.
    pub publishes_in_flight_max: u32,
    /// Differs after every start of the broker: offsets of memory topics begin anew with it.
    pub instance: u64,
    pub server: String,
}

/// What an acknowledgement promises, in rising order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// In the broker's memory, in its place.
    Accepted = 1,
    /// Synced to disk, and on a majority where there is a cluster.
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

    pub fn name(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Committed => "committed",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    pub partition: PartitionId,
    pub base_offset: Offset,
    pub level: Level,
    /// Live subscribers and queue groups that the batch was handed to.
    pub receivers: u32,
    /// Partitions that the topic has: a publisher learns here that it has grown.
    pub partitions: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceInfo {
    pub topic: String,
    pub partition: PartitionId,
    /// The first offset that comes.
    pub start: Offset,
    /// The end of the log at that moment.
    pub end: Offset,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicInfo {
    pub topic: String,
    pub settings: TopicSettings,
    /// The queue that the topic belongs to; empty if it belongs to none.
    pub owner: String,
    pub partitions: Vec<PartitionInfo>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionInfo {
    pub start: Offset,
    pub end: Offset,
    pub bytes: u64,
    pub subscribers: u32,
}

/// What a broker sends without being asked each time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Push {
    /// Records. The topic is named only to subscriptions of a pattern.
    Deliver { subscription: u32, partition: PartitionId, topic: String, batch: Bytes },
    /// The records from `from` up to, not including, `to` do not come.
    Gap { subscription: u32, partition: PartitionId, topic: String, from: Offset, to: Offset },
    /// The subscription is over.
    Ended { subscription: u32, error: Error },
    /// The broker is about to close the connection.
    GoAway { error: Error },
}

impl Response {
    pub fn encode(&self, correlation: u32, buf: &mut BytesMut) {
        match self {
            Self::Hello(hello) => put_frame(buf, kind::HELLO_OK, correlation, |b| {
                b.put_u16(hello.version);
                b.put_u64(hello.features.0);
                b.put_u32(hello.body_bytes_max);
                b.put_u32(hello.publishes_in_flight_max);
                b.put_u64(hello.instance);
                put_str(b, &hello.server);
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
            Self::Producer { id, epoch } => put_frame(buf, kind::PRODUCER, correlation, |b| {
                b.put_i64(*id);
                b.put_i16(*epoch);
            }),
            Self::Group(response) => put_frame(buf, response.kind(), correlation, |b| response.put(b)),
            Self::Security(response) => put_frame(buf, response.kind(), correlation, |b| response.put(b)),
            Self::Queue(response) => put_frame(buf, response.kind(), correlation, |b| response.put(b)),
            Self::Cache(response) => put_frame(buf, response.kind(), correlation, |b| response.put(b)),
            Self::Error(error) => put_frame(buf, kind::ERROR, correlation, |b| put_error(b, error)),
        }
    }

    pub fn decode(frame: Frame) -> Result<Self> {
        let mut f = Fields::new(frame.body.freeze());
        let response = match frame.kind {
            kind::HELLO_OK => Self::Hello(HelloOk {
                version: f.u16()?,
                features: Features(f.u64()?),
                body_bytes_max: f.u32()?,
                publishes_in_flight_max: f.u32()?,
                instance: f.u64()?,
                server: f.str()?,
            }),
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
                let (start, end) = (f.u64()?, f.u64()?);
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
            kind::PRODUCER => Self::Producer { id: f.i64()?, epoch: f.i16()? },
            kind::GROUP_TURN..=kind::OFFSETS_RESET => Self::Group(GroupResponse::get(frame.kind, &mut f)?),
            kind::USER_PUT..=kind::ACLS => Self::Security(SecurityResponse::get(frame.kind, &mut f)?),
            kind::QUEUE_CREATED..=kind::REDRIVE_CANCELLED => Self::Queue(QueueResponse::get(frame.kind, &mut f)?),
            kind::CACHE_GOT..=kind::CACHE_FLUSHED | kind::CACHE_CREATED..=kind::CACHES => {
                Self::Cache(CacheResponse::get(frame.kind, &mut f)?)
            }
            kind::ERROR => Self::Error(get_error(&mut f)?),
            unknown => return Err(unknown_kind(unknown)),
        };
        f.end()?;
        Ok(response)
    }
}

impl Push {
    /// Whether a frame of this kind is a push rather than an answer.
    pub fn is_push(frame_kind: u8) -> bool {
        frame_kind & 0xc0 == 0x40
    }

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

    pub fn decode(frame: Frame) -> Result<Self> {
        let mut f = Fields::new(frame.body.freeze());
        let push = match frame.kind {
            kind::DELIVER => {
                let (subscription, partition, topic) = (f.u32()?, f.u32()?, f.str()?);
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

/// Writes a delivery up to its batch of `batch_bytes`, which has to follow.
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
    Error::new(ErrorKind::Unsupported, format!("answer kind {kind:#04x} is not known here"))
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
