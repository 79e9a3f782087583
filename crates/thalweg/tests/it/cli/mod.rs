//! Command line: commands, terminals, and benchmarks.

mod commands;
mod contexts;
mod doctor;
mod terminal;
mod stream_bench;
mod cache_bench;
mod rpc;
