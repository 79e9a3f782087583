//! Topics that other sites copy: each copy asks for what follows its end, and is sent that on one stream.
//!
//! Only committed records are sent: they are on disk and their transaction is committed, so a site never copies a
//! record that its origin may lose.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use broker::{AbortedTransaction, Broker, FetchFrom, FetchLimits, Fetched};
use bytes::{Bytes, BytesMut};
use engine::mesh::{Groups, SiteName};
use engine::{BatchBuilder, Error, ErrorKind, Isolation, Offset, PartitionId, RecordBatch, Result, TopicId, TopicName};
use tokio::sync::watch;

use crate::frame::{Frame, Head, Origin, Refusal, Step, StepKind};
use crate::running::Running;

/// Maximum bytes per read for a copy.
const READ_BYTES: usize = 1 << 20;
/// Bytes from which on the records of one batch are divided, if they have to be put into new ones.
const RUN_BYTES: usize = 256 << 10;
/// Time after which a copy without new records is checked for new partitions.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Maximum copies to which a site sends at the same time.
pub(crate) const SENT_COPIES_MAX: usize = 4096;

/// Copy to which a site sends.
pub(crate) struct Sender {
    /// Run of the request that is answered.
    run: u64,
    ended: watch::Sender<bool>,
}

/// Reason why no more is sent.
struct Refused {
    reason: Refusal,
    text: String,
}

/// Request of another site for what follows the ends of its copy.
struct Request {
    to: SiteName,
    topic: TopicName,
    run: u64,
    id: Option<TopicId>,
    ends: Vec<Offset>,
}

impl Running {
    /// Sends a topic to a site that copies it, from the ends of the copy on.
    pub(crate) fn on_copy(self: &Arc<Self>, from: &SiteName, asked: Frame) {
        let Frame::Copy { run, topic, id, ends } = asked else { return };
        let key = (from.clone(), topic.clone());
        let sender = Sender { run, ended: watch::Sender::new(false) };
        let request = Request { to: from.clone(), topic, run, id, ends };
        let work = self.clone().answer_copy(request);
        let mut senders = self.mirror.senders.lock();
        if let Some(before) = senders.get(&key) {
            before.ended.send_replace(true);
        } else if senders.len() >= SENT_COPIES_MAX {
            let text = format!("site {} sends {SENT_COPIES_MAX} copies already, which is the limit", self.site());
            return self.send_to(from, Frame::Refused { run, topic: key.1, reason: Refusal::Busy, text });
        }
        self.spawn_until(&sender.ended, work);
        senders.insert(key, sender);
    }

    async fn answer_copy(self: Arc<Self>, request: Request) {
        let Request { to, topic, run, .. } = &request;
        let refused = match self.send_copy(&request).await {
            Ok(refused) => Some(refused),
            // The other site notices it by itself.
            Err(error) if error.kind == ErrorKind::Disconnected => None,
            Err(error) => Some(Refused { reason: Refusal::Failed, text: format!("site {}: {error}", self.site()) }),
        };
        let key = (to.clone(), topic.clone());
        let is_current = |sender: &Sender| sender.run == *run;
        {
            let mut senders = self.mirror.senders.lock();
            if senders.get(&key).is_some_and(is_current) {
                senders.remove(&key);
            }
        }
        if let Some(Refused { reason, text }) = refused {
            tracing::debug!(site = %to, %topic, text, "a topic is not copied");
            self.send_to(to, Frame::Refused { run: *run, topic: key.1, reason, text });
        }
    }

    /// Sends a copy until it has to be refused, or its stream ends.
    async fn send_copy(self: &Arc<Self>, request: &Request) -> Result<Refused> {
        let Request { to, topic, run, id, ends } = request;
        let traffic = self.traffic_of(to);
        let begun = self.offered(topic)?;
        let Some(origin) = begun else { return Ok(self.not_offered(topic)) };
        if id.is_some_and(|id| id != origin.id) {
            return Ok(self.another(topic));
        }
        let mut positions = ends.clone();
        positions.resize(positions.len().max(origin.partitions as usize), 0);
        let mut chunks = Vec::new();
        for (partition, position) in (0..).zip(&positions) {
            let is_there = partition < origin.partitions;
            let end = if is_there { self.broker()?.describe_partition(topic.as_str(), partition)?.end } else { 0 };
            if *position > end {
                let why = format!("ends at offset {end} of partition {partition}, and its copy at {position}");
                return Ok(Refused { reason: Refusal::Shorter, text: self.advice(topic, &why) });
            }
            // With this, the other site knows how far it is behind.
            put_step(StepKind::Skipped, partition, *position, end, None, &mut chunks);
        }
        let head = Head {
            from: self.site().clone(),
            run: *run,
            to: to.clone(),
            topic: topic.clone(),
            origin: Some(origin),
            is_confirmed: false,
            groups: Groups::All,
        };
        let mut stream = self.open_stream(to, |_| head.clone()).await?;
        stream.write(chunks).await?;
        let mut turn = 0;
        loop {
            if self.is_outdated(&stream.path, to) {
                return Err(Error::new(ErrorKind::Disconnected, "there is a better path"));
            }
            let Some(Origin { id, partitions }) = self.offered(topic)? else { return Ok(self.not_offered(topic)) };
            positions.resize(positions.len().max(partitions as usize), 0);
            turn = (turn + 1) % partitions;
            let broker = self.broker()?;
            let (chunks, records) = tokio::select! {
                read = read(&broker, topic, partitions, &mut positions, turn) => read?,
                () = stream.ended() => return Err(Error::new(ErrorKind::Disconnected, "the stream ended")),
            };
            drop(broker);
            // It was read by its name: it is the same topic if it was the same one before and is now.
            if id != origin.id || self.offered(topic)?.is_none_or(|now| now.id != origin.id) {
                return Ok(self.another(topic));
            }
            if chunks.is_empty() {
                continue;
            }
            let bytes = chunks.iter().map(|chunk| chunk.len() as u64).sum();
            traffic.sends.take(bytes).await;
            stream.write(chunks).await?;
            *self.mirror.sent_records.lock().entry(topic.clone()).or_default() += records;
            traffic.sent_records.fetch_add(records, Ordering::Relaxed);
            traffic.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Returns a topic, if other sites may copy it.
    fn offered(&self, topic: &TopicName) -> Result<Option<Origin>> {
        let outline = self.broker()?.outline_topic(topic.as_str()).ok();
        let outline = outline.filter(|topic| topic.settings.mesh.is_offered());
        Ok(outline.map(|topic| Origin { id: topic.id, partitions: topic.settings.partitions }))
    }

    fn not_offered(&self, topic: &TopicName) -> Refused {
        let text = format!("site {} has no topic {topic} with mesh = mirror or source", self.site());
        Refused { reason: Refusal::NotOffered, text }
    }

    fn another(&self, topic: &TopicName) -> Refused {
        Refused { reason: Refusal::Another, text: self.advice(topic, "was deleted and created again") }
    }

    fn advice(&self, topic: &TopicName, why: &str) -> String {
        let site = self.site();
        format!("topic {topic} of site {site} {why}: delete {site}.{topic} to have it copied from the beginning")
    }

    /// Announces to the other sites the topics that they may copy now and could not before.
    pub(crate) fn announce_offered(&self, broker: &Broker) {
        let mirrored = broker.mirrored_topics().into_iter();
        let now: HashSet<TopicName> =
            mirrored.filter(|topic| topic.settings.mesh.is_offered()).map(|topic| topic.name).collect();
        let news: Vec<TopicName> = {
            let mut announced = self.mirror.announced.lock();
            let news = now.difference(&announced).cloned().collect();
            self.mirror.sent_records.lock().retain(|topic, _| now.contains(topic));
            *announced = now;
            news
        };
        for site in self.reachable().iter().filter(|site| !news.is_empty() && *site != self.site()) {
            for some in news.chunks(crate::running::ENTRIES_PER_FRAME) {
                self.send_to(site, Frame::Offered(some.to_vec()));
            }
        }
    }

    /// Ends what a site is sent that was removed.
    pub(crate) fn end_copies_to(&self, site: &SiteName) {
        self.mirror.senders.lock().retain(|(to, _), sender| {
            if to == site {
                sender.ended.send_replace(true);
            }
            to != site
        });
    }
}

/// Reads what follows the positions, and moves them on. Waits for some time if nothing does. Returns what has to be
/// sent, and the number of its records.
async fn read(
    broker: &Broker,
    topic: &TopicName,
    partitions: u32,
    positions: &mut [Offset],
    turn: u32,
) -> Result<(Vec<Bytes>, u64)> {
    let limits = FetchLimits { bytes_min: 1, bytes_max: READ_BYTES, wait: LOOK_EVERY, isolation: Isolation::Committed };
    // Each partition is the first one in its turn, so that a busy one does not hold up the others.
    let from: Vec<FetchFrom<'_>> = (0..partitions)
        .map(|at| (at + turn) % partitions)
        .map(|partition| FetchFrom {
            topic: topic.as_str(),
            partition,
            offset: positions[partition as usize],
            bytes_max: READ_BYTES,
        })
        .collect();
    let fetched = broker.fetch_many(&from, limits).await;
    let (mut chunks, mut records) = (Vec::new(), 0);
    for (FetchFrom { partition, offset, .. }, fetched) in from.into_iter().zip(fetched) {
        let position = &mut positions[partition as usize];
        match fetched {
            Ok(fetched) => records += put_steps(fetched, partition, position, &mut chunks)?,
            Err(error) if error.kind == ErrorKind::OutOfRange => {
                let extent = broker.describe_partition(topic.as_str(), partition)?;
                if extent.start <= offset {
                    return Err(error);
                }
                *position = extent.start;
                put_step(StepKind::Lost, partition, extent.start, extent.stable_end, None, &mut chunks);
            }
            Err(error) => return Err(error),
        }
    }
    Ok((chunks, records))
}

/// Puts the batches of a partition, and moves the position after them. Returns the number of records.
fn put_steps(fetched: Fetched, partition: PartitionId, position: &mut Offset, chunks: &mut Vec<Bytes>) -> Result<u64> {
    let Fetched { stable_end: end, batches, aborted, .. } = fetched;
    let mut void = Void::new(aborted);
    let mut records = 0;
    let mut sent_to = *position;
    for batch in &batches {
        let next = batch.next_offset();
        if void.has(batch) || batch.count() == 0 || next <= *position {
            *position = next.max(*position);
            continue;
        }
        if batch.base_offset() < *position {
            // The log begins inside the batch, or compaction has extended one that was sent.
            for run in runs(batch, *position)? {
                put_step(StepKind::Batch, partition, run.next_offset(), end, Some(run.bytes()), chunks);
                records += u64::from(run.count());
                sent_to = run.next_offset();
            }
            *position = next;
            continue;
        }
        put_step(StepKind::Batch, partition, next, end, Some(batch.bytes()), chunks);
        records += u64::from(batch.count());
        (*position, sent_to) = (next, next);
    }
    if *position > sent_to {
        put_step(StepKind::Skipped, partition, *position, end, None, chunks);
    }
    Ok(records)
}

/// Returns batches with the records of a batch from an offset on, at their offsets.
fn runs(batch: &RecordBatch, from: Offset) -> Result<Vec<RecordBatch>> {
    let codec = batch.codec()?;
    let mut runs: Vec<RecordBatch> = Vec::new();
    let mut open: Option<(Offset, BatchBuilder)> = None;
    let mut next = from;
    for record in &batch.records()? {
        let record = record?;
        if record.offset < from {
            continue;
        }
        if let Some((base, mut builder)) = open.take_if(|(_, run)| record.offset != next || run.len() >= RUN_BYTES) {
            runs.extend(builder.finish_with(codec, None).map(|run| run.stamp(base)));
        }
        let (_, builder) = open.get_or_insert_with(|| (record.offset, BatchBuilder::new()));
        let headers: Vec<_> = record.headers().collect();
        builder.push(record.timestamp_ms, record.key, record.value, &headers)?;
        next = record.offset + 1;
    }
    let last = open.and_then(|(base, mut builder)| Some(builder.finish_with(codec, None)?.stamp(base)));
    runs.extend(last);
    Ok(runs)
}

fn put_step(
    kind: StepKind,
    partition: PartitionId,
    next: Offset,
    end: Offset,
    batch: Option<&Bytes>,
    chunks: &mut Vec<Bytes>,
) {
    let mut step = BytesMut::new();
    Step { kind, length: batch.map_or(0, Bytes::len), partition, next, end }.put(&mut step);
    chunks.push(step.freeze());
    chunks.extend(batch.cloned());
}

/// Filter of the batches that have no effect: markers, and those of aborted transactions.
struct Void {
    /// Aborted transactions that begin later, in the order of their first offsets.
    later: VecDeque<AbortedTransaction>,
    /// Producers with an aborted transaction that has begun and not ended.
    open: HashSet<i64>,
}

impl Void {
    fn new(mut aborted: Vec<AbortedTransaction>) -> Self {
        aborted.sort_unstable_by_key(|transaction| transaction.first_offset);
        Self { later: aborted.into(), open: HashSet::new() }
    }

    fn has(&mut self, batch: &RecordBatch) -> bool {
        while let Some(begun) = self.later.pop_front_if(|later| later.first_offset <= batch.base_offset()) {
            self.open.insert(begun.producer_id);
        }
        let Some(producer) = batch.producer() else { return false };
        if batch.is_control() {
            self.open.remove(&producer.id);
            return true;
        }
        batch.is_transactional() && self.open.contains(&producer.id)
    }
}

#[cfg(test)]
mod tests {
    use engine::Codec;
    use engine::record::{Decision, Marker, Producer};

    use super::*;

    fn batch(base: Offset, records: usize, producer: Option<i64>) -> RecordBatch {
        let mut builder = BatchBuilder::new();
        for _ in 0..records {
            builder.push(1, Some(b"key"), Some(b"value"), &[]).expect("a small record");
        }
        let producer = producer.map(|id| Producer { id, epoch: 0, sequence: 0 });
        let mut draft = builder.finish_with(Codec::None, producer).expect("records");
        if producer.is_some() {
            draft.set_transactional();
        }
        draft.stamp(base)
    }

    fn marker(base: Offset, id: i64, decision: Decision) -> RecordBatch {
        Marker { decision, coordinator_epoch: 0 }.draft(id, 0, 1).expect("a marker").stamp(base)
    }

    /// Returns the kind of each step with the offset after it, and the last position.
    fn steps(from: Offset, batches: Vec<RecordBatch>, aborted: &[(i64, Offset)]) -> (Vec<(StepKind, Offset)>, Offset) {
        let aborted = aborted.iter().map(|(producer_id, first_offset)| AbortedTransaction {
            producer_id: *producer_id,
            first_offset: *first_offset,
        });
        let fetched = Fetched { stable_end: 100, batches, aborted: aborted.collect(), ..Fetched::default() };
        let (mut position, mut chunks) = (from, Vec::new());
        put_steps(fetched, 0, &mut position, &mut chunks).expect("steps");
        let steps = chunks.iter().filter(|chunk| chunk.len() == crate::frame::STEP_BYTES).map(|chunk| {
            let step = Step::decode(&chunk[..].try_into().expect("its length")).expect("a step");
            (step.kind, step.next)
        });
        (steps.collect(), position)
    }

    #[test]
    fn markers_and_aborted_transactions_are_skipped() {
        let batches = vec![
            batch(0, 2, Some(7)),
            batch(2, 1, Some(8)),
            marker(3, 7, Decision::Abort),
            batch(4, 1, Some(7)),
            marker(5, 8, Decision::Commit),
            marker(6, 7, Decision::Commit),
        ];
        let wanted = vec![(StepKind::Batch, 3), (StepKind::Batch, 5), (StepKind::Skipped, 7)];
        assert_eq!(steps(0, batches, &[(7, 0)]), (wanted, 7));
    }

    #[test]
    fn batches_keep_their_offsets_when_compaction_has_removed_records() {
        let thin = batch(10, 5, None).thinned(|record| record.offset == 12).expect("it decodes");
        let reaching = thin.reaching(40).expect("so far a batch can reach");
        let hole = RecordBatch::hole(40, 50);
        let wanted = vec![(StepKind::Batch, 40), (StepKind::Batch, 51), (StepKind::Skipped, 60)];
        let batches = vec![reaching.clone(), hole, batch(50, 1, None), RecordBatch::hole(51, 60)];
        assert_eq!(steps(0, batches, &[]), (wanted, 60));
        // The copy has the records of a batch that was extended since.
        assert_eq!(steps(15, vec![reaching, batch(40, 1, None)], &[]), (vec![(StepKind::Batch, 41)], 41));
        assert_eq!(steps(41, Vec::new(), &[]), (Vec::new(), 41));
        // The log begins inside a batch.
        let wanted = vec![(StepKind::Batch, 15), (StepKind::Batch, 16)];
        assert_eq!(steps(13, vec![batch(10, 5, None), batch(15, 1, None)], &[]), (wanted, 16));
        let thin = batch(10, 9, None).thinned(|record| record.offset % 4 != 0).expect("it decodes");
        let wanted = vec![(StepKind::Batch, 16), (StepKind::Batch, 19)];
        assert_eq!(steps(14, vec![thin], &[]), (wanted, 19));
    }
}
