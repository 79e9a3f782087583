//! The command line: commands, options and arguments.

use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{NonEmptyStringValueParser, RangedU64ValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use client::{Acks, Codec, Missing, Overflow};

mod addresses;
mod admin;
mod backup;
mod bench;
mod cache;
mod cluster;
mod context;
mod help;
mod mesh;
mod queue;

pub use addresses::Addresses;
pub use admin::*;
pub use backup::*;
pub use bench::*;
pub use cache::*;
pub use cluster::*;
pub use context::*;
pub use help::{command, explain};
pub use mesh::*;
pub use queue::*;

/// Version and commit of this program.
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
  thalweg subscribe greetings --from -10     print the last ten records, then new ones
  thalweg queue work jobs -- ./handle.sh     run a command for each message of a queue
  thalweg status                             show the broker's doors, topics and queues

Exit codes: 0 success, 1 failure, 2 wrong usage or configuration, 3 broker unreachable,
4 not found, 5 records lost, 6 data directory damaged.")]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Args)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// Configuration file; by default `thalweg.toml` in the current directory, if it exists
    #[arg(long, global = true, value_name = "FILE", env = "THALWEG_CONFIG")]
    pub config: Option<PathBuf>,
    /// Context to use, which `thalweg context add` creates; '' for none [env: THALWEG_CONTEXT=]
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// Address of the broker: [quic://|tcp://|tls://]host[:port], or unix:PATH; of several nodes of a cluster, with
    /// commas between them [default: 127.0.0.1:7400] [env:
    /// THALWEG_SERVER=]
    #[arg(long, short, global = true, value_name = "ADDRESS")]
    pub server: Option<String>,
    /// PEM file with trusted certificates
    #[arg(long, global = true, value_name = "FILE")]
    pub ca_file: Option<String>,
    /// File whose first line is the token to log in with; `thalweg token` creates one
    #[arg(long, global = true, value_name = "FILE")]
    pub token_file: Option<String>,
    /// Set a configuration key; may be repeated
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
    /// Write a commented configuration file for a purpose, and say what to do next
    Init(Init),
    /// Start a broker, publish a real data set, deliver it to several subscribers, and report the rates
    Demo(Demo),
    /// Publish records from the standard input, a file or the command line
    #[command(visible_aliases = ["pub", "produce"])]
    #[command(after_help = "\
Examples:
  thalweg publish orders 'one coffee' --key table-7
  tail -f /var/log/syslog | thalweg publish logs --compression zstd --linger-ms 5
  thalweg publish users --file users.txt --key-separator :")]
    Publish(Publish),
    /// Print records as they arrive
    #[command(visible_aliases = ["sub", "consume"])]
    Subscribe(Subscribe),
    /// Publish one record and print the answer
    #[command(after_help = "\
Examples:
  thalweg reply time -- date &
  thalweg request time now")]
    Request(Request),
    /// Answer requests with a fixed text, with the request itself, or with the output of a command
    Reply(Reply),
    /// Show a broker's doors with their addresses, and counts of its topics, queues, groups and caches
    Status,
    /// List the open connections of clients at all doors, the oldest first
    #[command(after_help = "\
Examples:
  thalweg connections --door kafka --user app
  thalweg connections --json | jq '.[] | select(.requests == 0)'")]
    Connections(Connections),
    /// Close a connection of a client, by its number in `thalweg connections`
    #[command(after_help = "\
Requests in progress have no answer, and may take effect. The client may connect again: to keep
it out, delete its user or token, or take its permissions away.")]
    Disconnect(Disconnect),
    /// Found a cluster of several nodes, join one, and look after its nodes
    #[command(subcommand)]
    Cluster(Cluster),
    /// Begin a mesh of sites, which exchange what their clients publish, join one, and look after its sites
    #[command(subcommand)]
    Mesh(Mesh),
    /// Create, list, describe, alter and delete topics
    #[command(subcommand)]
    Topic(Topic),
    /// List, describe, reset and delete consumer groups
    #[command(subcommand)]
    Group(Group),
    /// Send and receive messages, run a command for each message, and manage queues
    #[command(subcommand)]
    Queue(Queue),
    /// Read and write entries of caches, and manage caches
    #[command(subcommand)]
    Cache(Cache),
    /// Add, list and delete users and their passwords
    #[command(subcommand)]
    User(User),
    /// Give users roles, and list the members of roles
    #[command(subcommand)]
    Role(Role),
    /// Put users into tenants, whose clients see only names of their own
    #[command(subcommand)]
    Tenant(Tenant),
    /// Create, list and delete tokens, with which programs log in
    #[command(subcommand)]
    Token(Token),
    /// Create, list and delete access keys, with which SQS clients sign requests
    #[command(subcommand)]
    Key(Key),
    /// Set, list and delete quotas: how much clients may send, read and request per second
    #[command(subcommand)]
    Quota(Quota),
    /// Add, list and delete access control entries
    #[command(subcommand)]
    Acl(AclCommand),
    /// Show and follow the audit: logins, refusals and administrative acts
    Audit(Audit),
    /// Add, list, select, show and delete contexts: named sets of client keys, each for one broker
    #[command(subcommand)]
    Context(ContextCommand),
    /// Check a user's password with the broker, and store a token in the context
    Login(Login),
    /// Delete the token that `thalweg login` has stored, at the broker and in the context
    Logout(Logout),
    /// Show the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Check this machine: limits, memory, clock, disk and ports, and what to do about each problem
    Doctor(Doctor),
    /// Run benchmarks
    #[command(subcommand)]
    Bench(Bench),
    /// Watch rates, queues and latencies live
    Top(Top),
    /// Copy everything that a running broker has on disk into a folder, or check such a folder
    Backup(Backup),
    /// Write a data directory from a backup
    Restore(Restore),
    /// Check, show and repair a data directory while no broker uses it
    Inspect(Inspect),
    /// Print a completion script for a shell
    Completions { shell: clap_complete::Shell },
    /// Write man pages, one file per command
    Man {
        /// The directory to write them to
        directory: PathBuf,
    },
}

#[derive(Args)]
pub struct Serve {
    /// Data directory; without one everything is kept in memory
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Set of defaults: balanced, latency or throughput
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    #[command(flatten)]
    pub addresses: Addresses,
    /// Allow other machines to connect without TLS
    #[arg(long)]
    pub insecure: bool,
    /// File to write the bound addresses to, as JSON, once every door accepts connections
    #[arg(long, value_name = "PATH")]
    pub ready_file: Option<PathBuf>,
}

#[derive(Args)]
#[command(after_help = "\
A broker needs no configuration file: `thalweg serve` starts one with the defaults. A file that
exists is not overwritten.

Examples:
  thalweg init                                   a broker on this machine, with records on disk
  thalweg init ci --out ci.toml
  thalweg init single --out -                    print it")]
pub struct Init {
    /// Purpose of the broker
    #[arg(value_enum, default_value_t = Purpose::Laptop)]
    pub purpose: Purpose,
    /// File to write; - for the standard output
    #[arg(long, value_name = "FILE", default_value = "thalweg.toml")]
    pub out: PathBuf,
}

/// Purpose of a broker, for which there is a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Purpose {
    /// On this machine, with records on disk
    Laptop,
    /// For tests, in memory
    Ci,
    /// On a server, alone
    Single,
    /// On each of three servers
    Cluster,
}

#[derive(Args)]
pub struct Demo {
    /// Subscribers that receive all records, in addition to one of a pattern and a queue group of two
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub subscribers: u16,
    /// File with one record per line; by default the flights that `scripts/fetch-data.sh` stores in ./data,
    /// or, without them, the weather of Seattle, which is built into the program
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Read the records from the standard input, one per line
    #[arg(long, conflicts_with = "file")]
    pub stdin: bool,
}

#[derive(Args)]
pub struct Publish {
    pub topic: String,
    /// Value of the record; without it each line of the input is published as a record
    pub value: Option<String>,
    /// Read from a file instead of the standard input
    #[arg(long, short, value_name = "FILE", conflicts_with = "value")]
    pub file: Option<PathBuf>,
    /// Key of every record
    #[arg(long, short)]
    pub key: Option<String>,
    /// Split each line at this text into a key and a value
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["key", "value"])]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub key_separator: Option<String>,
    /// Header of every record; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub header: Vec<String>,
    /// Publish to this partition only
    #[arg(long, short)]
    pub partition: Option<u32>,
    /// When a record is acknowledged: none, accepted, committed or default
    #[arg(long, default_value = "default")]
    pub acks: Acks,
    /// Stop after this number of records; with VALUE, publish it this number of times
    #[arg(long, short = 'n')]
    pub count: Option<u64>,
    /// Maximum number of records per second
    #[arg(long, short)]
    pub rate: Option<f64>,
    /// Compression of batches: none, gzip, snappy, lz4 or zstd
    #[arg(long, default_value = "none", value_name = "CODEC")]
    pub compression: Codec,
    /// Send collected records at this size, such as 64KiB, instead of at publish_chunk_bytes
    #[arg(long, value_name = "BYTES")]
    pub batch_bytes: Option<String>,
    /// Maximum wait of a batch for more records while others are in flight, ms; a lone record never waits
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub linger_ms: u64,
    /// Time limit for a record, including all attempts, ms, instead of request_timeout_ms
    #[arg(long, value_name = "MS", value_parser = RangedU64ValueParser::<u64>::new().range(1..))]
    pub delivery_timeout_ms: Option<u64>,
    /// Do not number batches; unacknowledged batches are then not sent again
    #[arg(long)]
    pub no_idempotence: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// The value, one per line
    Text,
    /// The topic, a tab and the value, one per line
    Named,
    /// The bytes of the values without separators
    Raw,
    /// One JSON object per line
    Json,
    /// Topic, partition, offset, time, key and value in columns
    Table,
}

/// Bound at which reading stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Current end of the log.
    Now,
    At(u64),
}

impl FromStr for End {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "now" => Ok(Self::Now),
            offset => offset.parse().ok().map(Self::At).ok_or_else(|| "write now, or an offset such as 200".to_owned()),
        }
    }
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  thalweg subscribe orders                                 # records published from now on
  thalweg subscribe orders --from -10                      # the last ten, then new records
  thalweg subscribe orders --from @-1h --end               # the last hour, then stop
  thalweg subscribe 'orders.>' --from earliest             # all topics below orders, with history
  thalweg subscribe orders --from 100 --end=200 -O json    # records 100 to 199
  thalweg subscribe orders --consumer-group billing        # share partitions with other members")]
pub struct Subscribe {
    /// Topic, or a pattern such as orders.* or orders.>
    pub topic: String,
    /// Create the topic with the broker's defaults if it does not exist; without this option that is an error
    #[arg(long)]
    pub create: bool,
    /// Start position: live or latest, earliest, an offset, -10 for the last ten records of each partition, or a time
    /// such as @2026-11-21T08:00:00Z or @-5m; in a consumer group only for partitions without a committed offset
    /// [default: live; in a consumer group earliest]
    #[arg(long, visible_alias = "offset", value_name = "START", allow_negative_numbers = true)]
    pub from: Option<String>,
    /// Same as `--from earliest`
    #[arg(long, conflicts_with = "from", hide = true)]
    pub from_beginning: bool,
    /// Stop after this number of records
    #[arg(long, short = 'n')]
    pub count: Option<u64>,
    /// Stop at the current end of the log, or before this offset; in a consumer group once that holds for all
    /// partitions of this member
    #[arg(
        long,
        visible_alias = "until-end",
        value_name = "OFFSET",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "now"
    )]
    pub end: Option<End>,
    /// Format of the output [default: text; for a pattern table on a terminal, otherwise named]
    #[arg(long, short = 'O', value_enum)]
    pub output: Option<Output>,
    /// Print each record with this template, one per line: '{{offset}} {{partition}} {{key}} {{value}} {{time}}
    /// {{topic}}', with \n and \t
    #[arg(long, short = 'F', value_name = "TEMPLATE", conflicts_with = "output")]
    pub format: Option<String>,
    /// Read this partition only
    #[arg(long, short)]
    pub partition: Option<u32>,
    /// Read as a member of this consumer group. Each partition is assigned to one member, and the group resumes after
    /// its committed offsets. Offsets of printed records are committed every second and at the end
    #[arg(long, value_name = "GROUP", conflicts_with_all = ["group", "partition", "overflow"])]
    pub consumer_group: Option<String>,
    /// Unique id of this member. A member restarted with the same id within the session timeout keeps its partitions,
    /// and the group does not rebalance
    #[arg(long, value_name = "ID", requires = "consumer_group")]
    pub instance_id: Option<String>,
    /// Time without heartbeats after which this member's partitions are reassigned, ms [default: 30000]
    #[arg(long, value_name = "MS", requires = "consumer_group")]
    pub session_timeout_ms: Option<u64>,
    /// Share the records with the other members of this queue group, which keeps no offsets
    #[arg(long, short)]
    pub group: Option<String>,
    /// Policy for when this subscriber is too slow: replay, block, drop_new, drop_old or disconnect_slow
    #[arg(long, default_value = "replay")]
    pub overflow: Overflow,
}

impl Subscribe {
    /// Returns the action of the broker if the topic does not exist.
    pub fn missing(&self) -> Missing {
        if self.create { Missing::Create } else { Missing::Refuse }
    }
}

#[derive(Args)]
pub struct Request {
    pub topic: String,
    pub value: String,
    /// Time limit for the answer, ms
    #[arg(long, default_value_t = 5000)]
    pub timeout_ms: u64,
}

#[derive(Args)]
#[command(after_help = "\
The command reads the request from its standard input, and its output is the answer. If it fails,
no answer is sent, and the request times out. Repliers with the same --group share the requests.

Examples:
  thalweg reply time -- date
  thalweg reply echo --echo
  thalweg reply sums --group calculators -- bc")]
pub struct Reply {
    pub topic: String,
    /// Answer to every request
    #[arg(conflicts_with_all = ["echo", "command"], required_unless_present_any = ["echo", "command"])]
    pub value: Option<String>,
    /// Answer with the request itself
    #[arg(long, conflicts_with = "command")]
    pub echo: bool,
    /// Share the requests with the other members of this queue group
    #[arg(long, short)]
    pub group: Option<String>,
    /// Stop after this number of answers
    #[arg(long, short = 'n')]
    pub count: Option<u64>,
    /// Command to run for each request
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// Deletions ask for confirmation on a terminal.
#[derive(Args, Clone, Copy)]
pub struct Yes {
    /// Do not ask for confirmation; there is no question if the standard input is not a terminal
    #[arg(long, short)]
    pub yes: bool,
}

#[derive(Subcommand)]
#[command(after_help = "\
Examples:
  thalweg topic create orders --partitions 4 --retention 7d
  thalweg topic list
  thalweg topic alter orders --retention-bytes 10GiB
  thalweg topic alter oslo.orders --mesh off     # ends copying from oslo: clients can publish
  thalweg topic delete orders --yes")]
pub enum Topic {
    /// Create a topic
    Create {
        topic: String,
        #[arg(long, short)]
        partitions: Option<u32>,
        #[command(flatten)]
        options: TopicOptions,
        /// Storage of its records: memory, disk, sqlite, or auto (disk if the broker has a data directory)
        #[arg(long, default_value = "auto")]
        storage: client::Storage,
        /// Keep only the newest record of each key; a record without a value deletes its key. On disk only
        #[arg(long)]
        compact: bool,
        /// Only print what would be created, and what would prevent it
        #[arg(long)]
        dry_run: bool,
    },
    /// Change settings of a topic in use; omitted settings stay as they are
    Alter {
        topic: String,
        #[command(flatten)]
        options: TopicOptions,
        /// Keep only the newest record of each key. On disk only
        #[arg(long, value_name = "YES_OR_NO", value_parser = clap::builder::BoolishValueParser::new())]
        compact: Option<bool>,
    },
    /// Add partitions to a topic; they cannot be removed, and keys may map to other partitions afterwards
    AddPartitions {
        topic: String,
        /// Number of partitions to add
        #[arg(value_parser = clap::value_parser!(u32).range(1..))]
        count: u32,
    },
    /// List topics
    #[command(visible_alias = "ls")]
    List {
        /// Include the broker's internal topics, whose names begin with _
        #[arg(long, short)]
        all: bool,
    },
    /// Show a topic's settings and partitions
    Describe { topic: String },
    /// Delete a topic and all its records
    #[command(visible_alias = "rm")]
    Delete {
        topic: String,
        #[command(flatten)]
        yes: Yes,
    },
    /// Permanently delete the oldest records of a partition
    DeleteRecords {
        topic: String,
        #[arg(long, short, default_value_t = 0)]
        partition: u32,
        /// Delete the records before this offset, or `end` for all records
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
    /// Show a group's members, and the committed offset, the end and the lag of each partition
    Describe { group: String },
    /// Set the offsets of a group without members; a group that does not exist is created
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
    /// Reset this partition only; may be repeated
    #[arg(long, short)]
    pub partition: Vec<u32>,
    /// earliest, latest, an offset, a time such as @2026-11-21T08:00:00Z or @-5m, or none to delete the offsets
    #[arg(long, value_name = "START")]
    pub to: String,
    /// Only print the new offsets
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Subcommand)]
pub enum ConfigCommand {
    /// Print the configuration as a file that --config can read, with the source of each value
    Show {
        /// Print only these keys
        keys: Vec<String>,
        /// Print the help of each key
        #[arg(long)]
        help_keys: bool,
    },
}

#[derive(Args)]
#[command(after_help = "\
Exit codes: 0 no problem, 1 at least one problem: the broker would not start, or could lose data.
Warnings and notes do not change the exit code. Nothing is changed; a file in the data directory is
written, timed and deleted.

Examples:
  thalweg doctor --data /srv/data
  thalweg doctor --data /srv/data --json | jq '.findings[] | select(.severity != \"ok\")'")]
pub struct Doctor {
    /// Data directory whose disk is measured; by default that of the configuration
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    #[command(flatten)]
    pub addresses: Addresses,
}

#[derive(Args)]
pub struct Top {
    /// Milliseconds between two updates
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    pub interval_ms: u64,
    /// Print this number of updates, one per line, instead of a screen; with --json as objects, and without
    /// this option endlessly
    #[arg(long, value_name = "LOOKS", value_parser = clap::value_parser!(u64).range(1..))]
    pub plain: Option<u64>,
}

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "\
Nothing is changed without `repair --yes`. Stop the broker that uses the directory first.
  thalweg inspect /srv/data                            list its contents
  thalweg inspect /srv/data --verify                   read everything: 0 if intact, 6 if damaged
  thalweg inspect dump /srv/data/journal/000001.journal --json
  thalweg inspect repair /srv/data                     print what a repair would do and lose
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
        /// A .journal, .salvage, .log or .index file in any directory
        file: PathBuf,
    },
    /// Print what a repair of a damaged directory keeps and loses, and with --yes repair it
    #[command(after_help = "\
Damaged files are kept next to the new ones as <name>.damaged. Offsets do not change: lost records
leave gaps.
  thalweg inspect repair /srv/data                       print what would be done
  thalweg inspect repair /srv/data --yes                 repair it
  thalweg inspect repair /srv/data --yes --drop-journal  discard unreadable parts of the journal")]
    Repair {
        /// The data directory
        dir: PathBuf,
        /// Only print what would be done; this is the default
        #[arg(long, conflicts_with = "yes")]
        dry_run: bool,
        /// Repair the directory
        #[arg(long)]
        yes: bool,
        /// Discard unreadable parts of the journal: start a new one with all readable entries
        #[arg(long)]
        drop_journal: bool,
    },
}
