//! Permits: only a held amount can be used.
//!
//! Every limit issues a permit that returns itself when it is dropped, so that no code path can forget it. There are
//! two kinds:
//!
//! - A [`Cap`] is a number for the whole process: requests in flight, bytes of memory. It is used millions of times per
//!   second, so each thread has a [`Lease`], which takes permits in blocks and issues them without writing to memory of
//!   other threads.
//! - [`Connections`] are far less frequent and used from any thread; there, each peer has its own share.
//!
//! # How a cap and its leases agree
//!
//! The decisive state is under one lock in the cap, which a lease takes once for many permits. At any time
//!
//! ```text
//! max = free in the cap + kept free by leases + held by permits
//! ```
//!
//! so nothing is ever issued twice. One problem remains: a lease may keep an amount that another one needs. A refused
//! request therefore starts a *recall*: until every lease has returned all that it keeps, and for as long as a waiter
//! exists, the cap is *short*, and a lease keeps nothing. A lease notices that when a permit is returned to it, and an
//! idle lease in [`Lease::tick`], which its thread calls at every tick; before a pause of its clock, it returns
//! everything.

mod cap;
mod connections;
mod lease;
mod open;
mod peers;
mod sync;

#[cfg(all(test, not(net_loom)))]
mod lease_tests;

pub use cap::{Cap, SharedPermit};
pub use connections::{ConnectionLimits, ConnectionPermit, Connections, Refused};
pub use lease::{Acquire, Lease, Permit};
pub use open::{OpenConnection, Phase};
pub(crate) use peers::now_ns as coarse_ns;
