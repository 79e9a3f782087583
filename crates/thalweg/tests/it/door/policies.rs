//! Permission languages of other systems, as views of the broker's access control entries: a policy that is written at
//! one door takes effect there, shows at every other door, and reads back.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use client::{Client, Record, TopicSettings};
use kafka_protocol::messages::DescribeAclsRequest;
use serde_json::{Value, json};

use super::access::exchange;
use super::kafka::raw::{Raw, text};
use super::kafka::security::log_in;
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
