//! What a broker is set to: resolved, checked, and never changed while it runs.

use std::time::Duration;

use engine::{FeedLimits, TopicSettings};

use crate::lanes::LanePolicy;
use crate::peers::PeerLimits;
use crate::security::SecuritySettings;

#[derive(Clone, Debug)]
pub struct Settings {
    /// Create a topic when someone publishes to it or subscribes.
    pub auto_create_topics: bool,
    pub topic_defaults: TopicSettings,
    /// The same for topics on disk.
    pub disk_topic_defaults: TopicSettings,
    /// Bytes that all logs in memory may hold together.
    pub log_bytes_max: usize,
    /// Bytes that all caches may hold together.
    pub cache_bytes_max: u64,
    /// How many times what its topic takes the records of a batch may have once they are decompressed.
    pub record_expansion_max: usize,
    /// Bytes that answers on their way to clients may hold together.
    pub response_bytes_max: u64,
    /// What `acks = default` means: committed if true, else accepted.
    pub ack_on_commit: bool,
    /// Publishes of one connection that wait for the broker before it is no longer read.
    pub pub_queue_depth: usize,
    /// Streams of one connection that are served side by side.
    pub pub_workers_per_conn: usize,
    /// A subscriber's queue, unless it asks for another size.
    pub subscriber_queue: FeedLimits,
    /// What goes to a subscriber in one write.
    pub event_batch_max_events: usize,
    pub event_batch_max_bytes: usize,
    /// How long a lane waits for company, once batches have had company.
    pub event_batch_max_delay: Duration,
    /// Publishes that are handed to subscribers together.
    pub fanout_batch_size: usize,
    pub writer_lanes: usize,
    /// Batches that wait in one lane, over all its subscribers.
    pub lane_queue_depth: usize,
    pub lane_policy: LanePolicy,
    /// How long a publish waits for subscribers whose overflow policy is to block.
    pub publish_wait: Duration,
    /// How long the offsets of a consumer group stay after its last member left; 0 is for ever.
    pub offsets_retention: Duration,
    /// How long a transactional id is kept after its last transaction; 0 is for ever.
    pub transactional_id_expiration: Duration,
    /// How long a group that was empty waits for more members before they share out among themselves.
    pub group_initial_delay: Duration,
    /// Latency histograms.
    pub timings: bool,
    pub security: SecuritySettings,
    pub peer_limits: PeerLimits,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
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
            peer_limits: PeerLimits::default(),
        }
    }
}
