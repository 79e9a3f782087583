//! Commands, one file each.

pub mod acl;
pub mod bench;
pub mod cache;
pub mod config;
mod confirm;
pub mod demo;
pub mod group;
pub mod inspect;
pub mod publish;
pub mod queue;
pub mod reply;
pub mod request;
pub mod serve;
mod spawned;
pub mod status;
pub mod subscribe;
pub mod time;
pub mod top;
pub mod topic;
mod units;
pub mod user;

use client::{Address, Client, ClientSettings, LinkChange, LinkObserver};
use thalweg::config::Config;

use crate::output::{Result, remark};

/// Connects a client to the broker that the configuration names.
async fn connect(config: &Config) -> Result<Client> {
    let address = Address::parse(config.server_address())?;
    let shown = address.to_string();
    let observer = LinkObserver::new(move |change| match change {
        LinkChange::Lost(error) => remark(&format!("lost the connection to {shown}, trying again: {error}")),
        LinkChange::Restored => remark(&format!("connected to {shown} again")),
        _ => {}
    });
    let settings = ClientSettings { observer: Some(observer), ..config.client() };
    Ok(Client::connect_with(address, settings).await?)
}
