//! Calls of Google's API with the functions that answer them, for both gRPC and REST.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};

use broker::{Broker, Held};
use bytes::Bytes;
use engine::queue::{QueueDefinition, QueueId};
use net::Drain;
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

use super::codec::{self, Encoded, MESSAGE_BYTES_MAX, REQUEST_BYTES_MAX};
use super::errors::Result;
use super::names::Names;
use super::push::{Allow, Pusher};
use super::schema::Schemas;
use super::schemas::Kept;
use super::stream::Streams;
use super::transform::Transforms;
use super::{policies, pull, schemas, snapshots, subscriptions, topics};

/// State that all calls share.
pub(super) struct Door {
    pub broker: Arc<Broker>,
    pub names: Names,
    /// Budget for the bytes of requests in flight.
    pub bodies: Arc<Semaphore>,
    pub streams: Streams,
    /// Notified when a subscription is created, deleted or changed.
    pub changed: Notify,
    /// Time of the last receive from each queue since startup, in ms since 1970.
    activity: Mutex<HashMap<QueueId, u64>>,
    pub schemas: Schemas<Kept>,
    pub pusher: Arc<Pusher>,
    pub transforms: Transforms,
    /// Held while the signing key of tokens is generated.
    pub making_key: tokio::sync::Mutex<()>,
}

impl Door {
    pub fn new(broker: Arc<Broker>, names: Names, bodies_bytes_max: usize, push_allow: Allow) -> Arc<Self> {
        Arc::new(Self {
            names,
            bodies: Arc::new(Semaphore::new(bodies_bytes_max)),
            streams: Streams::default(),
            changed: Notify::new(),
            activity: Mutex::default(),
            schemas: Schemas::new(Kept(broker.clone())),
            pusher: Pusher::new(push_allow, None, broker.doors().clone(), broker.settings().clock),
            transforms: Transforms::default(),
            making_key: tokio::sync::Mutex::default(),
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
    pub call: fn(Ask, Bytes) -> Answered,
    /// Returns `true` if a message can be decoded as its request.
    pub reads: fn(Bytes) -> bool,
}

macro_rules! rpcs {
    ($($service:literal { $($name:literal => $function:path;)* })*) => {
        &[$($(Rpc {
            path: concat!("/", $service, "/", $name),
            call: |ask, message| Box::pin(answer(ask, message, $function)),
            reads: |message| decode(message, $function).is_ok(),
        }),*),*]
    };
}

#[rustfmt::skip]
pub(super) static RPCS: &[Rpc] = rpcs! {
    "google.pubsub.v1.Publisher" {
        "CreateTopic" => topics::create;
        "UpdateTopic" => topics::update;
        "Publish" => topics::publish;
        "GetTopic" => topics::get;
        "ListTopics" => topics::list;
        "ListTopicSubscriptions" => topics::list_subscriptions;
        "ListTopicSnapshots" => topics::list_snapshots;
        "DeleteTopic" => topics::delete;
        "DetachSubscription" => subscriptions::detach;
    }
    "google.pubsub.v1.Subscriber" {
        "CreateSubscription" => subscriptions::create;
        "GetSubscription" => subscriptions::get;
        "UpdateSubscription" => subscriptions::update;
        "ListSubscriptions" => subscriptions::list;
        "DeleteSubscription" => subscriptions::delete;
        "ModifyAckDeadline" => pull::modify_deadline;
        "Acknowledge" => pull::acknowledge;
        "Pull" => pull::pull;
        "ModifyPushConfig" => subscriptions::modify_push;
        "GetSnapshot" => snapshots::get;
        "ListSnapshots" => snapshots::list;
        "CreateSnapshot" => snapshots::create;
        "UpdateSnapshot" => snapshots::update;
        "DeleteSnapshot" => snapshots::delete;
        "Seek" => snapshots::seek;
    }
    "google.pubsub.v1.SchemaService" {
        "CreateSchema" => schemas::create;
        "GetSchema" => schemas::get;
        "ListSchemas" => schemas::list;
        "ListSchemaRevisions" => schemas::list_revisions;
        "CommitSchema" => schemas::commit;
        "RollbackSchema" => schemas::roll_back;
        "DeleteSchemaRevision" => schemas::delete_revision;
        "DeleteSchema" => schemas::delete;
        "ValidateSchema" => schemas::validate;
        "ValidateMessage" => schemas::validate_message;
    }
    "google.iam.v1.IAMPolicy" {
        "SetIamPolicy" => policies::set;
        "GetIamPolicy" => policies::get;
        "TestIamPermissions" => policies::test;
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

async fn answer<Q, A, F>(ask: Ask, message: Bytes, function: fn(Ask, Q) -> F) -> Result<Encoded>
where
    Q: Message + Default,
    A: Message,
    F: Future<Output = Result<A>>,
{
    let door = ask.door.clone();
    let memory = door.broker.answers();
    let request = memory.work(message.len(), || decode(message, function)).await?;
    let answer = function(ask, request).await?;
    Ok(memory.work(answer.encoded_len(), || Encoded::new(&answer)).await)
}

/// Decodes the request of a function.
fn decode<Q: Message + Default, F>(message: Bytes, _: fn(Ask, Q) -> F) -> Result<Q> {
    codec::decode(message)
}
