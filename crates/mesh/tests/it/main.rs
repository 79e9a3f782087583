//! Sites over real links on loopback, most with a broker in memory.

mod copies;
mod faults;
mod listening;
mod live;
mod membership;
mod support;
mod vectors;
