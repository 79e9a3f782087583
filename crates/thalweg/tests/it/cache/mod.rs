//! Caches, and near caches in front of them.

pub mod caches;
mod import;
mod near_caches;
