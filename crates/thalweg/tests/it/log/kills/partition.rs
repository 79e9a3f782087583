//! Model of a partition: the records that were sent to it, those that were acknowledged, and those that it has.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use client::{Client, Offset, PartitionId};

use super::Outcome;
use super::site::{number, text};
use crate::support::server::within;

/// Bytes of checked records that a partition keeps for the complete checks. Older ones are deleted.
const KEPT_BYTES: u64 = 64 << 20;

/// Answer to a record that was sent, as far as it is known.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Unknown,
    Acknowledged,
    AcknowledgedAt(Offset),
}

/// Records of one partition. They are numbered in the order in which they are sent.
pub struct Partition {
    topic: &'static str,
    id: PartitionId,
    record_bytes: usize,
    /// Offsets of the records that the last check found.
    checked: Range<Offset>,
    /// Offsets at which a sequence of records with successive numbers begins, and the first of these numbers.
    runs: Vec<(Offset, u64)>,
    /// Records since the last check, and the number of the first of them.
    fates: Vec<Fate>,
    first: u64,
    /// Number after that of the last record that this check has found.
    next: u64,
}

impl Partition {
    pub fn new(topic: &'static str, id: PartitionId, record_bytes: usize) -> Self {
        Self { topic, id, record_bytes, checked: 0..0, runs: Vec::new(), fates: Vec::new(), first: 0, next: 0 }
    }

    /// Returns the next record to send, and its number.
    pub fn send(&mut self) -> (u64, Bytes) {
        let number = self.end();
        self.fates.push(Fate::Unknown);
        (number, self.value(number).into())
    }

    /// Notes that a record was acknowledged, at this offset if the door reports it.
    pub fn acknowledge(&mut self, number: u64, offset: Option<Offset>) {
        let fate = offset.map_or(Fate::Acknowledged, Fate::AcknowledgedAt);
        self.fates[(number - self.first) as usize] = fate;
    }

    /// Returns the number of records that the partition has.
    pub fn len(&self) -> u64 {
        self.checked.end - self.checked.start
    }

    /// Number of the record that is sent next.
    fn end(&self) -> u64 {
        self.first + self.fates.len() as u64
    }

    fn name(&self) -> String {
        format!("{}/{}", self.topic, self.id)
    }

    fn value(&self, number: u64) -> String {
        text(&self.name(), number, self.record_bytes)
    }

    /// Checks the records since the last check, or all of them if `is_complete`.
    pub async fn check(&mut self, client: &Client, is_complete: bool) -> Outcome {
        let mut at = if is_complete { self.checked.start } else { self.checked.end };
        loop {
            let fetch = client.fetch(self.topic, self.id, at, Duration::ZERO);
            let (start, end, batches) = within("records", fetch).await.map_err(|error| error.to_string())?;
            if start != self.checked.start {
                return Err(format!("partition {} begins at offset {start}, not {}", self.id, self.checked.start));
            }
            for batch in &batches {
                let records = batch.records_from(at).map_err(|error| error.to_string())?;
                for record in &records {
                    let record = record.map_err(|error| error.to_string())?;
                    if record.offset == at {
                        self.see(at, record.value.unwrap_or_default())?;
                        at += 1;
                    }
                }
                if at != batch.next_offset() {
                    return Err(format!("partition {} has no record at offset {at}", self.id));
                }
            }
            if at == end {
                break;
            }
            if batches.is_empty() {
                return Err(format!("partition {} has no batch at offset {at}, and ends at {end}", self.id));
            }
        }
        if at < self.checked.end {
            return Err(format!("partition {} ends at offset {at}, not {}", self.id, self.checked.end));
        }
        self.absent(self.next..self.end()).map_err(|what| format!("partition {}: {what}", self.id))?;
        self.first = self.end();
        self.next = self.first;
        self.fates.clear();
        Ok(())
    }

    /// Checks the record at an offset.
    fn see(&mut self, offset: Offset, value: &[u8]) -> Outcome {
        let seen = if offset < self.checked.end { self.see_again(offset, value) } else { self.see_new(offset, value) };
        seen.map_err(|what| format!("partition {} at offset {offset}: {what}", self.id))
    }

    fn see_again(&self, offset: Offset, value: &[u8]) -> Outcome {
        let number = self.number_at(offset);
        let is_same = value == self.value(number).as_bytes();
        if is_same { Ok(()) } else { Err(format!("{}, not record {number}", shown(value))) }
    }

    fn see_new(&mut self, offset: Offset, value: &[u8]) -> Outcome {
        let number = std::str::from_utf8(value).ok().and_then(|value| number(&self.name(), value));
        let number = number.filter(|number| *number < self.end() && value.len() == self.value(*number).len());
        let number = number.ok_or_else(|| format!("{}, which was never sent", shown(value)))?;
        if number < self.next {
            return Err(format!("record {number}, which is a duplicate or out of order"));
        }
        self.absent(self.next..number)?;
        if let Fate::AcknowledgedAt(promised) = self.fate(number)
            && promised != offset
        {
            return Err(format!("record {number}, which was acknowledged at offset {promised}"));
        }
        if self.runs.is_empty() || self.number_at(offset) != number {
            self.runs.push((offset, number));
        }
        self.checked.end = offset + 1;
        self.next = number + 1;
        Ok(())
    }

    fn fate(&self, number: u64) -> Fate {
        self.fates[(number - self.first) as usize]
    }

    /// Checks that none of these records, which the partition does not have, was acknowledged.
    fn absent(&self, numbers: Range<u64>) -> Outcome {
        let end = numbers.end;
        let lost: Vec<u64> = numbers.filter(|number| !matches!(self.fate(*number), Fate::Unknown)).collect();
        match lost[..] {
            [] => Ok(()),
            [first, ..] => Err(format!(
                "{} acknowledged records before record {end} are lost; the first is record {first}, {:?}",
                lost.len(),
                self.fate(first)
            )),
        }
    }

    fn number_at(&self, offset: Offset) -> u64 {
        let (begin, number) = self.runs[self.runs.partition_point(|(begin, _)| *begin <= offset) - 1];
        number + (offset - begin)
    }

    /// Deletes old records that were checked, so that long runs need a bounded disk.
    pub async fn trim(&mut self, client: &Client) -> Outcome {
        let before = self.checked.end.saturating_sub(KEPT_BYTES / self.record_bytes as u64);
        if before <= self.checked.start {
            return Ok(());
        }
        let delete = client.delete_records(self.topic, self.id, before);
        let start = within("a deletion", delete).await.map_err(|error| error.to_string())?;
        if start != before {
            return Err(format!("partition {} begins at offset {start} after a deletion before {before}", self.id));
        }
        self.checked.start = start;
        self.runs.drain(..self.runs.partition_point(|(begin, _)| *begin <= start) - 1);
        Ok(())
    }
}

/// Returns the beginning of a value, for people.
fn shown(value: &[u8]) -> String {
    format!("{} bytes '{}'", value.len(), value[..value.len().min(60)].escape_ascii())
}
