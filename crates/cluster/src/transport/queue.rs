//! Queue of the parts for one peer, on one lane.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::link::{FRAME_BYTES_MAX, Part};

/// Maximum bytes of waiting parts with entries, for one peer. One message that is larger is possible if nothing else
/// waits.
pub const QUEUE_BYTES_MAX: usize = 64 << 20;
/// Maximum bytes of waiting parts without entries, for one peer.
pub const BEATS_BYTES_MAX: usize = 1 << 20;
/// Bytes up to which waiting parts become one frame: the receiver works on one frame while the next one travels.
const GATHERED_BYTES_MAX: usize = 1 << 20;
/// Bytes that a waiting part costs beside its encoding.
const PART_OVERHEAD_BYTES: usize = 128;

/// Messages that share a connection, and keep their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    Beats = 0,
    Entries = 1,
}

impl Lane {
    pub const ALL: [Self; 2] = [Self::Beats, Self::Entries];

    /// Returns the lane of a part. All appends are on one lane, even empty ones: a follower refuses an append that
    /// arrives before those that precede it, and the leader would send them all again.
    pub fn of(part: &Part) -> Self {
        use consensus::Kind;
        match part.message.kind {
            Kind::Append { .. } | Kind::Install(_) => Self::Entries,
            Kind::Appended { .. }
            | Kind::Vote { .. }
            | Kind::Voted { .. }
            | Kind::Beat { .. }
            | Kind::BeatAnswer { .. }
            | Kind::Lead => Self::Beats,
        }
    }

    fn bytes_max(self) -> usize {
        match self {
            Self::Beats => BEATS_BYTES_MAX,
            Self::Entries => QUEUE_BYTES_MAX,
        }
    }
}

/// Queue of one lane, bounded in bytes. Parts beyond the limit are dropped: the consensus sends again.
pub(super) struct Queue {
    lane: Lane,
    state: Mutex<State>,
    /// Wakes the task that writes.
    pub ready: Notify,
}

#[derive(Default)]
struct State {
    /// `false` while the peer is not connected: then parts are dropped.
    is_open: bool,
    /// Increases with each opening, so that bytes of a former connection are not subtracted twice.
    opening: u64,
    parts: VecDeque<(usize, Part)>,
    /// Bytes of the parts, and of those that are being written.
    bytes: usize,
}

/// Parts of one frame, that are being written.
pub(super) struct Taken {
    pub parts: Vec<Part>,
    bytes: usize,
    opening: u64,
}

impl Queue {
    pub fn new(lane: Lane) -> Self {
        Self { lane, state: Mutex::default(), ready: Notify::new() }
    }

    pub fn open(&self) {
        let mut state = self.state.lock();
        *state = State { is_open: true, opening: state.opening + 1, ..State::default() };
    }

    /// Drops what waits, and what comes until the next opening.
    pub fn close(&self) {
        let mut state = self.state.lock();
        *state = State { opening: state.opening, ..State::default() };
    }

    pub fn lane(&self) -> Lane {
        self.lane
    }

    /// Adds a part, or says why it was dropped. The caller has it written.
    pub fn push(&self, part: Part) -> Result<(), Dropped> {
        let bytes = part.encoded_bytes();
        if bytes > FRAME_BYTES_MAX {
            return Err(Dropped::TooLarge(bytes));
        }
        self.state.lock().push(self.lane, bytes, part)
    }

    /// Takes the parts of the next frame; none if nothing waits.
    pub fn take(&self) -> Taken {
        let mut state = self.state.lock();
        let mut taken = Taken { parts: Vec::new(), bytes: 0, opening: state.opening };
        while let Some((bytes, _part)) = state.parts.front() {
            if !taken.parts.is_empty() && taken.bytes + bytes > GATHERED_BYTES_MAX {
                break;
            }
            if let Some((bytes, part)) = state.parts.pop_front() {
                taken.bytes += bytes;
                taken.parts.push(part);
            }
        }
        taken
    }

    /// Notes that a frame was written.
    pub fn written(&self, taken: (usize, u64)) {
        let mut state = self.state.lock();
        if state.opening == taken.1 {
            state.bytes = state.bytes.saturating_sub(taken.0);
        }
    }

    pub fn bytes(&self) -> usize {
        self.state.lock().bytes
    }

    /// Returns `true` if no part waits to be taken.
    pub fn is_empty(&self) -> bool {
        self.state.lock().parts.is_empty()
    }
}

impl Taken {
    /// Returns what [`Queue::written`] needs.
    pub fn size(&self) -> (usize, u64) {
        (self.bytes, self.opening)
    }
}

/// Reason why a part was dropped.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Dropped {
    NotConnected,
    Full,
    /// A part of this many bytes is larger than a frame.
    TooLarge(usize),
}

impl State {
    /// Adds a part if there is room, or if nothing waits.
    fn push(&mut self, lane: Lane, encoded_bytes: usize, part: Part) -> Result<(), Dropped> {
        let bytes = encoded_bytes + PART_OVERHEAD_BYTES;
        if !self.is_open {
            return Err(Dropped::NotConnected);
        }
        if self.bytes > 0 && self.bytes + bytes > lane.bytes_max() {
            return Err(Dropped::Full);
        }
        self.bytes += bytes;
        self.parts.push_back((bytes, part));
        Ok(())
    }
}
