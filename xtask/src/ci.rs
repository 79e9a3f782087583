//! `cargo xtask ci`: all checks that have to pass before a change lands, cheapest first.

use std::time::{Duration, Instant};

use crate::run::{Call, Outcome};
use crate::{compat, deny, fuzz};

/// Inputs and seed of each fuzz target here: its seeds and similar inputs, the same ones on every machine. New inputs
/// are searched by hand.
const FUZZ: &str = "cargo xtask fuzz all 2000x 1";
/// Seeds of the simulation of a shard's nodes.
const SIMULATED_SEEDS: u32 = 100_000;
/// Short run of a cluster whose processes are killed and paused, with a seed that is always the same.
const CHAOS: &str = "cargo xtask chaos --minutes 1 --seed 1 --loopback --fresh";
/// Systems whose clients are tested here.
const COMPAT: &[&str] = &["kafka", "sqs", "pubsub", "redis"];
/// Time limit for the clients. A few clients of one system in parallel take half a minute; on a new machine they are
/// downloaded and built first.
const COMPAT_LIMIT: Duration = Duration::from_secs(420);

struct Step {
    name: &'static str,
    calls: Vec<Call>,
}

fn steps() -> Vec<Step> {
    let step = |name, lines: &[&str]| Step { name, calls: lines.iter().map(|line| Call::line(line)).collect() };
    vec![
        step("fmt", &["cargo fmt --all --check -- -l", "cargo fmt --manifest-path fuzz/Cargo.toml --check -- -l"]),
        step("tidy", &["cargo xtask tidy"]),
        step("deny", &[]),
        step("clippy", &["cargo clippy --workspace --all-targets -- -D warnings"]),
        Step {
            name: "docs",
            calls: vec![
                Call::line("cargo doc --workspace --no-deps").env("RUSTDOCFLAGS", "-D warnings"),
                Call::line("cargo xtask docs --check"),
            ],
        },
        step("test", &["cargo test --workspace"]),
        step("simulate", &[&format!("cargo xtask simulate {SIMULATED_SEEDS}")]),
        step("chaos", &[CHAOS]),
        step("compat", &[]),
        step("fuzz", &[FUZZ]),
    ]
}

/// Prepares a step just before it runs, if it has further requirements. An error names what is missing.
fn prepare(step: &mut Step) -> Outcome {
    match step.name {
        "compat" => {
            for system in COMPAT {
                let clients = compat::quick(system);
                if !clients.is_empty() {
                    let call = Call::line("cargo xtask compat").args([system, "--jobs", "4"]).args(clients);
                    step.calls.push(call.within(COMPAT_LIMIT));
                }
            }
            if step.calls.is_empty() {
                return Err("no client is installed, and there is no network to download one".into());
            }
        }
        "deny" => match deny::missing() {
            Some(missing) => return Err(missing.into()),
            None => step.calls = deny::calls(),
        },
        "fuzz" => fuzz::missing(is_ci()).map_or(Ok(()), |missing| Err(missing.to_owned()))?,
        _ => {}
    }
    Ok(())
}

pub fn run() -> Outcome {
    let begin = Instant::now();
    let mut times = Vec::new();
    let steps = steps();
    let count = steps.len();
    for (number, mut step) in (1..).zip(steps) {
        println!("\n== step {number} of {count}: {}, after {}", step.name, shown(begin.elapsed()));
        if let Err(missing) = prepare(&mut step) {
            println!("== {}: skipped, {missing}", step.name);
            times.push(format!("{} skipped", step.name));
            continue;
        }
        let time = carry_out(&step)?;
        times.push(format!("{} {}", step.name, shown(time)));
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

/// Returns `true` on a CI machine, which may be changed: missing programs are then installed.
fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
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
