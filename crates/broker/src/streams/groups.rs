//! Groups of streams: creation, changes, and delivery of entries.

use engine::streams::{Entry, EntryId, Extent, Group, STREAM_GROUPS_MAX, STREAM_NAME_BYTES_MAX};
use engine::{Error, Result};

use super::LockedStream;
use crate::commit::Commit;
use crate::peers::Created;

impl LockedStream {
    /// Wakes the clients that wait for the stream, because its groups have changed.
    pub fn note_change(&self) {
        self.stream.cell.news.notify_waiters();
    }

    pub fn groups(&self) -> impl ExactSizeIterator<Item = (&[u8], &Group)> {
        self.state.groups.iter().map(|(name, group)| (&**name, group))
    }

    pub fn group(&self, name: &[u8]) -> Option<&Group> {
        self.state.groups.get(name)
    }

    /// Creates a group. Returns `None` if it exists already.
    pub fn create_group(&mut self, name: &[u8], last: EntryId, read: Option<u64>) -> Result<Option<Commit>> {
        check_name(name)?;
        if self.state.groups.contains_key(name) {
            return Ok(None);
        }
        if self.state.groups.len() >= STREAM_GROUPS_MAX {
            return Err(Error::busy(format!("the stream has {STREAM_GROUPS_MAX} groups: delete some first")));
        }
        self.stream.streams.core.peers().admit(Created::Group)?;
        self.state.groups.insert(name.into(), Group::new(last, read));
        self.save_group(name).map(Some)
    }

    /// Deletes a group. Returns `None` if it does not exist.
    pub fn delete_group(&mut self, name: &[u8]) -> Result<Option<Commit>> {
        let Some(group) = self.state.groups.remove(name) else {
            return Ok(None);
        };
        self.note_change();
        self.append(group.gone(self.stream.topic.id, name)).map(Some)
    }

    /// Calls `change` with a group, if it exists. The changes are appended to the log, but not yet durable, when this
    /// returns.
    pub fn change_group<T>(
        &mut self,
        name: &[u8],
        change: impl FnOnce(&mut Group) -> Result<T>,
    ) -> Result<Option<(T, Commit)>> {
        let Some(group) = self.state.groups.get_mut(name) else {
            return Ok(None);
        };
        let changed = change(group);
        let saved = self.save_group(name)?;
        changed.map(|changed| Some((changed, saved)))
    }

    /// Notes that a consumer of an existing group is active, and creates the consumer if it does not exist. Returns
    /// `true` if it was created.
    pub fn see(&mut self, group: &[u8], consumer: &[u8]) -> Result<(bool, Commit)> {
        check_name(consumer)?;
        let now_ms = self.stream.streams.core.now_ms();
        let seen = self.change_group(group, |group| group.see(consumer, now_ms))?;
        seen.ok_or_else(|| Error::not_found("there is no such group"))
    }

    /// Delivers entries to a consumer that its group has not read yet. If `keeps`, they become pending for the consumer
    /// until it acknowledges them.
    pub async fn take(&mut self, group: &[u8], consumer: &[u8], count: usize, keeps: bool) -> Result<Vec<Entry>> {
        let Some((from, room)) = self.group(group).and_then(|group| Some((group.last().next()?, group.room()))) else {
            return Ok(Vec::new());
        };
        let count = if keeps { count.min(room) } else { count };
        if count == 0 {
            return Err(Error::busy(
                "the group has reached its limit of unacknowledged entries: acknowledge some first",
            ));
        }
        let entries = self.range(from, EntryId::MAX, count).await?;
        let extent = self.extent().await?;
        if entries.is_empty() {
            return Ok(entries);
        }
        check_name(consumer)?;
        let now_ms = self.stream.streams.core.now_ms();
        let give = |group: &mut Group| {
            group.see(consumer, now_ms)?;
            for entry in &entries {
                let read = count_behind(&extent, group, entry.id);
                group.come_by(entry.id, read);
                if keeps {
                    group.give(entry.id, consumer, now_ms, 1);
                }
            }
            Ok(())
        };
        // If this is lost, the entries are delivered again: there is nothing to wait for.
        drop(self.change_group(group, give)?);
        Ok(entries)
    }

    /// Redelivers the pending entries of a consumer from an id on. For a deleted entry, returns only its id.
    pub async fn take_again(
        &mut self,
        group: &[u8],
        consumer: &[u8],
        from: EntryId,
        count: usize,
    ) -> Result<Vec<(EntryId, Option<Entry>)>> {
        let pending = self.group(group).into_iter().flat_map(|group| group.pending_of(consumer, from, EntryId::MAX));
        let pending: Vec<(EntryId, u64)> = pending.take(count).map(|(id, pending)| (id, pending.deliveries)).collect();
        let ids: Vec<EntryId> = pending.iter().map(|(id, _)| *id).collect();
        let entries = self.entries(&ids).await?;
        let found: Vec<(EntryId, Option<Entry>)> = ids.into_iter().zip(entries).collect();
        check_name(consumer)?;
        let now_ms = self.stream.streams.core.now_ms();
        let give = |group: &mut Group| {
            group.see(consumer, now_ms)?;
            for ((id, deliveries), (_, entry)) in pending.iter().zip(&found) {
                if entry.is_some() {
                    group.give(*id, consumer, now_ms, deliveries + 1);
                }
            }
            Ok(())
        };
        drop(self.change_group(group, give)?);
        Ok(found)
    }
}

/// Returns the number of entries ever added up to the entry `id`, which the group reads next; `None` if unknown.
fn count_behind(extent: &Extent, group: &Group, id: EntryId) -> Option<u64> {
    match group.read() {
        Some(read) if !extent.has_gap_from(id) => Some(read + 1),
        _ if extent.added > 0 => extent.count_up_to(id),
        read => read,
    }
}

fn check_name(name: &[u8]) -> Result<()> {
    match name.len() {
        ..=STREAM_NAME_BYTES_MAX => Ok(()),
        more => Err(Error::too_large(format!("a name has at most {STREAM_NAME_BYTES_MAX} bytes, not {more}"))),
    }
}
