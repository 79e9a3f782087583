//! Table of the moves of messages out of queues.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::Mutex;

pub type RedriveId = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedriveState {
    Running,
    Completed,
    Cancelling,
    Cancelled,
    Failed,
}

/// State of a move of messages from one queue to another.
#[derive(Clone, Debug)]
pub struct Redrive {
    pub id: RedriveId,
    pub from: String,
    /// Target queue; if `None`, each message returns to the queue that it came from.
    pub to: Option<String>,
    pub rate: Option<u32>,
    pub started_ms: u64,
    pub state: RedriveState,
    pub moved: u64,
    /// Number of messages to move when the move began.
    pub to_move: u64,
    pub failure: Option<String>,
}

#[derive(Default)]
pub(super) struct Redrives {
    /// Moves that run or have ended, oldest first.
    pub(super) all: Mutex<VecDeque<Arc<Running>>>,
    pub(super) ids: AtomicU64,
}

pub(super) struct Running {
    pub(super) shown: Mutex<Redrive>,
    pub(super) is_cancelled: AtomicBool,
}
