//! A few seeds of whole nodes, and that a seed can be played again. `cargo xtask simulate nodes` runs many.

use sim::nodes::{Serving, run};

const EVENTS: usize = 3000;

fn run_all(serving: Serving, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        if let Err(violation) = run(serving, seed, EVENTS) {
            panic!("{serving:?}, seed {seed}: {}", violation.0);
        }
    }
}

#[test]
fn nodes_lose_no_record_and_agree_after_every_fault() {
    run_all(Serving::Logs, 0..25);
}

#[test]
fn brokers_lose_no_message_and_no_entry_and_lease_no_message_twice() {
    run_all(Serving::Views, 0..25);
}

#[test]
fn two_runs_of_a_seed_are_equal() {
    for seed in 100..106 {
        let [first, second] = [(); 2].map(|()| run(Serving::Logs, seed, EVENTS).expect("no violation"));
        assert_eq!(first, second, "seed {seed}");
        assert!(first.acknowledged > 0, "seed {seed}: {first:?}");
    }
}
