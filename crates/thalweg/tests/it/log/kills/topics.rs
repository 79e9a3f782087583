//! Writer of one topic's settings: it creates, grows, alters and deletes the topic over and over.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use client::{Client, ErrorKind, Record, SettingsChange, TopicSettings};

use super::site::{Miss, Site, text};
use super::{Outcome, Tally, Writer};

const TOPIC: &str = "topics";
const RECORD_BYTES: usize = 100;
const PARTITIONS: u32 = 3;

/// Returns the writer.
pub fn writers() -> Vec<Box<dyn Writer>> {
    vec![Box::new(TopicWriter { tally: Tally::new(TOPIC), next: 0, known: None, unknown: None })]
}

/// Existing topic as a client sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Topic {
    partitions: u32,
    retention_ms: u64,
    records: Vec<String>,
}

/// Change of the topic.
enum Change {
    Create,
    Publish,
    Grow,
    Alter,
    Delete,
}

impl Change {
    /// Returns the change with this number. It follows the one before it.
    fn numbered(number: u64) -> Self {
        match number % 5 {
            0 => Self::Create,
            1 => Self::Publish,
            2 => Self::Grow,
            3 => Self::Alter,
            _ => Self::Delete,
        }
    }
}

/// Returns the retention that the alteration with this number sets: more than a day, and each time another one.
fn retention_ms(number: u64) -> u64 {
    100_000_000 + number
}

/// Writer of the topic's settings.
struct TopicWriter {
    tally: Arc<Tally>,
    /// Number of the next change.
    next: u64,
    /// The topic after the last acknowledged change; `None` if it does not exist.
    known: Option<Topic>,
    /// The topic after a change without an answer.
    unknown: Option<Option<Topic>>,
}

impl TopicWriter {
    /// Returns the topic after the next change.
    fn changed(&self) -> Option<Topic> {
        let number = self.next;
        let mut topic = self.known.clone().unwrap_or(Topic {
            partitions: 1,
            retention_ms: TopicSettings::on_disk().retention_ms,
            records: Vec::new(),
        });
        match Change::numbered(number) {
            Change::Create => {}
            Change::Publish => topic.records.push(text(TOPIC, number, RECORD_BYTES)),
            Change::Grow => topic.partitions = PARTITIONS,
            Change::Alter => topic.retention_ms = retention_ms(number),
            Change::Delete => return None,
        }
        Some(topic)
    }

    async fn change(&self, client: &Client) -> client::Result<()> {
        let number = self.next;
        match Change::numbered(number) {
            Change::Create => client.create_topic(TOPIC, TopicSettings::on_disk()).await.map(drop),
            Change::Publish => client.publish(TOPIC, Record::new(text(TOPIC, number, RECORD_BYTES))).await.map(drop),
            Change::Grow => client.grow_topic(TOPIC, PARTITIONS).await.map(drop),
            Change::Alter => {
                let change = SettingsChange { retention_ms: Some(retention_ms(number)), ..SettingsChange::default() };
                client.alter_topic(TOPIC, change).await.map(drop)
            }
            Change::Delete => client.delete_topic(TOPIC).await,
        }
    }

    fn acknowledge(&mut self, topic: Option<Topic>) {
        self.known = topic;
        self.next += 1;
    }
}

impl Writer for TopicWriter {
    fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    fn prepare(&mut self, _site: &Site) {}

    fn write(&mut self, site: &Site) -> Outcome {
        let client = site.client();
        while !site.has_ended() {
            let topic = self.changed();
            self.unknown = Some(topic.clone());
            let changed = site.wait("a change", self.change(&client));
            if changed.is_ok() {
                self.unknown = None;
                self.acknowledge(topic);
                self.tally.add(1);
            }
            if let ControlFlow::Break(outcome) = site.proceed(changed.map_err(Miss::from)) {
                return outcome;
            }
        }
        Ok(())
    }

    fn check(&mut self, site: &Site, _is_complete: bool) -> Outcome {
        let found = site.wait("the topic", look(&site.client())).map_err(|error| error.to_string())?;
        let unknown = self.unknown.take();
        if unknown.as_ref() == Some(&found) {
            self.acknowledge(found);
        } else if found != self.known {
            let known = &self.known;
            return Err(format!("it is {found:?}; acknowledged was {known:?}, changed after that to {unknown:?}"));
        }
        Ok(())
    }
}

/// Returns the topic; `None` if it does not exist.
async fn look(client: &Client) -> client::Result<Option<Topic>> {
    let info = match client.describe_topic(TOPIC).await {
        Err(error) if error.kind == ErrorKind::NotFound => return Ok(None),
        info => info?,
    };
    let mut records = Vec::new();
    for partition in 0..info.settings.partitions {
        let (_, _, batches) = client.fetch(TOPIC, partition, 0, Duration::ZERO).await?;
        for batch in batches {
            let values = batch.records()?;
            for record in &values {
                records.push(String::from_utf8_lossy(record?.value.unwrap_or_default()).into_owned());
            }
        }
    }
    Ok(Some(Topic { partitions: info.settings.partitions, retention_ms: info.settings.retention_ms, records }))
}
