//! The whole product from outside: real processes, real sockets, on loopback.

mod bystander;
mod command;
mod proxy;
mod raw;
mod reading;
mod server;

mod bad_input;
mod certificates;
mod commands;
mod compaction;
mod consumer_commands;
mod consumers;
mod durable;
mod idempotence;
mod inspect;
mod kafka;
mod large_messages;
mod limits;
mod overflow;
mod producers;
mod publishing;
mod pubsub;
mod pubsub_model;
mod pubsub_push;
mod queues;
mod requests;
mod resilience;
mod rpc;
mod serve;
mod sqs;
mod stream_bench;
mod subscribing;
mod telemetry;
mod topics;
mod transports;
