//! Connections that another process forwards: they are served as if their clients had connected to the listener.

use std::net::SocketAddr;
use std::time::Duration;

use net::Plaintext;
use net::limits::ConnectionLimits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::harness::framed::call;
use crate::harness::stand::{Plan, impatient, patient};
use crate::harness::{Fixture, PATIENCE, Peer, within};

/// Clients of other machines, and one of this.
const ANN: &str = "192.0.2.1:5001";
const BOB: &str = "192.0.2.2:5002";
const NEAR: &str = "127.0.0.1:5003";

fn at(address: &str) -> SocketAddr {
    address.parse().expect("an address")
}

async fn who(peer: &mut Peer) -> String {
    String::from_utf8(peer.request(1, "who").await).expect("text")
}

#[tokio::test]
async fn clients_are_served_under_their_own_address() {
    for fixture in Fixture::both(patient()) {
        let mut plain = Peer::of(fixture.forward(at(ANN), Plaintext::FromAnywhere, false));
        assert_eq!(who(&mut plain).await, "Tcp 192.0.2.1:5001 at 192.0.2.200:9000");
        plain.assert_served().await;
        for plaintext in [Plaintext::Refused, Plaintext::FromLoopback, Plaintext::FromAnywhere] {
            let stream = fixture.forward(at(BOB), plaintext, false);
            let mut secure = fixture.tls_over(stream).await.expect("a handshake");
            assert_eq!(who(&mut secure).await, "Tls 192.0.2.2:5002 at 192.0.2.200:9000");
            secure.assert_served().await;
        }
        let mut owner = Peer::of(fixture.forward(at(NEAR), Plaintext::Refused, true));
        assert_eq!(who(&mut owner).await, "Unix this machine its owner");
        owner.assert_served().await;
        drop((plain, owner));
        fixture.assert_all_released().await;
    }
}

#[tokio::test]
async fn plaintext_is_refused_as_at_the_listener() {
    let fixture = Fixture::in_order(patient());
    for (address, plaintext, is_served) in [
        (ANN, Plaintext::FromAnywhere, true),
        (ANN, Plaintext::FromLoopback, false),
        (ANN, Plaintext::Refused, false),
        (NEAR, Plaintext::FromLoopback, true),
        (NEAR, Plaintext::Refused, false),
    ] {
        let mut client = fixture.forward(at(address), plaintext, false);
        client.write_all(&call(1, "who")).await.expect("sent");
        let mut first = [0];
        let read = within("an answer or the end", client.read(&mut first)).await.unwrap_or_default();
        // A client without TLS may receive an alert.
        let is_answer = read == 1 && first[0] != 0x15;
        assert_eq!(is_answer, is_served, "{address} {plaintext:?}");
    }
}

#[tokio::test]
async fn limits_count_clients_at_their_own_address() {
    let limits = ConnectionLimits { per_peer_max: 1, per_remote_peer_max: 1, ..ConnectionLimits::up_to(3) };
    let fixture = Fixture::build(Plan { limits, ..Plan::default() });
    let mut ann = Peer::of(fixture.forward(at(ANN), Plaintext::FromAnywhere, false));
    ann.assert_served().await;
    let mut second = Peer::of(fixture.forward(at(ANN), Plaintext::FromAnywhere, false));
    second.reader.assert_end().await;
    let mut bob = Peer::of(fixture.forward(at(BOB), Plaintext::FromAnywhere, false));
    bob.assert_served().await;
    let mut owner = Peer::of(fixture.forward(at(NEAR), Plaintext::FromAnywhere, true));
    owner.assert_served().await;
    assert_eq!(fixture.connections.open(), 3);
    // All are in use, for an owner as well.
    Peer::of(fixture.forward(at(NEAR), Plaintext::FromAnywhere, true)).reader.assert_end().await;
    assert_eq!(fixture.connections.refused(), 2);
    drop((ann, second, bob, owner));
    fixture.assert_all_released().await;
}

#[tokio::test]
async fn a_silent_client_and_one_that_comes_too_late_are_dropped() {
    let fixture = Fixture::in_order(impatient(|timeouts| timeouts.handshake = Duration::from_millis(50)));
    let mut silent = Peer::of(fixture.forward(at(ANN), Plaintext::FromAnywhere, false));
    silent.reader.assert_end().await;
    let ended = fixture.end(PATIENCE).await;
    assert!(ended.is_clean(), "{ended:?}");
    let mut late = Peer::of(fixture.forward(at(ANN), Plaintext::FromAnywhere, false));
    late.reader.assert_end().await;
    drop((silent, late));
    fixture.assert_all_released().await;
}
