//! Waits for a key: a client is tried again as soon as a key that it waits for may have a value.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use engine::Result;
use engine::cache::structures::Kind;

use super::Waiting;
use super::cache::{Attempt, Cache, Locked};
use crate::commit::Commit;

impl Locked<'_> {
    /// Starts to wait for a value of this kind at one of these keys, whose stripes are locked: no later change of them
    /// is missed. Without a kind, only the end of the cache ends the wait. The attempt may access the other keys, too:
    /// it is not retried for them. Fails with `busy` if the waiters of the cache wait for too many keys.
    pub fn wait(&self, kind: Option<Kind>, keys: &[&[u8]], others: &[&[u8]], attempt: Attempt) -> Result<Arc<Waiting>> {
        let waiting = Waiting::new(kind, keys, others, attempt);
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

    /// Retries the waiters for the kind of value that a key has now, in their order. Adds the keys that grow as a
    /// result. Returns the first waiter that could not be retried because of a long step.
    fn serve_one(&self, key: &[u8], grown: &mut VecDeque<Box<[u8]>>) -> Option<Arc<Waiting>> {
        // A thread that serves connections must not wait for a long step.
        let Some(mut of_key) = self.lock_if_free(Some([key])) else {
            return self.waiters.any_of(key);
        };
        let kind = of_key.kind(key);
        drop(of_key);
        for waiting in self.waiters.of(key, kind?) {
            // No later waiter overtakes this one.
            let Some(mut locked) = self.lock_if_free(Some(waiting.keys())) else {
                return Some(waiting);
            };
            // An earlier waiter, or another client, may have taken the value. One that replaces it serves its waiters.
            if locked.kind(key) != kind {
                return None;
            }
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
    pub fn stop_waiting(&self, waiting: &Arc<Waiting>) -> Option<(Bytes, Commit)> {
        let answer = waiting.stop();
        self.waiters.remove(waiting);
        answer
    }
}
