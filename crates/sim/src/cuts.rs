//! Links that are cut between nodes.

use consensus::{Random, Time};

/// Time until which the link between each pair of nodes is cut, by sender and receiver.
pub(crate) struct Cuts<const NODES: usize>([[Time; NODES]; NODES]);

impl<const NODES: usize> Cuts<NODES> {
    pub fn none() -> Self {
        Self([[0; NODES]; NODES])
    }

    pub fn is_cut(&self, from: usize, to: usize, now: Time) -> bool {
        self.0[from][to] > now
    }

    /// Cuts links until a time: of one node, in one direction or both, or between two groups of nodes.
    pub fn cut(&mut self, at: usize, until: Time, random: &mut Random) {
        let side = random.number();
        let kind = random.below(3);
        for (from, links) in self.0.iter_mut().enumerate() {
            for (to, link) in links.iter_mut().enumerate() {
                let is_cut = match kind {
                    0 => from == at,
                    1 => from == at || to == at,
                    _ => (side >> from ^ side >> to) & 1 == 1,
                };
                if is_cut {
                    *link = until;
                }
            }
        }
    }
}
