//! `cargo xtask simulate`: runs the simulations of `crates/sim` with many seeds.

use crate::run::{Call, Outcome};

const SEEDS: &str = "100000";
/// Seeds of whole nodes, each of which takes about a hundred times as long.
const NODE_SEEDS: &str = "2000";
/// Seeds within which each planted bug has to be found.
const BUG_SEEDS: u32 = 20_000;

pub fn run(args: &[&str]) -> Outcome {
    let (of_nodes, args) = match args {
        [name @ ("nodes" | "views"), rest @ ..] => (Some(*name), rest),
        _ => (None, args),
    };
    let default = if of_nodes.is_some() { NODE_SEEDS } else { SEEDS };
    let (seeds, from) = match args {
        [] => (default, "0"),
        [seeds] => (*seeds, "0"),
        ["--from", from] => (default, *from),
        [seeds, "--from", from] => (*seeds, *from),
        _ => return Err("the arguments are nodes or views, a number of seeds, and --from with the first one".into()),
    };
    for number in [seeds, from] {
        number.parse::<u64>().map_err(|e| format!("'{number}': {e}"))?;
    }
    let simulate = || Call::line("cargo run --quiet --release --package thalweg-sim");
    if let Some(name) = of_nodes {
        return simulate().args(["--", name, "--seeds", seeds, "--from", from]).run();
    }
    // Alone, the consensus is built in seconds.
    let simulate = || simulate().args(["--no-default-features", "--", "replicas"]);
    simulate().args(["--bugs", "--seeds", &BUG_SEEDS.to_string()]).run()?;
    simulate().args(["--seeds", seeds, "--from", from]).run()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_arguments_are_refused() {
        for args in [&["many"][..], &["1", "2"], &["1", "--from"], &["1", "--from", "x"], &["nodes", "many"]] {
            assert!(run(args).is_err(), "{args:?}");
        }
    }
}
