//! Rate control of an endpoint: a window that grows while it responds, with pauses while it fails.

use std::time::Duration;

/// Initial number of concurrent requests to an endpoint.
const WINDOW_BEGIN: usize = 3;
/// Maximum number of concurrent requests to an endpoint.
const WINDOW_MAX: usize = 1000;
/// Response time above which the window does not grow.
const PROMPT: Duration = Duration::from_secs(1);
/// Duration of the first and of the longest pause.
const PAUSE_MIN_MS: u64 = 100;
const PAUSE_MAX_MS: u64 = 60_000;

/// Window and pause of an endpoint. Times are in milliseconds of any monotonic clock.
#[derive(Debug)]
pub(super) struct Pace {
    window: usize,
    /// Length of the latest pause, halved by each success since then; 0 after enough of them.
    pause_ms: u64,
    /// Time before which no request is started.
    resume_at_ms: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { window: WINDOW_BEGIN, pause_ms: 0, resume_at_ms: 0 }
    }
}

impl Pace {
    /// Returns the number of requests that may be started now.
    pub fn room(&self, in_flight: usize, now_ms: u64) -> usize {
        if now_ms < self.resume_at_ms { 0 } else { self.window.saturating_sub(in_flight) }
    }

    /// Returns the remaining time of the current pause, if there is one.
    pub fn paused_ms(&self, now_ms: u64) -> Option<u64> {
        self.resume_at_ms.checked_sub(now_ms).filter(|left| *left > 0)
    }

    /// Records a success. The window grows by one for each, which doubles it in each round.
    pub fn succeeded(&mut self, took: Duration) {
        if took <= PROMPT {
            self.window = (self.window + 1).min(WINDOW_MAX);
        }
        self.pause_ms = if self.pause_ms <= PAUSE_MIN_MS { 0 } else { self.pause_ms / 2 };
    }

    /// Records a failure. Concurrent requests fail together, so a pause is not extended before it is over.
    pub fn failed(&mut self, now_ms: u64) {
        self.window = (self.window / 2).max(1);
        if now_ms >= self.resume_at_ms {
            self.pause_ms = (2 * self.pause_ms).clamp(PAUSE_MIN_MS, PAUSE_MAX_MS);
            self.resume_at_ms = now_ms + self.pause_ms;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_doubles_with_each_round_of_prompt_answers_up_to_its_maximum() {
        let mut pace = Pace::default();
        let mut windows = Vec::new();
        for _ in 0..10 {
            let round = pace.room(0, 0);
            windows.push(round);
            (0..round).for_each(|_| pace.succeeded(Duration::from_millis(20)));
        }
        assert_eq!(windows, [3, 6, 12, 24, 48, 96, 192, 384, 768, 1000]);
        assert_eq!(pace.room(400, 0), 600);
        assert_eq!(pace.room(2000, 0), 0);
        let mut slow = Pace::default();
        (0..100).for_each(|_| slow.succeeded(Duration::from_secs(2)));
        assert_eq!(slow.room(0, 0), 3);
    }

    #[test]
    fn pauses_grow_from_100_ms_to_60_s_while_an_endpoint_fails_and_shrink_as_it_recovers() {
        let mut pace = Pace::default();
        let mut now = 1000;
        let mut pauses = Vec::new();
        for _ in 0..12 {
            pace.failed(now);
            // Other failures of the same round change nothing.
            pace.failed(now + 1);
            let paused = pace.paused_ms(now).unwrap_or(0);
            assert_eq!(pace.room(0, now + paused - 1), 0);
            assert_eq!(pace.room(0, now + paused), 1);
            pauses.push(paused);
            now += paused;
        }
        assert_eq!(pauses[..4], [100, 200, 400, 800]);
        assert_eq!(pauses[10..], [60_000, 60_000]);
        pace.succeeded(Duration::ZERO);
        pace.failed(now);
        assert_eq!(pace.paused_ms(now), Some(60_000));
        (0..20).for_each(|_| pace.succeeded(Duration::ZERO));
        now += 60_000;
        pace.failed(now);
        assert_eq!(pace.paused_ms(now), Some(100));
    }
}
