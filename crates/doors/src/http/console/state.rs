//! Pages about the broker as a whole.

use console::pages;
use console::pages::cluster::{Cluster, Node};
use console::pages::mesh::{Mesh, Site, Topic};
use console::shell::Page;
use engine::ErrorKind;
use engine::cluster::NodeStatus;
use engine::mesh::{MeshTopic, SiteName, SiteStatus};

use super::super::OPENAPI;
use super::super::errors::Result;
use super::{Visit, history};

pub(super) async fn overview(visit: Visit) -> Result<Page> {
    visit.query(&[])?;
    history::read(&visit.http, pages::overview::page).await
}

pub(super) async fn cluster(visit: Visit) -> Result<Page> {
    visit.query(&[])?;
    let status = or_reason(visit.http.broker.cluster())?;
    Ok(pages::cluster::page(&status.map(|status| Cluster {
        id: status.cluster,
        node: status.node,
        leader: status.leader,
        term: status.term,
        committed: status.committed,
        applied: status.applied,
        elections: status.elections,
        waiting_bytes: status.waiting_bytes,
        nodes: status.nodes.into_iter().map(node).collect(),
    })))
}

/// Returns the reason why the broker has no such state, and fails if it cannot tell now.
fn or_reason<T>(state: engine::Result<T>) -> Result<std::result::Result<T, String>> {
    match state {
        Ok(state) => Ok(Ok(state)),
        Err(error) if matches!(error.kind, ErrorKind::Unsupported | ErrorKind::NotFound) => Ok(Err(error.message)),
        Err(error) => Err(error.into()),
    }
}

fn node(of: NodeStatus) -> Node {
    let role = match (of.is_leader, of.is_voter) {
        (true, _) => "leader",
        (false, true) => "voter",
        (false, false) => "learner",
    };
    let remark = match (of.is_leaving, of.is_catching_up) {
        (true, _) => "is being removed",
        (false, true) => "fetches the state",
        (false, false) => "",
    };
    let NodeStatus { node, address, program, is_alive, behind, silent_ms, .. } = of;
    Node { node, address, program, role, is_alive, remark, behind, silent_ms }
}

pub(super) async fn mesh(visit: Visit) -> Result<Page> {
    visit.query(&[])?;
    let broker = &visit.http.broker;
    let mesh = broker.describe_mesh().and_then(|status| {
        Ok(Mesh {
            site: status.site.as_str().to_owned(),
            role: status.role.name(),
            address: status.address,
            isolated_ms: status.isolated_ms,
            sites: status.sites.into_iter().map(site).collect(),
            topics: broker.mesh_topics()?.iter().map(topic).collect(),
        })
    });
    Ok(pages::mesh::page(&or_reason(mesh)?))
}

fn site(of: SiteStatus) -> Site {
    Site {
        name: of.site.as_str().to_owned(),
        role: of.role.name(),
        link: of.link.name(),
        via: of.via.as_ref().map(|via| via.as_str().to_owned()),
        since_ms: of.since_ms,
        round_trip_us: of.round_trip_us,
        sent: of.sent_records,
        received: of.received_records,
        lost: of.lost_records,
        error: of.error,
    }
}

fn topic(of: &MeshTopic) -> Topic {
    let name = |site: &SiteName| site.as_str().to_owned();
    let copy = of.copy.as_ref();
    Topic {
        name: of.topic.as_str().to_owned(),
        mode: of.mode.name(),
        sites: copy.map_or_else(|| of.sites.iter().map(name).collect(), |copy| vec![name(&copy.origin)]),
        sent: of.sent_records,
        received: of.received_records,
        backlog: copy.and_then(|copy| copy.behind),
        error: copy.and_then(|copy| copy.error.clone()),
    }
}

pub(super) async fn settings(visit: Visit) -> Result<Page> {
    let query = visit.query(&["q"])?;
    Ok(pages::settings::page(&visit.http.shown_settings, query.text("q").unwrap_or_default()))
}

pub(super) async fn api(visit: Visit) -> Result<Page> {
    visit.query(&[])?;
    Ok(pages::api::page(OPENAPI))
}
