//! The table of contents of a broker: its core, the views over it, and their start.

use std::hash::{BuildHasher, RandomState};
use std::ops::Deref;
use std::sync::Arc;

use engine::cache::record::CACHES_TOPIC;
use engine::limits::WRITER_LANES_MAX;
use engine::security::SECURITY_TOPIC;
use engine::shard::Shards;
use engine::{Error, ErrorKind, Result};
use parking_lot::RwLock;
use prometheus_client::collector::Collector;
use prometheus_client::registry::Registry;
use storage::{Store, StoredTopic};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};

use crate::caches::{self, Caches};
use crate::core::{Core, CoreParts};
use crate::defaults::Defaults;
use crate::documents::Documents;
use crate::fetch::aside_in_turn;
use crate::groups::{self, GroupTable, Groups};
use crate::lanes::Lanes;
use crate::leadership::{Leadership, Role};
use crate::metrics::{Collect, Exposition};
use crate::producers::ProducerIds;
use crate::queues::Queues;
use crate::security::Security;
use crate::settings::Settings;
use crate::streams::Streams;
use crate::topic::Topic;
use crate::transactions::{self, TransactionTable, Transactions};
use crate::upkeep;

/// Turn of the collection of metrics that is in progress.
static COLLECTIONS: Semaphore = Semaphore::const_new(1);

/// A broker: topics, and the views over them.
///
/// Its core publishes, subscribes and fetches, and a broker dereferences to it: `broker.publish(..)`. Each view is a
/// field: `broker.queues.receive(..)`. What a change of a topic means for the views is in `control.rs`.
pub struct Broker {
    pub(crate) core: Arc<Core>,
    pub queues: Arc<Queues>,
    pub documents: Arc<Documents>,
    pub groups: Arc<Groups>,
    pub transactions: Arc<Transactions>,
    pub streams: Arc<Streams>,
    pub caches: Arc<Caches>,
    pub security: Arc<Security>,
    registry: RwLock<Registry>,
}

impl Deref for Broker {
    type Target = Arc<Core>;

    fn deref(&self) -> &Arc<Core> {
        &self.core
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.queues.stop_redrives();
    }
}

impl Broker {
    /// Starts a broker whose tasks run on `threads`, with all topics in memory.
    pub fn start(settings: Settings, threads: &[Handle]) -> Result<Arc<Self>> {
        Self::start_with(settings, threads, None)
    }

    /// Starts a broker with a data directory and the topics that are stored in it.
    pub fn start_with(
        settings: Settings,
        threads: &[Handle],
        stored: Option<(Arc<Store>, Vec<StoredTopic>)>,
    ) -> Result<Arc<Self>> {
        Self::start_on(settings, threads, stored, Shards::ONE, None)
    }

    /// Starts the broker of a leadership, over a store of a cluster with the topics that are stored in it. Everything
    /// that was committed before is applied to the store. The broker does not own the store: it stays open when the
    /// broker stops, for the broker of the next leadership.
    pub fn start_leading(
        settings: Settings,
        threads: &[Handle],
        stored: (Arc<Store>, Vec<StoredTopic>),
        leadership: Leadership,
    ) -> Result<Arc<Self>> {
        Leadership::check_topics(&stored.1)?;
        Self::start_on(settings, threads, Some(stored), Shards::ONE, Some(leadership))
    }

    /// Starts a broker whose records are divided into these shards. The number must be the one with which the data
    /// directory was created: it decides where views keep their records, and it is not stored yet.
    pub(crate) fn start_on(
        settings: Settings,
        threads: &[Handle],
        stored: Option<(Arc<Store>, Vec<StoredTopic>)>,
        shards: Shards,
        leadership: Option<Leadership>,
    ) -> Result<Arc<Self>> {
        let (store, stored) = stored.map_or((None, Vec::new()), |(store, topics)| (Some(store), topics));
        let Some(first) = threads.first() else {
            return Err(Error::invalid("a broker needs at least one thread"));
        };
        let journal_room = Arc::new(Notify::new());
        let clock = settings.clock;
        let producer_ids = ProducerIds::since(clock);
        if let Some(store) = &store {
            let room = journal_room.clone();
            store.on_room(Arc::new(move || room.notify_waiters()));
            let store = store.clone();
            producer_ids.reserve_from(Box::new(move |count| store.reserve_producers(count)));
        }
        let lanes = Lanes::start(settings.writer_lanes.clamp(1, WRITER_LANES_MAX), settings.lane_policy, threads);
        // A new hasher has a random key; the broker needs no more randomness than that.
        let instance = RandomState::new().hash_one(clock.now_ms());
        let directory = store.as_ref().map_or(instance, |store| store.directory());
        let ids = leadership.as_ref().map_or(directory, |leadership| leadership.ids);
        let role = Role::new(leadership)?;
        let epoch = role.epoch(clock);
        let defaults = Defaults::new(&settings);
        let topics = stored.into_iter().map(|stored| {
            let settings = defaults.adopt(stored.settings);
            Topic::stored(ids, StoredTopic { settings, ..stored }, epoch)
        });
        // The topic of users and secrets is not in the table of topics, so no request can name it.
        let (mut own, topics): (Vec<_>, Vec<_>) = topics.partition(|topic| topic.name.as_str() == SECURITY_TOPIC);
        let has_caches = topics.iter().any(|topic| topic.name.as_str() == CACHES_TOPIC);
        let groups = Arc::new(GroupTable::new(clock));
        let transactions = Arc::new(TransactionTable::new(clock));
        let streams = Arc::default();
        let core = Arc::new(Core::new(CoreParts {
            settings,
            defaults,
            lanes,
            store,
            journal_room,
            topics: topics.into_iter().collect(),
            producer_ids,
            observers: vec![Arc::clone(&groups) as _, Arc::clone(&streams) as _, Arc::clone(&transactions) as _],
            instance,
            shards,
            role,
        }));
        let security = Arc::new(Security::new(core.clone(), own.pop())?);
        let queues = Arc::new(Queues::new(core.clone()));
        let documents = Arc::new(Documents::new(queues.clone()));
        let groups = Arc::new(Groups::new(core.clone(), queues.clone(), documents.clone(), security.clone(), groups));
        let transactions = Arc::new(Transactions::new(core.clone(), groups.clone(), transactions));
        let streams = Arc::new(Streams::new(core.clone(), queues.clone(), streams));
        let caches = Arc::new(Caches::new(core.clone(), streams.clone(), has_caches));
        let broker = Arc::new(Self {
            core,
            queues,
            documents,
            groups,
            transactions,
            streams,
            caches,
            security,
            registry: RwLock::default(),
        });
        broker.register(broker.collector());
        broker.core.start_audit(first);
        first.spawn(upkeep::sweep_retention(Arc::downgrade(&broker.queues)));
        first.spawn(groups::keep_time(Arc::downgrade(&broker.groups)));
        first.spawn(groups::keep_targets(Arc::downgrade(&broker.groups)));
        first.spawn(transactions::keep_time(Arc::downgrade(&broker.transactions)));
        first.spawn(caches::keep_time(Arc::downgrade(&broker.caches)));
        Ok(broker)
    }

    /// Adds metrics of another part of the process to those that [`Broker::stats`] returns.
    pub fn register(&self, collector: Box<dyn Collector>) {
        self.registry.write().register_collector(collector);
    }

    /// Returns all metrics in the format of Prometheus (OpenMetrics 1.0).
    pub fn stats(&self) -> Result<String> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry.read())
            .map_err(|error| Error::new(ErrorKind::Internal, format!("cannot write the metrics: {error}")))?;
        Ok(text)
    }

    /// Returns the metrics as [`Broker::stats`] does. They are collected one at a time on a thread that serves no
    /// connection, because they visit each queue and each partition of it.
    pub async fn stats_aside(self: &Arc<Self>) -> Result<String> {
        let broker = self.clone();
        aside_in_turn(&COLLECTIONS, move || broker.stats()).await
    }

    /// Restores what was known of streams before the start, and lists their keys in the caches that exist. `place_of`
    /// returns the cache and the key for the name of a topic, for a stream that an early version created without
    /// recording them.
    pub async fn restore_streams(
        &self,
        place_of: impl Fn(&str) -> (String, Vec<u8>) + Send + Sync + 'static,
    ) -> Result<()> {
        self.streams.restore(place_of).await?;
        self.caches.list_all_streams();
        Ok(())
    }

    /// Forgets the state of all views, as a restart does. Durable caches and streams are read from their logs again
    /// before this returns, all others at their next use. Calls in progress fail with an error that permits to try
    /// again, members stay in their groups, and watchers and blocked clients of a cache are notified of its end.
    /// Without a data directory, this has no effect.
    pub async fn forget_views(&self) -> Result<()> {
        if self.core.store().is_none() {
            return Ok(());
        }
        self.transactions.forget().await;
        self.groups.forget().await;
        self.queues.forget().await;
        self.security.forget().await;
        let gone = self.caches.forget().await;
        self.streams.refold(&gone).await?;
        self.caches.restore().await?;
        self.caches.list_all_streams();
        Ok(())
    }

    fn collector(&self) -> Box<dyn Collector> {
        let core = self.core.clone();
        let security = self.security.clone();
        let queues = self.queues.clone();
        let groups = self.groups.clone();
        let transactions = self.transactions.clone();
        let streams = self.streams.clone();
        let caches = self.caches.clone();
        Box::new(Collect(move |out: &mut Exposition<'_>| {
            core.expose(out)?;
            security.expose(out)?;
            queues.expose(out)?;
            groups.expose(out)?;
            transactions.expose(out)?;
            streams.expose(out)?;
            caches.expose(out)
        }))
    }
}
