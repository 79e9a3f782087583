//! Server under test, and clients that behave or misbehave.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use net::http::{Caller, HttpServer, HttpSettings, HttpStats, RequestBody};
use net::tls::Tls;
use net::{Acceptor, ConnectionLimits, Connections, Forward, Shutdown};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// Time limit that only a hanging test reaches.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Time after which a client is to be cut.
pub const SOON: Duration = Duration::from_millis(100);

pub async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("this does not hang")
}

pub async fn until(is_so: impl Fn() -> bool) {
    within(async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// More bytes than sockets buffer.
pub const HUGE: usize = 20 << 20;

pub type TestBody = UnsyncBoxBody<Bytes, Infallible>;

/// Returns patient settings, so that a test shortens only the relevant ones.
pub fn settings() -> HttpSettings {
    HttpSettings {
        header_timeout: PATIENCE,
        body_timeout: PATIENCE,
        idle_timeout: PATIENCE,
        write_timeout: PATIENCE,
        drain_timeout: PATIENCE,
        ..HttpSettings::default()
    }
}

pub fn full(text: impl Into<Bytes>) -> TestBody {
    Full::new(text.into()).boxed_unsync()
}

/// Returns an answer that never ends.
fn endless() -> TestBody {
    let chunk = Bytes::from(vec![b'x'; 64 << 10]);
    let parts = futures_util::stream::repeat_with(move || Ok(Frame::data(chunk.clone())));
    StreamBody::new(parts).boxed_unsync()
}

/// Connections of a server, in the order of their first requests.
#[derive(Default)]
struct Known(Mutex<Vec<u64>>);

impl Known {
    /// Returns the place of the connection of a request, from 1.
    fn place(&self, caller: &Caller) -> usize {
        let id = caller.connection.id;
        assert_eq!(id, caller.connection.entry().id, "a connection has one number");
        let mut known = self.0.lock().expect("no test panics here");
        let at = known.iter().position(|of| *of == id).unwrap_or_else(|| {
            known.push(id);
            known.len() - 1
        });
        at + 1
    }
}

/// Answers of the server under test, by path.
async fn answer(known: Arc<Known>, mut request: Request<RequestBody>) -> Result<Response<TestBody>, std::io::Error> {
    let place = request.extensions().get::<Caller>().map(|caller| known.place(caller)).expect("a caller");
    let body = match request.uri().path() {
        "/fail" => return Err(std::io::Error::other("this service fails")),
        "/wait" => std::future::pending().await,
        "/endless" => endless(),
        "/huge" => full(vec![b'x'; HUGE]),
        "/huge-parts" => {
            let parts = (0..2).map(|_| Ok(Frame::data(Bytes::from(vec![b'x'; HUGE / 2]))));
            StreamBody::new(futures_util::stream::iter(parts)).boxed_unsync()
        }
        "/large" => full(vec![b'x'; 4 << 20]),
        "/who" => {
            let caller = request.extensions().get::<Caller>().expect("a caller");
            let Caller { connection, address, is_secure, .. } = caller;
            let names = connection.identity.as_ref().map(|identity| identity.names.join(","));
            full(format!("{place} {address} {is_secure} {}", names.unwrap_or_default()))
        }
        "/upgrade" => {
            let upgrade = hyper::upgrade::on(&mut request);
            // A connection that has switched to another protocol belongs to the service, which cuts it itself.
            let mut drain = request.extensions().get::<Caller>().expect("a caller").connection.drain();
            let echo = async move {
                let mut stream = TokioIo::new(upgrade.await.expect("upgraded"));
                let mut bytes = [0; 64];
                while let Ok(n @ 1..) = stream.read(&mut bytes).await {
                    stream.write_all(&bytes[..n]).await.unwrap_or_default();
                    stream.flush().await.unwrap_or_default();
                }
            };
            tokio::spawn(async move {
                tokio::select! {
                    () = echo => {}
                    () = drain.aborted() => {}
                }
            });
            let answer = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS).header("upgrade", "echo");
            return Ok(answer.header("connection", "upgrade").body(full("")).expect("an answer"));
        }
        // A service that reads a body and reports the failure without details.
        "/length" => match request.body_mut().collect().await {
            Ok(body) => full(body.to_bytes().len().to_string()),
            Err(error) => {
                let answer = Response::builder().status(StatusCode::BAD_REQUEST);
                return Ok(answer.body(full(error.to_string())).expect("an answer"));
            }
        },
        _ => full("ok"),
    };
    Ok(Response::new(body))
}

pub struct Running {
    pub address: SocketAddr,
    pub stats: Arc<HttpStats>,
    pub limit: Arc<Connections>,
    pub shutdown: Shutdown,
    pub task: JoinHandle<()>,
    pub forward: Forward,
}

impl Running {
    pub fn start(settings: HttpSettings) -> Self {
        Self::with(settings, None, ConnectionLimits::up_to(100))
    }

    pub fn with(settings: HttpSettings, tls: Option<&Tls>, limits: ConnectionLimits) -> Self {
        let acceptor = Acceptor::bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
        let address = acceptor.local_addr().expect("an address");
        let limit = Connections::new(limits);
        let shutdown = Shutdown::default();
        let known = Arc::<Known>::default();
        let service = service_fn(move |request| answer(known.clone(), request));
        let server = HttpServer::new(settings, tls, limit.clone(), service).expect("a server");
        let stats = server.stats();
        let forward = server.forward();
        let task = tokio::spawn(server.serve(acceptor, shutdown.drain()));
        Self { address, stats, limit, shutdown, task, forward }
    }

    pub async fn socket(&self) -> TcpStream {
        within(TcpStream::connect(self.address)).await.expect("the server listens")
    }

    /// Sends this text and returns everything that is received.
    pub async fn exchange(&self, text: impl AsRef<[u8]>) -> String {
        let mut socket = self.socket().await;
        socket.write_all(text.as_ref()).await.expect("sent");
        rest(&mut socket).await
    }

    pub async fn http1(&self) -> http1::SendRequest<Full<Bytes>> {
        http1_over(self.socket().await).await
    }

    pub async fn http2(&self) -> http2::SendRequest<Full<Bytes>> {
        http2_over(self.socket().await).await.0
    }

    pub async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        whole(within(self.http1().await.send_request(request(path, headers))).await.expect("an answer")).await
    }
}

pub async fn http1_over(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> http1::SendRequest<Full<Bytes>> {
    let (sender, connection) = within(http1::handshake(TokioIo::new(stream))).await.expect("a handshake");
    tokio::spawn(connection);
    sender
}

/// Opens an HTTP/2 connection. Also returns the task that yields its result.
pub async fn http2_over(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> (http2::SendRequest<Full<Bytes>>, JoinHandle<hyper::Result<()>>) {
    let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (sender, connection) = within(handshake).await.expect("a handshake");
    (sender, tokio::spawn(connection))
}

pub fn request(path: &str, headers: &[(&str, &str)]) -> Request<Full<Bytes>> {
    let mut request = Request::builder().method(Method::GET).uri(path);
    if !path.contains("://") {
        request = request.header("host", "server.example");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::default()).expect("a request")
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("text"))
    }
}

pub async fn whole(answer: Response<Incoming>) -> Answer {
    let (head, body) = answer.into_parts();
    let body = within(body.collect()).await.expect("a body").to_bytes();
    Answer { status: head.status.as_u16(), headers: head.headers, text: String::from_utf8_lossy(&body).into() }
}

/// Returns everything up to the end of the connection, which may be a reset.
pub async fn rest(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut bytes = Vec::new();
    within(async { while let Ok(1..) = stream.read_buf(&mut bytes).await {} }).await;
    String::from_utf8_lossy(&bytes).into()
}

/// Returns everything up to this text.
pub async fn read_until(stream: &mut (impl AsyncRead + Unpin), end: &str) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(end.as_bytes()) {
        let n = within(stream.read_buf(&mut bytes)).await.expect("more");
        assert!(n > 0, "the stream ended after {}", String::from_utf8_lossy(&bytes));
    }
    String::from_utf8_lossy(&bytes).into()
}

/// Sends this text byte by byte with pauses, until the peer closes.
pub async fn trickle(stream: &mut (impl AsyncWrite + Unpin), text: &[u8], pause: Duration) {
    for byte in text {
        if stream.write_all(&[*byte]).await.is_err() {
            return;
        }
        tokio::time::sleep(pause).await;
    }
}
