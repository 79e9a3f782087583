//! Waits for a key: a client is tried again as soon as a key that it waits for may have a value.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::Result;

use super::Waiting;
use super::cache::{Attempt, Cache, Locked};
use crate::commit::Commit;

impl Locked<'_> {
    /// Starts to wait for these keys, whose stripes are locked: no later change of them is missed. Fails with `busy` if
    /// the waiters of the cache wait for too many keys.
    pub fn wait(&self, keys: &[&[u8]], attempt: Attempt) -> Result<Arc<Waiting>> {
        let waiting = Waiting::new(keys, attempt);
        self.cache().waiters.add(&waiting)?;
        if self.cache().is_deleted() {
            waiting.give_up();
        }
        Ok(waiting)
    }
}

impl Cache {
    /// Retries the waiters for keys that have grown, and those for keys that grow as a result. Waiters for a key that a
    /// long step holds are retried when it ends.
    pub fn serve(&self, grown: Vec<Box<[u8]>>) {
        let mut grown = VecDeque::from(grown);
        loop {
            while let Some(key) = grown.pop_front() {
                if let Some(waiting) = self.serve_one(&key, &mut grown) {
                    self.has_unserved.store(true, Ordering::SeqCst);
                    // A long step that ended before the mark was set has not seen it. Another one may run for long.
                    if !waiting.keys().any(|key| self.is_held(key)) {
                        grown.extend(self.take_unserved());
                    }
                }
            }
            // One that was dropped has not looked for the mark.
            if !self.has_unserved.load(Ordering::SeqCst) || self.held.load(Ordering::SeqCst) != 0 {
                return;
            }
            grown.extend(self.take_unserved());
        }
    }

    /// Retries the waiters for a key, in their order. Adds the keys that grow as a result. Returns the first waiter
    /// that could not be retried because of a long step.
    fn serve_one(&self, key: &[u8], grown: &mut VecDeque<Box<[u8]>>) -> Option<Arc<Waiting>> {
        for waiting in self.waiters.of(key) {
            // A thread that serves connections must not wait for a long step. No later waiter overtakes this one.
            let Some(mut locked) = self.lock_if_free(Some(waiting.keys())) else {
                return Some(waiting);
            };
            locked.peek(key)?;
            let is_answered = waiting.try_again(|attempt| {
                let answer = attempt.and_then(|attempt| attempt(&mut locked, key));
                let finished = locked.finish();
                grown.extend(finished.grown);
                (answer, finished.commit)
            });
            if is_answered {
                self.waiters.remove(&waiting);
                waiting.notify();
            }
        }
        None
    }

    /// Returns the number of clients that wait for a key of this cache.
    pub fn waiting(&self) -> usize {
        self.waiters.count()
    }

    /// Ends a wait. Returns the answer, if there already is one, and the commit before which it must not be sent.
    pub fn stop_waiting(&self, waiting: &Arc<Waiting>) -> Option<(Vec<u8>, Commit)> {
        let answer = waiting.stop();
        self.waiters.remove(waiting);
        answer
    }
}
