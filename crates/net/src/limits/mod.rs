//! Permits: what is not held cannot be used.
//!
//! Every limit hands out a permit that gives itself back when it is dropped, so that no path can forget to.
//! There are two kinds:
//!
//! - A [`Cap`] is a number for the whole process: requests in flight, bytes of memory. It is asked millions
//!   of times a second, so each thread has a [`Lease`] that takes permits in blocks and gives them out without
//!   writing to memory of another thread.
//! - [`Connections`] are rarer by far and asked from any thread; there each peer has a share of its own.
//!
//! # How a cap and its leases agree
//!
//! All that matters is under one lock in the cap, which a lease takes once for many permits. At any time
//!
//! ```text
//! max = free in the cap + kept free by leases + held by permits
//! ```
//!
//! so nothing is ever given out twice. What this leaves open is that one lease may keep what another needs.
//! Whoever is refused therefore starts a *recall*: until every lease has given back all that it keeps, and
//! for as long as somebody waits, the cap is *short*, and a lease keeps nothing. A lease sees it when it is
//! given a permit back, and an idle one by [`Lease::tick`], which its thread calls at every tick; before a pause
//! of its clock, it gives everything back.

mod cap;
mod connections;
mod lease;
mod peers;
mod sync;

#[cfg(all(test, not(net_loom)))]
mod lease_tests;

pub use cap::{Cap, SharedPermit};
pub use connections::{ConnectionLimits, ConnectionPermit, Connections, Refused};
pub use lease::{Acquire, Lease, Permit};
pub(crate) use peers::now_ns as coarse_ns;
