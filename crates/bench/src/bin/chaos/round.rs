//! One round: a new cluster, its clients, faults for a time, and the checks afterwards.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::{Client, NewQueue, Storage, TopicSettings};
use serde::de::DeserializeOwned;
use tokio::task::{JoinSet, block_in_place};

use crate::Settings;
use crate::check::{self, Violations};
use crate::clients::{Ending, Progress, connect, groups, kafka::Kafka, native, queue, redis};
use crate::compare::{compare, leader, until_caught_up};
use crate::history::{CounterEvent, GroupEvent, History, LogEvent, Micros, QueueEvent, now, read};
use crate::network::Outcome;
use crate::nodes::Nodes;
use crate::plan::{Fault, Means, Pace, Plan, Random};
use crate::report::{Finished, Hit};

pub const TOPIC: &str = "chaos-native";
pub const KAFKA_TOPIC: &str = "chaos-kafka";
/// History of reads of that topic during the faults: its client writes to another file.
pub const KAFKA_READS: &str = "kafka-reads.jsonl";
const QUEUE: &str = "chaos-queue";
const PARTITIONS: u32 = 2;
const PUBLISHERS: usize = 2;
const COUNTERS: u64 = 3;
/// Time in which the cluster has to acknowledge records again after a fault.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(45);
/// Time for the last answers of the clients.
const CLIENTS_TIMEOUT: Duration = Duration::from_secs(90);
const POLL_EVERY: Duration = Duration::from_millis(10);

pub struct Round {
    seed: u64,
    count: usize,
    time: Duration,
    pub folder: PathBuf,
    pace: Pace,
    pub nodes: Nodes,
    pub progress: Arc<Progress>,
    /// History of the readers of the native topic.
    pub reads: Option<Arc<History<LogEvent>>>,
    pub finished: Finished,
}

/// Histories of a round.
struct Histories {
    native: Arc<History<LogEvent>>,
    counters: Arc<History<CounterEvent>>,
    queue: Arc<History<QueueEvent>>,
    groups: Arc<History<GroupEvent>>,
}

impl Histories {
    fn create(folder: &Path) -> Outcome<Self> {
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        Ok(Self {
            native: Arc::new(History::create(&folder.join("native.jsonl")).map_err(failed)?),
            counters: Arc::new(History::create(&folder.join("counters.jsonl")).map_err(failed)?),
            queue: Arc::new(History::create(&folder.join("queue.jsonl")).map_err(failed)?),
            groups: Arc::new(History::create(&folder.join("groups.jsonl")).map_err(failed)?),
        })
    }

    fn flush(&self) -> Outcome {
        let flushed = self.native.flush().and(self.counters.flush()).and(self.queue.flush()).and(self.groups.flush());
        flushed.map_err(|error| format!("a history: {error}"))
    }
}

impl Round {
    pub fn new(seed: u64, time: Duration, folder: PathBuf, settings: &Settings, nodes: Nodes) -> Self {
        let finished = Finished {
            seed,
            nodes: settings.nodes,
            pace: settings.pace.name().to_owned(),
            build: settings.build.clone(),
            network: nodes.network.name().to_owned(),
            ..Finished::default()
        };
        let (count, pace) = (settings.nodes, settings.pace);
        Self { seed, count, time, folder, pace, nodes, progress: Arc::default(), reads: None, finished }
    }

    /// Runs the round to its end. What fails is a violation.
    pub async fn run(mut self) -> Finished {
        let begin = Instant::now();
        if let Err(error) = self.work().await {
            self.finished.violations.push(error);
        }
        self.finished.violations.extend(self.nodes.defects());
        self.finished.seconds = begin.elapsed().as_secs_f64();
        (self.finished.sent, self.finished.acknowledged) = self.progress.counts();
        let Self { finished, mut nodes, folder, .. } = self;
        let is_good = finished.violations.is_empty();
        if !is_good {
            for node in nodes.places() {
                nodes.resume(node);
                nodes.stop(node).unwrap_or_default();
            }
            nodes.keep(&folder.join("data"));
        }
        drop(nodes);
        if is_good {
            std::fs::remove_dir_all(&folder).unwrap_or_default();
        }
        Finished { folder: (!is_good).then_some(folder), ..finished }
    }

    async fn work(&mut self) -> Outcome {
        for node in 1..=self.count {
            block_in_place(|| self.nodes.add())?;
            if node == 1 {
                connect(&self.nodes.addresses("native")).await?;
            }
        }
        let client = connect(&self.nodes.addresses("native")).await?;
        until_caught_up(&client, self.count, 0).await?;
        let settings = TopicSettings { partitions: PARTITIONS, storage: Storage::Disk, ..TopicSettings::default() };
        for topic in [TOPIC, KAFKA_TOPIC] {
            client.create_topic(topic, settings).await.map_err(|error| format!("{topic}: {error}"))?;
        }
        client.create_queue(NewQueue::new(QUEUE)).await.map_err(|error| format!("{QUEUE}: {error}"))?;
        let histories = Histories::create(&self.folder)?;
        self.reads = Some(histories.native.clone());
        let (end, ending) = Ending::new();
        let mut clients = self.start_clients(&histories, &ending).await?;
        let kafka = Kafka::start(&self.nodes.addresses("kafka"), KAFKA_TOPIC, &self.folder.join("kafka.jsonl"))?;
        self.finished.clients.extend(["native", "redis", "queue", "groups"].map(str::to_owned));
        self.finished.clients.extend(kafka.is_some().then(|| "kafka".to_owned()));
        let faults = self.faults(&client).await;
        end.send(true).unwrap_or_default();
        faults?;
        let ended = tokio::time::timeout(CLIENTS_TIMEOUT, async {
            while let Some(ended) = clients.join_next().await {
                ended.map_err(|error| format!("a client: {error}"))??;
            }
            Ok::<_, String>(())
        });
        ended.await.map_err(|error| format!("the clients did not end in time: {error}"))??;
        if let Some(kafka) = kafka {
            block_in_place(|| kafka.end())?;
        }
        let checked = self.read_and_check(&client, &histories).await;
        histories.flush()?;
        checked?;
        let topics = [TOPIC, KAFKA_TOPIC];
        let differences = compare(&mut self.nodes, &client, &topics).await?;
        self.finished.violations.extend(differences);
        client.close().await;
        block_in_place(|| {
            for node in self.nodes.places() {
                self.nodes.stop(node)?;
            }
            self.nodes.places().try_for_each(|node| self.nodes.inspect(node))
        })
    }

    async fn start_clients(&self, histories: &Histories, ending: &Ending) -> Outcome<JoinSet<Outcome>> {
        let mut clients = JoinSet::new();
        let servers = self.nodes.addresses("native");
        for number in 0..PUBLISHERS {
            let (client, history, progress) =
                (connect(&servers).await?, histories.native.clone(), self.progress.clone());
            let (name, ending) = (format!("native-{number}"), ending.clone());
            clients.spawn(async move { native::publish(client, TOPIC, name, history, progress, ending).await });
        }
        let (client, history, end) = (connect(&servers).await?, histories.native.clone(), ending.clone());
        clients.spawn(async move { native::subscribe(client, TOPIC, history, end).await });
        let redis: Vec<String> = self.nodes.addresses("redis").split(',').map(str::to_owned).collect();
        for number in 0..COUNTERS {
            clients.spawn(redis::count(
                redis.clone(),
                self.seed ^ number << 32,
                histories.counters.clone(),
                ending.clone(),
            ));
        }
        let (client, history, end) = (connect(&servers).await?, histories.queue.clone(), ending.clone());
        clients.spawn(async move { queue::send(client, QUEUE, history, end).await });
        let (client, history, end) = (connect(&servers).await?, histories.queue.clone(), ending.clone());
        clients.spawn(async move { queue::receive(client, QUEUE, history, end).await });
        let (client, history, end) = (connect(&servers).await?, histories.groups.clone(), ending.clone());
        clients.spawn(async move { groups::commit(client, TOPIC, history, end).await });
        Ok(clients)
    }

    /// Carries out faults until the time of the round is over.
    async fn faults(&mut self, client: &Client) -> Outcome {
        let begin = Instant::now();
        let means = Means { can_cut: self.nodes.network.can_cut(), has_clocks: self.nodes.has_clocks() };
        let plan = Plan::new(self.seed, self.pace, means);
        let mut random = Random::new(self.seed ^ 0xfa17);
        for step in plan {
            tokio::time::sleep(Duration::from_millis(step.quiet_ms)).await;
            if begin.elapsed() >= self.time {
                break;
            }
            let leader_before = self.leader(client).await?;
            let started = Instant::now();
            self.progress.begin();
            let inflicted = self.inflict(step.fault, leader_before, client, &mut random).await;
            let effect = inflicted.map_err(|error| format!("{:?}: {error}", step.fault))?;
            tokio::time::sleep(Duration::from_millis(step.hold_ms)).await;
            block_in_place(|| self.nodes.heal()).map_err(|error| format!("after {:?}: {error}", step.fault))?;
            let healed = now();
            self.until_recovered(healed, step.fault).await?;
            let hit = Hit {
                fault: format!("{:?}", step.fault),
                leader: leader_before,
                next_leader: self.leader(client).await?,
                hold_ms: step.hold_ms,
                stall_ms: self.progress.longest() / 1000,
                recovery_ms: (now() - healed) / 1000,
                kills: effect.kills,
                cuts: effect.cuts,
                changes: effect.changes,
                note: effect.note,
            };
            println!(
                "{:>6.1} s  {:<18} leader {} -> {}, held {} ms, stall {} ms, {} ms{}",
                begin.elapsed().as_secs_f64(),
                hit.fault,
                hit.leader,
                hit.next_leader,
                hit.hold_ms,
                hit.stall_ms,
                started.elapsed().as_millis(),
                hit.note.as_ref().map(|note| format!(": {note}")).unwrap_or_default()
            );
            self.finished.hits.push(hit);
        }
        Ok(())
    }

    /// Returns the place of the node that leads.
    pub async fn leader(&self, client: &Client) -> Outcome<u64> {
        let begin = Instant::now();
        loop {
            let number = leader(client).await?;
            match self.nodes.place(number) {
                Some(place) => return Ok(place),
                // The client may not have noticed that it has left.
                None if begin.elapsed() > RECOVERY_TIMEOUT => {
                    return Err(format!("node {number} leads, and has left or was replaced"));
                }
                None => tokio::time::sleep(POLL_EVERY).await,
            }
        }
    }

    /// Waits until a record that was sent after a time is acknowledged.
    pub async fn until_recovered(&self, healed: Micros, fault: Fault) -> Outcome {
        let begin = Instant::now();
        while !self.progress.has_acknowledged_after(healed) {
            if begin.elapsed() > RECOVERY_TIMEOUT {
                let seconds = RECOVERY_TIMEOUT.as_secs();
                return Err(format!("no publish was acknowledged within {seconds} s after the end of {fault:?}"));
            }
            tokio::time::sleep(POLL_EVERY).await;
        }
        Ok(())
    }

    /// Reads everything after the last fault, and checks the histories.
    async fn read_and_check(&mut self, client: &Client, histories: &Histories) -> Outcome {
        // The checkers have to see what there is, even if a part of it cannot be read.
        let read = self.read_all(client, histories).await;
        self.finished.violations.extend(read.err());
        histories.flush()?;
        self.check("native.jsonl", check::log::check)?;
        self.check("kafka.jsonl", check::log::check)?;
        self.check("counters.jsonl", check::counters::check)?;
        self.check("queue.jsonl", check::queue::check)?;
        self.check("groups.jsonl", check::groups::check)
    }

    async fn read_all(&self, client: &Client, histories: &Histories) -> Outcome {
        let of_kafka = self.folder.join("kafka.jsonl");
        native::read(client, TOPIC, check::log::FINAL, &histories.native).await?;
        let kafka = History::create(&of_kafka).map_err(|error| format!("{}: {error}", of_kafka.display()))?;
        native::read(client, KAFKA_TOPIC, check::log::FINAL, &kafka).await?;
        kafka.flush().map_err(|error| error.to_string())?;
        queue::drain(client, QUEUE, &histories.queue).await?;
        groups::read(client, TOPIC, &histories.groups).await?;
        let redis: Vec<String> = self.nodes.addresses("redis").split(',').map(str::to_owned).collect();
        redis::read(&redis, &histories.counters).await
    }

    fn check<E: DeserializeOwned>(&mut self, name: &str, check: impl FnOnce(&[E]) -> Violations) -> Outcome {
        let mut events = read(&self.folder.join(name)).map_err(|error| format!("{name}: {error}"))?;
        if name == "kafka.jsonl" {
            events.extend(read(&self.folder.join(KAFKA_READS)).map_err(|error| format!("{KAFKA_READS}: {error}"))?);
        }
        self.finished.events += events.len();
        let found = check(&events).sentences();
        self.finished.violations.extend(found.into_iter().map(|sentence| format!("{name}: {sentence}")));
        Ok(())
    }
}
