//! The client, the handle that a program holds. Each part of the API adds its methods in its own file: publishing in
//! `publisher`, reading in `subscription` and `consumer`, then `request`, `queue`, `cache`, `topics`, `groups` and
//! `users`.

use std::sync::Arc;

use engine::Result;
use wire::{Cluster, Request, Response};

use crate::addresses::Addresses;
use crate::dialer::Dialer;
use crate::link::unexpected;
use crate::replies::Replies;
use crate::session::Session;
use crate::settings::ClientSettings;

/// A client of one broker, or of one cluster. Cloning it shares its connections.
#[derive(Clone)]
pub struct Client {
    pub(crate) session: Arc<Session>,
    /// Pending calls of [`Client::request`]. Only clients hold this field: when the last client is dropped, the inbox
    /// closes.
    pub(crate) replies: Arc<Replies>,
}

impl Client {
    /// Connects to `[scheme://]host[:port]` with default settings. The default scheme is QUIC, the default port 7400.
    /// For a cluster, name several of its nodes, separated by commas: `a:7400,b:7400,c:7400`.
    pub async fn connect(addresses: &str) -> Result<Self> {
        Self::connect_with(Addresses::parse(addresses)?, ClientSettings::default()).await
    }

    /// Connects to the first of these addresses that answers, with these settings. Returns an error if the first
    /// connection to the only address fails, or if none of several answers within the connect timeout.
    pub async fn connect_with(addresses: impl Into<Addresses>, settings: ClientSettings) -> Result<Self> {
        let client = Self::lazy(addresses, settings);
        client.session.publish.connection(0).await?;
        Ok(client)
    }

    /// Creates a client that connects with its first request.
    pub fn lazy(addresses: impl Into<Addresses>, settings: ClientSettings) -> Self {
        let session = Session::new(Arc::new(Dialer::new(addresses.into(), settings)));
        Self { session, replies: Arc::default() }
    }

    /// Closes all connections and waits up to one second for the broker to take note. If a client is only dropped, the
    /// broker detects that by its silence, which takes six seconds over QUIC.
    pub async fn close(self) {
        self.session.close().await;
    }

    /// Returns the settings that this client was created with.
    pub fn settings(&self) -> &ClientSettings {
        self.session.settings()
    }

    /// Returns the cluster that the broker belongs to, as its leader has described it last: at the last connection.
    /// `None` for a broker without a cluster, and before the first connection.
    pub fn cluster(&self) -> Option<Cluster> {
        self.session.cluster()
    }

    /// Returns the broker's metrics in the Prometheus text format.
    pub async fn stats(&self) -> Result<String> {
        match self.session.call(&Request::Stats).await? {
            Response::Stats(text) => Ok(text),
            other => Err(unexpected(&other)),
        }
    }

    /// Checks that the broker answers requests.
    pub async fn ping(&self) -> Result<()> {
        match self.session.call(&Request::Ping).await? {
            Response::Pong => Ok(()),
            other => Err(unexpected(&other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use engine::{Error, ErrorKind, Record, RetryClass};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use wire::frame::BODY_BYTES_MAX;
    use wire::{Assembler, Features, HelloOk, VERSION};

    use super::*;
    use crate::address::Address;

    /// Serves a connection as a broker that leads nothing.
    async fn lead_elsewhere(mut stream: DuplexStream) {
        let mut assembler = Assembler::new(BODY_BYTES_MAX);
        let mut frames = Vec::new();
        let mut bytes = BytesMut::new();
        while stream.read_buf(&mut bytes).await.is_ok_and(|read| read > 0) {
            assembler.feed(&bytes.split(), &mut frames).expect("frames");
            let mut answers = BytesMut::new();
            for frame in frames.drain(..) {
                let correlation = frame.correlation;
                let answer = match Request::decode(frame).expect("a request") {
                    Request::Hello { .. } => Response::Hello(HelloOk {
                        version: VERSION,
                        features: Features::default(),
                        body_bytes_max: BODY_BYTES_MAX as u32,
                        publishes_in_flight_max: 1,
                        instance: 1,
                        server: String::new(),
                        cluster: None,
                    }),
                    _ => Response::Error(Error::not_leader("led elsewhere", Some("b.example:7400"))),
                };
                answer.encode(correlation, &mut answers);
            }
            stream.write_all(&answers).await.expect("written");
        }
    }

    #[tokio::test]
    async fn a_redirect_is_returned_with_its_address() {
        let pipes = || {
            let (ours, theirs) = tokio::io::duplex(1 << 16);
            tokio::spawn(lead_elsewhere(theirs));
            ours
        };
        let client = Client::lazy(Address::Pipe(Arc::new(pipes)), ClientSettings::default());
        let errors = [
            client.ping().await.expect_err("led elsewhere"),
            client.publish("orders", Record::new("one coffee")).await.expect_err("led elsewhere"),
        ];
        for error in errors {
            assert_eq!((error.kind, error.retry_class()), (ErrorKind::NotLeader, RetryClass::Redirect));
            assert_eq!((error.redirect.as_deref(), &*error.message), (Some("b.example:7400"), "led elsewhere"));
        }
    }
}
