//! Thalweg as a library: the configuration, a server, and a broker inside your own program.

pub mod config;
mod embedded;
mod otlp;
pub mod server;

pub use embedded::Embedded;
pub use server::Server;
