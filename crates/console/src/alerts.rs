//! Conditions that need a person: those of the alerting rules in `docs/alerts` that follow from the broker's own
//! figures of the last minutes.

use crate::figures::{Figures, History};

/// Share of a limit above which it is reported.
const NEARLY_FULL: f64 = 0.85;
const LANE_NEARLY_FULL: f64 = 0.8;
/// Share of the records of subscribers that may be dropped, and of publishes that may fail.
const DROPPED_SHARE: f64 = 0.001;
const FAILED_SHARE: f64 = 0.01;
/// Time before the end of a certificate, in seconds.
const CERTIFICATE_S: f64 = 14.0 * 86_400.0;

/// Condition that holds now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alert {
    /// Name of the rule without its prefix.
    pub name: &'static str,
    pub is_critical: bool,
    /// Sentence that says what is wrong and what to do.
    pub advice: &'static str,
}

/// Returns the conditions that hold, the critical ones first.
pub fn firing(history: &History) -> Vec<Alert> {
    let Some((first, now)) = history.first().zip(history.last()) else {
        return Vec::new();
    };
    let rules = [
        (
            now.is_disk_full,
            "DiskFull",
            true,
            "The disk is full and records are refused: free space, or shorten the \
                                              retention of topics.",
        ),
        (
            now.journal.is_some_and(|journal| journal.is_broken),
            "JournalBroken",
            true,
            "The journal could not be written and all writes are refused: read the log, then restart the broker.",
        ),
        (
            now.journal.is_some_and(|journal| journal.is_full),
            "JournalFull",
            true,
            "Publishes wait for a checkpoint or for free disk space: check the disk.",
        ),
        (
            increased(first, now, |figures| figures.checkpoint_errors),
            "CheckpointErrors",
            true,
            "Checkpoints fail: check the disk and read the log.",
        ),
        (
            increased(first, now, |figures| figures.accept_shed),
            "NoDescriptorsLeft",
            true,
            "Connections were closed because no file descriptor was left: raise ulimit -n.",
        ),
        (
            now.certificate_expiry_s.is_some_and(|expiry| expiry - (now.at_ms as f64) / 1000.0 < CERTIFICATE_S),
            "CertificateExpires",
            true,
            "The TLS certificate expires within 14 days: replace its files.",
        ),
        (
            now.log_bytes_max > 0.0 && now.log_bytes > NEARLY_FULL * now.log_bytes_max,
            "LogMemoryHigh",
            false,
            "Records in memory use more than 85 % of their limit: shorten the retention of topics, or raise the limit.",
        ),
        (
            now.lane_share > LANE_NEARLY_FULL,
            "LaneQueueFilling",
            false,
            "A delivery lane is more than 80 % full: subscribers are too slow.",
        ),
        (
            now.descriptor_share > NEARLY_FULL,
            "DescriptorsFilling",
            false,
            "More than 85 % of the file descriptors are open: raise ulimit -n.",
        ),
        (
            exceeds(first, now, |figures| figures.dropped_records, |figures| figures.delivered_records, DROPPED_SHARE),
            "RecordsDropped",
            false,
            "Slow subscribers miss records: read faster, or subscribe with the overflow policy block.",
        ),
        (
            exceeds(first, now, |figures| figures.publish_errors, |figures| figures.published_batches, FAILED_SHARE),
            "PublishErrors",
            false,
            "More than 1 % of the publishes are refused: the errors of the publishers say why.",
        ),
        (
            increased(first, now, |figures| figures.publish_lost),
            "PublishesLost",
            false,
            "Publishes without acknowledgement failed: publish with acknowledgements to receive the reason.",
        ),
    ];
    let firing = rules.into_iter().filter(|(holds, ..)| *holds);
    firing.map(|(_, name, is_critical, advice)| Alert { name, is_critical, advice }).collect()
}

fn increased(first: &Figures, now: &Figures, of: fn(&Figures) -> f64) -> bool {
    of(now) > of(first)
}

/// Returns `true` if `bad` grew by more than this share of all.
fn exceeds(first: &Figures, now: &Figures, bad: fn(&Figures) -> f64, good: fn(&Figures) -> f64, share: f64) -> bool {
    let bad = bad(now) - bad(first);
    bad > 0.0 && bad > share * (bad + (good(now) - good(first)).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(first: Figures, last: Figures) -> Vec<&'static str> {
        let mut history = History::default();
        history.push(first);
        history.push(last);
        firing(&history).into_iter().map(|alert| alert.name).collect()
    }

    #[test]
    fn a_healthy_broker_has_no_alert() {
        assert!(firing(&History::default()).is_empty());
        assert!(names(Figures::default(), Figures { delivered_records: 1e6, ..Figures::default() }).is_empty());
    }

    #[test]
    fn conditions_are_those_of_now_or_of_the_time_since_the_first_figures() {
        let full = Figures { is_disk_full: true, log_bytes: 9.0, log_bytes_max: 10.0, ..Figures::default() };
        assert_eq!(names(Figures::default(), full), ["DiskFull", "LogMemoryHigh"]);
        let dropped = |n| Figures { dropped_records: n, delivered_records: 1000.0 * n, ..Figures::default() };
        assert!(names(dropped(5.0), dropped(5.0)).is_empty());
        let some = Figures { dropped_records: 10.0, ..dropped(5.0) };
        assert_eq!(names(dropped(5.0), some), ["RecordsDropped"]);
        let expiring = Figures { certificate_expiry_s: Some(86_400.0), ..Figures::default() };
        assert_eq!(names(Figures::default(), expiring), ["CertificateExpires"]);
    }
}
