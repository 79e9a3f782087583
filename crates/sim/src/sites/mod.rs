//! Discovery of a mesh with many sites, from a seed: the state machines of [`engine::mesh`] in one discrete-event loop.
//!
//! Each site has its own interest, part of the directory and subscriber cache, which are those of the product. Links,
//! the list of sites and the network are simulated: `Roster` is one list for all sites, each of which notices a change
//! of it after a time that the seed gives. [`run`] has small meshes with faults, and checks the rules of the discovery.
//! [`measure`] has large ones, and counts messages and latencies.

mod bugs;
mod discovery;
mod faults;
mod measure;
mod report;
mod roster;
mod site;
mod tables;
mod truth;
mod wheel;
mod world;

use std::fmt;
use std::ops::AddAssign;

use consensus::Time;

use crate::violation::Violation;
pub use bugs::Bug;
pub use measure::{Measured, measure};
pub use report::table;
pub use tables::{CHANGES_PER_SECOND, Tables, change_interest, exceed_limit};
pub use world::Again;

const MS: Time = 1_000_000;

/// How a run with faults went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    pub events: u64,
    pub messages: u64,
    pub publishes: u64,
    pub restarts: u64,
    pub joins: u64,
    pub cuts: u64,
    /// Digest of all that happened: equal for two runs of a seed.
    pub trace: u64,
}

impl AddAssign for Run {
    fn add_assign(&mut self, other: Self) {
        self.events += other.events;
        self.messages += other.messages;
        self.publishes += other.publishes;
        self.restarts += other.restarts;
        self.joins += other.joins;
        self.cuts += other.cuts;
        self.trace ^= other.trace;
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { events, messages, publishes, restarts, joins, cuts, .. } = self;
        write!(
            f,
            "{events} events, {messages} messages, {publishes} records, {restarts} restarts, {joins} sites joined, \
             {cuts} links cut"
        )
    }
}

/// Runs a seed: `events` events with faults in a small mesh, and then without.
pub fn run(seed: u64, events: usize, bug: Option<Bug>) -> Result<Run, Violation> {
    let (counts, plan) = faults::run(seed, events, bug)?;
    Ok(Run {
        events: counts.events,
        messages: counts.all_messages(),
        publishes: counts.publishes,
        restarts: plan.restarts,
        joins: plan.joins,
        cuts: plan.cuts,
        trace: counts.trace,
    })
}
