//! Numbers of operations that are sent again after a broken connection, so that the broker executes each once.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::cache::operations::{IN_FLIGHT_MAX, OperationId};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Lanes of numbers. The broker regards each lane as one client, with a limited number of operations in flight.
pub(crate) struct Operations {
    lanes: Vec<Arc<Lane>>,
    turn: AtomicUsize,
}

struct Lane {
    client: u64,
    window: Mutex<Window>,
    /// Notifies the waiters that an operation has finished.
    room: Notify,
}

/// Assigned numbers of unfinished operations. Their range is limited, so that the broker has not forgotten any of them.
#[derive(Default)]
struct Window {
    next: u64,
    open: BTreeSet<u64>,
}

/// Unfinished operation, which finishes when this value is dropped.
pub(crate) struct Operation {
    lane: Arc<Lane>,
    pub(crate) id: OperationId,
}

impl Operations {
    pub(crate) fn new(lanes: usize) -> Self {
        // A new hasher has random keys.
        let lane = |number| Lane {
            client: RandomState::new().hash_one(number),
            window: Mutex::default(),
            room: Notify::new(),
        };
        let lanes = (0..lanes.max(1)).map(|number| Arc::new(lane(number))).collect();
        Self { lanes, turn: AtomicUsize::new(0) }
    }

    /// Starts an operation. Waits until the number of operations in flight permits it.
    pub(crate) async fn begin(&self) -> Operation {
        let lane = &self.lanes[self.turn.fetch_add(1, Ordering::Relaxed) % self.lanes.len()];
        loop {
            let room = lane.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            let begun = lane.window.lock().begin();
            if let Some(sequence) = begun {
                return Operation { lane: lane.clone(), id: OperationId { client: lane.client, sequence } };
            }
            room.await;
        }
    }
}

impl Window {
    fn begin(&mut self) -> Option<u64> {
        if self.open.first().is_some_and(|first| self.next - first >= IN_FLIGHT_MAX) {
            return None;
        }
        self.open.insert(self.next);
        self.next += 1;
        Some(self.next - 1)
    }

    fn end(&mut self, sequence: u64) {
        self.open.remove(&sequence);
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        self.lane.window.lock().end(self.id.sequence);
        self.lane.room.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_given_that_the_broker_could_take_for_an_old_one() {
        let mut window = Window::default();
        let given: Vec<u64> = std::iter::from_fn(|| window.begin()).collect();
        assert_eq!(given, (0..IN_FLIGHT_MAX).collect::<Vec<_>>());
        window.end(5);
        assert_eq!(window.begin(), None, "the first one is still on its way");
        window.end(0);
        assert_eq!((window.begin(), window.begin()), (Some(IN_FLIGHT_MAX), None));
        (1..=4).for_each(|sequence| window.end(sequence));
        // Up to the next unfinished operation: 6.
        assert_eq!(std::iter::from_fn(|| window.begin()).last(), Some(IN_FLIGHT_MAX + 5));
    }

    #[tokio::test]
    async fn a_waiting_operation_continues_when_another_ends() {
        let operations = Arc::new(Operations::new(1));
        let mut open = Vec::new();
        for _ in 0..IN_FLIGHT_MAX {
            open.push(operations.begin().await);
        }
        let waiting = tokio::spawn({
            let operations = operations.clone();
            async move { operations.begin().await.id.sequence }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(open.remove(0));
        assert_eq!(waiting.await.expect("no panic"), IN_FLIGHT_MAX);
    }
}
