//! Sites: a broker each, in its own network namespace or on the loopback interface, and a client of it.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bench::wan::{Outcome, Space, Wan};
use client::mesh::{MeshMode, MeshStats};
use client::{Client, LinkState, Result, SiteName, Storage, TopicSettings};
use serde_json::Value;

use crate::plan::{Configuration, Settings};
use crate::runtime::{SiteRuntime, ended};

/// Names of all sites. With them, the readers are the owners of both topics, so a lookup has to leave its site.
pub const SITES: [&str; 5] = ["amsterdam", "berlin", "cairo", "delhi", "hub"];
pub const PUBLISHER: usize = 0;
pub const READERS: [usize; 3] = [1, 2, 3];
/// Site that has an address in every configuration.
const HUB: usize = 4;
/// Topics: of the measurement, and of the storm for which nothing has been looked up.
pub const TOPICS: [&str; 2] = ["prices", "orders"];

/// Topic that does not travel, with a subscriber at the site of the publisher: the way within one broker.
pub const LOCAL_TOPIC: &str = "local";

/// Seed that decides which packets are lost.
const LOSS_SEED: u64 = 1;
const MESH_PORT: u16 = 7403;
const NATIVE_PORT: u16 = 7400;
const INVITATION_MINUTES: u32 = 10;
const READY_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_EVERY: Duration = Duration::from_millis(20);

/// Sites that are linked, with the topics and without subscribers. Dropping them ends the processes, then the network.
pub struct Sites {
    sites: Vec<Site>,
    pub wan: Option<Wan>,
}

struct Site {
    client: Client,
    // Dropped in this order: tasks of clients, then the broker.
    runtime: SiteRuntime,
    _broker: Broker,
}

/// Process of a broker. Dropping it ends the process.
struct Broker(Child);

impl Sites {
    pub async fn start(settings: &Settings, configuration: Configuration) -> Outcome<Self> {
        let wan = if settings.is_loopback { None } else { Some(Wan::start(SITES.len(), &settings.link, LOSS_SEED)?) };
        let mut sites = Self { sites: Vec::new(), wan };
        // The hub is first, since all others join by it.
        let mut invitation = None;
        let mut all: Vec<(usize, Site)> = Vec::new();
        for at in [HUB, 0, 1, 2, 3] {
            let has_address = at == HUB || configuration.is_direct();
            let site = sites.start_site(settings, configuration, at, has_address).await?;
            let name = SiteName::parse(SITES[at]).map_err(|error| error.to_string())?;
            match invitation.take() {
                None => site.call(async move |client| client.init_mesh(name).await.map(drop)).await?,
                Some(by) => site.call(async move |client| client.join_mesh(name, by).await.map(drop)).await?,
            }
            let hub = all.first().map_or(&site, |(_, hub)| hub);
            invitation = Some(hub.call(async |client| client.invite_site(INVITATION_MINUTES).await).await?);
            all.push((at, site));
        }
        all.sort_by_key(|(at, _)| *at);
        sites.sites = all.into_iter().map(|(_, site)| site).collect();
        for at in 0..SITES.len() {
            sites.call(at, async |client| create_topics(&client).await).await?;
        }
        Ok(sites)
    }

    async fn start_site(
        &self,
        settings: &Settings,
        configuration: Configuration,
        at: usize,
        has_address: bool,
    ) -> Outcome<Site> {
        let space = self.wan.as_ref().map(|wan| wan.space(at));
        let ready_file = std::env::temp_dir().join(format!("thalweg-mesh-{}-{at}.json", std::process::id()));
        let mut command = match space {
            Some(space) => space.command(&settings.program),
            None => Command::new(&settings.program),
        };
        command.args(["serve", "--set", "log=warn", "--ready-file"]).arg(&ready_file);
        command.args(["http", "kafka", "redis", "sqs", "pubsub"].map(|door| format!("--{door}=off")));
        let port = if space.is_some() { NATIVE_PORT } else { 0 };
        command.arg(format!("--native=127.0.0.1:{port}"));
        for (key, value) in configuration.keys() {
            command.arg("--set").arg(format!("{key}={value}"));
        }
        if has_address {
            let address = match &self.wan {
                Some(wan) => format!("{}:{MESH_PORT}", wan.address(at)),
                None => "127.0.0.1:0".to_owned(),
            };
            command.arg("--set").arg(format!("mesh={address}"));
        }
        let (broker, native) = Broker::start(command, settings, ready_file, at).await?;
        let entrance = space.map(Space::entrance).transpose();
        let entrance = entrance.map_err(|error| format!("the namespace of {}: {error}", SITES[at]))?;
        let runtime = SiteRuntime::start(entrance).await?;
        let address = format!("tcp://{native}");
        let client = runtime.spawn(async move { Client::connect(&address).await.map_err(|error| error.to_string()) });
        let client = ended(client).await.map_err(|error| format!("{}: {error}", SITES[at]))?;
        Ok(Site { client, runtime, _broker: broker })
    }

    /// Calls a function with a client of a site, on a thread of that site.
    pub async fn call<T: Send + 'static, F>(&self, at: usize, work: impl FnOnce(Client) -> F) -> Outcome<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.sites[at].call(work).await.map_err(|error| format!("{}: {error}", SITES[at]))
    }

    pub fn client(&self, at: usize) -> Client {
        self.sites[at].client.clone()
    }

    pub fn runtime(&self, at: usize) -> &SiteRuntime {
        &self.sites[at].runtime
    }

    pub async fn stats(&self, at: usize) -> Outcome<MeshStats> {
        Ok(self.call(at, |client| async move { client.describe_mesh().await }).await?.stats)
    }

    /// Waits until every site has a path to all others, as the configuration has it, and the directory is complete:
    /// each reader has the entries of all of them, for both topics.
    pub async fn until_ready(&self, configuration: Configuration) -> Outcome {
        let begin = Instant::now();
        for (at, name) in SITES.into_iter().enumerate() {
            let entries = if READERS.contains(&at) { (READERS.len() * TOPICS.len()) as u64 } else { 0 };
            loop {
                let status = self.call(at, |client| async move { client.describe_mesh().await }).await?;
                let is_expected = |other: &client::SiteStatus| {
                    let is_direct = configuration.is_direct() || at == HUB || other.site.as_str() == SITES[HUB];
                    other.link == if is_direct { LinkState::Direct } else { LinkState::Relayed }
                };
                let linked = status.sites.iter().filter(|other| is_expected(other)).count();
                let found = status.stats.directory_entries;
                let topics = self.call(at, |client| async move { client.mesh_topics().await }).await?.len();
                if linked + 1 == SITES.len() && found == entries && topics == TOPICS.len() {
                    break;
                }
                if begin.elapsed() > READY_TIMEOUT {
                    return Err(format!(
                        "{name} has {linked} of {} links, {found} of {entries} directory entries and {topics} of {} \
                         live topics after {} s",
                        SITES.len() - 1,
                        TOPICS.len(),
                        READY_TIMEOUT.as_secs()
                    ));
                }
                tokio::time::sleep(POLL_EVERY).await;
            }
        }
        Ok(())
    }
}

impl Site {
    async fn call<T: Send + 'static, F>(&self, work: impl FnOnce(Client) -> F) -> Outcome<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let work = work(self.client.clone());
        ended(self.runtime.spawn(async move { work.await.map_err(|error| error.to_string()) })).await
    }
}

async fn create_topics(client: &Client) -> Result<()> {
    let local = TopicSettings { storage: Storage::Memory, ..TopicSettings::of_broker() };
    client.create_topic(LOCAL_TOPIC, local).await?;
    for topic in TOPICS {
        let settings = TopicSettings { mesh: MeshMode::Live, storage: Storage::Memory, ..TopicSettings::of_broker() };
        client.create_topic(topic, settings).await?;
    }
    Ok(())
}

impl Broker {
    /// Starts a broker, and waits until it is ready. Returns the address of its native door.
    async fn start(
        mut command: Command,
        settings: &Settings,
        ready_file: PathBuf,
        at: usize,
    ) -> Outcome<(Self, String)> {
        let of_site = |error: String| format!("the broker of {}: {error}", SITES[at]);
        // An earlier process with this number may have left its file.
        std::fs::remove_file(&ready_file).unwrap_or_default();
        let log = settings.folder.join(format!("{}.log", SITES[at]));
        let log = File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let begin = Instant::now();
        let child = command.spawn().map_err(|error| {
            of_site(format!("{}: {error}; build it, or name it with --program", settings.program.display()))
        })?;
        let mut broker = Self(child);
        loop {
            if let Ok(text) = std::fs::read_to_string(&ready_file) {
                std::fs::remove_file(&ready_file).map_err(|error| of_site(error.to_string()))?;
                let ready: Value = serde_json::from_str(&text).map_err(|error| of_site(error.to_string()))?;
                return Ok((broker, ready["native"].as_str().unwrap_or_default().to_owned()));
            }
            if let Ok(Some(status)) = broker.0.try_wait() {
                return Err(of_site(format!("ended with {status} before it was ready; its log is in the folder")));
            }
            if begin.elapsed() > READY_TIMEOUT {
                return Err(of_site("was not ready in time".to_owned()));
            }
            tokio::time::sleep(POLL_EVERY).await;
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // Its data is in memory, and no longer needed. The process may have ended by itself.
        self.0.kill().unwrap_or_default();
        self.0.wait().map(drop).unwrap_or_default();
    }
}
