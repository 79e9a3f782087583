//! Delivery of messages by pull, acknowledgements, and changes of deadlines. Streaming pull is in `stream.rs`.

use std::collections::BTreeMap;
use std::time::Duration;

use broker::{FREE_BYTES, Receipt, Receive, Received};
use engine::queue::{LeaseError, QueueDefinition, header};
use engine::security::Operation;
use tokio::time::Instant;

use super::access::{Need, authorize};
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

/// Maximum wait of a pull for its first message.
const PULL_WAIT: Duration = Duration::from_secs(10);
/// Time by which a pull is answered before the client's deadline.
const MARGIN: Duration = Duration::from_millis(200);
/// Maximum wait of a response for memory.
pub(super) const ROOM_WAIT: Duration = Duration::from_secs(5);
/// Bytes of a message in a response in addition to its contents: ids and times.
const MESSAGE_REST_BYTES: usize = 512;
const PULL_MESSAGES_MAX: usize = 1000;
const PULL_BYTES_MAX: usize = 10 << 20;

const PERMANENT: &str = "PERMANENT_FAILURE_INVALID_ACK_ID";
const SOME_INVALID: &str = "Some acknowledgement ids in the request were invalid. This could be because the \
                            acknowledgement ids have expired or the acknowledgement ids were malformed.";

/// Acknowledgement, or change of the deadline, of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settlement {
    Done,
    /// New duration of the lease, ms; 0 returns the message to the queue.
    Holds(u64),
}

/// Outcomes of a subscriber's acknowledgements, by acknowledgement id.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub good: Vec<String>,
    /// Ids whose lease does not exist or has expired.
    pub bad: Vec<String>,
    /// First id that this broker did not issue.
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
    let needs = [Need::on(Operation::Read, &request.subscription)];
    let check = || authorize(&ask, &needs);
    let received = ask.door.broker.security.while_permitted(check, ask.door.receive(&queue, &receive));
    let deliveries = drain.or_begun(received).await.transpose()?.transpose()?.unwrap_or_default();
    let bytes = answer_bytes_max(&deliveries);
    if bytes > FREE_BYTES {
        match answers.take(Some(ask.address), bytes, ROOM_WAIT).await {
            Ok(held) => *ask.held.lock() = Some(held),
            Err(error) => {
                let received = deliveries.into_iter().map(|delivery| delivery.received).collect();
                ask.door.broker.queues.untake(queue.name.as_str(), received).await?;
                return Err(error.into());
            }
        }
    }
    let messages = deliveries.into_iter().map(|delivery| given(&ask.door, &queue, delivery));
    Ok(PullResponse { received_messages: messages.collect::<Result<_>>()? })
}

pub(super) fn is_pushed(door: &Door, queue: &QueueDefinition) -> Result<bool> {
    // Most queues are not pushed: the note is parsed only if it contains this word.
    if !queue.notes.values().any(|note| note.contains("pushEndpoint")) {
        return Ok(false);
    }
    Ok(door.subscription_of(queue)?.push_config.is_some_and(|push| !push.push_endpoint.is_empty()))
}

/// Returns an upper bound of the bytes of a response with these messages: of the gRPC message, and of its JSON in REST,
/// where bytes are in base64 and strings may be escaped.
pub(super) fn answer_bytes_max(deliveries: &[Delivery]) -> usize {
    let of = |Delivery { message, .. }: &Delivery| {
        let texts = message.attributes.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        4 * message.data.len() + 12 * (texts + message.ordering_key.len()) + MESSAGE_REST_BYTES
    };
    deliveries.iter().map(of).sum()
}

/// Returns a message in the form that is sent to its receiver.
pub(super) fn given(door: &Door, queue: &QueueDefinition, delivery: Delivery) -> Result<ReceivedMessage> {
    let Delivery { received, message } = delivery;
    Ok(ReceivedMessage {
        ack_id: door.broker.queues.seal(queue, &received.receipt)?,
        message: Some(message),
        delivery_attempt: if queue.settings.dead_letter.is_some() { received.attempts as i32 } else { 0 },
    })
}

/// Returns the message before the transforms of its subscription are applied.
pub(super) fn message(door: &Door, received: &Received) -> PubsubMessage {
    let mut message = topics::received(received);
    add_source(door, received, &mut message);
    message
}

/// Adds the source of a dead letter to its attributes.
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
    /// Applies a subscriber's acknowledgements and deadline changes to the queue.
    pub(super) async fn settle(
        &self,
        queue: &QueueDefinition,
        settlements: &[(String, Settlement)],
    ) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        let mut done = Vec::new();
        let mut held = Vec::new();
        let mut back = Vec::new();
        for (ack_id, settlement) in settlements {
            match (self.broker.queues.unseal(queue, ack_id), settlement) {
                (Ok(receipt), Settlement::Done) => done.push((ack_id, receipt)),
                (Ok(receipt), Settlement::Holds(0)) => back.push((ack_id, receipt)),
                (Ok(receipt), Settlement::Holds(ms)) => held.push((ack_id, receipt, *ms)),
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
            let answers = self.broker.queues.ack(name, &receipts).await?;
            self.streams.forget(name, &receipts);
            done.iter().zip(answers).for_each(|((ack_id, _), answer)| note(ack_id, answer));
        }
        if !held.is_empty() {
            let leases: Vec<(Receipt, u64)> = held.iter().map(|(_, receipt, ms)| (*receipt, *ms)).collect();
            let answers = self.broker.queues.extend(name, &leases).await?;
            self.streams.extend(name, &leases);
            held.iter().zip(answers).for_each(|((ack_id, ..), answer)| note(ack_id, answer));
        }
        if !back.is_empty() {
            let leases: Vec<(Receipt, Option<u64>)> = back.iter().map(|(_, receipt)| (*receipt, None)).collect();
            let answers = self.broker.queues.nack(name, &leases).await?;
            let receipts: Vec<Receipt> = back.iter().map(|(_, receipt)| *receipt).collect();
            self.streams.forget(name, &receipts);
            back.iter().zip(answers).for_each(|((ack_id, _), answer)| note(ack_id, answer));
        }
        Ok(outcome)
    }

    /// Applies the acknowledgements of a unary call, which fails as it does at Google's service.
    async fn settle_once(&self, name: &str, settlements: Vec<(String, Settlement)>) -> Result<()> {
        let name = Name::parse(Kind::Subscription, name)?;
        let Some(queue) = self.queue_to_pull(&name).await? else {
            return Ok(());
        };
        self.is_active(&queue);
        let outcome = self.settle(&queue, &settlements).await?;
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
    let settlements = request.ack_ids.into_iter().map(|ack_id| (ack_id, Settlement::Done)).collect();
    ask.door.settle_once(&request.subscription, settlements).await
}

pub(super) async fn modify_deadline(ask: Ask, request: ModifyAckDeadlineRequest) -> Result<()> {
    if request.ack_ids.is_empty() {
        return Err(Failure::invalid("No ack ids specified"));
    }
    let holds = holds(request.ack_deadline_seconds)?;
    let settlements = request.ack_ids.into_iter().map(|ack_id| (ack_id, holds)).collect();
    ask.door.settle_once(&request.subscription, settlements).await
}

/// Converts a deadline in seconds.
pub(super) fn holds(deadline_s: i32) -> Result<Settlement> {
    let seconds = u64::try_from(deadline_s).or(Err(Failure::invalid("Ack deadline cannot be negative")))?;
    if deadline_s <= ACK_DEADLINE_S_MAX {
        Ok(Settlement::Holds(seconds * SECOND_MS))
    } else {
        Err(Failure::invalid("ack_deadline_secs out of bounds"))
    }
}
