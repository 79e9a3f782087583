//! The topic of offsets: the durable state of groups is appended to it, and restored from it on startup.

use std::collections::HashMap;

use engine::groups::{Group, GroupName, Now, OFFSETS_TOPIC, OffsetsRecord};
use engine::{Result, partitioner};

use crate::broker::Broker;
use crate::internal::Appended;
use crate::publish::Wakes;
use crate::topics::Topic;

impl Broker {
    /// Appends records to the topic, in this order. A caller that holds the group's lock during the call excludes other
    /// records of the group in between.
    pub(super) fn append_offsets(
        &self,
        topic: &Topic,
        group: &GroupName,
        records: impl IntoIterator<Item = OffsetsRecord>,
        wakes: &mut Wakes,
    ) -> Result<Appended> {
        // All records of a group are in one partition.
        let partition = partitioner::for_key(group.as_str().as_bytes(), topic.partitions().len() as u32);
        let records = records.into_iter().map(|record| (record.key(), record.value()));
        self.append_internal(topic, partition, records, wakes)
    }

    /// Returns all groups as recorded in the topic.
    pub(super) async fn read_groups(&self, now: Now) -> Result<HashMap<GroupName, Group>> {
        let mut groups = HashMap::new();
        if let Ok(topic) = self.topic(OFFSETS_TOPIC) {
            let each = |key: &[u8], value: Option<&[u8]>| {
                restore(&mut groups, OffsetsRecord::decode(key, value)?, now);
                Ok(())
            };
            self.read_internal(&topic, each).await?;
        }
        Ok(groups)
    }
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
    }
}
