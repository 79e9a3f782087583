//! Operations of programs on a data directory, their acknowledgements, and a check of the recovered data against these.
//!
//! Every appended batch is a function of the partition, the offset and the incarnation of the broker that appended it.
//! So a checker knows every byte without having seen it, and does not accept a phantom record.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use engine::{BatchBuilder, Error, ErrorKind, Offset, RecordBatch, Storage, TopicName, TopicSettings};
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
use storage::journal::JournalSettings;
use storage::{Disk, Owner, PartitionLog, Read, SqliteSettings, Store, StoreSettings, StoredTopic};

use sim::{POWER_IS_OFF, Random};

/// Timeout that only a failure reaches.
pub const PATIENCE: Duration = Duration::from_secs(600);
/// Interval at which waiting threads check their condition.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Time without a journal file after which the journal can be assumed to get none because the power is off.
const WITHOUT_FILE: Duration = Duration::from_secs(3);

/// Wait limit: practically unlimited, but short if the power went off while the journal was creating a file.
struct Patience {
    begin: Instant,
    served: Instant,
}

impl Patience {
    fn begin() -> Self {
        Self { begin: Instant::now(), served: Instant::now() }
    }

    fn has_time_left(&mut self, store: &Store) -> bool {
        if !store.stats().journal.is_full {
            self.served = Instant::now();
        }
        self.served.elapsed() < WITHOUT_FILE && !self.is_spent()
    }

    fn is_spent(&self) -> bool {
        self.begin.elapsed() > PATIENCE
    }
}

/// Returns settings with such small journal files, segments and checkpoints that all of them change constantly.
pub fn small(syncs_in_flight: usize) -> StoreSettings {
    StoreSettings {
        journal: JournalSettings {
            file_bytes: 256 << 10,
            first_file_bytes: 64 << 10,
            files_max: 6,
            queue_bytes_max: 256 << 10,
            syncs_in_flight,
            through_bytes_min: 4 << 10,
        },
        segment_bytes: 48 << 10,
        tail_bytes_max: 64 << 10,
        tail_time: Duration::from_millis(20),
        unflushed_bytes_max: 32 << 10,
        uncached_bytes_min: 2 << 10,
        checkpoint_bytes: 192 << 10,
        checkpoint_interval: Duration::from_secs(3600),
        reserve_bytes: 256 << 10,
        sqlite: SqliteSettings { queue_bytes_max: 64 << 10, recent_bytes_max: 32 << 10, ..SqliteSettings::default() },
        ..StoreSettings::default()
    }
}

/// Returns settings under which all batches go into the journal first.
pub fn through_journal(settings: StoreSettings) -> StoreSettings {
    StoreSettings { journal: JournalSettings { through_bytes_min: usize::MAX, ..settings.journal }, ..settings }
}

static CLOCK_MS: AtomicU64 = AtomicU64::new(1_700_000_000_000);

/// Returns the time of a stopped clock.
pub fn clock() -> u64 {
    CLOCK_MS.load(Ordering::Relaxed)
}

pub type Opened = (Arc<Store>, Vec<StoredTopic>);

pub fn open(disk: &(impl Disk + Clone), dir: &Path, settings: StoreSettings) -> Result<Opened, Error> {
    Store::open(Arc::new(disk.clone()), dir, settings, clock, &mut |_| {})
}

pub fn on_disk(partitions: u32) -> TopicSettings {
    kept_in(Storage::Disk, partitions)
}

pub fn kept_in(storage: Storage, partitions: u32) -> TopicSettings {
    TopicSettings { partitions, storage, ..TopicSettings::default() }
}

pub fn topic_name(name: &str) -> TopicName {
    TopicName::parse(name).expect("a name")
}

/// Returns the batch that an incarnation appends to a partition at an offset.
pub fn batch_at(topic: &str, partition: usize, base: Offset, incarnation: u64) -> RecordBatch {
    let key = topic.bytes().fold(incarnation, |key, byte| key.wrapping_mul(31).wrapping_add(u64::from(byte)));
    let mut random = Random::new(key.wrapping_mul(0x1_0001) ^ (base << 20) ^ ((partition as u64) << 50));
    let mut builder = BatchBuilder::new();
    let count = 1 + random.below(4);
    let is_large = random.one_in(12);
    for i in 0..count {
        let len = if is_large { random.below(6000) } else { random.below(300) };
        let first = random.number();
        let value: Vec<u8> = (0..len).map(|at| (first.wrapping_add(at * 7)) as u8).collect();
        // Times grow, but not from each record to the next.
        let timestamp_ms = ((base + i) * 10 + random.below(100)) as i64;
        builder.push(timestamp_ms, Some(&base.to_le_bytes()), Some(&value), &[]).expect("a record");
    }
    builder.finish().expect("records").stamp(base)
}

/// Attempt of a program, or an acknowledgement that it received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Creating(String),
    Created(String),
    Deleting(String),
    Deleted(String),
    /// Acknowledges all records before this offset.
    Committed(String, usize, Offset),
    Starting(String, usize, Offset),
    Started(String, usize, Offset),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Creating(topic) => write!(f, "creating {topic}"),
            Self::Created(topic) => write!(f, "created {topic}"),
            Self::Deleting(topic) => write!(f, "deleting {topic}"),
            Self::Deleted(topic) => write!(f, "deleted {topic}"),
            Self::Committed(topic, partition, end) => write!(f, "committed {topic} {partition} {end}"),
            Self::Starting(topic, partition, start) => write!(f, "starting {topic} {partition} {start}"),
            Self::Started(topic, partition, start) => write!(f, "started {topic} {partition} {start}"),
        }
    }
}

impl FromStr for Event {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |word: &str| word.parse::<u64>().ok();
        let topic = |word: &&str| (*word).to_owned();
        let event = match words[..] {
            ["creating", ref name] => Some(Self::Creating(topic(name))),
            ["created", ref name] => Some(Self::Created(topic(name))),
            ["deleting", ref name] => Some(Self::Deleting(topic(name))),
            ["deleted", ref name] => Some(Self::Deleted(topic(name))),
            [what, ref name, partition, offset] => {
                number(partition).zip(number(offset)).and_then(|(partition, offset)| match what {
                    "committed" => Some(Self::Committed(topic(name), partition as usize, offset)),
                    "starting" => Some(Self::Starting(topic(name), partition as usize, offset)),
                    "started" => Some(Self::Started(topic(name), partition as usize, offset)),
                    _ => None,
                })
            }
            _ => None,
        };
        event.ok_or(())
    }
}

pub type Report = Arc<dyn Fn(Event) + Send + Sync>;

/// Expected contents, as far as the programs know them.
#[derive(Clone, Debug, Default)]
pub struct Model {
    topics: BTreeMap<String, TopicModel>,
    pub topics_ever: u64,
}

#[derive(Clone, Debug, Default)]
struct TopicModel {
    is_created: bool,
    is_deleting: bool,
    is_deleted: bool,
    partitions: BTreeMap<usize, PartitionModel>,
}

#[derive(Clone, Debug, Default)]
struct PartitionModel {
    /// Batches that were read after the last start.
    known: Vec<RecordBatch>,
    /// Offset at which the batches of the last incarnation begin.
    known_end: Offset,
    committed: Offset,
    started: Offset,
    starting: Vec<Offset>,
}

impl Model {
    /// Creates a model from the existing contents: they were checked, or will be.
    pub fn of(topics: &[StoredTopic], topics_ever: u64) -> Self {
        let mut model = Self { topics_ever, ..Self::default() };
        for topic in topics {
            for (i, log) in topic.partitions.iter().enumerate() {
                let start = log.extent().start;
                let end = log.extent().end;
                let known = read_all(log, start, end, 64 << 10).expect("it is read");
                let partition = PartitionModel { known, known_end: end, committed: end, ..PartitionModel::default() };
                model.topic(topic.name.as_str()).partitions.insert(i, partition);
            }
        }
        model
    }

    pub fn apply(&mut self, event: Event) {
        use Event::{Committed, Created, Creating, Deleted, Deleting, Started, Starting};
        match event {
            Creating(name) => {
                self.topics_ever += 1;
                self.topics.insert(name, TopicModel::default());
            }
            Created(name) => self.topic(&name).is_created = true,
            Deleting(name) => self.topic(&name).is_deleting = true,
            Deleted(name) => self.topic(&name).is_deleted = true,
            Committed(name, partition, end) => {
                let partition = self.topic(&name).partitions.entry(partition).or_default();
                partition.committed = partition.committed.max(end);
            }
            Starting(name, partition, start) => {
                self.topic(&name).partitions.entry(partition).or_default().starting.push(start);
            }
            Started(name, partition, start) => {
                let partition = self.topic(&name).partitions.entry(partition).or_default();
                partition.started = partition.started.max(start);
            }
        }
    }

    fn topic(&mut self, name: &str) -> &mut TopicModel {
        self.topics.entry(name.to_owned()).or_default()
    }

    pub fn committed(&self) -> u64 {
        self.topics.values().flat_map(|topic| topic.partitions.values()).map(|partition| partition.committed).sum()
    }

    /// Checks that the existing contents are the expected ones, after an incarnation of this number. The model is then
    /// updated to the found contents. `Err` if nothing can be checked, because reading failed.
    pub fn check(&mut self, topics: &[StoredTopic], incarnation: u64) -> Result<(), Error> {
        for topic in topics {
            let known = self.topics.get(topic.name.as_str());
            let known = known.unwrap_or_else(|| panic!("topic {} was never created", topic.name.as_str()));
            assert!(!known.is_deleted, "topic {} was deleted, and is back", topic.name.as_str());
            for (i, log) in topic.partitions.iter().enumerate() {
                let model = self.topics.get_mut(topic.name.as_str()).expect("a topic");
                model.partitions.entry(i).or_default().check(log, topic.name.as_str(), i, incarnation)?;
            }
        }
        self.topics.retain(|name, model| {
            let exists = topics.iter().any(|topic| topic.name.as_str() == name);
            assert!(exists || !model.is_created || model.is_deleting, "topic {name} is lost");
            if exists {
                model.is_created = true;
                model.is_deleting = false;
            }
            exists
        });
        Ok(())
    }

    pub fn has(&self, topic: &str) -> bool {
        self.topics.contains_key(topic)
    }

    /// Returns the start of a partition at its last check, its batches, and its end.
    pub fn known(&self, topic: &str, partition: usize) -> (Offset, Vec<RecordBatch>, Offset) {
        let model = self.topics.get(topic).and_then(|topic| topic.partitions.get(&partition));
        model.map(|model| (model.started, model.known.clone(), model.known_end)).unwrap_or_default()
    }
}

impl PartitionModel {
    fn check(
        &mut self,
        log: &Arc<dyn PartitionLog>,
        topic: &str,
        partition: usize,
        incarnation: u64,
    ) -> Result<(), Error> {
        let extent = log.extent();
        let place = format!("{topic}/{partition}");
        assert_eq!(log.refused(), None, "{place}");
        let start = extent.start;
        let end = extent.end;
        assert!(
            start == self.started || (start > self.started && self.starting.contains(&start)),
            "{place}: starts at {start}, acknowledged {}, tried {:?}",
            self.started,
            self.starting
        );
        assert!(end >= self.committed, "{place}: ends at {end}, {} was acknowledged", self.committed);
        assert_eq!(log.end(), end, "{place}: what is not committed is not brought back");
        let found = read_all(log, start, end, 64 << 10)?;
        let mut expected = self.known.iter().skip_while(|batch| batch.next_offset() <= start).cloned();
        let mut at = None;
        for batch in &found {
            let base = at.unwrap_or(self.known_end);
            let wanted = expected.next().or_else(|| {
                let mut wanted = batch_at(topic, partition, base, incarnation);
                while at.is_none() && wanted.next_offset() <= start {
                    wanted = batch_at(topic, partition, wanted.next_offset(), incarnation);
                }
                Some(wanted)
            });
            let wanted = wanted.expect("a batch");
            assert!(wanted == *batch, "{place}: offset {} is not what was appended", batch.base_offset());
            at = Some(batch.next_offset());
        }
        assert!(end == start || at == Some(end), "{place}: {at:?} is where reading ended, not {end}");
        self.check_times(log, &place, &found)?;
        *self = Self { known: found, known_end: end, committed: end, started: start, starting: Vec::new() };
        Ok(())
    }

    fn check_times(&self, log: &Arc<dyn PartitionLog>, place: &str, found: &[RecordBatch]) -> Result<(), Error> {
        let start = log.extent().start;
        let end = log.extent().end;
        for timestamp_ms in (0..=10).map(|tenth| ((start + (end - start) * tenth / 10) * 10) as i64) {
            let first = found.iter().find(|batch| batch.max_timestamp_ms() >= timestamp_ms);
            let expected = first.map_or(end, |batch| batch.base_offset().max(start));
            assert_eq!(log.offset_for_time(timestamp_ms)?, expected, "{place}: time {timestamp_ms}");
        }
        Ok(())
    }
}

/// Reads as a subscriber does, from memory and from files.
pub fn read_at(log: &Arc<dyn PartitionLog>, from: Offset, bytes_max: usize) -> Result<Vec<RecordBatch>, Error> {
    match log.clone().read(from, bytes_max)? {
        Read::Batches(batches) => Ok(batches),
        Read::Cold(cold) => cold.run(),
    }
}

pub fn read_all(
    log: &Arc<dyn PartitionLog>,
    start: Offset,
    end: Offset,
    bytes_max: usize,
) -> Result<Vec<RecordBatch>, Error> {
    let mut found: Vec<RecordBatch> = Vec::new();
    let mut at: Offset = start;
    while at < end {
        let batches = read_at(log, at, bytes_max)?;
        assert!(!batches.is_empty(), "nothing at offset {at}, and the end is {end}");
        assert!(batches[0].base_offset() <= at && batches[0].next_offset() > at, "offset {at} was asked for");
        assert!(batches.windows(2).all(|pair| pair[0].next_offset() == pair[1].base_offset()), "a hole");
        at = batches.last().map_or(at, RecordBatch::next_offset);
        found.extend(batches);
    }
    Ok(found)
}

/// Partition as in a broker: it assigns offsets, and is notified of commits.
pub struct Writer {
    topic: String,
    partition: usize,
    incarnation: u64,
    pub log: Arc<dyn PartitionLog>,
    report: Report,
    state: Mutex<WriterState>,
    changed: Condvar,
}

#[derive(Default)]
pub struct WriterState {
    written: Vec<RecordBatch>,
    committed: Offset,
    failed: Option<Error>,
    wrong: Option<String>,
}

impl Owner for Writer {
    fn committed(&self, mark: u64) {
        let mut state = self.state.lock();
        let visible = self.log.commit(mark);
        let is_next = visible.first().is_none_or(|batch| batch.base_offset() == state.committed);
        let is_all = visible.last().map_or(state.committed, RecordBatch::next_offset) == mark.max(state.committed);
        if !is_next || !is_all || state.failed.is_some() {
            state.wrong = Some(format!("committed {mark} after {}, failed {:?}", state.committed, state.failed));
        }
        state.committed = state.committed.max(mark);
        self.changed.notify_all();
        drop(state);
        (self.report)(Event::Committed(self.topic.clone(), self.partition, mark));
    }

    fn failed(&self, error: &Error) {
        self.state.lock().failed = Some(error.clone());
        self.changed.notify_all();
    }
}

impl Writer {
    /// Appends the next batch of the partition. Retries on `Busy`, but not once the power is off: the journal may only
    /// lack a file then, and is not broken.
    pub fn append(self: &Arc<Self>) -> Result<Offset, Error> {
        let begin = std::time::Instant::now();
        while let Err(error) = self.log.admit() {
            let is_over = self.log.broken().is_some() || error.message.contains(POWER_IS_OFF);
            if error.kind != ErrorKind::Busy || is_over || begin.elapsed() > PATIENCE {
                return Err(error);
            }
            std::thread::yield_now();
        }
        self.append_now()
    }

    /// Appends the next batch without checking for room.
    pub fn append_now(self: &Arc<Self>) -> Result<Offset, Error> {
        self.append_held().map(|(end, _)| end)
    }

    /// Appends the next batch as [`Writer::append_now`] does. The thread that commits it waits until the guard is
    /// dropped.
    pub fn append_held(self: &Arc<Self>) -> Result<(Offset, MutexGuard<'_, WriterState>), Error> {
        let mut state = self.state.lock();
        let base = self.log.end();
        let batch = batch_at(&self.topic, self.partition, base, self.incarnation);
        state.written.push(batch.clone());
        if let Err(error) = self.log.append(batch.clone(), clock(), self.clone()) {
            state.written.pop();
            return Err(error);
        }
        Ok((batch.next_offset(), state))
    }

    /// Waits until all records before this offset are acknowledged; `false` if they never will be.
    pub fn wait(&self, end: Offset) -> bool {
        let mut state = self.state.lock();
        while state.committed < end && state.failed.is_none() {
            let late = self.changed.wait_for(&mut state, PATIENCE).timed_out();
            assert!(!late, "{}/{}: neither committed nor failed at {end}", self.topic, self.partition);
        }
        state.committed >= end
    }

    /// Waits like [`Writer::wait`], but gives up if the journal cannot get a file: no owner is notified then before it
    /// is stopped.
    fn wait_while_served(&self, end: Offset, store: &Store) {
        let mut patience = Patience::begin();
        while patience.has_time_left(store) {
            let mut state = self.state.lock();
            if state.committed >= end || state.failed.is_some() {
                return;
            }
            self.changed.wait_for(&mut state, LOOK_EVERY);
        }
        assert!(!patience.is_spent(), "{}/{}: neither committed nor failed at {end}", self.topic, self.partition);
    }

    pub fn is_deleted(&self) -> bool {
        self.log.clone().set_start(u64::MAX, Arc::new(NoOwner)).is_err_and(|error| error.kind == ErrorKind::NotFound)
    }

    pub fn failed(&self) -> Option<Error> {
        self.state.lock().failed.clone()
    }

    pub fn committed_end(&self) -> Offset {
        self.state.lock().committed
    }

    pub fn has_written(&self, batch: &RecordBatch) -> bool {
        let written = &self.state.lock().written;
        let at = written.partition_point(|written| written.base_offset() < batch.base_offset());
        written.get(at) == Some(batch)
    }

    /// Returns the offset of the first written record of this time or later in a log that begins at `start`.
    pub fn first_at(&self, timestamp_ms: i64, start: Offset) -> Option<Offset> {
        let state = self.state.lock();
        let from = state.written.partition_point(|batch| batch.next_offset() <= start);
        let found = state.written[from..].iter().find(|batch| batch.max_timestamp_ms() >= timestamp_ms);
        found.map(|batch| batch.base_offset().max(start))
    }

    /// Reads at a random offset, and compares with the written batches.
    fn read_somewhere(&self, random: &mut Random) -> Result<(), Error> {
        let extent = self.log.extent();
        let from = extent.start + random.below(extent.end - extent.start + 1);
        let batches = match read_at(&self.log, from, random.below(20_000) as usize) {
            Err(error) if error.kind == ErrorKind::OutOfRange && self.log.extent().start > from => return Ok(()),
            read => read?,
        };
        assert!(!batches.is_empty() || from == extent.end, "nothing at {from} where {} is the end", extent.end);
        for batch in &batches {
            assert!(self.has_written(batch), "offset {} is not what was appended", batch.base_offset());
        }
        Ok(())
    }
}

/// Owner that ignores all notifications.
pub struct NoOwner;

impl Owner for NoOwner {
    fn committed(&self, _: u64) {}

    fn failed(&self, _: &Error) {}
}

/// Owner of one entry that a test waits for.
#[derive(Default)]
struct Awaited {
    is_committed: Mutex<bool>,
    changed: Condvar,
}

impl Owner for Awaited {
    fn committed(&self, _: u64) {
        *self.is_committed.lock() = true;
        self.changed.notify_all();
    }

    fn failed(&self, error: &Error) {
        panic!("{error}");
    }
}

/// Appends an entry and waits until it is committed.
pub fn commit<T>(append: impl FnOnce(Arc<dyn Owner>) -> Result<T, Error>) {
    let owner = Arc::new(Awaited::default());
    append(owner.clone()).expect("it is taken");
    let mut is_committed = owner.is_committed.lock();
    while !*is_committed {
        assert!(!owner.changed.wait_for(&mut is_committed, PATIENCE).timed_out(), "it is not committed");
    }
}

/// Owner that reports one event.
struct EventOwner {
    event: Event,
    report: Report,
    is_over: Mutex<bool>,
    changed: Condvar,
}

impl EventOwner {
    fn new(event: Event, report: &Report) -> Arc<Self> {
        Arc::new(Self { event, report: report.clone(), is_over: Mutex::new(false), changed: Condvar::new() })
    }

    /// Waits until the event is reported, or the wait limit is reached.
    fn wait(&self, store: &Store) {
        let mut patience = Patience::begin();
        while patience.has_time_left(store) {
            let mut is_over = self.is_over.lock();
            if *is_over || !self.changed.wait_for(&mut is_over, LOOK_EVERY).timed_out() {
                return;
            }
        }
        assert!(!patience.is_spent(), "{} was never reported", self.event);
    }

    fn end(&self) {
        *self.is_over.lock() = true;
        self.changed.notify_all();
    }
}

impl Owner for EventOwner {
    fn committed(&self, _: u64) {
        (self.report)(self.event.clone());
        self.end();
    }

    fn failed(&self, _: &Error) {
        self.end();
    }
}

/// Waits for a condition that has to become true by itself.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = std::time::Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "in vain: {what}");
        std::thread::yield_now();
    }
}

/// Log of the events that programs report.
#[derive(Clone, Default)]
pub struct EventLog(Arc<Mutex<Vec<Event>>>);

impl EventLog {
    /// Returns the function that adds an event.
    pub fn reporter(&self) -> Report {
        let events = self.0.clone();
        Arc::new(move |event: Event| events.lock().push(event))
    }

    /// Moves the events to the model.
    pub fn apply_to(&self, model: &mut Model) {
        self.0.lock().drain(..).for_each(|event| model.apply(event));
    }
}

/// Several programs that work on one store.
pub struct Work {
    pub store: Arc<Store>,
    /// Storage of the topics that it creates.
    storage: Storage,
    incarnation: u64,
    report: Report,
    topics: RwLock<Vec<(StoredTopic, Vec<Arc<Writer>>)>>,
    topics_ever: Mutex<u64>,
    topics_max: usize,
}

impl Work {
    pub fn new(opened: Opened, model: &Model, incarnation: u64, report: Report) -> Arc<Self> {
        Self::kept_in(Storage::Disk, opened, model, incarnation, report)
    }

    pub fn kept_in(storage: Storage, opened: Opened, model: &Model, incarnation: u64, report: Report) -> Arc<Self> {
        let (store, topics) = opened;
        let work = Self {
            store,
            storage,
            incarnation,
            report,
            topics: RwLock::default(),
            topics_ever: Mutex::new(model.topics_ever),
            topics_max: 5,
        };
        for topic in topics {
            work.adopt(topic, model);
        }
        Arc::new(work)
    }

    fn adopt(&self, topic: StoredTopic, model: &Model) -> Vec<Arc<Writer>> {
        let writer = |(partition, log): (usize, &Arc<dyn PartitionLog>)| {
            let name = topic.name.as_str();
            let (_, written, committed) = model.known(name, partition);
            let state = Mutex::new(WriterState { written, committed, ..WriterState::default() });
            let topic = name.to_owned();
            let log = log.clone();
            let report = self.report.clone();
            let incarnation = self.incarnation;
            Arc::new(Writer { topic, partition, incarnation, log, report, state, changed: Condvar::new() })
        };
        let writers: Vec<Arc<Writer>> = topic.partitions.iter().enumerate().map(writer).collect();
        self.topics.write().push((topic, writers.clone()));
        writers
    }

    pub fn writers(&self) -> Vec<Arc<Writer>> {
        self.topics.read().iter().flat_map(|(_, writers)| writers.clone()).collect()
    }

    /// Creates a topic and waits until it is durable.
    pub fn create(&self, partitions: u32) -> Result<Vec<Arc<Writer>>, Error> {
        let (writers, owner) = self.begin_create(partitions)?;
        owner.wait(&self.store);
        Ok(writers)
    }

    fn begin_create(&self, partitions: u32) -> Result<(Vec<Arc<Writer>>, Arc<EventOwner>), Error> {
        let mut ever = self.topics_ever.lock();
        let name = format!("t{ever}");
        *ever += 1;
        (self.report)(Event::Creating(name.clone()));
        let owner = EventOwner::new(Event::Created(name.clone()), &self.report);
        let topic = self.store.create_topic(topic_name(&name), kept_in(self.storage, partitions), owner.clone())?;
        Ok((self.adopt(topic, &Model::default()), owner))
    }

    fn delete(&self, random: &mut Random) -> Result<(), Error> {
        let topic = {
            let mut topics = self.topics.write();
            if topics.len() < 2 {
                return Ok(());
            }
            let at = random.below(topics.len() as u64) as usize;
            topics.swap_remove(at).0
        };
        let owner = self.begin_delete(&topic)?;
        if random.one_in(2) {
            owner.wait(&self.store);
        }
        Ok(())
    }

    fn begin_delete(&self, topic: &StoredTopic) -> Result<Arc<EventOwner>, Error> {
        let name = topic.name.as_str().to_owned();
        (self.report)(Event::Deleting(name.clone()));
        let owner = EventOwner::new(Event::Deleted(name), &self.report);
        self.store.delete_topic(topic.id, owner.clone())?;
        Ok(owner)
    }

    /// Deletes a topic by its name and waits until that is durable. Returns its id.
    pub fn delete_named(&self, name: &str) -> Result<u32, Error> {
        let topic = {
            let mut topics = self.topics.write();
            let at = topics.iter().position(|(topic, _)| topic.name.as_str() == name).expect("a topic");
            topics.swap_remove(at).0
        };
        self.begin_delete(&topic)?.wait(&self.store);
        Ok(topic.id)
    }

    /// Deletes the records of a partition before an offset and waits until that is durable.
    pub fn delete_before(&self, writer: &Arc<Writer>, start: Offset) -> Result<(), Error> {
        let topic = writer.topic.clone();
        let partition = writer.partition;
        (self.report)(Event::Starting(topic.clone(), partition, start));
        let owner = EventOwner::new(Event::Started(topic, partition, start), &self.report);
        writer.log.clone().set_start(start, owner.clone())?;
        owner.wait(&self.store);
        Ok(())
    }

    fn set_start(&self, writer: &Arc<Writer>, random: &mut Random) -> Result<(), Error> {
        let topic = writer.topic.clone();
        let partition = writer.partition;
        if random.one_in(2) {
            let Some(start) = writer.log.retain(100 << 10, 0, u64::MAX, clock()) else {
                return Ok(());
            };
            (self.report)(Event::Starting(topic, partition, start));
            // As a broker does it: no client waits for the outcome.
            return writer.log.clone().set_start(start, writer.clone()).map(drop);
        }
        let extent = writer.log.extent();
        let start = extent.start + random.below((extent.end - extent.start) / 2 + 1);
        (self.report)(Event::Starting(topic.clone(), partition, start));
        let owner = EventOwner::new(Event::Started(topic, partition, start), &self.report);
        if start > extent.start {
            writer.log.clone().set_start(start, owner.clone())?;
            if random.one_in(2) {
                owner.wait(&self.store);
            }
        }
        Ok(())
    }

    /// Executes one random operation of a program.
    fn step(&self, random: &mut Random) -> Result<(), Error> {
        let writers = self.writers();
        let Some(writer) = writers.get(random.below(writers.len() as u64) as usize) else {
            return self.create(2).map(drop);
        };
        let result = match random.below(100) {
            0..3 if self.topics.read().len() < self.topics_max => {
                let (_, owner) = self.begin_create(1 + random.below(3) as u32)?;
                if random.one_in(2) {
                    owner.wait(&self.store);
                }
                Ok(())
            }
            3 => self.delete(random),
            4..8 => self.set_start(writer, random),
            8..11 => self.store.checkpoint(),
            11..22 => writer.read_somewhere(random),
            22..35 => {
                writer.wait_while_served(writer.log.end(), &self.store);
                Ok(())
            }
            _ => (0..=random.below(3)).try_for_each(|_| writer.append().map(drop)),
        };
        match result {
            // Another program deleted the topic in the meantime.
            Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    /// Runs until something fails, or each thread has done `steps` steps.
    pub fn run(self: &Arc<Self>, seed: u64, threads: u64, steps: u64) {
        let threads: Vec<_> = (0..threads)
            .map(|thread| {
                let work = self.clone();
                std::thread::spawn(move || {
                    let mut random = Random::new(seed.wrapping_mul(64) + thread);
                    (0..steps).all(|_| work.step(&mut random).is_ok())
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("no thread panics");
        }
    }

    /// Stops the store: no event is reported any more when this returns.
    pub fn end(self: Arc<Self>) -> Result<(), Error> {
        let stopped = self.store.stop();
        for writer in self.writers() {
            let wrong = writer.state.lock().wrong.clone();
            assert_eq!(wrong, None, "{}/{}", writer.topic, writer.partition);
            let is_notified = writer.committed_end() >= writer.log.end() || writer.failed().is_some();
            assert!(
                is_notified || writer.is_deleted(),
                "{}/{}: an owner was not notified",
                writer.topic,
                writer.partition
            );
        }
        stopped
    }
}
