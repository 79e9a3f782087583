//! `thalweg subscribe`: print records as they arrive, in the format that the user chooses.

mod form;
mod member;

use std::collections::HashMap;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};

use client::{Batch, Client, Event, Offset, PartitionId, Start, Subscription};
use thalweg::config::Config;

use super::time::parse_start;
use super::{connect, units};
use crate::args::{End, Subscribe};
use crate::block_on;
use crate::output::{Failure, Result, USAGE, note, remark};
use form::Form;

/// Size of the output buffer, in bytes. It is filled while more records are available.
const OUTPUT_BUFFER_BYTES: usize = 64 << 10;

pub fn run(config: &Config, args: Subscribe, is_json: bool) -> Result {
    let from = Begin::parse(&args)?;
    let mut printer = Printer::new(&args, Form::new(&args, is_json, io::stdout().is_terminal())?);
    block_on(async {
        let client = connect(config).await?;
        let start = match from {
            None => None,
            Some(Begin::Start(start)) => Some(start),
            Some(Begin::Last(count)) => Some(last_records(&client, &args.topic, count).await?),
        };
        let printed = match &args.consumer_group {
            Some(group) => member::print(&client, group, &args, start, &mut printer, config.server_address()).await,
            None => {
                let start = start.unwrap_or(Start::Live);
                let builder = client.subscribe(&args.topic).start(start).missing(args.missing());
                let mut builder = builder.partition(args.partition).overflow(args.overflow);
                if let Some(group) = &args.group {
                    builder = builder.group(group);
                }
                match builder.open().await {
                    Ok(mut subscription) => {
                        remark(&waiting_for(&args, subscription.sources().len(), config.server_address()));
                        print(&mut subscription, &args, &mut printer).await
                    }
                    Err(error) => Err(error.into()),
                }
            }
        };
        client.close().await;
        printed.map_err(|ended| match ended {
            Ended::Output(error) => error.into(),
            Ended::Broker(error) => error.into(),
        })
    })
}

/// Start that `--from` specifies.
enum Begin {
    Start(Start),
    /// Number of records before the end of each partition.
    Last(u64),
}

impl Begin {
    fn parse(args: &Subscribe) -> Result<Option<Self>> {
        if args.from_beginning {
            return Ok(Some(Self::Start(Start::Earliest)));
        }
        let Some(from) = args.from.as_deref() else {
            return Ok(None);
        };
        let Some(count) = from.strip_prefix('-').and_then(|count| count.parse().ok()) else {
            return parse_start("--from", from).map(Self::Start).map(Some);
        };
        let of = match () {
            () if is_pattern(&args.topic) => "a pattern",
            () if args.consumer_group.is_some() || args.group.is_some() => "a group",
            () => return Ok(Some(Self::Last(count))),
        };
        let words =
            format!("--from {from}: the last records are those of one topic; {of} starts at earliest, live or a time");
        Err(Failure::new(USAGE, words))
    }
}

/// Returns the offsets from which each partition of a topic has at most `count` records. There may be fewer: markers of
/// transactions and records that compaction removed have an offset, too.
async fn last_records(client: &Client, topic: &str, count: u64) -> client::Result<Start> {
    let partitions = client.describe_topic(topic).await?.partitions;
    let last = |(id, p): (usize, &client::PartitionInfo)| (id as PartitionId, p.end.saturating_sub(count).max(p.start));
    Ok(Start::Offsets(partitions.iter().enumerate().map(last).collect()))
}

fn is_pattern(topic: &str) -> bool {
    topic.contains(['*', '>'])
}

/// Returns the message for a person who would otherwise see nothing until a record arrives.
fn waiting_for(args: &Subscribe, partitions: usize, address: &str) -> String {
    let what = if is_pattern(&args.topic) {
        format!("pattern {}", args.topic)
    } else {
        format!("{} ({})", args.topic, units::count(partitions as u64, "partition"))
    };
    waiting_as(&what, args, address)
}

fn waiting_as(what: &str, args: &Subscribe, address: &str) -> String {
    let until = if args.end.is_some() { "reading to the end" } else { "waiting for records; Ctrl-C ends" };
    format!("subscribed to {what} at {address}, {until}")
}

enum Ended {
    Output(io::Error),
    Broker(client::Error),
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl From<client::Error> for Ended {
    fn from(error: client::Error) -> Self {
        Self::Broker(error)
    }
}

/// Printer of records in their format, up to a count and an offset.
struct Printer {
    form: Form,
    out: BufWriter<Stdout>,
    /// Number of records that may still be printed.
    left: u64,
    /// First offset that is not printed.
    end: Offset,
}

impl Printer {
    fn new(args: &Subscribe, form: Form) -> Self {
        let end = match args.end {
            Some(End::At(end)) => end,
            Some(End::Now) | None => Offset::MAX,
        };
        let out = BufWriter::with_capacity(OUTPUT_BUFFER_BYTES, io::stdout());
        Self { form, out, left: args.count.unwrap_or(u64::MAX), end }
    }

    fn head(&mut self) -> io::Result<()> {
        self.form.write_head(&mut self.out)
    }

    /// Prints a batch and returns the offset after it, if anything was printed. The batch may end after its last
    /// record, if compaction removed records or if it is the marker of a transaction.
    fn batch(&mut self, batch: &Batch) -> Result<Option<Offset>, Ended> {
        let mut next = None;
        for record in &batch.records()? {
            let record = record?;
            if self.left == 0 || record.offset >= self.end {
                return Ok(next);
            }
            self.left -= 1;
            self.form.write(&mut self.out, batch, &record)?;
            next = Some(record.offset + 1);
        }
        Ok(Some(batch.batch.next_offset().min(self.end)))
    }

    fn gap(&mut self, topic: &str, partition: PartitionId, from: Offset, to: Offset) -> io::Result<()> {
        self.note(&format!(
            "{topic} partition {partition}: records {from} to {} were lost: removed or dropped before they were read",
            to - 1
        ))
    }

    /// Prints a message to the standard error, after the records before it.
    fn note(&mut self, message: &str) -> io::Result<()> {
        self.out.flush()?;
        note(message);
        Ok(())
    }

    fn is_unflushed(&self) -> bool {
        !self.out.buffer().is_empty()
    }
}

async fn print(subscription: &mut Subscription, args: &Subscribe, printer: &mut Printer) -> Result<(), Ended> {
    printer.head()?;
    // End offsets of the partitions that are not read to their end.
    let mut ends: HashMap<(String, PartitionId), Offset> = HashMap::new();
    if let Some(end) = args.end {
        let sources = subscription.sources().iter();
        let bounds = sources.map(|s| (s, if let End::At(end) = end { end } else { s.end }));
        let unread = bounds.filter(|(s, end)| s.start < *end);
        ends = unread.map(|(s, end)| ((s.topic.clone(), s.partition), end)).collect();
    }
    while printer.left > 0 && (args.end.is_none() || !ends.is_empty()) {
        let event = tokio::select! {
            biased;
            event = subscription.next_event() => event?,
            // Buffered output is written before waiting.
            () = std::future::ready(()), if printer.is_unflushed() => {
                printer.out.flush()?;
                continue;
            }
        };
        let mut pass = |topic: &str, partition, next| {
            ends.retain(|(of, at), end| (of.as_str(), *at) != (topic, partition) || next < *end);
        };
        match event {
            Event::Batch(batch) => {
                printer.batch(&batch)?;
                pass(&batch.topic, batch.partition, batch.batch.next_offset());
            }
            Event::Gap { topic, partition, from, to } => {
                printer.gap(&topic, partition, from, to)?;
                pass(&topic, partition, to);
            }
            Event::Reconnected => {
                printer.note("reconnected; records published in the meantime were not received")?;
            }
            Event::Restarted => {
                printer.note("the broker was restarted, or the topic was created again: offsets begin at 0 again")?
            }
            _ => {}
        }
    }
    Ok(printer.out.flush()?)
}
