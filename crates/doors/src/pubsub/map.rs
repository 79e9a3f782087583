//! Calls of Google's API with the functions that answer them, for both gRPC and REST.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};

use broker::{Broker, Held, Identity};
use bytes::Bytes;
use engine::queue::{QueueDefinition, QueueId};
use engine::security::Operation::{Alter, AlterConfigs, Create, Delete, Describe, Read, Write};
use engine::security::ResourceKind;
use net::Drain;
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::access::{
    Rule, cluster, dead_letters, its_topic, listed, schema, snapshot, subscription, topic, without_revision,
};
use super::codec::{self, Encoded, MESSAGE_BYTES_MAX, REQUEST_BYTES_MAX};
use super::errors::Result;
use super::names::Names;
use super::push::{Allow, Pusher};
use super::pushes::Changes;
use super::schema::Schemas;
use super::schemas::Kept;
use super::stream::Streams;
use super::transform::Transforms;
use super::{access, policies, pull, schemas, snapshots, subscriptions, topics};
use crate::permissions::Need;

/// State that all calls share.
pub(super) struct Door {
    pub broker: Arc<Broker>,
    pub names: Names,
    /// Budget for the bytes of requests in flight.
    pub bodies: Arc<Semaphore>,
    pub streams: Streams,
    /// Subscriptions that were created, deleted or changed.
    pub changed: Changes,
    /// Time of the last receive from each queue since startup, in ms since 1970.
    activity: Mutex<HashMap<QueueId, u64>>,
    pub schemas: Schemas<Kept>,
    /// Held while some messages of a request are checked against their schema.
    pub checking: tokio::sync::Mutex<()>,
    pub pusher: Arc<Pusher>,
    pub transforms: Transforms,
    /// Held while the signing key of tokens is generated.
    pub making_key: tokio::sync::Mutex<()>,
    /// Held while a policy is changed, so that its entries and its text are of the same one.
    pub changing_policy: tokio::sync::Mutex<()>,
    pub is_login_required: bool,
}

impl Door {
    pub fn new(
        broker: Arc<Broker>,
        names: Names,
        bodies_bytes_max: usize,
        push_allow: Allow,
        is_login_required: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            names,
            bodies: Arc::new(Semaphore::new(bodies_bytes_max)),
            streams: Streams::default(),
            changed: Changes::default(),
            activity: Mutex::default(),
            schemas: Schemas::new(Kept(broker.clone())),
            checking: tokio::sync::Mutex::default(),
            pusher: Pusher::new(push_allow, None, broker.doors().clone(), broker.settings().clock),
            transforms: Transforms::default(),
            making_key: tokio::sync::Mutex::default(),
            changing_policy: tokio::sync::Mutex::default(),
            is_login_required,
            broker,
        })
    }

    /// Records the use of a queue, so that it does not expire.
    pub fn is_active(&self, queue: &QueueDefinition) {
        self.activity.lock().insert(queue.id, self.broker.now_ms());
    }

    pub fn active_ms(&self, queue: &QueueDefinition) -> u64 {
        self.activity.lock().get(&queue.id).copied().unwrap_or(0)
    }

    /// Removes the activity of all queues but these.
    pub fn forget_others(&self, queues: &HashSet<QueueId>) {
        self.activity.lock().retain(|id, _| queues.contains(id));
    }
}

/// Call with its context.
#[derive(Clone)]
pub(super) struct Ask {
    pub door: Arc<Door>,
    /// Address of the client.
    pub address: IpAddr,
    /// On whose behalf the client acts.
    pub identity: Arc<Identity>,
    /// Permit for the response, if the call acquires one before the response is ready.
    pub held: Arc<Mutex<Option<Held>>>,
    pub drain: Drain,
    /// Deadline of the client, if it sets one.
    pub deadline: Option<Instant>,
}

type Answered = Pin<Box<dyn Future<Output = Result<Encoded>> + Send>>;

/// Call with one request message and one response message.
pub(super) struct Rpc {
    /// Path in gRPC.
    pub path: &'static str,
    /// Permissions that it requires.
    pub needs: &'static [Need],
    /// Checks the permissions of the client, and makes the call.
    pub call: fn(Ask, Bytes) -> Answered,
    /// Returns `true` if a message can be decoded as its request.
    pub reads: fn(Bytes) -> bool,
}

macro_rules! rpcs {
    ($($service:literal { $($name:literal => $function:path, [$($need:expr => $of:expr),*];)* })*) => {
        &[$($(Rpc {
            path: concat!("/", $service, "/", $name),
            needs: &[$($need),*],
            call: |ask, message| {
                Box::pin(answer(ask, message, $function, || vec![$(Rule { need: $need, name: $of }),*]))
            },
            reads: |message| decode(message, $function).is_ok(),
        }),*),*]
    };
}

/// Condition of the topic of a subscription whose messages are pushed elsewhere.
const PUSHED_TOPIC: &str = "if the request sets a push endpoint and the subscription does not own it";

/// Name for the rules that have none.
const NOTHING: Cow<'_, str> = Cow::Borrowed("");

pub(super) static RPCS: &[Rpc] = rpcs! {
    "google.pubsub.v1.Publisher" {
        "CreateTopic" => topics::create, [
            topic(Create).or_cluster(Create) => |r| r.name.as_str().into(),
            schema(Read).when("if the topic has one") => access::schema_of
        ];
        "UpdateTopic" => topics::update, [
            topic(AlterConfigs) => |r| r.topic.as_ref().map_or("", |it| &it.name).into(),
            schema(Read).when("if the request sets one") => access::schema_of_update
        ];
        "Publish" => topics::publish, [topic(Write) => |r| r.topic.as_str().into()];
        "GetTopic" => topics::get, [topic(Describe) => |r| r.topic.as_str().into()];
        "ListTopics" => topics::list, [listed(ResourceKind::Topic, "each topic") => |r| r.project.as_str().into()];
        "ListTopicSubscriptions" => topics::list_subscriptions, [
            topic(Describe) => |r| r.topic.as_str().into(),
            listed(ResourceKind::Queue, "each subscription") => |_| NOTHING
        ];
        "ListTopicSnapshots" => topics::list_snapshots, [
            topic(Describe) => |r| r.topic.as_str().into(),
            listed(ResourceKind::Queue, "each snapshot") => |_| NOTHING
        ];
        "DeleteTopic" => topics::delete, [topic(Delete) => |r| r.topic.as_str().into()];
        "DetachSubscription" => subscriptions::detach, [subscription(Alter) => |r| r.subscription.as_str().into()];
    }
    "google.pubsub.v1.Subscriber" {
        "CreateSubscription" => subscriptions::create, [
            subscription(Create) => |r| r.name.as_str().into(),
            topic(Read) => |r| r.topic.as_str().into(),
            dead_letters() => access::dead_letters_of
        ];
        "GetSubscription" => subscriptions::get, [subscription(Describe) => |r| r.subscription.as_str().into()];
        "UpdateSubscription" => subscriptions::update, [
            subscription(Alter) => |r| r.subscription.as_ref().map_or("", |it| &it.name).into(),
            subscription(Read).when("if the request sets a push endpoint") => access::pushed,
            its_topic(Read).when(PUSHED_TOPIC) => |_| NOTHING,
            dead_letters() => |r| r.subscription.as_ref().map_or(NOTHING, access::dead_letters_of)
        ];
        "ListSubscriptions" => subscriptions::list, [
            listed(ResourceKind::Queue, "each subscription") => |r| r.project.as_str().into()
        ];
        "DeleteSubscription" => subscriptions::delete, [subscription(Delete) => |r| r.subscription.as_str().into()];
        "ModifyAckDeadline" => pull::modify_deadline, [
            subscription(Read) => |r| r.subscription.as_str().into(),
            its_topic(Read) => |_| NOTHING
        ];
        "Acknowledge" => pull::acknowledge, [
            subscription(Read) => |r| r.subscription.as_str().into(),
            its_topic(Read) => |_| NOTHING
        ];
        "Pull" => pull::pull, [
            subscription(Read) => |r| r.subscription.as_str().into(),
            its_topic(Read) => |_| NOTHING
        ];
        "ModifyPushConfig" => subscriptions::modify_push, [
            subscription(Alter) => |r| r.subscription.as_str().into(),
            subscription(Read) => |r| r.subscription.as_str().into(),
            its_topic(Read) => |_| NOTHING
        ];
        "GetSnapshot" => snapshots::get, [snapshot(Describe) => |r| r.snapshot.as_str().into()];
        "ListSnapshots" => snapshots::list, [cluster(Describe) => |r| r.project.as_str().into()];
        "CreateSnapshot" => snapshots::create, [
            snapshot(Create) => |r| r.name.as_str().into(),
            subscription(Read) => |r| r.subscription.as_str().into(),
            its_topic(Read) => |_| NOTHING
        ];
        "UpdateSnapshot" => snapshots::update, [
            snapshot(Alter) => |r| r.snapshot.as_ref().map_or("", |it| &it.name).into()
        ];
        "DeleteSnapshot" => snapshots::delete, [snapshot(Delete) => |r| r.snapshot.as_str().into()];
        "Seek" => snapshots::seek, [
            subscription(Alter) => |r| r.subscription.as_str().into(),
            snapshot(Read).when("if the request names one") => access::snapshot_of
        ];
    }
    "google.pubsub.v1.SchemaService" {
        "CreateSchema" => schemas::create, [
            schema(Create) => |r| format!("{}/schemas/{}", r.parent, r.schema_id).into()
        ];
        "GetSchema" => schemas::get, [schema(Describe) => |r| without_revision(&r.name).into()];
        "ListSchemas" => schemas::list, [cluster(Describe) => |r| r.parent.as_str().into()];
        "ListSchemaRevisions" => schemas::list_revisions, [schema(Describe) => |r| without_revision(&r.name).into()];
        "CommitSchema" => schemas::commit, [schema(Alter) => |r| without_revision(&r.name).into()];
        "RollbackSchema" => schemas::roll_back, [schema(Alter) => |r| without_revision(&r.name).into()];
        "DeleteSchemaRevision" => schemas::delete_revision, [
            schema(Delete) => |r| without_revision(&r.name).into()
        ];
        "DeleteSchema" => schemas::delete, [schema(Delete) => |r| without_revision(&r.name).into()];
        "ValidateSchema" => schemas::validate, [];
        "ValidateMessage" => schemas::validate_message, [
            schema(Describe).when("if the request names a stored one") => access::schema_of_message
        ];
    }
    "google.iam.v1.IAMPolicy" {
        "SetIamPolicy" => policies::set, [cluster(Alter) => |_| NOTHING];
        "GetIamPolicy" => policies::get, [cluster(Describe) => |_| NOTHING];
        "TestIamPermissions" => policies::test, [];
    }
};

/// Calls whose requests contain messages of publishers, which are larger than all other requests.
const LARGE: [&str; 2] = ["/google.pubsub.v1.Publisher/Publish", "/google.pubsub.v1.SchemaService/ValidateMessage"];

impl Rpc {
    /// Returns the maximum size of its request.
    pub fn bytes_max(&self) -> usize {
        if LARGE.contains(&self.path) { MESSAGE_BYTES_MAX } else { REQUEST_BYTES_MAX }
    }
}

static BY_PATH: LazyLock<HashMap<&str, &Rpc>> = LazyLock::new(|| RPCS.iter().map(|rpc| (rpc.path, rpc)).collect());

/// Returns the call with this path.
pub(super) fn find(path: &str) -> Option<&'static Rpc> {
    BY_PATH.get(path).copied()
}

async fn answer<Q, A, F>(
    ask: Ask,
    message: Bytes,
    function: fn(Ask, Q) -> F,
    rules: fn() -> Vec<Rule<Q>>,
) -> Result<Encoded>
where
    Q: Message + Default,
    A: Message,
    F: Future<Output = Result<A>>,
{
    let door = ask.door.clone();
    let memory = door.broker.answers();
    let request = memory.work(message.len(), || decode(message, function)).await?;
    if !door.broker.security.is_unlimited(&ask.identity) {
        let needs: Vec<_> = rules().iter().filter_map(|rule| rule.of(&request)).collect();
        access::authorize(&ask, &needs).await?;
    }
    let answer = function(ask, request).await?;
    Ok(memory.work(answer.encoded_len(), || Encoded::new(&answer)).await)
}

/// Decodes the request of a function.
fn decode<Q: Message + Default, F>(message: Bytes, _: fn(Ask, Q) -> F) -> Result<Q> {
    codec::decode(message)
}
