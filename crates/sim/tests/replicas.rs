//! A few seeds of each simulation, and that a seed can be played again. `cargo xtask simulate` runs many.

use sim::replicas::{self, Bug};

const EVENTS: usize = 1000;

#[test]
fn nodes_agree_after_every_fault() {
    for seed in 0..500 {
        if let Err(violation) = replicas::run(seed, EVENTS, None) {
            panic!("seed {seed}: {}", violation.0);
        }
    }
}

#[test]
fn two_runs_of_a_seed_are_equal() {
    for seed in 100..110 {
        let [first, second] = [(); 2].map(|()| replicas::run(seed, EVENTS, None).expect("no violation"));
        assert_eq!(first, second, "seed {seed}");
        assert!(first.trace != 0 && first.committed > 0, "seed {seed}: {first:?}");
    }
}

#[test]
fn different_seeds_give_different_runs() {
    let traces: std::collections::BTreeSet<u64> =
        (0..20).map(|seed| replicas::run(seed, EVENTS, None).expect("no violation").trace).collect();
    assert_eq!(traces.len(), 20);
}

#[test]
fn planted_bugs_are_found() {
    // Those that almost every seed shows.
    for bug in [Bug::AnswersBeforeSync, Bug::CountsLaterSaves, Bug::LosesLastEntry, Bug::AcknowledgesOwnDisk] {
        let found = (0..20).any(|seed| replicas::run(seed, EVENTS, Some(bug)).is_err());
        assert!(found, "{}", bug.about());
    }
}
