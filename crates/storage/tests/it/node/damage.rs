//! Damage of the segments of a node, which another one replaces.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::ErrorKind;
use storage::{Store, Wanted};

use super::{OfLog, open_node, two_nodes};
use crate::workload::{batch_at, clock, on_disk};
use sim::SimDisk;

/// Returns the segments on a disk that have records.
fn segments(disk: &SimDisk) -> Vec<PathBuf> {
    let is_segment = |path: &Path| path.extension().is_some_and(|kind| kind == "log");
    disk.files().into_iter().filter(|(path, bytes)| is_segment(path) && *bytes > 0).map(|(path, _)| path).collect()
}

/// Reads all segments of a store.
fn verify(store: &Store) -> u64 {
    let (mut at, mut read) = ((0, 0), 0);
    loop {
        let (next, bytes) = store.verify(at, 4 << 10);
        read += bytes;
        if next == (0, 0) {
            return read;
        }
        at = next;
    }
}

#[test]
fn damaged_records_are_found_and_replaced_by_those_of_another_node() {
    let [(_, leader), (disk, follower)] = two_nodes();
    let topic = leader.topic("t", on_disk(2));
    leader.append(&topic, 200);
    leader.commit();
    let all = follower.install(&leader);
    assert_eq!((verify(&follower.store), follower.store.damages()), (all, Vec::new()));
    let damaged = segments(&disk).into_iter().next().expect("a segment");
    disk.edit(&damaged, |bytes| bytes[300] ^= 1);
    verify(&follower.store);
    let damages = follower.store.damages();
    assert!(damages.len() == 1 && damages[0].1.kind == ErrorKind::Corrupt, "{damages:?}");

    // Only the damaged partition is fetched, as a whole. Nobody sees half of it.
    let manifest = leader.store.manifest();
    let wanted = follower.store.begin_install(&manifest).expect("it can be replaced");
    let stream = damages[0].0;
    let log = follower.store.topics()[0].partitions[stream as usize].clone();
    let end = topic.partitions[stream as usize].extent().end;
    assert_eq!(wanted, [Wanted { stream, from: 0, to: end }]);
    let some = leader.store.read_rows(stream, 0..end, 1).expect("readable");
    follower.fetch(&leader, &[Wanted { to: some[0].next_offset(), ..wanted[0] }]);
    assert!(log.clone().read(0, 1).is_err_and(|error| error.kind == ErrorKind::Busy));
    let owner = Arc::new(OfLog(log.clone()));
    let batch = batch_at("t", stream as usize, log.end(), 1);
    assert!(log.append(batch, clock(), owner).is_err_and(|error| error.kind == ErrorKind::Busy));
    follower.store.checkpoint().expect("a checkpoint");
    assert!(segments(&disk).contains(&damaged), "the old file stays until the new ones are complete");
    let (crashed, _) = open_node(&disk.kill(), true).expect("it is as before");
    verify(&crashed.store);
    assert_eq!(crashed.store.damages().len(), 1);

    let rest = follower.store.begin_install(&leader.store.manifest()).expect("it continues");
    assert!(rest.len() == 1 && rest[0].from > 0, "{rest:?}");
    follower.install(&leader);
    assert_eq!((verify(&follower.store), follower.store.damages()), (all, Vec::new()));
    follower.store.checkpoint().expect("a checkpoint");
    assert!(!segments(&disk).contains(&damaged), "the damaged file is removed");
}
