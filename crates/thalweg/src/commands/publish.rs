//! `thalweg publish`: records from the standard input, a file or the command line.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use client::{Acks, Client, Delivery, Publisher, PublisherBuilder, Record};
use indicatif::ProgressBar;
use serde_json::json;
use thalweg::config::Config;
use thalweg::config::units::parse_bytes;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, BufReader};

use super::{connect, units};
use crate::args::Publish;
use crate::block_on;
use crate::output::{FAILED, Failure, Result, USAGE, note, remark};

/// Size of the input buffer, in bytes.
const INPUT_BUFFER_BYTES: usize = 256 << 10;

pub fn run(config: &Config, args: Publish, is_json: bool) -> Result {
    block_on(async {
        // Errors of the user are reported before anything is created.
        let template = template(&args)?;
        if let Some(path) = &args.file {
            open(path)?;
        }
        let client = connect(config).await?;
        let publisher = publisher(&client, &args)?.open().await?;
        let mut pace = Pace::new(args.rate);
        let sent = match &args.value {
            Some(value) => {
                repeat(&args, &publisher, Record { value: Some(value.clone().into()), ..template }, &mut pace).await
            }
            None => lines(&args, &publisher, &template, &mut pace).await.map(|published| (published, None)),
        };
        // Records before a line that cannot be sent are published nevertheless.
        publisher.flush().await.map_err(|error| {
            let failure = Failure::from(error);
            Failure::new(failure.code, format!("not everything was published to {}: {failure}", args.topic))
        })?;
        let (published, only) = sent?;
        if is_json {
            let mut report = json!({ "topic": args.topic, "published": published, "acks": args.acks.name() });
            if let Some(only) = only.filter(|_| args.acks != Acks::None) {
                let place = only.delivered().await?;
                report["partition"] = json!(place.partition);
                report["offset"] = json!(place.offset);
            }
            writeln!(io::stdout(), "{report}")?;
        } else {
            remark(&format!("published {} to {}", units::count(published, "record"), args.topic));
        }
        drop(publisher);
        client.close().await;
        Ok(())
    })
}

fn publisher(client: &Client, args: &Publish) -> Result<PublisherBuilder> {
    let mut publisher = client
        .publisher(&args.topic)
        .acks(args.acks)
        .partition(args.partition)
        .compression(args.compression)
        .linger(Duration::from_millis(args.linger_ms))
        .idempotent(!args.no_idempotence);
    if let Some(text) = &args.batch_bytes {
        let bytes = parse_bytes(text).map_err(|e| Failure::new(USAGE, format!("--batch-bytes: {e}")))?;
        publisher = publisher.batch_bytes(usize::try_from(bytes).unwrap_or(usize::MAX));
    }
    if let Some(timeout_ms) = args.delivery_timeout_ms {
        publisher = publisher.delivery_timeout(Duration::from_millis(timeout_ms));
    }
    Ok(publisher)
}

/// Sends the record `--count` times. Returns their number and, for a single record, its delivery.
async fn repeat(
    args: &Publish,
    publisher: &Publisher,
    record: Record,
    pace: &mut Pace,
) -> Result<(u64, Option<Delivery>)> {
    let count = args.count.unwrap_or(1);
    let mut last = None;
    for _ in 0..count {
        pace.wait().await;
        last = Some(publisher.send(&record).await?);
    }
    Ok((count, last.filter(|_| count == 1)))
}

/// Returns the parts that all records have in common.
fn template(args: &Publish) -> Result<Record> {
    let mut record = Record { key: args.key.clone().map(Into::into), ..Record::default() };
    for header in &args.header {
        let Some((name, value)) = header.split_once('=') else {
            return Err(Failure::new(USAGE, format!("--header {header}: write NAME=VALUE")));
        };
        record = record.with_header(name.to_owned(), value.to_owned());
    }
    Ok(record)
}

async fn lines(args: &Publish, publisher: &Publisher, template: &Record, pace: &mut Pace) -> Result<u64> {
    let mut input: Box<dyn AsyncBufRead + Unpin> = match &args.file {
        Some(path) => Box::new(BufReader::with_capacity(INPUT_BUFFER_BYTES, tokio::fs::File::from_std(open(path)?))),
        None => Box::new(BufReader::with_capacity(INPUT_BUFFER_BYTES, tokio::io::stdin())),
    };
    if args.file.is_none() && io::stdin().is_terminal() {
        note("reading records from the terminal, one per line; Ctrl-D ends");
    }
    let name = args.file.as_ref().map_or("the standard input".to_owned(), |path| path.display().to_string());
    let progress = progress(args);
    let mut published = 0;
    let mut line = Vec::new();
    while args.count.is_none_or(|count| published < count) {
        line.clear();
        let read = input.read_until(b'\n', &mut line).await;
        if read.map_err(|e| Failure::new(FAILED, format!("{name}: {e}")))? == 0 {
            break;
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        pace.wait().await;
        let mut record = Record { value: Some(line.clone().into()), ..template.clone() };
        if let Some(separator) = &args.key_separator {
            let (key, value) = split(&line, separator).ok_or_else(|| {
                let which = published + 1;
                let message = format!("line {which} has no '{separator}' after its key; published ");
                Failure::new(FAILED, format!("{message}{} before it", units::count(published, "record")))
            })?;
            record.key = Some(key);
            record.value = Some(value);
        }
        publisher.send(&record).await?;
        published += 1;
        progress.inc(1);
    }
    progress.finish_and_clear();
    Ok(published)
}

/// Opens a file for reading.
fn open(path: &Path) -> Result<File> {
    let failed = |e: io::Error| Failure::new(FAILED, format!("{}: {e}", path.display()));
    let file = File::open(path).map_err(failed)?;
    // Unix also opens directories.
    if file.metadata().map_err(failed)?.is_dir() {
        return Err(Failure::new(FAILED, format!("{}: this is a directory; name a file", path.display())));
    }
    Ok(file)
}

/// Splits a line at the first separator.
fn split(line: &[u8], separator: &str) -> Option<(Bytes, Bytes)> {
    let at = line.windows(separator.len()).position(|part| part == separator.as_bytes())?;
    Some((Bytes::copy_from_slice(&line[..at]), Bytes::copy_from_slice(&line[at + separator.len()..])))
}

/// Returns a progress bar that is visible only on a terminal, and not while records are being typed.
fn progress(args: &Publish) -> ProgressBar {
    let is_typed = args.file.is_none() && io::stdin().is_terminal();
    if is_typed || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    ProgressBar::new_spinner().with_message("records published")
}

/// Timer for a rate: each record has a due time, counted from the first record.
struct Pace {
    interval: Option<Duration>,
    due: Option<tokio::time::Instant>,
}

impl Pace {
    fn new(rate: Option<f64>) -> Self {
        let interval = rate.filter(|rate| *rate > 0.0).map(|rate| Duration::from_secs_f64(1.0 / rate));
        Self { interval, due: None }
    }

    async fn wait(&mut self) {
        let Some(interval) = self.interval else {
            return;
        };
        let due = *self.due.get_or_insert_with(tokio::time::Instant::now);
        tokio::time::sleep_until(due).await;
        self.due = Some(due + interval);
    }
}
