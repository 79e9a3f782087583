//! Copying a stream into a new one, with its groups.

use std::ops::ControlFlow;

use engine::streams::{Entry, EntryId, ID_HEADER, StreamRecord};
use engine::{BatchBuilder, Result};

use super::LockedStream;
use super::read::{Seen, bytes_of};
use crate::commit::Appended;
use crate::commit::Commit;
use crate::partition::AppendOptions;
use crate::wakes::Wakes;

/// Bytes of the keys, values and headers of the entries that are copied at a time.
const PIECE_BYTES: usize = 4 << 20;
/// Bytes after which a batch takes no more records.
const BATCH_BYTES: usize = 1 << 20;

impl LockedStream {
    /// Copies another stream into this one, which must be new: its entries with their ids, and its groups with their
    /// pending entries.
    pub async fn copy_from(&mut self, other: &Self) -> Result<Commit> {
        let mut next = Some(EntryId::ZERO);
        let mut entries = None;
        while let Some(from) = next {
            let piece = other.piece(from).await?;
            next = piece.last().and_then(|entry| entry.id.next());
            entries = self.append_copies(&piece)?.or(entries);
        }
        self.index_mut().set_last(other.last());
        let state = &mut *self.state;
        let of_other = &*other.state;
        state.added = of_other.added;
        state.saved.max_deleted = of_other.saved.max_deleted;
        state.groups = of_other.groups.iter().map(|(name, group)| (name.clone(), group.copied())).collect();
        let topic = self.stream.topic.id;
        let groups: Vec<StreamRecord> =
            state.groups.iter_mut().flat_map(|(name, group)| group.take_changes(topic, name)).collect();
        // Records of the topic of streams are durable after the entries, which were appended before them; but entries
        // can be read only when their own partition knows that they are.
        let known = self.save(groups)?;
        let streams = self.stream.streams.clone();
        let entries = entries.map_or_else(Commit::done, |entries| {
            entries.commit.then(move |outcome| async move { streams.commit_entries(topic, outcome).await })
        });
        Ok(entries.and(known))
    }

    /// Returns some entries, from an id on.
    async fn piece(&self, from: EntryId) -> Result<Vec<Entry>> {
        let mut found = Vec::new();
        let mut bytes = 0;
        let each = |seen: &Seen<'_>| {
            if seen.id >= from && !seen.is_deleted {
                let entry = seen.own();
                bytes += bytes_of(&entry);
                found.push(entry);
            }
            Ok(if bytes >= PIECE_BYTES { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        };
        self.scan(self.index().mark_before(from), each).await?;
        Ok(found)
    }

    /// Appends entries. Returns the last batch, for which the caller waits.
    fn append_copies(&mut self, entries: &[Entry]) -> Result<Option<Appended>> {
        let mut builder = BatchBuilder::new();
        let mut last = None;
        let mut entries = entries.iter().peekable();
        while let Some(entry) = entries.next() {
            let id = entry.id.to_string();
            let record = &entry.record;
            let own = usize::from(entry.is_own());
            let mut headers = vec![(ID_HEADER.as_bytes(), Some(id.as_bytes()))];
            headers.extend(record.headers[own..].iter().map(|(name, value)| (&name[..], value.as_deref())));
            // A record of another door always has a value, which may be empty.
            let value = record.value.as_deref().or((own == 0).then_some(&[]));
            let time = i64::try_from(entry.id.ms).unwrap_or(i64::MAX);
            builder.push(time, record.key.as_deref(), value, &headers)?;
            // No other client knows the stream yet: each entry gets the next offset.
            let at = self.index().next();
            self.index_mut().push(at, entry.id);
            if (builder.len() >= BATCH_BYTES || entries.peek().is_none())
                && let Some(batch) = builder.finish()
            {
                let stream = &self.stream;
                let options = AppendOptions::own(&stream.topic.settings, self.stream.streams.core.now_ms());
                let core = &stream.streams.core;
                last = Some(core.append_own(&stream.partition, &options, batch, &mut Wakes::default())?);
            }
        }
        Ok(last)
    }
}
