//! Quotas: back-pressure or an error at each door, and no effect on others.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use client::{Client, ClientSettings, Login, Record, TopicSettings};
use engine::codec::Codec;
use kafka_protocol::messages::alter_client_quotas_request::{EntityData, EntryData, OpData};
use kafka_protocol::messages::describe_client_quotas_request::ComponentData;
use kafka_protocol::messages::{AlterClientQuotasRequest, DescribeClientQuotasRequest, MetadataRequest};
use serde_json::{Value, json};

use super::access::exchange;
use super::kafka::raw::{Raw, batch, fetch, fetched, produce, produced, text};
use super::kafka::security::log_in;
use super::redis::commands::Redis;
use super::sqs::client::Sqs;
use crate::support::command;
use crate::support::server::{PATIENCE, Server, metric, until, within};

const USERS: &str = "users=bob:secret,ann:secret,root:r00t";

/// Starts a broker that requires logins, so that its clients have names.
fn server() -> Server {
    Server::with(&[
        "auth=required",
        USERS,
        "super_users=root",
        "http=127.0.0.1:0",
        "redis=127.0.0.1:0",
        "pubsub=127.0.0.1:0",
        "pubsub_project=shop",
    ])
}

fn set(server: &Server, args: &[&str]) {
    command::on(server, [&["quota", "set"], args].concat()).ok();
}

fn delete(server: &Server, args: &[&str]) {
    command::on(server, [&["quota", "delete"], args].concat()).ok();
}

fn basic(user: &str) -> String {
    format!("Basic {}", BASE64.encode(format!("{user}:secret")))
}

fn http(server: &Server, user: &str, method: &str, path: &str, body: &str) -> (u16, String) {
    exchange(server.door("http"), method, path, Some(&basic(user)), body)
}

async fn native(server: &Server, scheme: &str, user: &str) -> Client {
    let login = Some(Login::new(user, "secret").expect("a login"));
    let address = client::Address::parse(&server.url(scheme)).expect("an address");
    let settings = ClientSettings { login, ..ClientSettings::default() };
    within("a connection", Client::connect_with(address, settings)).await.expect("connected")
}

fn redis(server: &Server, user: &str) -> Redis {
    let mut redis = Redis::open(server);
    assert_eq!(redis.call(&format!("AUTH {user} secret")), "+OK");
    redis
}

/// Returns the value of a counter of a door.
fn throttled(server: &Server, door: &str) -> u64 {
    let name = format!("thalweg_quota_throttled_total{{door=\"{door}\"}} ");
    let (_, metrics) = http(server, "ann", "GET", "/metrics", "");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&name).map(str::to_owned));
    line.unwrap_or_else(|| panic!("{name}: {metrics}")).trim().parse().expect("a number")
}

#[tokio::test]
async fn a_producer_over_its_quota_is_told_and_muted_and_others_are_not() {
    let server = server();
    set(&server, &["--user", "bob", "bytes_in=100KiB"]);
    let values: Vec<Record> = (0..3).map(|_| Record::new(vec![b'x'; 100 << 10])).collect();
    let large = || produce("t", 0, -1, batch(Codec::None, &values));
    let mut bob = log_in(&server, "bob", "secret").await.expect("it is right");
    let mut ann = log_in(&server, "ann", "secret").await.expect("it is right");
    bob.create("t").await;
    let response = bob.call(7, large()).await;
    assert_eq!(produced(&response).0, 0, "a request that exceeds the quota is answered");
    assert!(response.throttle_time_ms > 500, "{}", response.throttle_time_ms);
    let begin = Instant::now();
    bob.send(4, &MetadataRequest::default()).await;
    assert_eq!(ann.call(7, large()).await.throttle_time_ms, 0);
    assert_eq!(ann.call(4, MetadataRequest::default()).await.brokers.len(), 1);
    // KIP-219: the response is sent first, and then the connection is not read for that time.
    bob.answer::<MetadataRequest>(4).await;
    assert!(begin.elapsed() > Duration::from_millis(500), "{:?}", begin.elapsed());
    assert!(throttled(&server, "kafka") > 0 && throttled(&server, "http") == 0);
    // Records without an acknowledgement are charged, too.
    let begin = Instant::now();
    let frame = bob.frame_of(7, &produce("t", 0, 0, batch(Codec::None, &values)));
    bob.send_bytes(&frame).await;
    bob.call(4, MetadataRequest::default()).await;
    assert!(begin.elapsed() > Duration::from_millis(500), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn a_consumer_over_its_quota_gets_no_more_records_until_the_quota_is_changed() {
    let server = server();
    let mut ann = log_in(&server, "ann", "secret").await.expect("it is right");
    ann.create("t").await;
    let value = [Record::new(vec![b'x'; 100 << 10])];
    for _ in 0..4 {
        ann.call(7, produce("t", 0, -1, batch(Codec::None, &value))).await;
    }
    set(&server, &["--user", "bob", "bytes_out=1000"]);
    let mut bob = log_in(&server, "bob", "secret").await.expect("it is right");
    let first = bob.call(8, fetch("t", 0, 0, 0)).await;
    // A fetch has at most what the quota saves, but at least one batch, as with Kafka.
    assert_eq!((fetched(&first).2.len(), first.throttle_time_ms), (1, 30_000));
    // Another connection of the same user gets no records.
    let mut other = log_in(&server, "bob", "secret").await.expect("it is right");
    let second = other.call(8, fetch("t", 0, 0, 1000)).await;
    assert_eq!(fetched(&second).2.len(), 0);
    assert!(second.throttle_time_ms > 0);
    let of_ann = ann.call(8, fetch("t", 0, 0, 0)).await;
    assert_eq!((fetched(&of_ann).2.len(), of_ann.throttle_time_ms), (4, 0));
    // Both are muted for half a minute, but not if the quota is raised: then their debt is small.
    set(&server, &["--user", "bob", "bytes_out=1GiB"]);
    for raw in [&mut bob, &mut other] {
        let begin = Instant::now();
        let response = raw.call(8, fetch("t", 0, 0, 0)).await;
        assert!(begin.elapsed() < PATIENCE);
        // What is left of the debt takes less than a millisecond.
        assert!(fetched(&response).2.len() == 4 && response.throttle_time_ms <= 2, "{response:?}");
    }
}

#[tokio::test]
async fn requests_of_a_client_id_are_limited() {
    let server = server();
    set(&server, &["--client", "raw", "requests=1"]);
    let mut ann = log_in(&server, "ann", "secret").await.expect("it is right");
    let mut bob = log_in(&server, "bob", "secret").await.expect("it is right");
    let mut throttle_ms = 0;
    for _ in 0..3 {
        throttle_ms = throttle_ms.max(ann.call(4, MetadataRequest::default()).await.throttle_time_ms);
    }
    assert!(throttle_ms > 0);
    // All users share the quota of a client id.
    assert!(bob.call(4, MetadataRequest::default()).await.throttle_time_ms > 0);
    // Clients of other doors have none.
    assert!((0..10).all(|_| http(&server, "bob", "GET", "/v1/topics", "").0 == 200));
    // That of a user is more specific.
    set(&server, &["--user", "ann", "requests=10000"]);
    for _ in 0..10 {
        assert_eq!(ann.call(4, MetadataRequest::default()).await.throttle_time_ms, 0);
    }
}

fn entity(parts: &[(&str, Option<&str>)]) -> Vec<EntityData> {
    let part = |(kind, name): &(&str, Option<&str>)| {
        EntityData::default().with_entity_type(text(kind)).with_entity_name(name.map(text))
    };
    parts.iter().map(part).collect()
}

/// Returns a change: values that are set, or deleted if there is none.
fn entry(parts: &[(&str, Option<&str>)], ops: &[(&str, Option<f64>)]) -> EntryData {
    let op = |(key, value): &(&str, Option<f64>)| {
        OpData::default().with_key(text(key)).with_value(value.unwrap_or(7.0)).with_remove(value.is_none())
    };
    EntryData::default().with_entity(entity(parts)).with_ops(ops.iter().map(op).collect())
}

async fn alter(raw: &mut Raw, validate_only: bool, entries: Vec<EntryData>) -> Vec<i16> {
    let request = AlterClientQuotasRequest::default().with_entries(entries).with_validate_only(validate_only);
    let response = raw.call(1, request).await;
    assert!(response.entries.iter().all(|entry| entry.error_message.is_some() == (entry.error_code != 0)));
    response.entries.iter().map(|entry| entry.error_code).collect()
}

/// Describes quotas with components such as `user=bob`, `user=<default>` and `user`, as text in order.
async fn describe(raw: &mut Raw, version: i16, strict: bool, components: &[&str]) -> Result<Vec<String>, i16> {
    let component = |written: &&str| {
        let (kind, name) = written.split_once('=').map_or((*written, None), |(kind, name)| (kind, Some(name)));
        let (match_type, name) = match name {
            None => (2, None),
            Some("<default>") => (1, None),
            Some(name) => (0, Some(text(name))),
        };
        ComponentData::default().with_entity_type(text(kind)).with_match_type(match_type).with_match(name)
    };
    let components = components.iter().map(component).collect();
    let request = DescribeClientQuotasRequest::default().with_components(components).with_strict(strict);
    let response = raw.call(version, request).await;
    if response.error_code != 0 {
        assert!(response.error_message.is_some() && response.entries.is_none());
        return Err(response.error_code);
    }
    let mut entries: Vec<String> = Vec::new();
    for entry in response.entries.expect("entries") {
        let parts = entry.entity.iter().map(|part| {
            let name = part.entity_name.as_ref().map_or("<default>", |name| name.as_str());
            format!("{}={name}", part.entity_type.as_str())
        });
        let values = entry.values.iter().map(|value| format!("{}={}", value.key.as_str(), value.value));
        let mut words: Vec<String> = parts.collect();
        words.sort();
        entries.push(words.into_iter().chain(values).collect::<Vec<_>>().join(" "));
    }
    entries.sort();
    Ok(entries)
}

/// As `ClientQuotasImage.describe` and `ClientQuotaControlManager` in Kafka's source do.
#[tokio::test]
async fn kafka_tools_alter_and_describe_quotas() {
    let server = server();
    let mut raw = log_in(&server, "root", "r00t").await.expect("it is right");
    assert_eq!(describe(&mut raw, 1, false, &[]).await, Ok(Vec::new()));
    let [user, client] = [("user", Some("bob")), ("client-id", Some("etl"))];
    let entries = || {
        vec![
            entry(&[user, client], &[("producer_byte_rate", Some(1024.0)), ("consumer_byte_rate", Some(2048.0))]),
            entry(&[user], &[("producer_byte_rate", Some(4096.0))]),
            entry(&[("user", None)], &[("request_rate", Some(1000.5))]),
            entry(&[("user", None), ("client-id", None)], &[("producer_byte_rate", Some(5.0))]),
            entry(&[("client-id", Some("etl"))], &[("consumer_byte_rate", Some(6.0))]),
            entry(&[("ip", Some("10.0.0.1"))], &[("connection_creation_rate", Some(8.0))]),
            entry(&[("ip", None)], &[("connection_creation_rate", Some(9.0))]),
        ]
    };
    assert_eq!(alter(&mut raw, true, entries()).await, [0; 7]);
    assert_eq!(describe(&mut raw, 1, false, &[]).await, Ok(Vec::new()), "nothing is changed if only validated");
    assert_eq!(alter(&mut raw, false, entries()).await, [0; 7]);
    let both = "client-id=etl user=bob producer_byte_rate=1024 consumer_byte_rate=2048";
    let of_bob = "user=bob producer_byte_rate=4096";
    let of_each = "user=<default> request_rate=1000.5";
    let of_each_both = "client-id=<default> user=<default> producer_byte_rate=5";
    let of_etl = "client-id=etl consumer_byte_rate=6";
    let of_ip = "ip=10.0.0.1 connection_creation_rate=8";
    let of_each_ip = "ip=<default> connection_creation_rate=9";
    let cases: [(bool, &[&str], &[&str]); 13] = [
        (false, &[], &[of_each_both, both, of_etl, of_ip, of_each_ip, of_each, of_bob]),
        (true, &[], &[]),
        (false, &["user=bob"], &[both, of_bob]),
        (true, &["user=bob"], &[of_bob]),
        (true, &["user=bob", "client-id=etl"], &[both]),
        (false, &["user=<default>"], &[of_each_both, of_each]),
        (true, &["user=<default>"], &[of_each]),
        (false, &["user"], &[of_each_both, both, of_each, of_bob]),
        (true, &["user"], &[of_each, of_bob]),
        (true, &["user", "client-id"], &[of_each_both, both]),
        (false, &["client-id=etl"], &[both, of_etl]),
        (true, &["ip"], &[of_ip, of_each_ip]),
        (false, &["ip=10.0.0.2"], &[]),
    ];
    for (strict, components, expected) in cases {
        let found = describe(&mut raw, 0, strict, components).await;
        let mut expected: Vec<String> = expected.iter().map(|text| (*text).to_owned()).collect();
        expected.sort();
        assert_eq!(found, Ok(expected), "{strict} {components:?}");
    }
    for (code, components) in [(42, &["user=bob", "user"][..]), (42, &["ip", "user"]), (42, &[""]), (35, &["team"])] {
        assert_eq!(describe(&mut raw, 1, false, components).await, Err(code), "{components:?}");
    }
    for (match_type, name) in [(0, None), (1, Some("bob")), (2, Some("bob")), (3, None)] {
        let component = ComponentData::default().with_entity_type(text("user")).with_match_type(match_type);
        let request =
            DescribeClientQuotasRequest::default().with_components(vec![component.with_match(name.map(text))]);
        assert_eq!(raw.call(1, request).await.error_code, 42, "{match_type}");
    }
    // The command line has the same quotas.
    let listed = command::on(&server, ["quota", "list", "--json"]).json();
    assert!(listed.as_array().expect("a list").contains(&json!({ "user": "bob", "bytes_in": 4096.0 })), "{listed}");
    // A deleted quota that does not exist is no error, whatever its key, and the last one deletes its entity.
    let gone = entry(&[user], &[("producer_byte_rate", None), ("consumer_byte_rate", None), ("no_such_key", None)]);
    assert_eq!(alter(&mut raw, false, vec![gone]).await, [0]);
    assert_eq!(describe(&mut raw, 1, true, &["user=bob"]).await, Ok(Vec::new()));
    // Kafka has no roles and no tenants: they are types of entities that only this broker knows, as are the keys of
    // counts.
    set(&server, &["--role", "guests", "requests=1000"]);
    let of_acme = entry(&[("tenant", Some("acme"))], &[("topics", Some(5.0)), ("producer_byte_rate", Some(9.0))]);
    let of_bob = entry(&[user], &[("open_connections", Some(3.0))]);
    assert_eq!(alter(&mut raw, false, vec![of_acme, of_bob]).await, [0, 0]);
    let found = async |raw: &mut Raw, component: &str| describe(raw, 1, true, &[component]).await;
    assert_eq!(found(&mut raw, "role=guests").await, Ok(vec!["role=guests request_rate=1000".to_owned()]));
    let expected = "tenant=acme producer_byte_rate=9 topics=5";
    assert_eq!(found(&mut raw, "tenant").await, Ok(vec![expected.to_owned()]));
    assert_eq!(found(&mut raw, "user=bob").await, Ok(vec!["user=bob open_connections=3".to_owned()]));
    let listed = command::on(&server, ["quota", "list", "--json"]).json();
    let expected = json!({ "tenant": "acme", "bytes_in": 9.0, "topics": 5.0 });
    assert!(listed.as_array().expect("a list").contains(&expected), "{listed}");
    let gone = entry(&[("tenant", Some("acme"))], &[("topics", None), ("producer_byte_rate", None)]);
    assert_eq!(alter(&mut raw, false, vec![gone]).await, [0]);
    assert_eq!(found(&mut raw, "tenant").await, Ok(Vec::new()));
}

#[tokio::test]
async fn wrong_quotas_are_answered_as_kafka_does() {
    let server = Server::with(&["auth=required", USERS, "super_users=root", "authorization=true"]);
    let mut raw = log_in(&server, "root", "r00t").await.expect("it is right");
    let user = [("user", Some("bob"))];
    let rate = |value| [("producer_byte_rate", Some(value))];
    let wrong = vec![
        entry(&user, &rate(0.0)),
        entry(&[("user", Some("a"))], &rate(-1.0)),
        entry(&[("user", Some("b"))], &rate(f64::NAN)),
        entry(&[("user", Some("c"))], &rate(1.5)),
        entry(&[("user", Some("d"))], &rate(1e20)),
        entry(&[("user", Some("e"))], &[("no_such_key", Some(1.0))]),
        entry(&[("user", Some("f"))], &[("connection_creation_rate", Some(1.0))]),
        entry(&[("user", Some("g"))], &[("request_percentage", Some(50.0))]),
        entry(&[("user", Some("h"))], &[("controller_mutation_rate", Some(5.0))]),
        entry(&[("user", Some("i"))], &[rate(1.0)[0], rate(2.0)[0]]),
        entry(&[("ip", Some("10.0.0.1"))], &rate(1.0)),
        entry(&[("ip", Some("10.0.0.1"))], &[("connection_creation_rate", Some(1.5))]),
        entry(&[("ip", Some("no address"))], &[("connection_creation_rate", Some(1.0))]),
        entry(&[("ip", None), ("user", None)], &rate(1.0)),
        entry(&[("team", Some("x"))], &rate(1.0)),
        entry(&[("role", None)], &rate(1.0)),
        entry(&[("tenant", Some("a.b"))], &rate(1.0)),
        entry(&[("tenant", Some("x")), ("user", Some("y"))], &rate(1.0)),
        entry(&[("tenant", Some("x")), ("client-id", Some("y"))], &rate(1.0)),
        entry(&[("user", Some("m"))], &[("topics", Some(1.0))]),
        entry(&[("client-id", Some("n"))], &[("open_connections", Some(1.0))]),
        entry(&[("tenant", Some("x"))], &[("topics", Some(0.5))]),
        entry(&[("user", Some(""))], &rate(1.0)),
        entry(&[("client-id", Some(""))], &rate(1.0)),
        entry(&[("user", Some("j")), ("user", Some("k"))], &rate(1.0)),
        entry(&[], &rate(1.0)),
        // The first of two is changed.
        entry(&[("user", Some("twice"))], &rate(1.0)),
        entry(&[("user", Some("twice"))], &rate(2.0)),
    ];
    let codes = alter(&mut raw, false, wrong).await;
    assert_eq!(codes, [vec![42; 26], vec![0, 42]].concat());
    let expected = Ok(vec!["user=twice producer_byte_rate=1".to_owned()]);
    assert_eq!(describe(&mut raw, 1, false, &[]).await, expected);
    // CLUSTER_AUTHORIZATION_FAILED: describing needs DescribeConfigs, altering AlterConfigs on the cluster.
    let mut bob = log_in(&server, "bob", "secret").await.expect("it is right");
    let refused = bob.call(1, DescribeClientQuotasRequest::default()).await;
    assert_eq!(refused.error_code, 31);
    let refused = AlterClientQuotasRequest::default().with_entries(vec![entry(&user, &rate(1.0))]);
    assert_eq!(bob.call(1, refused).await.entries[0].error_code, 31);
    assert_eq!(describe(&mut raw, 1, false, &[]).await, expected);
}

#[tokio::test]
async fn http_clients_over_their_quota_get_429_and_a_time_to_wait() {
    let server = server();
    set(&server, &["--user", "bob", "requests=1"]);
    let refused = (0..20).map(|_| http(&server, "bob", "GET", "/v1/topics", "")).find(|(status, _)| *status != 200);
    let (status, response) = refused.expect("one is refused");
    assert_eq!(status, 429, "{response}");
    let (head, body) = response.split_once("\r\n\r\n").expect("a head");
    let after =
        head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("retry-after: ").map(str::to_owned));
    let after: u64 = after.expect("a header").parse().expect("seconds");
    assert!(after >= 1);
    let error = &serde_json::from_str::<Value>(body).expect("JSON")["error"];
    assert_eq!(error["kind"], "busy");
    let message = error["message"].as_str().expect("a message");
    assert!(message.contains("User:bob at 127.0.0.1 has exceeded a quota"), "{message}");
    assert!(message.contains(&format!("wait {after} s,")), "as the header says: {message}");
    assert_eq!(error["retry_after_ms"].as_u64().map(|ms| ms.div_ceil(1000)), Some(after));
    assert!((0..20).all(|_| http(&server, "ann", "GET", "/v1/topics", "").0 == 200), "others are not limited");
    assert!(throttled(&server, "http") > 0);
    let begin = Instant::now();
    delete(&server, &["--user", "bob"]);
    until("bob is served", async || http(&server, "bob", "GET", "/v1/topics", "").0 == 200).await;
    assert!((0..5).all(|_| http(&server, "bob", "GET", "/v1/topics", "").0 == 200), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn a_debt_for_writing_does_not_delay_reading() {
    let server = server();
    set(&server, &["--user", "bob", "bytes_in=1000"]);
    let body = json!({ "records": [{ "value": "x".repeat(20_000) }] }).to_string();
    assert_eq!(http(&server, "bob", "POST", "/v1/topics/t/records", &body).0, 200, "the first one is accepted");
    assert_eq!(http(&server, "bob", "POST", "/v1/topics/t/records", &body).0, 429);
    assert_eq!(http(&server, "bob", "GET", "/v1/topics/t/records", "").0, 200);
    // A body without a length is charged once it was read.
    set(&server, &["--user", "ann", "bytes_in=1000"]);
    let mut socket = TcpStream::connect(server.door("http")).expect("connected");
    let head = "POST /v1/topics/t/records HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    let chunk = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    let login = basic("ann");
    write!(socket, "{head}Authorization: {login}\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}").expect("sent");
    socket.set_read_timeout(Some(PATIENCE)).expect("set");
    let status = BufReader::new(socket).lines().next().expect("a line").expect("a line");
    assert_eq!(status, "HTTP/1.1 200 OK");
    until("ann is charged", async || http(&server, "ann", "POST", "/v1/topics/t/records", &body).0 == 429).await;
}

#[tokio::test]
async fn pubsub_clients_over_their_quota_get_resource_exhausted_and_a_time_to_wait() {
    let server = server();
    set(&server, &["--user", "bob", "requests=1"]);
    let list = |user| exchange(server.door("pubsub"), "GET", "/v1/projects/shop/topics", Some(&basic(user)), "");
    let (status, response) = (0..20).map(|_| list("bob")).find(|(status, _)| *status != 200).expect("one is refused");
    // The body may be in chunks.
    let body = &response[response.find('{').expect("JSON")..=response.rfind('}').expect("JSON")];
    let error = &serde_json::from_str::<Value>(body).expect("JSON")["error"];
    assert_eq!((status, &error["status"]), (429, &"RESOURCE_EXHAUSTED".into()));
    assert_eq!(error["details"][0]["@type"], "type.googleapis.com/google.rpc.RetryInfo");
    let delay = error["details"][0]["retryDelay"].as_str().and_then(|text| text.strip_suffix('s')).expect("a time");
    assert!(delay.parse::<f64>().expect("seconds") >= 1.0);
    assert!((0..20).all(|_| list("ann").0 == 200));
    delete(&server, &["--user", "bob"]);
    assert!((0..5).all(|_| list("bob").0 == 200));
}

/// Amazon's SDKs retry after `RequestThrottled` (`_THROTTLED_ERROR_CODES` in botocore/retries/standard.py).
#[tokio::test]
async fn sqs_clients_over_their_quota_are_throttled() {
    let server = Server::with(&["sqs=127.0.0.1:0", "http_trusted_proxies=127.0.0.1"]);
    set(&server, &["--address", "10.0.0.1", "requests=2"]);
    let sqs = Sqs::of(&server);
    let list = async |address: &str| {
        let headers = [
            ("x-amz-target", "AmazonSQS.ListQueues"),
            ("content-type", "application/x-amz-json-1.0"),
            ("x-forwarded-for", address),
        ];
        sqs.send("POST", "/", &headers, "{}").await
    };
    let mut refused = None;
    for _ in 0..20 {
        let answer = list("10.0.0.1").await;
        if answer.status != 200 {
            refused = Some(answer);
            break;
        }
    }
    let refused = refused.expect("one is refused");
    assert!(refused.header("retry-after").parse::<u64>().expect("seconds") >= 1);
    let (status, code, message) = refused.error();
    assert_eq!((status, code.as_str()), (403, "RequestThrottled"));
    assert!(message.contains("wait"), "{message}");
    for _ in 0..20 {
        assert_eq!(list("10.0.0.2").await.status, 200, "another address is not limited");
    }
    delete(&server, &["--address", "10.0.0.1"]);
    for _ in 0..5 {
        assert_eq!(list("10.0.0.1").await.status, 200);
    }
}

#[tokio::test]
async fn a_redis_connection_over_its_quota_is_not_read() {
    let server = server();
    set(&server, &["--user", "bob", "bytes_in=100KiB"]);
    let [mut bob, mut ann] = ["bob", "ann"].map(|user| redis(&server, user));
    let large = format!("SET k {}", "x".repeat(250 << 10));
    // The pause may begin while the command is being read.
    let begin = Instant::now();
    assert_eq!(bob.call(&large), "+OK");
    bob.ask("PING");
    assert_eq!((ann.call(&large), ann.call("PING")), ("+OK".to_owned(), "+PONG".to_owned()));
    assert_eq!(bob.answer(), "+PONG");
    assert!(begin.elapsed() > Duration::from_millis(500), "{:?}", begin.elapsed());
    assert!(throttled(&server, "redis") > 0);
    // What is read is charged, too: 250 KiB at 10 KiB/s are 24 s, unless the quota is deleted.
    delete(&server, &["--user", "bob"]);
    set(&server, &["--user", "bob", "bytes_out=10KiB"]);
    assert_eq!(bob.call("STRLEN k"), ":256000");
    assert_eq!(bob.call("GET k").len(), 256_000);
    let begin = Instant::now();
    bob.ask("PING");
    delete(&server, &["--user", "bob"]);
    assert_eq!(bob.answer(), "+PONG");
    assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn a_native_connection_over_its_quota_is_not_read() {
    let server = server();
    set(&server, &["--user", "bob", "bytes_in=100KiB"]);
    for scheme in ["tcp", "quic"] {
        let [bob, ann] = [native(&server, scheme, "bob").await, native(&server, scheme, "ann").await];
        let large = || Record::new(vec![b'x'; 250 << 10]);
        // The pause may begin while the first request is being read.
        let begin = Instant::now();
        within("a publish", bob.publish(scheme, large())).await.expect("published");
        within("a publish", ann.publish(scheme, large())).await.expect("published");
        let (listed, second) = tokio::join!(ann.list_topics(), bob.publish(scheme, large()));
        assert!(listed.is_ok() && second.is_ok());
        assert!(begin.elapsed() > Duration::from_millis(500), "{scheme} {:?}", begin.elapsed());
        // So that the next transport begins without a debt.
        delete(&server, &["--user", "bob"]);
        set(&server, &["--user", "bob", "bytes_in=100KiB"]);
    }
    assert!(throttled(&server, "native") > 0);
}

#[tokio::test]
async fn deliveries_wait_for_a_quota_and_end_with_their_connection() {
    let server = server();
    let admin = server.client("tcp").await;
    set(&server, &["--user", "bob", "bytes_out=400KiB"]);
    for scheme in ["tcp", "quic"] {
        admin.create_topic(scheme, TopicSettings::default()).await.expect("created");
        let [bob, ann] = [native(&server, scheme, "bob").await, native(&server, scheme, "ann").await];
        let mut of_bob = within("a subscription", bob.subscribe(scheme).open()).await.expect("subscribed");
        let mut of_ann = within("a subscription", ann.subscribe(scheme).open()).await.expect("subscribed");
        let begin = Instant::now();
        for _ in 0..40 {
            admin.publish(scheme, Record::new(vec![b'x'; 50 << 10])).await.expect("published");
            within("a record", of_ann.next()).await.expect("a record");
        }
        // They are 2000 KiB.
        for _ in 0..40 {
            within("a record", of_bob.next()).await.expect("a record");
        }
        assert!(begin.elapsed() > Duration::from_millis(500), "{scheme} {:?}", begin.elapsed());
        // A connection can be closed while its deliveries would wait for minutes.
        set(&server, &["--user", "ann", "bytes_out=100"]);
        admin.publish(scheme, Record::new(vec![b'x'; 50 << 10])).await.expect("published");
        within("a record", of_ann.next()).await.expect("a record");
        admin.publish(scheme, Record::new("late")).await.expect("published");
        assert!(tokio::time::timeout(Duration::from_millis(300), of_ann.next()).await.is_err(), "{scheme}");
        let begin = Instant::now();
        ann.close().await;
        assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
        set(&server, &["--user", "ann", "bytes_out=1GiB"]);
    }
    assert!(throttled(&server, "native") > 0);
}

#[tokio::test]
async fn events_wait_for_a_quota() {
    let server = server();
    set(&server, &["--user", "bob", "bytes_out=200KiB"]);
    let admin = server.client("tcp").await;
    admin.create_topic("t", TopicSettings::default()).await.expect("created");
    let open = |user: &str| {
        let mut events = TcpStream::connect(server.door("http")).expect("connected");
        events.set_read_timeout(Some(PATIENCE)).expect("set");
        let login = basic(user);
        let head = format!("GET /v1/topics/t/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: {login}\r\n\r\n");
        events.write_all(head.as_bytes()).expect("sent");
        let mut events = BufReader::new(events).lines();
        assert_eq!(events.next().expect("a line").expect("a line"), "HTTP/1.1 200 OK");
        events
    };
    let [mut of_bob, mut of_ann] = ["bob", "ann"].map(open);
    let records = |events: &mut std::io::Lines<BufReader<TcpStream>>, count: usize| {
        let records = events.by_ref().map_while(Result::ok).filter(|line| line.starts_with("event: record"));
        assert_eq!(records.take(count).count(), count);
    };
    let begin = Instant::now();
    for _ in 0..40 {
        admin.publish("t", Record::new("x".repeat(20 << 10))).await.expect("published");
        records(&mut of_ann, 1);
    }
    // They are 800 KiB.
    records(&mut of_bob, 40);
    assert!(begin.elapsed() > Duration::from_millis(500), "{:?}", begin.elapsed());
    assert!(throttled(&server, "http") > 0);
}

#[tokio::test]
async fn new_connections_of_an_address_are_limited() {
    let server = server();
    let admin = server.client("tcp").await;
    set(&server, &["--each-address", "connections=2"]);
    let mut served = 0;
    for _ in 0..20 {
        let mut redis = Redis::open(&server);
        let answer = redis.try_ask("PING").and_then(|()| redis.try_answer());
        served += usize::from(answer.as_deref() == Some("-NOAUTH Authentication required."));
    }
    assert!((1..20).contains(&served), "{served}");
    admin.list_topics().await.expect("connections that exist are served");
    until("a connection is served", async || {
        let mut redis = Redis::open(&server);
        redis.try_ask("PING").and_then(|()| redis.try_answer()).as_deref() == Some("-NOAUTH Authentication required.")
    })
    .await;
    assert!(metric(&admin, "thalweg_quota_throttled_total{door=\"redis\"}").await > 0);
}

#[tokio::test]
async fn members_of_a_role_have_its_quota_each() {
    let server = server();
    set(&server, &["--role", "guests", "requests=1"]);
    let get = |user: &str| http(&server, user, "GET", "/v1/topics", "").0;
    assert!((0..10).all(|_| get("bob") == 200), "he is no member");
    for user in ["bob", "ann"] {
        command::on(&server, ["role", "add", "guests", user]).ok();
    }
    assert!((0..20).any(|_| get("bob") == 429));
    assert_eq!(get("ann"), 200, "each member has it alone");
    // A quota of the user is more specific.
    set(&server, &["--user", "bob", "requests=10000"]);
    assert!((0..10).all(|_| get("bob") == 200));
}

#[tokio::test]
async fn quotas_are_listed_deleted_and_survive_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = format!("data={}", folder.path().display());
    let mut server = Server::with(&["auth=required", USERS, "http=127.0.0.1:0", &data]);
    assert!(command::on(&server, ["quota", "list"]).ok().contains("no quotas yet"));
    set(&server, &["--user", "bob", "--client", "etl", "bytes_in=1MiB", "requests=0.5"]);
    set(&server, &["--each-address", "connections=1000"]);
    set(&server, &["--role", "guests", "--each-client", "bytes_out=10"]);
    set(&server, &["--each-user", "requests=2"]);
    let expected = json!([
        { "address": null, "connections": 1000.0 },
        { "user": "bob", "client": "etl", "bytes_in": 1_048_576.0, "requests": 0.5 },
        { "user": null, "requests": 2.0 },
        { "role": "guests", "client": null, "bytes_out": 10.0 },
    ]);
    let listed = |server: &Server| command::on(server, ["quota", "list", "--json"]).json();
    assert_eq!(listed(&server), expected);
    let table = command::on(&server, ["quota", "list"]).ok();
    assert!(table.contains("user bob, client etl") && table.contains("1MiB"), "{table}");
    server.crash_and_restart();
    assert_eq!(listed(&server), expected);
    let get = |server: &Server| http(server, "bob", "GET", "/v1/topics", "").0;
    assert!((0..20).any(|_| get(&server) == 429), "they are effective");
    delete(&server, &["--user", "bob", "--client", "etl", "requests"]);
    assert_eq!(listed(&server)[1], json!({ "user": "bob", "client": "etl", "bytes_in": 1_048_576.0 }));
    delete(&server, &["--user", "bob", "--client", "etl"]);
    assert_eq!(listed(&server).as_array().map(Vec::len), Some(3));
    let wrong: [(i32, &[&str]); 12] = [
        (4, &["delete", "--user", "bob"]),
        (2, &["set", "--user", "bob", "requests"]),
        (2, &["set", "--user", "bob", "bytes_in=fast"]),
        (2, &["set", "--user", "bob", "--each-user", "requests=1"]),
        (2, &["set", "--address", "localhost", "requests=1"]),
        (2, &["set", "--user", "bob"]),
        (1, &["set", "requests=1"]),
        (1, &["set", "--user", "bob", "requests=-1"]),
        (1, &["set", "--user", "bob", "topics=5"]),
        (1, &["set", "--each-address", "open_connections=5"]),
        (1, &["set", "--tenant", "acme", "--client", "etl", "requests=5"]),
        (1, &["set", "--tenant", "a.b", "topics=5"]),
    ];
    for (code, args) in wrong {
        let done = command::on(&server, [&["quota"], args].concat());
        assert!(done.code.is_some_and(|code| code > 0), "{args:?} {code}: {done:?}");
    }
}
