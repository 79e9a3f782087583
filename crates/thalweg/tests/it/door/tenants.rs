//! Tenants at each door: clients of two tenants use the same names and never meet, and no permission leads from one to
//! the other.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use client::{
    CacheSettings, Client, ClientSettings, ErrorKind, Login, Message, NewQueue, OutMessage, Record, Start, TopicName,
    TopicPartition, TopicSettings,
};
use serde_json::{Value, json};

use super::access::exchange;
use super::access_keys::{call, create, status};
use super::sqs::client::{NOW, Sqs};
use crate::support::command;
use crate::support::server::{Server, within};

/// Users of two tenants, with permissions for everything or without access control, and a super user in none.
const USERS: &str = "users=root:r00t,ann:secret,bob:secret";

fn start(is_authorizing: bool, more: &[&str]) -> Server {
    let authorization = format!("authorization={is_authorizing}");
    let settings = ["auth=required", USERS, "super_users=root,bob", &authorization];
    let server = Server::with(&[&settings[..], more].concat());
    for user in ["ann", "bob"] {
        command::on(&server, ["role", "add", "admin", user]).ok();
    }
    server
}

fn assign(server: &Server, tenant: &str, user: &str) {
    command::on(server, ["tenant", "assign", tenant, user]).ok();
}

async fn log_in(server: &Server, user: &str) -> Client {
    let login = Login::new(user, "secret").expect("a login");
    server.client_with("tcp", ClientSettings { login: Some(login), ..ClientSettings::default() }).await
}

fn refused<T: std::fmt::Debug>(outcome: client::Result<T>) -> ErrorKind {
    outcome.expect_err("refused").kind
}

fn value(message: &Message) -> &[u8] {
    message.record.value.as_deref().expect("a value")
}

/// Uses topics, queues, caches and groups of these names, and returns the names that the broker shows of them.
async fn use_names(client: &Client, whose: &str) -> Vec<String> {
    let topic = client.create_topic("orders.eu", TopicSettings::default()).await.expect("created");
    let mut live = within("a subscription", client.subscribe("orders.*").open()).await.expect("subscribed");
    client.publish("orders.eu", Record::new(whose.to_owned())).await.expect("published");
    let message = within("a record", live.next()).await.expect("open");
    assert_eq!((&*message.topic, value(&message)), ("orders.eu", whose.as_bytes()));
    let mut one = client.subscribe("orders.eu").start(Start::Earliest).open().await.expect("subscribed");
    assert_eq!(one.sources()[0].topic, "orders.eu");
    assert_eq!(value(&within("a record", one.next()).await.expect("open")), whose.as_bytes());

    client.create_queue(NewQueue { queue: "dead".into(), ..NewQueue::default() }).await.expect("created");
    let settings = vec![("dead_letter".into(), "dead".into()), ("attempts_max".into(), "1".into())];
    let jobs = NewQueue { queue: "jobs".into(), settings, ..NewQueue::default() };
    let jobs = client.create_queue(jobs).await.expect("created");
    assert!(jobs.settings.contains(&("dead_letter".into(), "dead".into())), "{jobs:?}");
    let queue = client.queue("jobs");
    queue.send(OutMessage { body: whose.to_owned().into(), ..OutMessage::default() }).await.expect("sent");
    assert_eq!(queue.describe().await.expect("described").queue, "jobs");
    let waiting = queue.peek(None, 10).await.expect("peeked");
    assert_eq!(waiting.iter().map(|peeked| &peeked.message.body[..]).collect::<Vec<_>>(), [whose.as_bytes()]);

    let cache = client.create_cache("sessions", CacheSettings::default()).await.expect("created");
    client.cache("sessions").put("k", whose.to_owned()).await.expect("stored");
    let found = client.cache("sessions").get("k").await.expect("read").expect("stored");
    assert_eq!(&found.value[..], whose.as_bytes());

    let at = TopicPartition { topic: TopicName::parse(&topic.topic).expect("a name"), partition: 0 };
    client.commit_offsets("billing", &[(at, 1)]).await.expect("committed");
    let group = client.describe_group("billing").await.expect("described");
    assert_eq!((group.group.as_str(), group.partitions[0].0.as_str()), ("billing", "orders.eu"));
    vec![topic.topic, jobs.queue, jobs.topic, cache.name.to_string(), group.group]
}

/// Returns the names of everything that a client may list.
async fn listed(client: &Client) -> [Vec<String>; 4] {
    let topics = client.list_topics().await.expect("listed").into_iter().map(|topic| topic.topic);
    let queues = client.list_queues("").await.expect("listed").into_iter().map(|queue| queue.queue);
    let caches = client.list_caches().await.expect("listed").into_iter().map(|cache| cache.name.to_string());
    let groups = client.list_groups().await.expect("listed").into_iter().map(|group| group.group);
    [topics.filter(|name| !name.starts_with('_')).collect(), queues.collect(), caches.collect(), groups.collect()]
}

#[tokio::test]
async fn two_tenants_use_the_same_names_of_the_native_door() {
    for is_authorizing in [false, true] {
        let server = start(is_authorizing, &[]);
        assign(&server, "acme", "ann");
        assign(&server, "project:globex", "bob");
        let [ann, bob] = [log_in(&server, "ann").await, log_in(&server, "bob").await];
        for (client, whose) in [(&ann, "ann"), (&bob, "bob")] {
            assert_eq!(use_names(client, whose).await, ["orders.eu", "jobs", "jobs", "sessions", "billing"]);
        }
        for client in [&ann, &bob] {
            let [topics, queues, caches, groups] = listed(client).await;
            assert_eq!(topics, ["dead", "jobs", "orders.eu"]);
            assert_eq!((queues, caches), (vec!["dead".into(), "jobs".into()], vec!["sessions".into()]));
            assert_eq!(groups, ["billing"]);
        }
        // Without a tenant, the names have their prefixes.
        let admin = server.client("tcp").await;
        let [topics, queues, caches, groups] = listed(&admin).await;
        assert_eq!(topics.iter().filter(|name| name.ends_with("orders.eu")).count(), 1, "{topics:?}");
        assert!(topics.contains(&"acme.orders.eu".into()) && queues.contains(&"_project.globex.jobs".into()));
        assert_eq!(caches, ["_project.globex.sessions", "acme.sessions"]);
        assert_eq!(groups, ["_project.globex.billing", "acme.billing"]);
        assert!(admin.describe_topic("_project.globex.orders.eu").await.is_ok());

        // A full name is one within the tenant.
        assert_eq!(refused(ann.describe_topic("acme.orders.eu").await), ErrorKind::NotFound);
        assert_eq!(refused(ann.describe_topic("_project.globex.orders.eu").await), ErrorKind::NotFound);
        ann.delete_topic("orders.eu").await.expect("deleted");
        assert!(bob.describe_topic("orders.eu").await.is_ok());
    }
}

/// Ann has the role `admin`, and bob is a super user.
#[tokio::test]
async fn an_administrator_in_a_tenant_administers_nothing_of_the_broker() {
    for is_authorizing in [false, true] {
        let server = start(is_authorizing, &[]);
        for (tenant, user) in [("acme", "ann"), ("globex", "bob")] {
            assign(&server, tenant, user);
            let client = log_in(&server, user).await;
            let name = |name: &str| client::security::UserName::parse(name).expect("a name");
            assert_eq!(refused(client.list_users().await), ErrorKind::Denied);
            assert_eq!(refused(client.list_tenants().await), ErrorKind::Denied);
            assert_eq!(refused(client.set_tenant(name(user), None).await), ErrorKind::Denied);
            assert_eq!(refused(client.delete_user(name("root"), Vec::new()).await), ErrorKind::Denied);
            let role = client::security::RoleName::parse("admin").expect("a name");
            assert_eq!(refused(client.set_member(name("ann"), role, true).await), ErrorKind::Denied);
            assert_eq!(refused(client.stats().await), ErrorKind::Denied);
            assert!(client.list_tokens().await.expect("its own").is_empty());
            client.create_topic("t", TopicSettings::default()).await.expect("it may create its own");
        }
        let admin = server.client("tcp").await;
        let [topics, ..] = listed(&admin).await;
        assert_eq!(topics, ["acme.t", "globex.t"]);
    }
}

#[tokio::test]
async fn a_changed_tenant_ends_what_the_user_does() {
    let server = start(false, &[]);
    let [ann, bob] = [log_in(&server, "ann").await, log_in(&server, "bob").await];
    ann.create_topic("t", TopicSettings::default()).await.expect("created");
    let mut of_ann = ann.subscribe("t").open().await.expect("subscribed");
    let mut of_bob = bob.subscribe("t").open().await.expect("subscribed");
    assign(&server, "acme", "ann");
    let ended = within("the end of the subscription", of_ann.next()).await;
    assert_eq!(ended.expect_err("it ended").kind, ErrorKind::Denied);
    bob.publish("t", Record::new("v")).await.expect("published");
    assert_eq!(value(&within("a record", of_bob.next()).await.expect("open")), b"v");
    let again = log_in(&server, "ann").await;
    assert_eq!(refused(again.describe_topic("t").await), ErrorKind::NotFound, "it is outside of the tenant");
    let listed = command::on(&server, ["tenant", "list", "--json"]).json();
    assert_eq!(listed, json!([{ "user": "ann", "tenant": "acme", "prefix": "acme." }]));
    let users = command::on(&server, ["user", "list", "--json"]).json();
    let tenants: Vec<&Value> = users.as_array().expect("a list").iter().map(|user| &user["tenant"]).collect();
    assert_eq!(tenants, [&json!("acme"), &Value::Null, &Value::Null]);
    command::on(&server, ["tenant", "unassign", "ann"]).ok();
    assert!(command::on(&server, ["tenant", "unassign", "ann"]).failed(4).contains("thalweg tenant list"));
    assert!(command::on(&server, ["tenant", "assign", "_queues", "ann"]).failed(2).contains("_queues"));
    assert!(log_in(&server, "ann").await.describe_topic("t").await.is_ok());
}

/// Sends a message to a new queue `jobs`, and returns its URL and the bodies of its messages.
async fn use_queue(sqs: Sqs, key: &super::access_keys::Key, body: &str) -> (String, Vec<Value>) {
    let dead = call(sqs, key, "CreateQueue", json!({"QueueName": "dead"})).await.ok()["QueueUrl"].clone();
    let attributes = json!({"QueueUrl": dead, "AttributeNames": ["QueueArn"]});
    let arn = call(sqs, key, "GetQueueAttributes", attributes).await.ok()["Attributes"]["QueueArn"].clone();
    let redrive = json!({"deadLetterTargetArn": arn, "maxReceiveCount": 9}).to_string();
    let new = json!({"QueueName": "jobs", "Attributes": {"RedrivePolicy": redrive}});
    let url = call(sqs, key, "CreateQueue", new).await.ok()["QueueUrl"].clone();
    let attributes = json!({"QueueUrl": url, "AttributeNames": ["RedrivePolicy"]});
    let shown = call(sqs, key, "GetQueueAttributes", attributes).await.ok();
    assert!(shown["Attributes"]["RedrivePolicy"].as_str().expect("a policy").contains(arn.as_str().expect("an ARN")));
    call(sqs, key, "SendMessage", json!({"QueueUrl": url, "MessageBody": body})).await.ok();
    let receive = json!({"QueueUrl": url, "MaxNumberOfMessages": 10, "WaitTimeSeconds": NOW});
    let received = call(sqs, key, "ReceiveMessage", receive).await.ok();
    let bodies = received["Messages"].as_array().expect("messages").iter().map(|message| message["Body"].clone());
    (url.as_str().expect("a URL").to_owned(), bodies.collect())
}

#[tokio::test]
async fn two_tenants_use_the_same_queues_of_sqs() {
    for is_authorizing in [false, true] {
        let server = start(is_authorizing, &["sqs=127.0.0.1:0"]);
        let sqs = Sqs::of(&server);
        assign(&server, "acme", "ann");
        assign(&server, "globex", "bob");
        let keys = ["ann", "bob"].map(|user| create(&server, user, &[]));
        for (key, body) in keys.iter().zip(["of ann", "of bob"]) {
            let (url, bodies) = use_queue(sqs, key, body).await;
            assert!(url.ends_with("/000000000000/jobs"), "{url}");
            assert_eq!(bodies, [body]);
            let urls = call(sqs, key, "ListQueues", json!({})).await.ok()["QueueUrls"].clone();
            assert_eq!(urls.as_array().expect("a list").len(), 2, "{urls}");
            let sources = json!({"QueueUrl": url.replace("jobs", "dead")});
            let sources = call(sqs, key, "ListDeadLetterSourceQueues", sources).await.ok();
            assert_eq!(sources["queueUrls"], json!([url]));
            // The name of another tenant's queue is no name of SQS, and its account is of this tenant.
            let named = json!({"QueueUrl": url.replace("jobs", "globex.jobs")});
            assert_ne!(status(sqs, key, "PurgeQueue", named).await.0, 200);
        }
        let [_, queues, ..] = listed(&server.client("tcp").await).await;
        assert_eq!(queues, ["acme.dead", "acme.jobs", "globex.dead", "globex.jobs"]);
    }
}

#[tokio::test]
async fn an_account_that_is_a_tenant_owns_the_names_of_its_queues() {
    let server = start(false, &["sqs=127.0.0.1:0"]);
    let sqs = Sqs::of(&server);
    let before = create(&server, "root", &["--account", "111122223333"]);
    use_queue(sqs, &before, "before").await;
    assign(&server, "111122223333", "ann");
    assign(&server, "000000000000", "bob");
    let [ann, bob] = ["ann", "bob"].map(|user| create(&server, user, &[]));
    let (url, bodies) = use_queue(sqs, &ann, "after").await;
    assert!(url.ends_with("/111122223333/jobs"), "{url}");
    assert_eq!(bodies, ["after"], "the other is leased");
    use_queue(sqs, &bob, "of bob").await;
    let [_, queues, ..] = listed(&server.client("tcp").await).await;
    let of = |account: &str| ["dead", "jobs"].map(|queue| format!("{account}.us-east-1.{queue}"));
    assert_eq!(queues, [of("000000000000"), of("111122223333")].concat());
    let [_, queues, ..] = listed(&log_in(&server, "ann").await).await;
    assert_eq!(queues, ["us-east-1.dead", "us-east-1.jobs"], "the same queues at the native door");
    for (key, account) in [(&ann, "000000000000"), (&bob, "111122223333")] {
        let url = format!("http://localhost/{account}/jobs");
        let outcome = status(sqs, key, "PurgeQueue", json!({"QueueUrl": url})).await;
        assert_eq!(outcome, (403, "AccessDenied".into()));
    }
}

/// AWS gives other accounts access to a queue by its policy only
/// (<https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-overview-of-managing-access.html>).
#[tokio::test]
async fn no_role_gives_a_key_the_queues_of_another_account_but_their_policy_does() {
    let server = start(true, &["sqs=127.0.0.1:0"]);
    let sqs = Sqs::of(&server);
    command::on(&server, ["acl", "add", "User:ann", "all", "queue", "*"]).ok();
    command::on(&server, ["acl", "add", "User:ann", "all", "queue", "111122223333.", "--prefix"]).ok();
    let owner = create(&server, "root", &["--account", "111122223333"]);
    let thieves = [
        create(&server, "ann", &["--account", "222233334444"]),
        create(&server, "ann", &[]),
        // A super user.
        create(&server, "bob", &["--account", "222233334444"]),
    ];
    let (url, _) = use_queue(sqs, &owner, "kept").await;
    let send = || json!({"QueueUrl": url, "MessageBody": "x"});
    let arn = "arn:aws:sqs:us-east-1:111122223333:dead";
    for thief in &thieves {
        for (action, body) in [
            ("PurgeQueue", json!({"QueueUrl": url})),
            ("DeleteQueue", json!({"QueueUrl": url})),
            ("SendMessage", send()),
            ("ReceiveMessage", json!({"QueueUrl": url, "WaitTimeSeconds": NOW})),
            ("SetQueueAttributes", json!({"QueueUrl": url, "Attributes": {"DelaySeconds": "5"}})),
            ("GetQueueUrl", json!({"QueueName": "jobs", "QueueOwnerAWSAccountId": "111122223333"})),
            ("StartMessageMoveTask", json!({"SourceArn": arn})),
            ("ListMessageMoveTasks", json!({"SourceArn": arn})),
        ] {
            assert_eq!(status(sqs, thief, action, body).await, (403, "AccessDenied".into()), "{action}");
        }
    }
    let label = json!({"QueueUrl": url, "Label": "l", "AWSAccountIds": ["222233334444"], "Actions": ["SendMessage"]});
    call(sqs, &owner, "AddPermission", label).await.ok();
    let outcomes = [
        status(sqs, &thieves[0], "SendMessage", send()).await.0,
        status(sqs, &thieves[1], "SendMessage", send()).await.0,
    ];
    assert_eq!(outcomes, [200, 403], "the policy is for one account");
    let purged = status(sqs, &thieves[0], "PurgeQueue", json!({"QueueUrl": url})).await;
    assert_eq!(purged, (403, "AccessDenied".into()), "the policy gives no more than it says");
    // A tenant is not opened by a policy.
    assign(&server, "222233334444", "ann");
    assert_eq!(status(sqs, &thieves[0], "SendMessage", send()).await, (403, "AccessDenied".into()));
}

/// Door of Pub/Sub over REST.
struct PubSub<'s>(&'s Server);

impl PubSub<'_> {
    fn call(&self, user: &str, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let login = format!("Basic {}", BASE64.encode(format!("{user}:secret")));
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (status, text) = exchange(self.0.pubsub(), method, &format!("/v1/{path}"), Some(&login), &body);
        let body = text.find('{').and_then(|start| Some(&text[start..=text.rfind('}')?]));
        (status, body.and_then(|body| serde_json::from_str(body).ok()).unwrap_or(Value::Null))
    }

    /// Uses the topic `orders` and a subscription of a project, and returns the data of the message that it has.
    fn use_names(&self, user: &str, project: &str, data: &str) -> Value {
        let topic = format!("projects/{project}/topics/orders");
        let subscription = format!("projects/{project}/subscriptions/billing");
        let schema = json!({"type": "AVRO", "definition": "\"string\""});
        let ok = |(status, body): (u16, Value)| {
            assert_eq!(status, 200, "{user}: {body}");
            body
        };
        ok(self.call(user, "POST", &format!("projects/{project}/schemas?schemaId=text"), &schema));
        ok(self.call(user, "PUT", &topic, &json!({})));
        ok(self.call(user, "PUT", &subscription, &json!({ "topic": topic })));
        let message = json!({"messages": [{"data": BASE64.encode(data)}]});
        ok(self.call(user, "POST", &format!("{topic}:publish"), &message));
        let snapshot = format!("projects/{project}/snapshots/before");
        ok(self.call(user, "PUT", &snapshot, &json!({ "subscription": subscription })));
        for (kind, name) in [
            ("topics", &topic),
            ("subscriptions", &subscription),
            ("snapshots", &snapshot),
            ("schemas", &format!("projects/{project}/schemas/text")),
        ] {
            let listed = ok(self.call(user, "GET", &format!("projects/{project}/{kind}"), &Value::Null));
            let names: Vec<&Value> = listed[kind].as_array().expect(kind).iter().map(|one| &one["name"]).collect();
            assert_eq!(names, [name], "{user} {kind}");
        }
        let pull = json!({"maxMessages": 10, "returnImmediately": true});
        let pulled = ok(self.call(user, "POST", &format!("{subscription}:pull"), &pull));
        assert_eq!(pulled["receivedMessages"].as_array().expect("messages").len(), 1, "{pulled}");
        pulled["receivedMessages"][0]["message"]["data"].clone()
    }
}

#[tokio::test]
async fn a_google_project_that_is_a_tenant_owns_its_names_and_no_other_project() {
    for is_authorizing in [false, true] {
        let server = start(is_authorizing, &["pubsub=127.0.0.1:0"]);
        assign(&server, "project:shop", "ann");
        assign(&server, "project:farm", "bob");
        let pubsub = PubSub(&server);
        for (user, project) in [("ann", "shop"), ("bob", "farm")] {
            assert_eq!(pubsub.use_names(user, project, user), BASE64.encode(user));
        }
        for (user, other) in [("ann", "farm"), ("bob", "shop"), ("ann", "thalweg")] {
            for kind in ["topics", "subscriptions", "snapshots", "schemas"] {
                let (status, body) = pubsub.call(user, "GET", &format!("projects/{other}/{kind}"), &Value::Null);
                assert_eq!((status, &body["error"]["status"]), (403, &json!("PERMISSION_DENIED")), "{user} {kind}");
            }
            for (method, path, body) in [
                ("GET", "topics/orders", Value::Null),
                ("DELETE", "topics/orders", Value::Null),
                ("PUT", "topics/new", json!({})),
                ("GET", "schemas/text", Value::Null),
                ("DELETE", "snapshots/before", Value::Null),
                ("POST", "topics/orders:publish", json!({"messages": [{"data": "eA=="}]})),
                ("POST", "subscriptions/billing:pull", json!({"maxMessages": 1})),
                ("GET", "topics/orders:getIamPolicy", Value::Null),
            ] {
                let (status, body) = pubsub.call(user, method, &format!("projects/{other}/{path}"), &body);
                assert_eq!((status, &body["error"]["status"]), (403, &json!("PERMISSION_DENIED")), "{user} {path}");
            }
        }
        // The topic of the project is the same at the native door.
        let topic = log_in(&server, "ann").await.describe_topic("orders").await.expect("described");
        assert_eq!((topic.topic.as_str(), topic.partitions[0].end), ("orders", 1));
    }
}

/// Returns the status and the JSON body of a request to the HTTP door.
fn http(server: &Server, user: &str, method: &str, path: &str, body: Value) -> (u16, Value) {
    let login = format!("Basic {}", BASE64.encode(format!("{user}:secret")));
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let (status, text) = exchange(server.door("http"), method, &format!("/v1/{path}"), Some(&login), &body);
    let body = text.find('{').and_then(|start| Some(&text[start..=text.rfind('}')?]));
    (status, body.and_then(|body| serde_json::from_str(body).ok()).unwrap_or(Value::Null))
}

#[tokio::test]
async fn two_tenants_use_the_same_names_over_http() {
    for is_authorizing in [false, true] {
        let server = start(is_authorizing, &["http=127.0.0.1:0"]);
        assign(&server, "acme", "ann");
        assign(&server, "globex", "bob");
        for user in ["ann", "bob"] {
            let ok = |method: &str, path: &str, body: Value| {
                let (status, answer) = http(&server, user, method, path, body);
                assert!((200..300).contains(&status), "{user} {method} {path}: {status} {answer}");
                answer
            };
            assert_eq!(ok("PUT", "topics/orders", Value::Null)["topic"], "orders");
            ok("POST", "topics/orders/records", json!({"records": [{"value": user}]}));
            let read = ok("GET", "topics/orders/records?offset=earliest", Value::Null);
            assert_eq!(read["records"].as_array().expect("records").len(), 1, "{read}");
            assert_eq!(read["records"][0]["value"], user);
            ok("PUT", "queues/dead", Value::Null);
            let jobs = ok("PUT", "queues/jobs", json!({"dead_letter": "dead", "attempts_max": 1}));
            assert_eq!((&jobs["queue"], &jobs["topic"]), (&json!("jobs"), &json!("jobs")));
            assert_eq!(jobs["settings"]["dead_letter"], "dead");
            ok("POST", "queues/jobs/messages", json!({"messages": [{"body": user}]}));
            let received = ok("POST", "queues/jobs/receive?max=10", Value::Null);
            assert_eq!(received["messages"].as_array().expect("messages").len(), 1, "{received}");
            assert_eq!(received["messages"][0]["body"], user);
            assert_eq!(ok("PUT", "caches/sessions", Value::Null)["cache"], "sessions");
            ok("PUT", "caches/sessions/entries/k", json!(user));
            for (kind, one, wanted) in [
                ("topics", "topic", json!(["dead", "jobs", "orders"])),
                ("queues", "queue", json!(["dead", "jobs"])),
                ("caches", "cache", json!(["sessions"])),
            ] {
                let listed = ok("GET", kind, Value::Null);
                let names: Value = listed[kind].as_array().expect(kind).iter().map(|item| item[one].clone()).collect();
                assert_eq!(names, wanted, "{user}");
            }
            let (status, _) = http(&server, user, "GET", "topics/globex.orders", Value::Null);
            assert_eq!(status, 404, "a full name is one within the tenant");
        }
        let [topics, ..] = listed(&server.client("tcp").await).await;
        assert!(topics.contains(&"acme.orders".into()) && topics.contains(&"globex.orders".into()), "{topics:?}");
    }
}
