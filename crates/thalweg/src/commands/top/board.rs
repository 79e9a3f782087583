//! State of the screen: the newest view, the history of the rates, and the connection to the broker.

use std::collections::VecDeque;
use std::time::Duration;

use super::items::List;
use super::look::{Look, View};

/// Number of points kept per series: more than any screen is wide.
const HISTORY_MAX: usize = 1024;
/// Sampling intervals to choose from, in ms.
pub(super) const INTERVALS_MS: [u64; 9] = [100, 250, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000];

/// State of the connection to the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// No sample has arrived yet.
    Connecting,
    /// Only the first sample has arrived; rates need two.
    Measuring,
    Live,
    /// The broker does not answer, for this reason.
    Lost(String),
}

/// Values of a series, newest first.
#[derive(Default)]
pub(super) struct Series(VecDeque<u64>);

impl Series {
    fn push(&mut self, value: f64) {
        self.0.push_front(value.round() as u64);
        self.0.truncate(HISTORY_MAX);
    }

    /// Returns up to `count` of the newest values.
    pub(super) fn newest(&self, count: usize) -> impl Iterator<Item = u64> {
        self.0.iter().copied().take(count)
    }

    /// Returns the highest of the `count` newest values.
    pub(super) fn peak(&self, count: usize) -> u64 {
        self.newest(count).max().unwrap_or_default()
    }
}

pub(super) struct Board {
    pub address: String,
    pub interval: Duration,
    pub is_paused: bool,
    /// List that is shown if there is room for only one.
    pub list: List,
    pub link: Link,
    /// View that is shown, even while the broker is not reachable.
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

    /// Records a sample of the broker, or the reason why it is missing. Returns the new view, if there is one.
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
