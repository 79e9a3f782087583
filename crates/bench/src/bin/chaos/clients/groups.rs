//! Client that commits ascending offsets for a group and reads them back.

use std::sync::Arc;
use std::time::Duration;

use client::{Client, TopicName, TopicPartition};

use super::{Ending, outcome_of};
use crate::history::{GroupEvent, History, Outcome, now};
use crate::network::Outcome as Step;

const GROUP: &str = "chaos";
const PARTITIONS: u32 = 2;
const PAUSE: Duration = Duration::from_millis(50);

/// Commits until the end. The offsets need not exist.
pub async fn commit(client: Client, topic: &str, history: Arc<History<GroupEvent>>, mut ending: Ending) -> Step {
    let topic = TopicName::parse(topic).map_err(|error| error.to_string())?;
    for offset in 1.. {
        if ending.has_begun() {
            break;
        }
        for partition in 0..PARTITIONS {
            let at = TopicPartition { topic: topic.clone(), partition };
            let begin = now();
            let committed = client.commit_offsets(GROUP, &[(at, offset)]).await;
            let outcome = committed.map_or_else(|error| outcome_of(&error), |()| Outcome::Ok);
            history.add(&GroupEvent::Committed { partition, offset, outcome, begin, end: now() });
        }
        if offset % 3 == 0 {
            // A cluster without a leader answers later.
            fetch(&client, &topic, &history).await.unwrap_or_default();
        }
        ending.pause(PAUSE).await;
    }
    Ok(())
}

/// Reads the committed offsets after the last fault.
pub async fn read(client: &Client, topic: &str, history: &History<GroupEvent>) -> Step {
    let topic = TopicName::parse(topic).map_err(|error| error.to_string())?;
    fetch(client, &topic, history).await
}

async fn fetch(client: &Client, topic: &TopicName, history: &History<GroupEvent>) -> Step {
    let begin = now();
    let found = client.committed_offsets(GROUP, &[]).await.map_err(|error| format!("offsets of a group: {error}"))?;
    let end = now();
    for partition in 0..PARTITIONS {
        let at = TopicPartition { topic: topic.clone(), partition };
        let offset = found.iter().find(|(found, _)| *found == at).map_or(0, |(_, committed)| committed.offset);
        history.add(&GroupEvent::Fetched { partition, offset, begin, end });
    }
    Ok(())
}
