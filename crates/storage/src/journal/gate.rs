//! Gate between the journal and the segments.

use parking_lot::{Condvar, Mutex};

/// Gate that blocks the journal while committed batches cannot be written to their place fast enough: publishers then
/// wait for their acknowledgements, and send less.
#[derive(Default)]
pub(crate) struct Gate {
    state: Mutex<GateState>,
    opened: Condvar,
}

#[derive(Default)]
struct GateState {
    is_shut: bool,
    /// `true` if no thread is left that could open the gate.
    is_over: bool,
}

impl Gate {
    pub(crate) fn set_shut(&self, is_shut: bool) {
        self.state.lock().is_shut = is_shut;
        if !is_shut {
            self.opened.notify_all();
        }
    }

    pub(super) fn is_shut(&self) -> bool {
        self.state.lock().is_shut
    }

    pub(super) fn end(&self) {
        self.state.lock().is_over = true;
        self.opened.notify_all();
    }

    pub(super) fn pass(&self) {
        let mut state = self.state.lock();
        while state.is_shut && !state.is_over {
            self.opened.wait(&mut state);
        }
    }
}
