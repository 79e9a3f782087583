//! Redis door as seen by clients.

mod access;
pub mod commands;
pub mod streams;
mod tools;
mod work;
