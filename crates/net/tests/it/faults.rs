//! Peers and handlers that fail: each ends its own connection and nothing else, and nothing of it is left.

use crate::harness::framed::{call, open, piece, push, tell};
use crate::harness::stand::patient;
use crate::harness::{Said, Stand, Way, over_every_transport, until};

over_every_transport!(what_a_lost_connection_asked_is_given_up, a_panic_ends_its_connection_and_nothing_else);

async fn what_a_lost_connection_asked_is_given_up(way: Way) {
    for stand in Stand::both(patient()) {
        let (mut lost, mut other) = (stand.dial_abrupt(way).await, stand.dial(way).await);
        other.send(&call(1, "wait kept")).await;
        lost.send_all(&[call(1, "wait lost"), call(2, "several lost 3"), call(3, "echo known"), call(4, "nothing")])
            .await;
        lost.send_all(&[
            open(5, None, "collect lost"),
            piece(5, b"some", false),
            tell("note told"),
            call(6, "wait lost"),
        ])
        .await;
        stand.world.until_times("begin lost", 4).await;
        // In the middle of a frame, and with something unread.
        lost.send_all(&[tell("push unread"), call(7, "wait lost")[..9].to_vec()]).await;
        until("that is read", || stand.totals().messages == 2).await;
        drop(lost);
        if way == Way::Pipe {
            // A pipe has no reset: that nobody is there is seen when something is written.
            stand.world.outboxes().iter().for_each(|outbox| drop(outbox.push([push(0, b"x")])));
            stand.world.outboxes().iter().for_each(|outbox| outbox.flush());
            assert_eq!(other.hear().await, Said::Push(0, b"x".into()));
        }
        stand.world.until_times("end lost", 4).await;
        until("it is counted", || stand.totals().requests_in_flight() == 1).await;
        stand.world.open("kept", 1);
        assert_eq!(other.hear().await, Said::Answer(1, b"kept".into()));
        drop(other);
        let totals = stand.is_left_alone().await;
        assert_eq!((totals.requests_started, totals.messages, totals.panics), (7, 2, 0));
    }
}

async fn a_panic_ends_its_connection_and_nothing_else(way: Way) {
    for stand in Stand::both(patient()) {
        let mut other = stand.dial(way).await;
        other.send(&call(1, "wait kept")).await;
        for (n, words) in (1..).zip(["panic", "panic-later", "panic"]) {
            let mut peer = stand.dial(way).await;
            peer.send_all(&[call(1, "wait lost"), call(2, "echo lost"), call(3, words), call(4, "echo never")]).await;
            // What was answered before it may be heard or not.
            while let Some(said) = peer.ear.next().await {
                assert_eq!(said, Said::Answer(2, b"lost".into()));
            }
            until("it is counted", || stand.totals().panics == n).await;
        }
        stand.world.open("kept", 1);
        assert_eq!(other.hear().await, Said::Answer(1, b"kept".into()));
        stand.dial(way).await.is_served().await;
        drop(other);
        stand.is_left_alone().await;
    }
}
