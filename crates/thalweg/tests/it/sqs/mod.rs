//! The SQS door as its clients meet it, by both of its protocols.

pub mod client;
mod fifo;
mod messages;
mod model;
mod moves;
mod polls;
mod protocols;
mod queues;
