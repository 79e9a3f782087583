//! Scripts for the producers of a partition (`testdata/producers`), and random sends against a naive model. The
//! commands:
//!
//! - `send ID SEQUENCE COUNT [epoch=N]`: a batch arrives at the partition
//! - `others N`: N records of other producers are appended
//! - `mixed ID SEQUENCE N`: N batches of one record, each followed by a record of another producer
//! - `crowd N`: N producers, from id 1000 on, each with one record
//! - `restart`: the state is encoded and decoded
//! - `state`: shows the producers and their states

use std::collections::BTreeMap;
use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;
use crate::codec::Codec;
use crate::record::{BatchBuilder, DraftBatch};
use crate::script::{self, Command};
use crate::{Partition, Placed};

fn draft(producer: Option<Producer>, count: u32) -> DraftBatch {
    let mut builder = BatchBuilder::new();
    for _ in 0..count {
        builder.push(0, None, None, &[]).expect("a small record");
    }
    builder.finish_with(Codec::None, producer).expect("records")
}

fn encoded(producers: &Producers) -> Bytes {
    let mut out = BytesMut::new();
    producers.encode(&mut out);
    out.freeze()
}

#[derive(Default)]
struct Script {
    end: Offset,
    producers: Producers,
}

impl Script {
    fn run(&mut self, line: &str) -> String {
        let command = Command::parse(line);
        match command.word(0) {
            "send" => {
                let epoch = command.named_number("epoch").unwrap_or(0) as i16;
                let sequence = command.word(2).parse().expect("a sequence");
                let producer = Producer { id: command.number(1) as i64, epoch, sequence };
                self.send(producer, command.number(3) as u32)
            }
            "others" => {
                self.end += command.number(1);
                String::new()
            }
            "mixed" => {
                for i in 0..command.number(3) as i32 {
                    let sequence = command.number(2) as i32 + i;
                    let answer = self.send(Producer { id: command.number(1) as i64, epoch: 0, sequence }, 1);
                    assert!(answer.starts_with("new"), "{answer}");
                    self.end += 1;
                }
                String::new()
            }
            "crowd" => {
                for id in 1000..1000 + command.number(1) as i64 {
                    self.send(Producer { id, epoch: 0, sequence: 0 }, 1);
                }
                format!("{} producers\n", self.producers.len())
            }
            "restart" => {
                let bytes = encoded(&self.producers);
                let again = Producers::decode(bytes.clone()).expect("what was encoded is decoded");
                assert_eq!(again, self.producers);
                self.producers = again;
                format!("{} bytes\n", bytes.len())
            }
            "state" => self.state(),
            other => panic!("no command '{other}'"),
        }
    }

    fn send(&mut self, producer: Producer, count: u32) -> String {
        match self.producers.check(producer, count) {
            Ok(Step::Next) => {
                let base_offset = self.end;
                self.producers.note(producer, count, base_offset);
                self.end += Offset::from(count);
                format!("new at {base_offset}\n")
            }
            Ok(Step::Duplicate { base_offset }) => format!("duplicate of {base_offset}\n"),
            Err(error) => format!("{error}\n"),
        }
    }

    fn state(&self) -> String {
        let sorted: BTreeMap<_, _> = self.producers.states.iter().collect();
        sorted.into_iter().fold(String::new(), |mut text, (id, state)| {
            let run = |run: &Run| format!(" {}+{}@{}", run.sequence, run.count, run.base_offset);
            let runs: String = state.runs.iter().map(run).collect();
            writeln!(text, "{id} epoch {}:{runs}", state.epoch).expect("a string takes all");
            text
        })
    }
}

#[test]
fn a_snapshot_from_before_transactions_is_read() {
    let mut script = Script::default();
    for line in ["send 1 0 5", "others 1", "send 1 5 2", "send 9 0 1 epoch=3"] {
        script.run(line);
    }
    let mut plain = BytesMut::new();
    plain.put_u8(SNAPSHOT_VERSION_PLAIN);
    plain.put_u32(2);
    for (id, state) in [1i64, 9].map(|id| (id, &script.producers.states[&id])) {
        plain.put_i64(id);
        plain.put_i16(state.epoch);
        plain.put_u8(state.runs.len() as u8);
        for run in &state.runs {
            plain.put_u32(run.sequence);
            plain.put_u32(run.count);
            plain.put_u64(run.base_offset);
        }
    }
    assert_eq!(Producers::decode(plain.clone().freeze()), Ok(script.producers));
    plain.put_u8(0);
    assert_eq!(Producers::decode(plain.freeze()).map_err(|e| e.kind), Err(ErrorKind::Malformed));
}

#[test]
fn a_producer_with_an_open_transaction_is_not_forgotten() {
    let mut producers = Producers::default();
    let mut first = draft(Some(Producer { id: 1, epoch: 0, sequence: 0 }), 1);
    first.set_transactional();
    producers.replay(&first.stamp(0));
    for id in 1000..1000 + 2 * PRODUCERS_MAX as i64 {
        let batch = draft(Some(Producer { id, epoch: 0, sequence: 0 }), 1);
        producers.replay(&batch.stamp(id as u64));
    }
    assert_eq!((producers.len(), producers.open(1), producers.first_open()), (PRODUCERS_MAX, Some(0), Some(0)));
}

#[test]
fn scripts() {
    script::check("producers", Script::default, Script::run);
}

#[test]
fn a_damaged_snapshot_is_refused() {
    let mut script = Script::default();
    for line in ["send 1 0 5", "others 1", "send 1 5 2", "send 9 0 1 epoch=3", "others 2", "send 9 1 1 epoch=3"] {
        assert!(script.run(line).is_empty() || !script.producers.is_empty());
    }
    let whole = encoded(&script.producers);
    for length in 0..whole.len() {
        let refused = Producers::decode(whole.slice(..length)).expect_err("cut short");
        assert_eq!(refused.kind, ErrorKind::Malformed, "{length} bytes");
    }
    let longer = Bytes::from([&whole[..], &[0]].concat());
    assert_eq!(Producers::decode(longer).map_err(|e| e.kind), Err(ErrorKind::Malformed));
    // Any changed bit is refused, or yields another state that is encoded as it was read.
    for bit in 0..whole.len() * 8 {
        let mut bytes = whole.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(other) = Producers::decode(bytes.clone().into()) {
            assert_ne!(other, script.producers, "bit {bit}");
            assert_eq!(encoded(&other), bytes);
        }
    }
    let version = [&[4][..], &whole[1..]].concat();
    assert_eq!(Producers::decode(version.into()).map_err(|e| e.kind), Err(ErrorKind::Unsupported));
    let many = [&[1][..], &(PRODUCERS_MAX as u32 + 1).to_be_bytes()].concat();
    assert_eq!(Producers::decode(many.into()).map_err(|e| e.kind), Err(ErrorKind::TooLarge));
}

/// Naive model of sequences: a list of all appended records.
#[derive(Default)]
struct Model {
    /// Epoch, and the offset of every record since it began.
    producers: BTreeMap<i64, (i16, Vec<Offset>)>,
}

#[derive(Clone, Copy, Debug)]
enum Op {
    /// A batch with the given distances of its sequence from the next one, and of its epoch from the present one.
    Send {
        id: i64,
        away: i64,
        count: u32,
        newer: i16,
    },
    Others {
        count: u32,
    },
    Restart,
}

fn an_op() -> impl Strategy<Value = Op> {
    let away = prop_oneof![5 => Just(0), 3 => -20i64..0, 1 => 1i64..3];
    let newer = prop_oneof![20 => Just(0i16), 1 => -1i16..=1];
    let send = (0i64..3, away, 1u32..4, newer).prop_map(|(id, away, count, newer)| Op::Send { id, away, count, newer });
    prop_oneof![10 => send, 3 => (1u32..3).prop_map(|count| Op::Others { count }), 1 => Just(Op::Restart)]
}

impl Model {
    /// Returns the expected placement of a batch; `None` if it is refused.
    fn expect(&mut self, producer: Producer, count: u32, end: Offset) -> Option<Placement> {
        let (epoch, taken) = self.producers.get(&producer.id).cloned().unwrap_or((-1, Vec::new()));
        let sequence = producer.sequence as usize;
        if producer.epoch > epoch {
            let is_first = sequence == 0;
            return is_first.then_some(Placement::New);
        }
        let is_known = taken.get(sequence..sequence + count as usize);
        match is_known {
            _ if producer.epoch < epoch => None,
            _ if sequence == taken.len() => Some(Placement::New),
            // Records that are separated by those of another producer were never one batch.
            Some(known) if known.windows(2).all(|pair| pair[1] == pair[0] + 1) => Some(Placement::At(known[0])),
            _ => None,
        }
        .inspect(|_| assert!(end > 0 || taken.is_empty()))
    }

    fn take(&mut self, producer: Producer, count: u32, base_offset: Offset) {
        let (epoch, taken) = self.producers.entry(producer.id).or_insert((-1, Vec::new()));
        if *epoch != producer.epoch {
            *epoch = producer.epoch;
            *taken = Vec::new();
        }
        taken.extend(base_offset..base_offset + Offset::from(count));
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Placement {
    New,
    At(Offset),
}

proptest! {
    #[test]
    fn every_batch_is_taken_once_and_in_order(ops in prop::collection::vec(an_op(), 1..60)) {
        let mut model = Model::default();
        let mut partition = Partition::default();
        let mut log = Vec::new();
        for op in ops {
            match op {
                Op::Send { id, away, count, newer } => {
                    let known = model.producers.get(&id);
                    let (epoch, taken) = known.map_or((0, 0), |(epoch, taken)| (*epoch, taken.len()));
                    let epoch = epoch.saturating_add(newer).max(0);
                    let sequence = (taken as i64 + away).max(0) as i32;
                    let producer = Producer { id, epoch, sequence };
                    let expected = model.expect(producer, count, partition.end());
                    let found = match partition.append(draft(Some(producer), count)) {
                        Ok(Placed::New(batch)) => {
                            model.take(producer, count, batch.base_offset());
                            log.push(batch);
                            Some(Placement::New)
                        }
                        Ok(Placed::Duplicate { base_offset }) => Some(Placement::At(base_offset)),
                        Err(_) => None,
                    };
                    prop_assert_eq!(found, expected, "{:?}", producer);
                }
                Op::Others { count } => match partition.append(draft(None, count)) {
                    Ok(Placed::New(batch)) => log.push(batch),
                    other => prop_assert!(false, "not taken: {:?}", other),
                },
                Op::Restart => {
                    let producers = Producers::decode(encoded(partition.producers())).expect("valid");
                    prop_assert_eq!(&producers, partition.producers());
                    partition = Partition::resume(partition.end(), producers);
                }
            }
        }
        // The log alone yields the same state, and so does a snapshot with the batches after it.
        let mut replayed = Partition::default();
        let mut resumed = Partition::default();
        for (i, batch) in log.iter().enumerate() {
            if i == log.len() / 2 {
                let producers = Producers::decode(encoded(replayed.producers())).expect("valid");
                resumed = Partition::resume(replayed.end(), producers);
            }
            replayed.replay(batch);
            if i >= log.len() / 2 {
                resumed.replay(batch);
            }
        }
        prop_assert_eq!((replayed.end(), replayed.producers()), (partition.end(), partition.producers()));
        prop_assert_eq!((resumed.end(), resumed.producers()), (partition.end(), partition.producers()));
    }

    #[test]
    fn any_bytes_are_a_snapshot_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let bytes = [&[SNAPSHOT_VERSION, 0, 0, 0][..], &bytes].concat();
        if let Ok(producers) = Producers::decode(bytes.clone().into()) {
            prop_assert_eq!(encoded(&producers), bytes);
        }
    }
}
