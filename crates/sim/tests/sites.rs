//! A few seeds of the discovery of a mesh, and that a seed can be played again. `cargo xtask simulate sites` runs many.

use sim::sites::{self, Bug};

const EVENTS: usize = 1000;

#[test]
fn every_reader_is_found_and_nothing_stays_after_every_fault() {
    for seed in 0..8 {
        if let Err(violation) = sites::run(seed, EVENTS, None) {
            panic!("seed {seed}: {}", violation.0);
        }
    }
}

#[test]
fn two_runs_of_a_seed_are_equal() {
    for seed in 100..102 {
        let [first, second] = [(); 2].map(|()| sites::run(seed, EVENTS, None).expect("no violation"));
        assert_eq!(first, second, "seed {seed}");
        assert!(first.trace != 0 && first.messages > 0, "seed {seed}: {first:?}");
    }
}

#[test]
fn planted_bugs_are_found() {
    // Those that almost every seed shows.
    for bug in
        [Bug::NeverRenews, Bug::NeverSweeps, Bug::ForgetsWatches, Bug::KeepsFirstOwners, Bug::KeepsLostWithdrawals]
    {
        let found = (0..3).any(|seed| sites::run(seed, EVENTS, Some(bug)).is_err());
        assert!(found, "{}", bug.about());
    }
}

#[test]
fn tables_shrink_after_many_changes_of_interest() {
    if let Err(violation) = sites::change_interest(2, 1) {
        panic!("{}", violation.0);
    }
}

#[test]
fn a_mesh_of_a_hundred_sites_is_measured_without_losses() {
    let measured = sites::measure(100, 1).expect("no violation");
    assert_eq!((measured.steady.missing, measured.steady.wrong), (0, 0));
    assert_eq!((measured.churn.missing, measured.churn.wrong, measured.churn.ended), (0, 0, 0));
    for storms in [measured.stale_storms, measured.cold_storms] {
        assert_eq!((storms.in_flight_max, storms.lost), (1, 0), "{storms:?}");
    }
    assert_eq!((measured.cold.wrong, measured.new_readers.unaware), (0, 0));
    assert!(sites::table(&[measured]).contains("| Simulated | 100 sites |"));
}
