//! Damaged records: a node reads its segments again and again, and replaces the records of a partition in which it has
//! found damage by those of the leader.
//!
//! In the meantime it takes no records from the leader, as if its journal were full: so its log stands still, and what
//! the leader has sent is neither applied to a partition that is half there nor acknowledged. The damaged files stay
//! until all records have been fetched. A leader hands over first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use consensus::NodeId;
use engine::{Error, Result};
use parking_lot::Mutex;

use super::{Node, Purpose, Stance, TICK, catch_up};

/// Pause after an attempt to replace damaged records, and between two attempts of a leader with damage to hand over.
const MEND_AGAIN: Duration = Duration::from_secs(5);
/// Maximum time for what the log of this node has to be applied.
const SETTLE_TIME_MAX: Duration = Duration::from_secs(10);
/// Interval at which a part of the segments is read.
const VERIFY_EVERY: Duration = Duration::from_secs(1);
/// Pause after all segments have been read.
const VERIFY_AGAIN: Duration = Duration::from_secs(600);
/// Bytes that are read at a time.
const VERIFY_BYTES: usize = 1 << 20;
/// Maximum number of partitions that are looked at in a second, since each look passes over all of them.
const VERIFY_PARTITIONS: usize = 256;

/// State of the work on damaged records.
#[derive(Default)]
pub(super) struct Mending {
    /// Held while this node fetches the state of a leader.
    pub fetching: tokio::sync::Mutex<()>,
    pub mended: AtomicU64,
    pub verified_bytes: AtomicU64,
    is_running: AtomicBool,
    /// Leader at the last attempt, and its time.
    tried: Mutex<Option<(NodeId, Instant)>>,
}

impl Mending {
    /// Returns `true` if it is time for another attempt, which begins now: at once if another node leads. One that has
    /// just begun to lead waits, so that the one before it can fetch: both may have damage.
    fn is_due(&self, leader: NodeId, own: NodeId) -> bool {
        let mut tried = self.tried.lock();
        let is_new = tried.is_none_or(|(before, _)| before != leader);
        let is_again = tried.is_some_and(|(_, at)| at.elapsed() > MEND_AGAIN);
        if is_new || is_again {
            *tried = Some((leader, Instant::now()));
        }
        if is_new { leader != own } else { is_again }
    }
}

impl Node {
    /// Reads all segments, slowly, again and again.
    pub(super) fn start_verifying(&self) {
        let per_s = self.settings.verify_bytes_per_s;
        if per_s == 0 {
            return;
        }
        let weak = self.me.clone();
        self.settings.runtime.spawn(async move {
            let mut at = (0, 0);
            loop {
                tokio::time::sleep(VERIFY_EVERY).await;
                let Some(node) = weak.upgrade().filter(|node| !node.is_stopped.load(Ordering::Acquire)) else { return };
                let read = tokio::task::spawn_blocking(move || node.verify_some(at, per_s)).await;
                at = read.unwrap_or_default();
                if at == (0, 0) {
                    tokio::time::sleep(VERIFY_AGAIN).await;
                }
            }
        });
    }

    /// Reads about this many bytes of the segments, or up to the end of the last one. Returns where to continue.
    fn verify_some(&self, mut at: (u64, u64), bytes_max: u64) -> (u64, u64) {
        let mut read = 0;
        for _ in 0..VERIFY_PARTITIONS {
            if read >= bytes_max || self.is_stopped.load(Ordering::Acquire) {
                break;
            }
            let (next, bytes) = self.store.verify(at, VERIFY_BYTES.min(bytes_max as usize));
            read += bytes;
            at = next;
            if at == (0, 0) {
                break;
            }
        }
        self.mending.verified_bytes.fetch_add(read, Ordering::Relaxed);
        at
    }

    /// Does something about damage, if there is any: a leader hands over, another node fetches the records.
    pub(super) async fn note_damage(&self, stance: Stance) {
        let Some(leader) = stance.leader else { return };
        if self.mending.is_running.load(Ordering::Acquire) {
            return;
        }
        let damages = self.store.damages();
        if damages.is_empty() || !self.mending.is_due(leader, self.own) {
            return;
        }
        let partitions = damages.len();
        if leader == self.own {
            tracing::error!(partitions, "this leader has damaged records; another node has to lead");
            return self.drain().await;
        }
        tracing::error!(partitions, leader, "this node has damaged records; it fetches them from the leader");
        let Some(node) = self.me.upgrade() else { return };
        self.mending.is_running.store(true, Ordering::Release);
        self.settings.runtime.spawn(async move {
            node.shard.pause(true);
            let mended = node.mend(leader).await;
            node.shard.pause(false);
            match mended {
                Ok(()) => {
                    node.mending.mended.fetch_add(1, Ordering::Relaxed);
                    *node.mending.tried.lock() = None;
                    tracing::info!(partitions, "the damaged records were replaced");
                }
                Err(error) => tracing::warn!(%error, "damaged records could not be replaced; it is tried again"),
            }
            node.mending.is_running.store(false, Ordering::Release);
        });
    }

    async fn mend(self: &Arc<Self>, leader: NodeId) -> Result<()> {
        let _fetching = self.mending.fetching.lock().await;
        let settled = async {
            loop {
                match self.shard.settled_to_end() {
                    Some(index) => return index,
                    None => tokio::time::sleep(TICK).await,
                }
            }
        };
        let index = tokio::time::timeout(SETTLE_TIME_MAX, settled)
            .await
            .map_err(|late| Error::busy(format!("the log of this node is not committed ({late})")))?;
        let mut stream = self.transport()?.open(leader, Purpose::Bulk).await?;
        catch_up::fetch(&mut stream, &self.shard, index).await.map(drop)
    }
}
