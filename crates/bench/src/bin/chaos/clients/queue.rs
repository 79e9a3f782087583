//! Native clients of a queue: one that sends numbered messages, and receivers that acknowledge them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use client::{Client, LeaseAnswer, OutMessage, Queue, Receive};

use super::{AGAIN, Ending, outcome_of};
use crate::history::{History, Outcome, QueueEvent, now};
use crate::network::Outcome as Step;

const PAUSE: Duration = Duration::from_millis(20);
const LEASE: Duration = Duration::from_secs(3);
const WAIT: Duration = Duration::from_millis(500);
/// Maximum time to empty the queue after the last fault.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);

pub async fn send(client: Client, queue: &str, history: Arc<History<QueueEvent>>, mut ending: Ending) -> Step {
    let queue = client.queue(queue);
    for id in 0.. {
        if ending.has_begun() {
            break;
        }
        let begin = now();
        let sent = queue.send(OutMessage::new(id.to_string())).await;
        let outcome = sent.map_or_else(|error| outcome_of(&error), |_| Outcome::Ok);
        history.add(&QueueEvent::Sent { id, outcome, begin, end: now() });
        ending.pause(PAUSE).await;
    }
    Ok(())
}

/// Receives and acknowledges until the end.
pub async fn receive(client: Client, queue: &str, history: Arc<History<QueueEvent>>, mut ending: Ending) -> Step {
    let queue = client.queue(queue);
    while !ending.has_begun() {
        if take(&queue, &history).await.is_none() {
            ending.pause(AGAIN).await;
        }
    }
    Ok(())
}

/// Empties the queue: no message comes for longer than a lease.
pub async fn drain(client: &Client, queue: &str, history: &History<QueueEvent>) -> Step {
    let queue = client.queue(queue);
    let begin = Instant::now();
    let mut last = Instant::now();
    while last.elapsed() < 2 * LEASE {
        if begin.elapsed() > DRAIN_TIMEOUT {
            return Err(format!("the queue is not empty after {} s", DRAIN_TIMEOUT.as_secs()));
        }
        match take(&queue, history).await {
            Some(0) => {}
            Some(_) => last = Instant::now(),
            None => return Err("the queue does not answer after the last fault".to_owned()),
        }
    }
    Ok(())
}

/// Receives messages once and acknowledges them. Returns their number; `None` after an error.
async fn take(queue: &Queue, history: &History<QueueEvent>) -> Option<usize> {
    let receive = Receive { lease: Some(LEASE), wait: WAIT, ..Receive::default() };
    let begin = now();
    let received = queue.receive(&receive).await.ok()?;
    let end = now();
    let ids: Vec<u64> = received
        .messages
        .iter()
        .map(|received| String::from_utf8_lossy(&received.message.body).parse().unwrap_or(u64::MAX))
        .collect();
    ids.iter().for_each(|id| history.add(&QueueEvent::Given { id: *id, begin, end }));
    if ids.is_empty() {
        return Some(0);
    }
    let receipts: Vec<String> = received.messages.into_iter().map(|received| received.receipt).collect();
    let begin = now();
    let answers = queue.ack(&receipts).await;
    let end = now();
    for (at, id) in ids.iter().enumerate() {
        let outcome = match &answers {
            Ok(answers) => match answers.get(at) {
                Some(LeaseAnswer::Done) => Outcome::Ok,
                _ => Outcome::Refused,
            },
            Err(error) => outcome_of(error),
        };
        history.add(&QueueEvent::Acked { id: *id, outcome, begin, end });
    }
    answers.ok().map(|_| ids.len())
}
