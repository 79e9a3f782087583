//! Client under leader kills, for `cargo xtask compat cluster`: a publisher with numbered batches, and a consumer of a
//! group. Writes its history, as described in `xtask/src/compat/cluster/history.rs`.
//!
//! `cargo run -p thalweg-client --example failover -- HISTORY HOST:PORT..` runs until its input ends, and then reads
//! everything back.

use std::error::Error;
use std::fs::File;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use thalweg_client::{Acks, Client, Record, Storage, TopicName, TopicPartition, TopicSettings};
use tokio::sync::watch;
use tokio::task::JoinHandle;

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const TOPIC: &str = "native-publisher";
const GROUP: &str = "native";
const PARTITIONS: u32 = 3;
const KEYS: u64 = 8;
const PERIOD: Duration = Duration::from_millis(20);
/// Maximum time between two commits, and number of records between them.
const COMMIT_EVERY: Duration = Duration::from_millis(200);
const COMMIT_RECORDS: usize = 20;

/// History of this program: one JSON object per line. Its texts need no escapes.
struct History(File);

impl History {
    fn client(&self) -> Outcome {
        Ok(writeln!(&self.0, "{{\"op\":\"client\",\"version\":\"{}\"}}", env!("CARGO_PKG_VERSION"))?)
    }

    fn add(&self, op: &str, stream: &str, rest: &str) -> Outcome {
        // One write per line, so that the lines of two tasks do not mix.
        Ok((&self.0).write_all(format!("{{\"op\":\"{op}\",\"stream\":\"{stream}\"{rest}}}\n").as_bytes())?)
    }

    fn sent(&self, number: u64, is_ok: bool) -> Outcome {
        let outcome = if is_ok { "ok" } else { "unknown" };
        let rest = format!(",\"producer\":\"p\",\"number\":{number},\"outcome\":\"{outcome}\",\"at\":{}", now());
        self.add("sent", "publisher", &rest)
    }

    fn got(&self, stream: &str, reader: &str, partition: u32, offset: u64, value: &[u8]) -> Outcome {
        let text = std::str::from_utf8(value)?;
        let (producer, number) = text.split_once(':').ok_or("a record that was never sent")?;
        let rest = format!(
            ",\"reader\":\"{reader}\",\"lane\":\"{partition}\",\"id\":\"{offset}\",\"producer\":\"{producer}\",\
             \"number\":{number}"
        );
        self.add("got", stream, &rest)
    }

    fn committed(&self, op: &str, partition: u32, next: u64) -> Outcome {
        self.add(op, "group", &format!(",\"lane\":\"{partition}\",\"next\":{next},\"at\":{}", now()))
    }

    fn error(&self, stream: &str, error: &dyn std::fmt::Display) -> Outcome {
        let text: String = error.to_string().chars().filter(|c| *c != '"' && *c != '\\' && !c.is_control()).collect();
        self.add("error", stream, &format!(",\"error\":\"{text}\""))
    }
}

fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("arguments: HISTORY HOST:PORT..")?;
    let servers = args.map(|server| format!("tcp://{server}")).collect::<Vec<_>>().join(",");
    let history = Arc::new(History(File::options().create(true).append(true).open(path)?));
    history.client()?;
    let client = Client::connect(&servers).await?;
    let settings = TopicSettings { storage: Storage::Disk, partitions: PARTITIONS, ..TopicSettings::default() };
    client.create_topic(TOPIC, settings).await?;
    history.add("stream", "publisher", ",\"log\":true,\"numbered\":true,\"ordered\":true")?;
    history.add("stream", "group", ",\"log\":true,\"numbered\":true,\"from\":\"publisher\"")?;
    let (end, ending) = watch::channel(false);
    std::thread::spawn(move || {
        // An error ends the input, too.
        drop(std::io::stdin().read_to_end(&mut Vec::new()));
        end.send_replace(true);
    });
    // Each task has a client of its own, as two programs have.
    let publishing: JoinHandle<Outcome> = tokio::spawn(publish(client.clone(), history.clone(), ending.clone()));
    let (publish_end, published) = watch::channel(false);
    let consuming = tokio::spawn(consume(Client::connect(&servers).await?, history.clone(), published));
    publishing.await??;
    publish_end.send_replace(true);
    consuming.await??;
    for (at, offset) in client.committed_offsets(GROUP, &[]).await? {
        history.committed("position", at.partition, offset.offset)?;
    }
    read_back(&client, &history).await
}

async fn publish(client: Client, history: Arc<History>, ending: watch::Receiver<bool>) -> Outcome {
    let publisher = client.publisher(TOPIC).acks(Acks::Committed).open().await?;
    let mut turns = tokio::time::interval(PERIOD);
    let mut number = 0;
    while !*ending.borrow() {
        turns.tick().await;
        let record = Record::new(format!("p:{number}")).with_key(format!("k{}", number % KEYS));
        let of_history = history.clone();
        let told = move |delivered: thalweg_client::Result<thalweg_client::Delivered>| {
            let noted = of_history.sent(number, delivered.is_ok());
            let noted =
                noted.and_then(|()| delivered.map_or_else(|error| of_history.error("publisher", &error), |_| Ok(())));
            noted.unwrap_or_else(|error| eprintln!("the history: {error}"));
        };
        if let Err(error) = publisher.send_then(&record, told).await {
            history.error("publisher", &error)?;
        }
        number += 1;
    }
    // The outcome of each record is in the history.
    publisher.flush().await.or_else(|error| history.error("publisher", &error))
}

/// Member of a group, which commits after some records, and ends after the last one.
async fn consume(client: Client, history: Arc<History>, published: watch::Receiver<bool>) -> Outcome {
    let topic = TopicName::parse(TOPIC)?;
    let mut consumer = client.consumer(GROUP).topic(TOPIC).auto_commit(None).open().await?;
    let mut done = vec![0; PARTITIONS as usize];
    let mut ends: Option<Vec<u64>> = None;
    while !ends.as_ref().is_some_and(|ends| done.iter().zip(ends).all(|(at, end)| at >= end)) {
        if ends.is_none() && *published.borrow() {
            ends = Some(client.describe_topic(TOPIC).await?.partitions.iter().map(|of| of.end).collect());
        }
        let mut next: Vec<Option<u64>> = vec![None; PARTITIONS as usize];
        let gather = async {
            for _ in 0..COMMIT_RECORDS {
                match consumer.next().await {
                    Ok(message) => {
                        let (partition, offset) = (message.partition, message.record.offset);
                        history.got("group", "group", partition, offset, message.record.value())?;
                        next[partition as usize] = Some(offset + 1);
                    }
                    Err(error) => history.error("group", &error)?,
                }
            }
            Outcome::Ok(())
        };
        // A call of `next` may be dropped: the record is returned by a later one.
        tokio::time::timeout(COMMIT_EVERY, gather).await.unwrap_or(Ok(()))?;
        let offset = |(partition, next): (usize, &Option<u64>)| {
            let at = TopicPartition { topic: topic.clone(), partition: partition as u32 };
            next.map(|next| (at, next, String::new()))
        };
        let offsets: Vec<_> = next.iter().enumerate().filter_map(offset).collect();
        if offsets.is_empty() {
            continue;
        }
        match consumer.commit_offsets(&offsets).await {
            Ok(()) => {
                for (at, next, _) in offsets {
                    history.committed("committed", at.partition, next)?;
                    done[at.partition as usize] = next;
                }
            }
            // The partitions may have been assigned again: a later commit includes these records.
            Err(error) => history.error("group", &error)?,
        }
    }
    Ok(consumer.close().await?)
}

async fn read_back(client: &Client, history: &History) -> Outcome {
    for partition in 0..PARTITIONS {
        let mut next = 0;
        loop {
            let (_, end, batches) = client.fetch(TOPIC, partition, next, COMMIT_EVERY).await?;
            for batch in batches {
                next = batch.next_offset();
                for record in &batch.records()? {
                    let record = record?;
                    for stream in ["publisher", "group"] {
                        history.got(stream, "final", partition, record.offset, record.value.unwrap_or_default())?;
                    }
                }
            }
            if next >= end {
                break;
            }
        }
    }
    Ok(())
}
