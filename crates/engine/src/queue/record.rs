//! Records of the topic of queues: definitions of queues, the state of their messages, and documents of doors.
//!
//! Each record is identified by its key; the newest record of a key is valid, and one without a value deletes the key.
//! All integers are big-endian; a text is its length (2 bytes) and UTF-8.
//!
//! | Key | version | fields |
//! |---|---|---|
//! | a queue | 1 | name (text) |
//! | a message with an entry | 2 | queue (u64), partition (u32), offset (u64) |
//! | a cursor | 3 | queue (u64), partition (u32) |
//! | a document of a door | 4 | kind (text), name (text) |
//!
//! | Value | version | fields |
//! |---|---|---|
//! | a queue | 1 | id (u64), topic (text), its id (16), owns it (1), created, altered (u64 each), settings, notes |
//! | a message | 1 | phase (1), due, lease (u64 each), attempts (u32), first delivery (u64), has group (1), it (u64) |
//! | a cursor | 1 | the next offset (u64), flags (1: 1 with delays, 2 the next field), dedup from (u64) |
//! | a document | 1 | its bytes, to the end |
//!
//! Times are ms: points in time since 1970, or durations. Notes are their number (u16), and for each its name and its
//! value (texts). Settings are: lease, delay and retention (u64 each), order (1), attempts (u32), the dead-letter topic
//! (text, empty for none), shortest and longest backoff (u64 each), flags (1: 1 strict, 2 returns following messages, 4
//! keeps acknowledged messages, 8 reads uncommitted records), in flight (u32), messages and bytes (u64 each), overflow
//! (1), filter (text, empty for none), dedup (1).

use std::collections::BTreeMap;

use bytes::BufMut;

use super::{DedupRule, Entry, Filter, Order, Phase, QueueName, QueueOverflow, QueueSettings};
use crate::error::Result;
use crate::fields::{Fields, put_text, unknown_version};
use crate::ids::{Offset, PartitionId, TopicId, TopicName};
use crate::producers::Isolation;

const KEY_QUEUE: u16 = 1;
const KEY_ENTRY: u16 = 2;
const KEY_CURSOR: u16 = 3;
const KEY_DOCUMENT: u16 = 4;
const VALUE_VERSION: u16 = 1;

const STRICT: u8 = 1;
const RETURNS_FOLLOWING: u8 = 2;
const KEEPS_ACKED: u8 = 4;
const READS_UNCOMMITTED: u8 = 8;
const FLAGS: u8 = STRICT | RETURNS_FOLLOWING | KEEPS_ACKED | READS_UNCOMMITTED;

/// Unique id of a queue. A queue that is deleted and created again with the same name gets another id.
pub type QueueId = u64;

/// Definition of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueDefinition {
    pub id: QueueId,
    pub name: QueueName,
    pub topic: TopicName,
    /// Id of the topic: the queue does not belong to another topic with the same name.
    pub topic_id: TopicId,
    /// `true` if the topic was created with the queue and is deleted with it.
    pub owns_topic: bool,
    pub created_ms: u64,
    pub altered_ms: u64,
    pub settings: QueueSettings,
    /// Notes that doors keep with the queue, under names of their choice.
    pub notes: BTreeMap<String, String>,
}

/// Progress of a queue in one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Offset of the first message that was never delivered.
    pub next: Offset,
    /// `true` if some messages from there on may be delayed, which only their headers tell.
    pub has_delays: bool,
    /// Offset from which deduplication applies: messages before it may be sent again.
    pub dedup_from: Offset,
}

/// Record of the topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueRecord {
    Queue { name: QueueName, definition: Option<Box<QueueDefinition>> },
    Entry { queue: QueueId, partition: PartitionId, offset: Offset, entry: Option<Entry> },
    Cursor { queue: QueueId, partition: PartitionId, cursor: Option<Cursor> },
    Document { kind: String, name: String, value: Option<Vec<u8>> },
}

impl QueueRecord {
    pub fn key(&self) -> Vec<u8> {
        let mut key = Vec::with_capacity(32);
        match self {
            Self::Queue { name, .. } => {
                key.put_u16(KEY_QUEUE);
                put_text(&mut key, name.as_str());
            }
            Self::Entry { queue, partition, offset, .. } => {
                key.put_u16(KEY_ENTRY);
                key.put_u64(*queue);
                key.put_u32(*partition);
                key.put_u64(*offset);
            }
            Self::Cursor { queue, partition, .. } => {
                key.put_u16(KEY_CURSOR);
                key.put_u64(*queue);
                key.put_u32(*partition);
            }
            Self::Document { kind, name, .. } => {
                key.put_u16(KEY_DOCUMENT);
                put_text(&mut key, kind);
                put_text(&mut key, name);
            }
        }
        key
    }

    /// Returns `None` for a record that deletes its key.
    pub fn value(&self) -> Option<Vec<u8>> {
        let mut value = Vec::with_capacity(64);
        value.put_u16(VALUE_VERSION);
        match self {
            Self::Queue { definition, .. } => put_definition(&mut value, definition.as_ref()?),
            Self::Entry { entry, .. } => put_entry(&mut value, entry.as_ref()?),
            Self::Cursor { cursor, .. } => {
                let cursor = (*cursor)?;
                value.put_u64(cursor.next);
                value.put_u8(u8::from(cursor.has_delays) | u8::from(cursor.dedup_from > 0) << 1);
                if cursor.dedup_from > 0 {
                    value.put_u64(cursor.dedup_from);
                }
            }
            Self::Document { value: document, .. } => value.put_slice(document.as_ref()?),
        }
        Some(value)
    }

    pub fn decode(key: &[u8], value: Option<&[u8]>) -> Result<Self> {
        let mut key = Fields(key);
        let mut value = value.map(Fields);
        let kind = key.u16()?;
        if let Some(value) = &mut value {
            value.check_version("value", VALUE_VERSION)?;
        }
        let record = match kind {
            KEY_QUEUE => {
                let name = QueueName::kept(key.text()?)?;
                let definition = value.as_mut().map(|value| value.definition(name.clone())).transpose()?;
                Self::Queue { name, definition: definition.map(Box::new) }
            }
            KEY_ENTRY => Self::Entry {
                queue: key.u64()?,
                partition: key.u32()?,
                offset: key.u64()?,
                entry: value.as_mut().map(Fields::entry).transpose()?,
            },
            KEY_CURSOR => Self::Cursor {
                queue: key.u64()?,
                partition: key.u32()?,
                cursor: value.as_mut().map(Fields::cursor).transpose()?,
            },
            KEY_DOCUMENT => Self::Document {
                kind: key.text()?.into(),
                name: key.text()?.into(),
                value: value.as_mut().map(|value| std::mem::take(&mut value.0).to_vec()),
            },
            other => return Err(unknown_version("key", other)),
        };
        key.end()?;
        value.map_or(Ok(()), Fields::end)?;
        Ok(record)
    }
}

fn put_definition(out: &mut Vec<u8>, definition: &QueueDefinition) {
    out.put_u64(definition.id);
    put_text(out, definition.topic.as_str());
    out.put_slice(&definition.topic_id.to_bytes());
    out.put_u8(u8::from(definition.owns_topic));
    out.put_u64(definition.created_ms);
    out.put_u64(definition.altered_ms);
    let settings = &definition.settings;
    out.put_u64(settings.lease_ms);
    out.put_u64(settings.delay_ms);
    out.put_u64(settings.retention_ms);
    out.put_u8(settings.order as u8);
    out.put_u32(settings.attempts_max);
    put_text(out, settings.dead_letter.as_ref().map_or("", TopicName::as_str));
    out.put_u64(settings.backoff_ms.0);
    out.put_u64(settings.backoff_ms.1);
    let flags = [
        (settings.is_strict, STRICT),
        (settings.returns_following, RETURNS_FOLLOWING),
        (settings.keeps_acked, KEEPS_ACKED),
        (settings.isolation == Isolation::Uncommitted, READS_UNCOMMITTED),
    ];
    out.put_u8(flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum());
    out.put_u32(settings.in_flight_max);
    out.put_u64(settings.messages_max);
    out.put_u64(settings.bytes_max);
    out.put_u8(settings.overflow as u8);
    put_text(out, &settings.filter.as_ref().map_or(String::new(), Filter::to_string));
    out.put_u8(settings.dedup as u8);
    out.put_u16(definition.notes.len() as u16);
    for (name, value) in &definition.notes {
        put_text(out, name);
        put_text(out, value);
    }
}

fn put_entry(out: &mut Vec<u8>, entry: &Entry) {
    out.put_u8(entry.phase as u8);
    out.put_u64(entry.due_ms);
    out.put_u64(entry.lease);
    out.put_u32(entry.attempts);
    out.put_u64(entry.first_ms);
    out.put_u8(u8::from(entry.group.is_some()));
    out.put_u64(entry.group.unwrap_or(0));
}

impl Fields<'_> {
    fn cursor(&mut self) -> Result<Cursor> {
        let next = self.u64()?;
        let flags = self.code(|flags| (flags < 4).then_some(flags))?;
        Ok(Cursor { next, has_delays: flags & 1 > 0, dedup_from: if flags & 2 > 0 { self.u64()? } else { 0 } })
    }

    fn entry(&mut self) -> Result<Entry> {
        let phase = self.code(Phase::from_code)?;
        let due_ms = self.u64()?;
        let lease = self.u64()?;
        let attempts = self.u32()?;
        let first_ms = self.u64()?;
        let has_group = self.flag()?;
        let group = self.u64()?;
        Ok(Entry { phase, due_ms, lease, attempts, first_ms, group: has_group.then_some(group) })
    }

    fn definition(&mut self, name: QueueName) -> Result<QueueDefinition> {
        let id = self.u64()?;
        let topic = TopicName::parse(self.text()?)?;
        let topic_id = TopicId::new(self.u64()?, self.u64()?);
        let owns_topic = self.flag()?;
        let created_ms = self.u64()?;
        let altered_ms = self.u64()?;
        let settings = self.queue_settings()?;
        let notes = (0..self.u16()?).map(|_| Ok((self.text()?.into(), self.text()?.into())));
        Ok(QueueDefinition {
            notes: notes.collect::<Result<_>>()?,
            id,
            name,
            topic,
            topic_id,
            owns_topic,
            created_ms,
            altered_ms,
            settings,
        })
    }

    fn queue_settings(&mut self) -> Result<QueueSettings> {
        let lease_ms = self.u64()?;
        let delay_ms = self.u64()?;
        let retention_ms = self.u64()?;
        let order = self.code(Order::from_code)?;
        let attempts_max = self.u32()?;
        let dead_letter = Some(self.text()?).filter(|topic| !topic.is_empty()).map(TopicName::parse).transpose()?;
        let backoff_ms = (self.u64()?, self.u64()?);
        let flags = self.code(|flags| (flags & !FLAGS == 0).then_some(flags))?;
        let reads_uncommitted = flags & READS_UNCOMMITTED != 0;
        let in_flight_max = self.u32()?;
        let messages_max = self.u64()?;
        let bytes_max = self.u64()?;
        let overflow = self.code(QueueOverflow::from_code)?;
        let filter = Some(self.text()?).filter(|filter| !filter.is_empty()).map(Filter::parse).transpose()?;
        let settings = QueueSettings {
            lease_ms,
            delay_ms,
            retention_ms,
            order,
            attempts_max,
            dead_letter,
            backoff_ms,
            is_strict: flags & STRICT != 0,
            returns_following: flags & RETURNS_FOLLOWING != 0,
            in_flight_max,
            messages_max,
            bytes_max,
            overflow,
            filter,
            keeps_acked: flags & KEEPS_ACKED != 0,
            isolation: if reads_uncommitted { Isolation::Uncommitted } else { Isolation::Committed },
            dedup: self.code(DedupRule::from_code)?,
        };
        settings.validate()?;
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::groups::GroupName;

    /// Returns a queue name with a group name that no queue of a user could have.
    fn of_share_group() -> QueueName {
        let group = GroupName::parse("a/b c").expect("a name");
        let name = QueueName::of_share(&group, &TopicName::parse("t").expect("a name"));
        assert_eq!((name.share_group(), name.is_internal()), (Some(group), true));
        QueueName::parse(name.as_str()).expect_err("no name of a user's");
        name
    }

    fn records() -> Vec<QueueRecord> {
        let name = QueueName::parse("orders.fifo").expect("a name");
        let settings = QueueSettings {
            order: Order::Groups,
            attempts_max: 5,
            dead_letter: Some(TopicName::parse("dead").expect("a name")),
            backoff_ms: (10_000, 600_000),
            is_strict: true,
            filter: Some(Filter::parse("attributes:colour").expect("a filter")),
            keeps_acked: true,
            isolation: Isolation::Uncommitted,
            dedup: DedupRule::Group,
            ..QueueSettings::default()
        };
        let definition = QueueDefinition {
            id: 7,
            name: name.clone(),
            topic: TopicName::parse("orders.fifo").expect("a name"),
            topic_id: TopicId::new(3, 4),
            owns_topic: true,
            created_ms: 1,
            altered_ms: 2,
            settings,
            notes: [("sqs.tag.a".into(), "b".into())].into(),
        };
        let entry = Entry {
            phase: Phase::Leased,
            due_ms: 30,
            lease: 9 << 16,
            attempts: 2,
            first_ms: 10,
            group: Some(u64::MAX),
        };
        vec![
            QueueRecord::Queue { name: name.clone(), definition: Some(Box::new(definition)) },
            QueueRecord::Queue { name, definition: None },
            QueueRecord::Queue { name: of_share_group(), definition: None },
            QueueRecord::Entry { queue: 7, partition: 1, offset: 1 << 40, entry: Some(entry) },
            QueueRecord::Entry { queue: 7, partition: 1, offset: 3, entry: None },
            QueueRecord::Cursor {
                queue: 7,
                partition: 0,
                cursor: Some(Cursor { next: 12, has_delays: true, dedup_from: 0 }),
            },
            QueueRecord::Cursor {
                queue: 7,
                partition: 0,
                cursor: Some(Cursor { next: 12, has_delays: false, dedup_from: 9 }),
            },
            QueueRecord::Cursor { queue: 7, partition: 0, cursor: None },
            QueueRecord::Document { kind: "pubsub.schema".into(), name: "s".into(), value: Some(vec![1, 2]) },
            QueueRecord::Document { kind: "pubsub.schema".into(), name: "s".into(), value: None },
        ]
    }

    #[test]
    fn records_come_back() {
        for record in records() {
            let key = record.key();
            let value = record.value();
            assert_eq!(QueueRecord::decode(&key, value.as_deref()), Ok(record));
        }
    }

    #[test]
    fn truncated_records_and_other_versions_are_refused() {
        for record in records() {
            let key = record.key();
            let value = record.value();
            for end in 0..key.len() {
                QueueRecord::decode(&key[..end], value.as_deref()).expect_err("a key that is cut short");
            }
            let Some(mut value) = value else { continue };
            let is_document = matches!(record, QueueRecord::Document { .. });
            for end in 0..if is_document { 2 } else { value.len() } {
                QueueRecord::decode(&key, Some(&value[..end])).expect_err("a value that is cut short");
            }
            value[1] += 1;
            let kind = QueueRecord::decode(&key, Some(&value)).map_err(|error| error.kind);
            assert_eq!(kind, Err(ErrorKind::Unsupported));
        }
    }
}
