//! The part of a broker below all views: settings, topics, the store, budgets, and the paths of append and read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use engine::ids::{AUDIT_TOPIC, is_internal, may_hold_secrets};
use engine::shard::Shards;
use engine::{Error, ErrorKind, Result, TopicId};
use parking_lot::{Mutex, RwLock};
use storage::Store;
use tokio::sync::{Notify, Semaphore};

use crate::admission::LogBudget;
use crate::answers::Answers;
use crate::audit::Audit;
use crate::backup_table::Backups;
use crate::changed_topics::ChangedTopics;
use crate::channels::Listeners;
use crate::checking::Checking;
use crate::connection_limits::ConnectionLimits;
use crate::defaults::Defaults;
use crate::doors::Doors;
use crate::lanes::Lanes;
use crate::leadership::Role;
use crate::limited::Limited;
use crate::mesh::MeshCell;
use crate::metrics::{Exposition, Metrics, expose_store};
use crate::open_connections::OpenConnections;
use crate::peers::Peers;
use crate::producers::ProducerIds;
use crate::settings::Settings;
use crate::suggestions::Suggestions;
use crate::tenant_quotas::TenantQuotas;
use crate::topic::{Topic, Topics};
use crate::traces::Traces;
use crate::turns::Joining;

/// Maximum concurrent searches for a time in records: decompressed records may be much larger than their batch.
const SEARCHING_THREADS: usize = 2;

/// Topics with their logs and subscribers. Queues, groups, transactions, streams, caches and users are views over it:
/// each has an `Arc` of it, and it knows none of them.
pub struct Core {
    audit: Audit,
    peers: Peers,
    settings: Arc<Settings>,
    defaults: Defaults,
    connection_limits: ConnectionLimits,
    open_connections: OpenConnections,
    tenant_quotas: Arc<TenantQuotas>,
    metrics: Arc<Metrics>,
    traces: Arc<Traces>,
    lanes: Lanes,
    budget: LogBudget,
    answers: Answers,
    /// Data directory of topics on disk.
    store: Option<Arc<Store>>,
    /// Notified when the journal of the store has room again.
    journal_room: Arc<Notify>,
    pub(crate) topics: RwLock<Topics>,
    /// Topics that are in no table, so that no request can name them.
    pub(crate) hidden: Mutex<Vec<Arc<Topic>>>,
    /// Subscriptions that listen to more than the topics that exist now. Held while a topic is created, grown or
    /// deleted, and while a subscription joins all of a topic or a pattern, so that none of them misses another. Taken
    /// before `topics`.
    pub(crate) listeners: Mutex<Listeners>,
    pub(crate) joining: Joining,
    /// Subscriptions that may not read everything.
    pub(crate) limited: Limited,
    pub(crate) checking: Checking,
    pub(crate) suggestions: Suggestions,
    /// Views that keep something about each topic.
    pub(crate) observers: Vec<Arc<dyn TopicObserver>>,
    pub(crate) changed_topics: ChangedTopics,
    /// Notified when a topic was created.
    pub(crate) topic_created: Notify,
    /// `true` once it is known which transactions are open: no transactional batch is accepted before.
    pub(crate) admits_transactions: AtomicBool,
    /// Permits of the threads that search records for a time; see [`SEARCHING_THREADS`].
    searches: Semaphore,
    subscriber_ids: AtomicU64,
    producer_ids: ProducerIds,
    /// Number of topics in memory that were created.
    volatile_topics: AtomicU64,
    doors: Arc<Doors>,
    pub(crate) mesh: MeshCell,
    backups: Backups,
    instance: u64,
    shards: Shards,
    role: Role,
}

/// A view that keeps something about each topic, and drops it with the topic.
pub(crate) trait TopicObserver: Send + Sync {
    /// Notes a topic that was just added to the table of topics.
    fn topic_created(&self, _topic: &Topic) {}

    /// Forgets a topic that was just removed from the table of topics. [`Core::listeners`] is locked, so no topic of
    /// its name can be created before this returns.
    fn topic_removed(&self, _core: &Core, _topic: &Topic) {}

    /// Forgets a removed topic where that may create an internal topic: no lock is held.
    fn topic_forgotten(&self, _core: &Core, _topic: &Topic) {}
}

/// Parts of a new core.
pub(crate) struct CoreParts {
    pub settings: Settings,
    pub defaults: Defaults,
    pub lanes: Lanes,
    pub store: Option<Arc<Store>>,
    pub journal_room: Arc<Notify>,
    pub topics: Topics,
    pub producer_ids: ProducerIds,
    pub observers: Vec<Arc<dyn TopicObserver>>,
    pub instance: u64,
    pub shards: Shards,
    pub role: Role,
}

impl Core {
    pub(crate) fn new(parts: CoreParts) -> Self {
        let CoreParts {
            settings,
            defaults,
            lanes,
            store,
            journal_room,
            topics,
            producer_ids,
            observers,
            instance,
            shards,
            role,
        } = parts;
        Self {
            audit: Audit::new(&settings.audit),
            peers: Peers::new(settings.peer_limits.clone()),
            budget: LogBudget::new(settings.log_bytes_max),
            answers: Answers::new(settings.response_bytes_max),
            traces: Arc::new(Traces::new(settings.tracing.as_ref(), settings.clock)),
            settings: Arc::new(settings),
            defaults,
            connection_limits: ConnectionLimits::default(),
            open_connections: OpenConnections::default(),
            tenant_quotas: Arc::default(),
            metrics: Arc::default(),
            lanes,
            store,
            journal_room,
            topics: RwLock::new(topics),
            hidden: Mutex::default(),
            listeners: Mutex::default(),
            joining: Joining::default(),
            limited: Limited::default(),
            checking: Checking::default(),
            suggestions: Suggestions::default(),
            observers,
            changed_topics: ChangedTopics::default(),
            topic_created: Notify::new(),
            admits_transactions: AtomicBool::new(false),
            searches: Semaphore::new(SEARCHING_THREADS),
            subscriber_ids: AtomicU64::new(1),
            producer_ids,
            volatile_topics: AtomicU64::new(0),
            doors: Arc::default(),
            mesh: MeshCell::default(),
            backups: Backups::default(),
            instance,
            shards,
            role,
        }
    }

    pub fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    /// Returns the current time of the broker's clock, in milliseconds since 1970.
    pub fn now_ms(&self) -> u64 {
        self.settings.clock.now_ms()
    }

    /// Limits on the connections of doors.
    pub fn connection_limits(&self) -> &ConnectionLimits {
        &self.connection_limits
    }

    /// Open connections of all doors.
    pub fn open_connections(&self) -> &OpenConnections {
        &self.open_connections
    }

    /// Quotas of what has the names of a tenant.
    pub(crate) fn tenant_quotas(&self) -> &Arc<TenantQuotas> {
        &self.tenant_quotas
    }

    pub(crate) fn defaults(&self) -> &Defaults {
        &self.defaults
    }

    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Spans of traced records.
    pub fn traces(&self) -> &Arc<Traces> {
        &self.traces
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
    /// until the broker stops. All nodes of a cluster have the same.
    pub fn cluster_id(&self) -> [u8; 16] {
        let ids = self.ids();
        // No topic has this number: topics are numbered from 0.
        TopicId::new(ids, scattered(ids)).to_bytes()
    }

    /// Returns the number from which the ids of stored topics are made.
    pub(crate) fn ids(&self) -> u64 {
        match self.leadership() {
            Some(leadership) => leadership.ids,
            None => self.store().map_or(self.instance, Store::directory),
        }
    }

    pub(crate) fn role(&self) -> &Role {
        &self.role
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

    pub(crate) fn shared_store(&self) -> Option<Arc<Store>> {
        self.store.clone()
    }

    /// Table of the backups that are being copied.
    pub(crate) fn backups(&self) -> &Backups {
        &self.backups
    }

    pub(crate) fn journal_room(&self) -> &Notify {
        &self.journal_room
    }

    /// Stops the broker: makes all accepted writes durable and stops the store. Later writes are refused.
    ///
    /// In a cluster, the leadership of this broker ends, and the store stays open for the next one. When this returns,
    /// nothing more is appended through this broker; the log of the shard decides about what was appended. So it is
    /// called before the store drops what is not committed.
    pub fn stop(&self) -> Result<()> {
        if self.role.leadership().is_some() && self.role.has_ended() {
            return Ok(());
        }
        while self.write_audit().unwrap_or_else(|error| {
            tracing::error!(%error, "cannot write records of the audit");
            false
        }) {}
        match self.role.leadership() {
            Some(leadership) => {
                self.end_leadership(leadership);
                Ok(())
            }
            None => self.store.as_ref().map_or(Ok(()), |store| store.stop()),
        }
    }

    pub(crate) fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    pub(crate) fn audit(&self) -> &Audit {
        &self.audit
    }

    pub(crate) fn peers(&self) -> &Peers {
        &self.peers
    }

    /// Returns the shards of this broker, which decide where views keep their records.
    pub(crate) fn shards(&self) -> Shards {
        self.shards
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

    /// Returns `true` if access control lists decide what a user may do.
    pub fn is_authorizing(&self) -> bool {
        self.settings.security.is_authorizing
    }

    /// Refuses a read of a topic that may hold secrets of the broker if access control lists are not effective. If they
    /// are, the caller must have checked the reader against them.
    pub(crate) fn check_read(&self, topic: &str) -> Result<()> {
        if !self.is_authorizing() && may_hold_secrets(topic) { Err(no_reader(topic)) } else { Ok(()) }
    }

    /// Checks a read at a door that serves no internal topic but the audit if access control lists are effective.
    pub(crate) fn check_read_of_records(&self, topic: &str) -> Result<()> {
        let is_refused = self.is_authorizing() && is_internal(topic) && topic != AUDIT_TOPIC;
        if is_refused { Err(no_reader(topic)) } else { self.check_read(topic) }
    }

    pub(crate) fn expose(&self, out: &mut Exposition<'_>) -> std::fmt::Result {
        self.metrics.expose(out)?;
        self.traces.expose(out)?;
        self.expose_role(out)?;
        self.audit.expose(out)?;
        self.doors.expose(out)?;
        self.peers.expose(out)?;
        self.tenant_quotas.expose(out)?;
        // Not under their lock: what is written may be long.
        let listeners = self.listeners.lock().counts();
        listeners.expose(out)?;
        self.joining.expose(out)?;
        self.checking.expose(out)?;
        self.answers.expose(out)?;
        out.gauge("thalweg_log_bytes", "Bytes of all logs in memory", self.budget.used() as u64)?;
        out.gauge("thalweg_log_bytes_max", "Maximum of thalweg_log_bytes: memory_max", self.budget.max() as u64)?;
        if let Some(store) = &self.store {
            expose_store(out, &store.stats())?;
            out.gauge("thalweg_backups", "Backups that are being copied", self.backups.count() as u64)?;
            out.counter("thalweg_backups_begun", "Backups begun", self.backups.begun.get())?;
            out.counter("thalweg_backup_bytes", "Bytes of records sent for backups", self.backups.bytes.get())?;
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

fn no_reader(topic: &str) -> Error {
    let message = format!(
        "'{topic}' is a topic of the broker itself and may hold secrets: to read it, use the Kafka door with \
         authorization = true and an access control entry for exactly this name"
    );
    Error::new(ErrorKind::Denied, message)
}

/// Maps each number to a distant number, deterministically and one to one (the finalizer of SplitMix64).
fn scattered(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

impl Drop for Core {
    /// Stops the core, unless [`Core::stop`] was called: everything is durable, and the directory is free again.
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            tracing::error!(%error, "the data directory was not closed cleanly; the journal has all data");
        }
    }
}
