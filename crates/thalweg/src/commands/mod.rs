//! One file a command.

pub mod acl;
pub mod bench;
pub mod cache;
pub mod config;
pub mod demo;
pub mod group;
pub mod inspect;
pub mod publish;
pub mod queue;
pub mod request;
pub mod serve;
mod spawned;
pub mod subscribe;
pub mod time;
pub mod top;
pub mod topic;
pub mod user;

use client::{Address, Client};
use thalweg::config::Config;

use crate::output::Result;

/// A client of the broker that the configuration names.
async fn connect(config: &Config) -> Result<Client> {
    let address = Address::parse(config.server_address())?;
    Ok(Client::connect_with(address, config.client()).await?)
}
