//! State of a cluster, as its leader reports it to operators, and tokens with which nodes join.

use std::fmt;

use zeroize::Zeroizing;

use crate::error::{Error, Result};

/// Maximum minutes for which a token is valid: a week.
pub const TOKEN_MINUTES_MAX: u32 = 7 * 24 * 60;
/// Minutes for which a token is valid by default.
pub const TOKEN_MINUTES: u32 = 60;

/// State of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterStatus {
    /// Id of the cluster, in hexadecimal.
    pub cluster: String,
    /// Node that reports this.
    pub node: u64,
    /// Node that leads, if it is known.
    pub leader: Option<u64>,
    /// Term of the newest election.
    pub term: u64,
    /// Index of the last entry of the log that a majority has on disk.
    pub committed: u64,
    /// Index of the last entry that the store of this node includes.
    pub applied: u64,
    /// Number of times that this node was elected since it started.
    pub elections: u64,
    /// Bytes of records that wait for a majority.
    pub waiting_bytes: u64,
    /// Number of times that this node fetched the state, because the log no longer had what it missed.
    pub catch_ups: u64,
    /// Bytes of records that this node sent to others that fetched the state.
    pub caught_up_bytes: u64,
    /// Version of the log's rows that every node can read.
    pub format: u32,
    /// Nodes in the order of their numbers.
    pub nodes: Vec<NodeStatus>,
}

/// State of a node of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeStatus {
    /// Number of the node.
    pub node: u64,
    /// Address at which other nodes reach it.
    pub address: String,
    /// Version of its program; empty if it never ran.
    pub program: String,
    /// Doors by their keys, each with the address for its clients.
    pub doors: Vec<(String, String)>,
    pub is_leader: bool,
    /// `true` if it votes; otherwise it only follows.
    pub is_voter: bool,
    /// `true` if it was heard in the last second.
    pub is_alive: bool,
    /// `true` while it fetches the state.
    pub is_catching_up: bool,
    /// `true` if it was removed and still votes or follows, for the moments until the others agree on that.
    pub is_leaving: bool,
    /// Entries of the log that it does not have on disk yet, as the leader knows it.
    pub behind: u64,
    /// Time since it was heard, in ms; `None` if the leader never heard it.
    pub silent_ms: Option<u64>,
}

impl ClusterStatus {
    /// Returns a node of the cluster.
    pub fn known(&self, node: u64) -> Result<&NodeStatus> {
        self.nodes.iter().find(|of| of.node == node).ok_or_else(|| {
            let known: Vec<String> = self.nodes.iter().map(|of| of.node.to_string()).collect();
            Error::not_found(format!("the cluster has no node {node}: its nodes are {}", known.join(", ")))
        })
    }

    /// Returns the error of a removal after which no majority of the voters would answer, if it is one.
    pub fn check_removal(&self, node: u64) -> Result<()> {
        let removed = self.known(node)?;
        if let Some(leaving) = self.nodes.iter().find(|of| of.is_leaving) {
            // Its vote is still needed.
            return Err(Error::busy(format!("node {} is leaving: try again when it has left", leaving.node)));
        }
        if self.nodes.len() == 1 {
            let message = format!("node {node} at {} is the only one of the cluster: it cannot leave", removed.address);
            return Err(Error::invalid(message));
        }
        let voters: Vec<&NodeStatus> = self.nodes.iter().filter(|of| of.is_voter && of.node != node).collect();
        let silent: Vec<String> = voters.iter().filter(|of| !of.is_alive).map(|of| of.node.to_string()).collect();
        if removed.is_voter && (voters.len() - silent.len()) * 2 <= voters.len() {
            let (left, silent) = (voters.len(), silent.join(", "));
            let rest =
                if left == 0 { "no other node votes yet".to_owned() } else { format!("node {silent} is silent") };
            return Err(Error::invalid(format!(
                "without node {node} the cluster would have no majority, because {rest}: wait for it, replace it \
                 first, or add a node"
            )));
        }
        Ok(())
    }

    /// Returns the error of a transfer of the leadership to a node that cannot lead, if it is one.
    pub fn check_transfer(&self, to: u64) -> Result<()> {
        let of = self.known(to)?;
        let why = if of.is_leader {
            return Ok(());
        } else if !of.is_voter {
            "has no vote yet"
        } else if !of.is_alive {
            "does not answer"
        } else if of.is_catching_up {
            "is catching up"
        } else if of.is_leaving {
            "is leaving"
        } else {
            return Ok(());
        };
        Err(Error::busy(format!("node {to} {why}: choose another one that votes and answers, or try again later")))
    }

    /// Returns the node that is best prepared to lead in place of the current leader.
    pub fn successor(&self) -> Option<u64> {
        let can_lead =
            |of: &&NodeStatus| of.is_voter && of.is_alive && !of.is_catching_up && !of.is_leaving && !of.is_leader;
        self.nodes.iter().filter(can_lead).min_by_key(|of| of.behind).map(|of| of.node)
    }
}

/// Token with which one node can join. `Debug` does not print it, and it is cleared from memory when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken(Zeroizing<String>);

impl JoinToken {
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("...")
    }
}

/// Returns the error of a token that would be valid for another time than is allowed, if it is one.
pub fn check_minutes(minutes: u32) -> Result<()> {
    if (1..=TOKEN_MINUTES_MAX).contains(&minutes) {
        return Ok(());
    }
    Err(Error::invalid(format!("a token is valid for 1 to {TOKEN_MINUTES_MAX} minutes, not {minutes}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    /// Returns a cluster whose node 1 leads. Nodes of `silent` do not answer, and node 4 has no vote.
    fn cluster(nodes: u64, silent: &[u64]) -> ClusterStatus {
        let node = |node| NodeStatus {
            node,
            is_leader: node == 1,
            is_voter: node != 4,
            is_alive: !silent.contains(&node),
            behind: 10 - node,
            silent_ms: Some(0),
            ..NodeStatus::default()
        };
        ClusterStatus { leader: Some(1), nodes: (1..=nodes).map(node).collect(), ..ClusterStatus::default() }
    }

    #[test]
    fn a_removal_leaves_a_majority() {
        let removed =
            |nodes, silent: &[u64], node| cluster(nodes, silent).check_removal(node).map_err(|error| error.kind);
        assert_eq!(removed(3, &[], 3), Ok(()));
        assert_eq!(removed(3, &[3], 3), Ok(()), "the silent one");
        assert_eq!(removed(3, &[3], 2), Err(ErrorKind::Invalid), "node 3 is needed");
        assert_eq!(removed(4, &[], 4), Ok(()), "it has no vote");
        assert_eq!(removed(2, &[], 1), Ok(()), "the leader");
        assert_eq!(removed(1, &[], 1), Err(ErrorKind::Invalid), "the only one");
        assert_eq!(removed(3, &[], 7), Err(ErrorKind::NotFound));
        let mut leaving = cluster(3, &[]);
        leaving.nodes[1].is_leaving = true;
        assert_eq!(leaving.check_removal(3).map_err(|error| error.kind), Err(ErrorKind::Busy), "one after the other");
    }

    #[test]
    fn the_leadership_goes_to_a_voter_that_answers() {
        let passed = |silent: &[u64], to| cluster(4, silent).check_transfer(to).map_err(|error| error.kind);
        assert_eq!((passed(&[], 2), passed(&[], 1)), (Ok(()), Ok(())));
        assert_eq!((passed(&[2], 2), passed(&[], 4)), (Err(ErrorKind::Busy), Err(ErrorKind::Busy)));
        assert_eq!(passed(&[], 9), Err(ErrorKind::NotFound));
        assert_eq!(cluster(4, &[]).successor(), Some(3), "it is less behind than node 2");
        assert_eq!(cluster(4, &[3]).successor(), Some(2));
        assert_eq!(cluster(4, &[2, 3]).successor(), None);
    }

    #[test]
    fn a_token_is_valid_for_a_week_at_most_and_is_not_printed() {
        assert!(check_minutes(1).is_ok() && check_minutes(TOKEN_MINUTES_MAX).is_ok());
        assert!(check_minutes(0).is_err() && check_minutes(TOKEN_MINUTES_MAX + 1).is_err());
        assert_eq!(format!("{:?}", JoinToken::new("secret".into())), "...");
    }
}
