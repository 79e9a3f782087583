//! Thousands of concurrent waiting receivers, each on a separate connection.

use std::time::Instant;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::client::Sqs;
use crate::server::limits::files_max;
use crate::support::server::{PATIENCE, Server, metric, until, within};

/// Maximum cost of a connection with a waiting call for the broker, without TCP's buffers.
const POLL_BYTES_MAX: u64 = 64 << 10;
/// File descriptors that both processes need in addition to the connections.
const FILES_BESIDE: u64 = 500;
/// Maximum wait time of SQS.
const WAIT_S: u64 = 20;

/// Repeats a receive until it returns a message, and returns that with its connection.
async fn poll(server: &Server, url: &str) -> (TcpStream, Value) {
    let mut socket = TcpStream::connect(server.sqs).await.expect("connected");
    let body = json!({ "QueueUrl": url, "WaitTimeSeconds": WAIT_S, "VisibilityTimeout": 43_200 }).to_string();
    let request = format!(
        "POST / HTTP/1.1\r\nhost: {}\r\ncontent-type: application/x-amz-json-1.0\r\n\
         x-amz-target: AmazonSQS.ReceiveMessage\r\ncontent-length: {}\r\n\r\n{body}",
        server.sqs,
        body.len()
    );
    loop {
        socket.write_all(request.as_bytes()).await.expect("asked");
        let mut answer = Vec::new();
        let found = loop {
            assert!(socket.read_buf(&mut answer).await.expect("read") > 0, "the connection is kept");
            let text = String::from_utf8_lossy(&answer);
            let Some((head, body)) = text.split_once("\r\n\r\n") else {
                continue;
            };
            assert!(head.starts_with("HTTP/1.1 200 "), "{text}");
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
            if body.len() == length.parse::<usize>().expect("a number") {
                break serde_json::from_str::<Value>(body).expect("JSON");
            }
        };
        if !found["Messages"].is_null() {
            return (socket, found);
        }
    }
}

/// Checks with `count` waiting receivers that each message is delivered to exactly one of them.
async fn wait_for_each_other(count: u64) {
    let most = files_max().saturating_sub(FILES_BESIDE);
    assert!(count <= most, "{count} connections need more files: ulimit -n {}", count + FILES_BESIDE);
    let server = Server::start();
    let sqs = Sqs::of(&server);
    let client = server.client("tcp").await;
    let url = sqs.create("q", json!({})).await;
    let before = server.resident_bytes();
    let mut polls: FuturesUnordered<_> = (0..count).map(|_| poll(&server, &url)).collect();
    let waiting = async || metric(&client, "thalweg_queue_waiting_receivers").await;
    // No receiver gets a response before there is a message, however long it takes until all wait.
    let begin = Instant::now();
    let all = until("all to wait", async || waiting().await == count);
    tokio::select! {
        () = all => {}
        got = polls.next() => panic!("{got:?} of an empty queue"),
    }
    let grown = server.resident_bytes().saturating_sub(before);
    eprintln!("{count} wait after {:?}, {} bytes each", begin.elapsed(), grown / count);
    assert!(grown < count * POLL_BYTES_MAX, "{} bytes each", grown / count);
    for body in ["first", "second"] {
        sqs.send_body(&url, body).await;
        let (socket, got) = within("a message", polls.next()).await.expect("receivers");
        let messages = got["Messages"].as_array().expect("messages");
        assert_eq!((messages.len(), &messages[0]["Body"]), (1, &json!(body)));
        drop(socket);
        let left = polls.len() as u64;
        // All others continue to wait, and the message is in flight for one.
        let settled = until("the others to wait on", async || waiting().await == left);
        tokio::select! {
            () = settled => {}
            again = polls.next() => panic!("{again:?} is a second answer"),
        }
        assert_eq!(sqs.counts(&url).await, ["0".to_owned(), (count - left).to_string(), "0".to_owned()]);
    }
    // The broker serves other clients.
    let other = sqs.create("other", json!({})).await;
    sqs.send_body(&other, "x").await;
    assert_eq!(sqs.receive(&other, 1, PATIENCE.as_secs()).await.len(), 1);
    drop(polls);
    until("no receive waits", async || waiting().await == 0).await;
}

#[tokio::test]
async fn a_thousand_wait_and_each_message_is_for_one_of_them() {
    wait_for_each_other(1_000).await;
}

/// Run with `cargo test --release -p thalweg --test it ten_thousand_wait -- --ignored`; requires 10,500 files (`ulimit
/// -n`).
#[tokio::test]
#[ignore = "takes 10,500 files and a machine that does nothing else"]
async fn ten_thousand_wait_and_each_message_is_for_one_of_them() {
    wait_for_each_other(10_000).await;
}
