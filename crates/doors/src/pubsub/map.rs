//! Calls of Google's API with the functions that answer them, for both gRPC and REST.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};

use broker::{Broker, Held, Identity};
use bytes::Bytes;
use engine::queue::{QueueDefinition, QueueId};
use engine::security::Operation;
use net::Drain;
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

use super::access::Need;
use super::codec::{self, Encoded, MESSAGE_BYTES_MAX, REQUEST_BYTES_MAX};
use super::errors::Result;
use super::names::Names;
use super::push::{Allow, Pusher};
use super::schema::Schemas;
use super::schemas::Kept;
use super::stream::Streams;
use super::transform::Transforms;
use super::{access, policies, pull, schemas, snapshots, subscriptions, topics};

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
            changed: Notify::new(),
            activity: Mutex::default(),
            schemas: Schemas::new(Kept(broker.clone())),
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
    /// Checks the permissions of the client, and makes the call.
    pub call: fn(Ask, Bytes) -> Answered,
    /// Returns `true` if a message can be decoded as its request.
    pub reads: fn(Bytes) -> bool,
}

macro_rules! rpcs {
    ($($service:literal { $($name:literal => $function:path, $needs:expr;)* })*) => {
        &[$($(Rpc {
            path: concat!("/", $service, "/", $name),
            call: |ask, message| Box::pin(answer(ask, message, $function, $needs)),
            reads: |message| decode(message, $function).is_ok(),
        }),*),*]
    };
}

#[rustfmt::skip]
pub(super) static RPCS: &[Rpc] = rpcs! {
    "google.pubsub.v1.Publisher" {
        "CreateTopic" => topics::create, |r| vec![Need::on(Operation::Create, &r.name)];
        "UpdateTopic" => topics::update, |r| vec![Need::on(Operation::AlterConfigs, r.topic.as_ref().map_or("", |it| &it.name))];
        "Publish" => topics::publish, |r| vec![Need::on(Operation::Write, &r.topic)];
        "GetTopic" => topics::get, |r| vec![Need::on(Operation::Describe, &r.topic)];
        "ListTopics" => topics::list, |r| vec![Need::List(None, r.project.clone())];
        "ListTopicSubscriptions" => topics::list_subscriptions, |r| vec![Need::on(Operation::Describe, &r.topic)];
        "ListTopicSnapshots" => topics::list_snapshots, |r| vec![Need::on(Operation::Describe, &r.topic)];
        "DeleteTopic" => topics::delete, |r| vec![Need::on(Operation::Delete, &r.topic)];
        "DetachSubscription" => subscriptions::detach, |r| vec![Need::on(Operation::Alter, &r.subscription)];
    }
    "google.pubsub.v1.Subscriber" {
        "CreateSubscription" => subscriptions::create, access::of_new_subscription;
        "GetSubscription" => subscriptions::get, |r| vec![Need::on(Operation::Describe, &r.subscription)];
        "UpdateSubscription" => subscriptions::update, |r| r.subscription.as_ref().map(access::of_altered_subscription).unwrap_or_default();
        "ListSubscriptions" => subscriptions::list, |r| vec![Need::List(None, r.project.clone())];
        "DeleteSubscription" => subscriptions::delete, |r| vec![Need::on(Operation::Delete, &r.subscription)];
        "ModifyAckDeadline" => pull::modify_deadline, |r| vec![Need::on(Operation::Read, &r.subscription)];
        "Acknowledge" => pull::acknowledge, |r| vec![Need::on(Operation::Read, &r.subscription)];
        "Pull" => pull::pull, |r| vec![Need::on(Operation::Read, &r.subscription)];
        "ModifyPushConfig" => subscriptions::modify_push, |r| vec![Need::on(Operation::Alter, &r.subscription), Need::on(Operation::Read, &r.subscription)];
        "GetSnapshot" => snapshots::get, |r| vec![Need::on(Operation::Describe, &r.snapshot)];
        "ListSnapshots" => snapshots::list, |r| vec![Need::List(Some(Operation::Describe), r.project.clone())];
        "CreateSnapshot" => snapshots::create, |r| vec![Need::on(Operation::Create, &r.name), Need::on(Operation::Read, &r.subscription)];
        "UpdateSnapshot" => snapshots::update, |r| vec![Need::on(Operation::Alter, r.snapshot.as_ref().map_or("", |it| &it.name))];
        "DeleteSnapshot" => snapshots::delete, |r| vec![Need::on(Operation::Delete, &r.snapshot)];
        "Seek" => snapshots::seek, |r| vec![Need::on(Operation::Alter, &r.subscription)];
    }
    "google.pubsub.v1.SchemaService" {
        "CreateSchema" => schemas::create, |r| vec![Need::On(Operation::Create, format!("{}/schemas/{}", r.parent, r.schema_id))];
        "GetSchema" => schemas::get, |r| vec![Need::on(Operation::Describe, access::without_revision(&r.name))];
        "ListSchemas" => schemas::list, |r| vec![Need::List(Some(Operation::Describe), r.parent.clone())];
        "ListSchemaRevisions" => schemas::list_revisions, |r| vec![Need::on(Operation::Describe, access::without_revision(&r.name))];
        "CommitSchema" => schemas::commit, |r| vec![Need::on(Operation::Alter, access::without_revision(&r.name))];
        "RollbackSchema" => schemas::roll_back, |r| vec![Need::on(Operation::Alter, access::without_revision(&r.name))];
        "DeleteSchemaRevision" => schemas::delete_revision, |r| vec![Need::on(Operation::Delete, access::without_revision(&r.name))];
        "DeleteSchema" => schemas::delete, |r| vec![Need::on(Operation::Delete, access::without_revision(&r.name))];
        "ValidateSchema" => schemas::validate, |_| Vec::new();
        "ValidateMessage" => schemas::validate_message, access::of_validated_message;
    }
    "google.iam.v1.IAMPolicy" {
        "SetIamPolicy" => policies::set, |_| vec![Need::Cluster(Operation::Alter)];
        "GetIamPolicy" => policies::get, |_| vec![Need::Cluster(Operation::Describe)];
        "TestIamPermissions" => policies::test, |_| Vec::new();
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
    needs: fn(&Q) -> Vec<Need>,
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
        access::authorize(&ask, &needs(&request)).await?;
    }
    let answer = function(ask, request).await?;
    Ok(memory.work(answer.encoded_len(), || Encoded::new(&answer)).await)
}

/// Decodes the request of a function.
fn decode<Q: Message + Default, F>(message: Bytes, _: fn(Ask, Q) -> F) -> Result<Q> {
    codec::decode(message)
}
