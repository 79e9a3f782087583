//! Writing and syncing of blocks.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::shard::ShardId;
use engine::{Error, Result};

use super::block::{BODIES_BYTES_MAX, BlockHead, EntryKind, FileHead, PAGE_BYTES, Row, checksum};
use super::files::JournalFile;
use super::recover::{Lead, Origin};
use super::through::{Placed, large_streams};
use super::{Entry, KEPT_FOR_CHANGES_PART, KEPT_PART, Shared, left, no_file, origin};
use crate::disk::Pages;
use crate::partition::scan::span_of;

/// State of the thread whose turn it is to write.
pub(super) struct Writer {
    pub(super) file: Arc<JournalFile>,
    pub(super) head: FileHead,
    /// Position of the next block in the file; `previous_end` is the end of the last block in the journal.
    pub(super) at: u64,
    pub(super) previous_end: u64,
    pub(super) turn: u64,
    /// `true` if nothing was written since the last seal.
    pub(super) is_sealed: bool,
    pub(super) buf: Vec<u8>,
    /// Memory for batches on their way to a segment; empty while the journal is idle.
    pub(super) pages: Pages,
    /// End of the last block that refers to segments.
    pub(super) through_end: u64,
}

/// Block that is written and has to be synced.
pub(super) struct Written {
    pub(super) file: Arc<JournalFile>,
    pub(super) entries: Vec<Entry>,
    /// Batches of the block that are in segments.
    pub(super) placed: Vec<Box<dyn Placed>>,
    pub(super) origin: Origin,
    pub(super) turn: u64,
    /// Error if the block could not be written.
    pub(super) failed: Option<Error>,
    /// `true` if its sync succeeded or failed.
    pub(super) is_synced: bool,
}

impl Shared {
    /// Writes a block without syncing it.
    pub(super) fn write(&self, writer: &mut Writer, entries: Vec<Entry>, thread: usize) -> Written {
        let mut placed = HashMap::new();
        for (stream, last) in large_streams(&entries, self.through_bytes_min) {
            // The mark of an entry is its owner's.
            if let Ok((_, to)) = span_of(&entries[last].body)
                && let Some(written) = self.through.write(stream, to, thread, &mut writer.pages)
            {
                placed.insert(stream, (last, written));
            }
        }
        if entries.is_empty() || writer.pages.whole().len() > 2 * BODIES_BYTES_MAX {
            writer.pages = Pages::default();
        }
        let failed = self.write_block(writer, &entries, &placed, thread).err();
        if let Some(error) = &failed {
            self.break_off(error);
        }
        let turn = writer.turn;
        let file = writer.file.clone();
        let placed = placed.into_values().map(|(_, written)| written).collect();
        writer.turn += 1;
        Written {
            origin: origin(&writer.head, &file, writer.at),
            file,
            entries,
            placed,
            turn,
            failed,
            is_synced: false,
        }
    }

    /// Writes the block of these entries. `placed`: partitions whose batches are in segments, with the index of their
    /// last batch.
    fn write_block(
        &self,
        writer: &mut Writer,
        entries: &[Entry],
        placed: &HashMap<u64, (usize, Box<dyn Placed>)>,
        thread: usize,
    ) -> Result<()> {
        let row = |kind: EntryKind, entry: &Entry, body: &[u8]| Row {
            kind,
            shard: entry.shard,
            stream: entry.stream,
            bytes: body.len() as u32,
            crc: checksum(body),
        };
        let mut rows = Vec::with_capacity(entries.len());
        let mut bodies: Vec<Cow<'_, [u8]>> = Vec::with_capacity(entries.len());
        let mut through_bytes = 0;
        for (at, entry) in entries.iter().enumerate() {
            match placed.get(&entry.stream).filter(|_| entry.kind == EntryKind::Batch) {
                None => {
                    rows.push(row(entry.kind, entry, &entry.body));
                    bodies.push(Cow::Borrowed(&entry.body));
                }
                Some((last, written)) => {
                    through_bytes += entry.body.len() as u64;
                    for part in written.parts().iter().filter(|_| at == *last) {
                        let body = part.encode();
                        rows.push(row(EntryKind::Segment, entry, &body));
                        bodies.push(Cow::Owned(body.to_vec()));
                    }
                }
            }
        }
        let mut block = BlockHead { file: 0, position: 0, previous_end: 0, synced: self.synced(), rows };
        // A page stays free for a seal, and one for the block that leads to the next file.
        let free = if entries.is_empty() { PAGE_BYTES } else { 2 * PAGE_BYTES };
        if writer.at + block.block_bytes() + free > writer.head.bytes {
            self.next_file(writer, thread)?;
            // The last file was synced to its end, but maybe not the segments that its blocks refer to.
            if writer.through_end <= block.synced {
                block.synced = writer.previous_end;
            }
        }
        block.file = writer.head.number;
        block.position = writer.head.position + writer.at;
        block.previous_end = writer.previous_end;
        let mut buf = std::mem::take(&mut writer.buf);
        block.encode(&mut buf);
        let zeros = [0; PAGE_BYTES as usize];
        let padding = block.block_bytes() - block.head_bytes() - block.bodies_bytes();
        let mut slices = Vec::with_capacity(bodies.len() + 2);
        slices.push(IoSlice::new(&buf));
        slices.extend(bodies.iter().map(|body| IoSlice::new(body)));
        slices.push(IoSlice::new(&zeros[..padding as usize]));
        let written = writer.file.write(&mut slices, writer.at);
        drop(slices);
        writer.buf = buf;
        written?;
        writer.at += block.block_bytes();
        writer.previous_end = block.end();
        if !placed.is_empty() {
            writer.through_end = block.end();
        }
        self.left.store(left(&writer.head, writer.at, KEPT_PART), Ordering::Relaxed);
        self.left_for_admitted.store(left(&writer.head, writer.at, KEPT_FOR_CHANGES_PART), Ordering::Relaxed);
        // A block seals only what was synced when it was written.
        writer.is_sealed = entries.is_empty() && block.synced >= block.previous_end;
        self.counts.entries.fetch_add(entries.len() as u64, Ordering::Relaxed);
        self.counts.bytes.fetch_add(block.block_bytes(), Ordering::Relaxed);
        self.counts.through_bytes.fetch_add(through_bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Ends the file with an entry that leads to the next one. Both files are synced before any entry in the next one
    /// is valid.
    fn next_file(&self, writer: &mut Writer, thread: usize) -> Result<()> {
        let position = writer.head.end();
        let (file, head) = self.files.take(self.directory, position).ok_or_else(no_file)?;
        file.write(&mut [IoSlice::new(&head.encode())], 0)?;
        file.sync(thread)?;
        let here = writer.head.position + writer.at;
        let next = next_block(&writer.head, here, writer.previous_end, self.synced(), (head.number, file.slot));
        writer.file.write(&mut [IoSlice::new(&next)], writer.at)?;
        writer.file.sync(thread)?;
        writer.previous_end = here + PAGE_BYTES;
        writer.file = file;
        writer.head = head;
        writer.at = PAGE_BYTES;
        Ok(())
    }

    /// Syncs a block and the batches in segments that it refers to.
    pub(super) fn sync(&self, written: &mut Written, thread: usize) {
        written.is_synced = true;
        if written.failed.is_none() {
            let begin = std::time::Instant::now();
            let placed = || written.placed.iter().try_for_each(|placed| placed.sync());
            let file = &written.file;
            // A synced file that was moved away or removed is not durable.
            let synced = placed().and_then(|()| file.sync(thread)).and_then(|()| self.place.check());
            let found = synced.and_then(|()| file.check_name(thread));
            written.failed = found.inspect_err(|error| self.break_off(error)).err();
            self.counts.syncs.fetch_add(1, Ordering::Relaxed);
            self.counts.sync_nanos.fetch_add(begin.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
    }
}

/// Ends a file of an earlier process at the end that recovery found, with an entry that leads to the next one, which is
/// synced. Returns the end of that entry's block. What was written there was cut short.
pub(super) fn lead(file: &JournalFile, head: &FileHead, lead: Lead, next: (u64, u32)) -> Result<u64> {
    // A page of each file stays free for this.
    let Lead { position, previous_end, synced } = lead;
    let block = next_block(head, position, previous_end, synced, next);
    file.write(&mut [IoSlice::new(&block)], position - head.position)?;
    file.sync(0)?;
    Ok(position + PAGE_BYTES)
}

/// Encodes the block that ends a file: its only entry names the file in which the journal continues.
fn next_block(head: &FileHead, position: u64, previous_end: u64, synced: u64, next: (u64, u32)) -> Vec<u8> {
    let (number, slot) = next;
    let body = slot.to_le_bytes();
    let row = Row {
        kind: EntryKind::Next,
        shard: ShardId::FIRST,
        stream: number,
        bytes: body.len() as u32,
        crc: checksum(&body),
    };
    let block = BlockHead { file: head.number, position, previous_end, synced, rows: vec![row] };
    let mut buf = Vec::new();
    block.encode(&mut buf);
    buf.extend_from_slice(&body);
    buf.resize(PAGE_BYTES as usize, 0);
    buf
}
