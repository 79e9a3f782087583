//! `cargo xtask compat`: what other implementations make of ours.

mod batches;
mod broker;
mod clients;
mod kafka;
mod report;

pub use kafka::quick;

use crate::run::Outcome;

pub fn run(args: &[&str]) -> Outcome {
    match args {
        ["batches"] => batches::run(),
        ["kafka", rest @ ..] => kafka::run(rest),
        _ => {
            Err("it takes batches, or kafka with names of clients and options; compat/kafka/README.md has them".into())
        }
    }
}
