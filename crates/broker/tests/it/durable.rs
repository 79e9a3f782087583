//! Topics on disk, as the broker's callers see them: committed before they are read, once and in order across restarts.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::{Attempt, Broker, OffsetCommit, Settings, Wakes};
use engine::groups::{Committer, GroupName, NO_LEADER_EPOCH};
use engine::record::Producer;
use engine::{Acks, BatchBuilder, Codec, DraftBatch, ErrorKind, TopicName, TopicPartition};
use storage::{RealDisk, Store, StoreSettings};
use tokio::runtime::Handle;

use crate::support::{publish, within};

/// Timeout that only a failing test reaches.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns settings with small files, so that every start is quick.
fn settings() -> StoreSettings {
    let mut settings = StoreSettings { segment_bytes: 1 << 20, ..StoreSettings::default() };
    settings.journal.file_bytes = 1 << 20;
    settings
}

pub fn open(dir: &Path) -> Arc<Broker> {
    open_with(dir, Settings::default())
}

pub fn open_with(dir: &Path, of_broker: Settings) -> Arc<Broker> {
    let begin = Instant::now();
    loop {
        match Store::open(Arc::new(RealDisk), dir, settings(), broker::Clock::SYSTEM.read(), &mut |_| {}) {
            // A sweep that runs while the broker is dropped holds it until the sweep ends.
            Err(error) if error.kind == ErrorKind::Denied && begin.elapsed() < PATIENCE => std::thread::yield_now(),
            stored => {
                let stored = Some(stored.expect("opened"));
                return Broker::start_with(of_broker, &[Handle::current()], stored).expect("started");
            }
        }
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let to = to.join(entry.file_name());
        if entry.file_type().expect("its type").is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).expect("copied");
        }
    }
}

fn numbered(producer: Producer, records: usize) -> DraftBatch {
    let mut builder = BatchBuilder::new();
    for _ in 0..records {
        builder.push(1, None, Some(b"value"), &[]).expect("a small record");
    }
    builder.finish_with(Codec::None, Some(producer)).expect("records")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retried_batch_is_in_the_log_once_across_restarts() {
    let mut dir = tempfile::tempdir().expect("a folder");
    let mut sequence = 0;
    let mut producers = Vec::new();
    for round in 0..4 {
        let broker = open(dir.path());
        let (id, epoch) = broker.init_producer().await.expect("an identity");
        assert!(!producers.contains(&id), "given twice");
        producers.push(id);
        let id = producers[0];
        let send = async |sequence, records| {
            let batch = numbered(Producer { id, epoch, sequence }, records);
            within("a publish", broker.publish("t", Some(0), Acks::Committed, batch, &mut Wakes::default())).await
        };
        if round > 0 {
            // A repeated batch is a duplicate, and a batch that would leave a gap is refused.
            let again = send(sequence - 5, 5).await.expect("a duplicate");
            assert_eq!((again.base_offset, again.is_committed), (sequence as u64 - 5, true));
            let refused = send(sequence + 1, 1).await.expect_err("a gap");
            assert_eq!(refused.kind, ErrorKind::OutOfSequence);
        }
        for _ in 0..3 {
            let published = send(sequence, 5).await.expect("published");
            assert_eq!((published.base_offset, published.is_committed), (sequence as u64, true));
            sequence += 5;
        }
        if round % 2 == 0 {
            // The directory in the state that a killed process would leave.
            let left = tempfile::tempdir().expect("a folder");
            copy(dir.path(), left.path());
            dir = left;
        }
        drop(broker);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_from_memory_reads_no_file() {
    let dir = tempfile::tempdir().expect("a folder");
    let publish_large = async |broker: &Broker| {
        let batch = crate::support::batch(1, 200 << 10);
        let mut wakes = Wakes::default();
        within("a publish", broker.publish("t", Some(0), Acks::Committed, batch, &mut wakes)).await.expect("published");
    };
    publish_large(&open(dir.path())).await;
    // After a restart, a large batch is only in a segment.
    let broker = open(dir.path());
    let from_memory = |offset| {
        let found = broker.fetch_from_memory("t", 0, offset, 1).map_err(|error| error.kind);
        found.map(|found| found.map(|fetched| fetched.batches.len()))
    };
    assert_eq!(from_memory(0), Ok(None));
    assert_eq!(from_memory(1), Ok(Some(0)), "the end of the log");
    publish_large(&broker).await;
    assert_eq!(from_memory(1), Ok(Some(1)));
    assert_eq!(from_memory(3), Err(ErrorKind::OutOfRange));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledgement_has_its_requested_level() {
    let dir = tempfile::tempdir().expect("a folder");
    let broker = open(dir.path());
    for (acks, waits) in [(Acks::None, false), (Acks::Accepted, false), (Acks::Committed, true), (Acks::Default, true)]
    {
        let batch = crate::support::batch(1, 10);
        let attempt = broker.try_publish("t", Some(0), acks, batch, &mut Wakes::default()).expect("published");
        match attempt {
            Attempt::Commits(committing) if waits => {
                assert!(within("the disk", committing.finish(&broker)).await.expect("committed").is_committed);
            }
            Attempt::Done(published) if !waits => assert!(!published.is_committed),
            _ => panic!("{acks:?} is not answered as it should be"),
        }
    }
    let all = within("a fetch", broker.fetch("t", 0, 0, 1 << 20, Duration::ZERO)).await.expect("records");
    assert_eq!((all.end, all.batches.len()), (4, 4));
}

/// A committer may leave before the commit is on disk.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_nobody_waits_for_counts_all_the_same() {
    let dir = tempfile::tempdir().expect("a folder");
    let broker = open(dir.path());
    publish(&broker, "t", 0).await.expect("published");
    let group = GroupName::parse("g").expect("a name");
    let partition = TopicPartition { topic: TopicName::parse("t").expect("a name"), partition: 0 };
    let commit = |offset| {
        let offsets = vec![OffsetCommit {
            partition: partition.clone(),
            offset,
            leader_epoch: NO_LEADER_EPOCH,
            metadata: String::new(),
        }];
        broker.groups.commit_offsets(&group, &Committer::Outsider, offsets)
    };
    // The group itself is on disk now.
    within("a commit", commit(0)).await.expect("committed");
    for offset in 1..10 {
        tokio::select! {
            biased;
            committed = commit(offset) => committed.expect("committed"),
            () = std::future::ready(()) => {}
        }
        let counts = async {
            loop {
                let committed = broker.groups.committed_offsets(&group, None).await.expect("offsets");
                if committed[0].1.offset == offset {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        within("the commit to count", counts).await;
    }
}

/// Much more than the tail holds: batches no longer in memory are read from files, by a subscriber and by a fetch.
#[tokio::test(flavor = "multi_thread")]
async fn history_is_read_from_files() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut small = settings();
    small.tail_bytes_max = 64 << 10;
    small.unflushed_bytes_max = 64 << 10;
    small.checkpoint_bytes = 1 << 20;
    let stored =
        Store::open(Arc::new(RealDisk), dir.path(), small, broker::Clock::SYSTEM.read(), &mut |_| {}).expect("opened");
    let broker = Broker::start_with(Settings::default(), &[Handle::current()], Some(stored)).expect("started");
    let count = 3000;
    for offset in 0..count {
        let batch = crate::support::batch(1, 1000);
        let acks = if offset % 100 == 99 { Acks::Committed } else { Acks::Accepted };
        let mut wakes = Wakes::default();
        let published = broker.publish("t", Some(0), acks, batch, &mut wakes);
        assert_eq!(within("a publish", published).await.expect("published").base_offset, offset);
    }
    let mut offset = 0;
    while offset < count {
        let fetched = broker.fetch("t", 0, offset, 1 << 20, Duration::ZERO);
        for batch in within("a fetch", fetched).await.expect("records").batches {
            assert_eq!(batch.base_offset(), offset);
            offset = batch.next_offset();
        }
    }
    publish(&broker, "t", 0).await.expect("one more");
}
