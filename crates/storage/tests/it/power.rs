//! The power goes at any moment, again and again: what was acknowledged is there, and nothing that was never appended.

use std::panic::RefUnwindSafe;
use std::path::Path;

use crate::sim::{Random, SimDisk};
use crate::workload::{Heard, Model, Work, open, small};

/// `STORAGE_SEED` and `STORAGE_CYCLES` ask for other seeds, or for more of them.
pub fn first_seed() -> u64 {
    number("STORAGE_SEED").unwrap_or(1)
}

pub fn times(cycles: u64) -> u64 {
    number("STORAGE_CYCLES").unwrap_or(cycles)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// One directory through several lives, each of which a power cut ends.
fn live(seed: u64, syncs_in_flight: usize) {
    let mut random = Random::new(seed);
    let (mut disk, mut model, dir) = (SimDisk::new(), Model::default(), Path::new("/srv/data"));
    let lives = 3 + random.below(3);
    let mut incarnation = seed * 100;
    for life in 1..=lives {
        let is_last = life == lives;
        // At times it goes while the directory is being opened.
        if !is_last && random.is_one_in(4) {
            disk.power_off_after(random.below(150));
        }
        let heard = Heard::default();
        match open(&disk, dir, small(syncs_in_flight)) {
            Err(error) => assert!(disk.is_off(), "seed {seed}, life {life}: {error}"),
            Ok((store, topics)) => match model.check(&topics, incarnation) {
                Err(error) => {
                    assert!(disk.is_off(), "seed {seed}, life {life}: {error}");
                    store.stop().unwrap_or_default();
                }
                Ok(()) => {
                    incarnation += 1;
                    let is_clean = is_last || random.is_one_in(6);
                    if !is_clean {
                        disk.power_off_after(random.below(900));
                    }
                    let work = Work::new((store, topics), &model, incarnation, heard.say());
                    work.run(seed * 1000 + life, 1 + random.below(3), if is_clean { 60 } else { 2000 });
                    let ended = work.end();
                    assert!(ended.is_ok() || disk.is_off(), "seed {seed}, life {life}: {ended:?}");
                }
            },
        }
        heard.tell(&mut model);
        // The power goes, or only the process.
        disk = if random.is_one_in(4) { disk.kill() } else { disk.cut(random.next()) };
    }
    let (_store, topics) =
        open(&disk, dir, small(syncs_in_flight)).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    model.check(&topics, incarnation).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
}

/// Does it with each seed, and says of one that fails how to repeat it.
pub fn repeatable(cycles: u64, each: impl Fn(u64) + RefUnwindSafe) {
    for seed in (first_seed()..).take(times(cycles) as usize) {
        if let Err(panic) = std::panic::catch_unwind(|| each(seed)) {
            let thread = std::thread::current();
            let test = thread.name().unwrap_or_default();
            eprintln!(
                "to repeat it: STORAGE_SEED={seed} STORAGE_CYCLES=1 cargo test -p thalweg-storage --test it -- {test}"
            );
            std::panic::resume_unwind(panic);
        }
    }
}

fn lives(syncs_in_flight: usize, cycles: u64) {
    repeatable(cycles, |seed| live(seed, syncs_in_flight));
}

#[test]
fn what_was_acknowledged_outlives_power_cuts_with_one_sync_at_a_time() {
    lives(1, 70);
}

#[test]
fn what_was_acknowledged_outlives_power_cuts_with_two_syncs_in_flight() {
    lives(2, 70);
}

#[test]
fn what_was_acknowledged_outlives_power_cuts_with_three_syncs_in_flight() {
    lives(3, 70);
}

/// Killed while it makes its files: the next one finds files whose names are not yet there to stay, and uses them.
#[test]
fn files_that_a_killed_broker_made_outlive_a_power_cut_once_they_are_used() {
    let dir = Path::new("/srv/data");
    for operations in 0..60 {
        let disk = SimDisk::new();
        disk.power_off_after(operations);
        drop(open(&disk, dir, small(1)));
        let (disk, mut model, heard) = (disk.kill(), Model::default(), Heard::default());
        let work = Work::new(open(&disk, dir, small(1)).expect("it opens"), &model, 1, heard.say());
        let writers = work.create(1).expect("a topic");
        for _ in 0..20 {
            let end = writers[0].append().expect("it is taken");
            assert!(writers[0].wait(end), "it is acknowledged");
        }
        let after = disk.cut(operations);
        disk.power_off_after(0);
        work.end().unwrap_or_default();
        heard.tell(&mut model);
        let opened = open(&after, dir, small(1));
        let (store, topics) = opened.unwrap_or_else(|error| panic!("killed after {operations}: {error}"));
        model.check(&topics, 1).unwrap_or_else(|error| panic!("killed after {operations}: {error}"));
        store.stop().expect("it stops");
    }
}
