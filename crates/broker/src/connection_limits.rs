//! Limits on the connections of each door: the configured ones, and the changes made since startup.

use parking_lot::Mutex;

/// Function that applies limits to a door: on all its connections, and on those of one peer.
type Apply = Box<dyn Fn(u64, u64) + Send + Sync>;

/// Limits on connections, which doors apply and authorized clients change.
#[derive(Default)]
pub struct ConnectionLimits {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    configured: (u64, u64),
    set: (Option<u64>, Option<u64>),
    doors: Vec<Apply>,
}

impl State {
    fn effective(&self) -> (u64, u64) {
        (self.set.0.unwrap_or(self.configured.0), self.set.1.unwrap_or(self.configured.1))
    }
}

impl ConnectionLimits {
    /// Adds a door, with the limits that the configuration sets for all doors.
    pub fn open(&self, configured: (u64, u64), apply: impl Fn(u64, u64) + Send + Sync + 'static) {
        let mut state = self.state.lock();
        state.configured = configured;
        let (all, per_peer) = state.effective();
        apply(all, per_peer);
        state.doors.push(Box::new(apply));
    }

    /// Changes the limits of every door. `None` restores the configured limit. Open connections are not closed.
    pub fn set(&self, connections: Option<u64>, per_peer: Option<u64>) {
        let mut state = self.state.lock();
        state.set = (connections, per_peer);
        let (all, per_peer) = state.effective();
        state.doors.iter().for_each(|apply| apply(all, per_peer));
    }

    /// Returns the configured limits of each door: all its connections, and those of one peer.
    pub fn configured(&self) -> (u64, u64) {
        self.state.lock().configured
    }
}
