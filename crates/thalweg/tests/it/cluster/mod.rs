//! Clusters of several nodes.

mod damage;
mod doors;
mod failing;
mod operating;
