//! Queues on the wire: what they are, messages on their way in and out, and what becomes of leases.

mod fields;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use engine::queue::header;
use engine::{Offset, PartitionId, Result, Start, Storage};

use crate::field::{Fields, get_code, get_option, non_empty, put_list, put_option, put_str};
use crate::kind::{request, response};
use crate::values::{get_start, put_error, put_start};
use fields::{
    INFO_BYTES_MIN, MESSAGE_BYTES_MIN, OUT_MESSAGE_BYTES_MIN, REDRIVE_BYTES_MIN, get_answer, get_flags, get_info,
    get_message, get_named, get_out_message, get_redrive, get_sent, put_info, put_message, put_named, put_out_message,
    put_redrive,
};

/// Settings of a queue, or what is kept with it, each by its name.
pub type Named = Vec<(String, String)>;

/// A number of 32 bits that is not there.
const NONE_U32: u32 = u32::MAX;
/// In the flags of a receive: its leases outlive the connection.
const OUTLIVES_CONNECTION: u8 = 1;
/// In the flags of a send: messages were elsewhere, and say so in headers that are the broker's own.
const IS_MOVE: u8 = 1;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueRequest {
    Create(NewQueue),
    /// These settings shall be different, and the others as they are.
    Alter {
        queue: String,
        settings: Named,
    },
    Delete {
        queue: String,
    },
    Describe {
        queue: String,
    },
    /// Queues whose names begin so, in the order of their names, after this one.
    List {
        prefix: String,
        after: String,
        count_max: u32,
    },
    Send {
        queue: String,
        is_move: bool,
        messages: Vec<OutMessage>,
    },
    Receive(Receive),
    /// Messages are done with.
    Ack {
        queue: String,
        receipts: Vec<String>,
    },
    /// Messages go back, for others after so long: as the queue is set where that is not said.
    Nack {
        queue: String,
        leases: Vec<(String, Option<u64>)>,
    },
    /// Leases end so many ms from now.
    Extend {
        queue: String,
        leases: Vec<(String, u64)>,
    },
    /// Messages that are not done with, after this one, as they are.
    Peek {
        queue: String,
        after: Option<(PartitionId, Offset)>,
        count_max: u32,
    },
    Purge {
        queue: String,
    },
    Seek {
        queue: String,
        to: Start,
    },
    /// Messages of a queue go to another, or each to where it came from, so many a second.
    StartRedrive {
        queue: String,
        to: Option<String>,
        rate: Option<u32>,
    },
    ListRedrives {
        queue: String,
    },
    CancelRedrive {
        redrive: u64,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueResponse {
    Created(QueueInfo),
    Altered(QueueInfo),
    Deleted,
    Described(QueueInfo),
    Queues {
        queues: Vec<QueueInfo>,
        is_last: bool,
    },
    /// Of each message, in their order.
    Sent(Vec<Result<Sent>>),
    Received {
        /// How long the receiver has them.
        lease_ms: u64,
        messages: Vec<ReceivedMessage>,
    },
    /// Of each receipt, in their order.
    Acked(Vec<LeaseAnswer>),
    Nacked(Vec<LeaseAnswer>),
    Extended(Vec<LeaseAnswer>),
    Peeked(Vec<PeekedMessage>),
    /// How many messages there were.
    Purged(u64),
    Sought,
    RedriveStarted(u64),
    /// The newest first.
    Redrives(Vec<RedriveInfo>),
    RedriveCancelled(RedriveInfo),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewQueue {
    pub queue: String,
    /// A topic that is there; empty for one of its own.
    pub topic: String,
    /// It begins with what is published from now on.
    pub is_live: bool,
    /// Where its own topic is kept.
    pub storage: Storage,
    pub settings: Named,
    pub notes: Named,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutMessage {
    pub body: Bytes,
    /// The key of its group, or of its order.
    pub group: Option<Bytes>,
    /// What it is known by if it is sent again.
    pub dedup: Option<String>,
    /// How long it is for nobody; as the queue is set where that is not said.
    pub delay_ms: Option<u64>,
    pub headers: Vec<(String, Bytes)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receive {
    pub queue: String,
    pub count_max: u32,
    /// Beyond the first message.
    pub bytes_max: u32,
    /// As the queue is set where that is not said.
    pub lease_ms: Option<u64>,
    /// How long the answer may wait for a message.
    pub wait_ms: u32,
    /// Else the messages go back at once when the connection ends.
    pub outlives_connection: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    pub id: String,
    pub partition: PartitionId,
    pub offset: Offset,
    /// It was there already.
    pub is_duplicate: bool,
}

/// What a message is, wherever it is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageInfo {
    pub id: String,
    pub partition: PartitionId,
    pub offset: Offset,
    /// When it was sent first, ms since 1970.
    pub sent_ms: u64,
    /// How often it was given out.
    pub attempts: u32,
    pub body: Bytes,
    pub group: Option<Bytes>,
    /// Those that begin with `thalweg.` are the broker's own.
    pub headers: Vec<(String, Bytes)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedMessage {
    pub receipt: String,
    pub first_received_ms: u64,
    pub message: MessageInfo,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeekedMessage {
    pub phase: MessagePhase,
    /// When its lease or its delay ends.
    pub due_ms: Option<u64>,
    pub message: MessageInfo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MessagePhase {
    Leased = 1,
    Waiting = 2,
    Delayed = 3,
}

impl MessagePhase {
    pub fn name(self) -> &'static str {
        match self {
            Self::Leased => "leased",
            Self::Waiting => "waiting",
            Self::Delayed => "delayed",
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        [Self::Leased, Self::Waiting, Self::Delayed].into_iter().find(|phase| *phase as u8 == code)
    }
}

/// What became of a lease that a request was about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LeaseAnswer {
    Done = 0,
    /// There is no such message any more.
    Gone = 1,
    /// The lease is over, or another has the message.
    Expired = 2,
    /// Nobody has the message.
    NotLeased = 3,
    /// The message would be held longer than anybody may.
    TooLong = 4,
    /// The receipt is none of this queue.
    Invalid = 5,
}

impl LeaseAnswer {
    const ALL: [Self; 6] = [Self::Done, Self::Gone, Self::Expired, Self::NotLeased, Self::TooLong, Self::Invalid];

    /// What a person is told; nothing where it was done.
    pub fn refusal(self) -> Option<&'static str> {
        match self {
            Self::Done => None,
            Self::Gone => Some("the message is gone: it was acknowledged, purged or dropped"),
            Self::Expired => Some("the lease is over, and the message is back in its queue or with another receiver"),
            Self::NotLeased => Some("nobody has the message: its lease is over"),
            Self::TooLong => Some("nobody may hold a message longer than 12 hours"),
            Self::Invalid => Some("this is no receipt of this queue"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueInfo {
    pub queue: String,
    pub topic: String,
    /// The topic came with the queue, and goes with it.
    pub owns_topic: bool,
    pub created_ms: u64,
    pub altered_ms: u64,
    pub settings: Named,
    /// What doors keep with it; not in lists.
    pub notes: Named,
    /// Unknown where its topic is gone.
    pub counts: Option<QueueCounts>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    pub visible: u64,
    pub in_flight: u64,
    pub delayed: u64,
    pub bytes: u64,
    /// When the oldest message was sent, where that is known.
    pub oldest_ms: Option<u64>,
    /// Groups that step back behind others.
    pub noisy_groups: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedriveInfo {
    pub redrive: u64,
    pub from: String,
    pub to: Option<String>,
    /// Messages a second.
    pub rate: Option<u32>,
    pub started_ms: u64,
    pub state: RedriveState,
    pub moved: u64,
    /// Messages that there were to move when it began.
    pub to_move: u64,
    pub failure: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RedriveState {
    Running = 0,
    Completed = 1,
    Cancelling = 2,
    Cancelled = 3,
    Failed = 4,
}

impl RedriveState {
    pub const ALL: [Self; 5] = [Self::Running, Self::Completed, Self::Cancelling, Self::Cancelled, Self::Failed];

    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Cancelling => "cancelling",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }
}

impl QueueRequest {
    pub(crate) fn kind(&self) -> u8 {
        match self {
            Self::Create(_) => request::QUEUE_CREATE,
            Self::Alter { .. } => request::QUEUE_ALTER,
            Self::Delete { .. } => request::QUEUE_DELETE,
            Self::Describe { .. } => request::QUEUE_DESCRIBE,
            Self::List { .. } => request::QUEUE_LIST,
            Self::Send { .. } => request::QUEUE_SEND,
            Self::Receive(_) => request::QUEUE_RECEIVE,
            Self::Ack { .. } => request::QUEUE_ACK,
            Self::Nack { .. } => request::QUEUE_NACK,
            Self::Extend { .. } => request::QUEUE_EXTEND,
            Self::Peek { .. } => request::QUEUE_PEEK,
            Self::Purge { .. } => request::QUEUE_PURGE,
            Self::Seek { .. } => request::QUEUE_SEEK,
            Self::StartRedrive { .. } => request::REDRIVE_START,
            Self::ListRedrives { .. } => request::REDRIVE_LIST,
            Self::CancelRedrive { .. } => request::REDRIVE_CANCEL,
        }
    }

    pub(crate) fn put(&self, b: &mut BytesMut) {
        match self {
            Self::Create(new) => new.put(b),
            Self::Alter { queue, settings } => {
                put_str(b, queue);
                put_named(b, settings);
            }
            Self::Delete { queue }
            | Self::Describe { queue }
            | Self::Purge { queue }
            | Self::ListRedrives { queue } => put_str(b, queue),
            Self::List { prefix, after, count_max } => {
                put_str(b, prefix);
                put_str(b, after);
                b.put_u32(*count_max);
            }
            Self::Send { queue, is_move, messages } => {
                put_str(b, queue);
                b.put_u8(if *is_move { IS_MOVE } else { 0 });
                put_list(b, messages, put_out_message);
            }
            Self::Receive(receive) => receive.put(b),
            Self::Ack { queue, receipts } => {
                put_str(b, queue);
                put_list(b, receipts, |b, receipt| put_str(b, receipt));
            }
            Self::Nack { queue, leases } => {
                put_str(b, queue);
                put_list(b, leases, |b, (receipt, delay_ms)| {
                    put_str(b, receipt);
                    put_option(b, delay_ms.as_ref(), |b, delay_ms| b.put_u64(*delay_ms));
                });
            }
            Self::Extend { queue, leases } => {
                put_str(b, queue);
                put_list(b, leases, |b, (receipt, lease_ms)| {
                    put_str(b, receipt);
                    b.put_u64(*lease_ms);
                });
            }
            Self::Peek { queue, after, count_max } => {
                put_str(b, queue);
                put_option(b, after.as_ref(), |b, (partition, offset)| {
                    b.put_u32(*partition);
                    b.put_u64(*offset);
                });
                b.put_u32(*count_max);
            }
            Self::Seek { queue, to } => {
                put_str(b, queue);
                put_start(b, to);
            }
            Self::StartRedrive { queue, to, rate } => {
                put_str(b, queue);
                put_str(b, to.as_deref().unwrap_or_default());
                b.put_u32(rate.unwrap_or(NONE_U32));
            }
            Self::CancelRedrive { redrive } => b.put_u64(*redrive),
        }
    }

    pub(crate) fn get<B: Buf>(kind: u8, f: &mut Fields<B>) -> Result<Self> {
        Ok(match kind {
            request::QUEUE_CREATE => Self::Create(NewQueue::get(f)?),
            request::QUEUE_ALTER => Self::Alter { queue: f.str()?, settings: get_named(f)? },
            request::QUEUE_DELETE => Self::Delete { queue: f.str()? },
            request::QUEUE_DESCRIBE => Self::Describe { queue: f.str()? },
            request::QUEUE_LIST => Self::List { prefix: f.str()?, after: f.str()?, count_max: f.u32()? },
            request::QUEUE_SEND => {
                let (queue, flags) = (f.str()?, get_flags(f, IS_MOVE)?);
                let messages = f.list(OUT_MESSAGE_BYTES_MIN, get_out_message)?;
                Self::Send { queue, is_move: flags & IS_MOVE != 0, messages }
            }
            request::QUEUE_RECEIVE => Self::Receive(Receive::get(f)?),
            request::QUEUE_ACK => Self::Ack { queue: f.str()?, receipts: f.list(2, Fields::str)? },
            request::QUEUE_NACK => {
                let lease = |f: &mut Fields<B>| Ok((f.str()?, get_option(f, Fields::u64)?));
                Self::Nack { queue: f.str()?, leases: f.list(3, lease)? }
            }
            request::QUEUE_EXTEND => {
                Self::Extend { queue: f.str()?, leases: f.list(10, |f| Ok((f.str()?, f.u64()?)))? }
            }
            request::QUEUE_PEEK => {
                Self::Peek { queue: f.str()?, after: get_option(f, |f| Ok((f.u32()?, f.u64()?)))?, count_max: f.u32()? }
            }
            request::QUEUE_PURGE => Self::Purge { queue: f.str()? },
            request::QUEUE_SEEK => {
                let (queue, code) = (f.str()?, f.u8()?);
                Self::Seek { queue, to: get_start(code, f)? }
            }
            request::REDRIVE_START => Self::StartRedrive {
                queue: f.str()?,
                to: non_empty(f.str()?),
                rate: Some(f.u32()?).filter(|rate| *rate != NONE_U32),
            },
            request::REDRIVE_LIST => Self::ListRedrives { queue: f.str()? },
            _ => Self::CancelRedrive { redrive: f.u64()? },
        })
    }
}

impl QueueResponse {
    pub(crate) fn kind(&self) -> u8 {
        match self {
            Self::Created(_) => response::QUEUE_CREATED,
            Self::Altered(_) => response::QUEUE_ALTERED,
            Self::Deleted => response::QUEUE_DELETED,
            Self::Described(_) => response::QUEUE_DESCRIBED,
            Self::Queues { .. } => response::QUEUES,
            Self::Sent(_) => response::QUEUE_SENT,
            Self::Received { .. } => response::QUEUE_RECEIVED,
            Self::Acked(_) => response::QUEUE_ACKED,
            Self::Nacked(_) => response::QUEUE_NACKED,
            Self::Extended(_) => response::QUEUE_EXTENDED,
            Self::Peeked(_) => response::QUEUE_PEEKED,
            Self::Purged(_) => response::QUEUE_PURGED,
            Self::Sought => response::QUEUE_SOUGHT,
            Self::RedriveStarted(_) => response::REDRIVE_STARTED,
            Self::Redrives(_) => response::REDRIVES,
            Self::RedriveCancelled(_) => response::REDRIVE_CANCELLED,
        }
    }

    pub(crate) fn put(&self, b: &mut BytesMut) {
        match self {
            Self::Created(info) | Self::Altered(info) | Self::Described(info) => put_info(b, info),
            Self::Deleted | Self::Sought => {}
            Self::Queues { queues, is_last } => {
                b.put_u8(u8::from(*is_last));
                put_list(b, queues, put_info);
            }
            Self::Sent(sent) => put_list(b, sent, |b, sent| match sent {
                Ok(Sent { id, partition, offset, is_duplicate }) => {
                    b.put_u8(1);
                    put_str(b, id);
                    b.put_u32(*partition);
                    b.put_u64(*offset);
                    b.put_u8(u8::from(*is_duplicate));
                }
                Err(error) => {
                    b.put_u8(0);
                    put_error(b, error);
                }
            }),
            Self::Received { lease_ms, messages } => {
                b.put_u64(*lease_ms);
                put_list(b, messages, |b, received| {
                    put_str(b, &received.receipt);
                    b.put_u64(received.first_received_ms);
                    put_message(b, &received.message);
                });
            }
            Self::Acked(answers) | Self::Nacked(answers) | Self::Extended(answers) => {
                put_list(b, answers, |b, answer| b.put_u8(*answer as u8));
            }
            Self::Peeked(messages) => put_list(b, messages, |b, peeked| {
                b.put_u8(peeked.phase as u8);
                put_option(b, peeked.due_ms.as_ref(), |b, due_ms| b.put_u64(*due_ms));
                put_message(b, &peeked.message);
            }),
            Self::Purged(count) | Self::RedriveStarted(count) => b.put_u64(*count),
            Self::Redrives(redrives) => put_list(b, redrives, put_redrive),
            Self::RedriveCancelled(redrive) => put_redrive(b, redrive),
        }
    }

    pub(crate) fn get<B: Buf>(kind: u8, f: &mut Fields<B>) -> Result<Self> {
        Ok(match kind {
            response::QUEUE_CREATED => Self::Created(get_info(f)?),
            response::QUEUE_ALTERED => Self::Altered(get_info(f)?),
            response::QUEUE_DELETED => Self::Deleted,
            response::QUEUE_DESCRIBED => Self::Described(get_info(f)?),
            response::QUEUES => {
                let is_last = f.bool()?;
                Self::Queues { queues: f.list(INFO_BYTES_MIN, get_info)?, is_last }
            }
            response::QUEUE_SENT => Self::Sent(f.list(10, get_sent)?),
            response::QUEUE_RECEIVED => {
                let lease_ms = f.u64()?;
                let messages = f.list(10 + MESSAGE_BYTES_MIN, |f| {
                    Ok(ReceivedMessage { receipt: f.str()?, first_received_ms: f.u64()?, message: get_message(f)? })
                })?;
                Self::Received { lease_ms, messages }
            }
            response::QUEUE_ACKED => Self::Acked(f.list(1, get_answer)?),
            response::QUEUE_NACKED => Self::Nacked(f.list(1, get_answer)?),
            response::QUEUE_EXTENDED => Self::Extended(f.list(1, get_answer)?),
            response::QUEUE_PEEKED => Self::Peeked(f.list(2 + MESSAGE_BYTES_MIN, |f| {
                Ok(PeekedMessage {
                    phase: get_code(f, "phase of a message", MessagePhase::from_code)?,
                    due_ms: get_option(f, Fields::u64)?,
                    message: get_message(f)?,
                })
            })?),
            response::QUEUE_PURGED => Self::Purged(f.u64()?),
            response::QUEUE_SOUGHT => Self::Sought,
            response::REDRIVE_STARTED => Self::RedriveStarted(f.u64()?),
            response::REDRIVES => Self::Redrives(f.list(REDRIVE_BYTES_MIN, get_redrive)?),
            _ => Self::RedriveCancelled(get_redrive(f)?),
        })
    }
}

impl NewQueue {
    fn put(&self, b: &mut BytesMut) {
        put_str(b, &self.queue);
        put_str(b, &self.topic);
        b.put_u8(u8::from(self.is_live));
        b.put_u8(self.storage as u8);
        put_named(b, &self.settings);
        put_named(b, &self.notes);
    }

    fn get<B: Buf>(f: &mut Fields<B>) -> Result<Self> {
        Ok(Self {
            queue: f.str()?,
            topic: f.str()?,
            is_live: f.bool()?,
            storage: get_code(f, "storage of a topic", Storage::from_code)?,
            settings: get_named(f)?,
            notes: get_named(f)?,
        })
    }
}

impl Receive {
    fn put(&self, b: &mut BytesMut) {
        put_str(b, &self.queue);
        b.put_u32(self.count_max);
        b.put_u32(self.bytes_max);
        put_option(b, self.lease_ms.as_ref(), |b, lease_ms| b.put_u64(*lease_ms));
        b.put_u32(self.wait_ms);
        b.put_u8(if self.outlives_connection { OUTLIVES_CONNECTION } else { 0 });
    }

    fn get<B: Buf>(f: &mut Fields<B>) -> Result<Self> {
        Ok(Self {
            queue: f.str()?,
            count_max: f.u32()?,
            bytes_max: f.u32()?,
            lease_ms: get_option(f, Fields::u64)?,
            wait_ms: f.u32()?,
            outlives_connection: get_flags(f, OUTLIVES_CONNECTION)? & OUTLIVES_CONNECTION != 0,
        })
    }
}

impl NewQueue {
    /// A queue with a topic of its own, and with the settings that queues have where nobody says.
    pub fn new(queue: impl Into<String>) -> Self {
        Self { queue: queue.into(), ..Self::default() }
    }

    /// The same with a setting, as `with("lease_ms", "60000")`.
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.settings.push((name.to_owned(), value.into()));
        self
    }
}

impl OutMessage {
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), ..Self::default() }
    }

    pub fn with_group(self, group: impl Into<Bytes>) -> Self {
        Self { group: Some(group.into()), ..self }
    }

    pub fn with_dedup(self, dedup: impl Into<String>) -> Self {
        Self { dedup: Some(dedup.into()), ..self }
    }

    pub fn with_delay(self, delay: std::time::Duration) -> Self {
        Self { delay_ms: Some(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)), ..self }
    }

    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<Bytes>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Bytes that it takes on the wire, or a few more.
    pub fn wire_bytes(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(name, value)| 6 + name.len() + value.len()).sum();
        let (group, dedup) = (self.group.as_ref().map_or(0, Bytes::len), self.dedup.as_ref().map_or(0, String::len));
        32 + self.body.len() + group + dedup + headers
    }
}

impl MessageInfo {
    /// The headers that its sender gave it.
    pub fn sender_headers(&self) -> impl Iterator<Item = (&str, &Bytes)> {
        let headers = self.headers.iter().filter(|(name, _)| !name.starts_with(header::PREFIX));
        headers.map(|(name, value)| (&name[..], value))
    }

    /// The queue whose dead letter it is.
    pub fn source(&self) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(name, _)| name == header::SOURCE)?;
        std::str::from_utf8(value).ok()
    }

    /// How many bytes it has, where it is shown without body, group and headers: no answer has room for them.
    pub fn left_out_bytes(&self) -> Option<u64> {
        let (_, value) = self.headers.iter().find(|(name, _)| name == header::LEFT_OUT)?;
        std::str::from_utf8(value).ok()?.parse().ok()
    }

    /// Bytes that it takes on the wire, or a few more.
    pub fn wire_bytes(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(name, value)| 6 + name.len() + value.len()).sum();
        let group = self.group.as_ref().map_or(0, Bytes::len);
        128 + self.id.len() + self.body.len() + group + headers
    }
}
