//! The login of each request, and the permissions that each route requires.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::Body;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, Request, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use broker::{Broker, Door, Identity, Usage};
use engine::security::{Operation, Resource, ResourceKind};
use engine::{Error, ErrorKind};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use net::http::Caller;

use super::Http;
use super::errors::{Failure, Result};
use super::names::Names;
use crate::{login, throttle};

/// End of the path of a request that reads messages although it is no GET.
const RECEIVE: &str = "/receive";

/// Requirement of a route. The path names the resource.
#[derive(Clone, Copy, Debug)]
pub(super) enum Needs {
    /// Nothing, not even a login: a probe.
    Nothing,
    /// A login, if the broker requires one. A list shows what the client may describe.
    Login,
    Cluster(Operation),
    Topic(Operation),
    /// Writing to a topic, and creating one that is missing.
    Publish,
    CreateTopic,
    Group(Operation),
    /// An operation on a queue, and on the topic of one that does not own its topic.
    Queue(Operation),
    /// An operation on all entries of a cache.
    Cache(Operation),
    /// An operation on one entry.
    Entry(Operation),
    /// Writing one entry and reading the result.
    Count,
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
    mut request: Request,
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
    let caller = request.extensions().get::<Caller>();
    let identity = match admit(&http, needs, &mut params, request.headers(), caller).await {
        Ok(identity) => identity,
        Err(failure) => return failure.into_response(),
    };
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
    let check = || authorize(&http.broker, &identity, needs, &params);
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

async fn admit(
    http: &Http,
    needs: Needs,
    params: &mut [(String, String)],
    headers: &HeaderMap,
    caller: Option<&Caller>,
) -> Result<Arc<Identity>> {
    let is_required = http.is_login_required && !matches!(needs, Needs::Nothing);
    let identity = login::identify(&http.broker, Door::Http, headers, caller, is_required).await;
    let identity = identity.map_err(|error| match error.kind {
        ErrorKind::Denied => Failure::with_status(error, StatusCode::UNAUTHORIZED),
        _ => error.into(),
    })?;
    broker::act_as(identity.user());
    // The first one is the name of a resource.
    if let Some((_, name)) = params.first_mut() {
        *name = Names::of(&identity).inner(name);
    }
    if let Some(caller) = caller.filter(|_| !matches!(needs, Needs::Nothing)) {
        throttle::count_connection(&http.broker, Door::Http, caller, &identity)?;
    }
    authorize(&http.broker, &identity, needs, params).await?;
    Ok(Arc::new(identity))
}

fn is_change(needs: Needs) -> bool {
    !matches!(
        needs,
        Needs::Topic(Operation::Read)
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
        Needs::Nothing | Needs::Login => Ok(()),
        Needs::Cluster(operation) => broker.security.authorize(identity, operation, &Resource::CLUSTER),
        Needs::Topic(operation) => may(operation, ResourceKind::Topic),
        Needs::Publish => broker.authorize_publish(identity, param(0)),
        Needs::CreateTopic => broker.authorize_creation(identity, param(0)),
        Needs::Group(operation) => may(operation, ResourceKind::Group),
        Needs::Queue(operation) => broker.authorize_queue(identity, operation, param(0)).await,
        Needs::Cache(operation) => broker.authorize_entries(identity, operation, param(0), b""),
        Needs::Entry(operation) => entry(operation, param(1)),
        Needs::Count => {
            entry(Operation::Write, param(1))?;
            entry(Operation::Read, param(1))
        }
    }
}
