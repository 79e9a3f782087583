//! The SQS door: queues for Amazon's SDKs and tools, over AWS JSON 1.0 and the older Query protocol on one port.

mod access;
mod address;
mod attributes;
mod check;
mod codec;
mod digest;
mod documents;
mod errors;
mod grants;
mod json;
mod map;
mod messages;
mod model;
mod moves;
mod names;
mod peek;
mod permissions;
mod policy;
mod query;
mod queues;
pub mod sigv4;
mod trace;
mod visibility;
mod xml;

use crate::{Opened, Opening};
use futures_util::future::BoxFuture;
use std::borrow::Cow;
use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use broker::metrics::{Collect, Exposition};
use broker::{Acting, Broker, Doors, Held, LoginSource, SigningKey, Usage};
use bytes::{Bytes, BytesMut};
use engine::security::{RoleName, UserName};
use http_body_util::{BodyExt, Full};
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::http::request::Parts;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use net::http::{
    Caller, Charge, HttpServer, HttpSettings, HttpStats, IpNetwork, Ledger, Plaintext, Reason, Refusal, RequestBody,
    SecurityHeaders,
};
use net::tls::Tls;
use net::{Connections, Drain, Forward, Gate, Sockets};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub(crate) use access::permissions;
pub use address::is_region;
use address::{Home, Place};
use codec::{Answer, Call, Protocol};
use errors::{ACCESS_DENIED, Failure, INVALID_ADDRESS, Result, SERIALIZATION, UNAVAILABLE};
use map::{RequestContext, Sqs};
use model::Action;
pub use policy::check_policy;
use query::Form;
use sigv4::{Auth, Signer};
pub use trace::CARRIER as TRACE_CARRIER;

use crate::ledger;
use crate::login;
use crate::strangers::{self, Stranger};
use crate::throttle;

/// Maximum size of a request body. A message of 1 MiB takes three times as many bytes if each of them is escaped.
const BODY_BYTES_MAX: usize = 4 << 20;
/// Maximum number of bytes of request bodies in flight, over all connections together.
const BODIES_BYTES_MAX: usize = 256 << 20;
/// Maximum size of a path with its query, which may contain a whole request, and of all headers.
const URI_BYTES_MAX: usize = 64 << 10;
const HEADER_BYTES_MAX: usize = 64 << 10;
/// Maximum time that a connection waits for its next request. Clients keep idle connections for about a minute.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
/// Write timeout: maximum time until a client reads more of its response.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum time until a connection is closed once the drain has begun.
const CLOSE_WAIT_MAX: Duration = Duration::from_secs(5);
const TRACE: &str = "x-amzn-trace-id";

/// Settings of the SQS door.
pub struct Settings {
    /// Account and region of requests that do not specify their own.
    pub account: String,
    pub region: String,
    /// Base of the URLs of queues; by default the address to which the request was sent.
    pub url: Option<String>,
    /// Time during which the name of a deleted queue stays taken, and a purged queue cannot be purged again.
    pub cooldown: Duration,
    pub auth: Auth,
    /// Maximum time in which a connection must send the headers of a request.
    pub header_timeout: Duration,
    /// `true` if clients on other machines may connect without TLS.
    pub allow_plain: bool,
    /// TLS settings. If set, clients may also use TLS, on the same port.
    pub tls: Option<Arc<Tls>>,
    /// Host names that are served; if empty, any. On a loopback address, only the names of this machine and these are
    /// served.
    pub hosts: Vec<String>,
    /// Networks of proxies whose headers about the forwarded client are trusted.
    pub trusted_proxies: Vec<IpNetwork>,
    /// `true` if each request is logged.
    pub access_log: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            account: "000000000000".to_owned(),
            region: "us-east-1".to_owned(),
            url: None,
            cooldown: Duration::ZERO,
            auth: Auth::Off,
            header_timeout: Duration::from_secs(5),
            allow_plain: false,
            tls: None,
            hosts: Vec::new(),
            trusted_proxies: Vec::new(),
            access_log: false,
        }
    }
}

impl Settings {
    /// Returns the host names that are served. If they are restricted, they include the host of the URLs that the door
    /// returns, as these must lead back to it.
    fn served_hosts(&self, address: SocketAddr) -> Vec<String> {
        let mut hosts = self.hosts.clone();
        let own = self.url.as_deref().and_then(|url| url.split_once("://")).map(|(_, host)| host);
        if address.ip().is_loopback() || !hosts.is_empty() {
            hosts.extend(own.map(str::to_owned));
        }
        hosts
    }

    fn runtime(&self, address: SocketAddr, doors: &Arc<Doors>, ledger: Ledger) -> HttpSettings {
        HttpSettings {
            ledger,
            header_timeout: self.header_timeout,
            idle_timeout: IDLE_TIMEOUT,
            write_timeout: WRITE_TIMEOUT,
            drain_timeout: CLOSE_WAIT_MAX,
            answers_while_draining: true,
            uri_bytes_max: URI_BYTES_MAX,
            header_bytes_max: HEADER_BYTES_MAX,
            body_bytes_max: BODY_BYTES_MAX as u64,
            hosts: self.served_hosts(address),
            is_local: address.ip().is_loopback(),
            trusted_proxies: self.trusted_proxies.clone(),
            security_headers: SecurityHeaders::None,
            access_log: self.access_log,
            plaintext: if self.allow_plain { Plaintext::FromAnywhere } else { Plaintext::FromLoopback },
            first_bytes: strangers::at_http_door(doors.clone(), broker::Door::Sqs),
            refusal_body,
            ..HttpSettings::default()
        }
    }
}

/// State that all requests of the door share.
struct Door {
    sqs: Sqs,
    auth: Arc<Auth>,
    bodies: Arc<Semaphore>,
    ids: RequestIds,
    calls: [AtomicU64; Action::ALL.len()],
}

/// Generator of request ids. All ids of one run differ, and no two runs have the same ids.
struct RequestIds {
    origin: u64,
    count: AtomicU64,
}

impl RequestIds {
    fn new() -> Self {
        Self { origin: RandomState::new().hash_one(0), count: AtomicU64::new(0) }
    }

    fn next(&self) -> String {
        let a = self.origin;
        let b = self.count.fetch_add(1, Ordering::Relaxed);
        let part = |bits: u64, from: u32, count: u32| bits >> from & ((1 << count) - 1);
        let first = part(a, 32, 32);
        let second = part(a, 16, 16);
        let third = part(a, 0, 12);
        format!("{first:08x}-{second:04x}-4{third:03x}-8{:03x}-{:012x}", part(b, 48, 12), part(b, 0, 48))
    }
}

/// Result of a request, with its protocol and, if known, its action.
struct Answered {
    protocol: Protocol,
    action: Option<Action>,
    answer: Result<Answer>,
    /// Memory of the response, which is held until it is written.
    held: Option<Held>,
    /// Client that is charged for the response.
    identity: Option<broker::Identity>,
}

impl Answered {
    /// Returns the answer to a request that could not be understood.
    fn failed(head: &Parts, failure: Failure) -> Self {
        let protocol = spoken_by(&head.headers);
        Self { protocol, action: None, answer: Err(failure), held: None, identity: None }
    }
}

impl Door {
    async fn serve(&self, request: Request<RequestBody>) -> Response<Full<Bytes>> {
        let (head, body) = request.into_parts();
        let id = self.ids.next();
        let answered = match self.read(body).await {
            Ok((body, _permit)) => self.answer(&head, &body).await,
            Err(failure) => Answered::failed(&head, failure),
        };
        let Answered { protocol, action, answer, held, identity } = answered;
        let bytes = held.as_ref().map_or(0, Held::bytes);
        let answers = self.sqs.broker.answers();
        let mut response = answers.work(bytes, || codec::respond(protocol, action, &answer, &id)).await;
        if let Some(identity) = identity {
            self.sqs.broker.security.charge_later(&identity, Usage::response(response.body().len()));
        }
        if let Some(mut held) = held {
            held.shrink(response.body().len());
            response.extensions_mut().insert(Charge::new(held));
        }
        response.map(Full::new)
    }

    /// Returns the whole body, with the permit for its bytes.
    async fn read(&self, mut body: RequestBody) -> Result<(Bytes, Option<OwnedSemaphorePermit>)> {
        let mut permit: Option<OwnedSemaphorePermit> = None;
        // A body in one piece is not copied.
        let mut first = Bytes::new();
        let mut gathered = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame =
                frame.map_err(|error| Failure::new(&SERIALIZATION, format!("The body cannot be read: {error}")))?;
            let Ok(data) = frame.into_data() else {
                // Trailers are ignored.
                continue;
            };
            let right = u32::try_from(data.len()).ok().and_then(|n| self.bodies.clone().try_acquire_many_owned(n).ok());
            let right = right
                .ok_or_else(|| Failure::new(&UNAVAILABLE, "Too many bytes of requests are in flight; slow down."))?;
            match &mut permit {
                Some(permit) => permit.merge(right),
                None => permit = Some(right),
            }
            if first.is_empty() && gathered.is_empty() {
                first = data;
            } else {
                gathered.extend_from_slice(&std::mem::take(&mut first));
                gathered.extend_from_slice(&data);
            }
        }
        Ok((if gathered.is_empty() { first } else { gathered.freeze() }, permit))
    }

    async fn answer(&self, head: &Parts, body: &[u8]) -> Answered {
        let failed = |failure| Answered::failed(head, failure);
        let context = match self.context(head, body) {
            Ok(context) => context,
            Err(failure) => {
                self.refuse_login(head, &failure).await;
                return failed(failure);
            }
        };
        if let Err(error) = self.count_connection(head, &context) {
            return failed(error.into());
        }
        if let Some(rest) =
            head.uri.path().strip_prefix(peek::PATH).filter(|rest| matches!(rest.as_bytes(), [] | [b'/', ..]))
        {
            let peeked = self.peek(head, body, &context, rest).await;
            return Answered { identity: Some(context.identity), ..peeked };
        }
        let host = host_of(head).unwrap_or_default();
        if let Some(stranger) = Stranger::find_request(self.sqs.broker.doors(), broker::Door::Sqs, head) {
            return failed(Failure::new(&INVALID_ADDRESS, stranger.words));
        }
        let of_queue = Place::of_path(head.uri.path(), host, &context.home);
        let call = match Call::new(head, body, of_queue.as_ref()) {
            Ok(call) => call,
            Err(failure) => return failed(failure),
        };
        let action = call.action.as_ref().ok().copied();
        let answer = if call.protocol != Protocol::Json && of_queue.is_none() && !is_root(head.uri.path()) {
            let message = format!("The address {} is not valid for this endpoint.", head.uri.path());
            Err(Failure::new(&INVALID_ADDRESS, message))
        } else {
            let admitted = self.expect_no_link(head, action).and_then(|()| self.admit(&context, action, body));
            match admitted.and_then(|()| call.request(body)) {
                Ok(request) => self.sqs.answer(&context, request).await,
                Err(failure) => Err(failure),
            }
        };
        if let Some(action) = action {
            self.calls[action as usize].fetch_add(1, Ordering::Relaxed);
        }
        let RequestContext { identity, held, .. } = context;
        Answered { protocol: call.protocol, action, answer, held: held.into_inner(), identity: Some(identity) }
    }

    /// Refuses a client that has as many connections as a quota allows.
    fn count_connection(&self, head: &Parts, context: &RequestContext<'_>) -> engine::Result<()> {
        let Some(caller) = head.extensions.get::<Caller>() else { return Ok(()) };
        throttle::count_connection(&self.sqs.broker, broker::Door::Sqs, caller, &context.identity)
    }

    /// Refuses a client that has exceeded a quota, and charges the request otherwise.
    fn admit(&self, context: &RequestContext<'_>, action: Option<Action>, body: &[u8]) -> Result<()> {
        let reads = action == Some(Action::ReceiveMessage);
        let security = &self.sqs.broker.security;
        Ok(security.admit(broker::Door::Sqs, &context.identity, Usage::request(body.len()), reads)?)
    }

    /// Refuses a change that a link or an image of a web page could request, or a server that fetches URLs.
    ///
    /// Unless signatures are verified, only a signature in the header proves that a request is not such a link: anyone
    /// can write a URL.
    fn expect_no_link(&self, head: &Parts, action: Option<Action>) -> Result<()> {
        let is_signed = self.auth.is_verifying() || sigv4::has_header(&head.headers);
        match action {
            Some(action) if !is_signed && head.method != hyper::Method::POST && !action.only_reads() => {
                let message = format!(
                    "{} changes data: send it by POST, or sign it in the header Authorization; the method was {}.",
                    action.name(),
                    head.method
                );
                Err(Failure::new(&ACCESS_DENIED, message))
            }
            _ => Ok(()),
        }
    }

    /// Records a failed login for a request without a valid signature.
    async fn refuse_login(&self, head: &Parts, failure: &Failure) {
        let is_own_fault = [&UNAVAILABLE, &errors::INTERNAL].iter().any(|code| std::ptr::eq(failure.code, *code));
        if !self.auth.is_verifying() || is_own_fault {
            return;
        }
        let signed = sigv4::Request {
            method: head.method.as_str(),
            path: head.uri.path(),
            query: head.uri.query().unwrap_or_default(),
            authority: None,
            headers: &head.headers,
            body: &[],
        };
        let address = head.extensions.get::<Caller>().map(|caller| caller.address);
        let source = LoginSource { door: broker::Door::Sqs, address };
        let key = sigv4::Scope::parse(&signed).map_or("", |scope| scope.access_key);
        let error = engine::Error::new(engine::ErrorKind::Denied, failure.message.to_string());
        let refused: engine::Result<()> = self.sqs.broker.security.end_login(source, key, Err(error)).await;
        drop(refused);
    }

    async fn peek(&self, head: &Parts, body: &[u8], context: &RequestContext<'_>, rest: &str) -> Answered {
        let action = Some(Action::ReceiveMessage);
        let wanted = self.admit(context, action, body).and_then(|()| peek::Wanted::read(head, body, rest));
        let answer = match wanted {
            Ok(wanted) => Box::pin(self.sqs.peek(context, &wanted)).await,
            Err(failure) => Err(failure),
        };
        Answered { protocol: peek::protocol(&head.headers), action, answer, held: None, identity: None }
    }

    /// Returns the context of a request: its account and region, as far as they are given, and its connection.
    fn context<'t>(&self, head: &'t Parts, body: &'t [u8]) -> Result<RequestContext<'t>> {
        let Some(caller) = head.extensions.get::<Caller>() else {
            return Err(Failure::new(&errors::INTERNAL, "a request has no connection"));
        };
        if caller.connection.is_listener_draining() {
            return Err(Failure::new(&UNAVAILABLE, "The broker is shutting down."));
        }
        let signed = sigv4::Request {
            method: head.method.as_str(),
            path: head.uri.path(),
            query: head.uri.query().unwrap_or_default(),
            authority: head.uri.authority().map(|authority| authority.as_str()),
            headers: &head.headers,
            body,
        };
        let now_s = self.sqs.broker.now_ms() / 1000;
        let source = LoginSource { door: broker::Door::Sqs, address: Some(caller.address) };
        let certified = login::of_certificate(&self.sqs.broker, login::certificate_of(caller), source);
        // A client with a certificate need not sign, and its signature says only where its queues are.
        let auth = if certified.is_some() { &Auth::Off } else { &self.auth };
        let identity = auth.identify(&signed, |id| self.stored_key(id), now_s)?;
        let security = &self.sqs.broker.security;
        let default = &self.sqs.default;
        // A client of a tenant that is an account acts in that one by default.
        let tenant = match (&certified, &identity.signer) {
            (Some(certified), _) => certified.tenant().cloned(),
            (None, Some(signer)) => security.tenant_of(signer.user()),
            (None, None) => None,
        };
        let own = tenant.as_ref().and_then(names::account_of).unwrap_or(&default.account);
        let home = Home {
            account: identity.account.map_or_else(|| own.to_owned(), Cow::into_owned),
            region: identity.region.filter(|region| is_region(region)).unwrap_or(&default.region).to_owned(),
        };
        let host = host_of(head).unwrap_or("localhost");
        let base = match &self.sqs.url {
            Some(url) => url.clone(),
            None => format!("{}://{host}", if caller.is_secure { "https" } else { "http" }),
        };
        let trace = header(&head.headers, TRACE);
        let drain = caller.connection.drain();
        let from = caller.address.to_canonical().to_string();
        let is_bound = identity.signer.is_some();
        let roles: Vec<RoleName> =
            Some(&*home.account).filter(|_| is_bound).and_then(policy::role_of).into_iter().collect();
        let of_signer = || match identity.signer {
            Some(Signer::Stored(key)) => security.identity_of_key(key, roles, source),
            Some(Signer::Configured(key, _)) => match UserName::parse(key) {
                Ok(user) => {
                    security.record_login(source, key, None);
                    security.identity_of(user, roles, &from)
                }
                Err(_) => broker::Identity::anonymous(&from),
            },
            None => broker::Identity::anonymous(&from),
        };
        let identity = certified.unwrap_or_else(of_signer);
        broker::act_as(identity.user());
        let address = caller.address;
        Ok(RequestContext { home, is_bound, base, host, trace, drain, address, identity, held: Mutex::default() })
    }

    /// Returns an access key of the broker. One whose secret cannot be read is unknown to clients.
    fn stored_key(&self, id: &str) -> Option<SigningKey> {
        self.sqs.broker.security.signing_key(id).unwrap_or_else(|error| {
            tracing::debug!(access_key = id, %error, "cannot use an access key");
            None
        })
    }

    /// Registers the counters of the door in the metrics of the broker.
    fn register(self: &Arc<Self>, stats: Arc<HttpStats>) {
        // The broker has the collector and the door has the broker: neither may keep the other.
        let door = Arc::downgrade(self);
        let expose = move |out: &mut Exposition<'_>| door.upgrade().map_or(Ok(()), |door| door.expose(&stats, out));
        self.sqs.broker.register(Box::new(Collect(expose)));
    }

    fn expose(&self, stats: &HttpStats, out: &mut Exposition<'_>) -> std::fmt::Result {
        let calls = Action::ALL.iter().zip(&self.calls);
        let calls: Vec<_> =
            calls.map(|(action, count)| (action.name().to_owned(), count.load(Ordering::Relaxed))).collect();
        out.counters("thalweg_sqs_calls", "Requests of SQS clients by action", "action", &calls)?;
        let requests: Vec<(String, u64)> =
            (1..).zip(stats.requests()).map(|(class, count)| (format!("{class}xx"), count)).collect();
        out.counters("thalweg_sqs_requests", "Answered requests of SQS clients", "status", &requests)?;
        let refused: Vec<(String, u64)> =
            Reason::ALL.iter().map(|reason| (reason.name().to_owned(), stats.refused(*reason))).collect();
        out.counters("thalweg_sqs_refused", "Requests and connections refused by the SQS door", "reason", &refused)?;
        let cut = [("stalled".to_owned(), stats.stalled()), ("overdue".to_owned(), stats.overdue())];
        out.counters("thalweg_sqs_cut", "Disconnected connections of SQS clients", "reason", &cut)?;
        let (read, written) = stats.bytes();
        out.counter("thalweg_sqs_read_bytes", "Bytes received from SQS clients", read)?;
        out.counter("thalweg_sqs_written_bytes", "Bytes sent to SQS clients", written)
    }
}

fn header(headers: &HeaderMap, name: impl hyper::header::AsHeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Returns the host of a request, with its port.
fn host_of(head: &Parts) -> Option<&str> {
    header(&head.headers, HOST).or_else(|| head.uri.authority().map(|authority| authority.as_str()))
}

fn is_root(path: &str) -> bool {
    matches!(path, "" | "/" | "/queue" | "/queue/")
}

/// Returns the protocol of a client whose request is not understood.
fn spoken_by(headers: &HeaderMap) -> Protocol {
    if headers.contains_key(codec::TARGET) || header(headers, CONTENT_TYPE).is_some_and(|value| value.contains("json"))
    {
        Protocol::Json
    } else {
        Protocol::query(headers)
    }
}

/// Returns the body for a refusal of the runtime, in the form of any other error of this door. If the protocol of the
/// client is not known, the body is JSON: every SDK evaluates the status.
fn refusal_body(refusal: &Refusal) -> (HeaderValue, Bytes) {
    let code = match refusal.reason {
        Reason::Malformed | Reason::Method | Reason::UriSize | Reason::HeaderSize | Reason::BodySize => &SERIALIZATION,
        Reason::Plaintext | Reason::Host | Reason::Origin => &ACCESS_DENIED,
        Reason::HeaderTimeout | Reason::BodyTimeout | Reason::Rate | Reason::Connections | Reason::Memory => {
            &UNAVAILABLE
        }
        Reason::Service => &errors::INTERNAL,
    };
    let failure = Failure::new(code, refusal.message.clone());
    let content_type = refusal.content_type.as_ref().and_then(|value| value.to_str().ok());
    match content_type {
        Some(value) if !value.contains("json") => {
            (HeaderValue::from_static(codec::XML), codec::xml_error(&failure, "").into())
        }
        _ => (HeaderValue::from_static(codec::JSON), codec::json_error(&failure).into()),
    }
}

/// Decodes a request as the door does, and checks its queue and its messages. Returns `true` if it is valid. For
/// fuzzing: `action` selects the action modulo their number.
pub fn check_request(action: usize, is_query: bool, body: &[u8]) -> bool {
    let action = Action::ALL[action % Action::ALL.len()];
    if !is_query {
        return json::decode(action, body).and_then(map::check).is_ok();
    }
    let Ok(mut form) = Form::parse(&[body]) else {
        return false;
    };
    form.sort();
    model::Request::deserialize(action, form.tree()).is_ok_and(|request| map::check(request).is_ok())
}

impl crate::Door for Settings {
    fn open(self: Box<Self>, opening: Opening<'_>) -> BoxFuture<'_, io::Result<Opened>> {
        let Opening { broker, sockets, connections, shutdown, gate, .. } = opening;
        Box::pin(async move {
            let forward = open(*self, broker, sockets, connections, shutdown.drain(), gate)?;
            Ok(Opened { address: sockets.address(), telemetry: None, forward })
        })
    }
}

fn open(
    settings: Settings,
    broker: Arc<Broker>,
    sockets: &Sockets,
    limit: Arc<Connections>,
    drain: Drain,
    gate: Option<Arc<dyn Gate>>,
) -> io::Result<Forward> {
    let acceptors = sockets.acceptors()?;
    let newcomers = throttle::newcomers(&broker, broker::Door::Sqs);
    let runtime = HttpSettings {
        newcomers,
        gate,
        ..settings.runtime(sockets.address(), broker.doors(), ledger::of_answers(&broker))
    };
    let Settings { account, region, url, cooldown, auth, tls, .. } = settings;
    let auth = Arc::new(auth);
    let door = Arc::new(Door {
        sqs: Sqs::new(broker, auth.clone(), Home { account, region }, url, cooldown),
        auth,
        bodies: Arc::new(Semaphore::new(BODIES_BYTES_MAX)),
        ids: RequestIds::new(),
        calls: std::array::from_fn(|_| AtomicU64::new(0)),
    });
    let served = door.clone();
    let service = service_fn(move |request: Request<RequestBody>| {
        let door = served.clone();
        let address = request.extensions().get::<Caller>().map(|caller| caller.address);
        let client = Acting::anonymous(broker::Door::Sqs, address);
        broker::for_client(client, async move { Ok::<_, Infallible>(door.serve(request).await) })
    });
    let server = HttpServer::new(runtime, tls.as_deref(), limit, service)?;
    door.register(server.stats());
    let forward = server.forward();
    tokio::spawn(server.serve(acceptors, drain));
    Ok(forward)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_requests_are_uuids_of_their_own() {
        let ids = RequestIds::new();
        let first = ids.next();
        let second = ids.next();
        assert_ne!(first, second);
        let parts: Vec<usize> = first.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12], "{first}");
        assert!(first.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-'));
    }
}
