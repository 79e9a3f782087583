//! Transactions in one partition: accepted batches, the stable end and void records, against a naive model.

use std::collections::BTreeMap;

use bytes::BytesMut;
use proptest::prelude::*;

use super::*;
use crate::codec::Codec;
use crate::producers::AbortedIndex;
use crate::record::{BatchBuilder, Decision, Marker};

fn draft(producer: Option<Producer>, records: u32) -> DraftBatch {
    let mut builder = BatchBuilder::new();
    for _ in 0..records {
        builder.push(5, None, Some(b"v"), &[]).expect("a small record");
    }
    builder.finish_with(Codec::None, producer).expect("records")
}

fn transactional(id: i64, epoch: i16, sequence: i32) -> DraftBatch {
    let mut draft = draft(Some(Producer { id, epoch, sequence }), 2);
    draft.set_transactional();
    draft
}

fn marker(id: i64, epoch: i16, decision: Decision) -> DraftBatch {
    Marker { decision, coordinator_epoch: 0 }.draft(id, epoch, 9).expect("a small record")
}

fn kind(outcome: Result<Placed>) -> ErrorKind {
    outcome.expect_err("refused").kind
}

#[test]
fn a_transaction_is_taken_only_where_it_was_begun_and_until_it_is_closed() {
    let mut partition = Partition::default();
    assert_eq!(kind(partition.append(transactional(7, 0, 0))), ErrorKind::Fenced, "nobody has begun it");
    partition.begin(7, 1).expect("begun");
    assert_eq!(kind(partition.append(transactional(7, 0, 0))), ErrorKind::Fenced, "another epoch was");
    assert!(partition.append(transactional(7, 1, 0)).is_ok());
    assert_eq!(kind(partition.append(draft(Some(Producer { id: 7, epoch: 1, sequence: 2 }), 1))), ErrorKind::Invalid);
    assert_eq!((partition.stable_end(), partition.end()), (0, 2));
    assert_eq!(partition.close(7), Some(5), "something was written");
    assert_eq!(kind(partition.append(transactional(7, 1, 2))), ErrorKind::Fenced);
    // Batches that it sent before may be sent again.
    assert_eq!(partition.append(transactional(7, 1, 0)), Ok(Placed::Duplicate { base_offset: 0 }));
    assert!(partition.append(marker(7, 1, Decision::Commit)).is_ok());
    assert_eq!((partition.stable_end(), partition.end()), (3, 3));
    assert_eq!(partition.close(7), None);
    // The next transaction of the same epoch continues the sequence of the last.
    partition.begin(7, 1).expect("begun");
    assert!(partition.append(transactional(7, 1, 2)).is_ok());
}

#[test]
fn a_marker_fences_smaller_epochs_and_numbers_begin_anew() {
    let mut partition = Partition::default();
    partition.begin(7, 0).expect("begun");
    assert!(partition.append(transactional(7, 0, 0)).is_ok());
    assert!(partition.close(7).is_some());
    assert!(partition.append(marker(7, 1, Decision::Abort)).is_ok());
    assert_eq!(partition.begin(7, 0).map_err(|e| e.kind), Err(ErrorKind::Fenced));
    assert_eq!(kind(partition.append(draft(Some(Producer { id: 7, epoch: 0, sequence: 2 }), 1))), ErrorKind::Fenced);
    partition.begin(7, 1).expect("begun");
    assert_eq!(kind(partition.append(transactional(7, 1, 2))), ErrorKind::OutOfSequence);
    assert!(partition.append(transactional(7, 1, 0)).is_ok());
    assert_eq!(partition.aborted(0, 10), [Aborted { producer: 7, first: 0, last: 2 }]);
}

/// No client can prevent the end of an open transaction with a larger epoch, also before the transaction is begun again
/// after a restart.
#[test]
fn an_open_transaction_can_always_be_ended() {
    let mut before = Partition::default();
    before.begin(7, 0).expect("begun");
    assert!(before.append(transactional(7, 0, 0)).is_ok());
    let mut partition = Partition::resume(before.end(), before.producers().clone());
    let stranger = Producer { id: 7, epoch: 100, sequence: 0 };
    assert_eq!(kind(partition.append(draft(Some(stranger), 1))), ErrorKind::Invalid);
    assert!(partition.close(7).is_some());
    assert!(partition.append(marker(7, 0, Decision::Commit)).is_ok());
    assert_eq!(partition.stable_end(), partition.end());

    // A repair may have left the coordinator with an older epoch than the log.
    assert!(partition.append(draft(Some(stranger), 1)).is_ok());
    assert!(partition.append(marker(7, 1, Decision::Abort)).is_ok());
    assert_eq!(kind(partition.append(draft(Some(Producer { id: 7, epoch: 1, sequence: 0 }), 1))), ErrorKind::Fenced);
}

#[test]
fn transactions_of_a_partition_are_bounded() {
    let mut partition = Partition::default();
    for id in 0..PARTITION_TRANSACTIONS_MAX as i64 {
        partition.begin(id, 0).expect("room");
    }
    assert_eq!(partition.begin(-1, 0).map_err(|e| e.kind), Err(ErrorKind::Busy));
    partition.begin(0, 1).expect("it is there");
    partition.close(5);
    partition.begin(PARTITION_TRANSACTIONS_MAX as i64, 0).expect("room again");
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Begin(i64),
    Send(i64),
    Others,
    End {
        id: i64,
        commits: bool,
        bumps: bool,
    },
    /// From an earlier epoch.
    Zombie(i64),
    /// The state is restored from a snapshot of this many batches ago.
    Restart(usize),
    /// The start of the log moves.
    Trim(u64),
}

fn an_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0i64..4).prop_map(Op::Begin),
        6 => (0i64..4).prop_map(Op::Send),
        2 => Just(Op::Others),
        4 => (0i64..4, any::<bool>(), any::<bool>()).prop_map(|(id, commits, bumps)| Op::End { id, commits, bumps }),
        1 => (0i64..4).prop_map(Op::Zombie),
        1 => (0usize..20).prop_map(Op::Restart),
        1 => (0u64..30).prop_map(Op::Trim),
    ]
}

/// Naive model of the log.
#[derive(Default)]
struct Model {
    log: Vec<RecordBatch>,
    /// Number of the transaction of each batch, if any.
    of: Vec<Option<usize>>,
    /// Decision on each transaction.
    ended: Vec<Option<Decision>>,
    /// Epoch, next sequence, and the transaction that is begun.
    producers: BTreeMap<i64, (i16, i32, Option<usize>)>,
    /// Offset before which the log was removed.
    start: Offset,
}

impl Model {
    fn stable_end(&self) -> Offset {
        let open = self.of.iter().zip(&self.log).filter(|(of, _)| of.is_some_and(|at| self.ended[at].is_none()));
        let end = self.log.last().map_or(0, RecordBatch::next_offset);
        open.map(|(_, batch)| batch.base_offset()).min().unwrap_or(end)
    }

    /// Returns the committed batches from an offset on.
    fn committed(&self, from: Offset) -> Vec<Offset> {
        let stable_end = self.stable_end();
        let counts = |of: &Option<usize>| of.is_none_or(|at| self.ended[at] == Some(Decision::Commit));
        let batches = self.of.iter().zip(&self.log).filter(|(of, batch)| counts(of) && !batch.is_control());
        let bases = batches.map(|(_, batch)| batch.base_offset());
        bases.filter(|base| (from..stable_end).contains(base)).collect()
    }

    fn push(&mut self, placed: Result<Placed>, of: Option<usize>) {
        let Ok(Placed::New(batch)) = placed else { panic!("not taken: {placed:?}") };
        self.log.push(batch);
        self.of.push(of);
    }

    /// Returns the batches that a reader keeps of a part of the log if it handles aborted transactions as Kafka's
    /// consumers do.
    fn read(&self, partition: &Partition, from: usize, count: usize) -> Vec<Offset> {
        let batches: Vec<RecordBatch> = self.log.iter().skip(from).take(count).cloned().collect();
        assert!(batches.iter().all(|batch| batch.base_offset() >= self.start));
        let stable_end = partition.stable_end();
        let batches: Vec<_> = batches.into_iter().filter(|batch| batch.base_offset() < stable_end).collect();
        let mut aborted = partition.aborted(self.log[from].base_offset(), stable_end);
        Aborted::retain_among(&mut aborted, &batches);
        aborted.sort_unstable_by_key(|aborted| aborted.first);
        let mut void = std::collections::HashSet::new();
        let mut seen = 0;
        let mut bases = Vec::new();
        for batch in batches {
            while let Some(next) = aborted.get(seen).filter(|next| next.first < batch.next_offset()) {
                void.insert(next.producer);
                seen += 1;
            }
            let id = batch.producer().map(|producer| producer.id);
            if batch.is_control() {
                if batch.marker().expect("readable").is_some_and(|marker| marker.decision == Decision::Abort) {
                    id.map(|id| void.remove(&id));
                }
            } else if !(batch.is_transactional() && id.is_some_and(|id| void.contains(&id))) {
                bases.push(batch.base_offset());
            }
        }
        bases
    }
}

fn apply(op: Op, model: &mut Model, partition: &mut Partition) {
    match op {
        Op::Begin(id) => {
            let number = model.ended.len();
            let (epoch, _, begun) = model.producers.entry(id).or_default();
            if begun.is_none() {
                partition.begin(id, *epoch).expect("begun");
                *begun = Some(number);
                model.ended.push(None);
            }
        }
        Op::Send(id) => {
            let (epoch, sequence, begun) = *model.producers.entry(id).or_default();
            let placed = partition.append(transactional(id, epoch, sequence));
            match begun {
                None => assert!(placed.is_err(), "there is no transaction"),
                Some(_) => {
                    model.push(placed, begun);
                    model.producers.insert(id, (epoch, sequence + 2, begun));
                }
            }
        }
        Op::Others => model.push(partition.append(draft(None, 1)), None),
        Op::End { id, commits, bumps } => {
            let (epoch, sequence, begun) = *model.producers.entry(id).or_default();
            let Some(number) = begun else { return };
            let decision = if commits { Decision::Commit } else { Decision::Abort };
            let written = partition.close(id).is_some();
            assert_eq!(written, model.of.contains(&begun), "whether it needs a marker");
            let next_epoch = epoch + i16::from(bumps);
            if written {
                model.push(partition.append(marker(id, next_epoch, decision)), None);
            }
            model.ended[number] = Some(decision);
            let sequence = if bumps { 0 } else { sequence };
            model.producers.insert(id, (next_epoch, sequence, None));
        }
        Op::Zombie(id) => {
            let (epoch, sequence, _) = *model.producers.entry(id).or_default();
            if epoch > 0 {
                assert!(partition.append(transactional(id, epoch - 1, sequence + 100)).is_err());
            }
        }
        Op::Restart(back) => {
            let at = model.log.len().saturating_sub(back);
            let mut early = Partition::default();
            model.log[..at].iter().for_each(|batch| early.replay(batch));
            let mut bytes = BytesMut::new();
            early.producers().encode(&mut bytes);
            let producers = Producers::decode(bytes.freeze()).expect("what was written is read");
            assert_eq!(&producers, early.producers());
            let mut again = Partition::resume(early.end(), producers);
            model.log[at..].iter().for_each(|batch| again.replay(batch));
            again.forget_aborted(model.start);
            assert_eq!(again.producers(), partition.producers());
            for (id, (epoch, _, begun)) in &model.producers {
                if begun.is_some() {
                    again.begin(*id, *epoch).expect("begun again");
                }
            }
            *partition = again;
        }
        Op::Trim(records) => {
            model.start = (model.start + records).min(partition.stable_end());
            partition.forget_aborted(model.start);
        }
    }
}

proptest! {
    #[test]
    fn stable_and_aborted_records_follow_from_the_log(ops in prop::collection::vec(an_op(), 1..120)) {
        let mut model = Model::default();
        let mut partition = Partition::default();
        for op in ops {
            apply(op, &mut model, &mut partition);
            prop_assert_eq!(partition.stable_end(), model.stable_end());
            let void = AbortedIndex::new(partition.aborted(model.start, partition.end()));
            let stable = model.log.iter().filter(|batch| batch.base_offset() < partition.stable_end());
            let present = stable.filter(|batch| batch.base_offset() >= model.start && !batch.is_control());
            let kept: Vec<Offset> = present.filter(|batch| !void.has(batch)).map(RecordBatch::base_offset).collect();
            prop_assert_eq!(kept, model.committed(model.start));
        }
        // A reader of any part of the log keeps exactly the committed batches in it.
        let first = model.log.iter().position(|batch| batch.base_offset() >= model.start).unwrap_or(model.log.len());
        for from in first..model.log.len() {
            for count in [1, 3, 10, usize::MAX] {
                let to = model.log.get(from.saturating_add(count)).map_or(Offset::MAX, RecordBatch::base_offset);
                let mut expected = model.committed(model.log[from].base_offset());
                expected.retain(|base| *base < to);
                prop_assert_eq!(model.read(&partition, from, count), expected);
            }
        }
    }
}
