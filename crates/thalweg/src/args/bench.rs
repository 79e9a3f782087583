//! Arguments of the benchmarks.

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
    /// Publish at --rate, or as fast as possible; every subscriber receives every record
    Throughput,
    /// Publish without subscribers
    Publish,
    /// One publish in flight, to its acknowledgement and to every subscriber
    Ack,
    /// One record in flight without acknowledgement, to the last subscriber
    EndToEnd,
}

#[derive(Subcommand)]
pub enum Bench {
    /// Measure pub/sub; starts its own broker unless --server names one
    Pubsub(BenchPubsub),
    /// Measure a stream as a published report did: one producer, one consumer, every record checked, six tables;
    /// starts its own broker unless --server names one
    Stream(BenchStream),
    /// Measure puts and gets of a cache with a fixed number in flight, every answer checked; starts a broker unless
    /// --server names one
    Cache(BenchCache),
    /// Measure this system and another one in turn and print the ratios
    Compare(BenchCompare),
    /// Measure the memory of a broker and of idle connections, and the time to the first publish
    Idle(BenchIdle),
    /// Measure requests and responses of the service runtime without a broker: starts the server in a separate
    /// process and sends a load to it
    Rpc(Box<BenchRpc>),
}

/// Rate of a load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BenchRate {
    /// Maximum rate.
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
            (_, None) => Err("write records per second, such as 5000, or max".to_owned()),
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
    /// Records per batch; 0: publish records one by one, and let the client form batches
    #[arg(long, default_value_t = 64)]
    pub batch: usize,
    /// Total number of records to publish, or of exchanges if one is in flight [default: 10 s at the default rate,
    /// otherwise 100000]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u64>::new().range(1..))]
    pub count: Option<u64>,
    /// Connections for publishing
    #[arg(long, default_value_t = 4)]
    pub pub_conns: usize,
    /// Publish streams per connection
    #[arg(long, default_value_t = 2)]
    pub pub_streams: usize,
    /// Number of subscribers; each receives every record
    #[arg(long, default_value_t = 10)]
    pub fanout: usize,
    #[arg(long, default_value = "accepted")]
    pub acks: Acks,
    #[arg(long, default_value = "block")]
    pub overflow: Overflow,
    /// Records per second, open loop: latency is measured from the time a record was due; or max, as fast as possible.
    /// Not in modes with one in flight [default: 5000 in mode throughput, max in mode publish]
    #[arg(long, value_name = "N", overrides_with = "rate")]
    pub rate: Option<BenchRate>,
    /// Threads of the load generator
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// Number of runs; the report is the median run by delivered rate
    #[arg(long, default_value_t = 1)]
    pub runs: usize,
    /// Also write the reports to a file, as JSON lines
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Also write a self-contained HTML page of the reported run
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StreamMode {
    /// 10,000 records of about 1 KB, each sent after the previous one is acknowledged: the report's workload
    OneInFlight,
    /// 10,000 records of about 1 KB in batches of 64, 16 batches in flight
    Pipelined,
    /// 1,000,000 records of 1 KB in batches of 64, 16 batches in flight
    #[value(name = "1m-1kb")]
    Million,
    /// 3,000,000 records of 100 B in batches of 512, 16 batches in flight
    #[value(name = "3m-100b")]
    Small,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StreamConsumer {
    /// From the beginning, while records are produced
    Together,
    /// After all records are produced, so that it reads history
    After,
    /// No consumer
    None,
}

#[derive(Args, Clone)]
pub struct BenchStream {
    /// Workloads, comma-separated; they run one after the other
    #[arg(long, value_enum, value_delimiter = ',', default_value = "one-in-flight")]
    pub mode: Vec<StreamMode>,
    #[arg(long, value_enum, default_value = "tcp")]
    pub transport: Transport,
    /// Total number of records; overrides the mode
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u64>::new().range(1..=1_000_000_000))]
    pub records: Option<u64>,
    /// Bytes of a record's value, at least 32; overrides the mode
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(32..=4_194_304))]
    pub record_bytes: Option<usize>,
    /// Partitions of the topic; batches are distributed over them in turn
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub partitions: u32,
    /// Records per batch; overrides the mode. 0: the client forms batches, and does not report when each is
    /// acknowledged
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(..=65_536))]
    pub batch: Option<usize>,
    /// Maximum number of unacknowledged batches; overrides the mode
    #[arg(long, value_name = "N", value_parser = up_to(256))]
    pub in_flight: Option<usize>,
    /// When a record is acknowledged: accepted, committed or default
    #[arg(long, default_value = "default", value_parser = acks_with_answer)]
    pub acks: Acks,
    /// Records per second, open loop: latency is measured from the time a record was due
    #[arg(long, value_name = "N", value_parser = rate)]
    pub rate: Option<f64>,
    /// When the consumer reads the records
    #[arg(long, value_enum, default_value = "together")]
    pub consumer: StreamConsumer,
    /// Storage of the topic: memory, disk, sqlite, or auto (disk if the broker has a data directory)
    #[arg(long, default_value = "auto")]
    pub storage: client::Storage,
    /// Create a data directory for the started broker below this one, and remove it afterwards
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Process id of the broker that --server names, to report its memory and CPU
    #[arg(long, value_name = "PID")]
    pub server_pid: Option<u32>,
    /// Also write a self-contained HTML page with plots
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

fn acks_with_answer(text: &str) -> Result<Acks, String> {
    match text.parse().map_err(|error: client::Error| error.to_string())? {
        Acks::None => Err("there is no acknowledgement to measure with acks none".to_owned()),
        acks => Ok(acks),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CacheOperation {
    /// Puts of existing keys, except for the first put of each key
    Put,
    /// Gets of existing keys; each value is compared
    GetHit,
    /// Gets of missing keys
    GetMiss,
}

#[derive(Args, Clone)]
pub struct BenchCache {
    /// Operations, comma-separated; they are measured one after the other
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["put", "get-hit", "get-miss"])]
    pub operation: Vec<CacheOperation>,
    /// Value sizes in bytes, one row per size [default: put 0,256,4096, get-hit 256]
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
    /// Streams per QUIC connection; a broker that --server names serves pub_workers_per_conn of them
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = up_to(64))]
    pub streams: usize,
    /// Operations in flight on all streams together
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = up_to(65_536))]
    pub concurrency: usize,
    /// Measure each row with 8, 16, 32, 64, 128, 256 and 512 operations in flight
    #[arg(long, conflicts_with = "concurrency")]
    pub ladder: bool,
    /// Number of keys, which are used in turn
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = up_to(10_000_000))]
    pub keys: usize,
    /// Measured operations per row
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = up_to(10_000_000))]
    pub samples: usize,
    /// Operations per row before the measured ones
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1000,
        value_parser = RangedU64ValueParser::<usize>::new().range(..=10_000_000)
    )]
    pub warm_up: usize,
    /// Number of runs of all rows; the report is the median of each row by rate
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = up_to(1000))]
    pub rounds: usize,
    /// Threads of the load generator
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = up_to(1024))]
    pub threads: usize,
    /// Use a durable cache: a put is answered once it is durable
    #[arg(long)]
    pub durable: bool,
    /// Create a data directory for the started broker below this one, and remove it afterwards
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Process id of the broker that --server names, to report its CPU
    #[arg(long, value_name = "PID")]
    pub server_pid: Option<u32>,
    /// Also write a self-contained HTML page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

#[derive(Args)]
pub struct BenchCompare {
    /// The other system
    #[arg(value_enum, default_value = "nats")]
    pub peer: Peer,
    /// Number of rounds; each measures both systems
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Directory with the scripts of the other systems
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

/// A load and the server that is started for it.
#[derive(Args)]
pub struct RpcBoth {
    #[command(flatten)]
    pub server: RpcServer,
    #[command(flatten)]
    pub shape: RpcShape,
    /// Body size of a response in bytes [default: 64]
    #[arg(long, value_name = "N")]
    pub response_bytes: Option<usize>,
    /// Number of runs; the report is the median run by rate
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = up_to(1000))]
    pub rounds: usize,
    /// In every round also run the C programs of this directory, and print the ratios to them
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
    /// Answer every request with the same bytes until SIGTERM, then print statistics as a line of JSON
    Serve(RpcServe),
    /// Send requests to a running server, check the answers, and report rates and latencies
    Load(RpcLoad),
}

#[derive(Args)]
pub struct RpcServe {
    /// Address to listen on; port 0 selects a free port, printed as `listening PORT` [default: 127.0.0.1:7878]
    #[arg(long, value_name = "ADDR", conflicts_with = "unix")]
    pub bind: Option<SocketAddr>,
    #[command(flatten)]
    pub server: RpcServer,
    /// Body size of a response in bytes [default: 64]
    #[arg(long, value_name = "N")]
    pub response_bytes: Option<usize>,
}

/// Options of a server, alone or started for a load.
#[derive(Args, Clone)]
pub struct RpcServer {
    /// Profile with settings of the service runtime, TOML
    // Has the name of the global option, which is omitted if a command has its own.
    #[arg(long = "config", id = "config", value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// Listen on a Unix socket instead of TCP
    #[arg(long, value_name = "PATH", conflicts_with_all = ["tls", "tls_cert", "quic"])]
    pub unix: Option<PathBuf>,
    /// Accept only TLS on TCP, with a generated certificate unless --tls-cert names one
    #[arg(long)]
    pub tls: bool,
    /// PEM file with the server's certificate chain
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// PEM file with the private key of --tls-cert
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Also listen for QUIC on the same port
    #[arg(long)]
    pub quic: bool,
    /// Threads of the server [default: one per core]
    #[arg(long, value_name = "N", value_parser = up_to(1024))]
    pub server_threads: Option<usize>,
    /// Do not count bytes
    #[arg(long)]
    pub no_byte_metrics: bool,
    /// Measure how long requests take in the server
    #[arg(long)]
    pub durations: bool,
    /// Count the requests in flight
    #[arg(long)]
    pub in_flight: bool,
}

#[derive(Args)]
pub struct RpcLoad {
    /// Address of the server: a port of this machine, or host:port
    #[arg(value_name = "PORT|ADDR", default_value = "7878")]
    pub place: String,
    /// Unix socket of the server, instead of an address
    #[arg(long, value_name = "PATH", conflicts_with_all = ["place", "tls", "quic"])]
    pub unix: Option<PathBuf>,
    /// Use TLS; --ca-file names the trusted certificates
    #[arg(long, conflicts_with = "quic")]
    pub tls: bool,
    /// Use QUIC
    #[arg(long)]
    pub quic: bool,
    /// Accept any certificate, such as a generated one
    #[arg(long, conflicts_with = "ca_file")]
    pub tls_insecure: bool,
    #[command(flatten)]
    pub shape: RpcShape,
    /// Body size of a response in bytes, which is checked
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub response_bytes: usize,
}

/// The shape of a load.
#[derive(Args, Clone)]
pub struct RpcShape {
    /// Number of connections, open for the whole run
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = up_to(1_000_000))]
    pub connections: usize,
    /// Maximum number of requests in flight per connection
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = up_to(65_536))]
    pub pipeline: usize,
    /// Body size of a request in bytes
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub payload_bytes: usize,
    /// Duration of the measurement
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub duration_secs: f64,
    /// Duration of the warm-up before the measurement
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub warm_up_secs: f64,
    /// Threads of the load, each with its own runtime
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = up_to(1024))]
    pub threads: usize,
    /// Requests per second on all connections together, open loop: latency is measured from the time a request was
    /// due; without it each answer is followed by the next request
    #[arg(long, value_name = "N", value_parser = rate)]
    pub rate: Option<f64>,
    /// One write for all requests that are sent after one read; this is the default
    #[arg(long)]
    pub batch: bool,
    /// One write per request, as in the load of nacelle
    #[arg(long, conflicts_with = "batch")]
    pub one_write_per_request: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().map_err(|e| format!("{e}"))?;
    if (0.0..=86_400.0).contains(&seconds) { Ok(seconds) } else { Err("must be from 0 to 86400".to_owned()) }
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().map_err(|e| format!("{e}"))?;
    if (0.001..=1e9).contains(&rate) { Ok(rate) } else { Err("must be from 0.001 to 1000000000".to_owned()) }
}

fn up_to(max: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=max)
}
