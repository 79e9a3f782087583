//! Native clients: open-loop publishers of numbered records, and a subscriber.

use std::sync::Arc;
use std::time::{Duration, Instant};

use client::{Acks, Client, Record, Start};
use tokio::time::{MissedTickBehavior, interval};

use super::{AGAIN, Ending, REQUEST_TIMEOUT, SharedProgress, outcome_of};
use crate::history::{History, LogEvent, Outcome, now};
use crate::network::Outcome as Step;

/// Records per second of one publisher.
const RATE: f64 = 200.0;
const TURN: Duration = Duration::from_millis(5);
/// Maximum time of a publisher's last acknowledgements.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(30);
const READ_WAIT: Duration = Duration::from_millis(200);

/// Publishes numbered records at a constant rate, whatever the cluster does.
pub async fn publish(
    client: Client,
    topic: &str,
    producer: String,
    history: Arc<History<LogEvent>>,
    progress: SharedProgress,
    ending: Ending,
) -> Step {
    let publisher = client.publisher(topic).acks(Acks::Committed).delivery_timeout(REQUEST_TIMEOUT).open().await;
    let publisher = publisher.map_err(|error| format!("{producer}: {error}"))?;
    let begin = Instant::now();
    let mut turns = interval(TURN);
    turns.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut number = 0;
    while !ending.has_begun() {
        turns.tick().await;
        while number < (begin.elapsed().as_secs_f64() * RATE) as u64 && !ending.has_begun() {
            let sent = now();
            progress.sends();
            let record = Record::new(format!("{producer}:{number}")).with_key(format!("k{}", number % 16));
            let (of_history, of_progress, name) = (history.clone(), progress.clone(), producer.clone());
            let told = move |delivered: client::Result<client::Delivered>| {
                let (partition, offset, outcome) = match &delivered {
                    Ok(delivered) => (delivered.partition, Some(delivered.offset), Outcome::Ok),
                    Err(error) => (0, None, outcome_of(error)),
                };
                if outcome == Outcome::Ok {
                    of_progress.acknowledged(sent);
                }
                let end = now();
                of_history.add(&LogEvent::Sent {
                    producer: name,
                    number,
                    partition,
                    offset,
                    outcome,
                    begin: sent,
                    end,
                });
            };
            // An error is the outcome of this record too, which was not sent then.
            if let Err(error) = publisher.send_then(&record, told).await {
                let outcome = outcome_of(&error);
                let (producer, end) = (producer.clone(), now());
                let event = LogEvent::Sent { producer, number, partition: 0, offset: None, outcome, begin: sent, end };
                history.add(&event);
            }
            number += 1;
        }
    }
    // The outcome of each record is in the history.
    tokio::time::timeout(FLUSH_TIMEOUT, publisher.flush()).await.map(|flushed| flushed.unwrap_or_default()).map_err(
        |error| format!("{producer} has records without an outcome after {} s: {error}", FLUSH_TIMEOUT.as_secs()),
    )
}

/// Subscribes to a topic from its beginning, and notes each record that it receives.
pub async fn subscribe(client: Client, topic: &str, history: Arc<History<LogEvent>>, mut ending: Ending) -> Step {
    // A reader of its own for each subscription that had to be opened again.
    for attempt in 0.. {
        let reader = format!("subscriber-{attempt}");
        if let Ok(mut subscription) = client.subscribe(topic).start(Start::Earliest).open().await {
            loop {
                let message = tokio::select! {
                    message = subscription.next() => message,
                    () = ending.pause(Duration::MAX) => return Ok(()),
                };
                let Ok(message) = message else { break };
                let (producer, number) = parse(message.record.value())?;
                let (partition, offset) = (message.partition, message.record.offset);
                history.add(&LogEvent::Read { reader: reader.clone(), partition, offset, producer, number });
            }
        }
        ending.pause(AGAIN).await;
        if ending.has_begun() {
            return Ok(());
        }
    }
    Ok(())
}

/// Reads a topic from its beginning to its end.
pub async fn read(client: &Client, topic: &str, reader: &str, history: &History<LogEvent>) -> Step<u64> {
    let mut count = 0;
    let topic_info = client.describe_topic(topic).await.map_err(|error| format!("{topic}: {error}"))?;
    for partition in 0..topic_info.settings.partitions {
        let mut next = 0;
        loop {
            let fetched = client.fetch(topic, partition, next, READ_WAIT).await;
            let (_, end, batches) = fetched.map_err(|error| format!("{topic} {partition} at {next}: {error}"))?;
            for batch in &batches {
                next = batch.next_offset();
                if batch.is_control() {
                    continue;
                }
                let records = batch.records().map_err(|error| format!("{topic}: {error}"))?;
                for record in &records {
                    let record = record.map_err(|error| format!("{topic}: {error}"))?;
                    let (producer, number) = parse(record.value.unwrap_or_default())?;
                    let (reader, offset) = (reader.to_owned(), record.offset);
                    history.add(&LogEvent::Read { reader, partition, offset, producer, number });
                    count += 1;
                }
            }
            if next >= end {
                break;
            }
        }
    }
    Ok(count)
}

/// Splits the value of a record into its producer and its number.
fn parse(value: &[u8]) -> Step<(String, u64)> {
    let text = String::from_utf8_lossy(value);
    let parsed = text.rsplit_once(':').and_then(|(producer, number)| Some((producer.to_owned(), number.parse().ok()?)));
    parsed.ok_or_else(|| format!("a record with the value '{text}' was never sent"))
}
