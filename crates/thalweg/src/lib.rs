//! Thalweg as a library: the configuration, a server, and a broker inside your own program.
//!
//! This crate refuses to hold rules: the broker has them, and the doors have those of the protocols. It reads settings,
//! opens doors and stops them again.

#![warn(missing_docs)]

extern crate thalweg_client as client;

// What the user set, and what each door makes of it.
pub mod admin_token;
pub mod config;
mod connections;
mod door_table;

// A server in a process of its own, or in another program.
pub mod server;
pub mod node;
pub mod admission;
mod embedded;
mod exchange;
mod issuer;
mod otlp;
mod ports;
mod process;
mod restore;

/// Version of this program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Commit that this program was built from; `unknown` if the sources have no history.
pub const COMMIT: &str = env!("BUILD_COMMIT");

pub use broker::Door;
pub use embedded::Embedded;
pub use node::{NodeServer, removed};
pub use server::Server;
