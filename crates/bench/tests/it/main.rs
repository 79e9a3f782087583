//! Tests of the public API of this crate.

mod wan;
