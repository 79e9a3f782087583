//! Caches, and near caches in front of them.

pub mod caches;
mod near_caches;
