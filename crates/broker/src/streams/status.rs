//! Streams as an operator sees them: their entries, groups, consumers and pending entries.
//!
//! A stream is shown as it was when it was last used: it is not read up to the end of its log for that, so that a list
//! of many streams costs little.

use std::sync::Arc;

use engine::streams::{EntryId, Group};
use engine::{Error, Result, TopicName};

use super::{State, StreamCell, Streams};

/// Stream in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamStatus {
    pub topic: TopicName,
    /// Numbers of the stream; `None` if a client is using it at this moment.
    pub counts: Option<StreamCounts>,
}

/// Numbers of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamCounts {
    /// Number of entries, and the last id; `None` if no client has used the stream since startup.
    pub entries: Option<(u64, EntryId)>,
    pub groups: usize,
    /// Entries that were delivered to a group and not acknowledged.
    pub pending: usize,
}

/// Group of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamGroup {
    pub name: Box<[u8]>,
    /// Id of the last delivered entry.
    pub last: EntryId,
    /// Number of entries that were read, if it is known.
    pub read: Option<u64>,
    pub pending_count: usize,
    pub consumer_count: usize,
    /// First consumers, with the time at which each was last seen, in ms since 1970, and its number of pending entries.
    pub consumers: Vec<(Arc<[u8]>, u64, usize)>,
    /// Oldest pending entries.
    pub pending: Vec<PendingEntry>,
}

/// Entry that was delivered to a consumer and not acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingEntry {
    pub id: EntryId,
    pub consumer: Arc<[u8]>,
    /// Time of the last delivery, in ms since 1970.
    pub delivered_ms: u64,
    pub deliveries: u64,
}

impl Streams {
    /// Returns the first `count_max` topics after this name that were used as streams, in the order of their names, and
    /// `true` if no other follows.
    pub fn statuses(
        &self,
        after: &str,
        count_max: usize,
        is_shown: impl Fn(&str) -> bool,
    ) -> Result<(Vec<StreamStatus>, bool)> {
        self.check_restored()?;
        // One lock after the other: topics are deleted with theirs held.
        let cells: Vec<_> = self.table.cells.lock().iter().map(|(id, cell)| (*id, cell.clone())).collect();
        let mut all: Vec<_> = {
            let topics = self.core.topics.read();
            let named = |(id, cell)| Some((topics.get_by_id(id)?.name.clone(), cell));
            cells.into_iter().filter_map(named).collect()
        };
        all.retain(|(name, _)| name.as_str() > after && !name.is_hidden() && is_shown(name.as_str()));
        all.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let is_last = all.len() <= count_max;
        all.truncate(count_max);
        let status = |(topic, cell): (TopicName, Arc<StreamCell>)| StreamStatus {
            topic,
            counts: cell.state.try_lock().ok().map(|state| counts_of(&state)),
        };
        Ok((all.into_iter().map(status).collect(), is_last))
    }

    /// Returns the numbers of a stream and its first `groups_max` groups, each with at most `rows_max` consumers and
    /// pending entries.
    pub async fn describe(
        &self,
        name: &str,
        groups_max: usize,
        rows_max: usize,
    ) -> Result<(StreamCounts, Vec<StreamGroup>)> {
        self.check_restored()?;
        let id = self.core.topic(name)?.id;
        let cell = self.table.cells.lock().get(&id).cloned();
        let cell =
            cell.ok_or_else(|| Error::not_found(format!("topic {name} was not used as a stream since startup")))?;
        let state = cell.state.lock().await;
        let groups = state.groups.iter().take(groups_max).map(|(name, group)| group_of(name, group, rows_max));
        Ok((counts_of(&state), groups.collect()))
    }
}

fn counts_of(state: &State) -> StreamCounts {
    StreamCounts {
        entries: state.index.as_ref().map(|index| (index.len() - state.deleted.len() as u64, index.last())),
        groups: state.groups.len(),
        pending: state.groups.values().map(Group::pending_count).sum(),
    }
}

fn group_of(name: &[u8], group: &Group, rows_max: usize) -> StreamGroup {
    let pending = group.all_pending(EntryId::ZERO, EntryId::MAX).take(rows_max).map(|(id, pending)| PendingEntry {
        id,
        consumer: pending.consumer.clone(),
        delivered_ms: pending.delivered_ms,
        deliveries: pending.deliveries,
    });
    StreamGroup {
        name: name.into(),
        last: group.last(),
        read: group.read(),
        pending_count: group.pending_count(),
        consumer_count: group.consumers().len(),
        consumers: group.consumers().take(rows_max).map(|(name, seen, count)| (name.clone(), seen, count)).collect(),
        pending: pending.collect(),
    }
}
