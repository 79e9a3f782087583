//! Limits: what is over them is refused and counted, and they are never exceeded.

use std::time::Duration;

use net::limits::ConnectionLimits;
use net::service::{FaultKind, ServiceSettings};

use crate::harness::framed::{HEAD_BYTES, call, frame, open, piece};
use crate::harness::stand::{Plan, impatient, patient};
use crate::harness::{Said, Stand, Way, noise, over_every_transport, until};

over_every_transport!();

/// The shard that has had requests keeps no right to the next ones from the other shards for ever.
#[tokio::test]
async fn a_shard_that_is_idle_keeps_nothing_from_the_others() {
    let stand = Stand::out_of_order(ServiceSettings { requests_in_flight_max: 2, ..patient() });
    let (mut one, mut other) = (stand.dial(Way::Tcp).await, stand.dial(Way::Tcp).await);
    // Each on a shard of its own.
    for id in 0..10 {
        one.send_all(&[call(id, "wait x"), call(100 + id, "wait x")]).await;
        stand.world.open("x", 2);
        one.hear_all(2).await;
    }
    let is_served = async {
        loop {
            other.send_all(&[call(1, "wait y"), call(2, "wait y")]).await;
            stand.world.open("y", 2);
            let said = other.hear_all(2).await;
            if said.iter().all(|said| matches!(said, Said::Answer(..))) {
                return;
            }
        }
    };
    crate::harness::within("both requests being served", is_served).await;
}

/// The next frame after a refused one is looked for where it begins.
#[tokio::test]
async fn a_large_request_that_is_refused_does_not_swallow_the_next() {
    for stand in Stand::both(ServiceSettings { requests_in_flight_max: 1, ..patient() }) {
        let (mut holder, mut peer) = (stand.dial(Way::Tcp).await, stand.dial(Way::Tcp).await);
        holder.send(&call(1, "wait x")).await;
        stand.world.until("begin x").await;
        let large = frame(b'K', 2, &noise(2, 1 << 20));
        let read = stand.totals().bytes_read;
        peer.send(&large[..100]).await;
        stand.has_read(read + 100).await;
        peer.send(&large[100..]).await;
        let said = peer.hear().await;
        assert!(said.is_fault(2, FaultKind::Busy), "{said:?}");
        peer.ask_in_vain(3, "echo small", FaultKind::Busy).await;
    }
}
