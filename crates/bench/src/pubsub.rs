//! Pub/sub scenarios: throughput, publish only, and one message in flight.

use std::time::{Duration, Instant};

use client::{
    Acks, Addresses, Client, ClientSettings, Error, ErrorKind, Event, Overflow, Publisher, Record, Result,
    Subscription, TopicSettings,
};
use futures_util::future::try_join_all;

use crate::latency::Latencies;
use crate::load::{Sink, Source, cpu_seconds, server_metric, transport};
use crate::machine::Host;
use crate::report::Report;

/// Records that are published one by one between two checks of the clock.
const BURST: u64 = 64;
/// Exchanges before the first one that is measured.
const WARM_UP: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// At maximum speed, or at a rate; every subscriber receives everything.
    Throughput,
    /// Without subscribers.
    Publish,
    /// Single publish in flight, from the call to its acknowledgement and to every subscriber.
    Ack,
    /// Single record in flight without acknowledgement, from the call to the last subscriber.
    EndToEnd,
}

/// Scenario and its target.
#[derive(Clone)]
pub struct Pubsub {
    pub addresses: Addresses,
    pub settings: ClientSettings,
    pub mode: Mode,
    pub payload_bytes: usize,
    /// Records in a batch; 0 publishes them one by one and leaves batches to the client.
    pub batch: usize,
    /// Total number of records to publish; number of exchanges if one is in flight.
    pub count: u64,
    pub publishers: usize,
    pub fanout: usize,
    pub acks: Acks,
    pub overflow: Overflow,
    /// Records per second in an open loop; `None` for the maximum speed.
    pub rate: Option<f64>,
    /// Maximum time that a subscriber waits for the next record before it counts the rest as lost.
    pub patience: Duration,
    pub topic: String,
    /// Command line as typed, for the report.
    pub command: String,
    /// Commit from which the program was built.
    pub commit: String,
}

struct Run {
    published: u64,
    delivered: u64,
    lost: u64,
    elapsed: Duration,
    delivery: Latencies,
    ack: Latencies,
}

pub async fn run(scenario: &Pubsub) -> Result<Report> {
    let client = Client::connect_with(scenario.addresses.clone(), scenario.settings.clone()).await?;
    // Short retention: the run measures delivery, not memory.
    let settings = TopicSettings { retention_bytes: 8 << 20, ..TopicSettings::default() };
    client.create_topic(&scenario.topic, settings).await?;
    let subscriptions = try_join_all(
        (0..scenario.fanout).map(|_| client.subscribe(&scenario.topic).overflow(scenario.overflow).open()),
    )
    .await?;
    let publishers =
        try_join_all((0..scenario.publishers).map(|_| client.publisher(&scenario.topic).acks(scenario.acks).open()))
            .await?;
    let server_before = server_metric(&client, "process_cpu_seconds_total").await;
    let client_before = cpu_seconds();
    let run = match scenario.mode {
        Mode::Throughput | Mode::Publish => throughput(scenario, &client, publishers, subscriptions).await?,
        Mode::Ack | Mode::EndToEnd => one_in_flight(scenario, publishers, subscriptions).await?,
    };
    let client_cpu = cpu_seconds() - client_before;
    let server_cpu = match (server_before, server_metric(&client, "process_cpu_seconds_total").await) {
        (Some(before), Some(after)) => Some(after - before),
        _ => None,
    };
    let resident = server_metric(&client, "process_resident_memory_bytes").await;
    client.delete_topic(&scenario.topic).await?;
    Ok(report(scenario, &run, client_cpu, server_cpu, resident))
}

fn report(scenario: &Pubsub, run: &Run, client_cpu: f64, server_cpu: Option<f64>, resident: Option<f64>) -> Report {
    let seconds = run.elapsed.as_secs_f64();
    let messages = if run.delivered > 0 { run.delivered } else { run.published };
    Report {
        system: "thalweg".to_owned(),
        command: scenario.command.clone(),
        commit: scenario.commit.clone(),
        host: Host::here(),
        mode: match scenario.mode {
            Mode::Throughput => "throughput",
            Mode::Publish => "publish",
            Mode::Ack => "ack",
            Mode::EndToEnd => "end-to-end",
        }
        .to_owned(),
        transport: transport(&scenario.addresses),
        payload_bytes: scenario.payload_bytes,
        batch: scenario.batch,
        publishers: scenario.publishers,
        fanout: scenario.fanout,
        published: run.published,
        delivered: run.delivered,
        lost: run.lost,
        seconds,
        published_per_s: run.published as f64 / seconds,
        delivered_per_s: run.delivered as f64 / seconds,
        rate_per_s: scenario.rate,
        delivery_us: run.delivery.percentiles(),
        ack_us: run.ack.percentiles(),
        client_cpu_seconds: client_cpu,
        server_cpu_seconds: server_cpu,
        cpu_us_per_message: (client_cpu + server_cpu.unwrap_or(0.0)) * 1e6 / messages.max(1) as f64,
        server_resident_bytes: resident.map(|bytes| bytes as u64),
    }
}

async fn throughput(
    scenario: &Pubsub,
    client: &Client,
    publishers: Vec<Publisher>,
    subscriptions: Vec<Subscription>,
) -> Result<Run> {
    let each = scenario.count / publishers.len().max(1) as u64;
    let published = each * publishers.len() as u64;
    let begin = Instant::now();
    let patience = scenario.patience;
    let sinks: Vec<_> = subscriptions
        .into_iter()
        .map(|mut subscription| {
            let mut sink = Sink::new(publishers.len());
            tokio::spawn(async move {
                sink.read(&mut subscription, published, begin, patience).await?;
                Ok::<_, Error>(sink)
            })
        })
        .collect();
    let interval = scenario.rate.map(|rate| {
        let together = if scenario.batch == 0 { BURST } else { scenario.batch as u64 };
        Duration::from_secs_f64(together as f64 * publishers.len() as f64 / rate)
    });
    let count = publishers.len() as u32;
    let sources: Vec<_> = publishers
        .into_iter()
        .enumerate()
        .map(|(i, publisher)| {
            let source = Source::new(i, scenario.payload_bytes, begin);
            // Publishers take turns, so that an open loop has no bursts.
            let first = begin + interval.unwrap_or_default() * i as u32 / count;
            tokio::spawn(publish(publisher, source, each, scenario.batch, interval, first))
        })
        .collect();
    for source in sources {
        source.await.map_err(panicked)??;
    }
    // Sending records to the network proves nothing: the broker has to have received all of them.
    let taken = taken_in(client, scenario, published).await?;
    let mut elapsed = begin.elapsed();
    let mut run =
        Run { published, delivered: 0, lost: 0, elapsed, delivery: Latencies::default(), ack: Latencies::default() };
    for sink in sinks {
        let sink = sink.await.map_err(panicked)??;
        elapsed = begin.elapsed();
        run.delivered += sink.records;
        run.lost += sink.lost;
        run.delivery.add(&sink.latencies);
    }
    if scenario.mode == Mode::Publish {
        run.lost = published - taken;
    }
    run.elapsed = elapsed;
    Ok(run)
}

/// Returns the number of records that the topic has received: all, or the present number when patience ends.
async fn taken_in(client: &Client, scenario: &Pubsub, published: u64) -> Result<u64> {
    let deadline = Instant::now() + scenario.patience;
    loop {
        let info = client.describe_topic(&scenario.topic).await?;
        let taken: u64 = info.partitions.iter().map(|partition| partition.end).sum();
        if taken >= published || Instant::now() >= deadline {
            return Ok(taken.min(published));
        }
        tokio::task::yield_now().await;
    }
}

async fn publish(
    publisher: Publisher,
    mut source: Source,
    count: u64,
    batch: usize,
    interval: Option<Duration>,
    first: Instant,
) -> Result<()> {
    let mut left = count;
    let mut due = first;
    while left > 0 {
        match interval {
            Some(_) => tokio::time::sleep_until(due.into()).await,
            // A publisher that never has to wait would prevent the subscribers of its thread from reading.
            None => tokio::task::consume_budget().await,
        }
        let at = interval.map_or_else(Instant::now, |_| due);
        let records = left.min(if batch == 0 { BURST } else { batch as u64 });
        if batch == 0 {
            source.send_each(&publisher, records as usize, at).await?;
        } else {
            source.send(&publisher, records as usize, at).await?;
        }
        left -= records;
        due += interval.unwrap_or_default();
    }
    publisher.flush().await
}

async fn one_in_flight(
    scenario: &Pubsub,
    publishers: Vec<Publisher>,
    mut subscriptions: Vec<Subscription>,
) -> Result<Run> {
    let Some(publisher) = publishers.first() else {
        return Err(Error::invalid("the scenario needs one publisher"));
    };
    let record = Record::new(vec![b'x'; scenario.payload_bytes]);
    let mut ack = Latencies::default();
    let mut delivery = Latencies::default();
    let mut begin = Instant::now();
    let mut delivered = 0;
    for i in 0..scenario.count as usize + WARM_UP {
        if i == WARM_UP {
            begin = Instant::now();
            delivered = 0;
            ack = Latencies::default();
            delivery = Latencies::default();
        }
        let sent = Instant::now();
        publisher.publish(&record).await?;
        if scenario.mode == Mode::Ack {
            ack.record(sent.elapsed());
        }
        for subscription in &mut subscriptions {
            match tokio::time::timeout(scenario.patience, subscription.next_event()).await {
                Ok(event) => delivered += u64::from(matches!(event?, Event::Batch(batch) if batch.len() == 1)),
                Err(elapsed) => {
                    return Err(Error::new(ErrorKind::Timeout, format!("exchange {i} did not arrive: {elapsed}")));
                }
            }
        }
        if !subscriptions.is_empty() {
            delivery.record(sent.elapsed());
        }
    }
    Ok(Run {
        published: scenario.count,
        delivered,
        lost: scenario.count * subscriptions.len() as u64 - delivered,
        elapsed: begin.elapsed(),
        delivery,
        ack,
    })
}

pub(crate) fn panicked(error: tokio::task::JoinError) -> Error {
    Error::new(ErrorKind::Internal, format!("a part of the load ended: {error}"))
}
