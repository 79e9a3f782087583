//! Commands, one file each.

pub mod access_key;
pub mod acl;
pub mod audit;
pub mod backup;
pub mod bench;
pub mod cache;
pub mod cluster;
mod cluster_demo;
pub mod config;
mod confirm;
pub mod connections;
pub mod context;
pub mod demo;
pub mod doctor;
pub mod group;
pub mod init;
pub mod inspect;
pub mod login;
pub mod mesh;
pub mod publish;
pub mod queue;
pub mod quota;
pub mod reply;
pub mod request;
pub mod role;
pub mod serve;
mod spawned;
pub mod status;
pub mod subscribe;
pub mod tenant;
pub mod time;
pub mod token;
pub mod top;
pub mod topic;
mod units;
pub mod user;

use std::io::IsTerminal;

use client::{Addresses, Client, ClientSettings, ErrorKind, LinkChange, LinkObserver, Login};
use thalweg::admin_token;
use thalweg::config::{Config, ContextUse, Credential};
use tokio::signal::unix::{SignalKind, signal};

use crate::output::{FAILED, Failure, Result, USAGE, remark};

/// Connects a client to the broker that the configuration names.
async fn connect(config: &Config) -> Result<Client> {
    let addresses = Addresses::parse(config.server_address())?;
    let shown = addresses.to_string();
    let observer = LinkObserver::new(move |change| match change {
        LinkChange::Lost(error) => remark(&format!("lost the connection to {shown}, trying again: {error}")),
        LinkChange::Restored => remark(&format!("connected to {shown} again")),
        LinkChange::Moved(address) => remark(&format!("connected to another node of the cluster: {address}")),
        _ => {}
    });
    let settings = ClientSettings { observer: Some(observer), ..client_settings(config)? };
    Client::connect_with(addresses, settings).await.map_err(|error| refused_in_context(config, error))
}

/// Returns the failure of a connection. One of a login that a context has stored says how to renew it.
fn refused_in_context(config: &Config, error: client::Error) -> Failure {
    match config.context() {
        ContextUse::Used { name, is_logged_in: true, .. } if error.kind == ErrorKind::Denied => {
            Failure::new(FAILED, format!("{error}; log in again: thalweg login --context {name}"))
        }
        _ => error.into(),
    }
}

/// Returns the settings of a client, with the login that the configuration names. A password that it does not have is
/// asked for.
fn client_settings(config: &Config) -> Result<ClientSettings> {
    let client = config.client();
    let login = match config.credential()? {
        Credential::None if client.identity.is_some() => None,
        Credential::None => admin_token::login(&Addresses::parse(config.server_address())?),
        Credential::Token(token) => Some(Login::token(token)?),
        Credential::User(name, Some(password)) => Some(Login::new(name, password)?),
        Credential::User(name, None) if std::io::stdin().is_terminal() => {
            Some(Login::new(name, user::type_password(name)?.as_str())?)
        }
        Credential::User(name, None) => {
            let message = format!("the password of user {name} is missing: set password_file or THALWEG_PASSWORD");
            return Err(Failure::new(USAGE, message));
        }
    };
    Ok(ClientSettings { login, ..client })
}

/// Runs a demonstration on all threads. A signal ends it, and with it the processes that it has started.
fn until_stopped<T>(demonstration: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::select! {
            ended = Box::pin(demonstration) => ended,
            _ = terminate.recv() => Err(Failure::new(FAILED, "stopped")),
            _ = interrupt.recv() => Err(Failure::new(FAILED, "stopped")),
        }
    })
}
