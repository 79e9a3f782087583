//! SQS door as seen by clients, in both of its protocols.

mod access;
pub mod client;
mod fifo;
mod messages;
mod model;
mod moves;
mod polls;
mod protocols;
mod queues;
