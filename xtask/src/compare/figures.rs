//! Figures that `cargo xtask compare` measures, one per row, and their selection.

use std::collections::BTreeSet;

use super::number::Number::{self, Json, Text};
use super::ratio::Better;
use crate::run::Outcome;

/// Figure: its description, its run, and the number that it takes from the output.
#[derive(Debug)]
pub struct Figure {
    /// Name for `--only`: words with `-` between them.
    pub name: &'static str,
    /// Measured quantity, with its unit.
    pub about: &'static str,
    /// Run of the figure. Consecutive figures with equal runs take their numbers from the same run.
    pub run: Run,
    pub number: Number,
    pub better: Better,
    /// `true` if a low ratio fails the command. A figure that is only shown differs by more than 2 % between two rounds
    /// of one program: a 99th percentile, for example.
    pub is_checked: bool,
}

/// Run of one tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub kind: Kind,
    /// Arguments of the load. `{server}` is the address of the server, `{pid}` its process.
    pub load: &'static str,
    /// Further arguments of the default form: a run of about two seconds on two cores.
    pub size: &'static str,
    /// Further arguments of the quick form. A run without them takes too long for it.
    pub quick: Option<&'static str>,
}

/// Programs of the server and of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `thalweg serve` of each tree with these arguments, loaded by `thalweg bench` of the new one. `{data}` is an
    /// empty folder.
    Broker(&'static str),
    /// `thalweg bench rpc serve` of each tree with these arguments, loaded by `thalweg bench` of the new one.
    Rpc(&'static str),
    /// Program `thalweg bench` of each tree, which starts its own server.
    Own,
    /// Bench target of `crates/broker` of each tree, which has the broker in its own process.
    Bench(&'static str),
    /// Bench target whose phases take a fixed time. The programs of both trees run together on one processor, where
    /// they alternate every few milliseconds: a change of the machine's speed then affects both.
    TimedBench(&'static str),
}

/// Broker in memory, with the defaults.
const MEMORY: Kind = Kind::Broker("");
const DISK: Kind = Kind::Broker("--data {data}");

const fn run(kind: Kind, load: &'static str, [size, quick]: [&'static str; 2]) -> Run {
    Run { kind, load, size, quick: Some(quick) }
}

const fn higher(name: &'static str, about: &'static str, run: Run, number: Number) -> Figure {
    Figure { name, about, run, number, better: Better::Higher, is_checked: true }
}

const fn lower(name: &'static str, about: &'static str, run: Run, number: Number) -> Figure {
    Figure { name, about, run, number, better: Better::Lower, is_checked: true }
}

impl Figure {
    const fn only_shown(mut self) -> Self {
        self.is_checked = false;
        self
    }
}

// Publish/subscribe, as in docs/benchmarks/pubsub.md.
const FANOUT_1: Run = run(
    MEMORY,
    "pubsub --rate max --transport tcp --payload 100 --batch 0 --fanout 1 --pub-conns 1 --pub-streams 1 --acks none",
    ["--count 10000000", "--count 3000000"],
);
const FANOUT_10: Run = run(
    MEMORY,
    "pubsub --rate max --transport tcp --payload 256 --batch 0 --fanout 10 --pub-conns 1 --pub-streams 1 --acks none",
    ["--count 2000000", "--count 600000"],
);
const PUBLISH: Run = run(
    MEMORY,
    "pubsub --rate max --mode publish --transport tcp --payload 100 --batch 0 --pub-conns 1 --pub-streams 1 \
     --acks none",
    ["--count 12000000", "--count 4000000"],
);
const FANOUT_QUIC: Run = run(
    MEMORY,
    "pubsub --rate max --transport quic --payload 4096 --batch 64 --fanout 10",
    ["--count 80000", "--count 30000"],
);
const ONE_TCP: Run = run(
    MEMORY,
    "pubsub --mode end-to-end --transport tcp --payload 1024 --batch 1 --fanout 1 --pub-conns 1 --pub-streams 1",
    ["--count 80000", "--count 25000"],
);
const ONE_QUIC: Run = run(
    MEMORY,
    "pubsub --mode ack --transport quic --payload 256 --batch 1 --fanout 1 --pub-conns 1 --pub-streams 1",
    ["--count 40000", "--count 15000"],
);

// Streams, as in docs/benchmarks/streams.md.
const ONE_DISK: Run =
    run(DISK, "stream --mode one-in-flight --storage disk --server-pid {pid}", ["--records 20000", "--records 6000"]);
const STREAM_DISK: Run = run(
    DISK,
    "stream --mode 1m-1kb --storage disk --consumer after --server-pid {pid}",
    ["--records 1000000", "--records 300000"],
);
const STREAM_MEMORY: Run = run(
    Kind::Broker("--set memory_max=2GiB"),
    "stream --mode 3m-100b --storage memory --consumer after --server-pid {pid}",
    ["--records 6000000", "--records 2000000"],
);

// Caches, as in docs/benchmarks/caches.md.
const CACHE_QUIC: Run = run(
    MEMORY,
    "cache --transport quic --operation put,get-hit --value-bytes 256 --concurrency 32 --server-pid {pid}",
    ["--samples 400000", "--samples 100000"],
);
const CACHE_TCP: Run = run(
    MEMORY,
    "cache --transport tcp --operation put,get-hit --value-bytes 256 --concurrency 64 --server-pid {pid}",
    ["--samples 600000", "--samples 150000"],
);
const CACHE_DISK: Run = run(
    DISK,
    "cache --durable --transport tcp --operation put --value-bytes 256 --concurrency 64 --server-pid {pid}",
    ["--samples 200000", "--samples 60000"],
);
/// Calls of caches. The target measures for 2 seconds at a time, which no argument changes.
const CACHE_CALLS: Run = Run { kind: Kind::TimedBench("cache_load"), load: "speed", size: "", quick: None };

// Service runtime, as in docs/benchmarks/rpc.md.
const RPC: Kind = Kind::Rpc("--server-threads 1");
const RPC_TLS: Kind = Kind::Rpc("--server-threads 1 --tls");
const RPC_SECONDS: [&str; 2] = ["--duration-secs 2 --warm-up-secs 0.5", "--duration-secs 0.7 --warm-up-secs 0.2"];
const RPC_1: Run = run(RPC, "rpc load {server} --connections 64 --pipeline 1", RPC_SECONDS);
const RPC_8: Run = run(RPC, "rpc load {server} --connections 64 --pipeline 8", RPC_SECONDS);
const RPC_32: Run = run(RPC, "rpc load {server} --connections 64 --pipeline 32", RPC_SECONDS);
const RPC_8_TLS: Run =
    run(RPC_TLS, "rpc load {server} --connections 64 --pipeline 8 --tls --tls-insecure", RPC_SECONDS);

// Queues, as in docs/benchmarks/queues.md: `thalweg bench` has no load for them.
const QUEUE_CALLS: Run = run(Kind::Bench("queue_load"), "costs", ["", ""]);
const QUEUE_MEMORY: Run = run(Kind::Bench("queue_load"), "", ["", ""]);

const IDLE: Run = run(Kind::Own, "idle", ["--connections 2000", "--connections 500"]);

const DELIVERED: Number = Json("/delivered_per_s");
const PUBLISHED: Number = Json("/published_per_s");
const PRODUCED: Number = Json("/produced_per_s");
const CONSUMED: Number = Json("/consumed_per_s");
/// CPU time of a broker for the same number of records as in the other tree.
const BROKER_CPU: Number = Json("/server_cpu_seconds");
const BROKER_MEMORY: Number = Json("/server_resident_bytes_max");
const PUTS: Number = Json("/rows/0/operations_per_s");
const PUT_CPU: Number = Json("/rows/0/server_cpu_us_per_operation");
const GETS: Number = Json("/rows/1/operations_per_s");
const GET_CPU: Number = Json("/rows/1/server_cpu_us_per_operation");
const REQUESTS: Number = Json("/rps");

const fn call(line: &'static str) -> Number {
    Text { line, after: "of the batch), " }
}

const fn allocated(line: &'static str) -> Number {
    Text { line, after: ": " }
}

const fn on_1_thread(after: &'static str) -> Number {
    Text { line: "nothing evicted, 1 thread", after }
}

const fn on_2_threads(after: &'static str) -> Number {
    Text { line: "s3-fifo, 2 thread", after }
}

/// All figures, in the order in which they are measured.
pub const FIGURES: &[Figure] = &[
    higher("fanout-1", "100 B to 1 subscriber, TCP: deliveries/s", FANOUT_1, DELIVERED),
    lower("fanout-1-cpu", "100 B to 1 subscriber, TCP: CPU s of the broker", FANOUT_1, BROKER_CPU),
    higher("fanout-10", "256 B to 10 subscribers, TCP: deliveries/s", FANOUT_10, DELIVERED),
    lower("fanout-10-cpu", "256 B to 10 subscribers, TCP: CPU s of the broker", FANOUT_10, BROKER_CPU),
    higher("fanout-quic", "4 KiB to 10 subscribers, QUIC: deliveries/s", FANOUT_QUIC, DELIVERED),
    lower("fanout-quic-cpu", "4 KiB to 10 subscribers, QUIC: CPU s of the broker", FANOUT_QUIC, BROKER_CPU),
    higher("publish", "100 B to no subscriber, TCP: records/s", PUBLISH, PUBLISHED),
    lower("publish-cpu", "100 B to no subscriber, TCP: CPU s of the broker", PUBLISH, BROKER_CPU),
    lower("one-tcp-p50", "1 KiB in flight alone, TCP, to the subscriber: us", ONE_TCP, Json("/delivery_us/p50")),
    lower("one-tcp-p99", "1 KiB in flight alone, TCP, to the subscriber: us", ONE_TCP, Json("/delivery_us/p99"))
        .only_shown(),
    lower("one-quic-p50", "256 B in flight alone, QUIC, to the ack: us", ONE_QUIC, Json("/ack_us/p50")),
    lower("one-quic-p99", "256 B in flight alone, QUIC, to the ack: us", ONE_QUIC, Json("/ack_us/p99")).only_shown(),
    lower("one-disk-p50", "1 KB in flight alone, durable, to the ack: us", ONE_DISK, Json("/producer_us/p50")),
    lower("one-disk-p99", "1 KB in flight alone, durable, to the ack: us", ONE_DISK, Json("/producer_us/p99"))
        .only_shown(),
    lower("one-disk-e2e-p50", "1 KB in flight alone, durable, to the consumer: us", ONE_DISK, Json("/e2e_us/p50")),
    higher("stream-disk-produce", "1 KiB, durable, batches of 64: records/s", STREAM_DISK, PRODUCED),
    higher("stream-disk-consume", "1 KiB, read after all are durable: records/s", STREAM_DISK, CONSUMED),
    lower("stream-disk-cpu", "1 KiB, durable, produced and read: CPU s of the broker", STREAM_DISK, BROKER_CPU),
    lower("stream-disk-memory", "1 KiB, durable: resident bytes of the broker", STREAM_DISK, BROKER_MEMORY),
    higher("stream-memory-produce", "100 B, in memory, batches of 512: records/s", STREAM_MEMORY, PRODUCED),
    higher("stream-memory-consume", "100 B, read from memory: records/s", STREAM_MEMORY, CONSUMED),
    lower("stream-memory-cpu", "100 B, in memory, produced and read: CPU s of the broker", STREAM_MEMORY, BROKER_CPU),
    higher("cache-quic-put", "256 B, QUIC, 32 in flight: puts/s", CACHE_QUIC, PUTS),
    lower("cache-quic-put-cpu", "256 B, QUIC, 32 in flight: CPU us of the broker per put", CACHE_QUIC, PUT_CPU),
    higher("cache-quic-get", "256 B, QUIC, 32 in flight: gets/s", CACHE_QUIC, GETS),
    lower("cache-quic-get-cpu", "256 B, QUIC, 32 in flight: CPU us of the broker per get", CACHE_QUIC, GET_CPU),
    higher("cache-tcp-put", "256 B, TCP, 64 in flight: puts/s", CACHE_TCP, PUTS),
    lower("cache-tcp-put-cpu", "256 B, TCP, 64 in flight: CPU us of the broker per put", CACHE_TCP, PUT_CPU),
    higher("cache-tcp-get", "256 B, TCP, 64 in flight: gets/s", CACHE_TCP, GETS),
    lower("cache-tcp-get-cpu", "256 B, TCP, 64 in flight: CPU us of the broker per get", CACHE_TCP, GET_CPU),
    higher("cache-disk-put", "256 B, durable, TCP, 64 in flight: puts/s", CACHE_DISK, PUTS),
    lower("cache-disk-put-cpu", "256 B, durable, TCP: CPU us of the broker per put", CACHE_DISK, PUT_CPU),
    higher(
        "cache-call-get",
        "64 B, in the process, 1 thread, half a processor: million gets/s",
        CACHE_CALLS,
        on_1_thread("get "),
    ),
    higher(
        "cache-call-put",
        "64 B, in the process, 1 thread, half a processor: million puts/s",
        CACHE_CALLS,
        on_1_thread("put "),
    ),
    higher(
        "cache-call-get-2",
        "64 B, s3-fifo, 2 threads, half a processor: million gets/s each",
        CACHE_CALLS,
        on_2_threads("get "),
    ),
    higher(
        "cache-call-put-2",
        "64 B, s3-fifo, 2 threads, half a processor: million puts/s each",
        CACHE_CALLS,
        on_2_threads("put "),
    ),
    lower("queue-send", "100 B, in the process: ns per send", QUEUE_CALLS, call("send:")),
    lower("queue-send-1k", "1 KiB, in the process: ns per send", QUEUE_CALLS, call("send_1k:")),
    // The result is a whole number of nanoseconds, about 50.
    lower("queue-batch", "100 B, 1000 in a batch: ns per message", QUEUE_CALLS, call("batch:")).only_shown(),
    lower("queue-receive", "100 B, in the process: ns per receive of 1", QUEUE_CALLS, call("receive:")),
    lower("queue-receive-10", "100 B, in the process: ns per receive of 10", QUEUE_CALLS, call("receive_10:")),
    lower("queue-ack", "100 B, in the process: ns per acknowledgement", QUEUE_CALLS, call("ack:")),
    lower("queue-round-trip", "100 B, send, receive and ack: ns", QUEUE_CALLS, call("round_trip:")),
    lower("queue-memory", "allocated bytes of a waiting message of 100 B", QUEUE_MEMORY, allocated("a message of")),
    lower("queue-memory-lease", "allocated bytes of a lease", QUEUE_MEMORY, allocated("a lease")),
    higher("rpc-1", "64 connections, 1 in flight on each: requests/s", RPC_1, REQUESTS),
    higher("rpc-8", "64 connections, 8 in flight on each: requests/s", RPC_8, REQUESTS),
    higher("rpc-32", "64 connections, 32 in flight on each: requests/s", RPC_32, REQUESTS),
    higher("rpc-8-tls", "64 connections, 8 in flight on each, TLS: requests/s", RPC_8_TLS, REQUESTS),
    lower("idle-memory", "resident bytes of an idle broker", IDLE, Json("/idle_bytes")),
    lower("idle-connection", "resident bytes of an idle connection", IDLE, Json("/bytes_per_connection")),
    lower("idle-ready", "start to ready: ms", IDLE, Json("/ready_ms")),
];

/// Figures to measure.
#[derive(Debug, Default)]
pub struct Selection {
    pub figures: Vec<&'static Figure>,
    /// Figures that were not named and that the other options exclude.
    pub omitted: Vec<&'static Figure>,
}

impl Selection {
    /// Selects the named figures, or all. A name selects the figure and those whose names continue it after a `-`.
    /// Neither a quick run nor one of given programs (`is_built` is false then) can measure all.
    pub fn new(names: &[&str], is_quick: bool, is_built: bool) -> Outcome<Self> {
        for name in names {
            if !FIGURES.iter().any(|figure| figure.has_name(name)) {
                let all: Vec<_> = FIGURES.iter().map(|figure| figure.name).collect();
                return Err(format!("figure '{name}' does not exist: choose one of {}", all.join(", ")));
            }
        }
        let is_named = |figure: &&Figure| names.is_empty() || names.iter().any(|name| figure.has_name(name));
        let is_possible =
            |figure: &&Figure| (figure.run.quick.is_some() || !is_quick) && (is_built || !figure.is_of_a_bench());
        let (figures, omitted): (Vec<_>, Vec<_>) = FIGURES.iter().filter(is_named).partition(is_possible);
        match omitted.first() {
            Some(first) if !names.is_empty() => Err(format!(
                "figure '{}' has no quick form, or does not belong to the program `thalweg`: leave out --quick, \
                 --old-binary and --new-binary, or name other figures",
                first.name
            )),
            _ => Ok(Self { figures, omitted }),
        }
    }

    /// Returns the bench targets that the figures need.
    pub fn benches(&self) -> BTreeSet<&'static str> {
        let bench = |figure: &&'static Figure| match figure.run.kind {
            Kind::Bench(target) | Kind::TimedBench(target) => Some(target),
            Kind::Broker(_) | Kind::Rpc(_) | Kind::Own => None,
        };
        self.figures.iter().filter_map(bench).collect()
    }

    /// Returns `true` if any figure needs the program `thalweg`.
    pub fn needs_thalweg(&self) -> bool {
        self.figures.iter().any(|figure| !figure.is_of_a_bench())
    }

    /// Returns the figures of each run.
    pub fn runs(&self) -> impl Iterator<Item = &[&'static Figure]> {
        self.figures.chunk_by(|one, next| one.run == next.run)
    }
}

impl Figure {
    fn has_name(&self, name: &str) -> bool {
        self.name.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    }

    fn is_of_a_bench(&self) -> bool {
        matches!(self.run.kind, Kind::Bench(_) | Kind::TimedBench(_))
    }
}

#[cfg(test)]
#[path = "figures_tests.rs"]
mod tests;
