//! Ledger of a queue: each sent message is given out, and none after its acknowledgement.

use std::collections::HashMap;

use super::Violations;
use crate::history::{Micros, Outcome, QueueEvent};

#[derive(Default)]
struct Message {
    sent: Option<Outcome>,
    given: u64,
    /// Time by which an acknowledgement was known to be durable.
    acked: Option<Micros>,
    /// `true` if an acknowledgement was sent.
    is_acking: bool,
}

/// Checks a queue that was emptied after the last fault.
pub fn check(events: &[QueueEvent]) -> Violations {
    let mut messages: HashMap<u64, Message> = HashMap::new();
    for event in events {
        match *event {
            QueueEvent::Sent { id, outcome, .. } => messages.entry(id).or_default().sent = Some(outcome),
            QueueEvent::Given { id, .. } => messages.entry(id).or_default().given += 1,
            QueueEvent::Acked { id, outcome, end, .. } => {
                let message = messages.entry(id).or_default();
                message.is_acking = true;
                if outcome == Outcome::Ok {
                    message.acked = Some(message.acked.map_or(end, |acked| acked.min(end)));
                }
            }
        }
    }
    let mut found = Violations::default();
    for event in events {
        if let QueueEvent::Given { id, begin, .. } = *event {
            let message = &messages[&id];
            if message.acked.is_some_and(|acked| acked < begin) {
                found.add("given after ack", format!("message {id} at {begin}"));
            }
            if message.sent.is_none() {
                found.add("never sent", format!("message {id}"));
            }
        }
    }
    let mut lost: Vec<u64> = messages
        .iter()
        .filter(|(_, message)| message.sent == Some(Outcome::Ok) && message.given == 0 && !message.is_acking)
        .map(|(id, _)| *id)
        .collect();
    lost.sort_unstable();
    lost.iter().for_each(|id| found.add("lost", format!("message {id}")));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(id: u64, outcome: Outcome) -> QueueEvent {
        QueueEvent::Sent { id, outcome, begin: 0, end: 1 }
    }

    fn given(id: u64, begin: u64) -> QueueEvent {
        QueueEvent::Given { id, begin, end: begin + 1 }
    }

    fn acked(id: u64, begin: u64, outcome: Outcome) -> QueueEvent {
        QueueEvent::Acked { id, outcome, begin, end: begin + 1 }
    }

    #[test]
    fn a_message_may_be_given_again_until_its_acknowledgement_is_known() {
        let events = [
            sent(1, Outcome::Ok),
            given(1, 2),
            acked(1, 4, Outcome::Unknown),
            given(1, 8),
            acked(1, 10, Outcome::Ok),
            // It began before the acknowledgement had ended.
            given(1, 10),
            sent(2, Outcome::Unknown),
        ];
        assert!(check(&events).kinds().is_empty());
    }

    #[test]
    fn planted_violations_are_found() {
        assert_eq!(check(&[sent(1, Outcome::Ok)]).kinds(), ["lost"]);
        assert_eq!(check(&[given(1, 0)]).kinds(), ["never sent"]);
        let again = [sent(1, Outcome::Ok), given(1, 2), acked(1, 4, Outcome::Ok), given(1, 9)];
        assert_eq!(check(&again).kinds(), ["given after ack"]);
    }
}
