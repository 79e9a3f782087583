//! Checker of the committed offsets of a group: a reader sees the last commit that ended before, or a later one.

use std::collections::BTreeMap;

use super::Violations;
use crate::history::{GroupEvent, Micros, Outcome};

/// Checks the commits of one client, whose offsets ascend in each partition.
pub fn check(events: &[GroupEvent]) -> Violations {
    let mut partitions: BTreeMap<u32, Vec<&GroupEvent>> = BTreeMap::new();
    for event in events {
        let (GroupEvent::Committed { partition, .. } | GroupEvent::Fetched { partition, .. }) = event;
        partitions.entry(*partition).or_default().push(event);
    }
    let mut found = Violations::default();
    for (partition, events) in partitions {
        for event in &events {
            if let GroupEvent::Fetched { offset, begin, end, .. } = **event {
                let (least, most) = allowed(&events, begin, end);
                if offset < least {
                    found.add("offset back", format!("partition {partition} at {offset} after {least} was committed"));
                } else if offset > most {
                    found.add(
                        "never committed",
                        format!("partition {partition} at {offset}, at most {most} was committed"),
                    );
                }
            }
        }
    }
    found
}

/// Returns the offsets between which a fetch has to be: those that were known before it, and those that were requested
/// until its end.
fn allowed(events: &[&GroupEvent], from: Micros, to: Micros) -> (u64, u64) {
    let (mut least, mut most) = (0, 0);
    for event in events {
        match **event {
            GroupEvent::Committed { offset, outcome, begin, end, .. } => {
                if outcome == Outcome::Ok && end < from {
                    least = least.max(offset);
                }
                if begin <= to {
                    most = most.max(offset);
                }
            }
            GroupEvent::Fetched { offset, end, .. } if end < from => least = least.max(offset),
            GroupEvent::Fetched { .. } => {}
        }
    }
    (least, most.max(least))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn committed(offset: u64, begin: u64, outcome: Outcome) -> GroupEvent {
        GroupEvent::Committed { partition: 0, offset, outcome, begin, end: begin + 1 }
    }

    fn fetched(offset: u64, begin: u64) -> GroupEvent {
        GroupEvent::Fetched { partition: 0, offset, begin, end: begin + 1 }
    }

    #[test]
    fn a_commit_with_an_unknown_outcome_may_take_effect() {
        let first = committed(5, 0, Outcome::Ok);
        let second = committed(9, 2, Outcome::Unknown);
        assert!(check(&[first.clone(), second.clone(), fetched(5, 4), fetched(9, 6)]).kinds().is_empty());
        assert!(check(&[fetched(0, 0), first, second, fetched(9, 4)]).kinds().is_empty());
    }

    #[test]
    fn planted_violations_are_found() {
        let commits = [committed(5, 0, Outcome::Ok), committed(9, 2, Outcome::Ok)];
        let with = |fetches: &[GroupEvent]| check(&[&commits[..], fetches].concat()).kinds();
        assert_eq!(with(&[fetched(5, 4)]), ["offset back"]);
        assert_eq!(with(&[fetched(10, 4)]), ["never committed"]);
        let unknown = [committed(5, 0, Outcome::Unknown), fetched(5, 2), fetched(0, 4)];
        assert_eq!(check(&unknown).kinds(), ["offset back"]);
    }
}
