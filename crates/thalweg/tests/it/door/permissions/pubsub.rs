//! The calls of Pub/Sub, over REST, and its stream over gRPC.

use doors::pubsub::proto::{DESCRIPTORS, StreamingPullRequest, StreamingPullResponse};
use futures_util::stream;
use hyper::http::uri::PathAndQuery;
use prost_reflect::DescriptorPool;
use serde_json::{Value, json};
use tonic::{Code, Request};
use tonic_prost::ProstCodec;

use super::super::pubsub::calls::Grpc;
use super::super::pubsub::model::{Route, whole};
use super::http::{Sent as Http, exchange, of_status};
use super::{Answer, Example, Site};
use crate::support::server::within;

const TOPIC: &str = "projects/shop/topics/orders";
const BILLING: &str = "projects/shop/subscriptions/billing";
const SCHEMA: &str = "projects/shop/schemas/order";
const DEFINITION: &str = r#"{"type":"record","name":"R","fields":[]}"#;

enum Sent {
    Rest(Http),
    /// A streaming pull of `billing`.
    Stream,
}

type Call = Example<Sent>;

fn get(path: &str) -> Http {
    Http { method: "GET", path: path.to_owned(), body: String::new(), headers: "Connection: close\r\n" }
}

/// Examples of calls, from the definitions of Google.
struct Calls(DescriptorPool);

impl Calls {
    fn with(&self, call: &str, json: &Value) -> Call {
        let mut methods = self.0.services().flat_map(|service| service.methods().collect::<Vec<_>>());
        let method = methods.find(|method| method.name() == call).expect("a call of the definitions");
        let route = Route::of(&self.0, &method);
        let (path, body) = route.request(json, json);
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = Http { method: route.method, path, body, headers: "Connection: close\r\n" };
        self.named(Example::new(call, Sent::Rest(request)))
    }

    /// Returns the valid request of the test of the definitions.
    fn usual(&self, call: &str) -> Call {
        self.with(call, &whole(call, "ack"))
    }

    /// Sets the names of the resources that the requests have.
    fn named(&self, call: Call) -> Call {
        call.on("the topic", "orders").on("the subscription", "billing").on("the snapshot", "before")
    }

    fn of_topics(&self) -> Vec<Call> {
        let schema = json!({ "schema": SCHEMA, "encoding": "JSON" });
        let fresh = "projects/shop/topics/fresh";
        let update = json!({ "topic": { "name": TOPIC, "schemaSettings": schema }, "updateMask": "schemaSettings" });
        let other = |call| {
            let mut example = self.usual(call);
            example.names.insert(0, ("the topic", "other"));
            example.names.insert(0, ("the subscription", "other"));
            example
        };
        let new = |json: Value| {
            let mut example = self.with("CreateTopic", &json);
            example.names.insert(0, ("the topic", "fresh"));
            example
        };
        vec![
            new(json!({ "name": fresh })),
            new(json!({ "name": fresh, "schemaSettings": schema })).when("if the topic has one"),
            self.with("UpdateTopic", &json!({ "topic": { "name": TOPIC }, "updateMask": "labels" })),
            self.with("UpdateTopic", &update).when("if the request sets one"),
            self.usual("Publish"),
            self.usual("GetTopic"),
            self.usual("ListTopics").on("each topic", "orders").showing("topics/orders"),
            self.usual("ListTopicSubscriptions").on("each subscription", "billing").showing("billing"),
            self.usual("ListTopicSnapshots").on("each snapshot", "before").showing("before"),
            other("DetachSubscription"),
            other("DeleteTopic"),
        ]
    }

    fn of_subscriptions(&self) -> Vec<Call> {
        let dead = json!({ "deadLetterTopic": "projects/shop/topics/dead-letters" });
        let push = json!({ "pushEndpoint": "https://example.com/" });
        let new = |json: Value| {
            let mut example = self.with("CreateSubscription", &json);
            example.names.insert(0, ("the subscription", "fresh"));
            example
        };
        let fresh = "projects/shop/subscriptions/fresh";
        let update = |field: &str, value: &Value| {
            self.with(
                "UpdateSubscription",
                &json!({
                    "subscription": { "name": BILLING, "topic": TOPIC, field: value }, "updateMask": field,
                }),
            )
        };
        let reads = |call: Call| call.when("if the subscription does not own it").on("its topic", "orders");
        let mut deleted = self.usual("DeleteSubscription");
        deleted.names.insert(0, ("the subscription", "other"));
        vec![
            new(json!({ "name": fresh, "topic": TOPIC })),
            new(json!({ "name": fresh, "topic": TOPIC, "deadLetterPolicy": dead }))
                .when("if it names one")
                .on("the dead-letter topic", "dead-letters"),
            self.usual("GetSubscription"),
            update("ackDeadlineSeconds", &json!(11)),
            update("pushConfig", &push)
                .when("if the request sets a push endpoint")
                .when("if the request sets a push endpoint and the subscription does not own it")
                .on("its topic", "orders"),
            update("deadLetterPolicy", &dead).when("if it names one").on("the dead-letter topic", "dead-letters"),
            self.usual("ListSubscriptions").on("each subscription", "billing").showing("billing"),
            reads(self.usual("ModifyAckDeadline")),
            reads(self.usual("Acknowledge")),
            reads(self.usual("Pull")),
            reads(self.usual("ModifyPushConfig")),
            reads(Example::new("StreamingPull", Sent::Stream).on("the subscription", "billing")),
            self.with("Seek", &json!({ "subscription": BILLING, "time": "2026-01-01T00:00:00Z" })),
            self.usual("Seek").when("if the request names one"),
            deleted,
        ]
    }

    fn of_others(&self) -> Vec<Call> {
        let reads = |call: Call| call.when("if the subscription does not own it").on("its topic", "orders");
        let stored = json!({ "parent": "projects/shop", "name": SCHEMA, "message": "e30=", "encoding": "JSON" });
        let new = json!({ "name": "projects/shop/snapshots/fresh", "subscription": BILLING });
        let mut snapshot = self.with("CreateSnapshot", &new);
        snapshot.names.insert(0, ("the snapshot", "fresh"));
        let mut deleted = self.usual("DeleteSnapshot");
        deleted.names.insert(0, ("the snapshot", "other"));
        let schema = json!({ "type": "AVRO", "definition": DEFINITION });
        let new = json!({ "parent": "projects/shop", "schemaId": "fresh", "schema": schema });
        vec![
            self.usual("GetSnapshot"),
            self.usual("ListSnapshots"),
            reads(snapshot),
            self.usual("UpdateSnapshot"),
            deleted,
            self.with("CreateSchema", &new).on("the schema", "fresh"),
            self.usual("GetSchema"),
            self.usual("ListSchemas"),
            self.usual("ListSchemaRevisions"),
            self.usual("CommitSchema"),
            self.usual("RollbackSchema"),
            self.usual("DeleteSchemaRevision"),
            self.usual("DeleteSchema").on("the schema", "other"),
            self.usual("ValidateSchema"),
            self.usual("ValidateMessage"),
            self.with("ValidateMessage", &stored).when("if the request names a stored one"),
            self.usual("SetIamPolicy"),
            self.usual("GetIamPolicy"),
            self.usual("TestIamPermissions"),
            Example::new("GET /", Sent::Rest(get("/"))),
            Example::new("GET /oauth2/v3/certs", Sent::Rest(get("/oauth2/v3/certs"))),
        ]
    }
}

/// Opens a streaming pull, and returns once the broker has accepted or refused it.
async fn pull(grpc: &Grpc, has_login: bool) -> Answer {
    let first =
        StreamingPullRequest { subscription: BILLING.into(), stream_ack_deadline_seconds: 60, ..Default::default() };
    let mut request = Request::new(stream::iter([first]));
    if has_login {
        let login = "Basic Ym9iOnNlY3JldA==".parse().expect("bob:secret");
        request.metadata_mut().insert("authorization", login);
    }
    let path = PathAndQuery::from_static("/google.pubsub.v1.Subscriber/StreamingPull");
    let codec = ProstCodec::<StreamingPullRequest, StreamingPullResponse>::default();
    let opened = async {
        let mut answers = grpc.client().await.streaming(request, path, codec).await?.into_inner();
        answers.message().await.map(|message| format!("{message:?}"))
    };
    match within("a stream", opened).await {
        Ok(message) => Answer::Passed(message),
        Err(status) => match status.code() {
            Code::Unauthenticated => Answer::NoLogin(format!("{status:?}")),
            Code::PermissionDenied => Answer::Refused(format!("{status:?}")),
            _ => Answer::Passed(format!("{status:?}")),
        },
    }
}

#[tokio::test]
async fn every_call_of_pubsub_requires_what_its_row_says() {
    let site = Site::open(&["pubsub=127.0.0.1:0", "pubsub_project=shop", "pubsub_push_allow=example.com"]).await;
    let address = site.server.pubsub();
    let grpc = Grpc::of(&site.server).await;
    // Creates what the examples name, and deletes what they create.
    let restore = async || {
        let over = json!({ "topic": TOPIC }).to_string();
        let from = json!({ "subscription": BILLING }).to_string();
        let schema = json!({ "type": "AVRO", "definition": DEFINITION }).to_string();
        for (method, path, body) in [
            ("DELETE", "topics/fresh", ""),
            ("DELETE", "subscriptions/fresh", ""),
            ("DELETE", "snapshots/fresh", ""),
            ("DELETE", "schemas/fresh", ""),
            ("PUT", "topics/orders", "{}"),
            ("PUT", "topics/other", "{}"),
            ("PUT", "topics/dead-letters", "{}"),
            ("PUT", "subscriptions/billing", &*over),
            ("PUT", "subscriptions/other", &*over),
            ("PUT", "snapshots/before", &*from),
            ("PUT", "snapshots/other", &*from),
            ("POST", "schemas?schemaId=order", &*schema),
            ("POST", "schemas?schemaId=other", &*schema),
        ] {
            let path = format!("/v1/projects/shop/{path}");
            let sent = Http { method, path, body: body.to_owned(), headers: "Connection: close\r\n" };
            let (status, text) = exchange(address, Some("root:r00t"), &sent).await;
            assert!([200, 404, 409].contains(&status), "{method} {}: {text}", sent.path);
        }
    };
    restore().await;
    let calls = Calls(DescriptorPool::decode(DESCRIPTORS).expect("descriptors"));
    let examples: Vec<Call> =
        [calls.of_topics(), calls.of_subscriptions(), calls.of_others()].into_iter().flatten().collect();
    let send = async |has_login: bool, sent: &Sent| match sent {
        Sent::Rest(request) => of_status(exchange(address, has_login.then_some("bob:secret"), request).await),
        Sent::Stream => pull(&grpc, has_login).await,
    };
    site.walk("pubsub", &examples, restore, send).await;
}
