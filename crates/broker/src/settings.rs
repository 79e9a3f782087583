//! Settings of a broker: resolved, validated, and constant while it runs.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use engine::security::{NameRules, Password, RoleName, UserName};
use engine::{FeedLimits, TopicSettings};

use crate::audit::AuditSettings;
use crate::clock::Clock;
use crate::lanes::LanePolicy;
use crate::peers::PeerLimits;
use crate::traces::TracingSettings;

#[derive(Clone, Debug)]
pub struct Settings {
    /// Source of all timestamps, and of the times at which leases, entries and records end.
    pub clock: Clock,
    /// `true` if a publish or a subscription to a topic that does not exist creates the topic.
    pub auto_create_topics: bool,
    pub topic_defaults: TopicSettings,
    /// Defaults of topics on disk.
    pub disk_topic_defaults: TopicSettings,
    /// Maximum bytes of all logs in memory together.
    pub log_bytes_max: usize,
    /// Maximum bytes of all caches together.
    pub cache_bytes_max: u64,
    /// Maximum size of the decompressed records of a batch, as a multiple of what the topic accepts.
    pub record_expansion_max: usize,
    /// Maximum bytes of all responses in flight to clients together.
    pub response_bytes_max: u64,
    /// Meaning of `acks = default`: `true` is committed, `false` is accepted.
    pub ack_on_commit: bool,
    /// Maximum pending publishes of one connection; beyond it the connection is not read.
    pub pub_queue_depth: usize,
    /// Streams of one connection that are served concurrently.
    pub pub_workers_per_conn: usize,
    /// Default queue limits of a subscriber.
    pub subscriber_queue: FeedLimits,
    /// Maximum events in one write to a subscriber.
    pub event_batch_max_events: usize,
    pub event_batch_max_bytes: usize,
    /// Time that a lane waits for more batches after a turn that had more than one.
    pub event_batch_max_delay: Duration,
    /// Publishes after which the subscribers are woken together.
    pub fanout_batch_size: usize,
    pub writer_lanes: usize,
    /// Maximum batches queued in one lane, over all its subscribers.
    pub lane_queue_depth: usize,
    pub lane_policy: LanePolicy,
    /// Maximum time that a publish waits for subscribers whose overflow policy is to block, or for room in the journal.
    pub publish_wait: Duration,
    /// Time for which a consumer group's offsets are kept after its last member left; 0 means forever.
    pub offsets_retention: Duration,
    /// Time for which a transactional id is kept after its last transaction; 0 means forever.
    pub transactional_id_expiration: Duration,
    /// Time that an empty group waits for more members after the first one joins, before it assigns partitions.
    pub group_initial_delay: Duration,
    /// `true` if latency histograms are recorded.
    pub timings: bool,
    pub security: SecuritySettings,
    pub audit: AuditSettings,
    pub peer_limits: PeerLimits,
    /// Which records are traced; `None` for none.
    pub tracing: Option<TracingSettings>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            clock: Clock::SYSTEM,
            auto_create_topics: true,
            topic_defaults: TopicSettings::default(),
            disk_topic_defaults: TopicSettings::on_disk(),
            log_bytes_max: 1 << 30,
            cache_bytes_max: 1 << 30,
            record_expansion_max: 1,
            response_bytes_max: 160 << 20,
            ack_on_commit: true,
            pub_queue_depth: 1024,
            pub_workers_per_conn: 4,
            subscriber_queue: FeedLimits { batches_max: 128, bytes_max: 64 << 20 },
            event_batch_max_events: 64,
            event_batch_max_bytes: 65_536,
            event_batch_max_delay: Duration::from_micros(250),
            fanout_batch_size: 64,
            writer_lanes: 4,
            lane_queue_depth: 8192,
            lane_policy: LanePolicy::Auto,
            publish_wait: Duration::from_secs(2),
            offsets_retention: Duration::from_secs(7 * 24 * 3600),
            transactional_id_expiration: Duration::from_secs(7 * 24 * 3600),
            group_initial_delay: Duration::ZERO,
            timings: true,
            security: SecuritySettings::default(),
            audit: AuditSettings::default(),
            peer_limits: PeerLimits::default(),
            tracing: None,
        }
    }
}

/// Security settings of a broker.
#[derive(Clone, Debug, Default)]
pub struct SecuritySettings {
    /// Users that exist from startup on, and that requests cannot change.
    pub users: Vec<ConfiguredUser>,
    /// Users that are authorized for every operation.
    pub super_users: Vec<UserName>,
    /// `true` if all other users may do only what access control lists allow.
    pub is_authorizing: bool,
    /// Rules that name the users of client certificates.
    pub certificate_names: NameRules,
    /// Issuer whose JSON Web Tokens are accepted.
    pub issuer: Option<Issuer>,
}

/// Issuer of JSON Web Tokens, and what its tokens mean to the broker.
#[derive(Clone, Debug)]
pub struct Issuer {
    /// Required claim `iss`.
    pub name: String,
    /// Audiences, of which a token needs one in its claim `aud`.
    pub audiences: Vec<String>,
    /// Claim with the name of the user.
    pub user_claim: String,
    /// Claim with the names that `roles` maps: a list, or a text with spaces between them.
    pub roles_claim: String,
    pub roles: BTreeMap<String, RoleName>,
    /// Claim with the tenant of the client, if its tokens may name one.
    pub tenant_claim: Option<String>,
    /// Maximum difference between the clocks of the issuer and of the broker.
    pub clock_skew: Duration,
}

/// A user from the configuration.
#[derive(Clone)]
pub struct ConfiguredUser {
    pub name: UserName,
    pub password: Password,
}

impl fmt::Debug for ConfiguredUser {
    /// Omits the password, which must not be logged.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)
    }
}
