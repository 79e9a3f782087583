//! Load: a publisher that sends records when they are due, and subscribers that note when each arrives.

use std::time::{Duration, Instant};

use bench::Alarm;
use bench::wan::Outcome;
use client::{Acks, Client, Record, Start};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::timeout_at;

use crate::runtime::ended;
use crate::sites::{LOCAL_TOPIC, PUBLISHER, READERS, SITES, Sites, TOPICS};

/// Maximum time that the last record of a phase takes to arrive.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time after the last record in which duplicates would arrive.
const AFTERWARDS: Duration = Duration::from_millis(300);
/// Bytes of a record.
const RECORD_BYTES: usize = 100;

/// Records that are published one after the other, each when it is due.
#[derive(Clone, Copy)]
pub struct Phase {
    pub name: &'static str,
    pub topic: &'static str,
    pub count: u64,
    pub interval: Duration,
}

/// Record that was published.
pub struct Sent {
    pub due: Instant,
    /// Time at which it was given to the client.
    pub sent: Instant,
}

/// Record that a subscriber received.
pub struct Received {
    phase: String,
    pub number: u64,
    /// Site of the subscriber.
    pub reader: usize,
    pub at: Instant,
}

/// Everything that was sent and received in a phase, in the order of arrival.
pub struct Samples {
    pub sent: Vec<Sent>,
    pub received: Vec<Received>,
}

impl Phase {
    /// Returns the sites with subscribers of its topic.
    pub fn readers(&self) -> &'static [usize] {
        if self.topic == LOCAL_TOPIC { &[PUBLISHER] } else { &READERS }
    }
}

/// Subscribes to both topics at every reader, and to the local one. All received records are sent to one queue.
pub async fn subscribe(sites: &Sites, queue: &UnboundedSender<Outcome<Received>>) -> Outcome {
    subscribe_to(sites, PUBLISHER, LOCAL_TOPIC, queue).await?;
    for reader in READERS {
        for topic in TOPICS {
            subscribe_to(sites, reader, topic, queue).await?;
        }
    }
    Ok(())
}

async fn subscribe_to(
    sites: &Sites,
    reader: usize,
    topic: &'static str,
    queue: &UnboundedSender<Outcome<Received>>,
) -> Outcome {
    let opened = sites.call(reader, async move |client| client.subscribe(topic).start(Start::Live).open().await);
    let mut subscription = opened.await?;
    let queue = queue.clone();
    // The task ends with the runtime of its site.
    drop(sites.runtime(reader).spawn(async move {
        loop {
            let message = subscription.next().await;
            let at = Instant::now();
            let received = match &message {
                Ok(message) => parse(&message.record, reader, at),
                Err(error) => Err(format!("a subscriber of {topic}: {error}")),
            };
            // After the queue was closed, the run has ended.
            if queue.send(received).is_err() || message.is_err() {
                return Ok(());
            }
        }
    }));
    Ok(())
}

/// Publishes the records of a phase, and waits until all subscribers have all of them, or for a time.
pub async fn run(phase: Phase, sites: &Sites, queue: &mut UnboundedReceiver<Outcome<Received>>) -> Outcome<Samples> {
    let publisher = sites.runtime(PUBLISHER).spawn(publish(sites.client(PUBLISHER), phase));
    let length = phase.interval * phase.count as u32;
    let deadline = Instant::now() + length + PATIENCE;
    let expected = phase.count as usize * phase.readers().len();
    let mut received = Vec::with_capacity(expected);
    let mut has_arrived = vec![vec![false; phase.count as usize]; SITES.len()];
    let mut until = deadline;
    let mut left = expected;
    while let Ok(next) = timeout_at(until.into(), queue.recv()).await {
        let next = next.ok_or("the subscribers have ended")??;
        // A record of an earlier phase was counted as lost there.
        if next.phase != phase.name {
            continue;
        }
        let seen =
            has_arrived[next.reader].get_mut(next.number as usize).ok_or("a record arrived that was not sent")?;
        left -= usize::from(!*seen);
        *seen = true;
        received.push(next);
        if left == 0 && until == deadline {
            until = Instant::now() + AFTERWARDS;
        }
    }
    Ok(Samples { sent: ended(publisher).await?, received })
}

/// Publishes the records of a phase, the first of them immediately.
async fn publish(client: Client, phase: Phase) -> Outcome<Vec<Sent>> {
    let of_publisher = |error: client::Error| format!("the publisher of {}: {error}", phase.topic);
    let publisher = client.publisher(phase.topic).acks(Acks::Accepted).open().await.map_err(of_publisher)?;
    let mut alarm = Alarm::new().map_err(|error| format!("no timer: {error}"))?;
    let begin = Instant::now() + phase.interval;
    let mut all = Vec::with_capacity(phase.count as usize);
    for number in 0..phase.count {
        let due = begin + phase.interval * number as u32;
        let record = Record::new(format!("{:<RECORD_BYTES$}", format!("{} {number} ", phase.name)));
        alarm.wait(due).await.map_err(|error| format!("a timer failed: {error}"))?;
        let sent = Instant::now();
        publisher.send(&record).await.map_err(of_publisher)?;
        all.push(Sent { due, sent });
    }
    publisher.flush().await.map_err(of_publisher)?;
    Ok(all)
}

fn parse(record: &Record, reader: usize, at: Instant) -> Outcome<Received> {
    let words = std::str::from_utf8(record.value()).ok().and_then(|text| {
        let mut words = text.split(' ');
        Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
    });
    let (phase, number) = words.ok_or_else(|| format!("{} received a record that was not sent", SITES[reader]))?;
    Ok(Received { phase, number, reader, at })
}
