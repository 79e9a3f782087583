//! Answers of a node for itself over HTTP, whether it leads or follows: its metrics, and probes. The doors of a
//! follower hand over to the leader, so that they say nothing about the follower.
//!
//! There is no login, and TLS only if the client begins with it: the answers have numbers of the node, and no names.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use broker::metrics::{Collect, Exposition, to_text};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use net::http::{HttpServer, HttpSettings, RequestBody};
use net::{ConnectionLimits, Connections, Drain, Plaintext, Ports, Sockets};
use parking_lot::Mutex;

use super::gateway::Gateway;
use super::metrics;
use crate::process::Process;
use crate::server::{Server, expose_process};
use cluster::node::Node;

/// Maximum number of connections.
const CONNECTIONS_MAX: usize = 64;
/// Time limit of a connection without a request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const METRICS: HeaderValue = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// Parts of a node of which it reports the state.
pub(super) struct Own {
    pub node: Arc<Node>,
    pub process: Arc<Process>,
    pub gateway: Arc<Gateway>,
    /// Broker that this node runs while it leads.
    pub serving: Arc<Mutex<Option<Server>>>,
    pub connections: Arc<Connections>,
}

/// Returns the limit of the connections to one node.
pub(super) fn connections() -> Arc<Connections> {
    Connections::new(ConnectionLimits::up_to(CONNECTIONS_MAX))
}

type Answer = Response<Full<Bytes>>;

impl Own {
    /// Answers at an address until the drain begins. Returns the bound address.
    pub fn serve(self, address: SocketAddr, drain: Drain) -> io::Result<SocketAddr> {
        let wrap = |error: io::Error| io::Error::new(error.kind(), format!("cluster_status = {address}: {error}"));
        let sockets = Sockets::bind(&Ports::from(address)).map_err(wrap)?;
        let acceptors = sockets.acceptors().map_err(wrap)?;
        let settings = HttpSettings {
            idle_timeout: IDLE_TIMEOUT,
            is_local: address.ip().is_loopback(),
            methods: vec![Method::GET, Method::HEAD],
            plaintext: Plaintext::FromAnywhere,
            body_bytes_max: 0,
            ..HttpSettings::default()
        };
        let connections = self.connections.clone();
        let tls = self.process.tls.clone();
        let own = Arc::new(self);
        let service = service_fn(move |request: Request<RequestBody>| {
            let own = own.clone();
            async move { Ok::<_, Infallible>(own.answer(request.uri().path()).await) }
        });
        let server = HttpServer::new(settings, Some(&tls), connections, service)?;
        tokio::spawn(server.serve(acceptors, drain));
        Ok(sockets.address())
    }

    async fn answer(self: Arc<Self>, path: &str) -> Answer {
        match path {
            "/metrics" => self.metrics().await,
            "/healthz" => match self.node.shard().failed() {
                None => text(StatusCode::OK, "ok\n"),
                Some(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("takes no part in the cluster: {why}\n")),
            },
            "/readyz" => match self.state() {
                Ok(state) => text(StatusCode::OK, format!("ready\n{state}\n")),
                Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("not ready\n{why}\n")),
            },
            _ => text(StatusCode::NOT_FOUND, "a node answers /metrics, /healthz and /readyz here\n"),
        }
    }

    /// Returns what the node does for clients, or the reason why it can do nothing.
    fn state(&self) -> Result<String, String> {
        let status = self.node.status();
        let (own, term) = (status.node, status.term);
        if let Some(why) = status.failed {
            return Err(format!("node {own} takes no part in the cluster until it is restarted: {why}"));
        }
        if status.is_removed {
            return Err(format!("node {own} has left the cluster"));
        }
        let Some(leader) = status.leader else {
            return Err(format!("node {own} knows no leader in term {term}"));
        };
        if status.damaged_partitions > 0 {
            let damaged = status.damaged_partitions;
            return Err(format!("node {own} has damaged records in {damaged} partitions, and replaces them"));
        }
        if leader == own {
            return self.leads(own, term);
        }
        match status.nodes.iter().find(|of| of.node == leader) {
            Some(of) if of.is_alive => Ok(format!("node {own} follows node {leader} in term {term}")),
            _ => Err(format!("node {own} follows node {leader} in term {term} and does not hear it")),
        }
    }

    fn leads(&self, own: u64, term: u64) -> Result<String, String> {
        let store = self.node.store();
        if let Some(why) = store.broken().or_else(|| store.full()) {
            return Err(format!("node {own} leads in term {term} and takes no records: {why}"));
        }
        if self.serving.lock().is_none() {
            return Err(format!("node {own} leads in term {term} and does not serve yet"));
        }
        if !self.node.shard().may_serve(term) {
            return Err(format!("node {own} leads in term {term} and does not hear a majority"));
        }
        Ok(format!("node {own} leads in term {term}"))
    }

    async fn metrics(self: Arc<Self>) -> Answer {
        let write = move || {
            let workers = Arc::downgrade(self.process.workers());
            to_text(Box::new(Collect(move |out: &mut Exposition<'_>| {
                metrics::expose_role(&self.node, out)?;
                metrics::expose(&self.node, &self.gateway, out)?;
                let (open, refused) = (self.connections.open() as u64, self.connections.refused());
                out.gauge("thalweg_cluster_status_connections", "Open connections at cluster_status", open)?;
                let help = "Connections at cluster_status refused at a limit";
                out.counter("thalweg_cluster_status_connections_refused", help, refused)?;
                expose_process(&workers, out)
            })))
        };
        match tokio::task::spawn_blocking(write).await {
            Ok(Ok(page)) => {
                let mut answer = text(StatusCode::OK, page);
                answer.headers_mut().insert(CONTENT_TYPE, METRICS);
                answer
            }
            Ok(Err(error)) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot write the metrics: {error}\n")),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot write the metrics: {error}\n")),
        }
    }
}

fn text(status: StatusCode, text: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(text.into()));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, TEXT);
    answer
}
