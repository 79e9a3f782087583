//! The mesh of sites over HTTP: its state, new sites and invitations for them, removals, and topics.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use engine::mesh::{INVITATION_MINUTES, Invitation, SiteName};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Http;
use super::codec::{self, Query};
use super::errors::Result;
use super::mesh_json;

pub(super) async fn describe(State(http): State<Arc<Http>>, uri: Uri) -> Result<Response> {
    Query::parse(&uri, &[])?;
    Ok(codec::json(StatusCode::OK, &mesh_json::status(&http.broker.describe_mesh()?)))
}

/// Site that this broker becomes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SiteIn {
    site: String,
}

pub(super) async fn init(State(http): State<Arc<Http>>, request: Request) -> Result<Response> {
    Query::parse(request.uri(), &[])?;
    let SiteIn { site } = codec::whole_json(&http.bodies, request).await?;
    let status = http.broker.init_mesh(SiteName::parse(&site)?).await?;
    Ok(codec::json(StatusCode::CREATED, &mesh_json::status(&status)))
}

/// Site that this broker becomes, and the invitation with which it joins.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JoinIn {
    site: String,
    invitation: String,
}

pub(super) async fn join(State(http): State<Arc<Http>>, request: Request) -> Result<Response> {
    Query::parse(request.uri(), &[])?;
    let JoinIn { site, invitation } = codec::whole_json(&http.bodies, request).await?;
    let status = http.broker.join_mesh(SiteName::parse(&site)?, &Invitation::new(invitation)).await?;
    Ok(codec::json(StatusCode::CREATED, &mesh_json::status(&status)))
}

/// New invitation.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct InvitationIn {
    minutes: Option<u32>,
}

pub(super) async fn invite(State(http): State<Arc<Http>>, request: Request) -> Result<Response> {
    Query::parse(request.uri(), &[])?;
    let wanted: InvitationIn = codec::optional_json(&http.bodies, request).await?.unwrap_or_default();
    let minutes = wanted.minutes.unwrap_or(INVITATION_MINUTES);
    let invitation = http.broker.invite_site(minutes).await?;
    Ok(codec::json(StatusCode::CREATED, &json!({ "invitation": invitation.reveal(), "minutes": minutes })))
}

pub(super) async fn remove(State(http): State<Arc<Http>>, Path(site): Path<String>, uri: Uri) -> Result<StatusCode> {
    Query::parse(&uri, &[])?;
    http.broker.remove_site(&SiteName::parse(&site)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn leave(State(http): State<Arc<Http>>, uri: Uri) -> Result<StatusCode> {
    Query::parse(&uri, &[])?;
    http.broker.leave_mesh().await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn topics(State(http): State<Arc<Http>>, uri: Uri) -> Result<Response> {
    Query::parse(&uri, &[])?;
    let topics: Vec<Value> = http.broker.mesh_topics()?.iter().map(mesh_json::topic).collect();
    Ok(codec::json(StatusCode::OK, &json!({ "topics": topics })))
}
