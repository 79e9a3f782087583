//! Every key of the configuration: its name, whose it is, what it may be, its value in each profile.
//!
//! A key is here because two workloads want different values of it. Everything else is a constant
//! beside the code that it concerns.

use super::units::{TimeUnit, show_bytes, show_time};

/// Who reads a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The broker; at the top of the file.
    Broker,
    /// Clients, those of the command line included; under `[client]`.
    Client,
}

/// What a value may be.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A whole number in a range.
    Count {
        min: u64,
        max: u64,
    },
    /// A number of bytes, also as `64KiB`, `16MiB`, `1GiB`.
    Bytes {
        min: u64,
        max: u64,
    },
    /// A time, as `500ms`, `90s` or `1h`, or as a number of its unit.
    Time {
        unit: TimeUnit,
        min: u64,
        max: u64,
    },
    Bool,
    Choice(&'static [&'static str]),
    /// `host:port`, a port of this machine, or `off`.
    Address,
    /// Any text, also none.
    Text,
    /// The same, and what is shown is only whether there is any.
    Secret,
}

impl Kind {
    /// Writes a checked value as people read it: sizes and times with their units.
    pub fn show(self, value: &str) -> String {
        match (self, value.parse()) {
            (Self::Bytes { .. }, Ok(bytes)) => show_bytes(bytes),
            (Self::Time { unit, .. }, Ok(time)) => show_time(time, unit),
            _ => value.to_owned(),
        }
    }

    /// Writes a checked value as a file has it, so that it can be read again.
    pub fn show_toml(self, value: &str) -> String {
        let shown = self.show(value);
        let is_bare = matches!(self, Self::Bool) || (self.is_number() && shown.bytes().all(|b| b.is_ascii_digit()));
        // A larger number does not fit TOML's.
        if is_bare && shown.len() < 19 { shown } else { toml::Value::String(shown).to_string() }
    }

    fn is_number(self) -> bool {
        matches!(self, Self::Count { .. } | Self::Bytes { .. } | Self::Time { .. })
    }
}

pub struct Key {
    pub name: &'static str,
    pub scope: Scope,
    pub kind: Kind,
    /// The values in the profiles balanced, latency and throughput.
    pub profiles: [&'static str; 3],
    /// The values for the sizes small, medium and large, where the size decides.
    pub sizes: Option<[&'static str; 3]>,
    pub help: &'static str,
}

pub const PROFILES: [&str; 3] = ["balanced", "latency", "throughput"];
pub const SIZES: [&str; 4] = ["none", "small", "medium", "large"];
pub const LANE_POLICIES: [&str; 4] = ["auto", "subscriber_id_hash", "connection_id_hash", "round_robin_pin"];
pub const AUTH: [&str; 2] = ["off", "required"];
pub const SQS_AUTH: [&str; 2] = ["off", "verify"];
pub const LOG_FORMATS: [&str; 2] = ["text", "json"];

const fn key(name: &'static str, scope: Scope, kind: Kind, default: &'static str, help: &'static str) -> Key {
    Key { name, scope, kind, profiles: [default; 3], sizes: None, help }
}

const fn tuned(
    name: &'static str,
    scope: Scope,
    kind: Kind,
    profiles: [&'static str; 3],
    sizes: Option<[&'static str; 3]>,
    help: &'static str,
) -> Key {
    Key { name, scope, kind, profiles, sizes, help }
}

const fn count(min: u64, max: u64) -> Kind {
    Kind::Count { min, max }
}

const fn bytes(min: u64, max: u64) -> Kind {
    Kind::Bytes { min, max }
}

const fn millis(min: u64, max: u64) -> Kind {
    Kind::Time { unit: TimeUnit::Millis, min, max }
}

const MILLIS: Kind = millis(1, 86_400_000);
const WINDOW: Kind = bytes(64 << 10, 16 << 30);

use Scope::{Broker, Client};

#[rustfmt::skip]
pub const KEYS: &[Key] = &[
    key("profile", Broker, Kind::Choice(&PROFILES), "balanced", "Which column of defaults to start from"),
    key("size", Broker, Kind::Choice(&SIZES), "none", "Defaults for a load: small < 10 k msg/s, medium < 100 k, large < 500 k"),
    // Where to listen, and who may come.
    key("native", Broker, Kind::Address, "127.0.0.1:7400", "The native protocol, over QUIC and TCP"),
    key("http", Broker, Kind::Address, "127.0.0.1:7401", "HTTP: records, SSE, WebSocket, metrics, health"),
    key("kafka", Broker, Kind::Address, "127.0.0.1:9092", "Kafka's clients and tools, over TCP and TLS"),
    key("kafka_advertised", Broker, Kind::Text, "", "Where Kafka's clients are told to connect, host:port; none is the address that they came to"),
    key("pubsub", Broker, Kind::Address, "127.0.0.1:8085", "Google Pub/Sub's clients and tools: gRPC and REST"),
    key("pubsub_project", Broker, Kind::Text, "thalweg", "The Google project whose topics and subscriptions have the names that other doors know them by"),
    key("pubsub_push_allow", Broker, Kind::Text, "", "Where messages may be pushed to: networks, addresses, and names as *.example.com that lead to public addresses, with commas; never the broker itself"),
    key("tls_cert", Broker, Kind::Text, "", "Certificate chain, PEM; made on the spot where none is named"),
    key("tls_key", Broker, Kind::Text, "", "The key of tls_cert, PEM"),
    key("insecure", Broker, Kind::Bool, "false", "Allow other machines without TLS or with a certificate made on the spot"),
    key("auth", Broker, Kind::Choice(&AUTH), "off", "Whether clients have to log in, where their protocol can: Kafka's with SASL, Redis's with AUTH"),
    key("users", Broker, Kind::Secret, "", "Users that are there from the start: name:password, with commas; thalweg user adds others"),
    key("super_users", Broker, Kind::Text, "", "Users who may do everything, with commas"),
    key("authorization", Broker, Kind::Bool, "false", "Whether other users may do only what thalweg acl allows; a Kafka client that does not log in is User:ANONYMOUS"),
    key("redis", Broker, Kind::Address, "127.0.0.1:6379", "Redis's clients and tools, over TCP and TLS"),
    key("redis_durable", Broker, Kind::Bool, "false", "Keep Redis's databases in the data directory: their caches db0 to db15 are made durable"),
    key("sqs", Broker, Kind::Address, "127.0.0.1:9324", "Amazon SQS's SDKs and tools, over HTTP and TLS"),
    key("sqs_account", Broker, Kind::Text, "000000000000", "The account of SQS requests whose access key is none, 12 digits; its queues have the same names at every door"),
    key("sqs_region", Broker, Kind::Text, "us-east-1", "The region of SQS requests that name none; its queues have the same names at every door"),
    key("sqs_url", Broker, Kind::Text, "", "How the URLs of SQS queues begin, http://host:port; none is the address that the request came to"),
    key("sqs_cooldown_s", Broker, Kind::Time { unit: TimeUnit::Seconds, min: 0, max: 60 }, "0", "How long the name of a deleted SQS queue is taken, and a queue cannot be purged again; AWS has 60"),
    key("sqs_auth", Broker, Kind::Choice(&SQS_AUTH), "off", "Whether SQS requests have to be signed with one of sqs_credentials (AWS Signature Version 4)"),
    key("sqs_credentials", Broker, Kind::Secret, "", "Access keys of SQS clients: key:secret or key:secret:account, with commas"),
    key("connections_max", Broker, count(1, 1_000_000), "65536", "Open connections of each door"),
    key("connections_per_peer_max", Broker, count(0, 1_000_000), "0", "Open connections of one address at each door; 0 is 4096, and connections_max from this machine"),
    key("peer_topics_per_minute", Broker, count(0, 1_000_000), "0", "Topics that one address may create in a minute; 0 is 1000, and 64000 from this machine"),
    key("peer_groups_per_minute", Broker, count(0, 1_000_000), "0", "Consumer groups that one address may create in a minute; 0 is 250, and 16000 from this machine"),
    key("peer_queues_per_minute", Broker, count(0, 1_000_000), "0", "Queues that one address may create in a minute; 0 is 1000, and 64000 from this machine"),
    key("peer_caches_per_minute", Broker, count(0, 1_000_000), "0", "Caches that one address may create in a minute; 0 is 15, and 960 from this machine"),
    key("peer_channels_per_minute", Broker, count(0, 1_000_000), "0", "Channels without a topic that one address may begin to use in a minute; 0 is 250, and 16000 from this machine"),
    key("overflow_block_allow", Broker, Kind::Text, "127.0.0.0/8,::1", "Whose subscriptions may make publishers wait (overflow = block): networks and addresses, with commas"),
    key("hello_timeout_ms", Broker, MILLIS, "5000", "How long a connection may take for its handshake, and its login where it needs one"),
    key("shutdown_timeout_ms", Broker, MILLIS, "10000", "How long to finish what is begun when stopped"),
    key("shards", Broker, count(0, 1024), "0", "Threads that serve connections; 0 is one a core"),
    key("quic_endpoints", Broker, count(0, 64), "0", "QUIC sockets on the port; 0 is one for two cores, at most 4"),
    key("http_body_max_bytes", Broker, bytes(1 << 10, 8 << 20), "4MiB", "The largest body of an HTTP request"),
    key("http_hosts", Broker, Kind::Text, "", "Hosts that HTTP, SQS and Pub/Sub answer for: name, *.domain or name:port, with commas; none is any. A door on loopback answers for localhost and these"),
    key("http_cors_origins", Broker, Kind::Text, "", "Origins whose web pages may use HTTP: https://app.example.com, with commas, or * for any"),
    key("http_trusted_proxies", Broker, Kind::Text, "", "Proxies that may say for whom they forward: addresses or networks, with commas"),
    key("http_access_log", Broker, Kind::Bool, "false", "Log every HTTP request, with the target net::access"),
    // What topics keep.
    key("memory_max", Broker, bytes(1 << 20, 1 << 44), "1GiB", "Bytes that all logs in memory hold together"),
    key("cache_memory_max", Broker, bytes(1 << 20, 1 << 44), "1GiB", "Bytes that all caches hold together"),
    key("response_memory_max", Broker, bytes(1 << 20, 1 << 44), "160MiB", "Bytes that answers which clients have not read, and what is decompressed for them, hold together at all doors (but fetches of Kafka, which have their own 1 GiB); one address has half of it"),
    key("record_expansion_max", Broker, count(1, 8), "1", "How many times the largest batch of its topic the records of a compressed batch may have once they are decompressed"),
    key("auto_create_topics", Broker, Kind::Bool, "true", "Create a topic when a client publishes to it, and a cache when a client uses it"),
    key("default_partitions", Broker, count(1, 1024), "1", "Partitions of a topic that names none"),
    key("retention_bytes", Broker, bytes(0, 1 << 44), "64MiB", "Bytes that a partition in memory keeps; 0 is no limit of its own"),
    key("retention_ms", Broker, millis(0, u64::MAX), "3600000", "How long a batch stays in memory; 0 is no limit"),
    key("data", Broker, Kind::Text, "", "The directory of topics on disk; without one all topics are in memory"),
    key("disk_retention_bytes", Broker, bytes(0, 1 << 50), "0", "Bytes that a partition on disk keeps; 0 is no limit"),
    key("disk_retention_ms", Broker, millis(0, u64::MAX), "604800000", "How long a batch stays on disk; 0 is no limit"),
    key("compaction_bytes_per_s", Broker, bytes(1 << 10, 1 << 40), "64MiB", "What compaction reads and writes in a second at most"),
    key("tombstone_retention_ms", Broker, millis(0, 1 << 50), "86400000", "How long a record without a value stays in a compacted topic at least"),
    key("offsets_retention_ms", Broker, millis(0, u64::MAX), "604800000", "How long a consumer group without members keeps its offsets; 0 is no limit"),
    key("transactional_id_expiration_ms", Broker, millis(0, u64::MAX), "604800000", "How long a transactional id is kept after its last transaction; 0 is no limit"),
    key("group_initial_delay_ms", Broker, millis(0, 300_000), "0", "How long Kafka consumers that found a group wait for more before they share out partitions; Kafka waits 3000"),
    // Publishing.
    tuned("ack_on_commit", Broker, Kind::Bool, ["true"; 3], None, "Whether a publish that names no acks is acknowledged when it is on disk, where its topic is"),
    tuned("pub_queue_depth", Broker, count(1, 65_536), ["1024", "512", "4096"], Some(["512", "1024", "2048"]), "Publishes of a connection before the first is answered"),
    key("pub_workers_per_conn", Broker, count(1, 64), "4", "Publish streams of a QUIC connection that are served side by side"),
    key("publish_queue_wait_timeout_ms", Broker, MILLIS, "2000", "How long a publish waits for subscribers that block"),
    // Fanout.
    tuned("fanout_batch_size", Broker, count(1, 65_536), ["64", "8", "256"], None, "Publishes that are handed to subscribers together"),
    tuned("event_batch_max_events", Broker, count(1, 1_048_576), ["64", "8", "256"], Some(["32", "64", "128"]), "Records in one write to a subscriber"),
    tuned("event_batch_max_bytes", Broker, bytes(1, 8 << 20), ["65536", "32768", "1048576"], None, "Bytes in one write to a subscriber; a larger batch goes alone"),
    tuned("event_batch_max_delay_us", Broker, Kind::Time { unit: TimeUnit::Micros, min: 0, max: 10_000_000 }, ["250", "100", "2000"], None, "How long a lane waits for company, once batches have had company"),
    tuned("subscriber_queue_capacity", Broker, count(1, 65_536), ["128", "64", "256"], Some(["64", "128", "256"]), "Batches that wait for one subscriber"),
    key("subscriber_queue_max_bytes", Broker, bytes(1 << 10, 1 << 34), "64MiB", "Bytes that wait for one subscriber"),
    tuned("subscriber_writer_lanes", Broker, count(1, 64), ["4", "2", "8"], Some(["2", "4", "8"]), "Tasks that write to subscribers"),
    key("max_subscriber_writer_lanes", Broker, count(1, 64), "8", "Never more lanes than this"),
    key("subscriber_lane_queue_depth", Broker, count(1, 1_048_576), "8192", "Batches that wait in one lane"),
    key("subscriber_lane_shard", Broker, Kind::Choice(&LANE_POLICIES), "auto", "How a subscriber gets its lane"),
    // Telemetry.
    key("disable_timings", Broker, Kind::Bool, "false", "Leave out the latency histograms"),
    key("otlp_endpoint", Broker, Kind::Text, "", "OpenTelemetry collector to send metrics to, as http://localhost:4318"),
    key("otlp_interval_ms", Broker, MILLIS, "10000", "How often metrics are sent there"),
    key("log", Broker, Kind::Text, "info", "What is logged: a level, or target=level,..."),
    key("log_format", Broker, Kind::Choice(&LOG_FORMATS), "text", "How the log is written"),
    // Clients.
    key("server", Client, Kind::Text, "127.0.0.1:7400", "The broker: [quic://|tcp://|tls://]host[:port]"),
    key("ca_file", Client, Kind::Text, "", "Certificates to trust, PEM; none trusts the system's"),
    tuned("pub_conn_pool", Client, count(1, 256), ["4", "2", "8"], Some(["2", "4", "8"]), "Connections for publishing"),
    tuned("pub_streams_per_conn", Client, count(1, 64), ["2", "1", "4"], None, "Publish streams of each of them, over QUIC"),
    tuned("event_conn_pool", Client, count(1, 256), ["8", "4", "16"], Some(["4", "8", "16"]), "Connections for subscriptions"),
    tuned("cache_conn_pool", Client, count(1, 256), ["8", "4", "16"], Some(["4", "8", "16"]), "Connections for caches"),
    tuned("cache_streams_per_conn", Client, count(1, 64), ["4", "2", "8"], None, "Streams of each of them, over QUIC; the broker serves pub_workers_per_conn of them side by side"),
    tuned("event_conn_recv_window", Client, WINDOW, ["256MiB", "64MiB", "512MiB"], None, "Bytes on the way to one connection"),
    tuned("event_stream_recv_window", Client, WINDOW, ["64MiB", "16MiB", "128MiB"], None, "Bytes on the way to one subscription"),
    tuned("cache_conn_recv_window", Client, WINDOW, ["256MiB", "64MiB", "512MiB"], None, "Bytes on the way to one connection for caches"),
    tuned("cache_stream_recv_window", Client, WINDOW, ["64MiB", "16MiB", "128MiB"], None, "Bytes on the way to one of its streams"),
    tuned("event_send_window", Client, WINDOW, ["256MiB", "64MiB", "512MiB"], None, "Bytes on the way from one connection"),
    tuned("publish_chunk_bytes", Client, bytes(1, 8 << 20), ["16384", "16384", "32768"], None, "Records that a publisher gathers before it sends them"),
    key("publishes_in_flight_max", Client, count(1, 65_536), "256", "Batches of a publisher that wait for their acknowledgement"),
    key("connect_timeout_ms", Client, MILLIS, "5000", "How long connecting may take"),
    key("request_timeout_ms", Client, MILLIS, "30000", "How long a request may take, with all its tries"),
];
