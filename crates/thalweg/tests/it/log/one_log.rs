//! Tests of the single log behind every door: the first user of a name does not decide how its records are stored,
//! reading creates nothing, and a record is the same at each door.

use std::process::Stdio;

use bytes::Bytes;
use client::{Client, ErrorKind, Missing, NewQueue, Receive, Record, Start, Storage, TopicInfo, TopicSettings};
use engine::codec::Codec;
use serde_json::{Value, json};

use crate::door::kafka::raw::{Raw, batch, fetch, fetched, produce, produced, records};
use crate::door::pubsub::push::{call, done};
use crate::door::redis::streams::Redis;
use crate::door::sqs::client::{NOW, Sqs};
use crate::support::command::on;
use crate::support::reading::{self, publish, subscribe, values};
use crate::support::server::{Server, metric, program, until, within};

const HTTP: &str = "http=127.0.0.1:0";
const REDIS: &str = "redis=127.0.0.1:0";
const NOT_FOUND: i32 = 4;

async fn topics(client: &Client) -> Vec<TopicInfo> {
    within("list", client.list_topics()).await.expect("topics")
}

async fn names(client: &Client) -> Vec<String> {
    topics(client).await.into_iter().map(|info| info.topic).collect()
}

/// Kafka's rule of acks=all: acknowledged records are in the log until retention removes them
/// (<https://kafka.apache.org/documentation/#producerconfigs_acks>). A channel has no influence on that: `SUBSCRIBE`
/// creates no key and PUBLISH stores nothing (<https://redis.io/docs/latest/develop/interact/pubsub/>).
#[tokio::test]
async fn a_listener_decides_nothing_about_a_topic() {
    let mut server = Server::with(&[REDIS, "data=data", "default_partitions=2"]);
    let client = server.client("tcp").await;
    let mut channel = Redis::open(&server);
    let mut pattern = Redis::open(&server);
    assert_eq!(channel.call("SUBSCRIBE payments"), "(subscribe payments 1)");
    assert_eq!(pattern.call("PSUBSCRIBE pay*"), "(psubscribe pay* 1)");
    assert_eq!(Redis::open(&server).call("PUBLISH payments early"), "2");
    assert_eq!(channel.answer(), "(message payments early)");
    assert_eq!(pattern.answer(), "(pmessage pay* payments early)");
    assert_eq!(names(&client).await, Vec::<String>::new(), "a channel is not listed");

    let mut kafka = Raw::connect(&server).await;
    kafka.create("payments").await;
    let sent = [Record::new("payment 1"), Record::new("payment 2"), Record::new("payment 3")];
    let answer = kafka.call(9, produce("payments", 1, -1, batch(Codec::None, &sent))).await;
    assert_eq!(produced(&answer), (0, 0, None));
    for number in 1..=3 {
        assert_eq!(channel.answer(), format!("(message payments payment {number})"));
        assert_eq!(pattern.answer(), format!("(pmessage pay* payments payment {number})"));
    }
    let info = within("describe", client.describe_topic("payments")).await.expect("a topic");
    assert_eq!((info.settings.storage, info.settings.partitions), (Storage::Disk, 2));
    // Now a PUBLISH publishes to the topic.
    assert_eq!(Redis::open(&server).call("PUBLISH payments late"), "2");
    assert_eq!(channel.answer(), "(message payments late)");

    // All listeners disconnect.
    drop((channel, pattern));
    until("the listeners are gone", async || metric(&client, "thalweg_subscribers").await == 0).await;
    for _ in 0..2 {
        let answer = kafka.call(11, fetch("payments", 1, 0, 0)).await;
        let (code, end, batches) = fetched(&answer);
        assert_eq!((code, end), (0, 3));
        let values: Vec<_> = records(&batches).iter().map(|record| record.value().to_vec()).collect();
        assert_eq!(values, [b"payment 1", b"payment 2", b"payment 3"]);
        server.crash_and_restart();
        kafka = Raw::connect(&server).await;
    }
}

/// Channels leave no trace, and are counted while they are in use.
#[tokio::test]
async fn a_channel_goes_with_its_last_listener() {
    let server = Server::with(&[REDIS]);
    let client = server.client("tcp").await;
    let mut one = Redis::open(&server);
    let mut other = Redis::open(&server);
    let mut redis = Redis::open(&server);
    one.call("SUBSCRIBE news");
    other.call("PSUBSCRIBE *");
    assert_eq!(metric(&client, "thalweg_channels").await, 0, "nothing was published yet");
    assert_eq!((redis.call("PUBLISH news a"), redis.call("PUBLISH sport b")), ("2".into(), "1".into()));
    assert_eq!(one.answer(), "(message news a)");
    assert_eq!([other.answer(), other.answer()], ["(pmessage * news a)", "(pmessage * sport b)"]);
    assert_eq!(metric(&client, "thalweg_channels").await, 2);
    assert_eq!(
        (redis.call("TYPE news"), redis.call("DBSIZE"), redis.call("XLEN news")),
        ("none".into(), "0".into(), "0".into())
    );
    within("describe", client.describe_topic("news")).await.expect_err("no topic");

    // A topic with the name replaces the channel, until it is deleted.
    within("create", client.create_topic("news", TopicSettings::default())).await.expect("created");
    publish(&client, "news", ["c"]).await;
    assert_eq!((one.answer(), other.answer()), ("(message news c)".into(), "(pmessage * news c)".into()));
    assert_eq!(metric(&client, "thalweg_channels").await, 1);
    within("delete", client.delete_topic("news")).await.expect("deleted");
    assert_eq!(redis.call("PUBLISH news d"), "2");
    assert_eq!((one.answer(), other.answer()), ("(message news d)".into(), "(pmessage * news d)".into()));

    drop((one, other));
    until("the channels are gone", async || metric(&client, "thalweg_channels").await == 0).await;
    assert_eq!(redis.call("PUBLISH news e"), "0");
    assert_eq!((names(&client).await, metric(&client, "thalweg_topics").await), (Vec::new(), 0));
}

/// The topic gets the broker's defaults, whichever door uses the name first.
#[tokio::test]
async fn first_use_creates_the_same_topic_at_every_door() {
    let server = Server::with(&[REDIS, "data=data", "default_partitions=3"]);
    let client = server.client("tcp").await;
    publish(&client, "native", ["x"]).await;
    drop(subscribe(&client, "created-by-subscribing", Start::Live).await);
    Raw::connect(&server).await.create("kafka").await;
    on(&server, ["publish", "command-line", "x"]).ok();
    let all = topics(&client).await;
    assert_eq!(all.len(), 4);
    assert!(all.iter().all(|info| info.settings == all[0].settings), "{all:?}");
    assert_eq!((all[0].settings.storage, all[0].settings.partitions), (Storage::Disk, 3));
}

/// A database of Redis's clients is durable if `redis_durable` is set, even if another door used it first.
#[tokio::test]
async fn first_use_does_not_decide_whether_a_database_is_durable() {
    let mut server = Server::with(&[REDIS, "data=data", "redis_durable=true"]);
    on(&server, ["cache", "put", "db3", "native", "1"]).ok();
    let mut redis = Redis::open(&server);
    assert_eq!((redis.call("SELECT 3"), redis.call("SET redis 2")), ("OK".into(), "OK".into()));
    drop(redis);
    server.crash_and_restart();
    let mut redis = Redis::open(&server);
    assert_eq!((redis.call("SELECT 3"), redis.call("MGET native redis")), ("OK".into(), "(1 2)".into()));
    let output = on(&server, ["cache", "stats", "db33"]).failed(NOT_FOUND);
    assert!(output.contains("did you mean 'db3'"), "{output}");
}

/// An inbox is deleted with its owner, so acknowledgements of committed records would be wrong.
#[tokio::test]
async fn kafka_does_not_write_to_inboxes() {
    let server = Server::start();
    let client = server.client("tcp").await;
    let _inbox = subscribe(&client, "_inbox.mine", Start::Live).await;
    let mut kafka = Raw::connect(&server).await;
    let answer = kafka.call(9, produce("_inbox.mine", 0, -1, batch(Codec::None, &[Record::new("x")]))).await;
    assert_eq!(produced(&answer).0, 17, "an invalid topic");
}

/// A nonexistent name is an error that suggests a similar one, and the topic is not created.
#[tokio::test]
async fn reading_creates_nothing() {
    let server = Server::with(&[REDIS]);
    let client = server.client("tcp").await;
    publish(&client, "orders", ["x"]).await;
    within("create", client.create_queue(NewQueue::new("jobs"))).await.expect("created");
    let before = names(&client).await;
    let check = |error: client::Error, meant: &str| {
        assert_eq!(error.kind, ErrorKind::NotFound);
        assert!(error.message.contains("did you mean") && error.message.contains(meant), "{error}");
    };
    for scheme in ["tcp", "quic"] {
        let client = server.client(scheme).await;
        check(within("open", client.subscribe("ordres").open()).await.map(drop).expect_err("refused"), "'orders'");
        let open = client.subscribe("ordres").group("g").open();
        check(within("open", open).await.map(drop).expect_err("refused"), "'orders'");
    }
    let consumer = within("join", client.consumer("g").topic("oders").open()).await;
    check(consumer.map(drop).expect_err("refused"), "'orders'");
    let receive = client.queue("jbos");
    check(
        within("receive", receive.receive(&client::Receive::default())).await.map(drop).expect_err("refused"),
        "jobs",
    );
    assert_eq!(Redis::open(&server).call("XREAD STREAMS ordres 0"), "nil");

    let output = on(&server, ["subscribe", "ordres"]).failed(NOT_FOUND);
    assert!(output.contains("did you mean 'orders'"), "{output}");
    on(&server, ["subscribe", "ordres", "--consumer-group", "g"]).failed(NOT_FOUND);
    let output = on(&server, ["queue", "receive", "jbos"]).failed(NOT_FOUND);
    assert!(output.contains("did you mean jobs"), "{output}");
    assert_eq!(names(&client).await, before);

    assert_eq!(on(&server, ["subscribe", "more", "--create", "--end", "--from", "earliest"]).ok(), "");
    assert_eq!(on(&server, ["queue", "receive", "tasks", "--create"]).ok(), "");
    assert_eq!(on(&server, ["queue", "receive", "jobs", "--create"]).ok(), "", "one that exists stays as it is");
    assert!(names(&client).await.contains(&"more".to_owned()));
    within("describe", client.queue("tasks").describe()).await.expect("a queue");
}

/// A subscription may wait for its topic: it receives the first record, and creates nothing until then.
#[tokio::test]
async fn a_subscription_may_wait_for_its_topic() {
    let server = Server::with(&["default_partitions=2"]);
    for scheme in ["tcp", "quic"] {
        let client = server.client(scheme).await;
        let open = async |builder: client::SubscriptionBuilder| {
            within("open", builder.missing(Missing::Wait).open()).await.expect("a subscription")
        };
        let mut all = open(client.subscribe(scheme)).await;
        let mut one = open(client.subscribe(scheme).partition(Some(1))).await;
        let mut none = open(client.subscribe(scheme).partition(Some(7))).await;
        assert!(all.sources().is_empty() && !names(&client).await.contains(&scheme.to_owned()));
        publish(&client, scheme, 0..4).await;
        assert_eq!(values(&mut all, 4).await.len(), 4);
        assert_eq!(values(&mut one, 2).await.len(), 2);
        let error = within("the end", none.next()).await.map(drop).expect_err("no such partition");
        assert_eq!(error.kind, ErrorKind::NotFound);
        // It ends with its topic, as any other.
        within("delete", client.delete_topic(scheme)).await.expect("deleted");
        let error = within("the end", all.next()).await.map(drop).expect_err("deleted");
        assert_eq!((error.kind, error.message), (ErrorKind::NotFound, format!("topic {scheme} was deleted")));
    }
}

#[tokio::test]
async fn a_subscriber_of_a_deleted_topic_is_told() {
    let server = Server::start();
    let client = server.client("tcp").await;
    publish(&client, "t", ["x"]).await;
    let mut named = subscribe(&client, "t", Start::Live).await;
    let url = server.url("tcp");
    let reader = program()
        .args(["--server", &url, "subscribe", "t"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    until("both subscribe", async || metric(&client, "thalweg_subscribers").await == 2).await;
    within("delete", client.delete_topic("t")).await.expect("deleted");
    let error = within("the end", named.next()).await.map(drop).expect_err("deleted");
    assert_eq!((error.kind, error.message.as_str()), (ErrorKind::NotFound, "topic t was deleted"));
    let ended = reader.wait_with_output().expect("ended");
    assert_eq!(ended.status.code(), Some(NOT_FOUND));
    assert!(String::from_utf8_lossy(&ended.stderr).contains("topic t was deleted"), "{ended:?}");
    assert_eq!(names(&client).await, Vec::<String>::new(), "it is not created again");
}

/// Returns the values of a page of records, in order.
fn expected_values(page: &Value) -> Vec<Value> {
    page["records"].as_array().expect("a list").iter().map(|record| record["value"].clone()).collect()
}

/// Rules for values in the guide "One record at every door".
#[tokio::test]
async fn a_record_is_the_same_at_every_door() {
    let server = Server::with(&[REDIS, HTTP, "pubsub=127.0.0.1:0", "pubsub_project=shop"]);
    let client = server.client("tcp").await;
    let mut kafka = Raw::connect(&server).await;
    kafka.create("orders").await;
    for name in ["orders-sqs", "orders-http", "orders-native"] {
        let queue = NewQueue { topic: "orders".into(), ..NewQueue::new(name) };
        within("create", client.create_queue(queue)).await.expect("created");
    }
    let subscription = json!({ "topic": "projects/shop/topics/orders" });
    done(server.pubsub(), "PUT", "/v1/projects/shop/subscriptions/billing", subscription).await;
    let mut redis = Redis::open(&server);
    let mut channel = Redis::open(&server);
    assert_eq!(channel.call("SUBSCRIBE orders"), "(subscribe orders 1)");

    // Queues skip records that are older than their retention.
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let now = since_1970.as_millis() as i64;
    let record =
        |value: Option<&'static [u8]>| Record { timestamp_ms: now, value: value.map(Bytes::from), ..Record::default() };
    let text = record(Some(b"one coffee")).with_key("c7").with_header("unit", "cup");
    let fields = Record { headers: vec![("item".into(), Some("tea".into()))], ..record(None) };
    let sent = [text, record(Some(b"")), record(Some(&[0xff, 0])), record(None), fields, record(Some(b"a\0b"))];
    let answer = kafka.call(9, produce("orders", 0, -1, batch(Codec::None, &sent))).await;
    assert_eq!(produced(&answer), (0, 0, None));

    // Kafka and the native protocol return the unchanged bytes.
    let got = records(&fetched(&kafka.call(11, fetch("orders", 0, 0, 0)).await).2);
    assert_eq!(
        got.iter().map(|r| r.value.clone()).collect::<Vec<_>>(),
        sent.iter().map(|r| r.value.clone()).collect::<Vec<_>>()
    );
    let mut native = subscribe(&client, "orders", Start::Earliest).await;
    for (message, sent) in reading::take(&mut native, sent.len()).await.iter().zip(&sent) {
        assert_eq!(
            (&message.record.key, &message.record.value, &message.record.headers),
            (&sent.key, &sent.value, &sent.headers)
        );
    }
    let printed = on(&server, ["subscribe", "orders", "--from", "earliest", "-n", "5"]).ok();
    assert_eq!(printed, "one coffee\n\n\u{fffd}\0\n\n{\"item\":\"tea\"}\n");

    // HTTP: a value that is not UTF-8 is in base64, with its key and headers.
    let page = done(server.door("http"), "GET", "/v1/topics/orders/records?offset=0", Value::Null).await;
    let found = page["records"].as_array().expect("a list");
    let shown: Vec<_> = found.iter().map(|r| (r["value"].clone(), r["encoding"].clone())).collect();
    let expected = [
        (json!("one coffee"), "utf8"),
        (json!(""), "utf8"),
        (json!("/wA="), "base64"),
        (Value::Null, "utf8"),
        (Value::Null, "utf8"),
        (json!("a\0b"), "utf8"),
    ];
    assert_eq!(shown, expected.map(|(value, encoding)| (value, json!(encoding))));
    assert_eq!(
        (&found[0]["key"], &found[0]["headers"], &found[4]["headers"]),
        (&json!("c7"), &json!({"unit": "cup"}), &json!({"item": "tea"}))
    );
    let got = done(server.door("http"), "POST", "/v1/queues/orders-http/receive?max=10", Value::Null).await;
    let bodies: Vec<_> = got["messages"].as_array().expect("a list").iter().map(|m| m["body"].clone()).collect();
    assert_eq!(bodies, expected_values(&page));

    // A queue of the native protocol has only bytes: empty for a null value.
    let queue = client.queue("orders-native");
    let wanted = Receive { count_max: 10, ..Receive::default() };
    let got = within("receive", queue.receive(&wanted)).await.expect("received").messages;
    let bodies: Vec<_> = got.iter().map(|one| one.message.body.clone()).collect();
    let values: Vec<_> = sent.iter().map(|record| record.value.clone().unwrap_or_default()).collect();
    assert_eq!(bodies, values);

    // Redis: fields of an entry, and the message of a channel.
    let entries = redis.call("XRANGE orders - +");
    let entries = entries.replace(&now.to_string(), "now");
    assert!(entries.starts_with("((now-0 (key c7 value one coffee unit cup)) (now-1 (value )) "), "{entries}");
    assert!(entries.contains("(now-3 (value )) (now-4 (value  item tea))"), "{entries}");
    let received: Vec<String> = (0..5).map(|_| channel.answer()).collect();
    let expected =
        ["one coffee", "", "\u{fffd}\0", "", "{\"item\":\"tea\"}"].map(|value| format!("(message orders {value})"));
    assert_eq!(received, expected);

    // Pub/Sub: data and attributes. An attribute must be UTF-8.
    let pulled =
        done(server.pubsub(), "POST", "/v1/projects/shop/subscriptions/billing:pull", json!({"maxMessages": 10})).await;
    let message = |at: usize| &pulled["receivedMessages"][at]["message"];
    assert_eq!((&message(0)["data"], &message(0)["attributes"]), (&json!("b25lIGNvZmZlZQ=="), &json!({"unit": "cup"})));
    assert_eq!((&message(2)["data"], &message(4)["attributes"]), (&json!("/wA="), &json!({"item": "tea"})));
    assert!([1, 3, 4].iter().all(|at| message(*at)["data"].as_str().unwrap_or_default().is_empty()), "{pulled}");

    // SQS: a body is a text, and is marked if it was not.
    let sqs = Sqs::of(&server);
    let url = format!("http://{}/000000000000/orders-sqs", server.sqs);
    let got = sqs.receive_with(&url, json!({"MaxNumberOfMessages": 10, "WaitTimeSeconds": NOW})).await;
    let shown: Vec<_> = got
        .iter()
        .map(|m| (m["Body"].clone(), m["MessageAttributes"]["thalweg.encoding"]["StringValue"].clone()))
        .collect();
    let expected = [
        (json!("one coffee"), Value::Null),
        (json!(""), Value::Null),
        (json!("/wA="), json!("base64")),
        (json!(""), Value::Null),
        (json!("{\"item\":\"tea\"}"), json!("headers")),
        (json!("YQBi"), json!("base64")),
    ];
    assert_eq!(shown, expected);
}

/// Rules for names in the guide "One record at every door".
#[tokio::test]
async fn a_name_is_the_same_at_every_door() {
    let server = Server::with(&[REDIS, HTTP, "pubsub=127.0.0.1:0", "pubsub_project=shop"]);
    let client = server.client("tcp").await;
    let mut redis = Redis::open(&server);

    // A colon is allowed in Redis's keys, but not in topics.
    assert!(redis.call("XADD user:1 * value a").contains("-0"));
    assert!(redis.call("XADD a..b * value a").contains("-0"));
    assert_eq!(names(&client).await, ["a_x2e_.b", "user_x3a_1"]);
    let refused = within("publish", client.publish("user:1", Record::new("a"))).await.map(drop).expect_err("no name");
    assert_eq!(refused.kind, ErrorKind::Invalid);
    let (status, answer) = call(server.door("http"), "PUT", "/v1/topics/user:1", &json!({})).await;
    assert_eq!((status, &answer["error"]["kind"]), (400, &json!("invalid")), "{answer}");
    let mut kafka = Raw::connect(&server).await;
    let answer = kafka.call(9, produce("user:1", 0, -1, batch(Codec::None, &[Record::new("a")]))).await;
    assert_eq!(produced(&answer).0, 17, "INVALID_TOPIC_EXCEPTION");

    // A dot is allowed everywhere except in SQS's names.
    within("publish", client.publish("orders.eu", Record::new("one"))).await.map(drop).expect("published");
    assert!(redis.call("XRANGE orders.eu - +").contains("(value one)"));
    let page = done(server.door("http"), "GET", "/v1/topics/orders.eu/records?offset=0", Value::Null).await;
    assert_eq!(page["records"][0]["value"], "one");
    done(server.pubsub(), "GET", "/v1/projects/shop/topics/orders.eu", Value::Null).await;
    let sqs = Sqs::of(&server);
    let (status, code, _) = sqs.call("CreateQueue", json!({ "QueueName": "orders.eu" })).await.error();
    assert_eq!((status, code.as_str()), (400, "InvalidParameterValue"));

    // Pub/Sub allows characters that topics do not, and names of other projects.
    for (name, topic) in [("shop/topics/a~bc", "a_x7Ebc"), ("other/topics/orders", "_project.other.orders")] {
        done(server.pubsub(), "PUT", &format!("/v1/projects/{name}"), json!({})).await;
        within("describe", client.describe_topic(topic)).await.expect("the topic is there");
    }
}
