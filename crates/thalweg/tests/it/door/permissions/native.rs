//! The requests of the native protocol.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use client::mesh::{Invitation, SiteName};
use client::security::{Credential, ITERATIONS_MIN, Mechanism, RoleName, TokenId, UserName};
use client::{Condition, ScanCursor, TopicSettings, Ttl, WatchFrom};
use engine::{Acks, Overflow, Start};
use wire::groups::{Heartbeat, NewOffset, OffsetCommit, OffsetReset, Step};
use wire::queues::{NewQueue, OutMessage, Receive};
use wire::security::SecurityRequest;
use wire::{
    BackupRequest, CacheRequest, CacheResponse, ClusterRequest, ConnectionRequest, GroupRequest, MeshRequest,
    QueueRequest, Request, Response,
};

use super::{Answer, Example, Site, of_error};
use crate::support::access::acls;
use crate::support::raw::{Raw, batch, hello, subscribe};

/// Request on a connection of its own.
enum Sent {
    /// The first request of the connection.
    First,
    /// A request after the hello, and after the login of a client that logs in.
    Then(Request),
    /// A request that has no answer; the ping after it has one.
    OneWay(Request),
}

type Native = Example<Sent>;

fn then(call: &str, request: Request) -> Native {
    Example::new(call, Sent::Then(request))
}

fn mesh(call: &str, request: MeshRequest) -> Native {
    then(call, Request::Mesh(request))
}

fn site(name: &str) -> SiteName {
    SiteName::parse(name).expect("a name")
}

fn name(text: &str) -> String {
    text.to_owned()
}

fn ann() -> UserName {
    UserName::parse("ann").expect("a name")
}

fn publish(topic: &str) -> Request {
    Request::Publish { topic: name(topic), partition: None, acks: Acks::Default, batch: batch(&[b"v"]).as_ref().into() }
}

fn read_backup() -> BackupRequest {
    BackupRequest::Read { backup: 1, stream: 0, from: 0, bytes_max: 100 }
}

fn list_connections() -> ConnectionRequest {
    ConnectionRequest::List { after: 0, count_max: 10, door: None, user: None }
}

fn of_topics() -> Vec<Native> {
    let topic = || name("t");
    vec![
        Example::new("hello", Sent::First),
        then("login", Request::Login { mechanism: name("PLAIN"), message: b"\0bob\0secret".to_vec() }),
        then("ping", Request::Ping),
        then("publish", publish("t")),
        then("publish", publish("fresh")).when("if it does not exist").on("the topic", "fresh"),
        then("subscribe", Request::Subscribe(subscribe("t", Overflow::DropOld, 1, 1 << 20))),
        then("subscribe", Request::Subscribe(subscribe("fresh", Overflow::DropOld, 1, 1 << 20)))
            .when("if it does not exist and the request creates it")
            .on("the topic", "fresh"),
        then("unsubscribe", Request::Unsubscribe { subscription: 1 }),
        Example::new("credit", Sent::OneWay(Request::Credit { subscription: 1, bytes: 1 })),
        then("fetch", Request::Fetch { topic: topic(), partition: 0, offset: 0, bytes_max: 100, wait_ms: 0 }),
        then("topic_create", Request::TopicCreate { topic: name("fresh"), settings: TopicSettings::default() })
            .on("the topic", "fresh"),
        then("topic_delete", Request::TopicDelete { topic: name("gone") }).on("the topic", "gone"),
        then("topic_describe", Request::TopicDescribe { topic: topic() }),
        then("topic_list", Request::TopicList { after: String::new(), count_max: 100 }).showing("\"t\""),
        then("topic_grow", Request::TopicGrow { topic: topic(), partitions: 2 }),
        then("topic_alter", Request::TopicAlter { topic: topic(), change: client::SettingsChange::default() }),
        then("records_delete", Request::RecordsDelete { topic: topic(), partition: 0, before: 0 }),
        then("stats", Request::Stats),
        then("cluster: describe", Request::Cluster(ClusterRequest::Describe)),
        then("cluster: issue a token", Request::Cluster(ClusterRequest::IssueToken { minutes: 60 })),
        then("cluster: change the leader", Request::Cluster(ClusterRequest::Transfer { to: 2 })),
        then("cluster: remove a node", Request::Cluster(ClusterRequest::Remove { node: 2 })),
        mesh("mesh: describe", MeshRequest::Describe),
        mesh("mesh: init", MeshRequest::Init { site: site("berlin") }),
        mesh("mesh: join", MeshRequest::Join { site: site("berlin"), invitation: Invitation::new(name("none")) }),
        mesh("mesh: invite a site", MeshRequest::Invite { minutes: 60 }),
        mesh("mesh: remove a site", MeshRequest::Remove { site: site("oslo") }),
        mesh("mesh: list topics", MeshRequest::Topics),
        mesh("mesh: leave", MeshRequest::Leave),
        then("backup: begin", Request::Backup(BackupRequest::Begin { skips_sqlite: true })),
        then("backup: read the manifest", Request::Backup(BackupRequest::Manifest { backup: 1, at: 0 })),
        then("backup: read records", Request::Backup(read_backup())),
        then("backup: end", Request::Backup(BackupRequest::End { backup: 1 })),
        then("connection: list", Request::Connection(list_connections())),
        then("connection: close", Request::Connection(ConnectionRequest::Disconnect { connection: 1 })),
        then("init_producer", Request::InitProducer),
    ]
}

fn of_groups() -> Vec<Native> {
    let group = |call: &str, request| then(call, Request::Group(request));
    let join = Step::Join {
        client: name("c"),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 10_000,
        assignor: client::Assignor::default(),
        topics: vec![name("t")],
    };
    let beat = Heartbeat { group: name("joined"), member: name("m"), instance: String::new(), step: join };
    let offset = NewOffset { partition: 0, offset: 0, metadata: String::new() };
    let commit = OffsetCommit {
        group: name("g"),
        member: String::new(),
        instance: String::new(),
        epoch: 0,
        offsets: vec![(name("t"), vec![offset])],
    };
    let reset = OffsetReset {
        group: name("g"),
        topic: name("t"),
        partitions: vec![0],
        to: Some(Start::Earliest),
        is_dry_run: false,
    };
    vec![
        group("offset_commit", GroupRequest::Commit(commit)),
        group("offset_reset", GroupRequest::Reset(reset)),
        group("group_heartbeat", GroupRequest::Heartbeat(beat)).on("the group", "joined"),
        group("offset_fetch", GroupRequest::Fetch { group: name("g"), partitions: Vec::new() }),
        group("group_list", GroupRequest::List { after: String::new(), count_max: 100 }).showing("\"g\""),
        group("group_describe", GroupRequest::Describe { group: name("g") }),
        group("group_delete", GroupRequest::Delete { group: name("gone") }).on("the group", "gone"),
    ]
}

fn queue(call: &str, request: QueueRequest) -> Native {
    then(call, Request::Queue(request))
}

fn new_queue(queue: &str, topic: &str, dead_letter: Option<&str>) -> QueueRequest {
    QueueRequest::Create(NewQueue {
        queue: name(queue),
        topic: name(topic),
        is_live: false,
        storage: engine::Storage::Memory,
        settings: dead_letter.map(|topic| (name("dead_letter"), name(topic))).into_iter().collect(),
        notes: Vec::new(),
    })
}

fn altered(dead_letter: &str) -> QueueRequest {
    QueueRequest::Alter { queue: name("q"), settings: vec![(name("dead_letter"), name(dead_letter))] }
}

fn redrive(from: &str, to: Option<&str>) -> QueueRequest {
    QueueRequest::StartRedrive { queue: name(from), to: to.map(name), rate: None }
}

/// Returns the requests about messages, of a queue that owns its topic and of one that does not.
fn of_messages() -> Vec<Native> {
    let both = |call: &str, request: fn(String) -> QueueRequest| {
        let over = queue(call, request(name("over"))).when("if the queue does not own it");
        [queue(call, request(name("q"))), over.on("the queue", "over").on("its topic", "base")]
    };
    [
        both("queue_send", |queue| {
            let message = OutMessage { body: Bytes::from_static(b"v"), ..OutMessage::default() };
            QueueRequest::Send { queue, is_move: false, messages: vec![message] }
        }),
        both("queue_receive", |queue| {
            QueueRequest::Receive(Receive {
                queue,
                count_max: 1,
                bytes_max: 100,
                lease_ms: None,
                wait_ms: 0,
                outlives_connection: false,
            })
        }),
        both("queue_ack", |queue| QueueRequest::Ack { queue, receipts: Vec::new() }),
        both("queue_nack", |queue| QueueRequest::Nack { queue, leases: Vec::new() }),
        both("queue_extend", |queue| QueueRequest::Extend { queue, leases: Vec::new() }),
        both("queue_peek", |queue| QueueRequest::Peek { queue, after: None, count_max: 1 }),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn of_queues() -> Vec<Native> {
    let free = "if it sets one that no queue owns";
    let owned = "if it sets the topic of a queue";
    let is_over = "if it is over another topic, or over one with its name that exists";
    let mut all = of_messages();
    all.extend([
        queue("queue_create", new_queue("fresh", "", None)).on("the queue", "fresh"),
        queue("queue_create", new_queue("fresh", "base", None))
            .when(is_over)
            .on("the queue", "fresh")
            .on("the topic that it is over", "base"),
        queue("queue_create", new_queue("base", "", None))
            .when(is_over)
            .on("the queue", "base")
            .on("the topic that it is over", "base"),
        queue("queue_create", new_queue("fresh", "", Some("t"))).when(free).on("the queue", "fresh"),
        queue("queue_create", new_queue("fresh", "", Some("dead")))
            .when(owned)
            .on("the queue", "fresh")
            .on("the dead-letter queue", "dead"),
        queue("queue_alter", altered("t")).when(free),
        queue("queue_alter", altered("dead")).when(owned).on("the dead-letter queue", "dead"),
        queue("queue_delete", QueueRequest::Delete { queue: name("gone-queue") }).on("the queue", "gone-queue"),
        queue("queue_describe", QueueRequest::Describe { queue: name("q") }),
        queue("queue_list", QueueRequest::List { prefix: String::new(), after: String::new(), count_max: 100 })
            .showing("\"q\""),
        queue("queue_purge", QueueRequest::Purge { queue: name("q") }),
        queue("queue_seek", QueueRequest::Seek { queue: name("q"), to: Start::Earliest }),
        queue("redrive_list", QueueRequest::ListRedrives { queue: name("q") }),
        queue("redrive_cancel", QueueRequest::CancelRedrive { redrive: 1 }),
        queue("redrive_start", redrive("dead", Some("q")))
            .when("if it names one")
            .on("the queue", "dead")
            .on("the destination", "q"),
        queue("redrive_start", redrive("dead", Some("over")))
            .when("if it names one")
            .when("if the destination does not own it")
            .on("the queue", "dead")
            .on("the destination", "over")
            .on("its topic", "base"),
        queue("redrive_start", redrive("over", None))
            .when("if the queue does not own it")
            .when("if it names no destination")
            .on("the queue", "over")
            .on("its topic", "base"),
    ]);
    all
}

fn of_caches(cache: u64) -> Vec<Native> {
    let of = |call: &str, request| then(call, Request::Cache(request));
    let key = || Bytes::from_static(b"k");
    let put = CacheRequest::Put {
        cache,
        condition: Condition::Always,
        ttl: Ttl::Default,
        operation: None,
        key: key(),
        value: Bytes::from_static(b"1"),
    };
    let scan = CacheRequest::Scan { cache, from: ScanCursor(0), count_max: 1, with_values: true, prefix: Bytes::new() };
    let watch =
        CacheRequest::Watch { cache, from: WatchFrom::Snapshot, count_max: 1, wait_ms: 0, prefix: Bytes::new() };
    let settings = client::CacheSettings::default();
    vec![
        of("cache_create", CacheRequest::Create { cache: name("fresh"), settings })
            .on("all entries of the cache", "fresh/..."),
        of("cache_open", CacheRequest::Open { cache: name("c") }),
        of("cache_open", CacheRequest::Open { cache: name("fresh") })
            .when("if the cache does not exist")
            .on("all entries of the cache", "fresh/..."),
        of("cache_delete", CacheRequest::Delete { cache: name("gone") }).on("all entries of the cache", "gone/..."),
        of("cache_describe", CacheRequest::Describe { cache: name("c") }),
        of("cache_list", CacheRequest::List { after: String::new(), count_max: 100 }).showing("\"c\""),
        of("cache_get", CacheRequest::Get { cache, key: key() }),
        of("cache_multi_get", CacheRequest::MultiGet { cache, keys: vec![key()] }),
        of("cache_put", put),
        of("cache_add", CacheRequest::Add { cache, delta: 1, ttl: Ttl::Default, operation: None, key: key() }),
        of("cache_touch", CacheRequest::Touch { cache, ttl: Ttl::Default, key: key() }),
        of("cache_scan", scan),
        of("cache_watch", watch),
        of("cache_remove", CacheRequest::Remove { cache, condition: Condition::Always, operation: None, key: key() }),
        of("cache_flush", CacheRequest::Flush { cache }),
    ]
}

fn of_security() -> Vec<Native> {
    let of = |call: &str, request| then(call, Request::Security(request));
    let credential = Credential::of_password(Mechanism::Sha256, "pencil", vec![1; 16], ITERATIONS_MIN);
    let role = RoleName::parse("monitor").expect("a name");
    let soon = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970") + Duration::from_secs(3600);
    let id = |fill: u8| TokenId::of_bytes([fill; 8]);
    let token = SecurityRequest::PutToken {
        id: id(1),
        hash: [1; 32],
        user: ann(),
        roles: vec![role.clone()],
        expires_ms: None,
    };
    let own = SecurityRequest::PutOwnToken { id: id(2), hash: [2; 32], expires_ms: soon.as_millis() as u64 };
    let key = SecurityRequest::PutAccessKey {
        id: "KEY".parse().expect("an id"),
        secret: client::security::AccessSecret::parse("secret").expect("a secret"),
        user: ann(),
        account: None,
        expires_ms: None,
    };
    let of_ann = client::security::AclFilter {
        principal: Some(client::security::Principal::parse("User:ann").expect("ann")),
        ..client::security::AclFilter::default()
    };
    vec![
        of("user_put", SecurityRequest::PutUser { user: ann(), credentials: vec![credential.expect("a credential")] }),
        of("user_delete", SecurityRequest::DeleteUser { user: ann(), mechanisms: Vec::new() }),
        of("user_list", SecurityRequest::ListUsers),
        of("acl_create", SecurityRequest::CreateAcls(acls("User:ann", "read topic t", true))),
        of("acl_delete", SecurityRequest::DeleteAcls(of_ann.clone())),
        of("acl_list", SecurityRequest::ListAcls(of_ann)),
        of("member_set", SecurityRequest::SetMember { user: ann(), role, is_present: true }),
        of("member_list", SecurityRequest::ListMembers),
        of("security: create a token", token),
        of("security: delete a token", SecurityRequest::DeleteToken(id(9)))
            .when("unless the user has created the token or logged in with it"),
        of("security: list tokens", SecurityRequest::ListTokens).when("for tokens of other users").showing("ann"),
        of("security: create a token of one's own", own),
        of("security: create an access key", key),
        of("security: delete an access key", SecurityRequest::DeleteAccessKey("KEY".parse().expect("an id"))),
        of("security: list access keys", SecurityRequest::ListAccessKeys),
        of("security: assign a tenant", SecurityRequest::SetTenant { user: ann(), tenant: None }),
        of("security: list tenants", SecurityRequest::ListTenants),
        of("security: change quotas", SecurityRequest::ChangeQuotas(Vec::new())),
        of("security: list quotas", SecurityRequest::ListQuotas),
    ]
}

async fn send(site: &Site, has_login: bool, sent: &Sent) -> Answer {
    let mut raw = Raw::connect(site.server.address).await;
    let first = raw.call(&hello()).await;
    let (Sent::Then(request) | Sent::OneWay(request)) = sent else {
        return of_response(&first);
    };
    if has_login {
        let login = Request::Login { mechanism: name("PLAIN"), message: b"\0bob\0secret".to_vec() };
        assert!(matches!(raw.call(&login).await, Response::Login { is_done: true, .. }));
    }
    if matches!(sent, Sent::OneWay(_)) {
        raw.send(request).await;
        return of_response(&raw.call(&Request::Ping).await);
    }
    of_response(&raw.call(request).await)
}

fn of_response(response: &Response) -> Answer {
    match response {
        Response::Error(error) => of_error(error),
        other => Answer::Passed(format!("{other:?}")),
    }
}

#[tokio::test]
async fn every_native_request_requires_what_its_row_says() {
    let site = Site::open(&[]).await;
    let opened = site.ask(vec![Request::Cache(CacheRequest::Open { cache: name("c") })]).await;
    let [Response::Cache(CacheResponse::Opened(opened))] = &opened[..] else { panic!("{opened:?}") };
    let examples: Vec<Native> =
        [of_topics(), of_groups(), of_queues(), of_caches(opened.cache), of_security()].into_iter().flatten().collect();
    site.walk("native", &examples, async || {}, async |has_login, sent| send(&site, has_login, sent).await).await;
}
