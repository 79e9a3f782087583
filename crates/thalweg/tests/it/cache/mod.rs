//! Caches, and near caches in front of them.

mod caches;
mod near_caches;
