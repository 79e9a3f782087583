//! The audit: its records of each door, its file, and who may read it.

use std::os::unix::fs::PermissionsExt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use client::{Client, ClientSettings, ErrorKind, Login, Record, Start};
use serde_json::{Value, json};

use super::access::exchange;
use super::kafka::raw::{Raw, text};
use super::redis::commands::Redis;
use crate::support::access::acls;
use crate::support::command::{self, feed};
use crate::support::server::{Server, until, within};
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::{CreateTopicsRequest, SaslAuthenticateRequest, SaslHandshakeRequest, TopicName};

const STRICT: [&str; 8] = [
    "auth=required",
    "authorization=true",
    "users=bob:secret,root:r00t",
    "super_users=root",
    "http=127.0.0.1:0",
    "redis=127.0.0.1:0",
    "pubsub=127.0.0.1:0",
    "pubsub_project=shop",
];

/// Returns all records, once `is_complete`.
async fn records(server: &Server, is_complete: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let mut found = Vec::new();
    until("the records", async || {
        let printed = command::on(server, ["audit", "--from", "earliest", "--until-end", "--json"]);
        let printed = if printed.code == Some(0) { printed.ok() } else { String::new() };
        found = printed.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        is_complete(&found)
    })
    .await;
    found
}

/// Returns `true` if a record has these values of door, user, action, name and outcome.
fn is(record: &Value, wanted: [&str; 5]) -> bool {
    let fields = ["door", "user", "action", "name", "outcome"];
    fields.iter().zip(wanted).all(|(field, wanted)| record[field].as_str().unwrap_or("-") == wanted)
}

async fn log_in(raw: &mut Raw, password: &str) -> i16 {
    raw.call(1, SaslHandshakeRequest::default().with_mechanism(text("PLAIN"))).await;
    let message = format!("\0root\0{password}").into_bytes();
    raw.call(2, SaslAuthenticateRequest::default().with_auth_bytes(message.into())).await.error_code
}

#[tokio::test]
async fn every_door_records_logins_acts_and_refusals() {
    let server = Server::with(&STRICT);
    let basic = |login: &str| format!("Basic {}", BASE64.encode(login));
    for (user, password) in [("root", "r00t"), ("bob", "secret")] {
        let login = Login::new(user, password).expect("a login");
        let settings = ClientSettings { login: Some(login), ..ClientSettings::default() };
        let address = client::Address::parse(&server.url("tcp")).expect("an address");
        let client = within("a connection", Client::connect_with(address, settings)).await.expect("it is right");
        let created = client.create_topic("native", client::TopicSettings::default()).await;
        assert_eq!(created.is_ok(), user == "root");
        client.close().await;
    }
    let mut raw = Raw::connect(&server).await;
    assert_eq!(log_in(&mut raw, "wr0ng").await, 58);
    let mut raw = Raw::connect(&server).await;
    assert_eq!(log_in(&mut raw, "r00t").await, 0);
    let topic = CreatableTopic::default().with_name(TopicName(text("kafka"))).with_num_partitions(1);
    let create = CreateTopicsRequest::default().with_topics(vec![topic.with_replication_factor(1)]);
    assert_eq!(raw.call(5, create).await.topics[0].error_code, 0);
    let http = server.door("http");
    assert_eq!(exchange(http, "PUT", "/v1/topics/http", Some(&basic("root:r00t")), "{}").0, 201);
    assert_eq!(exchange(http, "DELETE", "/v1/topics/http", Some(&basic("bob:secret")), "").0, 403);
    assert_eq!(exchange(http, "DELETE", "/v1/topics/http", Some(&basic("root:r00t")), "").0, 204);
    let pubsub = server.door("pubsub");
    let path = "/v1/projects/shop/topics/pubsub";
    assert_eq!(exchange(pubsub, "PUT", path, Some(&basic("root:r00t")), "{}").0, 200);
    let mut redis = Redis::open(&server);
    assert!(redis.call("AUTH root wr0ng").starts_with("-WRONGPASS"));
    assert_eq!(redis.call("AUTH root r00t"), "+OK");
    assert_eq!(redis.call("SET k v"), "+OK");
    assert_eq!(redis.call("FLUSHALL"), "+OK");
    assert_eq!((redis.call("MULTI"), redis.call("FLUSHDB")), ("+OK".into(), "+QUEUED".into()));
    redis.call("EXEC");
    assert!(feed(&server, ["user", "add", "ann"], "pencil\n").ok().contains("ann"));
    let token = command::on(&server, ["token", "create", "ann"]).ok();
    command::on(&server, ["acl", "add", "User:ann", "read", "topic", "t"]).ok();
    command::on(&server, ["role", "add", "monitor", "ann"]).ok();
    let of_token = format!("Bearer {}", token.lines().next().expect("a token"));
    assert_eq!(exchange(http, "GET", "/v1/topics", Some(&of_token), "").0, 200);
    command::on(&server, ["user", "delete", "ann"]).ok();

    let wanted: [[&str; 5]; 23] = [
        ["http", "ann", "login", "ann", "ok"],
        ["native", "root", "login", "root", "ok"],
        ["native", "root", "create topic", "native", "ok"],
        ["native", "bob", "request", "create topic native", "denied"],
        ["kafka", "root", "login", "root", "denied"],
        ["kafka", "root", "login", "root", "ok"],
        ["kafka", "root", "create topic", "kafka", "ok"],
        ["http", "root", "login", "root", "ok"],
        ["http", "root", "create topic", "http", "ok"],
        ["http", "bob", "request", "delete topic http", "denied"],
        ["http", "root", "delete topic", "http", "ok"],
        ["pubsub", "root", "create topic", "pubsub", "ok"],
        ["redis", "root", "login", "root", "denied"],
        ["redis", "root", "login", "root", "ok"],
        ["redis", "root", "flush cache", "db0 to db15", "ok"],
        ["redis", "root", "flush cache", "db0", "ok"],
        ["native", "ADMINISTRATOR", "login", "ADMINISTRATOR", "ok"],
        ["native", "ADMINISTRATOR", "set password", "ann SCRAM-SHA-256, ann SCRAM-SHA-512", "ok"],
        ["native", "ADMINISTRATOR", "create acls", "User:ann may read topic t", "ok"],
        ["native", "ADMINISTRATOR", "add role", "monitor ann", "ok"],
        ["native", "ADMINISTRATOR", "delete user", "ann", "ok"],
        ["redis", "root", "create cache", "db0", "ok"],
        ["native", "ADMINISTRATOR", "create token", &format!("{} of ann", &token[3..19]), "ok"],
    ];
    let missing = |found: &[Value]| {
        let missing = wanted.iter().filter(|wanted| !found.iter().any(|record| is(record, **wanted)));
        missing.copied().collect::<Vec<_>>()
    };
    // Each record is written after its act.
    let is_last = |record: &Value| is(record, ["native", "ADMINISTRATOR", "delete user", "ann", "ok"]);
    let found = records(&server, |found| found.iter().any(is_last)).await;
    assert_eq!(missing(&found), Vec::<[&str; 5]>::new(), "{found:#?}");
    let of_http = found.iter().filter(|record| is(record, ["http", "root", "login", "root", "ok"])).count();
    assert_eq!(of_http, 1, "a client that logs in with each request is recorded once in a while");
    let all: String = found.iter().map(Value::to_string).collect();
    for secret in ["r00t\"", "wr0ng", "secret", "pencil", &token[20..40]] {
        assert!(!all.contains(secret), "{secret} in {all}");
    }
    let shown = command::on(&server, ["audit", "--from", "earliest", "--until-end", "--refused", "--user", "bob"]).ok();
    assert!(
        shown.lines().count() == 2 && shown.contains("bob  127.0.0.1  http  request  delete topic http"),
        "{shown}"
    );
}

/// Only an entry with the name of the topic lets a user read it, and nobody may change it.
#[tokio::test]
async fn the_topic_is_read_by_name_and_changed_by_no_client() {
    let server = Server::with(&STRICT);
    let admin = server.client("tcp").await;
    for entry in ["all topic *", "all group *"] {
        admin.create_acls(acls("User:bob", entry, true)).await.expect("added");
    }
    records(&server, |found| !found.is_empty()).await;
    let login = Some(Login::new("bob", "secret").expect("a login"));
    let bob = server.client_with("tcp", ClientSettings { login, ..ClientSettings::default() }).await;
    let read = async || bob.subscribe("_audit").start(Start::Earliest).open().await.map(drop).map_err(|e| e.kind);
    assert_eq!(read().await, Err(ErrorKind::Denied));
    for client in [&bob, &admin] {
        assert!(client.publish("_audit", Record::new("forged")).await.is_err());
        assert!(client.delete_topic("_audit").await.is_err());
    }
    assert!(!bob.list_topics().await.expect("listed").iter().any(|topic| topic.topic.starts_with('_')));
    admin.create_acls(acls("User:bob", "read topic _audit", true)).await.expect("added");
    assert_eq!(read().await, Ok(()));
}

#[tokio::test]
async fn records_are_in_a_file_and_survive_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("audit.jsonl");
    let [data, file] = [("data", "data"), ("audit_file", "audit.jsonl")]
        .map(|(key, name)| format!("{key}={}", dir.path().join(name).display()));
    let mut server = Server::with(&["audit=on", &data, &file]);
    command::on(&server, ["topic", "create", "first"]).ok();
    let is_there = |found: &[Value], name: &str| found.iter().any(|record| record["name"] == name);
    records(&server, |found| is_there(found, "first")).await;
    assert_eq!(std::fs::metadata(&path).expect("it exists").permissions().mode() & 0o777, 0o600);
    std::fs::rename(&path, dir.path().join("rotated")).expect("moved");
    command::on(&server, ["topic", "create", "second"]).ok();
    // A broker that stops writes what is left.
    server.signal(rustix::process::Signal::TERM);
    server.ended().await;
    let lines = std::fs::read_to_string(&path).expect("a new file");
    let last: Value = serde_json::from_str(lines.lines().last().expect("a line")).expect("JSON");
    assert_eq!((&last["action"], &last["name"]), (&json!("create topic"), &json!("second")));
    server.start_again();
    let found = records(&server, |found| is_there(found, "second")).await;
    assert!(is_there(&found, "first") && found.iter().all(|record| record["outcome"] == "ok"), "{found:?}");
}

/// On a laptop there is no audit, and the command says why.
#[tokio::test]
async fn a_broker_without_logins_records_nothing() {
    let server = Server::start();
    command::on(&server, ["topic", "create", "t"]).ok();
    assert!(command::on(&server, ["audit"]).failed(4).contains("audit = on"));
}
