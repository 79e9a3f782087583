//! `cargo xtask compat`: tests of this project with other implementations.

mod batches;
mod broker;
mod clients;
mod cluster;
mod console;
mod lacks;
mod mesh;
mod report;
mod suite;
mod systems;

pub use mesh::quick as quick_mesh;
pub use suite::quick;

use crate::run::Outcome;
use systems::SYSTEMS;

pub fn run(args: &[&str]) -> Outcome {
    let named = args.split_first().and_then(|(name, rest)| {
        let system = SYSTEMS.iter().copied().find(|system| system.name == *name)?;
        Some((system, rest))
    });
    match (args, named) {
        (["batches"], _) => batches::run(),
        (["console"], _) => console::run(),
        (["cluster", rest @ ..], _) => cluster::run(rest),
        (["mesh", rest @ ..], _) => mesh::run(rest),
        (_, Some((system, rest))) => suite::run(system, rest),
        _ => {
            let names: Vec<&str> = SYSTEMS.iter().map(|system| system.name).collect();
            Err(format!(
                "the arguments are batches, cluster, console, mesh, or one of {} with clients and options: \
                 compat/*/README.md lists them",
                names.join(", ")
            ))
        }
    }
}
