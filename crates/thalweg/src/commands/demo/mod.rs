//! `thalweg demo`: a broker in another process, a real data set through a pipe, many subscribers, and a report on the
//! received records.

mod digest;
mod reader;
mod report;
mod source;

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use client::{Address, Client, ClientSettings, Overflow, Subscription, TopicSettings};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::args::Demo;
use crate::commands::spawned::Spawned;
use crate::output::{FAILED, Failure, LOST, Result, USAGE};
use digest::Digest;
use reader::{Seen, Tally};
use report::Report;
use source::Source;

/// Members of the queue group.
const GROUP_MEMBERS: usize = 2;
/// Pattern that one subscriber uses instead of the topic.
const PATTERN: &str = "*";
/// Duration up to which no progress bar is shown.
const QUICK: Duration = Duration::from_secs(1);
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

pub fn run(args: &Demo, is_json: bool) -> Result {
    let source = Source::choose(args)?;
    let file = match &args.file {
        _ if args.stdin => None,
        Some(file) => Some(file.display().to_string()),
        None => (source.origin == source::FLIGHTS).then(|| source::FLIGHTS.to_owned()),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let report = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        // The publisher waits for its subscribers as long as they wait for records.
        let wait = format!("publish_queue_wait_timeout_ms={}", reader::PATIENCE.as_millis());
        let mut broker = Spawned::start(&["--set".into(), "log=warn".into(), "--set".into(), wait])?;
        let report = tokio::select! {
            report = Box::pin(demonstrate(source, &broker.native, usize::from(args.subscribers))) => report,
            _ = terminate.recv() => Err(Failure::new(FAILED, "stopped")),
            _ = interrupt.recv() => Err(Failure::new(FAILED, "stopped")),
        };
        // The broker holds everything in memory, for the demonstration only.
        broker.kill();
        report
    });
    // A read of the standard input that never returns must not delay the end.
    runtime.shutdown_background();
    let report = Report { file, ..report? };
    let mut out = io::stdout();
    if is_json {
        writeln!(out, "{}", report.to_json())?;
    } else {
        write!(out, "{report}")?;
    }
    report.complaint().map_or(Ok(()), |complaint| Err(Failure::new(LOST, complaint)))
}

/// Publishes all records to a broker with subscribers, and returns the report.
async fn demonstrate(source: Source, server: &str, subscribers: usize) -> Result<Report> {
    let title = source.title.clone();
    let origin = source.origin.clone();
    let topic = source.topic.clone();
    let bytes = source.bytes;
    let client = Client::connect_with(Address::parse(&format!("quic://{server}"))?, ClientSettings::default()).await?;
    // One partition defines one order, which every subscriber must see.
    client.create_topic(&topic, TopicSettings { partitions: 1, ..TopicSettings::default() }).await?;
    let (total, published) = watch::channel(None);
    let mut readers = Readers { published, seen: Vec::new(), tasks: Vec::new() };
    for _ in 0..subscribers {
        readers.start(open(&client, &topic, None).await?, &Seen::default());
    }
    readers.start(open(&client, PATTERN, None).await?, &Seen::default());
    let group = Seen::default();
    for _ in 0..GROUP_MEMBERS {
        readers.start(open(&client, &topic, Some("demo")).await?, &group);
    }
    let begin = Instant::now();
    let mut publishing = publish(source, server.to_owned());
    let mut progress = Progress::new(bytes, begin);
    let (digest, published_at) = loop {
        tokio::select! {
            outcome = &mut publishing => break outcome.map_err(ended)??,
            () = tokio::time::sleep(PROGRESS_INTERVAL) => progress.show(&readers.seen),
        }
    };
    if digest.records == 0 {
        return Err(Failure::new(USAGE, format!("{origin} has no records; write one per line")));
    }
    // No receiver is left only if every reader failed, and then the readers report it.
    total.send(Some(digest.records)).unwrap_or_default();
    let mut tallies = readers.finish(&mut progress).await?;
    let last_at = tallies.iter().filter_map(|tally| tally.last_at).max().unwrap_or(published_at);
    let group = tallies.split_off(subscribers + 1);
    let pattern = tallies.pop().unwrap_or_default();
    Ok(Report {
        title,
        origin,
        topic,
        source: digest,
        publish_time: published_at - begin,
        elapsed: last_at - begin,
        subscribers: tallies,
        pattern,
        group,
        file: None,
    })
}

/// Opens a subscription for which publishers wait, so that even data that exceeds the memory arrives completely.
async fn open(client: &Client, topic: &str, group: Option<&str>) -> Result<Subscription> {
    let builder = client.subscribe(topic).overflow(Overflow::Block);
    let builder = if let Some(group) = group { builder.group(group) } else { builder };
    Ok(builder.open().await?)
}

/// Runs the publisher on a separate thread, because pipes block.
fn publish(source: Source, server: String) -> oneshot::Receiver<Result<(Digest, Instant)>> {
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        // A receiver that was dropped has already reported its failure.
        drop(sender.send(source.publish(&server)));
    });
    receiver
}

fn ended(error: impl std::fmt::Display) -> Failure {
    Failure::new(FAILED, format!("a part of the demo ended early: {error}; this is a defect, please report it"))
}

/// Running subscribers, with those of the group at the end.
struct Readers {
    published: watch::Receiver<Option<u64>>,
    /// Counts of each task. The members of the group share theirs.
    seen: Vec<Seen>,
    tasks: Vec<JoinHandle<client::Result<Tally>>>,
}

impl Readers {
    fn start(&mut self, subscription: Subscription, seen: &Seen) {
        self.tasks.push(tokio::spawn(reader::read(subscription, seen.clone(), self.published.clone())));
        self.seen.push(seen.clone());
    }

    async fn finish(self, progress: &mut Progress) -> Result<Vec<Tally>> {
        let Self { published, seen, tasks } = self;
        drop(published);
        let mut tallies = Vec::new();
        for mut task in tasks {
            tallies.push(loop {
                tokio::select! {
                    tally = &mut task => break tally.map_err(ended)??,
                    () = tokio::time::sleep(PROGRESS_INTERVAL) => progress.show(&seen),
                }
            });
        }
        Ok(tallies)
    }
}

/// Progress of the slowest subscriber, shown to a person.
struct Progress {
    bar: ProgressBar,
    begin: Instant,
}

impl Progress {
    fn new(bytes: Option<u64>, begin: Instant) -> Self {
        if !io::stderr().is_terminal() {
            return Self { bar: ProgressBar::hidden(), begin };
        }
        let bar = match bytes {
            Some(bytes) => ProgressBar::new(bytes),
            None => ProgressBar::new_spinner(),
        };
        let template = match bytes {
            Some(_) => "{bar:40} {bytes} of {total_bytes} delivered to all subscribers, {bytes_per_sec}",
            None => "{spinner} {bytes} delivered to all subscribers, {bytes_per_sec}",
        };
        // An invalid template results in the default style.
        let style = ProgressStyle::with_template(template).unwrap_or(ProgressStyle::default_bar());
        Self { bar: bar.with_style(style), begin }
    }

    fn show(&mut self, seen: &[Seen]) {
        if self.begin.elapsed() < QUICK {
            return;
        }
        let slowest = seen.iter().map(Seen::counts).min_by_key(|counts| counts.records).unwrap_or_default();
        // The line feeds are in the file, but not in the records.
        self.bar.set_position(slowest.bytes + slowest.records);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
