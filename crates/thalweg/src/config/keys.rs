//! Every key of the configuration: its name, its scope, its allowed values and its default in each profile.
//!
//! A value is a key only if two workloads need different values. Every other value is a constant
//! next to the code that uses it.

use super::units::{TimeUnit, show_bytes, show_time};

/// The part of Thalweg that reads a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The broker; at the top of the file.
    Broker,
    /// Clients, including those of the command line; under `[client]`.
    Client,
}

/// The type and the range of a value.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A whole number in a range.
    Count {
        /// Smallest allowed value.
        min: u64,
        /// Largest allowed value.
        max: u64,
    },
    /// A number of bytes, also written as `64KiB`, `16MiB` or `1GiB`.
    Bytes {
        /// Smallest allowed number of bytes.
        min: u64,
        /// Largest allowed number of bytes.
        max: u64,
    },
    /// A time, written as `500ms`, `90s` or `1h`, or as a number of its unit.
    Time {
        /// Unit of a number without one.
        unit: TimeUnit,
        /// Smallest allowed number of units.
        min: u64,
        /// Largest allowed number of units.
        max: u64,
    },
    /// A number from 0 to 1.
    Ratio,
    /// `true` or `false`.
    Bool,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// `host:port`, a port of this machine, or `off`.
    Address,
    /// Any text, which may be empty.
    Text,
    /// Any text. The output shows only that it is set.
    Secret,
}

impl Kind {
    /// Formats a checked value for people: sizes and times with their units.
    pub fn show(self, value: &str) -> String {
        match (self, value.parse()) {
            (Self::Bytes { .. }, Ok(bytes)) => show_bytes(bytes),
            (Self::Time { unit, .. }, Ok(time)) => show_time(time, unit),
            _ => value.to_owned(),
        }
    }

    /// Formats a checked value as TOML that the configuration file can contain.
    pub fn show_toml(self, value: &str) -> String {
        let shown = self.show(value);
        let is_bare =
            matches!(self, Self::Bool | Self::Ratio) || (self.is_number() && shown.bytes().all(|b| b.is_ascii_digit()));
        // A larger number does not fit into an integer of TOML.
        if is_bare && shown.len() < 19 { shown } else { toml::Value::String(shown).to_string() }
    }

    fn is_number(self) -> bool {
        matches!(self, Self::Count { .. } | Self::Bytes { .. } | Self::Time { .. })
    }
}

/// Key of the configuration.
pub struct Key {
    /// Name of the key in the file.
    pub name: &'static str,
    /// Part of Thalweg that reads the key.
    pub scope: Scope,
    /// Type and range of the value.
    pub kind: Kind,
    /// The defaults in the profiles balanced, latency and throughput.
    pub profiles: [&'static str; 3],
    /// The defaults for the sizes small, medium and large, if the key depends on the size.
    pub sizes: Option<[&'static str; 3]>,
    /// Meaning of the key, for people.
    pub help: &'static str,
}

/// Values of the key `profile`.
pub const PROFILES: [&str; 3] = ["balanced", "latency", "throughput"];
/// Values of the key `size`.
pub const SIZES: [&str; 4] = ["none", "small", "medium", "large"];
/// Values of the key `subscriber_lane_policy`.
pub const LANE_POLICIES: [&str; 4] = ["auto", "subscriber_id_hash", "connection_id_hash", "round_robin_pin"];
/// Values of the key `auth`.
pub const AUTH: [&str; 2] = ["off", "required"];
/// Values of the key `unix_mode`: the broker's user, also its group, everyone.
pub const UNIX_MODES: [&str; 3] = ["0600", "0660", "0666"];
const TLS_CLIENT_AUTH: [&str; 2] = ["requested", "required"];
/// Values of the key `sqs_auth`.
pub const SQS_AUTH: [&str; 2] = ["off", "verify"];
/// Values of the key `mesh_role`.
pub const MESH_ROLES: [&str; 2] = ["hub", "leaf"];
/// Values of the key `audit`.
pub const AUDIT: [&str; 3] = ["auto", "on", "off"];
/// Values of the key `log_format`.
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

/// Former names of keys, and their names now.
pub const RENAMED: &[(&str, &str)] = &[("shards", "threads"), ("subscriber_lane_shard", "subscriber_lane_policy")];

/// All keys, in the order in which they are shown.
#[rustfmt::skip]
pub const KEYS: &[Key] = &[
    key("profile", Broker, Kind::Choice(&PROFILES), "balanced", "Set of defaults to start from"),
    key("size", Broker, Kind::Choice(&SIZES), "none", "Defaults for a load: small < 10 k msg/s, medium < 100 k, large < 500 k"),
    // Doors, certificates, users and limits of connections.
    key("native", Broker, Kind::Address, "127.0.0.1:7400", "Address of the native door, QUIC and TCP"),
    key("http", Broker, Kind::Address, "127.0.0.1:7401", "Address of the HTTP door: records, SSE, WebSocket, metrics, health"),
    key("native_unix", Broker, Kind::Text, "", "Path of a Unix socket of the native door; clients of the broker's own user, and of root, are administrators there"),
    key("http_unix", Broker, Kind::Text, "", "Path of a Unix socket of the HTTP door; clients of the broker's own user, and of root, are administrators there"),
    key("unix_mode", Broker, Kind::Choice(&UNIX_MODES), "0600", "Permissions of native_unix and http_unix: who on this machine may connect"),
    key("kafka", Broker, Kind::Address, "127.0.0.1:9092", "Address of the Kafka door, TCP and TLS"),
    key("kafka_advertised", Broker, Kind::Text, "", "Advertised address for Kafka clients, host:port; by default the one they connected to"),
    key("pubsub", Broker, Kind::Address, "127.0.0.1:8085", "Address of the Google Pub/Sub door, gRPC and REST"),
    key("pubsub_project", Broker, Kind::Text, "thalweg", "Google project whose topics and subscriptions have the same names at every door"),
    key("pubsub_push_allow", Broker, Kind::Text, "", "Allowed push endpoints, comma-separated: networks, addresses, and names such as *.example.com that resolve to public addresses; never the broker itself"),
    key("tls_cert", Broker, Kind::Text, "", "PEM file with the certificate chain; by default a self-signed certificate is generated"),
    key("tls_key", Broker, Kind::Text, "", "PEM file with the private key of tls_cert"),
    key("tls_client_ca", Broker, Kind::Text, "", "PEM file of the authorities that issue client certificates; a client with a certificate of theirs is logged in at every door"),
    key("tls_client_auth", Broker, Kind::Choice(&TLS_CLIENT_AUTH), "requested", "Whether clients over TLS need a certificate of tls_client_ca"),
    key("tls_client_allow", Broker, Kind::Text, "", "Names or SHA-256 fingerprints of the only client certificates that are accepted, comma-separated"),
    key("tls_client_crl", Broker, Kind::Text, "", "PEM file of certificate revocation lists of tls_client_ca"),
    key("tls_client_names", Broker, Kind::Text, "", "Rules that name the users of client certificates, as ssl.principal.mapping.rules of Kafka; by default the common name"),
    key("oidc_issuer", Broker, Kind::Text, "", "Issuer whose JSON Web Tokens log clients in: the claim iss, https://... of an OpenID provider"),
    key("oidc_audience", Broker, Kind::Text, "", "Audiences of which a token of oidc_issuer needs one, comma-separated"),
    key("oidc_jwks", Broker, Kind::Text, "", "File or https URL of the public keys of oidc_issuer; by default where its description says"),
    key("oidc_user_claim", Broker, Kind::Text, "sub", "Claim of a token with the name of the user"),
    key("oidc_roles_claim", Broker, Kind::Text, "groups", "Claim of a token whose values oidc_roles maps to roles"),
    key("oidc_roles", Broker, Kind::Text, "", "Roles of tokens, VALUE=ROLE, comma-separated, for values of oidc_roles_claim"),
    key("oidc_tenant_claim", Broker, Kind::Text, "", "Claim of a token with the tenant of its client; by default tokens name none"),
    key("oidc_clock_skew_s", Broker, Kind::Time { unit: TimeUnit::Seconds, min: 0, max: 300 }, "60", "Maximum difference between the clocks of oidc_issuer and the broker"),
    key("insecure", Broker, Kind::Bool, "false", "Allow other machines to connect without TLS, or with a generated certificate"),
    key("auth", Broker, Kind::Choice(&AUTH), "off", "Require a login at every door"),
    key("users", Broker, Kind::Secret, "", "Users that are created on startup, name:password, comma-separated; thalweg user adds others"),
    key("super_users", Broker, Kind::Text, "", "Users who may do everything, comma-separated"),
    key("authorization", Broker, Kind::Bool, "false", "Limit all other users to what thalweg acl allows; a client that is not logged in is User:ANONYMOUS"),
    key("audit", Broker, Kind::Choice(&AUDIT), "auto", "Record logins, refusals and administrative acts in the topic _audit; auto: on if auth = required or authorization = true"),
    key("audit_file", Broker, Kind::Text, "", "File to which the records of the audit are appended, too, one JSON object per line"),
    key("audit_retention_ms", Broker, millis(0, u64::MAX), "7776000000", "Time for which the topic _audit retains records, which is at most 1 GiB; 0: no limit"),
    key("redis", Broker, Kind::Address, "127.0.0.1:6379", "Address of the Redis door, TCP and TLS"),
    key("redis_durable", Broker, Kind::Bool, "false", "Make the Redis databases, the caches db0 to db15, durable when they are created; needs data"),
    key("redis_keyspace_events", Broker, Kind::Text, "", "Classes of keyspace events that Redis clients may subscribe to, as notify-keyspace-events: letters of KEg$lshzxetdnmA"),
    key("sqs", Broker, Kind::Address, "127.0.0.1:9324", "Address of the Amazon SQS door, HTTP and TLS"),
    key("sqs_account", Broker, Kind::Text, "000000000000", "12-digit AWS account of SQS requests whose access key is not an account; its queues have the same names at every door"),
    key("sqs_region", Broker, Kind::Text, "us-east-1", "AWS region of SQS requests that name no region; its queues have the same names at every door"),
    key("sqs_url", Broker, Kind::Text, "", "Base of SQS queue URLs, http://host:port; by default the address that the request was sent to"),
    key("sqs_cooldown_s", Broker, Kind::Time { unit: TimeUnit::Seconds, min: 0, max: 60 }, "0", "Time for which the name of a deleted SQS queue stays reserved, and a queue cannot be purged again; AWS: 60"),
    key("sqs_auth", Broker, Kind::Choice(&SQS_AUTH), "off", "Require that SQS requests are signed (AWS Signature Version 4) with a key of `thalweg key` or of sqs_credentials"),
    key("sqs_credentials", Broker, Kind::Secret, "", "Access keys of SQS clients, key:secret or key:secret:account, comma-separated"),
    key("connections_max", Broker, count(1, 1_000_000), "65536", "Maximum number of open connections per door"),
    key("connections_per_peer_max", Broker, count(0, 1_000_000), "0", "Maximum number of open connections per address and door; 0: 4096, and connections_max from this machine"),
    key("peer_topics_per_minute", Broker, count(0, 1_000_000), "0", "Topics that one address may create per minute; 0: 1000, and 64000 from this machine"),
    key("peer_groups_per_minute", Broker, count(0, 1_000_000), "0", "Consumer groups that one address may create per minute; 0: 250, and 16000 from this machine"),
    key("peer_queues_per_minute", Broker, count(0, 1_000_000), "0", "Queues that one address may create per minute; 0: 1000, and 64000 from this machine"),
    key("peer_caches_per_minute", Broker, count(0, 1_000_000), "0", "Caches that one address may create per minute; 0: 15, and 960 from this machine"),
    key("peer_channels_per_minute", Broker, count(0, 1_000_000), "0", "New channels without a topic that one address may use per minute; 0: 250, and 16000 from this machine"),
    key("overflow_block_allow", Broker, Kind::Text, "127.0.0.0/8,::1", "Networks and addresses whose subscriptions may make publishers wait (overflow = block), comma-separated"),
    key("hello_timeout_ms", Broker, MILLIS, "5000", "Time limit for the handshake of a connection, including its login if required"),
    key("shutdown_timeout_ms", Broker, MILLIS, "10000", "Time limit for finishing pending work at shutdown"),
    key("threads", Broker, count(0, 1024), "0", "Threads that serve connections; 0: one per core"),
    key("quic_endpoints", Broker, count(0, 64), "0", "QUIC sockets on the port; 0: one per two cores, at most 4"),
    key("http_body_max_bytes", Broker, bytes(1 << 10, 8 << 20), "4MiB", "Maximum size of an HTTP request body"),
    key("http_hosts", Broker, Kind::Text, "", "Host names that HTTP, SQS and Pub/Sub accept: name, *.domain or name:port, comma-separated; by default any. A door on a loopback address accepts only localhost and these"),
    key("http_cors_origins", Broker, Kind::Text, "", "Origins whose web pages may use HTTP, such as https://app.example.com, comma-separated; * for any, without a login and without administration"),
    key("http_trusted_proxies", Broker, Kind::Text, "", "Proxies whose forwarding headers are trusted: addresses and networks, comma-separated"),
    key("http_access_log", Broker, Kind::Bool, "false", "Log every HTTP request, with the log target net::access"),
    key("http_console", Broker, Kind::Bool, "true", "Serve the web console at /console of the HTTP door"),
    // Memory, topics and retention.
    key("memory_max", Broker, bytes(1 << 20, 1 << 44), "1GiB", "Maximum size of all logs in memory together"),
    key("cache_memory_max", Broker, bytes(1 << 20, 1 << 44), "1GiB", "Maximum size of all caches together"),
    key("response_memory_max", Broker, bytes(1 << 20, 1 << 44), "160MiB", "Memory for responses that clients have not read and the data decompressed for them, at all doors together; one address may use half. Kafka fetches have a separate 1 GiB"),
    key("record_expansion_max", Broker, count(1, 8), "1", "Maximum decompressed size of a compressed batch, as a multiple of the largest batch of its topic; at least 1 MiB"),
    key("auto_create_topics", Broker, Kind::Bool, "true", "Create a missing topic when a client publishes to it, and a missing cache when a client uses it"),
    key("default_partitions", Broker, count(1, 1024), "1", "Number of partitions of a topic that is created without one"),
    key("retention_bytes", Broker, bytes(0, 1 << 44), "64MiB", "Bytes that a partition in memory retains; 0: no limit but memory_max"),
    key("retention_ms", Broker, millis(0, u64::MAX), "3600000", "Time for which a batch is retained in memory; 0: no limit"),
    key("data", Broker, Kind::Text, "", "Data directory; without one all topics are in memory"),
    key("cluster", Broker, Kind::Address, "off", "Address of a node's cluster port, TLS; by default the one that `thalweg cluster init` or `join` was given"),
    key("cluster_status", Broker, Kind::Address, "off", "Address at which a node answers for itself, whether it leads or follows: /metrics, /healthz and /readyz over HTTP, without a login"),
    key("cluster_catch_up_bytes_per_s", Broker, bytes(64 << 10, 1 << 40), "64MiB", "Maximum number of bytes per second that a node sends to another one that catches up"),
    key("cluster_verify_bytes_per_s", Broker, bytes(0, 1 << 40), "4MiB", "Number of bytes of its files that a node reads per second to find damage, which it replaces from the leader; 0: none"),
    key("mesh", Broker, Kind::Address, "off", "Address at which other sites of a mesh reach this one, over UDP with TLS; off: this site only dials out"),
    key("mesh_advertise", Broker, Kind::Text, "", "Address by which other sites reach this one, host:port; by default that of mesh, if it is not 0.0.0.0 or [::]. For the nodes of a cluster, the addresses of all, comma-separated"),
    key("mesh_role", Broker, Kind::Choice(&MESH_ROLES), "hub", "Whether this site relays between sites that cannot reach each other (hub) or not (leaf)"),
    key("mesh_sent_bytes_per_s", Broker, bytes(0, 1 << 40), "0", "Maximum number of bytes of records that this site sends to each other site per second; what exceeds it waits in the log of its topic. 0: no limit"),
    key("mesh_received_bytes_per_s", Broker, bytes(0, 1 << 40), "0", "Maximum number of bytes of records that this site takes from each other site per second; what exceeds it waits at that site. 0: no limit"),
    tuned("mesh_subscribers_ttl_ms", Broker, millis(0, 3_600_000), ["5000", "2000", "30000"], None, "Time after which the sites that read a live topic are looked up again; 0: at each publish"),
    tuned("mesh_discovery_interval_min_ms", Broker, millis(0, 600_000), ["2000", "1000", "10000"], None, "Minimum time between two lookups of the same topic; records wait for the next one, none is dropped"),
    key("disk_retention_bytes", Broker, bytes(0, 1 << 50), "0", "Bytes that a partition on disk retains; 0: no limit"),
    key("disk_retention_ms", Broker, millis(0, u64::MAX), "604800000", "Time for which a batch is retained on disk; 0: no limit"),
    key("compaction_bytes_per_s", Broker, bytes(1 << 10, 1 << 40), "64MiB", "Maximum number of bytes that compaction reads and writes per second"),
    key("tombstone_retention_ms", Broker, millis(0, 1 << 50), "86400000", "Minimum time that a record without a value stays in a compacted topic"),
    key("offsets_retention_ms", Broker, millis(0, u64::MAX), "604800000", "Time for which a consumer group without members keeps its offsets; 0: no limit"),
    key("transactional_id_expiration_ms", Broker, millis(0, u64::MAX), "604800000", "Time for which a transactional id is kept after its last transaction; 0: no limit"),
    key("group_initial_delay_ms", Broker, millis(0, 300_000), "0", "Time for which a new Kafka consumer group waits for more members before its first assignment; Kafka: 3000"),
    // Publishing.
    tuned("ack_on_commit", Broker, Kind::Bool, ["true"; 3], None, "Acknowledge a publish that names no acks only after it is committed: on disk, if its topic is stored there"),
    tuned("pub_queue_depth", Broker, count(1, 65_536), ["1024", "512", "4096"], Some(["512", "1024", "2048"]), "Publishes in flight per connection; announced to clients, not enforced"),
    key("pub_workers_per_conn", Broker, count(1, 64), "4", "Publish streams served concurrently per QUIC connection"),
    key("publish_queue_wait_timeout_ms", Broker, MILLIS, "2000", "Time for which a publish waits for a full subscriber with overflow = block"),
    // Fanout.
    tuned("fanout_batch_size", Broker, count(1, 65_536), ["64", "8", "256"], None, "Maximum number of publishes handed to subscribers together"),
    tuned("event_batch_max_events", Broker, count(1, 1_048_576), ["64", "8", "256"], Some(["32", "64", "128"]), "Maximum number of records in one write to a subscriber; a larger batch is sent alone"),
    tuned("event_batch_max_bytes", Broker, bytes(1, 8 << 20), ["65536", "32768", "1048576"], None, "Maximum number of bytes in one write to a subscriber; a larger batch is sent alone"),
    tuned("event_batch_max_delay_us", Broker, Kind::Time { unit: TimeUnit::Micros, min: 0, max: 10_000_000 }, ["250", "100", "2000"], None, "Time for which a lane under load waits for more batches before it writes"),
    tuned("subscriber_queue_capacity", Broker, count(1, 65_536), ["128", "64", "256"], Some(["64", "128", "256"]), "Maximum number of batches queued for one subscriber"),
    key("subscriber_queue_max_bytes", Broker, bytes(1 << 10, 1 << 34), "64MiB", "Maximum number of bytes queued for one subscriber"),
    tuned("subscriber_writer_lanes", Broker, count(1, 64), ["4", "2", "8"], Some(["2", "4", "8"]), "Number of lanes: tasks that write to subscribers"),
    key("max_subscriber_writer_lanes", Broker, count(1, 64), "8", "Upper limit of subscriber_writer_lanes"),
    key("subscriber_lane_queue_depth", Broker, count(1, 1_048_576), "8192", "Maximum number of batches queued in one lane"),
    key("subscriber_lane_policy", Broker, Kind::Choice(&LANE_POLICIES), "auto", "How subscribers are assigned to lanes"),
    // Telemetry.
    key("disable_timings", Broker, Kind::Bool, "false", "Do not record the latency histograms"),
    key("otlp_endpoint", Broker, Kind::Text, "", "OpenTelemetry collector that receives the metrics, such as http://localhost:4318"),
    key("otlp_interval_ms", Broker, MILLIS, "10000", "Interval between exports to otlp_endpoint"),
    key("tracing", Broker, Kind::Bool, "false", "Send spans of traced records to otlp_endpoint: those whose producers trace them, and those of tracing_sample_ratio"),
    key("tracing_sample_ratio", Broker, Kind::Ratio, "0", "Share of the records without a trace context that are traced, from 0 to 1"),
    key("log", Broker, Kind::Text, "info", "Log filter: a level, or target=level,..."),
    key("log_format", Broker, Kind::Choice(&LOG_FORMATS), "text", "Format of the log"),
    // Clients.
    key("server", Client, Kind::Text, "127.0.0.1:7400", "Address of the broker: [quic://|tcp://|tls://]host[:port], or unix:PATH; of several nodes of a cluster, separated by commas; by default that of native, if it is set"),
    key("user", Client, Kind::Text, "", "User to log in as; the command line asks for the password if none is set"),
    key("password", Client, Kind::Secret, "", "Password of `user`; set THALWEG_PASSWORD rather than an option, which others can see"),
    key("password_file", Client, Kind::Text, "", "File whose first line is the password of `user`"),
    key("token", Client, Kind::Secret, "", "Token to log in with; set THALWEG_TOKEN rather than an option, which others can see"),
    key("token_file", Client, Kind::Text, "", "File whose first line is the token to log in with"),
    key("client_cert", Client, Kind::Text, "", "PEM file with the certificate chain of this client, to log in with over TLS and QUIC"),
    key("client_key", Client, Kind::Text, "", "PEM file with the private key of client_cert"),
    key("ca_file", Client, Kind::Text, "", "PEM file with trusted certificates; by default those of the system"),
    tuned("pub_conn_pool", Client, count(1, 256), ["4", "2", "8"], Some(["2", "4", "8"]), "Maximum number of connections for publishing"),
    tuned("pub_streams_per_conn", Client, count(1, 64), ["2", "1", "4"], None, "Publish streams per QUIC connection of pub_conn_pool"),
    tuned("event_conn_pool", Client, count(1, 256), ["8", "4", "16"], Some(["4", "8", "16"]), "Maximum number of connections for subscriptions"),
    tuned("cache_conn_pool", Client, count(1, 256), ["8", "4", "16"], Some(["4", "8", "16"]), "Maximum number of connections for caches"),
    tuned("cache_streams_per_conn", Client, count(1, 64), ["4", "2", "8"], None, "Streams per QUIC connection of cache_conn_pool; the broker serves pub_workers_per_conn of them concurrently"),
    tuned("event_conn_recv_window", Client, WINDOW, ["256MiB", "64MiB", "512MiB"], None, "Receive window of a connection for subscriptions"),
    tuned("event_stream_recv_window", Client, WINDOW, ["64MiB", "16MiB", "128MiB"], None, "Receive window of one subscription"),
    tuned("cache_conn_recv_window", Client, WINDOW, ["256MiB", "64MiB", "512MiB"], None, "Receive window of a connection for caches"),
    tuned("cache_stream_recv_window", Client, WINDOW, ["64MiB", "16MiB", "128MiB"], None, "Receive window of one stream of a connection for caches"),
    tuned("event_send_window", Client, WINDOW, ["256MiB", "64MiB", "512MiB"], None, "Send window of a connection"),
    tuned("publish_chunk_bytes", Client, bytes(1, 8 << 20), ["16384", "16384", "32768"], None, "Bytes of records that a publisher collects before it sends a batch"),
    key("publishes_in_flight_max", Client, count(1, 65_536), "256", "Maximum number of unacknowledged batches per publisher"),
    key("connect_timeout_ms", Client, MILLIS, "5000", "Time limit for connecting"),
    key("request_timeout_ms", Client, MILLIS, "30000", "Time limit for a request, including all its attempts"),
];
