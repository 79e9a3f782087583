//! Simulations of clusters, each from a seed: a seed gives one history, and a violation can be played again.

mod agenda;
mod clock;
pub mod replicas;
mod violation;

pub use violation::Violation;
