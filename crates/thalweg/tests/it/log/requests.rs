//! Request and reply.

use std::time::{Duration, Instant};

use client::{Client, ClientSettings, ErrorKind, Record, Start};

use crate::support::proxy::Proxy;
use crate::support::reading::{subscribe, text};
use crate::support::server::{PATIENCE, Server, connect, metric, until, within};

/// Responds to every request with its value in capitals, until the task ends.
async fn answer(client: Client, topic: &str) -> tokio::task::JoinHandle<()> {
    let mut requests = subscribe(&client, topic, Start::Live).await;
    tokio::spawn(async move {
        while let Ok(message) = requests.next().await {
            let answer = Record::new(text(message.record.value()).to_uppercase());
            // If the connection breaks now, the requester retries.
            client.reply(&message.record, answer).await.unwrap_or_default();
        }
    })
}

/// A request receives its own response, with any number of requests in flight.
#[tokio::test]
async fn each_request_gets_its_answer() {
    let server = Server::start();
    for scheme in ["tcp", "quic"] {
        let responder = answer(server.client(scheme).await, "capitals").await;
        let client = server.client(scheme).await;
        let ask = async |i: usize| {
            let request = client.request("capitals", Record::new(format!("question {i}")), PATIENCE);
            text(within("an answer", request).await.expect("an answer").value())
        };
        let answers = futures_util::future::join_all((0..50).map(ask)).await;
        for (i, answer) in answers.into_iter().enumerate() {
            assert_eq!(answer, format!("QUESTION {i}"));
        }
        responder.abort();
    }
}

/// A request without responders fails immediately, one that is not answered fails after its timeout, and neither leaves
/// an inbox behind.
#[tokio::test]
async fn requests_without_an_answer_fail() {
    let server = Server::start();
    let client = server.client("tcp").await;
    let begin = Instant::now();
    let nobody = within("an error", client.request("nobody", Record::new("x"), Duration::from_secs(600))).await;
    assert_eq!(nobody.map_err(|e| e.kind), Err(ErrorKind::NoResponders));
    let silent = subscribe(&client, "silent", Start::Live).await;
    let wait = Duration::from_millis(150);
    let begin_wait = Instant::now();
    let late = within("an error", client.request("silent", Record::new("x"), wait)).await;
    assert_eq!(late.map_err(|e| e.kind), Err(ErrorKind::Timeout));
    assert!(begin_wait.elapsed() >= wait && begin.elapsed() < PATIENCE);
    let topics = within("list", client.list_topics()).await.expect("topics");
    assert_eq!(topics.iter().map(|t| t.topic.as_str()).collect::<Vec<_>>(), ["nobody", "silent"]);
    drop((silent, client));
    let other = server.client("tcp").await;
    until("the inbox is gone", async || metric(&other, "thalweg_topics").await == 2).await;
}

/// A reply to an inbox whose owner has disconnected is refused, and publishing to an inbox does not create it.
#[tokio::test]
async fn a_reply_to_nobody_is_refused() {
    let server = Server::start();
    let client = server.client("tcp").await;
    let request = Record::new("x").with_header("reply-to", "_inbox.0123456789abcdef");
    let refused = within("reply", client.reply(&request, Record::new("y"))).await;
    assert_eq!(refused.map_err(|e| e.kind), Err(ErrorKind::NotFound));
    let no_request = within("reply", client.reply(&Record::new("x"), Record::new("y"))).await;
    assert_eq!(no_request.map_err(|e| e.kind), Err(ErrorKind::Invalid));
}

/// Requests work again after a broken connection and after a restart of the broker.
#[tokio::test]
async fn requests_work_again_after_a_break() {
    let mut server = Server::start();
    let proxy = Proxy::start(server.address, Vec::new()).await;
    let client = connect(&proxy.url(), ClientSettings::default()).await;
    let responder = answer(connect(&proxy.url(), ClientSettings::default()).await, "capitals").await;
    let works = async || {
        let request = client.request("capitals", Record::new("question"), Duration::from_millis(500));
        request.await.is_ok_and(|answer| answer.value() == b"QUESTION")
    };
    assert!(within("an answer", works()).await);
    for _ in 0..3 {
        proxy.cut();
        until("requests work again", works).await;
    }
    server.crash_and_restart();
    until("requests work again", works).await;
    assert!(!responder.is_finished());
    responder.abort();
}
