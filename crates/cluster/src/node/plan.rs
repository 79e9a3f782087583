//! Steps of the leader, so that the members of the shard are the nodes of the roster.

use consensus::{Index, Members, NodeId, Peer};

use crate::roster::Roster;

/// Maximum number of nodes that vote. Others have the log and no vote.
pub const VOTERS_MAX: usize = 7;
/// Entries that a node may be behind when it gets its vote.
const CLOSE_ENTRIES: Index = 256;

/// Next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    AddLearner(NodeId),
    Promote(NodeId),
    Remove(NodeId),
    /// This leader has left the cluster: another node has to lead.
    HandOver(NodeId),
}

/// State of the shard, as its leader knows it.
#[derive(Clone, Copy, Debug)]
pub struct View<'v> {
    pub own: NodeId,
    pub roster: &'v Roster,
    pub members: &'v Members,
    pub peers: &'v [Peer],
    pub last: Index,
}

/// Returns the next step, if the members are not those of the roster.
pub fn plan(view: View<'_>) -> Option<Act> {
    if !view.members.outgoing.is_empty() {
        // A change is in progress.
        return None;
    }
    let has_left = |node: NodeId| view.roster.nodes.get(&node).is_some_and(|member| member.is_removed);
    let all = || view.members.voters.iter().chain(&view.members.learners).copied();
    if let Some(gone) = all().find(|node| has_left(*node) && *node != view.own) {
        return Some(Act::Remove(gone));
    }
    // Without another voter, it has to make one first.
    if let Some(to) = successor(view).filter(|_| has_left(view.own)) {
        return Some(Act::HandOver(to));
    }
    let present = view.roster.nodes.iter().filter(|(_, member)| !member.is_removed).map(|(node, _)| *node);
    if let Some(new) = present.into_iter().find(|node| !view.members.contains(*node)) {
        return Some(Act::AddLearner(new));
    }
    let is_close = |peer: &&Peer| {
        view.members.learners.contains(&peer.node)
            && peer.is_active
            && !peer.is_installing
            && peer.matched + CLOSE_ENTRIES >= view.last
    };
    let may_vote = view.members.voters.len() < VOTERS_MAX;
    view.peers.iter().find(is_close).filter(|_| may_vote).map(|peer| Act::Promote(peer.node))
}

/// Returns the voter that is best prepared to lead next.
pub fn successor(view: View<'_>) -> Option<NodeId> {
    let has_left = |node: NodeId| view.roster.nodes.get(&node).is_some_and(|member| member.is_removed);
    let can_lead = |peer: &&Peer| {
        view.members.voters.contains(&peer.node) && peer.is_active && !peer.is_installing && !has_left(peer.node)
    };
    view.peers.iter().filter(can_lead).max_by_key(|peer| peer.matched).map(|peer| peer.node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roster::RosterChange;

    fn roster(nodes: &[NodeId], removed: &[NodeId]) -> Roster {
        let mut roster = Roster::default();
        for node in nodes.iter().chain(removed) {
            roster.apply(&RosterChange::Describe { node: *node, member: Default::default() });
        }
        removed.iter().for_each(|node| roster.apply(&RosterChange::Remove { node: *node }));
        roster
    }

    fn peer(node: NodeId, matched: Index) -> Peer {
        Peer { node, matched, is_active: true, is_installing: false }
    }

    fn act(roster: &Roster, members: &Members, peers: &[Peer]) -> Option<Act> {
        plan(View { own: 1, roster, members, peers, last: 1000 })
    }

    #[test]
    fn a_node_of_the_roster_becomes_a_learner_and_then_a_voter() {
        let roster = roster(&[1, 2], &[]);
        let alone = Members::of_voters([1]);
        assert_eq!(act(&roster, &alone, &[]), Some(Act::AddLearner(2)));
        let learning = Members { learners: [2].into(), ..alone };
        assert_eq!(act(&roster, &learning, &[peer(2, 700)]), None, "far behind");
        assert_eq!(act(&roster, &learning, &[Peer { is_active: false, ..peer(2, 1000) }]), None);
        assert_eq!(act(&roster, &learning, &[Peer { is_installing: true, ..peer(2, 1000) }]), None);
        assert_eq!(act(&roster, &learning, &[peer(2, 900)]), Some(Act::Promote(2)));
        assert_eq!(act(&roster, &Members::of_voters([1, 2]), &[peer(2, 900)]), None);
    }

    #[test]
    fn a_node_that_left_is_removed_and_a_leader_hands_over_first() {
        let members = Members::of_voters([1, 2, 3]);
        let peers = [peer(2, 900), peer(3, 950)];
        assert_eq!(act(&roster(&[1, 2], &[3]), &members, &peers), Some(Act::Remove(3)));
        assert_eq!(act(&roster(&[2, 3], &[1]), &members, &peers), Some(Act::HandOver(3)));
        assert_eq!(act(&roster(&[2], &[1, 3]), &members, &peers), Some(Act::Remove(3)));
        assert_eq!(act(&roster(&[], &[1]), &Members::of_voters([1]), &[]), None, "the last one stays");
    }

    #[test]
    fn a_leader_that_left_as_the_only_voter_makes_another_one() {
        let alone = Members::of_voters([1]);
        assert_eq!(act(&roster(&[2], &[1]), &alone, &[]), Some(Act::AddLearner(2)));
        let learning = Members { learners: [2].into(), ..alone };
        assert_eq!(act(&roster(&[2], &[1]), &learning, &[peer(2, 900)]), Some(Act::Promote(2)));
        assert_eq!(act(&roster(&[2], &[1]), &Members::of_voters([1, 2]), &[peer(2, 900)]), Some(Act::HandOver(2)));
    }

    #[test]
    fn there_are_not_more_voters_than_are_useful_and_one_change_at_a_time() {
        let roster = roster(&[1, 2, 3, 4, 5, 6, 7, 8], &[]);
        let full = Members { learners: [8].into(), ..Members::of_voters(1..=7) };
        assert_eq!(act(&roster, &full, &[peer(8, 1000)]), None);
        let joint = Members { outgoing: [1].into(), ..Members::of_voters([1, 2]) };
        assert_eq!(act(&roster, &joint, &[]), None);
    }
}
