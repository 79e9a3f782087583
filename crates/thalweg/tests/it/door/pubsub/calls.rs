//! Calls of Pub/Sub's clients, through an independent gRPC implementation and through REST.

use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use client::security::AclFilter;
use doors::pubsub::proto::google::rpc::{ErrorInfo, Status as RpcStatus};
use doors::pubsub::proto::seek_request::Target;
use doors::pubsub::proto::*;
use futures_util::stream;
use hyper::http::uri::PathAndQuery;
use prost::Message;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::push::{call, done};
use crate::support::access::acls;
use crate::support::command;
use crate::support::server::{Server, metric, until, within};

const TOPIC: &str = "projects/shop/topics/orders";
const BILLING: &str = "projects/shop/subscriptions/billing";

pub fn server() -> Server {
    Server::with(&["pubsub=127.0.0.1:0"])
}

/// Sender of the requests of a streaming pull, and its responses.
pub type OpenStream = (mpsc::Sender<StreamingPullRequest>, Streaming<StreamingPullResponse>);

/// gRPC client.
pub struct Grpc {
    channel: Channel,
    /// Name and password that it sends with each call.
    login: Option<&'static str>,
}

impl Grpc {
    pub async fn of(server: &Server) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{}", server.pubsub())).expect("an address");
        Self { channel: within("a connection", endpoint.connect()).await.expect("connected"), login: None }
    }

    async fn as_user(server: &Server, login: &'static str) -> Self {
        Self { login: Some(login), ..Self::of(server).await }
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(login) = self.login {
            let value = format!("Basic {}", BASE64.encode(login)).parse().expect("a value");
            request.metadata_mut().insert("authorization", value);
        }
        request
    }

    pub async fn client(&self) -> tonic::client::Grpc<Channel> {
        let mut client = tonic::client::Grpc::new(self.channel.clone()).max_decoding_message_size(64 << 20);
        within("the connection", client.ready()).await.expect("ready");
        client
    }

    async fn call<Q, A>(&self, method: &'static str, request: Q) -> Result<A, Status>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let path = PathAndQuery::from_maybe_shared(format!("/google.pubsub.v1.{method}")).expect("a path");
        let call = self.client().await.unary(self.request(request), path, ProstCodec::<Q, A>::default()).await;
        call.map(tonic::Response::into_inner)
    }

    async fn publish(&self, messages: Vec<PubsubMessage>) -> Result<Vec<String>, Status> {
        let request = PublishRequest { topic: TOPIC.into(), messages };
        let answer: PublishResponse = self.call("Publisher/Publish", request).await?;
        Ok(answer.message_ids)
    }

    /// Pulls the messages that are available.
    async fn pull(&self, max: i32) -> Vec<ReceivedMessage> {
        self.pull_from(BILLING, max).await
    }

    #[expect(deprecated, reason = "nothing is to be waited for")]
    async fn pull_from(&self, subscription: &str, max: i32) -> Vec<ReceivedMessage> {
        let request = PullRequest { subscription: subscription.into(), max_messages: max, return_immediately: true };
        let answer: PullResponse = self.call("Subscriber/Pull", request).await.expect("pulled");
        answer.received_messages
    }

    async fn ack(&self, ack_ids: Vec<String>) -> Result<(), Status> {
        let request = AcknowledgeRequest { subscription: BILLING.into(), ack_ids };
        self.call("Subscriber/Acknowledge", request).await
    }

    pub async fn create(&self, subscription: Subscription) -> Subscription {
        let topic = Topic { name: TOPIC.into(), ..Topic::default() };
        let _: Topic = self.call("Publisher/CreateTopic", topic).await.expect("created");
        let subscription = Subscription { name: BILLING.into(), topic: TOPIC.into(), ..subscription };
        self.call("Subscriber/CreateSubscription", subscription).await.expect("created")
    }

    /// Opens a streaming pull, and returns the sender of its requests.
    async fn stream(&self, first: StreamingPullRequest) -> OpenStream {
        self.try_stream(first).await.expect("opened")
    }

    pub async fn try_stream(&self, first: StreamingPullRequest) -> Result<OpenStream, Status> {
        let (sender, receiver) = mpsc::channel(16);
        let first = StreamingPullRequest { subscription: BILLING.into(), stream_ack_deadline_seconds: 60, ..first };
        sender.send(first).await.expect("room");
        let requests =
            stream::unfold(receiver, |mut receiver| async { receiver.recv().await.map(|request| (request, receiver)) });
        let path = PathAndQuery::from_static("/google.pubsub.v1.Subscriber/StreamingPull");
        let opened = self.client().await.streaming(self.request(requests), path, ProstCodec::default()).await;
        Ok((sender, opened?.into_inner()))
    }
}

fn text(data: &str) -> PubsubMessage {
    PubsubMessage { data: data.to_owned().into(), ..PubsubMessage::default() }
}

fn data(messages: &[ReceivedMessage]) -> Vec<String> {
    let data =
        |message: &ReceivedMessage| message.message.as_ref().map(|m| String::from_utf8_lossy(&m.data).into_owned());
    messages.iter().filter_map(data).collect()
}

fn ids(messages: &[ReceivedMessage]) -> Vec<String> {
    messages.iter().map(|message| message.ack_id.clone()).collect()
}

/// Returns the messages of the next response that has any.
async fn messages(stream: &mut Streaming<StreamingPullResponse>) -> Vec<ReceivedMessage> {
    loop {
        let answer = within("an answer", stream.message()).await.expect("no failure").expect("a stream that goes on");
        if !answer.received_messages.is_empty() {
            return answer.received_messages;
        }
    }
}

#[tokio::test]
async fn grpc_and_rest_are_the_same_calls() {
    let server = server();
    let grpc = Grpc::of(&server).await;
    let rest = server.pubsub();
    let made = done(rest, "PUT", &format!("/v1/{TOPIC}"), json!({ "labels": { "team": "a" } })).await;
    assert_eq!(made, json!({ "name": TOPIC, "labels": { "team": "a" } }));
    let topic: Topic = grpc.call("Publisher/GetTopic", GetTopicRequest { topic: TOPIC.into() }).await.expect("there");
    assert_eq!(topic.labels["team"], "a");
    let again: Status = grpc.call::<_, Topic>("Publisher/CreateTopic", topic).await.expect_err("it is there");
    assert_eq!((again.code(), again.message()), (Code::AlreadyExists, "Topic already exists"));
    let (status, again) = call(rest, "PUT", &format!("/v1/{TOPIC}"), &json!({})).await;
    let expected = json!({ "error": { "code": 409, "message": "Topic already exists", "status": "ALREADY_EXISTS" } });
    assert_eq!((status, again), (409, expected));

    let wanted = json!({ "topic": TOPIC, "ackDeadlineSeconds": 30, "filter": "attributes:color" });
    done(rest, "PUT", &format!("/v1/{BILLING}"), wanted).await;
    let plain = PubsubMessage { attributes: [("size".to_owned(), "L".to_owned())].into(), ..text("plain") };
    let red = PubsubMessage { attributes: [("color".to_owned(), "red".to_owned())].into(), ..text("red") };
    let sent = grpc.publish(vec![plain, red]).await.expect("published");
    let pulled = done(rest, "POST", &format!("/v1/{BILLING}:pull"), json!({ "maxMessages": 10 })).await;
    let pulled = pulled["receivedMessages"].as_array().expect("messages");
    assert_eq!(pulled.len(), 1, "the filter leaves one: {pulled:?}");
    let message = &pulled[0]["message"];
    assert_eq!((&message["data"], &message["attributes"]["color"]), (&json!("cmVk"), &json!("red")));
    assert_eq!(message["messageId"], json!(sent[1]));
    grpc.ack(vec![pulled[0]["ackId"].as_str().expect("an id").to_owned()]).await.expect("acknowledged");
    assert_eq!(grpc.pull(10).await, []);

    let listed = done(rest, "GET", "/v1/projects/shop/subscriptions", Value::Null).await;
    assert_eq!(listed["subscriptions"][0]["ackDeadlineSeconds"], 30);
    let given = json!({ "ackDeadlineSeconds": 20, "labels": { "a": "b" } });
    let mask = json!({ "subscription": given, "updateMask": "ackDeadlineSeconds" });
    let altered = done(rest, "PATCH", &format!("/v1/{BILLING}"), mask).await;
    assert_eq!((&altered["ackDeadlineSeconds"], &altered["labels"]), (&json!(20), &Value::Null));
}

#[tokio::test]
async fn invalid_requests_are_refused_with_a_reason_and_affect_no_other() {
    let server = server();
    let grpc = Grpc::of(&server).await;
    let rest = server.pubsub();
    grpc.create(Subscription::default()).await;
    let cases = [
        ("PUT", "/v1/projects/shop/topics/1x", json!({}), 400, "Invalid [topics] name: (name=projects/shop/topics/1x)"),
        (
            "PUT",
            "/v1/projects/shop/topics/other",
            json!({ "foo": 1 }),
            400,
            "Invalid JSON payload received. Unknown name \"foo\": Cannot find field.",
        ),
        ("GET", "/v1/projects/shop/topics/none", Value::Null, 404, "Topic not found"),
        ("GET", "/v1/projects/shop/topics?pageToken=x", Value::Null, 400, "Invalid page token"),
        ("POST", "/v1/projects/shop/topics/orders:publish", json!({ "messages": [] }), 400, "No messages to publish"),
        (
            "POST",
            "/v1/projects/shop/topics/orders:publish",
            json!({ "messages": [{}] }),
            400,
            "Some messages are empty",
        ),
        (
            "POST",
            "/v1/projects/shop/subscriptions/billing:acknowledge",
            json!({ "ackIds": ["x"] }),
            400,
            "Invalid ack id (ack_id=x)",
        ),
        ("POST", "/v1/projects/shop/subscriptions/billing:pull", json!({}), 400, "No max_messages specified"),
        (
            "PUT",
            "/v1/projects/shop/subscriptions/two",
            json!({ "topic": TOPIC, "ackDeadlineSeconds": 601 }),
            400,
            "ack_deadline_secs out of bounds",
        ),
        (
            "PUT",
            "/v1/projects/shop/subscriptions/two",
            json!({ "topic": "projects/shop/topics/none" }),
            404,
            "Subscription topic does not exist",
        ),
        (
            "PATCH",
            "/v1/projects/shop/subscriptions/billing",
            json!({ "subscription": {}, "updateMask": "filter" }),
            400,
            "Invalid update_mask provided in the UpdateSubscriptionRequest: the filter field in the Subscription is \
             not mutable.",
        ),
        (
            "POST",
            "/v1/projects/shop/topics/orders:nothing",
            json!({}),
            404,
            "Method not found: POST /v1/projects/shop/topics/orders:nothing",
        ),
    ];
    for (method, path, body, status, message) in cases {
        let (given, answer) = call(rest, method, path, &body).await;
        assert_eq!((given, answer["error"]["message"].as_str()), (status, Some(message)), "{method} {path} {body}");
    }
    let unknown = grpc.call::<(), ()>("Publisher/Nothing", ()).await.expect_err("no such method");
    assert_eq!(unknown.code(), Code::Unimplemented);
    let many = grpc.publish(vec![text("x"); 1001]).await.expect_err("too many");
    assert_eq!(many.code(), Code::InvalidArgument);
    let first = StreamingPullRequest { subscription: String::new(), ..StreamingPullRequest::default() };
    let path = PathAndQuery::from_static("/google.pubsub.v1.Subscriber/StreamingPull");
    let codec = ProstCodec::<StreamingPullRequest, StreamingPullResponse>::default();
    let opened = grpc.client().await.streaming(Request::new(stream::iter([first])), path, codec).await;
    assert_eq!(opened.expect_err("it names none").message(), "first message must set subscription");
    assert_eq!(grpc.publish(vec![text("fine")]).await.expect("published").len(), 1);
}

#[tokio::test]
async fn a_stream_delivers_up_to_its_limits_and_returns_unacknowledged_messages() {
    let server = server();
    let grpc = Grpc::of(&server).await;
    grpc.create(Subscription::default()).await;
    let limits = StreamingPullRequest { max_outstanding_messages: 2, ..StreamingPullRequest::default() };
    let (sender, mut stream) = grpc.stream(limits.clone()).await;
    grpc.publish(["a", "b", "c", "d"].map(text).into()).await.expect("published");
    let mut got = messages(&mut stream).await;
    while got.len() < 2 {
        got.extend(messages(&mut stream).await);
    }
    assert_eq!(data(&got), ["a", "b"]);
    // One is acknowledged by a separate call, the other on the stream: each makes room for one.
    grpc.ack(ids(&got[..1])).await.expect("acknowledged");
    assert_eq!(data(&messages(&mut stream).await), ["c"]);
    sender
        .send(StreamingPullRequest { ack_ids: ids(&got[1..]), ..StreamingPullRequest::default() })
        .await
        .expect("sent");
    assert_eq!(data(&messages(&mut stream).await), ["d"]);
    drop((sender, stream));
    // Another stream receives the messages that the first one left, long before their leases of 60 seconds expire.
    let (_sender, mut stream) = grpc.stream(limits).await;
    let mut again = messages(&mut stream).await;
    while again.len() < 2 {
        again.extend(messages(&mut stream).await);
    }
    let mut again = data(&again);
    again.sort_unstable();
    assert_eq!(again, ["c", "d"]);
}

/// A stream ends with the permission of its client, and gets no message that comes later.
#[tokio::test]
async fn a_stream_ends_with_its_permission() {
    let server = Server::with(&[
        "auth=required",
        "authorization=true",
        "users=bob:secret,root:r00t",
        "super_users=root",
        "pubsub=127.0.0.1:0",
        "pubsub_project=shop",
    ]);
    let admin = server.client("tcp").await;
    let root = Grpc::as_user(&server, "root:r00t").await;
    root.create(Subscription::default()).await;
    for entry in ["read queue billing", "read topic orders"] {
        admin.create_acls(acls("User:bob", entry, true)).await.expect("added");
    }
    let bob = Grpc::as_user(&server, "bob:secret").await;
    let (_sender, mut stream) = bob.stream(StreamingPullRequest::default()).await;
    root.publish(vec![text("before")]).await.expect("published");
    assert_eq!(data(&messages(&mut stream).await), ["before"]);
    until("it waits", async || metric(&admin, "thalweg_queue_waiting_receivers").await == 1).await;
    admin.delete_acls(AclFilter::default()).await.expect("deleted");
    root.publish(vec![text("secret")]).await.expect("published");
    let end = loop {
        match within("the end", stream.message()).await {
            Ok(answer) => assert!(answer.expect("an end with a reason").received_messages.is_empty()),
            Err(status) => break status,
        }
    };
    assert_eq!(end.code(), Code::PermissionDenied, "{end:?}");
    // The message before may be redelivered already.
    assert!(data(&root.pull(10).await).contains(&"secret".to_owned()), "nobody has a lease on it");
}

/// A stream over its quota is not read for a while, and does not end.
#[tokio::test]
async fn a_stream_waits_for_a_quota() {
    let server =
        Server::with(&["auth=required", "users=bob:secret,root:r00t", "super_users=root", "pubsub=127.0.0.1:0"]);
    let root = Grpc::as_user(&server, "root:r00t").await;
    root.create(Subscription::default()).await;
    root.publish(["a", "b"].map(text).into()).await.expect("published");
    command::on(&server, ["quota", "set", "--user", "bob", "requests=10"]).ok();
    let bob = Grpc::as_user(&server, "bob:secret").await;
    let one = StreamingPullRequest { max_outstanding_messages: 1, ..StreamingPullRequest::default() };
    let (sender, mut stream) = bob.stream(one).await;
    let held = messages(&mut stream).await;
    assert_eq!(data(&held), ["a"]);
    let begin = Instant::now();
    let extend = StreamingPullRequest {
        modify_deadline_ack_ids: ids(&held),
        modify_deadline_seconds: vec![60],
        ..StreamingPullRequest::default()
    };
    for _ in 0..20 {
        sender.send(extend.clone()).await.expect("sent");
    }
    sender.send(StreamingPullRequest { ack_ids: ids(&held), ..StreamingPullRequest::default() }).await.expect("sent");
    // Ten requests are free, and each of the others costs a tenth of a second.
    assert_eq!(data(&messages(&mut stream).await), ["b"]);
    assert!(begin.elapsed() > Duration::from_millis(500), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn exactly_once_acknowledgements_are_confirmed_or_refused() {
    let server = server();
    let grpc = Grpc::of(&server).await;
    grpc.create(Subscription { enable_exactly_once_delivery: true, ..Subscription::default() }).await;
    let (sender, mut stream) = grpc.stream(StreamingPullRequest::default()).await;
    grpc.publish(vec![text("a")]).await.expect("published");
    let got = messages(&mut stream).await;
    for is_first in [true, false] {
        let ack = StreamingPullRequest { ack_ids: ids(&got), ..StreamingPullRequest::default() };
        sender.send(ack).await.expect("sent");
        let confirmation = loop {
            let answer = within("an answer", stream.message()).await.expect("no failure").expect("an answer");
            let properties = answer.subscription_properties.expect("on every answer");
            assert!(properties.exactly_once_delivery_enabled);
            if let Some(confirmation) = answer.acknowledge_confirmation {
                break confirmation;
            }
        };
        let (good, bad) = if is_first { (ids(&got), vec![]) } else { (vec![], ids(&got)) };
        assert_eq!((confirmation.ack_ids, confirmation.invalid_ack_ids), (good, bad));
    }
    let refused = grpc.ack(ids(&got)).await.expect_err("it was acknowledged before");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    let details = RpcStatus::decode(refused.details()).expect("a status").details.remove(0);
    let info = ErrorInfo::decode(details.value.as_slice()).expect("the reasons");
    assert_eq!(info.metadata[&got[0].ack_id], "PERMANENT_FAILURE_INVALID_ACK_ID");
}

#[tokio::test]
async fn messages_of_an_ordering_key_wait_for_each_other() {
    let server = server();
    let grpc = Grpc::of(&server).await;
    grpc.create(Subscription { enable_message_ordering: true, ..Subscription::default() }).await;
    let keyed = |key: &str, data: &str| PubsubMessage { ordering_key: key.into(), ..text(data) };
    grpc.publish(vec![keyed("a", "a1"), keyed("a", "a2"), keyed("b", "b1")]).await.expect("published");
    let first = grpc.pull(1).await;
    assert_eq!(data(&first), ["a1"]);
    assert_eq!(data(&grpc.pull(10).await), ["b1"], "a2 waits for a1");
    grpc.ack(ids(&first)).await.expect("acknowledged");
    assert_eq!(data(&grpc.pull(10).await), ["a2"]);
}

#[tokio::test]
async fn a_message_returned_too_often_becomes_a_dead_letter_that_names_its_source() {
    let server = server();
    let grpc = Grpc::of(&server).await;
    let dead = "projects/shop/topics/dead";
    let _: Topic =
        grpc.call("Publisher/CreateTopic", Topic { name: dead.into(), ..Topic::default() }).await.expect("created");
    let policy = DeadLetterPolicy { dead_letter_topic: dead.into(), max_delivery_attempts: 5 };
    grpc.create(Subscription { dead_letter_policy: Some(policy), ..Subscription::default() }).await;
    let letters = "projects/shop/subscriptions/letters";
    let subscription = Subscription { name: letters.into(), topic: dead.into(), ..Subscription::default() };
    let _: Subscription = grpc.call("Subscriber/CreateSubscription", subscription).await.expect("created");
    grpc.publish(vec![text("bad")]).await.expect("published");
    for attempt in 1..=5 {
        let got = grpc.pull(1).await;
        assert_eq!(got[0].delivery_attempt, attempt);
        let back =
            ModifyAckDeadlineRequest { subscription: BILLING.into(), ack_ids: ids(&got), ack_deadline_seconds: 0 };
        let () = grpc.call("Subscriber/ModifyAckDeadline", back).await.expect("returned");
    }
    assert_eq!(grpc.pull(1).await, []);
    let pull = PullRequest { subscription: letters.into(), max_messages: 1, ..PullRequest::default() };
    let answer: PullResponse = within("the letter", grpc.call("Subscriber/Pull", pull)).await.expect("pulled");
    let message = answer.received_messages[0].message.clone().expect("a message");
    assert_eq!(message.data, "bad");
    assert_eq!(message.attributes["CloudPubSubDeadLetterSourceSubscription"], "billing");
    assert_eq!(message.attributes["CloudPubSubDeadLetterSourceSubscriptionProject"], "shop");
    assert_eq!(message.attributes["CloudPubSubDeadLetterSourceDeliveryCount"], "5");
}

#[tokio::test]
async fn a_subscription_goes_back_to_a_snapshot() {
    let server = server();
    let grpc = Grpc::of(&server).await;
    grpc.create(Subscription::default()).await;
    grpc.publish(["a", "b", "c"].map(text).into()).await.expect("published");
    let got = grpc.pull(10).await;
    grpc.ack(ids(&got[1..2])).await.expect("acknowledged");
    let name = "projects/shop/snapshots/before";
    let request =
        CreateSnapshotRequest { name: name.into(), subscription: BILLING.into(), ..CreateSnapshotRequest::default() };
    let snapshot: Snapshot = grpc.call("Subscriber/CreateSnapshot", request.clone()).await.expect("created");
    assert_eq!((snapshot.name.as_str(), snapshot.topic.as_str()), (name, TOPIC));
    let again = grpc.call::<_, Snapshot>("Subscriber/CreateSnapshot", request).await.expect_err("it is there");
    assert_eq!((again.code(), again.message()), (Code::AlreadyExists, "Snapshot already exists"));
    grpc.ack(vec![got[0].ack_id.clone(), got[2].ack_id.clone()]).await.expect("acknowledged");
    assert_eq!(grpc.pull(10).await, []);
    let seek = SeekRequest { subscription: BILLING.into(), target: Some(Target::Snapshot(name.into())) };
    let _: SeekResponse = grpc.call("Subscriber/Seek", seek).await.expect("gone back");
    assert_eq!(data(&grpc.pull(10).await), ["a", "c"]);
    let delete = DeleteSnapshotRequest { snapshot: name.into() };
    let () = grpc.call("Subscriber/DeleteSnapshot", delete.clone()).await.expect("deleted");
    let gone = grpc.call::<_, ()>("Subscriber/DeleteSnapshot", delete).await.expect_err("it is gone");
    assert_eq!((gone.code(), gone.message()), (Code::NotFound, "Snapshot does not exist"));
}

#[tokio::test]
async fn subscriptions_outlive_their_topic_and_their_attachment_by_name_only() {
    let server = server();
    let grpc = Grpc::of(&server).await;
    grpc.create(Subscription::default()).await;
    let other = "projects/shop/subscriptions/other";
    let subscription = Subscription { name: other.into(), topic: TOPIC.into(), ..Subscription::default() };
    let _: Subscription = grpc.call("Subscriber/CreateSubscription", subscription).await.expect("created");
    let detach = DetachSubscriptionRequest { subscription: other.into() };
    let _: DetachSubscriptionResponse = grpc.call("Publisher/DetachSubscription", detach).await.expect("detached");
    let pull = PullRequest { subscription: other.into(), max_messages: 1, ..PullRequest::default() };
    let refused = grpc.call::<_, PullResponse>("Subscriber/Pull", pull).await.expect_err("detached");
    assert_eq!((refused.code(), refused.message()), (Code::FailedPrecondition, "Subscription is detached."));
    let () = grpc.call("Publisher/DeleteTopic", DeleteTopicRequest { topic: TOPIC.into() }).await.expect("deleted");
    let get = |name: &str| GetSubscriptionRequest { subscription: name.into() };
    let left: Subscription = grpc.call("Subscriber/GetSubscription", get(BILLING)).await.expect("still there");
    assert_eq!(left.topic, "_deleted-topic_");
    assert_eq!(grpc.pull(1).await, []);
    for name in [BILLING, other] {
        let delete = DeleteSubscriptionRequest { subscription: name.into() };
        let () = grpc.call("Subscriber/DeleteSubscription", delete).await.expect("deleted");
        let gone = grpc.call::<_, Subscription>("Subscriber/GetSubscription", get(name)).await.expect_err("gone");
        assert_eq!((gone.code(), gone.message()), (Code::NotFound, "Subscription does not exist"));
    }
}

#[tokio::test]
async fn large_messages_go_through_whole() {
    let server = server();
    let grpc = Grpc::of(&server).await;
    grpc.create(Subscription::default()).await;
    let large: Vec<u8> = (0..7_000_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let message = PubsubMessage { data: large.clone().into(), ..PubsubMessage::default() };
    grpc.publish(vec![message]).await.expect("published");
    let got = grpc.pull(1).await;
    assert!(got[0].message.as_ref().expect("a message").data == large);
    let too_large = PubsubMessage { data: vec![7; 10_000_001].into(), ..PubsubMessage::default() };
    let refused = grpc.publish(vec![too_large]).await.expect_err("more than the service takes");
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
}

#[tokio::test]
async fn subscriptions_and_messages_are_restored_after_a_crash() {
    let mut server = Server::with(&["pubsub=127.0.0.1:0", "data=data"]);
    let grpc = Grpc::of(&server).await;
    let made = grpc
        .create(Subscription {
            labels: [("team".to_owned(), "a".to_owned())].into(),
            retry_policy: Some(RetryPolicy::default()),
            enable_message_ordering: true,
            ..Subscription::default()
        })
        .await;
    grpc.publish(["a", "b"].map(text).into()).await.expect("published");
    let got = grpc.pull(1).await;
    grpc.ack(ids(&got)).await.expect("acknowledged");
    server.crash_and_restart();
    let grpc = Grpc::of(&server).await;
    let get = GetSubscriptionRequest { subscription: BILLING.into() };
    let found: Subscription = grpc.call("Subscriber/GetSubscription", get).await.expect("there");
    assert_eq!(found, made);
    assert_eq!(data(&grpc.pull(10).await), ["b"]);
}
