//! The command line: what may be typed.

use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{NonEmptyStringValueParser, RangedU64ValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use client::{Acks, Codec, Missing, Overflow};

mod admin;
mod bench;
mod cache;
mod help;
mod queue;

pub use admin::*;
pub use bench::*;
pub use cache::*;
pub use help::{command, explain};
pub use queue::*;

/// The version and the commit of this program.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("BUILD_COMMIT"), ")");

/// One durable log behind Kafka, Amazon SQS, Google Pub/Sub, Redis, HTTP and a native protocol.
#[derive(Parser)]
#[command(name = "thalweg", version = VERSION, propagate_version = true)]
#[command(arg_required_else_help = true, max_term_width = 100)]
#[command(after_help = "\
Examples:
  thalweg serve                              start a broker; then, in other terminals:
  thalweg subscribe greetings --create       print what is published from now on
  echo hello | thalweg publish greetings     publish a record per line
  thalweg subscribe greetings --from -10     the last ten records, then what follows
  thalweg queue work jobs -- ./handle.sh     run a command for each message of a queue
  thalweg status                             what the broker has, and where its doors are

Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 no broker there, 4 no such thing,
5 records were lost, 6 a data directory is damaged.")]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Args)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// Configuration file; without one `thalweg.toml` in this directory is read if it is there
    #[arg(long, global = true, value_name = "FILE", env = "THALWEG_CONFIG")]
    pub config: Option<PathBuf>,
    /// The broker to talk to: [quic://|tcp://|tls://]host[:port] [default: 127.0.0.1:7400] [env: THALWEG_SERVER=]
    #[arg(long, short, global = true, value_name = "ADDRESS")]
    pub server: Option<String>,
    /// Certificates to trust, PEM
    #[arg(long, global = true, value_name = "FILE")]
    pub ca_file: Option<String>,
    /// Set any key of the configuration; may be repeated
    #[arg(long, global = true, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Write results as JSON
    #[arg(
        long,
        global = true,
        env = "THALWEG_JSON",
        value_parser = clap::builder::BoolishValueParser::new(),
        num_args = 0,
        default_value = "false",
        default_missing_value = "true"
    )]
    pub json: bool,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run a broker
    #[command(visible_alias = "start")]
    Serve(Serve),
    /// Start a broker, publish a real data set through a pipe, fan it out, and say how fast
    Demo(Demo),
    /// Publish records from the standard input, a file or the command line
    #[command(visible_aliases = ["pub", "produce"])]
    #[command(after_help = "\
Examples:
  thalweg publish orders 'one coffee' --key table-7
  tail -f /var/log/syslog | thalweg publish logs --compression zstd --linger-ms 5
  thalweg publish users --file users.txt --key-separator :")]
    Publish(Publish),
    /// Print records as they come
    #[command(visible_aliases = ["sub", "consume"])]
    Subscribe(Subscribe),
    /// Publish one record and print the answer
    #[command(after_help = "\
Examples:
  thalweg reply time -- date &
  thalweg request time now")]
    Request(Request),
    /// Answer requests: with a text, with what they ask, or with the output of a command
    Reply(Reply),
    /// Show a broker: its doors with their addresses, and how much it has of everything
    Status,
    /// Create, list, describe, alter and delete topics
    #[command(subcommand)]
    Topic(Topic),
    /// List, describe, reset and delete consumer groups
    #[command(subcommand)]
    Group(Group),
    /// Send to queues, receive from them, work through them, and look after them
    #[command(subcommand)]
    Queue(Queue),
    /// Caches and their entries
    #[command(subcommand)]
    Cache(Cache),
    /// Add, list and delete users and their passwords
    #[command(subcommand)]
    User(User),
    /// Add, list and delete what users may do
    #[command(subcommand)]
    Acl(AclCommand),
    /// Show the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Measure
    #[command(subcommand)]
    Bench(Bench),
    /// Watch rates, queues and latencies live
    Top(Top),
    /// Check, show and repair a data directory while no broker uses it
    Inspect(Inspect),
    /// Print a completion script for a shell
    Completions { shell: clap_complete::Shell },
    /// Write man pages, a file per command
    Man {
        /// The directory to write them to
        directory: PathBuf,
    },
}

#[derive(Args)]
pub struct Serve {
    /// Where data is kept; without it everything is in memory
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Defaults to start from
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// The native door, QUIC and TCP: host:port, or off; port 0 takes a free one
    #[arg(long, value_name = "ADDR")]
    pub native: Option<String>,
    /// The HTTP door: host:port, or off
    #[arg(long, value_name = "ADDR")]
    pub http: Option<String>,
    /// The Kafka door: host:port, or off
    #[arg(long, value_name = "ADDR")]
    pub kafka: Option<String>,
    /// The Google Pub/Sub door: host:port, or off
    #[arg(long, value_name = "ADDR")]
    pub pubsub: Option<String>,
    /// The Redis door: host:port, or off
    #[arg(long, value_name = "ADDR")]
    pub redis: Option<String>,
    /// The SQS door: host:port, or off
    #[arg(long, value_name = "ADDR")]
    pub sqs: Option<String>,
    /// Allow other machines without TLS
    #[arg(long)]
    pub insecure: bool,
    /// Write the bound addresses here, as JSON, once every door accepts
    #[arg(long, value_name = "PATH")]
    pub ready_file: Option<PathBuf>,
}

#[derive(Args)]
pub struct Demo {
    /// Subscribers that get everything, beside one of a pattern and a queue group of two
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub subscribers: u16,
    /// A file with one record a line; by default the flights that `scripts/fetch-data.sh` put into ./data,
    /// else the weather of Seattle, which comes with the program
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Read the records from the standard input, one a line
    #[arg(long, conflicts_with = "file")]
    pub stdin: bool,
}

#[derive(Args)]
pub struct Publish {
    pub topic: String,
    /// One record; without it each line of the input is one
    pub value: Option<String>,
    /// Read from a file instead of the standard input
    #[arg(long, short, value_name = "FILE", conflicts_with = "value")]
    pub file: Option<PathBuf>,
    /// The key of every record
    #[arg(long, short)]
    pub key: Option<String>,
    /// Each line is a key, this text and the value
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["key", "value"])]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub key_separator: Option<String>,
    /// A header of every record; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub header: Vec<String>,
    /// Always this partition
    #[arg(long, short)]
    pub partition: Option<u32>,
    /// What an acknowledgement means: none, accepted, committed or default
    #[arg(long, default_value = "default")]
    pub acks: Acks,
    /// Stop after so many records; with a value, publish it so many times
    #[arg(long, short = 'n')]
    pub count: Option<u64>,
    /// Records a second at most
    #[arg(long, short)]
    pub rate: Option<f64>,
    /// How batches are compressed: none, gzip, snappy, lz4 or zstd
    #[arg(long, default_value = "none", value_name = "CODEC")]
    pub compression: Codec,
    /// Send records that have gathered at this size, as 64KiB, instead of at publish_chunk_bytes
    #[arg(long, value_name = "BYTES")]
    pub batch_bytes: Option<String>,
    /// How long a batch waits for more records while others are on the way, ms; a lone record never waits
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub linger_ms: u64,
    /// How long a record may take with all tries, ms, instead of request_timeout_ms
    #[arg(long, value_name = "MS", value_parser = RangedU64ValueParser::<u64>::new().range(1..))]
    pub delivery_timeout_ms: Option<u64>,
    /// Do not number batches: what is not acknowledged is not sent again
    #[arg(long)]
    pub no_idempotence: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// The value, one a line
    Text,
    /// The topic, a tab and the value, one a line
    Named,
    /// The bytes of the values and nothing between them
    Raw,
    /// One JSON object a line
    Json,
    /// Topic, partition, offset, time, key and value in columns
    Table,
}

/// Where reading stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The end that the log has now.
    Now,
    At(u64),
}

impl FromStr for End {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "now" => Ok(Self::Now),
            offset => offset.parse().ok().map(Self::At).ok_or_else(|| "write now, or an offset as 200".to_owned()),
        }
    }
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  thalweg subscribe orders                                 # what is published from now on
  thalweg subscribe orders --from -10                      # the last ten, then what follows
  thalweg subscribe orders --from @-1h --end               # the last hour, then stop
  thalweg subscribe 'orders.>' --from earliest             # all topics below orders, with history
  thalweg subscribe orders --from 100 --end=200 -O json    # records 100 to 199
  thalweg subscribe orders --consumer-group billing        # a share of the topic")]
pub struct Subscribe {
    /// A topic, or a pattern: orders.*, orders.>
    pub topic: String,
    /// Create the topic if it does not exist, with the broker's defaults; without this option that is an error
    #[arg(long)]
    pub create: bool,
    /// Where to begin: live or latest, earliest, an offset, -10 for the last ten records of each partition, or a time
    /// as @2026-11-21T08:00:00Z or @-5m; in a consumer group only where it has committed nothing [default: live; in a
    /// consumer group earliest]
    #[arg(long, visible_alias = "offset", value_name = "START", allow_negative_numbers = true)]
    pub from: Option<String>,
    /// As `--from earliest`
    #[arg(long, conflicts_with = "from", hide = true)]
    pub from_beginning: bool,
    /// Stop after so many records
    #[arg(long, short = 'n')]
    pub count: Option<u64>,
    /// Stop at the end that the log has now, or before this offset; in a consumer group once that holds for all
    /// partitions that this member has
    #[arg(
        long,
        visible_alias = "until-end",
        value_name = "OFFSET",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "now"
    )]
    pub end: Option<End>,
    /// How records are printed [default: text; for a pattern table on a terminal, and else named]
    #[arg(long, short = 'O', value_enum)]
    pub output: Option<Output>,
    /// Print records as this template says, one a line: '{{offset}} {{partition}} {{key}} {{value}} {{time}}
    /// {{topic}}', with \n and \t
    #[arg(long, short = 'F', value_name = "TEMPLATE", conflicts_with = "output")]
    pub format: Option<String>,
    /// Only this partition
    #[arg(long, short)]
    pub partition: Option<u32>,
    /// Read as a member of this consumer group: each partition is with one member, and the group goes on after what
    /// it has committed. What was printed is committed every second and at the end
    #[arg(long, value_name = "GROUP", conflicts_with_all = ["group", "partition", "overflow"])]
    pub consumer_group: Option<String>,
    /// An id of this member's own: started again with it in time, it gets its partitions back, and the other members
    /// notice nothing
    #[arg(long, value_name = "ID", requires = "consumer_group")]
    pub instance_id: Option<String>,
    /// How long this member may be silent before others get its partitions, ms [default: 30000]
    #[arg(long, value_name = "MS", requires = "consumer_group")]
    pub session_timeout_ms: Option<u64>,
    /// Share the topic with the other members of this queue group, which keeps no offsets
    #[arg(long, short)]
    pub group: Option<String>,
    /// When this subscriber is too slow: replay, block, drop_new, drop_old or disconnect_slow
    #[arg(long, default_value = "replay")]
    pub overflow: Overflow,
}

impl Subscribe {
    /// What is to happen where the topic does not exist.
    pub fn missing(&self) -> Missing {
        if self.create { Missing::Create } else { Missing::Refuse }
    }
}

#[derive(Args)]
pub struct Request {
    pub topic: String,
    pub value: String,
    /// How long to wait for the answer, ms
    #[arg(long, default_value_t = 5000)]
    pub timeout_ms: u64,
}

#[derive(Args)]
#[command(after_help = "\
A command gets the request on its standard input; what it prints is the answer. One that fails sends no
answer, and its requester waits in vain. Several repliers with one --group share the requests.

Examples:
  thalweg reply time -- date
  thalweg reply echo --echo
  thalweg reply sums --group calculators -- bc")]
pub struct Reply {
    pub topic: String,
    /// The answer to every request
    #[arg(conflicts_with_all = ["echo", "command"], required_unless_present_any = ["echo", "command"])]
    pub value: Option<String>,
    /// Answer with the request itself
    #[arg(long, conflicts_with = "command")]
    pub echo: bool,
    /// Share the requests with the other members of this queue group
    #[arg(long, short)]
    pub group: Option<String>,
    /// Stop after so many answers
    #[arg(long, short = 'n')]
    pub count: Option<u64>,
    /// Run this for each request
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// Deletions ask before they begin, if a person can answer.
#[derive(Args, Clone, Copy)]
pub struct Yes {
    /// Do not ask. Only a terminal is asked: without one on the standard input nothing is
    #[arg(long, short)]
    pub yes: bool,
}

#[derive(Subcommand)]
#[command(after_help = "\
Examples:
  thalweg topic create orders --partitions 4 --retention 7d
  thalweg topic list
  thalweg topic alter orders --retention-bytes 10GiB
  thalweg topic delete orders --yes")]
pub enum Topic {
    /// Create a topic
    Create {
        topic: String,
        #[arg(long, short)]
        partitions: Option<u32>,
        #[command(flatten)]
        options: TopicOptions,
        /// Where its records are kept: memory, disk, sqlite, or auto for what the broker can
        #[arg(long, default_value = "auto")]
        storage: client::Storage,
        /// Keep only the newest record of each key; one without a value removes its key. On disk only
        #[arg(long)]
        compact: bool,
        /// Only say what would be created, and what speaks against it
        #[arg(long)]
        dry_run: bool,
    },
    /// Change settings of a topic while it is in use; what is not named stays
    Alter {
        topic: String,
        #[command(flatten)]
        options: TopicOptions,
        /// Whether only the newest record of each key stays. On disk only
        #[arg(long, value_name = "YES_OR_NO", value_parser = clap::builder::BoolishValueParser::new())]
        compact: Option<bool>,
    },
    /// Give a topic more partitions; they only grow, and keys may come to other ones from then on
    AddPartitions {
        topic: String,
        /// How many more
        #[arg(value_parser = clap::value_parser!(u32).range(1..))]
        count: u32,
    },
    /// List topics
    #[command(visible_alias = "ls")]
    List {
        /// Those of the broker itself, too: their names begin with _
        #[arg(long, short)]
        all: bool,
    },
    /// Show a topic's settings and partitions
    Describe { topic: String },
    /// Delete a topic with all it holds
    #[command(visible_alias = "rm")]
    Delete {
        topic: String,
        #[command(flatten)]
        yes: Yes,
    },
    /// Delete the oldest records of a partition for good
    DeleteRecords {
        topic: String,
        #[arg(long, short, default_value_t = 0)]
        partition: u32,
        /// Those before this offset, or `end` for all that are there
        #[arg(long)]
        before: String,
        #[command(flatten)]
        yes: Yes,
    },
}

#[derive(Subcommand)]
#[command(after_help = "\
Examples:
  thalweg group list
  thalweg group describe billing
  thalweg group reset billing --topic orders --to earliest --dry-run")]
pub enum Group {
    /// List consumer groups with their members and their lag
    #[command(visible_alias = "ls")]
    List,
    /// Show a group's members, and how far it is in each partition: committed, end, lag
    Describe { group: String },
    /// Set where a group goes on; it must have no members, and one that is not there is made
    Reset(GroupReset),
    /// Delete a group without members, with its offsets
    #[command(visible_alias = "rm")]
    Delete { group: String },
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  thalweg group reset billing --topic orders --to earliest --dry-run
  thalweg group reset billing --topic orders --partition 0 --to 1700
  thalweg group reset billing --topic orders --to @-1h")]
pub struct GroupReset {
    pub group: String,
    #[arg(long, short)]
    pub topic: String,
    /// Only this partition; may be repeated
    #[arg(long, short)]
    pub partition: Vec<u32>,
    /// earliest, latest, an offset, a time as @2026-11-21T08:00:00Z or @-5m, or none, as if the group had never read
    #[arg(long, value_name = "START")]
    pub to: String,
    /// Only say what would be
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Subcommand)]
pub enum ConfigCommand {
    /// Print the configuration as a file that --config can read, with the origin of each value
    Show {
        /// Only these keys
        keys: Vec<String>,
        /// With what each key is for
        #[arg(long)]
        help_keys: bool,
    },
}

#[derive(Args)]
pub struct Top {
    /// Milliseconds between two looks
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    pub interval_ms: u64,
    /// Print so many looks, one a line, instead of a screen; with --json as objects, without end unless
    /// this says how many
    #[arg(long, value_name = "LOOKS", value_parser = clap::value_parser!(u64).range(1..))]
    pub plain: Option<u64>,
}

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "\
Nothing is changed without `repair --yes`. A broker that has the directory has to be stopped first.
  thalweg inspect /srv/data                            what is in it
  thalweg inspect /srv/data --verify                   read all of it: 0 where it is whole, 6 where it is damaged
  thalweg inspect dump /srv/data/journal/000001.journal --json
  thalweg inspect repair /srv/data                     what a repair would do and lose
  thalweg inspect repair /srv/data --yes")]
pub struct Inspect {
    #[command(subcommand)]
    pub command: Option<InspectCommand>,
    /// The data directory
    #[arg(required = true)]
    pub dir: Option<PathBuf>,
    /// Read every file and check every checksum
    #[arg(long)]
    pub verify: bool,
}

#[derive(Subcommand)]
pub enum InspectCommand {
    /// Print what is in one file: entries of a journal, batches of a segment, rows of an index
    Dump {
        /// A .journal, .salvage, .log or .index file, wherever it lies
        file: PathBuf,
    },
    /// Say what is lost and what can be kept of a damaged directory, and do it if asked to
    #[command(after_help = "\
Damaged files stay beside the new ones as <name>.damaged. Offsets do not change: those of lost records stay empty.
  thalweg inspect repair /srv/data                     say what would be done
  thalweg inspect repair /srv/data --yes               do it
  thalweg inspect repair /srv/data --yes --drop-journal  give up what cannot be read of the journal")]
    Repair {
        /// The data directory
        dir: PathBuf,
        /// Only say what would be done; it is the default
        #[arg(long, conflicts_with = "yes")]
        dry_run: bool,
        /// Do it
        #[arg(long)]
        yes: bool,
        /// Begin the journal anew where it cannot be read, with all entries that can
        #[arg(long)]
        drop_journal: bool,
    },
}
