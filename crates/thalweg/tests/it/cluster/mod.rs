//! Clusters of several nodes.

mod doors;
mod failing;
mod operating;
