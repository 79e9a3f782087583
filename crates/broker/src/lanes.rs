//! Writer lanes: tasks that each drain the subscribers pinned to them, so that writes on one core do not wait for
//! writes on another. A subscriber stays on its lane, which keeps its order.

use std::future::Future;
use std::hash::BuildHasher;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use engine::{Error, ErrorKind, Result};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};

use crate::metrics::Counter;

/// Maximum drains that are queued to join one lane.
const JOINING_MAX: usize = 1024;

/// Policy that assigns a lane to a subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LanePolicy {
    /// The least busy lane on the thread that owns the connection: no wake-up crosses threads.
    Auto,
    /// Hash of the subscriber: spreads the subscribers of one connection.
    SubscriberIdHash,
    /// Hash of the connection: keeps its subscribers together.
    ConnectionIdHash,
    /// Round robin, chosen at subscribe time.
    RoundRobinPin,
}

impl LanePolicy {
    pub const ALL: [(&'static str, Self); 4] = [
        ("auto", Self::Auto),
        ("subscriber_id_hash", Self::SubscriberIdHash),
        ("connection_id_hash", Self::ConnectionIdHash),
        ("round_robin_pin", Self::RoundRobinPin),
    ];
}

type Drain = Pin<Box<dyn Future<Output = ()> + Send>>;

pub struct Lanes {
    lanes: Vec<Lane>,
    policy: LanePolicy,
    /// Lane `i` runs on thread `i % threads`.
    threads: usize,
    turn: AtomicUsize,
}

struct Lane {
    join: mpsc::Sender<Drain>,
    load: Arc<LaneLoad>,
}

/// Load of one lane: its queued batches and its totals.
#[derive(Default)]
pub struct LaneLoad {
    pub subscribers: AtomicUsize,
    /// Batches queued, over all subscribers of the lane.
    pub queued: AtomicUsize,
    pub queued_high_water: AtomicU64,
    /// Notified when batches leave the lane: blocked publishers may retry.
    pub room: Notify,
    pub enqueued: Counter,
    pub dropped: Counter,
}

impl Lanes {
    pub(crate) fn start(count: usize, policy: LanePolicy, threads: &[Handle]) -> Self {
        let lanes = (0..count.max(1))
            .map(|i| {
                let (join, joining) = mpsc::channel(JOINING_MAX);
                threads[i % threads.len()].spawn(run(joining));
                Lane { join, load: Arc::default() }
            })
            .collect();
        Self { lanes, policy, threads: threads.len(), turn: AtomicUsize::new(0) }
    }

    /// Returns the lane of a new subscriber. `thread` is the thread that owns its connection, if known.
    pub(crate) fn choose(&self, subscriber: u64, connection: u64, thread: Option<usize>) -> usize {
        let count = self.lanes.len();
        let hash = |id: u64| foldhash::fast::FixedState::default().hash_one(id) as usize % count;
        match (self.policy, thread) {
            (LanePolicy::Auto, Some(thread)) => (0..count)
                .filter(|lane| lane % self.threads == thread % self.threads)
                .min_by_key(|lane| self.lanes[*lane].load.subscribers.load(Ordering::Relaxed))
                .unwrap_or_else(|| hash(connection)),
            (LanePolicy::Auto, None) | (LanePolicy::SubscriberIdHash, _) => hash(subscriber),
            (LanePolicy::ConnectionIdHash, _) => hash(connection),
            (LanePolicy::RoundRobinPin, _) => self.turn.fetch_add(1, Ordering::Relaxed) % count,
        }
    }

    pub(crate) fn load(&self, lane: usize) -> Arc<LaneLoad> {
        self.lanes[lane].load.clone()
    }

    pub(crate) fn loads(&self) -> impl Iterator<Item = (usize, &LaneLoad)> {
        self.lanes.iter().map(|lane| &*lane.load).enumerate()
    }

    /// Runs a subscriber's drain on its lane until it ends. Waits while too many drains are queued to join the lane.
    pub(crate) async fn run(&self, lane: usize, drain: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        let joined = self.lanes[lane].join.send(Box::pin(drain)).await;
        joined.map_err(|error| Error::new(ErrorKind::ShuttingDown, format!("lane {lane} has ended: {error}")))
    }
}

async fn run(mut joining: mpsc::Receiver<Drain>) {
    let mut drains = FuturesUnordered::new();
    loop {
        tokio::select! {
            joined = joining.recv() => match joined {
                Some(drain) => drains.push(drain),
                None => return,
            },
            Some(()) = drains.next(), if !drains.is_empty() => {}
        }
    }
}
