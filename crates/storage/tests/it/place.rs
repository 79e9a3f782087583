//! A data directory that is removed or replaced under a running broker.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use storage::RealDisk;
use tempfile::TempDir;

use crate::workload::{EventLog, Model, Work, open, small, wait_until};

/// Broker whose data directory was changed while it ran.
struct Changed {
    work: Arc<Work>,
    dir: PathBuf,
    /// Directory above, which is removed at the end.
    _above: TempDir,
}

/// Changes the directory under a running broker and checks that the next append is refused with a reason.
fn refuses(expected: &str, change: impl FnOnce(&Path)) -> Changed {
    let above = tempfile::tempdir().expect("a directory");
    let dir = above.path().join("data");
    let work = Work::new(
        open(&RealDisk, &dir, small(1)).expect("it opens"),
        &Model::default(),
        1,
        EventLog::default().reporter(),
    );
    let writer = work.create(1).expect("a topic")[0].clone();
    assert!(writer.wait(writer.append().expect("it is taken")), "it is acknowledged");
    change(&dir);
    let is_acknowledged = writer.append_now().is_ok_and(|end| writer.wait(end));
    assert!(!is_acknowledged, "a record that is not found is not acknowledged");
    wait_until("it is noticed", || work.store.broken().is_some());
    let broken = work.store.broken().expect("an error");
    assert!(broken.message.contains(expected) && broken.message.contains("Restart the broker"), "{broken}");
    Changed { work, dir, _above: above }
}

/// Checks also that nothing is created or removed under the path any more.
fn breaks(expected: &str, change: impl FnOnce(&Path)) {
    let Changed { work, dir, .. } = &refuses(expected, change);
    let count_files = || std::fs::read_dir(dir).map(|entries| entries.count()).unwrap_or_default();
    let before = count_files();
    work.store.checkpoint().expect_err("nothing is written by path");
    work.store.stop().expect_err("it was not left as it should be");
    assert_eq!(count_files(), before);
}

#[test]
fn nothing_is_acknowledged_in_a_directory_that_was_removed() {
    breaks("was removed or moved while the broker ran", |dir| std::fs::remove_dir_all(dir).expect("it is removed"));
}

/// The thread that looks for the directory may break the journal off while records are queued.
#[test]
fn records_that_wait_while_the_directory_is_removed_are_refused() {
    let above = tempfile::tempdir().expect("a directory");
    let dir = above.path().join("data");
    let store = open(&RealDisk, &dir, small(1)).expect("it opens");
    let work = Work::new(store, &Model::default(), 1, EventLog::default().reporter());
    let [first, second] = [(); 2].map(|()| work.create(1).expect("a topic")[0].clone());
    let (_, held) = first.append_held().expect("it is taken");
    // The only thread of the journal writes this record, and waits in its commit.
    std::thread::sleep(Duration::from_millis(50));
    let end = second.append_now().expect("it is taken");
    std::fs::remove_dir_all(&dir).expect("it is removed");
    wait_until("it is noticed", || work.store.broken().is_some());
    drop(held);
    assert!(!second.wait(end), "a record that is not found is not acknowledged");
    assert!(second.failed().expect("an error").message.contains("was removed or moved while the broker ran"));
}

#[test]
fn nothing_is_acknowledged_in_a_journal_whose_files_were_removed() {
    refuses("was removed while the broker ran", |dir| {
        let journal = dir.join("journal");
        let files = std::fs::read_dir(journal).expect("it is read").map(|entry| entry.expect("a file").path());
        files.for_each(|file| std::fs::remove_file(file).expect("it is removed"));
    });
}

#[test]
fn nothing_is_acknowledged_or_touched_in_a_directory_that_was_replaced() {
    // A check may run between the two steps.
    breaks("while the broker ran", |dir| {
        std::fs::rename(dir, dir.with_extension("old")).expect("it is moved");
        let (store, _) = open(&RealDisk, dir, small(1)).expect("another one starts there");
        store.stop().expect("it stops");
    });
}
