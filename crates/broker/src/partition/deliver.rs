//! Delivery of readable batches to subscribers and queues, and the notification of waiters.

use std::sync::Arc;

use engine::mesh::Groups;
use engine::{Error, Fanout, Offset, RecordBatch};
use storage::Owner;

use super::{ChosenGroups, PartitionCell};
use crate::subscriber::Subscriber;
use crate::view::QueueView;
use crate::wakes::Wakes;

/// Maximum number of records of a batch that are examined for all queues together when they become readable: the
/// partition is locked. The queues examine longer batches later.
const SEEN_ON_ARRIVAL_MAX: usize = 4096;

impl Owner for PartitionCell {
    /// Makes the batches that the journal has synced readable.
    fn committed(&self, mark: Offset) {
        let mut wakes = Wakes::default();
        let mut state = self.state.lock();
        let state = &mut *state;
        let now_ms = if state.queues.is_empty() { 0 } else { state.clock.now_ms() };
        let batches = state.log.commit(mark);
        let ready = state.traced.partition_point(|(end, _)| *end <= mark);
        state.traced.drain(..ready).for_each(|(_, finish)| finish(None));
        let stable_end = if state.queues.is_empty() { 0 } else { state.log.stable_end() };
        for batch in batches {
            let groups = groups_of(&mut state.chosen_groups, &batch);
            deliver(&mut state.fanout, &mut state.queues, &batch, &groups, stable_end, now_ms, &mut wakes);
        }
        while let Some((_, committed)) = state.uncommitted.pop_front_if(|(end, _)| *end <= mark) {
            committed.send(Ok(())).unwrap_or_default();
        }
        self.wake_fetches();
    }

    fn failed(&self, error: &Error) {
        let mut state = self.state.lock();
        // Who asks from here on would wait forever.
        state.failed.get_or_insert_with(|| Box::new(error.clone()));
        for (_, committed) in state.uncommitted.drain(..) {
            committed.send(Err(error.clone())).unwrap_or_default();
        }
        state.traced.drain(..).for_each(|(_, finish)| finish(Some(error)));
    }
}

/// Removes the groups that were chosen for a batch.
fn groups_of(chosen: &mut ChosenGroups, batch: &RecordBatch) -> Groups {
    let is_of_mesh = batch.producer().is_some_and(|producer| producer.is_mesh());
    let mut found = Groups::All;
    while let Some((offset, groups)) = chosen.pop_front_if(|(offset, _)| *offset <= batch.base_offset()) {
        // Those of a batch that was removed before it was committed are not needed.
        if is_of_mesh && offset == batch.base_offset() {
            found = groups;
        }
    }
    found
}

/// Delivers a batch to the queues, the plain subscribers and these groups.
pub(super) fn deliver(
    fanout: &mut Fanout<Arc<Subscriber>>,
    queues: &mut [QueueView],
    batch: &RecordBatch,
    groups: &Groups,
    stable_end: Offset,
    now_ms: u64,
    wakes: &mut Wakes,
) {
    let records_max = SEEN_ON_ARRIVAL_MAX / queues.len().max(1);
    for view in queues {
        view.arrive(batch, stable_end, now_ms, records_max);
        wakes.add_queue(&view.cell);
    }
    let len = batch.len();
    fanout.deliver(
        |group| groups.contains(group),
        |member| member.handle.has_room(len),
        |member| {
            if member.handle.offer(member.source, batch) {
                wakes.add(&member.handle);
            }
        },
    );
}
