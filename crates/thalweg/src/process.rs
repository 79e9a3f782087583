//! Parts of a process that its brokers share: worker threads, the sockets of the doors, and their certificate. They are
//! made once, even if a node of a cluster opens its doors at each of its leaderships.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use broker::Door;
use net::tls::{Identity, IdentitySource, Reloaded, Tls, TlsSettings};
use net::{Sockets, Workers};
use parking_lot::RwLock;
use tokio::task::JoinHandle;

use crate::config::Config;
use crate::ports;
use crate::server::ServerSettings;

/// Parts of a process before its sockets are bound. Its certificate is created in the background.
pub(crate) struct Starting {
    workers: Arc<Workers>,
    tls: JoinHandle<io::Result<Arc<Tls>>>,
}

/// Parts of a process.
pub(crate) struct Process {
    pub tls: Arc<Tls>,
    sockets: RwLock<Vec<(Door, Arc<Sockets>)>>,
    workers: Arc<Workers>,
}

impl Starting {
    pub fn new(config: &Config) -> io::Result<Self> {
        let settings = config.server();
        let doors = config.doors().map_err(io::Error::other)?;
        // The first key of a process takes tens of milliseconds to create, and so does opening a directory: both run
        // concurrently.
        let tls = tokio::task::spawn_blocking({
            let settings = settings.clone();
            move || tls(&settings, doors.into_iter().map(|(_, address)| address))
        });
        Ok(Self { workers: Arc::new(Workers::start(settings.threads)?), tls })
    }

    pub fn workers(&self) -> &Workers {
        &self.workers
    }

    /// Binds the sockets of all doors.
    pub async fn bind(self, config: &Config) -> io::Result<Process> {
        let tls = self.tls.await.map_err(io::Error::other)??;
        let sockets = ports::bind(config)?.into_iter().map(|(door, sockets)| (door, Arc::new(sockets))).collect();
        Ok(Process { tls, sockets: RwLock::new(sockets), workers: self.workers })
    }
}

impl Process {
    /// Returns the bound sockets of each door.
    pub fn sockets(&self) -> Vec<(Door, Arc<Sockets>)> {
        self.sockets.read().clone()
    }

    /// Closes the sockets, each with its last acceptor: new clients are refused instead of left waiting.
    pub fn close_sockets(&self) {
        self.sockets.write().clear();
    }

    pub fn workers(&self) -> &Arc<Workers> {
        &self.workers
    }

    /// Reads the certificate files again, even if they are unchanged.
    pub fn reload_certificates(&self) {
        match self.tls.reload() {
            Ok(Reloaded::Changed) => {}
            Ok(_) => tracing::info!("the files contain the active certificates"),
            Err(error) => tracing::debug!(%error, "cannot use the certificates"),
        }
    }

    /// Returns the bound address of a door; `None` if it is off.
    pub fn address(&self, door: Door) -> Option<SocketAddr> {
        self.sockets.read().iter().find(|(own, _)| *own == door).map(|(_, sockets)| sockets.address())
    }
}

/// Creates the TLS settings of all doors: from the named certificate, or from one generated for these addresses.
fn tls(settings: &ServerSettings, addresses: impl Iterator<Item = SocketAddr>) -> io::Result<Arc<Tls>> {
    let source = match settings.identity.clone() {
        Some((certificate, key)) => IdentitySource::Files { certificate, key },
        None => {
            let names = addresses.map(|address| address.ip().to_string());
            let mut names: Vec<String> = std::iter::once("localhost".to_owned()).chain(names).collect();
            names.dedup();
            IdentitySource::Fixed(Identity::self_signed(names)?)
        }
    };
    let wrap = |error: io::Error| {
        let keys =
            if settings.client_auth.is_some() { "tls_cert, tls_key and tls_client_*" } else { "tls_cert and tls_key" };
        io::Error::new(error.kind(), format!("{keys}: {error}"))
    };
    let settings = TlsSettings { client_auth: settings.client_auth.clone(), ..source.into() };
    Tls::new(settings).map_err(wrap)
}
