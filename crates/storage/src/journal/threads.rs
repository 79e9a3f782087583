//! Threads of the journal, which take turns to write, and the thread that creates files.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Shared;

/// Idle time after which the last sync is sealed.
const REST: Duration = Duration::from_millis(20);
/// Delay before a file that could not be created is tried again.
const TRY_AGAIN: Duration = Duration::from_millis(200);

/// Turns of the threads. One thread has a turn at a time. The others sleep, and one of them is woken only if there is
/// work when the turn ends, or when work comes while no thread has one: so a thread that is not needed costs nothing.
#[derive(Default)]
pub(super) struct Turns {
    is_taken: bool,
    /// Time at which the last sync is sealed if nothing is written before; `None` if it is sealed.
    seals_at: Option<Instant>,
}

impl Turns {
    /// Returns `true` if a thread has to be woken for new work.
    pub(super) fn is_free(&self) -> bool {
        !self.is_taken
    }
}

/// What a turn is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Write,
    /// Seals the last sync, unless entries were queued in the meantime.
    Seal,
}

impl Shared {
    pub(super) fn run(&self, thread: usize) {
        while let Some(turn) = self.take_turn() {
            let (written, is_sealed) = {
                let mut writer = self.writer.lock();
                self.gate.pass();
                let entries = self.gather(u64::MAX);
                let may_seal = turn == Turn::Seal && !writer.is_sealed && self.broken.get().is_none();
                let has_work = !entries.is_empty() || may_seal;
                let mut written = has_work.then(|| self.write(&mut writer, entries, thread));
                self.writing.store(0, Ordering::Relaxed);
                // While it is synced, the next block gathers more: fewer syncs cost less than overlapping ones.
                if let Some(written) = &mut written
                    && (written.entries.len() > 1 || !written.placed.is_empty())
                {
                    self.sync(written, thread);
                }
                (written, writer.is_sealed)
            };
            self.end_turn(written.is_some(), is_sealed);
            if let Some(written) = written {
                self.finish(written, thread);
            }
        }
        // Entries may still be queued if another thread has broken the journal off. No block is left that is committed
        // before they are given up.
        let is_last = self.running.fetch_sub(1, Ordering::AcqRel) == 1;
        if is_last && self.broken.get().is_some() {
            self.give_up(Vec::new());
        }
    }

    /// Waits for work, or until the last sync has to be sealed. `None` if the journal has ended.
    fn take_turn(&self) -> Option<Turn> {
        let mut queue = self.queue.lock();
        loop {
            let is_broken = self.broken.get().is_some();
            let is_over = queue.is_stopped || is_broken;
            if queue.turns.is_taken {
                self.has_work.wait(&mut queue);
                continue;
            }
            let seals_at = queue.turns.seals_at.filter(|_| !is_broken);
            let turn = match seals_at {
                // The source learns that the journal is broken. Nobody needs entries of one.
                _ if queue.is_called || !(queue.entries.is_empty() || is_broken) => Turn::Write,
                // The last entries are sealed as well.
                Some(at) if is_over || at <= Instant::now() => Turn::Seal,
                _ if is_over => return None,
                Some(at) => {
                    self.has_work.wait_until(&mut queue, at);
                    continue;
                }
                None => {
                    self.has_work.wait(&mut queue);
                    continue;
                }
            };
            queue.turns.is_taken = true;
            return Some(turn);
        }
    }

    /// Ends the turn of a thread, and wakes another one if there is work.
    fn end_turn(&self, has_written: bool, is_sealed: bool) {
        let mut queue = self.queue.lock();
        queue.turns.is_taken = false;
        if is_sealed {
            queue.turns.seals_at = None;
        } else if has_written {
            queue.turns.seals_at = Some(Instant::now() + REST);
        }
        if queue.is_stopped || self.broken.get().is_some() {
            self.has_work.notify_all();
        } else if queue.is_called || !queue.entries.is_empty() {
            self.has_work.notify_one();
        }
    }

    pub(super) fn prepare_files(&self) {
        let mut trouble = None;
        loop {
            let prepared = match self.place.check() {
                Ok(()) => self.files.prepare_one(),
                Err(error) => {
                    self.break_off(&error);
                    Ok(false)
                }
            };
            match prepared {
                Ok(true) => {
                    trouble = None;
                    self.notify_room();
                    continue;
                }
                Ok(false) => {}
                Err(error) => {
                    if trouble.replace(error.message.clone()).is_none_or(|last| last != error.message) {
                        tracing::warn!(%error, "cannot prepare the next file of the journal; retrying");
                    }
                }
            }
            if !self.files.wait(TRY_AGAIN) {
                return;
            }
        }
    }
}
