//! The views of a leader's broker under clients: a queue, a durable cache and a consumer group (`members.rs`).
//!
//! Each broker has a runtime of its own, whose clock is that of the simulation: its tasks run when its process does. An
//! answer counts only if the node may still serve when it is given, as a connection would break otherwise.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use broker::{Broker, Clock, Leadership, NewQueue, NodeInfo, Nodes, OutMessage, Receipt, Receive, Settings};
use consensus::{NodeId, Term, Time};
use engine::cache::{CacheSettings, Condition, Found, Ttl};
use engine::queue::{QueueName, QueueSettings};
use engine::{Error, ErrorKind, Offset, PartitionId, Storage, TopicSettings};
use storage::Store;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use super::members::{Members, PARTITIONS, TOPIC, Told};
use super::node::wall_clock;
use super::{MS, World, number};
use crate::violation::{Outcome, Violation, check};

const QUEUE: &str = "work";
const CACHE: &str = "numbers";
const KEYS: usize = 3;
/// Number from which the ids of the cluster are made.
const IDS: u64 = 7;
/// Tasks of clients at one leader at a time.
const TASKS_MAX: usize = 8;
/// Times that each task has its turn between two waits for the other thread, and number of these waits after an event.
const TURNS: usize = 20;
const ROUNDS: usize = 3;
/// One message of this many is never deleted.
const KEPT_EVERY: u64 = 4;
/// Maximum duration of a lease during faults.
const LEASE_MS_MAX: u64 = 1500;

/// Broker of a leadership, with the calls of its clients.
pub struct Views {
    /// Dropped before the runtime.
    broker: Arc<Broker>,
    tasks: Vec<Task>,
    /// `true` once the broker has restored its views.
    is_open: bool,
    opening: Option<JoinHandle<Result<(), Error>>>,
    /// Time of the runtime's clock.
    told: Time,
    runtime: Option<Runtime>,
}

impl Drop for Views {
    fn drop(&mut self) {
        self.tasks.clear();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Call of a client that waits for its answer.
struct Task {
    begun: Time,
    handle: JoinHandle<Result<Answer, Error>>,
    /// Key or member that waits for the call, if one does.
    busy: Option<Busy>,
}

/// Key or member, of which each has one call at a time.
#[derive(Clone, Copy)]
pub enum Busy {
    /// Key of the cache that is put.
    Key(usize),
    Member(usize),
}

pub enum Answer {
    Sent(u64),
    Received(Vec<(u64, Receipt)>, Duration),
    Finished(Vec<u64>),
    Put(usize, u64),
    /// A key had this number, after another one was acknowledged before the call.
    Got(usize, u64, u64),
    /// A member of the group was told something.
    Member(usize, Told),
    /// The group has these offsets, after others were acknowledged before the call.
    Offsets(BTreeMap<PartitionId, Offset>, Vec<(PartitionId, Offset)>),
}

/// Ledger of what clients of the views were told.
#[derive(Default)]
pub struct ViewLedger {
    next: u64,
    /// Messages that were sent, acknowledged or not.
    issued: BTreeSet<u64>,
    sent: BTreeSet<u64>,
    /// Messages that a client tried to delete: some of them are deleted.
    finishing: BTreeSet<u64>,
    /// Messages whose deletion was acknowledged, with the time of that.
    finished: BTreeMap<u64, Time>,
    /// Ends of leases, by leadership and message.
    leases: BTreeMap<(Term, u64), Time>,
    /// Messages that clients have.
    held: VecDeque<(u64, Receipt)>,
    /// Messages that came after the last fault.
    drained: BTreeSet<u64>,
    registers: [Register; KEYS],
    pub members: Members,
}

/// A key of the cache, which holds ascending numbers.
#[derive(Clone, Copy, Default)]
struct Register {
    issued: u64,
    acknowledged: u64,
    is_busy: bool,
}

impl ViewLedger {
    /// Returns the messages that were sent, that nobody tried to delete, and that have not come since the last fault.
    fn missing(&self) -> Vec<u64> {
        let is_missing = |message: &&u64| !self.finishing.contains(message) && !self.drained.contains(message);
        self.sent.iter().filter(is_missing).copied().collect()
    }

    /// Returns `true` if every message has come that must, and every partition is read.
    pub fn is_complete(&self, now: Time) -> bool {
        self.missing().is_empty() && self.members.is_complete(now)
    }

    pub fn about_missing(&self) -> String {
        format!("messages that do not come: {:?}; {}", self.missing(), self.members.about_missing())
    }

    fn set_busy(&mut self, busy: Busy, is_busy: bool) {
        match busy {
            Busy::Key(key) => self.registers[key].is_busy = is_busy,
            Busy::Member(client) => self.members.set_busy(client, is_busy),
        }
    }
}

/// Nodes that nobody asks about.
struct Unknown;

impl Nodes for Unknown {
    fn nodes(&self) -> Vec<NodeInfo> {
        Vec::new()
    }

    fn transfer(&self, _to: u64) -> engine::Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "the simulation moves leaderships"))
    }
}

async fn open(broker: Arc<Broker>) -> Result<(), Error> {
    broker.security.open().await?;
    broker.caches.restore().await?;
    broker.restore_arrivals().await;
    broker.restore_streams(|name| (name.to_owned(), Vec::new())).await?;
    let settings = QueueSettings { attempts_max: 0, ..QueueSettings::default() };
    let queue = NewQueue { storage: Storage::Disk, settings, ..NewQueue::new(QueueName::parse(QUEUE)?) };
    broker.queues.create(queue).await?;
    if broker.find_topic(TOPIC).is_none() {
        let settings = TopicSettings { partitions: PARTITIONS, ..TopicSettings::on_disk() };
        broker.create_topic(TOPIC, settings).await?;
    }
    let cache = broker.caches.create(CACHE, CacheSettings { is_durable: true, ..CacheSettings::default() })?;
    cache.settled().wait().await?;
    broker.groups.open().await
}

impl Views {
    pub fn start(term: Term, node: NodeId, store: &Arc<Store>, now: Time) -> Result<Self, Violation> {
        let wrong = |error: &dyn std::fmt::Display| Violation(format!("node {node} cannot serve: {error}"));
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).max_blocking_threads(1).build();
        let runtime = runtime.map_err(|error| wrong(&error))?;
        let leadership = Leadership { term, node, ids: IDS, nodes: Arc::new(Unknown) };
        let settings = Settings { clock: Clock::reading(wall_clock), ..Settings::default() };
        let guard = runtime.enter();
        let topics = store.topics();
        let broker = Broker::start_leading(settings, &[runtime.handle().clone()], (store.clone(), topics), leadership);
        let broker = broker.map_err(|error| wrong(&error))?;
        let opening = runtime.spawn(open(broker.clone()));
        drop(guard);
        Ok(Self {
            broker,
            tasks: Vec::new(),
            is_open: false,
            opening: Some(opening),
            told: now,
            runtime: Some(runtime),
        })
    }

    /// Lets all tasks do what they can at this time.
    fn run(&mut self, now: Time) {
        let Some(runtime) = &self.runtime else { return };
        let passed = Duration::from_nanos(now.saturating_sub(self.told));
        self.told = now;
        runtime.block_on(async {
            tokio::time::advance(passed).await;
            for _ in 0..ROUNDS {
                for _ in 0..TURNS {
                    tokio::task::yield_now().await;
                }
                // Work on the other thread, such as reads of files, is done in its order.
                tokio::task::spawn_blocking(|| ()).await.unwrap_or_default();
            }
            for _ in 0..TURNS {
                tokio::task::yield_now().await;
            }
        });
    }

    pub fn broker(&self) -> Arc<Broker> {
        self.broker.clone()
    }

    /// Returns `true` if another client may call.
    pub fn has_room(&self) -> bool {
        self.is_open && self.tasks.len() < TASKS_MAX
    }

    pub fn spawn<F>(&mut self, begun: Time, busy: Option<Busy>, work: F)
    where
        F: Future<Output = Result<Answer, Error>> + Send + 'static,
    {
        if let Some(runtime) = &self.runtime {
            self.tasks.push(Task { begun, handle: runtime.spawn(work), busy });
        }
    }

    fn send(&mut self, now: Time, message: u64) {
        let broker = self.broker.clone();
        self.spawn(now, None, async move {
            let body = message.to_be_bytes();
            let sent = broker.queues.send(QUEUE, &[OutMessage { body: &body, ..OutMessage::default() }]).await?;
            match sent.into_iter().next() {
                Some(Ok(_)) => Ok(Answer::Sent(message)),
                _ => Err(Error::busy("the message was refused")),
            }
        });
    }

    fn receive(&mut self, now: Time, max: usize, lease_ms: u64) {
        let broker = self.broker.clone();
        self.spawn(now, None, async move {
            let receive = Receive { max, lease_ms: Some(lease_ms), ..Receive::default() };
            let received = broker.queues.receive(QUEUE, &receive).await?;
            let messages = received.iter().map(|received| {
                let body = received.message.body();
                let body = body
                    .as_ref()
                    .try_into()
                    .map_err(|error| Error::malformed(format!("a message is no number: {error}")));
                body.map(|body| (u64::from_be_bytes(body), received.receipt))
            });
            Ok(Answer::Received(messages.collect::<Result<_, _>>()?, Duration::from_millis(lease_ms)))
        });
    }

    fn finish(&mut self, now: Time, held: Vec<(u64, Receipt)>) {
        let broker = self.broker.clone();
        self.spawn(now, None, async move {
            let receipts: Vec<Receipt> = held.iter().map(|(_, receipt)| *receipt).collect();
            let answers = broker.queues.ack(QUEUE, &receipts).await?;
            let done = held.iter().zip(answers).filter(|(_, answer)| answer.is_ok());
            Ok(Answer::Finished(done.map(|((message, _), _)| *message).collect()))
        });
    }

    fn put(&mut self, now: Time, key: usize, value: u64) {
        let broker = self.broker.clone();
        self.spawn(now, Some(Busy::Key(key)), async move {
            let cache = broker.caches.find(CACHE)?;
            let name = [key as u8];
            cache.put(&name, &value.to_be_bytes(), Ttl::Never, Condition::Always)?;
            cache.commit_of(&name).wait().await?;
            Ok(Answer::Put(key, value))
        });
    }

    fn get(&mut self, now: Time, key: usize, acknowledged: u64) {
        let broker = self.broker.clone();
        self.spawn(now, None, async move {
            let cache = broker.caches.find(CACHE)?;
            let name = [key as u8];
            let read = |found: Option<Found<'_>>| found.map(|found| found.value.bytes().map(<[u8]>::to_vec));
            let value = cache.get(&name, read)?.transpose()?;
            cache.commit_of(&name).wait().await?;
            let number = |bytes: Vec<u8>| bytes.try_into().map(u64::from_be_bytes);
            let value = value
                .map(number)
                .transpose()
                .map_err(|bytes| Error::malformed(format!("a value is no number: {bytes:?}")))?;
            Ok(Answer::Got(key, acknowledged, value.unwrap_or_default()))
        });
    }
}

impl World {
    /// Lets the broker of a node work, and notes what its clients were told.
    pub(super) fn run_views(&mut self, at: usize) -> Outcome {
        if self.pause(at).is_some() {
            return Ok(());
        }
        let now = self.now;
        let Some(process) = self.process(at) else { return Ok(()) };
        let Some(term) = process.leading.as_ref().map(|leading| leading.term) else { return Ok(()) };
        let may_serve = process.shard.may_serve(term);
        let Some(views) = self.views(at) else { return Ok(()) };
        views.run(now);
        let mut opened = None;
        if let Some(opening) = views.opening.take_if(|opening| opening.is_finished()) {
            opened = Some(views.wait(opening)?);
            views.is_open = matches!(opened, Some(Ok(())));
        }
        let (done, waiting): (Vec<_>, Vec<_>) = views.tasks.drain(..).partition(|task| task.handle.is_finished());
        views.tasks = waiting;
        let mut answers = Vec::with_capacity(done.len());
        for Task { begun, handle, busy } in done {
            answers.push((begun, busy, views.wait(handle)?.ok()));
        }
        let leads = || self.process(at).is_some_and(|process| process.shard.stance().leader == Some(number(at)));
        if let Some(Err(error)) = opened
            && leads()
            && !self.nodes[at].disk.is_off()
        {
            return Err(Violation(format!("node {} leads and cannot restore its views: {error}", at + 1)));
        }
        for (begun, busy, answer) in answers {
            if let Some(busy) = busy {
                self.views_ledger.set_busy(busy, false);
            }
            if let Some(answer) = answer.filter(|_| may_serve) {
                self.answered(number(at), term, begun, answer)?;
            }
        }
        Ok(())
    }

    fn views(&mut self, at: usize) -> Option<&mut Views> {
        self.nodes[at].process.as_mut()?.leading.as_mut()?.views.as_mut()
    }

    fn answered(&mut self, node: NodeId, term: Term, begun: Time, answer: Answer) -> Outcome {
        let (now, ledger) = (self.now, &mut self.views_ledger);
        match answer {
            Answer::Received(..) | Answer::Got(..) | Answer::Offsets(..) => self.run.reads += 1,
            _ => self.run.acknowledged += 1,
        }
        match answer {
            Answer::Sent(message) => {
                ledger.sent.insert(message);
            }
            Answer::Received(messages, lease) => {
                for (message, receipt) in messages {
                    check(ledger.issued.contains(&message), || format!("node {node} delivers {message}, never sent"))?;
                    check(ledger.finished.get(&message).is_none_or(|finished| *finished >= begun), || {
                        format!("node {node} delivers {message}, whose deletion was acknowledged before")
                    })?;
                    // The leases of a leader that are not committed end with it.
                    let until = ledger.leases.insert((term, message), begun + lease.as_nanos() as Time);
                    check(until.is_none_or(|until| until <= begun + MS), || {
                        format!("node {node} delivers {message} twice at a time in term {term}")
                    })?;
                    if self.is_quiet {
                        ledger.drained.insert(message);
                    }
                    ledger.held.push_back((message, receipt));
                }
            }
            Answer::Finished(messages) => {
                for message in messages {
                    ledger.finished.entry(message).or_insert(now);
                }
            }
            Answer::Put(key, value) => {
                let register = &mut ledger.registers[key];
                register.acknowledged = register.acknowledged.max(value);
            }
            Answer::Got(key, acknowledged, value) => {
                let Register { issued, .. } = ledger.registers[key];
                check((acknowledged..=issued).contains(&value), || {
                    format!("node {node} has {value} at key {key}: {acknowledged} was acknowledged, {issued} put")
                })?;
                // Nobody may read an earlier number after this one.
                ledger.registers[key].acknowledged = ledger.registers[key].acknowledged.max(value);
            }
            Answer::Member(client, told) => ledger.members.told(node, client, begun, now, told)?,
            Answer::Offsets(before, found) => ledger.members.found(node, &before, &found)?,
        }
        Ok(())
    }

    /// A client of the views calls a node that leads.
    pub(super) fn call_views(&mut self, at: usize) -> Outcome {
        if self.random.one_in(3) {
            return self.call_group(at);
        }
        let chosen = self.random.below(20);
        let key = self.random.below(KEYS as u64) as usize;
        let (max, lease_ms) = (1 + self.random.below(4) as usize, 100 + self.random.below(LEASE_MS_MAX));
        let (now, is_quiet) = (self.now, self.is_quiet);
        let ledger = &mut self.views_ledger;
        let views = self.nodes[at].process.as_mut().and_then(|process| process.leading.as_mut()?.views.as_mut());
        let Some(views) = views.filter(|views| views.has_room()) else { return Ok(()) };
        match chosen {
            _ if is_quiet => views.receive(now, 10, LEASE_MS_MAX),
            0..7 => {
                ledger.next += 1;
                ledger.issued.insert(ledger.next);
                views.send(now, ledger.next);
            }
            7..11 => views.receive(now, max, lease_ms),
            11..14 => {
                let count = ledger.held.len().min(max);
                // Some are never deleted, so that they must come to the end.
                let may_go = |(message, _): &(u64, Receipt)| message % KEPT_EVERY != 0;
                let held: Vec<_> = ledger.held.drain(..count).filter(may_go).collect();
                ledger.finishing.extend(held.iter().map(|(message, _)| *message));
                if !held.is_empty() {
                    views.finish(now, held);
                }
            }
            14..17 => {
                let register = &mut ledger.registers[key];
                if !register.is_busy {
                    register.is_busy = true;
                    register.issued += 1;
                    views.put(now, key, register.issued);
                }
            }
            _ => views.get(now, key, ledger.registers[key].acknowledged),
        }
        Ok(())
    }

    /// Notes that the calls of a leadership that is over, or of a process that ended, have no answer.
    pub(super) fn drop_calls(&mut self, at: usize) {
        let Some(views) = self.views(at) else { return };
        let busy: Vec<Busy> = views.tasks.iter().filter_map(|task| task.busy).collect();
        busy.into_iter().for_each(|busy| self.views_ledger.set_busy(busy, false));
    }
}

impl Views {
    /// Returns the result of a task that has ended. No task may panic.
    fn wait<T>(&self, handle: JoinHandle<T>) -> Result<T, Violation> {
        let runtime = self.runtime.as_ref().ok_or_else(|| Violation("the broker has ended".to_owned()))?;
        runtime.block_on(handle).map_err(|error| Violation(format!("a task of the broker ended: {error}")))
    }
}
