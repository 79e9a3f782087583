//! Runs each fuzz target with its seeds, and with inputs that are derived from them: the same ones on every machine.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

use consensus::Random;

/// Number of inputs that are derived from each seed.
const DERIVED: u64 = 1_000;
/// Maximum number of changes that make an input out of a seed.
const CHANGES_MAX: usize = 4;
/// Maximum length of a piece that is removed, repeated or taken from another seed.
const PIECE_BYTES_MAX: usize = 16;
/// Bytes at the limits of signed and unsigned numbers, of lengths and of text.
const LIMITS: [u8; 8] = [0, 1, 0x7f, 0x80, 0xfe, 0xff, b'\n', b'"'];

macro_rules! targets {
    ($($target:ident)*) => {
        const TARGETS: &[&str] = &[$(stringify!($target)),*];

        $(
            #[test]
            fn $target() {
                check_all(stringify!($target), fuzz::$target::check);
            }
        )*
    };
}

targets! {
    frames
    request
    response
    record_batch
    producers
    pattern
    service
    kafka_request
    redis_request
    queue_filter
    pubsub_schema
    sqs_request
    pubsub_request
    credential
    redis_rules
    sqs_policy
    node_link
    join_message
    join_token
    node_manifest
    mesh_link
    mesh_invitation
    redis_value
    lua_data
}

#[test]
fn each_folder_of_seeds_has_a_target() {
    let mut folders: Vec<String> = list(&corpus()).iter().map(|path| name(path)).collect();
    folders.sort_unstable();
    let mut targets = TARGETS.to_vec();
    targets.sort_unstable();
    assert_eq!(folders, targets);
}

#[test]
fn derived_inputs_are_reproducible_and_differ_from_their_seed() {
    let seeds = [b"a first seed of some length".to_vec(), b"another one".to_vec()];
    let derive = |number| derived(&seeds, 0, &mut Random::new(number));
    let inputs: Vec<Vec<u8>> = (0..100).map(derive).collect();
    assert_eq!(inputs, (0..100).map(derive).collect::<Vec<_>>());
    let changed = inputs.iter().filter(|input| **input != seeds[0]).count();
    assert!(changed > 90, "{changed} of 100 differ");
}

fn check_all(target: &str, check: fn(&[u8])) {
    let mut paths = list(&corpus().join(target));
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "seed"));
    paths.sort_unstable();
    assert!(!paths.is_empty(), "{target} has no seeds: cargo xtask fuzz-corpus");
    let seeds: Vec<Vec<u8>> = paths.iter().map(|path| fs::read(path).expect("a seed")).collect();
    for (at, path) in paths.iter().enumerate() {
        check_one(&name(path), check, &seeds[at]);
        let mut random = Random::new(at as u64);
        for _ in 0..DERIVED {
            check_one(&name(path), check, &derived(&seeds, at, &mut random));
        }
    }
}

/// Checks an input, and shows it if it breaks the property.
fn check_one(seed: &str, check: fn(&[u8]), input: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(input))) {
        eprintln!("failing input, derived from {seed}: b\"{}\"", input.escape_ascii());
        resume_unwind(panic);
    }
}

/// Returns the seed at this place with a few changes.
fn derived(seeds: &[Vec<u8>], at: usize, random: &mut Random) -> Vec<u8> {
    let mut input = seeds[at].clone();
    for _ in 0..=below(random, CHANGES_MAX) {
        let place = below(random, input.len() + 1);
        let length = (1 + below(random, PIECE_BYTES_MAX)).min(input.len() - place);
        match below(random, 6) {
            0 if length > 0 => input[place] ^= 1 << below(random, 8),
            1 if length > 0 => input[place] = LIMITS[below(random, LIMITS.len())],
            2 => drop(input.drain(place..place + length)),
            3 => {
                let piece = input[place..place + length].to_vec();
                input.splice(place..place, piece);
            }
            4 => input.truncate(place),
            _ => {
                let other = &seeds[below(random, seeds.len())];
                let from = below(random, other.len() + 1);
                let piece = &other[from..(from + PIECE_BYTES_MAX).min(other.len())];
                input.splice(place..place + length, piece.iter().copied());
            }
        }
    }
    input
}

fn below(random: &mut Random, end: usize) -> usize {
    random.below(end as u64) as usize
}

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

fn list(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder of seeds");
    entries.map(|entry| entry.expect("an entry").path()).collect()
}

fn name(path: &Path) -> String {
    path.file_name().expect("a name").to_string_lossy().into_owned()
}
