//! Maps queue requests to calls of the broker, and keeps the leases that a connection holds.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use broker::{Broker, Identity, OutMessage, QueueStart, Receipt, SeekTo};
use bytes::Bytes;
use engine::queue::{
    LeaseError, Message, MessageId, Phase, QueueDefinition, QueueId, QueueName, QueueSettings, header,
};
use engine::security::ResourceKind;
use engine::{Error, ErrorKind, Offset, PartitionId, Result, Start, TopicName};
use parking_lot::Mutex;
use wire::frame::BODY_BYTES_MAX;
use wire::queues::{
    LeaseAnswer, MessageInfo, MessagePhase, Named, NewQueue, PeekedMessage, QueueCounts, QueueInfo, Receive,
    ReceivedMessage, RedriveInfo, RedriveState, Sent,
};
use wire::{QueueRequest, QueueResponse, Response};

use super::codec::Answer;
use super::room::Room;

/// Maximum number of queues in one response to a list.
const LIST_COUNT_MAX: u32 = 1000;
/// Maximum number of message bytes in one response. The first message may be larger.
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// Maximum number of messages that one connection leases at a time, not counting leases that outlive the connection.
const HELD_MAX: usize = 65_536;
/// Number of messages that a peek reads together.
const PEEK_TOGETHER: usize = 16;
/// Number of queues that a list describes before other tasks of the thread get their turn.
const DESCRIBED_TOGETHER: usize = 16;
/// Upper bound of the bytes that a message in a response takes on the wire in addition to its contents.
const BESIDE_BYTES: usize = 96;
/// Time in ms until a message that fits into no response is redelivered. Other messages are delivered in the meantime.
const UNFIT_AGAIN_MS: u64 = 10_000;

/// Leases that a connection holds and that are released when it ends.
#[derive(Default)]
pub(super) struct Held(HashMap<(QueueId, Receipt), HeldLease>);

struct HeldLease {
    queue: QueueName,
    /// Expiry of the lease, in ms since 1970. After it the message may be leased to another client.
    until_ms: u64,
}

impl Held {
    fn check_room(&mut self, more: usize, now_ms: u64) -> Result<()> {
        if self.0.len() + more > HELD_MAX {
            self.0.retain(|_, lease| lease.until_ms > now_ms);
        }
        if self.0.len() + more <= HELD_MAX {
            Ok(())
        } else {
            Err(Error::busy(format!(
                "a connection holds at most {HELD_MAX} leased messages at a time: acknowledge some, or open another \
             connection"
            )))
        }
    }

    fn take(&mut self, queue: &QueueDefinition, receipt: Receipt, until_ms: u64) {
        self.0.insert((queue.id, receipt), HeldLease { queue: queue.name.clone(), until_ms });
    }

    fn extend(&mut self, queue: QueueId, receipt: Receipt, until_ms: u64) {
        if let Some(lease) = self.0.get_mut(&(queue, receipt)) {
            lease.until_ms = until_ms;
        }
    }

    /// Releases all unexpired leases when the connection has ended.
    pub(super) fn release(&mut self, broker: &Arc<Broker>) {
        let now = broker.now_ms();
        let mut by_queue = HashMap::<QueueName, Vec<Receipt>>::new();
        for ((_, receipt), lease) in self.0.drain().filter(|(_, lease)| lease.until_ms > now) {
            by_queue.entry(lease.queue).or_default().push(receipt);
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            // The process ends. The leases expire by themselves.
            return;
        };
        for (queue, receipts) in by_queue {
            let broker = broker.clone();
            runtime.spawn(async move {
                if let Err(error) = broker.queues.release(queue.as_str(), &receipts).await {
                    tracing::debug!(%queue, %error, "the leases of a closed connection were not released and will \
                                                     expire");
                }
            });
        }
    }
}

/// Executes a request. Received leases are added to `held`, settled ones are removed.
pub(super) async fn answer(
    broker: &Arc<Broker>,
    identity: &Identity,
    held: &Mutex<Held>,
    room: &Room,
    request: QueueRequest,
) -> Result<Answer> {
    let response = match request {
        QueueRequest::Create(new) => {
            let definition = broker.queues.create(new_queue(new)?).await?;
            QueueResponse::Created(info(broker, &definition).await?)
        }
        QueueRequest::Alter { queue, settings } => {
            let change = |definition: &mut QueueDefinition| set(&mut definition.settings, &settings);
            let definition = broker.queues.alter(&queue, change).await?;
            QueueResponse::Altered(info(broker, &definition).await?)
        }
        QueueRequest::Delete { queue } => {
            broker.queues.delete(&queue).await?;
            QueueResponse::Deleted
        }
        QueueRequest::Describe { queue } => {
            let definition = broker.queues.get(&queue).await?;
            QueueResponse::Described(info(broker, &definition).await?)
        }
        QueueRequest::List { prefix, after, count_max } => list(broker, identity, &prefix, &after, count_max).await?,
        QueueRequest::Send { queue, is_move, messages } => send(broker, &queue, is_move, &messages).await?,
        QueueRequest::Receive(receive) => {
            let (received, memory) = self::receive(broker, identity, held, room, receive).await?;
            let response = Response::Queue(received);
            return Ok(match memory {
                Some(memory) => Answer::Charged(response, memory),
                None => Answer::Response(response),
            });
        }
        QueueRequest::Ack { queue, receipts } => {
            let leases = receipts.into_iter().map(|receipt| (receipt, ())).collect();
            let (_, answers) = settle(broker, Some(held), &queue, leases, async |leases: &[(Receipt, ())]| {
                let receipts: Vec<Receipt> = leases.iter().map(|(receipt, ())| *receipt).collect();
                broker.queues.ack(&queue, &receipts).await
            })
            .await?;
            QueueResponse::Acked(answers)
        }
        QueueRequest::Nack { queue, leases } => {
            let nack = async |leases: &[(Receipt, Option<u64>)]| broker.queues.nack(&queue, leases).await;
            QueueResponse::Nacked(settle(broker, Some(held), &queue, leases, nack).await?.1)
        }
        QueueRequest::Extend { queue, leases } => {
            let extend = async |leases: &[(Receipt, u64)]| broker.queues.extend(&queue, leases).await;
            let (extended, answers) = settle(broker, None, &queue, leases, extend).await?;
            let id = broker.queues.get(&queue).await?.id;
            let now_ms = broker.now_ms();
            let mut held = held.lock();
            let mut extend = |receipt, lease_ms| held.extend(id, receipt, now_ms.saturating_add(lease_ms));
            extended.into_iter().for_each(|(receipt, lease_ms)| extend(receipt, lease_ms));
            QueueResponse::Extended(answers)
        }
        QueueRequest::Peek { queue, after, count_max } => peek(broker, &queue, after, count_max).await?,
        QueueRequest::Purge { queue } => QueueResponse::Purged(broker.queues.purge(&queue).await?),
        QueueRequest::Seek { queue, to } => {
            broker.queues.seek(&queue, seek_to(&to)?).await?;
            QueueResponse::Sought
        }
        QueueRequest::StartRedrive { queue, to, rate } => {
            QueueResponse::RedriveStarted(broker.queues.start_redrive(&queue, to.as_deref(), rate).await?)
        }
        QueueRequest::ListRedrives { queue } => {
            let definition = broker.queues.get(&queue).await?;
            QueueResponse::Redrives(broker.queues.redrives(definition.name.as_str()).into_iter().map(redrive).collect())
        }
        QueueRequest::CancelRedrive { redrive: id } => {
            QueueResponse::RedriveCancelled(redrive(broker.queues.cancel_redrive(id)?))
        }
    };
    Ok(Response::Queue(response).into())
}

fn set(settings: &mut QueueSettings, named: &Named) -> Result<()> {
    named.iter().try_for_each(|(name, value)| settings.set(name, value))
}

fn new_queue(new: NewQueue) -> Result<broker::NewQueue> {
    let mut settings = QueueSettings::default();
    set(&mut settings, &new.settings)?;
    Ok(broker::NewQueue {
        topic: Some(new.topic).filter(|topic| !topic.is_empty()).map(|topic| TopicName::parse(&topic)).transpose()?,
        start: if new.is_live { QueueStart::Live } else { QueueStart::Earliest },
        storage: new.storage,
        settings,
        notes: new.notes.into_iter().collect(),
        ..broker::NewQueue::new(QueueName::parse(&new.queue)?)
    })
}

async fn info(broker: &Broker, definition: &QueueDefinition) -> Result<QueueInfo> {
    let counts = match broker.queues.counts(definition.name.as_str()).await {
        Ok(counts) => Some(QueueCounts {
            visible: counts.visible,
            in_flight: counts.in_flight,
            delayed: counts.delayed,
            bytes: counts.bytes,
            oldest_ms: counts.oldest_ms,
            noisy_groups: counts.noisy_groups,
        }),
        // The topic of the queue was deleted, or the queue cannot begin again over a new one yet.
        Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Busy) => None,
        Err(error) => return Err(error),
    };
    let text = |(name, value): (&str, engine::queue::SettingValue)| (name.to_owned(), value.to_string());
    Ok(QueueInfo {
        queue: definition.name.to_string(),
        topic: definition.topic.to_string(),
        owns_topic: definition.owns_topic,
        created_ms: definition.created_ms,
        altered_ms: definition.altered_ms,
        settings: definition.settings.named().into_iter().map(text).collect(),
        notes: definition.notes.clone().into_iter().collect(),
        counts,
    })
}

async fn list(
    broker: &Broker,
    identity: &Identity,
    prefix: &str,
    after: &str,
    count_max: u32,
) -> Result<QueueResponse> {
    let count_max = count_max.clamp(1, LIST_COUNT_MAX) as usize;
    let is_shown = |queue: &str| broker.is_shown(identity, ResourceKind::Queue, queue);
    let (definitions, is_last) = broker.queues.list(prefix, after, count_max, is_shown).await?;
    let mut queues = Vec::with_capacity(definitions.len());
    for definition in definitions {
        queues.push(QueueInfo { notes: Named::new(), ..info(broker, &definition).await? });
        if queues.len() % DESCRIBED_TOGETHER == 0 {
            tokio::task::yield_now().await;
        }
    }
    Ok(QueueResponse::Queues { queues, is_last })
}

/// Refuses headers that are reserved for the broker. A moved message may have them, except for [`header::DUE`].
fn check_header(name: &str, is_move: bool) -> Result<()> {
    let is_own = name.starts_with(header::PREFIX);
    if is_own && (!is_move || name == header::DUE) {
        Err(Error::invalid(format!("header {name}: names that begin with thalweg. are reserved for the broker")))
    } else {
        Ok(())
    }
}

async fn send(
    broker: &Broker,
    queue: &str,
    is_move: bool,
    messages: &[wire::queues::OutMessage],
) -> Result<QueueResponse> {
    let mut headers = Vec::with_capacity(messages.len());
    for message in messages {
        message.headers.iter().try_for_each(|(name, _)| check_header(name, is_move))?;
        headers.push(message.headers.iter().map(|(name, value)| (&name[..], &value[..])).collect::<Vec<_>>());
    }
    let out = messages.iter().zip(&headers).map(|(message, headers)| OutMessage {
        body: &message.body,
        group: message.group.as_deref(),
        dedup: message.dedup.as_deref(),
        headers,
        delay_ms: message.delay_ms,
    });
    let out: Vec<OutMessage<'_>> = out.collect();
    let sent = broker.queues.send(queue, &out).await?.into_iter().map(|sent| {
        sent.map(|sent| Sent {
            id: sent.id.to_string(),
            partition: sent.partition,
            offset: sent.offset,
            is_duplicate: sent.is_duplicate,
        })
    });
    Ok(QueueResponse::Sent(sent.collect()))
}

async fn receive(
    broker: &Arc<Broker>,
    identity: &Identity,
    held: &Mutex<Held>,
    room: &Room,
    receive: Receive,
) -> Result<(QueueResponse, Option<broker::Held>)> {
    let Receive { queue, count_max, bytes_max, lease_ms, wait_ms, outlives_connection } = receive;
    let definition = broker.queues.get(&queue).await?;
    let max = (count_max as usize).clamp(1, broker::RECEIVE_MAX);
    if !outlives_connection {
        held.lock().check_room(max, broker.now_ms())?;
    }
    let wanted = broker::Receive {
        max,
        bytes_max: (bytes_max as usize).clamp(1, ANSWER_BYTES_MAX),
        lease_ms,
        wait: Duration::from_millis(wait_ms.into()),
    };
    room.turn().await?;
    let received = broker.receive(identity, &queue, &wanted).await?;
    let memory = match room.take(received.iter().map(|received| received.message.bytes()).sum()).await {
        Ok(memory) => memory,
        Err(error) => {
            broker.queues.untake(&queue, received).await?;
            return Err(error);
        }
    };
    let lease_ms = lease_ms.unwrap_or(definition.settings.lease_ms);
    let mut messages = Vec::with_capacity(received.len());
    let mut bytes = 0;
    // Messages that do not fit next to the others, and messages that fit into no response at all.
    let mut left_out = Vec::new();
    let mut unfit = Vec::new();
    for received in received {
        let receipt = received.receipt;
        let first_received_ms = received.first_received_ms;
        let attempts = received.attempts;
        let message = message(received.id, receipt.partition, received.message, attempts);
        let len = message.wire_bytes() + BESIDE_BYTES;
        if len > BODY_BYTES_MAX {
            unfit.push((receipt, Some(UNFIT_AGAIN_MS)));
            continue;
        }
        bytes += len;
        if bytes > BODY_BYTES_MAX {
            left_out.push(receipt);
            continue;
        }
        if !outlives_connection {
            held.lock().take(&definition, receipt, broker.now_ms().saturating_add(lease_ms));
        }
        let receipt = broker.queues.seal(&definition, &receipt)?;
        messages.push(ReceivedMessage { receipt, first_received_ms, message });
    }
    // The client does not receive these messages, so it would never return them.
    if !unfit.is_empty() {
        broker.queues.nack(&queue, &unfit).await?;
    }
    if !left_out.is_empty() {
        broker.queues.release(&queue, &left_out).await?;
    }
    if let (true, Some((Receipt { partition, offset, .. }, _))) = (messages.is_empty(), unfit.first()) {
        return Err(Error::too_large(format!(
            "the message at offset {offset} of partition {partition} does not fit into an answer: receive it over \
             HTTP; it is redelivered after {UNFIT_AGAIN_MS} ms"
        )));
    }
    Ok((QueueResponse::Received { lease_ms, messages }, memory))
}

/// Returns the message if it fits into a response, otherwise only its identity and a header with its size.
fn shown(message: MessageInfo) -> MessageInfo {
    let bytes = message.wire_bytes();
    if bytes + BESIDE_BYTES <= BODY_BYTES_MAX {
        return message;
    }
    let left_out = (header::LEFT_OUT.to_owned(), bytes.to_string().into());
    MessageInfo { body: Bytes::new(), group: None, headers: vec![left_out], ..message }
}

/// Converts a message, with all headers that have a value.
fn message(id: MessageId, partition: PartitionId, message: Message, attempts: u32) -> MessageInfo {
    let text = |name: &Bytes| String::from_utf8_lossy(name).into_owned();
    let headers = message.record().headers.iter();
    // Only the broker sets the header that marks an omitted body.
    let headers = headers.filter(|(name, _)| name != header::LEFT_OUT.as_bytes());
    let headers = headers.filter_map(|(name, value)| Some((text(name), value.clone()?))).collect();
    MessageInfo {
        id: id.to_string(),
        partition,
        offset: message.offset(),
        sent_ms: message.sent_ms(),
        attempts,
        body: message.body().clone(),
        group: message.group().cloned(),
        headers,
    }
}

/// Applies `change` to the leases whose receipts are valid for this queue. Returns the changed leases, and an answer
/// for each lease. If `held` is given, the connection no longer holds the leases.
async fn settle<C: Copy>(
    broker: &Broker,
    held: Option<&Mutex<Held>>,
    queue: &str,
    leases: Vec<(String, C)>,
    change: impl AsyncFnOnce(&[(Receipt, C)]) -> Result<Vec<Result<(), LeaseError>>>,
) -> Result<(Vec<(Receipt, C)>, Vec<LeaseAnswer>)> {
    let definition = broker.queues.get(queue).await?;
    if leases.len() > broker::RECEIVE_MAX {
        let message = format!("a request has 1 to {} receipts, not {}", broker::RECEIVE_MAX, leases.len());
        return Err(Error::invalid(message));
    }
    let receipts: Vec<Option<(Receipt, C)>> =
        leases.iter().map(|(text, how)| Some((broker.queues.unseal(&definition, text).ok()?, *how))).collect();
    let valid: Vec<(Receipt, C)> = receipts.iter().flatten().copied().collect();
    let changed = change(&valid).await?;
    if let Some(held) = held {
        let mut held = held.lock();
        valid.iter().for_each(|(receipt, _)| drop(held.0.remove(&(definition.id, *receipt))));
    }
    let done = valid.iter().zip(&changed).filter(|(_, answer)| answer.is_ok()).map(|(lease, _)| *lease).collect();
    let mut changed = changed.into_iter();
    let answers = receipts.iter().map(|receipt| match receipt.and_then(|_| changed.next()) {
        Some(Ok(())) => LeaseAnswer::Done,
        Some(Err(LeaseError::Gone)) => LeaseAnswer::Gone,
        Some(Err(LeaseError::Expired)) => LeaseAnswer::Expired,
        Some(Err(LeaseError::NotLeased)) => LeaseAnswer::NotLeased,
        Some(Err(LeaseError::TooLong)) => LeaseAnswer::TooLong,
        None => LeaseAnswer::Invalid,
    });
    Ok((done, answers.collect()))
}

async fn peek(
    broker: &Broker,
    queue: &str,
    mut after: Option<(PartitionId, Offset)>,
    count_max: u32,
) -> Result<QueueResponse> {
    let max = (count_max as usize).clamp(1, broker::PEEK_MAX);
    let mut messages = Vec::new();
    let mut bytes = 0;
    while messages.len() < max && bytes < ANSWER_BYTES_MAX {
        let found = broker.queues.peek(queue, after, PEEK_TOGETHER.min(max - messages.len())).await?;
        if found.is_empty() {
            break;
        }
        for peeked in found {
            let partition = peeked.partition;
            let offset = peeked.message.offset();
            let message = shown(message(peeked.id, partition, peeked.message, peeked.attempts));
            bytes += message.wire_bytes();
            if bytes > ANSWER_BYTES_MAX && !messages.is_empty() {
                return Ok(QueueResponse::Peeked(messages));
            }
            let phase = match peeked.phase {
                Phase::Leased => MessagePhase::Leased,
                Phase::Delayed => MessagePhase::Delayed,
                Phase::Waiting => MessagePhase::Waiting,
            };
            messages.push(PeekedMessage { phase, due_ms: peeked.due_ms, message });
            after = Some((partition, offset));
        }
    }
    Ok(QueueResponse::Peeked(messages))
}

fn seek_to(to: &Start) -> Result<SeekTo> {
    match to {
        Start::Earliest => Ok(SeekTo::Earliest),
        Start::Live => Ok(SeekTo::End),
        Start::Time(at_ms) => Ok(SeekTo::Time(*at_ms)),
        Start::Offset(_) | Start::Offsets(_) => {
            Err(Error::invalid("a queue can seek to its earliest message, to a time or to its end, not to an offset"))
        }
    }
}

fn redrive(redrive: broker::Redrive) -> RedriveInfo {
    let state = match redrive.state {
        broker::RedriveState::Running => RedriveState::Running,
        broker::RedriveState::Completed => RedriveState::Completed,
        broker::RedriveState::Cancelling => RedriveState::Cancelling,
        broker::RedriveState::Cancelled => RedriveState::Cancelled,
        broker::RedriveState::Failed => RedriveState::Failed,
    };
    RedriveInfo {
        redrive: redrive.id,
        from: redrive.from,
        to: redrive.to,
        rate: redrive.rate,
        started_ms: redrive.started_ms,
        state,
        moved: redrive.moved,
        to_move: redrive.to_move,
        failure: redrive.failure,
    }
}

#[cfg(test)]
mod tests {
    use broker::Settings;
    use futures_util::FutureExt;
    use tokio::runtime::Handle;

    use super::*;

    /// The queues of a page are described in slices, however few partitions each of them has.
    #[tokio::test]
    async fn other_connections_are_served_while_queues_are_listed() {
        let broker = Broker::start(Settings::default(), &[Handle::current()]).expect("starts");
        for i in 0..100 {
            let name = QueueName::parse(&format!("q{i}")).expect("a name");
            broker.queues.create(broker::NewQueue::new(name)).await.expect("created");
        }
        let identity = Identity::anonymous("127.0.0.1");
        let mut list = std::pin::pin!(list(&broker, &identity, "", "", LIST_COUNT_MAX));
        let mut pauses = 0;
        let listed = loop {
            match (&mut list).now_or_never() {
                Some(listed) => break listed.expect("listed"),
                None => pauses += 1,
            }
        };
        let QueueResponse::Queues { queues, is_last } = listed else {
            panic!("no queues");
        };
        assert_eq!((queues.len(), is_last, pauses), (100, true, 100 / DESCRIBED_TOGETHER));
    }
}
