//! What is said on the command line about measuring.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand, ValueEnum};
use client::{Acks, Overflow};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    Quic,
    Tcp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchMode {
    /// At --rate, or as fast as it goes; every subscriber gets everything
    Throughput,
    /// Nobody subscribes
    Publish,
    /// One publish in flight, to its acknowledgement and to every subscriber
    Ack,
    /// One record in flight without acknowledgement, to the last subscriber
    EndToEnd,
}

#[derive(Subcommand)]
pub enum Bench {
    /// Publish and subscribe; starts a broker of its own unless --server names one
    Pubsub(BenchPubsub),
    /// A stream in the terms of a published report: one producer, one consumer, every record checked, six tables;
    /// starts a broker of its own unless --server names one
    Stream(BenchStream),
    /// Puts and gets of a cache, so many in flight at a time, every answer checked; starts a broker of its own unless
    /// --server names one
    Cache(BenchCache),
    /// Run this and other systems in turn and print the ratios
    Compare(BenchCompare),
    /// Memory of a broker alone, of idle connections, and the time to the first publish
    Idle(BenchIdle),
    /// Requests and responses over the service runtime alone, without a broker: the server in a process of its
    /// own, and a load against it
    Rpc(Box<BenchRpc>),
}

/// How fast a load comes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BenchRate {
    /// As fast as it is taken.
    Max,
    PerSecond(f64),
}

impl FromStr for BenchRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate > 0.0);
        match (text, number) {
            ("max", _) => Ok(Self::Max),
            (_, Some(rate)) => Ok(Self::PerSecond(rate)),
            (_, None) => Err("write records per second, as 5000, or max".to_owned()),
        }
    }
}

#[derive(Args, Clone)]
pub struct BenchPubsub {
    #[arg(long, value_enum, default_value = "throughput")]
    pub mode: BenchMode,
    #[arg(long, value_enum, default_value = "quic")]
    pub transport: Transport,
    /// Bytes of a record's value
    #[arg(long, default_value_t = 4096)]
    pub payload: usize,
    /// Records in a batch; 0 publishes them one by one and leaves batches to the client
    #[arg(long, default_value_t = 64)]
    pub batch: usize,
    /// Records to publish in all; exchanges where one is in flight [default: those of 10 s where the rate is the
    /// default, else 100000]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u64>::new().range(1..))]
    pub count: Option<u64>,
    /// Connections for publishing
    #[arg(long, default_value_t = 4)]
    pub pub_conns: usize,
    /// Publish streams of each of them
    #[arg(long, default_value_t = 2)]
    pub pub_streams: usize,
    /// Subscribers, each of which gets everything
    #[arg(long, default_value_t = 10)]
    pub fanout: usize,
    #[arg(long, default_value = "accepted")]
    pub acks: Acks,
    #[arg(long, default_value = "block")]
    pub overflow: Overflow,
    /// Records per second, open loop: latencies count from when each was due; or max, as fast as it goes. Not where
    /// one is in flight [default: 5000 in mode throughput, max in mode publish]
    #[arg(long, value_name = "N", overrides_with = "rate")]
    pub rate: Option<BenchRate>,
    /// Threads of the load generator
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// Run so many times and report the median run by delivered rate
    #[arg(long, default_value_t = 1)]
    pub runs: usize,
    /// Also write the reports to a file, as JSON lines
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Also write a page of the run that is reported, which needs nothing else
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StreamMode {
    /// 10,000 records of about 1 KB, each sent when the one before it is acknowledged: the report's workload
    OneInFlight,
    /// The same records in batches of 64, 16 of them on the way
    Pipelined,
    /// 1,000,000 records of 1 KB in batches of 64, 16 of them on the way
    #[value(name = "1m-1kb")]
    Million,
    /// 3,000,000 records of 100 B in batches of 512, 16 of them on the way
    #[value(name = "3m-100b")]
    Small,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StreamConsumer {
    /// From the begin
    Together,
    /// When all is produced: what is read is history
    After,
    /// Nobody reads
    None,
}

#[derive(Args, Clone)]
pub struct BenchStream {
    /// The workload; several, with commas between them, run one after the other
    #[arg(long, value_enum, value_delimiter = ',', default_value = "one-in-flight")]
    pub mode: Vec<StreamMode>,
    #[arg(long, value_enum, default_value = "tcp")]
    pub transport: Transport,
    /// Records in all, instead of what the mode says
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u64>::new().range(1..=1_000_000_000))]
    pub records: Option<u64>,
    /// Bytes of a record's value, at least 32, instead of what the mode says
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(32..=4_194_304))]
    pub record_bytes: Option<usize>,
    /// Partitions of the topic; batches take turns over them
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub partitions: u32,
    /// Records in a batch, instead of what the mode says; 0 leaves batches to the client, which does not tell when
    /// each is acknowledged
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(..=65_536))]
    pub batch: Option<usize>,
    /// Batches that may wait for their acknowledgement, instead of what the mode says
    #[arg(long, value_name = "N", value_parser = up_to(256))]
    pub in_flight: Option<usize>,
    /// What an acknowledgement means: accepted, committed or default
    #[arg(long, default_value = "default", value_parser = acks_with_answer)]
    pub acks: Acks,
    /// Records a second, open loop; latencies count from when each was due
    #[arg(long, value_name = "N", value_parser = rate)]
    pub rate: Option<f64>,
    /// When the consumer reads
    #[arg(long, value_enum, default_value = "together")]
    pub consumer: StreamConsumer,
    /// Where the topic is kept: memory, disk, sqlite, or auto for what the broker can
    #[arg(long, default_value = "auto")]
    pub storage: client::Storage,
    /// Give the broker that is started a data directory below this one; it is removed afterwards
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// The process of the broker that --server names, to tell its memory and CPU
    #[arg(long, value_name = "PID")]
    pub server_pid: Option<u32>,
    /// Also write a page with plots, which needs nothing else
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

fn acks_with_answer(text: &str) -> Result<Acks, String> {
    match text.parse().map_err(|error: client::Error| error.to_string())? {
        Acks::None => Err("without an acknowledgement there is nothing to time".to_owned()),
        acks => Ok(acks),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CacheOperation {
    /// Of keys that are there already, but for the first turn of each
    Put,
    /// Of keys that are there; each value is compared
    GetHit,
    /// Of keys that are not there
    GetMiss,
}

#[derive(Args, Clone)]
pub struct BenchCache {
    /// What is asked for; several, with commas between them, are measured one after the other
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["put", "get-hit", "get-miss"])]
    pub operation: Vec<CacheOperation>,
    /// Bytes of the values that are put and got, a row each [default: put 0,256,4096, get-hit 256]
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        value_parser = RangedU64ValueParser::<usize>::new().range(..=8_388_608)
    )]
    pub value_bytes: Vec<usize>,
    #[arg(long, value_enum, default_value = "quic")]
    pub transport: Transport,
    /// Connections for caches
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = up_to(256))]
    pub connections: usize,
    /// Streams of each of them, over QUIC; a broker that --server names serves pub_workers_per_conn of them
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = up_to(64))]
    pub streams: usize,
    /// Operations in flight over all streams
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = up_to(65_536))]
    pub concurrency: usize,
    /// Each row with 8, 16, 32, 64, 128, 256 and 512 in flight
    #[arg(long, conflicts_with = "concurrency")]
    pub ladder: bool,
    /// Keys, which take turns
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = up_to(10_000_000))]
    pub keys: usize,
    /// Operations of a row that are timed
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = up_to(10_000_000))]
    pub samples: usize,
    /// Operations of a row before that
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1000,
        value_parser = RangedU64ValueParser::<usize>::new().range(..=10_000_000)
    )]
    pub warm_up: usize,
    /// Run all rows so many times and report the median of each by its rate
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = up_to(1000))]
    pub rounds: usize,
    /// Threads of the load generator
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = up_to(1024))]
    pub threads: usize,
    /// The cache is durable: a put is answered once it lasts
    #[arg(long)]
    pub durable: bool,
    /// Give the broker that is started a data directory below this one; it is removed afterwards
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// The process of the broker that --server names, to tell its CPU
    #[arg(long, value_name = "PID")]
    pub server_pid: Option<u32>,
    /// Also write a page, which needs nothing else
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

#[derive(Args)]
pub struct BenchCompare {
    /// The other system
    #[arg(value_enum, default_value = "nats")]
    pub peer: Peer,
    /// Rounds; each runs both systems
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Where the peers' scripts are
    #[arg(long, default_value = "bench/peers", value_name = "DIR")]
    pub peers: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Peer {
    Nats,
}

#[derive(Args)]
pub struct BenchIdle {
    #[arg(long, default_value_t = 10_000)]
    pub connections: usize,
}

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchRpc {
    #[command(subcommand)]
    pub half: Option<RpcHalf>,
    #[command(flatten)]
    pub both: RpcBoth,
}

/// A load and the server that it starts for itself.
#[derive(Args)]
pub struct RpcBoth {
    #[command(flatten)]
    pub server: RpcServer,
    #[command(flatten)]
    pub shape: RpcShape,
    /// Bytes of the body of a response [default: 64]
    #[arg(long, value_name = "N")]
    pub response_bytes: Option<usize>,
    /// Run so many times and report the median run by rate
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = up_to(1000))]
    pub rounds: usize,
    /// Run the C programs of this folder in every round, too, and print the ratios to them
    #[arg(
        long,
        value_name = "DIR",
        num_args = 0..=1,
        default_missing_value = "bench/floor",
        conflicts_with_all = ["tls", "tls_cert", "quic", "rate", "one_write_per_request"]
    )]
    pub floor: Option<PathBuf>,
}

#[derive(Subcommand)]
pub enum RpcHalf {
    /// Answer every request with the same bytes until SIGTERM, then print what was done as a line of JSON
    Serve(RpcServe),
    /// Send requests to a server that is there, check the answers, and say how fast they came
    Load(RpcLoad),
}

#[derive(Args)]
pub struct RpcServe {
    /// Where to listen; port 0 takes a free one, and `listening PORT` tells which [default: 127.0.0.1:7878]
    #[arg(long, value_name = "ADDR", conflicts_with = "unix")]
    pub bind: Option<SocketAddr>,
    #[command(flatten)]
    pub server: RpcServer,
    /// Bytes of the body of a response [default: 64]
    #[arg(long, value_name = "N")]
    pub response_bytes: Option<usize>,
}

/// What a server is started with, by itself or for a load.
#[derive(Args, Clone)]
pub struct RpcServer {
    /// A profile: what a server of the service runtime is set to, TOML
    // The name of the global option, which is left out where a command has one of its own.
    #[arg(long = "config", id = "config", value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// A Unix socket instead of TCP
    #[arg(long, value_name = "PATH", conflicts_with_all = ["tls", "tls_cert", "quic"])]
    pub unix: Option<PathBuf>,
    /// TLS on TCP, and nothing else there; with a certificate made on the spot unless one is named
    #[arg(long)]
    pub tls: bool,
    /// The server's certificate chain, PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The key of it, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// QUIC on the same port
    #[arg(long)]
    pub quic: bool,
    /// Threads that serve [default: one a core]
    #[arg(long, value_name = "N", value_parser = up_to(1024))]
    pub server_threads: Option<usize>,
    /// Do not count bytes
    #[arg(long)]
    pub no_byte_metrics: bool,
    /// Measure how long requests take in the server
    #[arg(long)]
    pub durations: bool,
    /// Show the requests in flight
    #[arg(long)]
    pub in_flight: bool,
}

#[derive(Args)]
pub struct RpcLoad {
    /// The server: a port of this machine, or host:port
    #[arg(value_name = "PORT|ADDR", default_value = "7878")]
    pub place: String,
    /// Its Unix socket instead
    #[arg(long, value_name = "PATH", conflicts_with_all = ["place", "tls", "quic"])]
    pub unix: Option<PathBuf>,
    /// Speak TLS; --ca-file says who vouches for the server
    #[arg(long, conflicts_with = "quic")]
    pub tls: bool,
    /// Speak QUIC
    #[arg(long)]
    pub quic: bool,
    /// Believe any certificate, as one that was made on the spot
    #[arg(long, conflicts_with = "ca_file")]
    pub tls_insecure: bool,
    #[command(flatten)]
    pub shape: RpcShape,
    /// Bytes of the body of a response, which is checked
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub response_bytes: usize,
}

/// What a load does.
#[derive(Args, Clone)]
pub struct RpcShape {
    /// Connections that are open all the time
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = up_to(1_000_000))]
    pub connections: usize,
    /// Requests in flight on each, at most
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = up_to(65_536))]
    pub pipeline: usize,
    /// Bytes of the body of a request
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub payload_bytes: usize,
    /// How long to measure
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub duration_secs: f64,
    /// How long to send before that
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub warm_up_secs: f64,
    /// Threads of the load, with a runtime each
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = up_to(1024))]
    pub threads: usize,
    /// Requests a second of all connections, each due at a time of its own from which its latency counts;
    /// without it each answer is followed by the next request
    #[arg(long, value_name = "N", value_parser = rate)]
    pub rate: Option<f64>,
    /// One write for all requests that follow from what was read, which is the default
    #[arg(long)]
    pub batch: bool,
    /// One write for each request, as the load of nacelle does it
    #[arg(long, conflicts_with = "batch")]
    pub one_write_per_request: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().map_err(|e| format!("{e}"))?;
    if (0.0..=86_400.0).contains(&seconds) { Ok(seconds) } else { Err("it has to be from 0 to 86400".to_owned()) }
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().map_err(|e| format!("{e}"))?;
    if (0.001..=1e9).contains(&rate) { Ok(rate) } else { Err("it has to be from 0.001 to 1000000000".to_owned()) }
}

fn up_to(max: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=max)
}
