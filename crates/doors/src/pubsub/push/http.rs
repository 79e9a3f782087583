//! HTTP connections to endpoints: opened only to allowed addresses, reused while they are fresh, limited in number.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use broker::Doors;
use broker::metrics::Counter;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use net::tls::trust::{self, Trust};
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio_rustls::TlsConnector;

use super::endpoint::{Allow, Endpoint};

/// Timeout of a connection attempt to one address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of idle connections of all endpoints. The oldest is closed to make room.
const IDLE_MAX: usize = 256;
/// Maximum age of a reused connection: the name may resolve to other addresses by then.
const AGE_MAX: Duration = Duration::from_secs(60);
/// Maximum bytes of the headers of a response.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Maximum bytes and time for reading the body of a response, which allows the connection to be reused. The outcome is
/// known before.
const REST_BYTES_MAX: usize = 16 << 10;
const REST_WAIT: Duration = Duration::from_millis(500);

type Sender = SendRequest<Full<Bytes>>;

struct Idle {
    endpoint: Origin,
    sender: Sender,
    opened: Instant,
}

/// Key of requests that may share a connection.
#[derive(Clone, PartialEq, Eq)]
struct Origin {
    is_secure: bool,
    host: String,
    port: u16,
}

impl Origin {
    fn of(endpoint: &Endpoint) -> Self {
        Self { is_secure: endpoint.is_secure, host: endpoint.host.clone(), port: endpoint.port }
    }
}

/// HTTP client of all push subscriptions.
pub(super) struct Http {
    allow: Allow,
    /// Ports of the broker itself, to which nothing is sent.
    doors: Arc<Doors>,
    /// Trusted root certificates; `None`: those of the system.
    roots: Option<RootCertStore>,
    /// Initialized for the first endpoint with TLS.
    tls: OnceLock<Arc<ClientConfig>>,
    idle: Mutex<VecDeque<Idle>>,
    pub opened: Counter,
}

impl Http {
    pub fn new(allow: Allow, roots: Option<RootCertStore>, doors: Arc<Doors>) -> Self {
        Self { allow, doors, roots, tls: OnceLock::new(), idle: Mutex::default(), opened: Counter::default() }
    }

    /// Sends a request and returns the status of the response. A redirect is returned, and not followed.
    pub async fn send(&self, endpoint: &Endpoint, request: Request<Full<Bytes>>) -> io::Result<StatusCode> {
        // The peer may have just closed an idle connection: in that case a new one is opened.
        if let Some(idle) = self.take(endpoint)
            && let Ok(status) = self.exchange(endpoint, idle.sender, idle.opened, request.clone()).await
        {
            return Ok(status);
        }
        let sender = self.connect(endpoint).await?;
        self.exchange(endpoint, sender, Instant::now(), request).await
    }

    async fn exchange(
        &self,
        endpoint: &Endpoint,
        mut sender: Sender,
        opened: Instant,
        mut request: Request<Full<Bytes>>,
    ) -> io::Result<StatusCode> {
        // For the protocol this is not a final response, but for Google's service it is a success.
        let (processing, is_processing) = oneshot::channel();
        let processing = Mutex::new(Some(processing));
        hyper::ext::on_informational(&mut request, move |answer| {
            if answer.status() == StatusCode::PROCESSING
                && let Some(processing) = processing.lock().take()
            {
                // The receiver is dropped if the final response has arrived as well.
                let _ = processing.send(());
            }
        });
        sender.ready().await.map_err(io::Error::other)?;
        let answer = sender.send_request(request);
        tokio::select! {
            Ok(()) = is_processing => Ok(StatusCode::PROCESSING),
            answer = answer => {
                let answer = answer.map_err(io::Error::other)?;
                let status = answer.status();
                if opened.elapsed() < AGE_MAX && is_read(answer).await {
                    self.put(Idle { endpoint: Origin::of(endpoint), sender, opened });
                }
                Ok(status)
            }
        }
    }

    pub fn check(&self, endpoint: &Endpoint) -> Result<(), String> {
        self.allow.check(endpoint)
    }

    async fn connect(&self, endpoint: &Endpoint) -> io::Result<Sender> {
        let mut failed = io::Error::other("no address");
        for address in self.allow.resolve(endpoint, &self.doors).await? {
            let socket = match tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
                Ok(Ok(socket)) => socket,
                Ok(Err(error)) => {
                    failed = error;
                    continue;
                }
                Err(elapsed) => {
                    failed = elapsed.into();
                    continue;
                }
            };
            socket.set_nodelay(true)?;
            self.opened.add(1);
            if !endpoint.is_secure {
                return handshake(socket).await;
            }
            let name = ServerName::try_from(endpoint.host.clone()).map_err(io::Error::other)?;
            let secured = TlsConnector::from(self.tls()?).connect(name, socket);
            return handshake(tokio::time::timeout(CONNECT_TIMEOUT, secured).await??).await;
        }
        Err(failed)
    }

    fn tls(&self) -> io::Result<Arc<ClientConfig>> {
        if let Some(tls) = self.tls.get() {
            return Ok(tls.clone());
        }
        let roots = self.roots.clone().unwrap_or_else(|| {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            roots
        });
        let tls = Arc::new(trust::client_config(Trust::Roots(roots.into()), &[b"http/1.1"], None)?);
        Ok(self.tls.get_or_init(|| tls).clone())
    }

    fn take(&self, endpoint: &Endpoint) -> Option<Idle> {
        let origin = Origin::of(endpoint);
        let mut idle = self.idle.lock();
        idle.retain(|idle| idle.opened.elapsed() < AGE_MAX && !idle.sender.is_closed());
        let at = idle.iter().rposition(|idle| idle.endpoint == origin)?;
        idle.remove(at)
    }

    fn put(&self, new: Idle) {
        let mut idle = self.idle.lock();
        if idle.len() == IDLE_MAX {
            idle.pop_front();
        }
        idle.push_back(new);
    }
}

/// Performs the handshake. The task that it spawns ends with the sender, or with the connection.
async fn handshake(socket: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> io::Result<Sender> {
    let mut http1 = http1::Builder::new();
    let (sender, connection) =
        http1.max_buf_size(HEAD_BYTES_MAX).handshake(TokioIo::new(socket)).await.map_err(io::Error::other)?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to a push endpoint ended");
        }
    });
    Ok(sender)
}

/// Returns `true` if the body of a response was read to its end within the limits.
async fn is_read(answer: Response<Incoming>) -> bool {
    let rest = Limited::new(answer.into_body(), REST_BYTES_MAX).collect();
    matches!(tokio::time::timeout(REST_WAIT, rest).await, Ok(Ok(_)))
}
