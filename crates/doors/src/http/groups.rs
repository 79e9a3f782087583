//! Consumer groups over HTTP: members, progress of each partition, and resets of offsets.

use std::sync::Arc;

use axum::extract::{Extension, Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use broker::{GroupStatus, GroupSummary, Identity, ResetTo};
use engine::groups::GroupName;
use engine::security::{Operation, Resource, ResourceKind};
use engine::{Error, Offset, PartitionId, Start};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Http;
use super::codec::{self, Query, Topic};
use super::errors::Result;
use super::names::Names;

pub(super) async fn list(
    State(http): State<Arc<Http>>,
    Extension(identity): Extension<Arc<Identity>>,
    names: Names,
    uri: Uri,
) -> Result<Response> {
    let query = Query::parse(&uri, &["after", "max"])?;
    let count_max = query.list_count()?;
    let is_shown = |group: &str| http.broker.is_shown(&identity, ResourceKind::Group, group);
    let after = names.beginning(query.text("after").unwrap_or_default());
    let listed = http.broker.groups.list(&after, count_max, is_shown).await;
    let (groups, is_last) = listed.map_err(Error::from)?;
    let groups: Vec<Value> = groups.iter().map(|group| summary(group, &names)).collect();
    Ok(codec::json(StatusCode::OK, &json!({ "groups": groups, "is_last": is_last })))
}

fn summary(group: &GroupSummary, names: &Names) -> Value {
    json!({
        "group": names.outer(group.name.as_str()),
        "state": group.state.name(),
        "members": group.members,
        "partitions": group.offsets,
        "lag": group.lag,
    })
}

pub(super) async fn describe(
    State(http): State<Arc<Http>>,
    Topic(group): Topic,
    names: Names,
    uri: Uri,
) -> Result<Response> {
    Query::parse(&uri, &[])?;
    let group = http.broker.groups.describe(&GroupName::parse(&group)?).await.map_err(Error::from)?;
    Ok(codec::json(StatusCode::OK, &shown(&group, &names)))
}

fn shown(group: &GroupStatus, names: &Names) -> Value {
    let members = group.members.iter().map(|member| {
        json!({
            "member": member.id.as_str(),
            "instance": member.instance.as_ref().map(|instance| instance.as_str()),
            "client": member.client,
            "host": member.host,
            "state": member.state.name(),
        })
    });
    let partitions = group.partitions.iter().map(|of| {
        json!({
            "topic": names.outer(of.partition.topic.as_str()),
            "partition": of.partition.partition,
            "owner": of.owner.as_ref().map(|owner| owner.as_str()),
            "committed_offset": of.committed.as_ref().map(|committed| committed.offset),
            "start_offset": of.start,
            "end_offset": of.end,
            "lag": of.lag(),
        })
    });
    json!({
        "group": names.outer(group.name.as_str()),
        "state": group.state.name(),
        "members": members.collect::<Vec<_>>(),
        "partitions": partitions.collect::<Vec<_>>(),
    })
}

pub(super) async fn delete(State(http): State<Arc<Http>>, Topic(group): Topic, uri: Uri) -> Result<StatusCode> {
    Query::parse(&uri, &[])?;
    http.broker.groups.delete(&GroupName::parse(&group)?).await.map_err(Error::from)?;
    Ok(StatusCode::NO_CONTENT)
}

/// New position of a group.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResetIn {
    topic: String,
    /// Partitions to reset; all if empty.
    #[serde(default)]
    partitions: Vec<PartitionId>,
    /// `earliest`, `latest`, or `none` to delete the offsets.
    to: Option<String>,
    offset: Option<Offset>,
    timestamp_ms: Option<i64>,
    /// `true` if the new offsets are only returned and not committed.
    #[serde(default)]
    dry_run: bool,
}

impl ResetIn {
    fn to(&self) -> Result<ResetTo> {
        match (self.to.as_deref(), self.offset, self.timestamp_ms) {
            (Some("earliest"), None, None) => Ok(ResetTo::Start(Start::Earliest)),
            (Some("latest"), None, None) => Ok(ResetTo::Start(Start::Live)),
            (Some("none"), None, None) => Ok(ResetTo::Forget),
            (Some(other), None, None) => {
                Err(Error::invalid(format!("to is earliest, latest or none, not '{other}'")).into())
            }
            (None, Some(offset), None) => Ok(ResetTo::Start(Start::Offset(offset))),
            (None, None, Some(timestamp_ms)) => Ok(ResetTo::Start(Start::Time(timestamp_ms))),
            _ => Err(Error::invalid("set one of to, offset and timestamp_ms").into()),
        }
    }
}

pub(super) async fn reset(
    State(http): State<Arc<Http>>,
    Extension(identity): Extension<Arc<Identity>>,
    Topic(group): Topic,
    names: Names,
    request: Request,
) -> Result<Response> {
    Query::parse(request.uri(), &[])?;
    let wanted: ResetIn = codec::whole_json(&http.bodies, request).await?;
    let topic = names.inner(&wanted.topic);
    http.broker.security.authorize(&identity, Operation::Read, &Resource::topic(&topic))?;
    let group = GroupName::parse(&group)?;
    let to = wanted.to()?;
    let reset = http.broker.groups.reset_offsets(&group, &topic, &wanted.partitions, &to, wanted.dry_run).await;
    let offsets = reset
        .map_err(Error::from)?
        .into_iter()
        .map(|(partition, offset)| json!({ "partition": partition, "offset": offset }));
    let offsets: Vec<Value> = offsets.collect();
    Ok(codec::json(StatusCode::OK, &json!({ "topic": wanted.topic, "offsets": offsets })))
}
