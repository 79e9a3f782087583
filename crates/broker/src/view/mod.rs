//! A queue's view of one partition, which lives behind the partition's lock, and the types that it shares with queues.

mod cell;
mod examined;
mod queue;
mod received;
mod table;

pub(crate) use cell::QueueCell;
pub(crate) use examined::{Examination, SLICE_RECORDS};
pub(crate) use queue::{Found, LogEnds, Oldest, QueueView, Turn, carried_attempts};
pub(crate) use received::Origin;
pub use received::{Delivered, Receipt, Received};
pub(crate) use table::Views;
