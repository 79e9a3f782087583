//! State of a group in the topic of offsets: what is recorded of it, and how it is restored.

use super::generation::SavedGeneration;
use super::group::{Group, Now};
use super::offsets::Change;
use super::record::{OffsetsRecord, SavedGroup};

/// Number of epochs that one record in the topic of offsets allows.
const EPOCH_BLOCK: u32 = 1024;
/// Maximum number of epochs that begin with one change: the topics are resolved, and then members are removed.
const EPOCHS_PER_CHANGE: u32 = 2;

impl Group {
    /// Returns the state that has to be in the topic of offsets before the next change. Epochs are assigned only up to
    /// a persisted bound, so that none is assigned twice, even after a restart.
    pub fn to_save(&self, is_joining: bool) -> Option<SavedGroup> {
        let empty_since_ms = self.empty_since_ms.filter(|_| !is_joining);
        let has_room = |bound: &u32| *bound >= self.epoch + EPOCHS_PER_CHANGE;
        let bound = self.saved.map(|saved| saved.epoch_bound).filter(has_room);
        let wanted = SavedGroup { epoch_bound: bound.unwrap_or(self.epoch + EPOCH_BLOCK), empty_since_ms };
        Some(wanted).filter(|wanted| self.saved.as_ref() != Some(wanted))
    }

    pub fn saved(&mut self, saved: SavedGroup) {
        self.saved = Some(saved);
    }

    /// Restores the state of the group before a restart of the broker, without its members: classic ones are restored
    /// next, and others have to join again.
    pub fn restore(&mut self, saved: SavedGroup) {
        self.epoch = saved.epoch_bound;
        // A group that had members then counts as empty only from now on: they may return.
        self.empty_since_ms = saved.empty_since_ms.or(self.empty_since_ms);
        self.saved = Some(saved);
    }

    /// Restores the classic members with their assignments; `None` if they are void.
    pub fn restore_generation(&mut self, saved: Option<SavedGeneration>, now: Now) {
        self.classic.restore(saved, now);
        self.note_classic(now);
    }

    /// Returns `true` if the topic of offsets has the classic members and their assignments. No member may receive an
    /// assignment before it has, and before that record is committed.
    pub fn is_recorded(&self) -> bool {
        self.classic.is_recorded()
    }

    /// Returns the record about the classic members.
    pub fn to_record(&self) -> OffsetsRecord {
        OffsetsRecord::Generation { group: self.name.clone(), saved: self.classic.to_record() }
    }

    /// Notes that the record about the classic members was appended.
    pub fn recorded(&mut self) {
        self.classic.recorded();
    }

    /// Restores a change from the topic of offsets.
    pub fn restore_offset(&mut self, change: Change) {
        self.offsets.apply(change);
    }
}
