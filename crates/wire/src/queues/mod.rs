//! Queues on the wire: their settings, sent and received messages, and the results of lease operations.

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

/// Settings or notes of a queue, each with its name.
pub type Named = Vec<(String, String)>;

/// Value of a 32-bit field that means none.
const NONE_U32: u32 = u32::MAX;
/// Flag of a receive: its leases outlive the connection.
const OUTLIVES_CONNECTION: u8 = 1;
/// Flag of a send: the messages are moved from another queue, and may have headers that are reserved for the broker.
const IS_MOVE: u8 = 1;

/// Request about queues and their messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueRequest {
    /// Creates a queue.
    Create(NewQueue),
    /// Changes settings of a queue; the others keep their values.
    Alter {
        /// Name of the queue.
        queue: String,
        /// Settings to change.
        settings: Named,
    },
    /// Deletes a queue, and the topic that it owns.
    Delete {
        /// Name of the queue.
        queue: String,
    },
    /// Requests the settings and counts of a queue.
    Describe {
        /// Name of the queue.
        queue: String,
    },
    /// Lists queues whose names have a prefix, in the order of their names.
    List {
        /// Prefix of the names.
        prefix: String,
        /// Name after which the list begins; empty for the first page.
        after: String,
        /// Maximum number of queues in the answer.
        count_max: u32,
    },
    /// Sends messages.
    Send {
        /// Name of the queue.
        queue: String,
        /// `true` if the messages are moved from another queue and may have headers that are reserved for the broker.
        is_move: bool,
        /// Messages in their order.
        messages: Vec<OutMessage>,
    },
    /// Leases messages.
    Receive(Receive),
    /// Acknowledges messages, which are then not delivered again.
    Ack {
        /// Name of the queue.
        queue: String,
        /// Receipts of the messages.
        receipts: Vec<String>,
    },
    /// Returns messages to the queue.
    Nack {
        /// Name of the queue.
        queue: String,
        /// Receipt of each message, and the delay before it is visible in ms; `None` for the queue's setting.
        leases: Vec<(String, Option<u64>)>,
    },
    /// Extends leases.
    Extend {
        /// Name of the queue.
        queue: String,
        /// Receipt of each message, and the new duration of its lease from now on in ms.
        leases: Vec<(String, u64)>,
    },
    /// Requests messages that are not acknowledged, without a lease.
    Peek {
        /// Name of the queue.
        queue: String,
        /// Partition and offset after which to begin; `None` for the beginning.
        after: Option<(PartitionId, Offset)>,
        /// Maximum number of messages in the answer.
        count_max: u32,
    },
    /// Removes all messages.
    Purge {
        /// Name of the queue.
        queue: String,
    },
    /// Continues at another position of the topic.
    Seek {
        /// Name of the queue.
        queue: String,
        /// Position at which the queue continues.
        to: Start,
    },
    /// Moves the messages of a queue to another queue, or each to the queue that it came from.
    StartRedrive {
        /// Name of the queue with the messages.
        queue: String,
        /// Name of the destination; `None` for the queue of origin of each message.
        to: Option<String>,
        /// Maximum number of messages per second; `None` for no limit.
        rate: Option<u32>,
    },
    /// Lists moves of a queue's messages.
    ListRedrives {
        /// Name of the queue.
        queue: String,
    },
    /// Cancels a move.
    CancelRedrive {
        /// Number of the move.
        redrive: u64,
    },
}

/// Answer about queues and their messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueResponse {
    /// Answers [`QueueRequest::Create`].
    Created(QueueInfo),
    /// Answers [`QueueRequest::Alter`].
    Altered(QueueInfo),
    /// Answers [`QueueRequest::Delete`].
    Deleted,
    /// Answers [`QueueRequest::Describe`].
    Described(QueueInfo),
    /// Answers [`QueueRequest::List`].
    Queues {
        /// Queues in the order of their names, without their notes.
        queues: Vec<QueueInfo>,
        /// `true` if no queue follows the last one.
        is_last: bool,
    },
    /// Answers [`QueueRequest::Send`] for each message, in their order.
    Sent(Vec<Result<Sent>>),
    /// Answers [`QueueRequest::Receive`].
    Received {
        /// Duration of the leases, in ms.
        lease_ms: u64,
        /// Leased messages.
        messages: Vec<ReceivedMessage>,
    },
    /// Answers [`QueueRequest::Ack`] for each receipt, in their order.
    Acked(Vec<LeaseAnswer>),
    /// Answers [`QueueRequest::Nack`] for each receipt, in their order.
    Nacked(Vec<LeaseAnswer>),
    /// Answers [`QueueRequest::Extend`] for each receipt, in their order.
    Extended(Vec<LeaseAnswer>),
    /// Answers [`QueueRequest::Peek`].
    Peeked(Vec<PeekedMessage>),
    /// Answers [`QueueRequest::Purge`] with the number of removed messages.
    Purged(u64),
    /// Answers [`QueueRequest::Seek`].
    Sought,
    /// Answers [`QueueRequest::StartRedrive`] with the number of the move.
    RedriveStarted(u64),
    /// Answers [`QueueRequest::ListRedrives`], the newest first.
    Redrives(Vec<RedriveInfo>),
    /// Answers [`QueueRequest::CancelRedrive`].
    RedriveCancelled(RedriveInfo),
}

/// Queue to create.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewQueue {
    /// Name of the queue.
    pub queue: String,
    /// Name of an existing topic; empty for a separate topic with the name of the queue.
    pub topic: String,
    /// `true` if the queue begins with messages that are published from now on, and `false` if it begins with the
    /// oldest.
    pub is_live: bool,
    /// Storage of the separate topic.
    pub storage: Storage,
    /// Settings; those that are not named keep their defaults.
    pub settings: Named,
    /// Notes that doors keep with the queue.
    pub notes: Named,
}

/// Message to send.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutMessage {
    /// Body of the message.
    pub body: Bytes,
    /// Key of the message group.
    pub group: Option<Bytes>,
    /// Deduplication id, by which a message that is sent again is recognized.
    pub dedup: Option<String>,
    /// Delay of the message in ms; `None` for the queue's setting.
    pub delay_ms: Option<u64>,
    /// Headers in their order.
    pub headers: Vec<(String, Bytes)>,
}

/// Messages that a receiver requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receive {
    /// Name of the queue.
    pub queue: String,
    /// Maximum number of messages in the answer.
    pub count_max: u32,
    /// Maximum bytes of messages in the answer; the limit applies from the second message on.
    pub bytes_max: u32,
    /// Duration of the leases, in ms; `None` for the queue's setting.
    pub lease_ms: Option<u64>,
    /// Maximum time that the answer waits for a message, in ms.
    pub wait_ms: u32,
    /// `true` if the leases outlive the connection; otherwise its end returns the messages immediately.
    pub outlives_connection: bool,
}

/// Position of a sent message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Id of the message.
    pub id: String,
    /// Partition that has the message.
    pub partition: PartitionId,
    /// Offset of the message.
    pub offset: Offset,
    /// `true` if the queue already had the message.
    pub is_duplicate: bool,
}

/// Message as a queue shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageInfo {
    /// Id of the message.
    pub id: String,
    /// Partition that has the message.
    pub partition: PartitionId,
    /// Offset of the message.
    pub offset: Offset,
    /// Time at which the message was first sent, in ms since 1970.
    pub sent_ms: u64,
    /// Number of deliveries, including this one.
    pub attempts: u32,
    /// Body of the message.
    pub body: Bytes,
    /// Key of the message group, if there is one.
    pub group: Option<Bytes>,
    /// Headers in their order. Those that begin with `thalweg.` are set by the broker.
    pub headers: Vec<(String, Bytes)>,
}

/// Message with its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedMessage {
    /// Receipt of the lease, which acknowledgements refer to.
    pub receipt: String,
    /// Time at which the message was first delivered, in ms since 1970.
    pub first_received_ms: u64,
    /// Message that is leased.
    pub message: MessageInfo,
}

/// Message with its phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeekedMessage {
    /// Phase of the message.
    pub phase: MessagePhase,
    /// End of its lease or its delay, in ms since 1970.
    pub due_ms: Option<u64>,
    /// Message that the phase is about.
    pub message: MessageInfo,
}

/// Phase of a message that is not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum MessagePhase {
    /// A receiver holds a lease on the message.
    Leased = 1,
    /// No receiver holds the message, and it can be delivered.
    Waiting = 2,
    /// The message becomes visible later.
    Delayed = 3,
}

impl MessagePhase {
    /// Returns the name for display.
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

/// Result of a request for one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum LeaseAnswer {
    /// The request was executed.
    Done = 0,
    /// The message was acknowledged, purged or dropped.
    Gone = 1,
    /// Another receiver holds the message, or the lease has expired and the queue is strict.
    Expired = 2,
    /// No receiver holds the message.
    NotLeased = 3,
    /// The lease would be longer than allowed.
    TooLong = 4,
    /// The receipt does not belong to this queue.
    Invalid = 5,
}

impl LeaseAnswer {
    const ALL: [Self; 6] = [Self::Done, Self::Gone, Self::Expired, Self::NotLeased, Self::TooLong, Self::Invalid];

    /// Returns the reason of a refusal for display; `None` if the request was executed.
    pub fn refusal(self) -> Option<&'static str> {
        match self {
            Self::Done => None,
            Self::Gone => Some("the message was acknowledged, purged or dropped"),
            Self::Expired => {
                Some("the lease has expired: the message returned to its queue, or another receiver has leased it")
            }
            Self::NotLeased => Some("the message is not leased: its lease has expired"),
            Self::TooLong => Some("a message can be leased for at most 12 hours"),
            Self::Invalid => Some("this is not a receipt of this queue"),
        }
    }
}

/// Description of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueInfo {
    /// Name of the queue.
    pub queue: String,
    /// Name of its topic.
    pub topic: String,
    /// `true` if the queue owns the topic, which is then deleted with it.
    pub owns_topic: bool,
    /// Time at which the queue was created, in ms since 1970.
    pub created_ms: u64,
    /// Time at which its settings were last changed, in ms since 1970.
    pub altered_ms: u64,
    /// All settings.
    pub settings: Named,
    /// Notes that doors keep with the queue; empty in lists.
    pub notes: Named,
    /// Numbers of messages; `None` if the topic was deleted.
    pub counts: Option<QueueCounts>,
}

/// Numbers of a queue's messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Messages that can be delivered now.
    pub visible: u64,
    /// Messages that are leased.
    pub in_flight: u64,
    /// Messages that become visible later.
    pub delayed: u64,
    /// Bytes of the log from the oldest message on.
    pub bytes: u64,
    /// Time at which the oldest message was sent, in ms since 1970, if it is known.
    pub oldest_ms: Option<u64>,
    /// Message groups that are delivered after the others.
    pub noisy_groups: u64,
}

/// Move of messages between queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedriveInfo {
    /// Number of the move.
    pub redrive: u64,
    /// Name of the queue with the messages.
    pub from: String,
    /// Name of the destination; `None` for the queue of origin.
    pub to: Option<String>,
    /// Maximum number of messages per second; `None` for no limit.
    pub rate: Option<u32>,
    /// Time at which the move began, in ms since 1970.
    pub started_ms: u64,
    /// State of the move.
    pub state: RedriveState,
    /// Messages that were moved so far.
    pub moved: u64,
    /// Number of messages to move when it began.
    pub to_move: u64,
    /// Reason of the failure, if the move has failed.
    pub failure: Option<String>,
}

/// State of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum RedriveState {
    /// Messages are being moved.
    Running = 0,
    /// All messages were moved.
    Completed = 1,
    /// A request to cancel has arrived, and the move is still running.
    Cancelling = 2,
    /// The move was cancelled.
    Cancelled = 3,
    /// The move ended with an error.
    Failed = 4,
}

impl RedriveState {
    /// All states.
    pub const ALL: [Self; 5] = [Self::Running, Self::Completed, Self::Cancelling, Self::Cancelled, Self::Failed];

    /// Returns the name for display.
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
                let queue = f.str()?;
                let flags = get_flags(f, IS_MOVE)?;
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
                let queue = f.str()?;
                let code = f.u8()?;
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
    /// Creates a queue description with a separate topic and the default settings.
    pub fn new(queue: impl Into<String>) -> Self {
        Self { queue: queue.into(), ..Self::default() }
    }

    /// Adds a setting, as `with("lease_ms", "60000")`.
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.settings.push((name.to_owned(), value.into()));
        self
    }
}

impl OutMessage {
    /// Creates a message with this body and nothing else.
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), ..Self::default() }
    }

    /// Sets the key of the message group.
    pub fn with_group(self, group: impl Into<Bytes>) -> Self {
        Self { group: Some(group.into()), ..self }
    }

    /// Sets the id by which a message that is sent again is recognized.
    pub fn with_dedup(self, dedup: impl Into<String>) -> Self {
        Self { dedup: Some(dedup.into()), ..self }
    }

    /// Sets the delay, in whole milliseconds.
    pub fn with_delay(self, delay: std::time::Duration) -> Self {
        Self { delay_ms: Some(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)), ..self }
    }

    /// Adds a header.
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<Bytes>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Returns an upper estimate of the message's size on the wire in bytes.
    pub fn wire_bytes(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(name, value)| 6 + name.len() + value.len()).sum();
        let group = self.group.as_ref().map_or(0, Bytes::len);
        let dedup = self.dedup.as_ref().map_or(0, String::len);
        32 + self.body.len() + group + dedup + headers
    }
}

impl MessageInfo {
    /// Returns the headers that the sender set.
    pub fn sender_headers(&self) -> impl Iterator<Item = (&str, &Bytes)> {
        let headers = self.headers.iter().filter(|(name, _)| !name.starts_with(header::PREFIX));
        headers.map(|(name, value)| (&name[..], value))
    }

    /// Returns the queue that a dead letter comes from; `None` for other messages.
    pub fn source(&self) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(name, _)| name == header::SOURCE)?;
        std::str::from_utf8(value).ok()
    }

    /// Returns the size in bytes of a message whose body, group and headers are left out because no answer can hold it.
    pub fn left_out_bytes(&self) -> Option<u64> {
        let (_, value) = self.headers.iter().find(|(name, _)| name == header::LEFT_OUT)?;
        std::str::from_utf8(value).ok()?.parse().ok()
    }

    /// Returns an upper estimate of the message's size on the wire in bytes.
    pub fn wire_bytes(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(name, value)| 6 + name.len() + value.len()).sum();
        let group = self.group.as_ref().map_or(0, Bytes::len);
        128 + self.id.len() + self.body.len() + group + headers
    }
}
