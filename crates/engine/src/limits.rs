//! Hard limits of the broker, all in one place, with assertions that relate them.

/// Maximum length of a topic name in bytes; Kafka's limit. The name is also the name of a directory.
pub const TOPIC_NAME_BYTES_MAX: usize = 249;
/// Maximum number of partitions per topic.
pub const PARTITIONS_MAX: u32 = 1024;
/// Maximum number of topics per broker: each topic costs memory even when it is empty.
pub const TOPICS_MAX: usize = 65_536;
/// Maximum number of partitions per broker.
pub const PARTITIONS_TOTAL_MAX: usize = 131_072;
/// Maximum number of shards of a broker: each needs its own partition of every internal topic.
pub const SHARDS_MAX: u16 = 8;
/// Maximum size of a record batch in bytes. It also bounds the size of a record and, apart from the frame header, of a
/// frame.
pub const BATCH_BYTES_MAX: usize = 10 << 20;
/// Maximum size in bytes of the decompressed records of a batch. Text compresses to a quarter of its size or better,
/// and this is the most that a reader has to hold for one batch.
pub const RECORDS_EXPANDED_BYTES_MAX: usize = 8 * BATCH_BYTES_MAX;
/// Maximum number of records per batch.
pub const BATCH_RECORDS_MAX: usize = 1 << 20;
/// Maximum number of headers per record.
pub const HEADERS_MAX: usize = 1024;
/// Maximum number of producers that one partition remembers. At the limit the producer that has been silent the longest
/// is forgotten.
pub const PRODUCERS_MAX: usize = 4096;
/// Number of a producer's latest batches that one partition recognizes when they are sent again, at least. A producer
/// therefore has at most this many unacknowledged batches; Kafka's clients have at most five.
pub const PRODUCER_BATCHES_MAX: usize = 64;
/// Maximum number of producers with an open transaction in one partition.
pub const PARTITION_TRANSACTIONS_MAX: usize = 2048;
/// Maximum number of aborted transactions whose records are still in one partition. At the limit no transaction can
/// begin there until retention or compaction has removed some of these records.
pub const PARTITION_ABORTED_MAX: usize = 65_536;
/// Maximum number of transactional ids per broker: each costs memory even without an open transaction.
pub const TRANSACTIONS_MAX: usize = 16_384;
/// Maximum length of a transactional id in bytes.
pub const TRANSACTIONAL_ID_BYTES_MAX: usize = 255;
/// Maximum number of partitions in one transaction, and of offsets that it commits.
pub const TRANSACTION_PARTITIONS_MAX: usize = 4096;
/// Maximum number of consumer groups whose offsets one transaction commits.
pub const TRANSACTION_GROUPS_MAX: usize = 64;
/// Maximum size in bytes of the metadata of all offsets that one transaction commits, together.
pub const TRANSACTION_METADATA_BYTES_MAX: usize = 1 << 20;
/// Maximum time in ms that a transaction may stay open; Kafka's limit.
pub const TRANSACTION_TIMEOUT_MS_MAX: u32 = 900_000;
/// Maximum number of delayed messages of a queue in one partition. At the limit, the queue reads no further ahead until
/// delays have ended. A message takes some 130 bytes.
pub const QUEUE_DELAYED_MAX: u64 = 1 << 18;
/// Maximum queue size, in batches, that a subscription may request.
pub const SUBSCRIBER_QUEUE_BATCHES_MAX: usize = 65_536;
/// Maximum number of subscriptions per broker.
pub const SUBSCRIPTIONS_MAX: usize = 262_144;
/// Maximum number of channels per broker: names without a topic that messages are published to while subscriptions
/// listen.
pub const CHANNELS_MAX: usize = 16_384;
/// Maximum number of lanes that write to subscribers.
pub const WRITER_LANES_MAX: usize = 64;
/// Maximum length in bytes of the name of a consumer group, of a member id and of an instance id.
pub const GROUP_NAME_BYTES_MAX: usize = 255;
/// Maximum number of consumer groups per broker: each costs memory even without members.
pub const GROUPS_MAX: usize = 16_384;
/// Maximum number of members of one consumer group.
pub const GROUP_MEMBERS_MAX: usize = 512;
/// Maximum number of topics and patterns that one member subscribes to.
pub const GROUP_TOPICS_MAX: usize = 256;
/// Maximum length in bytes of all names of topics and patterns that one member subscribes to, together.
pub const GROUP_TOPICS_BYTES_MAX: usize = 4096;
/// Maximum number of different wildcards and regular expressions of all members of one group: each is compared with
/// every new topic.
pub const GROUP_PATTERNS_MAX: usize = 2048;
/// Maximum number of partitions that one consumer group assigns, and of partitions with a committed offset in one
/// group.
pub const GROUP_PARTITIONS_MAX: usize = 16_384;
/// Maximum size in bytes of the metadata that a member may commit with an offset; Kafka's limit.
pub const OFFSET_METADATA_BYTES_MAX: usize = 4096;
/// Maximum size in bytes of the metadata of all offsets of one group together, so that one response has room for them.
pub const GROUP_METADATA_BYTES_MAX: usize = 2 << 20;
/// Maximum number of commits of one group that are in flight to the log of committed offsets.
pub const GROUP_COMMITS_IN_FLIGHT_MAX: usize = 1024;
/// Maximum number of committed offsets per broker.
pub const COMMITTED_OFFSETS_MAX: usize = 1 << 20;
/// Minimum session timeout in ms: a member that is silent for longer than its session timeout loses its partitions.
pub const SESSION_TIMEOUT_MS_MIN: u32 = 100;
/// Maximum session timeout in ms.
pub const SESSION_TIMEOUT_MS_MAX: u32 = 1_800_000;
/// Maximum time in ms that a member may take to release partitions.
pub const REBALANCE_TIMEOUT_MS_MAX: u32 = 3_600_000;
/// Maximum number of ids that one group has assigned to members that have not joined yet.
pub const GROUP_PENDING_MEMBERS_MAX: usize = GROUP_MEMBERS_MAX;
/// Maximum number of assignment protocols that one member supports.
pub const GROUP_PROTOCOLS_MAX: usize = 32;
/// Maximum length in bytes of the name of an assignment protocol.
pub const GROUP_PROTOCOL_NAME_BYTES_MAX: usize = 255;
/// Maximum size in bytes of the protocol metadata that the members of one group send to their leader, and of the
/// assignments that the leader returns.
pub const GROUP_PROTOCOLS_BYTES_MAX: usize = 4 << 20;
/// Bytes that the members of all groups of one broker may take together however small the memory of the broker is. They
/// may take a quarter of the memory for logs.
pub const GROUPS_MEMBERS_BYTES_MIN: usize = 16 << 20;
/// Maximum bytes of protocol metadata that are recorded of a group or a member: with more, the members have to join
/// again after a restart.
pub const GROUP_RECORDED_BYTES_MAX: usize = 1 << 20;
/// Maximum number of users per broker.
pub const USERS_MAX: usize = 16_384;
/// Maximum length of a user name in bytes.
pub const USER_NAME_BYTES_MAX: usize = 255;
/// Maximum length of a password in bytes.
pub const PASSWORD_BYTES_MAX: usize = 1024;
/// Maximum number of access control entries per broker.
pub const ACLS_MAX: usize = 131_072;
/// Maximum size in bytes of the texts of all access control entries of a broker: names of resources, principals and
/// hosts.
pub const ACLS_BYTES_MAX: usize = 7 << 20;
/// Maximum number of members of all roles of a broker together.
pub const ROLE_MEMBERS_MAX: usize = 65_536;
/// Maximum number of users per broker that have a tenant.
pub const TENANT_USERS_MAX: usize = 16_384;
/// Maximum length of the name of a tenant in bytes.
pub const TENANT_NAME_BYTES_MAX: usize = 63;
/// Maximum number of tokens per broker.
pub const TOKENS_MAX: usize = 16_384;
/// Maximum number of tokens that users may have created for themselves, over all users: administrators have the rest.
pub const OWN_TOKENS_MAX: usize = TOKENS_MAX / 2;
/// Maximum number of tokens that one user may have created for themselves.
pub const OWN_TOKENS_PER_USER_MAX: usize = 16;
/// Maximum lifetime in milliseconds of a token that a user creates for themselves: 90 days.
pub const OWN_TOKEN_LIFETIME_MS_MAX: u64 = 90 * 86_400_000;
/// Maximum number of roles that a token has in addition to those of its user.
pub const TOKEN_ROLES_MAX: usize = 8;
/// Maximum size in bytes of the names of a token's user and roles together.
pub const TOKEN_NAMES_BYTES_MAX: usize = 512;
/// Maximum number of sessions of browsers that have logged in to the web console.
pub const WEB_SESSIONS_MAX: usize = 4096;
/// Maximum number of sessions of browsers of one user.
pub const WEB_SESSIONS_PER_USER_MAX: usize = 32;
/// Time in milliseconds after which a session of a browser ends that no request and no stream uses: 30 minutes.
pub const WEB_SESSION_IDLE_MS: u64 = 30 * 60_000;
/// Maximum age in milliseconds of a session of a browser: 12 hours.
pub const WEB_SESSION_MS_MAX: u64 = 12 * 3_600_000;
/// Maximum number of access keys per broker.
pub const ACCESS_KEYS_MAX: usize = 16_384;
/// Maximum length of the name of an access key in bytes.
pub const ACCESS_KEY_ID_BYTES_MAX: usize = 128;
/// Maximum length of the secret of an access key in bytes.
pub const ACCESS_SECRET_BYTES_MAX: usize = 256;
/// Maximum number of quotas per broker: each is one rate of one entity.
pub const QUOTAS_MAX: usize = 8192;
/// Maximum length in bytes of the client id of a quota. Longer ids of clients are distinguished by their beginning.
pub const QUOTA_CLIENT_BYTES_MAX: usize = 255;
/// Maximum number of secrets of the broker itself, such as the key of its tokens. No client adds any.
pub const SECRETS_MAX: usize = 64;
/// Maximum size of a secret of the broker in bytes.
pub const SECRET_BYTES_MAX: usize = 8 << 10;
/// Maximum length in bytes of the name of a resource or of a host in an access control entry.
pub const ACL_NAME_BYTES_MAX: usize = 255;
/// Maximum size in bytes of the writes queued for the SQLite database of topics.
pub const SQLITE_QUEUE_BYTES_MAX: usize = 16 << 20;
/// Maximum size in bytes of the newest batches of SQLite topics that stay in memory.
pub const SQLITE_RECENT_BYTES_MAX: u64 = 16 << 20;
/// Page cache in bytes of the connection that writes the SQLite database.
pub const SQLITE_WRITER_CACHE_BYTES: usize = 8 << 20;
/// Maximum number of connections that read the SQLite database concurrently.
pub const SQLITE_READERS_MAX: usize = 4;
/// Page cache in bytes of each connection that reads the SQLite database.
pub const SQLITE_READER_CACHE_BYTES: usize = 2 << 20;
/// Maximum length of the text of a message filter in bytes; Google Pub/Sub's limit.
pub const FILTER_BYTES_MAX: usize = 256;
/// Maximum nesting of parentheses in a message filter.
pub const FILTER_NESTING_MAX: usize = 32;
/// Maximum number of bytes of history that one read adds to a subscriber's queue.
pub const BACKFILL_BYTES: usize = 1 << 20;
/// Maximum number of spans that wait for their export. Each has at most about 1 KiB.
pub const TRACE_SPANS_MAX: usize = 8192;
/// Maximum number of traced messages that receivers hold at the same time.
pub const TRACE_LEASES_MAX: usize = 8192;
/// Maximum number of traced records whose commit is awaited at the same time.
pub const TRACE_COMMITS_MAX: usize = 4096;
/// Maximum number of records of one batch that are traced.
pub const TRACED_PER_BATCH_MAX: usize = 64;
/// Maximum size in bytes of the compressed records of a batch that are decompressed to find traced ones.
pub const TRACED_COMPRESSED_BYTES_MAX: usize = 64 << 10;
/// Maximum size in bytes of these records once they are decompressed.
pub const TRACED_EXPANDED_BYTES_MAX: usize = 1 << 20;
/// Maximum length in bytes of the state of tracing systems that is passed on; the length that W3C Trace Context asks
/// for.
pub const TRACE_STATE_BYTES_MAX: usize = 512;

const _: () = assert!(BACKFILL_BYTES <= BATCH_BYTES_MAX, "a backfill step is at most one large batch");
const _: () = assert!(BATCH_BYTES_MAX < SQLITE_QUEUE_BYTES_MAX, "the largest batch waits for the database");
const _: () = assert!(
    SQLITE_QUEUE_BYTES_MAX
        + SQLITE_RECENT_BYTES_MAX as usize
        + SQLITE_WRITER_CACHE_BYTES
        + SQLITE_READERS_MAX * SQLITE_READER_CACHE_BYTES
        <= 64 << 20,
    "topics in SQLite have no more memory than this, in addition to what their readers hold"
);
const _: () = assert!(PARTITIONS_MAX as usize <= PARTITIONS_TOTAL_MAX);
const _: () = assert!(3 * TRACED_PER_BATCH_MAX <= TRACE_SPANS_MAX, "the spans of a publish fit into the queue");
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
const _: () = assert!(2 * GROUP_PROTOCOLS_BYTES_MAX <= GROUPS_MEMBERS_BYTES_MIN);
// Each partition of a member may have a topic of its own, and be among those to release and those of deleted topics.
const _: () = assert!(
    GROUP_RECORDED_BYTES_MAX + 2 * GROUP_PARTITIONS_MAX * (TOPIC_NAME_BYTES_MAX + 10) + 2 * GROUP_TOPICS_BYTES_MAX
        < BATCH_BYTES_MAX,
    "a member in one record"
);
const _: () = assert!(
    ACLS_BYTES_MAX + ACLS_MAX * 20 < BATCH_BYTES_MAX && USERS_MAX * 600 < BATCH_BYTES_MAX,
    "users, and access control entries, in one frame"
);
const _: () = assert!(
    TOKENS_MAX * (TOKEN_NAMES_BYTES_MAX + 2 * TOKEN_ROLES_MAX + 40) < BATCH_BYTES_MAX,
    "tokens are listed in one frame"
);
const _: () = assert!(
    ACCESS_KEYS_MAX * (ACCESS_KEY_ID_BYTES_MAX + USER_NAME_BYTES_MAX + 40) < BATCH_BYTES_MAX,
    "access keys are listed in one frame"
);
const _: () = assert!(
    TENANT_USERS_MAX * (USER_NAME_BYTES_MAX + TENANT_NAME_BYTES_MAX + 40) < BATCH_BYTES_MAX,
    "all tenants fit into one response"
);
const _: () = assert!(WEB_SESSIONS_PER_USER_MAX < WEB_SESSIONS_MAX && WEB_SESSION_IDLE_MS < WEB_SESSION_MS_MAX);
const _: () = assert!(OWN_TOKENS_PER_USER_MAX < OWN_TOKENS_MAX && OWN_TOKENS_MAX < TOKENS_MAX);
const _: () = assert!(
    QUOTAS_MAX * (USER_NAME_BYTES_MAX + QUOTA_CLIENT_BYTES_MAX + 100) < BATCH_BYTES_MAX,
    "quotas are listed in one frame"
);
const _: () = assert!(BATCH_BYTES_MAX < i32::MAX as usize, "the batch length field is an i32");
