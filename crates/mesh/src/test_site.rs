//! Sites of tests that look into them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::{Broker, Mesh};
use engine::mesh::{MeshMode, SiteName, SiteRole};
use engine::{Storage, TopicSettings};
use tokio::runtime::Handle;

use crate::running::Running;
use crate::site::{Settings, Site};

/// Timeout for anything on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Site with a broker in memory.
pub(crate) struct TestSite {
    pub broker: Arc<Broker>,
    pub mesh: Arc<Site>,
}

impl TestSite {
    async fn start() -> Self {
        let broker = Broker::start(broker::Settings::default(), &[Handle::current()]).expect("started");
        let listen = Some(([127, 0, 0, 1], 0).into());
        let mesh = Site::new(&broker, Settings { listen, role: SiteRole::Hub, ..Settings::default() });
        broker.set_mesh(mesh.clone()).expect("the first one");
        mesh.resume().await;
        Self { broker, mesh }
    }

    /// Begins a mesh.
    pub async fn first(name: &str) -> Self {
        let site = Self::start().await;
        site.mesh.init(SiteName::parse(name).expect("a name")).await.expect("begun");
        site
    }

    /// Joins the mesh of another site.
    pub async fn join(name: &str, other: &Self) -> Self {
        let site = Self::start().await;
        let invitation = other.mesh.invite(5).await.expect("issued");
        site.mesh.join(SiteName::parse(name).expect("a name"), &invitation).await.expect("joined");
        site
    }

    /// Creates a live topic.
    pub async fn create(&self, topic: &str) {
        let settings = TopicSettings { mesh: MeshMode::Live, storage: Storage::Memory, ..TopicSettings::of_broker() };
        self.broker.create_topic(topic, settings).await.expect("created");
    }

    pub fn running(&self) -> Arc<Running> {
        self.mesh.running().expect("in a mesh")
    }
}

/// Waits until something is so.
pub(crate) async fn until(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
