//! One shard of the cluster on one node: the log in front of the journal.
//!
//! A publisher's row goes into a queue. One entry is made of all rows in the queue: the journal gets the rows and their
//! description, and the followers get them at the same moment, so that the leader's sync runs while they sync. While
//! publishers come one at a time, each does this itself, and the followers have the row without a change of threads.
//! Otherwise the journal's thread does it before it gathers a block ([`Source::fill`]), for everything that was queued
//! meanwhile.
//!
//! Everything that the journal gets of the shard, it gets under the lock of the machine, in the order in which the
//! consensus decided it. Owners are told without that lock, by whichever thread learns that an entry is committed;
//! entries of other leaders are applied by a thread of their own.

mod applier;
mod blocks;
mod load;
mod machine;
mod opening;
mod places;
mod save;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use consensus::{Change, Index, Kind, Members, Message, NodeId, Peer, Point, Position, Refused, Status, Term, Time};
use engine::shard::ShardId;
use engine::{Error, ErrorKind, Result};
use parking_lot::{Mutex, MutexGuard};
use storage::{Entry, EntryKind, Journal, Kept, Owner, ShardLog, Source, Store};

use applier::Applier;
use load::Counts;
pub use load::{Load, Progress};
pub use machine::Stance;
pub use opening::{Opening, Part as ShardPart, Summary};

use crate::link::{Block, Part, Row};
use crate::roster::{Roster, RosterChange};
use crate::transport::Links;
use machine::{Effects, Machine, Owners, Pending, Settle};
use places::{Placer, Places, Saver};

/// Maximum bytes that publishers have queued, or that wait for other nodes. Above it, a publish is refused.
const QUEUE_BYTES_MAX: u64 = 64 << 20;
/// Part of the journal that limits these bytes as well: what is not committed cannot leave the journal. Small records
/// take more of it than their bytes.
const QUEUE_PART: u64 = 4;
/// Bytes of the log in memory above which a follower takes no more records: it applies too slowly.
const HELD_BYTES_MAX: u64 = 128 << 20;
/// Maximum rows, and bytes of rows, of one entry: they fit into one block of the journal.
const ENTRY_ROWS_MAX: usize = 4000;
const ENTRY_BYTES_MAX: usize = 3 << 20;

/// Clock that goes on while the machine sleeps, in ns from any origin.
pub type Clock = fn() -> Time;

/// Parts of the process that a shard tells of changes. No lock is held while they are called.
pub trait Observer: Send + Sync {
    /// This node's part in the shard has changed.
    fn stance_changed(&self, stance: Stance);
    /// The members have changed.
    fn members_changed(&self, members: Members);
    /// A leader sends its state up to a point, because this node is too far behind for its log.
    fn state_offered(&self, leader: NodeId, point: Point);
}

/// Rows of publishers that are not in the log yet.
#[derive(Default)]
struct Queue {
    /// Term of the leadership in which rows are taken.
    open: Option<Term>,
    rows: opening::Rows,
    bytes: u64,
    /// `true` if a caller was refused since there was room.
    is_missed: bool,
}

pub struct Shard {
    id: ShardId,
    node: NodeId,
    /// Version of the log's rows that this node reads.
    format: u32,
    clock: Clock,
    journal: Arc<Journal>,
    queue_bytes_max: u64,
    machine: Mutex<Machine>,
    queue: Mutex<Queue>,
    /// Held while committed entries are settled, one thread at a time.
    settling: Mutex<()>,
    /// Held while the store takes what other leaders have committed.
    storing: Mutex<()>,
    applier: Arc<Applier>,
    links: OnceLock<Arc<dyn Links>>,
    observer: OnceLock<Weak<dyn Observer>>,
    store: OnceLock<Weak<Store>>,
    /// `true` while this node takes no records of a leader: it fetches the state in place of damaged records.
    is_paused: AtomicBool,
    /// Announcement of the state that this node fetches.
    offered: Mutex<Option<Message>>,
    on_room: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Held while the observer is told of the stance, so that the last one that it hears is the last one.
    telling: Mutex<()>,
    /// Time until which this node may serve by itself; 0 if it does not lead.
    lease: AtomicU64,
    /// Term in which this node leads; 0 if it does not.
    led: AtomicU64,
    in_flight: AtomicU64,
    /// `true` if the last entry had a single row. Then publishers do not come together, and none waits for another.
    is_lone: AtomicBool,
    counts: Counts,
    progress: Progress,
    failed: OnceLock<Error>,
    /// Places of saves in the journal. Its lock is taken last.
    places: Mutex<Places>,
    saver: Arc<dyn Owner>,
    /// Owner of the rows of saves.
    placer: Arc<dyn Owner>,
}

impl Shard {
    fn start(
        (id, node, format): (ShardId, NodeId, u32),
        has_thread: bool,
        machine: Machine,
        places: Places,
        journal: Arc<Journal>,
        clock: Clock,
    ) -> Result<Arc<Self>> {
        let shard = Arc::new_cyclic(|weak: &Weak<Self>| Self {
            id,
            node,
            format,
            clock,
            queue_bytes_max: QUEUE_BYTES_MAX.min(journal.capacity() / QUEUE_PART),
            journal,
            machine: Mutex::new(machine),
            queue: Mutex::default(),
            settling: Mutex::default(),
            storing: Mutex::default(),
            applier: Arc::default(),
            links: OnceLock::new(),
            observer: OnceLock::new(),
            store: OnceLock::new(),
            is_paused: AtomicBool::new(false),
            offered: Mutex::default(),
            on_room: OnceLock::new(),
            telling: Mutex::default(),
            lease: AtomicU64::new(0),
            led: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            is_lone: AtomicBool::new(false),
            counts: Counts::default(),
            progress: Progress::default(),
            failed: OnceLock::new(),
            places: Mutex::new(places),
            saver: Arc::new(Saver(weak.clone())),
            placer: Arc::new(Placer(weak.clone())),
        });
        shard.journal.set_source(Arc::new(Pulled(Arc::downgrade(&shard))));
        if has_thread {
            shard.start_applier()?;
        }
        Ok(shard)
    }

    /// Connects the shard to the rest of the node. Until then it neither sends nor applies anything.
    pub fn connect(&self, store: &Arc<Store>, links: Arc<dyn Links>, observer: Weak<dyn Observer>) {
        self.store.get_or_init(|| Arc::downgrade(store));
        self.links.get_or_init(|| links);
        self.observer.get_or_init(|| observer);
    }

    fn observer(&self) -> Option<Arc<dyn Observer>> {
        self.observer.get().and_then(Weak::upgrade)
    }

    pub fn id(&self) -> ShardId {
        self.id
    }

    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Returns the current time of the shard's clock.
    pub fn now(&self) -> Time {
        (self.clock)()
    }

    /// Passes one tick of time.
    pub fn tick(&self) {
        self.step(|machine, now| machine.tick(now));
        let has_rows = !self.queue.lock().rows.is_empty();
        if has_rows {
            // A proposal may have been refused for a moment.
            self.call();
        }
    }

    /// Takes a part that another node has sent. Parts with records are dropped while the journal has no room, while
    /// this node applies too slowly, or while damaged records are replaced: they are sent again. But without room it
    /// learns from them which of its records are committed: those can leave the journal.
    pub fn receive(&self, mut part: Part) {
        if !part.blocks.is_empty() {
            let is_paused = self.is_paused.load(Ordering::Acquire);
            if is_paused || !self.has_room() {
                self.counts.put_off.fetch_add(1, Ordering::Relaxed);
                if is_paused || !self.teaches(&part) {
                    return;
                }
                part.drop_entries();
            }
        }
        if let Err(error) = self.check_changes(&part) {
            return self.fail(error);
        }
        let message = part.message.clone();
        let mut offered = None;
        self.step(|machine, now| match machine.receive(part, now) {
            Ok(offer) => offered = offer,
            Err(refused) => self.note_refused(&message, refused),
        });
        if let Some((leader, point)) = offered {
            let is_first = {
                let mut fetching = self.offered.lock();
                let is_first = fetching.is_none();
                fetching.get_or_insert(message);
                is_first
            };
            if let (true, Some(observer)) = (is_first, self.observer()) {
                observer.state_offered(leader, point);
            }
        }
    }

    fn has_room(&self) -> bool {
        self.journal.admit().is_ok() && self.machine.lock().held_bytes() < HELD_BYTES_MAX
    }

    /// Returns `true` if an append says of records of this node, which it knows, that they are committed. The answer to
    /// any other would only make the leader send more.
    fn teaches(&self, part: &Part) -> bool {
        let Kind::Append { prev, commit, .. } = &part.message.kind else { return false };
        let Status { last, committed, .. } = self.status();
        prev.index <= last.index && prev.index.min(*commit) > committed
    }

    /// Fails if a part has changes of the nodes that this program cannot read, or that say so of later rows. It is not
    /// acknowledged then.
    fn check_changes(&self, part: &Part) -> Result<()> {
        let rows = part.blocks.iter().flat_map(Block::rows).filter(|row| row.kind == EntryKind::Cluster);
        rows.into_iter().try_for_each(|row| match RosterChange::decode(row.body.clone())? {
            RosterChange::Raise { format } => Roster::raised_to(format).check_format(self.format),
            _ => Ok(()),
        })
    }

    /// Takes no part in the cluster any more, until the node is restarted.
    pub fn end_part(&self, error: Error) {
        self.fail(error);
    }

    fn note_refused(&self, message: &Message, refused: Refused) {
        match refused {
            Refused::Lost { has, committed } => {
                let message = format!(
                    "this node has the log up to {has}, but acknowledged it up to {committed}: it lost data. It stops \
                     to take part in the cluster. Replace it: `thalweg cluster replace`"
                );
                self.fail(Error::new(ErrorKind::Corrupt, message));
            }
            Refused::Stopped(reason) => {
                self.fail(Error::new(ErrorKind::Internal, format!("the consensus has stopped: {reason}")));
            }
            refused => tracing::debug!(from = message.from, ?refused, "a message of another node has no effect"),
        }
    }

    /// Ends the fetch of a state that was offered: the store includes the log up to an index, durably, and these are
    /// the cluster's nodes there. `None` if it failed: the leader offers it again.
    pub fn installed(&self, state: Option<(Index, Roster)>) {
        let Some(message) = self.offered.lock().take() else { return };
        let Some((index, roster)) = state else { return };
        let is_included = matches!(&message.kind, Kind::Install(point) if point.position.index <= index);
        if is_included {
            self.step(|machine, now| {
                if let Err(refused) = machine.install(message, roster, now) {
                    tracing::warn!(?refused, "cannot take the state of the leader");
                }
            });
        }
    }

    /// Takes no records of a leader from now on, or takes them again.
    pub fn pause(&self, is_paused: bool) {
        self.is_paused.store(is_paused, Ordering::Release);
    }

    /// Returns the index up to which the store includes the log, once that is the whole log of this node.
    pub fn settled_to_end(&self) -> Option<Index> {
        let machine = self.machine.lock();
        let index = machine.point()?.position.index;
        (index == machine.status().last.index).then_some(index)
    }

    /// Calls the store with the state of a leader. Nothing is applied at the same time. Fails if this node leads: its
    /// store is ahead of every other.
    pub fn with_store<T>(&self, call: impl FnOnce(&Store) -> Result<T>) -> Result<T> {
        let store = self.store()?;
        let _storing = self.storing.lock();
        if self.machine.lock().leads().is_some() {
            return Err(Error::busy("this node leads, so it takes the state of no other"));
        }
        call(&store)
    }

    fn store(&self) -> Result<Arc<Store>> {
        let store = self.store.get().and_then(Weak::upgrade);
        store.ok_or_else(|| Error::new(ErrorKind::ShuttingDown, "the store is closed"))
    }

    /// Notes that the connection to a node broke.
    pub fn disconnected(&self, node: NodeId) {
        self.step(|machine, _| machine.disconnected(node));
    }

    /// Takes rows of publishers from now on, for the leadership of this term. Returns `false` if it is over.
    pub fn open(&self, term: Term) -> bool {
        let machine = self.machine.lock();
        let stance = machine.stance();
        let is_ready = stance.term == term && stance.serves_from.is_some_and(|from| from <= self.now());
        if is_ready {
            self.queue.lock().open = Some(term);
        }
        is_ready
    }

    /// Takes no more rows of publishers, for the leadership of this term.
    pub fn close(&self, term: Term) {
        if self.queue.lock().open != Some(term) {
            return;
        }
        let rows = self.close_queue();
        if !rows.is_empty() {
            self.step(|machine, _| machine.refuse(rows));
        }
    }

    fn close_queue(&self) -> Owners {
        let mut queue = self.queue.lock();
        queue.open = None;
        queue.bytes = 0;
        queue.rows.drain(..).map(|row| (row.owner, row.mark)).collect()
    }

    /// Returns `true` if this node may answer now in its leadership of a term: no other one serves the shard.
    pub fn may_serve(&self, term: Term) -> bool {
        let lease = self.lease.load(Ordering::Acquire);
        self.led.load(Ordering::Acquire) == term && (lease == Time::MAX || self.now() < lease)
    }

    /// Appends a change of the members.
    pub fn change(&self, change: Change) -> Result<Position, Refused> {
        self.step(|machine, _| machine.change(change))
    }

    /// Asks another voter to lead.
    pub fn transfer(&self, to: NodeId) -> Result<(), Refused> {
        self.step(|machine, _| machine.transfer(to))
    }

    /// Appends a change of the nodes. Its owner is told when it is committed.
    pub fn change_roster(&self, change: &RosterChange, owner: Arc<dyn Owner>) -> Result<()> {
        self.append(Entry {
            kind: EntryKind::Cluster,
            shard: self.id,
            stream: 0,
            body: change.encode(),
            owner,
            mark: 1,
        })
    }

    pub fn roster(&self) -> Roster {
        self.machine.lock().roster().clone()
    }

    pub fn stance(&self) -> Stance {
        self.machine.lock().stance()
    }

    pub fn status(&self) -> Status {
        self.machine.lock().status()
    }

    pub fn peers(&self) -> Vec<Peer> {
        self.machine.lock().peers()
    }

    /// Returns the point up to which the store includes the log, and the nodes there.
    pub fn point(&self) -> Option<(Point, Roster)> {
        let machine = self.machine.lock();
        Some((machine.point()?, machine.roster().clone()))
    }

    /// Returns the error for which the node takes no part any more.
    pub fn failed(&self) -> Option<Error> {
        self.failed.get().cloned()
    }

    /// Ends the thread of the shard.
    pub fn stop(&self) {
        self.applier.stop();
    }

    /// Calls the machine and does the work that this leaves.
    fn step<R>(&self, call: impl FnOnce(&mut Machine, Time) -> R) -> R {
        let now = self.now();
        let (result, news) = {
            let mut machine = self.machine.lock();
            let before = machine.stance();
            let result = call(&mut machine, now);
            let members = self.work(&mut machine, now);
            let after = machine.stance();
            (result, (Some(after).filter(|after| *after != before), members))
        };
        self.tell(news);
        self.settle(false);
        result
    }

    fn tell(&self, (stance, members): (Option<Stance>, Option<Members>)) {
        if let Some(observer) = self.observer() {
            members.into_iter().for_each(|members| observer.members_changed(members));
        }
        if stance.is_some() {
            self.tell_stance();
        }
    }

    /// Tells the observer of the present stance. A node that has failed leads nothing and knows no leader.
    fn tell_stance(&self) {
        if let Some(observer) = self.observer() {
            let _telling = self.telling.lock();
            let stance = if self.failed.get().is_some() { Stance::default() } else { self.stance() };
            observer.stance_changed(stance);
        }
    }

    /// Does the work of a machine whose lock is held. Returns the members if they have changed.
    fn work(&self, machine: &mut MutexGuard<'_, Machine>, now: Time) -> Option<Members> {
        if self.failed.get().is_some() {
            return None;
        }
        let led = machine.leads();
        let Effects { saves, parts, members } = machine.work(now);
        // A term is never seen with the lease of a later one.
        self.led.store(machine.leads().unwrap_or(0), Ordering::Release);
        self.lease.store(machine.lease(), Ordering::Release);
        for (number, blocks, row) in saves {
            let rows = blocks.iter().flat_map(Block::rows);
            let rows = rows.map(|Row { kind, stream, body, .. }| (*kind, *stream, body.clone(), &self.placer, number));
            let save = [(EntryKind::Save, 0, row.encode(), &self.saver, number)];
            let entry = |(kind, stream, body, owner, mark): (EntryKind, u64, bytes::Bytes, &Arc<dyn Owner>, u64)| {
                Entry { kind, shard: self.id, stream, body, owner: owner.clone(), mark }
            };
            // Together: with a block for the rows and another for their save, each entry would cost two syncs.
            if let Err(error) = self.journal.append_all(rows.chain(save).map(entry)) {
                self.fail(error);
                return None;
            }
        }
        if let Some(links) = self.links.get() {
            parts.into_iter().for_each(|part| links.send(part.message.to, part));
        }
        if led.is_some() && machine.leads() != led {
            let rows = self.close_queue();
            machine.refuse(rows);
        }
        if let Some(reason) = machine.stopped() {
            self.fail(Error::new(ErrorKind::Internal, format!("the consensus has stopped: {reason}")));
        }
        self.in_flight.store(machine.waiting_bytes(), Ordering::Relaxed);
        members
    }

    /// Takes no part in the cluster any more. Nothing of what waits is acknowledged.
    fn fail(&self, error: Error) {
        self.lease.store(0, Ordering::Release);
        if self.failed.set(error.clone()).is_ok() {
            tracing::error!(%error, "this node takes no part in the cluster any more, until it is restarted");
        }
        self.queue.lock().open = None;
        // It tells everybody who waits; the other nodes notice by the silence of this one.
        self.applier.wake();
    }

    /// Fails everything that waits, after [`Shard::fail`].
    fn give_up(&self, error: &Error) {
        let mut owners = self.close_queue();
        owners.extend(self.machine.lock().give_up());
        notify(owners, |owner, _| owner.failed(error));
        self.tell_stance();
    }

    /// Settles committed entries, as far as this thread may: only the shard's own thread applies those of others.
    fn settle(&self, may_apply: bool) {
        loop {
            let Some(settling) = self.settling.try_lock() else {
                // The thread that settles looks again when it is done.
                return;
            };
            while self.settle_one(may_apply) {}
            drop(settling);
            if self.failed.get().is_some() {
                return;
            }
            match self.machine.lock().pending() {
                None => return,
                Some(Pending::Tell) => {}
                Some(_) if may_apply => {}
                Some(_) => return self.applier.wake(),
            }
        }
    }

    /// Returns `false` if nothing is left to be settled by this thread.
    fn settle_one(&self, may_apply: bool) -> bool {
        let step = {
            let mut machine = self.machine.lock();
            let may = machine.pending().is_some_and(|pending| may_apply || pending == Pending::Tell);
            if may { machine.next() } else { None }
        };
        let Some(step) = step else { return false };
        match step {
            Settle::Tell(owners, until) => {
                notify(owners, |owner, mark| owner.committed(mark));
                self.finish(|machine| machine.settled(until));
            }
            Settle::Apply(blocks, until) => {
                if let Err(error) = self.apply(&blocks) {
                    self.fail(error);
                    return false;
                }
                self.finish(|machine| machine.settled(until));
            }
            Settle::Depose(owners) => {
                let error = Error::leadership_ended();
                notify(owners, |owner, _| owner.failed(&error));
                let deposed = self.store().and_then(|store| {
                    let _storing = self.storing.lock();
                    store.depose()
                });
                if let Err(error) = deposed {
                    self.fail(error);
                    return false;
                }
                self.finish(Machine::deposed);
            }
        }
        true
    }

    fn finish(&self, call: impl FnOnce(&mut Machine)) {
        let stance = {
            let mut machine = self.machine.lock();
            let before = machine.stance();
            call(&mut machine);
            self.in_flight.store(machine.waiting_bytes(), Ordering::Relaxed);
            Some(machine.stance()).filter(|after| *after != before)
        };
        self.tell((stance, None));
        self.notify_room();
    }

    fn apply(&self, blocks: &[Block]) -> Result<()> {
        let store = self.store()?;
        let _storing = self.storing.lock();
        let rows = blocks.iter().flat_map(Block::rows).filter(|row| row.kind != EntryKind::Cluster);
        rows.into_iter().try_for_each(|row| store.apply(row.kind, row.stream, row.body.clone()))
    }

    fn waiting_bytes(&self, queue: &Queue) -> u64 {
        queue.bytes + self.in_flight.load(Ordering::Relaxed)
    }

    /// Has the journal take what is in the queue.
    fn call(&self) {
        if let Err(error) = self.journal.call() {
            self.fail(error);
        }
    }

    fn notify_room(&self) {
        {
            let mut queue = self.queue.lock();
            if !queue.is_missed || self.waiting_bytes(&queue) >= self.queue_bytes_max / 2 {
                return;
            }
            queue.is_missed = false;
        }
        if let Some(tell) = self.on_room.get() {
            tell();
        }
    }

    /// Takes rows for one entry from the queue.
    fn take_rows(&self) -> (Vec<Row>, Owners) {
        let mut queue = self.queue.lock();
        let mut rows = Vec::new();
        let mut owners = Owners::new();
        let mut bytes = 0;
        while rows.len() < ENTRY_ROWS_MAX
            && let Some(entry) =
                queue.rows.pop_front_if(|entry| rows.is_empty() || bytes + entry.body.len() <= ENTRY_BYTES_MAX)
        {
            bytes += entry.body.len();
            rows.push(Row::new(entry.kind, entry.stream, entry.body));
            owners.push((entry.owner, entry.mark));
        }
        queue.bytes -= bytes as u64;
        if !queue.rows.is_empty() {
            drop(queue);
            self.call();
        }
        (rows, owners)
    }

    /// Puts rows back that the consensus did not take for the moment.
    fn put_back(&self, block: Block, owners: Owners) {
        let mut queue = self.queue.lock();
        for (row, (owner, mark)) in block.rows().iter().zip(owners).rev() {
            let Row { kind, stream, body, .. } = row.clone();
            queue.bytes += body.len() as u64;
            queue.rows.push_front(Entry { kind, shard: self.id, stream, body, owner, mark });
        }
    }

    /// Makes one entry of the rows in the queue.
    fn propose(&self) {
        let now = self.now();
        let news = {
            let mut machine = self.machine.lock();
            let (rows, owners) = self.take_rows();
            let Some(block) = Block::new(rows) else { return };
            self.is_lone.store(block.rows().len() == 1, Ordering::Relaxed);
            let before = machine.stance();
            match machine.propose(block, owners) {
                Ok(_) => {}
                Err((Refused::Busy, block, owners)) => return self.put_back(block, owners),
                Err((_, _, owners)) => machine.refuse(owners),
            }
            let members = self.work(&mut machine, now);
            let after = machine.stance();
            if machine.pending().is_some() {
                // The caller is in the middle of its work: the journal's thread, or a publisher with locks.
                self.applier.wake();
            }
            (Some(after).filter(|after| *after != before), members)
        };
        self.tell(news);
    }
}

/// Source of the journal: the queue of the shard.
struct Pulled(Weak<Shard>);

impl Source for Pulled {
    fn fill(&self) {
        if let Some(shard) = self.0.upgrade() {
            shard.propose();
        }
    }
}

impl ShardLog for Shard {
    fn append(&self, entry: Entry) -> Result<()> {
        let mut queue = self.queue.lock();
        if queue.open.is_none() {
            return Err(self.failed().unwrap_or_else(|| {
                Error::new(ErrorKind::NotLeader, "this node of the cluster does not lead; send it to the one that does")
            }));
        }
        queue.bytes += entry.body.len() as u64;
        queue.rows.push_back(entry);
        let is_first = queue.rows.len() == 1;
        drop(queue);
        let is_alone = || self.is_lone.load(Ordering::Relaxed) && self.in_flight.load(Ordering::Relaxed) == 0;
        match is_first {
            true if is_alone() => self.propose(),
            true => self.call(),
            false => {}
        }
        Ok(())
    }

    fn admit(&self) -> Result<()> {
        self.journal.admit()?;
        let mut queue = self.queue.lock();
        let waiting = self.waiting_bytes(&queue);
        if waiting < self.queue_bytes_max {
            return Ok(());
        }
        queue.is_missed = true;
        self.counts.refused.fetch_add(1, Ordering::Relaxed);
        Err(Error::busy(format!("{waiting} bytes already wait for the other nodes; try again later")))
    }

    fn broken(&self) -> Option<Error> {
        self.failed().or_else(|| self.journal.broken())
    }

    fn on_room(&self, tell: Box<dyn Fn() + Send + Sync>) {
        self.on_room.get_or_init(|| tell);
    }

    fn still(&self, look: &mut dyn FnMut()) {
        {
            let _settling = self.settling.lock();
            look();
        }
        // Another thread may have left its part to the one that held the lock.
        self.settle(false);
    }

    fn keep(&self) -> Option<Kept> {
        let (base, settled) = self.machine.lock().keep();
        let origin = self.places.lock().need_after(settled);
        Some(Kept { state: base.encode(), origin })
    }
}

/// Notifies each owner once, with the highest of its marks.
fn notify(mut owners: Owners, notify: impl Fn(&Arc<dyn Owner>, u64)) {
    let key = |(owner, _): &(Arc<dyn Owner>, u64)| Arc::as_ptr(owner).cast::<()>() as usize;
    if owners.windows(2).any(|pair| key(&pair[0]) != key(&pair[1])) {
        // Owners whose entries come first are told first.
        let mut first = HashMap::new();
        for (at, owner) in owners.iter().enumerate() {
            first.entry(key(owner)).or_insert(at);
        }
        owners.sort_by_key(|owner| first.get(&key(owner)).copied());
    }
    for of_one in owners.chunk_by(|a, b| key(a) == key(b)) {
        let mark = of_one.iter().map(|(_, mark)| *mark).max().unwrap_or_default();
        notify(&of_one[0].0, mark);
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        self.stop();
    }
}
