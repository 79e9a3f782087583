//! State machine of a queue over one partition: leases of messages, and the cursor of delivery.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, hash_map};
use std::ops::Range;

use super::line::{GroupId, Line, Stand};
use super::voids::Voids;
use super::{DELAY_MS_MAX, LEASE_TOTAL_MS_MAX, QueueSettings};
use crate::ids::Offset;
use crate::limits::QUEUE_DELAYED_MAX;

/// Due time of a lease that the broker itself holds while it moves the message elsewhere: it does not expire.
pub(super) const NEVER: u64 = u64::MAX;
/// Number of timers, beyond twice the active ones, at which stale timers are removed.
const STALE_TIMERS_MIN: usize = 1024;
/// Maximum number of leases and delays that end in one call.
pub(super) const ENDED_PER_CALL_MAX: usize = 4096;
/// Minimum step back of the clock in ms that is treated as a clock that was set back.
const SET_BACK_MS_MIN: u64 = 60_000;
/// Number of low bits of a lease, which distinguish leases of the same ms; the high bits are its time, ms since 1970.
const LEASE_COUNT_BITS: u32 = 16;

/// State of a message that has an entry: neither finished nor simply the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// Receiver holds the message until it is due.
    Leased = 1,
    /// Message can be delivered.
    Waiting = 2,
    /// Message can be delivered once it is due.
    Delayed = 3,
}

impl Phase {
    pub fn from_code(code: u8) -> Option<Self> {
        [Self::Leased, Self::Waiting, Self::Delayed].into_iter().find(|phase| *phase as u8 == code)
    }

    fn stand(self) -> Stand {
        match self {
            Self::Leased => Stand::Leased,
            Self::Waiting => Stand::Waiting,
            Self::Delayed => Stand::Delayed,
        }
    }
}

/// State of a message apart from its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub phase: Phase,
    /// End of the lease or of the delay, ms since 1970.
    pub due_ms: u64,
    /// Newest lease; 0 if there was none.
    pub lease: u64,
    /// Number of deliveries.
    pub attempts: u32,
    /// Time of the first delivery, ms since 1970.
    pub first_ms: u64,
    pub group: Option<GroupId>,
}

impl Entry {
    /// Checks whether a receipt of a lease is valid.
    fn check(&self, settings: &QueueSettings, lease: u64, now_ms: u64) -> Result<(), LeaseError> {
        if self.lease == 0 {
            return Err(LeaseError::Gone);
        }
        let runs = self.phase == Phase::Leased && self.due_ms > now_ms;
        let counts = if settings.is_strict { self.lease == lease && runs } else { lease <= self.lease && lease > 0 };
        if counts { Ok(()) } else { Err(LeaseError::Expired) }
    }
}

/// Message that was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    pub offset: Offset,
    pub lease: u64,
    pub attempts: u32,
    pub first_ms: u64,
}

/// Reason for which a receipt is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseError {
    /// Message no longer exists.
    Gone,
    /// Lease has expired, or another receiver holds the message.
    Expired,
    /// No receiver holds the message.
    NotLeased,
    /// Lease would exceed the maximum time that a receiver may hold a message.
    TooLong,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of messages that can be delivered.
    pub visible: u64,
    pub leased: u64,
    pub delayed: u64,
}

/// Queue of the messages of one partition.
///
/// Invariants: messages before `floor` are finished. From `floor` to `next` an offset has an entry or is finished. From
/// `next` on an offset without an entry was never delivered, or is one of `voids`; one with an entry is
/// [`Phase::Delayed`], and `ahead` counts those. Entries from `next` on are not saved: they follow
/// from the log.
#[derive(Debug)]
pub struct Queue {
    pub(super) settings: QueueSettings,
    floor: Offset,
    pub(super) next: Offset,
    pub(super) end: Offset,
    pub(super) entries: HashMap<Offset, Entry, foldhash::fast::RandomState>,
    /// Offsets from `next` to `end` that hold no message. No such offset has an entry, or is `next`.
    voids: Voids,
    pub(super) line: Line,
    /// Times at which leases and delays end, with the lease and the offset. Some are stale: the entry decides.
    timers: BinaryHeap<Reverse<(u64, u64, Offset)>>,
    pub(super) counts: PhaseCounts,
    pub(super) ahead: u64,
    last_lease: u64,
    /// Time of the last call, to detect a clock that was set back.
    looked_ms: u64,
    /// Offsets whose entries changed since they were saved; `None` if the queue is not saved.
    changes: Option<Vec<Offset>>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PhaseCounts {
    pub(super) leased: u64,
    pub(super) waiting: u64,
    pub(super) delayed: u64,
}

impl PhaseCounts {
    fn of(&mut self, phase: Phase) -> &mut u64 {
        match phase {
            Phase::Leased => &mut self.leased,
            Phase::Waiting => &mut self.waiting,
            Phase::Delayed => &mut self.delayed,
        }
    }
}

impl Queue {
    /// Creates a queue that begins at offset `start` of a log that ends at `end`. If `is_saved`, it records changes for
    /// [`Queue::take_changes`].
    pub fn new(settings: QueueSettings, start: Offset, end: Offset, is_saved: bool) -> Self {
        let mut queue = Self {
            line: Line::new(settings.order),
            settings,
            floor: start,
            next: start,
            end: start,
            entries: HashMap::default(),
            voids: Voids::default(),
            timers: BinaryHeap::new(),
            counts: PhaseCounts::default(),
            ahead: 0,
            last_lease: 0,
            looked_ms: 0,
            changes: is_saved.then(Vec::new),
        };
        queue.append(end);
        queue
    }

    /// Returns the offset before which all messages are finished.
    pub fn floor(&mut self) -> Offset {
        if self.entries.len() as u64 == self.ahead {
            self.floor = self.next;
        }
        while self.floor < self.next && !self.entries.contains_key(&self.floor) {
            self.floor += 1;
        }
        self.floor
    }

    /// Returns the offset of the first message that was never delivered.
    pub fn next(&self) -> Offset {
        self.next
    }

    pub fn end(&self) -> Offset {
        self.end
    }

    pub fn is_done(&self, offset: Offset) -> bool {
        offset < self.floor || (offset < self.next && !self.entries.contains_key(&offset))
    }

    pub fn settings(&self) -> &QueueSettings {
        &self.settings
    }

    pub fn entry(&self, offset: Offset) -> Option<&Entry> {
        self.entries.get(&offset)
    }

    pub fn noisy_groups(&self) -> usize {
        self.line.noisy_groups()
    }

    /// Returns the number of messages in each state at this time.
    pub fn counts(&mut self, now_ms: u64) -> Counts {
        self.expire(now_ms);
        self.counts_kept()
    }

    /// Returns the number of messages in each state as of the last call: leases and delays that ended since then are
    /// not considered.
    pub fn counts_kept(&self) -> Counts {
        let PhaseCounts { leased, waiting, delayed } = self.counts;
        Counts { visible: self.ahead_messages() + waiting, leased, delayed }
    }

    /// Returns the number of unfinished messages.
    pub fn undone(&self) -> u64 {
        let PhaseCounts { leased, waiting, delayed } = self.counts;
        self.ahead_messages() + waiting + leased + delayed
    }

    /// Returns the number of messages that were never delivered and are not delayed.
    fn ahead_messages(&self) -> u64 {
        self.end - self.next - self.ahead - self.voids.count()
    }

    /// Drops the oldest unfinished message, even if it is leased.
    pub fn drop_oldest(&mut self) {
        let oldest = self.floor();
        if oldest >= self.end {
            return;
        }
        if oldest == self.next {
            self.advance();
            self.ahead -= u64::from(self.entries.contains_key(&oldest));
        }
        self.drop_entry(oldest);
        self.floor = oldest + 1;
    }

    /// Returns the earliest time at which a lease or a delay may end.
    pub fn next_due_ms(&self) -> Option<u64> {
        self.timers.peek().map(|Reverse((due_ms, ..))| *due_ms)
    }

    /// Extends the queue to the new end of the log.
    pub fn append(&mut self, end: Offset) {
        self.end = self.end.max(end);
        self.line.reach(self.end);
    }

    /// Extends the queue to the end of a range of the log that holds no message.
    pub fn append_void(&mut self, range: Range<Offset>) {
        let start = range.start.max(self.next);
        if start < range.end {
            self.append(range.end);
            self.voids.push(start..range.end);
            self.next = self.voids.skip(self.next);
        }
    }

    /// Returns the number of ranges without messages that the queue keeps.
    pub fn skipped_ranges(&self) -> usize {
        self.voids.ranges()
    }

    /// Returns `true` if an offset at or after the cursor holds no message.
    pub fn is_void(&self, offset: Offset) -> bool {
        self.voids.has(offset)
    }

    /// Returns `true` if there is room for another range without messages, and for another delayed message.
    pub fn has_room_ahead(&self) -> bool {
        !self.voids.is_full() && self.counts.delayed < QUEUE_DELAYED_MAX
    }

    /// Moves the cursor past one message, and past following offsets that hold none.
    pub(super) fn advance(&mut self) {
        self.next = self.voids.skip(self.next + 1);
    }

    /// Delays a message at or after the cursor until this time.
    pub fn delay(&mut self, offset: Offset, due_ms: u64) {
        if offset >= self.next && !self.entries.contains_key(&offset) {
            self.ahead += 1;
            self.put(offset, Entry { phase: Phase::Delayed, due_ms, lease: 0, attempts: 0, first_ms: 0, group: None });
        }
    }

    pub(super) fn new_lease(&mut self, now_ms: u64) -> u64 {
        self.last_lease = (self.last_lease + 1).max(now_ms << LEASE_COUNT_BITS);
        self.last_lease
    }

    /// Leases a message that returned and has no attempt left to the broker, which moves it to the dead-letter topic.
    pub fn take_dead(&mut self, offset: Offset, now_ms: u64) -> Option<Lease> {
        if !self.settings.has_last_attempt() {
            return None;
        }
        let entry = self.entries.get(&offset).copied()?;
        let is_back = matches!(entry.phase, Phase::Waiting | Phase::Delayed) && offset < self.next;
        if !is_back || !self.settings.is_last_attempt(entry.attempts) {
            return None;
        }
        let lease = self.new_lease(now_ms);
        self.change(offset, Entry { phase: Phase::Leased, due_ms: NEVER, lease, ..entry });
        Some(Lease { offset, lease, attempts: entry.attempts, first_ms: entry.first_ms })
    }

    /// Returns the number of deliveries of a message if this lease still runs.
    pub fn held(&self, offset: Offset, lease: u64, now_ms: u64) -> Option<u32> {
        let entry = self.entries.get(&offset).filter(|entry| entry.lease == lease && entry.phase == Phase::Leased)?;
        (entry.due_ms > now_ms).then_some(entry.attempts)
    }

    /// Acknowledges a message. Returns `false` if it was already finished; a strict queue refuses that. A lease that is
    /// not known has expired: it was lost with a leader or in a crash, and its message is delivered again.
    pub fn ack(&mut self, offset: Offset, lease: u64, now_ms: u64) -> Result<bool, LeaseError> {
        let checked = match self.entries.entry(offset) {
            hash_map::Entry::Occupied(entry) => {
                entry.get().check(&self.settings, lease, now_ms).map(|()| entry.remove())
            }
            hash_map::Entry::Vacant(_) => Err(LeaseError::Gone),
        };
        match checked {
            Err(LeaseError::Gone) if offset < self.end && !self.is_done(offset) => Err(LeaseError::Expired),
            Ok(entry) => {
                self.count_out(offset, &entry);
                Ok(true)
            }
            Err(LeaseError::Gone) if !self.settings.is_strict && self.is_done(offset) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns `true` if a lease may end `lease_ms` from now: a receiver may hold a message for [`LEASE_TOTAL_MS_MAX`].
    pub fn may_extend(lease: u64, now_ms: u64, lease_ms: u64) -> bool {
        now_ms.saturating_add(lease_ms) <= (lease >> LEASE_COUNT_BITS).saturating_add(LEASE_TOTAL_MS_MAX)
    }

    /// Sets the end of a lease to `lease_ms` from now. A lease that has expired becomes active again if the message was
    /// not delivered since, unless the queue is strict.
    pub fn extend(&mut self, offset: Offset, lease: u64, now_ms: u64, lease_ms: u64) -> Result<(), LeaseError> {
        if self.settings.is_strict {
            self.extend_running(offset, lease, now_ms, lease_ms)
        } else {
            self.renew(offset, lease, now_ms, lease_ms)
        }
    }

    /// Extends a lease, even an expired one if the message was not delivered since, and even in a strict queue.
    pub fn renew(&mut self, offset: Offset, lease: u64, now_ms: u64, lease_ms: u64) -> Result<(), LeaseError> {
        self.expire(now_ms);
        let has_expired =
            |entry: &Entry| entry.lease == lease && lease > 0 && matches!(entry.phase, Phase::Waiting | Phase::Delayed);
        let Some(entry) = self.entries.get(&offset).copied().filter(has_expired) else {
            return self.extend_running(offset, lease, now_ms, lease_ms);
        };
        if !Self::may_extend(lease, now_ms, lease_ms) {
            return Err(LeaseError::TooLong);
        }
        if lease_ms > 0 {
            self.change(offset, Entry { phase: Phase::Leased, due_ms: now_ms.saturating_add(lease_ms), ..entry });
        }
        Ok(())
    }

    fn extend_running(&mut self, offset: Offset, lease: u64, now_ms: u64, lease_ms: u64) -> Result<(), LeaseError> {
        let entry = self.check_leased(offset, lease, now_ms)?;
        if lease_ms == 0 {
            self.return_to_queue(offset, entry, now_ms, 0);
            return Ok(());
        }
        if !Self::may_extend(entry.lease, now_ms, lease_ms) {
            return Err(LeaseError::TooLong);
        }
        let entry = Entry { due_ms: now_ms.saturating_add(lease_ms), ..entry };
        self.entries.insert(offset, entry);
        self.note(offset);
        self.set_timer(offset, &entry);
        Ok(())
    }

    /// Returns a message to the queue after a delay: by default that of the queue's backoff.
    pub fn nack(&mut self, offset: Offset, lease: u64, now_ms: u64, delay_ms: Option<u64>) -> Result<(), LeaseError> {
        let entry = self.check_leased(offset, lease, now_ms)?;
        let delay_ms = delay_ms.unwrap_or_else(|| self.settings.backoff_after(entry.attempts));
        self.return_to_queue(offset, entry, now_ms, delay_ms);
        Ok(())
    }

    /// Undoes the delivery of a message whose receiver never got it: the attempt is not counted, and its group keeps
    /// its place.
    pub fn untake(&mut self, lease: &Lease) {
        let Some(entry) = self.entries.get(&lease.offset).copied().filter(|entry| entry.lease == lease.lease) else {
            return;
        };
        let attempts = entry.attempts.saturating_sub(1);
        let first_ms = if attempts == 0 { 0 } else { entry.first_ms };
        if entry.phase == Phase::Leased {
            self.line.untake(lease.offset, entry.group);
        }
        self.change(lease.offset, Entry { phase: Phase::Waiting, due_ms: 0, attempts, first_ms, ..entry });
    }

    /// Returns a message to the queue immediately because its receiver has disconnected. Returns `false` if that
    /// receiver no longer held the message.
    pub fn release(&mut self, offset: Offset, lease: u64, now_ms: u64) -> bool {
        self.expire(now_ms);
        let held = self.entries.get(&offset).copied();
        let held = held.filter(|entry| entry.lease == lease && entry.phase == Phase::Leased);
        held.is_some_and(|entry| {
            self.return_to_queue(offset, entry, now_ms, 0);
            true
        })
    }

    /// Adds earlier deliveries in another queue to a message that was just delivered for the first time here.
    pub fn carry(&mut self, lease: &mut Lease, attempts: u32) {
        if let Some(entry) = self.entries.get_mut(&lease.offset).filter(|entry| entry.lease == lease.lease) {
            entry.attempts = entry.attempts.saturating_add(attempts);
            lease.attempts = entry.attempts;
            self.note(lease.offset);
        }
    }

    /// Returns a message to the queue whose move to the dead-letter topic failed: the broker retries after `delay_ms`.
    pub fn keep_dead(&mut self, offset: Offset, now_ms: u64, delay_ms: u64) {
        if let Some(entry) = self.entries.get(&offset).copied().filter(|entry| entry.due_ms == NEVER) {
            self.return_to_queue(offset, entry, now_ms, delay_ms);
        }
    }

    fn check_leased(&mut self, offset: Offset, lease: u64, now_ms: u64) -> Result<Entry, LeaseError> {
        self.expire(now_ms);
        let entry = self.entries.get(&offset).copied().ok_or(LeaseError::Gone)?;
        entry.check(&self.settings, lease, now_ms)?;
        match entry.phase {
            // An older lease may acknowledge. Only the newest decides how long its receiver holds the message.
            Phase::Leased if entry.lease != lease => Err(LeaseError::Expired),
            Phase::Leased => Ok(entry),
            Phase::Waiting | Phase::Delayed => Err(LeaseError::NotLeased),
        }
    }

    /// Returns a leased message to the queue. A new lease cuts off its former receiver.
    fn return_to_queue(&mut self, offset: Offset, entry: Entry, now_ms: u64, delay_ms: u64) {
        let lease = self.new_lease(now_ms);
        self.go_back(offset, Entry { lease, ..entry }, now_ms, delay_ms);
    }

    /// Returns a message to the queue, and if the settings require it also the leased messages of its group after it.
    fn go_back(&mut self, offset: Offset, entry: Entry, now_ms: u64, delay_ms: u64) {
        let mut back = vec![(offset, entry)];
        if self.settings.returns_following {
            for after in self.line.leased_after(offset, entry.group) {
                let lease = self.new_lease(now_ms);
                back.extend(self.entries.get(&after).map(|entry| (after, Entry { lease, ..*entry })));
            }
        }
        let due_ms = now_ms.saturating_add(delay_ms.min(DELAY_MS_MAX));
        let phase = if delay_ms == 0 { Phase::Waiting } else { Phase::Delayed };
        for (offset, entry) in back {
            self.change(offset, Entry { phase, due_ms, ..entry });
        }
    }

    /// Ends expired leases and delays, at most 4,096, the earliest first: the partition is locked.
    /// These changes need not be saved: after a restart they have expired as well.
    pub fn expire(&mut self, now_ms: u64) {
        if now_ms.saturating_add(SET_BACK_MS_MIN) < self.looked_ms {
            self.set_back(self.looked_ms - now_ms);
        }
        self.looked_ms = now_ms;
        let changes = self.changes.take();
        self.end_due(now_ms);
        self.changes = changes;
    }

    /// Adjusts to a clock that was set back, so that no lease or delay takes longer than its duration.
    fn set_back(&mut self, by_ms: u64) {
        self.timers.clear();
        for (offset, entry) in &mut self.entries {
            if !matches!(entry.phase, Phase::Leased | Phase::Delayed) || entry.due_ms == NEVER {
                continue;
            }
            // A message that was never delivered is delayed until a point in time, not for a duration.
            if entry.lease > 0 {
                entry.due_ms = entry.due_ms.saturating_sub(by_ms);
            }
            self.timers.push(Reverse((entry.due_ms, entry.lease, *offset)));
        }
    }

    /// Returns `true` if leases or delays have ended that the last call of [`Queue::expire`] left for the next one.
    pub fn has_due(&self, now_ms: u64) -> bool {
        self.next_due_ms().is_some_and(|due_ms| due_ms <= now_ms)
    }

    fn end_due(&mut self, now_ms: u64) {
        for _ in 0..ENDED_PER_CALL_MAX {
            let Some(Reverse((due_ms, lease, offset))) = self.timers.peek().copied().filter(|of| of.0.0 <= now_ms)
            else {
                return;
            };
            self.timers.pop();
            let Some(entry) = self.entries.get(&offset).copied() else {
                continue;
            };
            if entry.due_ms != due_ms || entry.lease != lease {
                continue;
            }
            match entry.phase {
                // It keeps its lease, with which its former receiver may still acknowledge or extend.
                Phase::Leased => {
                    let delay_ms = self.settings.backoff_after(entry.attempts);
                    self.go_back(offset, entry, now_ms, delay_ms);
                }
                // It becomes an ordinary message that was never delivered.
                Phase::Delayed if offset >= self.next => {
                    self.ahead -= 1;
                    self.drop_entry(offset);
                }
                Phase::Delayed => self.change(offset, Entry { phase: Phase::Waiting, ..entry }),
                Phase::Waiting => {}
            }
        }
    }

    /// Marks all messages before an offset as finished, and all from there on as never delivered.
    pub fn seek(&mut self, to: Offset) {
        let offsets: Vec<Offset> = self.entries.keys().copied().collect();
        for offset in offsets {
            self.drop_entry(offset);
        }
        self.timers.clear();
        self.voids.clear();
        self.ahead = 0;
        self.floor = to;
        self.next = to;
        self.line = Line::new(self.settings.order);
        self.append(to);
    }

    /// Forgets the state of messages that were never delivered, which have to be appended again.
    pub fn forget_ahead(&mut self) {
        let next = self.next;
        let ahead: Vec<Offset> = self.entries.keys().copied().filter(|offset| *offset >= next).collect();
        ahead.into_iter().for_each(|offset| _ = self.drop_entry(offset));
        self.voids.clear();
        self.ahead = 0;
        self.end = next;
    }

    /// Restores unfinished messages before the cursor as waiting; all others before it are finished.
    pub fn restore_pending(&mut self, pending: impl IntoIterator<Item = Offset>, next: Offset) {
        self.seek(next);
        for offset in pending.into_iter().filter(|offset| *offset < next) {
            self.floor = self.floor.min(offset);
            self.put(
                offset,
                Entry { phase: Phase::Waiting, due_ms: 0, lease: 0, attempts: 0, first_ms: 0, group: None },
            );
        }
    }

    /// Returns the offsets that have an entry.
    pub fn offsets(&self) -> impl Iterator<Item = Offset> {
        self.entries.keys().copied()
    }

    /// Returns the offsets of unfinished messages before the cursor, in ascending order.
    pub fn pending(&self) -> Vec<Offset> {
        let mut pending: Vec<Offset> = self.entries.keys().copied().filter(|offset| *offset < self.next).collect();
        pending.sort_unstable();
        pending
    }

    /// Drops the messages before this offset, which were removed from the log.
    pub fn trim(&mut self, start: Offset) {
        if start <= self.floor() {
            return;
        }
        let gone: Vec<Offset> = if start - self.floor > self.entries.len() as u64 {
            self.entries.keys().copied().filter(|offset| *offset < start).collect()
        } else {
            (self.floor..start).filter(|offset| self.entries.contains_key(offset)).collect()
        };
        for offset in gone {
            self.ahead -= u64::from(offset >= self.next);
            self.drop_entry(offset);
        }
        self.floor = start;
        self.next = self.voids.skip(self.next.max(start));
        self.append(self.next);
    }

    /// Replaces the settings. The order stays.
    pub fn alter(&mut self, settings: QueueSettings) {
        let order = self.settings.order;
        self.settings = QueueSettings { order, ..settings };
    }

    pub(super) fn put(&mut self, offset: Offset, entry: Entry) {
        self.entries.insert(offset, entry);
        self.count_in(offset, &entry);
        self.set_timer(offset, &entry);
        self.note(offset);
    }

    /// Replaces the entry of a message, which stays in its group.
    pub(super) fn change(&mut self, offset: Offset, entry: Entry) {
        let Some(before) = self.entries.insert(offset, entry) else {
            return self.put(offset, entry);
        };
        if offset < self.next {
            self.line.shift(offset, entry.group, before.phase.stand(), entry.phase.stand());
        }
        *self.counts.of(before.phase) -= 1;
        *self.counts.of(entry.phase) += 1;
        self.set_timer(offset, &entry);
        self.note(offset);
    }

    fn count_in(&mut self, offset: Offset, entry: &Entry) {
        // A message that the cursor has not passed is in no line: its group is unknown.
        if offset < self.next {
            self.line.add(offset, entry.group, entry.phase.stand());
        }
        *self.counts.of(entry.phase) += 1;
    }

    pub(super) fn drop_entry(&mut self, offset: Offset) -> Option<Entry> {
        let entry = self.entries.remove(&offset)?;
        self.count_out(offset, &entry);
        Some(entry)
    }

    /// Updates line and counts after an entry was removed.
    fn count_out(&mut self, offset: Offset, entry: &Entry) {
        self.line.remove(offset, entry.group, entry.phase.stand());
        *self.counts.of(entry.phase) -= 1;
        self.note(offset);
    }

    pub(super) fn set_timer(&mut self, offset: Offset, entry: &Entry) {
        if !matches!(entry.phase, Phase::Leased | Phase::Delayed) || entry.due_ms == NEVER {
            return;
        }
        self.timers.push(Reverse((entry.due_ms, entry.lease, offset)));
        let timed = (self.counts.leased + self.counts.delayed) as usize;
        if self.timers.len() > 2 * timed + STALE_TIMERS_MIN {
            let entries = &self.entries;
            self.timers.retain(|Reverse((due_ms, lease, offset))| {
                entries.get(offset).is_some_and(|entry| entry.due_ms == *due_ms && entry.lease == *lease)
            });
        }
    }

    #[cfg(test)]
    pub(super) fn timers_kept(&self) -> usize {
        self.timers.len()
    }

    pub(super) fn note(&mut self, offset: Offset) {
        if let Some(changes) = self.changes.as_mut().filter(|_| offset < self.next) {
            changes.push(offset);
        }
    }

    /// Returns the entries that changed since the last call; `None` for an entry that was removed.
    pub fn take_changes(&mut self) -> Vec<(Offset, Option<Entry>)> {
        let Some(changes) = self.changes.as_mut().filter(|changes| !changes.is_empty()) else {
            return Vec::new();
        };
        let mut offsets = std::mem::take(changes);
        offsets.sort_unstable();
        offsets.dedup();
        offsets.into_iter().map(|offset| (offset, self.entries.get(&offset).copied())).collect()
    }

    /// Keeps changes that could not be saved: the next call of [`Queue::take_changes`] returns them again.
    pub fn keep_changes(&mut self, offsets: impl IntoIterator<Item = Offset>) {
        if let Some(changes) = &mut self.changes {
            changes.extend(offsets);
        }
    }

    /// Restores a saved entry. [`Queue::resume`] has to be called after the last one.
    pub fn restore(&mut self, offset: Offset, entry: Option<Entry>) {
        match entry {
            Some(entry) => self.entries.insert(offset, entry),
            None => self.entries.remove(&offset),
        };
    }

    /// Restores the saved position of the cursor.
    pub fn restore_next(&mut self, next: Offset) {
        self.next = self.next.max(next);
    }

    /// Resumes with the restored state, over a log from `start` to `end`.
    pub fn resume(&mut self, start: Offset, end: Offset) {
        // A crash may have happened between saving the messages, in their order, and saving the cursor after them.
        let after = self.entries.keys().max().map_or(start, |offset| offset + 1);
        let gone: Vec<Offset> = self.entries.keys().copied().filter(|offset| !(start..end).contains(offset)).collect();
        // A log that lost its end has lost the state of these messages, too.
        self.entries.retain(|offset, _| (start..end).contains(offset));
        self.next = self.next.max(after).max(start).min(end.max(start));
        self.end = start;
        self.append(end);
        self.floor = self.entries.keys().min().map_or(self.next, |offset| *offset);
        let mut entries: Vec<(Offset, Entry)> = self.entries.iter().map(|(offset, entry)| (*offset, *entry)).collect();
        // The place of a group is that of its first message.
        entries.sort_unstable_by_key(|(offset, _)| *offset);
        for (offset, mut entry) in entries {
            if entry.due_ms == NEVER {
                // The move of the message was interrupted by the restart.
                entry = Entry { phase: Phase::Waiting, due_ms: 0, ..entry };
                self.entries.insert(offset, entry);
            }
            self.last_lease = self.last_lease.max(entry.lease);
            self.count_in(offset, &entry);
            self.set_timer(offset, &entry);
        }
        self.changes.iter_mut().for_each(|changes| changes.clone_from(&gone));
    }
}
