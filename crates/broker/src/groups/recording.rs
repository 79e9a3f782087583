//! Members in the topic of offsets: a change of them is recorded when it is made, and nobody acts on it before the
//! record is committed, so that a restart or another node knows what any member was told.

use engine::Error;

use super::log::{append_offsets, settled_offsets};
use super::{Cell, Groups, Outcome, State};
use crate::core::Core;
use crate::wakes::Wakes;

impl State {
    /// Appends the records about members that are missing in the topic of offsets. After an error, the next change
    /// tries again; until then, no member gets an answer that depends on them.
    pub(super) fn record(&mut self, core: &Core, wakes: &mut Wakes) {
        if self.is_gone || self.group.is_recorded() {
            return;
        }
        match append_offsets(core, self.group.name(), self.group.to_records(), wakes) {
            Ok(appended) => {
                self.group.recorded();
                if !appended.commit.is_done() {
                    self.unsettled = Some(appended.position);
                }
            }
            Err(error) => {
                tracing::warn!(group = %self.group.name(), %error, "the members of a group are not recorded");
            }
        }
    }
}

impl Groups {
    /// Compares the subscriptions of a group with the topics that have changed. Those of a group that was restored are
    /// not known before, nor which partitions belong to nobody.
    pub(super) async fn refresh(&self, cell: &Cell) -> Outcome {
        let topics = self.topics();
        let is_outdated = cell.state.lock().group.is_outdated(&topics);
        if is_outdated {
            self.change(cell, false, |group| group.refresh(&topics)).await?;
            self.resolve(cell).await?;
        }
        Ok(())
    }

    /// Waits until all members and their assignments are recorded. The lock is not held in the meantime.
    pub(super) async fn recorded(&self, cell: &Cell) -> Outcome {
        let position = {
            let state = cell.state.lock();
            if !state.group.is_recorded() {
                let message = format!("the members of group {} could not be recorded: try again", cell.name);
                return Err(Error::busy(message).into());
            }
            state.unsettled
        };
        let Some(position) = position else {
            return Ok(());
        };
        settled_offsets(&self.core, &cell.name)?.wait().await?;
        let mut state = cell.state.lock();
        state.unsettled = state.unsettled.filter(|newest| *newest > position);
        Ok(())
    }
}
