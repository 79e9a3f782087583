//! Examination of records for a queue: which offsets hold no message of it, and which messages are delayed. It takes no
//! lock. Only its findings are applied under the lock of a partition, a slice at a time.

use std::ops::Range;
use std::sync::Arc;

use engine::queue::{DELAY_MS_MAX, QueueDefinition, header, header_of, text_of};
use engine::{Offset, RecordBatch, Records};

/// Maximum number of records of a slice.
pub(crate) const SLICE_RECORDS: usize = 4096;

/// Rules that decide which records are messages of a queue, and when they are delivered.
pub(crate) struct Rules {
    pub(super) definition: Arc<QueueDefinition>,
    /// `true` if messages may have their own due time.
    pub(super) has_delays: bool,
}

impl Rules {
    /// Returns `true` if each record has to be examined.
    pub(super) fn need_records(&self) -> bool {
        let settings = &self.definition.settings;
        self.has_delays || settings.delay_ms > 0 || settings.filter.is_some()
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// These offsets hold no message of the queue.
    Void(Range<Offset>),
    /// The message at this offset is delayed until this time, in ms since 1970.
    Delayed(Offset, u64),
}

/// Findings about the offsets from `from` up to `until`, in ascending order. The other offsets hold messages.
pub(crate) struct Examined {
    pub(crate) from: Offset,
    pub(crate) until: Offset,
    pub(super) findings: Vec<Finding>,
}

impl Examined {
    fn add_void(&mut self, range: Range<Offset>) {
        match self.findings.last_mut() {
            _ if range.is_empty() => {}
            Some(Finding::Void(last)) if last.end == range.start => last.end = range.end,
            _ => self.findings.push(Finding::Void(range)),
        }
    }
}

/// Examination of one batch, in slices.
pub(crate) struct Examination<'a> {
    rules: &'a Rules,
    now_ms: u64,
    /// Offset up to which everything is examined.
    at: Offset,
    base: Offset,
    end: Offset,
    holds: Holds,
}

/// Contents of a batch.
enum Holds {
    Nothing,
    /// A message at each offset.
    Messages,
    /// Records that are examined. With `true`, compaction has removed some.
    Records(Records, bool),
}

impl<'a> Examination<'a> {
    /// Begins at `from`, which may be before the batch: no batch holds the offsets in between.
    pub(crate) fn new(rules: &'a Rules, batch: &RecordBatch, from: Offset, is_aborted: bool, now_ms: u64) -> Self {
        let base = batch.base_offset().max(from);
        let end = batch.next_offset();
        let is_sparse = u64::from(batch.count()) < end - batch.base_offset();
        let holds = if is_aborted || batch.is_control() {
            Holds::Nothing
        } else if rules.need_records() || is_sparse {
            batch.records_from(base).map_or_else(
                |error| {
                    tracing::warn!(queue = %rules.definition.name, %error, "a batch holds no readable messages");
                    Holds::Messages
                },
                |records| Holds::Records(records, is_sparse),
            )
        } else {
            Holds::Messages
        };
        Self { rules, now_ms, at: from, base, end, holds }
    }

    /// Examines the next records, at most [`SLICE_RECORDS`]. Returns `None` at the end of the batch.
    pub(crate) fn next_slice(&mut self) -> Option<Examined> {
        if self.at >= self.end {
            return None;
        }
        let mut slice = Examined { from: self.at, until: self.end, findings: Vec::new() };
        slice.add_void(self.at..self.base.min(self.end));
        self.at = self.at.max(self.base);
        match &mut self.holds {
            Holds::Nothing => slice.add_void(self.at..self.end),
            Holds::Messages => {}
            Holds::Records(records, is_sparse) => {
                for _ in 0..SLICE_RECORDS {
                    let Some(Ok(view)) = records.advance() else {
                        if *is_sparse {
                            slice.add_void(self.at..self.end);
                        }
                        self.at = self.end;
                        return Some(slice);
                    };
                    if *is_sparse {
                        slice.add_void(self.at..view.offset);
                    }
                    self.at = view.offset + 1;
                    let settings = &self.rules.definition.settings;
                    if let Some(filter) = &settings.filter {
                        // It may test many attributes: they are decoded once.
                        let headers: Vec<_> = view.headers().collect();
                        if !filter.matches(|name| text_of(&headers, name)) {
                            slice.add_void(view.offset..view.offset + 1);
                            continue;
                        }
                    }
                    let own = header_of(&view, header::DUE).and_then(|due| due.parse().ok());
                    let sent_ms = view.timestamp_ms.max(0) as u64;
                    let due_ms = own.unwrap_or_else(|| sent_ms.saturating_add(settings.delay_ms));
                    if due_ms > self.now_ms {
                        let due_ms = due_ms.min(self.now_ms + DELAY_MS_MAX);
                        slice.findings.push(Finding::Delayed(view.offset, due_ms));
                    }
                }
                slice.until = self.at;
                return Some(slice);
            }
        }
        self.at = self.end;
        Some(slice)
    }
}
