//! Changes whose events another thread publishes, because comparing them with patterns would take too long under the
//! locks of their keys.

use std::collections::{HashMap, VecDeque};

use broker::Note;
use parking_lot::Mutex;

use super::flags::Flags;

/// Maximum number of bytes of the changes of one tenant that wait, and of those of all tenants. One command may exceed
/// it.
const BYTES_OF_TENANT_MAX: usize = 64 << 20;
const BYTES_MAX: usize = 256 << 20;
/// Maximum number of steps that comparing the changes of one tenant takes: some seconds.
const STEPS_OF_TENANT_MAX: usize = 1 << 32;
/// Number of changes of a tenant that are published before those of the next tenant.
const PIECE_NOTES: usize = 16;

/// Changes that wait, by the prefixes of their tenants. Those of a tenant are published in the order in which they were
/// added, and tenants take turns.
#[derive(Default)]
pub(super) struct Backlog(Mutex<State>);

#[derive(Default)]
struct State {
    /// Queue of each tenant of which changes wait, or are being published.
    queues: HashMap<String, Queue>,
    /// Tenants in the order of their turns, without that of `current`.
    turns: VecDeque<String>,
    /// Tenant whose changes are being published.
    current: Option<String>,
    bytes: usize,
    /// `true` while a thread publishes changes.
    is_draining: bool,
}

#[derive(Default)]
struct Queue {
    changes: VecDeque<Changes>,
    bytes: usize,
    steps: usize,
}

/// Changes of one step.
pub(super) struct Changes {
    /// Number of the database.
    pub(super) database: usize,
    /// Classes of events that were published then.
    pub(super) flags: Flags,
    /// Number of the first subscription that began later, and receives no events of these changes.
    pub(super) before: u64,
    pub(super) notes: VecDeque<Note>,
    /// Maximum number of steps that comparing them takes.
    pub(super) steps: usize,
}

impl Changes {
    fn bytes(&self) -> usize {
        bytes_of(self.notes.iter())
    }
}

fn bytes_of<'n>(notes: impl Iterator<Item = &'n Note>) -> usize {
    notes.map(|note| note.key.len() + size_of::<Note>()).sum()
}

/// Result of adding changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Added {
    /// The thread that publishes changes will publish them.
    Queued,
    /// They are the first ones: the caller starts the thread.
    First,
    /// Too many wait. They were not added.
    TooMany,
}

impl Backlog {
    /// Returns `true` if changes of a tenant wait, or are being published.
    pub(super) fn is_behind(&self, of_tenant: &str) -> bool {
        self.0.lock().queues.contains_key(of_tenant)
    }

    /// Adds changes of a tenant.
    pub(super) fn add(&self, of_tenant: &str, changes: Changes) -> Added {
        let mut state = self.0.lock();
        let state = &mut *state;
        let (bytes, steps) = state.queues.get(of_tenant).map_or((0, 0), |queue| (queue.bytes, queue.steps));
        let is_full = bytes >= BYTES_OF_TENANT_MAX || state.bytes >= BYTES_MAX;
        if is_full || steps.saturating_add(changes.steps) > STEPS_OF_TENANT_MAX {
            return Added::TooMany;
        }
        let queue = state.queues.entry(of_tenant.to_owned()).or_insert_with(|| {
            state.turns.push_back(of_tenant.to_owned());
            Queue::default()
        });
        let bytes = changes.bytes();
        state.bytes += bytes;
        queue.bytes += bytes;
        queue.steps += changes.steps;
        queue.changes.push_back(changes);
        if std::mem::replace(&mut state.is_draining, true) { Added::Queued } else { Added::First }
    }

    /// Forgets the changes of a tenant.
    pub(super) fn forget(&self, of_tenant: &str) {
        let mut state = self.0.lock();
        let Some(queue) = state.queues.remove(of_tenant) else {
            return;
        };
        state.bytes -= queue.bytes;
        state.turns.retain(|other| other != of_tenant);
        state.current.take_if(|current| current == of_tenant);
        drop(state);
        // Many keys take a while.
        drop(queue);
    }

    /// Returns the next changes to publish with the prefix of their tenant, after those returned before were published;
    /// `None` ends the thread.
    pub(super) fn next(&self) -> Option<(String, Changes)> {
        let mut state = self.0.lock();
        let state = &mut *state;
        if let Some(of_tenant) = state.current.take() {
            state.turns.push_back(of_tenant);
        }
        while let Some(of_tenant) = state.turns.pop_front() {
            if let Some(changes) = state.queues.get_mut(&of_tenant).and_then(Queue::next) {
                state.bytes -= changes.bytes();
                state.current = Some(of_tenant.clone());
                return Some((of_tenant, changes));
            }
            state.queues.remove(&of_tenant);
        }
        state.is_draining = false;
        None
    }

    /// Returns the number of bytes of all changes that wait.
    pub(super) fn bytes(&self) -> usize {
        self.0.lock().bytes
    }
}

impl Queue {
    /// Removes the next few changes.
    fn next(&mut self) -> Option<Changes> {
        let first = self.changes.front_mut()?;
        let (all, count) = (first.notes.len(), first.notes.len().min(PIECE_NOTES));
        let steps = first.steps * count / all.max(1);
        first.steps -= steps;
        let notes = first.notes.drain(..count).collect();
        let next = Changes { notes, steps, ..*first };
        if first.notes.is_empty() {
            self.changes.pop_front();
        }
        self.bytes -= next.bytes();
        self.steps -= steps;
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use broker::{Cause, What};

    use super::*;

    fn changes(keys: &[&str], steps: usize) -> Changes {
        let note = |key: &&str| Note { key: key.as_bytes().into(), what: What::Deleted, cause: Cause::default() };
        Changes { database: 0, flags: Flags::default(), before: 1, notes: keys.iter().map(note).collect(), steps }
    }

    fn next(backlog: &Backlog) -> Option<(String, Vec<String>)> {
        let (of_tenant, changes) = backlog.next()?;
        let text = |note: &Note| String::from_utf8(note.key.to_vec()).expect("a text");
        Some((of_tenant, changes.notes.iter().map(text).collect()))
    }

    #[test]
    fn tenants_take_turns_and_the_changes_of_each_keep_their_order() {
        let backlog = Backlog::default();
        let many: Vec<String> = (0..=PIECE_NOTES).map(|number| number.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(backlog.add("a/", changes(&many, 100)), Added::First);
        assert_eq!(backlog.add("a/", changes(&["x"], 1)), Added::Queued);
        assert_eq!(backlog.add("b/", changes(&["y"], 1)), Added::Queued);
        let (of_tenant, first) = next(&backlog).expect("the first changes");
        assert_eq!((of_tenant.as_str(), first.len()), ("a/", PIECE_NOTES));
        assert_eq!(next(&backlog), Some(("b/".to_owned(), vec!["y".to_owned()])));
        // The last changes of a tenant were published when the next ones are taken.
        assert!(backlog.is_behind("b/"));
        assert_eq!(next(&backlog), Some(("a/".to_owned(), vec![PIECE_NOTES.to_string()])));
        assert_eq!(next(&backlog), Some(("a/".to_owned(), vec!["x".to_owned()])));
        assert!(backlog.is_behind("a/") && !backlog.is_behind("b/"));
        assert_eq!((next(&backlog), backlog.bytes(), backlog.is_behind("a/")), (None, 0, false));
        // Another thread begins with the next ones.
        assert_eq!(backlog.add("a/", changes(&["z"], 1)), Added::First);
    }

    #[test]
    fn the_changes_that_wait_are_bounded_by_their_bytes_and_by_their_steps() {
        let backlog = Backlog::default();
        assert_eq!(backlog.add("", changes(&["a"], STEPS_OF_TENANT_MAX - 1)), Added::First);
        assert_eq!(backlog.add("", changes(&["b"], 2)), Added::TooMany);
        assert_eq!(backlog.add("t/", changes(&["b"], 2)), Added::Queued);
        let large = "k".repeat(BYTES_OF_TENANT_MAX);
        assert_eq!(backlog.add("t/", changes(&[&large], 1)), Added::Queued);
        assert_eq!(backlog.add("t/", changes(&["c"], 1)), Added::TooMany);
        for tenant in ["u/", "v/", "w/"] {
            assert_eq!(backlog.add(tenant, changes(&[&large], 1)), Added::Queued);
        }
        // All tenants together have reached their limit.
        assert_eq!(backlog.add("x/", changes(&["c"], 1)), Added::TooMany);
        backlog.forget("t/");
        assert_eq!(backlog.add("x/", changes(&["c"], 1)), Added::Queued);
        let taken = std::iter::from_fn(|| next(&backlog)).map(|(of_tenant, _)| of_tenant).collect::<Vec<_>>();
        assert_eq!((taken, backlog.bytes()), (["", "u/", "v/", "w/", "x/"].map(str::to_owned).to_vec(), 0));
    }

    #[test]
    fn a_tenant_may_be_forgotten_while_its_changes_are_published() {
        let backlog = Backlog::default();
        assert_eq!(backlog.add("t/", changes(&["a", "b"], 2)), Added::First);
        assert!(next(&backlog).is_some());
        backlog.forget("t/");
        assert!(!backlog.is_behind("t/"));
        assert_eq!(backlog.add("t/", changes(&["c"], 1)), Added::Queued);
        assert_eq!(next(&backlog), Some(("t/".to_owned(), vec!["c".to_owned()])));
        assert_eq!((next(&backlog), backlog.bytes()), (None, 0));
    }
}
