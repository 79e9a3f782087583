//! The interface of all doors: how one is opened.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use broker::Broker;
use futures_util::future::BoxFuture;
use net::telemetry::Telemetry;
use net::tls::Tls;
use net::{Connections, Forward, Gate, Shutdown, Sockets, Workers};

/// A door that is not open yet: the settings of one protocol. To add a door, add its folder with an implementation of
/// this trait, a row to [`broker::Door`], and a row to the table of doors (`crates/thalweg/src/door_table.rs`), which
/// reads its keys.
pub trait Door: Send {
    /// Opens the door, and serves clients in the background until the shutdown begins. The door keeps nothing of the
    /// broker when the shutdown has ended, also if it was cut short: another broker may open doors at the same sockets.
    fn open(self: Box<Self>, opening: Opening<'_>) -> BoxFuture<'_, io::Result<Opened>>;
}

/// Parts of the process that every door gets.
pub struct Opening<'s> {
    pub broker: Arc<Broker>,
    /// Threads that serve connections.
    pub workers: &'s Arc<Workers>,
    /// Bound sockets of this door.
    pub sockets: &'s Sockets,
    /// Limits of the connections of this door.
    pub connections: Arc<Connections>,
    pub shutdown: &'s Shutdown,
    pub tls: &'s Arc<Tls>,
    /// Gate, if the broker may have to stop answering at any moment.
    pub gate: Option<Arc<dyn Gate>>,
}

/// A door that serves clients.
pub struct Opened {
    /// Bound address.
    pub address: SocketAddr,
    /// Counters of the service; `None` for a door that exposes counters of its own.
    pub telemetry: Option<Arc<Telemetry>>,
    /// Serves connections that another node forwards. It holds nothing of the door.
    pub forward: Forward,
}
