//! Outcomes of numbered records, and their comparison with the log.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

/// Outcome of each published record.
pub(super) struct Ledger {
    outcomes: Mutex<Outcomes>,
    /// Number of the newest record that was sent.
    sent: AtomicU64,
    /// Highest number that was acknowledged, and the time of the last acknowledgement.
    last: watch::Sender<(u64, Instant)>,
}

#[derive(Default)]
struct Outcomes {
    acknowledged: Vec<u64>,
    failed: u64,
    published: u64,
    longest_stall: Duration,
}

/// Comparison of the outcomes with the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub published: u64,
    pub acknowledged: u64,
    /// Records that were not acknowledged in time. They may be in the log.
    pub failed: u64,
    /// Acknowledged records that are not in the log.
    pub lost: u64,
    /// Records that are in the log more than once, each additional one.
    pub duplicated: u64,
    /// Records in the log that follow a record with a larger number.
    pub reordered: u64,
}

/// Kill of the leader.
pub(super) struct Kill {
    pub node: u64,
    /// Time until the next publish was acknowledged.
    pub stall: Duration,
}

pub(super) struct Report {
    pub nodes: u64,
    pub seconds: f64,
    pub tally: Tally,
    pub kills: Vec<Kill>,
    pub longest_stall: Duration,
}

impl Ledger {
    pub(super) fn new() -> Self {
        let last = watch::channel((0, Instant::now())).0;
        Self { outcomes: Mutex::default(), sent: AtomicU64::new(0), last }
    }

    /// Notes that a record is sent. Numbers ascend.
    pub(super) fn sends(&self, number: u64) {
        self.sent.store(number, Ordering::Relaxed);
    }

    /// Returns the number of the newest record that was sent.
    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Notes the outcome of a record.
    pub(super) fn told(&self, number: u64, is_acknowledged: bool) {
        let now = Instant::now();
        let mut outcomes = self.outcomes.lock();
        if is_acknowledged {
            outcomes.acknowledged.push(number);
            let (highest, before) = *self.last.borrow();
            self.last.send_replace((number.max(highest), now));
            outcomes.longest_stall = outcomes.longest_stall.max(now - before);
        } else {
            outcomes.failed += 1;
        }
    }

    /// Notes the number of published records.
    pub(super) fn ended(&self, published: u64) {
        self.outcomes.lock().published = published;
    }

    /// Waits until a record after this number is acknowledged, and returns the time of its acknowledgement.
    pub(super) async fn acknowledged_after(&self, number: u64) -> Instant {
        let mut last = self.last.subscribe();
        let found = last.wait_for(|(acknowledged, _)| *acknowledged > number).await.map(|last| last.1);
        // The sender is a part of this value, so there is no error.
        found.unwrap_or_else(|_| Instant::now())
    }

    pub(super) fn longest_stall(&self) -> Duration {
        self.outcomes.lock().longest_stall
    }

    /// Compares the acknowledged numbers with those in the log.
    pub(super) fn compare(&self, log: &[u64]) -> Tally {
        let outcomes = self.outcomes.lock();
        let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
        log.iter().for_each(|number| *counts.entry(*number).or_default() += 1);
        Tally {
            published: outcomes.published,
            acknowledged: outcomes.acknowledged.len() as u64,
            failed: outcomes.failed,
            lost: outcomes.acknowledged.iter().filter(|number| !counts.contains_key(number)).count() as u64,
            duplicated: counts.values().map(|count| count - 1).sum(),
            reordered: log.windows(2).filter(|pair| pair[1] < pair[0]).count() as u64,
        }
    }
}

impl Report {
    /// Returns the reason why the demonstration has failed, if it has.
    pub(super) fn complaint(&self) -> Option<String> {
        let Tally { lost, duplicated, reordered, acknowledged, .. } = self.tally;
        if lost + duplicated + reordered > 0 {
            return Some(format!(
                "{lost} acknowledged records lost, {duplicated} duplicated, {reordered} out of order; please report it"
            ));
        }
        (acknowledged == 0).then(|| "no record was acknowledged; please report it".to_owned())
    }

    pub(super) fn to_json(&self) -> Value {
        let Tally { published, acknowledged, failed, lost, duplicated, reordered } = self.tally;
        let kill = |kill: &Kill| json!({ "node": kill.node, "next_acknowledged_ms": millis(kill.stall) });
        json!({
            "nodes": self.nodes,
            "seconds": self.seconds,
            "published": published,
            "acknowledged": acknowledged,
            "failed": failed,
            "lost": lost,
            "duplicated": duplicated,
            "reordered": reordered,
            "kills": self.kills.len(),
            "longest_stall_ms": millis(self.longest_stall),
            "killed": self.kills.iter().map(kill).collect::<Vec<_>>(),
        })
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { published, acknowledged, failed, lost, duplicated, reordered } = self.tally;
        writeln!(f, "{} nodes, {:.1} s, {published} records published", self.nodes, self.seconds)?;
        writeln!(f)?;
        writeln!(f, "  acknowledged  {acknowledged}, each on the disks of two nodes")?;
        if failed > 0 {
            writeln!(f, "  failed        {failed}, the client knows it of each")?;
        }
        writeln!(f, "  lost          {lost}")?;
        writeln!(f, "  duplicated    {duplicated}")?;
        writeln!(f, "  out of order  {reordered}")?;
        writeln!(f, "  kills         {} of the node that led", self.kills.len())?;
        for Kill { node, stall } in &self.kills {
            writeln!(f, "                node {node}: next publish acknowledged after {} ms", millis(*stall))?;
        }
        writeln!(f, "  longest stall {} ms between two acknowledgements", millis(self.longest_stall))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(log: &[u64]) -> Tally {
        let ledger = Ledger::new();
        (0..4).for_each(|number| ledger.told(number, number != 2));
        ledger.ended(4);
        ledger.compare(log)
    }

    fn complaint(log: &[u64]) -> Option<String> {
        let tally = tally(log);
        let zero = Duration::ZERO;
        Report { nodes: 3, seconds: 1.0, tally, kills: Vec::new(), longest_stall: zero }.complaint()
    }

    #[test]
    fn a_record_without_an_acknowledgement_may_be_in_the_log_or_not() {
        let expected = Tally { published: 4, acknowledged: 3, failed: 1, ..Tally::default() };
        for log in [&[0, 1, 3][..], &[0, 1, 2, 3]] {
            assert_eq!(tally(log), expected);
            assert_eq!(complaint(log), None);
        }
    }

    #[test]
    fn lost_repeated_and_reordered_records_are_found() {
        let expected = Tally { published: 4, acknowledged: 3, failed: 1, ..Tally::default() };
        assert_eq!(tally(&[0, 2, 3]), Tally { lost: 1, ..expected });
        assert_eq!(tally(&[0, 1, 1, 3]), Tally { duplicated: 1, ..expected });
        assert_eq!(tally(&[1, 0, 3]), Tally { reordered: 1, ..expected });
        for log in [&[0, 2, 3][..], &[0, 1, 1, 3], &[1, 0, 3]] {
            assert!(complaint(log).is_some(), "{log:?}");
        }
    }
}
