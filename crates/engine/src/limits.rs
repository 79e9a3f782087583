//! Every hard maximum, in one place, with the sums that relate them.

/// Kafka's limit; a name also becomes a directory.
pub const TOPIC_NAME_BYTES_MAX: usize = 249;
/// Partitions of one topic.
pub const PARTITIONS_MAX: u32 = 1024;
/// Topics of one broker: each costs memory even when it is empty.
pub const TOPICS_MAX: usize = 65_536;
/// Partitions of one broker.
pub const PARTITIONS_TOTAL_MAX: usize = 131_072;
/// A record batch, which is also the largest record and nearly the largest frame.
pub const BATCH_BYTES_MAX: usize = 8 << 20;
/// What the records of a compressed batch may come to: text gets to a quarter of its size or less, and nobody
/// gives a reader more than this to hold for one batch.
pub const RECORDS_EXPANDED_BYTES_MAX: usize = 8 * BATCH_BYTES_MAX;
/// Records of one batch.
pub const BATCH_RECORDS_MAX: usize = 1 << 20;
/// Headers of one record.
pub const HEADERS_MAX: usize = 1024;
/// Producers that one partition remembers. Beyond that it forgets who was silent the longest.
pub const PRODUCERS_MAX: usize = 4096;
/// Batches of a producer that one partition tells apart from new ones, at least; a producer has no more of them
/// unanswered at a time. Kafka's clients keep to five.
pub const PRODUCER_BATCHES_MAX: usize = 64;
/// What a subscription may ask for in its queue, in batches.
pub const SUBSCRIBER_QUEUE_BATCHES_MAX: usize = 65_536;
/// Subscriptions of one broker.
pub const SUBSCRIPTIONS_MAX: usize = 262_144;
/// Lanes that write to subscribers.
pub const WRITER_LANES_MAX: usize = 64;
/// Bytes of history that one read hands to a subscriber's queue.
pub const BACKFILL_BYTES: usize = 1 << 20;

const _: () = assert!(BACKFILL_BYTES <= BATCH_BYTES_MAX, "a backfill step is at most one large batch");
const _: () = assert!(PARTITIONS_MAX as usize <= PARTITIONS_TOTAL_MAX);
const _: () = assert!(BATCH_BYTES_MAX < i32::MAX as usize, "the batch length field is an i32");
