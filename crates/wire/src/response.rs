//! What a broker answers, and what it sends unasked.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use engine::{Error, ErrorKind, Offset, PartitionId, RecordBatch, Result, RetryClass, TopicSettings};

use crate::caches::CacheResponse;
use crate::field::{Fields, put_str};
use crate::frame::{Frame, put_frame, put_frame_before};
use crate::groups::GroupResponse;
use crate::negotiate::Features;
use crate::queues::QueueResponse;
use crate::request::{get_flags, get_settings, put_flags, put_settings};
use crate::security::SecurityResponse;

/// The kinds of frames that brokers send.
pub mod kind {
    use crate::request::kind as request;

    /// Set in the kind of an answer.
    pub const ANSWER: u8 = 0x80;
    pub const HELLO_OK: u8 = ANSWER | request::HELLO;
    pub const PUBLISHED: u8 = ANSWER | request::PUBLISH;
    pub const SUBSCRIBED: u8 = ANSWER | request::SUBSCRIBE;
    pub const UNSUBSCRIBED: u8 = ANSWER | request::UNSUBSCRIBE;
    pub const FETCHED: u8 = ANSWER | request::FETCH;
    pub const TOPIC_CREATED: u8 = ANSWER | request::TOPIC_CREATE;
    pub const TOPIC_DELETED: u8 = ANSWER | request::TOPIC_DELETE;
    pub const TOPIC_DESCRIBED: u8 = ANSWER | request::TOPIC_DESCRIBE;
    pub const TOPICS: u8 = ANSWER | request::TOPIC_LIST;
    pub const STATS: u8 = ANSWER | request::STATS;
    pub const PONG: u8 = ANSWER | request::PING;
    pub const PRODUCER: u8 = ANSWER | request::INIT_PRODUCER;
    pub const TOPIC_GROWN: u8 = ANSWER | request::TOPIC_GROW;
    pub const RECORDS_DELETED: u8 = ANSWER | request::RECORDS_DELETE;
    pub const GROUP_TURN: u8 = ANSWER | request::GROUP_HEARTBEAT;
    pub const OFFSETS_COMMITTED: u8 = ANSWER | request::OFFSET_COMMIT;
    pub const OFFSETS: u8 = ANSWER | request::OFFSET_FETCH;
    pub const GROUPS: u8 = ANSWER | request::GROUP_LIST;
    pub const GROUP_DESCRIBED: u8 = ANSWER | request::GROUP_DESCRIBE;
    pub const GROUP_DELETED: u8 = ANSWER | request::GROUP_DELETE;
    pub const OFFSETS_RESET: u8 = ANSWER | request::OFFSET_RESET;
    pub const TOPIC_ALTERED: u8 = ANSWER | request::TOPIC_ALTER;
    pub const USER_PUT: u8 = ANSWER | request::USER_PUT;
    pub const USER_DELETED: u8 = ANSWER | request::USER_DELETE;
    pub const USERS: u8 = ANSWER | request::USER_LIST;
    pub const ACLS_CREATED: u8 = ANSWER | request::ACL_CREATE;
    pub const ACLS_DELETED: u8 = ANSWER | request::ACL_DELETE;
    pub const ACLS: u8 = ANSWER | request::ACL_LIST;
    pub const QUEUE_CREATED: u8 = ANSWER | request::QUEUE_CREATE;
    pub const QUEUE_ALTERED: u8 = ANSWER | request::QUEUE_ALTER;
    pub const QUEUE_DELETED: u8 = ANSWER | request::QUEUE_DELETE;
    pub const QUEUE_DESCRIBED: u8 = ANSWER | request::QUEUE_DESCRIBE;
    pub const QUEUES: u8 = ANSWER | request::QUEUE_LIST;
    pub const QUEUE_SENT: u8 = ANSWER | request::QUEUE_SEND;
    pub const QUEUE_RECEIVED: u8 = ANSWER | request::QUEUE_RECEIVE;
    pub const QUEUE_ACKED: u8 = ANSWER | request::QUEUE_ACK;
    pub const QUEUE_NACKED: u8 = ANSWER | request::QUEUE_NACK;
    pub const QUEUE_EXTENDED: u8 = ANSWER | request::QUEUE_EXTEND;
    pub const QUEUE_PEEKED: u8 = ANSWER | request::QUEUE_PEEK;
    pub const QUEUE_PURGED: u8 = ANSWER | request::QUEUE_PURGE;
    pub const QUEUE_SOUGHT: u8 = ANSWER | request::QUEUE_SEEK;
    pub const REDRIVE_STARTED: u8 = ANSWER | request::REDRIVE_START;
    pub const REDRIVES: u8 = ANSWER | request::REDRIVE_LIST;
    pub const REDRIVE_CANCELLED: u8 = ANSWER | request::REDRIVE_CANCEL;
    pub const CACHE_CREATED: u8 = ANSWER | request::CACHE_CREATE;
    pub const CACHE_OPENED: u8 = ANSWER | request::CACHE_OPEN;
    pub const CACHE_DELETED: u8 = ANSWER | request::CACHE_DELETE;
    pub const CACHE_DESCRIBED: u8 = ANSWER | request::CACHE_DESCRIBE;
    pub const CACHES: u8 = ANSWER | request::CACHE_LIST;
    pub const CACHE_GOT: u8 = ANSWER | request::CACHE_GET;
    pub const CACHE_MULTI_GOT: u8 = ANSWER | request::CACHE_MULTI_GET;
    pub const CACHE_STORED: u8 = ANSWER | request::CACHE_PUT;
    pub const CACHE_REMOVED: u8 = ANSWER | request::CACHE_REMOVE;
    pub const CACHE_ADDED: u8 = ANSWER | request::CACHE_ADD;
    pub const CACHE_TOUCHED: u8 = ANSWER | request::CACHE_TOUCH;
    pub const CACHE_SCANNED: u8 = ANSWER | request::CACHE_SCAN;
    pub const CACHE_WATCHED: u8 = ANSWER | request::CACHE_WATCH;
    pub const CACHE_FLUSHED: u8 = ANSWER | request::CACHE_FLUSH;
    pub const ERROR: u8 = 0xff;

    pub const DELIVER: u8 = 0x40;
    pub const GAP: u8 = 0x41;
    pub const ENDED: u8 = 0x42;
    pub const GO_AWAY: u8 = 0x43;
}

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

pub(crate) fn put_error(b: &mut BytesMut, error: &Error) {
    b.put_u16(error.kind.code());
    b.put_u8(error.retry_class().code());
    b.put_u32(error.retry_after_ms);
    // A message is for people; its end is the least of it.
    let end = error.message.floor_char_boundary(1024);
    put_str(b, &error.message[..end]);
}

pub(crate) fn get_error<B: Buf>(f: &mut Fields<B>) -> Result<Error> {
    let code = f.u16()?;
    let class = f.u8()?;
    let retry_after_ms = f.u32()?;
    let message = f.str()?;
    // A kind of a later version is read as one that asks the same of the caller.
    let kind = ErrorKind::from_code(code).unwrap_or(match RetryClass::from_code(class) {
        Some(RetryClass::Retry) => ErrorKind::Corrupt,
        Some(RetryClass::RetryAfter) => ErrorKind::Busy,
        Some(RetryClass::Fatal) => ErrorKind::Unsupported,
        Some(RetryClass::Redirect | RetryClass::OutcomeUnknown) | None => ErrorKind::Internal,
    });
    Ok(Error { kind, retry_after_ms, message })
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
