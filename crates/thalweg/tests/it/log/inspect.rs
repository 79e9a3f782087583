//! `thalweg inspect`: its findings in a directory, and the result of a repair.

use std::path::{Path, PathBuf};

use client::{Acks, Record, Start, Storage, TopicSettings};
use rustix::process::Signal;
use serde_json::Value;

use crate::support::command::{Done, thalweg};
use crate::support::server::{Launch, Server, within};

fn on(data: &Path) -> Launch {
    Launch { set: vec![format!("data={}", data.display())], ..Launch::default() }
}

fn inspect(args: &[&str]) -> Done {
    thalweg(std::iter::once("inspect").chain(args.iter().copied()))
}

async fn publish(server: &Server, topic: &str, values: std::ops::Range<u32>) {
    let client = server.client("tcp").await;
    let settings = TopicSettings { partitions: 1, storage: Storage::Disk, ..TopicSettings::of_broker() };
    within("create", client.create_topic(topic, settings)).await.expect("created");
    for value in values {
        let publisher = client.publisher(topic).acks(Acks::Committed);
        let publisher = within("open", publisher.open()).await.expect("a publisher");
        within("publish", publisher.publish(&Record::new(value.to_string()))).await.expect("acknowledged");
    }
}

async fn stop(mut server: Server) {
    server.signal(Signal::TERM);
    assert!(server.ended().await.success());
}

async fn read(server: &Server, topic: &str, count: usize) -> Vec<(u64, String)> {
    let client = server.client("tcp").await;
    let opened = client.subscribe(topic).start(Start::Earliest).open();
    let mut subscription = within("subscribe", opened).await.expect("a subscription");
    let mut all = Vec::new();
    while all.len() < count {
        let record = within("a record", subscription.next()).await.expect("a record").record;
        all.push((record.offset, String::from_utf8_lossy(record.value()).into_owned()));
    }
    all
}

fn numbers(range: std::ops::Range<u32>) -> Vec<(u64, String)> {
    range.map(|value| (value.into(), value.to_string())).collect()
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).expect("a file");
    bytes[at] ^= 4;
    std::fs::write(path, bytes).expect("it is ours");
}

/// Returns the file of a topic's only segment.
fn segment(report: &Value, topic: &str) -> PathBuf {
    let topics = report["topics"].as_array().expect("topics");
    let found = topics.iter().find(|found| found["topic"] == topic).expect("the topic");
    found["partitions"][0]["segments"][0]["file"].as_str().expect("a file").into()
}

#[tokio::test]
async fn a_flipped_bit_is_found_and_only_its_batch_is_lost() {
    let data = tempfile::tempdir().expect("a folder");
    let dir = data.path().to_str().expect("a path");
    let server = Server::launch(on(data.path()));
    publish(&server, "a", 0..9).await;
    publish(&server, "b", 0..5).await;
    let refused = inspect(&[dir]).failed(1);
    assert!(refused.contains("in use by another process"), "{refused}");
    stop(server).await;
    let whole = inspect(&[dir, "--verify"]).ok();
    assert!(whole.contains("read 14 batches"), "{whole}");
    let report = inspect(&[dir, "--json"]).json();
    let path = segment(&report, "a");
    let name = path.to_str().expect("a path");
    let batches: Vec<Value> =
        inspect(&["dump", name, "--json"]).ok().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(batches.len(), 9);
    let at = batches[4]["at"].as_u64().expect("a place");
    flip(&path, at as usize + 64);
    assert!(inspect(&[dir]).ok().contains("were not read"), "lengths are right");
    let found = inspect(&[dir, "--verify"]);
    let damage = format!("damage (a partition 0): {name} is damaged at byte {at}: the batch has the checksum");
    assert!(found.code == Some(6) && found.out.contains(&damage), "{found:?}");
    let dumped = inspect(&["dump", name]);
    assert!(dumped.code == Some(6) && dumped.out.contains("DAMAGE"), "{dumped:?}");
    let planned = inspect(&["repair", dir]);
    assert!(planned.code == Some(6) && planned.out.contains("lost: 1 records, offsets 4 to 4"), "{planned:?}");
    assert!(inspect(&[dir, "--verify"]).code == Some(6), "nothing was changed");
    let done = inspect(&["repair", dir, "--yes"]).ok();
    assert!(done.contains("1 records were lost in all"), "{done}");
    inspect(&[dir, "--verify"]).ok();
    assert!(path.with_extension("log.damaged").exists(), "the file is kept");
    assert!(inspect(&["repair", dir, "--yes"]).ok().contains("nothing is damaged"));
    let server = Server::launch(on(data.path()));
    let kept: Vec<_> = numbers(0..9).into_iter().filter(|(offset, _)| *offset != 4).collect();
    assert_eq!(read(&server, "a", 8).await, kept);
    assert_eq!(read(&server, "b", 5).await, numbers(0..5));
    publish(&server, "a", 9..10).await;
    assert_eq!(read(&server, "a", 9).await[8], (9, "9".to_owned()));
}

#[tokio::test]
async fn a_journal_that_cannot_be_read_is_given_up_only_when_asked() {
    let data = tempfile::tempdir().expect("a folder");
    let dir = data.path().to_str().expect("a path");
    let mut server = Server::launch(on(data.path()));
    publish(&server, "a", 0..20).await;
    server.crash();
    let report = inspect(&[dir, "--verify", "--json"]).json();
    let needed = report["journal"].as_array().expect("files").iter().find(|file| file["is_needed"] == true);
    let journal = needed.expect("a file")["file"].as_str().expect("a path").to_owned();
    let entries = inspect(&["dump", &journal, "--json"]).ok();
    let entries: Vec<Value> = entries.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let batches: Vec<&Value> = entries.iter().filter(|entry| entry["kind"] == "batch").collect();
    assert_eq!(batches.len(), 20);
    // The header of the block, which precedes its only entry.
    flip(Path::new(&journal), batches[7]["at"].as_u64().expect("a place") as usize - 20);
    let refused =
        thalweg(["serve", "--data", dir, "--native", "127.0.0.1:0", "--http", "off", "--kafka", "off", "--sqs", "off"])
            .failed(1);
    assert!(refused.contains(&format!("{journal} is damaged at byte")), "{refused}");
    let planned = inspect(&["repair", dir, "--yes"]);
    assert!(planned.code == Some(6) && planned.err.contains("--drop-journal"), "{planned:?}");
    let plan = inspect(&["repair", dir, "--drop-journal", "--json"]);
    let plan: Value = serde_json::from_str(&plan.out).expect("JSON");
    assert_eq!((&plan["is_done"], &plan["records_lost"]), (&Value::Bool(false), &Value::from(1)));
    inspect(&["repair", dir, "--yes", "--drop-journal"]).ok();
    inspect(&[dir, "--verify"]).ok();
    let server = Server::launch(on(data.path()));
    let kept: Vec<_> = numbers(0..20).into_iter().filter(|(offset, _)| *offset != 7).collect();
    assert_eq!(read(&server, "a", 19).await, kept);
}

#[test]
fn a_path_that_is_not_a_data_directory_is_refused() {
    let data = tempfile::tempdir().expect("a folder");
    let dir = data.path().to_str().expect("a path");
    assert!(inspect(&[dir]).failed(4).contains("is not a data directory"));
    assert!(std::fs::read_dir(dir).expect("a folder").next().is_none(), "nothing was made in it");
    assert!(inspect(&["/no/such/folder"]).failed(4).contains("there is no directory"));
    let file = data.path().join("notes.txt");
    std::fs::write(&file, "").expect("it is ours");
    inspect(&["dump", file.to_str().expect("a path")]).failed(2);
    inspect(&["dump", "/no/such/000001.journal"]).failed(4);
    inspect(&["repair", dir, "--yes", "--dry-run"]).failed(2);
    inspect(&[]).failed(2);
}
