//! Sweeps of a worker: a sweep is one turn of each connection that was ready when it began.
//!
//! Answers to pipelined requests are written at the end of a sweep. The first write wakes a peer that waits for answers
//! on several connections; if each turn wrote its own, such a peer would sleep and be woken between them.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::Outbox;
use crate::workers::Worker;

/// Minimum number of requests in a turn whose answers are put off. With fewer, the peer has little to do for each
/// connection, and to put answers off costs as much as it saves.
pub(crate) const REQUESTS_MIN: u64 = 8;
/// Maximum number of bytes that one turn puts off.
pub(crate) const BYTES_MAX: usize = 8 << 10;
/// Maximum number of connections whose answers wait. After the turn of the last one, all are written.
const CONNECTIONS_MAX: usize = 32;

/// Answers of one worker that are written at the end of the sweep.
#[derive(Default)]
pub(crate) struct Sweeps {
    /// Outboxes with answers.
    unwritten: RefCell<Vec<Arc<Outbox>>>,
    begun: Notify,
}

impl Sweeps {
    /// Writes the answers of each sweep. The first of them wakes this task, which then runs after the connections that
    /// were woken before.
    pub(crate) async fn run(worker: Rc<Worker>) {
        loop {
            worker.sweeps.begun.notified().await;
            worker.sweeps.write();
        }
    }

    /// Writes the bytes of an outbox at the end of the sweep.
    pub(crate) fn put_off(&self, outbox: &Arc<Outbox>) {
        let mut unwritten = self.unwritten.borrow_mut();
        if unwritten.is_empty() {
            self.begun.notify_one();
        }
        unwritten.push(outbox.clone());
    }

    /// Writes all answers that were put off, if there are many.
    pub(crate) fn write_if_full(&self) {
        if self.unwritten.borrow().len() >= CONNECTIONS_MAX {
            self.write();
        }
    }

    /// Writes all answers that were put off.
    pub(crate) fn write(&self) {
        let mut unwritten = self.unwritten.take();
        unwritten.drain(..).for_each(|outbox| outbox.flush());
        // No turn runs in the meantime, so nothing else was put off.
        self.unwritten.replace(unwritten);
    }
}
