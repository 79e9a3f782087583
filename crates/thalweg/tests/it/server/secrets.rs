//! Secrets of a broker are not readable by clients or by other users of the machine.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use client::{CacheSettings, Record, Start, TopicSettings};
use engine::{ErrorKind, Storage};
use serde_json::json;

use crate::door::kafka::raw::{Raw, fetch, fetched};
use crate::door::kafka::security;
use crate::door::pubsub::push::{call, done};
use crate::support::server::{Launch, Server, within};

/// Kafka's `TOPIC_AUTHORIZATION_FAILED`.
const DENIED: i16 = 29;

/// Starts a broker with a data directory that has generated the key of its push tokens.
async fn with_key(data: &Path, more: &[&str]) -> Server {
    let data = format!("data={}", data.display());
    let server = Server::with(&[&["pubsub=127.0.0.1:0", "http=127.0.0.1:0", &data][..], more].concat());
    done(server.pubsub(), "PUT", "/v1/projects/thalweg/topics/orders", json!({})).await;
    done(
        server.pubsub(),
        "PUT",
        "/v1/projects/thalweg/subscriptions/s12",
        json!({"topic": "projects/thalweg/topics/orders"}),
    )
    .await;
    done(server.pubsub(), "GET", "/oauth2/v3/certs", json!(null)).await;
    server
}

/// Every way to read a topic by its name.
#[tokio::test]
async fn topics_that_may_hold_secrets_are_read_at_no_door() {
    let data = tempfile::tempdir().expect("a folder");
    let server = with_key(data.path(), &[]).await;
    let client = server.client("tcp").await;
    let mut kafka = Raw::connect(&server).await;
    client.create_cache("kept", CacheSettings { is_durable: true, ..CacheSettings::default() }).await.expect("created");
    for topic in ["_queues", "_caches"] {
        let partitions = client.describe_topic(topic).await.expect("it is there").partitions.len();
        assert!(partitions > 0);
        for partition in 0..partitions {
            let path = format!("/v1/topics/{topic}/records?offset=0&partition={partition}");
            let (status, body) = call(server.door("http"), "GET", &path, &json!(null)).await;
            assert_eq!((status, body["error"]["kind"].as_str()), (403, Some("denied")), "{path}: {body}");
            let answer = kafka.call(4, fetch(topic, partition as i32, 0, 0)).await;
            assert_eq!(fetched(&answer).0, DENIED, "{topic} {partition}");
        }
        let path = format!("/v1/topics/{topic}/events?start=earliest");
        assert_eq!(call(server.door("http"), "GET", &path, &json!(null)).await.0, 403, "{path}");
        let subscribed = within("an answer", client.subscribe(topic).start(Start::Earliest).open()).await;
        assert_eq!(subscribed.map(drop).map_err(|error| error.kind), Err(ErrorKind::Denied), "{topic}");
    }
    // A topic without secrets remains readable.
    assert_eq!(fetched(&kafka.call(4, fetch("orders", 0, 0, 0)).await).0, 0);
}

/// With access control lists, a permission on all topics does not include internal topics.
#[tokio::test]
async fn an_internal_topic_is_read_only_with_a_permission_for_its_name() {
    let data = tempfile::tempdir().expect("a folder");
    drop(with_key(data.path(), &[]).await);
    let kept = format!("data={}", data.path().display());
    let server = Server::with(&[&security::SET[..], &[&kept]].concat());
    let mut root = security::log_in(&server, "root", "r00t").await.expect("logged in");
    security::allow_reading(&mut root, "*").await;
    let mut app = security::log_in(&server, "app", "secret").await.expect("logged in");
    assert_eq!(fetched(&app.call(4, fetch("orders", 0, 0, 0)).await).0, 0);
    assert_eq!(fetched(&app.call(4, fetch("_queues", 0, 0, 0)).await).0, DENIED);
    security::allow_reading(&mut root, "_queues").await;
    assert_eq!(fetched(&app.call(4, fetch("_queues", 0, 0, 0)).await).0, 0);
    assert_eq!(fetched(&app.call(4, fetch("_security", 0, 0, 0)).await).0, DENIED, "no client may read it");
}

/// Collects the modes of a directory and of its contents.
fn modes(path: &Path, found: &mut Vec<(String, u32)>) {
    let metadata = std::fs::symlink_metadata(path).expect("it is there");
    found.push((path.display().to_string(), metadata.mode() & 0o777));
    if metadata.is_dir() {
        for entry in std::fs::read_dir(path).expect("a directory") {
            modes(&entry.expect("an entry").path(), found);
        }
    }
}

fn assert_private(data: &Path) {
    let mut found = Vec::new();
    modes(data, &mut found);
    assert!(found.len() > 8, "{found:?}");
    for (path, mode) in found {
        let expected = if Path::new(&path).is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode, expected, "{path} has the mode {mode:o}");
    }
}

#[tokio::test]
async fn a_data_directory_is_for_its_owner_alone_and_an_old_one_is_made_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let set = vec![format!("data={}", data.display())];
    // The usual umask.
    let mut server = Server::launch(Launch { set, shell: Some("umask 022"), ..Launch::default() });
    let client = server.client("tcp").await;
    for (name, storage) in [("files", Storage::Disk), ("rows", Storage::Sqlite)] {
        let settings = TopicSettings { storage, ..TopicSettings::on_disk() };
        client.create_topic(name, settings).await.expect("created");
        client.publish(name, Record::new("kept")).await.expect("published");
    }
    assert_private(&data);
    server.crash();
    // A directory of an older version, with an unrelated file in it.
    let mut all = Vec::new();
    modes(&data, &mut all);
    for (path, _) in &all {
        let mode = if Path::new(path).is_dir() { 0o755 } else { 0o644 };
        std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("set");
    }
    let foreign = data.join("notes.txt");
    std::fs::write(&foreign, "mine").expect("written");
    std::fs::set_permissions(&foreign, Permissions::from_mode(0o644)).expect("set");
    server.start_again();
    assert_eq!(std::fs::metadata(&foreign).expect("it is there").mode() & 0o777, 0o644, "it is not the broker's");
    std::fs::remove_file(&foreign).expect("removed");
    assert_private(&data);
    let mut files = server.client("tcp").await.subscribe("files").start(Start::Earliest).open().await.expect("open");
    assert_eq!(within("a record", files.next()).await.expect("one").record.value(), b"kept");
}
