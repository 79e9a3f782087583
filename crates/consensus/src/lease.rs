//! The lease of a leader: a time until which no other node serves the shard.
//!
//! The leader counts from the time at which it *sent* a heartbeat that enough voters answered. A voter that has voted
//! for a later leader does not answer, and every later leader has the vote of one that answered: so the heartbeat was
//! sent before that leader's election. A new leader therefore waits for the length of a lease, from its election,
//! before it serves. Neither restarts nor early elections shorten a lease, and no node has to refuse its vote.
//! Clocks need not agree; their rates may differ by [`DRIFT_MAX`].

use std::collections::BTreeMap;

use crate::values::{Members, NodeId, Time};

/// Maximum difference between the rate of a node's clock and the true one, in percent.
pub(crate) const DRIFT_MAX: u64 = 10;

/// Returns the time for which a new leader waits before it serves: a lease of the leader before, by a slow clock,
/// measured by a fast one.
pub(crate) fn wait_after(lease: Time) -> Time {
    let slowest_by_fastest = (100 + DRIFT_MAX) * 100;
    lease.saturating_mul(slowest_by_fastest).div_ceil((100 - DRIFT_MAX) * 100)
}

/// Answers of voters to the heartbeats of one leadership.
#[derive(Default)]
pub(crate) struct Lease {
    /// Time at which the newest heartbeat that each voter answered was sent.
    answered: BTreeMap<NodeId, Time>,
    /// `true` once another node was asked to lead: it does not wait.
    is_given_up: bool,
}

impl Lease {
    pub fn answer(&mut self, node: NodeId, sent: Time) {
        let newest = self.answered.entry(node).or_insert(sent);
        *newest = sent.max(*newest);
    }

    pub fn give_up(&mut self) {
        self.is_given_up = true;
    }

    pub fn is_given_up(&self) -> bool {
        self.is_given_up
    }

    /// Returns the end of the lease of node `own`, if it has one.
    pub fn until(&self, own: NodeId, members: &Members, length: Time) -> Option<Time> {
        if self.is_given_up || !members.voters.contains(&own) {
            return None;
        }
        let sent = |node: NodeId| if node == own { Some(Time::MAX) } else { self.answered.get(&node).copied() };
        let mut times: Vec<Time> = members.voters.iter().chain(&members.outgoing).copied().filter_map(sent).collect();
        times.sort_unstable_by(|a, b| b.cmp(a));
        let decides = |time: &Time| members.is_decided(|node| sent(node).is_some_and(|sent| sent >= *time));
        times.into_iter().find(decides).map(|sent| sent.saturating_add(length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(answered: &[(NodeId, Time)]) -> Lease {
        Lease { answered: answered.iter().copied().collect(), is_given_up: false }
    }

    #[test]
    fn a_majority_counts_from_the_sending_of_its_oldest_answer() {
        let three = Members::of_voters([1, 2, 3]);
        assert_eq!(lease(&[]).until(1, &three, 10), None);
        assert_eq!(lease(&[(2, 100)]).until(1, &three, 10), Some(110));
        assert_eq!(lease(&[(2, 100), (3, 105)]).until(1, &three, 10), Some(115));
        let five = Members::of_voters(1..=5);
        assert_eq!(lease(&[(2, 100)]).until(1, &five, 10), None);
        assert_eq!(lease(&[(2, 100), (3, 105), (4, 200)]).until(1, &five, 10), Some(115));
        assert_eq!(lease(&[(4, 100)]).until(1, &three, 10), None, "not a voter");
        assert_eq!(lease(&[]).until(1, &Members::of_voters([1]), 10), Some(Time::MAX), "alone");
    }

    #[test]
    fn both_halves_of_a_joint_configuration_have_to_answer() {
        let joint = Members { outgoing: [1, 4, 5].into(), ..Members::of_voters([1, 2, 3]) };
        assert_eq!(lease(&[(2, 100), (3, 100)]).until(1, &joint, 10), None);
        assert_eq!(lease(&[(2, 100), (4, 90)]).until(1, &joint, 10), Some(100));
    }

    #[test]
    fn answers_never_go_back_and_a_lease_can_be_given_up() {
        let three = Members::of_voters([1, 2, 3]);
        let mut lease = lease(&[(2, 100)]);
        lease.answer(2, 50);
        assert_eq!(lease.until(1, &three, 10), Some(110));
        assert_eq!(lease.until(4, &three, 10), None, "removed");
        lease.give_up();
        assert_eq!(lease.until(1, &three, 10), None);
    }

    #[test]
    fn the_wait_covers_a_slow_clock_measured_by_a_fast_one() {
        assert_eq!(wait_after(900), 1100);
        assert_eq!(wait_after(Time::MAX), Time::MAX.div_ceil(9000));
    }
}
