//! Another node: its lanes, and whether it is connected.

use std::sync::atomic::{AtomicU64, Ordering};

use consensus::NodeId;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use super::Receiver;
use super::outgoing::{AT_ONCE_BYTES_MAX, Outgoing};
use super::queue::{Dropped, Lane, Queue};
use super::stats::PeerStats;
use crate::link::{FRAME_BYTES_MAX, Part, Refusal};

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
    /// Connections that this node has opened, by lane.
    pub outgoing: [Outgoing; 2],
    presence: Mutex<Presence>,
    link: watch::Sender<Link>,
    /// Wakes the tasks that dial: the node has connected, so it can be reached.
    pub called: [Notify; 2],
    /// Tasks that dial the node.
    pub tasks: Mutex<Vec<AbortHandle>>,
    last_error: Mutex<Option<String>>,
    pub counts: Counts,
}

#[derive(Default)]
pub(super) struct Counts {
    pub received_bytes: AtomicU64,
    pub full_drops: AtomicU64,
    pub too_large_drops: AtomicU64,
    pub disconnected_drops: AtomicU64,
    pub links: AtomicU64,
}

/// State of the present link.
#[derive(Clone, Copy, Default)]
struct Link {
    /// Each end of a link increases it, and closes all connections of the one before.
    number: u64,
    /// `true` if it is up: all of its connections are.
    is_up: bool,
}

/// Connections of the present link.
#[derive(Default)]
struct Presence {
    process: u64,
    connections: u8,
    is_removed: bool,
}

/// A connection's membership in a link.
pub(super) struct Joined {
    number: u64,
    link: watch::Receiver<Link>,
}

impl Joined {
    /// Waits until the link has ended.
    pub async fn end(&mut self) {
        let number = self.number;
        // The peer, which has the sender, is there.
        drop(self.link.wait_for(|link| link.number != number).await);
    }

    /// Returns `true` if the link has not ended.
    pub fn is_present(&self) -> bool {
        self.link.borrow().number == self.number
    }

    /// Waits until the link is up, or has ended.
    pub async fn up(&mut self) {
        let number = self.number;
        drop(self.link.wait_for(|link| link.is_up || link.number != number).await);
    }
}

impl Peer {
    pub fn new(node: NodeId, address: String) -> Self {
        Self {
            node,
            address: Mutex::new(address),
            queues: Lane::ALL.map(Queue::new),
            outgoing: Default::default(),
            presence: Mutex::default(),
            link: watch::channel(Link::default()).0,
            called: Lane::ALL.map(|_lane| Notify::new()),
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
    ) -> Result<Joined, Refusal> {
        let bit = 1 << (lane as u8 + direction as u8);
        let mut presence = self.presence.lock();
        if presence.is_removed {
            // Another look at what this node knows tells it whether that is final.
            return Err(Refusal::new(format!("node {} is disconnected for good", self.node)));
        }
        if presence.connections != 0 && presence.process != process {
            return Err(Refusal::new(format!(
                "another process with the number of node {0} is connected: stop one of the two; \
                 each node needs its own data directory, which is never copied",
                self.node
            )));
        }
        // The other side may have noticed earlier that the connection of before is broken.
        let was_up = presence.connections & bit != 0 && self.end(&mut presence);
        presence.process = process;
        presence.connections |= bit;
        let is_up = presence.connections == ALL;
        if is_up {
            self.queues.iter().for_each(Queue::open);
            self.link.send_modify(|link| link.is_up = true);
            self.counts.links.fetch_add(1, Ordering::Relaxed);
            *self.last_error.lock() = None;
        }
        let link = self.link.subscribe();
        let number = link.borrow().number;
        drop(presence);
        if was_up {
            receiver.disconnected(self.node);
        }
        if is_up {
            tracing::info!(node = self.node, "a node is connected");
            receiver.connected(self.node);
        }
        if direction == Direction::In {
            self.called[lane as usize].notify_one();
        }
        Ok(Joined { number, link })
    }

    /// Ends the link of a connection, if it is the present one. Call it only on the transport's thread.
    pub fn fall(&self, joined: &Joined, why: &str, receiver: &dyn Receiver) {
        self.fall_from(joined.number, why, receiver);
    }

    fn fall_from(&self, number: u64, why: &str, receiver: &dyn Receiver) {
        let mut presence = self.presence.lock();
        if self.link.borrow().number != number {
            return;
        }
        *self.last_error.lock() = Some(why.to_owned());
        let was_up = self.end(&mut presence);
        drop(presence);
        if was_up {
            tracing::warn!(node = self.node, why, "a node is disconnected");
            receiver.disconnected(self.node);
        }
    }

    /// Ends the present link, and any later one if the node `is_removed`.
    pub fn reset(&self, why: &str, is_removed: bool, receiver: &dyn Receiver) {
        self.presence.lock().is_removed |= is_removed;
        let number = self.link.borrow().number;
        self.fall_from(number, why, receiver);
    }

    /// Ends the present link; returns `true` if it was up.
    fn end(&self, presence: &mut Presence) -> bool {
        self.queues.iter().for_each(Queue::close);
        presence.connections = 0;
        let next = Link { number: self.link.borrow().number + 1, is_up: false };
        self.link.send_replace(next).is_up
    }

    /// Queues a part, or drops it and counts that.
    pub fn send(&self, part: Part) {
        let lane = Lane::of(&part) as usize;
        let queue = &self.queues[lane];
        let pushed = queue.push(part);
        let is_written = queue.bytes() <= AT_ONCE_BYTES_MAX && self.outgoing[lane].write_at_once(queue);
        if !is_written {
            queue.ready.notify_one();
        }
        let count = match pushed {
            Ok(()) => return,
            Err(Dropped::NotConnected) => &self.counts.disconnected_drops,
            Err(Dropped::Full) => &self.counts.full_drops,
            Err(Dropped::TooLarge(bytes)) => {
                tracing::error!(node = self.node, bytes, bytes_max = FRAME_BYTES_MAX, "a message was not sent");
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
            is_connected: self.link.borrow().is_up,
            queued_bytes: self.queues[Lane::Entries as usize].bytes() as u64,
            queued_beats_bytes: self.queues[Lane::Beats as usize].bytes() as u64,
            sent_bytes: self.outgoing.iter().map(|outgoing| count(&outgoing.sent_bytes)).sum(),
            received_bytes: count(&self.counts.received_bytes),
            full_drops: count(&self.counts.full_drops),
            too_large_drops: count(&self.counts.too_large_drops),
            disconnected_drops: count(&self.counts.disconnected_drops),
            links: count(&self.counts.links),
            last_error: self.last_error.lock().clone(),
        }
    }
}
