//! Simulations of clusters, each from a seed: a seed gives one history, and a violation can be played again.

pub mod replicas;
