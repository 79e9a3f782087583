//! Permission languages of other systems, as views of the broker's access control entries: a policy that is written at
//! one door takes effect there, shows at every other door, and reads back.

use aws_lc_rs::{digest, hmac};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use client::{Client, Record, TopicSettings};
use kafka_protocol::messages::DescribeAclsRequest;
use serde_json::{Value, json};

use super::access::exchange;
use super::kafka::raw::{Raw, text};
use super::kafka::security::log_in;
use super::redis::commands::{self as redis, Redis};
use super::sqs::client::{ARN, Answer, Sqs};
use crate::support::access::acls;
use crate::support::command;
use crate::support::server::Server;

const STRICT: [&str; 4] = ["auth=required", "authorization=true", "users=bob:secret,root:r00t", "super_users=root"];
const TOPIC: &str = "/v1/projects/shop/topics/orders";
const BILLING: &str = "/v1/projects/shop/subscriptions/billing";
const BOB: &str = "bob:secret";
const ROOT: &str = "root:r00t";

fn strict(more: &[&str]) -> Server {
    Server::with(&[&STRICT[..], more].concat())
}

/// Returns all entries that the command line lists, as `PRINCIPAL PERMISSION OPERATION KIND NAME`.
fn listed(server: &Server) -> Vec<String> {
    let list = command::on(server, ["acl", "list", "--json"]).json();
    let line = |acl: &Value| {
        let part = |name: &str| acl[name].as_str().expect("a text").to_owned();
        ["principal", "permission", "operation", "kind", "name"].map(part).join(" ")
    };
    let mut lines: Vec<String> = list.as_array().expect("a list").iter().map(line).collect();
    lines.sort_unstable();
    lines
}

/// Returns the entries that Kafka's clients see of a topic, as principals with Kafka's numbers of operations.
async fn described(kafka: &mut Raw, topic: &str) -> Vec<(String, i8)> {
    let request = DescribeAclsRequest::default()
        .with_resource_type_filter(2)
        .with_resource_name_filter(Some(text(topic)))
        .with_pattern_type_filter(3)
        .with_principal_filter(None)
        .with_host_filter(None)
        .with_operation(1)
        .with_permission_type(1);
    let found = kafka.call(3, request).await.resources;
    found.iter().flat_map(|of| of.acls.iter().map(|acl| (acl.principal.to_string(), acl.operation))).collect()
}

/// Door of Pub/Sub over REST.
struct PubSub<'s>(&'s Server);

impl PubSub<'_> {
    fn call(&self, user: &str, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let login = format!("Basic {}", BASE64.encode(user));
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (status, text) = exchange(self.0.pubsub(), method, path, Some(&login), &body);
        // The body is chunked.
        let body = text.find('{').and_then(|start| Some(&text[start..=text.rfind('}')?]));
        (status, body.and_then(|body| serde_json::from_str(body).ok()).unwrap_or(Value::Null))
    }

    fn post(&self, user: &str, path: &str, body: Value) -> (u16, Value) {
        self.call(user, "POST", path, &body)
    }

    fn publish(&self, user: &str) -> u16 {
        self.post(user, &format!("{TOPIC}:publish"), json!({"messages": [{"data": "eA=="}]})).0
    }

    fn pull(&self, user: &str) -> u16 {
        self.post(user, &format!("{BILLING}:pull"), json!({"maxMessages": 1, "returnImmediately": true})).0
    }

    fn set(&self, path: &str, policy: Value) -> (u16, Value) {
        self.post(ROOT, &format!("{path}:setIamPolicy"), json!({ "policy": policy }))
    }

    /// Returns the bindings and the etag of a policy.
    fn get(&self, path: &str) -> (Value, Value) {
        let (status, policy) = self.call(ROOT, "GET", &format!("{path}:getIamPolicy"), &Value::Null);
        assert_eq!(status, 200, "{policy}");
        (policy["bindings"].clone(), policy["etag"].clone())
    }

    fn tested(&self, path: &str, permissions: &[&str]) -> Value {
        self.post(BOB, &format!("{path}:testIamPermissions"), json!({ "permissions": permissions })).1["permissions"]
            .clone()
    }
}

/// Creates the topic `orders` and the subscription `billing` of it.
async fn orders(server: &Server) -> Client {
    let admin = server.client("tcp").await;
    admin.create_topic("orders", TopicSettings::default()).await.expect("created");
    admin.publish("orders", Record::new("v")).await.expect("published");
    command::on(server, ["queue", "create", "billing", "--topic", "orders"]).ok();
    admin
}

#[tokio::test]
async fn an_iam_policy_takes_effect_and_shows_at_every_door() {
    let server = strict(&["pubsub=127.0.0.1:0", "pubsub_project=shop"]);
    let admin = orders(&server).await;
    let pubsub = PubSub(&server);
    let mut kafka = log_in(&server, "root", "r00t").await.expect("a super user");
    let may = ["pubsub.topics.publish", "pubsub.topics.get", "pubsub.topics.delete"];
    assert_eq!((pubsub.publish(BOB), pubsub.tested(TOPIC, &may)), (403, Value::Null));

    let publisher = json!([{"role": "roles/pubsub.publisher", "members": ["serviceAccount:bob", "group:sales"]}]);
    let (status, answer) = pubsub.set(TOPIC, json!({"version": 1, "bindings": publisher}));
    assert_eq!((status, &answer["bindings"]), (200, &publisher), "{answer}");
    assert_eq!((pubsub.publish(BOB), pubsub.tested(TOPIC, &may)), (200, json!(&may[..2])));
    assert_eq!(listed(&server), ["Role:sales allow write topic orders", "User:bob allow write topic orders"]);
    assert_eq!(described(&mut kafka, "orders").await, [("User:bob".to_owned(), 4), ("Role:sales".to_owned(), 4)]);
    let (bindings, etag) = pubsub.get(TOPIC);
    assert_eq!((&bindings, &etag), (&publisher, &answer["etag"]));

    // What others change shows, as far as a policy can say it, and a policy that is based on an older one is refused.
    for (entry, is_allowed) in [("describe topic orders", true), ("read topic orders", false)] {
        admin.create_acls(acls("User:bob", entry, is_allowed)).await.expect("added");
    }
    let both = json!([
        {"role": "roles/pubsub.publisher", "members": ["user:bob", "group:sales"]},
        {"role": "roles/pubsub.viewer", "members": ["user:bob"]},
    ]);
    let (bindings, newer) = pubsub.get(TOPIC);
    assert_eq!(bindings, both);
    let (status, refused) = pubsub.set(TOPIC, json!({"bindings": [], "etag": etag}));
    assert_eq!((status, &refused["error"]["status"]), (409, &json!("ABORTED")), "{refused}");
    assert_eq!(pubsub.publish(BOB), 200);
    assert_eq!(pubsub.set(TOPIC, json!({"bindings": [], "etag": newer})).0, 200);
    assert_eq!((pubsub.publish(BOB), pubsub.get(TOPIC).0), (403, Value::Null));
    assert_eq!(listed(&server), ["User:bob deny read topic orders"], "no policy can say it, so none removes it");
}

#[tokio::test]
async fn a_subscriber_needs_the_subscription_and_its_topic() {
    let server = strict(&["pubsub=127.0.0.1:0", "pubsub_project=shop"]);
    let _admin = orders(&server).await;
    let pubsub = PubSub(&server);
    let consume = ["pubsub.subscriptions.consume"];
    let subscriber = json!({"bindings": [{"role": "roles/pubsub.subscriber", "members": ["user:bob"]}]});
    assert_eq!(pubsub.set(BILLING, subscriber.clone()).0, 200);
    assert_eq!((pubsub.pull(BOB), pubsub.tested(BILLING, &consume)), (403, Value::Null));
    assert_eq!(pubsub.set(TOPIC, subscriber).0, 200);
    assert_eq!((pubsub.pull(BOB), pubsub.tested(BILLING, &consume)), (200, json!(consume)));
    let nothing = "/v1/projects/shop/subscriptions/nothing";
    assert_eq!(pubsub.tested(nothing, &consume), Value::Null, "it does not exist");
    let (status, refused) =
        pubsub.post(BOB, &format!("{TOPIC}:testIamPermissions"), json!({"permissions": ["pubsub.topics.fly"]}));
    assert_eq!(status, 400, "{refused}");

    // A policy ends with its resource.
    assert_eq!(listed(&server), ["User:bob allow read queue billing", "User:bob allow read topic orders"]);
    assert_eq!(pubsub.call(ROOT, "DELETE", BILLING, &Value::Null).0, 200);
    assert_eq!(listed(&server), ["User:bob allow read topic orders"]);
    assert_eq!(pubsub.call(ROOT, "DELETE", TOPIC, &Value::Null).0, 200);
    assert!(listed(&server).is_empty());
}

/// Only who may alter the cluster gives permissions by a policy, and a policy is about its resource alone.
#[tokio::test]
async fn an_iam_policy_gives_nothing_beyond_its_resource() {
    let server = strict(&["pubsub=127.0.0.1:0", "pubsub_project=shop"]);
    let admin = orders(&server).await;
    let pubsub = PubSub(&server);
    admin.create_acls(acls("User:bob", "all topic orders", true)).await.expect("added");
    let before = listed(&server);
    let bobs = json!({"policy": {"bindings": [{"role": "roles/owner", "members": ["user:bob"]}]}});
    for path in [TOPIC, BILLING] {
        assert_eq!(pubsub.post(BOB, &format!("{path}:setIamPolicy"), bobs.clone()).0, 403, "{path}");
    }
    let condition = json!({"title": "until May", "expression": "request.time < timestamp('2030-05-01T00:00:00Z')"});
    let owner = |members: Value| json!({"bindings": [{"role": "roles/owner", "members": members}]});
    for (path, policy) in [
        (TOPIC, owner(json!(["user:*"]))),
        (TOPIC, owner(json!(["group:admin"]))),
        (TOPIC, owner(json!(["domain:example.com"]))),
        (TOPIC, json!({"bindings": [{"role": "roles/run.invoker", "members": ["user:bob"]}]})),
        (BILLING, json!({"bindings": [{"role": "roles/pubsub.publisher", "members": ["user:bob"]}]})),
        (TOPIC, json!({"bindings": [{"role": "roles/viewer", "members": ["user:bob"], "condition": condition}]})),
        (TOPIC, json!({"auditConfigs": [{"service": "allServices"}]})),
        (TOPIC, json!({"version": 2})),
    ] {
        let (status, refused) = pubsub.set(path, policy.clone());
        assert_eq!((status, &refused["error"]["status"]), (400, &json!("INVALID_ARGUMENT")), "{policy} {refused}");
    }
    let masked = json!({"policy": {}, "updateMask": "auditConfigs"});
    assert_eq!(pubsub.post(ROOT, &format!("{TOPIC}:setIamPolicy"), masked).0, 400);
    assert_eq!(listed(&server), before);
    // With the permission of an administrator bob may.
    admin.create_acls(acls("User:bob", "alter cluster cluster", true)).await.expect("added");
    assert_eq!(pubsub.post(BOB, &format!("{BILLING}:setIamPolicy"), bobs).0, 200);
    assert!(listed(&server).contains(&"User:bob allow all queue billing".to_owned()));
}

/// Without authorization no entry takes effect, so a policy is only kept, whatever it says.
#[tokio::test]
async fn without_authorization_a_policy_is_kept_as_it_is() {
    let server = Server::with(&["pubsub=127.0.0.1:0", "pubsub_project=shop"]);
    let _admin = orders(&server).await;
    let pubsub = PubSub(&server);
    let bindings = json!([{"role": "roles/mine", "members": ["domain:example.com"], "condition": {"title": "t"}}]);
    let (status, set) = pubsub.set(TOPIC, json!({ "bindings": bindings }));
    assert_eq!((status, &set["bindings"]), (200, &bindings));
    assert_eq!(pubsub.get(TOPIC), (bindings, set["etag"].clone()));
    assert!(listed(&server).is_empty());
}

const VERIFIED: [&str; 5] = [
    "auth=required",
    "authorization=true",
    "users=ROOT:r00t",
    "super_users=ROOT",
    "sqs_credentials=ROOT:s,OWNER:s,BOB:s,111122223333:s",
];
const OTHER: &str = "111122223333";

/// Client of SQS that signs its requests with an access key whose secret is `s`.
struct Signed<'k> {
    sqs: Sqs,
    key: &'k str,
}

impl<'k> Signed<'k> {
    fn new(server: &Server, key: &'k str) -> Self {
        Self { sqs: Sqs::at(server.door("sqs")), key }
    }

    /// Signs by <https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html>.
    async fn call(&self, action: &str, body: Value) -> Answer {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let hash = |text: &str| hex(digest::digest(&digest::SHA256, text.as_bytes()).as_ref());
        let mac = |key: &[u8], text: &str| hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes());
        let now = std::process::Command::new("date").args(["-u", "+%Y%m%dT%H%M%SZ"]).output().expect("a date").stdout;
        let now = String::from_utf8(now).expect("text").trim().to_owned();
        let scope = format!("{}/us-east-1/sqs/aws4_request", &now[..8]);
        let target = format!("AmazonSQS.{action}");
        let signed = "host;x-amz-date;x-amz-target";
        let headers = format!("host:localhost\nx-amz-date:{now}\nx-amz-target:{target}\n");
        let canonical = format!("POST\n/\n\n{headers}\n{signed}\n{}", hash(&body.to_string()));
        let text = format!("AWS4-HMAC-SHA256\n{now}\n{scope}\n{}", hash(&canonical));
        let secret = mac(b"AWS4s", &now[..8]);
        let secret = ["us-east-1", "sqs", "aws4_request"].iter().fold(secret, |key, part| mac(key.as_ref(), part));
        let signature = hex(mac(secret.as_ref(), &text).as_ref());
        let credential = format!("Credential={}/{scope}", self.key);
        let login = format!("AWS4-HMAC-SHA256 {credential}, SignedHeaders={signed}, Signature={signature}");
        let more = [("host", "localhost"), ("x-amz-date", &*now), ("authorization", &*login)];
        self.sqs.call_with(action, body, &more).await
    }

    async fn create(&self, name: &str) -> String {
        let created = self.call("CreateQueue", json!({"QueueName": name})).await.ok();
        created["QueueUrl"].as_str().expect("a URL").to_owned()
    }

    async fn status(&self, action: &str, body: Value) -> u16 {
        self.call(action, body).await.status
    }

    async fn send(&self, url: &str) -> u16 {
        self.status("SendMessage", json!({"QueueUrl": url, "MessageBody": "x"})).await
    }

    async fn receive(&self, url: &str) -> u16 {
        self.status("ReceiveMessage", json!({"QueueUrl": url, "WaitTimeSeconds": 0})).await
    }

    async fn add(&self, url: &str, label: &str, account: &str, action: &str) -> Answer {
        let request = json!({"QueueUrl": url, "Label": label, "AWSAccountIds": [account], "Actions": [action]});
        self.call("AddPermission", request).await
    }

    async fn set(&self, url: &str, policy: &str) -> Answer {
        self.call("SetQueueAttributes", json!({"QueueUrl": url, "Attributes": {"Policy": policy}})).await
    }

    async fn policy(&self, url: &str) -> Value {
        let request = json!({"QueueUrl": url, "AttributeNames": ["Policy"]});
        self.call("GetQueueAttributes", request).await.ok()["Attributes"]["Policy"].clone()
    }
}

/// Returns a policy of the queue `q` with one statement.
fn policy_of_q(effect: &str, principal: &str, actions: &[&str]) -> String {
    let statement = json!({
        "Sid": "one",
        "Effect": effect,
        "Principal": {"AWS": principal},
        "Action": actions,
        "Resource": format!("{ARN}q"),
    });
    json!({"Version": "2012-10-17", "Statement": [statement]}).to_string()
}

#[tokio::test]
async fn an_sqs_policy_takes_effect_and_reads_back() {
    let server = Server::with(&[&VERIFIED[..], &["sqs=127.0.0.1:0"]].concat());
    let [root, bob, other] = ["ROOT", "BOB", OTHER].map(|key| Signed::new(&server, key));
    let url = root.create("q").await;
    assert_eq!((other.send(&url).await, bob.receive(&url).await), (403, 403));

    root.add(&url, "theirs", OTHER, "SendMessage").await.ok();
    assert_eq!((other.send(&url).await, bob.send(&url).await, other.receive(&url).await), (200, 403, 403));
    assert_eq!(listed(&server), ["Role:aws-account-111122223333 allow write queue q"]);
    let text = root.policy(&url).await;
    let policy: Value = serde_json::from_str(text.as_str().expect("a text")).expect("JSON");
    assert_eq!(policy["Statement"][0]["Principal"]["AWS"], "arn:aws:iam::111122223333:root");
    // What is deleted at another door is no part of the policy any more.
    command::on(&server, ["acl", "delete", "--kind", "queue", "--name", "q"]).ok();
    assert_eq!((other.send(&url).await, root.policy(&url).await), (403, Value::Null));

    let user = "arn:aws:iam::000000000000:user/BOB";
    let written = policy_of_q("Allow", user, &["sqs:ReceiveMessage", "sqs:DeleteMessage"]);
    let written: Value = serde_json::from_str(&written).expect("JSON");
    let written = serde_json::to_string_pretty(&written).expect("JSON");
    root.set(&url, &written).await.ok();
    assert_eq!((bob.receive(&url).await, bob.send(&url).await, other.send(&url).await), (200, 403, 403));
    assert_eq!(root.policy(&url).await, written.as_str(), "to the letter");
    root.add(&url, "theirs", OTHER, "SendMessage").await.ok();
    assert_eq!((bob.receive(&url).await, other.send(&url).await), (200, 200));
    assert_eq!(listed(&server), ["Role:aws-account-111122223333 allow write queue q", "User:BOB allow read queue q"]);
    root.call("RemovePermission", json!({"QueueUrl": url, "Label": "one"})).await.ok();
    assert_eq!((bob.receive(&url).await, other.send(&url).await), (403, 200));

    // A policy that is not understood changes nothing.
    let before = (listed(&server), root.policy(&url).await);
    let condition = policy_of_q("Allow", user, &["sqs:*"])
        .replace(r#""Sid""#, r#""Condition":{"Bool":{"aws:SecureTransport":"true"}},"Sid""#);
    for (policy, part) in [
        (condition, "Condition Bool"),
        (policy_of_q("Allow", "arn:aws:iam::000000000000:user/*", &["sqs:*"]), "wildcard"),
        (policy_of_q("Allow", user, &["sqs:DeleteMessage"]), "ReceiveMessage"),
        (policy_of_q("Allow", user, &["sqs:*"]).replace(":q\"", ":other\""), "is not this queue"),
        (policy_of_q("Allow", "arn:aws:iam::000000000000:role/admin", &["sqs:*"]), "built in"),
        ("{}".to_owned(), "Statement"),
    ] {
        let refused = root.set(&url, &policy).await.error();
        assert!(refused.0 == 400 && refused.2.contains(part), "{policy}: {refused:?}");
    }
    assert_eq!((listed(&server), root.policy(&url).await), before);
    root.set(&url, "").await.ok();
    assert_eq!((other.send(&url).await, listed(&server).len()), (403, 0));

    // A queue is created with its policy, and deleted with it.
    let attributes = json!({"Policy": policy_of_q("Allow", "*", &["sqs:SendMessage"]).replace(":q\"", ":r\"")});
    let created = root.call("CreateQueue", json!({"QueueName": "r", "Attributes": attributes})).await.ok();
    let second = created["QueueUrl"].as_str().expect("a URL");
    assert_eq!((other.send(second).await, listed(&server)), (200, vec!["User:* allow write queue r".to_owned()]));
    root.call("DeleteQueue", json!({"QueueUrl": second})).await.ok();
    assert!(listed(&server).is_empty());
    assert_eq!(other.send(&root.create("r").await).await, 403);
}

/// What is left of a policy can need more statements than a policy may have: it still takes its entries back.
#[tokio::test]
async fn a_removed_permission_of_sqs_ends_however_many_statements_are_shown() {
    let server = Server::with(&[&VERIFIED[..], &["sqs=127.0.0.1:0"]].concat());
    let [root, other] = ["ROOT", OTHER].map(|key| Signed::new(&server, key));
    let url = root.create("q").await;
    let user = |name: &str| format!("arn:aws:iam::000000000000:user/{name}");
    let split = |at: usize| {
        json!({
            "Sid": format!("s{at}"),
            "Effect": "Allow",
            "Principal": {"AWS": [user("ann"), user(&format!("u{at}"))]},
            "Action": ["sqs:SendMessage", "sqs:ReceiveMessage"],
            "Resource": "*",
        })
    };
    let statements: Vec<Value> = (0..10).map(split).collect();
    root.set(&url, &json!({ "Statement": statements }).to_string()).await.ok();
    root.add(&url, "theirs", OTHER, "SendMessage").await.ok();
    // Each statement about ann is two now.
    command::on(&server, ["acl", "delete", "--principal", "User:ann", "--operation", "read"]).ok();
    let shown = root.policy(&url).await;
    let shown: Value = serde_json::from_str(shown.as_str().expect("a text")).expect("JSON");
    assert_eq!((shown["Statement"].as_array().map(Vec::len), other.send(&url).await), (Some(21), 200));
    root.call("RemovePermission", json!({"QueueUrl": url, "Label": "theirs"})).await.ok();
    assert_eq!((other.send(&url).await, listed(&server).len()), (403, 21));
}

/// Who may only alter a queue gives by its policy what it may do itself, on this queue, and takes no denial away.
#[tokio::test]
async fn an_sqs_policy_gives_nothing_beyond_its_author_and_its_queue() {
    let server = Server::with(&[&VERIFIED[..], &["sqs=127.0.0.1:0"]].concat());
    let [root, owner, other] = ["ROOT", "OWNER", OTHER].map(|key| Signed::new(&server, key));
    let [url, second] = [root.create("q").await, root.create("second").await];
    let admin = server.client("tcp").await;
    admin.create_acls(acls("User:OWNER", "alter,write queue q", true)).await.expect("added");
    admin.create_acls(acls("User:BOB", "write queue q", false)).await.expect("added");
    let before = listed(&server);
    let own = "arn:aws:iam::000000000000:user/OWNER";

    assert_eq!(owner.add(&second, "a", OTHER, "SendMessage").await.status, 403, "it may not alter this one");
    let denied = async |answer: Answer, part: &str| {
        let (status, code, message) = answer.error();
        assert!((status, &*code) == (403, "AccessDenied") && message.contains(part), "{part}: {message}");
    };
    denied(owner.add(&url, "a", OTHER, "ReceiveMessage").await, "may not read queue q").await;
    denied(owner.add(&url, "a", OTHER, "*").await, "may not read queue q").await;
    denied(owner.set(&url, &policy_of_q("Allow", own, &["sqs:ReceiveMessage"])).await, "may not read").await;
    denied(owner.set(&url, &policy_of_q("Allow", own, &["sqs:*"])).await, "may not").await;
    denied(owner.set(&url, &policy_of_q("Deny", "*", &["sqs:SendMessage"])).await, "Effect Deny").await;
    let of_second = policy_of_q("Allow", own, &["sqs:SendMessage"]).replace(":q\"", ":second\"");
    assert_eq!(owner.set(&url, &of_second).await.error().0, 400);
    assert_eq!(listed(&server), before);
    assert_eq!(owner.policy(&url).await, Value::Null);

    owner.add(&url, "a", OTHER, "SendMessage").await.ok();
    assert_eq!((other.send(&url).await, other.send(&second).await), (200, 403));
    // A denial that an administrator added, by the policy or not, is not the owner's to lift.
    let whole = policy_of_q("Deny", "arn:aws:iam::111122223333:root", &["sqs:SendMessage"]);
    root.set(&url, &whole).await.ok();
    denied(owner.set(&url, "").await, "Effect Deny").await;
    denied(owner.call("RemovePermission", json!({"QueueUrl": url, "Label": "one"})).await, "Effect Deny").await;
    assert_eq!(other.send(&url).await, 403);
    admin.create_acls(acls("User:OWNER", "delete queue q", true)).await.expect("added");
    owner.call("DeleteQueue", json!({"QueueUrl": url})).await.ok();
    let wanted = [
        "Role:aws-account-111122223333 deny write queue q",
        "User:BOB deny write queue q",
        "User:OWNER allow alter queue q",
        "User:OWNER allow delete queue q",
        "User:OWNER allow write queue q",
    ];
    assert_eq!(listed(&server), wanted);

    // A new queue with a policy needs more than its creation, and the built-in operator gives itself nothing.
    admin.create_acls(acls("User:OWNER", "create queue fresh", true)).await.expect("added");
    let policy = policy_of_q("Allow", own, &["sqs:SendMessage"]).replace(":q\"", ":fresh\"");
    let with_policy = json!({"QueueName": "fresh", "Attributes": {"Policy": policy}});
    denied(owner.call("CreateQueue", with_policy).await, "may not alter queue fresh").await;
    let operator = client::security::RoleName::parse("operator").expect("a name");
    admin
        .set_member(client::security::UserName::parse("BOB").expect("a name"), operator, true)
        .await
        .expect("a member");
    let bob = Signed::new(&server, "BOB");
    let policy = policy_of_q("Allow", "arn:aws:iam::000000000000:user/BOB", &["sqs:ReceiveMessage"]);
    denied(bob.set(&second, &policy.replace(":q\"", ":second\"")).await, "may not read queue second").await;
    assert_eq!(bob.receive(&second).await, 403);
}

const REDIS: [&str; 5] =
    ["auth=required", "authorization=true", "users=admin:a,bob:b", "super_users=admin", "insecure=true"];
const NO_KEY: &str = "-NOPERM this user has no permissions to access one of the keys used as arguments";
const NO_CHANNEL: &str = "-NOPERM this user has no permissions to access one of the channels used as arguments";

fn log_in_to_redis(server: &Server, user: &str, password: &str) -> Redis {
    let mut redis = Redis::open(server);
    assert_eq!(redis.call(&format!("AUTH {user} {password}")), "+OK");
    redis
}

#[tokio::test]
async fn redis_rules_take_effect_and_read_back() {
    let server = redis::server(&REDIS);
    let mut admin = log_in_to_redis(&server, "admin", "a");
    assert_eq!(admin.call("ACL GETUSER ann"), "nil");
    let rules = "~user:* %R~ro:* &news.* +@read +@write +@pubsub";
    assert_eq!(admin.call(&format!("ACL SETUSER ann on >pencil {rules}")), "+OK");
    let mut ann = log_in_to_redis(&server, "ann", "pencil");
    for (command, answer) in [
        ("SET user:1 v", "+OK"),
        ("GET ro:1", "nil"),
        ("SET ro:1 v", NO_KEY),
        ("GET x", NO_KEY),
        ("PUBLISH news.a v", ":0"),
        ("PUBLISH other v", NO_CHANNEL),
        ("SELECT 12", "+OK"),
        ("SET user:1 v", "+OK"),
        ("GET x", NO_KEY),
        ("CONFIG GET save", "-NOPERM this user has no permissions to run the 'config|get' command"),
    ] {
        assert_eq!(ann.call(command), answer, "{command}");
    }
    let of_ann = |kind: &str| {
        let about = listed(&server).into_iter().filter(|line| line.starts_with("User:ann ") && line.contains(kind));
        about.collect::<Vec<_>>()
    };
    assert_eq!(of_ann("cache").len(), 6);
    assert_eq!(of_ann("channel"), ["User:ann allow read channel news.*", "User:ann allow write channel news.*"]);
    let shown = "(flags (on) passwords () commands -@all +@read +@write +@pubsub keys ~user:* %R~ro:* channels &news.* \
                 selectors ())";
    assert_eq!(admin.call("ACL GETUSER ann"), shown);
    let lines = admin.call("ACL LIST");
    assert!(
        lines.contains("user ann on ~user:* %R~ro:* resetchannels &news.* -@all +@read +@write +@pubsub"),
        "{lines}"
    );
    assert!(lines.contains("user admin on ~* &* +@all"), "{lines}");
    assert_eq!(admin.call("ACL USERS"), "(admin ann bob default)");
    // The user is one of all doors.
    assert!(log_in(&server, "ann", "pencil").await.is_ok());

    // A change takes effect on open connections.
    assert_eq!(admin.call("ACL SETUSER ann resetkeys ~x"), "+OK");
    assert_eq!((ann.call("GET user:1"), ann.call("SET x v")), (NO_KEY.to_owned(), "+OK".to_owned()));
    assert_eq!(admin.call("ACL SETUSER ann -@write"), "+OK");
    assert_eq!((ann.call("SET x v"), ann.call("GET x")), (NO_KEY.to_owned(), "v".to_owned()));
    let client = server.client("tcp").await;
    client.create_acls(acls("User:ann", "read topic t", true)).await.expect("added");
    command::on(&server, ["acl", "delete", "--principal", "User:ann", "--kind", "cache"]).ok();
    assert_eq!(ann.call("GET x"), NO_KEY);
    assert!(admin.call("ACL GETUSER ann").contains("commands -@all +@pubsub keys  channels &news.*"));
    assert_eq!(admin.call("ACL SETUSER ann allkeys +@all"), "+OK");
    assert_eq!(
        (ann.call("GET y"), ann.call("DBSIZE"), ann.call("ACL WHOAMI")),
        ("nil".into(), ":2".into(), "ann".into())
    );
    assert_eq!(admin.call("ACL SETUSER ann resetpass >other"), "+OK");
    assert_eq!(Redis::open(&server).call("AUTH ann pencil").split(' ').next(), Some("-WRONGPASS"));
    let _again = log_in_to_redis(&server, "ann", "other");

    // What no rule says stays, as it is not Redis's.
    assert_eq!(admin.call("ACL DELUSER ann nobody"), ":1");
    assert_eq!(listed(&server), ["User:ann allow read topic t"]);
    assert_eq!(ann.call("GET x"), "-NOAUTH Authentication required.");
    assert_eq!(Redis::open(&server).call("AUTH ann other").split(' ').next(), Some("-WRONGPASS"));
    assert_eq!(admin.call("ACL USERS"), "(admin bob default)");
}

/// Rules that the broker cannot enforce are refused as a whole, and who may not alter the cluster changes none.
#[tokio::test]
async fn redis_rules_that_are_refused_change_nothing() {
    let server = redis::server(&REDIS);
    let client = server.client("tcp").await;
    let mut admin = log_in_to_redis(&server, "admin", "a");
    assert_eq!(admin.call("ACL SETUSER ann >pencil ~a +@read"), "+OK");
    let before = (listed(&server), admin.call("ACL LIST"));
    let hash = "a".repeat(64);
    for (rules, part) in [
        ("carl on >pw ~a +get", "'get' cannot be allowed by itself"),
        ("carl on >pw ~a +@all -@dangerous", "cannot be refused by itself"),
        ("carl >pw ~* +@stream", "streams, which are topics of all doors"),
        ("carl >pw ~a +@write", "allow +@read as well"),
        ("carl >pw (~a +@read)", "Selectors"),
        ("carl >pw ~a\u{7} +@read", "no control characters"),
        ("carl >pw +nope", "Unknown command or category"),
        ("carl nopass ~a +@read", "Every client could log in"),
        ("carl >", "A password is not empty"),
        (&*format!("carl #{hash}"), "modifier '#': The broker stores salted SCRAM hashes"),
        ("ann >second", "modifier '>': A user has one password"),
        ("ann <wrong", "modifier '<': The password you are trying to remove"),
        ("ann off", "resetpass"),
        ("bob >x", "configuration"),
        ("admin ~a", "super_users"),
        ("* >pw ~a +@read", "the name of a user"),
        ("a\tb >pw", "Usernames can't contain spaces"),
    ] {
        let refused = admin.call(&format!("ACL SETUSER {rules}"));
        assert!(refused.starts_with("-ERR") && refused.contains(part) && !refused.contains("pw"), "{rules}: {refused}");
    }
    assert_eq!((listed(&server), admin.call("ACL LIST")), before);
    assert_eq!(admin.call("ACL SETUSER ann >pencil ~a +@read"), "+OK", "nothing new");
    assert_eq!((listed(&server), admin.call("ACL LIST")), before);
    assert_eq!(admin.call("ACL DELUSER default"), "-ERR The 'default' user cannot be removed");

    client.create_acls(acls("User:bob", "describe cluster cluster", true)).await.expect("added");
    let mut bob = log_in_to_redis(&server, "bob", "b");
    assert!(bob.call("ACL LIST").contains("user ann on ~a"));
    for command in [
        "ACL SETUSER bob ~* +@all",
        "ACL SETUSER ann ~*",
        "ACL DELUSER ann",
        "ACL SETUSER new >pw +@admin",
        "ACL LOG RESET",
    ] {
        let part = command.split(' ').nth(1).expect("a part").to_ascii_lowercase();
        let refusal = format!("-NOPERM this user has no permissions to run the 'acl|{part}' command");
        assert_eq!(bob.call(command), refusal, "{command}");
    }
    // +@admin is what changes need.
    assert_eq!(admin.call("ACL SETUSER bob +@admin"), "+OK");
    assert_eq!(bob.call("ACL SETUSER carl >pw ~c +@read"), "+OK");
    assert_eq!(log_in_to_redis(&server, "carl", "pw").call("GET c"), "nil");
    assert!(listed(&server).contains(&"User:bob allow alter cluster cluster".to_owned()));
}

/// Texts and shapes of redis-server 7.0.15, except that sizes of buffers in `client-info` are the broker's.
#[tokio::test]
async fn redis_says_what_users_may_and_what_was_refused() {
    let server = redis::server(&REDIS);
    let mut admin = log_in_to_redis(&server, "admin", "a");
    assert_eq!(admin.call("ACL SETUSER u >pw ~k* +@read"), "+OK");
    // Streams and channels that are topics are shown by their own names.
    for stream in ["user:s", "user:t"] {
        assert!(admin.call(&format!("XADD {stream} 1-1 a b")).starts_with("1-1"));
    }
    for (command, answer) in [
        ("ACL DRYRUN u xadd user:s * a b", "This user has no permissions to access the 'user:s' key"),
        ("ACL DRYRUN u xread streams user:s user:t 0 0", "This user has no permissions to access the 'user:s' key"),
        ("ACL DRYRUN nobody get x", "-ERR User 'nobody' not found"),
        ("ACL DRYRUN u nope x", "-ERR Command 'nope' not found"),
        ("ACL DRYRUN u get", "-ERR wrong number of arguments for 'get' command"),
        ("ACL DRYRUN u get x", "This user has no permissions to access the 'x' key"),
        ("ACL DRYRUN u get k1", "+OK"),
        ("ACL DRYRUN u mget k1 x", "This user has no permissions to access the 'x' key"),
        ("ACL DRYRUN u keys *", "This user has no permissions to run the 'keys' command"),
        ("ACL DRYRUN u publish c m", "This user has no permissions to access the 'c' channel"),
        ("ACL DRYRUN u client list", "This user has no permissions to run the 'client|list' command"),
        ("ACL CAT nope", "-ERR Unknown category 'nope'"),
        (
            "ACL GENPASS 0",
            "-ERR ACL GENPASS argument must be the number of bits for the output password, a positive \
                           number up to 4096",
        ),
        ("ACL GENPASS abc", "-ERR value is not an integer or out of range"),
        ("ACL LOG", "()"),
        ("ACL LOG abc", "-ERR value is not an integer or out of range"),
        ("ACL LOG 1 2", "-ERR unknown subcommand or wrong number of arguments for 'LOG'. Try ACL HELP."),
        ("ACL WHOAMI", "admin"),
    ] {
        assert_eq!(admin.call(command), answer, "{command}");
    }
    for command in ["ACL SAVE", "ACL LOAD"] {
        let text = "-ERR This Redis instance is not configured to use an ACL file.";
        assert!(admin.call(command).starts_with(text), "{command}");
    }
    let categories = admin.call("ACL CAT");
    assert!(categories.starts_with("(keyspace read write set") && categories.ends_with("transaction scripting)"));
    assert!(admin.call("ACL CAT connection").contains("client|list"));
    assert_eq!((admin.call("ACL GENPASS").len(), admin.call("ACL GENPASS 5").len()), (64, 2));
    assert_ne!(admin.call("ACL GENPASS"), admin.call("ACL GENPASS"));

    let mut user = log_in_to_redis(&server, "u", "pw");
    for command in ["GET zz", "GET zz", "KEYS *", "PUBLISH ch m"] {
        assert!(user.call(command).starts_with("-NOPERM"), "{command}");
    }
    assert_eq!(user.call("MULTI"), "+OK");
    assert_eq!(user.call("GET yy"), NO_KEY);
    assert!(Redis::open(&server).call("AUTH u2 xx").starts_with("-WRONGPASS"));
    let log = admin.call("ACL LOG");
    let parts = [
        "count :1 reason auth context toplevel object AUTH username u2 age-seconds",
        "count :1 reason key context multi object yy username u age-seconds",
        "count :1 reason channel context toplevel object ch username u age-seconds",
        "count :1 reason command context toplevel object keys username u age-seconds",
        "count :2 reason key context toplevel object zz username u age-seconds",
    ];
    let at: Vec<_> = parts.iter().map(|part| log.find(part)).collect();
    assert!(at.iter().all(Option::is_some) && at.is_sorted(), "{log}");
    assert!(log.contains("cmd=publish user=u "), "{log}");
    assert_eq!(admin.call("ACL LOG 1").matches("reason").count(), 1);
    assert_eq!((admin.call("ACL LOG RESET"), admin.call("ACL LOG")), ("+OK".to_owned(), "()".to_owned()));
}

/// Clients that need not log in are the default user of Redis, and `User:ANONYMOUS` in entries.
#[tokio::test]
async fn the_default_user_of_redis_is_who_does_not_log_in() {
    let server = redis::server(&["authorization=true", "users=bob:b", "insecure=true"]);
    let admin = server.client("tcp").await;
    admin.create_acls(acls("User:ANONYMOUS", "alter cluster cluster", true)).await.expect("added");
    let mut anybody = Redis::open(&server);
    assert_eq!(anybody.call("GET open:1"), NO_KEY);
    assert_eq!(anybody.call("ACL SETUSER default ~open:* +@read"), "+OK");
    assert_eq!((anybody.call("GET open:1"), anybody.call("SET open:1 v")), ("nil".to_owned(), NO_KEY.to_owned()));
    let shown = "(flags (on nopass) passwords () commands -@all +@read keys ~open:* channels  selectors ())";
    assert_eq!(anybody.call("ACL GETUSER default"), shown);
    assert!(anybody.call("ACL SETUSER default >pw").contains("without auth = required"));
    let entries = listed(&server);
    assert!(entries.contains(&"User:ANONYMOUS allow read cache db[0-9]/open:*".to_owned()), "{entries:?}");
    assert!(entries.contains(&"User:ANONYMOUS allow alter cluster cluster".to_owned()), "no rule says this alone");
}

/// Users and their rules outlive the broker, and without authorization only passwords can be set.
#[tokio::test]
async fn redis_users_outlive_the_broker_and_need_authorization_for_rules() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = format!("data={}", folder.path().display());
    let set: Vec<&str> = REDIS.into_iter().chain([&*data, "redis=127.0.0.1:0"]).collect();
    {
        let server = Server::with(&set);
        let mut admin = log_in_to_redis(&server, "admin", "a");
        assert_eq!(admin.call("ACL SETUSER ann >pencil %R~a %W~b &c +@pubsub"), "+OK");
        assert_eq!(admin.call("ACL SETUSER ann +@read"), "+OK");
    }
    {
        let server = Server::with(&set);
        let mut admin = log_in_to_redis(&server, "admin", "a");
        let shown = admin.call("ACL GETUSER ann");
        assert!(shown.contains("commands -@all +@read +@pubsub keys %R~a %W~b channels &c"), "{shown}");
        assert_eq!(log_in_to_redis(&server, "ann", "pencil").call("GET a"), "nil");
    }
    let off: Vec<&str> = set.iter().copied().filter(|pair| *pair != "authorization=true").collect();
    let server = Server::with(&off);
    let mut admin = log_in_to_redis(&server, "admin", "a");
    assert!(admin.call("ACL SETUSER carl >pw ~a +@read").contains("authorization is off"));
    assert_eq!(admin.call("ACL SETUSER carl on >pw ~* &* +@all"), "+OK");
    assert!(admin.call("ACL GETUSER carl").contains("commands +@all keys ~* channels &*"));
    assert_eq!(log_in_to_redis(&server, "carl", "pw").call("SET x v"), "+OK");
}
