//! Exchange: one request and its answer, from the received head to the last byte that is passed on.

use std::error::Error;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue, STRICT_TRANSPORT_SECURITY};
use hyper::service::Service;
use hyper::{Method, Request, Response, StatusCode, Uri};
use tokio::time::Instant;

use super::body::{Answer, Cut, RequestBody};
use super::connection::{Caller, Connection};
use super::forwarded::{is_trusted, origin};
use super::refusal::{Reason, Refusal, is_grpc};
use super::server::Shared;
use super::{Charge, HttpSettings, NoRoom};

/// Target of the access log's events.
pub const ACCESS_LOG: &str = "net::access";

/// Size up to which answers need no memory permit: a connection itself costs more.
const FREE_BYTES: usize = 4 << 10;
const NO_ROOM: &str =
    "responses that clients have not read use all of response_memory_max: read pending responses, or try again later";

/// Request in progress, which ends when this value is dropped.
pub(super) struct Exchange {
    connection: Arc<Connection>,
    /// `true` if the client has received a part of the answer and is not ready for the next.
    is_waiting: bool,
    /// Value of the header that makes the browser use only TLS, if the answer gets it.
    https_only: Option<HeaderValue>,
    log: Option<Entry>,
}

/// Line of the access log.
struct Entry {
    method: Method,
    uri: Uri,
    client: IpAddr,
    begun: Instant,
    /// Status code; 0 until there is an answer.
    status: u16,
    bytes: u64,
    /// `true` if the answer was passed on completely.
    is_whole: bool,
}

impl Exchange {
    fn begin(connection: Arc<Connection>) -> Self {
        connection.activity.request_begins();
        connection.entry().add_request();
        Self { connection, is_waiting: false, https_only: None, log: None }
    }

    /// Adds the header that makes the browser use only TLS, unless the answer already has it.
    fn add_https_only(&mut self, headers: &mut HeaderMap) {
        if let Some(value) = self.https_only.take() {
            headers.entry(STRICT_TRANSPORT_SECURITY).or_insert(value);
        }
    }

    fn answered(&mut self, status: StatusCode, has_body: bool) {
        self.connection.stats.add_answer(status);
        if let Some(log) = &mut self.log {
            log.status = status.as_u16();
            log.is_whole = !has_body;
        }
    }

    /// Records that the client is ready for the next part of the answer.
    pub fn is_asked_for_more(&mut self) {
        if std::mem::take(&mut self.is_waiting) {
            self.connection.activity.answer_moves();
        }
    }

    /// Records that a part of the answer is passed on to the client.
    pub fn hands_over(&mut self, bytes: usize) {
        self.is_waiting = true;
        self.connection.activity.answer_waits();
        if let Some(log) = &mut self.log {
            log.bytes += bytes as u64;
        }
    }

    pub fn is_whole(&mut self) {
        if let Some(log) = &mut self.log {
            log.is_whole = true;
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.is_asked_for_more();
        self.connection.activity.request_ends();
        if let Some(Entry { method, uri, client, begun, status, bytes, is_whole }) = &self.log {
            tracing::info!(
                target: ACCESS_LOG,
                peer = %self.connection.peer,
                client = %client,
                method = %method,
                path = uri.path(),
                status,
                bytes,
                is_whole,
                duration_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX),
            );
        }
    }
}

/// Serves one request. Fails if the service may no longer answer.
pub(super) async fn exchange<S, B>(
    shared: Arc<Shared<S>>,
    connection: Arc<Connection>,
    request: Request<Incoming>,
) -> io::Result<Response<Answer<B>>>
where
    S: Service<Request<RequestBody>, Response = Response<B>>,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: Body<Data = Bytes>,
{
    // An error closes the connection without an answer.
    connection.expect_open()?;
    let mut exchange = Exchange::begin(connection.clone());
    let (mut head, incoming) = request.into_parts();
    // The peer of a Unix socket has no address that a setting could trust.
    let proxies = if connection.process.is_some() { &[] } else { &shared.settings.trusted_proxies[..] };
    let client = origin(connection.peer.ip(), &head.headers, proxies);
    if shared.settings.access_log {
        exchange.log = Some(Entry {
            method: head.method.clone(),
            uri: head.uri.clone(),
            client: client.address,
            begun: Instant::now(),
            status: 0,
            bytes: 0,
            is_whole: false,
        });
    }
    exchange.https_only = shared.https_only(&connection, &head);
    let is_connect = head.method == Method::CONNECT;
    let is_head = head.method == Method::HEAD;
    let is_grpc = is_grpc(&head.headers);
    if let Err(mut refusal) = shared.admit(&head, &incoming, client.address) {
        refusal.content_type = head.headers.get(CONTENT_TYPE).cloned();
        let has_body = !incoming.is_end_stream();
        let mut answer = shared.refuse_request(refusal, exchange, is_head, is_grpc);
        if has_body && !connection.activity.is_http2() {
            connection.activity.leave_body_unread();
            answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        return Ok(answer);
    }
    let cut = Arc::new(Cut::default());
    let body = RequestBody::new(
        incoming,
        shared.policy.body_bytes_max,
        shared.settings.body_timeout,
        cut.clone(),
        connection.clone(),
    );
    let is_secure = client.is_secure.unwrap_or(connection.is_tls);
    let is_proxied = is_trusted(connection.peer.ip(), proxies);
    head.extensions.insert(Caller { connection, address: client.address, is_proxied, is_secure });
    let answer = shared.service.call(Request::from_parts(head, body)).await;
    let answer = match (answer, cut.get()) {
        (Ok(answer), None) => answer,
        (Ok(answer), Some(_)) if !is_refusal(answer.status()) => answer,
        (_, Some(reason)) => {
            let refusal = match reason {
                Reason::BodySize => shared.policy.body_too_large(),
                reason => Refusal::new(reason, "the body stopped arriving"),
            };
            return Ok(shared.refuse_request(refusal, exchange, is_head, is_grpc));
        }
        (Err(error), None) => {
            tracing::error!(error = %error.into(), "a service failed");
            let refusal = Refusal::new(Reason::Service, "the service failed");
            return Ok(shared.refuse_request(refusal, exchange, is_head, is_grpc));
        }
    };
    let status = answer.status();
    if status == StatusCode::SWITCHING_PROTOCOLS || is_connect && status.is_success() {
        exchange.connection.activity.set_upgraded();
    }
    let (mut head, body) = answer.into_parts();
    let Ok(charge) = shared.settings.charge(&mut head, &body, is_head, client.address) else {
        return Ok(shared.refuse_request(Refusal::new(Reason::Memory, NO_ROOM), exchange, is_head, is_grpc));
    };
    exchange.answered(status, !is_head && !body.is_end_stream());
    shared.add_headers(&mut head.headers);
    exchange.add_https_only(&mut head.headers);
    let body = if is_head {
        set_length(&mut head.headers, body.size_hint().exact());
        Answer::own(Bytes::new(), exchange)
    } else {
        Answer::of_service(body, exchange, charge)
    };
    Ok(Response::from_parts(head, body))
}

impl HttpSettings {
    /// Returns the permit of an answer that is already built, so that it needs no waiting. Fails if there is no room.
    fn charge(
        &self,
        head: &mut hyper::http::response::Parts,
        body: &impl Body,
        is_head: bool,
        client: IpAddr,
    ) -> Result<Option<Charge>, NoRoom> {
        if let Some(charge) = head.extensions.remove::<Charge>() {
            return Ok(Some(charge));
        }
        let bytes = body.size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0);
        if is_head || bytes <= FREE_BYTES { Ok(None) } else { self.ledger.take(client, bytes) }
    }
}

/// Sets the length of the omitted body of an answer to `HEAD`. HTTP/2 would send the body otherwise.
fn set_length(headers: &mut HeaderMap, bytes: Option<u64>) {
    if let Some(bytes) = bytes {
        headers.entry(CONTENT_LENGTH).or_insert_with(|| bytes.into());
    }
}

fn is_refusal(status: StatusCode) -> bool {
    status.is_client_error() || status.is_server_error()
}

impl<S> Shared<S> {
    /// Checks a request by its head.
    fn admit(&self, head: &hyper::http::request::Parts, body: &Incoming, client: IpAddr) -> Result<(), Refusal> {
        if let Some(rates) = &self.rates
            && !rates.allow(client, self.began.elapsed())
        {
            return Err(Refusal::new(Reason::Rate, "this address sends too many requests per second"));
        }
        self.policy.check(head, body.size_hint().lower())
    }

    fn refuse_request<B>(
        &self,
        refusal: Refusal,
        mut exchange: Exchange,
        is_head: bool,
        is_grpc: bool,
    ) -> Response<Answer<B>> {
        let reason = refusal.reason;
        tracing::debug!(peer = %exchange.connection.peer, reason = reason.name(), "refused a request");
        exchange.connection.stats.add_refused(reason);
        let (status, (mut headers, mut body)) = if is_grpc {
            (StatusCode::OK, (refusal.grpc(), Bytes::new()))
        } else {
            (reason.status(), refusal.answer(self.settings.refusal_body))
        };
        if is_head {
            set_length(&mut headers, Some(body.len() as u64));
            body = Bytes::new();
        }
        exchange.answered(status, !body.is_empty());
        exchange.add_https_only(&mut headers);
        let mut answer = Response::new(Answer::own(body, exchange));
        *answer.status_mut() = status;
        *answer.headers_mut() = headers;
        self.add_headers(answer.headers_mut());
        answer
    }
}
