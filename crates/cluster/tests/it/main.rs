//! Tests of the public interface.

mod identity;
mod join;
mod link;
mod support;
mod transport;
