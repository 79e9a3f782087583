//! Checkpoints, removal of files after a checkpoint or a durable deletion, and the handling of a full disk.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::Bytes;
use engine::{Error, ErrorKind, Result};

use super::{Store, TRY_AGAIN};
use crate::checkpoint::{Checkpoint, STATE_BYTES_MAX};
use crate::disk::{failed, replace};
use crate::journal::Journal;
use crate::journal::recover::Origin;
use crate::state::Doomed;

#[derive(Clone)]
pub(super) struct LastCheckpoint {
    pub(super) at: Instant,
    pub(super) is_failed: bool,
    /// Contents of the last checkpoint that was written.
    pub(super) written: Option<Written>,
}

/// Contents of a checkpoint that belong together.
#[derive(Clone)]
pub(super) struct Written {
    origin: Origin,
    /// State of a log in front of the journal.
    state: Option<Bytes>,
}

impl Store {
    /// Removes the files of topics whose deletion is durable. Failed removals are retried.
    pub(super) fn remove_deleted(&self) {
        if self.keeps_files() {
            return;
        }
        let deleted = std::mem::take(&mut *self.shared.deleted.lock());
        if deleted.is_empty() || self.broken().is_some() {
            return;
        }
        // No checkpoint may sync directories that are being removed.
        let _checkpoint = self.checkpoint.lock();
        let (gone, kept) =
            std::mem::take(&mut self.state.lock().doomed).into_iter().partition(|doomed| deleted.contains(&doomed.id));
        self.state.lock().doomed.extend::<Vec<_>>(kept);
        let left = self.remove_doomed(gone);
        self.shared.deleted.lock().extend(left.iter().map(|doomed| doomed.id));
        self.state.lock().doomed.extend(left);
    }

    /// Removes the files of deleted topics. Returns the topics whose files could not be removed.
    fn remove_doomed(&self, doomed: Vec<Doomed>) -> Vec<Doomed> {
        let close = |doomed: &Doomed| doomed.partitions.iter().for_each(|partition| partition.close());
        let is_left = |doomed: &Doomed| {
            // A write in progress ends first, because it may create the directory. No write begins after it.
            close(doomed);
            let removed = self.shared.remove_topic(doomed.id);
            // A file that a read has opened since then keeps its disk space, with or without a name.
            close(doomed);
            removed.inspect_err(|error| tracing::warn!(%error, "cannot remove a deleted topic; retrying")).is_err()
        };
        doomed.into_iter().filter(is_left).collect()
    }

    /// Restores the reserve if it is missing or incomplete and the disk has space.
    pub(super) fn keep_reserve(&self) {
        if let Err(error) = self.shared.room.restore() {
            tracing::warn!(%error, "cannot reserve space for a full disk; retrying after the next checkpoint");
        }
    }

    /// Marks the disk as full if the journal refused a record for lack of space for a file, and a checkpoint frees
    /// none.
    pub(super) fn look_whether_stuck(&self) {
        let Some(journal) = self.shared.journal.get() else { return };
        if journal.take_refused()
            && !self.shared.room.is_full()
            && self.broken().is_none()
            && self.checkpoint().is_ok()
            && let Some(error) = journal.stuck()
        {
            self.shared.room.note(&error);
        }
    }

    /// Takes records again after the disk was full, once all pending data is written to its place, and space is free.
    pub(super) fn look_for_room(&self) {
        let last = self.checkpoint.lock().clone();
        if !self.shared.room.is_full() || self.broken().is_some() || last.at.elapsed() < TRY_AGAIN {
            return;
        }
        let (_, failed) = self.flush();
        // A checkpoint is also needed if a partition cannot be written: only a checkpoint frees what was deleted in
        // others.
        if self.checkpoint().is_err() || failed > 0 {
            return;
        }
        match self.shared.room.restore() {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => return tracing::debug!(%error, "there is no space yet"),
        }
        if self.shared.journal.get().is_some_and(|journal| journal.stuck().is_some()) {
            return;
        }
        self.shared.room.end();
        self.on_room.tell();
    }

    /// Takes a checkpoint. On a full disk it removes the journal's spare files for that, and applies deletions that are
    /// not committed yet. If that does not free enough space for all batches in no segment, it writes a checkpoint with
    /// the journal origin of the last one: that still releases segments that retention removed.
    fn take_checkpoint(&self, last: Option<Written>) -> Result<Written> {
        let journal = self.shared.journal.get().ok_or_else(|| Error::busy("the journal is not open yet"))?;
        let is_full = |taken: &Result<Written>| taken.as_ref().is_err_and(|error| error.kind == ErrorKind::DiskFull);
        let mut taken = self.write_checkpoint(journal, None);
        if is_full(&taken) && journal.give_up_spares() {
            taken = self.write_checkpoint(journal, None);
        }
        if is_full(&taken) && self.shared.log.get().is_some_and(|log| log.is_local()) {
            // The journal may wait for a file, and what is deleted waits for the journal. This checkpoint makes it
            // durable instead.
            let deleted = self.changes.deletions_due();
            let is_less = self.state.lock().apply_deletions_due(&deleted)?;
            taken = if is_less { self.write_checkpoint(journal, None) } else { taken };
        }
        if let Err(error) = &taken {
            self.shared.room.note(error);
        }
        if let Some(last) = last.filter(|_| is_full(&taken))
            && (!self.state.lock().doomed.is_empty()
                || self.all_partitions().iter().any(|(_, partition)| partition.has_garbage()))
        {
            self.write_checkpoint(journal, Some(&last))?;
        }
        taken
    }

    /// Writes a checkpoint. `only_from`: partitions that cannot be written now keep their state, so that the journal is
    /// still needed from this origin on, and a part of the reserve is released if there is no other space for the file.
    /// A log in front of the journal then finds the state that it had there.
    fn write_checkpoint(&self, journal: &Journal, only_from: Option<&Written>) -> Result<Written> {
        // An entry that is finished after this, and that the log in front does not keep, is after the origin.
        let origin = only_from.map_or_else(|| journal.origin(), |last| last.origin);
        let kept = self.shared.log.get().filter(|_| only_from.is_none()).and_then(|log| log.keep());
        if kept.is_none() && only_from.is_none() && self.had_state {
            // A directory whose checkpoint has no state any more would be opened as that of a new node.
            return Err(Error::busy("the log of the cluster has no state for a checkpoint yet"));
        }
        let earlier = kept.as_ref().and_then(|kept| kept.origin).filter(|kept| kept.position < origin.position);
        let origin = earlier.unwrap_or(origin);
        let of_front =
            only_from.map_or_else(|| kept.as_ref().map(|kept| kept.state.clone()), |last| last.state.clone());
        if let Some(state) = of_front.as_ref().filter(|state| state.len() > STATE_BYTES_MAX) {
            let message = format!("the state of a node has {} bytes, at most {STATE_BYTES_MAX}", state.len());
            return Err(Error::too_large(message));
        }
        let bytes = journal.stats().bytes_to_read();
        let mut partitions = self.all_partitions();
        let mut taken = Vec::new();
        let mut dirs = BTreeSet::new();
        let mut left = BTreeSet::new();
        for (stream, partition) in &partitions {
            match partition.checkpoint((self.clock)(), only_from.is_some()) {
                Ok(Some(mut of_one)) => {
                    dirs.extend(std::mem::take(&mut of_one.dirs));
                    taken.push((*stream, partition.clone(), of_one));
                }
                Ok(None) => {}
                Err(_) if only_from.is_some() => drop(left.insert(*stream)),
                Err(error) => return Err(error),
            }
        }
        // The catalog may list segments of these partitions that they have dropped since.
        partitions.retain(|(stream, _)| !left.contains(stream));
        for dir in dirs {
            self.shared.disk.sync_dir(&dir).map_err(failed("sync", &dir))?;
        }
        let (checkpoint, doomed) = {
            let mut state = self.state.lock();
            taken.iter().for_each(|(stream, _, taken)| state.set_info(*stream, &taken.info));
            let mut catalog = state.catalog.clone();
            // A topic of the same name may not be deleted yet. The journal notifies owners before it moves its origin,
            // so it still has these entries after it; a log in front of it has to keep them itself.
            let creations = self.changes.creations_due();
            creations.iter().for_each(|id| drop(catalog.topics.remove(id)));
            if self.has_front() {
                (catalog.next_id, catalog.next_producer) = state.next_committed;
            }
            // The journal may still refer to segments that these partitions have dropped since.
            let is_kept = |stream: u64| !creations.contains(&((stream >> 32) as u32));
            taken.retain(|(stream, ..)| is_kept(*stream));
            partitions.retain(|(stream, _)| is_kept(*stream));
            let directory = self.directory;
            let state_of_front = of_front.clone();
            let checkpoint = Checkpoint { directory, origin, catalog, state: state_of_front };
            (checkpoint, std::mem::take(&mut state.doomed))
        };
        let path = self.shared.dir.join("checkpoint");
        let write = || replace(&*self.shared.disk, &path, &checkpoint.encode()).map_err(failed("write", &path));
        let is_full = |error: &Error| error.kind == ErrorKind::DiskFull;
        let mut written = write();
        if only_from.is_some() && written.as_ref().is_err_and(is_full) && self.shared.room.release_part() {
            written = write();
        }
        if let Err(error) = written {
            self.state.lock().doomed.extend(doomed);
            return Err(error);
        }
        if only_from.is_none() {
            taken.iter().for_each(|(_, partition, taken)| partition.set_kept(taken));
            self.counts.checkpoint_at_bytes.store(bytes, Ordering::Relaxed);
            journal.release(origin.position);
        }
        if let (Some(log), Some(kept)) = (self.shared.log.get(), &kept) {
            log.kept(kept);
        }
        let keeps_files = self.keeps_files();
        partitions.iter().for_each(|(_, partition)| partition.sweep(keeps_files));
        let left = if keeps_files { doomed } else { self.remove_doomed(doomed) };
        self.shared.deleted.lock().extend(left.iter().map(|doomed| doomed.id));
        self.state.lock().doomed.extend(left);
        Ok(Written { origin, state: of_front })
    }

    /// Makes all committed records durable without the journal.
    pub fn checkpoint(&self) -> Result<()> {
        let mut last = self.checkpoint.lock();
        self.check_place()?;
        let begin = Instant::now();
        let taken = self.take_checkpoint(last.written.clone());
        let written = taken.as_ref().ok().cloned().or(last.written.take());
        *last = LastCheckpoint { at: Instant::now(), is_failed: taken.is_err(), written };
        let nanos = begin.elapsed().as_nanos() as u64;
        self.counts.checkpoint_nanos.fetch_add(nanos, Ordering::Relaxed);
        let count = if taken.is_ok() { &self.counts.checkpoints } else { &self.counts.checkpoint_errors };
        count.fetch_add(1, Ordering::Relaxed);
        taken.map(drop)
    }
}
