//! Arguments of the queue commands.

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
    /// Create a queue, with its own topic or over an existing one
    Create(QueueCreate),
    /// Change settings of a queue in use; omitted settings stay as they are
    Alter {
        queue: String,
        #[command(flatten)]
        options: QueueOptions,
    },
    /// Delete a queue; its topic with the messages is deleted only if it was created with the queue
    #[command(visible_alias = "rm")]
    Delete {
        queue: String,
        #[command(flatten)]
        yes: Yes,
    },
    /// List queues with their numbers of messages
    #[command(visible_alias = "ls")]
    List {
        /// Only queues whose names begin with this
        #[arg(default_value = "")]
        prefix: String,
    },
    /// Show a queue's settings, and its numbers of visible, leased and delayed messages
    Stats { queue: String },
    /// Send messages from the command line, the standard input or a file
    Send(QueueSend),
    /// Receive messages and print them, each with its receipt
    Receive(QueueReceive),
    /// Acknowledge messages
    Ack {
        queue: String,
        #[arg(required = true)]
        receipt: Vec<String>,
    },
    /// Return messages to the queue before their leases expire
    Nack {
        queue: String,
        #[arg(required = true)]
        receipt: Vec<String>,
        /// Delay before redelivery, such as 10s; by default the queue's backoff
        #[arg(long, value_name = "TIME", value_parser = millis)]
        delay: Option<u64>,
    },
    /// Extend the leases of messages
    Extend {
        queue: String,
        #[arg(required = true)]
        receipt: Vec<String>,
        /// New lease, from now on, such as 60s
        #[arg(long, value_name = "TIME", value_parser = millis)]
        lease: u64,
    },
    /// Show messages without leasing them
    Peek {
        queue: String,
        /// Maximum number of messages
        #[arg(long, short = 'n', default_value_t = 10)]
        max: u32,
    },
    /// Delete all messages, including leased ones
    Purge {
        queue: String,
        #[command(flatten)]
        yes: Yes,
    },
    /// Continue at another position of the topic, with all messages after it
    Seek {
        queue: String,
        /// earliest, latest, or a time such as @2026-11-21T08:00:00Z or @-5m
        #[arg(long, value_name = "START")]
        to: String,
    },
    /// Move dead letters back to their original queues, or all messages to another queue
    Redrive(QueueRedrive),
    /// Run a command for each message: exit code 0 acknowledges it, 75 returns it with a delay, others return it
    Work(QueueWork),
    /// Write a queue with all its messages to the standard output, one JSON object per line
    Export { queue: String },
    /// Create a queue from an export and send it the exported messages
    Import {
        /// Name of the new queue, by default that of the exported one
        #[arg(long, value_name = "QUEUE")]
        name: Option<String>,
        /// Storage of its topic: memory, disk, sqlite, or auto (disk if the broker has a data directory)
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
    /// Existing topic to use; by default the queue gets its own topic
    #[arg(long)]
    pub topic: Option<String>,
    /// Begin with records published from now on
    #[arg(long, requires = "topic")]
    pub live: bool,
    /// Storage of its own topic: memory, disk, sqlite, or auto (disk if the broker has a data directory)
    #[arg(long, default_value = "auto", conflicts_with = "topic")]
    pub storage: client::Storage,
    #[command(flatten)]
    pub options: QueueOptions,
}

/// Settings of a queue. Times are written as 500ms, 90s, 5m, 2h or 7d.
#[derive(Args, Default)]
pub struct QueueOptions {
    /// Duration of the lease of a received message [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = millis)]
    lease: Option<u64>,
    /// Time for which a new message is invisible to receivers
    #[arg(long, value_name = "TIME", value_parser = millis)]
    delay: Option<u64>,
    /// Time after which a message is dropped from the queue [default: 4d]
    #[arg(long, value_name = "TIME", value_parser = millis)]
    retention: Option<u64>,
    /// Order of delivery: any, groups (each group in order) or fair [default: any]
    #[arg(long)]
    order: Option<String>,
    /// Scope in which repeated messages are dropped for 5 minutes: off, queue or group [default: off]
    #[arg(long, value_name = "SCOPE")]
    dedup: Option<String>,
    /// Maximum number of deliveries of a message before it is dead-lettered; 0: no limit
    #[arg(long, value_name = "N")]
    attempts_max: Option<u32>,
    /// Queue or topic for dead letters, or none
    #[arg(long, value_name = "TOPIC")]
    dead_letter: Option<String>,
    /// Delay before the first redelivery of a message; it doubles with each attempt
    #[arg(long, value_name = "TIME", value_parser = millis)]
    backoff_min: Option<u64>,
    /// Maximum delay before a redelivery
    #[arg(long, value_name = "TIME", value_parser = millis)]
    backoff_max: Option<u64>,
    /// Maximum number of messages leased at a time [default: 120000]
    #[arg(long, value_name = "N")]
    in_flight_max: Option<u32>,
    /// Maximum number of messages in the queue; 0: no limit
    #[arg(long, value_name = "N")]
    messages_max: Option<u64>,
    /// Maximum size of the messages in the queue, such as 64MiB; 0: no limit
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    bytes_max: Option<u64>,
    /// Policy for a full queue: reject or drop_oldest [default: reject]
    #[arg(long)]
    overflow: Option<String>,
    /// Receive only messages whose headers match, such as 'attributes.kind = "order"'; cannot be changed later
    #[arg(long)]
    filter: Option<String>,
    /// Accept only the newest receipt of a message, and only while its lease has not expired
    #[arg(long, value_name = "YES_OR_NO", value_parser = clap::builder::BoolishValueParser::new())]
    strict: Option<bool>,
    /// Return with a message also the messages of its group that were delivered after it
    #[arg(long, value_name = "YES_OR_NO", value_parser = clap::builder::BoolishValueParser::new())]
    returns_following: Option<bool>,
    /// Keep acknowledged messages for seek, for as long as the topic retains them
    #[arg(long, value_name = "YES_OR_NO", value_parser = clap::builder::BoolishValueParser::new())]
    keeps_acked: Option<bool>,
    /// Isolation: committed, or uncommitted to deliver records of open and aborted transactions too [default:
    /// committed]
    #[arg(long)]
    isolation: Option<String>,
}

impl QueueOptions {
    /// Returns the given settings with their names.
    pub fn named(&self) -> Vec<(String, String)> {
        fn text<T: ToString>(value: &Option<T>) -> Option<String> {
            value.as_ref().map(T::to_string)
        }
        let dead_letter = self.dead_letter.as_ref().map(|topic| if topic == "none" { "" } else { topic });
        let options = [
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
        options.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
}

#[derive(Args)]
pub struct QueueSend {
    pub queue: String,
    /// Body of the message; without it each line of the input is sent as a message
    pub body: Option<String>,
    /// Read from a file instead of the standard input
    #[arg(long, short, value_name = "FILE", conflicts_with = "body")]
    pub file: Option<PathBuf>,
    /// Group of every message
    #[arg(long, short)]
    pub group: Option<String>,
    /// Deduplication id of the message
    #[arg(long, value_name = "ID", requires = "body")]
    pub dedup: Option<String>,
    /// Time for which every message is invisible to receivers, such as 10s
    #[arg(long, value_name = "TIME", value_parser = millis)]
    pub delay: Option<u64>,
    /// Header of every message; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub header: Vec<String>,
}

#[derive(Args)]
pub struct QueueReceive {
    pub queue: String,
    /// Create the queue with its own topic if it does not exist; without this option that is an error
    #[arg(long)]
    pub create: bool,
    /// Maximum number of messages
    #[arg(long, short = 'n', default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub max: u32,
    /// Maximum wait for the first message, such as 20s; at most 60s
    #[arg(long, value_name = "TIME", value_parser = millis)]
    pub wait: Option<u64>,
    /// Lease of the messages, such as 60s; by default that of the queue
    #[arg(long, value_name = "TIME", value_parser = millis)]
    pub lease: Option<u64>,
    /// Acknowledge the messages after printing them; a line is then the body alone, without a receipt
    #[arg(long)]
    pub ack: bool,
}

#[derive(Args)]
pub struct QueueRedrive {
    pub queue: String,
    /// Move the messages to this queue, whatever their original queues are
    #[arg(long, value_name = "QUEUE")]
    pub to: Option<String>,
    /// Maximum number of messages per second, at most 500
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=500))]
    pub rate: Option<u32>,
    /// Wait until the move is finished
    #[arg(long)]
    pub wait: bool,
    /// Only list the current and earlier moves out of the queue
    #[arg(long, conflicts_with_all = ["to", "rate", "wait", "cancel"])]
    pub list: bool,
    /// Stop the move with this number
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["to", "rate", "wait"])]
    pub cancel: Option<u64>,
}

#[derive(Args)]
#[command(after_help = "\
The command reads the body from its standard input. Its environment contains
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
    /// Number of commands that run concurrently
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = side_by_side())]
    pub concurrency: usize,
    /// Lease of a message, extended while its command runs, such as 60s; by default that of the queue
    #[arg(long, value_name = "TIME", value_parser = millis)]
    pub lease: Option<u64>,
    /// Delay before the redelivery of a message whose command exited with 75
    #[arg(long, value_name = "TIME", value_parser = millis, default_value = "30s")]
    pub retry_delay: u64,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

fn side_by_side() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=1000)
}

/// Parses a time such as `500ms`, `90s`, `5m`, `2h` or `7d`.
pub(super) fn millis(text: &str) -> Result<u64, String> {
    let ms = parse_duration(text).and_then(|time| u64::try_from(time.as_millis()).ok());
    ms.ok_or_else(|| "write 500ms, 90s, 5m, 2h or 7d".to_owned())
}
