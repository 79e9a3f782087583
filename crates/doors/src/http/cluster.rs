//! The nodes of a cluster over HTTP: their state, tokens for new ones, removals, and transfers of the leadership.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use engine::Error;
use engine::cluster::{ClusterStatus, NodeStatus, TOKEN_MINUTES};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Http;
use super::codec::{self, Query};
use super::errors::Result;

pub(super) async fn describe(State(http): State<Arc<Http>>, uri: Uri) -> Result<Response> {
    Query::parse(&uri, &[])?;
    Ok(codec::json(StatusCode::OK, &shown(&http.broker.cluster()?)))
}

fn shown(status: &ClusterStatus) -> Value {
    json!({
        "cluster": status.cluster,
        "node": status.node,
        "leader": status.leader,
        "term": status.term,
        "committed": status.committed,
        "applied": status.applied,
        "elections": status.elections,
        "waiting_bytes": status.waiting_bytes,
        "catch_ups": status.catch_ups,
        "caught_up_bytes": status.caught_up_bytes,
        "format": status.format,
        "nodes": status.nodes.iter().map(node).collect::<Vec<_>>(),
    })
}

fn node(of: &NodeStatus) -> Value {
    let doors: Map<String, Value> = of.doors.iter().map(|(door, at)| (door.clone(), at.as_str().into())).collect();
    json!({
        "node": of.node,
        "address": of.address,
        "program": of.program,
        "doors": doors,
        "is_leader": of.is_leader,
        "is_voter": of.is_voter,
        "is_alive": of.is_alive,
        "is_catching_up": of.is_catching_up,
        "is_leaving": of.is_leaving,
        "behind": of.behind,
        "silent_ms": of.silent_ms,
    })
}

/// New token.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenIn {
    minutes: Option<u32>,
}

pub(super) async fn issue_token(State(http): State<Arc<Http>>, request: Request) -> Result<Response> {
    Query::parse(request.uri(), &[])?;
    let wanted: TokenIn = codec::optional_json(&http.bodies, request).await?.unwrap_or_default();
    let minutes = wanted.minutes.unwrap_or(TOKEN_MINUTES);
    let token = http.broker.issue_join_token(minutes)?;
    Ok(codec::json(StatusCode::CREATED, &json!({ "token": token.reveal(), "minutes": minutes })))
}

/// Node that has to lead.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LeaderIn {
    node: u64,
}

/// Begins a transfer of the leadership. The connection may end before its response, as the leader serves it.
pub(super) async fn transfer(State(http): State<Arc<Http>>, request: Request) -> Result<Response> {
    Query::parse(request.uri(), &[])?;
    let LeaderIn { node } = codec::whole_json(&http.bodies, request).await?;
    http.broker.transfer_leadership(node).await?;
    Ok(codec::json(StatusCode::ACCEPTED, &json!({ "leader": node })))
}

pub(super) async fn remove(State(http): State<Arc<Http>>, Path(node): Path<String>, uri: Uri) -> Result<StatusCode> {
    Query::parse(&uri, &[])?;
    let number = node.parse();
    let number = number.map_err(|error| Error::invalid(format!("'{node}' is not the number of a node: {error}")))?;
    http.broker.remove_node(number).await?;
    Ok(StatusCode::NO_CONTENT)
}
