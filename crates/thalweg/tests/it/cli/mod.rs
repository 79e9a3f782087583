//! Command line: commands, terminals, and benchmarks.

mod commands;
mod contexts;
mod doctor;
mod init;
mod packaging;
mod terminal;
mod stream_bench;
mod cache_bench;
mod rpc;
