//! Sites with brokers in memory, and what they publish and receive.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::{Broker, Mesh, Origin, Permit, Published, Subscribe, Subscription, Wakes};
use engine::mesh::{LinkState, MeshMode, MeshStatus, SiteName, SiteRole};
use engine::{
    Acks, BatchBuilder, Delivery, ErrorKind, Missing, Overflow, Pattern, Result, Start, Storage, TopicName,
    TopicSettings,
};
use mesh::{Settings, Site};
use storage::{RealDisk, Store, StoreSettings};
use tokio::runtime::Handle;

/// Timeout for anything on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Site of a test.
pub struct TestSite {
    pub broker: Arc<Broker>,
    pub mesh: Arc<Site>,
    pub name: SiteName,
}

pub fn name(text: &str) -> SiteName {
    SiteName::parse(text).expect("a name")
}

/// Returns the settings of a site that others reach on loopback.
pub fn reachable() -> Settings {
    let listen = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    Settings { listen, advertise: None, role: SiteRole::Hub, ..Settings::default() }
}

/// Returns the settings of a site that only dials out.
pub fn dials_out() -> Settings {
    Settings { listen: None, role: SiteRole::Leaf, ..reachable() }
}

impl TestSite {
    /// Starts a broker that is in no mesh.
    pub async fn start(text: &str, settings: Settings) -> Self {
        let broker = Broker::start(broker::Settings::default(), &[Handle::current()]).expect("started");
        Self::with(text, settings, broker).await
    }

    /// Starts a broker on the files in a directory. It is in the mesh in which it was before.
    pub async fn on_disk(text: &str, settings: Settings, dir: &Path) -> Self {
        let begin = Instant::now();
        let stored = loop {
            let now = broker::Clock::SYSTEM.read();
            match Store::open(Arc::new(RealDisk), dir, StoreSettings::default(), now, &mut |_| {}) {
                // Tasks of a broker that was dropped may hold it for a moment.
                Err(error) if error.kind == ErrorKind::Denied && begin.elapsed() < PATIENCE => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                stored => break stored.expect("opened"),
            }
        };
        let broker = Broker::start_with(broker::Settings::default(), &[Handle::current()], Some(stored));
        Self::with(text, settings, broker.expect("started")).await
    }

    async fn with(text: &str, settings: Settings, broker: Arc<Broker>) -> Self {
        let mesh = Site::new(&broker, settings);
        broker.set_mesh(mesh.clone()).expect("the first one");
        mesh.resume().await;
        Self { broker, mesh, name: name(text) }
    }

    /// Begins a mesh.
    pub async fn first(text: &str, settings: Settings) -> Self {
        let site = Self::start(text, settings).await;
        site.mesh.init(site.name.clone()).await.expect("begun");
        site
    }

    /// Joins the mesh of another site.
    pub async fn join(text: &str, settings: Settings, other: &Self) -> Self {
        let site = Self::start(text, settings).await;
        site.enter(other).await.expect("joined");
        site
    }

    pub async fn enter(&self, other: &Self) -> Result<MeshStatus> {
        let invitation = other.mesh.invite(5).await?;
        self.mesh.join(self.name.clone(), &invitation).await
    }

    pub fn status(&self) -> MeshStatus {
        self.mesh.status().expect("in a mesh")
    }

    /// Returns the state of the link to another site.
    pub fn link_to(&self, other: &Self) -> Option<LinkState> {
        self.status().sites.iter().find(|site| site.site == other.name).map(|site| site.link)
    }

    pub async fn until_linked(&self, other: &Self, state: LinkState) {
        let what = format!("{} to {}: {}", self.name, other.name, state.name());
        until(&what, || self.link_to(other) == Some(state)).await;
    }

    pub async fn create(&self, topic: &str) {
        let settings = TopicSettings { mesh: MeshMode::Live, storage: Storage::Memory, ..TopicSettings::of_broker() };
        self.broker.create_topic(topic, settings).await.expect("created");
        let is_routed = || self.mesh.topics().expect("in a mesh").iter().any(|of| of.topic.as_str() == topic);
        until(&format!("{} routes {topic}", self.name), is_routed).await;
    }

    pub async fn subscribe(&self, topic: &str) -> Subscription {
        self.subscribe_to(Pattern::parse(topic).expect("a pattern"), None).await
    }

    /// Subscribes as a member of a queue group.
    pub async fn join_group(&self, topic: &str, group: &str) -> Subscription {
        self.subscribe_to(Pattern::parse(topic).expect("a pattern"), Some(group)).await
    }

    /// Subscribes as a member of a queue group that may read some topics.
    pub async fn join_with(&self, topic: &str, group: &str, permit: Permit) -> Subscription {
        let pattern = Pattern::parse(topic).expect("a pattern");
        self.broker.subscribe(Subscribe { permit, ..request(pattern, Some(group)) }).await.expect("subscribed")
    }

    /// Subscribes to a channel, as a Redis client does.
    pub async fn listen(&self, channel: &str) -> Subscription {
        let pattern = Pattern::parse(channel).expect("a name");
        self.broker.subscribe(Subscribe { is_channel: true, ..request(pattern, None) }).await.expect("subscribed")
    }

    pub async fn subscribe_to(&self, pattern: Pattern, group: Option<&str>) -> Subscription {
        self.broker.subscribe(request(pattern, group)).await.expect("subscribed")
    }

    pub async fn publish(&self, topic: &str, value: &str) -> Published {
        self.try_publish(topic, value).await.expect("published")
    }

    pub async fn try_publish(&self, topic: &str, value: &str) -> Result<Published> {
        let mut builder = BatchBuilder::new();
        builder.push(1, None, Some(value.as_bytes()), &[]).expect("a small record");
        let batch = builder.finish().expect("a record");
        self.broker.publish(topic, Some(0), Acks::Accepted, batch, &mut Wakes::default()).await
    }

    /// Waits until this site knows that another one reads a topic.
    pub async fn until_sends(&self, topic: &str, sites: &[&Self]) {
        let topic = TopicName::parse(topic).expect("a name");
        let wanted: Vec<SiteName> = sites.iter().map(|site| site.name.clone()).collect();
        let sends = || {
            let topics = self.mesh.topics().expect("in a mesh");
            topics.iter().any(|of| of.topic == topic && of.sites == wanted)
        };
        until(&format!("{} sends {topic} to {wanted:?}", self.name), sends).await;
    }
}

/// Returns the request for a subscription from now on.
fn request(pattern: Pattern, group: Option<&str>) -> Subscribe {
    Subscribe {
        pattern,
        partition: None,
        start: Start::Live,
        overflow: if group.is_some() { Overflow::DropOld } else { Overflow::Replay },
        queue_batches: None,
        group: group.map(str::to_owned),
        credit: i64::MAX as u64,
        missing: Missing::Refuse,
        is_channel: false,
        permit: Permit::ALL,
        origin: Origin::default(),
        hold: None,
        direct: None,
    }
}

/// Waits until something is so.
pub async fn until(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Returns the values of the next records, at least `count`.
pub async fn values(subscription: &mut Subscription, count: usize) -> Vec<String> {
    let mut values = Vec::new();
    let mut deliveries = Vec::new();
    while values.len() < count {
        let next = tokio::time::timeout(PATIENCE, subscription.next(&mut deliveries)).await;
        next.unwrap_or_else(|_| panic!("only {} of {count} arrived", values.len())).expect("open");
        for delivery in &deliveries {
            let Delivery::Batch { batch, .. } = delivery else { panic!("{delivery:?}") };
            for record in batch.records().expect("records").iter() {
                values.push(
                    String::from_utf8(record.expect("a record").value.unwrap_or_default().to_vec()).expect("text"),
                );
            }
        }
    }
    values
}
