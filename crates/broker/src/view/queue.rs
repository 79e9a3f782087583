//! A queue's view of one partition: its leases and its read position. It lives behind the partition's lock.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::queue::{
    Call, Cursor, Lease, Look, Queue, QueueOverflow, QueueRecord, QueueSettings, Taken, group_of, header,
};
use engine::{Error, ErrorKind, Isolation, Offset, PartitionId, Record, RecordBatch, Records, Result};

use storage::Read;

use super::cell::QueueCell;
use super::examined::{Examination, Examined, Finding, Rules};
use super::received::{Origin, Received};
use crate::log::Log;

/// Maximum number of records that one pass keeps, so that they are not read twice.
const LOOKED_MAX: usize = 1024;

pub(crate) struct QueueView {
    pub(crate) cell: Arc<QueueCell>,
    pub(crate) queue: Queue,
    /// `true` if messages may carry their own due time: each has to be examined when it arrives.
    pub(crate) has_delays: bool,
    /// `true` if the state of messages is persisted.
    pub(crate) is_saved: bool,
    /// Cursor as it was last persisted, if it was.
    pub(crate) saved_next: Option<Offset>,
    /// Offset before which messages were purged: deduplication does not know those.
    pub(crate) dedup_from: Offset,
    /// Bounds up to which the log is known.
    ends: LogEnds,
    reader: Reader,
    /// Oldest unfinished message that was last looked at, and its arrival time.
    oldest: Option<(Offset, u64)>,
    _counted: Counted,
}

/// Count of a view among those of all queues, for as long as the view exists.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(views: &Arc<AtomicUsize>) -> Self {
        views.fetch_add(1, Ordering::Relaxed);
        Self(views.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Oldest unfinished message of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Oldest {
    /// Arrival time, ms since 1970.
    Arrived(u64),
    /// The message at this offset is in a file.
    InFile(Offset),
}

/// Offsets of a log that bound the messages of queues.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogEnds {
    /// Offset after the newest record.
    pub end: Offset,
    /// Offset of the first record of the oldest open transaction, or the end.
    pub stable_end: Offset,
    /// Offset after the last marker of a transaction. Only records before it can belong to aborted transactions.
    pub markers_end: Offset,
}

/// Result of looking up an offset.
pub(crate) enum Found {
    Record(Record),
    /// The offset holds no message.
    Absent,
    /// The record is in a file that has to be read first.
    Cold,
}

/// Reads records in sequence without decoding each batch from its beginning again.
#[derive(Default)]
struct Reader {
    /// Batches that were read from a file for this queue.
    window: Vec<RecordBatch>,
    /// Range of offsets of which `window` held all batches when it was read.
    window_range: Range<Offset>,
    open: Option<OpenBatch>,
    /// Records that were examined in this turn.
    looked: Vec<Record>,
}

/// A batch that is being read. Records before `next` were passed.
struct OpenBatch {
    end: Offset,
    next: Offset,
    records: Records,
}

/// Result of one turn at a partition.
#[derive(Default)]
pub(crate) struct Turn {
    pub(crate) given: Vec<Received>,
    /// Leases of messages that still have to be read from a file.
    pub(crate) unread: Vec<Lease>,
    pub(crate) dead: Vec<Lease>,
    /// Offset at which the turn stopped, since it could not continue without reading a file.
    pub(crate) cold: Option<Offset>,
    pub(crate) is_full: bool,
    /// `true` if another turn may find more.
    pub(crate) is_cut: bool,
}

impl QueueView {
    pub(crate) fn new(cell: Arc<QueueCell>, queue: Queue, is_saved: bool) -> Self {
        let has_delays = false;
        let saved_next = None;
        let dedup_from = 0;
        let ends = LogEnds::default();
        let reader = Reader::default();
        let _counted = Counted::new(&cell.views);
        Self { cell, queue, has_delays, is_saved, saved_next, dedup_from, ends, reader, oldest: None, _counted }
    }

    /// Returns `true` if each message has to be examined when it arrives, for its due time or against the queue's
    /// filter.
    fn needs_look(&self) -> bool {
        let settings = self.queue.settings();
        self.has_delays || settings.delay_ms > 0 || settings.filter.is_some()
    }

    /// Returns the rules by which the records of this queue are examined now.
    pub(crate) fn rules(&self) -> Rules {
        Rules { definition: self.cell.definition(), has_delays: self.has_delays }
    }

    pub(crate) fn isolation(&self) -> Isolation {
        self.cell.isolation(self.queue.settings())
    }

    /// Returns the offset before which the queue may deliver messages now.
    fn readable_end(&self) -> Offset {
        match self.isolation() {
            Isolation::Committed => self.ends.stable_end,
            Isolation::Uncommitted => self.ends.end,
        }
    }

    /// Makes the queue examine again all messages after the cursor, unless none of them needs it.
    fn begin_look(&mut self) {
        self.queue.forget_ahead();
        if !self.needs_look() && self.queue.next() >= self.ends.markers_end {
            self.queue.append(self.readable_end());
        }
    }

    /// Attaches the view to a log with these bounds.
    pub(crate) fn begin(&mut self, ends: LogEnds) {
        self.ends = ends;
        self.begin_look();
    }

    pub(crate) fn alter(&mut self, settings: QueueSettings) {
        let before = self.isolation();
        self.queue.alter(settings);
        if self.isolation() != before {
            self.begin_look();
        }
    }

    /// Returns the first offset that has to be examined before its message can be delivered.
    pub(crate) fn unseen(&mut self, log: &Log) -> Option<Offset> {
        self.queue.trim(log.extent().start);
        self.has_unseen().then(|| self.queue.end())
    }

    pub(crate) fn has_unseen(&self) -> bool {
        self.queue.end() < self.readable_end() && self.queue.has_room_ahead()
    }

    /// Applies the findings about the next offsets. Returns `false` if the queue has moved to another offset in the
    /// meantime, or has no room for more of them.
    pub(crate) fn apply(&mut self, examined: &Examined) -> bool {
        if examined.from > self.queue.end() {
            return false;
        }
        for finding in &examined.findings {
            if !self.queue.has_room_ahead() {
                return false;
            }
            match finding {
                Finding::Void(range) => self.queue.append_void(range.clone()),
                Finding::Delayed(offset, due_ms) => {
                    self.queue.delay(*offset, *due_ms);
                    self.queue.append(offset + 1);
                }
            }
        }
        self.queue.append(examined.until);
        true
    }

    /// Ends a look at the log from `from`, up to which findings were applied, to `until`. No batch holds the offsets in
    /// between.
    pub(crate) fn end_look(&mut self, from: Offset, until: Offset) {
        if from <= self.queue.end() {
            self.queue.append(until);
        }
        // These messages were not counted when later ones arrived, so there may be too many now.
        self.make_room(0);
    }

    /// Examines the next batch. Returns `false` if there is no room for what has to be known of it.
    fn see_batch(&mut self, batch: &RecordBatch, now_ms: u64) -> bool {
        let end = batch.next_offset();
        if !batch.is_control() && !self.needs_look() && u64::from(batch.count()) == end - batch.base_offset() {
            self.queue.append(end);
            return true;
        }
        let rules = self.rules();
        let from = self.queue.end().max(batch.base_offset());
        let mut examination = Examination::new(&rules, batch, from, false, now_ms);
        std::iter::from_fn(|| examination.next_slice()).all(|examined| self.apply(&examined))
    }

    /// Returns the error for a batch that the queue has no room for: too many messages, or too many bytes.
    pub(crate) fn refuse(&self, messages: u64, bytes: u64, log_bytes: u64) -> Option<Error> {
        let QueueSettings { messages_max, bytes_max, overflow, .. } = *self.queue.settings();
        if overflow != QueueOverflow::Reject || (messages_max == 0 && bytes_max == 0) {
            return None;
        }
        let name = &self.cell.definition().name;
        // Each record that is not examined yet may be a message.
        let undone = self.queue.undone() + self.ends.end.saturating_sub(self.queue.end());
        if messages_max > 0 && undone + messages > messages_max {
            return Some(Error::busy(format!("queue {name} has {undone} of {messages_max} messages")));
        }
        (bytes_max > 0 && log_bytes + bytes > bytes_max)
            .then(|| Error::busy(format!("queue {name} has {log_bytes} of {bytes_max} bytes")))
    }

    /// Drops the oldest messages until there is room for `messages` more, if that is the queue's overflow policy.
    pub(crate) fn make_room(&mut self, messages: u64) {
        let QueueSettings { messages_max, overflow, .. } = *self.queue.settings();
        if overflow == QueueOverflow::DropOldest && messages_max > 0 {
            while self.queue.undone() > 0 && self.queue.undone() + messages > messages_max {
                self.queue.drop_oldest();
            }
        }
    }

    /// Adds a batch that has become readable, in a log that is stable up to `stable_end`. One of more than
    /// `records_max` records that have to be examined is left for later, when no lock is held.
    pub(crate) fn arrive(&mut self, batch: &RecordBatch, stable_end: Offset, now_ms: u64, records_max: usize) {
        let end = batch.next_offset();
        let markers_end = if batch.is_control() { end } else { self.ends.markers_end };
        self.ends = LogEnds { end, stable_end, markers_end };
        let is_decided = self.isolation() == Isolation::Uncommitted
            || (end <= stable_end && (batch.is_control() || !batch.is_transactional()));
        let is_short = batch.count() as usize <= records_max || !self.needs_look();
        // A batch after others that are not examined yet waits until they are.
        let is_next = batch.base_offset() <= self.queue.end();
        if !(is_decided && is_short && is_next && self.see_batch(batch, now_ms)) {
            self.cell.has_unseen.store(true, Ordering::Relaxed);
        }
    }

    /// Leases messages of a partition, with their records if these can be read without waiting.
    pub(crate) fn take(
        &mut self,
        log: &Log,
        of: Origin,
        call: &mut Call,
        now_ms: u64,
        max: usize,
        lease_ms: Option<u64>,
    ) -> Turn {
        let lease_ms = lease_ms.unwrap_or(self.queue.settings().lease_ms);
        self.queue.trim(log.extent().start);
        let reader = &mut self.reader;
        let taken = self.queue.take_for(call, Offset::MAX, now_ms, max, lease_ms, |offset| reader.look(log, offset));
        let Taken { leases, dead, cold, is_full, mut is_cut } = taken;
        let mut turn = Turn { given: Vec::with_capacity(leases.len()), dead, cold, is_full, ..Turn::default() };
        for mut lease in leases {
            match self.reader.find(log, lease.offset) {
                Found::Record(record) => {
                    self.carry(&mut lease, &record);
                    turn.given.push(of.received(lease, record));
                }
                Found::Cold => turn.unread.push(lease),
                // The message no longer exists, and no other receiver holds it.
                Found::Absent => {
                    is_cut = true;
                    self.queue.ack(lease.offset, lease.lease, now_ms).unwrap_or_default();
                }
            }
        }
        turn.is_cut = is_cut;
        self.reader.end_turn(self.queue.next(), self.queue.end());
        turn
    }

    /// Counts the earlier deliveries of a message that was moved here with its attempts.
    pub(crate) fn carry(&mut self, lease: &mut Lease, record: &Record) {
        if lease.attempts == 1
            && let Some(attempts) = carried_attempts(record)
        {
            self.queue.carry(lease, attempts);
        }
    }

    pub(crate) fn find(&mut self, log: &Log, offset: Offset) -> Found {
        self.reader.find(log, offset)
    }

    /// Returns the arrival time of the batch with the oldest unfinished message, if there is one.
    pub(crate) fn oldest(&mut self, log: &Log) -> Oldest {
        let offset = self.queue.floor().max(log.extent().start);
        if let Some((_, arrival_ms)) = self.oldest.filter(|(known, _)| *known == offset) {
            return Oldest::Arrived(arrival_ms);
        }
        match self.reader.batch(log, offset) {
            Ok(Some(batch)) => Oldest::Arrived(self.note_oldest(offset, &batch)),
            _ => Oldest::InFile(offset),
        }
    }

    /// Notes the batch with the oldest unfinished message. Returns its arrival time.
    pub(crate) fn note_oldest(&mut self, offset: Offset, batch: &RecordBatch) -> u64 {
        let arrival_ms = batch.arrival_ms().unwrap_or_else(|| batch.base_timestamp_ms()).max(0) as u64;
        self.oldest = Some((offset, arrival_ms));
        arrival_ms
    }

    /// Returns the queue's position as the record that persists it.
    pub(crate) fn cursor_record(&self, partition: PartitionId) -> QueueRecord {
        let cursor = Cursor { next: self.queue.next(), has_delays: self.has_delays, dedup_from: self.dedup_from };
        QueueRecord::Cursor { queue: self.cell.id, partition, cursor: Some(cursor) }
    }

    pub(crate) fn seek(&mut self, to: Offset) {
        self.queue.seek(to);
        self.begin_look();
        self.reader = Reader::default();
    }

    /// Discards all messages before `to`, which may be sent again: deduplication forgets them.
    pub(crate) fn purge(&mut self, to: Offset) {
        self.seek(to);
        self.dedup_from = to;
        // This has to be persisted even if the cursor does not move.
        self.saved_next = None;
    }

    pub(crate) fn seek_to(&mut self, pending: impl IntoIterator<Item = Offset>, next: Offset) {
        self.queue.restore_pending(pending, next);
        self.begin_look();
        self.reader = Reader::default();
    }

    /// Replaces the window with batches of a file, for the next turn.
    pub(crate) fn set_window(&mut self, from: Offset, batches: Vec<RecordBatch>, until: Offset) {
        self.reader = Reader { window: batches, window_range: from..until, ..Reader::default() };
    }
}

/// Returns how often a message was delivered in the queue that it was moved from.
pub(crate) fn carried_attempts(record: &Record) -> Option<u32> {
    std::str::from_utf8(record.header(header::ATTEMPTS)?).ok()?.parse().ok()
}

impl Reader {
    /// Drops everything that the next turn does not need.
    fn end_turn(&mut self, next: Offset, end: Offset) {
        self.looked = Vec::new();
        if self.window_range.end <= next {
            self.window = Vec::new();
            self.window_range = 0..0;
        }
        if next == end {
            self.open = None;
        }
    }

    fn look(&mut self, log: &Log, offset: Offset) -> Look {
        match self.find(log, offset) {
            Found::Cold => Look::Cold,
            Found::Absent => Look::Absent,
            Found::Record(record) => {
                let group = record.key.as_deref().map(group_of);
                if self.looked.len() < LOOKED_MAX {
                    self.looked.push(record);
                }
                Look::Message(group)
            }
        }
    }

    fn find(&mut self, log: &Log, offset: Offset) -> Found {
        if let Ok(at) = self.looked.binary_search_by_key(&offset, |record| record.offset) {
            return Found::Record(self.looked[at].clone());
        }
        if self.open.as_ref().is_none_or(|open| !(open.next..open.end).contains(&offset)) {
            if let Some(record) = log.find(offset).and_then(RecordBatch::alone) {
                self.open = None;
                return if record.offset == offset { Found::Record(record) } else { Found::Absent };
            }
            self.open = match self.batch(log, offset) {
                Ok(Some(batch)) => batch.records_from(offset).ok().map(|records| OpenBatch {
                    end: batch.next_offset(),
                    next: offset,
                    records,
                }),
                Ok(None) => return Found::Cold,
                Err(error) if error.kind == ErrorKind::OutOfRange => None,
                // A record that cannot be read now may exist all the same; reading it from its file returns the reason.
                Err(_) => return Found::Cold,
            };
        }
        let Some(open) = &mut self.open else {
            return Found::Absent;
        };
        open.next = offset + 1;
        open.records.find(offset).map_or(Found::Absent, Found::Record)
    }

    /// Returns the batch that holds an offset; `None` if it is in a file.
    fn batch(&self, log: &Log, offset: Offset) -> Result<Option<RecordBatch>> {
        let in_window = || {
            let at = self.window.partition_point(|batch| batch.next_offset() <= offset);
            self.window.get(at).filter(|batch| batch.base_offset() <= offset).cloned()
        };
        if let Some(batch) = log.find(offset).cloned().or_else(in_window) {
            return Ok(Some(batch));
        }
        if self.window_range.contains(&offset) {
            return Err(Error::new(
                ErrorKind::OutOfRange,
                "the message at this offset was removed: receive the next one",
            ));
        }
        Ok(match log.read(offset, 1)? {
            Read::Batches(batches) => batches.into_iter().next(),
            Read::Cold(_) => None,
        })
    }
}
