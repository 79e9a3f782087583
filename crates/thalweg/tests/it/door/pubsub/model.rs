//! Every request in Google's definitions of Pub/Sub, with fields that are missing, of another type or out of range: the
//! response is one that a client can handle, and the broker serves the next request.

use std::cell::RefCell;
use std::time::Duration;

use doors::pubsub::proto::{DESCRIPTORS, StreamingPullRequest, StreamingPullResponse};
use futures_util::stream;
use hyper::http::uri::PathAndQuery;
use prost_reflect::{DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, MethodDescriptor};
use serde_json::{Value, json};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use super::calls::{Grpc, server};
use super::push::{call, done};
use crate::support::server::{Server, within};

const TOPIC: &str = "projects/shop/topics/orders";
const SUBSCRIPTION: &str = "projects/shop/subscriptions/billing";
const SNAPSHOT: &str = "projects/shop/snapshots/before";
const SCHEMA: &str = "projects/shop/schemas/order";
const DEFINITION: &str = r#"{"type": "record", "name": "R", "fields": []}"#;

/// Required fields that have a meaning when they are empty, or that do not affect the call.
const MAY_BE_EMPTY: [(&str, &str); 9] = [
    // A message is nacked.
    ("ModifyAckDeadline", "ack_deadline_seconds"),
    // Messages are pulled.
    ("ModifyPushConfig", "push_config"),
    ("TestIamPermissions", "permissions"),
    // The name is elsewhere in the request, or the schema has no name.
    ("CreateSchema", "schema.name"),
    ("CommitSchema", "schema.name"),
    ("ValidateSchema", "schema.name"),
    ("ValidateMessage", "schema.name"),
    // It cannot be changed.
    ("UpdateSubscription", "subscription.topic"),
    ("UpdateSnapshot", "snapshot.topic"),
];

/// Codes of responses to invalid requests.
const TYPED: [Code; 6] = [
    Code::InvalidArgument,
    Code::NotFound,
    Code::AlreadyExists,
    Code::FailedPrecondition,
    Code::OutOfRange,
    // Features that this broker does not support, such as exports to other services.
    Code::Unimplemented,
];

/// Returns a valid request of each call.
pub fn whole(call: &str, ack_id: &str) -> Value {
    let schema = json!({ "type": "AVRO", "definition": DEFINITION });
    let mut named = schema.clone();
    named["name"] = SCHEMA.into();
    match call {
        "CreateTopic" => json!({ "name": "projects/shop/topics/other" }),
        "UpdateTopic" => {
            let mask = "labels,schemaSettings,messageRetentionDuration,ingestionDataSourceSettings,messageTransforms";
            json!({ "topic": { "name": TOPIC }, "updateMask": mask })
        }
        "Publish" => json!({ "topic": TOPIC, "messages": [{ "data": "eA==" }] }),
        "GetTopic" | "ListTopicSubscriptions" | "ListTopicSnapshots" => json!({ "topic": TOPIC }),
        "DeleteTopic" => json!({ "topic": "projects/shop/topics/other" }),
        "ListTopics" | "ListSubscriptions" | "ListSnapshots" => json!({ "project": "projects/shop" }),
        "CreateSubscription" => json!({ "name": "projects/shop/subscriptions/other", "topic": TOPIC }),
        "DetachSubscription" | "DeleteSubscription" => json!({ "subscription": "projects/shop/subscriptions/other" }),
        "GetSubscription" => json!({ "subscription": SUBSCRIPTION }),
        "UpdateSubscription" => {
            let mask = "ackDeadlineSeconds,messageRetentionDuration,expirationPolicy,retryPolicy,deadLetterPolicy,\
                        pushConfig,messageTransforms,bigqueryConfig,cloudStorageConfig";
            json!({ "subscription": { "name": SUBSCRIPTION }, "updateMask": mask })
        }
        "ModifyAckDeadline" => json!({ "subscription": SUBSCRIPTION, "ackIds": [ack_id], "ackDeadlineSeconds": 60 }),
        "Acknowledge" => json!({ "subscription": SUBSCRIPTION, "ackIds": [ack_id] }),
        "Pull" => json!({ "subscription": SUBSCRIPTION, "maxMessages": 1, "returnImmediately": true }),
        "ModifyPushConfig" => json!({ "subscription": SUBSCRIPTION, "pushConfig": {} }),
        "CreateSnapshot" => json!({ "name": "projects/shop/snapshots/other", "subscription": SUBSCRIPTION }),
        "GetSnapshot" => json!({ "snapshot": SNAPSHOT }),
        "DeleteSnapshot" => json!({ "snapshot": "projects/shop/snapshots/other" }),
        "UpdateSnapshot" => json!({ "snapshot": { "name": SNAPSHOT }, "updateMask": "labels" }),
        "Seek" => json!({ "subscription": SUBSCRIPTION, "snapshot": SNAPSHOT }),
        "CreateSchema" => json!({ "parent": "projects/shop", "schemaId": "other", "schema": schema }),
        "GetSchema" | "ListSchemaRevisions" => json!({ "name": SCHEMA }),
        "DeleteSchema" => json!({ "name": "projects/shop/schemas/other" }),
        "ListSchemas" => json!({ "parent": "projects/shop" }),
        "CommitSchema" => json!({ "name": SCHEMA, "schema": named }),
        "RollbackSchema" => json!({ "name": SCHEMA, "revisionId": "00000000" }),
        "DeleteSchemaRevision" => json!({ "name": format!("{SCHEMA}@00000000") }),
        "ValidateSchema" => json!({ "parent": "projects/shop", "schema": schema }),
        "ValidateMessage" => {
            json!({ "parent": "projects/shop", "schema": schema, "message": "e30=", "encoding": "JSON" })
        }
        "GetIamPolicy" => json!({ "resource": TOPIC }),
        "SetIamPolicy" => json!({ "resource": TOPIC, "policy": { "bindings": [{ "role": "r" }] } }),
        "TestIamPermissions" => json!({ "resource": TOPIC, "permissions": ["pubsub.topics.get"] }),
        other => panic!("the definitions have {other}, and this test does not: write a request of it"),
    }
}

/// Calls whose valid request is refused here: the revision already exists, or does not exist.
const REFUSED: [&str; 3] = ["CommitSchema", "RollbackSchema", "DeleteSchemaRevision"];
/// Calls that delete or detach a resource, which come last.
const LAST: [&str; 5] = ["DetachSubscription", "DeleteSubscription", "DeleteSnapshot", "DeleteSchema", "DeleteTopic"];

/// Returns values of other types than that of a field.
fn of_another_type(field: &FieldDescriptor) -> Vec<Value> {
    if field.is_map() {
        return vec![json!("x"), json!(5), json!([]), json!({ "x": 5 }), json!({ "x": {} })];
    }
    if field.is_list() {
        return vec![json!("x"), json!(5), json!({}), json!([{ "nothing": 1 }, 5]), json!([[]]), json!([null])];
    }
    match field.kind() {
        Kind::String => vec![json!(5), json!(true), json!([]), json!({})],
        Kind::Bytes => vec![json!(5), json!("%"), json!("a"), json!([]), json!({})],
        Kind::Bool => vec![json!(5), json!("x"), json!([]), json!({})],
        Kind::Int32 => vec![json!("x"), json!(1.5), json!(2_147_483_648_u64), json!(true), json!([]), json!({})],
        Kind::Int64 => vec![json!("x"), json!(1.5), json!("9223372036854775808"), json!(true), json!([]), json!({})],
        Kind::Enum(_) => vec![json!("NONSENSE"), json!(1.5), json!(true), json!([]), json!({})],
        Kind::Message(of) => match of.full_name() {
            "google.protobuf.Duration" => {
                ["x", "5", "1e3s", "315576000001s"].map(Value::from).into_iter().chain([json!(5)]).collect()
            }
            "google.protobuf.Struct" => vec![json!("x"), json!(5), json!([])],
            "google.protobuf.Timestamp" => ["x", "2026-13-01T00:00:00Z", "2026-01-01", "10000-01-01T00:00:00Z"]
                .map(Value::from)
                .into_iter()
                .chain([json!(5)])
                .collect(),
            "google.protobuf.FieldMask" => vec![json!(5), json!(["labels"]), json!({})],
            _ => vec![json!("x"), json!(5), json!([]), json!({ "nothing": 1 })],
        },
        other => panic!("the definitions have a type {other:?}, and this test does not"),
    }
}

/// Returns values of the type of a field that are out of range.
fn out_of_range(field: &FieldDescriptor) -> Vec<prost_reflect::Value> {
    use prost_reflect::Value as V;
    let of = |message: &MessageDescriptor, seconds: i64, nanos: i32| {
        let mut moment = DynamicMessage::new(message.clone());
        moment.set_field_by_name("seconds", V::I64(seconds));
        moment.set_field_by_name("nanos", V::I32(nanos));
        V::Message(moment)
    };
    let values = match field.kind() {
        Kind::Int32 => [i32::MIN, -1, 5, i32::MAX].map(V::I32).into(),
        Kind::Int64 => [i64::MIN, -1, i64::MAX].map(V::I64).into(),
        Kind::Enum(_) => [-1, 0, 99, i32::MAX].map(V::EnumNumber).into(),
        Kind::String => vec![
            V::String("x".repeat(70_000)),
            V::String("\0\u{7f}\r\n%2F\u{10ffff}".into()),
            V::String("projects/shop/topics/../..//x".into()),
            V::String("projects/-/topics/".to_owned() + &"a".repeat(256)),
        ],
        Kind::Bytes => vec![V::Bytes(vec![0xff; 70_000].into()), V::Bytes([0xff].as_slice().to_owned().into())],
        Kind::Message(message) => match message.full_name() {
            "google.protobuf.Duration" | "google.protobuf.Timestamp" => {
                let moments = [(i64::MAX, 0), (i64::MIN, -1), (-1, 0), (0, -1), (86_400, 2_000_000_000), (1 << 45, 0)];
                moments.map(|(seconds, nanos)| of(&message, seconds, nanos)).into()
            }
            _ => vec![V::Message(DynamicMessage::new(message))],
        },
        _ => Vec::new(),
    };
    if field.is_list() {
        values.into_iter().flat_map(|value| [vec![value.clone()], vec![value; 1001]]).map(V::List).collect()
    } else {
        values
    }
}

/// Returns the paths of all fields of a message, including nested ones.
fn places(message: &MessageDescriptor) -> Vec<Vec<FieldDescriptor>> {
    let mut places = Vec::new();
    for field in message.fields() {
        places.push(vec![field.clone()]);
        let inner = field.kind().as_message().cloned();
        if let Some(inner) = inner.filter(|of| !field.is_map() && of.package_name() != "google.protobuf") {
            places.extend(self::places(&inner).into_iter().map(|rest| [vec![field.clone()], rest].concat()));
        }
    }
    places
}

fn name_of(place: &[FieldDescriptor]) -> String {
    place.iter().map(|field| field.name()).collect::<Vec<_>>().join(".")
}

/// Sets the value at a path in JSON.
fn set_json(json: &mut Value, place: &[FieldDescriptor], value: Value) {
    let Some((field, rest)) = place.split_first() else {
        *json = value;
        return;
    };
    let at = &mut json[field.json_name()];
    match (rest.is_empty(), field.is_list()) {
        (true, _) => *at = value,
        (false, true) => {
            if !at.is_array() {
                *at = json!([{}]);
            }
            set_json(&mut at[0], rest, value);
        }
        (false, false) => set_json(at, rest, value),
    }
}

/// Sets the value at a path in a message. `None` clears the field.
fn set(message: &mut DynamicMessage, place: &[FieldDescriptor], value: Option<prost_reflect::Value>) {
    let (field, rest) = place.split_first().expect("a field");
    if rest.is_empty() {
        match value {
            Some(value) if field.is_map() => drop(value),
            Some(value) => message.set_field(field, value),
            None => message.clear_field(field),
        }
        return;
    }
    let mut at = message.get_field_mut(field);
    if let prost_reflect::Value::List(list) = at {
        if list.is_empty() {
            let inner = field.kind().as_message().expect("a message").clone();
            list.push(prost_reflect::Value::Message(DynamicMessage::new(inner)));
        }
        at = &mut list[0];
    }
    if let prost_reflect::Value::Message(inner) = at {
        set(inner, rest, value);
    }
}

/// REST route of a method.
pub struct Route {
    pub method: &'static str,
    /// Path template such as `/v1/{topic=projects/*/topics/*}:publish`.
    template: String,
    body: String,
}

impl Route {
    pub fn of(pool: &DescriptorPool, method: &MethodDescriptor) -> Self {
        let http = pool.get_extension_by_name("google.api.http").expect("annotations");
        let options = method.options();
        let rule = options.get_extension(&http);
        let text = |name: &str| {
            let rule = rule.as_message().expect("a rule");
            rule.get_field_by_name(name).and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
        };
        let verbs = ["get", "put", "post", "delete", "patch"];
        let verb = verbs.into_iter().find(|verb| !text(verb).is_empty()).expect("a verb");
        let method = ["GET", "PUT", "POST", "DELETE", "PATCH"][verbs.iter().position(|v| *v == verb).expect("it")];
        Self { method, template: text(verb), body: text("body") }
    }

    fn field(&self) -> &str {
        self.template.split(['{', '=', '}']).nth(1).expect("a field")
    }

    /// Returns path and body; the other fields are in the query. The path is that of a request with a name.
    pub fn request(&self, named: &Value, whole: &Value) -> (String, Value) {
        let (before, rest) = self.template.split_once('{').expect("a field");
        let (_, after) = rest.split_once('}').expect("a field");
        let value = self.field().split('.').fold(named, |at, name| &at[name]).as_str().expect("a name");
        let mut path = format!("{before}{value}{after}");
        let mut body = match self.body.as_str() {
            "" => Value::Null,
            "*" => return (path, whole.clone()),
            field => whole[field].clone(),
        };
        let others = whole.as_object().expect("an object").iter();
        let others = others.filter(|(name, _)| *name != self.field() && *name != &self.body);
        let query: Vec<String> = others
            .map(|(name, value)| format!("{name}={}", value.as_str().map_or_else(|| value.to_string(), str::to_owned)))
            .collect();
        if !query.is_empty() {
            path = format!("{path}?{}", query.join("&"));
        }
        if self.method == "GET" {
            body = Value::Null;
        }
        (path, body)
    }

    /// Returns `true` if REST can express a value at this path in a way that reveals its wrong type.
    fn can_say(&self, place: &[FieldDescriptor], value: &Value) -> bool {
        if name_of(place) == self.field() {
            return false;
        }
        let is_in_body = self.body == "*" || self.body == place[0].name();
        // In a query every value is a string.
        let is_text = value.is_string() && place.len() == 1 && place[0].kind() != Kind::String;
        is_in_body || (is_text && !place[0].is_list())
    }
}

struct Walk {
    grpc: Grpc,
    rest: std::net::SocketAddr,
    ack_id: String,
    /// Unexpected responses, which are reported together.
    faults: RefCell<Vec<String>>,
}

impl Walk {
    async fn begin(server: &Server) -> Self {
        let rest = server.pubsub();
        done(rest, "PUT", &format!("/v1/{TOPIC}"), json!({})).await;
        done(rest, "PUT", &format!("/v1/{SUBSCRIPTION}"), json!({ "topic": TOPIC })).await;
        done(rest, "PUT", &format!("/v1/{SNAPSHOT}"), json!({ "subscription": SUBSCRIPTION })).await;
        let schema = json!({ "type": "AVRO", "definition": DEFINITION });
        done(rest, "POST", "/v1/projects/shop/schemas?schemaId=order", schema).await;
        done(rest, "POST", &format!("/v1/{TOPIC}:publish"), json!({ "messages": [{ "data": "eA==" }] })).await;
        let pulled = done(rest, "POST", &format!("/v1/{SUBSCRIPTION}:pull"), json!({ "maxMessages": 1 })).await;
        let ack_id = pulled["receivedMessages"][0]["ackId"].as_str().expect("an id").to_owned();
        Self { grpc: Grpc::of(server).await, rest, ack_id, faults: RefCell::default() }
    }

    async fn call(&self, method: &MethodDescriptor, request: DynamicMessage) -> Result<(), Status> {
        let path = format!("/{}/{}", method.parent_service().full_name(), method.name());
        let path = PathAndQuery::from_maybe_shared(path).expect("a path");
        let mut request = Request::new(request);
        request.set_timeout(Duration::from_secs(15));
        let call =
            async { self.grpc.client().await.unary(request, path, ProstCodec::<DynamicMessage, ()>::default()).await };
        within(method.name(), call).await.map(|_| ())
    }

    /// Deletes resources that an accepted request may have created.
    async fn clear(&self) {
        for path in ["subscriptions/other", "snapshots/other", "schemas/other", "topics/other"] {
            let (status, answer) = call(self.rest, "DELETE", &format!("/v1/projects/shop/{path}"), &Value::Null).await;
            assert!(status == 200 || status == 404, "{answer}");
        }
    }

    fn expect(&self, is_so: bool, what: String) {
        if !is_so {
            self.faults.borrow_mut().push(what);
        }
    }

    /// Checks that the shared resources still exist and can be read.
    async fn is_unharmed(&self, after: &str) {
        for name in [TOPIC, SUBSCRIPTION, SNAPSHOT, SCHEMA] {
            let (status, answer) = call(self.rest, "GET", &format!("/v1/{name}"), &Value::Null).await;
            self.expect(status == 200, format!("{name} after {after}: {answer}"));
        }
    }

    /// Checks that missing required fields are refused.
    async fn missing(&self, pool: &DescriptorPool, method: &MethodDescriptor, whole: &DynamicMessage) {
        let behavior = pool.get_extension_by_name("google.api.field_behavior").expect("annotations");
        for place in places(&method.input()) {
            let field = place.last().expect("a field");
            let is_required = field.options().get_extension(&behavior).as_list().is_some_and(|list| {
                // `REQUIRED`
                list.iter().any(|kind| kind.as_enum_number() == Some(2))
            });
            if !is_required || MAY_BE_EMPTY.contains(&(method.name(), name_of(&place).as_str())) {
                continue;
            }
            let mut without = whole.clone();
            set(&mut without, &place, None);
            let what = format!("{} without {}", method.name(), name_of(&place));
            let answer = self.call(method, without).await;
            let code = answer.map_err(|status| (status.code(), status.message().to_owned()));
            let is_refused = code.as_ref().is_err_and(|(code, message)| TYPED.contains(code) && !message.is_empty());
            self.expect(is_refused, format!("{what}: {code:?}"));
            self.clear().await;
        }
    }

    /// Checks that REST refuses a value of another type, with the error format that Google's clients read.
    async fn of_another_type(&self, method: &MethodDescriptor, route: &Route, whole: &Value) {
        for place in places(&method.input()) {
            for wrong in of_another_type(place.last().expect("a field")) {
                if !route.can_say(&place, &wrong) {
                    continue;
                }
                let mut with = whole.clone();
                set_json(&mut with, &place, wrong.clone());
                let (path, body) = route.request(whole, &with);
                let (status, answer) = call(self.rest, route.method, &path, &body).await;
                let what = format!("{} with {} = {wrong}: {answer}", method.name(), name_of(&place));
                let error = &answer["error"];
                let is_refused =
                    (status, &error["code"], &error["status"]) == (400, &json!(400), &json!("INVALID_ARGUMENT"));
                let is_told = error["message"].as_str().is_some_and(|message| !message.is_empty());
                self.expect(is_refused && is_told, what);
            }
        }
    }

    /// Checks that gRPC accepts any value of the right type, or refuses it with an error that the client can correct.
    async fn out_of_range(&self, method: &MethodDescriptor, whole: &DynamicMessage) {
        for place in places(&method.input()) {
            for value in out_of_range(place.last().expect("a field")) {
                let mut with = whole.clone();
                let shown: String = format!("{value:?}").chars().take(100).collect();
                set(&mut with, &place, Some(value));
                let what = format!("{} with {} = {shown}", method.name(), name_of(&place));
                if let Err(status) = self.call(method, with).await {
                    // The etag of the policy may not match.
                    let is_typed = TYPED.contains(&status.code()) || status.code() == Code::Aborted;
                    self.expect(is_typed && !status.message().is_empty(), format!("{what}: {status:?}"));
                    continue;
                }
                self.is_unharmed(&what).await;
                self.clear().await;
            }
        }
    }
}

#[tokio::test]
async fn every_request_of_the_definitions_is_checked() {
    let server = server();
    let walk = Walk::begin(&server).await;
    let pool = DescriptorPool::decode(DESCRIPTORS).expect("descriptors");
    let methods: Vec<MethodDescriptor> =
        pool.services().flat_map(|service| service.methods().collect::<Vec<_>>()).collect();
    let mut methods: Vec<MethodDescriptor> =
        methods.into_iter().filter(|method| !method.is_client_streaming()).collect();
    assert_eq!(methods.len(), doors::pubsub::calls().count() - 1, "all but the stream");
    let place = |method: &MethodDescriptor| LAST.iter().position(|name| *name == method.name()).map_or(0, |at| at + 1);
    methods.sort_by_key(place);
    for method in &methods {
        let json = whole(method.name(), &walk.ack_id);
        let message = DynamicMessage::deserialize(method.input(), json.clone()).expect("a message");
        walk.missing(&pool, method, &message).await;
        walk.of_another_type(method, &Route::of(&pool, method), &json).await;
        walk.out_of_range(method, &message).await;
        walk.is_unharmed(method.name()).await;
    }
    let faults = walk.faults.take();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    // Valid requests all succeed, in both protocols.
    let rest = |method: &MethodDescriptor, json: &Value| {
        let route = Route::of(&pool, method);
        let (path, body) = route.request(json, json);
        (route.method, path, body)
    };
    for is_rest in [false, true] {
        walk.clear().await;
        for method in methods.iter().filter(|method| !REFUSED.contains(&method.name())) {
            let json = whole(method.name(), &walk.ack_id);
            if is_rest {
                let (verb, path, body) = rest(method, &json);
                done(walk.rest, verb, &path, body).await;
            } else {
                let message = DynamicMessage::deserialize(method.input(), json).expect("a message");
                walk.call(method, message).await.unwrap_or_else(|status| panic!("{}: {status:?}", method.name()));
            }
        }
    }
    assert_eq!(server.log().matches("ERROR").count(), 0, "{}", server.log());
}

/// Checks the first request of a stream, and those after it.
#[tokio::test]
async fn every_request_of_a_stream_is_checked() {
    let server = server();
    let walk = Walk::begin(&server).await;
    let first = || StreamingPullRequest {
        subscription: SUBSCRIPTION.into(),
        stream_ack_deadline_seconds: 60,
        ..StreamingPullRequest::default()
    };
    let later = StreamingPullRequest::default;
    let ids = || vec![walk.ack_id.clone()];
    let refused = [
        vec![],
        vec![StreamingPullRequest { subscription: String::new(), ..first() }],
        vec![StreamingPullRequest { subscription: "x".into(), ..first() }],
        vec![StreamingPullRequest { subscription: "projects/shop/subscriptions/none".into(), ..first() }],
        vec![StreamingPullRequest { stream_ack_deadline_seconds: 0, ..first() }],
        vec![StreamingPullRequest { stream_ack_deadline_seconds: -1, ..first() }],
        vec![StreamingPullRequest { stream_ack_deadline_seconds: i32::MAX, ..first() }],
        vec![StreamingPullRequest { modify_deadline_ack_ids: ids(), ..first() }],
        vec![StreamingPullRequest { modify_deadline_seconds: vec![10], ..first() }],
        vec![
            first(),
            StreamingPullRequest { modify_deadline_ack_ids: ids(), modify_deadline_seconds: vec![-1], ..later() },
        ],
        vec![
            first(),
            StreamingPullRequest { modify_deadline_ack_ids: ids(), modify_deadline_seconds: vec![601], ..later() },
        ],
        vec![first(), StreamingPullRequest { stream_ack_deadline_seconds: 9, ..later() }],
        vec![first(), first()],
        vec![first(), StreamingPullRequest { max_outstanding_messages: 1, ..later() }],
        vec![first(), StreamingPullRequest { max_outstanding_bytes: -1, ..later() }],
    ];
    for requests in refused {
        let what = format!("{requests:?}");
        let end = async {
            let path = PathAndQuery::from_static("/google.pubsub.v1.Subscriber/StreamingPull");
            let codec = ProstCodec::<StreamingPullRequest, StreamingPullResponse>::default();
            let mut answers = walk
                .grpc
                .client()
                .await
                .streaming(Request::new(stream::iter(requests)), path, codec)
                .await?
                .into_inner();
            while answers.message().await?.is_some() {}
            Ok::<_, Status>(())
        };
        let status = within("the end", end).await.expect_err(&what);
        assert!(matches!(status.code(), Code::InvalidArgument | Code::NotFound), "{what}: {status:?}");
    }
    // Meaningless values do not end the stream.
    let taken = StreamingPullRequest {
        max_outstanding_messages: i64::MIN,
        max_outstanding_bytes: -1,
        protocol_version: i64::MAX,
        client_id: "x".repeat(70_000),
        ack_ids: vec!["x".into(); 3000],
        modify_deadline_ack_ids: vec!["\0".into()],
        modify_deadline_seconds: vec![0],
        ..first()
    };
    let path = PathAndQuery::from_static("/google.pubsub.v1.Subscriber/StreamingPull");
    let codec = ProstCodec::<StreamingPullRequest, StreamingPullResponse>::default();
    let requests = stream::iter([taken, StreamingPullRequest { ack_ids: ids(), ..later() }]);
    let end = async {
        let mut answers = walk.grpc.client().await.streaming(Request::new(requests), path, codec).await?.into_inner();
        while answers.message().await?.is_some() {}
        Ok::<_, Status>(())
    };
    within("the end", end).await.expect("a stream that its client ends");
    walk.is_unharmed("streams").await;
}
