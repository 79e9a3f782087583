//! Requests and responses: records, topics, errors, and endpoints for operation.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::Wakes;
use bytes::Bytes;
use engine::partitioner::for_key;
use engine::transactions::TransactionalId;
use engine::{Acks, BatchBuilder, Codec, Decision, Producer, TopicName, TopicPartition};
use http_body_util::BodyExt;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::http_client::*;

#[tokio::test]
async fn one_record_by_any_of_its_content_types() {
    let server = start().await;
    let path = "/v1/topics/t/records";
    let first = server.send("POST", path, &[TEXT], "text").await;
    assert_eq!(
        (first.status, first.text()),
        (200, r#"{"results":[{"partition":0,"base_offset":0,"count":1,"level":"accepted"}],"receivers":0}"#)
    );
    assert_eq!(first.header("content-type"), "application/json");
    let of_curl = ("content-type", "application/x-www-form-urlencoded");
    for headers in [&[("content-type", "Application/Octet-Stream")][..], &[], &[of_curl]] {
        assert_eq!(server.send("POST", &format!("{path}?acks=committed&key=k"), headers, "bytes").await.status, 200);
    }
    let refused = server.send("POST", path, &[TEXT], "").await;
    assert_eq!(
        (refused.status, &refused.json()["error"]["kind"]),
        (400, &json!("invalid")),
        "an empty body is a mistake"
    );
    let empty = r#"{"records":[{"value":""}]}"#;
    assert_eq!(server.send("POST", path, &[JSON], empty).await.status, 200, "an empty value is not");
    let read = server.get(path).await;
    assert_eq!(values(&read), ["text", "bytes", "bytes", "bytes", ""]);
    let json = read.json();
    assert_eq!((&json["records"][0]["key"], &json["records"][1]["key"]), (&Value::Null, &json!("k")));
    assert_eq!(json["next_offset"], 5);
}

#[tokio::test]
async fn the_fields_of_a_record_keep_their_order() {
    let server = start().await;
    server.publish("t", &["a\"\u{0}b"]).await;
    assert_eq!(
        server.get("/v1/topics/t/records").await.text(),
        concat!(
            r#"{"records":[{"partition":0,"offset":0,"timestamp_ms":1000,"key":null,"value":"a\"\u0000b","#,
            r#""headers":{},"encoding":"utf8"}],"next_offset":1}"#
        )
    );
}

#[tokio::test]
async fn a_record_a_line() {
    let server = start().await;
    let path = "/v1/topics/t/records";
    let ndjson = [("content-type", "application/x-ndjson")];
    let answer = server.send("POST", path, &ndjson, "{\"n\":1}\r\n\n  \n{\"n\":2} \n{\"n\":3}").await;
    assert_eq!((answer.status, &answer.json()["results"][0]["count"]), (200, &json!(3)));
    assert_eq!(values(&server.get(path).await), ["{\"n\":1}", "{\"n\":2} ", "{\"n\":3}"]);
    let empty = server.send("POST", path, &ndjson, "\n\n").await;
    assert_eq!((empty.status, &empty.json()["error"]["kind"]), (400, &json!("invalid")));
}

#[tokio::test]
async fn keys_choose_partitions_and_records_without_one_stay_together() {
    let server = start().await;
    server.send("PUT", "/v1/topics/t", &[JSON], r#"{"partitions":4}"#).await;
    let keys: Vec<String> = (0..20).map(|i| format!("key-{i}")).collect();
    let mut records: Vec<Value> = keys.iter().map(|key| json!({"key": key, "value": key})).collect();
    records.extend([json!({"value": "x"}), json!({"value": "y", "key": null})]);
    let answer = server.send("POST", "/v1/topics/t/records", &[JSON], json!({"records": records}).to_string()).await;
    assert_eq!(answer.status, 200);
    let answer = answer.json();
    let results = answer["results"].as_array().expect("results");
    // There is one batch per partition; the records without a key are all in one of them.
    let counts: u64 = results.iter().map(|result| result["count"].as_u64().expect("a count")).sum();
    assert_eq!((results.len(), counts), (4, 22));
    for partition in 0..4 {
        let read = server.get(&format!("/v1/topics/t/records?partition={partition}")).await;
        let mut read = values(&read);
        let mut expected: Vec<&str> = keys.iter().map(String::as_str).collect();
        expected.retain(|key| for_key(key.as_bytes(), 4) == partition);
        if read.len() > expected.len() {
            assert_eq!(read.split_off(expected.len()), ["x", "y"]);
        }
        assert_eq!(read, expected);
    }
    // With a single partition the log has the order of the request.
    let body = json!({"records": [{"key": "a", "value": "1"}, {"value": "2"}, {"key": "b", "value": "3"}]}).to_string();
    server.send("POST", "/v1/topics/one/records", &[JSON], body.clone()).await;
    assert_eq!(values(&server.get("/v1/topics/one/records").await), ["1", "2", "3"]);
    let pinned = server.send("POST", "/v1/topics/t/records?partition=3", &[JSON], body).await.json();
    let results = pinned["results"].as_array().expect("results");
    assert_eq!((results.len(), &results[0]["partition"], &results[0]["count"]), (1, &json!(3), &json!(3)));
}

#[tokio::test]
async fn binary_and_null_come_back_as_they_went_in() {
    let server = start().await;
    let path = "/v1/topics/t/records";
    let records = json!({"records": [
        {"key": "/w==", "value": "AP+A", "headers": {"h": "aGVhZGVy", "n": null}, "encoding": "base64"},
        {"key": "k", "value": null, "headers": {"h": "v"}},
        {"key": "aw==", "value": "dg==", "encoding": "base64"},
    ]});
    assert_eq!(server.send("POST", path, &[JSON], records.to_string()).await.status, 200);
    let read = server.get(path).await.json();
    let part = |i: usize| {
        let record = &read["records"][i];
        json!([record["key"], record["value"], record["headers"], record["encoding"]])
    };
    assert_eq!(part(0), json!(["/w==", "AP+A", {"h": "aGVhZGVy", "n": null}, "base64"]));
    assert_eq!(part(1), json!(["k", null, {"h": "v"}, "utf8"]));
    assert_eq!(part(2), json!(["k", "v", {}, "utf8"]));

    server.send("POST", path, &[], &b"\xff\x00"[..]).await;
    let raw = server.get(&format!("{path}?offset=3")).await.json();
    assert_eq!((&raw["records"][0]["value"], &raw["records"][0]["encoding"]), (&json!("/wA="), &json!("base64")));
}

#[tokio::test]
async fn a_publish_without_acknowledgement_is_told_nothing_and_a_lost_one_is_counted() {
    let of_broker = broker::Settings { auto_create_topics: false, ..broker::Settings::default() };
    let server = start_with(of_broker, settings(), 100).await;
    server.send("PUT", "/v1/topics/t", &[], "").await;
    for topic in ["t", "missing"] {
        let answer = server.send("POST", &format!("/v1/topics/{topic}/records?acks=none"), &[TEXT], "v").await;
        assert_eq!((answer.status, answer.text()), (202, "{}"));
    }
    assert_eq!(server.broker.metrics().publish_lost.get(), 1);
    assert_eq!(values(&server.get("/v1/topics/t/records").await), ["v"]);
    assert_eq!(server.send("POST", "/v1/topics/missing/records", &[TEXT], "v").await.status, 404);
}

#[tokio::test]
async fn reading_begins_inside_of_batches_and_goes_on_where_it_stopped() {
    let server = start().await;
    server.publish("t", &["0", "1", "2"]).await;
    server.publish("t", &["3", "4"]).await;
    let get = |query: &'static str| {
        let server = &server;
        async move {
            let answer = server.get(&format!("/v1/topics/t/records?{query}")).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            (values(&answer).concat(), answer.json()["next_offset"].as_u64().expect("an offset"))
        }
    };
    assert_eq!(get("").await, ("01234".into(), 5));
    assert_eq!(get("offset=1&max_records=1").await, ("1".into(), 2));
    assert_eq!(get("offset=2&max_records=2").await, ("23".into(), 4));
    assert_eq!(get("offset=4&max_records=99999999").await, ("4".into(), 5));
    assert_eq!(get("offset=5").await, (String::new(), 5));
    assert_eq!(get("offset=latest").await, (String::new(), 5));
    assert_eq!(get("offset=earliest&partition=0").await, ("01234".into(), 5));
    // The timestamps of both batches begin at 1000.
    assert_eq!(get("timestamp_ms=1002").await, ("234".into(), 5));
    assert_eq!(get("timestamp_ms=-1").await, ("01234".into(), 5));
    assert_eq!(get("timestamp_ms=1003").await, (String::new(), 5));
}

#[tokio::test]
async fn an_offset_out_of_range_is_told_the_bounds() {
    let server = start().await;
    server.publish("t", &["0", "1"]).await;
    let answer = server.get("/v1/topics/t/records?offset=7").await;
    assert_eq!((answer.status, &answer.json()["error"]["kind"]), (416, &json!("out_of_range")));
    assert!(answer.text().contains("0 to 2"), "{}", answer.text());
}

#[tokio::test]
async fn a_page_continues_after_aborted_records() {
    let server = start().await;
    server.publish("t", &["before"]).await;
    let broker = &server.broker;
    let id = TransactionalId::parse("a").expect("an id");
    let producer = broker.transactions.init(&id, None, 1000).await.expect("begun");
    let at = TopicPartition { topic: TopicName::parse("t").expect("a name"), partition: 0 };
    broker.transactions.add_partitions(&id, producer, &[at]).await.expect("added");
    let mut builder = BatchBuilder::new();
    builder.push(1, None, Some(b"void"), &[]).expect("a small record");
    let numbered = Producer { id: producer.id, epoch: producer.epoch, sequence: 0 };
    let mut batch = builder.finish_with(Codec::None, Some(numbered)).expect("a record");
    batch.set_transactional();
    broker.publish("t", Some(0), Acks::Default, batch, &mut Wakes::default()).await.expect("published");
    broker.transactions.end(&id, producer, Decision::Abort).await.expect("aborted");
    // A client that does not request committed records sees all records, but no marker.
    let read = server.get("/v1/topics/t/records").await;
    assert_eq!((values(&read), &read.json()["next_offset"]), (vec!["before".to_owned(), "void".into()], &json!(3)));
    let marker = server.get("/v1/topics/t/records?offset=2").await;
    assert_eq!((values(&marker), &marker.json()["next_offset"]), (Vec::<String>::new(), &json!(3)));
}

#[tokio::test]
async fn a_long_poll_is_woken_by_a_publish() {
    let server = start().await;
    server.publish("t", &["old"]).await;
    let begin = Instant::now();
    let poll = server.get("/v1/topics/t/records?offset=latest&wait_ms=600000");
    tokio::pin!(poll);
    // The poll only returns records that are published after it has begun, so this publishes until then.
    let answer = loop {
        tokio::select! {
            biased;
            answer = &mut poll => break answer,
            () = server.publish("t", &["new"]) => tokio::task::yield_now().await,
        }
    };
    assert_eq!(values(&answer)[0], "new");
    assert!(begin.elapsed() < Duration::from_secs(60));
}

#[tokio::test]
async fn a_long_poll_without_news_ends_in_time() {
    let server = start().await;
    server.publish("t", &["old"]).await;
    let answer = server.get("/v1/topics/t/records?offset=1&wait_ms=20").await;
    assert_eq!((answer.status, answer.text()), (200, r#"{"records":[],"next_offset":1}"#));
}

#[tokio::test]
async fn undecodable_records_are_named_and_can_be_skipped() {
    let server = start().await;
    server.publish("t", &["0"]).await;
    server.publish_batch("t", unreadable_batch()).await;
    server.publish("t", &["3"]).await;
    let before = server.get("/v1/topics/t/records").await;
    assert_eq!((values(&before), &before.json()["next_offset"]), (vec!["0".into()], &json!(1)));
    let at = server.get("/v1/topics/t/records?offset=1").await;
    assert_eq!(at.status, 501);
    assert!(at.text().contains("codec 5") && at.text().contains("at offset 3"), "{}", at.text());
    assert_eq!(values(&server.get("/v1/topics/t/records?offset=3").await), ["3"]);
}

#[tokio::test]
async fn compressed_records_are_read_like_others() {
    let server = start().await;
    let sent: Vec<String> = (0..100).map(|i| format!("value {i} of many")).collect();
    for codec in Codec::ALL {
        let topic = codec.name();
        server.publish_batch(topic, compressed_batch(codec, &sent)).await;
        let page = server.get(&format!("/v1/topics/{topic}/records?offset=3&max_records=50")).await;
        assert_eq!(values(&page), &sent[3..53], "{topic}");
        assert_eq!(page.json()["next_offset"], 53);
        assert_eq!(values(&server.get(&format!("/v1/topics/{topic}/records?offset=53")).await), &sent[53..]);
    }
}

#[tokio::test]
async fn topics_from_begin_to_end() {
    let server = start().await;
    let settings = r#"{"partitions":2,"retention_ms":5000}"#;
    let created = server.send("PUT", "/v1/topics/b", &[JSON], settings).await;
    assert_eq!(created.status, 201);
    let id = created.json()["id"].as_str().expect("an id").to_owned();
    assert_eq!(
        created.text().replace(&id, "ID"),
        concat!(
            r#"{"topic":"b","id":"ID","settings":{"partitions":2,"retention_bytes":67108864,"retention_ms":5000,"#,
            r#""storage":"memory","compact":false,"batch_bytes_max":10485760,"arrival_times":false,"mesh":"off","#,
            r#""drop_acknowledged":false,"keep_unacknowledged":false},"owner":null,"#,
            r#""partitions":[{"partition":0,"start_offset":0,"end_offset":0,"bytes":0,"subscribers":0},"#,
            r#"{"partition":1,"start_offset":0,"end_offset":0,"bytes":0,"subscribers":0}]}"#
        )
    );
    assert_eq!(server.send("PUT", "/v1/topics/b", &[JSON], settings).await.status, 200);
    let other = server.send("PUT", "/v1/topics/b", &[JSON], r#"{"partitions":3}"#).await;
    assert_eq!((other.status, &other.json()["error"]["kind"]), (409, &json!("already_exists")));
    assert_eq!(server.send("PUT", "/v1/topics/a", &[], "").await.status, 201);
    assert_eq!(server.send("PUT", "/v1/topics/c", &[], "").await.status, 201);

    server.publish("b", &["x"]).await;
    let described = server.get("/v1/topics/b").await.json();
    assert_eq!(described["partitions"][0]["end_offset"], 1);

    let names = |answer: &Answer| -> Vec<String> {
        let json = answer.json();
        let topics = json["topics"].as_array().expect("topics");
        topics.iter().map(|topic| topic["topic"].as_str().expect("a name").to_owned()).collect()
    };
    let page = server.get("/v1/topics?max=2").await;
    assert_eq!((names(&page), &page.json()["is_last"]), (vec!["a".into(), "b".into()], &json!(false)));
    let page = server.get("/v1/topics?after=b").await;
    assert_eq!((names(&page), &page.json()["is_last"]), (vec!["c".into()], &json!(true)));

    for _ in 0..2 {
        let grown = server.send("PATCH", "/v1/topics/b", &[JSON], r#"{"partitions":4}"#).await;
        let json = grown.json();
        assert_eq!((grown.status, &json["settings"]["partitions"]), (200, &json!(4)));
        assert_eq!(json["partitions"].as_array().map(Vec::len), Some(4));
    }

    let change = r#"{"partitions":5,"retention_ms":9000,"batch_bytes_max":4096}"#;
    let altered = server.send("PATCH", "/v1/topics/b", &[JSON], change).await.json();
    let settings = &altered["settings"];
    assert_eq!((&settings["partitions"], &settings["retention_ms"]), (&json!(5), &json!(9000)));
    assert_eq!((&settings["batch_bytes_max"], &settings["retention_bytes"]), (&json!(4096), &json!(67_108_864)));
    assert_eq!(altered["id"], id.as_str());
    for mesh in ["live", "off"] {
        let altered = server.send("PATCH", "/v1/topics/b", &[JSON], json!({ "mesh": mesh }).to_string()).await.json();
        assert_eq!((&altered["settings"]["mesh"], &altered["settings"]["retention_ms"]), (&json!(mesh), &json!(9000)));
    }
    let in_mesh = server.send("PUT", "/v1/topics/d", &[JSON], r#"{"mesh":"live"}"#).await;
    assert_eq!((in_mesh.status, &in_mesh.json()["settings"]["mesh"]), (201, &json!("live")));
    assert_eq!(server.get("/v1/topics/d").await.json()["settings"]["mesh"], "live");
    assert_eq!(server.send("PUT", "/v1/topics/d", &[JSON], r#"{"mesh":"live"}"#).await.status, 200);
    assert_eq!(server.send("PUT", "/v1/topics/d", &[JSON], "{}").await.status, 409);

    let deleted = server.send("DELETE", "/v1/topics/b", &[], "").await;
    assert_eq!((deleted.status, deleted.text()), (204, ""));
    for (method, body) in [("GET", ""), ("DELETE", ""), ("PATCH", r#"{"partitions":4}"#)] {
        assert_eq!(server.send(method, "/v1/topics/b", &[JSON], body).await.status, 404, "{method}");
    }
}

#[tokio::test]
async fn the_oldest_records_are_deleted() {
    let server = start().await;
    let body = r#"{"records":[{"value":"a"},{"value":"b"},{"value":"c"}]}"#;
    assert_eq!(server.send("POST", RECORDS, &[JSON], body).await.status, 200);
    for (before, start_offset) in [("2", 2), ("1", 2), ("end", 3)] {
        let path = format!("{RECORDS}?before={before}");
        let deleted = server.send("DELETE", &path, &[], "").await;
        assert_eq!((deleted.status, deleted.json()), (200, json!({"partition": 0, "start_offset": start_offset})));
        let page = server.get(&format!("{RECORDS}?offset=earliest")).await.json();
        assert_eq!(page["records"].as_array().map(Vec::len), Some(3 - start_offset), "{page}");
    }
}

const RECORDS: &str = "/v1/topics/t/records";

/// Method, path, content type and body of a request; status, kind and a part of the message of the error.
type Mistake =
    (&'static str, &'static str, (&'static str, &'static str), &'static str, u16, &'static str, &'static str);

const MISTAKES: &[Mistake] = &[
    ("POST", "/v1/topics/t/records?ack=none", TEXT, "v", 400, "invalid", "unknown parameter 'ack'"),
    ("POST", "/v1/topics/t/records?acks=some", TEXT, "v", 400, "invalid", "acks: 'some'"),
    ("POST", "/v1/topics/t/records?partition=-1", TEXT, "v", 400, "invalid", "partition: '-1'"),
    ("POST", "/v1/topics/t/records?key=a&key=b", TEXT, "v", 400, "invalid", "'key' is given twice"),
    ("POST", "/v1/topics/t/records?partition=1", TEXT, "v", 404, "not_found", "topic t has only partition 0, not 1"),
    ("POST", "/v1/topics/t/records?key=a", JSON, r#"{"records":[{"value":"v"}]}"#, 400, "invalid", "key:"),
    ("POST", "/v1/topics/a%20b/records", TEXT, "v", 400, "invalid", "'a b'"),
    ("POST", "/v1/topics/a%FF/records", TEXT, "v", 400, "invalid", "name in the path"),
    ("POST", "/v1/topics/a.*/records", TEXT, "v", 400, "invalid", "'*'"),
    ("POST", RECORDS, ("content-type", "text/html"), "v", 415, "unsupported", "'text/html'"),
    ("POST", RECORDS, JSON, "{", 400, "malformed", "JSON"),
    ("POST", RECORDS, JSON, r#"{"records":[]}"#, 400, "invalid", "no record"),
    ("POST", RECORDS, JSON, r#"{"records":[{"key":"k"}]}"#, 400, "malformed", "missing field `value`"),
    ("POST", RECORDS, JSON, r#"{"records":[{"valeu":"v"}]}"#, 400, "malformed", "`valeu`"),
    (
        "POST",
        RECORDS,
        JSON,
        r#"{"records":[{"value":"v"},{"value":"?","encoding":"base64"}]}"#,
        400,
        "malformed",
        "record 1: the value is not base64",
    ),
    ("GET", "/v1/topics/t/records?offset=x", TEXT, "", 400, "invalid", "offset: 'x'"),
    ("GET", "/v1/topics/t/records?offset=0&timestamp_ms=0", TEXT, "", 400, "invalid", "not both"),
    ("GET", "/v1/topics/t/records?max_records=0", TEXT, "", 400, "invalid", "max_records"),
    ("GET", "/v1/topics/t/records?wait_ms=1s", TEXT, "", 400, "invalid", "wait_ms: '1s'"),
    ("GET", "/v1/topics/t/records?partition=3", TEXT, "", 404, "not_found", "not 3"),
    ("GET", "/v1/topics/missing/records", TEXT, "", 404, "not_found", "'missing'"),
    ("GET", "/v1/topics?max=0", TEXT, "", 400, "invalid", "max"),
    ("GET", "/v1/topics/t?x=1", TEXT, "", 400, "invalid", "'x'; known here: none"),
    ("PUT", "/v1/topics/n", JSON, r#"{"partition":1}"#, 400, "malformed", "`partition`"),
    ("PUT", "/v1/topics/n", JSON, r#"{"partitions":0}"#, 400, "invalid", "1 to 1024"),
    ("PUT", "/v1/topics/n", JSON, r#"{"mesh":"on"}"#, 400, "invalid", "mesh is off, live, mirror or source, not 'on'"),
    ("PUT", "/v1/topics/n", JSON, r#"{"mesh":"copy"}"#, 400, "invalid", "mode copy of a topic is not chosen"),
    ("PUT", "/v1/topics/n", JSON, r#"{"mesh":"mirror"}"#, 400, "invalid", "use storage disk"),
    ("PUT", "/v1/topics/n", TEXT, "{}", 415, "unsupported", "application/json"),
    (
        "PATCH",
        "/v1/topics/t",
        JSON,
        r#"{"mesh":"on"}"#,
        400,
        "invalid",
        "mesh is off, live, mirror or source, not 'on'",
    ),
    ("PATCH", "/v1/topics/t", JSON, r#"{"mesh":"copy"}"#, 400, "invalid", "mode copy of a topic is not chosen"),
    ("PATCH", "/v1/topics/t", JSON, r#"{"mesh":"source"}"#, 400, "invalid", "use storage disk"),
    ("PATCH", "/v1/topics/t", JSON, r#"{"partitions":0}"#, 400, "invalid", "has 1 partitions: they can only grow"),
    ("PATCH", "/v1/topics/t", JSON, r#"{"partitions":1025}"#, 400, "invalid", "1 to 1024"),
    ("PATCH", "/v1/topics/t", JSON, "{}", 400, "invalid", "name at least one setting to change"),
    ("PATCH", "/v1/topics/t", JSON, r#"{"partitions":2,"storage":"disk"}"#, 400, "malformed", "`storage`"),
    ("PATCH", "/v1/topics/t", JSON, r#"{"compact":true}"#, 400, "invalid", "--data DIR"),
    ("PATCH", "/v1/topics/t", JSON, r#"{"batch_bytes_max":1}"#, 400, "invalid", "128 to 10485760"),
    ("PATCH", "/v1/topics/t", TEXT, r#"{"partitions":2}"#, 415, "unsupported", "application/json"),
    ("DELETE", RECORDS, TEXT, "", 400, "invalid", "before: an offset"),
    ("DELETE", "/v1/topics/t/records?before=7", TEXT, "", 416, "out_of_range", "0 to "),
    ("DELETE", "/v1/topics/t/records?before=1&partition=4", TEXT, "", 404, "not_found", "not 4"),
    ("PUT", "/v1/topics/n", JSON, r#"{"compact":true}"#, 400, "invalid", "--data DIR"),
    ("PUT", "/v1/topics/a..b", JSON, "", 400, "invalid", "'a..b'"),
    ("GET", "/v1/topics/t/events?start=soon", TEXT, "", 400, "invalid", "start: 'soon'"),
    ("GET", "/v1/topics/t/events?overflow=never", TEXT, "", 400, "invalid", "overflow: 'never'"),
    ("GET", "/v1/topics/t/events?partition=9", TEXT, "", 404, "not_found", "not 9"),
    ("GET", "/v1/topics/t.*/events?start=5", TEXT, "", 400, "invalid", "an offset is valid for one topic only"),
    ("GET", "/v1/topics/t/ws", TEXT, "", 400, "invalid", "WebSocket"),
    ("GET", "/nowhere", TEXT, "", 404, "not_found", "/nowhere"),
];

#[tokio::test]
async fn every_mistake_is_named() {
    let server = start().await;
    server.publish("t", &["v"]).await;
    for (method, path, header, body, status, kind, says) in MISTAKES {
        let answer = server.send(method, path, &[*header], *body).await;
        assert_eq!(answer.status, *status, "{method} {path} {body}: {}", answer.text());
        assert_eq!(answer.header("content-type"), "application/json");
        let json = answer.json();
        let error = json["error"].as_object().expect("an error");
        assert_eq!(error["kind"], *kind, "{method} {path} {body}");
        let message = error["message"].as_str().expect("a message");
        assert!(message.contains(says), "{method} {path} {body}: {message}");
        assert_eq!((&error["retry"], &error["retry_after_ms"]), (&json!("no"), &json!(0)));
    }
}

#[tokio::test]
async fn a_method_that_a_path_does_not_know() {
    let server = start().await;
    let answer = server.send("PATCH", "/v1/topics/t/records", &[], "").await;
    assert_eq!((answer.status, &answer.json()["error"]["kind"]), (405, &json!("unsupported")));
    let allow: BTreeSet<&str> = answer.header("allow").split(',').collect();
    assert_eq!(allow, BTreeSet::from(["DELETE", "GET", "HEAD", "POST"]));
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_before_and_while_it_is_read() {
    let server = start().await;
    let body = vec![b'x'; settings().body_bytes_max + 1];
    let stated = server.send("POST", "/v1/topics/t/records", &[TEXT], body.clone()).await;
    assert_eq!((stated.status, &stated.json()["error"]["kind"]), (413, &json!("too_large")));
    assert!(stated.text().contains("(key http_body_max_bytes)"), "{}", stated.text());

    // A client with `expect: 100-continue` does not have to send the body.
    let post = "POST /v1/topics/t/records HTTP/1.1\r\nhost: broker\r\n";
    let mut socket = server.socket().await;
    let head = format!("{post}content-length: {}\r\nexpect: 100-continue\r\n\r\n", body.len());
    socket.write_all(head.as_bytes()).await.expect("sent");
    let mut answer = vec![0; 12];
    within(socket.read_exact(&mut answer)).await.expect("an answer");
    assert_eq!(answer, b"HTTP/1.1 413");

    // A body without a length is refused before its end.
    let mut socket = server.socket().await;
    socket.write_all(format!("{post}transfer-encoding: chunked\r\n\r\n").as_bytes()).await.expect("sent");
    socket.write_all(format!("{:x}\r\n", body.len()).as_bytes()).await.expect("sent");
    socket.write_all(&body).await.expect("sent");
    within(socket.read_exact(&mut answer)).await.expect("an answer");
    assert_eq!(answer, b"HTTP/1.1 413");

    let fits = server.send("POST", "/v1/topics/t/records", &[TEXT], vec![b'x'; body.len() - 1]).await;
    assert_eq!(fits.status, 200);
}

#[tokio::test]
async fn an_overload_says_when_to_come_back() {
    let of_broker = broker::Settings { log_bytes_max: 1000, ..broker::Settings::default() };
    let server = start_with(of_broker, settings(), 100).await;
    let answer = server.send("POST", "/v1/topics/t/records", &[TEXT], vec![b'x'; 2000]).await;
    assert_eq!((answer.status, answer.header("retry-after")), (503, "1"));
    let error = &answer.json()["error"];
    assert_eq!(json!([error["kind"], error["retry"], error["retry_after_ms"]]), json!(["busy", "retry_after", 100]));
}

#[tokio::test]
async fn a_partly_failed_publish_reports_the_published_records() {
    let of_broker = broker::Settings { log_bytes_max: 2000, ..broker::Settings::default() };
    let server = start_with(of_broker, settings(), 100).await;
    server.send("PUT", "/v1/topics/t", &[JSON], r#"{"partitions":2}"#).await;
    let key = |partition| (0..).map(|i| format!("{i}")).find(|key| for_key(key.as_bytes(), 2) == partition);
    let records = json!({"records": [
        {"key": key(0), "value": "small"},
        {"key": key(1), "value": "x".repeat(1900)},
    ]});
    let answer = server.send("POST", "/v1/topics/t/records", &[JSON], records.to_string()).await;
    let error = &answer.json()["error"];
    assert_eq!((answer.status, &error["retry"], answer.header("retry-after")), (503, &json!("outcome_unknown"), ""));
    assert!(answer.text().contains("1 of 2 batches were published"), "{}", answer.text());
}

#[tokio::test]
async fn pages_of_other_sites_stay_outside() {
    let server = start().await;
    for (origin, status) in [("http://broker", 200), ("https://BROKER", 200), ("http://evil", 403), ("null", 403)] {
        let answer = server.send("POST", "/v1/topics/t/records", &[TEXT, ("origin", origin)], "v").await;
        assert_eq!(answer.status, status, "{origin}: {}", answer.text());
    }
}

/// The fetch standard: a preflight request is answered without the page's own request, and every response that a page
/// of an allowed origin may read names that origin (https://fetch.spec.whatwg.org/#http-cors-protocol).
#[tokio::test]
async fn pages_of_allowed_origins_come_in_and_ask_first() {
    let origin = "https://app.example.com";
    let with = doors::http::Settings { cors_origins: vec![origin.to_owned()], ..settings() };
    let server = start_with(broker::Settings::default(), with, 100).await;
    let path = "/v1/topics/t/records";
    let asked = [("origin", origin), ("access-control-request-method", "POST")];
    let preflight = server.send("OPTIONS", path, &asked, "").await;
    assert_eq!((preflight.status, preflight.header("access-control-allow-origin")), (204, origin));
    assert!(preflight.header("access-control-allow-headers").contains("content-type"));
    assert!(preflight.header("access-control-allow-methods").contains("DELETE"));
    let published = server.send("POST", path, &[TEXT, ("origin", origin)], "v").await;
    assert_eq!((published.status, published.header("access-control-allow-origin")), (200, origin));
    assert_eq!(published.header("vary"), "origin");
    let failed = server.send("GET", "/v1/topics/none", &[("origin", origin)], "").await;
    assert_eq!((failed.status, failed.header("access-control-allow-origin")), (404, origin), "errors are read, too");
    for (method, headers) in [
        ("POST", vec![TEXT, ("origin", "https://evil.example")]),
        ("OPTIONS", { vec![("origin", "https://evil.example"), ("access-control-request-method", "POST")] }),
    ] {
        let refused = server.send(method, path, &headers, "v").await;
        assert_eq!((refused.status, refused.header("access-control-allow-origin")), (403, ""));
        assert!(refused.text().contains("http_cors_origins"), "{}", refused.text());
    }
    let own = server.send("POST", path, &[TEXT, ("origin", "http://broker")], "v").await;
    assert_eq!((own.status, own.header("access-control-allow-origin")), (200, ""));
}

/// The most common mistake: a JSON body that is intended to be the record.
#[tokio::test]
async fn a_json_body_that_is_the_record_itself_is_told_how_to_be_sent() {
    let server = start().await;
    for body in [r#"{"order":1}"#, "[1,2]", "1", r#""text""#] {
        let answer = server.send("POST", "/v1/topics/t/records", &[JSON], body).await;
        assert_eq!(answer.status, 400);
        assert!(answer.text().contains("content-type: text/plain"), "{}", answer.text());
    }
    let broken = server.send("POST", "/v1/topics/t/records", &[JSON], r#"{"records":"#).await;
    assert!(broken.text().contains("EOF"), "{}", broken.text());
    let empty = server.send("POST", "/v1/topics/t/records", &[JSON], "").await;
    assert!(empty.text().contains("the body is empty, but it must contain the record"), "{}", empty.text());
    let word = server.send("POST", "/v1/topics/t/records", &[JSON], "nonsense").await;
    assert!(word.text().contains("a word without quotes") && !word.text().contains("ident"), "{}", word.text());
    let wrong = server.send("POST", "/v1/topics/t/records", &[JSON], r#"{"records":[{"valu":1}]}"#).await;
    assert!(wrong.text().contains("`valu`"), "{}", wrong.text());
}

#[tokio::test]
async fn the_description_has_every_route_and_no_other() {
    let server = start().await;
    let answer = server.get("/v1/openapi.json").await;
    let description = answer.json();
    assert_eq!((answer.status, &description["openapi"]), (200, &json!("3.1.0")));
    let paths = description["paths"].as_object().expect("paths");
    let described: BTreeSet<(String, String)> = paths
        .iter()
        .flat_map(|(path, item)| {
            let methods = item.as_object().expect("an item").keys().filter(|key| *key != "parameters");
            methods.map(|method| (method.to_uppercase(), path.clone()))
        })
        .collect();
    let served: BTreeSet<(String, String)> =
        doors::http::routes().map(|(method, path)| (method.to_owned(), path.to_owned())).collect();
    assert_eq!(described, served);
    check_references(&description, &description);
}

#[tokio::test]
async fn the_description_has_every_parameter_and_no_other() {
    let server = start().await;
    let description = server.get("/v1/openapi.json").await.json();
    let name = |parameter: &Value| -> Option<String> {
        let parameter = match parameter["$ref"].as_str() {
            Some(to) => description.pointer(to.strip_prefix('#')?)?,
            None => parameter,
        };
        (parameter["in"] == "query").then(|| parameter["name"].as_str().unwrap_or_default().to_owned())
    };
    for (method, path) in doors::http::routes().filter(|(_, path)| path.starts_with("/v1/")) {
        let parameters = &description["paths"][path][method.to_lowercase()]["parameters"];
        let described: BTreeSet<String> = parameters.as_array().into_iter().flatten().filter_map(name).collect();
        let answer = server.send(method, &format!("{}?no=1", example(path)), &[], "").await.json();
        let message = answer["error"]["message"].as_str().expect("a message");
        let (_, known) = message.split_once("unknown parameter 'no'; known here: ").expect("a mistake that is named");
        let known = known.split(", ").filter(|name| *name != "none").map(str::to_owned).collect();
        assert_eq!(described, known, "{method} {path}");
    }
}

/// Returns an example path of a route.
fn example(route: &str) -> String {
    let names = [
        ("{topic}", "t"),
        ("{queue}", "q"),
        ("{redrive}", "1"),
        ("{cache}", "c"),
        ("{key}", "k"),
        ("{group}", "g"),
        ("{node}", "1"),
        ("{site}", "oslo"),
        ("{connection}", "0"),
        ("{user}", "u"),
        ("{role}", "r"),
        ("{token}", "0909090909090909"),
    ];
    names.into_iter().fold(route.to_owned(), |path, (name, value)| path.replace(name, value))
}

/// Checks that every `$ref` has a target.
fn check_references(value: &Value, description: &Value) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(to)) = fields.get("$ref") {
                let pointer = to.strip_prefix('#').expect("a reference within the document");
                assert!(description.pointer(pointer).is_some(), "{to}");
            }
            fields.values().for_each(|value| check_references(value, description));
        }
        Value::Array(values) => values.iter().for_each(|value| check_references(value, description)),
        _ => {}
    }
}

#[tokio::test]
async fn every_route_is_served() {
    let server = start().await;
    for (method, path) in doors::http::routes() {
        let path = example(path);
        let answer = server.begin(method, &path, &[], "").await;
        assert_ne!(answer.status(), 405, "{method} {path}");
        // A route may respond with 404, but not with the message for an unknown path.
        if answer.status() == 404 {
            assert!(!whole(answer).await.text().contains("there is no path"), "{method} {path}");
        }
    }
}

/// Nodes of a cluster, of which none is known to lead.
struct NoLeader;

impl broker::Nodes for NoLeader {
    fn nodes(&self) -> Vec<broker::NodeInfo> {
        Vec::new()
    }

    fn transfer(&self, _: u64) -> engine::Result<()> {
        Err(engine::Error::invalid("there is no other node"))
    }
}

/// A load balancer sends to the leader only.
#[tokio::test]
async fn a_leader_is_ready_until_its_leadership_ends() {
    let dir = tempfile::tempdir().expect("a folder");
    let disk = Arc::new(storage::RealDisk);
    let clock = broker::Clock::SYSTEM.read();
    let stored = storage::Store::open(disk, dir.path(), Default::default(), clock, &mut |_| {}).expect("opened");
    let leadership = broker::Leadership { term: 7, node: 2, ids: 1, nodes: Arc::new(NoLeader) };
    let broker = broker::Broker::start_leading(
        broker::Settings::default(),
        &[tokio::runtime::Handle::current()],
        stored,
        leadership,
    );
    let server = serve(broker.expect("started"), settings(), 100).await;
    assert_eq!(server.get("/readyz").await.text(), "ready\nnode 2 leads in term 7\n");
    let metrics = server.get("/metrics").await;
    assert!(metrics.text().contains("\nthalweg_cluster_term 7\n"), "{}", metrics.text());
    server.broker.stop().expect("stopped");
    let answer = server.get("/readyz").await;
    assert_eq!((answer.status, answer.header("retry-after")), (503, "1"));
    assert_eq!(answer.json()["error"]["kind"], "not_leader");
    let publish = server.send("POST", "/v1/topics/t/records", &[("content-type", "text/plain")], "late").await;
    assert_eq!((publish.status, publish.header("retry-after")), (503, "1"));
}

#[tokio::test]
async fn the_endpoints_for_operation_are_served() {
    let server = start().await;
    assert_eq!(server.get("/healthz").await.text(), "ok\n");
    assert_eq!(server.get("/readyz").await.text(), "ready\n");
    let help = server.get("/").await;
    assert_eq!((help.status, help.text().matches("curl ").count()), (200, 3));
    assert!(help.text().contains("http://broker/v1/topics/"), "{}", help.text());
    let head = server.send("HEAD", "/healthz", &[], "").await;
    assert_eq!((head.status, head.text(), head.header("content-length")), (200, "", "3"));

    server.get("/nowhere").await;
    server.broker.partitions_of("t").expect("created");
    let events = server.begin("GET", "/v1/topics/t/events", &[], "").await;
    let metrics = server.get("/metrics").await;
    assert_eq!(metrics.header("content-type"), "application/openmetrics-text; version=1.0.0; charset=utf-8");
    for line in [
        "thalweg_http_requests_total{status=\"2xx\"} 5",
        "thalweg_http_requests_total{status=\"4xx\"} 1",
        "thalweg_http_streams{kind=\"events\"} 1",
        "thalweg_http_streams{kind=\"websocket\"} 0",
        "thalweg_topics 1",
        "# EOF",
    ] {
        assert!(metrics.text().lines().any(|shown| shown == line), "{line} in {}", metrics.text());
    }
    drop(events);
}

#[tokio::test]
async fn http_2_is_spoken_as_well() {
    let server = start().await;
    let io = TokioIo::new(server.socket().await);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.expect("a connection");
    tokio::spawn(async move { connection.await.unwrap_or_default() });
    let mut post = request("POST", "http://broker/v1/topics/t/records", &[TEXT], "v");
    post.headers_mut().remove("host");
    assert_eq!(within(sender.send_request(post)).await.expect("an answer").status(), 200);
    // A request that stays open does not delay the others on its connection.
    let mut events = request("GET", "http://broker/v1/topics/t/events?start=earliest", &[], "");
    events.headers_mut().remove("host");
    let mut events = within(sender.send_request(events)).await.expect("an answer").into_body();
    let mut health = request("GET", "http://broker/healthz", &[("origin", "http://broker")], "");
    health.headers_mut().remove("host");
    assert_eq!(within(sender.send_request(health)).await.expect("an answer").status(), 200);
    let mut text = Vec::new();
    while !text.ends_with(b"\"utf8\"}\n\n") {
        let frame: Bytes = within(events.frame()).await.expect("more").expect("data").into_data().expect("data");
        text.extend_from_slice(&frame);
    }
}

/// A long list is generated by other code than a short one, with the same result.
#[tokio::test]
async fn many_topics_are_listed_in_pages() {
    let server = start().await;
    let names: Vec<String> = (0..3_000).map(|i| format!("t{i:04}")).collect();
    for name in names.iter().rev() {
        server.broker.create_topic(name, engine::TopicSettings::of_broker()).await.expect("created");
    }
    let mut listed = Vec::new();
    let mut after = String::new();
    loop {
        let page = server.get(&format!("/v1/topics?max=700&after={after}")).await.json();
        let topics = page["topics"].as_array().expect("topics");
        listed.extend(topics.iter().map(|topic| topic["topic"].as_str().expect("a name").to_owned()));
        if page["is_last"] == json!(true) {
            break;
        }
        assert_eq!(topics.len(), 700);
        after = listed.last().expect("some").clone();
    }
    assert_eq!(listed, names);
}
