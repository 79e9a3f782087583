//! Pages about streams of Redis.

use broker::{StreamCounts, StreamGroup, StreamStatus};
use console::decode::Cut;
use console::pages::{stream, streams};
use console::parts::CELL_BYTES_MAX;
use console::shell::Page;
use engine::security::ResourceKind;

use super::super::errors::Result;
use super::{LIST_MAX, Visit};

/// Number of groups of a stream in its page.
const GROUPS_MAX: usize = 20;
/// Number of consumers, and of pending entries, of each of them.
const ROWS_MAX: usize = 10;

pub(super) async fn list(visit: Visit) -> Result<Page> {
    let query = visit.query(&["q", "after"])?;
    let text = query.text("q").unwrap_or_default();
    let after = query.text("after").unwrap_or_default();
    let shows = visit.shows(ResourceKind::Topic, text);
    let (found, is_last) = visit.http.broker.streams.statuses(&visit.names.beginning(after), LIST_MAX, shows)?;
    let row = |of: &StreamStatus| streams::Row {
        topic: visit.names.outer(of.topic.as_str()).to_owned(),
        counts: of.counts.as_ref().map(counts),
    };
    let rows = found.iter().map(row).collect();
    Ok(streams::page(&streams::Streams { rows, query: text.to_owned(), after: after.to_owned(), is_last }))
}

pub(super) async fn one(visit: Visit) -> Result<Page> {
    visit.query(&[])?;
    let (numbers, groups) = visit.http.broker.streams.describe(&visit.inner(), GROUPS_MAX, ROWS_MAX).await?;
    let groups = groups.iter().map(group).collect();
    Ok(stream::page(&stream::Stream { topic: visit.param(0).to_owned(), counts: counts(&numbers), groups }))
}

fn counts(of: &StreamCounts) -> streams::Counts {
    streams::Counts {
        entries: of.entries.map(|(entries, last)| (entries, last.to_string())),
        groups: of.groups,
        pending: of.pending,
    }
}

fn group(of: &StreamGroup) -> stream::Group {
    let cut = |bytes: &[u8]| Cut::new(bytes, CELL_BYTES_MAX);
    let consumer = |(name, seen_ms, pending): &(std::sync::Arc<[u8]>, u64, usize)| stream::Consumer {
        name: cut(name),
        seen_ms: *seen_ms,
        pending: *pending,
    };
    let pending = |of: &broker::PendingEntry| stream::Pending {
        id: of.id.to_string(),
        consumer: cut(&of.consumer),
        delivered_ms: of.delivered_ms,
        deliveries: of.deliveries,
    };
    stream::Group {
        name: cut(&of.name),
        last: of.last.to_string(),
        read: of.read,
        pending_count: of.pending_count,
        consumer_count: of.consumer_count,
        consumers: of.consumers.iter().map(consumer).collect(),
        pending: of.pending.iter().map(pending).collect(),
    }
}
