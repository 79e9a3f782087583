//! Thalweg as a library: the configuration, a server, and a broker inside your own program.

#![warn(missing_docs)]

extern crate thalweg_client as client;

pub mod config;
mod embedded;
mod otlp;
pub mod server;

/// Version of this program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Commit that this program was built from; `unknown` if the sources have no history.
pub const COMMIT: &str = env!("BUILD_COMMIT");

pub use embedded::Embedded;
pub use server::Server;
