//! Stream under load: one producer and one consumer of one topic, started together, and every record checked.
//!
//! The first workload repeats that of a published report under the same conditions; the others have more data in
//! flight. Producer and consumer are separate clients, each on a dedicated thread.

mod consumer;
mod page;
mod producer;
mod record;
mod report;
mod tables;
mod timeline;
mod watch;

use std::time::{Duration, Instant};

use client::{
    Acks, Addresses, Client, ClientSettings, Error, ErrorKind, Overflow, Result, Start, Storage, Subscription,
    TopicSettings,
};
use tokio::runtime::Runtime;
use tokio::sync::Notify;

use crate::load::{cpu_seconds, server_metric};
use consumer::Consumed;
use producer::Produced;
use record::Records;
use watch::Watch;

pub use consumer::Faults;
pub use page::page;
pub use record::{Length, STAMP_BYTES};
pub use report::{Charts, StreamReport};
pub use timeline::Point;
pub use watch::Usage;

/// Maximum overhead of a record in the log of a memory topic, in addition to its value; the next constant is that of a
/// batch.
const RECORD_OVERHEAD_BYTES: u64 = 24;
const BATCH_OVERHEAD_BYTES: u64 = 512;

/// Time at which the consumer reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consumer {
    /// From the beginning, together with the producer.
    Together,
    /// After the producer has ended, from the first record on.
    After,
    /// No consumer.
    Absent,
}

impl Consumer {
    pub fn name(self) -> &'static str {
        match self {
            Self::Together => "together",
            Self::After => "after",
            Self::Absent => "none",
        }
    }
}

/// Workload and its target.
#[derive(Clone)]
pub struct Plan {
    /// Name of the workload.
    pub mode: String,
    pub addresses: Addresses,
    pub settings: ClientSettings,
    /// Topic that is created for the run and deleted after it. It has to keep all records.
    pub topic: String,
    pub topic_settings: TopicSettings,
    pub records: u64,
    pub length: Length,
    /// Records in a batch; 0 passes them to the client one by one and leaves batches to it.
    pub batch: usize,
    /// Maximum number of unacknowledged batches.
    pub in_flight: usize,
    pub acks: Acks,
    /// Records per second in an open loop; `None` for the maximum speed.
    pub rate: Option<f64>,
    pub consumer: Consumer,
    /// Maximum time that the consumer waits for the next record before it counts the rest as lost.
    pub patience: Duration,
    /// Process of the server, if it runs on this machine.
    pub server_pid: Option<u32>,
}

impl Plan {
    /// Returns the time at which a record is due: immediately in a closed loop.
    fn due(&self, index: u64, begin: Instant) -> Instant {
        match self.rate {
            Some(rate) => begin + Duration::from_secs_f64(index as f64 / rate),
            None => begin,
        }
    }

    fn is_one_in_flight(&self) -> bool {
        self.batch == 1 && self.in_flight == 1
    }

    /// Returns the bytes that this run needs in the log of a memory topic.
    pub fn log_bytes(&self) -> u64 {
        let batches = self.records / self.batch.max(1) as u64 + 1;
        self.length.total(self.records) + self.records * RECORD_OVERHEAD_BYTES + batches * BATCH_OVERHEAD_BYTES
    }
}

/// Measured results of a run.
struct Outcome {
    produced: Produced,
    /// Results of the consumer; `None` without one.
    consumed: Option<Consumed>,
    usage: Vec<Usage>,
    server_cpu: Option<Duration>,
    client_cpu_seconds: f64,
}

/// Runs a workload against a running server.
pub fn run(plan: &Plan, program: crate::Program) -> Result<StreamReport> {
    let load_before = crate::LoadAverage::now();
    let control = runtime()?;
    let (client, placement) = control.block_on(async {
        let client = Client::connect_with(plan.addresses.clone(), plan.settings.clone()).await?;
        let placement = create(&client, plan).await?;
        Ok::<_, Error>((client, placement))
    })?;
    let outcome = measure(plan);
    let deleted = control.block_on(async {
        let deleted = client.delete_topic(&plan.topic).await;
        client.close().await;
        deleted
    });
    let outcome = outcome?;
    deleted?;
    Ok(StreamReport::new(plan, placement, &outcome, program, load_before))
}

/// Where the records of a run are stored.
#[derive(Clone, Copy)]
struct Placement {
    storage: Storage,
    /// Number of servers that store each record: all nodes of a cluster if the topic is on disk.
    replication: u32,
}

/// Creates the topic.
async fn create(client: &Client, plan: &Plan) -> Result<Placement> {
    let storage = client.create_topic(&plan.topic, plan.topic_settings).await?.settings.storage;
    let room = server_metric(client, "thalweg_log_bytes_max").await.unwrap_or(f64::INFINITY);
    if storage != Storage::Disk && plan.log_bytes() as f64 > room {
        client.delete_topic(&plan.topic).await?;
        return Err(Error::invalid(format!(
            "the log has to hold {} bytes, and the server's memory_max is {room}; raise it, or send fewer records",
            plan.log_bytes()
        )));
    }
    let nodes = client.cluster().map_or(1, |cluster| cluster.nodes.len() as u32);
    Ok(Placement { storage, replication: if storage == Storage::Disk { nodes } else { 1 } })
}

/// Client with its runtime, for a dedicated thread.
struct End {
    runtime: Runtime,
    client: Client,
}

impl End {
    fn new(plan: &Plan) -> Result<Self> {
        let runtime = runtime()?;
        let client = runtime.block_on(Client::connect_with(plan.addresses.clone(), plan.settings.clone()))?;
        Ok(Self { runtime, client })
    }

    fn close(self) {
        self.runtime.block_on(self.client.close());
    }
}

fn measure(plan: &Plan) -> Result<Outcome> {
    let records = Records::new(plan.length, plan.records);
    let sender = End::new(plan)?;
    let reader = End::new(plan)?;
    let publisher = sender.runtime.block_on(sender.client.publisher(&plan.topic).acks(plan.acks).open())?;
    let subscribe = |start| {
        let builder = reader.client.subscribe(&plan.topic).start(start).overflow(Overflow::Replay);
        reader.runtime.block_on(builder.open())
    };
    let subscription = match plan.consumer {
        Consumer::Together => Some(subscribe(Start::Live)?),
        Consumer::After | Consumer::Absent => None,
    };
    let failed = Notify::new();
    let client_before = cpu_seconds();
    let begin = Instant::now();
    let watch = plan.server_pid.and_then(|pid| Watch::start(pid, begin));
    let (produced, consumed) = std::thread::scope(|scope| {
        let producer = scope.spawn(|| {
            let produced = sender.runtime.block_on(producer::run(plan, &records, &publisher, begin));
            if produced.is_err() {
                failed.notify_one();
            }
            produced
        });
        let consume = |mut subscription: Subscription| {
            let consumed = consumer::run(plan, &records, &mut subscription, &failed, begin);
            reader.runtime.block_on(consumed).map(Some)
        };
        match plan.consumer {
            Consumer::Together => {
                let consumed = subscription.map_or(Ok(None), consume);
                Ok::<_, Error>((joined(producer)?, consumed?))
            }
            // From the first offset, not from the earliest remaining one, so that removed records are reported.
            Consumer::After => Ok((joined(producer)?, consume(subscribe(Start::Offset(0))?)?)),
            Consumer::Absent => Ok((joined(producer)?, None)),
        }
    })?;
    let (usage, server_cpu) = watch.map(Watch::stop).unzip();
    let client_cpu_seconds = cpu_seconds() - client_before;
    drop(publisher);
    sender.close();
    reader.close();
    Ok(Outcome { produced, consumed, usage: usage.unwrap_or_default(), server_cpu, client_cpu_seconds })
}

fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn runtime() -> Result<Runtime> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|error| Error::new(ErrorKind::Internal, format!("cannot start a runtime: {error}")))
}
