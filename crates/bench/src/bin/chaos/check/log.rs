//! Checker of logs: no acknowledged record is lost, none is there twice or out of order, all readers see one log.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::Violations;
use crate::history::{LogEvent, Outcome};

/// Reader that has read everything after the last fault.
pub const FINAL: &str = "final";

type Record<'e> = (&'e str, u64);
type At = (u32, u64);

pub fn check(events: &[LogEvent]) -> Violations {
    let mut found = Violations::default();
    let known = see(events, &mut found);
    check_outcomes(events, &known, &mut found);
    check_order(&known, &mut found);
    check_readers(events, &mut found);
    found
}

/// Records by their places, and the places of those that the final reader has seen.
#[derive(Default)]
struct Known<'e> {
    by_place: HashMap<At, Record<'e>>,
    last: BTreeMap<At, Record<'e>>,
    places: HashMap<Record<'e>, At>,
}

/// Reads all places. Two readers, or a reader and an acknowledgement, must not see two records at one place.
fn see<'e>(events: &'e [LogEvent], found: &mut Violations) -> Known<'e> {
    let mut known = Known::default();
    let mut place = |at: At, record: Record<'e>, found: &mut Violations| {
        let before = *known.by_place.entry(at).or_insert(record);
        if before != record {
            found.add("inconsistent", format!("{} and {} at {}", shown(before), shown(record), shown_at(at)));
        }
    };
    for event in events {
        match event {
            LogEvent::Sent { producer, number, partition, offset: Some(offset), outcome: Outcome::Ok, .. } => {
                place((*partition, *offset), (producer, *number), found);
            }
            LogEvent::Read { partition, offset, producer, number, .. } => {
                place((*partition, *offset), (producer, *number), found);
            }
            LogEvent::Sent { .. } => {}
        }
    }
    for event in events {
        if let LogEvent::Read { reader, partition, offset, producer, number } = event
            && reader == FINAL
        {
            let (at, record) = ((*partition, *offset), (producer.as_str(), *number));
            known.last.insert(at, record);
            match known.places.insert(record, at) {
                Some(other) if other != at => {
                    found.add("duplicated", format!("{} at {} and {}", shown(record), shown_at(other), shown_at(at)));
                }
                _ => {}
            }
        }
    }
    known
}

fn check_outcomes(events: &[LogEvent], known: &Known<'_>, found: &mut Violations) {
    let mut sent = HashSet::new();
    for event in events {
        let LogEvent::Sent { producer, number, outcome, .. } = event else { continue };
        let record = (producer.as_str(), *number);
        sent.insert(record);
        match (outcome, known.places.get(&record)) {
            (Outcome::Ok, None) => found.add("lost", shown(record)),
            (Outcome::Refused, Some(at)) => {
                found.add("refused and there", format!("{} at {}", shown(record), shown_at(*at)));
            }
            _ => {}
        }
    }
    for (at, record) in known.last.iter().filter(|(_, record)| !sent.contains(*record)) {
        found.add("never sent", format!("{} at {}", shown(*record), shown_at(*at)));
    }
}

/// Numbers of one producer ascend in a partition, and offsets have no gaps.
fn check_order(known: &Known<'_>, found: &mut Violations) {
    let mut newest: HashMap<(u32, &str), u64> = HashMap::new();
    let mut next: HashMap<u32, u64> = HashMap::new();
    for ((partition, offset), record) in &known.last {
        let expected = next.insert(*partition, offset + 1).unwrap_or(0);
        if expected != *offset {
            found.add("gap", format!("nothing at {}", shown_at((*partition, expected))));
        }
        let before = newest.entry((*partition, record.0)).or_insert(record.1);
        if record.1 < *before {
            let at = shown_at((*partition, *offset));
            found.add("reordered", format!("{} at {at} after number {before}", shown(*record)));
        }
        *before = record.1.max(*before);
    }
}

/// Offsets of one reader ascend, and what it has read stays.
fn check_readers(events: &[LogEvent], found: &mut Violations) {
    let mut newest: HashMap<(&str, u32), u64> = HashMap::new();
    let mut last = HashSet::new();
    for event in events {
        if let LogEvent::Read { reader, partition, offset, .. } = event {
            if reader == FINAL {
                last.insert((*partition, *offset));
                continue;
            }
            let before = newest.insert((reader, *partition), *offset);
            if before.is_some_and(|before| before >= *offset) {
                found.add("read back", format!("{reader} at {} after {before:?}", shown_at((*partition, *offset))));
            }
        }
    }
    for event in events {
        if let LogEvent::Read { reader, partition, offset, producer, number } = event
            && !last.contains(&(*partition, *offset))
        {
            let record = shown((producer, *number));
            found.add("read and lost", format!("{record} at {} by {reader}", shown_at((*partition, *offset))));
        }
    }
}

fn shown((producer, number): Record<'_>) -> String {
    format!("{producer}:{number}")
}

fn shown_at((partition, offset): At) -> String {
    format!("{partition}/{offset}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(number: u64, offset: Option<u64>, outcome: Outcome) -> LogEvent {
        LogEvent::Sent { producer: "a".into(), number, partition: 0, offset, outcome, begin: 0, end: 1 }
    }

    fn read(reader: &str, offset: u64, number: u64) -> LogEvent {
        LogEvent::Read { reader: reader.into(), partition: 0, offset, producer: "a".into(), number }
    }

    /// A history without a violation: 0 and 1 acknowledged, 2 unknown and there, 3 unknown and not there.
    fn good() -> Vec<LogEvent> {
        vec![
            sent(0, Some(0), Outcome::Ok),
            sent(1, Some(1), Outcome::Ok),
            sent(2, None, Outcome::Unknown),
            sent(3, None, Outcome::Unknown),
            sent(4, None, Outcome::Refused),
            read("live", 0, 0),
            read("live", 1, 1),
            read(FINAL, 0, 0),
            read(FINAL, 1, 1),
            read(FINAL, 2, 2),
        ]
    }

    fn kinds(change: impl FnOnce(&mut Vec<LogEvent>)) -> Vec<&'static str> {
        let mut events = good();
        change(&mut events);
        check(&events).kinds()
    }

    #[test]
    fn a_good_history_has_no_violation() {
        assert!(kinds(|_| {}).is_empty());
    }

    #[test]
    fn planted_violations_are_found() {
        // Acknowledged without an offset, so that only its absence is wrong.
        assert_eq!(kinds(|events| events.push(sent(5, None, Outcome::Ok))), ["lost"]);
        assert_eq!(kinds(|events| events.push(read(FINAL, 3, 1))), ["duplicated", "reordered"]);
        assert_eq!(kinds(|events| events[8] = read(FINAL, 1, 3)), ["inconsistent", "lost", "reordered"]);
        assert_eq!(kinds(|events| events.push(read(FINAL, 3, 4))), ["refused and there"]);
        assert_eq!(kinds(|events| events.push(read(FINAL, 3, 9))), ["never sent"]);
        assert_eq!(kinds(|events| events.push(read(FINAL, 4, 3))), ["gap"]);
        assert_eq!(kinds(|events| events.push(read("live", 0, 0))), ["read back"]);
        assert_eq!(kinds(|events| events.push(read("live", 3, 3))), ["read and lost"]);
        let swapped = |events: &mut Vec<LogEvent>| {
            events.retain(|event| !matches!(event, LogEvent::Sent { number: 0 | 1, .. }));
            events.retain(|event| !matches!(event, LogEvent::Read { reader, .. } if reader == "live"));
            events.extend([sent(0, None, Outcome::Ok), sent(1, None, Outcome::Ok)]);
            events.retain(|event| !matches!(event, LogEvent::Read { .. }));
            events.extend([read(FINAL, 0, 1), read(FINAL, 1, 0), read(FINAL, 2, 2)]);
        };
        assert_eq!(kinds(swapped), ["reordered"]);
    }

    #[test]
    fn violations_are_counted_and_a_few_are_listed() {
        let mut events = good();
        events.extend((10..20).map(|number| sent(number, None, Outcome::Ok)));
        let found = check(&events);
        assert_eq!(found.count("lost"), 10);
        assert_eq!(found.sentences(), ["lost: 10, for example a:10; a:11; a:12; a:13; a:14"]);
    }
}
