//! Separate process on a real disk that is killed at arbitrary moments, repeatedly: its acknowledgements match the data
//! that it leaves.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

use engine::{ErrorKind, Storage};
use storage::RealDisk;

use crate::power::{first_seed, times};
use crate::workload::{Event, Model, Work, open, small};
use sim::Random;

/// Variable with the incarnation, the number of topics created so far, their storage, and the directory.
const CHILD: &str = "STORAGE_CHILD";

/// Process that is killed. It writes each event that it observes to its output, one per line.
#[test]
#[ignore = "only another test starts it"]
fn child() {
    let Ok(arguments) = std::env::var(CHILD) else { return };
    let words: Vec<&str> = arguments.split(' ').collect();
    let [incarnation, topics_ever, storage, dir] = words[..] else { panic!("{arguments}") };
    let incarnation = incarnation.parse().expect("a number");
    let topics_ever = topics_ever.parse().expect("a number");
    let opened = open(&RealDisk, Path::new(dir), small(2)).expect("it opens");
    let model = Model::of(&opened.1, topics_ever);
    write_line("");
    let storage = storage.parse().expect("a storage");
    let work = Work::kept_in(storage, opened, &model, incarnation, Arc::new(|event| write_line(&event.to_string())));
    work.run(incarnation, 3, u64::MAX);
    panic!("it is killed before it ends");
}

/// Writes one line with a single write: a line is complete, or its end is missing.
fn write_line(line: &str) {
    std::io::stdout().lock().write_all(format!("{line}\n").as_bytes()).expect("the parent reads");
}

/// Child process with its output. Dropping it kills the process.
struct Victim {
    process: Child,
    out: BufReader<ChildStdout>,
}

impl Victim {
    fn start(dir: &Path, storage: Storage, incarnation: u64, model: &Model) -> Self {
        let arguments = format!("{incarnation} {} {} {}", model.topics_ever, storage.name(), dir.display());
        let mut process = Command::new(std::env::current_exe().expect("a program"))
            .args(["--ignored", "--exact", "--nocapture", "kill::child"])
            .env(CHILD, arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("a child");
        let out = BufReader::new(process.stdout.take().expect("a pipe"));
        Self { process, out }
    }

    /// Returns the next event; `None` after the end.
    fn next_event(&mut self) -> Option<Event> {
        loop {
            let mut line = String::new();
            self.out.read_line(&mut line).expect("a pipe");
            if !line.ends_with('\n') {
                return None;
            }
            // The test harness writes to this output too.
            if let Ok(event) = line.trim_end().parse() {
                return Some(event);
            }
        }
    }

    fn kill(&mut self) {
        self.process.kill().expect("it can be killed");
        self.process.wait().expect("it ends");
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.kill();
    }
}

fn check(dir: &Path, model: &mut Model, incarnation: u64) {
    let (store, topics) = open(&RealDisk, dir, small(2)).expect("it opens");
    model.check(&topics, incarnation).expect("it is all there");
    store.stop().expect("it stops");
}

#[test]
fn acknowledged_records_survive_kills() {
    kill_again_and_again(|_| Storage::Disk);
}

#[test]
fn acknowledged_records_survive_kills_in_a_database_and_next_to_one() {
    kill_again_and_again(|_| Storage::Sqlite);
    kill_again_and_again(|random| if random.one_in(2) { Storage::Sqlite } else { Storage::Disk });
}

/// Kills and restarts processes. `storage` returns the storage of the topics that the next process creates.
fn kill_again_and_again(storage: impl Fn(&mut Random) -> Storage) {
    let temp = tempfile::tempdir().expect("a directory");
    let first = first_seed();
    let dir = temp.path().join("data");
    let mut model = Model::default();
    let mut random = Random::new(first);
    let mut acknowledged = 0;
    for incarnation in first..first + times(12) {
        let mut victim = Victim::start(&dir, storage(&mut random), incarnation, &model);
        // Sometimes before it has done anything.
        for _ in 0..random.below(2) * random.below(1500) {
            model.apply(victim.next_event().expect("it works until it is killed"));
        }
        victim.kill();
        while let Some(event) = victim.next_event() {
            model.apply(event);
        }
        acknowledged = model.committed().max(acknowledged);
        check(&dir, &mut model, incarnation);
    }
    assert!(acknowledged > 0 || times(12) < 3, "nothing was ever acknowledged");
}

#[test]
fn of_two_processes_on_one_directory_the_second_is_refused() {
    let temp = tempfile::tempdir().expect("a directory");
    let dir = temp.path().join("data");
    let mut model = Model::default();
    let mut victim = Victim::start(&dir, Storage::Disk, 1, &model);
    model.apply(victim.next_event().expect("it works"));
    let refused = open(&RealDisk, &dir, small(1)).map(drop).expect_err("another process has it");
    assert_eq!(refused.kind, ErrorKind::Denied);
    let expected = format!("{} is in use by another process; its id is in thalweg.lock", dir.display());
    assert_eq!(refused.message, expected);
    let id = std::fs::read_to_string(dir.join("thalweg.lock")).expect("a file");
    assert_eq!(id.trim(), victim.process.id().to_string());
    victim.kill();
    while let Some(event) = victim.next_event() {
        model.apply(event);
    }
    check(&dir, &mut model, 1);
}

/// Returns `true` if file permissions apply to this process: they do not apply to root.
fn is_bound_by_rights(dir: &Path) -> bool {
    let probe: PathBuf = dir.join("probe");
    std::fs::write(&probe, "").map_or(true, |()| std::fs::remove_file(&probe).is_err())
}

#[test]
fn a_directory_that_may_only_be_read_is_refused_and_left_as_it_is() {
    let temp = tempfile::tempdir().expect("a directory");
    let set_mode = |mode| std::fs::set_permissions(temp.path(), PermissionsExt::from_mode(mode)).expect("it is ours");
    set_mode(0o555);
    if is_bound_by_rights(temp.path()) {
        let refused = open(&RealDisk, temp.path(), small(1)).map(drop).expect_err("it cannot be written");
        assert_eq!(refused.kind, ErrorKind::Denied);
        assert!(refused.message.contains(&temp.path().display().to_string()), "{refused}");
        assert_eq!(std::fs::read_dir(temp.path()).expect("a directory").count(), 0);
    }
    set_mode(0o755);
}
