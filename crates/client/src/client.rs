//! The client: what a program holds. Each view adds its verbs in its own file: publishing in `publisher`, reading in
//! `subscription` and `consumer`, then `request`, `queue`, `cache`, `topics`, `groups` and `users`.

use std::sync::Arc;

use engine::Result;
use wire::{Request, Response};

use crate::address::Address;
use crate::connection::Dialer;
use crate::link::unexpected;
use crate::replies::Replies;
use crate::session::Session;
use crate::settings::ClientSettings;

/// A client of one broker. Cloning it shares its connections.
#[derive(Clone)]
pub struct Client {
    pub(crate) session: Arc<Session>,
    /// Requests that wait for answers to [`Client::request`]. Only clients hold it: when the last one is dropped, the
    /// inbox closes.
    pub(crate) replies: Arc<Replies>,
}

impl Client {
    /// Connects to `[scheme://]host[:port]` with default settings; without a scheme it is QUIC.
    pub async fn connect(address: &str) -> Result<Self> {
        Self::connect_with(Address::parse(address)?, ClientSettings::default()).await
    }

    pub async fn connect_with(address: Address, settings: ClientSettings) -> Result<Self> {
        let client = Self::lazy(address, settings);
        client.session.publish.connection(0).await?;
        Ok(client)
    }

    /// A client that connects with its first request.
    pub fn lazy(address: Address, settings: ClientSettings) -> Self {
        let session = Session::new(Arc::new(Dialer::new(address, settings)));
        Self { session, replies: Arc::default() }
    }

    /// Closes all connections and waits, at most a second, until the broker knows. A client that is just
    /// dropped is found out by its silence: over QUIC that takes six seconds.
    pub async fn close(self) {
        self.session.close().await;
    }

    pub fn settings(&self) -> &ClientSettings {
        self.session.settings()
    }

    /// The broker's metrics, as Prometheus reads them.
    pub async fn stats(&self) -> Result<String> {
        match self.session.call(&Request::Stats).await? {
            Response::Stats(text) => Ok(text),
            other => Err(unexpected(&other)),
        }
    }

    /// Asks the broker for a sign of life.
    pub async fn ping(&self) -> Result<()> {
        match self.session.call(&Request::Ping).await? {
            Response::Pong => Ok(()),
            other => Err(unexpected(&other)),
        }
    }
}
