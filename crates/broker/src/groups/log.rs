//! The topic of offsets: the durable state of groups is appended to it, and restored from it on startup.

use std::collections::HashMap;

use engine::Result;
use engine::groups::{Group, GroupName, Now, OffsetsRecord};

use crate::commit::{Appended, Commit};
use crate::core::Core;
use crate::state_log::StateLog;
use crate::wakes::Wakes;

/// Offsets and state of groups.
pub(super) const OFFSETS: StateLog<OffsetsRecord> = StateLog::new();

/// Appends records of a group, in this order. A caller that holds the group's lock during the call excludes other
/// records of the group in between.
pub(super) fn append_offsets(
    core: &Core,
    group: &GroupName,
    records: impl IntoIterator<Item = OffsetsRecord>,
    wakes: &mut Wakes,
) -> Result<Appended> {
    OFFSETS.append(core, core.shards().home_of_name(group.as_str().as_bytes()), records, wakes)
}

/// Returns the commit of all records that a group has so far.
pub(super) fn settled_offsets(core: &Core, group: &GroupName) -> Result<Commit> {
    OFFSETS.settled(core, core.shards().home_of_name(group.as_str().as_bytes()))
}

/// Returns all groups as recorded. The sessions of their members begin when all is read.
pub(super) async fn read_groups(core: &Core, now: impl Fn() -> Now) -> Result<HashMap<GroupName, Group>> {
    let begun = now();
    let mut groups = HashMap::new();
    let each = |record, _| {
        restore(&mut groups, record, begun);
        Ok(())
    };
    OFFSETS.fold(core, each).await?;
    groups.values_mut().for_each(|group| group.restored(now()));
    Ok(groups)
}

fn restore(groups: &mut HashMap<GroupName, Group>, record: OffsetsRecord, now: Now) {
    let name = record.group().clone();
    if matches!(record, OffsetsRecord::Group { saved: None, .. }) {
        // The group was deleted, with all its offsets.
        groups.remove(&name);
        return;
    }
    if record.value().is_none() && !groups.contains_key(&name) {
        return;
    }
    let group = groups.entry(name.clone()).or_insert_with(|| Group::new(name, now));
    match record {
        OffsetsRecord::Offset { change, .. } => group.restore_offset(change),
        OffsetsRecord::Group { saved, .. } => saved.into_iter().for_each(|saved| group.restore(saved)),
        OffsetsRecord::Generation { saved, .. } => group.restore_generation(saved, now),
        OffsetsRecord::Member { member, saved, .. } => group.restore_member(member, saved),
    }
}
