//! The administrator's token of the cluster, in the file of this node's user: the leader's broker creates it, and the
//! other nodes fetch it over their connections. So the command line on the machine of any node administers the cluster,
//! whichever node leads.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use cluster::node::{AdminToken, Node};
use consensus::{NodeId, Term};

use crate::admin_token::AdminTokenFile;

/// Time after which the token and the addresses are looked at again.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Keeps the file of the node whose native door has this address.
pub(super) async fn keep_token(node: Arc<Node>, native: SocketAddr) {
    let (mut own, mut stance) = node.watch();
    let mut known: Option<(Term, NodeId, AdminToken)> = None;
    let mut written: (_, Option<AdminTokenFile>) = (None, None);
    loop {
        let own_token = own.borrow_and_update().clone();
        let now = *stance.borrow_and_update();
        match (now.leader, own_token) {
            (Some(leader), Some(token)) if leader == node.own() => known = Some((now.term, leader, token)),
            (Some(leader), _) if leader != node.own() && !is_of(&known, now.term, leader) => {
                match node.fetch_admin_token(leader).await {
                    Ok(token) => known = Some((now.term, leader, token)),
                    Err(error) => tracing::debug!(%error, leader, "the administrator's token is not known yet"),
                }
            }
            _ => {}
        }
        let token = known.as_ref().and_then(|(_, _, token)| token.clone());
        let wanted = token.map(|token| (token, native_doors(&node)));
        if wanted != written.0 {
            // Dropping the handle of the old file removes it, unless it was replaced.
            let file = wanted.as_ref().and_then(|(token, elsewhere)| write(native, token, elsewhere));
            tracing::debug!(is_written = file.is_some(), "the administrator's token has changed");
            written = (wanted, file);
        }
        tokio::select! {
            _changed = own.changed() => {}
            _changed = stance.changed() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

fn write(native: SocketAddr, token: &str, elsewhere: &[String]) -> Option<AdminTokenFile> {
    AdminTokenFile::create(native, token, elsewhere).map(Some).unwrap_or_else(|error| {
        tracing::warn!(
            %error,
            "cannot write the administrator's token: the command line on this machine has to log in as a user"
        );
        None
    })
}

fn is_of(known: &Option<(Term, NodeId, AdminToken)>, term: Term, leader: NodeId) -> bool {
    known.as_ref().is_some_and(|(of_term, of_leader, _)| (*of_term, *of_leader) == (term, leader))
}

/// Returns the addresses at which clients reach the native doors of all nodes: as each names it, and with the name
/// under which the other nodes reach it.
fn native_doors(node: &Node) -> Vec<String> {
    let nodes = node.status().nodes;
    let doors = nodes.iter().filter_map(|of| Some((of.doors.get("native")?, &of.address)));
    let mut addresses: Vec<String> = doors
        .flat_map(|(native, cluster)| {
            let port = native.rsplit_once(':').map_or("", |(_, port)| port);
            let host = cluster.rsplit_once(':').map_or("", |(host, _)| host);
            [native.clone(), format!("{host}:{port}")]
        })
        .collect();
    addresses.sort();
    addresses.dedup();
    addresses
}
