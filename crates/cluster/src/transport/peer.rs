//! Another node: its lanes, and whether it is connected.

use std::sync::atomic::{AtomicU64, Ordering};

use consensus::NodeId;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::Receiver;
use super::queue::{Dropped, Lane, Queue};
use super::stats::PeerStats;
use crate::link::Part;

/// Connections of a link: one for each lane and direction.
const ALL: u8 = 0b1111;

/// Direction of a connection, seen from this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    In = 0,
    Out = 2,
}

/// Another node.
pub(super) struct Peer {
    pub node: NodeId,
    pub address: Mutex<String>,
    pub queues: [Queue; 2],
    presence: Mutex<Presence>,
    /// Number of the link; each end of a link increases it, and closes all connections of the one before.
    link: watch::Sender<u64>,
    /// Tasks that dial the node.
    pub tasks: Mutex<Vec<AbortHandle>>,
    last_error: Mutex<Option<String>>,
    pub counts: Counts,
}

#[derive(Default)]
pub(super) struct Counts {
    pub sent_bytes: AtomicU64,
    pub received_bytes: AtomicU64,
    pub full_drops: AtomicU64,
    pub too_large_drops: AtomicU64,
    pub disconnected_drops: AtomicU64,
    pub links: AtomicU64,
}

/// Connections of the present link.
#[derive(Default)]
struct Presence {
    process: u64,
    up: u8,
    is_told: bool,
    is_removed: bool,
}

/// A connection's membership in a link.
pub(super) struct Joined {
    pub link: u64,
    /// Changes when the link ends.
    pub end: watch::Receiver<u64>,
}

impl Peer {
    pub fn new(node: NodeId, address: String) -> Self {
        Self {
            node,
            address: Mutex::new(address),
            queues: Lane::ALL.map(Queue::new),
            presence: Mutex::default(),
            link: watch::channel(0).0,
            tasks: Mutex::default(),
            last_error: Mutex::default(),
            counts: Counts::default(),
        }
    }

    /// Adds a connection to the link. Fails if another process with the number of this node is connected. Call it only
    /// on the transport's thread, so that the receiver sees calls in their order.
    pub fn rise(
        &self,
        process: u64,
        lane: Lane,
        direction: Direction,
        receiver: &dyn Receiver,
    ) -> Result<Joined, String> {
        let bit = 1 << (lane as u8 + direction as u8);
        let mut presence = self.presence.lock();
        if presence.is_removed {
            return Err(format!("node {} was removed from the cluster", self.node));
        }
        if presence.up != 0 && presence.process != process {
            return Err(format!(
                "another process with the number of node {0} is connected: stop one of the two; \
                 each node needs its own data directory, which is never copied",
                self.node
            ));
        }
        let mut was_told = false;
        if presence.up & bit != 0 {
            // The other side has noticed earlier that the connection of before is broken.
            was_told = self.end(&mut presence);
        }
        presence.process = process;
        presence.up |= bit;
        let is_whole = presence.up == ALL;
        if is_whole {
            presence.is_told = true;
            self.queues.iter().for_each(Queue::open);
            self.counts.links.fetch_add(1, Ordering::Relaxed);
            *self.last_error.lock() = None;
        }
        let joined = Joined { link: *self.link.borrow(), end: self.link.subscribe() };
        drop(presence);
        if was_told {
            receiver.disconnected(self.node);
        }
        if is_whole {
            tracing::info!(node = self.node, "a node is connected");
            receiver.connected(self.node);
        }
        Ok(joined)
    }

    /// Ends a link, if it is the present one. Call it only on the transport's thread.
    pub fn fall(&self, link: u64, why: &str, receiver: &dyn Receiver) {
        let mut presence = self.presence.lock();
        if *self.link.borrow() != link {
            return;
        }
        *self.last_error.lock() = Some(why.to_owned());
        let was_told = self.end(&mut presence);
        drop(presence);
        if was_told {
            tracing::warn!(node = self.node, why, "a node is disconnected");
            receiver.disconnected(self.node);
        }
    }

    /// Ends the present link, and any later one if the node `is_removed`.
    pub fn reset(&self, why: &str, is_removed: bool, receiver: &dyn Receiver) {
        self.presence.lock().is_removed |= is_removed;
        let link = *self.link.borrow();
        self.fall(link, why, receiver);
    }

    /// Returns `true` if the receiver has to be told.
    fn end(&self, presence: &mut Presence) -> bool {
        self.queues.iter().for_each(Queue::close);
        self.link.send_modify(|link| *link += 1);
        presence.up = 0;
        std::mem::take(&mut presence.is_told)
    }

    /// Queues a part, or drops it and counts that.
    pub fn send(&self, part: Part) {
        let queue = &self.queues[Lane::of(&part) as usize];
        let count = match queue.push(part) {
            Ok(()) => return,
            Err(Dropped::NotConnected) => &self.counts.disconnected_drops,
            Err(Dropped::Full) => &self.counts.full_drops,
            Err(Dropped::TooLarge(why)) => {
                tracing::error!(node = self.node, why, "a message was not sent");
                &self.counts.too_large_drops
            }
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes why a connection was not possible; the log has each reason once.
    pub fn note(&self, why: String) {
        let mut last = self.last_error.lock();
        if last.as_ref() != Some(&why) {
            tracing::warn!(node = self.node, why, "a node cannot be reached");
            *last = Some(why);
        }
    }

    pub fn stats(&self) -> PeerStats {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        PeerStats {
            node: self.node,
            address: self.address.lock().clone(),
            is_connected: self.presence.lock().is_told,
            queued_bytes: self.queues.iter().map(|queue| queue.bytes() as u64).sum(),
            sent_bytes: count(&self.counts.sent_bytes),
            received_bytes: count(&self.counts.received_bytes),
            full_drops: count(&self.counts.full_drops),
            too_large_drops: count(&self.counts.too_large_drops),
            disconnected_drops: count(&self.counts.disconnected_drops),
            links: count(&self.counts.links),
            last_error: self.last_error.lock().clone(),
        }
    }
}
