//! Collection and checks of the records of subscriptions.

use std::collections::HashMap;

use client::{Batch, Client, Event, Message, Missing, Record, Start, Subscription};
use engine::RecordBatch;
use wire::Push;

use super::server::within;

/// Opens a subscription of a topic, which it creates, or of a pattern.
pub async fn subscribe(client: &Client, topic: &str, start: Start) -> Subscription {
    let open = client.subscribe(topic).start(start).missing(Missing::Create).open();
    within("subscribe", open).await.expect("a subscription")
}

/// Publishes values one by one, each acknowledged.
pub async fn publish(client: &Client, topic: &str, values: impl IntoIterator<Item = impl ToString>) {
    for value in values {
        let record = Record::new(value.to_string());
        within("publish", client.publish(topic, record)).await.expect("published");
    }
}

/// Returns the next records of a subscription.
pub async fn take(subscription: &mut Subscription, count: usize) -> Vec<Message> {
    let mut messages = Vec::with_capacity(count);
    while messages.len() < count {
        messages.push(within("a record", subscription.next()).await.expect("a record"));
    }
    messages
}

/// Returns the values of the next records.
pub async fn values(subscription: &mut Subscription, count: usize) -> Vec<String> {
    take(subscription, count).await.iter().map(|message| text(message.record.value())).collect()
}

pub async fn next_event(subscription: &mut Subscription) -> Event {
    within("an event", subscription.next_event()).await.expect("an event")
}

pub fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

/// Returns the values of a batch, without those before the first wanted record.
pub fn batch_values(batch: &Batch) -> Vec<String> {
    let records = batch.records().expect("records");
    records.iter().map(|record| text(record.expect("a record").value.unwrap_or_default())).collect()
}

/// Check of a topic's partitions that fails if a record is missing or duplicated.
#[derive(Default)]
pub struct Contiguous {
    next: HashMap<u32, u64>,
}

impl Contiguous {
    pub fn starting_at(partition: u32, offset: u64) -> Self {
        Self { next: HashMap::from([(partition, offset)]) }
    }

    pub fn see(&mut self, message: &Message) {
        let expected = *self.next.entry(message.partition).or_insert(message.record.offset);
        assert_eq!(message.record.offset, expected, "partition {} goes on where it was", message.partition);
        self.next.insert(message.partition, expected + 1);
    }
}

/// Returns the offsets of a push: start, end, and `true` if it is a gap.
pub fn span(push: &Push) -> (u64, u64, bool) {
    match push {
        Push::Deliver { batch, .. } => {
            let batch = RecordBatch::parse(batch.clone()).expect("a whole batch");
            (batch.base_offset(), batch.next_offset(), false)
        }
        Push::Gap { from, to, .. } => (*from, *to, true),
        other => panic!("neither records nor a gap: {other:?}"),
    }
}

/// Returns the spans of several pushes, with adjacent spans of a kind merged.
pub fn spans(pushes: &[Push]) -> Vec<(u64, u64, bool)> {
    let mut spans: Vec<(u64, u64, bool)> = Vec::new();
    for push in pushes {
        let next = span(push);
        match spans.last_mut() {
            Some(last) if last.1 == next.0 && last.2 == next.2 => last.1 = next.1,
            _ => spans.push(next),
        }
    }
    spans
}
