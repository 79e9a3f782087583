//! `cargo xtask soak`: tests whose value grows with their duration: those that depend on seeds, and those of hostile
//! clients with other sizes than in `ci`.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::run::{Call, Outcome};

const MINUTES: u64 = 10;

/// Tests that depend on a seed. A round is long enough to be worth starting, and short enough to end in time.
struct Seeded {
    package: &'static str,
    /// Arguments of the test program: its suites.
    args: &'static [&'static str],
    /// Variable with the first seed of a round.
    seed: &'static str,
    /// Variable with the number of cycles of a round, and that number.
    cycles: (&'static str, u64),
}

const STORAGE: Seeded = Seeded {
    package: "thalweg-storage",
    args: &["power::", "faults::", "damage::", "repair::", "reads::", "kill::"],
    seed: "STORAGE_SEED",
    cycles: ("STORAGE_CYCLES", 20),
};

/// A round has one data directory, and ends with a line of totals.
const KILLS: Seeded = Seeded {
    package: "thalweg",
    args: &["--show-output", "log::kills::"],
    seed: "KILL_SEED",
    cycles: ("KILL_CYCLES", 100),
};

/// Tests of hostile clients: the package, the prefix of the tests, and the sizes that exceed those in `ci`.
type Hardening = (&'static str, &'static str, &'static [(&'static str, u64)]);

const HARDENING: [Hardening; 10] = [
    ("thalweg-broker", "joining::", &[("HARDENING_TOPICS", 50_000)]),
    ("thalweg-broker", "limits::", &[]),
    ("thalweg-doors", "redis::", &[]),
    ("thalweg", "door::redis::work::", &[("HARDENING_CONNECTIONS", 40), ("HARDENING_CALLS", 1000)]),
    ("thalweg", "server::logins::", &[("HARDENING_GUESSES", 900)]),
    ("thalweg", "server::serve::", &[("HARDENING_DATAGRAMS", 100_000)]),
    ("thalweg", "server::hardening_memory::", &[]),
    ("thalweg", "door::web::", &[]),
    ("thalweg", "server::peers::", &[]),
    ("thalweg", "log::full_disk::", &[]),
];

pub fn run(args: &[&str]) -> Outcome {
    match args {
        ["storage", rest @ ..] => seeded(&STORAGE, minutes(rest)?),
        ["kills", rest @ ..] => seeded(&KILLS, minutes(rest)?),
        ["hardening", rest @ ..] => hardening(minutes(rest)?),
        _ => Err("the arguments are a suite, storage, kills or hardening, and --minutes N".into()),
    }
}

fn minutes(args: &[&str]) -> Outcome<u64> {
    match args {
        [] => Ok(MINUTES),
        ["--minutes", minutes] => minutes.parse().map_err(|e| format!("'{minutes}' minutes: {e}")),
        _ => Err("the only option after the suite is --minutes N".into()),
    }
}

fn seeded(tests: &Seeded, minutes: u64) -> Outcome {
    let begin = Instant::now();
    // The seeds are new, and can be repeated.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_err(|e| format!("the clock: {e}"))?;
    let mut seed = now.as_secs() % 1_000_000 * 1000;
    Call::line("cargo test --test it --no-run -p").arg(tests.package).run()?;
    let mut rounds = 0;
    while begin.elapsed() < Duration::from_secs(60 * minutes) {
        round(tests, seed)?;
        seed += tests.cycles.1;
        rounds += 1;
        println!("== soak: {rounds} rounds passed, {} s of {} s", begin.elapsed().as_secs(), 60 * minutes);
    }
    Ok(())
}

fn round(tests: &Seeded, seed: u64) -> Outcome {
    round_call(tests, seed).run().map_err(|e| {
        format!(
            "{e}\nThe test prints its seed above (to repeat it: ...). A seed does not determine the order in time: \
             repeat it several times, with other programs running concurrently"
        )
    })
}

fn round_call(tests: &Seeded, seed: u64) -> Call {
    let (cycles, count) = tests.cycles;
    let call = Call::line("cargo test --quiet --test it -p").arg(tests.package).arg("--");
    call.args(tests.args.iter().copied()).env(tests.seed, seed.to_string()).env(cycles, count.to_string())
}

/// Runs each suite once, then all of them again while there is time. A suite that fails does not prevent the others.
fn hardening(minutes: u64) -> Outcome {
    let begin = Instant::now();
    for package in ["thalweg-broker", "thalweg-doors", "thalweg"] {
        Call::line("cargo test --test it --no-run -p").arg(package).run()?;
    }
    let mut tallies = HARDENING.map(|_| Tally::default());
    let mut rounds = 0;
    while rounds == 0 || begin.elapsed() < Duration::from_secs(60 * minutes) {
        rounds += 1;
        for ((package, suite, sizes), tally) in HARDENING.iter().zip(&mut tallies) {
            let began = Instant::now();
            let outcome = hardening_call(package, suite, sizes).run();
            tally.add(&outcome, began.elapsed());
            let how = outcome.map_or_else(|error| error, |()| "passed".to_owned());
            println!(
                "== soak: round {rounds}, {package} {suite} {how} in {} s; {} s of {} s",
                began.elapsed().as_secs(),
                begin.elapsed().as_secs(),
                60 * minutes
            );
        }
    }
    for ((package, suite, sizes), tally) in HARDENING.iter().zip(&tallies) {
        println!("== soak: {package} {suite} {}", tally.summary(sizes));
    }
    match tallies.iter().filter(|tally| tally.failed > 0).count() {
        0 => Ok(()),
        failed => Err(format!("{failed} of {} suites failed: the lines above name them", HARDENING.len())),
    }
}

/// Returns the call of one suite, whose tests run one after the other: they measure their own load.
fn hardening_call(package: &str, suite: &str, sizes: &[(&'static str, u64)]) -> Call {
    let call = Call::line("cargo test --quiet --test it -p").arg(package);
    let call = call.args(["--", "--test-threads=1", suite]);
    sizes.iter().fold(call, |call, (name, size)| call.env(name, size.to_string()))
}

/// Results of the runs of one suite.
#[derive(Default)]
struct Tally {
    passed: u32,
    failed: u32,
    longest: Duration,
}

impl Tally {
    fn add(&mut self, outcome: &Outcome, took: Duration) {
        *(if outcome.is_ok() { &mut self.passed } else { &mut self.failed }) += 1;
        self.longest = self.longest.max(took);
    }

    fn summary(&self, sizes: &[(&str, u64)]) -> String {
        let sizes: String = sizes.iter().map(|(name, size)| format!(" {name}={size}")).collect();
        format!("passed {}, failed {}, at most {} s{sizes}", self.passed, self.failed, self.longest.as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_checked() {
        assert_eq!(minutes(&[]), Ok(MINUTES));
        assert_eq!(minutes(&["--minutes", "90"]), Ok(90));
        assert!(minutes(&["--minutes", "long"]).is_err() && minutes(&["90"]).is_err());
        assert!(run(&[]).is_err() && run(&["broker"]).is_err());
        for suite in ["storage", "kills", "hardening"] {
            assert!(run(&[suite, "--minutes", "long"]).is_err());
        }
    }

    #[test]
    fn a_round_has_its_seed_and_its_cycles() {
        let shown = round_call(&KILLS, 7).to_string();
        assert!(
            shown.starts_with("KILL_SEED=7 KILL_CYCLES=100 cargo test ") && shown.ends_with(" log::kills::"),
            "{shown}"
        );
    }

    #[test]
    fn sizes_are_passed_to_the_tests_and_shown_in_the_summary() {
        let (package, suite, sizes) = HARDENING[0];
        let shown = hardening_call(package, suite, sizes).to_string();
        assert!(shown.contains("HARDENING_TOPICS=50000") && shown.ends_with(suite), "{shown}");
        let mut tally = Tally::default();
        tally.add(&Ok(()), Duration::from_secs(3));
        tally.add(&Err("no".into()), Duration::from_secs(2));
        assert_eq!(tally.summary(sizes), "passed 1, failed 1, at most 3 s HARDENING_TOPICS=50000");
    }
}
