//! Report of the demonstration, for people and for programs.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use super::digest::Digest;
use super::reader::{Latencies, Sample, Tally};

/// Maximum number of characters shown of a record.
const SHOWN_CHARS: usize = 64;

pub(super) struct Report {
    pub title: String,
    pub origin: String,
    pub topic: String,
    /// Digest of the records written into the pipe.
    pub source: Digest,
    /// Time from the start of `thalweg publish` to its end.
    pub publish_time: Duration,
    /// Time from the start of `thalweg publish` to the last record that any subscriber received.
    pub elapsed: Duration,
    pub subscribers: Vec<Tally>,
    pub pattern: Tally,
    pub group: Vec<Tally>,
    /// File with the records, for the commands that the report proposes.
    pub file: Option<String>,
}

impl Report {
    /// Returns the subscribers that must receive all records.
    fn everyone(&self) -> impl Iterator<Item = &Tally> {
        self.subscribers.iter().chain([&self.pattern])
    }

    fn group_digest(&self) -> Digest {
        let mut sum = Digest::default();
        self.group.iter().for_each(|member| sum.merge(&member.digest));
        sum
    }

    fn delivered(&self) -> Digest {
        let mut sum = self.group_digest();
        self.everyone().for_each(|tally| sum.merge(&tally.digest));
        sum
    }

    /// Returns the number of records that a subscriber, or the group, should have received but did not.
    fn lost(&self) -> u64 {
        let missing = |digest: &Digest| self.source.records.saturating_sub(digest.records);
        self.everyone().map(|tally| missing(&tally.digest)).sum::<u64>() + missing(&self.group_digest())
    }

    /// Returns `true` if every subscriber received the same values in the same order, and the group received each value
    /// once.
    fn is_same(&self) -> bool {
        self.everyone().all(|tally| tally.digest == self.source && tally.is_in_order)
            && self.group_digest().has_same_values(&self.source)
            && self.group.iter().all(|member| member.is_in_order)
    }

    /// Returns a description of the failure, if there was one.
    pub(super) fn complaint(&self) -> Option<String> {
        match (self.lost(), self.is_same()) {
            (0, true) => None,
            (0, false) => {
                Some("records were duplicated, altered or out of order; this is a defect, please report it".into())
            }
            (lost, _) => Some(format!("{} records were lost; this is a defect, please report it", grouped(lost))),
        }
    }

    fn latencies(&self) -> Latencies {
        let mut all = Latencies::default();
        self.everyone().chain(&self.group).for_each(|tally| all.merge(&tally.latencies));
        all
    }

    fn samples(&self) -> Vec<&Sample> {
        let Some(first) = self.subscribers.first() else {
            return Vec::new();
        };
        let is_new = |last: &&Sample| first.samples.iter().all(|sample| sample.offset < last.offset);
        first.samples.iter().chain(first.last.as_ref().filter(is_new)).collect()
    }

    fn rates(&self) -> (f64, f64) {
        let delivered = self.delivered();
        let seconds = self.elapsed.as_secs_f64().max(1e-9);
        (delivered.records as f64 / seconds, delivered.bytes as f64 / 1e6 / seconds)
    }

    pub(super) fn to_json(&self) -> Value {
        let latencies = self.latencies();
        let (records_per_s, megabytes_per_s) = self.rates();
        let sample =
            |sample: &&Sample| json!({ "offset": sample.offset, "value": String::from_utf8_lossy(&sample.value) });
        json!({
            "data_set": self.title,
            "origin": self.origin,
            "topic": self.topic,
            "records": self.source.records,
            "bytes": self.source.bytes,
            "subscribers": self.subscribers.len(),
            "pattern_subscribers": 1,
            "group_records": self.group.iter().map(|member| member.digest.records).collect::<Vec<_>>(),
            "publish_seconds": self.publish_time.as_secs_f64(),
            "seconds": self.elapsed.as_secs_f64(),
            "delivered": self.delivered().records,
            "delivered_per_s": records_per_s,
            "delivered_megabytes_per_s": megabytes_per_s,
            "latency_ms": {
                "p50": latencies.quantile(0.5),
                "p99": latencies.quantile(0.99),
                "max": latencies.quantile(1.0),
            },
            "lost": self.lost(),
            "is_same": self.is_same(),
            "samples": self.samples().iter().map(sample).collect::<Vec<_>>(),
        })
    }

    fn write_check(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_same() {
            let members: Vec<String> = self.group.iter().map(|member| grouped(member.digest.records)).collect();
            writeln!(f, "  checked    every subscriber received every record, in order and unaltered;")?;
            writeln!(f, "             the two of the group shared them, {}, none twice", members.join(" and "))?;
        } else {
            writeln!(f, "  checked    THE RECEIVED RECORDS ARE NOT THE PUBLISHED ONES")?;
            for (i, tally) in self.everyone().enumerate().filter(|(_, tally)| tally.digest != self.source) {
                let order = if tally.is_in_order { "" } else { ", offsets out of order" };
                writeln!(f, "             subscriber {}: {} records{order}", i + 1, grouped(tally.digest.records))?;
            }
        }
        writeln!(f, "  lost       {}", grouped(self.lost()))
    }

    fn write_next(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let publish = match &self.file {
            Some(file) => format!("thalweg publish {} --file {file}", self.topic),
            None => format!("echo hello | thalweg publish {}", self.topic),
        };
        writeln!(f, "Next, each in its own terminal:")?;
        for (command, what) in [
            ("thalweg serve", "a broker that keeps running"),
            (&format!("thalweg subscribe {}", self.topic), "prints new records"),
            (&publish, "publishes each line"),
        ] {
            writeln!(f, "  {command:<50}  # {what}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (records_per_s, megabytes_per_s) = self.rates();
        let seconds = self.elapsed.as_secs_f64();
        let latencies = self.latencies();
        let source = &self.source;
        let delivered = self.delivered();
        writeln!(f, "{} {}, from {}", grouped(source.records), self.title, self.origin)?;
        writeln!(f)?;
        writeln!(f, "  the data | thalweg publish {} -> a broker in another process, over QUIC", self.topic)?;
        let count = self.subscribers.len();
        let plural = if count == 1 { "" } else { "s" };
        writeln!(
            f,
            "    -> {count} subscriber{plural}, one of the pattern *, a queue group of {} in this process",
            self.group.len()
        )?;
        writeln!(f)?;
        let publish_s = self.publish_time.as_secs_f64();
        writeln!(f, "  published  {} records, {} in {publish_s:.2} s", grouped(source.records), size(source.bytes))?;
        let total = size(delivered.bytes);
        writeln!(f, "  delivered  {} records, {total} in {seconds:.2} s", grouped(delivered.records))?;
        writeln!(f, "             {} records/s, {megabytes_per_s:.1} MB/s", grouped(records_per_s as u64))?;
        if let (Some(p50), Some(p99)) = (latencies.quantile(0.5), latencies.quantile(0.99)) {
            writeln!(f, "  latency    p50 {p50} ms, p99 {p99} ms, from publisher to subscriber at full speed")?;
        }
        self.write_check(f)?;
        writeln!(f)?;
        for sample in self.samples() {
            writeln!(f, "  {:>9}  {}", grouped(sample.offset), shown(&sample.value))?;
        }
        writeln!(f)?;
        self.write_next(f)
    }
}

/// Formats a number with commas between the thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn size(bytes: u64) -> String {
    if bytes < 1_000_000 { format!("{:.1} kB", bytes as f64 / 1e3) } else { format!("{:.1} MB", bytes as f64 / 1e6) }
}

/// Returns a value as one line. Control characters are replaced, as they could affect the terminal.
fn shown(value: &[u8]) -> String {
    let text = String::from_utf8_lossy(value);
    let mut line: String = text.chars().take(SHOWN_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(SHOWN_CHARS).is_some() {
        line.push_str("...");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(values: &[&str]) -> Tally {
        let mut tally = Tally { is_in_order: true, ..Tally::default() };
        values.iter().for_each(|value| tally.digest.add(value.as_bytes()));
        tally
    }

    fn report(subscriber: &[&str], group: [&[&str]; 2]) -> Report {
        Report {
            title: "letters".into(),
            origin: "here".into(),
            topic: "letters".into(),
            source: tally(&["a", "b", "c"]).digest,
            publish_time: Duration::from_secs(1),
            elapsed: Duration::from_secs(2),
            subscribers: vec![tally(&["a", "b", "c"]), tally(subscriber)],
            pattern: tally(&["a", "b", "c"]),
            group: group.map(tally).into(),
            file: None,
        }
    }

    #[test]
    fn only_a_whole_delivery_is_fine() {
        let whole = report(&["a", "b", "c"], [&["b"], &["a", "c"]]);
        assert_eq!(whole.complaint(), None);
        assert_eq!(whole.to_json()["delivered_per_s"], 6.0);
        for (subscriber, group, lost) in [
            (&["a", "c"][..], [&["b"][..], &["a", "c"][..]], 1),
            (&["a", "b", "c"], [&[], &["a", "c"]], 1),
            (&["a", "c", "b"], [&["b"], &["a", "c"]], 0),
            (&["a", "b", "c"], [&["a", "b"], &["a", "c"]], 0),
            (&["a", "b", "x"], [&["b"], &["a", "c"]], 0),
        ] {
            let report = report(subscriber, group);
            assert_eq!(report.lost(), lost);
            assert!(report.complaint().is_some(), "{subscriber:?} {group:?}");
        }
    }

    #[test]
    fn numbers_and_records_are_readable() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (231_083, "231,083"), (1_234_567, "1,234,567")]
        {
            assert_eq!(grouped(number), text);
        }
        assert_eq!(shown(b"a\x1b[2Jb"), "a [2Jb");
        assert_eq!(shown(&[b'x'; 200]).len(), SHOWN_CHARS + 3);
    }
}
