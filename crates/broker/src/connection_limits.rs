//! How many connections each door may have: as the broker was started, and what was changed since.

use parking_lot::Mutex;

/// Makes limits effective: of all connections of a door, and of one peer.
type Apply = Box<dyn Fn(u64, u64) + Send + Sync>;

/// Limits of connections, which doors hold and clients with the right to do so change.
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
    /// Adds a door with what the configuration says of all doors.
    pub fn open(&self, configured: (u64, u64), apply: impl Fn(u64, u64) + Send + Sync + 'static) {
        let mut state = self.state.lock();
        state.configured = configured;
        let (all, per_peer) = state.effective();
        apply(all, per_peer);
        state.doors.push(Box::new(apply));
    }

    /// Changes the limits of every door. `None` is what the configuration says. Connections that are open stay.
    pub fn set(&self, connections: Option<u64>, per_peer: Option<u64>) {
        let mut state = self.state.lock();
        state.set = (connections, per_peer);
        let (all, per_peer) = state.effective();
        state.doors.iter().for_each(|apply| apply(all, per_peer));
    }

    /// The limits of the configuration: of each door, and of one peer there.
    pub fn configured(&self) -> (u64, u64) {
        self.state.lock().configured
    }
}
