//! Messages that exceed a frame of the native protocol, from compressed batches: they affect no other client.

use std::cell::RefCell;
use std::time::Duration;

use client::{Client, ErrorKind, LeaseAnswer, NewQueue, OutMessage, Queue, Receive};
use engine::DraftBatch;
use serde_json::Value;
use tokio::sync::Notify;

use crate::door::kafka::raw::{Raw, produce, produced};
use crate::support::command::on;
use crate::support::server::{Server, until, within};

const FAILED: i32 = 1;
const LARGE_BYTES: usize = 11 << 20;

async fn jobs(client: &Client, new: NewQueue) -> Queue {
    client.create_queue(new.with("lease_ms", "3600000")).await.expect("created");
    client.queue("jobs")
}

/// Starts a server that accepts messages that are larger than a batch once they are decompressed.
fn larger() -> Server {
    Server::with(&["record_expansion_max=2"])
}

/// Sends a large message to the topic of the queue.
async fn send_large(server: &Server) {
    let mut raw = Raw::connect(server).await;
    let batch = DraftBatch::of_one(1, None, Some(&vec![0; LARGE_BYTES]), &[]).expect("it gets small");
    let response = raw.call(9, produce("jobs", 0, -1, batch.into_bytes())).await;
    assert_eq!(produced(&response).0, 0, "{response:?}");
}

async fn counts(queue: &Queue) -> (u64, u64, u64) {
    let counts = within("counts", queue.describe()).await.expect("described").counts.expect("its topic is there");
    (counts.visible, counts.in_flight, counts.delayed)
}

fn one() -> Receive {
    Receive { count_max: 1, ..Receive::default() }
}

/// The connection still owns its leases after each step.
#[tokio::test]
async fn a_message_that_does_not_fit_into_a_response_is_named_and_hidden_for_a_while() {
    let server = larger();
    let client = server.client("tcp").await;
    let queue = jobs(&client, NewQueue::new("jobs")).await;
    queue.send(OutMessage::new("first")).await.expect("sent");
    send_large(&server).await;
    queue.send(OutMessage::new("last")).await.expect("sent");
    let first = queue.receive(&one()).await.expect("received").messages.remove(0);
    assert_eq!(&first.message.body[..], b"first");

    let refused = queue.receive(&one()).await.map(drop).expect_err("it does not fit");
    assert_eq!(refused.kind, ErrorKind::TooLarge);
    assert!(refused.message.contains("the message at offset 1 of partition 0"), "{refused}");
    assert_eq!(counts(&queue).await, (1, 1, 1), "no receiver holds it");
    let last = queue.receive(&one()).await.expect("received").messages.remove(0);
    assert_eq!(&last.message.body[..], b"last");

    let peeked = queue.peek(None, 10).await.expect("peeked");
    let shown: Vec<(usize, usize)> =
        peeked.iter().map(|one| (one.message.body.len(), one.message.headers.len())).collect();
    assert_eq!(shown, [(5, 0), (0, 1), (4, 0)]);
    let (name, bytes) = &peeked[1].message.headers[0];
    let bytes: usize = std::str::from_utf8(bytes).expect("text").parse().expect("a number");
    assert_eq!((&name[..], bytes >= LARGE_BYTES), ("thalweg.left_out", true));
    let shown = on(&server, ["--json", "queue", "peek", "jobs"]).ok();
    let line: Value = serde_json::from_str(shown.lines().nth(1).expect("a line")).expect("JSON");
    assert!(line["left_out_bytes"].as_u64() >= Some(LARGE_BYTES as u64), "{line}");

    let extended = queue.extend(&[(first.receipt, Duration::from_secs(60))]).await.expect("answered");
    assert_eq!(extended, [LeaseAnswer::Done], "its connection is the same");
}

/// A message that does not fit exhausts its attempts like any other, and arrives completely in the dead letters.
#[tokio::test]
async fn a_message_that_does_not_fit_into_a_response_reaches_the_dead_letters() {
    let server = larger();
    let client = server.client("tcp").await;
    let queue = jobs(&client, NewQueue::new("jobs").with("attempts_max", "1").with("dead_letter", "dead")).await;
    client.create_queue(NewQueue::new("dead")).await.expect("created");
    send_large(&server).await;
    let refused = queue.receive(&one()).await.map(drop).expect_err("it does not fit");
    assert_eq!(refused.kind, ErrorKind::TooLarge);
    let dead = client.queue("dead");
    until("the dead letter", async || counts(&dead).await == (1, 0, 0)).await;
    let peeked = dead.peek(None, 10).await.expect("peeked");
    assert!(peeked[0].message.left_out_bytes() >= Some(LARGE_BYTES as u64), "{peeked:?}");
    assert_eq!(counts(&queue).await, (0, 0, 0));
}

#[tokio::test]
async fn an_export_reports_omitted_messages() {
    let server = larger();
    let queue = jobs(&server.client("tcp").await, NewQueue::new("jobs")).await;
    send_large(&server).await;
    queue.send(OutMessage::new("last")).await.expect("sent");
    let exported = on(&server, ["queue", "export", "jobs"]);
    assert!(exported.out.lines().count() == 2 && exported.out.contains("\"last\""), "{exported:?}");
    let told = exported.failed(FAILED);
    assert!(told.contains("1 message is not in the export"), "{told}");
    assert!(told.contains("the first is at offset 0 of partition 0"), "{told}");
}

#[tokio::test]
async fn a_worker_goes_on_behind_a_message_that_does_not_fit() {
    let server = larger();
    let queue = jobs(&server.client("tcp").await, NewQueue::new("jobs")).await;
    send_large(&server).await;
    queue.send_many(["a", "b"].map(OutMessage::new).to_vec()).await;
    let seen = RefCell::new(0);
    let enough = Notify::new();
    let handle = async |_| {
        *seen.borrow_mut() += 1;
        if *seen.borrow() == 2 {
            enough.notify_one();
        }
        Ok::<(), String>(())
    };
    let report = within("the work", queue.worker().run(handle, enough.notified())).await.expect("worked");
    assert_eq!((report.done, report.returned, report.lost), (2, 0, 0));
    until("the large one alone", async || counts(&queue).await.1 == 0).await;
}

/// If it were sent, it would end the connection, and its leases with it.
#[tokio::test]
async fn a_message_larger_than_a_frame_is_refused_before_it_is_sent() {
    let server = Server::start();
    let client = server.client("tcp").await;
    let queue = jobs(&client, NewQueue::new("jobs")).await;
    queue.send(OutMessage::new("leased")).await.expect("sent");
    let leased = queue.receive(&one()).await.expect("received").messages.remove(0);
    let refused = queue.send(OutMessage::new(vec![0; LARGE_BYTES])).await.map(drop).expect_err("too large");
    assert_eq!(refused.kind, ErrorKind::TooLarge, "{refused}");
    let extended = queue.extend(&[(leased.receipt, Duration::from_secs(60))]).await.expect("answered");
    assert_eq!(extended, [LeaseAnswer::Done], "its connection is the same");
}
