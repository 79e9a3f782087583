//! Fetch: where a client goes on in each partition, and the batches that are there, shared with everybody else
//! who reads them.

use std::time::Duration;

use broker::{FetchFrom, Fetched, Isolation};
use bytes::BufMut;
use engine::{Offset, PartitionId, Result};
use net::service::Out;

use super::errors::Code;
use super::parse::Fields;
use super::produce::partition_id;
use super::write::Write;

/// A client that keeps no session says this, and one that would like to begin one.
const NO_SESSION: i32 = 0;

/// Where a client goes on.
#[derive(Debug)]
pub(super) struct FetchRequest {
    pub wait: Duration,
    pub bytes_min: usize,
    pub bytes_max: usize,
    pub isolation: Isolation,
    /// A session that it believes to have: there are none.
    pub has_session: bool,
    pub topics: Vec<(String, Vec<FetchPartition>)>,
}

#[derive(Clone, Debug)]
pub(super) struct FetchPartition {
    pub partition: PartitionId,
    /// The leader's epoch that the client knows; -1 for none.
    pub leader_epoch: i32,
    pub offset: i64,
    pub bytes_max: usize,
}

impl FetchRequest {
    pub(super) fn parse(frame: &[u8], at: usize, version: i16) -> Result<Self> {
        let mut fields = Fields::new(frame, at, version >= 12);
        fields.i32()?;
        let wait = Duration::from_millis(fields.i32()?.max(0) as u64);
        let (bytes_min, bytes_max) = (fields.i32()?.max(0) as usize, fields.i32()?.max(0) as usize);
        let isolation = isolation(fields.i8()?);
        let mut has_session = false;
        if version >= 7 {
            let (session, _epoch) = (fields.i32()?, fields.i32()?);
            has_session = session != NO_SESSION;
        }
        let mut topics = Vec::new();
        for _ in 0..fields.count()? {
            let name = fields.string()?.to_owned();
            let mut partitions = Vec::new();
            for _ in 0..fields.count()? {
                partitions.push(FetchPartition::parse(&mut fields, version)?);
            }
            topics.push((name, partitions));
            fields.tags()?;
        }
        pass_over_rest(&mut fields, version)?;
        Ok(Self { wait, bytes_min, bytes_max, isolation, has_session, topics })
    }
}

/// What a client asks to see, in Kafka's numbers.
pub(super) fn isolation(level: i8) -> Isolation {
    if level == 0 { Isolation::Uncommitted } else { Isolation::Committed }
}

/// What a session would forget, and where the client stands.
fn pass_over_rest(fields: &mut Fields<'_>, version: i16) -> Result<()> {
    if version >= 7 {
        for _ in 0..fields.count()? {
            fields.string()?;
            for _ in 0..fields.count()? {
                fields.i32()?;
            }
            fields.tags()?;
        }
    }
    if version >= 11 {
        fields.string()?;
    }
    fields.tags()
}

impl FetchPartition {
    fn parse(fields: &mut Fields<'_>, version: i16) -> Result<Self> {
        let partition = partition_id(fields.i32()?)?;
        let leader_epoch = if version >= 9 { fields.i32()? } else { -1 };
        let offset = fields.i64()?;
        if version >= 12 {
            fields.i32()?;
        }
        if version >= 5 {
            fields.i64()?;
        }
        let bytes_max = fields.i32()?.max(0) as usize;
        fields.tags()?;
        Ok(Self { partition, leader_epoch, offset, bytes_max })
    }

    /// What the broker is asked for. A negative offset is in no log.
    pub(super) fn from<'a>(&self, topic: &'a str) -> FetchFrom<'a> {
        let offset = Offset::try_from(self.offset).unwrap_or(Offset::MAX);
        FetchFrom { topic, partition: self.partition, offset, bytes_max: self.bytes_max }
    }
}

/// What is there, in the order of the request.
#[derive(Debug, Default)]
pub(super) struct FetchAnswer {
    pub code: Option<Code>,
    pub topics: Vec<(String, Vec<(PartitionId, PartitionFetched)>)>,
}

pub(super) type PartitionFetched = std::result::Result<Fetched, Code>;

impl FetchAnswer {
    pub(super) fn refused(code: Code) -> Self {
        Self { code: Some(code), topics: Vec::new() }
    }

    pub(super) fn encode(&self, version: i16, out: &mut Out) {
        let is_flexible = version >= 12;
        {
            let mut head = Write::new(out.buf(), is_flexible);
            head.put_i32(0);
            if version >= 7 {
                head.put_i16(self.code.unwrap_or(Code::NONE).0);
                head.put_i32(NO_SESSION);
            }
            head.count(self.topics.len());
        }
        for (name, partitions) in &self.topics {
            let mut head = Write::new(out.buf(), is_flexible);
            head.string(name);
            head.count(partitions.len());
            for (partition, fetched) in partitions {
                encode_partition(*partition, fetched, version, out);
            }
            Write::new(out.buf(), is_flexible).tags();
        }
        Write::new(out.buf(), is_flexible).tags();
    }
}

fn encode_partition(partition: PartitionId, fetched: &PartitionFetched, version: i16, out: &mut Out) {
    let is_flexible = version >= 12;
    let mut head = Write::new(out.buf(), is_flexible);
    head.put_i32(partition as i32);
    let none = Fetched::default();
    let (code, found) = match fetched {
        Ok(found) => (Code::NONE, found),
        Err(code) => (*code, &none),
    };
    let position = |offset: Offset| if code == Code::NONE { offset as i64 } else { -1 };
    head.put_i16(code.0);
    head.put_i64(position(found.end));
    head.put_i64(position(found.stable_end));
    if version >= 5 {
        head.put_i64(position(found.start));
    }
    head.count(found.aborted.len());
    for aborted in &found.aborted {
        head.put_i64(aborted.producer_id);
        head.put_i64(aborted.first_offset as i64);
        head.tags();
    }
    if version >= 11 {
        // No other replica is to be preferred.
        head.put_i32(-1);
    }
    head.count(found.batches.iter().map(|batch| batch.len()).sum());
    for batch in &found.batches {
        out.put_bytes(batch.bytes().clone());
    }
    Write::new(out.buf(), is_flexible).tags();
}

/// What a leader's epoch that a client names means, where there is only one leader, whose epoch is 0.
pub(super) fn check_leader_epoch(epoch: i32) -> std::result::Result<(), Code> {
    match epoch {
        ..=0 => Ok(()),
        1.. => Err(Code::UNKNOWN_LEADER_EPOCH),
    }
}
