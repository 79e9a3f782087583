//! Door for Google Pub/Sub clients: gRPC and REST on one port, with the same function for each call of both.

mod access;
mod codec;
mod errors;
mod grants;
mod map;
mod masks;
mod names;
mod pages;
mod policies;
pub mod proto;
mod pull;
pub mod push;
mod pushes;
mod rest;
pub mod schema;
mod schemas;
mod shown;
mod snapshots;
mod stream;
mod subscriptions;
mod sweep;
mod times;
mod topics;
mod trace;
mod transform;
mod transforms;

use crate::{Opened, Opening};
use futures_util::future::BoxFuture;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use broker::metrics::{Collect, Exposition};
use broker::{Acting, Broker, Doors, FREE_BYTES, Usage};
use bytes::Bytes;
use hyper::header::HeaderValue;
use hyper::http::request::Parts;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use net::http::{
    Caller, Charge, HttpServer, HttpSettings, HttpStats, Ledger, Plaintext, Reason, Refusal, RequestBody,
    SecurityHeaders,
};
use net::tls::Tls;
use net::{Connections, Drain, Forward, Gate, Sockets};
use tokio::time::Instant;

pub(crate) use access::permissions;
use codec::{Answer, Messages, REQUEST_BYTES_MAX};
use errors::{Code, Failure, Result};
pub use names::is_project;
pub(crate) use shown::Named;

use map::{Ask, Door, Rpc};
use names::Names;

use crate::strangers::{self, Stranger};
use crate::{ledger, login, throttle};

/// Maximum bytes of requests in flight, over all connections.
const BODIES_BYTES_MAX: usize = 256 << 20;
/// Maximum bytes of a body: those of the largest message in REST's encoding.
const BODY_BYTES_MAX: u64 = 16 << 20;
/// Idle time after which a connection is closed. Clients keep their connections open and treat a close as an error.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);
/// Maximum time without the client reading its responses. A client may stop reading for as long as its leases last.
const WRITE_TIMEOUT: Duration = Duration::from_secs(600);
/// Maximum time for a connection to close once the drain has begun.
const CLOSE_WAIT_MAX: Duration = Duration::from_secs(5);
/// Maximum time from the first bytes of a message of a stream to its last.
const MESSAGE_WAIT_MAX: Duration = Duration::from_secs(60);
/// Maximum number of concurrent calls per connection. Clients multiplex many calls over one connection.
const STREAMS_MAX: u32 = 256;

/// End of the path of the call that reads messages.
const PULL: &str = "/Pull";
/// Path of the public key for the tokens in pushes.
const CERTS: &str = "/oauth2/v3/certs";
/// Paths of the requests over HTTP that need no login.
const OPEN: [&str; 2] = ["/", CERTS];

/// Settings of the door.
pub struct Settings {
    /// Maximum time of a connection for the head of a request.
    pub header_timeout: Duration,
    /// `true` if clients on other machines may connect without TLS.
    pub allow_plain: bool,
    pub is_login_required: bool,
    /// TLS settings; with them, clients may also use TLS on the same port.
    pub tls: Option<Arc<Tls>>,
    /// Host names that are served; empty: any. On loopback, the names of this machine are served, and otherwise only
    /// these.
    pub hosts: Vec<String>,
    /// Default project, whose topics have the same names as at other doors.
    pub project: String,
    /// Endpoints to which messages may be pushed.
    pub push_allow: push::Allow,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            header_timeout: Duration::from_secs(5),
            allow_plain: false,
            is_login_required: false,
            tls: None,
            hosts: Vec::new(),
            project: "thalweg".into(),
            push_allow: push::Allow::default(),
        }
    }
}

impl Settings {
    fn runtime(&self, address: SocketAddr, doors: &Arc<Doors>, ledger: Ledger) -> HttpSettings {
        HttpSettings {
            ledger,
            header_timeout: self.header_timeout,
            idle_timeout: IDLE_TIMEOUT,
            write_timeout: WRITE_TIMEOUT,
            drain_timeout: CLOSE_WAIT_MAX,
            hosts: self.hosts.clone(),
            is_local: address.ip().is_loopback(),
            body_bytes_max: BODY_BYTES_MAX,
            http2_streams_max: STREAMS_MAX,
            security_headers: SecurityHeaders::ForData { https_only_s: None },
            plaintext: if self.allow_plain { Plaintext::FromAnywhere } else { Plaintext::FromLoopback },
            first_bytes: strangers::at_http_door(doors.clone(), broker::Door::Pubsub),
            refusal_body,
            ..HttpSettings::default()
        }
    }
}

/// Formats a refusal of the HTTP runtime like any other failure.
fn refusal_body(refusal: &Refusal) -> (HeaderValue, Bytes) {
    let code = match refusal.reason {
        Reason::Host | Reason::Origin => Code::PermissionDenied,
        Reason::Memory | Reason::Rate => Code::ResourceExhausted,
        _ => Code::InvalidArgument,
    };
    let failure = Failure::new(code, refusal.message.clone());
    (HeaderValue::from_static("application/json; charset=UTF-8"), failure.json().into())
}

/// Returns the gRPC paths of all served calls.
pub fn calls() -> impl Iterator<Item = &'static str> {
    map::RPCS.iter().map(|rpc| rpc.path).chain([stream::PATH])
}

/// Decodes the body of a gRPC call as the door does; entry point for fuzzing. Returns the number of messages in it and
/// the number of valid requests among them; `None` if it is refused. `call` selects a call, modulo their number.
pub fn check_grpc<'t>(
    call: usize,
    has_gzip: bool,
    pieces: impl IntoIterator<Item = &'t [u8]>,
) -> Option<(usize, usize)> {
    let rpc = &map::RPCS[call % map::RPCS.len()];
    let mut frames = codec::Frames::new(has_gzip, rpc.bytes_max());
    let mut messages = 0;
    let mut requests = 0;
    for piece in pieces {
        frames.push(Bytes::copy_from_slice(piece));
        while let Some(message) = frames.take().ok()? {
            messages += 1;
            requests += usize::from((rpc.reads)(message));
        }
    }
    frames.end().ok().map(|()| (messages, requests))
}

/// Decodes a REST request as the door does; entry point for fuzzing. Returns `true` if it is accepted, and panics if
/// the accepted request does not decode as that of its call, because Google's JSON and the structs have the same
/// definitions.
pub fn check_rest(method: Method, uri: &str, body: &[u8]) -> bool {
    let Ok(request) = Request::builder().method(method).uri(uri).body(()) else {
        return false;
    };
    let (head, ()) = request.into_parts();
    let asked = rest::find(&head).map(|found| rest::read(found, &head.uri, body));
    asked.and_then(Result::ok).is_some_and(|asked| {
        assert!((asked.rpc.reads)(asked.message), "{} cannot be read", asked.rpc.path);
        true
    })
}

impl crate::Door for Settings {
    fn open(self: Box<Self>, opening: Opening<'_>) -> BoxFuture<'_, io::Result<Opened>> {
        let Opening { broker, sockets, connections, shutdown, gate, .. } = opening;
        Box::pin(async move {
            let forward = open(&self, broker, sockets, connections, shutdown.drain(), gate)?;
            Ok(Opened { address: sockets.address(), telemetry: None, forward })
        })
    }
}

fn open(
    settings: &Settings,
    broker: Arc<Broker>,
    sockets: &Sockets,
    limit: Arc<Connections>,
    drain: Drain,
    gate: Option<Arc<dyn Gate>>,
) -> io::Result<Forward> {
    let acceptors = sockets.acceptors()?;
    let newcomers = throttle::newcomers(&broker, broker::Door::Pubsub);
    let runtime = HttpSettings {
        newcomers,
        gate,
        ..settings.runtime(sockets.address(), broker.doors(), ledger::of_answers(&broker))
    };
    let door = Door::new(
        broker,
        Names::new(settings.project.clone()),
        BODIES_BYTES_MAX,
        settings.push_allow.clone(),
        settings.is_login_required,
    );
    tokio::spawn(sweep::run(Arc::downgrade(&door), drain.clone()));
    tokio::spawn(pushes::run(Arc::downgrade(&door), drain.clone()));
    let shown = door.clone();
    let service = service_fn(move |request: Request<RequestBody>| {
        let door = door.clone();
        let address = request.extensions().get::<Caller>().map(|caller| caller.address);
        let client = Acting::anonymous(broker::Door::Pubsub, address);
        broker::for_client(client, async move { Ok::<_, Infallible>(serve(door, request).await) })
    });
    let server = HttpServer::new(runtime, settings.tls.as_deref(), limit, service)?;
    register(&shown, server.stats());
    let forward = server.forward();
    tokio::spawn(server.serve(acceptors, drain));
    Ok(forward)
}

/// Registers the door's metrics with the broker.
fn register(door: &Arc<Door>, stats: Arc<HttpStats>) {
    let shown = Arc::downgrade(door);
    door.broker.register(Box::new(Collect(move |out: &mut Exposition<'_>| {
        let requests: Vec<(String, u64)> =
            (1..).zip(stats.requests()).map(|(class, count)| (format!("{class}xx"), count)).collect();
        out.counters("thalweg_pubsub_requests", "Answered requests of Pub/Sub clients", "status", &requests)?;
        let streams = shown.upgrade().map_or(0, |door| door.streams.count());
        out.gauge("thalweg_pubsub_streams", "Open streaming pulls", streams as u64)?;
        let (read, written) = stats.bytes();
        out.counter("thalweg_pubsub_read_bytes", "Bytes received from Pub/Sub clients", read)?;
        out.counter("thalweg_pubsub_written_bytes", "Bytes sent to Pub/Sub clients", written)?;
        shown.upgrade().map_or(Ok(()), |door| {
            door.transforms.expose(out)?;
            door.pusher.expose(out)
        })
    })));
}

async fn serve(door: Arc<Door>, request: Request<RequestBody>) -> Response<Answer> {
    let (head, body) = request.into_parts();
    let is_grpc = codec::is_grpc(&head.headers);
    let asked = async {
        let caller = caller_of(&head)?;
        let wait = codec::timeout(&head.headers).filter(|_| is_grpc);
        let deadline = wait.map(|wait| Instant::now() + wait);
        let address = caller.address;
        // The certificates with which a push endpoint verifies its tokens are public.
        let is_required = door.is_login_required && !is_open(&head);
        let identity =
            login::identify(&door.broker, broker::Door::Pubsub, &head.headers, Some(&caller), is_required).await;
        let identity = Arc::new(identity.map_err(unauthenticated)?);
        broker::act_as(identity.user());
        if !is_open(&head) {
            throttle::count_connection(&door.broker, broker::Door::Pubsub, &caller, &identity)?;
        }
        Ok(Ask { door, address, identity, held: Arc::default(), drain: caller.connection.drain(), deadline })
    };
    let refuse = |failure| if is_grpc { codec::unary(Err(failure)) } else { rest::refuse(&failure) };
    let ask = match asked.await {
        Ok(ask) => ask,
        Err(failure) => return refuse(failure),
    };
    let answers = ask.door.broker.answers().clone();
    let address = ask.address;
    let held = ask.held.clone();
    let mut answer = if is_grpc { serve_grpc(ask, &head, body).await } else { serve_rest(ask, &head, body).await };
    let bytes = answer.body().len();
    let held = held.lock().take().map(|mut held| {
        held.shrink(bytes);
        held
    });
    if held.is_none() && bytes <= FREE_BYTES {
        return answer;
    }
    // A client retries a publish that was refused.
    match held.or_else(|| answers.try_overdraw(Some(address), bytes)) {
        Some(held) => {
            answer.extensions_mut().insert(Charge::new(held));
            answer
        }
        None => refuse(answers.refuse().into()),
    }
}

/// Returns `true` for the requests over HTTP that need no login.
fn is_open(head: &Parts) -> bool {
    head.method == Method::GET && OPEN.contains(&head.uri.path())
}

fn unauthenticated(error: engine::Error) -> Failure {
    if error.kind == engine::ErrorKind::Denied {
        Failure::new(Code::Unauthenticated, error.message)
    } else {
        error.into()
    }
}

fn caller_of(head: &Parts) -> Result<Caller> {
    let caller = head.extensions.get::<Caller>().cloned();
    caller.ok_or_else(|| Failure::new(Code::Internal, "a request has no connection"))
}

async fn serve_grpc(ask: Ask, head: &Parts, body: RequestBody) -> Response<Answer> {
    let path = head.uri.path();
    if path == stream::PATH {
        if let Err(failure) = admit(&ask, &Bytes::new(), true) {
            return codec::unary(Err(failure));
        }
        let messages = Messages::new(&head.headers, body.into_dialogue(), ask.door.bodies.clone(), REQUEST_BYTES_MAX);
        return codec::stream(match messages {
            Ok(messages) => stream::open(ask, messages.within(MESSAGE_WAIT_MAX)).await,
            Err(failure) => Err(failure),
        });
    }
    let Some(rpc) = map::find(path) else {
        let message = format!("Method {} is unimplemented", path.trim_start_matches('/'));
        return codec::unary(Err(Failure::new(Code::Unimplemented, message)));
    };
    let answered = async {
        let messages = Messages::new(&head.headers, body, ask.door.bodies.clone(), rpc.bytes_max())?;
        let (message, _held) = messages.only().await?;
        call(rpc, ask, message).await
    };
    codec::unary(answered.await)
}

/// Answers a call within the client's deadline.
async fn call(rpc: &Rpc, ask: Ask, message: Bytes) -> Result<codec::Encoded> {
    let door = ask.door.clone();
    let identity = ask.identity.clone();
    admit(&ask, &message, rpc.path.ends_with(PULL))?;
    let answer = call_admitted(rpc, ask, message).await;
    let bytes_out = answer.as_ref().map_or(0, |answer| answer.message().len());
    door.broker.security.charge_later(&identity, Usage::response(bytes_out));
    answer
}

/// Refuses a client that has exceeded a quota, and charges the request otherwise.
fn admit(ask: &Ask, message: &Bytes, reads: bool) -> Result<()> {
    let security = &ask.door.broker.security;
    Ok(security.admit(broker::Door::Pubsub, &ask.identity, Usage::request(message.len()), reads)?)
}

async fn call_admitted(rpc: &Rpc, ask: Ask, message: Bytes) -> Result<codec::Encoded> {
    match ask.deadline {
        None => (rpc.call)(ask, message).await,
        Some(deadline) => tokio::time::timeout_at(deadline, (rpc.call)(ask, message)).await.unwrap_or_else(|elapsed| {
            Err(Failure::new(Code::DeadlineExceeded, format!("the call did not finish in time ({elapsed})")))
        }),
    }
}

async fn serve_rest(ask: Ask, head: &Parts, body: RequestBody) -> Response<Answer> {
    if head.uri.path() == "/" && head.method == Method::GET {
        return rest::respond(StatusCode::OK, b"Ok\n".to_vec());
    }
    if head.uri.path() == CERTS && head.method == Method::GET {
        return match pushes::key(&ask.door).await {
            Ok(key) => rest::respond(StatusCode::OK, key.jwks().to_string().into_bytes()),
            Err(failure) => rest::refuse(&failure),
        };
    }
    let Some(found) = rest::find(head) else {
        let doors = ask.door.broker.doors();
        let stranger = Stranger::find_request(doors, broker::Door::Pubsub, head);
        if let Some(body) = stranger.as_ref().and_then(Stranger::answer_to_sqs) {
            return rest::respond(StatusCode::NOT_FOUND, body);
        }
        let message = match stranger {
            Some(stranger) => stranger.words,
            None => format!("Method not found: {} {}", head.method, head.uri.path()),
        };
        return rest::refuse(&Failure::not_found(message));
    };
    let door = ask.door.clone();
    let memory = door.broker.answers();
    let asked = async {
        let (body, held) = codec::collect(body, &ask.door.bodies).await?;
        let asked = memory.work(body.len(), || rest::read(found, &head.uri, &body)).await?;
        Ok((asked, held))
    };
    match asked.await {
        Ok((mut asked, _held)) => {
            let message = std::mem::take(&mut asked.message);
            let answer = call(asked.rpc, ask, message).await;
            let bytes = answer.as_ref().map_or(0, |answer| answer.message().len());
            memory.work(bytes, || asked.answer(answer)).await
        }
        Err(failure) => rest::refuse(&failure),
    }
}
