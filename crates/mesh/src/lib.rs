//! Links between the sites of a mesh, over which they exchange what their clients publish.
//!
//! [`Site`] is the mesh of one broker. A running site (`running.rs`) keeps links to the other sites (`link.rs`), looks
//! up which of them read a topic (`discovery.rs`), sends them what clients publish here (`live.rs`), publishes what
//! they send (`receive.rs`), and copies mirrored topics (`copies.rs`, `origin.rs`). The decisions are those of
//! `engine::mesh`, which has neither sockets nor a clock.

mod control;
mod copies;
mod discovery;
mod endpoints;
pub mod frame;
mod handshake;
mod identity;
pub mod invitation;
mod limit;
mod link;
mod listening;
mod live;
mod metrics;
mod origin;
mod places;
mod receive;
mod running;
mod site;
mod store;
#[cfg(test)]
mod test_site;

pub use site::{Settings, Site};
