//! Checkers of histories: nothing acknowledged is lost, order is kept, and nothing is there twice that has a number.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::history::{Event, Promises, Told};

/// Reader that has read everything after the last kill.
const FINAL: &str = "final";
/// Reader that is a consumer group.
const GROUP: &str = "group";
/// Maximum number of violations of one kind that are listed.
const LISTED_MAX: usize = 3;

/// Figures and violations of one stream.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Findings {
    pub stream: String,
    pub acknowledged: usize,
    /// Requests without an answer that the program gave up.
    pub unknown: usize,
    /// Copies of items beyond the first.
    pub copies: usize,
    /// Receipts of one copy beyond the first.
    pub redelivered: usize,
    pub errors: usize,
    /// Longest time between two acknowledgements, in milliseconds.
    pub stall_ms: u64,
    pub lost: usize,
    violations: Vec<(&'static str, Vec<String>, usize)>,
}

impl Findings {
    fn add(&mut self, kind: &'static str, what: impl ToString) {
        let at = self.violations.iter().position(|(known, ..)| *known == kind).unwrap_or_else(|| {
            self.violations.push((kind, Vec::new(), 0));
            self.violations.len() - 1
        });
        let (_, examples, count) = &mut self.violations[at];
        *count += 1;
        if examples.len() < LISTED_MAX {
            examples.push(what.to_string());
        }
    }

    /// Returns a sentence for each kind of violation.
    pub fn sentences(&self) -> Vec<String> {
        let sentence = |(kind, examples, count): &(&str, Vec<String>, usize)| {
            format!("{}: {kind}: {count}, for example {}", self.stream, examples.join("; "))
        };
        self.violations.iter().map(sentence).collect()
    }
}

type Item<'e> = (&'e str, u64);
type Copy<'e> = (&'e str, &'e str);

/// Checks all streams of a program, in the order in which it declared them.
pub fn check(events: &[Event]) -> Vec<Findings> {
    let mut streams = Vec::new();
    let mut by_stream: HashMap<&str, Vec<&Event>> = HashMap::new();
    for event in events {
        if let Event::Stream { stream, promises } = event {
            streams.push((stream.as_str(), promises));
        }
        if let Some(stream) = event.stream() {
            by_stream.entry(stream).or_default().push(event);
        }
    }
    let mut all = Vec::new();
    for (stream, promises) in streams {
        let events = by_stream.remove(stream).unwrap_or_default();
        let mut found = Findings { stream: stream.to_owned(), ..Findings::default() };
        figures(&events, &mut found);
        items(&events, promises, &mut found);
        settled(&events, &mut found);
        group(&events, &mut found);
        registers(&events, &mut found);
        counters(&events, &mut found);
        if promises.log {
            readers(&events, &mut found);
        }
        all.push((found, promises.from.as_deref(), read_back(&events, promises)));
        by_stream.insert(stream, events);
    }
    sources(&mut all);
    let mut all: Vec<Findings> = all.into_iter().map(|(found, ..)| found).collect();
    for stream in by_stream.keys() {
        if !all.iter().any(|found| found.stream == *stream) {
            all.push(undeclared(stream));
        }
    }
    all
}

fn undeclared(stream: &str) -> Findings {
    let mut found = Findings { stream: stream.to_owned(), ..Findings::default() };
    found.add("not declared", "the program has to write its promises first");
    found
}

fn figures(events: &[&Event], found: &mut Findings) {
    let mut before = None;
    for at in events.iter().filter_map(|event| event.acknowledged()) {
        found.acknowledged += 1;
        found.stall_ms = found.stall_ms.max(before.map_or(0, |before| at.saturating_sub(before)));
        before = Some(at);
    }
    for event in events {
        match event {
            Event::Sent { outcome: Told::Unknown, .. }
            | Event::Wrote { outcome: Told::Unknown, .. }
            | Event::Added { value: None, .. }
            | Event::Taken { .. } => found.unknown += 1,
            Event::Error { .. } => found.errors += 1,
            _ => {}
        }
    }
    if found.acknowledged == 0 {
        found.add("nothing acknowledged", "the workload did not run");
    }
}

/// Receipts that are judged: those of the reader that read everything back, or all.
fn judged<'e>(events: &[&'e Event], promises: &Promises) -> Vec<(Copy<'e>, Item<'e>)> {
    let is_log = promises.log;
    events
        .iter()
        .filter_map(move |event| match event {
            Event::Got { reader, lane, id, producer, number, .. } if !is_log || reader == FINAL => {
                Some(((lane.as_str(), id.as_str()), (producer.as_str(), *number)))
            }
            _ => None,
        })
        .collect()
}

fn read_back<'e>(events: &[&'e Event], promises: &Promises) -> HashSet<Item<'e>> {
    judged(events, promises).into_iter().map(|(_, item)| item).collect()
}

/// Nothing acknowledged is lost, nothing appears that was not sent, and promises of order and of numbers are kept.
fn items(events: &[&Event], promises: &Promises, found: &mut Findings) {
    let mut copies: BTreeMap<Item<'_>, BTreeSet<Copy<'_>>> = BTreeMap::new();
    let mut newest: HashMap<Copy<'_>, u64> = HashMap::new();
    for (copy, item) in judged(events, promises) {
        let known = copies.entry(item).or_default();
        let is_first = known.is_empty();
        if !known.insert(copy) {
            found.redelivered += 1;
        } else if !is_first {
            found.copies += 1;
            if promises.numbered {
                found.add("duplicated", format!("{} as {known:?}", shown(item)));
            }
        }
        if promises.ordered && is_first {
            let before = newest.entry((copy.0, item.0)).or_insert(item.1);
            if item.1 < *before {
                found.add("reordered", format!("{} after number {before} in {}", shown(item), copy.0));
            }
            *before = item.1.max(*before);
        }
    }
    let mut sent = HashSet::new();
    let mut lost = Vec::new();
    for event in events {
        let Event::Sent { producer, number, outcome, .. } = event else { continue };
        let item = (producer.as_str(), *number);
        sent.insert(item);
        if *outcome == Told::Ok && !copies.contains_key(&item) {
            lost.push(item);
        }
    }
    // Each request that takes an item and whose answer was lost may have taken one.
    let taken = events.iter().filter(|event| matches!(event, Event::Taken { .. })).count();
    found.lost = lost.len().saturating_sub(taken);
    lost.into_iter().skip(taken).for_each(|item| found.add("lost", shown(item)));
    // A stream that only reads another one sends nothing.
    if promises.from.is_none() || !sent.is_empty() {
        copies.keys().filter(|item| !sent.contains(*item)).for_each(|item| found.add("never sent", shown(*item)));
    }
}

/// Received items whose acknowledgement was confirmed do not arrive again.
fn settled(events: &[&Event], found: &mut Findings) {
    let mut settled = HashSet::new();
    for event in events {
        match event {
            Event::Settled { lane, id, .. } => drop(settled.insert((lane.as_str(), id.as_str()))),
            Event::Got { reader, lane, id, producer, number, .. }
                if reader != FINAL && settled.contains(&(lane.as_str(), id.as_str())) =>
            {
                found.add("received after its acknowledgement", shown((producer, *number)));
            }
            _ => {}
        }
    }
}

/// Confirmed commits of a consumer group stay, and its members skip nothing.
fn group(events: &[&Event], found: &mut Findings) {
    let mut committed: HashMap<&str, u64> = HashMap::new();
    let mut read = HashSet::new();
    for event in events {
        match event {
            Event::Committed { lane, next, .. } => {
                let known = committed.entry(lane).or_insert(0);
                *known = (*next).max(*known);
            }
            Event::Got { reader, lane, id, .. } if reader == GROUP => {
                read.insert((lane.as_str(), id.as_str()));
                let next = committed.get(lane.as_str()).copied().unwrap_or(0);
                if id.parse::<u64>().is_ok_and(|offset| offset < next) {
                    found.add("received after its commit", format!("{lane}/{id}, and {next} was committed"));
                }
            }
            Event::Position { lane, next, .. } => {
                let before = committed.get(lane.as_str()).copied().unwrap_or(0);
                if *next < before {
                    found.add("commit lost", format!("{lane} is at {next}, and {before} was committed"));
                }
            }
            _ => {}
        }
    }
    if committed.is_empty() {
        return;
    }
    for event in events {
        if let Event::Got { reader, lane, id, .. } = event
            && reader == FINAL
            && !read.contains(&(lane.as_str(), id.as_str()))
        {
            found.add("skipped by the group", format!("{lane}/{id}"));
        }
    }
}

/// Readers saw what is in the log at the end.
fn readers(events: &[&Event], found: &mut Findings) {
    let mut last = HashMap::new();
    for event in events {
        if let Event::Got { reader, lane, id, producer, number, .. } = event
            && reader == FINAL
        {
            last.insert((lane.as_str(), id.as_str()), (producer.as_str(), *number));
        }
    }
    for event in events {
        if let Event::Got { reader, lane, id, producer, number, .. } = event
            && last.get(&(lane.as_str(), id.as_str())) != Some(&(producer.as_str(), *number))
        {
            found.add("read and lost", format!("{} at {lane}/{id} by {reader}", shown((producer, *number))));
        }
    }
}

/// A register has the newest acknowledged number, or a later one whose answer was lost, and does not go back.
fn registers(events: &[&Event], found: &mut Findings) {
    let mut states: HashMap<&str, (u64, u64)> = HashMap::new();
    for event in events {
        match event {
            Event::Wrote { lane, number, outcome, .. } => {
                let (least, most) = states.entry(lane).or_default();
                *most = *number;
                if *outcome == Told::Ok {
                    *least = *number;
                }
            }
            Event::Read { lane, number, .. } => {
                let (least, most) = states.entry(lane).or_default();
                if !(*least..=*most).contains(number) {
                    found.lost += 1;
                    found.add("wrong value", format!("{lane} is {number}, not {least} to {most}"));
                }
                *least = (*number).max(*least);
            }
            _ => {}
        }
    }
}

/// A counter has all acknowledged increments, and at most those whose answers were lost in addition.
fn counters(events: &[&Event], found: &mut Findings) {
    let mut states: HashMap<&str, (u64, u64)> = HashMap::new();
    for event in events {
        let (lane, value) = match event {
            Event::Added { lane, value, .. } => {
                let (least, most) = states.entry(lane).or_default();
                *most += 1;
                let Some(value) = value else { continue };
                *least += 1;
                (lane, value)
            }
            Event::Counted { lane, value, .. } => (lane, value),
            _ => continue,
        };
        let (least, most) = states.entry(lane).or_default();
        if !(*least..=*most).contains(value) {
            found.lost += 1;
            found.add("wrong count", format!("{lane} is {value}, not {least} to {most}"));
        }
        // Increments that the value shows stay.
        *least = (*value).clamp(*least, *most);
    }
}

/// Every item of a source became one item, and no other item did.
fn sources(all: &mut [(Findings, Option<&str>, HashSet<Item<'_>>)]) {
    for at in 0..all.len() {
        let Some(from) = all[at].1 else { continue };
        let source = all.iter().find(|(found, ..)| found.stream == from).map(|(.., items)| items.clone());
        let Some(source) = source else {
            all[at].0.add("not declared", from);
            continue;
        };
        let missing: Vec<String> = source.difference(&all[at].2).map(|item| shown(*item)).collect();
        all[at].0.lost += missing.len();
        missing.into_iter().for_each(|item| all[at].0.add("not transformed", item));
        let added: Vec<String> = all[at].2.difference(&source).map(|item| shown(*item)).collect();
        added.into_iter().for_each(|item| all[at].0.add("not in its source", item));
    }
}

fn shown((producer, number): Item<'_>) -> String {
    format!("{producer}:{number}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(lines: &str) -> Vec<Event> {
        lines.lines().map(|line| serde_json::from_str(line.trim()).expect(line)).collect()
    }

    fn stream(name: &str, promises: &str) -> String {
        format!(r#"{{"op":"stream","stream":"{name}"{promises}}}"#)
    }

    fn sent(stream: &str, number: u64, outcome: &str) -> String {
        let at = number * 10;
        format!(
            r#"{{"op":"sent","stream":"{stream}","producer":"p","number":{number},"outcome":"{outcome}","at":{at}}}"#
        )
    }

    fn got(stream: &str, reader: &str, id: u64, number: u64) -> String {
        format!(
            r#"{{"op":"got","stream":"{stream}","reader":"{reader}","lane":"0","id":"{id}","producer":"p",{}}}"#,
            format_args!(r#""number":{number}"#)
        )
    }

    fn settled(id: u64) -> String {
        format!(r#"{{"op":"settled","stream":"s","lane":"0","id":"{id}","at":1}}"#)
    }

    fn committed(op: &str, next: u64) -> String {
        format!(r#"{{"op":"{op}","stream":"s","lane":"0","next":{next},"at":1}}"#)
    }

    fn wrote(number: u64, outcome: &str) -> String {
        format!(r#"{{"op":"wrote","stream":"s","lane":"k","number":{number},"outcome":"{outcome}","at":1}}"#)
    }

    fn read(number: u64) -> String {
        format!(r#"{{"op":"read","stream":"s","lane":"k","number":{number}}}"#)
    }

    fn added(value: Option<u64>) -> String {
        let value = value.map_or("null".to_owned(), |value| value.to_string());
        format!(r#"{{"op":"added","stream":"s","lane":"k","value":{value},"at":1}}"#)
    }

    fn counted(value: u64) -> String {
        format!(r#"{{"op":"counted","stream":"s","lane":"k","value":{value}}}"#)
    }

    /// Returns the kinds of violations of all streams.
    fn kinds(lines: &[String]) -> Vec<&'static str> {
        check(&events(&lines.join("\n"))).iter().flat_map(|of| of.violations.iter().map(|(kind, ..)| *kind)).collect()
    }

    const LOG: &str = r#","log":true,"numbered":true,"ordered":true"#;

    /// Log without a violation: 0 and 1 acknowledged, 2 unknown and there, 3 unknown and not there.
    fn log() -> Vec<String> {
        let mut lines = vec![stream("s", LOG)];
        lines.extend([sent("s", 0, "ok"), sent("s", 1, "ok"), sent("s", 2, "unknown"), sent("s", 3, "unknown")]);
        lines.extend([got("s", "live", 0, 0), got("s", "live", 0, 0)]);
        lines.extend([got("s", FINAL, 0, 0), got("s", FINAL, 1, 1), got("s", FINAL, 2, 2)]);
        lines
    }

    fn log_with(more: &[String]) -> Vec<&'static str> {
        kinds(&[&log()[..], more].concat())
    }

    #[test]
    fn good_histories_have_no_violation() {
        assert_eq!(log_with(&[]), [""; 0]);
        let found = &check(&events(&log().join("\n")))[0];
        assert_eq!((found.acknowledged, found.unknown, found.lost, found.stall_ms), (2, 2, 0, 10));
    }

    #[test]
    fn planted_violations_of_a_log_are_found() {
        assert_eq!(log_with(&[sent("s", 5, "ok")]), ["lost"]);
        assert_eq!(log_with(&[got("s", FINAL, 3, 2)]), ["duplicated"]);
        assert_eq!(log_with(&[got("s", FINAL, 3, 9)]), ["never sent"]);
        assert_eq!(log_with(&[sent("s", 7, "ok"), got("s", FINAL, 3, 7), got("s", FINAL, 4, 3)]), ["reordered"]);
        assert_eq!(log_with(&[got("s", "live", 3, 3)]), ["read and lost"]);
        assert_eq!(log_with(&[got("s", "live", 1, 2)]), ["read and lost"]);
        assert_eq!(log_with(&[sent("other", 1, "ok")]), ["not declared"]);
        assert_eq!(kinds(&[stream("s", LOG)]), ["nothing acknowledged"]);
    }

    #[test]
    fn planted_violations_of_a_group_are_found() {
        let group = [got("s", GROUP, 0, 0), got("s", GROUP, 1, 1), got("s", GROUP, 1, 1), committed("committed", 2)];
        let with = |more: &[String]| log_with(&[&group[..], &[got("s", GROUP, 2, 2)], more].concat());
        assert_eq!(with(&[committed("position", 2)]), [""; 0]);
        assert_eq!(with(&[committed("position", 1)]), ["commit lost"]);
        assert_eq!(with(&[got("s", GROUP, 1, 1)]), ["received after its commit"]);
        assert_eq!(log_with(&group), ["skipped by the group"]);
    }

    #[test]
    fn a_group_has_the_items_of_the_stream_that_it_reads() {
        let of = |read: &[String]| {
            let source = [stream("s", LOG), sent("s", 0, "ok"), got("s", FINAL, 0, 0)];
            let declared = stream("t", r#","log":true,"numbered":true,"from":"s""#);
            let done = committed("committed", 1).replace(r#""s""#, r#""t""#);
            kinds(&[&source[..], &[declared], read, &[done]].concat())
        };
        let both = |number| [got("t", GROUP, 0, number), got("t", FINAL, 0, number)];
        assert_eq!(of(&both(0)), [""; 0]);
        assert_eq!(of(&[]), ["not transformed"]);
        assert_eq!(of(&both(1)), ["not transformed", "not in its source"]);
    }

    #[test]
    fn planted_violations_of_a_queue_are_found() {
        let queue = |promises: &str, more: &[String]| {
            let first =
                [stream("s", promises), sent("s", 0, "ok"), got("s", "a", 0, 0), got("s", "a", 0, 0), settled(0)];
            kinds(&[&first[..], more].concat())
        };
        assert_eq!(queue("", &[]), [""; 0]);
        assert_eq!(queue("", &[got("s", "a", 0, 0)]), ["received after its acknowledgement"]);
        assert_eq!(queue("", &[got("s", "a", 1, 0)]), [""; 0]);
        assert_eq!(queue(r#","numbered":true"#, &[got("s", "a", 1, 0)]), ["duplicated"]);
        assert_eq!(queue("", &[sent("s", 1, "ok")]), ["lost"]);
        let taken = r#"{"op":"taken","stream":"s"}"#.to_owned();
        assert_eq!(queue("", &[sent("s", 1, "ok"), taken.clone()]), [""; 0]);
        assert_eq!(queue("", &[sent("s", 1, "ok"), sent("s", 2, "ok"), taken]), ["lost"]);
    }

    #[test]
    fn an_item_has_to_be_transformed_once() {
        let of = |out: &[String]| {
            let source = [stream("s", LOG), sent("s", 0, "ok"), sent("s", 1, "unknown"), got("s", FINAL, 0, 0)];
            let source = [&source[..], &[got("s", FINAL, 1, 1)]].concat();
            let declared = stream("t", r#","log":true,"numbered":true,"from":"s""#);
            kinds(&[&source[..], &[declared, sent("t", 0, "ok"), sent("t", 1, "unknown")], out].concat())
        };
        assert_eq!(of(&[got("t", FINAL, 0, 0), got("t", FINAL, 2, 1)]), [""; 0]);
        assert_eq!(of(&[got("t", FINAL, 0, 0)]), ["not transformed"]);
        let added = [got("t", FINAL, 0, 0), got("t", FINAL, 1, 1), sent("t", 2, "ok"), got("t", FINAL, 2, 2)];
        assert_eq!(of(&added), ["not in its source"]);
        assert_eq!(of(&[got("t", FINAL, 0, 0), got("t", FINAL, 2, 1), got("t", FINAL, 3, 1)]), ["duplicated"]);
    }

    #[test]
    fn planted_violations_of_a_register_are_found() {
        let register = |more: &[String]| {
            let first = [stream("s", ""), wrote(1, "ok"), read(1), wrote(2, "unknown"), wrote(3, "unknown"), read(2)];
            kinds(&[&first[..], more].concat())
        };
        assert_eq!(register(&[read(3), read(3), wrote(4, "ok"), read(4)]), [""; 0]);
        assert_eq!(register(&[read(1)]), ["wrong value"]);
        assert_eq!(register(&[wrote(4, "ok"), read(3)]), ["wrong value"]);
        assert_eq!(register(&[read(4)]), ["wrong value"]);
    }

    #[test]
    fn planted_violations_of_a_counter_are_found() {
        let counter = |more: &[String]| {
            let first = [stream("s", ""), added(Some(1)), added(None), added(None)];
            kinds(&[&first[..], more].concat())
        };
        assert_eq!(counter(&[added(Some(3)), counted(4), added(Some(5)), counted(5)]), [""; 0]);
        assert_eq!(counter(&[added(Some(1))]), ["wrong count"]);
        assert_eq!(counter(&[added(Some(5))]), ["wrong count"]);
        assert_eq!(counter(&[counted(3), counted(2)]), ["wrong count"]);
        assert_eq!(counter(&[counted(4)]), ["wrong count"]);
    }
}
