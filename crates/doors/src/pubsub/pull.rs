//! Messages on their way to subscribers and back: pulled, acknowledged, held longer. Streams are in `stream.rs`.

use std::collections::BTreeMap;
use std::time::Duration;

use broker::{FREE_BYTES, Receipt, Receive, Received};
use engine::queue::{LeaseError, QueueDefinition, header};
use tokio::time::Instant;

use super::errors::{Failure, Result};
use super::map::{Ask, Door};
use super::names::{Kind, Name};
use super::proto::{
    AcknowledgeRequest, ModifyAckDeadlineRequest, PubsubMessage, PullRequest, PullResponse, ReceivedMessage,
};
use super::subscriptions::ACK_DEADLINE_S_MAX;
use super::times::SECOND_MS;
use super::topics;
use super::transforms::Delivery;

/// How long a pull waits for its first message.
const PULL_WAIT: Duration = Duration::from_secs(10);
/// How much earlier it answers than its client gives up.
const MARGIN: Duration = Duration::from_millis(200);
/// How long an answer waits until there is memory for it.
pub(super) const ROOM_WAIT: Duration = Duration::from_secs(5);
/// Bytes of an answer beside the contents of a message: ids and times.
const MESSAGE_REST_BYTES: usize = 512;
const PULL_MESSAGES_MAX: usize = 1000;
const PULL_BYTES_MAX: usize = 10 << 20;

const PERMANENT: &str = "PERMANENT_FAILURE_INVALID_ACK_ID";
const SOME_INVALID: &str = "Some acknowledgement ids in the request were invalid. This could be because the \
                            acknowledgement ids have expired or the acknowledgement ids were malformed.";

/// What a subscriber says of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    Done,
    /// It wants so long for it, ms; 0 gives it back.
    Holds(u64),
}

/// What became of what a subscriber said, by the ids that it used.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub good: Vec<String>,
    /// They are of no lease, or of one that is over.
    pub bad: Vec<String>,
    /// One that this broker never gave out.
    pub forged: Option<String>,
}

#[expect(deprecated, reason = "clients still ask for it")]
pub(super) async fn pull(ask: Ask, request: PullRequest) -> Result<PullResponse> {
    let name = Name::parse(Kind::Subscription, &request.subscription)?;
    let max = usize::try_from(request.max_messages).ok().filter(|max| *max > 0);
    let max = max.ok_or_else(|| Failure::invalid("No max_messages specified"))?.min(PULL_MESSAGES_MAX);
    let queue = ask.door.queue_to_pull(&name).await?;
    let wait = match (request.return_immediately, ask.deadline) {
        (true, _) => Duration::ZERO,
        (false, None) => PULL_WAIT,
        (false, Some(deadline)) => deadline.saturating_duration_since(Instant::now() + MARGIN).min(PULL_WAIT),
    };
    let mut drain = ask.drain.clone();
    let Some(queue) = queue else {
        drain.or_begun(tokio::time::sleep(wait)).await;
        return Ok(PullResponse::default());
    };
    if is_pushed(&ask.door, &queue)? {
        let message = format!("Subscription is a push subscription: (resource={})", name.id);
        return Err(Failure::precondition(message));
    }
    let receive = Receive { max, bytes_max: PULL_BYTES_MAX, lease_ms: None, wait };
    ask.door.is_active(&queue);
    let answers = ask.door.broker.answers().clone();
    answers.wait_for_turn(Some(ask.address), ROOM_WAIT).await?;
    let deliveries = drain.or_begun(ask.door.receive(&queue, &receive)).await.transpose()?.unwrap_or_default();
    let bytes = answer_bytes_max(&deliveries);
    if bytes > FREE_BYTES {
        match answers.take(Some(ask.address), bytes, ROOM_WAIT).await {
            Ok(held) => *ask.held.lock() = Some(held),
            Err(error) => {
                let received = deliveries.into_iter().map(|delivery| delivery.received).collect();
                ask.door.broker.untake(queue.name.as_str(), received).await?;
                return Err(error.into());
            }
        }
    }
    let messages = deliveries.into_iter().map(|delivery| given(&ask.door, &queue, delivery));
    Ok(PullResponse { received_messages: messages.collect::<Result<_>>()? })
}

pub(super) fn is_pushed(door: &Door, queue: &QueueDefinition) -> Result<bool> {
    // Most queues are not: only where the word is there, the note is read.
    if !queue.notes.values().any(|note| note.contains("pushEndpoint")) {
        return Ok(false);
    }
    Ok(door.subscription_of(queue)?.push_config.is_some_and(|push| !push.push_endpoint.is_empty()))
}

/// Bytes that an answer with these messages takes at most: the message of gRPC, and for REST its JSON, where bytes
/// are in base64 and texts may be escaped.
pub(super) fn answer_bytes_max(deliveries: &[Delivery]) -> usize {
    let of = |Delivery { message, .. }: &Delivery| {
        let texts = message.attributes.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        4 * message.data.len() + 12 * (texts + message.ordering_key.len()) + MESSAGE_REST_BYTES
    };
    deliveries.iter().map(of).sum()
}

/// A message as its receiver gets it.
pub(super) fn given(door: &Door, queue: &QueueDefinition, delivery: Delivery) -> Result<ReceivedMessage> {
    let Delivery { received, message } = delivery;
    Ok(ReceivedMessage {
        ack_id: door.broker.seal(queue, &received.receipt)?,
        message: Some(message),
        delivery_attempt: if queue.settings.dead_letter.is_some() { received.attempts as i32 } else { 0 },
    })
}

/// The message itself, before the transforms of its subscription.
pub(super) fn message(door: &Door, received: &Received) -> PubsubMessage {
    let mut message = topics::received(received);
    add_source(door, received, &mut message);
    message
}

/// Where a dead letter comes from.
fn add_source(door: &Door, received: &Received, message: &mut PubsubMessage) {
    let Some(source) = received.source() else {
        return;
    };
    let source = door.names.outer(Kind::Subscription, source);
    let mut add = |name: &str, value: String| {
        message.attributes.insert(format!("CloudPubSubDeadLetterSource{name}"), value);
    };
    add("Subscription", source.id);
    add("SubscriptionProject", source.project);
    if let Some(count) = received.message.header(header::DELIVERIES) {
        add("DeliveryCount", count.to_owned());
    }
}

impl Door {
    /// Tells the queue what a subscriber says of messages.
    pub(super) async fn say(&self, queue: &QueueDefinition, said: &[(String, Said)]) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        let (mut done, mut held, mut back) = (Vec::new(), Vec::new(), Vec::new());
        for (ack_id, said) in said {
            match (self.broker.unseal(queue, ack_id), said) {
                (Ok(receipt), Said::Done) => done.push((ack_id, receipt)),
                (Ok(receipt), Said::Holds(0)) => back.push((ack_id, receipt)),
                (Ok(receipt), Said::Holds(ms)) => held.push((ack_id, receipt, *ms)),
                (Err(_), _) => {
                    outcome.forged.get_or_insert_with(|| ack_id.clone());
                    outcome.bad.push(ack_id.clone());
                }
            }
        }
        let name = queue.name.as_str();
        let mut note = |ack_id: &String, answer: Result<(), LeaseError>| match answer {
            Ok(()) => outcome.good.push(ack_id.clone()),
            Err(LeaseError::Gone | LeaseError::Expired | LeaseError::NotLeased | LeaseError::TooLong) => {
                outcome.bad.push(ack_id.clone());
            }
        };
        if !done.is_empty() {
            let receipts: Vec<Receipt> = done.iter().map(|(_, receipt)| *receipt).collect();
            let answers = self.broker.ack(name, &receipts).await?;
            self.streams.forget(name, &receipts);
            done.iter().zip(answers).for_each(|((ack_id, _), answer)| note(ack_id, answer));
        }
        if !held.is_empty() {
            let leases: Vec<(Receipt, u64)> = held.iter().map(|(_, receipt, ms)| (*receipt, *ms)).collect();
            let answers = self.broker.extend(name, &leases).await?;
            self.streams.extend(name, &leases);
            held.iter().zip(answers).for_each(|((ack_id, ..), answer)| note(ack_id, answer));
        }
        if !back.is_empty() {
            let leases: Vec<(Receipt, Option<u64>)> = back.iter().map(|(_, receipt)| (*receipt, None)).collect();
            let answers = self.broker.nack(name, &leases).await?;
            let receipts: Vec<Receipt> = back.iter().map(|(_, receipt)| *receipt).collect();
            self.streams.forget(name, &receipts);
            back.iter().zip(answers).for_each(|((ack_id, _), answer)| note(ack_id, answer));
        }
        Ok(outcome)
    }

    /// The same for a call of its own, which fails as the service does.
    async fn say_once(&self, name: &str, said: Vec<(String, Said)>) -> Result<()> {
        let name = Name::parse(Kind::Subscription, name)?;
        let Some(queue) = self.queue_to_pull(&name).await? else {
            return Ok(());
        };
        self.is_active(&queue);
        let outcome = self.say(&queue, &said).await?;
        if queue.settings.is_strict && !outcome.bad.is_empty() {
            let reasons: BTreeMap<String, String> =
                outcome.bad.into_iter().map(|ack_id| (ack_id, PERMANENT.to_owned())).collect();
            return Err(Failure { reasons, ..Failure::precondition(SOME_INVALID) });
        }
        match outcome.forged {
            Some(ack_id) => Err(Failure::invalid(format!("Invalid ack id (ack_id={ack_id})"))),
            None => Ok(()),
        }
    }
}

pub(super) async fn acknowledge(ask: Ask, request: AcknowledgeRequest) -> Result<()> {
    if request.ack_ids.is_empty() {
        return Err(Failure::invalid("No ack ids specified."));
    }
    let said = request.ack_ids.into_iter().map(|ack_id| (ack_id, Said::Done)).collect();
    ask.door.say_once(&request.subscription, said).await
}

pub(super) async fn modify_deadline(ask: Ask, request: ModifyAckDeadlineRequest) -> Result<()> {
    if request.ack_ids.is_empty() {
        return Err(Failure::invalid("No ack ids specified"));
    }
    let holds = holds(request.ack_deadline_seconds)?;
    let said = request.ack_ids.into_iter().map(|ack_id| (ack_id, holds)).collect();
    ask.door.say_once(&request.subscription, said).await
}

/// What a deadline of so many seconds means.
pub(super) fn holds(deadline_s: i32) -> Result<Said> {
    let seconds = u64::try_from(deadline_s).or(Err(Failure::invalid("Ack deadline cannot be negative")))?;
    match deadline_s <= ACK_DEADLINE_S_MAX {
        true => Ok(Said::Holds(seconds * SECOND_MS)),
        false => Err(Failure::invalid("ack_deadline_secs out of bounds")),
    }
}
