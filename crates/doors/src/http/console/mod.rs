//! The web console: pages for browsers, with data from the broker and HTML from the crate `console`.
//!
//! A page is requested again for its live part, as server-sent events. Actions of the pages are requests to the other
//! routes of this door, so a page has no right that its user does not have there.

mod caches;
mod clients;
mod groups;
mod history;
mod login;
mod queues;
mod records;
mod security;
mod state;
mod streams;
mod topics;

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequestParts, Path, RawPathParams, Request, State};
use axum::http::header::{
    ACCEPT, AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, ETAG, IF_NONE_MATCH, LOCATION, REFERRER_POLICY, VARY,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::Response;
use axum::routing::{MethodFilter, MethodRouter, on};
use broker::{FREE_BYTES, Identity, Usage};
use bytes::Bytes;
use console::shell::{Frame, Page, Section};
use console::{assets, pages};
use engine::security::{ANONYMOUS, Operation, ResourceKind};
use engine::{Error, ErrorKind};
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, stream};
use net::http::{Caller, Charge};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::access::Needs;
use super::codec::{self, Query};
use super::errors::{Failure, Result, Sentence};
use super::map::ROOM_WAIT;
use super::names::Names;
use super::sessions::{self, Sender, Viewer};
use super::{Http, Peer, Route, StreamKind};
pub(super) use history::Measured;

/// Interval between two live parts of a page.
const LIVE_EVERY: Duration = Duration::from_millis(console::figures::SAMPLE_MS);
/// Maximum duration of a stream of live parts. The browser connects again, with a new login.
const LIVE_FOR: Duration = Duration::from_secs(600);
/// Number of items in a page of a list.
const LIST_MAX: usize = 50;
/// Path at which the console begins.
pub(super) const START: &str = "/console";
/// Type of the events with the live parts.
const EVENTS: &str = "text/event-stream";

/// Function that collects the data of a page, and renders it.
type Show = fn(Visit) -> BoxFuture<'static, Result<Page>>;

/// Routes of the console. They are not in the description of the API, because their responses are for people.
pub(super) static ROUTES: [Route; 35] = [
    page(START, Needs::Cluster(Operation::Describe), |method| show(method, |visit| Box::pin(state::overview(visit)))),
    page("/console/topics", Needs::List(ResourceKind::Topic), |method| {
        show(method, |visit| Box::pin(topics::list(visit)))
    }),
    page("/console/topics/{topic}", Needs::Topic(Operation::Describe), |method| {
        show(method, |visit| Box::pin(topics::one(visit)))
    }),
    page("/console/topics/{topic}/tail", Needs::Topic(Operation::Read), |method| {
        show(method, |visit| Box::pin(topics::tail(visit)))
    }),
    page("/console/topics/{topic}/records", Needs::Topic(Operation::Read), |method| {
        show(method, |visit| Box::pin(records::list(visit)))
    }),
    page("/console/topics/{topic}/records/{partition}/{offset}", Needs::Topic(Operation::Read), |method| {
        show(method, |visit| Box::pin(records::one(visit)))
    }),
    page("/console/groups", Needs::List(ResourceKind::Group), |method| {
        show(method, |visit| Box::pin(groups::list(visit)))
    }),
    page("/console/groups/{group}", Needs::Group(Operation::Describe), |method| {
        show(method, |visit| Box::pin(groups::one(visit)))
    }),
    page("/console/queues", Needs::List(ResourceKind::Queue), |method| {
        show(method, |visit| Box::pin(queues::list(visit)))
    }),
    page("/console/queues/{queue}", Needs::Queue(Operation::Describe), |method| {
        show(method, |visit| Box::pin(queues::one(visit)))
    }),
    page("/console/streams", Needs::List(ResourceKind::Topic), |method| {
        show(method, |visit| Box::pin(streams::list(visit)))
    }),
    page("/console/streams/{topic}", Needs::Topic(Operation::Describe), |method| {
        show(method, |visit| Box::pin(streams::one(visit)))
    }),
    page("/console/caches", Needs::List(ResourceKind::Cache), |method| {
        show(method, |visit| Box::pin(caches::list(visit)))
    }),
    page("/console/caches/{cache}", Needs::Cache(Operation::Describe), |method| {
        show(method, |visit| Box::pin(caches::one(visit)))
    }),
    page("/console/caches/{cache}/entries/{key}", Needs::Entry(Operation::Read), |method| {
        show(method, |visit| Box::pin(caches::entry(visit)))
    }),
    page("/console/clients", Needs::Cluster(Operation::Describe), |method| {
        show(method, |visit| Box::pin(clients::list(visit)))
    }),
    page("/console/clients/{connection}", Needs::Cluster(Operation::Describe), |method| {
        show(method, |visit| Box::pin(clients::one(visit)))
    }),
    page("/console/cluster", Needs::Cluster(Operation::Describe), |method| {
        show(method, |visit| Box::pin(state::cluster(visit)))
    }),
    page("/console/mesh", Needs::Cluster(Operation::Describe), |method| {
        show(method, |visit| Box::pin(state::mesh(visit)))
    }),
    page("/console/security", Needs::Cluster(Operation::Describe), |method| {
        show(method, |visit| Box::pin(security::users(visit)))
    }),
    page("/console/security/users/{user}", Needs::Cluster(Operation::Describe), |method| {
        show(method, |visit| Box::pin(security::user(visit)))
    }),
    page("/console/security/tokens", Needs::Cluster(Operation::Describe), |method| {
        show(method, |visit| Box::pin(security::tokens(visit)))
    }),
    page("/console/security/tokens/{token}", Needs::Cluster(Operation::Describe), |method| {
        show(method, |visit| Box::pin(security::token(visit)))
    }),
    page("/console/security/acls", Needs::Cluster(Operation::Describe), |method| {
        show(method, |visit| Box::pin(security::acls(visit)))
    }),
    page("/console/security/acl", Needs::Cluster(Operation::Describe), |method| {
        show(method, |visit| Box::pin(security::acl(visit)))
    }),
    page("/console/audit", Needs::Audit, |method| show(method, |visit| Box::pin(security::audit(visit)))),
    page("/console/settings", Needs::Cluster(Operation::DescribeConfigs), |method| {
        show(method, |visit| Box::pin(state::settings(visit)))
    }),
    page("/console/api", Needs::Nothing, |method| show(method, |visit| Box::pin(state::api(visit)))),
    page(login::LOGIN, Needs::Nothing, |method| on(method, login::show)),
    form(login::LOGIN, |method| on(method, login::log_in)),
    page(login::LOGOUT, Needs::Nothing, |method| on(method, login::leave)),
    form(login::LOGOUT, |method| on(method, login::log_out)),
    page("/console/assets/{name}", Needs::Nothing, |method| on(method, asset)),
    page("/console/", Needs::Nothing, |method| on(method, start)),
    page("/console/{*rest}", Needs::Nothing, |method| on(method, no_such_page)),
];

const fn page(path: &'static str, needs: Needs, serve: fn(MethodFilter) -> MethodRouter<Arc<Http>>) -> Route {
    Route { method: Method::GET, path, needs, serve }
}

/// Returns the route of a form that a browser sends before or after a login.
const fn form(path: &'static str, serve: fn(MethodFilter) -> MethodRouter<Arc<Http>>) -> Route {
    Route { method: Method::POST, path, needs: Needs::Nothing, serve }
}

/// Returns the route of a page, and of the events of its live part.
fn show(method: MethodFilter, page: Show) -> MethodRouter<Arc<Http>> {
    on(method, move |visit: Visit, headers: HeaderMap| async move {
        if accepts(&headers, EVENTS) {
            // The first live part has no rates: it is that of the page.
            let visit = Visit { is_live: true, ..visit };
            if page(visit.clone()).await?.live.0.is_empty() {
                // A browser does not connect again.
                return Ok(codec::bytes(StatusCode::NO_CONTENT, EVENTS, Body::empty()));
            }
            return Ok(live(visit, page));
        }
        let section = Section::of(visit.uri.path());
        let page = page(visit.clone()).await?;
        let has_session = visit.identity().is_in_session();
        let frame = Frame { section, version: env!("CARGO_PKG_VERSION"), user: visit.user(), has_session };
        visit.respond(frame.render(&page)).await
    })
}

/// Request of a browser for a page.
#[derive(Clone)]
struct Visit {
    http: Arc<Http>,
    peer: Peer,
    names: Names,
    uri: Uri,
    /// Names in the path, as the client uses them.
    params: Vec<String>,
    /// `true` if only the live part of the page is needed.
    is_live: bool,
    /// Generation of the permissions at the request.
    generation: u64,
    /// Counters of the live part that was sent before.
    before: Arc<Mutex<Counters>>,
}

/// Counters at one moment, by name.
#[derive(Default)]
struct Counters {
    at: Option<Instant>,
    values: HashMap<String, u64>,
}

impl Counters {
    /// Replaces the counters. Returns the rate per second of each one that was known before.
    fn advance(&mut self, values: HashMap<String, u64>) -> HashMap<String, f64> {
        let now = Instant::now();
        let elapsed = self.at.replace(now).map(|at| (now - at).as_secs_f64()).filter(|elapsed| *elapsed > 0.0);
        let rate = |(name, value): (&String, &u64)| {
            let was = self.values.get(name)?;
            Some((name.clone(), value.saturating_sub(*was) as f64 / elapsed?))
        };
        let rates = values.iter().filter_map(rate).collect();
        self.values = values;
        rates
    }
}

impl FromRequestParts<Arc<Http>> for Visit {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, http: &Arc<Http>) -> Result<Self> {
        let generation = http.broker.security.generation();
        let peer = Peer::from_request_parts(parts, http).await?;
        let names = Names::from_request_parts(parts, http).await?;
        let params = RawPathParams::from_request_parts(parts, http).await;
        let params = params.map_err(|rejection| Error::invalid(format!("a name in the path: {rejection}")))?;
        Ok(Self {
            http: http.clone(),
            peer,
            names,
            uri: parts.uri.clone(),
            params: params.iter().map(|(_, value)| value.to_owned()).collect(),
            is_live: false,
            generation,
            before: Arc::default(),
        })
    }
}

impl Visit {
    fn identity(&self) -> &Arc<Identity> {
        &self.peer.identity
    }

    fn user(&self) -> Option<&str> {
        Some(self.peer.identity.user().as_str()).filter(|user| *user != ANONYMOUS)
    }

    fn query(&self, known: &[&str]) -> Result<Query> {
        Query::parse(&self.uri, known)
    }

    fn param(&self, at: usize) -> &str {
        self.params.get(at).map_or("", String::as_str)
    }

    /// Returns the name in the path as the broker has it.
    fn inner(&self) -> String {
        self.names.inner(self.param(0))
    }

    /// Returns a test of whether a list shows a name of the broker: the client may describe it, and it contains the
    /// text. Names that begin with an underscore are shown only if the text does.
    fn shows(&self, kind: ResourceKind, text: &str) -> impl Fn(&str) -> bool + Send + use<> {
        let http = self.http.clone();
        let identity = self.identity().clone();
        let names = self.names.clone();
        let text = text.to_owned();
        move |name| {
            let outer = names.outer(name);
            let is_meant = outer.contains(&text) && (!outer.starts_with('_') || text.starts_with('_'));
            is_meant && http.broker.is_shown(&identity, kind, name)
        }
    }

    /// Returns the response with a page, whose memory is reserved until it is written.
    async fn respond(&self, text: String) -> Result<Response> {
        let bytes = text.len();
        let mut response = html(StatusCode::OK, text);
        if bytes > FREE_BYTES {
            let held = self.http.broker.answers().take(Some(self.peer.address), bytes, ROOM_WAIT).await?;
            response.extensions_mut().insert(Charge::new(held));
        }
        Ok(response)
    }
}

/// Returns the events with the live part of a page, until the permissions of any client change.
fn live(visit: Visit, page: Show) -> Response {
    let security = visit.http.broker.security.clone();
    let generation = visit.generation;
    let end = Instant::now() + LIVE_FOR;
    let open = visit.http.open(StreamKind::Events);
    let drain = visit.peer.drain.clone();
    let events = stream::unfold((visit, drain, open), move |(visit, mut drain, open)| {
        let security = security.clone();
        async move {
            tokio::select! {
                () = sleep(LIVE_EVERY) => {}
                () = security.changed_since(generation) => return None,
                () = drain.begun() => return None,
            }
            let is_over = security.generation() != generation || Instant::now() >= end;
            if is_over || !security.is_valid(visit.identity()) {
                return None;
            }
            let event = match page(visit.clone()).await {
                Ok(page) => format!("event: live\ndata: {}\n\n", serde_json::Value::from(page.live.into_string())),
                // The next part is tried again. A comment keeps the stream open.
                Err(failure) if failure.error.kind == ErrorKind::Busy => ": busy\n\n".to_owned(),
                Err(_) => return None,
            };
            security.charge_later(visit.identity(), Usage::response(event.len()));
            Some((Bytes::from(event), (visit, drain, open)))
        }
    });
    // The first bytes tell the browser that the stream is open.
    let events = stream::iter([Bytes::from_static(b"retry: 2000\n\n")]).chain(events).map(Ok::<_, Infallible>);
    let mut response = codec::bytes(StatusCode::OK, EVENTS, Body::from_stream(events));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Returns `true` if the client prefers this type of response.
pub(super) fn accepts(headers: &HeaderMap, content_type: &str) -> bool {
    headers.get_all(ACCEPT).iter().any(|value| value.to_str().is_ok_and(|value| value.contains(content_type)))
}

/// Returns the response that leads a browser to the console.
pub(super) fn redirect() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    response.headers_mut().insert(LOCATION, HeaderValue::from_static(START));
    response.headers_mut().insert(VARY, HeaderValue::from_static("accept"));
    response
}

async fn start() -> Response {
    redirect()
}

/// Returns `true` if a request is for the live part of a page.
pub(super) fn is_stream(request: &Request) -> bool {
    is_page(request.uri().path()) && accepts(request.headers(), EVENTS)
}

/// Returns `true` if a path is one of the console.
pub(super) fn is_page(path: &str) -> bool {
    path.strip_prefix(START).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Middleware of the pages: an error becomes a page with its sentence, and a browser without a login is led there.
pub(super) async fn as_page(State(http): State<Arc<Http>>, request: Request, next: Next) -> Response {
    let section = Section::of(request.uri().path());
    let headers = request.headers();
    let is_read_by_script = accepts(headers, EVENTS);
    let is_secure = request.extensions().get::<Caller>().is_some_and(|caller| caller.is_secure);
    let sender = Sender::of(headers, request.uri(), is_secure);
    // A browser that sends a stored login which is no longer valid drops it only if the response has its scheme.
    let is_led = http.has_sessions()
        && sessions::is_navigation(request.method(), headers)
        && !headers.contains_key(AUTHORIZATION);
    let uri = request.uri().clone();
    let response = next.run(request).await;
    let Some(Sentence(sentence)) = response.extensions().get().filter(|_| !is_read_by_script) else {
        return response;
    };
    let status = response.status();
    if status == StatusCode::UNAUTHORIZED && is_led {
        return login::lead(&uri, sender);
    }
    let page = pages::error::page(status.as_u16(), sentence);
    let viewer = response.extensions().get::<Viewer>();
    let frame = Frame {
        section,
        version: env!("CARGO_PKG_VERSION"),
        user: viewer.map(|viewer| viewer.user.as_str()),
        has_session: viewer.is_some_and(|viewer| viewer.has_session),
    };
    let text = frame.render(&page);
    let (mut head, _) = response.into_parts();
    let (of_page, body) = html(status, text).into_parts();
    head.headers.extend(of_page.headers);
    Response::from_parts(head, body)
}

fn html(status: StatusCode, text: String) -> Response {
    let mut response = codec::bytes(status, "text/html; charset=utf-8", text);
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(assets::CONTENT_SECURITY_POLICY));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // With `no-referrer` a browser would send `Origin: null` with a form (Fetch, append a request Origin header).
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    response
}

async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Result<Response> {
    let asset = assets::find(&name).ok_or_else(|| Error::not_found(format!("the console has no file {name}")))?;
    let tag = asset.tag();
    let is_known = headers.get(IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes());
    let mut response = if is_known {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        codec::bytes(StatusCode::OK, asset.content_type, asset.text)
    };
    let tag = HeaderValue::from_str(&tag).map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
    response.headers_mut().insert(ETAG, tag);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

async fn no_such_page(State(_): State<Arc<Http>>, uri: Uri) -> Failure {
    Error::not_found(format!("the console has no page {}", uri.path())).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn rates_are_those_since_the_last_live_part() {
        let mut counters = Counters::default();
        let values = |n| HashMap::from([("a".to_owned(), n)]);
        assert!(counters.advance(values(100)).is_empty());
        tokio::time::advance(Duration::from_secs(2)).await;
        let mut now = values(140);
        now.insert("new".to_owned(), 7);
        assert_eq!(counters.advance(now), HashMap::from([("a".to_owned(), 20.0)]));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(counters.advance(values(0)).get("a"), Some(&0.0), "the topic was created again");
    }
}
