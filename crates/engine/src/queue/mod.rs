//! View 3: messages that are leased to receivers one by one, over the records of a partition.

pub mod filter;

pub use filter::Filter;
