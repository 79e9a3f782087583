//! A broker inside your own program, without a socket.

use std::io;
use std::sync::Arc;

use broker::Broker;
use client::{Address, Client};
use doors::native::Native;
use net::Shutdown;
use tokio::runtime::Handle;

use crate::config::Config;

/// Bytes that are on the way between a client and the broker, in each direction.
const PIPE_BYTES: usize = 256 << 10;

/// A broker that lives on the program's own runtime. Its clients are ordinary [`Client`]s.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use client::{Record, Start};
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
    shutdown: Shutdown,
    settings: client::ClientSettings,
}

impl Embedded {
    /// Starts a broker with default settings. To be called on a tokio runtime.
    pub fn start() -> io::Result<Self> {
        Self::with(&Config::defaults())
    }

    pub fn with(config: &Config) -> io::Result<Self> {
        let broker = Broker::start(config.broker(), &[Handle::current()]).map_err(io::Error::other)?;
        let native = Native::new(broker.clone(), config.server().hello_timeout, true);
        Ok(Self { broker, native, shutdown: Shutdown::default(), settings: config.client() })
    }

    /// A new client, with connections of its own.
    pub fn client(&self) -> Client {
        let (native, drain) = (self.native.clone(), self.shutdown.drain());
        let pipes = move || {
            let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
            tokio::spawn(native.clone().serve_pipe(theirs, drain.clone()));
            ours
        };
        Client::lazy(Address::Pipe(Arc::new(pipes)), self.settings.clone())
    }

    /// The broker itself, for what clients have no word for.
    pub fn broker(&self) -> &Arc<Broker> {
        &self.broker
    }
}
