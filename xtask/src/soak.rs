//! `cargo xtask soak`: the tests that follow seeds, again and again with other ones.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::run::{Call, Outcome};

const MINUTES: u64 = 10;
/// What one round does before another seed: long enough to be worth starting, short enough to end in time.
const CYCLES: u64 = 20;
const SUITES: [&str; 6] = ["power::", "faults::", "damage::", "repair::", "reads::", "kill::"];

pub fn run(args: &[&str]) -> Outcome {
    let minutes = minutes(args)?;
    let begin = Instant::now();
    // Seeds that nobody has tried, and that one can say.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_err(|e| format!("the clock: {e}"))?;
    let mut seed = now.as_secs() % 1_000_000 * 1000;
    Call::line("cargo test -p thalweg-storage --test it --no-run").run()?;
    let mut rounds = 0;
    while begin.elapsed() < Duration::from_secs(60 * minutes) {
        round(seed)?;
        (seed, rounds) = (seed + CYCLES, rounds + 1);
        println!("== soak: {rounds} rounds passed, {} s of {} s", begin.elapsed().as_secs(), 60 * minutes);
    }
    Ok(())
}

fn minutes(args: &[&str]) -> Outcome<u64> {
    match args {
        ["storage"] => Ok(MINUTES),
        ["storage", "--minutes", minutes] => minutes.parse().map_err(|e| format!("'{minutes}' minutes: {e}")),
        _ => Err("it takes a suite, storage, and --minutes N".into()),
    }
}

fn round(seed: u64) -> Outcome {
    let call = Call::line("cargo test --quiet -p thalweg-storage --test it --")
        .args(SUITES)
        .env("STORAGE_SEED", seed.to_string())
        .env("STORAGE_CYCLES", CYCLES.to_string());
    call.run().map_err(|e| {
        format!(
            "{e}\nThe test says with which seed above (to repeat it: ...). Order in time is no part of a seed: \
             repeat it several times, with others at work beside it"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_takes_is_checked() {
        assert_eq!(minutes(&["storage"]), Ok(MINUTES));
        assert_eq!(minutes(&["storage", "--minutes", "90"]), Ok(90));
        assert!(minutes(&[]).is_err() && minutes(&["broker"]).is_err());
        assert!(minutes(&["storage", "--minutes", "long"]).is_err());
    }
}
