//! Fetch: the position of a client in each partition, and the batches at that position, whose bytes are shared by all
//! readers.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use broker::metrics::{Counter, Exposition};
use broker::{FetchFrom, Fetched, Isolation};
use bytes::{BufMut, Bytes};
use engine::{Offset, PartitionId, RecordBatch, Result};
use net::service::Out;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::errors::Code;
use super::parse::Fields;
use super::produce::partition_id;
use super::write::Write;

/// Bytes of a response that are allowed in addition to its batches, on top of `fetch.max.bytes`. librdkafka closes a
/// connection whose response exceeds its `receive.message.max.bytes`, which may be as little as `fetch.max.bytes` plus
/// these 512 bytes (CONFIGURATION.md).
const OVERHEAD_BYTES_FREE: usize = 512;
/// Session id of a client that has no session, or that wants to begin one.
const NO_SESSION: i32 = 0;
/// Bytes that one permit of the budget stands for.
const BUDGET_UNIT_BYTES: usize = 1 << 10;
/// Maximum time that a fetch waits for other clients to read their responses; after it the response has no batches.
const BUDGET_WAIT: Duration = Duration::from_secs(1);

/// Positions from which a client reads.
#[derive(Debug)]
pub(super) struct FetchRequest {
    pub wait: Duration,
    pub bytes_min: usize,
    pub bytes_max: usize,
    pub isolation: Isolation,
    /// `true` if the client names a fetch session; the broker keeps none.
    pub has_session: bool,
    pub topics: Vec<(String, Vec<FetchPartition>)>,
}

#[derive(Clone, Debug)]
pub(super) struct FetchPartition {
    pub partition: PartitionId,
    /// Leader epoch known to the client; -1 for none.
    pub leader_epoch: i32,
    pub offset: i64,
    pub bytes_max: usize,
}

impl FetchRequest {
    pub(super) fn parse(frame: &[u8], at: usize, version: i16) -> Result<Self> {
        let mut fields = Fields::new(frame, at, version >= 12);
        fields.i32()?;
        let wait = Duration::from_millis(fields.i32()?.max(0) as u64);
        let bytes_min = fields.i32()?.max(0) as usize;
        let bytes_max = fields.i32()?.max(0) as usize;
        let isolation = isolation(fields.i8()?);
        let mut has_session = false;
        if version >= 7 {
            let session = fields.i32()?;
            let _epoch = fields.i32()?;
            has_session = session != NO_SESSION;
        }
        let mut topics = Vec::new();
        for _ in 0..fields.count()? {
            let name = fields.string()?;
            let mut partitions = Vec::new();
            for _ in 0..fields.count()? {
                partitions.push(FetchPartition::parse(&mut fields, version)?);
            }
            topics.push((name, partitions));
            fields.tags()?;
        }
        pass_over_rest(&mut fields, version)?;
        let topics = distinct(topics);
        Ok(Self { wait, bytes_min, bytes_max, isolation, has_session, topics })
    }

    /// Returns the limit on all batches of the response in this version. The response names every requested partition;
    /// if these names take more than clients allow for, the excess is deducted from the batches.
    pub(super) fn batches_bytes_max(&self, version: i16) -> usize {
        let partitions: usize = self.topics.iter().map(|(_, partitions)| partitions.len()).sum();
        let names: usize = self.topics.iter().map(|(name, _)| name.len()).sum();
        // As written by `encode`: upper bounds in bytes for the response, each topic, and each partition.
        let of_partition = match version {
            ..=4 => 30,
            5..=10 => 38,
            11 => 42,
            12.. => 40,
        };
        let overhead = 20 + names + 6 * self.topics.len() + of_partition * partitions;
        // At least one byte: a limit of zero is answered immediately, even without records.
        let least = self.bytes_max.min(1);
        self.bytes_max.saturating_sub(overhead.saturating_sub(OVERHEAD_BYTES_FREE)).max(least)
    }
}

/// Returns each topic and each of its partitions once, with the position that was named last. Kafka does so too: it
/// puts the positions into a map (`FetchRequest.fetchData`).
fn distinct(named: Vec<(&str, Vec<FetchPartition>)>) -> Vec<(String, Vec<FetchPartition>)> {
    if let [(_, partitions)] = &named[..]
        && partitions.is_sorted_by(|a, b| a.partition < b.partition)
    {
        return named.into_iter().map(|(name, partitions)| (name.to_owned(), partitions)).collect();
    }
    let mut topics: Vec<(String, Vec<FetchPartition>)> = Vec::new();
    let mut places: HashMap<&str, (usize, HashMap<PartitionId, usize>)> = HashMap::new();
    for (name, partitions) in named {
        let (topic, places) = places.entry(name).or_insert_with(|| {
            topics.push((name.to_owned(), Vec::new()));
            (topics.len() - 1, HashMap::new())
        });
        let (_, distinct) = &mut topics[*topic];
        for partition in partitions {
            match places.entry(partition.partition) {
                Entry::Occupied(place) => distinct[*place.get()] = partition,
                Entry::Vacant(place) => {
                    place.insert(distinct.len());
                    distinct.push(partition);
                }
            }
        }
    }
    topics
}

/// Converts an isolation level from Kafka's number.
pub(super) fn isolation(level: i8) -> Isolation {
    if level == 0 { Isolation::Uncommitted } else { Isolation::Committed }
}

/// Skips the topics that a session would forget, and the client's rack.
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
        let partition = partition_id(fields.i32()?);
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

    /// Returns the position for the broker. A negative offset becomes one that no log contains.
    pub(super) fn from<'a>(&self, topic: &'a str) -> FetchFrom<'a> {
        let offset = Offset::try_from(self.offset).unwrap_or(Offset::MAX);
        FetchFrom { topic, partition: self.partition, offset, bytes_max: self.bytes_max }
    }
}

/// Fetched batches, in the order of the request.
#[derive(Debug, Default)]
pub(super) struct FetchAnswer {
    pub code: Option<Code>,
    pub topics: Vec<(String, Vec<(PartitionId, PartitionFetched)>)>,
    /// Permit for the bytes of all batches.
    pub permit: Option<OwnedSemaphorePermit>,
    /// Time in ms for which the client is delayed.
    pub throttle_ms: i32,
}

pub(super) type PartitionFetched = std::result::Result<Fetched, Code>;

/// Limit on the bytes of responses that were fetched but not yet written to the client, over all connections.
#[derive(Clone)]
pub(super) struct FetchBudget(Arc<Budget>);

struct Budget {
    units: Arc<Semaphore>,
    units_max: usize,
    waits: Counter,
    withheld: Counter,
}

impl FetchBudget {
    pub(super) fn new(bytes_max: usize) -> Self {
        let units_max = bytes_max / BUDGET_UNIT_BYTES;
        let units = Arc::new(Semaphore::new(units_max));
        Self(Arc::new(Budget { units, units_max, waits: Counter::default(), withheld: Counter::default() }))
    }

    /// Returns a permit for these batches; `None` if unread responses of other clients use up the budget.
    pub(super) fn acquire(&self, found: &[Result<Fetched>]) -> Option<OwnedSemaphorePermit> {
        self.acquire_bytes(bytes(found))
    }

    /// Returns a permit for batches of `bytes` bytes; `None` if the budget is used up.
    pub(super) fn acquire_bytes(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        self.0.units.clone().try_acquire_many_owned(units(bytes)).ok()
    }

    /// Waits until the budget has room for these batches, for at most [`BUDGET_WAIT`].
    pub(super) async fn wait(&self, found: Vec<Result<Fetched>>) {
        let bytes = bytes(&found);
        // A waiting fetch holds no batches.
        drop(found);
        self.wait_bytes(bytes).await;
    }

    pub(super) async fn wait_bytes(&self, bytes: usize) {
        self.0.waits.add(1);
        let units = units(bytes);
        // The permit is released here, and the next caller may take it.
        drop(tokio::time::timeout(BUDGET_WAIT, self.0.units.acquire_many(units)).await);
    }

    /// Removes the batches from a response for which there was no room: the client fetches again.
    pub(super) fn withhold(&self, found: &mut [Result<Fetched>]) {
        self.0.withheld.add(1);
        found.iter_mut().flatten().for_each(Fetched::withhold);
    }

    pub(super) fn expose(&self, out: &mut Exposition<'_>) -> fmt::Result {
        let Budget { units, units_max, waits, withheld } = &*self.0;
        let bytes = (units_max - units.available_permits()) * BUDGET_UNIT_BYTES;
        out.gauge(
            "thalweg_kafka_fetched_bytes",
            "Bytes of responses to Kafka fetches that clients have not read",
            bytes as u64,
        )?;
        out.gauge(
            "thalweg_kafka_fetched_bytes_max",
            "Maximum of thalweg_kafka_fetched_bytes",
            (units_max * BUDGET_UNIT_BYTES) as u64,
        )?;
        out.counter(
            "thalweg_kafka_fetch_waits",
            "Kafka fetches that waited for memory for their response",
            waits.get(),
        )?;
        out.counter(
            "thalweg_kafka_fetches_withheld",
            "Kafka fetches answered without records for lack of memory",
            withheld.get(),
        )
    }
}

pub(super) fn bytes(found: &[Result<Fetched>]) -> usize {
    found.iter().flatten().flat_map(|found| &found.batches).map(RecordBatch::len).sum()
}

fn units(bytes: usize) -> u32 {
    bytes.div_ceil(BUDGET_UNIT_BYTES) as u32
}

/// Batches of a response that are being written, with the number still to come.
pub(super) struct Batches {
    left: usize,
    permit: Option<OwnedSemaphorePermit>,
}

impl Batches {
    pub(super) fn new(left: usize, permit: Option<OwnedSemaphorePermit>) -> Self {
        Self { left, permit }
    }

    /// Writes one batch. The last one carries the permit, which is released when it is written.
    pub(super) fn put(&mut self, bytes: Bytes, out: &mut Out) {
        self.left -= 1;
        match self.permit.take_if(|_| self.left == 0) {
            Some(permit) => out.put_shared(Bytes::from_owner(Charged { bytes, _permit: permit })),
            None => out.put_bytes(bytes),
        }
    }
}

struct Charged {
    bytes: Bytes,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl FetchAnswer {
    pub(super) fn refused(code: Code) -> Self {
        Self { code: Some(code), ..Self::default() }
    }

    pub(super) fn encode(self, version: i16, out: &mut Out) {
        let all = self.topics.iter().flat_map(|(_, partitions)| partitions);
        let left = all.filter_map(|(_, fetched)| fetched.as_ref().ok()).map(|found| found.batches.len()).sum();
        let mut batches = Batches::new(left, self.permit);
        let is_flexible = version >= 12;
        {
            let mut head = Write::new(out.buf(), is_flexible);
            head.put_i32(self.throttle_ms);
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
                encode_partition(*partition, fetched, &mut batches, version, out);
            }
            Write::new(out.buf(), is_flexible).tags();
        }
        Write::new(out.buf(), is_flexible).tags();
    }
}

fn encode_partition(
    partition: PartitionId,
    fetched: &PartitionFetched,
    batches: &mut Batches,
    version: i16,
    out: &mut Out,
) {
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
        // No preferred read replica.
        head.put_i32(-1);
    }
    head.count(found.batches.iter().map(|batch| batch.len()).sum());
    for batch in &found.batches {
        batches.put(batch.bytes().clone(), out);
    }
    Write::new(out.buf(), is_flexible).tags();
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use engine::{BatchBuilder, DraftBatch, Offset};

    use super::*;

    fn found(values: &[&[u8]]) -> Fetched {
        let batch = |value: &&[u8]| {
            let mut builder = BatchBuilder::new();
            builder.push(0, None, Some(value), &[]).expect("a record");
            builder.finish().map(|draft: DraftBatch| draft.stamp(Offset::MIN)).expect("a batch")
        };
        Fetched { batches: values.iter().map(batch).collect(), ..Fetched::default() }
    }

    /// Returns a request of version 4 for partitions, each from an offset.
    fn request(topics: &[(&str, &[(i32, i64)])]) -> FetchRequest {
        let mut frame = BytesMut::new();
        [-1, 500, 1, 1 << 20].into_iter().for_each(|field| frame.put_i32(field));
        frame.put_i8(0);
        frame.put_i32(topics.len() as i32);
        for (name, partitions) in topics {
            frame.put_i16(name.len() as i16);
            frame.put_slice(name.as_bytes());
            frame.put_i32(partitions.len() as i32);
            for (partition, offset) in *partitions {
                frame.put_i32(*partition);
                frame.put_i64(*offset);
                frame.put_i32(1 << 20);
            }
        }
        FetchRequest::parse(&frame, 0, 4).expect("a request")
    }

    #[test]
    fn a_partition_is_fetched_once_from_the_position_that_is_named_last() {
        let many: Vec<(i32, i64)> = (0..200_000).map(|offset| (7, offset)).collect();
        let request = request(&[("a", &many), ("b", &[(0, 1), (1, 2)]), ("a", &[(3, 4), (7, 5)]), ("b", &[(0, 3)])]);
        let position = |of: &FetchPartition| (of.partition, of.offset);
        let named = request.topics.iter();
        let named: Vec<_> = named.map(|(name, of)| (&name[..], of.iter().map(position).collect::<Vec<_>>())).collect();
        assert_eq!(named, [("a", vec![(7, 5), (3, 4)]), ("b", vec![(0, 3), (1, 2)])]);
    }

    #[test]
    fn batches_are_charged_until_they_are_written() {
        let budget = FetchBudget::new(4 * BUDGET_UNIT_BYTES);
        let large = [7; 2048];
        let small = [7; 10];
        let all = [Ok(found(&[&large, &small])), Ok(Fetched::default()), Ok(found(&[&small]))];
        let permit = budget.acquire(&all).expect("room");
        assert_eq!(permit.num_permits(), 3);
        assert!(budget.acquire(&all).is_none());
        let partitions = (0..).zip(all).map(|(at, found)| (at, found.map_err(|_: engine::Error| Code::NONE)));
        let topics = vec![("t".to_owned(), partitions.collect())];
        let mut out = Out::default();
        FetchAnswer { code: None, topics, permit: Some(permit), throttle_ms: 0 }.encode(12, &mut out);
        assert_eq!(budget.0.units.available_permits(), 1);
        out.clear();
        assert_eq!(budget.0.units.available_permits(), 4);
    }
}
