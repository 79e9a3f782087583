//! Memory for answers that carry records, messages or values. It is theirs until they were written to the socket.

use std::net::IpAddr;
use std::time::Duration;

use broker::{Answers, Broker, FREE_BYTES, Held};
use engine::Result;
use net::service::Peer;
use wire::caches::Value;
use wire::{CacheRequest, CacheResponse, Response};

use super::codec::Answer;

/// How long an answer waits until there is memory for it.
const ROOM_WAIT: Duration = Duration::from_secs(5);

/// The budget of all answers, for one client.
#[derive(Clone)]
pub(super) struct Room {
    answers: Answers,
    address: Option<IpAddr>,
}

impl Room {
    pub fn of(broker: &Broker, peer: &Peer) -> Self {
        Self { answers: broker.answers().clone(), address: peer.address.map(|address| address.ip()) }
    }

    /// Returns when it is the client's turn, before it is given something that costs others, as a message.
    pub async fn turn(&self) -> Result<()> {
        self.answers.wait_for_turn(self.address, ROOM_WAIT).await
    }

    /// Room for data of so many bytes. Small answers need none.
    pub async fn take(&self, bytes: usize) -> Result<Option<Held>> {
        if bytes <= FREE_BYTES {
            return Ok(None);
        }
        self.answers.take(self.address, bytes, ROOM_WAIT).await.map(Some)
    }

    /// Memory for `bytes`, if it can be had without waiting.
    pub fn try_take(&self, bytes: usize) -> Option<Held> {
        self.answers.try_take(self.address, bytes)
    }

    /// The error for a request that got no memory.
    pub fn refuse(&self) -> engine::Error {
        self.answers.refuse()
    }

    /// Refuses a request for values of a cache while there is no room.
    pub fn check(&self, request: &CacheRequest) -> Result<()> {
        let reads = matches!(
            request,
            CacheRequest::Get { .. } | CacheRequest::MultiGet { .. } | CacheRequest::Scan { with_values: true, .. }
        );
        if reads && self.answers.is_full(self.address) { Err(self.answers.refuse()) } else { Ok(()) }
    }

    /// The answer to a request that was let in by [`Room::check`] a moment ago, on this thread.
    pub fn charge(&self, response: Response) -> Answer {
        match value_bytes(&response) {
            ..=FREE_BYTES => Answer::Response(response),
            bytes => Answer::Charged(response, self.answers.overdraw(self.address, bytes)),
        }
    }
}

/// Bytes of values in an answer.
fn value_bytes(response: &Response) -> usize {
    let of = |value: &Value| value.value.len();
    match response {
        Response::Cache(CacheResponse::Got(Some(value))) => of(value),
        Response::Cache(CacheResponse::MultiGot(values)) => values.iter().flatten().map(of).sum(),
        Response::Cache(CacheResponse::Scanned { entries, .. }) => entries.iter().map(|entry| of(&entry.value)).sum(),
        _ => 0,
    }
}
