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
