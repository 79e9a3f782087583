//! `cargo xtask simulate`: runs the simulations of `crates/sim` with many seeds.

use crate::run::{Call, Outcome};

const SEEDS: &str = "100000";
/// Seeds of whole nodes, each of which takes about a hundred times as long.
const NODE_SEEDS: &str = "2000";
/// Seeds within which each planted bug has to be found.
const BUG_SEEDS: u32 = 20_000;

/// Seeds of the discovery of a mesh.
const SITE_SEEDS: &str = "5000";
/// Seeds within which each bug planted in the discovery has to be found.
const SITE_BUG_SEEDS: &str = "400";
/// Numbers of sites of the meshes that are measured.
const SITES: &str = "1000,10000,100000";

pub fn run(args: &[&str]) -> Outcome {
    if let ["sites", rest @ ..] = args {
        return sites(rest);
    }
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
        _ => {
            return Err(
                "the arguments are nodes, views or sites, a number of seeds, and --from with the first one".into()
            );
        }
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

/// Simulates the discovery of a mesh: small meshes with faults, the tables of sites, and large meshes, each in its own
/// process so that its memory is its own.
fn sites(args: &[&str]) -> Outcome {
    let (sizes, seeds, from) = match args {
        [] => (SITES, SITE_SEEDS, "0"),
        ["--sizes", sizes] => (*sizes, SITE_SEEDS, "0"),
        [seeds] => (SITES, *seeds, "0"),
        [seeds, "--from", from] => (SITES, *seeds, *from),
        _ => return Err("the arguments of sites are --sizes N,N.., or a number of seeds and --from".into()),
    };
    for number in sizes.split(',').chain([seeds, from]) {
        number.parse::<u64>().map_err(|e| format!("'{number}': {e}"))?;
    }
    // Without the broker and its store, this is built in a minute.
    let simulate = || {
        let call =
            Call::line("cargo run --quiet --release --package thalweg-sim --no-default-features --features sites");
        call.args(["--", "sites"])
    };
    if !matches!(args, ["--sizes", _]) {
        simulate().args(["--bugs", "--seeds", SITE_BUG_SEEDS]).run()?;
        simulate().args(["--seeds", seeds, "--from", from]).run()?;
        simulate().arg("--tables").run()?;
    }
    sizes.split(',').try_for_each(|size| simulate().args(["--sizes", size]).run())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_arguments_are_refused() {
        for args in [&["many"][..], &["1", "2"], &["1", "--from"], &["1", "--from", "x"], &["nodes", "many"]] {
            assert!(run(args).is_err(), "{args:?}");
        }
        for args in [&["many"][..], &["1", "2"], &["--sizes"], &["--sizes", "1,"], &["1", "--from", "x"]] {
            assert!(sites(args).is_err(), "{args:?}");
        }
    }
}
