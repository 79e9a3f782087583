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

    /// Returns one of some values.
    pub fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
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
    /// Each node is killed and started again, twice, faster than the cluster recovers.
    KillInTurn,
    /// The leader is stopped for longer than its lease, and goes on.
    PauseLeader,
    PauseFollower,
    /// SIGTERM and a start, of a node that does not lead.
    RestartFollower,
    /// SIGTERM and a start, of all nodes that do not lead, one after the other.
    RestartFollowers,
    /// SIGTERM and a start, of the leader.
    RestartLeader,
    /// A node's directory is lost, and a new node replaces it.
    LostDirectory,
    /// One bit in a file of a node that does not run is wrong. The node has to refuse its start, or to be right.
    FlippedBit,
    /// The wall clock of a node steps by 10 s, in either direction.
    WrongClock,
    /// The leader and the others do not hear each other; clients reach both sides.
    IsolateLeader,
    /// The leader does not hear the others, and they hear it.
    DeafLeader,
    /// Nobody hears the leader, not even the clients.
    MuteLeader,
    /// A follower hears nobody, not even the clients.
    DeafFollower,
    /// The leader and a follower do not hear each other. All others hear both.
    Bridge,
    /// A follower does not hear the leader, again and again for a short time.
    FlappingCut,
    /// A node does not hear another one. Meanwhile the leader is killed and started again.
    KillDuringCut,
    /// A tenth of all packets of all nodes is lost.
    Loss,
    FullDiskOfLeader,
    FullDiskOfFollower,
    /// A node joins while a follower is cut off, and the leader is killed.
    JoinDuringCut,
    /// That node leaves while a follower is cut off.
    LeaveDuringCut,
    /// A node is lost and replaced while a follower is cut off for some of the time.
    ReplaceDuringCut,
}

/// Faults that need nothing but processes.
const OF_PROCESSES: &[Fault] = &[
    Fault::KillLeader,
    Fault::KillLeader,
    Fault::KillLeader,
    Fault::KillFollower,
    Fault::KillFollower,
    Fault::KillMajority,
    Fault::KillMajority,
    Fault::KillAll,
    Fault::KillAll,
    Fault::KillInTurn,
    Fault::KillInTurn,
    Fault::KillInTurn,
    Fault::PauseLeader,
    Fault::PauseFollower,
    Fault::RestartFollower,
    Fault::RestartFollowers,
    Fault::RestartLeader,
    Fault::LostDirectory,
    Fault::FlippedBit,
    Fault::FlippedBit,
];

/// Faults that need network namespaces and file systems.
const OF_NETWORKS: &[Fault] = &[
    Fault::IsolateLeader,
    Fault::IsolateLeader,
    Fault::DeafLeader,
    Fault::MuteLeader,
    Fault::DeafFollower,
    Fault::Bridge,
    Fault::FlappingCut,
    Fault::FlappingCut,
    Fault::KillDuringCut,
    Fault::KillDuringCut,
    Fault::KillDuringCut,
    Fault::Loss,
    Fault::FullDiskOfLeader,
    Fault::FullDiskOfFollower,
    Fault::JoinDuringCut,
    Fault::JoinDuringCut,
    Fault::ReplaceDuringCut,
];

/// Faults that need a library in front of the system's.
const OF_CLOCKS: &[Fault] = &[Fault::WrongClock];

/// Times of the faults of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    Normal,
    /// A fault every two or three seconds: the next one begins soon after records are acknowledged again.
    Dense,
}

impl Pace {
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "normal" => Some(Self::Normal),
            "dense" => Some(Self::Dense),
            _ => None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Dense => "dense",
        }
    }

    /// Returns the seconds of faults of a round.
    pub fn round_seconds(self) -> u64 {
        match self {
            Self::Normal => 60,
            // Starts and checks of a cluster take half a minute.
            Self::Dense => 240,
        }
    }

    fn quiet_ms(self, random: &mut Random) -> u64 {
        match self {
            Self::Normal => 500 + random.below(1500),
            Self::Dense => random.below(400),
        }
    }

    fn hold_ms(self, fault: Fault, random: &mut Random) -> u64 {
        let of_kill = match fault {
            Fault::KillFollower | Fault::KillMajority | Fault::KillAll => Some(3000),
            Fault::KillLeader | Fault::RestartFollower | Fault::RestartFollowers | Fault::RestartLeader => Some(2500),
            Fault::KillInTurn | Fault::LostDirectory | Fault::FlippedBit | Fault::ReplaceDuringCut => Some(1),
            Fault::FullDiskOfLeader | Fault::FullDiskOfFollower => Some(1),
            _ => None,
        };
        match (self, of_kill) {
            (Self::Normal, Some(most)) => random.below(most),
            (Self::Normal, None) => 1500 + random.below(4000),
            (Self::Dense, Some(most)) => random.below(most.div_ceil(4)),
            (Self::Dense, None) => 300 + random.below(2200),
        }
    }
}

/// Fault with the time for which it holds, and the time without faults before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    pub fault: Fault,
    pub quiet_ms: u64,
    pub hold_ms: u64,
}

/// Means that a round has besides processes.
#[derive(Clone, Copy, Debug)]
pub struct Means {
    pub can_cut: bool,
    pub has_clocks: bool,
}

/// Endless faults of a round.
pub struct Plan {
    random: Random,
    pace: Pace,
    faults: Vec<Fault>,
    /// `true` if one more node than at the beginning is there.
    has_joined: bool,
}

impl Plan {
    pub fn new(seed: u64, pace: Pace, means: Means) -> Self {
        let mut faults = OF_PROCESSES.to_vec();
        faults.extend(means.can_cut.then_some(OF_NETWORKS).into_iter().flatten());
        faults.extend(means.has_clocks.then_some(OF_CLOCKS).into_iter().flatten());
        Self { random: Random::new(seed), pace, faults, has_joined: false }
    }
}

impl Iterator for Plan {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let mut fault = self.random.one_of(&self.faults);
        if fault == Fault::JoinDuringCut {
            // A node joins and leaves in turn.
            if self.has_joined {
                fault = Fault::LeaveDuringCut;
            }
            self.has_joined = !self.has_joined;
        }
        let hold_ms = self.pace.hold_ms(fault, &mut self.random);
        Some(Step { fault, quiet_ms: self.pace.quiet_ms(&mut self.random), hold_ms })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_seed_has_its_faults() {
        let steps = |seed, has_all| {
            let means = Means { can_cut: has_all, has_clocks: has_all };
            Plan::new(seed, Pace::Dense, means).take(1000).collect::<Vec<_>>()
        };
        assert_eq!(steps(7, true), steps(7, true));
        assert_ne!(steps(7, true), steps(8, true));
        let kinds = |steps: &[Step]| steps.iter().map(|step| format!("{:?}", step.fault)).collect::<HashSet<_>>();
        assert_eq!(kinds(&steps(7, true)).len(), 26);
        assert_eq!(kinds(&steps(7, false)).len(), 12, "faults of processes only");
    }

    #[test]
    fn nodes_join_and_leave_in_turn() {
        let plan = Plan::new(9, Pace::Normal, Means { can_cut: true, has_clocks: false }).take(500);
        let mut is_there = false;
        for step in plan {
            match step.fault {
                Fault::JoinDuringCut => assert!(!std::mem::replace(&mut is_there, true)),
                Fault::LeaveDuringCut => assert!(std::mem::replace(&mut is_there, false)),
                _ => {}
            }
        }
    }
}
