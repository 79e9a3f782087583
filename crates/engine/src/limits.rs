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
pub const BATCH_BYTES_MAX: usize = 10 << 20;
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
/// Producers that have a transaction open in one partition.
pub const PARTITION_TRANSACTIONS_MAX: usize = 2048;
/// Aborted transactions of which one partition still has records. Beyond that it lets none begin until retention or
/// compaction has removed some.
pub const PARTITION_ABORTED_MAX: usize = 65_536;
/// Transactional ids of one broker: each costs memory also while nothing is open.
pub const TRANSACTIONS_MAX: usize = 16_384;
/// A transactional id.
pub const TRANSACTIONAL_ID_BYTES_MAX: usize = 255;
/// Partitions of one transaction, and offsets that it commits.
pub const TRANSACTION_PARTITIONS_MAX: usize = 4096;
/// Consumer groups whose offsets one transaction commits.
pub const TRANSACTION_GROUPS_MAX: usize = 64;
/// What is written beside the offsets that one transaction commits, together.
pub const TRANSACTION_METADATA_BYTES_MAX: usize = 1 << 20;
/// How long a transaction may stay open at most; Kafka's limit.
pub const TRANSACTION_TIMEOUT_MS_MAX: u32 = 900_000;
/// What a subscription may ask for in its queue, in batches.
pub const SUBSCRIBER_QUEUE_BATCHES_MAX: usize = 65_536;
/// Subscriptions of one broker.
pub const SUBSCRIPTIONS_MAX: usize = 262_144;
/// Names without a topic that messages are published to while subscriptions listen, on one broker.
pub const CHANNELS_MAX: usize = 16_384;
/// Lanes that write to subscribers.
pub const WRITER_LANES_MAX: usize = 64;
/// The name of a consumer group, the id of a member and that of its instance.
pub const GROUP_NAME_BYTES_MAX: usize = 255;
/// Consumer groups of one broker: each costs memory also while it has no members.
pub const GROUPS_MAX: usize = 16_384;
/// Members of one consumer group.
pub const GROUP_MEMBERS_MAX: usize = 512;
/// Topics and patterns that one member subscribes to, and their names together.
pub const GROUP_TOPICS_MAX: usize = 256;
pub const GROUP_TOPICS_BYTES_MAX: usize = 4096;
/// Partitions that one consumer group shares out, and those that it has committed offsets of.
pub const GROUP_PARTITIONS_MAX: usize = 16_384;
/// What a member may write beside a committed offset; Kafka's limit.
pub const OFFSET_METADATA_BYTES_MAX: usize = 4096;
/// The same of all offsets of a group together, so that one answer has room for them.
pub const GROUP_METADATA_BYTES_MAX: usize = 2 << 20;
/// Commits of one group that are on their way into the log of committed offsets.
pub const GROUP_COMMITS_IN_FLIGHT_MAX: usize = 1024;
/// Committed offsets of one broker.
pub const COMMITTED_OFFSETS_MAX: usize = 1 << 20;
/// How long a member may be silent before its partitions go to others, at least and at most.
pub const SESSION_TIMEOUT_MS_MIN: u32 = 100;
pub const SESSION_TIMEOUT_MS_MAX: u32 = 1_800_000;
/// How long a member may take to give up partitions, at most.
pub const REBALANCE_TIMEOUT_MS_MAX: u32 = 3_600_000;
/// Ids that one group has given out to members that did not join yet.
pub const GROUP_PENDING_MEMBERS_MAX: usize = GROUP_MEMBERS_MAX;
/// Ways to share out that one member knows, and the name of one.
pub const GROUP_PROTOCOLS_MAX: usize = 32;
pub const GROUP_PROTOCOL_NAME_BYTES_MAX: usize = 255;
/// What the members of one group say to their leader, and what that says to them.
pub const GROUP_PROTOCOLS_BYTES_MAX: usize = 4 << 20;
/// The same of all groups of one broker together.
pub const GROUPS_PROTOCOLS_BYTES_MAX: usize = 256 << 20;
/// Users of one broker.
pub const USERS_MAX: usize = 4096;
/// The name of a user.
pub const USER_NAME_BYTES_MAX: usize = 255;
/// Access control entries of one broker, and the name of a resource or a host in one.
pub const ACLS_MAX: usize = 8192;
/// Secrets of the broker itself, such as the key of its tokens, and the bytes of each. No client adds any.
pub const SECRETS_MAX: usize = 64;
pub const SECRET_BYTES_MAX: usize = 8 << 10;
pub const ACL_NAME_BYTES_MAX: usize = 255;
/// What waits for the database of topics in SQLite, and what of their newest batches stays in memory.
pub const SQLITE_QUEUE_BYTES_MAX: usize = 16 << 20;
pub const SQLITE_RECENT_BYTES_MAX: u64 = 16 << 20;
/// What the connection that writes it keeps of it in memory.
pub const SQLITE_WRITER_CACHE_BYTES: usize = 8 << 20;
/// Connections that read it at once, and what each of them keeps of it in memory.
pub const SQLITE_READERS_MAX: usize = 4;
pub const SQLITE_READER_CACHE_BYTES: usize = 2 << 20;
/// The text of a filter of messages; Google Pub/Sub's limit.
pub const FILTER_BYTES_MAX: usize = 256;
/// Parentheses within parentheses in it.
pub const FILTER_NESTING_MAX: usize = 32;
/// Bytes of history that one read hands to a subscriber's queue.
pub const BACKFILL_BYTES: usize = 1 << 20;

const _: () = assert!(BACKFILL_BYTES <= BATCH_BYTES_MAX, "a backfill step is at most one large batch");
const _: () = assert!(BATCH_BYTES_MAX < SQLITE_QUEUE_BYTES_MAX, "the largest batch waits for the database");
const _: () = assert!(
    SQLITE_QUEUE_BYTES_MAX
        + SQLITE_RECENT_BYTES_MAX as usize
        + SQLITE_WRITER_CACHE_BYTES
        + SQLITE_READERS_MAX * SQLITE_READER_CACHE_BYTES
        <= 64 << 20,
    "topics in SQLite have no more memory than this, beside what their readers are given"
);
const _: () = assert!(PARTITIONS_MAX as usize <= PARTITIONS_TOTAL_MAX);
const _: () = assert!(GROUP_METADATA_BYTES_MAX + 300 * GROUP_PARTITIONS_MAX < BATCH_BYTES_MAX, "offsets in one frame");
const _: () = assert!(
    (GROUP_TOPICS_BYTES_MAX + 1300) * GROUP_MEMBERS_MAX + 300 * GROUP_PARTITIONS_MAX < BATCH_BYTES_MAX,
    "a group is described in one frame"
);
const _: () = assert!(2 * PARTITION_TRANSACTIONS_MAX <= PRODUCERS_MAX, "there is always a producer to forget");
const _: () = assert!(
    TRANSACTION_METADATA_BYTES_MAX + 2 * 300 * TRANSACTION_PARTITIONS_MAX + 300 * TRANSACTION_GROUPS_MAX
        < BATCH_BYTES_MAX,
    "a transaction is one record"
);
const _: () = assert!(
    GROUP_PROTOCOLS_BYTES_MAX + 600 * GROUP_MEMBERS_MAX < BATCH_BYTES_MAX,
    "a leader is told of all members in one frame"
);
const _: () = assert!(2 * GROUP_PROTOCOLS_BYTES_MAX <= GROUPS_PROTOCOLS_BYTES_MAX);
const _: () = assert!(
    ACLS_MAX * (2 * ACL_NAME_BYTES_MAX + USER_NAME_BYTES_MAX + 20) < BATCH_BYTES_MAX
        && USERS_MAX * 600 < BATCH_BYTES_MAX,
    "users, and access control entries, in one frame"
);
const _: () = assert!(BATCH_BYTES_MAX < i32::MAX as usize, "the batch length field is an i32");
