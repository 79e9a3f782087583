//! Every call of Google's API and the function that answers it, for gRPC and REST alike.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};

use broker::Broker;
use bytes::Bytes;
use net::Drain;
use prost::Message;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::codec::Encoded;
use super::errors::{Failure, Result};
use super::names::Names;
use super::{policies, topics};

/// What all calls share.
pub(super) struct Door {
    pub broker: Arc<Broker>,
    pub names: Names,
    /// Bytes of requests that are on their way.
    pub bodies: Arc<Semaphore>,
}

/// A call, with what it is part of.
#[derive(Clone)]
pub(super) struct Ask {
    pub door: Arc<Door>,
    pub drain: Drain,
    /// Until when the client waits, where it says so.
    pub deadline: Option<Instant>,
}

type Answered = Pin<Box<dyn Future<Output = Result<Encoded>> + Send>>;

/// A call of one message that is answered with one.
pub(super) struct Rpc {
    /// As gRPC has it.
    pub path: &'static str,
    pub call: fn(Ask, Bytes) -> Answered,
}

macro_rules! rpcs {
    ($($service:literal { $($name:literal => $function:path;)* })*) => {
        &[$($(Rpc {
            path: concat!("/", $service, "/", $name),
            call: |ask, message| Box::pin(answer(ask, message, $function)),
        }),*),*]
    };
}

#[rustfmt::skip]
pub(super) static RPCS: &[Rpc] = rpcs! {
    "google.pubsub.v1.Publisher" {
        "CreateTopic" => topics::create;
        "UpdateTopic" => topics::update;
        "GetTopic" => topics::get;
        "ListTopics" => topics::list;
        "DeleteTopic" => topics::delete;
    }
    "google.iam.v1.IAMPolicy" {
        "SetIamPolicy" => policies::set;
        "GetIamPolicy" => policies::get;
        "TestIamPermissions" => policies::test;
    }
};

static BY_PATH: LazyLock<HashMap<&str, &Rpc>> = LazyLock::new(|| RPCS.iter().map(|rpc| (rpc.path, rpc)).collect());

/// The call of this path.
pub(super) fn find(path: &str) -> Option<&'static Rpc> {
    BY_PATH.get(path).copied()
}

async fn answer<Q, A, F>(ask: Ask, message: Bytes, function: fn(Ask, Q) -> F) -> Result<Encoded>
where
    Q: Message + Default,
    A: Message,
    F: Future<Output = Result<A>>,
{
    let request = Q::decode(message).map_err(|error| Failure::invalid(format!("this is no message: {error}")))?;
    Ok(Encoded::new(&function(ask, request).await?))
}
