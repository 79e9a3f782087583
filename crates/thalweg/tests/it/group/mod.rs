//! Consumer groups: with the client, and on the command line.

mod consumers;
mod commands;
