//! `cargo xtask ci`: all checks that have to pass before a change lands, cheapest first.

use std::num::NonZero;
use std::time::{Duration, Instant};

use crate::beside::Beside;
use crate::run::{Call, Outcome};
use crate::{built, compat, deny};

/// Seeds of the simulation of a shard's nodes.
const SIMULATED_SEEDS: u32 = 100_000;
/// Step that runs beside those after it.
const BESIDE: &str = "simulate";
/// Short run of a cluster whose processes are killed and paused, with a seed that is always the same.
const CHAOS: &str = "cargo xtask chaos --minutes 1 --seed 1 --loopback --fresh";
/// Systems whose clients are tested here.
const COMPAT: &[&str] = &["kafka", "sqs", "pubsub", "redis"];
/// Time limit for the clients. A few clients of one system in parallel take half a minute; on a new machine they are
/// downloaded and built first.
const COMPAT_LIMIT: Duration = Duration::from_secs(420);

/// Time limit for a step that runs beside others.
const BESIDE_LIMIT: Duration = Duration::from_secs(3600);

struct Step {
    name: &'static str,
    calls: Vec<Call>,
}

fn steps() -> Vec<Step> {
    let step = |name, lines: &[&str]| Step { name, calls: lines.iter().map(|line| Call::line(line)).collect() };
    vec![
        step("fmt", &["cargo fmt --all --check -- -l"]),
        step("tidy", &["cargo xtask tidy"]),
        step("package", &["cargo xtask package --check"]),
        step("deny", &[]),
        step("clippy", &["cargo clippy --workspace --all-targets -- -D warnings"]),
        Step {
            name: "docs",
            calls: vec![Call::line("cargo doc --workspace --no-deps").env("RUSTDOCFLAGS", "-D warnings")],
        },
        Step { name: "build", calls: vec![built::with_tests(), with_built("cargo xtask docs --check")] },
        // Tests, clients and chaos leave a quarter of the processors idle.
        step(BESIDE, &[&format!("cargo xtask simulate {SIMULATED_SEEDS}")]),
        Step {
            name: "test",
            calls: vec![Call::line("cargo test --workspace").env("RUST_TEST_THREADS", test_threads())],
        },
        Step { name: "chaos", calls: vec![with_built(CHAOS)] },
        step("compat", &[]),
    ]
}

/// Returns the number of tests that run at the same time: two per core, because most of them wait half of their time.
fn test_threads() -> String {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    (2 * cores).to_string()
}

/// Returns a command that uses the programs of the step "build".
fn with_built(line: &str) -> Call {
    built::use_built(Call::line(line))
}

/// Prepares a step just before it runs, if it has further requirements. An error names what is missing.
fn prepare(step: &mut Step) -> Outcome {
    match step.name {
        "compat" => {
            for system in COMPAT {
                let clients = compat::quick(system);
                if !clients.is_empty() {
                    let call = with_built("cargo xtask compat").args([system, "--jobs", "4"]).args(clients);
                    step.calls.push(call.within(COMPAT_LIMIT));
                }
            }
            let readers = compat::quick_mesh();
            if !readers.is_empty() {
                let call = with_built("cargo xtask compat mesh --kills 2").args(readers);
                step.calls.push(call.within(COMPAT_LIMIT));
            }
            if step.calls.is_empty() {
                return Err("no client is installed, and there is no network to download one".into());
            }
        }
        "deny" => match deny::missing() {
            Some(missing) => return Err(missing.into()),
            None => step.calls = deny::calls(),
        },
        _ => {}
    }
    Ok(())
}

pub fn run() -> Outcome {
    let begin = Instant::now();
    let mut times = Vec::new();
    let steps = steps();
    let count = steps.len();
    let is_beside_possible = Beside::is_possible();
    let mut beside = Vec::new();
    for (number, mut step) in (1..).zip(steps) {
        println!("\n== step {number} of {count}: {}, after {}", step.name, shown(begin.elapsed()));
        if let Err(missing) = prepare(&mut step) {
            println!("== {}: skipped, {missing}", step.name);
            times.push(format!("{} skipped", step.name));
            continue;
        }
        if step.name == BESIDE && is_beside_possible {
            for call in &step.calls {
                println!("== {}: {call}\n== {}: begun, and runs beside the following steps", step.name, step.name);
                beside.push((step.name, Beside::begin(call, BESIDE_LIMIT)?));
            }
            continue;
        }
        let time = carry_out(&step)?;
        times.push(format!("{} {}", step.name, shown(time)));
    }
    for (name, running) in beside {
        println!("\n== {name}, which ran beside other steps, after {}", shown(begin.elapsed()));
        let time = running.finish()?;
        println!("== {name}: passed in {}", shown(time));
        times.push(format!("{name} {} beside others", shown(time)));
    }
    println!("\n== ci: passed in {} ({})", shown(begin.elapsed()), times.join(", "));
    Ok(())
}

fn carry_out(step: &Step) -> Outcome<Duration> {
    let begin = Instant::now();
    for call in &step.calls {
        println!("== {}: {call}", step.name);
        call.run().map_err(|e| {
            format!("{} failed after {}: {e}\nrepeat just this with: {call}", step.name, shown(begin.elapsed()))
        })?;
    }
    println!("== {}: passed in {}", step.name, shown(begin.elapsed()));
    Ok(begin.elapsed())
}

fn shown(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_step_says_how_to_repeat_it() {
        let step = Step { name: "fmt", calls: vec![Call::new("true"), Call::line("false --check")] };
        let failed = carry_out(&step).expect_err("it fails");
        assert!(failed.starts_with("fmt failed after "), "{failed}");
        assert!(failed.ends_with("\nrepeat just this with: false --check"), "{failed}");
    }
}
