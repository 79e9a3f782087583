//! Requests of a client.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use engine::{
    Acks, Error, ErrorKind, Missing, Offset, Overflow, PartitionId, Result, SettingsChange, Start, TopicSettings,
};

use crate::backups::BackupRequest;
use crate::caches::CacheRequest;
use crate::connections::ConnectionRequest;
use crate::field::{Fields, get_flags, put_flags, put_str};
use crate::frame::{Frame, put_frame, put_frame_before};
use crate::groups::GroupRequest;
use crate::kind::request as kind;
use crate::mesh::MeshRequest;
use crate::negotiate::{Features, MAGIC};
use crate::nodes::ClusterRequest;
use crate::queues::QueueRequest;
use crate::security::SecurityRequest;
use crate::values::{get_mesh_mode, get_settings, get_start, put_settings, put_start};

/// Value of a partition field that means no particular partition.
const ANY_PARTITION: u32 = u32::MAX;

/// Maximum size in bytes of one message of a login.
const LOGIN_BYTES_MAX: usize = 16 << 10;

/// Request of a client, with the fields of its body.
#[derive(Debug)]
pub enum Request {
    /// First request of a connection: it selects the version and the features.
    Hello {
        /// Version of the protocol that the client speaks.
        version: u16,
        /// Features without which the client does not continue.
        required: Features,
        /// Features that the client can use.
        offered: Features,
        /// Name of the client for display.
        client: String,
    },
    /// Logs in with one message of a SASL mechanism. A mechanism with several messages has one request for each.
    Login {
        /// Name of the mechanism: `PLAIN`, `SCRAM-SHA-256` or `SCRAM-SHA-512`.
        mechanism: String,
        /// Message of the mechanism.
        message: Vec<u8>,
    },
    /// Appends a batch to a partition.
    Publish {
        /// Topic to publish to.
        topic: String,
        /// Partition; `None` lets the broker choose.
        partition: Option<PartitionId>,
        /// Guarantee that the acknowledgement has to give.
        acks: Acks,
        /// Bytes of one record batch, not yet checked.
        batch: BytesMut,
    },
    /// Starts a subscription.
    Subscribe(Subscribe),
    /// Ends a subscription.
    Unsubscribe {
        /// Number of the subscription on its connection.
        subscription: u32,
    },
    /// Credit for more bytes of a subscription. It has no answer.
    Credit {
        /// Number of the subscription on its connection.
        subscription: u32,
        /// Bytes of batches that the broker may send in addition.
        bytes: u64,
    },
    /// Reads batches of a partition from an offset. If there are none yet, the answer waits up to `wait_ms`.
    Fetch {
        /// Topic to read.
        topic: String,
        /// Partition to read.
        partition: PartitionId,
        /// Offset of the first record to return.
        offset: Offset,
        /// Maximum bytes of the batches together; the first one is returned whole even if it is larger.
        bytes_max: u32,
        /// Maximum time that the answer waits for a batch, in ms.
        wait_ms: u32,
    },
    /// Creates a topic.
    TopicCreate {
        /// Name of the topic.
        topic: String,
        /// Settings of the topic.
        settings: TopicSettings,
    },
    /// Deletes a topic with its records.
    TopicDelete {
        /// Name of the topic.
        topic: String,
    },
    /// Requests the settings and the partitions of a topic.
    TopicDescribe {
        /// Name of the topic.
        topic: String,
    },
    /// Adds partitions to a topic.
    TopicGrow {
        /// Name of the topic.
        topic: String,
        /// Number of partitions afterwards.
        partitions: u32,
    },
    /// Changes settings of a topic.
    TopicAlter {
        /// Name of the topic.
        topic: String,
        /// Settings to change; the others keep their values.
        change: SettingsChange,
    },
    /// Deletes the records of a partition before an offset; with `Offset::MAX` all records.
    RecordsDelete {
        /// Name of the topic.
        topic: String,
        /// Partition to delete from.
        partition: PartitionId,
        /// Offset of the first record to keep.
        before: Offset,
    },
    /// Lists topics in the order of their names.
    TopicList {
        /// Name after which the list begins; empty for the first page.
        after: String,
        /// Maximum number of topics in the answer.
        count_max: u32,
    },
    /// Requests the metrics of the broker in the text format of Prometheus.
    Stats,
    /// Checks that the broker answers requests.
    Ping,
    /// Requests an identity for a publisher that numbers its batches.
    InitProducer,
    /// Request about consumer groups and their offsets.
    Group(GroupRequest),
    /// Request about users and access control entries.
    Security(SecurityRequest),
    /// Request about queues and their messages.
    Queue(QueueRequest),
    /// Request about caches and their entries.
    Cache(CacheRequest),
    /// Request about the nodes of a cluster.
    Cluster(ClusterRequest),
    /// Request about the mesh of sites.
    Mesh(MeshRequest),
    /// Request about a backup.
    Backup(BackupRequest),
    /// Request about open connections of clients.
    Connection(ConnectionRequest),
}

/// Subscription that a client requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscribe {
    /// Number that the client chooses, unique on its connection.
    pub subscription: u32,
    /// Name of a topic, or a pattern.
    pub topic: String,
    /// Partition to read; `None` reads all.
    pub partition: Option<PartitionId>,
    /// Start of the subscription.
    pub start: Start,
    /// Behavior if the subscriber reads too slowly.
    pub overflow: Overflow,
    /// Number of batches that the broker queues for the subscriber; 0 for its default.
    pub queue_batches: u32,
    /// Queue group; empty for none.
    pub group: String,
    /// Bytes that the broker may send before the first grant.
    pub credit: u64,
    /// Behavior if the topic does not exist.
    pub missing: Missing,
}

impl Request {
    /// Appends the request as one frame.
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
            Self::Login { mechanism, message } => put_frame(buf, kind::LOGIN, correlation, |b| {
                put_str(b, mechanism);
                b.put_slice(message);
            }),
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
            Self::Cluster(request) => put_frame(buf, kind::CLUSTER, correlation, |b| request.put(b)),
            Self::Mesh(request) => put_frame(buf, kind::MESH, correlation, |b| request.put(b)),
            Self::Backup(request) => put_frame(buf, kind::BACKUP, correlation, |b| request.put(b)),
            Self::Connection(request) => put_frame(buf, kind::CONNECTION, correlation, |b| request.put(b)),
        }
    }

    /// Reads a request from its frame. An unknown kind is `unsupported`, a wrong body is `malformed`.
    pub fn decode(frame: Frame) -> Result<Self> {
        // A publish keeps its batch in the received buffer.
        if frame.kind == kind::PUBLISH {
            return decode_publish(frame.body);
        }
        let mut f = Fields::of_request(frame.body);
        let request = match frame.kind {
            kind::HELLO => {
                if f.u32()? != MAGIC {
                    return Err(Error::malformed("this is not a hello of this protocol: check the port"));
                }
                Self::Hello {
                    version: f.u16()?,
                    required: Features(f.u64()?),
                    offered: Features(f.u64()?),
                    client: f.str()?,
                }
            }
            kind::LOGIN => {
                let mechanism = f.str()?;
                let message = f.rest();
                if message.len() > LOGIN_BYTES_MAX {
                    return Err(Error::malformed(format!("a message of a login has at most {LOGIN_BYTES_MAX} bytes")));
                }
                return Ok(Self::Login { mechanism, message: message.into() });
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
            kind::USER_PUT..=kind::ACL_LIST | kind::MEMBER_SET..=kind::SECURITY => {
                Self::Security(SecurityRequest::get(frame.kind, &mut f)?)
            }
            kind::QUEUE_CREATE..=kind::REDRIVE_CANCEL => Self::Queue(QueueRequest::get(frame.kind, &mut f)?),
            kind::CACHE_GET..=kind::CACHE_FLUSH | kind::CACHE_CREATE..=kind::CACHE_LIST => {
                Self::Cache(CacheRequest::get(frame.kind, &mut f)?)
            }
            kind::CLUSTER => Self::Cluster(ClusterRequest::get(&mut f)?),
            kind::MESH => Self::Mesh(MeshRequest::get(&mut f)?),
            kind::BACKUP => Self::Backup(BackupRequest::get(&mut f)?),
            kind::CONNECTION => Self::Connection(ConnectionRequest::get(&mut f)?),
            unknown => {
                return Err(Error::new(ErrorKind::Unsupported, format!("unknown request kind {unknown:#04x}")));
            }
        };
        f.end()?;
        Ok(request)
    }
}

/// Writes a publish without its batch of `batch_bytes` bytes, which has to follow.
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
        let queue_batches = f.u32()?;
        let group = f.str()?;
        let credit = f.u64()?;
        let missing = f.u8()?;
        let missing = Missing::from_code(missing)
            .ok_or_else(|| Error::malformed(format!("the handling of a missing topic is 0 to 2, not {missing}")))?;
        Ok(Self { subscription, topic, partition, start, overflow, queue_batches, group, credit, missing })
    }
}

fn get_partition<B: Buf>(f: &mut Fields<B>) -> Result<Option<PartitionId>> {
    Ok(Some(f.u32()?).filter(|partition| *partition != ANY_PARTITION))
}

fn put_change(b: &mut BytesMut, change: &SettingsChange) {
    let SettingsChange { retention_bytes, retention_ms, compact, batch_bytes_max, arrival_times, mesh, .. } = change;
    let has = [
        retention_bytes.is_some(),
        retention_ms.is_some(),
        compact.is_some(),
        batch_bytes_max.is_some(),
        arrival_times.is_some(),
        mesh.is_some(),
    ];
    put_flags(b, &has);
    [retention_bytes, retention_ms].into_iter().flatten().for_each(|value| b.put_u64(*value));
    compact.iter().for_each(|value| b.put_u8(u8::from(*value)));
    batch_bytes_max.iter().for_each(|value| b.put_u32(*value));
    arrival_times.iter().for_each(|value| b.put_u8(u8::from(*value)));
    mesh.iter().for_each(|mode| b.put_u8(*mode as u8));
}

fn get_change<B: Buf>(f: &mut Fields<B>) -> Result<SettingsChange> {
    let has: [bool; 6] = get_flags(f)?;
    Ok(SettingsChange {
        retention_bytes: has[0].then(|| f.u64()).transpose()?,
        retention_ms: has[1].then(|| f.u64()).transpose()?,
        compact: has[2].then(|| f.bool()).transpose()?,
        batch_bytes_max: has[3].then(|| f.u32()).transpose()?,
        arrival_times: has[4].then(|| f.bool()).transpose()?,
        mesh: has[5].then(|| get_mesh_mode(f)).transpose()?,
        ..SettingsChange::default()
    })
}

/// Encodes a publish as the pieces of a vectored write: its head, and its batch without a copy.
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
