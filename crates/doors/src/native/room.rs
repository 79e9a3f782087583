//! Memory for responses that carry records, messages or values. A response holds its memory until it is written to the
//! socket.

use std::net::IpAddr;
use std::time::Duration;

use broker::{Answers, Broker, FREE_BYTES, Held};
use engine::Result;
use net::service::Peer;
use tokio::sync::SemaphorePermit;
use wire::caches::Value;
use wire::{CacheRequest, CacheResponse, GroupRequest, QueueRequest, Request, Response};

use super::codec::Answer;
use super::login::address_of;

/// Maximum time that a response waits for memory.
const ROOM_WAIT: Duration = Duration::from_secs(5);

/// Memory budget of all responses, as it applies to one client.
#[derive(Clone)]
pub(super) struct Room {
    answers: Answers,
    address: Option<IpAddr>,
}

impl Room {
    pub fn of(broker: &Broker, peer: &Peer) -> Self {
        Self { answers: broker.answers().clone(), address: address_of(peer) }
    }

    /// Returns when it is the client's turn. Called before the client receives something that others then cannot have,
    /// such as a message.
    pub async fn turn(&self) -> Result<()> {
        self.answers.wait_for_turn(self.address, ROOM_WAIT).await
    }

    /// Waits for memory for `bytes` bytes of data. Returns `None` for up to [`FREE_BYTES`], which need no memory.
    pub async fn take(&self, bytes: usize) -> Result<Option<Held>> {
        if bytes <= FREE_BYTES {
            return Ok(None);
        }
        self.answers.take(self.address, bytes, ROOM_WAIT).await.map(Some)
    }

    /// Waits for a turn to read batches whose size is not known yet.
    pub async fn read_turn(&self) -> Option<SemaphorePermit<'_>> {
        self.answers.read_turn().await
    }

    /// Returns memory for `bytes` bytes, or `None` if it is not available without waiting.
    pub fn try_take(&self, bytes: usize) -> Option<Held> {
        self.answers.try_take(self.address, bytes)
    }

    /// Returns the error for a request that got no memory, and counts the refusal.
    pub fn refuse(&self) -> engine::Error {
        self.answers.refuse()
    }

    /// Returns an error for a request for cache values while the budget is full.
    pub fn check(&self, request: &CacheRequest) -> Result<()> {
        let reads = matches!(
            request,
            CacheRequest::Get { .. } | CacheRequest::MultiGet { .. } | CacheRequest::Scan { with_values: true, .. }
        );
        if reads && self.answers.is_full(self.address) { Err(self.answers.refuse()) } else { Ok(()) }
    }

    /// Returns an error for a request with a long response that carries no records, while the budget is full. Such a
    /// response is charged once it is encoded.
    pub fn check_listing(&self, request: &Request) -> Result<()> {
        let is_refused = match request {
            // The metrics show that an address has used up its share.
            Request::Stats => self.answers.is_used_up(),
            request => is_listing(request) && self.answers.is_full(self.address),
        };
        if is_refused { Err(self.answers.refuse()) } else { Ok(()) }
    }

    /// Charges the response to a request that [`Room::check`] has just admitted on this thread. May overdraw the
    /// budget.
    pub fn charge(&self, response: Response) -> Answer {
        match value_bytes(&response) {
            ..=FREE_BYTES => Answer::Response(response),
            bytes => Answer::Charged(response, self.answers.overdraw(self.address, bytes)),
        }
    }
}

/// Returns `true` for a list, a description, or messages that are peeked at.
fn is_listing(request: &Request) -> bool {
    match request {
        Request::TopicList { .. } | Request::TopicDescribe { .. } => true,
        Request::Group(request) => {
            matches!(request, GroupRequest::List { .. } | GroupRequest::Describe { .. } | GroupRequest::Fetch { .. })
        }
        Request::Queue(request) => matches!(request, QueueRequest::List { .. } | QueueRequest::Peek { .. }),
        Request::Cache(request) => matches!(request, CacheRequest::List { .. } | CacheRequest::Watch { .. }),
        _ => false,
    }
}

/// Returns the number of bytes of the values in a response.
fn value_bytes(response: &Response) -> usize {
    let of = |value: &Value| value.value.len();
    match response {
        Response::Cache(CacheResponse::Got(Some(value))) => of(value),
        Response::Cache(CacheResponse::MultiGot(values)) => values.iter().flatten().map(of).sum(),
        Response::Cache(CacheResponse::Scanned { entries, .. }) => entries.iter().map(|entry| of(&entry.value)).sum(),
        _ => 0,
    }
}
