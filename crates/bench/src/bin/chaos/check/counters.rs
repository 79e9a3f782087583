//! Checker of counters, each a register that is linearizable: additions of 1 and reads. As each addition returns a
//! different value, the values are the order, and it is enough to compare it with the times.

use std::collections::BTreeMap;

use super::Violations;
use crate::history::{CounterEvent, Micros};

/// Operation with a known value.
struct Op {
    begin: Micros,
    end: Micros,
    value: u64,
    is_add: bool,
}

#[derive(Default)]
struct Counter {
    known: Vec<Op>,
    /// Beginnings of all additions, and of those with an unknown outcome.
    adds: Vec<Micros>,
    unknown: Vec<Micros>,
}

pub fn check(events: &[CounterEvent]) -> Violations {
    let mut counters: BTreeMap<&str, Counter> = BTreeMap::new();
    for event in events {
        match event {
            CounterEvent::Add { key, begin, end, value } => {
                let counter = counters.entry(key).or_default();
                counter.adds.push(*begin);
                match value {
                    Some(value) => counter.known.push(Op { begin: *begin, end: *end, value: *value, is_add: true }),
                    None => counter.unknown.push(*begin),
                }
            }
            CounterEvent::Get { key, begin, end, value } => {
                let op = Op { begin: *begin, end: *end, value: *value, is_add: false };
                counters.entry(key).or_default().known.push(op);
            }
        }
    }
    let mut found = Violations::default();
    for (key, mut counter) in counters {
        check_times(key, &mut counter, &mut found);
        check_values(key, &mut counter, &mut found);
    }
    found
}

/// An operation sees everything that ended before it began, and nothing that began after it ended.
fn check_times(key: &str, counter: &mut Counter, found: &mut Violations) {
    counter.adds.sort_unstable();
    let mut ended: Vec<(Micros, u64)> = counter.known.iter().map(|op| (op.end, op.value)).collect();
    ended.sort_unstable();
    counter.known.sort_by_key(|op| op.begin);
    let (mut next, mut highest) = (0, 0);
    for op in &counter.known {
        while let Some((end, value)) = ended.get(next).filter(|(end, _)| *end < op.begin) {
            highest = highest.max(*value);
            next += 1;
            debug_assert!(*end < op.begin);
        }
        if op.value < highest + u64::from(op.is_add) {
            found.add("stale", format!("{key} is {} at {}, after it was {highest}", op.value, op.begin));
        }
        let begun = counter.adds.partition_point(|begin| *begin < op.end) as u64;
        if op.value > begun {
            found.add("from nowhere", format!("{key} is {} at {} after {begun} additions", op.value, op.end));
        }
    }
}

/// Each value is returned by one addition. Those that none returned are of additions with an unknown outcome, which
/// began before the value was seen.
fn check_values(key: &str, counter: &mut Counter, found: &mut Violations) {
    let mut of_adds: Vec<u64> = counter.known.iter().filter(|op| op.is_add).map(|op| op.value).collect();
    of_adds.sort_unstable();
    for twice in of_adds.windows(2).filter(|pair| pair[0] == pair[1]) {
        found.add("twice", format!("two additions of {key} returned {}", twice[0]));
    }
    counter.unknown.sort_unstable();
    counter.known.sort_by_key(|op| op.value);
    // The earliest end of an operation that has seen a value or a larger one.
    let mut seen: Vec<(u64, Micros)> = Vec::new();
    let mut earliest = Micros::MAX;
    for op in counter.known.iter().rev() {
        earliest = earliest.min(op.end);
        seen.push((op.value, earliest));
    }
    seen.reverse();
    let highest = counter.known.last().map_or(0, |op| op.value);
    let mut unknown = counter.unknown.iter();
    for value in (1..=highest).filter(|value| of_adds.binary_search(value).is_err()) {
        let at = seen.partition_point(|(known, _)| *known < value);
        let by = seen.get(at).map_or(Micros::MAX, |(_, by)| *by);
        if unknown.next().is_none_or(|begin| *begin > by) {
            found.add("unexplained", format!("no addition of {key} can have made it {value}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(begin: u64, end: u64, value: Option<u64>) -> CounterEvent {
        CounterEvent::Add { key: "k".into(), begin, end, value }
    }

    fn get(begin: u64, end: u64, value: u64) -> CounterEvent {
        CounterEvent::Get { key: "k".into(), begin, end, value }
    }

    fn kinds(events: &[CounterEvent]) -> Vec<&'static str> {
        check(events).kinds()
    }

    #[test]
    fn concurrent_operations_may_take_effect_in_any_order() {
        assert!(kinds(&[add(0, 10, Some(2)), add(1, 9, Some(1)), get(2, 3, 0), get(2, 8, 2)]).is_empty());
        // An addition whose answer was lost takes effect later, or never.
        assert!(kinds(&[add(0, 1, None), add(2, 3, Some(1)), get(4, 5, 1), get(6, 7, 2)]).is_empty());
        assert!(kinds(&[add(0, 1, None), get(6, 7, 0)]).is_empty());
    }

    #[test]
    fn planted_violations_are_found() {
        // A read of a deposed leader.
        assert_eq!(kinds(&[add(0, 1, Some(1)), get(2, 3, 0)]), ["stale"]);
        assert_eq!(kinds(&[add(0, 1, None), get(2, 3, 1), get(4, 5, 0)]), ["stale"]);
        // An acknowledged addition that was lost.
        assert_eq!(kinds(&[add(0, 1, Some(1)), add(2, 3, Some(1))]), ["stale", "twice"]);
        assert_eq!(kinds(&[add(0, 5, Some(1)), add(2, 3, Some(1))]), ["twice"]);
        // One addition that was executed twice.
        assert_eq!(kinds(&[add(0, 1, Some(1)), add(2, 3, Some(3))]), ["from nowhere", "unexplained"]);
        assert_eq!(kinds(&[add(0, 1, Some(2)), add(2, 3, None)]), ["from nowhere", "unexplained"]);
        // One unknown addition explains one value, and only if it had begun when the value was seen.
        let known = [add(0, 20, Some(4)), add(1, 20, Some(3)), add(2, 4, Some(2))];
        assert_eq!(kinds(&[&known[..], &[add(3, 9, None)]].concat()), ["stale"; 0]);
        assert_eq!(kinds(&[&known[..], &[add(5, 9, None)]].concat()), ["unexplained"]);
    }
}
