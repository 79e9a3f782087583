//! One file a command.

pub mod serve;
pub mod publish;
pub mod subscribe;
pub mod request;
pub mod topic;
pub mod config;
pub mod demo;
pub mod bench;
pub mod top;

use client::{Address, Client};
use thalweg::config::Config;

use crate::output::Result;

/// A client of the broker that the configuration names.
async fn connect(config: &Config) -> Result<Client> {
    let address = Address::parse(config.server_address())?;
    Ok(Client::connect_with(address, config.client()).await?)
}
