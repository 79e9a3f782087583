//! A node: its disk, its clock, and its process with the store and the log.

use std::cell::Cell;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cluster::link::Part;
use cluster::node::{bulk, catch_up};
use cluster::roster::Roster;
use cluster::shard::{Observer, Opening, Shard, ShardPart, Stance};
use cluster::transport::Links;
use consensus::{Index, Members, NodeId, Point, Settings, Time};
use engine::shard::ShardId;
use engine::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use storage::journal::JournalSettings;
use storage::{Store, StoreSettings, Work};
use tokio::runtime::Runtime;

use super::serving::Leading;
use super::{MS, Start};
use crate::SimDisk;
use crate::clock::Clock;
use crate::violation::Violation;

/// Time between two ticks of a node, by its clock.
pub const TICK: Time = 50 * MS;
const DIR: &str = "/data";

thread_local! {
    /// Time of the node that runs. A thread runs one simulation.
    static NOW: Cell<Time> = const { Cell::new(0) };
    /// Time of day, in milliseconds since 1970.
    static WALL_MS: Cell<u64> = const { Cell::new(FIRST_MS) };
}

/// Time of day at which simulations begin, in milliseconds since 1970.
const FIRST_MS: u64 = 1_700_000_000_000;

pub fn set_clock(now: Time) {
    NOW.set(now);
}

fn clock() -> Time {
    NOW.get()
}

pub fn set_wall_clock(now: Time) {
    WALL_MS.set(FIRST_MS + now / MS);
}

/// Returns the time of day, which is the same on all nodes.
pub fn wall_clock() -> u64 {
    WALL_MS.get()
}

pub struct Node {
    pub clock: Clock,
    pub disk: SimDisk,
    pub start: Start,
    pub process: Option<Process>,
    /// Time until which the process does not run.
    pub paused_until: Time,
    /// Time until which the disk is slow.
    pub slow_until: Time,
    /// `true` once it knows that it was removed from the cluster.
    pub has_left: bool,
}

impl Node {
    pub fn new(clock: Clock) -> Self {
        Self { clock, disk: SimDisk::new(), start: 0, process: None, paused_until: 0, slow_until: 0, has_left: false }
    }
}

/// State of a node in memory.
pub struct Process {
    id: NodeId,
    pub store: Arc<Store>,
    pub shard: Arc<Shard>,
    pub outbox: Arc<Outbox>,
    /// Service while it leads.
    pub leading: Option<Leading>,
    /// `true` if the journal's thread will work, or cannot before the next upkeep.
    pub is_writing: Cell<bool>,
    /// `true` if the thread of the log will work.
    pub is_applying: Cell<bool>,
}

/// Messages that a node wants to send, and states that leaders have offered to it.
#[derive(Default)]
pub struct Outbox {
    parts: Mutex<Vec<Part>>,
    offers: Mutex<Vec<NodeId>>,
}

impl Outbox {
    pub fn take_parts(&self) -> Vec<Part> {
        std::mem::take(&mut self.parts.lock())
    }

    pub fn take_offers(&self) -> Vec<NodeId> {
        std::mem::take(&mut self.offers.lock())
    }
}

impl Links for Outbox {
    fn send(&self, _to: NodeId, part: Part) {
        self.parts.lock().push(part);
    }
}

impl Observer for Outbox {
    fn stance_changed(&self, _stance: Stance) {}

    fn members_changed(&self, _members: Members) {}

    fn state_offered(&self, leader: NodeId, _point: Point) {
        self.offers.lock().push(leader);
    }
}

/// Returns settings with such small files that all of them change constantly.
fn store_settings() -> StoreSettings {
    StoreSettings {
        journal: JournalSettings {
            file_bytes: 256 << 10,
            first_file_bytes: 64 << 10,
            files_max: 5,
            queue_bytes_max: 64 << 10,
            syncs_in_flight: 1,
            through_bytes_min: usize::MAX,
        },
        segment_bytes: 24 << 10,
        tail_bytes_max: 32 << 10,
        unflushed_bytes_max: 16 << 10,
        uncached_bytes_min: 1 << 10,
        checkpoint_bytes: 128 << 10,
        checkpoint_interval: Duration::from_secs(3600),
        reserve_bytes: 0,
        has_threads: false,
        ..StoreSettings::default()
    }
}

fn consensus_settings() -> Settings {
    Settings { heartbeat_ticks: 1, election_ticks: 10, lease: 250 * MS, append_bytes_max: 64 << 10, appends_max: 16 }
}

impl Process {
    pub fn start(id: NodeId, disk: &SimDisk, seed: u64) -> Result<Self> {
        let part = ShardPart { shard: ShardId::FIRST, node: id, is_founder: id == 1 };
        let mut opening = Opening::new(part, consensus_settings(), seed, clock).without_thread();
        let disk = Arc::new(disk.clone());
        let opened = Store::open_front(disk, Path::new(DIR), store_settings(), wall_clock, &mut opening, &mut |_| {});
        let (store, _) = opened?;
        let shard = opening.shard().ok_or_else(|| Error::new(ErrorKind::Internal, "the log was not started"))?;
        let outbox = Arc::new(Outbox::default());
        let weak: Weak<Outbox> = Arc::downgrade(&outbox);
        shard.connect(&store, outbox.clone(), weak);
        let (is_writing, is_applying) = (Cell::new(false), Cell::new(false));
        Ok(Self { id, store, shard, outbox, leading: None, is_writing, is_applying })
    }

    /// Does a piece of the store's work. Only a power cut makes it fail.
    pub fn turn(&self, work: Work) -> Result<bool, Violation> {
        let done = self.store.turn(work);
        done.or_else(|error| {
            let is_expected = error.message.contains(crate::POWER_IS_OFF) || self.store.broken().is_some();
            if is_expected { Ok(false) } else { Err(Violation(format!("node {}: {work:?}: {error}", self.id))) }
        })
    }

    /// Fetches the state of a leader.
    pub fn fetch(&self, of: &Self, runtime: &Runtime) -> Option<(Index, Roster)> {
        let (point, roster) = of.shard.point()?;
        let index = point.position.index;
        runtime.block_on(async {
            let (mut ours, mut theirs) = tokio::io::duplex(1 << 16);
            let serving = async {
                // The request itself.
                bulk::read(&mut theirs).await?;
                let served = catch_up::serve(&mut theirs, &of.store, (roster, index), u64::MAX).await;
                drop(theirs);
                served
            };
            let fetching = async {
                let fetched = catch_up::fetch(&mut ours, &self.shard, index).await;
                drop(ours);
                fetched
            };
            let (_, fetched) = tokio::join!(serving, fetching);
            fetched.ok()
        })
    }
}
