//! `thalweg cluster demo`: three nodes on this machine, numbered records, and a leader that is killed under load.

mod ledger;
mod nodes;

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::{Acks, Addresses, Client, ClientSettings, ErrorKind, Publisher, Record, Storage, TopicSettings};
use tokio::time::{MissedTickBehavior, interval};

use crate::output::{FAILED, Failure, Result, note};
use ledger::{Kill, Ledger, Report};
use nodes::Nodes;

const NODES: u64 = 3;
const TOPIC: &str = "numbers";
/// Numbered records per second.
const RATE: u64 = 2000;
/// Time between two wake-ups of the publisher.
const TURN: Duration = Duration::from_millis(5);
/// Time between two kills. A node that was killed is started again in the middle of it.
const KILL_EVERY: Duration = Duration::from_secs(5);
/// Time after which a record that was not acknowledged is given up.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(30);
/// Time in which the first node leads.
const LEADER_TIMEOUT: Duration = Duration::from_secs(20);
/// Time in which all nodes get a vote.
const VOTERS_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_EVERY: Duration = Duration::from_millis(50);
const READ_WAIT: Duration = Duration::from_millis(100);

pub fn run(seconds: u64, is_json: bool) -> Result {
    let report = super::until_stopped(demonstrate(Duration::from_secs(seconds)))?;
    let mut out = std::io::stdout();
    if is_json {
        writeln!(out, "{}", report.to_json())?;
    } else {
        write!(out, "{report}")?;
    }
    report.complaint().map_or(Ok(()), |complaint| Err(Failure::new(FAILED, complaint)))
}

/// Starts the nodes, publishes for a time while leaders are killed, and reads everything back.
async fn demonstrate(time: Duration) -> Result<Report> {
    let mut nodes = Nodes::new()?;
    for number in 1..=NODES {
        nodes.add()?;
        // The first node leads the others, which join it, as soon as it serves clients.
        connect(&nodes.address()).await?;
        note(&format!("node {number} of {NODES} runs"));
    }
    let address = nodes.address();
    let client = connect(&address).await?;
    until_all_vote(&client).await?;
    note(&format!("all nodes vote; clients connect to {address}"));
    let settings = TopicSettings { storage: Storage::Disk, ..TopicSettings::default() };
    client.create_topic(TOPIC, settings).await?;
    let publisher = client.publisher(TOPIC).acks(Acks::Committed).delivery_timeout(DELIVERY_TIMEOUT).open().await?;
    let ledger = Arc::new(Ledger::new());
    let begin = Instant::now();
    let mut kills = Vec::new();
    let mut publishing = Box::pin(publish(&publisher, &ledger, begin + time));
    tokio::select! {
        published = &mut publishing => published?,
        killed = kill_leaders(&mut nodes, &client, &ledger, time, &mut kills) => {
            killed?;
            publishing.await?;
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    note("reading all records back");
    let read = read(&client).await?;
    client.close().await;
    Ok(Report { nodes: NODES, seconds, tally: ledger.compare(&read), kills, longest_stall: ledger.longest_stall() })
}

/// Connects to a cluster, which may have no leader yet.
async fn connect(addresses: &str) -> Result<Client> {
    let begin = Instant::now();
    loop {
        match Client::connect_with(Addresses::parse(addresses)?, ClientSettings::default()).await {
            Err(error) if error.kind == ErrorKind::Disconnected && begin.elapsed() < LEADER_TIMEOUT => {
                tokio::time::sleep(POLL_EVERY).await;
            }
            connected => return Ok(connected?),
        }
    }
}

/// Waits until all nodes vote: from then on, any one of them may fail.
async fn until_all_vote(client: &Client) -> Result {
    let begin = Instant::now();
    while begin.elapsed() < VOTERS_TIMEOUT {
        let metrics = client.stats().await?;
        let is_voter = |line: &&str| line.starts_with("thalweg_cluster_node_voter{") && line.ends_with(" 1");
        if metrics.lines().filter(is_voter).count() as u64 == NODES {
            return Ok(());
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
    Err(Failure::new(FAILED, format!("the nodes did not all get a vote within {} s", VOTERS_TIMEOUT.as_secs())))
}

/// Publishes numbered records at a constant rate until a time, and waits for all acknowledgements.
async fn publish(publisher: &Publisher, ledger: &Arc<Ledger>, until: Instant) -> Result {
    let begin = Instant::now();
    let mut turns = interval(TURN);
    turns.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut number = 0;
    while Instant::now() < until {
        turns.tick().await;
        let due = (begin.elapsed().as_secs_f64() * RATE as f64) as u64;
        while number < due {
            ledger.sends(number);
            let ledger = ledger.clone();
            let record = Record::new(number.to_string());
            publisher.send_then(&record, move |outcome| ledger.told(number, outcome.is_ok())).await?;
            number += 1;
        }
    }
    // The ledger has the outcome of each record, and an error here is that of one of them.
    publisher.flush().await.unwrap_or_else(|error| note(&format!("not all records were acknowledged: {error}")));
    ledger.ended(number);
    Ok(())
}

/// Kills the leader at regular intervals, the last time early enough that the node is back at the end.
async fn kill_leaders(
    nodes: &mut Nodes,
    client: &Client,
    ledger: &Ledger,
    time: Duration,
    kills: &mut Vec<Kill>,
) -> Result {
    let every = KILL_EVERY.min(time / 2);
    for _ in 0..(time.as_millis() / every.as_millis()).saturating_sub(1) {
        tokio::time::sleep(every / 2).await;
        client.ping().await?;
        let leader = client.cluster().map(|cluster| cluster.leader);
        let leader = leader.ok_or_else(|| Failure::new(FAILED, "the broker does not describe its cluster"))?;
        nodes.kill(leader)?;
        // Acknowledgements of records that were sent before may still arrive.
        let (sent, begin) = (ledger.sent(), Instant::now());
        let stall = ledger.acknowledged_after(sent).await.duration_since(begin);
        note(&format!(
            "killed the leader, node {leader}; the next publish is acknowledged after {} ms",
            stall.as_millis()
        ));
        kills.push(Kill { node: leader, stall });
        tokio::time::sleep((every / 2).saturating_sub(begin.elapsed())).await;
        nodes.start(leader)?;
    }
    Ok(())
}

/// Reads the numbers of all records, in the order of the log.
async fn read(client: &Client) -> Result<Vec<u64>> {
    let mut numbers = Vec::new();
    let mut next = 0;
    loop {
        let (_, end, batches) = client.fetch(TOPIC, 0, next, READ_WAIT).await?;
        for batch in &batches {
            for record in &batch.records()? {
                let value = record?.value.unwrap_or_default();
                let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                let stranger = || Failure::new(FAILED, "the log contains a record that was not published");
                numbers.push(number.ok_or_else(stranger)?);
            }
            next = batch.next_offset();
        }
        if next >= end {
            return Ok(numbers);
        }
    }
}
