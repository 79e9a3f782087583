//! Records of the topic `_transactions`: the newest value of each transactional id is valid, null deletes the id.
//!
//! All integers are big-endian; a text is its length (2 bytes) and its bytes, UTF-8.
//!
//! | key | version (u16) | then |
//! |---|---|---|
//! | | 1 | transactional id (text) |
//!
//! | value | version (u16) | then |
//! |---|---|---|
//! | | 1 | phase (u8), producer (i64), epoch (i16) |
//! | | | the producer before (i64) and its epoch (i16), -1 for none |
//! | | | timeout, ms (u32) |
//! | | | opened, ms since 1970 (u64, 2^64 - 1 if none is open), changed, ms since 1970 (u64) |
//! | | | partitions, groups |
//! | partitions | | number of topics (u32), of each its name (text), number of partitions (u32), the partitions (u32) |
//! | groups | | number (u32), of each its name (text), number of offsets (u32), the offsets |
//! | an offset | | topic (text), partition (u32), offset (u64), leader epoch (i32) |
//! | | | committed at, ms since 1970 (u64), metadata (text) |

use std::collections::BTreeMap;

use bytes::BufMut;

use super::{Phase, ProducerEpoch, StagedOffsets, Transaction, TransactionalId};
use crate::error::{Error, Result};
use crate::fields::{Fields, put_partitions, put_text};
use crate::groups::{Committed, GroupName};
use crate::ids::{TopicName, TopicPartition};
use crate::record::Decision;

const VERSION: u16 = 1;
/// Encoding of a missing time.
const NEVER: u64 = u64::MAX;
/// Encoding of a missing producer.
const NOBODY: ProducerEpoch = ProducerEpoch { id: -1, epoch: -1 };

/// State of a transactional id; `None` deletes the id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionRecord {
    pub id: TransactionalId,
    pub transaction: Option<Transaction>,
}

impl TransactionRecord {
    pub fn key(id: &TransactionalId) -> Vec<u8> {
        let mut key = Vec::with_capacity(4 + id.as_str().len());
        key.put_u16(VERSION);
        put_text(&mut key, id.as_str());
        key
    }

    pub fn value(transaction: &Transaction) -> Vec<u8> {
        let Transaction { phase, producer, before, timeout_ms, opened_ms, changed_ms, partitions, offsets } =
            transaction;
        let before = before.unwrap_or(NOBODY);
        let mut value = Vec::with_capacity(64);
        value.put_u16(VERSION);
        value.put_u8(code_of(*phase));
        value.put_i64(producer.id);
        value.put_i16(producer.epoch);
        value.put_i64(before.id);
        value.put_i16(before.epoch);
        value.put_u32(*timeout_ms);
        value.put_u64(opened_ms.unwrap_or(NEVER));
        value.put_u64(*changed_ms);
        put_partitions(&mut value, partitions);
        value.put_u32(offsets.len() as u32);
        for (group, staged) in offsets {
            put_text(&mut value, group.as_str());
            value.put_u32(staged.len() as u32);
            staged.iter().for_each(|(partition, committed)| put_offset(&mut value, partition, committed));
        }
        value
    }

    pub fn decode(key: &[u8], value: Option<&[u8]>) -> Result<Self> {
        let mut key = Fields(key);
        key.check_version("key", VERSION)?;
        let id = TransactionalId::parse(key.text()?)?;
        key.end()?;
        let Some(value) = value else {
            return Ok(Self { id, transaction: None });
        };
        let mut value = Fields(value);
        value.check_version("value", VERSION)?;
        let transaction = value.transaction()?;
        value.end()?;
        Ok(Self { id, transaction: Some(transaction) })
    }
}

fn code_of(phase: Phase) -> u8 {
    match phase {
        Phase::Empty => 0,
        Phase::Open => 1,
        Phase::Prepared(Decision::Commit) => 2,
        Phase::Prepared(Decision::Abort) => 3,
        Phase::Complete(Decision::Commit) => 4,
        Phase::Complete(Decision::Abort) => 5,
    }
}

fn put_offset(out: &mut Vec<u8>, partition: &TopicPartition, committed: &Committed) {
    put_text(out, partition.topic.as_str());
    out.put_u32(partition.partition);
    out.put_u64(committed.offset);
    out.put_i32(committed.leader_epoch);
    out.put_u64(committed.committed_ms);
    put_text(out, &committed.metadata);
}

impl Fields<'_> {
    fn producer(&mut self) -> Result<ProducerEpoch> {
        Ok(ProducerEpoch { id: self.u64()? as i64, epoch: self.u16()? as i16 })
    }

    fn phase(&mut self) -> Result<Phase> {
        let code = self.u8()?;
        let phase = Phase::ALL.into_iter().find(|phase| code_of(*phase) == code);
        phase.ok_or_else(|| Error::malformed(format!("{code} is not a phase of a transaction")))
    }

    fn transaction(&mut self) -> Result<Transaction> {
        Ok(Transaction {
            phase: self.phase()?,
            producer: self.producer()?,
            before: Some(self.producer()?).filter(|before| *before != NOBODY),
            timeout_ms: self.u32()?,
            opened_ms: Some(self.u64()?).filter(|opened| *opened != NEVER),
            changed_ms: self.u64()?,
            partitions: self.partitions()?,
            offsets: self.groups()?,
        })
    }

    fn groups(&mut self) -> Result<BTreeMap<GroupName, StagedOffsets>> {
        let mut groups = BTreeMap::new();
        for _ in 0..self.u32()? {
            let group = GroupName::parse(self.text()?)?;
            let mut staged = StagedOffsets::new();
            for _ in 0..self.u32()? {
                let topic = TopicName::parse(self.text()?)?;
                let partition = TopicPartition { topic, partition: self.u32()? };
                let committed = Committed {
                    offset: self.u64()?,
                    leader_epoch: self.u32()? as i32,
                    committed_ms: self.u64()?,
                    metadata: self.text()?.into(),
                };
                staged.insert(partition, committed);
            }
            groups.insert(group, staged);
        }
        Ok(groups)
    }
}
