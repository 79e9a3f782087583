//! One round: a new cluster, its clients, faults for a time, and the checks afterwards.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::{Client, NewQueue, Storage, TopicSettings};
use serde::de::DeserializeOwned;
use tokio::task::{JoinSet, block_in_place};

use crate::check::{self, Violations};
use crate::clients::{Ending, Progress, connect, groups, kafka::Kafka, native, queue, redis};
use crate::compare::{compare, leader, until_caught_up};
use crate::history::{CounterEvent, GroupEvent, History, LogEvent, Micros, QueueEvent, now, read};
use crate::network::{Network, Outcome};
use crate::nodes::Nodes;
use crate::plan::{Fault, Plan, Random, Step};
use crate::report::{Finished, Hit};

const TOPIC: &str = "chaos-native";
const KAFKA_TOPIC: &str = "chaos-kafka";
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
    folder: PathBuf,
    program: String,
    nodes: Nodes,
    progress: Arc<Progress>,
    finished: Finished,
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
    pub fn new(seed: u64, count: usize, time: Duration, folder: PathBuf, program: &Path, network: Network) -> Self {
        let finished = Finished { seed, nodes: count, network: network.name().to_owned(), ..Finished::default() };
        let nodes = Nodes::new(program, &folder, network);
        let program = program.display().to_string();
        Self { seed, count, time, folder, program, nodes, progress: Arc::default(), finished }
    }

    /// Runs the round to its end. What fails is a violation.
    pub async fn run(mut self) -> Finished {
        let begin = Instant::now();
        if let Err(error) = self.work().await {
            self.finished.violations.push(error);
        }
        self.finished.seconds = begin.elapsed().as_secs_f64();
        (self.finished.sent, self.finished.acknowledged) = self.progress.counts();
        let Self { finished, mut nodes, folder, .. } = self;
        let is_good = finished.violations.is_empty();
        if !is_good {
            for node in nodes.numbers() {
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
        until_caught_up(&client, self.count).await?;
        let settings = TopicSettings { partitions: PARTITIONS, storage: Storage::Disk, ..TopicSettings::default() };
        for topic in [TOPIC, KAFKA_TOPIC] {
            client.create_topic(topic, settings).await.map_err(|error| format!("{topic}: {error}"))?;
        }
        client.create_queue(NewQueue::new(QUEUE)).await.map_err(|error| format!("{QUEUE}: {error}"))?;
        let histories = Histories::create(&self.folder)?;
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
        let differences = compare(&mut self.nodes, &client, &topics, &self.program).await?;
        self.finished.violations.extend(differences);
        client.close().await;
        block_in_place(|| {
            for node in self.nodes.numbers() {
                self.nodes.stop(node)?;
            }
            self.nodes.numbers().try_for_each(|node| self.nodes.inspect(node))
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
        let plan = Plan::new(self.seed, self.nodes.network.can_cut());
        let mut random = Random::new(self.seed ^ 0xfa17);
        for step in plan {
            tokio::time::sleep(Duration::from_millis(step.quiet_ms)).await;
            if begin.elapsed() >= self.time {
                break;
            }
            let leader_before = leader(client).await?;
            let started = Instant::now();
            self.progress.begin();
            let kills = block_in_place(|| self.inflict(step, leader_before, &mut random))
                .map_err(|error| format!("{:?}: {error}", step.fault))?;
            tokio::time::sleep(Duration::from_millis(step.hold_ms)).await;
            block_in_place(|| self.nodes.heal()).map_err(|error| format!("after {:?}: {error}", step.fault))?;
            let healed = now();
            self.until_recovered(healed, step.fault).await?;
            let hit = Hit {
                fault: format!("{:?}", step.fault),
                leader: leader_before,
                next_leader: leader(client).await?,
                hold_ms: step.hold_ms,
                stall_ms: self.progress.longest() / 1000,
                recovery_ms: (now() - healed) / 1000,
                kills,
            };
            println!(
                "{:>6.1} s  {:<18} leader {} -> {}, held {} ms, stall {} ms, {} ms",
                begin.elapsed().as_secs_f64(),
                hit.fault,
                hit.leader,
                hit.next_leader,
                hit.hold_ms,
                hit.stall_ms,
                started.elapsed().as_millis()
            );
            self.finished.hits.push(hit);
        }
        Ok(())
    }

    /// Waits until a record that was sent after a time is acknowledged.
    async fn until_recovered(&self, healed: Micros, fault: Fault) -> Outcome {
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

    /// Begins a fault. Returns the number of processes that it killed.
    fn inflict(&mut self, step: Step, leader: u64, random: &mut Random) -> Outcome<u64> {
        let nodes = &mut self.nodes;
        let all: Vec<u64> = nodes.numbers().collect();
        let mut followers: Vec<u64> = all.iter().copied().filter(|node| *node != leader).collect();
        let turn = random.below(followers.len() as u64) as usize;
        followers.rotate_left(turn);
        let follower = followers[0];
        let majority = all.len() / 2 + 1;
        let mut killed: Vec<u64> = Vec::new();
        match step.fault {
            Fault::KillLeader => killed.push(leader),
            Fault::KillFollower => killed.push(follower),
            Fault::KillMajority => {
                killed.push(leader);
                killed.extend(&followers[..majority - 1]);
            }
            Fault::KillAll => killed = all,
            Fault::PauseLeader => nodes.pause(leader),
            Fault::PauseFollower => nodes.pause(follower),
            Fault::RestartFollower => nodes.stop(follower)?,
            Fault::RestartLeader => nodes.stop(leader)?,
            Fault::IsolateLeader => {
                for other in followers {
                    nodes.network.cut_to(leader, Some(other))?;
                    nodes.network.cut_to(other, Some(leader))?;
                }
            }
            Fault::DeafLeader => {
                for other in followers {
                    nodes.network.cut_to(leader, Some(other))?;
                }
            }
            Fault::MuteLeader => nodes.network.cut_from(leader)?,
            Fault::Loss => all.iter().try_for_each(|node| nodes.network.lose_tenth(*node))?,
            Fault::FullDiskOfLeader => nodes.fill_disk(leader)?,
            Fault::FullDiskOfFollower => nodes.fill_disk(follower)?,
            Fault::JoinDuringCut => {
                nodes.network.cut_to(follower, None)?;
                nodes.add()?;
                killed.push(leader);
            }
            Fault::LeaveDuringCut => {
                let newest = all.len() as u64;
                let cut = followers.iter().find(|node| **node != newest).copied().unwrap_or(follower);
                nodes.network.cut_to(cut, None)?;
                nodes.remove_last()?;
            }
        }
        killed.iter().for_each(|node| nodes.kill(*node));
        Ok(killed.len() as u64)
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
        let path = self.folder.join(name);
        let events = read(&path).map_err(|error| format!("{name}: {error}"))?;
        self.finished.events += events.len();
        let found = check(&events).sentences();
        self.finished.violations.extend(found.into_iter().map(|sentence| format!("{name}: {sentence}")));
        Ok(())
    }
}
