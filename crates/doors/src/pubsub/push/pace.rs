//! How fast an endpoint is pushed to: a window that opens as it answers, and pauses while it fails.

use std::time::Duration;

/// Requests at once to an endpoint that nothing is known of.
const WINDOW_BEGIN: usize = 3;
/// And to one that answers everything.
const WINDOW_MAX: usize = 1000;
/// An endpoint that takes longer than this for an answer gets no larger window.
const PROMPT: Duration = Duration::from_secs(1);
/// How long a pause is, the first and the longest.
const PAUSE_MIN_MS: u64 = 100;
const PAUSE_MAX_MS: u64 = 60_000;

/// Times are in milliseconds of any clock that does not step back.
#[derive(Debug)]
pub(super) struct Pace {
    window: usize,
    /// The length of the newest pause, halved with each success since then; 0 after enough of them.
    pause_ms: u64,
    /// Nothing is begun before.
    resume_at_ms: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { window: WINDOW_BEGIN, pause_ms: 0, resume_at_ms: 0 }
    }
}

impl Pace {
    /// How many requests may be begun now.
    pub fn room(&self, in_flight: usize, now_ms: u64) -> usize {
        if now_ms < self.resume_at_ms { 0 } else { self.window.saturating_sub(in_flight) }
    }

    /// How long nothing is begun, where that is so.
    pub fn paused_ms(&self, now_ms: u64) -> Option<u64> {
        self.resume_at_ms.checked_sub(now_ms).filter(|left| *left > 0)
    }

    /// The window grows by one for each success, which doubles it with each round.
    pub fn succeeded(&mut self, took: Duration) {
        if took <= PROMPT {
            self.window = (self.window + 1).min(WINDOW_MAX);
        }
        self.pause_ms = if self.pause_ms <= PAUSE_MIN_MS { 0 } else { self.pause_ms / 2 };
    }

    /// Requests that were under way together fail together: a pause is not lengthened before it is over.
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
        let (mut now, mut pauses) = (1000, Vec::new());
        for _ in 0..12 {
            pace.failed(now);
            // The others of the same round change nothing.
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
