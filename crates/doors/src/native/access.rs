//! Permissions that each request requires.

use broker::{Broker, Door, Identity};
use bytes::Bytes;
use engine::security::{Operation, Resource, ResourceKind};
use engine::{Error, ErrorKind, Missing, Pattern, Result, TopicName};
use wire::groups::{Heartbeat, OffsetCommit, OffsetReset, Step};
use wire::queues::{NewQueue, Receive};
use wire::security::SecurityRequest;
use wire::{
    BackupRequest, CacheRequest, ClusterRequest, ConnectionRequest, GroupRequest, MeshRequest, QueueRequest, Request,
};

use crate::permissions::{self, Call, Need, Table};

/// Setting of a queue with the topic to which its failed messages are published.
pub(super) const DEAD_LETTER: &str = "dead_letter";

/// Row of a request: its name in the protocol, and the permissions that it requires.
struct Row<N> {
    name: &'static str,
    needs: N,
}

/// Defines the rows of a type of requests, and the function that finds the row of one: a request without a row does not
/// compile.
macro_rules! rows {
    ($rows:ident, $of:ident($type:ident) -> $needs:ident: $($pattern:pat => $name:literal, $need:expr;)*) => {
        const $rows: &[Row<$needs>] = &[$(Row { name: $name, needs: $need }),*];

        fn $of(request: &$type) -> $needs {
            match request {
                $($pattern => $need,)*
            }
        }
    };
}

/// Requirement of a request about topics, or about the connection.
#[derive(Clone, Copy)]
enum Needs {
    /// Nothing, not even a login.
    Nothing,
    /// A login, if the broker requires one.
    Login,
    List,
    Publish,
    Subscribe,
    Create,
    Topic(Operation),
    Cluster(Operation),
    /// Writing to any topic, or writing without transactions.
    Producer,
    /// Permission to do everything; without access control, being an administrator.
    Copy,
    /// Requirement of the request inside.
    Inside,
}

rows! {
    ROWS, needs(Request) -> Needs:
    Request::Hello { .. } => "hello", Needs::Nothing;
    Request::Login { .. } => "login", Needs::Nothing;
    Request::Ping => "ping", Needs::Login;
    Request::Publish { .. } => "publish", Needs::Publish;
    Request::Subscribe(_) => "subscribe", Needs::Subscribe;
    Request::Unsubscribe { .. } => "unsubscribe", Needs::Login;
    Request::Credit { .. } => "credit", Needs::Login;
    Request::Fetch { .. } => "fetch", Needs::Topic(Operation::Read);
    Request::TopicCreate { .. } => "topic_create", Needs::Create;
    Request::TopicDelete { .. } => "topic_delete", Needs::Topic(Operation::Delete);
    Request::TopicDescribe { .. } => "topic_describe", Needs::Topic(Operation::Describe);
    Request::TopicList { .. } => "topic_list", Needs::List;
    Request::TopicGrow { .. } => "topic_grow", Needs::Topic(Operation::Alter);
    Request::TopicAlter { .. } => "topic_alter", Needs::Topic(Operation::AlterConfigs);
    Request::RecordsDelete { .. } => "records_delete", Needs::Topic(Operation::Delete);
    Request::Stats => "stats", Needs::Cluster(Operation::Describe);
    Request::InitProducer => "init_producer", Needs::Producer;
    Request::Group(_) | Request::Security(_) | Request::Queue(_) | Request::Cache(_) => "", Needs::Inside;
    Request::Cluster(ClusterRequest::Describe) => "cluster: describe", Needs::Cluster(Operation::Describe);
    Request::Cluster(ClusterRequest::IssueToken { .. }) => "cluster: issue a token", Needs::Cluster(Operation::Alter);
    Request::Cluster(ClusterRequest::Transfer { .. }) => "cluster: change the leader", Needs::Cluster(Operation::Alter);
    Request::Cluster(ClusterRequest::Remove { .. }) => "cluster: remove a node", Needs::Cluster(Operation::Alter);
    Request::Mesh(MeshRequest::Describe) => "mesh: describe", Needs::Cluster(Operation::Describe);
    Request::Mesh(MeshRequest::Init { .. }) => "mesh: init", Needs::Cluster(Operation::Alter);
    Request::Mesh(MeshRequest::Join { .. }) => "mesh: join", Needs::Cluster(Operation::Alter);
    Request::Mesh(MeshRequest::Invite { .. }) => "mesh: invite a site", Needs::Cluster(Operation::Alter);
    Request::Mesh(MeshRequest::Remove { .. }) => "mesh: remove a site", Needs::Cluster(Operation::Alter);
    Request::Mesh(MeshRequest::Leave) => "mesh: leave", Needs::Cluster(Operation::Alter);
    Request::Mesh(MeshRequest::Topics) => "mesh: list topics", Needs::Cluster(Operation::Describe);
    Request::Backup(BackupRequest::Begin { .. }) => "backup: begin", Needs::Copy;
    Request::Backup(BackupRequest::Manifest { .. }) => "backup: read the manifest", Needs::Copy;
    Request::Backup(BackupRequest::Read { .. }) => "backup: read records", Needs::Copy;
    Request::Backup(BackupRequest::End { .. }) => "backup: end", Needs::Copy;
    Request::Connection(ConnectionRequest::List { .. }) => "connection: list", Needs::Cluster(Operation::Describe);
    Request::Connection(ConnectionRequest::Disconnect { .. }) => "connection: close", Needs::Cluster(Operation::Alter);
}

impl Needs {
    fn shown(self) -> Vec<Need> {
        match self {
            Self::Nothing | Self::Login | Self::Inside => Vec::new(),
            Self::List => vec![permissions::listed(ResourceKind::Topic)],
            Self::Publish => permissions::publish().to_vec(),
            Self::Subscribe => vec![
                Need::new(Operation::Read, ResourceKind::Topic, "the topic"),
                permissions::create_topic().when("if it does not exist and the request creates it"),
            ],
            Self::Create => vec![permissions::create_topic()],
            Self::Topic(operation) => vec![Need::new(operation, ResourceKind::Topic, "the topic")],
            Self::Cluster(operation) => vec![Need::cluster(operation)],
            Self::Copy => vec![Need::cluster(Operation::All)],
            Self::Producer => {
                let writer = Need::cluster(Operation::IdempotentWrite);
                vec![writer.or(Operation::Write, ResourceKind::Topic, "any topic")]
            }
        }
    }

    fn note(self) -> &'static str {
        match self {
            Self::Publish => permissions::INBOXES,
            Self::Copy => "Without access control, only an administrator may send it.",
            Self::Subscribe => {
                "A pattern joins only topics that the user may read. The inbox of a client needs no permission."
            }
            _ => "",
        }
    }
}

/// Checks that a client may send a request, except for one about queues: see [`check_queue`]. Each partition that a
/// subscription joins is checked when it does.
pub(super) fn check(broker: &Broker, identity: &Identity, request: &Request) -> Result<()> {
    let security = &broker.security;
    if security.is_unlimited(identity) {
        return Ok(());
    }
    let cluster = |operation| security.authorize(identity, operation, &Resource::CLUSTER);
    match needs(request) {
        Needs::Nothing | Needs::Login | Needs::List => Ok(()),
        Needs::Publish => broker.authorize_publish(identity, topic_of(request)),
        Needs::Subscribe => match created_by(request) {
            Some(name) if !name.is_inbox() && !broker.has_topic(name.as_str()) => {
                broker.authorize_creation(identity, name.as_str())
            }
            _ => Ok(()),
        },
        Needs::Create => broker.authorize_creation(identity, topic_of(request)),
        Needs::Topic(operation) => security.authorize(identity, operation, &Resource::topic(topic_of(request))),
        Needs::Cluster(operation) => cluster(operation),
        Needs::Copy => cluster(Operation::All),
        Needs::Producer => security
            .authorize_any(identity, Operation::Write, ResourceKind::Topic)
            .or_else(|_| cluster(Operation::IdempotentWrite)),
        Needs::Inside => match request {
            Request::Group(request) => check_group(broker, identity, request),
            Request::Security(request) => check_security(broker, identity, request),
            Request::Cache(request) => check_cache(broker, identity, request),
            _ => Ok(()),
        },
    }
}

/// Returns the topic that a request names; no topic has an empty name.
fn topic_of(request: &Request) -> &str {
    match request {
        Request::Publish { topic, .. }
        | Request::Fetch { topic, .. }
        | Request::TopicCreate { topic, .. }
        | Request::TopicDelete { topic }
        | Request::TopicDescribe { topic }
        | Request::TopicGrow { topic, .. }
        | Request::TopicAlter { topic, .. }
        | Request::RecordsDelete { topic, .. } => topic,
        _ => "",
    }
}

/// Returns the topic that a subscription creates if it does not exist.
fn created_by(request: &Request) -> Option<TopicName> {
    match request {
        Request::Subscribe(subscribe) if subscribe.missing == Missing::Create => {
            match Pattern::parse(&subscribe.topic) {
                Ok(Pattern::Topic(name)) => Some(name),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Requirement of a request about users and access control.
#[derive(Clone, Copy)]
enum SecurityNeeds {
    Cluster(Operation),
    /// Deleting a token, which may be one's own.
    TokenDeletion,
    /// Nothing: it shows the tokens that the client may see.
    TokenList,
    /// How the client logged in decides, also without access control: the broker checks it.
    OwnToken,
}

rows! {
    SECURITY_ROWS, of_security(SecurityRequest) -> SecurityNeeds:
    SecurityRequest::PutUser { .. } => "user_put", SecurityNeeds::Cluster(Operation::Alter);
    SecurityRequest::DeleteUser { .. } => "user_delete", SecurityNeeds::Cluster(Operation::Alter);
    SecurityRequest::ListUsers => "user_list", SecurityNeeds::Cluster(Operation::Describe);
    SecurityRequest::CreateAcls(_) => "acl_create", SecurityNeeds::Cluster(Operation::Alter);
    SecurityRequest::DeleteAcls(_) => "acl_delete", SecurityNeeds::Cluster(Operation::Alter);
    SecurityRequest::ListAcls(_) => "acl_list", SecurityNeeds::Cluster(Operation::Describe);
    SecurityRequest::SetMember { .. } => "member_set", SecurityNeeds::Cluster(Operation::Alter);
    SecurityRequest::ListMembers => "member_list", SecurityNeeds::Cluster(Operation::Describe);
    SecurityRequest::PutToken { .. } => "security: create a token", SecurityNeeds::Cluster(Operation::Alter);
    SecurityRequest::DeleteToken(_) => "security: delete a token", SecurityNeeds::TokenDeletion;
    SecurityRequest::ListTokens => "security: list tokens", SecurityNeeds::TokenList;
    SecurityRequest::PutOwnToken { .. } => "security: create a token of one's own", SecurityNeeds::OwnToken;
    SecurityRequest::PutAccessKey { .. } => "security: create an access key", SecurityNeeds::Cluster(Operation::Alter);
    SecurityRequest::DeleteAccessKey(_) => "security: delete an access key", SecurityNeeds::Cluster(Operation::Alter);
    SecurityRequest::ListAccessKeys => "security: list access keys", SecurityNeeds::Cluster(Operation::Describe);
    SecurityRequest::SetTenant { .. } => "security: assign a tenant", SecurityNeeds::Cluster(Operation::Alter);
    SecurityRequest::ListTenants => "security: list tenants", SecurityNeeds::Cluster(Operation::Describe);
    // As Kafka requires for its requests about quotas.
    SecurityRequest::ChangeQuotas(_) => "security: change quotas", SecurityNeeds::Cluster(Operation::AlterConfigs);
    SecurityRequest::ListQuotas => "security: list quotas", SecurityNeeds::Cluster(Operation::DescribeConfigs);
}

impl SecurityNeeds {
    fn shown(self) -> Vec<Need> {
        match self {
            Self::Cluster(operation) => vec![Need::cluster(operation)],
            Self::TokenDeletion => {
                vec![Need::cluster(Operation::Alter).when("unless the user has created the token or logged in with it")]
            }
            Self::TokenList => vec![Need::cluster(Operation::Describe).when("for tokens of other users").filter()],
            Self::OwnToken => Vec::new(),
        }
    }

    fn note(self) -> &'static str {
        match self {
            Self::OwnToken => "The client must have logged in with a password.",
            _ => "",
        }
    }
}

fn check_security(broker: &Broker, identity: &Identity, request: &SecurityRequest) -> Result<()> {
    match (of_security(request), request) {
        (SecurityNeeds::TokenDeletion, SecurityRequest::DeleteToken(id)) => {
            broker.security.authorize_token_deletion(identity, id)
        }
        (SecurityNeeds::Cluster(operation), _) => broker.security.authorize(identity, operation, &Resource::CLUSTER),
        (SecurityNeeds::TokenDeletion, _) => broker.security.authorize(identity, Operation::Alter, &Resource::CLUSTER),
        (SecurityNeeds::TokenList | SecurityNeeds::OwnToken, _) => Ok(()),
    }
}

/// Requirement of a request about consumer groups.
#[derive(Clone, Copy)]
enum GroupNeeds {
    List,
    Group(Operation),
    /// Reading the group and each topic that the request names.
    Reads,
}

rows! {
    GROUP_ROWS, of_group(GroupRequest) -> GroupNeeds:
    GroupRequest::Heartbeat(_) => "group_heartbeat", GroupNeeds::Reads;
    GroupRequest::Commit(_) => "offset_commit", GroupNeeds::Reads;
    GroupRequest::Fetch { .. } => "offset_fetch", GroupNeeds::Group(Operation::Describe);
    GroupRequest::List { .. } => "group_list", GroupNeeds::List;
    GroupRequest::Describe { .. } => "group_describe", GroupNeeds::Group(Operation::Describe);
    GroupRequest::Delete { .. } => "group_delete", GroupNeeds::Group(Operation::Delete);
    GroupRequest::Reset(_) => "offset_reset", GroupNeeds::Reads;
}

impl GroupNeeds {
    fn shown(self) -> Vec<Need> {
        let group = |operation| Need::new(operation, ResourceKind::Group, "the group");
        match self {
            Self::List => vec![permissions::listed(ResourceKind::Group)],
            Self::Group(operation) => vec![group(operation)],
            Self::Reads => {
                vec![group(Operation::Read), Need::new(Operation::Read, ResourceKind::Topic, "each topic")]
            }
        }
    }
}

fn check_group(broker: &Broker, identity: &Identity, request: &GroupRequest) -> Result<()> {
    let name = match request {
        GroupRequest::Heartbeat(Heartbeat { group, .. })
        | GroupRequest::Commit(OffsetCommit { group, .. })
        | GroupRequest::Fetch { group, .. }
        | GroupRequest::Describe { group }
        | GroupRequest::Delete { group }
        | GroupRequest::Reset(OffsetReset { group, .. }) => group,
        GroupRequest::List { .. } => "",
    };
    let group = |operation| broker.security.authorize(identity, operation, &Resource::group(name));
    let reads = |name: &str| broker.security.authorize(identity, Operation::Read, &Resource::topic(name));
    match of_group(request) {
        GroupNeeds::List => Ok(()),
        GroupNeeds::Group(operation) => group(operation),
        GroupNeeds::Reads => {
            group(Operation::Read)?;
            read_by(request).into_iter().try_for_each(reads)
        }
    }
}

/// Returns the topics that a request about a group reads. A member of a pattern reads only the topics that it may read:
/// each fetch is checked.
fn read_by(request: &GroupRequest) -> Vec<&str> {
    match request {
        GroupRequest::Heartbeat(Heartbeat { step, .. }) => {
            let topics = match step {
                Step::Join { topics, .. } => Some(topics),
                Step::Alive { topics, .. } => topics.as_ref(),
                Step::Away | Step::Leave => None,
            };
            let named = topics.into_iter().flatten().map(String::as_str);
            named.filter(|topic| matches!(Pattern::parse(topic), Ok(Pattern::Topic(_)))).collect()
        }
        GroupRequest::Commit(OffsetCommit { offsets, .. }) => offsets.iter().map(|(topic, _)| topic.as_str()).collect(),
        GroupRequest::Reset(OffsetReset { topic, .. }) => vec![topic],
        _ => Vec::new(),
    }
}

/// Requirement of a request about queues.
#[derive(Clone, Copy)]
enum QueueNeeds {
    List,
    Create,
    /// Altering the queue, and publishing to the topic of its dead letters.
    Alter,
    Queue(Operation),
    Redrive,
    Cluster(Operation),
}

rows! {
    QUEUE_ROWS, of_queue(QueueRequest) -> QueueNeeds:
    QueueRequest::Create(_) => "queue_create", QueueNeeds::Create;
    QueueRequest::Alter { .. } => "queue_alter", QueueNeeds::Alter;
    QueueRequest::Delete { .. } => "queue_delete", QueueNeeds::Queue(Operation::Delete);
    QueueRequest::Describe { .. } => "queue_describe", QueueNeeds::Queue(Operation::Describe);
    QueueRequest::List { .. } => "queue_list", QueueNeeds::List;
    QueueRequest::Send { .. } => "queue_send", QueueNeeds::Queue(Operation::Write);
    QueueRequest::Receive(_) => "queue_receive", QueueNeeds::Queue(Operation::Read);
    QueueRequest::Ack { .. } => "queue_ack", QueueNeeds::Queue(Operation::Read);
    QueueRequest::Nack { .. } => "queue_nack", QueueNeeds::Queue(Operation::Read);
    QueueRequest::Extend { .. } => "queue_extend", QueueNeeds::Queue(Operation::Read);
    QueueRequest::Peek { .. } => "queue_peek", QueueNeeds::Queue(Operation::Read);
    QueueRequest::Purge { .. } => "queue_purge", QueueNeeds::Queue(Operation::Delete);
    QueueRequest::Seek { .. } => "queue_seek", QueueNeeds::Queue(Operation::Alter);
    QueueRequest::StartRedrive { .. } => "redrive_start", QueueNeeds::Redrive;
    QueueRequest::ListRedrives { .. } => "redrive_list", QueueNeeds::Queue(Operation::Describe);
    QueueRequest::CancelRedrive { .. } => "redrive_cancel", QueueNeeds::Cluster(Operation::Alter);
}

impl QueueNeeds {
    fn shown(self) -> Vec<Need> {
        match self {
            Self::List => vec![permissions::listed(ResourceKind::Queue)],
            Self::Create => [permissions::create_queue(), permissions::dead_letters()].concat(),
            Self::Alter => [permissions::on_queue(Operation::Alter), permissions::dead_letters().to_vec()].concat(),
            Self::Queue(operation) => permissions::on_queue(operation),
            Self::Redrive => permissions::redrive(),
            Self::Cluster(operation) => vec![Need::cluster(operation)],
        }
    }
}

/// Checks that a client may send a request about queues.
pub(super) async fn check_queue(broker: &Broker, identity: &Identity, request: &QueueRequest) -> Result<()> {
    if broker.security.is_unlimited(identity) {
        return Ok(());
    }
    let queue = match request {
        QueueRequest::Create(NewQueue { queue, .. })
        | QueueRequest::Alter { queue, .. }
        | QueueRequest::Delete { queue }
        | QueueRequest::Describe { queue }
        | QueueRequest::Send { queue, .. }
        | QueueRequest::Receive(Receive { queue, .. })
        | QueueRequest::Ack { queue, .. }
        | QueueRequest::Nack { queue, .. }
        | QueueRequest::Extend { queue, .. }
        | QueueRequest::Peek { queue, .. }
        | QueueRequest::Purge { queue }
        | QueueRequest::Seek { queue, .. }
        | QueueRequest::StartRedrive { queue, .. }
        | QueueRequest::ListRedrives { queue } => queue,
        QueueRequest::List { .. } | QueueRequest::CancelRedrive { .. } => "",
    };
    match of_queue(request) {
        QueueNeeds::List => Ok(()),
        QueueNeeds::Create => {
            check_dead_letters(broker, identity, request).await?;
            let topic = match request {
                QueueRequest::Create(NewQueue { topic, .. }) => Some(topic.as_str()).filter(|topic| !topic.is_empty()),
                _ => None,
            };
            broker.authorize_queue_creation(identity, queue, topic).await
        }
        QueueNeeds::Alter => {
            check_dead_letters(broker, identity, request).await?;
            broker.authorize_queue(identity, Operation::Alter, queue).await
        }
        QueueNeeds::Queue(operation) => broker.authorize_queue(identity, operation, queue).await,
        QueueNeeds::Redrive => {
            let to = match request {
                QueueRequest::StartRedrive { to, .. } => to.as_deref(),
                _ => None,
            };
            broker.authorize_redrive(identity, queue, to).await
        }
        QueueNeeds::Cluster(operation) => broker.security.authorize(identity, operation, &Resource::CLUSTER),
    }
}

async fn check_dead_letters(broker: &Broker, identity: &Identity, request: &QueueRequest) -> Result<()> {
    let (QueueRequest::Create(NewQueue { settings, .. }) | QueueRequest::Alter { settings, .. }) = request else {
        return Ok(());
    };
    for (_, topic) in settings.iter().filter(|(name, _)| name == DEAD_LETTER) {
        broker.authorize_dead_letters(identity, topic).await?;
    }
    Ok(())
}

/// Requirement of a request about caches.
#[derive(Clone, Copy)]
enum CacheNeeds {
    List,
    /// An operation on all entries of the cache that the request names.
    Named(Operation),
    /// Creating the cache if it does not exist. Opening gives no data.
    Open,
    /// An operation on each key of the request.
    Keys(Operation),
    /// Writing one entry and reading the result.
    Count,
    /// An operation on all entries that begin with a prefix.
    Prefix(Operation),
}

rows! {
    CACHE_ROWS, of_cache(CacheRequest) -> CacheNeeds:
    CacheRequest::Create { .. } => "cache_create", CacheNeeds::Named(Operation::Create);
    CacheRequest::Open { .. } => "cache_open", CacheNeeds::Open;
    CacheRequest::Delete { .. } => "cache_delete", CacheNeeds::Named(Operation::Delete);
    CacheRequest::Describe { .. } => "cache_describe", CacheNeeds::Named(Operation::Describe);
    CacheRequest::List { .. } => "cache_list", CacheNeeds::List;
    CacheRequest::Get { .. } => "cache_get", CacheNeeds::Keys(Operation::Read);
    CacheRequest::MultiGet { .. } => "cache_multi_get", CacheNeeds::Keys(Operation::Read);
    CacheRequest::Put { .. } => "cache_put", CacheNeeds::Keys(Operation::Write);
    CacheRequest::Remove { .. } => "cache_remove", CacheNeeds::Keys(Operation::Write);
    CacheRequest::Touch { .. } => "cache_touch", CacheNeeds::Keys(Operation::Write);
    CacheRequest::Add { .. } => "cache_add", CacheNeeds::Count;
    CacheRequest::Scan { .. } => "cache_scan", CacheNeeds::Prefix(Operation::Read);
    CacheRequest::Watch { .. } => "cache_watch", CacheNeeds::Prefix(Operation::Read);
    CacheRequest::Flush { .. } => "cache_flush", CacheNeeds::Prefix(Operation::Delete);
}

impl CacheNeeds {
    fn shown(self) -> Vec<Need> {
        match self {
            Self::List => vec![permissions::listed(ResourceKind::Cache)],
            Self::Named(operation) => vec![permissions::on_entries(operation)],
            Self::Open => vec![permissions::on_entries(Operation::Create).when("if the cache does not exist")],
            Self::Keys(operation) => vec![permissions::on_entry(operation)],
            Self::Count => vec![permissions::on_entry(Operation::Write), permissions::on_entry(Operation::Read)],
            Self::Prefix(operation) => {
                vec![Need::new(operation, ResourceKind::Cache, "all entries with the prefix of the request")]
            }
        }
    }
}

fn check_cache(broker: &Broker, identity: &Identity, request: &CacheRequest) -> Result<()> {
    let of_name = |operation, cache: &str| broker.authorize_entries(identity, operation, cache, b"");
    let of_key = |operation, cache: u64, key: &[u8]| {
        let cache = broker.caches.by_id(cache)?;
        broker.authorize_entry(identity, operation, cache.name().as_str(), key)
    };
    match (of_cache(request), request) {
        (CacheNeeds::List, _) => Ok(()),
        (CacheNeeds::Open, CacheRequest::Open { cache })
            if is_own(identity, cache) && broker.caches.describe(cache).is_ok() =>
        {
            Ok(())
        }
        (CacheNeeds::Open, _) => of_name(Operation::Create, name_of(request)),
        (CacheNeeds::Named(operation), _) => of_name(operation, name_of(request)),
        (CacheNeeds::Keys(operation), _) => {
            let (cache, keys) = keys_of(request)?;
            keys.iter().try_for_each(|key| of_key(operation, cache, key))
        }
        // The answer has the sum.
        (CacheNeeds::Count, _) => {
            let (cache, keys) = keys_of(request)?;
            let may = |key: &Bytes| {
                of_key(Operation::Write, cache, key)?;
                of_key(Operation::Read, cache, key)
            };
            keys.iter().try_for_each(may)
        }
        (CacheNeeds::Prefix(operation), _) => {
            let (cache, prefix) = prefix_of(request)?;
            let cache = broker.caches.by_id(cache)?;
            broker.authorize_entries(identity, operation, cache.name().as_str(), prefix)
        }
    }
}

/// Returns `false` for the name of another tenant than the client's.
fn is_own(identity: &Identity, name: &str) -> bool {
    identity.tenant().is_none_or(|tenant| tenant.owns(name))
}

fn name_of(request: &CacheRequest) -> &str {
    match request {
        CacheRequest::Create { cache, .. }
        | CacheRequest::Open { cache }
        | CacheRequest::Delete { cache }
        | CacheRequest::Describe { cache } => cache,
        _ => "",
    }
}

/// Returns the keys that a request names, and the number of their cache.
fn keys_of(request: &CacheRequest) -> Result<(u64, &[Bytes])> {
    match request {
        CacheRequest::Get { cache, key }
        | CacheRequest::Put { cache, key, .. }
        | CacheRequest::Remove { cache, key, .. }
        | CacheRequest::Touch { cache, key, .. }
        | CacheRequest::Add { cache, key, .. } => Ok((*cache, std::slice::from_ref(key))),
        CacheRequest::MultiGet { cache, keys } => Ok((*cache, keys)),
        _ => Err(nothing_named()),
    }
}

/// Returns the prefix of the keys that a request reads or removes, and the number of their cache.
fn prefix_of(request: &CacheRequest) -> Result<(u64, &[u8])> {
    match request {
        CacheRequest::Scan { cache, prefix, .. } | CacheRequest::Watch { cache, prefix, .. } => Ok((*cache, prefix)),
        CacheRequest::Flush { cache } => Ok((*cache, b"")),
        _ => Err(nothing_named()),
    }
}

/// Returns the error of a row whose requirement does not fit its request: the request is refused.
fn nothing_named() -> Error {
    Error::new(ErrorKind::Internal, "the permission of this request needs a key, and the request has none")
}

/// Returns the permissions that each request requires.
pub(crate) fn permissions() -> Table {
    let of_topics = ROWS.iter().filter(|row| !matches!(row.needs, Needs::Inside)).map(|row| {
        let call = Call::new(row.name, row.needs.shown()).note(row.needs.note());
        call.open(matches!(row.needs, Needs::Nothing))
    });
    let of_groups = GROUP_ROWS.iter().map(|row| Call::new(row.name, row.needs.shown()));
    let of_queues = QUEUE_ROWS.iter().map(|row| Call::new(row.name, row.needs.shown()));
    let of_caches = CACHE_ROWS.iter().map(|row| Call::new(row.name, row.needs.shown()));
    let of_security = SECURITY_ROWS.iter().map(|row| Call::new(row.name, row.needs.shown()).note(row.needs.note()));
    let calls = of_topics.chain(of_groups).chain(of_queues).chain(of_caches).chain(of_security);
    let about = "A refused request is answered with the error `denied`. In the command line and the Rust client, a \
                 request is a command or a method of a similar name.";
    Table { door: Door::Native, about, calls: calls.collect() }
}

/// Returns `true` if a subscription of a client may read a topic. An inbox has a name that cannot be guessed.
pub(super) fn may_read(broker: &Broker, identity: &Identity, topic: &TopicName) -> bool {
    topic.is_inbox() || broker.security.allows(identity, Operation::Read, &Resource::topic(topic.as_str()))
}
