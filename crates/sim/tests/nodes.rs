//! A few seeds of whole nodes, and that a seed can be played again. `cargo xtask simulate nodes` runs many.

use sim::nodes;

const EVENTS: usize = 3000;

#[test]
fn nodes_lose_nothing_and_agree_after_every_fault() {
    for seed in 0..40 {
        if let Err(violation) = nodes::run(seed, EVENTS) {
            panic!("seed {seed}: {}", violation.0);
        }
    }
}

#[test]
fn two_runs_of_a_seed_are_equal() {
    for seed in 100..105 {
        let [first, second] = [(); 2].map(|()| nodes::run(seed, EVENTS).expect("no violation"));
        assert_eq!(first, second, "seed {seed}");
        assert!(first.acknowledged > 0, "seed {seed}: {first:?}");
    }
}
