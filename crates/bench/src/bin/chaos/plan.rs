//! Faults of a round, which its seed determines.

use serde::Serialize;

/// Generator of pseudorandom numbers: SplitMix64.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a number less than `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}

/// Fault. Which nodes it concerns depends on which one leads then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    KillLeader,
    KillFollower,
    KillMajority,
    KillAll,
    /// The leader is stopped for longer than its lease, and goes on.
    PauseLeader,
    PauseFollower,
    /// SIGTERM and a start, of a node that does not lead.
    RestartFollower,
    /// SIGTERM and a start, of the leader.
    RestartLeader,
    /// The leader and the others do not hear each other; clients reach both sides.
    IsolateLeader,
    /// The leader does not hear the others, and they hear it.
    DeafLeader,
    /// Nobody hears the leader, not even the clients.
    MuteLeader,
    /// A tenth of all packets of all nodes is lost.
    Loss,
    FullDiskOfLeader,
    FullDiskOfFollower,
    /// A node joins while a follower is cut off, and the leader is killed.
    JoinDuringCut,
    /// That node leaves while a follower is cut off.
    LeaveDuringCut,
}

/// Faults that need nothing but processes.
const OF_PROCESSES: &[Fault] = &[
    Fault::KillLeader,
    Fault::KillLeader,
    Fault::KillFollower,
    Fault::KillMajority,
    Fault::KillAll,
    Fault::PauseLeader,
    Fault::PauseLeader,
    Fault::PauseFollower,
    Fault::RestartFollower,
    Fault::RestartLeader,
];

/// Faults that need network namespaces and file systems.
const OF_NETWORKS: &[Fault] = &[
    Fault::IsolateLeader,
    Fault::IsolateLeader,
    Fault::DeafLeader,
    Fault::MuteLeader,
    Fault::Loss,
    Fault::FullDiskOfLeader,
    Fault::FullDiskOfFollower,
    Fault::JoinDuringCut,
];

/// Fault with the time for which it holds, and the time without faults before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    pub fault: Fault,
    pub quiet_ms: u64,
    pub hold_ms: u64,
}

/// Endless faults of a round.
pub struct Plan {
    random: Random,
    can_cut: bool,
    /// Changes of the members that are left: a node joins and leaves once in a round.
    changes: &'static [Fault],
}

impl Plan {
    pub fn new(seed: u64, can_cut: bool) -> Self {
        let changes = &[Fault::JoinDuringCut, Fault::LeaveDuringCut];
        Self { random: Random::new(seed), can_cut, changes }
    }
}

impl Iterator for Plan {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let network = if self.can_cut { OF_NETWORKS } else { &[] };
        let fault = loop {
            let at = self.random.below((OF_PROCESSES.len() + network.len()) as u64) as usize;
            let fault = *OF_PROCESSES.get(at).unwrap_or_else(|| &network[at - OF_PROCESSES.len()]);
            if fault != Fault::JoinDuringCut {
                break fault;
            }
            if let Some((change, rest)) = self.changes.split_first() {
                self.changes = rest;
                break *change;
            }
        };
        let hold_ms = match fault {
            Fault::KillFollower | Fault::KillMajority | Fault::KillAll => self.random.below(3000),
            Fault::KillLeader | Fault::RestartFollower | Fault::RestartLeader => self.random.below(2500),
            _ => 1500 + self.random.below(4000),
        };
        Some(Step { fault, quiet_ms: 500 + self.random.below(1500), hold_ms })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_seed_has_its_faults() {
        let steps = |seed, can_cut| Plan::new(seed, can_cut).take(500).collect::<Vec<_>>();
        assert_eq!(steps(7, true), steps(7, true));
        assert_ne!(steps(7, true), steps(8, true));
        let kinds = |steps: &[Step]| steps.iter().map(|step| format!("{:?}", step.fault)).collect::<HashSet<_>>();
        assert_eq!(kinds(&steps(7, true)).len(), 16);
        assert_eq!(kinds(&steps(7, false)).len(), 8, "faults of processes only");
    }
}
