//! Tests of the public interface.

mod link;
