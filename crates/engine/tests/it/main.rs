//! Integration tests, which use only the public interface of the crate.

mod batches;
mod golden;
