//! `thalweg mesh demo`: three sites on this machine, each with a publisher and a subscriber of one live topic.

use std::fmt;
use std::io::Write;
use std::time::{Duration, Instant};

use bench::Latencies;
use client::mesh::MeshMode;
use client::{Acks, Client, LinkState, Publisher, Record, SiteName, Start, Storage, Subscription, TopicSettings};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use super::super::spawned::Spawned;
use crate::output::{FAILED, Failure, Result, note};

const SITES: [&str; 3] = ["berlin", "oslo", "tokyo"];
const TOPIC: &str = "numbers";
/// Records per second that each site publishes.
const RATE: u64 = 100;
/// Time in which all sites are linked and know each other's readers.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// Time after the last publish in which the records have to arrive.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_EVERY: Duration = Duration::from_millis(20);

/// Site with its process and a client of it.
struct Site {
    client: Client,
    _process: Spawned,
}

/// Records that a site has received, by the site that has published them.
#[derive(Default)]
struct Received {
    /// Number of times that each record arrived.
    counts: [Vec<u8>; SITES.len()],
    latencies: Latencies,
    reordered: u64,
}

/// Outcome of the demonstration.
struct Report {
    published: u64,
    seconds: f64,
    lost: u64,
    duplicated: u64,
    reordered: u64,
    latencies: Latencies,
    lookups: u64,
}

pub fn run(seconds: u64, is_json: bool) -> Result {
    let report = super::super::until_stopped(demonstrate(Duration::from_secs(seconds)))?;
    let mut out = std::io::stdout();
    if is_json {
        writeln!(out, "{}", report.to_json())?;
    } else {
        write!(out, "{report}")?;
    }
    report.complaint().map_or(Ok(()), |complaint| Err(Failure::new(FAILED, complaint)))
}

/// Starts the sites, has each publish for a time, and compares what arrived.
async fn demonstrate(time: Duration) -> Result<Report> {
    let sites = found().await?;
    let mut subscriptions = Vec::new();
    for site in &sites {
        let settings = TopicSettings { mesh: MeshMode::Live, storage: Storage::Memory, ..TopicSettings::of_broker() };
        site.client.create_topic(TOPIC, settings).await?;
        subscriptions.push(site.client.subscribe(TOPIC).start(Start::Live).open().await?);
    }
    until_read_everywhere(&sites).await?;
    note(&format!("{} sites are linked, and each reads what all publish", sites.len()));

    let begin = Instant::now();
    let lookups_before = lookups(&sites).await?;
    let total = (time.as_secs_f64() * RATE as f64) as u64;
    let readers: Vec<_> = subscriptions
        .into_iter()
        .enumerate()
        .map(|(at, subscription)| tokio::spawn(read(subscription, at, total, begin, begin + time + ARRIVAL_TIMEOUT)))
        .collect();
    let mut publishers = Vec::new();
    for (at, site) in sites.iter().enumerate() {
        let publisher = site.client.publisher(TOPIC).acks(Acks::Accepted).open().await?;
        publishers.push(tokio::spawn(publish(publisher, at, total, begin)));
    }
    for publisher in publishers {
        ended(publisher).await?;
    }
    let seconds = begin.elapsed().as_secs_f64();
    let mut report = Report {
        published: total * SITES.len() as u64,
        seconds,
        lost: 0,
        duplicated: 0,
        reordered: 0,
        latencies: Latencies::default(),
        lookups: 0,
    };
    for reader in readers {
        report.add(&ended(reader).await?);
    }
    report.lookups = lookups(&sites).await?.saturating_sub(lookups_before);
    Ok(report)
}

/// Waits for a task.
async fn ended<T>(task: JoinHandle<Result<T>>) -> Result<T> {
    task.await.unwrap_or_else(|error| Err(Failure::new(FAILED, format!("a task of the demonstration failed: {error}"))))
}

/// Starts the processes. The first one begins a mesh, and the others join it.
async fn found() -> Result<Vec<Site>> {
    let mut sites: Vec<Site> = Vec::new();
    for name in SITES {
        let process = Spawned::start(&["--set".to_owned(), "mesh=127.0.0.1:0".to_owned()])?;
        let client = Client::connect(&process.native).await?;
        let site = SiteName::parse(name)?;
        match sites.first() {
            None => client.init_mesh(site).await?,
            Some(first) => client.join_mesh(site, first.client.invite_site(1).await?).await?,
        };
        note(&format!("the site {name} runs"));
        sites.push(Site { client, _process: process });
    }
    Ok(sites)
}

/// Waits until each site is linked with all others, and knows that they read the topic.
async fn until_read_everywhere(sites: &[Site]) -> Result {
    let begin = Instant::now();
    for (at, site) in sites.iter().enumerate() {
        loop {
            let status = site.client.describe_mesh().await?;
            let linked = status.sites.iter().filter(|other| other.link == LinkState::Direct).count();
            // All three sites are owners of the topic, so each has an entry of each.
            if linked + 1 == sites.len() && status.stats.directory_entries == sites.len() as u64 {
                break;
            }
            if begin.elapsed() > READY_TIMEOUT {
                let text = format!("{} was not linked with {} sites in time", SITES[at], sites.len() - 1);
                return Err(Failure::new(FAILED, text));
            }
            tokio::time::sleep(POLL_EVERY).await;
        }
    }
    Ok(())
}

/// Publishes numbered records with the times at which they were sent.
async fn publish(publisher: Publisher, site: usize, total: u64, begin: Instant) -> Result {
    let mut turns = interval(Duration::from_secs(1) / RATE as u32);
    turns.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for number in 0..total {
        turns.tick().await;
        let sent_ns = begin.elapsed().as_nanos();
        publisher.send(&Record::new(format!("{site} {number} {sent_ns}"))).await?;
    }
    Ok(publisher.flush().await?)
}

/// Reads until all records have arrived, or a time.
async fn read(
    mut subscription: Subscription,
    own: usize,
    total: u64,
    begin: Instant,
    until: Instant,
) -> Result<Received> {
    let mut received = Received { counts: std::array::from_fn(|_| vec![0; total as usize]), ..Received::default() };
    let mut last = [None; SITES.len()];
    let mut left = total * SITES.len() as u64;
    while left > 0 {
        let Ok(message) = tokio::time::timeout_at(until.into(), subscription.next()).await else { break };
        let now = begin.elapsed();
        let Some((site, number, sent)) = parse(&message?.record) else {
            return Err(Failure::new(FAILED, "the topic has a record that was not published"));
        };
        let Some(count) = received.counts[site].get_mut(number as usize) else { continue };
        left -= u64::from(*count == 0);
        *count = count.saturating_add(1);
        if last[site].is_some_and(|last| last >= number) {
            received.reordered += 1;
        }
        last[site] = Some(number);
        if site != own {
            received.latencies.record(now.saturating_sub(sent));
        }
    }
    Ok(received)
}

fn parse(record: &Record) -> Option<(usize, u64, Duration)> {
    let mut words = std::str::from_utf8(record.value()).ok()?.split(' ');
    let site = words.next()?.parse().ok().filter(|site| *site < SITES.len())?;
    Some((site, words.next()?.parse().ok()?, Duration::from_nanos(words.next()?.parse().ok()?)))
}

/// Returns the lookups of all sites together.
async fn lookups(sites: &[Site]) -> Result<u64> {
    let mut all = 0;
    for site in sites {
        all += site.client.describe_mesh().await?.stats.lookups;
    }
    Ok(all)
}

impl Report {
    fn add(&mut self, received: &Received) {
        for count in received.counts.iter().flatten() {
            self.lost += u64::from(*count == 0);
            self.duplicated += u64::from(count.saturating_sub(1));
        }
        self.reordered += received.reordered;
        self.latencies.add(&received.latencies);
    }

    fn lookups_per_s(&self) -> f64 {
        self.lookups as f64 / self.seconds
    }

    fn percentiles_ms(&self) -> (f64, f64) {
        self.latencies.percentiles().map_or((0.0, 0.0), |of| (of.p50 / 1e3, of.p99 / 1e3))
    }

    fn to_json(&self) -> Value {
        let (p50_ms, p99_ms) = self.percentiles_ms();
        json!({
            "sites": SITES.len(),
            "seconds": self.seconds,
            "published": self.published,
            "lost": self.lost,
            "duplicated": self.duplicated,
            "reordered": self.reordered,
            "p50_ms": p50_ms,
            "p99_ms": p99_ms,
            "lookups": self.lookups,
            "lookups_per_s": self.lookups_per_s(),
        })
    }

    fn complaint(&self) -> Option<String> {
        let Self { lost, duplicated, reordered, .. } = self;
        let is_wrong = lost + duplicated + reordered > 0;
        is_wrong
            .then(|| format!("{lost} deliveries are missing, {duplicated} were made twice, {reordered} out of order"))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (p50, p99) = self.percentiles_ms();
        let sites = SITES.len();
        writeln!(
            f,
            "{sites} sites, {:.1} s, {} records published, each read at all sites",
            self.seconds, self.published
        )?;
        writeln!(f)?;
        writeln!(f, "  lost          {}", self.lost)?;
        writeln!(f, "  duplicated    {}", self.duplicated)?;
        writeln!(f, "  out of order  {}", self.reordered)?;
        writeln!(f, "  to another site  p50 {p50:.2} ms, p99 {p99:.2} ms")?;
        writeln!(f, "  lookups       {} ({:.2} per second)", self.lookups, self.lookups_per_s())
    }
}
