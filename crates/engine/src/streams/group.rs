//! The state machine of a group of a stream: how far it has come, and who has which entries.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{EntryId, StreamRecord};
use crate::error::{Error, Result};
use crate::ids::TopicId;

/// Consumers of one group.
pub const CONSUMERS_MAX: usize = 4096;
/// Entries of one group that were given out and not acknowledged.
pub const PENDING_MAX: usize = 1 << 20;

/// An entry that was given to a consumer who has not acknowledged it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    pub consumer: Arc<[u8]>,
    /// When it was given out last, ms since 1970.
    pub delivered_ms: u64,
    pub deliveries: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Consumer {
    seen_ms: u64,
    pending: BTreeSet<EntryId>,
}

/// Invariant: each entry in `pending` is in the set of its consumer, and in no other.
#[derive(Clone, Debug, Default)]
pub struct Group {
    last: EntryId,
    read: Option<u64>,
    consumers: BTreeMap<Arc<[u8]>, Consumer>,
    pending: BTreeMap<EntryId, Pending>,
    changes: Changes,
}

/// What is not written down yet.
#[derive(Clone, Debug, Default)]
struct Changes {
    is_group_changed: bool,
    consumers: BTreeSet<Arc<[u8]>>,
    pending: BTreeSet<EntryId>,
}

impl Group {
    /// A group that is given what is behind this id; so many entries were ever added up to it, where that is known.
    pub fn new(last: EntryId, read: Option<u64>) -> Self {
        let changes = Changes { is_group_changed: true, ..Changes::default() };
        Self { last, read, changes, ..Self::default() }
    }

    /// The id of the last entry that was given out.
    pub fn last(&self) -> EntryId {
        self.last
    }

    /// Entries of all that were ever added that the group has come by, where that is known.
    pub fn read(&self) -> Option<u64> {
        self.read
    }

    pub fn set(&mut self, last: EntryId, read: Option<u64>) {
        (self.last, self.read) = (last, read);
        self.changes.is_group_changed = true;
    }

    /// Names, when each was seen last, and how many entries it has, by name.
    pub fn consumers(&self) -> impl ExactSizeIterator<Item = (&Arc<[u8]>, u64, usize)> {
        self.consumers.iter().map(|(name, consumer)| (name, consumer.seen_ms, consumer.pending.len()))
    }

    pub fn has_consumer(&self, name: &[u8]) -> bool {
        self.consumers.contains_key(name)
    }

    /// Sees a consumer, which is made where there is none. Whether it was.
    pub fn see(&mut self, name: &[u8], now_ms: u64) -> Result<bool> {
        if let Some(consumer) = self.consumers.get_mut(name) {
            consumer.seen_ms = now_ms;
            return Ok(false);
        }
        if self.consumers.len() >= CONSUMERS_MAX {
            return Err(Error::busy(format!("the group has {CONSUMERS_MAX} consumers: delete some first")));
        }
        let name: Arc<[u8]> = name.into();
        self.changes.consumers.insert(name.clone());
        self.consumers.insert(name, Consumer { seen_ms: now_ms, pending: BTreeSet::new() });
        Ok(true)
    }

    /// Removes a consumer, with what it has, which nobody is given any more. How much that was.
    pub fn remove_consumer(&mut self, name: &[u8]) -> usize {
        let Some((name, consumer)) = self.consumers.remove_entry(name) else {
            return 0;
        };
        self.changes.consumers.insert(name);
        for id in &consumer.pending {
            self.pending.remove(id);
            self.changes.pending.insert(*id);
        }
        consumer.pending.len()
    }

    /// Entries that may be given out before some are acknowledged.
    pub fn room(&self) -> usize {
        PENDING_MAX - self.pending.len().min(PENDING_MAX)
    }

    /// Has come by an entry; `read` as for [`Group::new`].
    pub fn come_by(&mut self, id: EntryId, read: Option<u64>) {
        if id > self.last {
            self.set(id, read);
        }
    }

    /// Gives an entry to a consumer that is there, whoever had it.
    pub fn give(&mut self, id: EntryId, name: &[u8], delivered_ms: u64, deliveries: u64) {
        let Some((name, _)) = self.consumers.get_key_value(name) else {
            return;
        };
        let pending = Pending { consumer: name.clone(), delivered_ms, deliveries };
        self.put(id, pending);
        self.changes.pending.insert(id);
    }

    fn put(&mut self, id: EntryId, pending: Pending) {
        let name = pending.consumer.clone();
        if let Some(before) = self.pending.insert(id, pending)
            && before.consumer != name
            && let Some(consumer) = self.consumers.get_mut(&before.consumer)
        {
            consumer.pending.remove(&id);
        }
        self.consumers.entry(name).or_default().pending.insert(id);
    }

    /// Nobody has the entry any more. Whether somebody had.
    pub fn ack(&mut self, id: EntryId) -> bool {
        let Some(pending) = self.pending.remove(&id) else {
            return false;
        };
        if let Some(consumer) = self.consumers.get_mut(&pending.consumer) {
            consumer.pending.remove(&id);
        }
        self.changes.pending.insert(id);
        true
    }

    pub fn pending(&self, id: EntryId) -> Option<&Pending> {
        self.pending.get(&id)
    }

    /// What was given out and not acknowledged, from one id to another.
    pub fn all_pending(&self, from: EntryId, to: EntryId) -> impl Iterator<Item = (EntryId, &Pending)> {
        let range = (from <= to).then(|| self.pending.range(from..=to));
        range.into_iter().flatten().map(|(id, pending)| (*id, pending))
    }

    /// The same of one consumer.
    pub fn pending_of<'g>(
        &'g self,
        name: &[u8],
        from: EntryId,
        to: EntryId,
    ) -> impl Iterator<Item = (EntryId, &'g Pending)> + use<'g> {
        let consumer = self.consumers.get(name).filter(|_| from <= to);
        let ids = consumer.into_iter().flat_map(move |consumer| consumer.pending.range(from..=to));
        ids.filter_map(|id| Some((*id, self.pending.get(id)?)))
    }

    pub fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// The smallest and the largest id of what is pending.
    pub fn pending_extent(&self) -> Option<(EntryId, EntryId)> {
        Some((*self.pending.first_key_value()?.0, *self.pending.last_key_value()?.0))
    }

    /// What has to be written down of all that changed since it was asked last.
    pub fn take_changes(&mut self, topic: TopicId, name: &[u8]) -> Vec<StreamRecord> {
        let Changes { is_group_changed, consumers, pending } = std::mem::take(&mut self.changes);
        let group: Box<[u8]> = name.into();
        let mut records = Vec::with_capacity(usize::from(is_group_changed) + consumers.len() + pending.len());
        if is_group_changed {
            let saved = Some((self.last, self.read));
            records.push(StreamRecord::Group { topic, group: group.clone(), saved });
        }
        for name in consumers {
            let seen_ms = self.consumers.get(&name).map(|consumer| consumer.seen_ms);
            records.push(StreamRecord::Consumer { topic, group: group.clone(), name, seen_ms });
        }
        for id in pending {
            let pending = self.pending.get(&id).cloned();
            records.push(StreamRecord::Pending { topic, group: group.clone(), id, pending });
        }
        records
    }

    /// The same group of another stream, of which nothing is written down yet.
    pub fn copied(&self) -> Self {
        let consumers = self.consumers.keys().cloned().collect();
        let pending = self.pending.keys().copied().collect();
        Self { changes: Changes { is_group_changed: true, consumers, pending }, ..self.clone() }
    }

    /// What has to be written down where the group is gone.
    pub fn gone(&self, topic: TopicId, name: &[u8]) -> Vec<StreamRecord> {
        let group: Box<[u8]> = name.into();
        let consumers = self.consumers.keys().map(|name| StreamRecord::Consumer {
            topic,
            group: group.clone(),
            name: name.clone(),
            seen_ms: None,
        });
        let pending =
            self.pending.keys().map(|id| StreamRecord::Pending { topic, group: group.clone(), id: *id, pending: None });
        let group = StreamRecord::Group { topic, group: group.clone(), saved: None };
        consumers.chain(pending).chain([group]).collect()
    }

    /// What was written down, in the order in which it was.
    pub fn restore(&mut self, record: StreamRecord) {
        match record {
            StreamRecord::Group { saved: Some((last, read)), .. } => (self.last, self.read) = (last, read),
            StreamRecord::Consumer { name, seen_ms: Some(seen_ms), .. } => {
                self.consumers.entry(name).or_default().seen_ms = seen_ms;
            }
            StreamRecord::Consumer { name, seen_ms: None, .. } => {
                self.remove_consumer(&name);
            }
            StreamRecord::Pending { id, pending: Some(pending), .. } => self.put(id, pending),
            StreamRecord::Pending { id, pending: None, .. } => {
                self.ack(id);
            }
            StreamRecord::Group { saved: None, .. }
            | StreamRecord::Stream { .. }
            | StreamRecord::Deleted { .. }
            | StreamRecord::Place { .. } => {}
        }
        self.changes = Changes::default();
    }
}
