//! Server-sent events and WebSockets.

use std::time::Duration;

use bytes::BytesMut;
use engine::Codec;
use futures_util::{SinkExt, StreamExt};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::http_client::*;

/// Parser of server-sent events, as in a browser.
struct Events {
    body: Incoming,
    buf: BytesMut,
}

#[derive(Debug, Default, PartialEq)]
struct Event {
    name: String,
    id: String,
    data: Value,
    comment: String,
}

impl Events {
    /// Returns the next block of lines; `None` at the end.
    async fn block(&mut self) -> Option<Event> {
        loop {
            if let Some(at) = self.buf.windows(2).position(|two| two == b"\n\n") {
                let block = self.buf.split_to(at + 2);
                let mut event = Event::default();
                for line in std::str::from_utf8(&block).expect("text").lines() {
                    match line.split_once(": ") {
                        Some(("event", name)) => event.name = name.to_owned(),
                        Some(("id", id)) => event.id = id.to_owned(),
                        Some(("data", data)) => event.data = serde_json::from_str(data).expect("JSON"),
                        Some(("", comment)) => event.comment = comment.to_owned(),
                        _ => assert_eq!(line, ""),
                    }
                }
                return Some(event);
            }
            let frame = within(self.body.frame()).await?.expect("not cut off");
            self.buf.extend_from_slice(&frame.into_data().expect("data"));
        }
    }

    async fn event(&mut self) -> Event {
        loop {
            let event = self.block().await.expect("an event");
            if !event.name.is_empty() {
                return event;
            }
        }
    }

    async fn value(&mut self) -> String {
        let event = self.event().await;
        assert_eq!(event.name, "record");
        event.data["value"].as_str().expect("a value").to_owned()
    }
}

impl Server {
    /// Creates the topic of a path, as reading does not create it.
    fn create_topic_of(&self, path: &str) {
        let topic = path.split(['/', '?']).nth(3).expect("a topic");
        if !topic.contains(['*', '%']) {
            self.broker.partitions_of(topic).expect("created");
        }
    }

    async fn events(&self, path: &str, headers: &[(&str, &str)]) -> Events {
        self.create_topic_of(path);
        let response = self.begin("GET", path, headers, "").await;
        assert_eq!(
            (response.status().as_u16(), &response.headers()["content-type"]),
            (200, &"text/event-stream".parse().expect("valid"))
        );
        Events { body: response.into_body(), buf: BytesMut::new() }
    }

    async fn web_socket(&self, path: &str) -> WebSocketStream<TcpStream> {
        self.create_topic_of(path);
        let url = format!("ws://{}{path}", self.address);
        within(tokio_tungstenite::client_async(url, self.socket().await)).await.expect("a WebSocket").0
    }
}

#[tokio::test]
async fn events_of_a_topic_that_grows_come_from_the_new_partitions_too() {
    let server = start().await;
    server.publish("t", &["0"]).await;
    let mut events = server.events("/v1/topics/t/events", &[]).await;
    let grown = server.send("PATCH", "/v1/topics/t", &[("content-type", "application/json")], r#"{"partitions":3}"#);
    assert_eq!(grown.await.status, 200);
    for partition in [2, 1] {
        let path = format!("/v1/topics/t/records?partition={partition}");
        server.send("POST", &path, &[("content-type", "text/plain")], "new").await;
        let event = events.event().await;
        assert_eq!((&event.data["partition"], &event.data["offset"]), (&json!(partition), &json!(0)));
        assert_eq!(event.id, format!("{partition}:0"));
    }
}

#[tokio::test]
async fn events_begin_live_and_resume_after_the_last_one_seen() {
    let server = start().await;
    server.publish("t", &["before"]).await;
    let mut events = server.events("/v1/topics/t/events", &[]).await;
    assert_eq!(events.block().await, Some(Event { id: "0:0".into(), ..Event::default() }));
    server.publish("t", &["1", "2"]).await;
    let first = events.event().await;
    assert_eq!((first.name.as_str(), first.id.as_str()), ("record", "0:1"));
    let record = json!({
        "partition": 0, "offset": 1, "timestamp_ms": 1000, "key": null, "value": "1", "headers": {}, "encoding": "utf8"
    });
    assert_eq!(first.data, record);
    drop(events);

    server.publish("t", &["3"]).await;
    // Resumes in the middle of a batch. The parameter that a browser repeats from its first request no longer has an
    // effect.
    let mut resumed = server.events("/v1/topics/t/events?start=earliest", &[("last-event-id", "0:1")]).await;
    server.publish("t", &["4"]).await;
    for value in ["2", "3", "4"] {
        assert_eq!(resumed.value().await, value);
    }
    let bad = server.send("GET", "/v1/topics/t/events", &[("last-event-id", "7")], "").await;
    assert_eq!(bad.status, 400);
    assert!(bad.text().contains("last-event-id: '7'"), "{}", bad.text());
}

#[tokio::test]
async fn a_client_resumes_that_was_cut_off_before_the_first_record() {
    let server = start().await;
    let mut events = server.events("/v1/topics/t/events", &[]).await;
    let begin = events.block().await.expect("a begin").id;
    drop(events);
    server.publish("t", &["missed"]).await;
    let mut resumed = server.events("/v1/topics/t/events", &[("last-event-id", &begin)]).await;
    assert_eq!(resumed.value().await, "missed");
}

#[tokio::test]
async fn events_begin_at_an_offset_or_a_time() {
    let server = start().await;
    server.publish("t", &["0", "1", "2"]).await;
    for (query, value) in [("start=1", "1"), ("start=earliest", "0"), ("timestamp_ms=1001", "0")] {
        let mut events = server.events(&format!("/v1/topics/t/events?{query}"), &[]).await;
        assert_eq!(events.value().await, value, "{query}");
    }
}

#[tokio::test]
async fn records_removed_by_retention_are_a_gap() {
    let server = start().await;
    server.send("PUT", "/v1/topics/t", &[JSON], r#"{"retention_bytes":1}"#).await;
    server.publish("t", &["0", "1"]).await;
    server.publish("t", &["2"]).await;
    let mut events = server.events("/v1/topics/t/events?start=0", &[]).await;
    let gap = events.event().await;
    assert_eq!((gap.name.as_str(), gap.id.as_str()), ("gap", "0:1"));
    assert_eq!(gap.data, json!({"partition": 0, "from": 0, "to": 2}));
    assert_eq!(events.value().await, "2");
}

#[tokio::test]
async fn undecodable_records_are_a_gap_with_a_reason() {
    let server = start().await;
    server.publish("t", &["0"]).await;
    server.publish_batch("t", unreadable_batch()).await;
    server.publish("t", &["3"]).await;
    let mut events = server.events("/v1/topics/t/events?start=earliest", &[]).await;
    assert_eq!(events.value().await, "0");
    let gap = events.event().await.data;
    assert_eq!((&gap["from"], &gap["to"], &gap["error"]["kind"]), (&json!(1), &json!(3), &json!("unsupported")));
    assert_eq!(events.value().await, "3");
}

/// The batch is longer than one chunk, so that the stream must continue in the middle of the batch.
#[tokio::test]
async fn a_long_compressed_batch_comes_in_order() {
    let server = start().await;
    let sent: Vec<String> = (0..3_000).map(|i| format!("{i}: {:300}", "")).collect();
    server.publish_batch("t", compressed_batch(Codec::Zstd, &sent)).await;
    server.publish("t", &["end"]).await;
    let mut events = server.events("/v1/topics/t/events?start=7", &[]).await;
    for value in sent[7..].iter().map(String::as_str).chain(["end"]) {
        assert_eq!(events.value().await, value);
    }
}

#[tokio::test]
async fn a_pattern_names_the_topics_and_sees_new_ones() {
    let server = start().await;
    server.publish("a.old", &["before"]).await;
    // A header that a browser sends when it reconnects has no effect here, and is not an error of the user.
    let mut events = server.events("/v1/topics/a.%3E/events", &[("last-event-id", "0:7")]).await;
    assert_eq!(events.block().await.expect("a begin").comment, "subscribed");
    for topic in ["a.old", "b.other", "a.new.one"] {
        server.publish(topic, &[topic]).await;
    }
    for (topic, offset) in [("a.old", 1), ("a.new.one", 0)] {
        let event = events.event().await;
        assert_eq!((event.id.as_str(), &event.data["topic"]), ("", &json!(topic)));
        assert_eq!((&event.data["value"], &event.data["offset"]), (&json!(topic), &json!(offset)));
    }
}

#[tokio::test]
async fn the_members_of_a_group_share() {
    let server = start().await;
    let mut one = server.events("/v1/topics/t/events?group=g", &[]).await;
    let mut other = server.events("/v1/topics/t/events?group=g", &[]).await;
    server.publish("t", &["a"]).await;
    server.publish("t", &["b"]).await;
    let mut values = [one.value().await, other.value().await];
    values.sort();
    assert_eq!(values, ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_quiet_stream_shows_that_it_is_alive() {
    let of_door = doors::http::Settings { header_timeout: Duration::from_secs(600), ..settings() };
    let server = start_with(broker::Settings::default(), of_door, 100).await;
    let mut events = server.events("/v1/topics/t/events", &[]).await;
    events.block().await.expect("a begin");
    let begin = tokio::time::Instant::now();
    assert_eq!(events.block().await.expect("a comment").comment, "keep-alive");
    assert_eq!(begin.elapsed().as_secs(), 15);
}

#[tokio::test]
async fn a_subscriber_that_does_not_read_holds_nobody_up() {
    let server = start().await;
    let mut events = server.events("/v1/topics/t/events?overflow=drop_new", &[]).await;
    let value = "x".repeat(60_000);
    let dropped = || server.broker.metrics().dropped_records.get();
    within(async {
        while dropped() == 0 {
            server.publish("t", &[&value]).await;
            tokio::task::yield_now().await;
        }
    })
    .await;
    let gap = loop {
        let event = events.event().await;
        if event.name == "gap" {
            break event.data;
        }
    };
    assert_eq!(gap["to"].as_u64().expect("an offset") - gap["from"].as_u64().expect("an offset"), dropped());
}

#[tokio::test]
async fn a_batch_larger_than_a_chunk_comes_whole_and_in_order() {
    let server = start().await;
    let values: Vec<String> = (0..3000).map(|i| format!("{i}{}", "x".repeat(200))).collect();
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    server.publish("t", &values).await;
    let mut events = server.events("/v1/topics/t/events?start=1", &[]).await;
    for value in &values[1..] {
        assert_eq!(events.value().await, *value);
    }
}

#[tokio::test]
async fn events_end_with_the_reason() {
    let server = start().await;
    let mut events = server.events("/v1/topics/t/events", &[]).await;
    assert_eq!(server.send("DELETE", "/v1/topics/t", &[], "").await.status, 204);
    let end = events.event().await;
    assert_eq!((end.name.as_str(), &end.data["error"]["kind"]), ("end", &json!("not_found")));
    assert_eq!(end.data["error"]["message"], "topic t was deleted");
    assert_eq!(events.block().await, None);
}

#[tokio::test]
async fn reading_creates_no_topic() {
    let server = start().await;
    server.publish("orders", &["0"]).await;
    for path in ["/v1/topics/ordres/events", "/v1/topics/ordres/records?offset=0", "/v1/topics/ordres"] {
        let refused = server.get(path).await;
        assert_eq!(refused.status, 404, "{path}");
        assert!(refused.text().contains("did you mean 'orders'?"), "{}", refused.text());
    }
    let url = format!("ws://{}/v1/topics/ordres/ws", server.address);
    let refused = within(tokio_tungstenite::client_async(url, server.socket().await)).await;
    assert!(refused.expect_err("refused").to_string().contains("404"));
    let refused = server.send("POST", "/v1/queues/jobs/receive", &[], "").await;
    assert_eq!((refused.status, server.broker.list_topics("", 10, |_| true).0.len()), (404, 1));
}

#[tokio::test]
async fn a_drain_ends_a_stream_after_the_published_records() {
    let server = start().await;
    let mut events = server.events("/v1/topics/t/events", &[]).await;
    server.publish("t", &["last"]).await;
    let ended = async { assert!(server.shutdown.run(Duration::from_secs(30)).await.is_clean()) };
    let read = async {
        assert_eq!(events.value().await, "last");
        assert_eq!(events.event().await.data["error"]["kind"], "shutting_down");
        assert_eq!(events.block().await, None);
    };
    within(async { tokio::join!(ended, read) }).await;
    assert_eq!(server.connections.open(), 0);
}

async fn frame(socket: &mut WebSocketStream<TcpStream>) -> Value {
    loop {
        match within(socket.next()).await.expect("not closed").expect("a frame") {
            Message::Text(text) => return serde_json::from_str(&text).expect("JSON"),
            Message::Ping(_) => {}
            other => panic!("not a text frame: {other:?}"),
        }
    }
}

async fn send_text(socket: &mut WebSocketStream<TcpStream>, frame: impl Into<String>) {
    within(socket.send(Message::text(frame.into()))).await.expect("sent");
}

#[tokio::test]
async fn a_web_socket_carries_records_both_ways() {
    let server = start().await;
    let mut socket = server.web_socket("/v1/topics/t/ws").await;
    server.publish("t", &["from elsewhere"]).await;
    let record = frame(&mut socket).await;
    assert_eq!((&record["value"], &record["offset"]), (&json!("from elsewhere"), &json!(0)));

    send_text(&mut socket, r#"{"publish":{"key":"aw==","value":"/w==","encoding":"base64"}}"#).await;
    // The response and the record itself arrive in either order.
    let one = frame(&mut socket).await;
    let other = frame(&mut socket).await;
    let (published, record) = if one.get("published").is_some() { (one, other) } else { (other, one) };
    let result = json!({"partition": 0, "base_offset": 1, "count": 1, "level": "accepted"});
    assert_eq!(published, json!({"published": {"results": [result], "receivers": 1}}));
    assert_eq!(json!([record["key"], record["value"], record["encoding"]]), json!(["aw==", "/w==", "base64"]));

    within(socket.send(Message::Ping("sign".into()))).await.expect("sent");
    assert_eq!(within(socket.next()).await.expect("open").expect("a frame"), Message::Pong("sign".into()));
}

#[tokio::test]
async fn a_mistake_in_a_frame_is_answered_and_the_next_one_is_fine() {
    let server = start().await;
    let mut socket = server.web_socket("/v1/topics/t.*/ws").await;
    for (sent, kind) in [
        ("{", "malformed"),
        (r#"{"subscribe":{}}"#, "malformed"),
        (r#"{"publish":{"value":"?","encoding":"base64"}}"#, "malformed"),
        // A pattern is not a topic to publish to.
        (r#"{"publish":{"value":"v"}}"#, "invalid"),
    ] {
        send_text(&mut socket, sent).await;
        assert_eq!(frame(&mut socket).await["error"]["kind"], kind, "{sent}");
    }
    within(socket.send(Message::binary(&b"x"[..]))).await.expect("sent");
    assert_eq!(frame(&mut socket).await["error"]["kind"], "unsupported");
    server.publish("t.x", &["v"]).await;
    assert_eq!(frame(&mut socket).await["topic"], "t.x");
}

#[tokio::test]
async fn a_publisher_does_not_wait_for_itself() {
    let server = start().await;
    let mut socket = server.web_socket("/v1/topics/t/ws?overflow=block").await;
    let count = 2 * broker::Settings::default().subscriber_queue.batches_max;
    for i in 0..count {
        send_text(&mut socket, json!({"publish": {"value": i.to_string()}}).to_string()).await;
    }
    let mut values = Vec::new();
    let mut published = 0;
    while values.len() < count || published < count {
        let frame = frame(&mut socket).await;
        match frame.get("value") {
            Some(value) => values.push(value.as_str().expect("a value").to_owned()),
            None => {
                assert!(frame.get("published").is_some(), "{frame}");
                published += 1;
            }
        }
    }
    assert_eq!(values, (0..count).map(|i| i.to_string()).collect::<Vec<_>>());
}

/// Returns the code and the reason of the close frame, and skips the frames before it.
async fn close(socket: &mut WebSocketStream<TcpStream>) -> (CloseCode, String) {
    loop {
        match within(socket.next()).await.expect("a close frame").expect("a frame") {
            Message::Close(Some(close)) => return (close.code, close.reason.to_string()),
            Message::Close(None) => panic!("closed without a reason"),
            _ => {}
        }
    }
}

#[tokio::test]
async fn a_web_socket_is_closed_with_the_reason() {
    let server = start().await;
    let mut socket = server.web_socket("/v1/topics/t/ws").await;
    assert_eq!(server.send("DELETE", "/v1/topics/t", &[], "").await.status, 204);
    assert_eq!(frame(&mut socket).await["error"]["kind"], "not_found");
    assert_eq!(close(&mut socket).await, (CloseCode::Policy, "topic t was deleted".into()));
    assert!(within(socket.next()).await.is_none());

    let mut socket = server.web_socket("/v1/topics/t/ws").await;
    let ended = async { assert!(server.shutdown.run(Duration::from_secs(30)).await.is_clean()) };
    let read = async {
        assert_eq!(close(&mut socket).await.0, CloseCode::Away);
        assert!(within(socket.next()).await.is_none());
    };
    within(async { tokio::join!(ended, read) }).await;
    assert_eq!(server.connections.open(), 0);
}

#[tokio::test]
async fn a_web_socket_holds_its_permit_until_its_client_goes() {
    let server = start().await;
    let mut socket = server.web_socket("/v1/topics/t/ws").await;
    assert!(server.broker.stats().expect("metrics").contains("thalweg_http_streams{kind=\"websocket\"} 1\n"));
    assert_eq!(server.connections.open(), 1);
    within(socket.close(None)).await.expect("sent");
    while let Some(frame) = within(socket.next()).await {
        frame.expect("an orderly end");
    }
    within(async {
        while server.connections.open() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(server.broker.describe_topic("t").expect("a topic").partitions[0].subscribers, 0);
}
