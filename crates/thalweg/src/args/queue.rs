//! What is said on the command line about queues.

use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand};
use thalweg::config::units::{parse_bytes, parse_duration};

use super::Yes;

#[derive(Subcommand)]
#[command(after_help = "\
Examples:
  thalweg queue create jobs --attempts-max 5 --dead-letter jobs.dead
  thalweg queue send jobs 'one coffee' --delay 10s
  cat orders.txt | thalweg queue send jobs
  thalweg queue receive jobs --wait 20s --ack
  thalweg queue work jobs --concurrency 4 -- ./handle.sh
  thalweg queue export jobs > jobs.jsonl; thalweg --server other queue import < jobs.jsonl")]
pub enum Queue {
    /// Create a queue, with a topic of its own or over one that is there
    Create(QueueCreate),
    /// Change settings of a queue while it is in use; what is not named stays
    Alter {
        queue: String,
        #[command(flatten)]
        options: QueueOptions,
    },
    /// Delete a queue, with its messages if its topic came with it
    #[command(visible_alias = "rm")]
    Delete {
        queue: String,
        #[command(flatten)]
        yes: Yes,
    },
    /// List queues and what is in them
    #[command(visible_alias = "ls")]
    List {
        /// Only those whose names begin so
        #[arg(default_value = "")]
        prefix: String,
    },
    /// Show a queue's settings, and how many messages it has of each kind
    Stats { queue: String },
    /// Send messages from the command line, the standard input or a file
    Send(QueueSend),
    /// Receive messages and print them, each with its receipt
    Receive(QueueReceive),
    /// Say that messages are done with
    Ack {
        queue: String,
        #[arg(required = true)]
        receipt: Vec<String>,
    },
    /// Give messages back for others
    Nack {
        queue: String,
        #[arg(required = true)]
        receipt: Vec<String>,
        /// After so long, as 10s; else as the queue is set
        #[arg(long, value_name = "TIME", value_parser = millis)]
        delay: Option<u64>,
    },
    /// Keep messages longer
    Extend {
        queue: String,
        #[arg(required = true)]
        receipt: Vec<String>,
        /// From now on, as 60s
        #[arg(long, value_name = "TIME", value_parser = millis)]
        lease: u64,
    },
    /// Show messages without taking them
    Peek {
        queue: String,
        /// So many at most
        #[arg(long, short = 'n', default_value_t = 10)]
        max: u32,
    },
    /// Drop all messages, those that somebody has, too
    Purge {
        queue: String,
        #[command(flatten)]
        yes: Yes,
    },
    /// Go on elsewhere in the topic, with all that is there
    Seek {
        queue: String,
        /// earliest, latest, or a time as @2026-11-21T08:00:00Z or @-5m
        #[arg(long, value_name = "START")]
        to: String,
    },
    /// Move dead letters back to where they came from, or all messages to another queue
    Redrive(QueueRedrive),
    /// Run a command for each message: 0 acknowledges it, 75 gives it back with a delay, others give it back
    Work(QueueWork),
    /// Write a queue with all its messages to the standard output, a JSON object a line
    Export { queue: String },
    /// Create a queue, and send it the messages, that an export wrote
    Import {
        /// Under another name
        #[arg(long, value_name = "QUEUE")]
        name: Option<String>,
        /// Where its topic is kept: memory, disk, sqlite, or auto for what the broker can
        #[arg(long, default_value = "auto")]
        storage: client::Storage,
        /// Read from a file instead of the standard input
        #[arg(long, short, value_name = "FILE")]
        file: Option<PathBuf>,
    },
}

#[derive(Args)]
pub struct QueueCreate {
    pub queue: String,
    /// Over this topic, which is there; else the queue gets one of its own
    #[arg(long)]
    pub topic: Option<String>,
    /// Begin with what is published from now on
    #[arg(long, requires = "topic")]
    pub live: bool,
    /// Where its own topic is kept: memory, disk, sqlite, or auto for what the broker can
    #[arg(long, default_value = "auto", conflicts_with = "topic")]
    pub storage: client::Storage,
    #[command(flatten)]
    pub options: QueueOptions,
}

/// Settings of a queue. Times are as 500ms, 90s, 5m, 2h or 7d.
#[derive(Args, Default)]
pub struct QueueOptions {
    /// How long a receiver has a message [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = millis)]
    lease: Option<u64>,
    /// How long a message is for nobody after it was sent
    #[arg(long, value_name = "TIME", value_parser = millis)]
    delay: Option<u64>,
    /// How long a message waits for a receiver before it is dropped [default: 4d]
    #[arg(long, value_name = "TIME", value_parser = millis)]
    retention: Option<u64>,
    /// any, groups (messages of one group in their order) or fair [default: any]
    #[arg(long)]
    order: Option<String>,
    /// Whether what is sent again within 5 minutes is taken: off, queue, or group for the same group [default: off]
    #[arg(long, value_name = "SCOPE")]
    dedup: Option<String>,
    /// How often a message is given out before it goes to the dead letters; 0 is no limit
    #[arg(long, value_name = "N")]
    attempts_max: Option<u32>,
    /// The queue or topic of dead letters, or none
    #[arg(long, value_name = "TOPIC")]
    dead_letter: Option<String>,
    /// The shortest delay of a message that comes back; it doubles with each attempt
    #[arg(long, value_name = "TIME", value_parser = millis)]
    backoff_min: Option<u64>,
    /// The longest
    #[arg(long, value_name = "TIME", value_parser = millis)]
    backoff_max: Option<u64>,
    /// Messages that receivers have at a time [default: 120000]
    #[arg(long, value_name = "N")]
    in_flight_max: Option<u32>,
    /// Messages in the queue; 0 is no limit of its own
    #[arg(long, value_name = "N")]
    messages_max: Option<u64>,
    /// Their bytes, as 64MiB; 0 is no limit of its own
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    bytes_max: Option<u64>,
    /// What happens when it is full: reject or drop_oldest [default: reject]
    #[arg(long)]
    overflow: Option<String>,
    /// Only messages whose headers match, as 'attributes.kind = "order"'; only when it is created
    #[arg(long)]
    filter: Option<String>,
    /// Whether only the newest receipt of a lease that still runs counts
    #[arg(long, value_name = "YES_OR_NO", value_parser = clap::builder::BoolishValueParser::new())]
    strict: Option<bool>,
    /// Whether messages of its group that were given out after one that comes back do so, too
    #[arg(long, value_name = "YES_OR_NO", value_parser = clap::builder::BoolishValueParser::new())]
    returns_following: Option<bool>,
    /// Whether what is done with stays as long as its topic keeps it, for seek
    #[arg(long, value_name = "YES_OR_NO", value_parser = clap::builder::BoolishValueParser::new())]
    keeps_acked: Option<bool>,
    /// Whether records of open and aborted transactions are messages, too: committed or uncommitted [default:
    /// committed]
    #[arg(long)]
    isolation: Option<String>,
}

impl QueueOptions {
    /// What was said, by the names of the settings.
    pub fn named(&self) -> Vec<(String, String)> {
        fn text<T: ToString>(value: &Option<T>) -> Option<String> {
            value.as_ref().map(T::to_string)
        }
        let dead_letter = self.dead_letter.as_ref().map(|topic| if topic == "none" { "" } else { topic });
        let said = [
            ("lease_ms", text(&self.lease)),
            ("delay_ms", text(&self.delay)),
            ("retention_ms", text(&self.retention)),
            ("order", text(&self.order)),
            ("dedup", text(&self.dedup)),
            ("attempts_max", text(&self.attempts_max)),
            ("dead_letter", text(&dead_letter)),
            ("backoff_ms_min", text(&self.backoff_min)),
            ("backoff_ms_max", text(&self.backoff_max)),
            ("in_flight_max", text(&self.in_flight_max)),
            ("messages_max", text(&self.messages_max)),
            ("bytes_max", text(&self.bytes_max)),
            ("overflow", text(&self.overflow)),
            ("filter", text(&self.filter)),
            ("is_strict", text(&self.strict)),
            ("returns_following", text(&self.returns_following)),
            ("keeps_acked", text(&self.keeps_acked)),
            ("isolation", text(&self.isolation)),
        ];
        said.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
}

#[derive(Args)]
pub struct QueueSend {
    pub queue: String,
    /// One message; without it each line of the input is one
    pub body: Option<String>,
    /// Read from a file instead of the standard input
    #[arg(long, short, value_name = "FILE", conflicts_with = "body")]
    pub file: Option<PathBuf>,
    /// The group of every message
    #[arg(long, short)]
    pub group: Option<String>,
    /// What the message is known by if it is sent again
    #[arg(long, value_name = "ID", requires = "body")]
    pub dedup: Option<String>,
    /// How long every message is for nobody, as 10s
    #[arg(long, value_name = "TIME", value_parser = millis)]
    pub delay: Option<u64>,
    /// A header of every message; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub header: Vec<String>,
}

#[derive(Args)]
pub struct QueueReceive {
    pub queue: String,
    /// Create the queue if it does not exist, with a topic of its own; without this option that is an error
    #[arg(long)]
    pub create: bool,
    /// So many messages at most
    #[arg(long, short = 'n', default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub max: u32,
    /// How long to wait for the first, as 20s; 60s at most
    #[arg(long, value_name = "TIME", value_parser = millis)]
    pub wait: Option<u64>,
    /// How long to have them, as 60s; else as the queue is set
    #[arg(long, value_name = "TIME", value_parser = millis)]
    pub lease: Option<u64>,
    /// Acknowledge them once they are printed; then a line is a body, without a receipt
    #[arg(long)]
    pub ack: bool,
}

#[derive(Args)]
pub struct QueueRedrive {
    pub queue: String,
    /// To this queue, whatever they came from
    #[arg(long, value_name = "QUEUE")]
    pub to: Option<String>,
    /// Messages a second, at most 500
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=500))]
    pub rate: Option<u32>,
    /// Return once it is over
    #[arg(long)]
    pub wait: bool,
    /// Only show what is being moved out of the queue, and what was
    #[arg(long, conflicts_with_all = ["to", "rate", "wait", "cancel"])]
    pub list: bool,
    /// Stop the move with this number
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["to", "rate", "wait"])]
    pub cancel: Option<u64>,
}

#[derive(Args)]
#[command(after_help = "\
The command reads the body from its standard input. Its environment has
  THALWEG_MESSAGE_ID, THALWEG_MESSAGE_QUEUE, THALWEG_MESSAGE_ATTEMPTS, THALWEG_MESSAGE_SENT_MS,
  THALWEG_MESSAGE_RECEIPT, THALWEG_MESSAGE_GROUP, THALWEG_MESSAGE_SOURCE,
  and each header as THALWEG_MESSAGE_HEADER_NAME
except values with a zero byte, values over 128 KiB, and what exceeds 1 MiB in total. The lease is
extended for as long as the command runs. Ctrl-C lets running commands finish; a second Ctrl-C kills
them with all their children, and their messages return to the queue.

Examples:
  thalweg queue work jobs -- ./handle.sh
  thalweg queue work jobs --concurrency 8 -- sh -c 'jq .id'")]
pub struct QueueWork {
    pub queue: String,
    /// Commands that run side by side
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = side_by_side())]
    pub concurrency: usize,
    /// How long the broker waits for a sign of life, as 60s; else as the queue is set
    #[arg(long, value_name = "TIME", value_parser = millis)]
    pub lease: Option<u64>,
    /// After how long a message comes back whose command ended with 75
    #[arg(long, value_name = "TIME", value_parser = millis, default_value = "30s")]
    pub retry_delay: u64,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

fn side_by_side() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=1000)
}

/// `500ms`, or `90s`, `5m`, `2h`, `7d`.
pub(super) fn millis(text: &str) -> Result<u64, String> {
    let ms = parse_duration(text).and_then(|time| u64::try_from(time.as_millis()).ok());
    ms.ok_or_else(|| "write 500ms, 90s, 5m, 2h or 7d".to_owned())
}
