//! The login of each request, and the permissions that each route requires.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::Body;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, Request, State};
use axum::http::header::{CACHE_CONTROL, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use broker::{Broker, Door, Identity, Usage};
use engine::ids::AUDIT_TOPIC;
use engine::security::{ANONYMOUS, Operation, Resource, ResourceKind};
use engine::{Error, ErrorKind};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use net::http::Caller;

use super::errors::{CHALLENGE_OF_CONSOLE, Failure, Result};
use super::names::Names;
use super::sessions::{self, Session, Viewer};
use super::{Http, ROUTES, Route, console, cors};
use crate::permissions::{self, Call, Need, Table};
use crate::{login, throttle};

/// End of the path of a request that reads messages although it is no GET.
const RECEIVE: &str = "/receive";

/// Requirement of a route. The path names the resource; the route itself checks what only the body names.
#[derive(Clone, Copy, Debug)]
pub(super) enum Needs {
    /// Nothing, not even a login: a probe.
    Nothing,
    /// A login, if the broker requires one. The list shows what the client may describe.
    List(ResourceKind),
    Cluster(Operation),
    /// Reading the records of the audit.
    Audit,
    Topic(Operation),
    /// Writing to a topic, and creating one that is missing.
    Publish,
    CreateTopic,
    /// Reading each topic that the subscription joins, which is checked when it does.
    Subscribe,
    /// Subscribing, and publishing frames.
    WebSocket,
    Group(Operation),
    /// Reading a group, and the topic in the body.
    Reset,
    /// An operation on a queue, and on the topic of one that does not own its topic.
    Queue(Operation),
    /// Creating a queue; the body names its topic and the topic of its dead letters.
    CreateQueue,
    /// Altering a queue; the body names the topic of its dead letters.
    AlterQueue,
    /// Altering and reading a queue, and writing to the one in the body.
    Redrive,
    /// An operation on all entries of a cache.
    Cache(Operation),
    /// An operation on one entry.
    Entry(Operation),
    /// Writing one entry and reading the result.
    Count,
}

impl Needs {
    fn shown(self) -> Vec<Need> {
        let topic = |operation, of| Need::new(operation, ResourceKind::Topic, of);
        let group = |operation| Need::new(operation, ResourceKind::Group, "the group");
        match self {
            Self::Nothing => Vec::new(),
            Self::List(kind) => vec![permissions::listed(kind)],
            Self::Cluster(operation) => vec![Need::cluster(operation)],
            Self::Audit => vec![topic(Operation::Read, "the topic _audit")],
            Self::Topic(operation) => vec![topic(operation, "the topic")],
            Self::Publish => permissions::publish().to_vec(),
            Self::CreateTopic => vec![permissions::create_topic()],
            Self::Subscribe | Self::WebSocket => vec![topic(Operation::Read, "the topic")],
            Self::Group(operation) => vec![group(operation)],
            Self::Reset => vec![group(Operation::Read), topic(Operation::Read, "the topic")],
            Self::Queue(operation) => permissions::on_queue(operation),
            Self::CreateQueue => [permissions::create_queue(), permissions::dead_letters()].concat(),
            Self::AlterQueue => {
                [permissions::on_queue(Operation::Alter), permissions::dead_letters().to_vec()].concat()
            }
            Self::Redrive => permissions::redrive(),
            Self::Cache(operation) => vec![permissions::on_entries(operation)],
            Self::Entry(operation) => vec![permissions::on_entry(operation)],
            Self::Count => vec![permissions::on_entry(Operation::Write), permissions::on_entry(Operation::Read)],
        }
    }

    fn note(self) -> &'static str {
        match self {
            Self::Publish => permissions::INBOXES,
            Self::Subscribe => "A pattern joins only topics that the user may read.",
            Self::WebSocket => {
                "A pattern joins only topics that the user may read. Each publish is checked like a POST of records."
            }
            _ => "",
        }
    }
}

/// Returns the permissions that each route requires.
pub(crate) fn permissions() -> Table {
    let call = |route: &Route| {
        let call = Call::new(format!("{} {}", route.method, route.path), route.needs.shown());
        call.open(matches!(route.needs, Needs::Nothing)).note(route.needs.note())
    };
    let about = "A refused request has the status 403 and a problem in JSON; one without a required login has 401.";
    Table { door: Door::Http, about, calls: ROUTES.iter().chain(&console::ROUTES).map(call).collect() }
}

/// State of the check of one route.
#[derive(Clone)]
pub(super) struct Gate {
    pub http: Arc<Http>,
    pub needs: Needs,
}

/// Middleware of each route: logs the client in, checks its permission, and passes its identity to the route.
pub(super) async fn check(
    State(Gate { http, needs }): State<Gate>,
    params: Result<RawPathParams, RawPathParamsRejection>,
    request: Request,
    next: Next,
) -> Response {
    let params = match params {
        Ok(params) => params,
        Err(rejection) => {
            return Failure::from(Error::invalid(format!("a name in the path: {rejection}"))).into_response();
        }
    };
    let mut params: Vec<(String, String)> =
        params.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let session = sessions::of_request(&http, &request, is_change_of_page(needs, request.method()));
    let stranger = cors::stranger(&request, &http.cors_origins);
    let caller = request.extensions().get::<Caller>();
    let identity = log_in(&http, needs, request.headers(), caller, session, stranger.as_deref()).await;
    let identity = match identity {
        Ok(identity) => Arc::new(identity),
        Err(failure) => return refused_login(&http, &request, failure),
    };
    let viewer = Viewer::of(&identity);
    let response = match permit(&http, needs, &mut params, &identity, caller).await {
        Ok(()) => permitted(&http, needs, &params, identity, request, next).await,
        Err(failure) => failure.into_response(),
    };
    match viewer {
        Some(viewer) => of_viewer(response, viewer),
        None => response,
    }
}

/// Returns the response to a request without a valid login. One of a script of the console names no scheme that a
/// browser knows: it would ask its user for a name and a password, instead of the console.
fn refused_login(http: &Http, request: &Request, failure: Failure) -> Response {
    let mut response = failure.into_response();
    let is_secure = request.extensions().get::<Caller>().is_some_and(|caller| caller.is_secure);
    let is_of_console =
        || sessions::is_of_console(request.headers(), request.uri(), is_secure) || console::is_stream(request);
    if response.status() == StatusCode::UNAUTHORIZED && http.has_sessions() && is_of_console() {
        response.headers_mut().insert(WWW_AUTHENTICATE, CHALLENGE_OF_CONSOLE);
    }
    response
}

/// Adds the user to a response, for the frame of its page. A proxy or a browser must not keep what only a session
/// shows.
fn of_viewer(mut response: Response, viewer: Viewer) -> Response {
    if viewer.has_session {
        response.headers_mut().entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    }
    response.extensions_mut().insert(viewer);
    response
}

/// Serves a request whose client may make it.
async fn permitted(
    http: &Http,
    needs: Needs,
    params: &[(String, String)],
    identity: Arc<Identity>,
    mut request: Request,
    next: Next,
) -> Response {
    request.extensions_mut().insert(identity.clone());
    let is_charged = http.broker.security.has_quotas() && !matches!(needs, Needs::Nothing);
    let response = async {
        if is_charged { charged(&http.broker, &identity, request, next).await } else { next.run(request).await }
    };
    // A receive ends by itself: it must not be dropped with messages that it has leased.
    if is_change(needs) || matches!(needs, Needs::Queue(_)) {
        return response.await;
    }
    // It may wait for records, and its permission may end in the meantime.
    let check = || authorize(&http.broker, &identity, needs, params);
    let response = http.broker.security.while_permitted(check, response).await;
    response.unwrap_or_else(|error| Failure::from(error).into_response())
}

/// Runs a request of a client that has not exceeded its quotas, and charges the request and its response.
async fn charged(broker: &Broker, identity: &Identity, request: Request, next: Next) -> Response {
    let bytes_in = request.body().size_hint().exact().unwrap_or(0);
    let has_length = request.body().size_hint().exact().is_some();
    let reads = request.method() == Method::GET || request.uri().path().ends_with(RECEIVE);
    let usage = Usage { requests: 1, bytes_in, bytes_out: 0 };
    if let Err(error) = broker.security.admit(Door::Http, identity, usage, reads) {
        return Failure::from(error).into_response();
    }
    // The size of other bodies is known once they were read.
    let counted = Arc::new(AtomicU64::new(0));
    let count = counted.clone();
    let request = if has_length {
        request
    } else {
        request.map(|body| {
            Body::new(body.map_frame(move |frame| {
                count.fetch_add(frame.data_ref().map_or(0, |data| data.len() as u64), Ordering::Relaxed);
                frame
            }))
        })
    };
    let response = next.run(request).await;
    // Events are charged when they are written.
    let bytes_out = response.body().size_hint().exact().unwrap_or(0);
    let usage = Usage { requests: 0, bytes_in: counted.load(Ordering::Relaxed), bytes_out };
    // It delays the next request.
    broker.security.charge_later(identity, usage);
    response
}

/// Returns the identity of the sender of a request.
async fn log_in(
    http: &Http,
    needs: Needs,
    headers: &HeaderMap,
    caller: Option<&Caller>,
    session: Session,
    stranger: Option<&str>,
) -> Result<Identity> {
    if let Some(page) = stranger.filter(|_| is_administration(needs)) {
        return Err(refused_page(page, "administer this broker").into());
    }
    let is_unproven = matches!(session, Session::Unproven);
    let identity = match session {
        Session::Open(identity) => *identity,
        Session::None | Session::Unproven => {
            let is_required = http.is_login_required && !matches!(needs, Needs::Nothing);
            let identity = login::identify(&http.broker, Door::Http, headers, caller, is_required).await;
            identity.map_err(|error| match error.kind {
                ErrorKind::Denied if is_unproven => sessions::not_of_console().into(),
                ErrorKind::Denied => Failure::with_status(error, StatusCode::UNAUTHORIZED),
                _ => error.into(),
            })?
        }
    };
    // If a page that only the wildcard admits could use the login that a browser keeps, every page could. The Fetch
    // standard does not let them be combined (https://fetch.spec.whatwg.org/#cors-protocol-and-credentials), but then a
    // browser only hides the response: it sends simple requests nevertheless, and opens WebSockets.
    if let Some(page) = stranger.filter(|_| identity.user().as_str() != ANONYMOUS) {
        return Err(refused_page(page, "use the login that a browser keeps for this broker").into());
    }
    Ok(identity)
}

/// Checks that a client may make a request, and changes the names in its path to those of the broker.
async fn permit(
    http: &Http,
    needs: Needs,
    params: &mut [(String, String)],
    identity: &Identity,
    caller: Option<&Caller>,
) -> Result<()> {
    broker::act_as(identity.user());
    // The first one is the name of a resource, except for a node and a site.
    if let Some((_, name)) = params.first_mut().filter(|_| !matches!(needs, Needs::Cluster(_))) {
        *name = Names::of(identity).inner(name);
    }
    if let Some(caller) = caller.filter(|_| !matches!(needs, Needs::Nothing)) {
        throttle::count_connection(&http.broker, Door::Http, caller, identity)?;
    }
    Ok(authorize(&http.broker, identity, needs, params).await?)
}

/// Returns `true` for a request that changes something, or opens a WebSocket, on which a client publishes.
fn is_change_of_page(needs: Needs, method: &Method) -> bool {
    !method.is_safe() || matches!(needs, Needs::WebSocket)
}

/// Returns `true` if a route changes the broker itself: its users, roles, tokens, entries, connections, nodes or sites.
fn is_administration(needs: Needs) -> bool {
    matches!(needs, Needs::Cluster(operation) if !matches!(operation, Operation::Describe | Operation::DescribeConfigs))
}

fn refused_page(page: &str, what: &str) -> Error {
    let message = format!(
        "a page of {page} may not {what}, because http_cors_origins admits it only by *: add its origin to the list by \
         name, or open the broker's own address in the browser"
    );
    Error::new(ErrorKind::Denied, message)
}

fn is_change(needs: Needs) -> bool {
    !matches!(
        needs,
        Needs::Audit
            | Needs::Topic(Operation::Read)
            | Needs::Queue(Operation::Read)
            | Needs::Cache(Operation::Read)
            | Needs::Entry(Operation::Read)
    )
}

async fn authorize(
    broker: &Broker,
    identity: &Identity,
    needs: Needs,
    params: &[(String, String)],
) -> engine::Result<()> {
    if broker.security.is_unlimited(identity) {
        return Ok(());
    }
    broker.security.check_valid(identity)?;
    let param = |at: usize| params.get(at).map_or("", |(_, value)| value.as_str());
    let may = |operation, kind| broker.security.authorize(identity, operation, &Resource::new(kind, param(0)));
    let entry = |operation, key: &str| broker.authorize_entry(identity, operation, param(0), key.as_bytes());
    match needs {
        Needs::Nothing | Needs::List(_) | Needs::Subscribe | Needs::WebSocket => Ok(()),
        Needs::Cluster(operation) => broker.security.authorize(identity, operation, &Resource::CLUSTER),
        Needs::Audit => broker.security.authorize(identity, Operation::Read, &Resource::topic(AUDIT_TOPIC)),
        Needs::Topic(operation) => may(operation, ResourceKind::Topic),
        Needs::Publish => broker.authorize_publish(identity, param(0)),
        Needs::CreateTopic => broker.authorize_creation(identity, param(0)),
        Needs::Group(operation) => may(operation, ResourceKind::Group),
        Needs::Reset => may(Operation::Read, ResourceKind::Group),
        Needs::Queue(operation) => broker.authorize_queue(identity, operation, param(0)).await,
        Needs::CreateQueue => may(Operation::Create, ResourceKind::Queue),
        Needs::AlterQueue | Needs::Redrive => may(Operation::Alter, ResourceKind::Queue),
        Needs::Cache(operation) => broker.authorize_entries(identity, operation, param(0), b""),
        Needs::Entry(operation) => entry(operation, param(1)),
        Needs::Count => {
            entry(Operation::Write, param(1))?;
            entry(Operation::Read, param(1))
        }
    }
}
