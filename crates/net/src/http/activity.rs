//! Activity of a connection, and its deadlines.
//!
//! Requests and bytes only leave timestamps here. One timer of the connection checks them, so that a request needs no
//! separate timer.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::time::Instant;

/// Bytes that count as progress of a slow peer within a timeout. Fewer are a trickle that keeps a connection occupied.
pub(super) const PROGRESS_BYTES: usize = 1024;

/// Time limits of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeouts {
    pub header: Duration,
    pub idle: Duration,
    pub write: Duration,
    pub age: Option<Duration>,
    pub drain: Duration,
}

/// Event that is overdue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overdue {
    /// The head of a request.
    Head,
    /// The next request.
    Idle,
    /// The client reading its answer.
    Read,
    /// The end of a connection that has reached its maximum age.
    Age,
    /// The end of a connection that is being closed.
    End,
}

/// Phase of a connection's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    /// No new requests; those in progress have until this time, if there is a limit.
    Closing {
        until: Option<Instant>,
    },
}

/// Timestamps of a connection in milliseconds since its beginning, plus one: 0 means no time.
pub(super) struct Activity {
    began: Instant,
    is_http2: AtomicBool,
    /// Total number of requests.
    requests: AtomicU64,
    /// Requests whose answer is not completely passed on to the connection.
    in_flight: AtomicUsize,
    /// Answers of which a part was passed on and the next part is not requested yet.
    waiting: AtomicUsize,
    /// Time at which the last answer ended, or the client accepted more of it after that.
    idle_since: AtomicU64,
    /// Time at which the first byte of a head arrived (HTTP/1).
    head_since: AtomicU64,
    /// Time at which the socket stopped accepting bytes.
    blocked_since: AtomicU64,
    /// Time at which any answer last made progress, or the client accepted more of one.
    moved_at: AtomicU64,
    is_upgraded: AtomicBool,
    has_unread_body: AtomicBool,
    /// Waker of the task that watches the timer. With HTTP/2, requests end in separate tasks.
    task: AtomicWaker,
}

impl Default for Activity {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            is_http2: AtomicBool::new(false),
            requests: AtomicU64::new(0),
            in_flight: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            idle_since: AtomicU64::new(0),
            head_since: AtomicU64::new(0),
            blocked_since: AtomicU64::new(0),
            moved_at: AtomicU64::new(0),
            is_upgraded: AtomicBool::new(false),
            has_unread_body: AtomicBool::new(false),
            task: AtomicWaker::new(),
        }
    }
}

impl Activity {
    fn now(&self) -> u64 {
        1 + u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX - 1)
    }

    fn moment(&self, stamp: u64) -> Instant {
        self.began + Duration::from_millis(stamp.saturating_sub(1))
    }

    pub fn is_http2(&self) -> bool {
        self.is_http2.load(Ordering::Relaxed)
    }

    pub fn set_http2(&self) {
        self.is_http2.store(true, Ordering::Relaxed);
    }

    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Acquire)
    }

    pub fn is_idle(&self) -> bool {
        self.in_flight.load(Ordering::Acquire) == 0
    }

    /// Returns `true` if the head of a request has begun to arrive.
    pub fn has_begun_head(&self) -> bool {
        self.head_since.load(Ordering::Relaxed) != 0
    }

    pub fn is_upgraded(&self) -> bool {
        self.is_upgraded.load(Ordering::Acquire)
    }

    /// Records that the connection has switched to another protocol.
    pub fn set_upgraded(&self) {
        self.is_upgraded.store(true, Ordering::Release);
    }

    /// Returns `true` if a request was answered before its body was read completely.
    pub fn has_unread_body(&self) -> bool {
        self.has_unread_body.load(Ordering::Relaxed)
    }

    pub fn leave_body_unread(&self) {
        self.has_unread_body.store(true, Ordering::Relaxed);
    }

    pub fn request_begins(&self) {
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        self.requests.fetch_add(1, Ordering::AcqRel);
        self.head_since.store(0, Ordering::Relaxed);
    }

    pub fn request_ends(&self) {
        self.idle_since.store(self.now(), Ordering::Relaxed);
        let was_last = self.in_flight.fetch_sub(1, Ordering::AcqRel) == 1;
        if was_last && self.is_http2() {
            self.task.wake();
        }
    }

    /// Records that a part of an answer was passed on and the client has to accept it.
    pub fn answer_waits(&self) {
        self.moved_at.store(self.now(), Ordering::Relaxed);
        self.waiting.fetch_add(1, Ordering::AcqRel);
    }

    /// Records that the client has accepted that part.
    pub fn answer_moves(&self) {
        self.moved_at.store(self.now(), Ordering::Relaxed);
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }

    pub fn read(&self) {
        let is_head = !self.is_http2() && self.is_idle() && !self.has_begun_head();
        if is_head {
            self.head_since.store(self.now(), Ordering::Relaxed);
        }
    }

    /// Records that the client has accepted enough bytes to count as progress. Keep-alive frames of HTTP/2 are smaller.
    pub fn wrote(&self) {
        let now = self.now();
        self.moved_at.store(now, Ordering::Relaxed);
        self.idle_since.store(now, Ordering::Relaxed);
    }

    /// Records that the socket accepts no more bytes. Returns `true` if it was not blocked before.
    pub fn blocked(&self) -> bool {
        let is_new = self.blocked_since.load(Ordering::Relaxed) == 0;
        if is_new {
            self.blocked_since.store(self.now(), Ordering::Relaxed);
        }
        is_new
    }

    pub fn unblocked(&self) {
        if self.blocked_since.load(Ordering::Relaxed) != 0 {
            self.blocked_since.store(0, Ordering::Relaxed);
        }
    }

    /// Returns the next deadline and its event in the current state.
    fn due(&self, timeouts: &Timeouts, phase: Phase) -> Option<(Instant, Overdue)> {
        let mut due: Option<(Instant, Overdue)> = None;
        let mut add = |at: Instant, what| {
            if due.is_none_or(|(earliest, _)| at < earliest) {
                due = Some((at, what));
            }
        };
        let blocked_since = self.blocked_since.load(Ordering::Relaxed);
        let is_ending = matches!(phase, Phase::Closing { until: Some(_) });
        if self.requests() == 0 {
            add(self.began + timeouts.header, Overdue::Head);
        } else if self.is_idle() && blocked_since == 0 && !is_ending && !self.is_upgraded() {
            add(self.moment(self.idle_since.load(Ordering::Relaxed)) + timeouts.idle, Overdue::Idle);
        }
        let head_since = self.head_since.load(Ordering::Relaxed);
        if head_since != 0 && self.is_idle() {
            add(self.moment(head_since) + timeouts.header, Overdue::Head);
        }
        if blocked_since != 0 {
            add(self.moment(blocked_since) + timeouts.write, Overdue::Read);
        }
        if self.waiting.load(Ordering::Acquire) > 0 {
            add(self.moment(self.moved_at.load(Ordering::Relaxed)) + timeouts.write, Overdue::Read);
        }
        match (phase, timeouts.age) {
            (Phase::Closing { until: Some(until) }, _) => add(until, Overdue::End),
            (Phase::Open, Some(age)) => add(self.began + age, Overdue::Age),
            _ => {}
        }
        due
    }

    /// Returns once an event is overdue.
    pub async fn overdue(&self, timeouts: &Timeouts, phase: Phase) -> Overdue {
        let mut timer = pin!(tokio::time::sleep(Duration::ZERO));
        let mut is_armed = false;
        poll_fn(|cx| {
            self.task.register(cx.waker());
            loop {
                let Some((at, what)) = self.due(timeouts, phase) else {
                    return Poll::Pending;
                };
                if at <= Instant::now() {
                    return Poll::Ready(what);
                }
                // An earlier alarm is left as it is: usually the deadline moves before the alarm fires.
                if !is_armed || at < timer.deadline() {
                    timer.as_mut().reset(at);
                    is_armed = true;
                }
                if timer.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                is_armed = false;
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn timeouts() -> Timeouts {
        Timeouts { header: 5 * SECOND, idle: 60 * SECOND, write: 30 * SECOND, age: None, drain: 10 * SECOND }
    }

    /// Returns the event that becomes overdue next, and the number of seconds until then.
    async fn next(activity: &Activity, timeouts: &Timeouts, phase: Phase) -> Option<(u64, Overdue)> {
        let from = Instant::now();
        let what = tokio::time::timeout(1000 * SECOND, activity.overdue(timeouts, phase)).await.ok()?;
        Some(((Instant::now() - from).as_secs(), what))
    }

    #[tokio::test(start_paused = true)]
    async fn each_stage_has_its_own_time() {
        let activity = Activity::default();
        let timeouts = timeouts();
        let next = |phase| next(&activity, &timeouts, phase);
        assert_eq!(next(Phase::Open).await, Some((5, Overdue::Head)));
        activity.read();
        activity.request_begins();
        assert_eq!(next(Phase::Open).await, None, "a service may take its time");
        activity.answer_waits();
        tokio::time::advance(20 * SECOND).await;
        activity.wrote();
        assert_eq!(next(Phase::Open).await, Some((30, Overdue::Read)), "since the client last took something");
        activity.answer_moves();
        assert!(activity.blocked() && !activity.blocked());
        assert_eq!(next(Phase::Open).await, Some((30, Overdue::Read)));
        activity.request_ends();
        assert_eq!(next(Phase::Open).await, Some((0, Overdue::Read)), "what is left of an answer is not idle");
        activity.unblocked();
        activity.wrote();
        assert_eq!(next(Phase::Open).await, Some((60, Overdue::Idle)));
        activity.read();
        tokio::time::advance(SECOND).await;
        activity.read();
        assert_eq!(next(Phase::Open).await, Some((0, Overdue::Idle)), "one byte is no request");
        activity.wrote();
        assert_eq!(next(Phase::Open).await, Some((4, Overdue::Head)), "of the first byte, not of the last");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_closes_has_until_its_end() {
        let activity = Activity::default();
        let timeouts = timeouts();
        activity.request_begins();
        let until = Instant::now() + 7 * SECOND;
        assert_eq!(next(&activity, &timeouts, Phase::Closing { until: Some(until) }).await, Some((7, Overdue::End)));
        assert_eq!(next(&activity, &timeouts, Phase::Closing { until: None }).await, None);
        let aging = Timeouts { age: Some(100 * SECOND), ..timeouts };
        assert_eq!(next(&activity, &aging, Phase::Closing { until: None }).await, None);
        assert_eq!(
            next(&Activity::default(), &Timeouts { header: 200 * SECOND, ..aging }, Phase::Open).await,
            Some((100, Overdue::Age))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_request_elsewhere_is_seen() {
        let activity = std::sync::Arc::new(Activity::default());
        activity.set_http2();
        activity.request_begins();
        let other = activity.clone();
        let task = tokio::spawn(async move {
            let timeouts = timeouts();
            next(&other, &timeouts, Phase::Open).await
        });
        tokio::time::sleep(10 * SECOND).await;
        activity.request_ends();
        assert_eq!(task.await.expect("no panic"), Some((70, Overdue::Idle)));
    }
}
