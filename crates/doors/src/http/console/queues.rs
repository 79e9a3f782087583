//! Pages about queues.

use broker::{Peeked, QueueCounts, Redrive, RedriveState};
use console::decode::Cut;
use console::pages::{queue, queues};
use console::parts::CELL_BYTES_MAX;
use console::shell::Page;
use engine::queue::{QueueDefinition, SettingValue};
use engine::security::{Operation, ResourceKind};
use engine::{ErrorKind, TopicName};

use super::super::errors::Result;
use super::super::queues::{phase_name, redrive_state};
use super::{LIST_MAX, Visit};

/// Number of messages that the page of a queue shows.
const PEEKED: usize = 16;
/// Maximum number of redrives that it shows.
const REDRIVES_MAX: usize = 20;

pub(super) async fn list(visit: Visit) -> Result<Page> {
    let query = visit.query(&["q", "after"])?;
    let text = query.text("q").unwrap_or_default();
    let after = query.text("after").unwrap_or_default();
    let shows = visit.shows(ResourceKind::Queue, text);
    let names = &visit.names;
    let broker = &visit.http.broker;
    let (found, is_last) = broker.queues.list(&names.beginning(""), &names.beginning(after), LIST_MAX, shows).await?;
    let mut rows = Vec::with_capacity(found.len());
    for definition in &found {
        rows.push(queues::Row {
            name: names.outer(definition.name.as_str()).to_owned(),
            topic: names.outer(definition.topic.as_str()).to_owned(),
            counts: counts(&visit, definition).await?.map(|counts| shown(&visit, &counts)),
            dead_letter: dead_letter(&visit, definition),
        });
    }
    Ok(queues::page(&queues::Queues { rows, query: text.to_owned(), after: after.to_owned(), is_last }))
}

pub(super) async fn one(visit: Visit) -> Result<Page> {
    visit.query(&[])?;
    let broker = &visit.http.broker;
    let name = visit.inner();
    let definition = broker.queues.get(&name).await?;
    let counts = counts(&visit, &definition).await?;
    let setting = |(setting, value): (&'static str, SettingValue)| {
        let value = match value {
            SettingValue::Count(count) => count.to_string(),
            SettingValue::Flag(flag) => flag.to_string(),
            SettingValue::Text(text) if setting == "dead_letter" => visit.names.outer(&text).to_owned(),
            SettingValue::Text(text) => text.to_string(),
        };
        (setting, value)
    };
    let redrives = broker.queues.redrives(&name);
    Ok(queue::page(&queue::Queue {
        name: visit.param(0).to_owned(),
        topic: visit.names.outer(definition.topic.as_str()).to_owned(),
        owns_topic: definition.owns_topic,
        created_ms: definition.created_ms,
        bytes: counts.as_ref().map_or(0, |counts| counts.bytes),
        messages: if counts.is_some() && !visit.is_live { peek(&visit, &name).await } else { Ok(Vec::new()) },
        counts: counts.map(|counts| shown(&visit, &counts)),
        settings: definition.settings.named().into_iter().map(setting).collect(),
        redrives: redrives.iter().take(REDRIVES_MAX).map(|redrive| moved(&visit, redrive)).collect(),
    }))
}

/// Returns the first messages, or the reason why the client may not see them.
async fn peek(visit: &Visit, name: &str) -> Result<Vec<queue::Message>, String> {
    let broker = &visit.http.broker;
    let peeked = async {
        broker.authorize_queue(visit.identity(), Operation::Read, name).await?;
        broker.queues.peek(name, None, PEEKED).await
    };
    let message = |peeked: &Peeked| queue::Message {
        id: peeked.id.to_string(),
        state: phase_name(peeked.phase),
        attempts: peeked.attempts,
        due_ms: peeked.due_ms,
        body: Cut::new(peeked.message.body(), CELL_BYTES_MAX),
    };
    peeked.await.map(|found| found.iter().map(message).collect()).map_err(|error| error.message)
}

/// Returns the numbers of a queue; `None` if its topic was deleted, or if the queue cannot begin again over a new one
/// yet.
async fn counts(visit: &Visit, definition: &QueueDefinition) -> Result<Option<QueueCounts>> {
    match visit.http.broker.queues.counts(definition.name.as_str()).await {
        Ok(counts) => Ok(Some(counts)),
        Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Busy) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn shown(visit: &Visit, counts: &QueueCounts) -> queues::Counts {
    let now_ms = visit.http.broker.now_ms();
    queues::Counts {
        waiting: counts.visible,
        leased: counts.in_flight,
        delayed: counts.delayed,
        oldest_ms: counts.oldest_ms.map(|sent_ms| now_ms.saturating_sub(sent_ms)),
    }
}

fn dead_letter(visit: &Visit, definition: &QueueDefinition) -> Option<String> {
    let topic = definition.settings.dead_letter.as_ref().map(TopicName::as_str)?;
    Some(visit.names.outer(topic).to_owned())
}

fn moved(visit: &Visit, redrive: &Redrive) -> queue::Redrive {
    let to = redrive.to.as_deref().map(|to| visit.names.outer(to).to_owned());
    queue::Redrive {
        id: redrive.id.to_string(),
        to: to.unwrap_or_else(|| "where each came from".to_owned()),
        state: redrive_state(redrive).to_owned(),
        moved: redrive.moved,
        to_move: redrive.to_move,
        rate: redrive.rate,
        started_ms: redrive.started_ms,
        failure: redrive.failure.clone(),
        is_running: redrive.state == RedriveState::Running,
    }
}
