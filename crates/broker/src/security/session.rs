//! A session of a browser: for how long it is valid, and whether it is in use.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use engine::limits::{WEB_SESSION_IDLE_MS, WEB_SESSION_MS_MAX};

use crate::clock::Clock;

/// Multiple to which the end of a session is rounded down, so that the times at which sessions end are few.
const END_ROUNDED_MS: u64 = 60_000;

/// Validity of a session. All identities that act in it share it.
#[derive(Debug)]
pub(super) struct Session {
    /// Time from which it is over, in ms since 1970, however much it is used.
    ends_ms: u64,
    /// `true` once it was ended early.
    is_ended: AtomicBool,
    /// Number of requests and streams in progress.
    uses: AtomicUsize,
    /// Time of the last use, in ms since 1970. A use in progress updates it when it ends.
    used_ms: AtomicU64,
}

impl Session {
    pub(super) fn new(now_ms: u64) -> Self {
        let ends_ms = now_ms.saturating_add(WEB_SESSION_MS_MAX) / END_ROUNDED_MS * END_ROUNDED_MS;
        Self { ends_ms, is_ended: AtomicBool::new(false), uses: AtomicUsize::new(0), used_ms: AtomicU64::new(now_ms) }
    }

    pub(super) fn ends_ms(&self) -> u64 {
        self.ends_ms
    }

    /// Returns `true` unless the session was ended or is too old.
    pub(super) fn is_valid(&self, now_ms: u64) -> bool {
        !self.is_ended.load(Ordering::Acquire) && now_ms < self.ends_ms
    }

    /// Returns `true` if nothing has used the session for too long.
    pub(super) fn is_idle(&self, now_ms: u64) -> bool {
        !self.is_in_use() && now_ms.saturating_sub(self.used_ms()) >= WEB_SESSION_IDLE_MS
    }

    pub(super) fn is_in_use(&self) -> bool {
        self.uses.load(Ordering::Acquire) > 0
    }

    pub(super) fn used_ms(&self) -> u64 {
        self.used_ms.load(Ordering::Acquire)
    }

    pub(super) fn end(&self) {
        self.is_ended.store(true, Ordering::Release);
    }
}

/// Use of a session, by a request or by a stream that continues after it. Dropping it ends the use.
#[derive(Debug)]
pub(super) struct SessionUse {
    session: Arc<Session>,
    clock: Clock,
}

impl SessionUse {
    pub(super) fn begin(session: Arc<Session>, clock: Clock) -> Self {
        session.used_ms.store(clock.now_ms(), Ordering::Release);
        session.uses.fetch_add(1, Ordering::AcqRel);
        Self { session, clock }
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }
}

impl Drop for SessionUse {
    fn drop(&mut self) {
        self.session.used_ms.store(self.clock.now_ms(), Ordering::Release);
        self.session.uses.fetch_sub(1, Ordering::AcqRel);
    }
}
