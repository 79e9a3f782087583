//! Configuration: the values that the user set, checked as a whole, with their origins.
//!
//! A value is taken from a flag, else from a `THALWEG_*` variable, else from the context, else from the file, else from
//! the size, else from the profile.

mod builder;
pub mod contexts;
mod definitions;
pub mod keys;
mod layers;
mod mesh;
mod show;
mod traces;
pub mod units;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use broker::{ConfiguredUser, Door, Issuer, LanePolicy};
use client::ClientSettings;
use engine::security::{NameRules, RoleName, UserName};
use engine::{FeedLimits, TopicSettings, nearest};
use net::UnixSocket;
use net::http::IpNetwork;
use net::tls::{ClientAuth, Fingerprint};
use storage::{CompactionSettings, StoreSettings};

pub use builder::Builder;
use contexts::Chosen;
pub use definitions::Definitions;
use keys::{KEYS, Key, Kind, PROFILES, RENAMED, SIZES, Scope};
pub use layers::ContextUse;
pub use show::Remark;
use traces::parse_ratio;
use units::{parse_bytes, parse_time};

use crate::door_table::{Common, TABLE};
use crate::issuer::KeySource;

/// Prefix of the environment variables.
const ENV_PREFIX: &str = "THALWEG_";
/// Prefix of the variables that `thalweg queue work` sets for its commands, which may run this program again.
pub const ENV_MESSAGE_PREFIX: &str = "THALWEG_MESSAGE_";
/// Text that replaces a hidden value.
const HIDDEN: &str = "(hidden)";
/// Variables with [`ENV_PREFIX`] that are not keys.
const ENV_OTHERS: [&str; 3] = ["THALWEG_CONFIG", "THALWEG_JSON", ENV_CONTEXT];
/// Variable with the name of the context.
pub const ENV_CONTEXT: &str = "THALWEG_CONTEXT";
/// Keys about users, passwords and tokens.
const LOGIN_KEYS: [&str; 5] = ["user", "password", "password_file", "token", "token_file"];

/// Returns the options of the command line that set a key. Other keys are set with `--set`.
pub fn flags() -> impl Iterator<Item = &'static str> {
    ["server", "ca-file", "token-file", "data", "profile", "insecure"]
        .into_iter()
        .chain(Door::ALL.into_iter().map(Door::key))
}

/// Source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The value is the same in all profiles.
    Default,
    /// The value is the default of this profile.
    Profile(&'static str),
    /// The value is the default of this size.
    Size(&'static str),
    /// The value was set in this file.
    File(PathBuf),
    /// The value was set in the context of this name.
    Context(String),
    /// The value was set by this environment variable.
    Env(String),
    /// The value was set by the flag of this name, or by `--set`.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Profile(name) => write!(f, "profile {name}"),
            Self::Size(name) => write!(f, "size {name}"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Context(name) => write!(f, "context {name}"),
            Self::Env(name) => write!(f, "${name}"),
            Self::Flag(name) if flags().any(|flag| flag == name) => write!(f, "--{name}"),
            Self::Flag(name) => write!(f, "--set {}", name.replace('-', "_")),
        }
    }
}

/// Error in a configuration, with advice on how to fix it.
#[derive(Debug, PartialEq, Eq)]
pub struct ConfigError(pub String);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

type Result<T> = std::result::Result<T, ConfigError>;

/// Every key with its value and its origin. Invariant: each value was checked against its kind.
#[derive(Clone, Debug)]
pub struct Config {
    values: BTreeMap<&'static str, (String, Origin)>,
    definitions: Definitions,
    context: ContextUse,
}

/// Credential of a client.
pub enum Credential<'a> {
    /// The configuration has none.
    None,
    /// User and password; the password is `None` if no key has it.
    User(&'a str, Option<String>),
    /// A token.
    Token(String),
}

/// Unchecked values of the user, by source.
#[derive(Default)]
pub struct Sources {
    /// Configuration file, if there is one.
    pub file: Option<PathBuf>,
    /// Context, if there is one.
    pub context: Option<Chosen>,
    /// Environment variables with their full names.
    pub env: Vec<(String, String)>,
    /// Flags, each with the name of its key.
    pub flags: Vec<(&'static str, String)>,
}

impl Sources {
    /// Adds the environment variables of this process.
    pub fn with_env(mut self) -> Self {
        self.env = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(name, _)| name.starts_with(ENV_PREFIX) && !name.starts_with(ENV_MESSAGE_PREFIX))
            .filter(|(name, _)| !ENV_OTHERS.contains(&name.as_str()))
            .collect();
        self
    }
}

/// Default maximum number of connections from one address of another machine, at each door.
const REMOTE_CONNECTIONS_MAX: usize = 4096;

impl Config {
    /// Reads the file of the sources, combines it with the other values, and checks everything.
    pub fn load(sources: &Sources) -> Result<Self> {
        let mut written: Vec<(&'static Key, String, Origin)> = Vec::new();
        let mut definitions = Definitions::default();
        if let Some(path) = &sources.file {
            let found = read_file(path, &mut definitions)?;
            written.extend(found.into_iter().map(|(key, value)| (key, value, Origin::File(path.clone()))));
        }
        let mut above: Vec<(&'static Key, String, Origin)> = Vec::new();
        for (name, value) in &sources.env {
            let key = find(&name[ENV_PREFIX.len()..].to_lowercase(), &format!("${name}"))?;
            above.push((key, value.clone(), Origin::Env(name.clone())));
        }
        for (name, value) in &sources.flags {
            let key = find(name, &format!("--{name}"))?;
            above.push((key, value.clone(), Origin::Flag(name.replace('_', "-"))));
        }
        let context = layers::insert_context(&mut written, sources.context.as_ref(), &above)?;
        written.extend(above);
        for (key, value, origin) in &mut written {
            *value = check(key, value).map_err(|e| ConfigError(format!("{} ({origin}): {e}", key.name)))?;
        }
        let chosen = |name: &str, among: &[&'static str]| -> usize {
            let value = written.iter().rev().find(|(key, ..)| key.name == name).map(|(_, value, _)| value.as_str());
            among.iter().position(|choice| Some(*choice) == value).unwrap_or(0)
        };
        let profile = chosen("profile", &PROFILES);
        let size = chosen("size", &SIZES);
        let mut values = BTreeMap::new();
        for key in KEYS {
            let default = match (key.sizes, size) {
                (Some(sizes), 1..) => (sizes[size - 1], Origin::Size(SIZES[size])),
                _ if key.profiles.iter().all(|value| *value == key.profiles[0]) => (key.profiles[0], Origin::Default),
                _ => (key.profiles[profile], Origin::Profile(PROFILES[profile])),
            };
            let value = check(key, default.0).map_err(|e| ConfigError(format!("{}: {e}", key.name)))?;
            values.insert(key.name, (value, default.1));
        }
        for (key, value, origin) in written {
            values.insert(key.name, (value, origin));
        }
        let mut config = Self { values, definitions, context };
        if let Some(server) = config.server_of_native() {
            config.values.insert("server", server);
        }
        config.check_whole()?;
        Ok(config)
    }

    /// Returns the address of the broker that this configuration starts, with the origin of that address: commands next
    /// to it connect there if they have no `server`. Returns `None` if either key decides otherwise.
    fn server_of_native(&self) -> Option<(String, Origin)> {
        let (_, server_origin) = self.values.get("server")?;
        let (native, origin) = self.values.get("native")?;
        if *server_origin != Origin::Default || *origin == Origin::Default {
            return None;
        }
        let server = match native.parse::<SocketAddr>() {
            Ok(address) if address.port() == 0 => return None,
            Ok(mut address) if address.ip().is_unspecified() => {
                address.set_ip(if address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
                address.to_string()
            }
            Ok(address) => address.to_string(),
            Err(_name) if native == "off" => return None,
            Err(_name) => native.clone(),
        };
        Some((server, origin.clone()))
    }

    /// Returns a builder that sets a configuration key by key.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Returns the defaults of the profile `balanced`.
    pub fn defaults() -> Self {
        Self::load(&Sources::default()).unwrap_or_else(|e| unreachable!("invariant: the defaults are valid: {e}"))
    }

    /// Returns the topics and queues that are created on startup.
    pub fn definitions(&self) -> &Definitions {
        &self.definitions
    }

    /// Returns whether there is a context, and whether it is used.
    pub fn context(&self) -> &ContextUse {
        &self.context
    }

    /// Returns every key in the order of the table, with its value (secrets are hidden) and its origin.
    pub fn entries(&self) -> impl Iterator<Item = (&'static Key, &str, &Origin)> {
        let shown = |key: &Key, value: &'_ str| !matches!(key.kind, Kind::Secret) || value.is_empty();
        KEYS.iter().filter_map(move |key| {
            let (value, origin) = self.values.get(key.name)?;
            Some((key, if shown(key, value) { value.as_str() } else { HIDDEN }, origin))
        })
    }

    /// Checks the rules that concern more than one key.
    fn check_whole(&self) -> Result<()> {
        if self.text("tls_cert").is_empty() != self.text("tls_key").is_empty() {
            return Err(ConfigError("tls_cert and tls_key belong together: set both or neither".into()));
        }
        if self.text("client_cert").is_empty() != self.text("client_key").is_empty() {
            return Err(ConfigError("client_cert and client_key belong together: set both or neither".into()));
        }
        self.client_auth()?;
        let windows = [
            ("event_stream_recv_window", "event_conn_recv_window"),
            ("cache_stream_recv_window", "cache_conn_recv_window"),
        ];
        if let Some((stream, conn)) = windows.into_iter().find(|(stream, conn)| self.bytes(stream) > self.bytes(conn)) {
            return Err(ConfigError(format!("{stream} is larger than {conn}, which bounds it")));
        }
        for (door, address) in self.doors()? {
            self.check_bind(door, address)?;
        }
        self.check_unix_sockets()?;
        for row in &TABLE {
            (row.settings)(self, Common::to_check(self))?;
        }
        self.check_tracing()?;
        self.may_block()?;
        self.security()?;
        Ok(())
    }

    /// Checks that a door that other machines can reach has a certificate and requires a login.
    fn check_bind(&self, door: Door, address: SocketAddr) -> Result<()> {
        if address.ip().is_loopback() || self.bool("insecure") {
            return Ok(());
        }
        let door = door.key();
        if self.text("tls_cert").is_empty() {
            return Err(ConfigError(format!(
                "{door} = {address} can be reached from other machines without a certificate that they can trust; bind \
                 it to 127.0.0.1, set tls_cert and tls_key, or use --insecure"
            )));
        }
        if !self.is_login_required() {
            return Err(ConfigError(format!(
                "{door} = {address} can be reached from other machines, and lets every client do everything; bind it \
                 to 127.0.0.1, set auth = required with users, or use --insecure"
            )));
        }
        Ok(())
    }

    /// Returns the users, and the settings of access control.
    fn security(&self) -> Result<broker::SecuritySettings> {
        let name =
            |key: &str, name: &str| UserName::parse(name).map_err(|e| ConfigError(format!("{key}: {}", e.message)));
        let user = |written: &str| match written.split_once(':') {
            Some((user, password)) if !password.is_empty() => {
                let name = name("users", user)?;
                name.check_not_reserved().map_err(|e| ConfigError(format!("users: {}", e.message)))?;
                Ok(ConfiguredUser { name, password: password.into() })
            }
            _ => Err(ConfigError("users: write name:password, comma-separated".into())),
        };
        Ok(broker::SecuritySettings {
            users: self.list("users").map(user).collect::<Result<_>>()?,
            super_users: self.list("super_users").map(|user| name("super_users", user)).collect::<Result<_>>()?,
            is_authorizing: self.bool("authorization"),
            certificate_names: NameRules::parse(self.text("tls_client_names"))
                .map_err(|error| ConfigError(format!("tls_client_names: {}", error.message)))?,
            issuer: self.issuer()?.map(|(issuer, _)| issuer),
        })
    }

    /// Returns the issuer of JSON Web Tokens, and the source of its keys.
    pub(crate) fn issuer(&self) -> Result<Option<(Issuer, KeySource)>> {
        let name = self.text("oidc_issuer");
        let audiences: Vec<String> = self.list("oidc_audience").map(str::to_owned).collect();
        if name.is_empty() {
            let is_set = |key: &&&str| !self.text(key).is_empty();
            return match ["oidc_audience", "oidc_jwks", "oidc_roles"].iter().find(is_set) {
                Some(key) => Err(ConfigError(format!("{key} has no effect without oidc_issuer: set that, too"))),
                None => Ok(None),
            };
        }
        if audiences.is_empty() {
            return Err(ConfigError(
                "oidc_audience is missing: without it, tokens of oidc_issuer for any other service would log in".into(),
            ));
        }
        let role = |pair: &str| match pair.split_once('=') {
            Some((value, role)) if !value.trim().is_empty() => Ok((
                value.trim().to_owned(),
                RoleName::parse(role.trim()).map_err(|error| ConfigError(format!("oidc_roles: {}", error.message)))?,
            )),
            _ => Err(ConfigError("oidc_roles: write VALUE=ROLE, comma-separated".into())),
        };
        let source = KeySource::parse(self.text("oidc_jwks"), name)
            .map_err(|error| ConfigError(format!("oidc_jwks, oidc_issuer: {error}")))?;
        let issuer = Issuer {
            name: name.to_owned(),
            audiences,
            user_claim: self.text("oidc_user_claim").to_owned(),
            roles_claim: self.text("oidc_roles_claim").to_owned(),
            roles: self.list("oidc_roles").map(role).collect::<Result<_>>()?,
            tenant_claim: Some(self.text("oidc_tenant_claim")).filter(|claim| !claim.is_empty()).map(str::to_owned),
            clock_skew: Duration::from_secs(self.count("oidc_clock_skew_s")),
        };
        Ok(Some((issuer, source)))
    }

    /// Returns how clients are admitted by their certificates.
    fn client_auth(&self) -> Result<Option<ClientAuth>> {
        let Some(roots) = self.path("tls_client_ca") else {
            let others = ["tls_client_allow", "tls_client_crl", "tls_client_names"];
            let is_set = |key: &&&str| !self.text(key).is_empty();
            let is_required = self.text("tls_client_auth") == "required";
            return match others.iter().find(is_set).or(is_required.then_some(&"tls_client_auth")) {
                Some(key) => Err(ConfigError(format!("{key} has no effect without tls_client_ca: set that, too"))),
                None => Ok(None),
            };
        };
        let (fingerprints, names): (Vec<_>, Vec<_>) =
            self.list("tls_client_allow").partition(|allowed| allowed.parse::<Fingerprint>().is_ok());
        Ok(Some(ClientAuth {
            roots,
            is_required: self.text("tls_client_auth") == "required",
            names: names.into_iter().map(str::to_owned).collect(),
            fingerprints: fingerprints.into_iter().filter_map(|print| print.parse().ok()).collect(),
            revoked: self.path("tls_client_crl"),
        }))
    }

    /// Returns `true` if clients have to log in, at every door.
    pub fn is_login_required(&self) -> bool {
        self.text("auth") == "required"
    }

    /// Splits a value at its commas.
    pub(crate) fn list(&self, name: &str) -> impl Iterator<Item = &str> {
        self.text(name).split(',').map(str::trim).filter(|part| !part.is_empty())
    }

    pub(crate) fn trusted_proxies(&self) -> Result<Vec<IpNetwork>> {
        let name = "http_trusted_proxies";
        let networks = self.list(name).map(str::parse::<IpNetwork>);
        networks.collect::<std::result::Result<_, _>>().map_err(|e| ConfigError(format!("{name}: {e}")))
    }

    /// Returns the hosts that the HTTP doors answer for.
    pub(crate) fn http_hosts(&self) -> Result<Vec<String>> {
        match self.list("http_hosts").find(|host| host.contains('/') || host.contains(' ')) {
            Some(wrong) => {
                Err(ConfigError(format!("http_hosts: '{wrong}' is not a host; write name, *.domain or name:port")))
            }
            None => Ok(self.list("http_hosts").map(str::to_owned).collect()),
        }
    }

    /// Returns the networks whose subscriptions may make publishers wait.
    fn may_block(&self) -> Result<broker::Networks> {
        let name = "overflow_block_allow";
        broker::Networks::parse(self.text(name)).map_err(|e| ConfigError(format!("{name}: {}", e.message)))
    }

    fn peer_limits(&self) -> broker::PeerLimits {
        let count = |name| u32::try_from(self.count(name)).unwrap_or(u32::MAX);
        broker::PeerLimits {
            topics_per_minute: count("peer_topics_per_minute"),
            groups_per_minute: count("peer_groups_per_minute"),
            queues_per_minute: count("peer_queues_per_minute"),
            caches_per_minute: count("peer_caches_per_minute"),
            channels_per_minute: count("peer_channels_per_minute"),
            may_block: self.may_block().unwrap_or_else(|e| unreachable!("invariant: it was checked: {e}")),
        }
    }

    pub(crate) fn text(&self, name: &str) -> &str {
        &self.values.get(name).unwrap_or_else(|| unreachable!("invariant: {name} is a key")).0
    }

    pub(crate) fn count(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or_else(|e| unreachable!("invariant: {name} was checked: {e}"))
    }

    pub(crate) fn size(&self, name: &str) -> usize {
        usize::try_from(self.count(name)).unwrap_or(usize::MAX)
    }

    /// Returns a size in bytes, which is a plain number after the check.
    pub(crate) fn bytes(&self, name: &str) -> u64 {
        self.count(name)
    }

    pub(crate) fn bool(&self, name: &str) -> bool {
        self.text(name) == "true"
    }

    pub(crate) fn millis(&self, name: &str) -> Duration {
        Duration::from_millis(self.count(name))
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        Some(self.text(name)).filter(|path| !path.is_empty()).map(PathBuf::from)
    }

    /// Returns the address of a door, or `None` if the door is off.
    pub fn address(&self, name: &str) -> Result<Option<SocketAddr>> {
        let text = self.text(name);
        if text == "off" {
            return Ok(None);
        }
        let mut found = text.to_socket_addrs().map_err(|e| {
            ConfigError(format!("{name} = {text}: {e}; write host:port, a port of this machine, or off"))
        })?;
        found
            .next()
            .map(Some)
            .ok_or_else(|| ConfigError(format!("{name} = {text}: the name does not resolve to an address")))
    }

    /// Returns the Unix socket of a door that has one, if a path is set.
    pub fn unix_socket(&self, door: Door) -> Option<UnixSocket> {
        let path = self.path(match door {
            Door::Native => "native_unix",
            Door::Http => "http_unix",
            Door::Kafka | Door::Pubsub | Door::Redis | Door::Sqs => return None,
        })?;
        // The values of the key are octal numbers.
        let mode = u32::from_str_radix(self.text("unix_mode"), 8).unwrap_or(0o600);
        Some(UnixSocket { path, mode })
    }

    /// Checks that a door with a Unix socket is open, and that no other door has that socket.
    fn check_unix_sockets(&self) -> Result<()> {
        let sockets = Door::ALL.into_iter().filter_map(|door| Some((door, self.unix_socket(door)?)));
        let mut paths: Vec<PathBuf> = Vec::new();
        for (door, UnixSocket { path, .. }) in sockets {
            let key = door.key();
            if self.address(key)?.is_none() {
                let message =
                    format!("{key}_unix has no effect while {key} = off: set {key} = 127.0.0.1:0, or remove it");
                return Err(ConfigError(message));
            }
            if paths.contains(&path) {
                return Err(ConfigError(format!("{key}_unix: another door has the socket {}", path.display())));
            }
            paths.push(path);
        }
        Ok(())
    }

    /// Returns the doors that are not off, with their addresses.
    pub fn doors(&self) -> Result<Vec<(Door, SocketAddr)>> {
        let addresses = Door::ALL.into_iter().map(|door| Ok(self.address(door.key())?.map(|address| (door, address))));
        addresses.filter_map(Result::transpose).collect()
    }

    /// Returns the settings of the data directory.
    pub fn store(&self) -> StoreSettings {
        let compaction = CompactionSettings {
            bytes_per_s: self.bytes("compaction_bytes_per_s"),
            tombstone_retention_ms: self.count("tombstone_retention_ms"),
            ..CompactionSettings::default()
        };
        StoreSettings { compaction, ..StoreSettings::default() }
    }

    /// Returns the settings of the broker.
    pub fn broker(&self) -> broker::Settings {
        let policy = self.text("subscriber_lane_policy");
        let lanes = self.size("subscriber_writer_lanes").min(self.size("max_subscriber_writer_lanes"));
        broker::Settings {
            clock: broker::Clock::SYSTEM,
            auto_create_topics: self.bool("auto_create_topics"),
            topic_defaults: TopicSettings {
                partitions: self.count("default_partitions") as u32,
                retention_bytes: self.bytes("retention_bytes"),
                retention_ms: self.count("retention_ms"),
                ..TopicSettings::default()
            },
            disk_topic_defaults: TopicSettings {
                partitions: self.count("default_partitions") as u32,
                retention_bytes: self.bytes("disk_retention_bytes"),
                retention_ms: self.count("disk_retention_ms"),
                ..TopicSettings::on_disk()
            },
            log_bytes_max: self.size("memory_max"),
            cache_bytes_max: self.bytes("cache_memory_max"),
            record_expansion_max: self.size("record_expansion_max"),
            response_bytes_max: self.bytes("response_memory_max"),
            ack_on_commit: self.bool("ack_on_commit"),
            pub_queue_depth: self.size("pub_queue_depth"),
            pub_workers_per_conn: self.size("pub_workers_per_conn"),
            subscriber_queue: FeedLimits {
                batches_max: self.size("subscriber_queue_capacity"),
                bytes_max: self.size("subscriber_queue_max_bytes"),
            },
            event_batch_max_events: self.size("event_batch_max_events"),
            event_batch_max_bytes: self.size("event_batch_max_bytes"),
            event_batch_max_delay: Duration::from_micros(self.count("event_batch_max_delay_us")),
            fanout_batch_size: self.size("fanout_batch_size"),
            writer_lanes: lanes,
            lane_queue_depth: self.size("subscriber_lane_queue_depth"),
            lane_policy: LanePolicy::ALL
                .into_iter()
                .find(|(name, _)| *name == policy)
                .map_or(LanePolicy::Auto, |(_, policy)| policy),
            publish_wait: self.millis("publish_queue_wait_timeout_ms"),
            offsets_retention: self.millis("offsets_retention_ms"),
            transactional_id_expiration: self.millis("transactional_id_expiration_ms"),
            group_initial_delay: self.millis("group_initial_delay_ms"),
            timings: !self.bool("disable_timings"),
            security: self.security().unwrap_or_else(|e| unreachable!("invariant: it was checked: {e}")),
            audit: self.audit(),
            peer_limits: self.peer_limits(),
            tracing: self.tracing(),
        }
    }

    fn audit(&self) -> broker::AuditSettings {
        let is_on = match self.text("audit") {
            "auto" => self.is_login_required() || self.bool("authorization"),
            text => text == "on",
        };
        let file = Some(self.text("audit_file")).filter(|path| !path.is_empty()).map(PathBuf::from);
        broker::AuditSettings { is_on, file, retention: self.millis("audit_retention_ms") }
    }

    /// Returns the data directory, which holds the topics on disk.
    pub fn data(&self) -> Option<PathBuf> {
        let data = self.text("data");
        (!data.is_empty()).then(|| PathBuf::from(data))
    }

    /// Returns the settings of clients, as the commands use them.
    pub fn client(&self) -> ClientSettings {
        ClientSettings {
            pub_conn_pool: self.size("pub_conn_pool"),
            pub_streams_per_conn: self.size("pub_streams_per_conn"),
            event_conn_pool: self.size("event_conn_pool"),
            cache_conn_pool: self.size("cache_conn_pool"),
            cache_streams_per_conn: self.size("cache_streams_per_conn"),
            event_conn_recv_window: self.bytes("event_conn_recv_window"),
            event_stream_recv_window: self.bytes("event_stream_recv_window"),
            cache_conn_recv_window: self.bytes("cache_conn_recv_window"),
            cache_stream_recv_window: self.bytes("cache_stream_recv_window"),
            event_send_window: self.bytes("event_send_window"),
            publish_chunk_bytes: self.size("publish_chunk_bytes"),
            publishes_in_flight_max: self.size("publishes_in_flight_max"),
            connect_timeout: self.millis("connect_timeout_ms"),
            request_timeout: self.millis("request_timeout_ms"),
            ca_file: self.path("ca_file"),
            identity: self.path("client_cert").zip(self.path("client_key")),
            login: None,
            name: format!("thalweg-cli/{}", env!("CARGO_PKG_VERSION")),
            observer: None,
        }
    }

    /// Returns the credential with which clients log in.
    pub fn credential(&self) -> Result<Credential<'_>> {
        let user = self.text("user");
        match (user, self.secret("token", "token_file")?) {
            ("", None) => Ok(Credential::None),
            ("", Some(token)) => Ok(Credential::Token(token)),
            (user, None) => Ok(Credential::User(user, self.secret("password", "password_file")?)),
            (_, Some(_)) => Err(ConfigError("user and token are both set: remove one".into())),
        }
    }

    /// Returns the secret that a key has, or the first line of the file that another key names.
    fn secret(&self, key: &str, file_key: &str) -> Result<Option<String>> {
        match (self.text(key), self.text(file_key)) {
            ("", "") => Ok(None),
            ("", file) => {
                let text = std::fs::read_to_string(file)
                    .map_err(|error| ConfigError(format!("{file_key}: cannot read {file}: {error}")))?;
                Ok(Some(text.lines().next().unwrap_or_default().to_owned()))
            }
            (secret, "") => Ok(Some(secret.to_owned())),
            _ => Err(ConfigError(format!("{key} and {file_key} are both set: remove one"))),
        }
    }

    /// Returns the settings of the server, with values in place of those that are chosen automatically.
    pub fn server(&self) -> crate::server::ServerSettings {
        let or = |value: usize, default: usize| if value == 0 { default } else { value };
        crate::server::ServerSettings {
            threads: or(self.size("threads"), cores()),
            connections_max: self.size("connections_max"),
            connections_per_peer_max: or(self.size("connections_per_peer_max"), self.size("connections_max")),
            connections_per_remote_peer_max: or(self.size("connections_per_peer_max"), REMOTE_CONNECTIONS_MAX)
                .min(self.size("connections_max")),
            hello_timeout: self.millis("hello_timeout_ms"),
            shutdown_timeout: self.millis("shutdown_timeout_ms"),
            identity: self.path("tls_cert").zip(self.path("tls_key")),
            // The configuration was checked.
            client_auth: self.client_auth().unwrap_or_default(),
            allow_plain: self.bool("insecure"),
        }
    }

    /// Returns the number of QUIC sockets on the port of the native door.
    pub(crate) fn quic_endpoints(&self) -> usize {
        match self.size("quic_endpoints") {
            0 => (cores() / 2).clamp(1, 4),
            count => count,
        }
    }

    /// Returns the log filter, and `true` for the JSON format.
    pub fn log(&self) -> (&str, bool) {
        (self.text("log"), self.text("log_format") == "json")
    }

    /// Returns the address of the broker that commands connect to.
    pub fn server_address(&self) -> &str {
        self.text("server")
    }

    /// Returns the name of the profile.
    pub fn profile(&self) -> &str {
        self.text("profile")
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Reads the keys and definitions of a file. The keys of the broker are at its top, those of clients under `[client]`.
fn read_file(path: &Path, definitions: &mut Definitions) -> Result<Vec<(&'static Key, String)>> {
    let text = std::fs::read_to_string(path).map_err(|e| ConfigError(format!("{}: {e}", path.display())))?;
    let table: toml::Table =
        text.parse().map_err(|e| ConfigError(format!("{}: {}", path.display(), toml_fault(&text, &e))))?;
    let mut found = Vec::new();
    for (name, value) in &table {
        match (name.as_str(), value) {
            ("client", toml::Value::Table(client)) => {
                for (name, value) in client {
                    found.push(file_entry(path, name, value, Scope::Client)?);
                }
            }
            ("broker", toml::Value::Table(_)) => {
                let message = "keys of the broker are at the top of the file: remove the line [broker]";
                return Err(ConfigError(format!("{}: {message}", path.display())));
            }
            _ if definitions.read(path, name, value)? => {}
            _ => found.push(file_entry(path, name, value, Scope::Broker)?),
        }
    }
    Ok(found)
}

/// Returns the fault of a text that is not TOML, with its line, but not the text of that line: it may be a secret.
fn toml_fault(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start));
    let line = before.map_or(1, |before| before.matches('\n').count() + 1);
    format!("line {line}: {}", error.message())
}

fn file_entry(path: &Path, name: &str, value: &toml::Value, scope: Scope) -> Result<(&'static Key, String)> {
    let place = path.display().to_string();
    let key = find(name, &place)?;
    if key.scope != scope {
        let home = match key.scope {
            Scope::Broker => "at the top of the file",
            Scope::Client => "under [client]",
        };
        return Err(ConfigError(format!("{place}: {name} belongs {home}")));
    }
    match value {
        toml::Value::String(text) => Ok((key, text.clone())),
        toml::Value::Integer(n) => Ok((key, n.to_string())),
        toml::Value::Boolean(b) => Ok((key, b.to_string())),
        toml::Value::Float(n) => Ok((key, n.to_string())),
        // The value itself may be a secret.
        other => Err(ConfigError(format!("{place}: {name} is a text, a number or a bool, not {}", other.type_str()))),
    }
}

/// Returns the name of a key as it is written in the table of keys.
pub fn key_name(name: &str, place: &str) -> Result<&'static str> {
    find(name, place).map(|key| key.name)
}

/// Finds a key by its name. The error for an unknown name proposes its new name, or else the nearest known one.
fn find(name: &str, place: &str) -> Result<&'static Key> {
    KEYS.iter().find(|key| key.name == name).ok_or_else(|| {
        if let Some((_, renamed)) = RENAMED.iter().find(|(old, _)| *old == name) {
            return ConfigError(format!("{place}: the key {name} is now called {renamed}: write {renamed} instead"));
        }
        let hint = match nearest(name, KEYS.iter().map(|key| key.name)) {
            Some(nearest) => format!("; did you mean {nearest}?"),
            None => "; `thalweg config show` lists all keys".to_owned(),
        };
        ConfigError(format!("{place}: there is no key {name}{hint}"))
    })
}

/// Checks a value and returns its plain form.
fn check(key: &Key, value: &str) -> std::result::Result<String, String> {
    let range = |n: u64, min: u64, max: u64| -> std::result::Result<String, String> {
        if n < min || n > max {
            let [min, max] = [min, max].map(|bound| key.kind.show(&bound.to_string()));
            return Err(format!("{value} is not within {min} to {max}"));
        }
        Ok(n.to_string())
    };
    match key.kind {
        Kind::Count { min, max } => {
            let n = value.replace('_', "").parse().ok();
            range(n.ok_or_else(|| format!("'{value}' is not a whole number"))?, min, max)
        }
        Kind::Bytes { min, max } => range(parse_bytes(value)?, min, max),
        Kind::Time { unit, min, max } => range(parse_time(value, unit)?, min, max),
        Kind::Ratio => parse_ratio(value),
        Kind::Bool => match value {
            "true" | "false" => Ok(value.to_owned()),
            _ => Err(format!("'{value}' is neither true nor false")),
        },
        Kind::Choice(choices) => match choices.iter().find(|choice| **choice == value) {
            Some(choice) => Ok((*choice).to_owned()),
            None => Err(format!("'{value}' is not one of {}", choices.join(", "))),
        },
        Kind::Address => Ok(address(value)),
        Kind::Text | Kind::Secret => Ok(value.to_owned()),
    }
}

/// Returns an address in resolvable form. A port alone, `7500` or `:7500`, is one of this machine.
fn address(value: &str) -> String {
    let port = value.strip_prefix(':').unwrap_or(value);
    match port.parse::<u16>() {
        Ok(port) => format!("127.0.0.1:{port}"),
        Err(_) => value.to_owned(),
    }
}

#[cfg(test)]
const _: () = assert!(keys::LANE_POLICIES.len() == LanePolicy::ALL.len());

#[cfg(test)]
mod tests;
