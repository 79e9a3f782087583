//! What the screen knows: the newest view, what was before it, and how the broker fares.

use std::collections::VecDeque;
use std::time::Duration;

use super::items::List;
use super::look::{Look, View};

/// Points that are kept of each series: more than any screen is wide.
const HISTORY_MAX: usize = 1024;
/// Times between two looks to choose from.
pub(super) const INTERVALS_MS: [u64; 9] = [100, 250, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000];

/// How the broker fares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// Nothing came yet.
    Connecting,
    /// One look came; rates need two.
    Measuring,
    Live,
    /// Nobody answers: why.
    Lost(String),
}

/// The newest values of a series, newest first.
#[derive(Default)]
pub(super) struct Series(VecDeque<u64>);

impl Series {
    fn push(&mut self, value: f64) {
        self.0.push_front(value.round() as u64);
        self.0.truncate(HISTORY_MAX);
    }

    /// So many of the newest.
    pub(super) fn newest(&self, count: usize) -> impl Iterator<Item = u64> {
        self.0.iter().copied().take(count)
    }

    /// The highest of so many of the newest.
    pub(super) fn peak(&self, count: usize) -> u64 {
        self.newest(count).max().unwrap_or_default()
    }
}

pub(super) struct Board {
    pub address: String,
    pub interval: Duration,
    pub is_paused: bool,
    /// Which list is shown where there is room for one.
    pub list: List,
    pub link: Link,
    /// What is shown, also while the broker is gone.
    pub view: Option<View>,
    pub published: Series,
    pub published_bytes: Series,
    pub delivered: Series,
    pub delivered_bytes: Series,
    last: Option<Look>,
}

impl Board {
    pub(super) fn new(address: &str, interval: Duration) -> Self {
        Self {
            address: address.to_owned(),
            interval,
            is_paused: false,
            list: List::default(),
            link: Link::Connecting,
            view: None,
            published: Series::default(),
            published_bytes: Series::default(),
            delivered: Series::default(),
            delivered_bytes: Series::default(),
            last: None,
        }
    }

    /// Takes a look at the broker, or why there is none. Returns the view where it is a new one.
    pub(super) fn take(&mut self, look: Result<Look, String>) -> Option<&View> {
        let look = match look {
            Ok(look) => look,
            Err(why) => {
                self.link = Link::Lost(why);
                self.last = None;
                return None;
            }
        };
        let view = self.last.as_ref().and_then(|last| View::between(last, &look));
        self.last = Some(look);
        let Some(view) = view else {
            self.link = Link::Measuring;
            return None;
        };
        self.link = Link::Live;
        self.published.push(view.published_per_s);
        self.published_bytes.push(view.published_bytes_per_s);
        self.delivered.push(view.delivered_per_s);
        self.delivered_bytes.push(view.delivered_bytes_per_s);
        self.view = Some(view);
        self.view.as_ref()
    }

    pub(super) fn slower(&mut self) {
        let now = self.interval.as_millis() as u64;
        let next = INTERVALS_MS.into_iter().find(|ms| *ms > now);
        self.interval = Duration::from_millis(next.unwrap_or(now));
    }

    pub(super) fn faster(&mut self) {
        let now = self.interval.as_millis() as u64;
        let next = INTERVALS_MS.into_iter().rev().find(|ms| *ms < now);
        self.interval = Duration::from_millis(next.unwrap_or(now));
    }
}

#[cfg(test)]
mod tests {
    use super::super::look::tests::looks;
    use super::*;

    #[test]
    fn a_broker_that_goes_and_comes_back_is_measured_anew() {
        let mut board = Board::new("here", Duration::from_secs(1));
        let mut take = |look| (board.take(look).is_some(), board.link.clone());
        let [a, b, after] = <[Look; 3]>::try_from(looks(&[10, 12, 1])).expect("three");
        assert_eq!(take(Ok(a)), (false, Link::Measuring));
        assert_eq!(take(Ok(b)), (true, Link::Live));
        assert_eq!(take(Err("gone".into())), (false, Link::Lost("gone".into())));
        assert_eq!(take(Ok(after.clone())), (false, Link::Measuring));
        assert_eq!(take(Ok(after)), (true, Link::Live));
        assert_eq!(board.published.newest(9).collect::<Vec<_>>(), [0, 1000]);
        assert_eq!(board.published.peak(1), 0);
        assert_eq!(board.published.peak(9), 1000);
    }

    #[test]
    fn intervals_stay_within_their_bounds() {
        let mut board = Board::new("here", Duration::from_millis(700));
        board.slower();
        assert_eq!(board.interval, Duration::from_secs(1));
        board.faster();
        assert_eq!(board.interval, Duration::from_millis(500));
        (0..20).for_each(|_| board.faster());
        assert_eq!(board.interval, Duration::from_millis(100));
        (0..20).for_each(|_| board.slower());
        assert_eq!(board.interval, Duration::from_secs(60));
    }
}
