//! What a client asks for.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use engine::{
    Acks, Codec, Error, ErrorKind, Missing, Offset, Overflow, PartitionId, Result, SettingsChange, Start, Storage,
    TopicSettings,
};

use crate::caches::CacheRequest;
use crate::field::{Fields, put_str};
use crate::frame::{Frame, put_frame, put_frame_before};
use crate::groups::GroupRequest;
use crate::negotiate::{Features, MAGIC};
use crate::queues::QueueRequest;
use crate::security::SecurityRequest;

/// The kinds of frames that clients send. An answer has the kind of its request with the highest bit set.
pub mod kind {
    pub const HELLO: u8 = 0x01;
    pub const PUBLISH: u8 = 0x02;
    pub const SUBSCRIBE: u8 = 0x03;
    pub const UNSUBSCRIBE: u8 = 0x04;
    pub const CREDIT: u8 = 0x05;
    pub const FETCH: u8 = 0x06;
    pub const TOPIC_CREATE: u8 = 0x07;
    pub const TOPIC_DELETE: u8 = 0x08;
    pub const TOPIC_DESCRIBE: u8 = 0x09;
    pub const TOPIC_LIST: u8 = 0x0a;
    pub const STATS: u8 = 0x0b;
    pub const PING: u8 = 0x0c;
    pub const INIT_PRODUCER: u8 = 0x0d;
    pub const TOPIC_GROW: u8 = 0x0e;
    pub const RECORDS_DELETE: u8 = 0x0f;
    pub const GROUP_HEARTBEAT: u8 = 0x10;
    pub const OFFSET_COMMIT: u8 = 0x11;
    pub const OFFSET_FETCH: u8 = 0x12;
    pub const GROUP_LIST: u8 = 0x13;
    pub const GROUP_DESCRIBE: u8 = 0x14;
    pub const GROUP_DELETE: u8 = 0x15;
    pub const OFFSET_RESET: u8 = 0x16;
    pub const CACHE_GET: u8 = 0x17;
    pub const CACHE_MULTI_GET: u8 = 0x18;
    pub const CACHE_PUT: u8 = 0x19;
    pub const CACHE_REMOVE: u8 = 0x1a;
    pub const CACHE_ADD: u8 = 0x1b;
    pub const CACHE_TOUCH: u8 = 0x1c;
    pub const CACHE_SCAN: u8 = 0x1d;
    pub const CACHE_WATCH: u8 = 0x1e;
    pub const CACHE_FLUSH: u8 = 0x1f;
    pub const TOPIC_ALTER: u8 = 0x20;
    pub const USER_PUT: u8 = 0x21;
    pub const USER_DELETE: u8 = 0x22;
    pub const USER_LIST: u8 = 0x23;
    pub const ACL_CREATE: u8 = 0x24;
    pub const ACL_DELETE: u8 = 0x25;
    pub const ACL_LIST: u8 = 0x26;
    pub const CACHE_CREATE: u8 = 0x28;
    pub const CACHE_OPEN: u8 = 0x29;
    pub const CACHE_DELETE: u8 = 0x2a;
    pub const CACHE_DESCRIBE: u8 = 0x2b;
    pub const CACHE_LIST: u8 = 0x2c;
    pub const QUEUE_CREATE: u8 = 0x30;
    pub const QUEUE_ALTER: u8 = 0x31;
    pub const QUEUE_DELETE: u8 = 0x32;
    pub const QUEUE_DESCRIBE: u8 = 0x33;
    pub const QUEUE_LIST: u8 = 0x34;
    pub const QUEUE_SEND: u8 = 0x35;
    pub const QUEUE_RECEIVE: u8 = 0x36;
    pub const QUEUE_ACK: u8 = 0x37;
    pub const QUEUE_NACK: u8 = 0x38;
    pub const QUEUE_EXTEND: u8 = 0x39;
    pub const QUEUE_PEEK: u8 = 0x3a;
    pub const QUEUE_PURGE: u8 = 0x3b;
    pub const QUEUE_SEEK: u8 = 0x3c;
    pub const REDRIVE_START: u8 = 0x3d;
    pub const REDRIVE_LIST: u8 = 0x3e;
    pub const REDRIVE_CANCEL: u8 = 0x3f;
}

/// Stands for "no partition named" where a partition is expected.
const ANY_PARTITION: u32 = u32::MAX;

#[derive(Debug)]
pub enum Request {
    Hello {
        version: u16,
        required: Features,
        offered: Features,
        client: String,
    },
    Publish {
        topic: String,
        partition: Option<PartitionId>,
        acks: Acks,
        batch: BytesMut,
    },
    Subscribe(Subscribe),
    Unsubscribe {
        subscription: u32,
    },
    /// The subscriber may be sent this many bytes more. Not answered.
    Credit {
        subscription: u32,
        bytes: u64,
    },
    /// Batches from an offset on; where there are none yet, the answer waits up to `wait_ms`.
    Fetch {
        topic: String,
        partition: PartitionId,
        offset: Offset,
        bytes_max: u32,
        wait_ms: u32,
    },
    TopicCreate {
        topic: String,
        settings: TopicSettings,
    },
    TopicDelete {
        topic: String,
    },
    TopicDescribe {
        topic: String,
    },
    /// The topic shall have so many partitions in all.
    TopicGrow {
        topic: String,
        partitions: u32,
    },
    /// The topic shall have other settings.
    TopicAlter {
        topic: String,
        change: SettingsChange,
    },
    /// Records of a partition before an offset shall go; with `Offset::MAX` all that are there.
    RecordsDelete {
        topic: String,
        partition: PartitionId,
        before: Offset,
    },
    /// Topics in the order of their names, after this one.
    TopicList {
        after: String,
        count_max: u32,
    },
    /// The broker's metrics, as Prometheus reads them.
    Stats,
    Ping,
    /// An identity for a publisher that numbers its batches.
    InitProducer,
    /// Consumer groups and their offsets.
    Group(GroupRequest),
    /// Users, and what they may do.
    Security(SecurityRequest),
    /// Queues and their messages.
    Queue(QueueRequest),
    /// Caches and their entries.
    Cache(CacheRequest),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscribe {
    /// Chosen by the client, unique on its connection.
    pub subscription: u32,
    /// A topic or a pattern.
    pub topic: String,
    /// One partition, or all.
    pub partition: Option<PartitionId>,
    pub start: Start,
    pub overflow: Overflow,
    /// Queue size in batches; 0 for the broker's default.
    pub queue_batches: u32,
    /// The queue group, empty for none.
    pub group: String,
    /// Bytes that may be sent before the first grant.
    pub credit: u64,
    /// What happens where the topic does not exist.
    pub missing: Missing,
}

impl Request {
    pub fn encode(&self, correlation: u32, buf: &mut BytesMut) {
        match self {
            Self::Hello { version, required, offered, client } => {
                put_frame(buf, kind::HELLO, correlation, |b| {
                    b.put_u32(MAGIC);
                    b.put_u16(*version);
                    b.put_u64(required.0);
                    b.put_u64(offered.0);
                    put_str(b, client);
                });
            }
            Self::Publish { topic, partition, acks, batch } => {
                put_publish_head(buf, correlation, topic, *partition, *acks, batch.len());
                buf.put_slice(batch);
            }
            Self::Subscribe(subscribe) => put_frame(buf, kind::SUBSCRIBE, correlation, |b| subscribe.put(b)),
            Self::Unsubscribe { subscription } => {
                put_frame(buf, kind::UNSUBSCRIBE, correlation, |b| b.put_u32(*subscription));
            }
            Self::Credit { subscription, bytes } => put_frame(buf, kind::CREDIT, correlation, |b| {
                b.put_u32(*subscription);
                b.put_u64(*bytes);
            }),
            Self::Fetch { topic, partition, offset, bytes_max, wait_ms } => {
                put_frame(buf, kind::FETCH, correlation, |b| {
                    put_str(b, topic);
                    b.put_u32(*partition);
                    b.put_u64(*offset);
                    b.put_u32(*bytes_max);
                    b.put_u32(*wait_ms);
                });
            }
            Self::TopicCreate { topic, settings } => put_frame(buf, kind::TOPIC_CREATE, correlation, |b| {
                put_str(b, topic);
                put_settings(b, settings);
            }),
            Self::TopicDelete { topic } => put_frame(buf, kind::TOPIC_DELETE, correlation, |b| put_str(b, topic)),
            Self::TopicDescribe { topic } => put_frame(buf, kind::TOPIC_DESCRIBE, correlation, |b| put_str(b, topic)),
            Self::TopicGrow { topic, partitions } => put_frame(buf, kind::TOPIC_GROW, correlation, |b| {
                put_str(b, topic);
                b.put_u32(*partitions);
            }),
            Self::TopicAlter { topic, change } => put_frame(buf, kind::TOPIC_ALTER, correlation, |b| {
                put_str(b, topic);
                put_change(b, change);
            }),
            Self::RecordsDelete { topic, partition, before } => {
                put_frame(buf, kind::RECORDS_DELETE, correlation, |b| {
                    put_str(b, topic);
                    b.put_u32(*partition);
                    b.put_u64(*before);
                })
            }
            Self::TopicList { after, count_max } => put_frame(buf, kind::TOPIC_LIST, correlation, |b| {
                put_str(b, after);
                b.put_u32(*count_max);
            }),
            Self::Stats => put_frame(buf, kind::STATS, correlation, |_| {}),
            Self::Ping => put_frame(buf, kind::PING, correlation, |_| {}),
            Self::InitProducer => put_frame(buf, kind::INIT_PRODUCER, correlation, |_| {}),
            Self::Group(request) => put_frame(buf, request.kind(), correlation, |b| request.put(b)),
            Self::Security(request) => put_frame(buf, request.kind(), correlation, |b| request.put(b)),
            Self::Queue(request) => put_frame(buf, request.kind(), correlation, |b| request.put(b)),
            Self::Cache(request) => put_frame(buf, request.kind(), correlation, |b| request.put(b)),
        }
    }

    pub fn decode(frame: Frame) -> Result<Self> {
        // A publish keeps its batch in the bytes in which it came.
        if frame.kind == kind::PUBLISH {
            return decode_publish(frame.body);
        }
        let mut f = Fields::new(frame.body);
        let request = match frame.kind {
            kind::HELLO => {
                if f.u32()? != MAGIC {
                    return Err(Error::malformed("this is not a hello of this protocol; is the port right?"));
                }
                Self::Hello {
                    version: f.u16()?,
                    required: Features(f.u64()?),
                    offered: Features(f.u64()?),
                    client: f.str()?,
                }
            }
            kind::SUBSCRIBE => Self::Subscribe(Subscribe::get(&mut f)?),
            kind::UNSUBSCRIBE => Self::Unsubscribe { subscription: f.u32()? },
            kind::CREDIT => Self::Credit { subscription: f.u32()?, bytes: f.u64()? },
            kind::FETCH => Self::Fetch {
                topic: f.str()?,
                partition: f.u32()?,
                offset: f.u64()?,
                bytes_max: f.u32()?,
                wait_ms: f.u32()?,
            },
            kind::TOPIC_CREATE => Self::TopicCreate { topic: f.str()?, settings: get_settings(&mut f)? },
            kind::TOPIC_DELETE => Self::TopicDelete { topic: f.str()? },
            kind::TOPIC_DESCRIBE => Self::TopicDescribe { topic: f.str()? },
            kind::TOPIC_GROW => Self::TopicGrow { topic: f.str()?, partitions: f.u32()? },
            kind::TOPIC_ALTER => Self::TopicAlter { topic: f.str()?, change: get_change(&mut f)? },
            kind::RECORDS_DELETE => Self::RecordsDelete { topic: f.str()?, partition: f.u32()?, before: f.u64()? },
            kind::TOPIC_LIST => Self::TopicList { after: f.str()?, count_max: f.u32()? },
            kind::STATS => Self::Stats,
            kind::PING => Self::Ping,
            kind::INIT_PRODUCER => Self::InitProducer,
            kind::GROUP_HEARTBEAT..=kind::OFFSET_RESET => Self::Group(GroupRequest::get(frame.kind, &mut f)?),
            kind::USER_PUT..=kind::ACL_LIST => Self::Security(SecurityRequest::get(frame.kind, &mut f)?),
            kind::QUEUE_CREATE..=kind::REDRIVE_CANCEL => Self::Queue(QueueRequest::get(frame.kind, &mut f)?),
            kind::CACHE_GET..=kind::CACHE_FLUSH | kind::CACHE_CREATE..=kind::CACHE_LIST => {
                Self::Cache(CacheRequest::get(frame.kind, &mut f)?)
            }
            unknown => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format!("request kind {unknown:#04x} is not known here"),
                ));
            }
        };
        f.end()?;
        Ok(request)
    }
}

/// Writes a publish up to its batch of `batch_bytes`, which has to follow.
pub fn put_publish_head(
    buf: &mut BytesMut,
    correlation: u32,
    topic: &str,
    partition: Option<PartitionId>,
    acks: Acks,
    batch_bytes: usize,
) {
    put_frame_before(buf, kind::PUBLISH, correlation, batch_bytes, |b| {
        put_str(b, topic);
        b.put_u32(partition.unwrap_or(ANY_PARTITION));
        b.put_u8(acks as u8);
    });
}

fn decode_publish(body: BytesMut) -> Result<Request> {
    let mut f = Fields::new(body);
    let topic = f.str()?;
    let partition = get_partition(&mut f)?;
    let acks = f.u8()?;
    let acks = Acks::from_code(acks).ok_or_else(|| Error::malformed(format!("acks is 0 to 3, not {acks}")))?;
    Ok(Request::Publish { topic, partition, acks, batch: f.rest() })
}

impl Subscribe {
    fn put(&self, b: &mut BytesMut) {
        b.put_u32(self.subscription);
        put_str(b, &self.topic);
        b.put_u32(self.partition.unwrap_or(ANY_PARTITION));
        put_start(b, &self.start);
        b.put_u8(self.overflow as u8);
        b.put_u32(self.queue_batches);
        put_str(b, &self.group);
        b.put_u64(self.credit);
        b.put_u8(self.missing as u8);
    }

    fn get(f: &mut Fields<BytesMut>) -> Result<Self> {
        let subscription = f.u32()?;
        let topic = f.str()?;
        let partition = get_partition(f)?;
        let start = f.u8()?;
        let start = get_start(start, f)?;
        let overflow = f.u8()?;
        let overflow = Overflow::from_code(overflow)
            .ok_or_else(|| Error::malformed(format!("an overflow policy is 0 to 4, not {overflow}")))?;
        let (queue_batches, group, credit) = (f.u32()?, f.str()?, f.u64()?);
        let missing = f.u8()?;
        let missing = Missing::from_code(missing)
            .ok_or_else(|| Error::malformed(format!("what a missing topic is to mean is 0 to 2, not {missing}")))?;
        Ok(Self { subscription, topic, partition, start, overflow, queue_batches, group, credit, missing })
    }
}

pub(crate) fn put_start(b: &mut BytesMut, start: &Start) {
    match start {
        Start::Live => b.put_u8(0),
        Start::Earliest => b.put_u8(1),
        Start::Offset(offset) => {
            b.put_u8(2);
            b.put_u64(*offset);
        }
        Start::Time(timestamp_ms) => {
            b.put_u8(3);
            b.put_i64(*timestamp_ms);
        }
        Start::Offsets(offsets) => {
            b.put_u8(4);
            b.put_u32(offsets.len() as u32);
            for (partition, offset) in offsets {
                b.put_u32(*partition);
                b.put_u64(*offset);
            }
        }
    }
}

/// What follows the code of a start.
pub(crate) fn get_start<B: Buf>(code: u8, f: &mut Fields<B>) -> Result<Start> {
    Ok(match code {
        0 => Start::Live,
        1 => Start::Earliest,
        2 => Start::Offset(f.u64()?),
        3 => Start::Time(f.i64()?),
        4 => {
            let count = f.count(12)?;
            Start::Offsets((0..count).map(|_| Ok((f.u32()?, f.u64()?))).collect::<Result<_>>()?)
        }
        other => return Err(Error::malformed(format!("a start is 0 to 4, not {other}"))),
    })
}

fn get_partition<B: Buf>(f: &mut Fields<B>) -> Result<Option<PartitionId>> {
    Ok(Some(f.u32()?).filter(|partition| *partition != ANY_PARTITION))
}

pub(crate) fn put_settings(b: &mut BytesMut, settings: &TopicSettings) {
    b.put_u32(settings.partitions);
    b.put_u64(settings.retention_bytes);
    b.put_u64(settings.retention_ms);
    b.put_u8(settings.storage as u8);
    let is_largest_said = settings.batch_bytes_max != TopicSettings::default().batch_bytes_max;
    let rest = Rest::of(settings);
    let has_rest = rest != Rest::of(&TopicSettings::default());
    put_flags(b, &[settings.compact, is_largest_said, settings.arrival_times, has_rest]);
    if is_largest_said {
        b.put_u32(settings.batch_bytes_max);
    }
    if has_rest {
        rest.put(b);
    }
}

/// Settings that most topics leave as the broker has them.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Rest {
    compression: Option<Codec>,
    segment_bytes: u64,
    segment_ms: u64,
    compaction_lag_ms: (u64, u64),
}

impl Rest {
    /// In place of a codec: batches stay as they were published.
    const AS_PUBLISHED: u8 = 255;

    fn of(settings: &TopicSettings) -> Self {
        let TopicSettings { compression, segment_bytes, segment_ms, compaction_lag_ms, .. } = *settings;
        Self { compression, segment_bytes, segment_ms, compaction_lag_ms }
    }

    fn put(self, b: &mut BytesMut) {
        b.put_u8(self.compression.map_or(Self::AS_PUBLISHED, |codec| codec as u8));
        let (least, most) = self.compaction_lag_ms;
        [self.segment_bytes, self.segment_ms, least, most].into_iter().for_each(|value| b.put_u64(value));
    }

    fn get<B: Buf>(f: &mut Fields<B>) -> Result<Self> {
        let compression = match f.u8()? {
            Self::AS_PUBLISHED => None,
            code => Some(Codec::from_code(code).ok_or_else(|| Error::malformed(format!("{code} is not a codec")))?),
        };
        let (segment_bytes, segment_ms) = (f.u64()?, f.u64()?);
        Ok(Self { compression, segment_bytes, segment_ms, compaction_lag_ms: (f.u64()?, f.u64()?) })
    }
}

/// A byte with a bit for each, the first one lowest.
pub(crate) fn put_flags(b: &mut BytesMut, flags: &[bool]) {
    b.put_u8(flags.iter().rev().fold(0, |byte, flag| byte << 1 | u8::from(*flag)));
}

pub(crate) fn get_flags<const N: usize, B: Buf>(f: &mut Fields<B>) -> Result<[bool; N]> {
    let byte = f.u8()?;
    if byte >> N != 0 {
        return Err(Error::malformed(format!("flags {byte:#04x} of settings are not known here")));
    }
    Ok(std::array::from_fn(|i| byte >> i & 1 == 1))
}

fn put_change(b: &mut BytesMut, change: &SettingsChange) {
    let SettingsChange { retention_bytes, retention_ms, compact, batch_bytes_max, arrival_times, .. } = change;
    let has = [
        retention_bytes.is_some(),
        retention_ms.is_some(),
        compact.is_some(),
        batch_bytes_max.is_some(),
        arrival_times.is_some(),
    ];
    put_flags(b, &has);
    [retention_bytes, retention_ms].into_iter().flatten().for_each(|value| b.put_u64(*value));
    compact.iter().for_each(|value| b.put_u8(u8::from(*value)));
    batch_bytes_max.iter().for_each(|value| b.put_u32(*value));
    arrival_times.iter().for_each(|value| b.put_u8(u8::from(*value)));
}

fn get_change<B: Buf>(f: &mut Fields<B>) -> Result<SettingsChange> {
    let has: [bool; 5] = get_flags(f)?;
    Ok(SettingsChange {
        retention_bytes: has[0].then(|| f.u64()).transpose()?,
        retention_ms: has[1].then(|| f.u64()).transpose()?,
        compact: has[2].then(|| f.bool()).transpose()?,
        batch_bytes_max: has[3].then(|| f.u32()).transpose()?,
        arrival_times: has[4].then(|| f.bool()).transpose()?,
        ..SettingsChange::default()
    })
}

pub(crate) fn get_settings<B: Buf>(f: &mut Fields<B>) -> Result<TopicSettings> {
    let (partitions, retention_bytes, retention_ms, storage) = (f.u32()?, f.u64()?, f.u64()?, f.u8()?);
    let storage = Storage::from_code(storage)
        .ok_or_else(|| Error::malformed(format!("a topic's storage is 0 to 3, not {storage}")))?;
    let [compact, is_largest_said, arrival_times, has_rest] = get_flags(f)?;
    let batch_bytes_max = if is_largest_said { f.u32()? } else { TopicSettings::default().batch_bytes_max };
    let rest = if has_rest { Rest::get(f)? } else { Rest::of(&TopicSettings::default()) };
    let Rest { compression, segment_bytes, segment_ms, compaction_lag_ms } = rest;
    Ok(TopicSettings {
        compression,
        segment_bytes,
        segment_ms,
        compaction_lag_ms,
        partitions,
        retention_bytes,
        retention_ms,
        storage,
        compact,
        batch_bytes_max,
        arrival_times,
        ..TopicSettings::default()
    })
}

/// A publish as the pieces that a vectored write takes: its head, and its batch uncopied.
pub fn publish_frame(
    correlation: u32,
    topic: &str,
    partition: Option<PartitionId>,
    acks: Acks,
    batch: Bytes,
) -> [Bytes; 2] {
    let mut head = BytesMut::with_capacity(32 + topic.len());
    put_publish_head(&mut head, correlation, topic, partition, acks, batch.len());
    [head.freeze(), batch]
}
