//! Gates: once one is closed, nothing is handled or answered any more, and the connections end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use net::Gate;

use crate::harness::framed::{call, one_way};
use crate::harness::stand::Plan;
use crate::harness::{Fixture, Peer, Way, over_every_transport, within};

over_every_transport!(
    a_request_behind_a_closed_gate_is_not_handled,
    a_request_that_waits_at_the_gate_is_not_answered,
    an_answer_made_while_the_gate_closes_is_not_sent,
);

/// Gate of a test, which can be closed.
#[derive(Default)]
pub struct Closable(AtomicBool);

impl Closable {
    pub fn close(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Gate for Closable {
    fn is_open(&self) -> bool {
        !self.0.load(Ordering::SeqCst)
    }
}

fn fixtures() -> [(Fixture, Arc<Closable>); 2] {
    [true, false].map(|is_in_order| {
        let gate = Arc::new(Closable::default());
        (Fixture::build(Plan { is_in_order, gate: Some(gate.clone()), ..Plan::default() }), gate)
    })
}

async fn assert_closed(mut peer: Peer) {
    assert_eq!(peer.reader.next_or_cut().await, None, "no answer");
    if let Some((quic, _)) = &peer.quic {
        within("the connection being closed", quic.closed()).await;
    }
}

async fn a_request_behind_a_closed_gate_is_not_handled(way: Way) {
    for (fixture, gate) in fixtures() {
        let mut peer = fixture.dial(way).await;
        peer.assert_served().await;
        gate.close();
        peer.send_all(&[one_way("note message"), call(2, "wait x"), call(3, "echo x")]).await;
        assert_closed(peer).await;
        assert_eq!((fixture.world.noted("message"), fixture.world.noted("begin x")), (0, 0));
        fixture.assert_all_released().await;
    }
}

async fn a_request_that_waits_at_the_gate_is_not_answered(way: Way) {
    for (fixture, gate) in fixtures() {
        let mut peer = fixture.dial(way).await;
        peer.send(&call(1, "wait x")).await;
        fixture.world.until("begin x").await;
        gate.close();
        fixture.world.open("x", 1);
        assert_closed(peer).await;
        fixture.assert_all_released().await;
    }
}

async fn an_answer_made_while_the_gate_closes_is_not_sent(way: Way) {
    for (fixture, gate) in fixtures() {
        let mut peer = fixture.dial(way).await;
        // The handler blocks its thread until it is told to go on.
        peer.send(&call(1, "stop x")).await;
        fixture.world.until("stopped").await;
        gate.close();
        fixture.world.note("x");
        assert_closed(peer).await;
        fixture.assert_all_released().await;
    }
}
