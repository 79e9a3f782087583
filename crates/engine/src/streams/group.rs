//! State machine of a stream's group: its progress, and the entries that its consumers hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{EntryId, StreamRecord};
use crate::error::{Error, Result};
use crate::ids::TopicId;

/// Maximum number of consumers of one group.
pub const CONSUMERS_MAX: usize = 4096;
/// Maximum number of entries of one group that were delivered and not acknowledged.
pub const PENDING_MAX: usize = 1 << 20;

/// Entry that was delivered to a consumer and not acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    pub consumer: Arc<[u8]>,
    /// Time of the last delivery, ms since 1970.
    pub delivered_ms: u64,
    pub deliveries: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Consumer {
    seen_ms: u64,
    pending: BTreeSet<EntryId>,
}

/// Consumer group of a stream. Invariant: each entry in `pending` is in the set of its consumer, and in no other.
#[derive(Clone, Debug, Default)]
pub struct Group {
    last: EntryId,
    read: Option<u64>,
    consumers: BTreeMap<Arc<[u8]>, Consumer>,
    pending: BTreeMap<EntryId, Pending>,
    changes: Changes,
}

/// Changes that are not persisted yet.
#[derive(Clone, Debug, Default)]
struct Changes {
    is_group_changed: bool,
    consumers: BTreeSet<Arc<[u8]>>,
    pending: BTreeSet<EntryId>,
}

impl Group {
    /// Creates a group that receives entries after the id `last`. `read` is the number of entries that were ever added
    /// up to that id, if it is known.
    pub fn new(last: EntryId, read: Option<u64>) -> Self {
        let changes = Changes { is_group_changed: true, ..Changes::default() };
        Self { last, read, changes, ..Self::default() }
    }

    /// Returns the id of the last entry that was delivered.
    pub fn last(&self) -> EntryId {
        self.last
    }

    /// Returns the number of entries ever added that the group has passed, if it is known.
    pub fn read(&self) -> Option<u64> {
        self.read
    }

    pub fn set(&mut self, last: EntryId, read: Option<u64>) {
        self.last = last;
        self.read = read;
        self.changes.is_group_changed = true;
    }

    /// Returns the consumers by name, with the time at which each was last seen and the number of its pending entries.
    pub fn consumers(&self) -> impl ExactSizeIterator<Item = (&Arc<[u8]>, u64, usize)> {
        self.consumers.iter().map(|(name, consumer)| (name, consumer.seen_ms, consumer.pending.len()))
    }

    /// Updates the time at which a consumer was last seen. Creates it if it does not exist, and then returns `true`.
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

    /// Removes a consumer with its pending entries, which are not delivered again. Returns their number.
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

    /// Returns the number of entries that may be delivered before some are acknowledged.
    pub fn room(&self) -> usize {
        PENDING_MAX - self.pending.len().min(PENDING_MAX)
    }

    /// Moves the group past an entry; `read` is as in [`Group::new`].
    pub fn come_by(&mut self, id: EntryId, read: Option<u64>) {
        if id > self.last {
            self.set(id, read);
        }
    }

    /// Assigns an entry to an existing consumer, also if another consumer held it.
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

    /// Acknowledges an entry. Returns `true` if it was pending.
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

    /// Returns the pending entries whose ids are in a range, both ends included.
    pub fn all_pending(&self, from: EntryId, to: EntryId) -> impl Iterator<Item = (EntryId, &Pending)> {
        let range = (from <= to).then(|| self.pending.range(from..=to));
        range.into_iter().flatten().map(|(id, pending)| (*id, pending))
    }

    /// Returns the pending entries of one consumer whose ids are in a range, both ends included.
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

    /// Returns the smallest and the largest id of the pending entries.
    pub fn pending_extent(&self) -> Option<(EntryId, EntryId)> {
        Some((*self.pending.first_key_value()?.0, *self.pending.last_key_value()?.0))
    }

    /// Returns the records that persist all changes since the last call.
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

    /// Returns a copy of the group for another stream, with all of its state to be persisted.
    pub fn copied(&self) -> Self {
        let consumers = self.consumers.keys().cloned().collect();
        let pending = self.pending.keys().copied().collect();
        Self { changes: Changes { is_group_changed: true, consumers, pending }, ..self.clone() }
    }

    /// Returns the records that delete the persisted state of the group.
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

    /// Restores a persisted record. Records have to be restored in the order in which they were written.
    pub fn restore(&mut self, record: StreamRecord) {
        match record {
            StreamRecord::Group { saved: Some((last, read)), .. } => {
                self.last = last;
                self.read = read;
            }
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
