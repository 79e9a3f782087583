//! Redis door as seen by clients.

pub mod commands;
pub mod streams;
mod tools;
mod work;
