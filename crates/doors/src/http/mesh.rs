//! The mesh of sites over HTTP: its state, new sites and invitations for them, removals, and topics.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use engine::mesh::{
    CacheStats, CopyStatus, INVITATION_MINUTES, Invitation, MeshStats, MeshStatus, MeshTopic, RouteStats, SiteName,
    SiteStatus,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Http;
use super::codec::{self, Query};
use super::errors::Result;

pub(super) async fn describe(State(http): State<Arc<Http>>, uri: Uri) -> Result<Response> {
    Query::parse(&uri, &[])?;
    Ok(codec::json(StatusCode::OK, &shown(&http.broker.describe_mesh()?)))
}

fn shown(status: &MeshStatus) -> Value {
    json!({
        "site": status.site.as_str(),
        "key": status.key.to_string(),
        "role": status.role.name(),
        "address": status.address,
        "isolated_ms": status.isolated_ms,
        "sites": status.sites.iter().map(site).collect::<Vec<_>>(),
        "stats": stats(&status.stats),
    })
}

fn site(of: &SiteStatus) -> Value {
    json!({
        "site": of.site.as_str(),
        "key": of.key.to_string(),
        "role": of.role.name(),
        "address": of.address,
        "link": of.link.name(),
        "via": of.via.as_ref().map(SiteName::as_str),
        "since_ms": of.since_ms,
        "round_trip_us": of.round_trip_us,
        "error": of.error,
        "sent_records": of.sent_records,
        "sent_bytes": of.sent_bytes,
        "received_records": of.received_records,
        "received_bytes": of.received_bytes,
        "lost_records": of.lost_records,
    })
}

fn stats(MeshStats { cache, routes, lookups, directory_entries }: &MeshStats) -> Value {
    let CacheStats { hits, misses, stores, rate_limited, table_size } = cache;
    let cache = json!({
        "hits": hits,
        "misses": misses,
        "hit_rate": cache.hit_rate(),
        "table_size": table_size,
        "rate_limited": rate_limited,
        "stores": stores,
    });
    let RouteStats { hits, misses, stores, table_size } = routes;
    let routes = json!({
        "hits": hits,
        "misses": misses,
        "hit_rate": routes.hit_rate(),
        "table_size": table_size,
        "stores": stores,
    });
    json!({ "cache": cache, "routes": routes, "lookups": lookups, "directory_entries": directory_entries })
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
    Ok(codec::json(StatusCode::CREATED, &shown(&status)))
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
    Ok(codec::json(StatusCode::CREATED, &shown(&status)))
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
    let topics: Vec<Value> = http.broker.mesh_topics()?.iter().map(topic).collect();
    Ok(codec::json(StatusCode::OK, &json!({ "topics": topics })))
}

fn topic(of: &MeshTopic) -> Value {
    json!({
        "topic": of.topic.as_str(),
        "mode": of.mode.name(),
        "is_wanted": of.is_wanted,
        "sites": of.sites.iter().map(SiteName::as_str).collect::<Vec<_>>(),
        "sent_records": of.sent_records,
        "received_records": of.received_records,
        "copy": of.copy.as_ref().map(copy),
    })
}

fn copy(CopyStatus { origin, behind, lost_records, error }: &CopyStatus) -> Value {
    json!({ "origin": origin.as_str(), "behind": behind, "lost_records": lost_records, "error": error })
}

#[cfg(test)]
mod tests {
    use engine::TopicName;
    use engine::mesh::MeshMode;

    use super::*;

    #[test]
    fn only_a_copy_has_the_state_of_one() {
        let oslo = || SiteName::parse("oslo").expect("a name");
        let live = MeshTopic {
            topic: TopicName::parse("prices").expect("a name"),
            mode: MeshMode::Live,
            is_wanted: true,
            sites: vec![oslo()],
            sent_records: 7,
            received_records: 5,
            copy: None,
        };
        let shown = json!({
            "topic": "prices",
            "mode": "live",
            "is_wanted": true,
            "sites": ["oslo"],
            "sent_records": 7,
            "received_records": 5,
            "copy": null,
        });
        assert_eq!(topic(&live), shown);
        let unreached = CopyStatus { origin: oslo(), behind: None, lost_records: 0, error: Some("no link".into()) };
        let shown = json!({ "origin": "oslo", "behind": null, "lost_records": 0, "error": "no link" });
        assert_eq!(copy(&unreached), shown);
        let reached = CopyStatus { origin: oslo(), behind: Some(9), lost_records: 3, error: None };
        let of_copy = topic(&MeshTopic { mode: MeshMode::Copy, copy: Some(reached), ..live });
        let shown = json!({ "origin": "oslo", "behind": 9, "lost_records": 3, "error": null });
        assert_eq!((&of_copy["mode"], &of_copy["copy"]), (&json!("copy"), &shown));
    }
}
