//! Broker that is killed again and again while clients of every door write: what it acknowledged survives, once and in
//! order, and nothing else appears.

// What all writers share.
mod site;

// The writers, each with its model.
mod partition;
mod records;
mod queues;
mod values;
mod topics;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::command::{on, thalweg};
use crate::support::server::{PATIENCE, Server, size};
use site::Site;

/// Kills in `cargo test`.
const CYCLES: usize = 3;
/// Cycles between two checks that read the logs from their beginnings instead of from the last checked record.
const COMPLETE_EVERY: u64 = 25;
/// Range of the time in ms for which all writers write before the kill.
const WRITING_MS: Range<u64> = 200..1200;
/// One in this number of kills is followed by another one as soon as the broker is ready again.
const TWICE_ONE_IN: u64 = 4;

/// Result of a writer. An error names what is missing, or what must not exist.
type Outcome<T = ()> = Result<T, String>;

/// Client that writes through one door, with a model of the changes that the broker acknowledged.
trait Writer: Send {
    fn tally(&self) -> &Arc<Tally>;
    /// Creates the topic, the queue or the cache.
    fn prepare(&mut self, site: &Site);
    /// Writes until the broker has ended.
    fn write(&mut self, site: &Site) -> Outcome;
    /// Compares the model with the state of the restarted broker, and then adopts that state.
    fn check(&mut self, site: &Site, is_complete: bool) -> Outcome;
}

/// Name of a writer, and the number of its acknowledged changes.
struct Tally {
    name: &'static str,
    acknowledged: AtomicU64,
}

impl Tally {
    fn new(name: &'static str) -> Arc<Self> {
        Arc::new(Self { name, acknowledged: AtomicU64::new(0) })
    }

    fn add(&self, count: u64) {
        self.acknowledged.fetch_add(count, Ordering::Relaxed);
    }

    fn count(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }
}

/// Kill of the broker.
struct Kill {
    /// Time for which all writers have written.
    after: Duration,
    /// `true` if the next broker is killed too, as soon as it is ready.
    is_twice: bool,
}

impl Kill {
    /// Returns the kill of this cycle, which depends on the seed.
    fn draw(seed: u64, cycle: u64) -> Self {
        let draw = |purpose: &str, end: u64| {
            let mut hasher = DefaultHasher::new();
            (seed, cycle, purpose).hash(&mut hasher);
            hasher.finish() % end
        };
        let after = WRITING_MS.start + draw("after", WRITING_MS.end - WRITING_MS.start);
        Self { after: Duration::from_millis(after), is_twice: draw("twice", TWICE_ONE_IN) == 0 }
    }

    /// Kills the broker and starts it again.
    fn carry_out(&self, site: &Site, server: &mut Server) {
        site.end(server);
        server.start_again();
        if self.is_twice {
            server.crash_and_restart();
        }
    }
}

/// Writer at work, in a thread.
struct Running<'scope> {
    tally: Arc<Tally>,
    count_before: u64,
    thread: ScopedJoinHandle<'scope, Outcome>,
}

impl<'scope> Running<'scope> {
    fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        site: &'env Site,
        writer: &'env mut Box<dyn Writer>,
        work: impl FnOnce(&mut dyn Writer) -> Outcome + Send + 'env,
    ) -> Self {
        let tally = writer.tally().clone();
        let count_before = tally.count();
        let thread = scope.spawn(move || {
            let _runtime = site.runtime.enter();
            work(&mut **writer)
        });
        Self { tally, count_before, thread }
    }

    fn has_acknowledged(&self) -> bool {
        self.tally.count() > self.count_before
    }

    /// Returns the failure of the writer, with its name.
    fn failure(self) -> Option<String> {
        let outcome = self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        outcome.err().map(|what| format!("{}: {what}", self.tally.name))
    }
}

/// Lets all writers write, kills the broker and starts it again. Returns the failures of the writers.
fn write(site: &Site, server: &mut Server, writers: &mut [Box<dyn Writer>], kill: &Kill) -> Vec<String> {
    std::thread::scope(|scope| {
        let start = writers.iter_mut().map(|writer| Running::start(scope, site, writer, |one| one.write(site)));
        let running: Vec<Running> = start.collect();
        let begin = Instant::now();
        let is_awaited = |one: &Running| !one.has_acknowledged() && !one.thread.is_finished();
        while running.iter().any(is_awaited) && begin.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        let silent = running.iter().filter(|one| !one.has_acknowledged());
        let mut failures: Vec<String> =
            silent.map(|one| format!("{}: nothing was acknowledged", one.tally.name)).collect();
        std::thread::sleep(kill.after);
        kill.carry_out(site, server);
        failures.extend(running.into_iter().filter_map(Running::failure));
        failures
    })
}

/// Compares all models with the state of the broker. Returns the failures of the writers.
fn check(site: &Site, writers: &mut [Box<dyn Writer>], is_complete: bool) -> Vec<String> {
    std::thread::scope(|scope| {
        let start = writers.iter_mut();
        let start = start.map(|writer| Running::start(scope, site, writer, move |one| one.check(site, is_complete)));
        let running: Vec<Running> = start.collect();
        running.into_iter().filter_map(Running::failure).collect()
    })
}

/// Data directory, which is kept if the test fails.
struct Data(TempDir);

impl Drop for Data {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.disable_cleanup(true);
            eprintln!("the data directory is kept: {}", self.0.path().display());
        }
    }
}

fn serve(data: &Data) -> Server {
    let data = format!("data={}", data.0.path().display());
    Server::with(&[&data, "redis_durable=true", "http=127.0.0.1:0", "pubsub=127.0.0.1:0", "redis=127.0.0.1:0"])
}

/// Backups of a broker whose clients of every door have written, and that was killed: the second one adds what is new.
/// A broker that is restored from them answers as the models say.
#[test]
fn a_restored_backup_has_what_every_door_acknowledged() {
    let data = Data(tempfile::tempdir().expect("a folder"));
    let other = Data(tempfile::tempdir().expect("a folder"));
    let backup = tempfile::tempdir().expect("a folder");
    let dir = backup.path().join("backup");
    let dir = dir.to_str().expect("UTF-8");
    let mut server = serve(&data);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut writers: Vec<Box<dyn Writer>> =
        [records::writers(), queues::writers(), values::writers(), topics::writers()].into_iter().flatten().collect();
    // A backup cannot include it.
    writers.retain(|writer| writer.tally().name != "native.sqlite");
    let site = Site::of(&server, runtime.handle(), 0);
    writers.iter_mut().for_each(|writer| writer.prepare(&site));
    let mut copied = Vec::new();
    for cycle in 1..=2 {
        let site = Site::of(&server, runtime.handle(), cycle);
        let mut failures = write(&site, &mut server, &mut writers, &Kill::draw(7, cycle));
        // It also tells the writers whether the broker applied the changes that got no answer.
        let site = Site::of(&server, runtime.handle(), cycle);
        failures.extend(check(&site, &mut writers, false));
        assert!(failures.is_empty(), "cycle {cycle}:\n{}", failures.join("\n"));
        copied.push(on(&server, ["--json", "backup", dir, "--rate", "0"]).json());
        thalweg(["backup", "verify", dir]).ok();
    }
    let kept = copied[1]["kept_bytes"].as_u64().expect("a number");
    assert!(kept > 0, "the second backup has copied all again: {copied:?}");
    drop(server);
    let new = other.0.path().to_str().expect("UTF-8");
    thalweg(["restore", dir, "--data", new]).ok();
    let server = serve(&other);
    let site = Site::of(&server, runtime.handle(), 3);
    let failures = check(&site, &mut writers, true);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn acknowledged_changes_of_every_door_survive_kills() {
    let seed = size("KILL_SEED", 1) as u64;
    let cycles = size("KILL_CYCLES", CYCLES) as u64;
    println!("to repeat it: KILL_SEED={seed} KILL_CYCLES={cycles} cargo test -p thalweg --test it -- log::kills");
    let data = Data(tempfile::tempdir().expect("a folder"));
    let mut server = serve(&data);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut writers: Vec<Box<dyn Writer>> =
        [records::writers(), queues::writers(), values::writers(), topics::writers()].into_iter().flatten().collect();
    let site = Site::of(&server, runtime.handle(), 0);
    writers.iter_mut().for_each(|writer| writer.prepare(&site));
    for cycle in 1..=cycles {
        let site = Site::of(&server, runtime.handle(), cycle);
        let mut failures = write(&site, &mut server, &mut writers, &Kill::draw(seed, cycle));
        let site = Site::of(&server, runtime.handle(), cycle);
        failures.extend(check(&site, &mut writers, cycle % COMPLETE_EVERY == 0 || cycle == cycles));
        assert!(failures.is_empty(), "seed {seed}, cycle {cycle}:\n{}", failures.join("\n"));
    }
    let tallies = writers.iter().map(|writer| format!("{} {}", writer.tally().name, writer.tally().count()));
    let tallies = tallies.collect::<Vec<_>>().join(", ");
    println!("kills: seed {seed}, {cycles} cycles, lost 0; acknowledged: {tallies}");
}
