//! Redis door as seen by clients.

mod access;
mod batches;
pub mod commands;
mod events;
mod functions;
mod held;
mod monitor;
mod scripts;
pub mod streams;
mod swap;
mod tools;
mod tracking;
mod work;
