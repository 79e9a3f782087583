//! Admission of new nodes: tokens, and the decision of the leader.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use consensus::NodeId;
use engine::{Error, ErrorKind, Result};

use super::{Node, TICK};
use crate::join::{Admission, Candidate, Token};
use crate::roster::{NODES_MAX, RosterChange};

/// Maximum time that a new node waits for a leader.
const ADMISSION_WAIT: Duration = Duration::from_secs(4);

impl Node {
    /// Issues a token with which a new node can join until a time.
    pub fn issue_token(&self, expires: SystemTime) -> Result<Token> {
        let identity = &self.settings.identity;
        Token::issue(identity, &identity.advertise(), expires)
    }

    /// Admits a new node, if this one leads. Without a leader, it waits for one: the first node may just have started.
    pub(super) async fn admit(&self, candidate: Candidate) -> Result<Admission> {
        let until = Instant::now() + ADMISSION_WAIT;
        loop {
            match self.try_admit(candidate.clone()).await {
                Err(Error { kind: ErrorKind::Busy | ErrorKind::NotLeader, .. }) if Instant::now() < until => {
                    tokio::time::sleep(TICK).await;
                }
                decided => return decided,
            }
        }
    }

    async fn try_admit(&self, candidate: Candidate) -> Result<Admission> {
        let roster = self.shard.roster();
        match self.stance().leader {
            Some(leader) if leader == self.own => {}
            Some(leader) => {
                let known = roster.nodes.get(&leader).map(|member| member.address.clone());
                let known = known
                    .or_else(|| self.settings.identity.nodes().into_iter().find(|of| of.0 == leader).map(|of| of.1));
                let unknown =
                    || Error::busy(format!("node {leader} leads, and its address is not known yet; try again"));
                return Ok(Admission::NotLeader { address: known.ok_or_else(unknown)? });
            }
            None => return Err(Error::busy("the cluster has no leader at the moment; try again")),
        }
        roster.check_format(candidate.format)?;
        if roster.nodes.len() >= NODES_MAX {
            return Err(Error::too_large(format!("a cluster has at most {NODES_MAX} nodes, those that left included")));
        }
        let Candidate { token, expires, advertise, program, .. } = candidate;
        if let Some((node, _)) = roster.nodes.iter().find(|(_, of)| !of.is_removed && of.address == advertise) {
            return Err(Error::new(
                ErrorKind::AlreadyExists,
                format!(
                    "node {node} has the address {advertise}: give the new node another one, or remove node {node}"
                ),
            ));
        }
        // Node 1 is in the roster once it has described itself.
        let node = roster.next_node().max(self.own + 1);
        tracing::info!(node, address = advertise, program, "a node joins");
        let now_ms = (self.settings.wall_clock)();
        let change = RosterChange::Admit {
            node,
            address: advertise.clone(),
            token: token.0,
            expires_ms: expires.saturating_mul(1000),
            now_ms,
        };
        self.change_roster(&change).await?;
        self.changed.notify_one();
        let mut nodes: BTreeMap<NodeId, String> = self.settings.identity.nodes().into_iter().collect();
        nodes.insert(node, advertise);
        let seal_key = *self.seal_key;
        Ok(Admission::Admitted { node, nodes: nodes.into_iter().collect(), seal_key })
    }
}
