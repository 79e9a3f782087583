//! The broker: its state, and its startup.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::cache::record::CACHES_TOPIC;
use engine::limits::WRITER_LANES_MAX;
use engine::security::SECURITY_TOPIC;
use engine::{Error, Result, TopicId};
use parking_lot::{Mutex, RwLock};
use prometheus_client::collector::Collector;
use prometheus_client::registry::Registry;
use storage::{Store, StoredTopic};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};

use crate::admission::LogBudget;
use crate::answers::Answers;
use crate::caches::{self, Caches};
use crate::channels::Listeners;
use crate::checking::Checking;
use crate::connection_limits::ConnectionLimits;
use crate::defaults::Defaults;
use crate::doors::Doors;
use crate::fetch::SEARCHING_THREADS;
use crate::groups::{self, Coordinator};
use crate::joining::Joining;
use crate::lanes::Lanes;
use crate::metrics::{Collect, Exposition, Metrics};
use crate::peers::Peers;
use crate::producers::ProducerIds;
use crate::queues::Queues;
use crate::security::Security;
use crate::settings::Settings;
use crate::streams::Streams;
use crate::timers;
use crate::topics::{Topic, Topics};
use crate::transactions;

pub struct Broker {
    peers: Peers,
    settings: Arc<Settings>,
    defaults: Defaults,
    connection_limits: ConnectionLimits,
    metrics: Arc<Metrics>,
    lanes: Lanes,
    budget: LogBudget,
    answers: Answers,
    /// Data directory of the topics on disk; `None` if all topics are in memory.
    store: Option<Arc<Store>>,
    /// Notified when the journal has room again.
    journal_room: Arc<Notify>,
    pub(crate) topics: RwLock<Topics>,
    /// Subscriptions that also want topics that do not exist yet. The lock is held while a topic is created, grown or
    /// deleted, and while a client subscribes to all partitions of a topic or to a pattern, so that none of these
    /// operations misses another. Lock order: before `topics`.
    pub(crate) listeners: Mutex<Listeners>,
    pub(crate) joining: Joining,
    pub(crate) checking: Checking,
    groups: Coordinator,
    transactions: transactions::Coordinator,
    security: Security,
    queues: Queues,
    caches: Caches,
    streams: Streams,
    /// Permits of the searches for a time in records; see [`SEARCHING_THREADS`].
    searches: Semaphore,
    subscriber_ids: AtomicU64,
    producer_ids: ProducerIds,
    /// Number of topics in memory that were created since startup.
    volatile_topics: AtomicU64,
    registry: RwLock<Registry>,
    doors: Arc<Doors>,
    instance: u64,
}

impl Broker {
    /// Starts a broker whose tasks run on `threads`, with all topics in memory.
    pub fn start(settings: Settings, threads: &[Handle]) -> Result<Arc<Self>> {
        Self::start_with(settings, threads, None)
    }

    /// Starts a broker with a data directory and the topics stored in it. Without `stored`, all topics are in memory.
    pub fn start_with(
        settings: Settings,
        threads: &[Handle],
        stored: Option<(Arc<Store>, Vec<StoredTopic>)>,
    ) -> Result<Arc<Self>> {
        let (store, stored) = stored.map_or((None, Vec::new()), |(store, topics)| (Some(store), topics));
        let Some(first) = threads.first() else {
            return Err(Error::invalid("a broker needs at least one thread"));
        };
        let journal_room = Arc::new(Notify::new());
        let producer_ids = ProducerIds::default();
        if let Some(store) = &store {
            let room = journal_room.clone();
            store.on_room(Arc::new(move || room.notify_waiters()));
            let store = store.clone();
            producer_ids.reserve_from(Box::new(move |count| store.reserve_producers(count)));
        }
        let lanes = Lanes::start(settings.writer_lanes.clamp(1, WRITER_LANES_MAX), settings.lane_policy, threads);
        // A new hasher has a random key; no other randomness is needed here.
        let instance = RandomState::new().hash_one(timers::now_ms());
        let directory = store.as_ref().map_or(instance, |store| store.directory());
        let defaults = Defaults::new(&settings);
        let topics = stored.into_iter().map(|stored| {
            let settings = defaults.adopt(stored.settings);
            Topic::stored(directory, StoredTopic { settings, ..stored })
        });
        // The security topic is not among the topics that a request can name: only the broker itself reads it.
        let (mut own, topics): (Vec<_>, Vec<_>) = topics.partition(|topic| topic.name.as_str() == SECURITY_TOPIC);
        let has_caches = topics.iter().any(|topic| topic.name.as_str() == CACHES_TOPIC);
        let security = Security::new(&settings.security, own.pop())?;
        let broker = Arc::new(Self {
            peers: Peers::new(settings.peer_limits.clone()),
            budget: LogBudget::new(settings.log_bytes_max),
            answers: Answers::new(settings.response_bytes_max),
            caches: Caches::new(settings.cache_bytes_max, !has_caches),
            settings: Arc::new(settings),
            defaults,
            connection_limits: ConnectionLimits::default(),
            metrics: Arc::default(),
            lanes,
            store,
            journal_room,
            topics: RwLock::new(topics.into_iter().collect()),
            listeners: Mutex::default(),
            joining: Joining::default(),
            checking: Checking::default(),
            groups: Coordinator::default(),
            transactions: transactions::Coordinator::default(),
            security,
            queues: Queues::default(),
            streams: Streams::default(),
            searches: Semaphore::new(SEARCHING_THREADS),
            subscriber_ids: AtomicU64::new(1),
            producer_ids,
            volatile_topics: AtomicU64::new(0),
            registry: RwLock::default(),
            doors: Arc::default(),
            instance,
        });
        let weak = Arc::downgrade(&broker);
        broker.caches.belong_to(weak.clone());
        broker.register(Box::new(Collect(move |out: &mut Exposition<'_>| match weak.upgrade() {
            Some(broker) => broker.expose(out),
            None => Ok(()),
        })));
        first.spawn(timers::sweep_retention(Arc::downgrade(&broker)));
        first.spawn(groups::keep_time(Arc::downgrade(&broker)));
        first.spawn(transactions::keep_time(Arc::downgrade(&broker)));
        first.spawn(caches::keep_time(Arc::downgrade(&broker)));
        Ok(broker)
    }

    pub fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    /// Limits on the connections of doors.
    pub fn connection_limits(&self) -> &ConnectionLimits {
        &self.connection_limits
    }

    pub(crate) fn defaults(&self) -> &Defaults {
        &self.defaults
    }

    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Addresses of the doors that serve this broker.
    pub fn doors(&self) -> &Arc<Doors> {
        &self.doors
    }

    /// Identifies this run of the broker: it differs after every start.
    pub fn instance(&self) -> u64 {
        self.instance
    }

    /// Identifies this broker's data among all brokers. Constant for as long as the data directory exists; without one,
    /// until the broker stops.
    pub fn cluster_id(&self) -> [u8; 16] {
        let directory = self.store().map_or(self.instance, Store::directory);
        // No topic has this number: topics are numbered from 0.
        TopicId::new(directory, scattered(directory)).to_bytes()
    }

    /// Returns the id for a new topic in memory. No topic has this id after the next start.
    pub(crate) fn next_volatile_id(&self) -> TopicId {
        TopicId::new(self.instance, self.next_volatile_number())
    }

    /// Returns a number that is unique until the next start.
    pub(crate) fn next_volatile_number(&self) -> u64 {
        self.volatile_topics.fetch_add(1, Ordering::Relaxed)
    }

    /// Data directory of the topics on disk; `None` if all topics are in memory.
    pub fn store(&self) -> Option<&Store> {
        self.store.as_deref()
    }

    pub(crate) fn journal_room(&self) -> &Notify {
        &self.journal_room
    }

    /// Makes all accepted writes durable and stops the store. Later writes are refused.
    pub fn stop(&self) -> Result<()> {
        self.store.as_ref().map_or(Ok(()), |store| store.stop())
    }

    pub(crate) fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    pub(crate) fn groups(&self) -> &Coordinator {
        &self.groups
    }

    pub(crate) fn transactions(&self) -> &transactions::Coordinator {
        &self.transactions
    }

    pub(crate) fn peers(&self) -> &Peers {
        &self.peers
    }

    pub(crate) fn security(&self) -> &Security {
        &self.security
    }

    pub(crate) fn queues_there(&self) -> &Queues {
        &self.queues
    }

    pub(crate) fn caches(&self) -> &Caches {
        &self.caches
    }

    pub(crate) fn streams_there(&self) -> &Streams {
        &self.streams
    }

    pub(crate) fn searches(&self) -> &Semaphore {
        &self.searches
    }

    pub(crate) fn log_budget(&self) -> &LogBudget {
        &self.budget
    }

    /// Budget of the responses in flight to clients.
    pub fn answers(&self) -> &Answers {
        &self.answers
    }

    pub(crate) fn next_subscriber_id(&self) -> u64 {
        self.subscriber_ids.fetch_add(1, Ordering::Relaxed)
    }

    /// Source of producer ids.
    pub fn producer_ids(&self) -> &ProducerIds {
        &self.producer_ids
    }

    /// Adds the metrics of another part of the process to the output of [`Broker::stats`].
    pub fn register(&self, collector: Box<dyn Collector>) {
        self.registry.write().register_collector(collector);
    }

    /// Returns all metrics in the text format of Prometheus (OpenMetrics 1.0).
    pub fn stats(&self) -> Result<String> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry.read())
            .map_err(|error| Error::new(engine::ErrorKind::Internal, format!("cannot write the metrics: {error}")))?;
        Ok(text)
    }

    fn expose(&self, out: &mut Exposition<'_>) -> std::fmt::Result {
        self.metrics.expose(out)?;
        self.doors.expose(out)?;
        self.expose_groups(out)?;
        self.expose_transactions(out)?;
        self.expose_security(out)?;
        self.peers.expose(out)?;
        self.expose_queues(out)?;
        self.expose_caches(out)?;
        self.expose_streams(out)?;
        self.expose_channels(out)?;
        self.joining.expose(out)?;
        self.checking.expose(out)?;
        self.answers.expose(out)?;
        out.gauge("thalweg_log_bytes", "Bytes of all logs in memory", self.budget.used() as u64)?;
        out.gauge("thalweg_log_bytes_max", "Maximum of thalweg_log_bytes: memory_max", self.budget.max() as u64)?;
        if let Some(store) = &self.store {
            crate::metrics::expose_store(out, &store.stats())?;
        }
        out.gauge("thalweg_topics", "Topics, including inboxes", self.topics.read().len() as u64)?;
        let rows = |value: &dyn Fn(&crate::lanes::LaneLoad) -> u64| -> Vec<(String, u64)> {
            self.lanes.loads().map(|(lane, load)| (lane.to_string(), value(load))).collect()
        };
        out.gauges(
            "thalweg_lane_subscribers",
            "Subscriptions pinned to a lane",
            "lane",
            &rows(&|load| load.subscribers.load(Ordering::Relaxed) as u64),
        )?;
        out.gauges(
            "thalweg_lane_queued",
            "Batches queued in a lane",
            "lane",
            &rows(&|load| load.queued.load(Ordering::Relaxed) as u64),
        )?;
        out.gauges(
            "thalweg_lane_queued_high_water",
            "Maximum number of batches queued in a lane so far",
            "lane",
            &rows(&|load| load.queued_high_water.load(Ordering::Relaxed)),
        )?;
        out.gauge(
            "thalweg_lane_queue_depth",
            "Maximum of thalweg_lane_queued: subscriber_lane_queue_depth",
            self.settings.lane_queue_depth as u64,
        )?;
        out.counters(
            "thalweg_lane_enqueued",
            "Batches queued in a lane by appends",
            "lane",
            &rows(&|load| load.enqueued.get()),
        )?;
        out.counters(
            "thalweg_lane_dropped",
            "Records dropped because a queue of a lane was full",
            "lane",
            &rows(&|load| load.dropped.get()),
        )
    }
}

/// Maps each number to a distant number, deterministically and one to one (the finalizer of SplitMix64).
fn scattered(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

impl Drop for Broker {
    /// Stops a broker that was dropped without [`Broker::stop`]: all data is kept, and the data directory is unlocked.
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            tracing::error!(%error, "the data directory was not left as it should be; the journal has all of it");
        }
    }
}
