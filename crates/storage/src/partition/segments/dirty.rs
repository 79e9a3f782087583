//! Selection of the segments of a partition that are due for compaction.

use engine::{Offset, Result};

use super::{Segment, Segments};
use crate::info::{CompactionSettings, SegmentInfo};

impl Segments {
    /// Returns `true` if the oldest segment that is not compacted has exceeded the maximum lag. Segments up to `to` are
    /// compacted.
    fn is_overdue(&mut self, to: Offset, settings: &CompactionSettings, now_ms: u64) -> Result<bool> {
        let is_dirty = |segment: &Segment| segment.info.end > to && segment.info.bytes > 0;
        match self.list.iter().position(is_dirty).filter(|_| settings.lag_ms.1 > 0) {
            Some(at) => Ok(self.first_ms(at)?.is_some_and(|first_ms| first_ms < before(now_ms, settings.lag_ms.1))),
            None => Ok(false),
        }
    }

    /// Returns `true` if enough bytes were appended after `to`, up to which all is compacted.
    fn is_compaction_due(&self, to: Offset, dirty_bytes_min: u64) -> bool {
        let dirty = self.list.iter().filter(|segment| segment.info.end > to);
        let dirty: u64 = dirty.map(|segment| segment.info.bytes).sum();
        dirty >= dirty_bytes_min.max(1) && dirty * 2 >= self.bytes()
    }

    /// Closes the growing segment if it is worth compacting. Returns `true` if segments have to become durable first.
    pub(crate) fn close_to_compact(&mut self, to: Offset, settings: &CompactionSettings, now_ms: u64) -> Result<bool> {
        let dirty_bytes_min = settings.dirty_bytes_min;
        if !self.is_compaction_due(to, dirty_bytes_min) && !self.is_overdue(to, settings, now_ms)? {
            return Ok(false);
        }
        let grows = self.list.back().map(|growing| growing.info);
        let is_overdue = match grows {
            Some(SegmentInfo { base, end, .. }) if end > to => self.is_overdue(base.max(to), settings, now_ms)?,
            _ => false,
        };
        if let Some(SegmentInfo { end, bytes, .. }) = grows.filter(|info| may_compact(info, settings, now_ms))
            && (bytes >= dirty_bytes_min.max(1) || (is_overdue && bytes > 0))
        {
            self.roll(end, now_ms)?;
        }
        Ok(self.sealed().any(Segment::is_dirty))
    }

    fn sealed(&self) -> impl Iterator<Item = &Segment> {
        self.list.iter().take(self.list.len().saturating_sub(1))
    }

    /// Returns the segments to compact, if it is worthwhile: from the oldest one on, all consecutive sealed, durable
    /// and stable segments.
    pub(crate) fn compactable(
        &mut self,
        to: Offset,
        stable_end: Offset,
        settings: &CompactionSettings,
        now_ms: u64,
    ) -> Result<Vec<SegmentInfo>> {
        let is_due = self.is_compaction_due(to, settings.dirty_bytes_min) || self.is_overdue(to, settings, now_ms)?;
        let is_ready = |segment: &&Segment| {
            !segment.is_dirty() && segment.info.end <= stable_end && may_compact(&segment.info, settings, now_ms)
        };
        let mut sources: Vec<SegmentInfo> = self.sealed().take_while(is_ready).map(|segment| segment.info).collect();
        let is_news = sources.last().is_some_and(|newest| newest.end > to);
        if !is_news || !is_due {
            sources.clear();
        }
        Ok(sources)
    }
}

/// Returns the time `ms` before now, in ms since 1970.
fn before(now_ms: u64, ms: u64) -> i64 {
    now_ms.saturating_sub(ms).min(i64::MAX as u64) as i64
}

/// Returns `true` if all records of a segment have reached the minimum compaction lag.
fn may_compact(info: &SegmentInfo, settings: &CompactionSettings, now_ms: u64) -> bool {
    settings.lag_ms.0 == 0 || info.timestamp_ms_max <= before(now_ms, settings.lag_ms.0)
}
