//! Broker inside your own program, without a socket.

use std::io;
use std::sync::Arc;

use broker::Broker;
use client::{Address, Client};
use doors::native::Native;
use net::{ConnectionLimits, Connections, Shutdown, Workers};

use crate::config::Config;

/// Bytes in flight between a client and the broker, in each direction.
const PIPE_BYTES: usize = 256 << 10;

/// Broker on a separate thread. Its clients are ordinary [`Client`]s.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use thalweg_client::{Record, Start};
/// use thalweg::Embedded;
///
/// let broker = Embedded::start()?;
/// let client = broker.client();
/// client.publish("greetings", Record::new("hello")).await?;
/// let mut greetings = client.subscribe("greetings").start(Start::Earliest).open().await?;
/// assert_eq!(greetings.next().await?.record.value(), b"hello");
/// # Ok(())
/// # }
/// ```
pub struct Embedded {
    broker: Arc<Broker>,
    native: Arc<Native>,
    settings: client::ClientSettings,
}

impl Embedded {
    /// Starts a broker with default settings.
    pub fn start() -> io::Result<Self> {
        Self::with(&Config::defaults())
    }

    /// Starts a broker with this configuration. Its doors stay closed: only clients of this broker reach it.
    pub fn with(config: &Config) -> io::Result<Self> {
        let workers = Arc::new(Workers::start(1)?);
        let server = config.server();
        let broker = crate::server::start_broker(config, &workers)?;
        let connections = Connections::new(ConnectionLimits::up_to(server.connections_max));
        let shutdown = Shutdown::default();
        let native = Native::start(broker.clone(), server.hello_timeout, false, &workers, connections, &shutdown, None);
        Ok(Self { broker, native: Arc::new(native), settings: config.client() })
    }

    /// Returns a new client with its own connections.
    pub fn client(&self) -> Client {
        let native = self.native.clone();
        let pipes = move || {
            let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
            native.server.serve_pipe(theirs);
            ours
        };
        Client::lazy(Address::Pipe(Arc::new(pipes)), self.settings.clone())
    }

    /// Returns the native door, which serves the clients.
    pub fn native(&self) -> &Native {
        &self.native
    }

    /// Returns the broker itself, for operations that clients do not offer.
    pub fn broker(&self) -> &Arc<Broker> {
        &self.broker
    }
}
