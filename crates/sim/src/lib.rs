//! Simulations of clusters, each from a seed: a seed gives one history, and a violation can be played again.
//!
//! [`replicas`] has the consensus with a model of everything else. `nodes` has whole nodes: their stores, on disks that
//! lose power at any byte, in one thread that decides what runs next. `sites` has the discovery of a mesh.

mod agenda;
mod clock;
mod cuts;
#[cfg(feature = "nodes")]
mod disk;
#[cfg(feature = "nodes")]
pub mod nodes;
pub mod replicas;
#[cfg(feature = "sites")]
pub mod sites;
mod violation;

pub use consensus::Random;
#[cfg(feature = "nodes")]
pub use disk::{Doing, Fault, POWER_IS_OFF, SimDisk};
pub use violation::Violation;
