//! Lane against a partition that keeps what it accepts, over a connection that breaks: in all cases each record has one
//! outcome, and the log contains the records that the outcomes report, once and in order.

use std::collections::{BTreeMap, BTreeSet};

use engine::{Partition, Placed};
use proptest::prelude::*;
use wire::Level;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Reaction of the broker to the next batch on the wire.
#[derive(Clone, Copy, Debug)]
enum Broker {
    Takes,
    Refuses(ErrorKind),
    /// The broker answers with an error, but has accepted the batch.
    TakesAndFails,
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Gather {
        is_last: bool,
    },
    Step,
    Broker(Broker),
    Answer,
    /// The connection breaks; `arrive` of the batches on it still arrive. The others may arrive later: [`Op::Late`].
    Cut {
        arrive: usize,
    },
    /// A batch arrives that was on a broken connection.
    Late {
        at: usize,
    },
    /// The connection turns out to be broken while a batch is passed to it.
    Vanish,
    /// The broker forgets this producer.
    Forget,
    Wait(u64),
}

struct World {
    lane: Lane<Vec<u32>>,
    now: Instant,
    partition: Partition,
    /// Records of the log, each by its number.
    log: Vec<u32>,
    to_broker: VecDeque<(u64, Bytes)>,
    to_client: VecDeque<(u64, Result<Published>)>,
    /// Batches that were on broken connections.
    late: Vec<Bytes>,
    /// Records that reached the log from there.
    came_late: BTreeSet<u32>,
    next_record: u32,
    next_identity: i64,
    outcomes: BTreeMap<u32, Result<u64, ErrorKind>>,
}

impl World {
    fn new(is_numbered: bool) -> Self {
        Self {
            lane: Lane::new(is_numbered.then_some((0, 0))),
            now: Instant::now(),
            partition: Partition::default(),
            log: Vec::new(),
            to_broker: VecDeque::new(),
            to_client: VecDeque::new(),
            late: Vec::new(),
            came_late: BTreeSet::new(),
            next_record: 0,
            next_identity: 1,
            outcomes: BTreeMap::new(),
        }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Gather { is_last } => {
                self.gather();
                if is_last {
                    self.lane.close_gathering();
                }
            }
            Op::Step => drop(self.step(true)),
            Op::Vanish => drop(self.step(false)),
            Op::Broker(broker) => self.broker(broker),
            Op::Answer => self.answer(),
            Op::Cut { arrive } => {
                for _ in 0..arrive {
                    self.broker(Broker::Takes);
                }
                let mut lost: Vec<u64> = self.to_client.drain(..).map(|(number, _)| number).collect();
                for (number, bytes) in self.to_broker.drain(..) {
                    lost.push(number);
                    self.late.push(bytes);
                }
                // In any order.
                for number in lost.into_iter().rev() {
                    let error = Error::new(ErrorKind::ShuttingDown, "the last words of a connection");
                    let settled = self.lane.lost(number, &error, self.now);
                    self.settle(settled);
                }
            }
            Op::Late { at } => {
                if !self.late.is_empty() {
                    let bytes = self.late.remove(at % self.late.len());
                    self.take_late(bytes);
                }
            }
            Op::Forget => {
                // A first batch whose answer is lost and whose producer is forgotten in the meantime is accepted twice.
                // That is why a partition remembers thousands of producers: more than can appear before a late batch
                // arrives from a broken connection.
                self.late.clear();
                let is_first = |batch: &Sealed<Vec<u32>>| batch.sequence == 0;
                if !self.lane.queue.iter().any(is_first) {
                    self.partition = Partition::resume(self.partition.end(), engine::producers::Producers::default());
                }
            }
            Op::Wait(ms) => {
                self.now += Duration::from_millis(ms);
                let (settled, next) = self.lane.expire(self.now, TIMEOUT, None);
                self.settle(settled);
                assert!(next.is_none_or(|next| next > self.now));
            }
        }
    }

    fn gather(&mut self) {
        let value = self.next_record.to_be_bytes();
        let open = self.lane.gathering.get_or_insert_with(|| Open {
            contents: Contents::Records(BatchBuilder::new()),
            owed: Vec::new(),
            opened: self.now,
            deadline: self.now + TIMEOUT,
            held: 0,
        });
        let Contents::Records(builder) = &mut open.contents else { panic!("only records gather") };
        builder.push(1, None, Some(&value), &[]).expect("a small record");
        open.owed.push(self.next_record);
        open.held = builder.len();
        self.next_record += 1;
    }

    /// Returns `true` if an action was possible.
    fn step(&mut self, is_open: bool) -> bool {
        let (number, bytes) = match self.lane.step(self.now, Duration::ZERO) {
            Step::Rest | Step::Wait(_) => return false,
            Step::Identity => {
                let settled = self.lane.identify((self.next_identity, 0));
                self.next_identity += 1;
                self.settle(settled);
                return true;
            }
            Step::Send { number, bytes } => (number, bytes),
            Step::Seal { open, producer } => {
                let (sealed, _) = open.seal(Codec::None, producer);
                let bytes = sealed.bytes.clone();
                (self.lane.sent(sealed), bytes)
            }
        };
        if is_open {
            self.to_broker.push_back((number, bytes))
        } else {
            self.lane.not_sent(number)
        }
        true
    }

    fn broker(&mut self, broker: Broker) {
        let Some((number, bytes)) = self.to_broker.pop_front() else {
            return;
        };
        let answer = match broker {
            Broker::Refuses(kind) => Err(Error::new(kind, "for a reason")),
            Broker::Takes => self.take(bytes),
            Broker::TakesAndFails => self.take(bytes).and(Err(Error::new(ErrorKind::Internal, "a defect"))),
        };
        self.to_client.push_back((number, answer));
    }

    fn take(&mut self, bytes: Bytes) -> Result<Published> {
        let draft = DraftBatch::parse(BytesMut::from(&bytes[..])).expect("a valid batch");
        let base_offset = match self.partition.append(draft)? {
            Placed::Duplicate { base_offset } => base_offset,
            Placed::New(batch) => {
                let records = batch.records().expect("records");
                let number = |value: &[u8]| u32::from_be_bytes(value.try_into().expect("four bytes"));
                self.log.extend(records.iter().map(|view| number(view.expect("valid").value.expect("a value"))));
                batch.base_offset()
            }
        };
        Ok(Published { partition: 0, base_offset, level: Level::Accepted, receivers: 0, partitions: 1 })
    }

    /// The answer is lost.
    fn take_late(&mut self, bytes: Bytes) {
        let end = self.log.len();
        drop(self.take(bytes));
        self.came_late.extend(&self.log[end..]);
    }

    fn answer(&mut self) {
        if let Some((number, answer)) = self.to_client.pop_front() {
            let settled = self.lane.answered(number, answer, self.now);
            self.settle(settled);
        }
    }

    fn settle(&mut self, settled: impl IntoIterator<Item = Settled<Vec<u32>>>) {
        for Settled { owed, outcome, .. } in settled {
            for (i, record) in owed.unwrap_or_default().into_iter().enumerate() {
                let outcome = outcome.as_ref().map_err(|error| error.kind);
                let outcome = outcome.map(|published| published.expect("an answer").base_offset + i as u64);
                assert_eq!(self.outcomes.insert(record, outcome), None, "record {record} has one outcome");
            }
        }
    }

    /// No more faults: everything that is left is settled.
    fn heal(&mut self) {
        self.lane.close_gathering();
        for _ in 0..1000 {
            while self.step(true) {}
            if self.to_broker.is_empty() && self.to_client.is_empty() {
                if self.lane.settled_to() == self.lane.end() {
                    return;
                }
                // The pause after an error.
                self.now += Duration::from_secs(3);
            }
            while !self.to_broker.is_empty() {
                self.broker(Broker::Takes);
            }
            while !self.to_client.is_empty() {
                self.answer();
            }
        }
        panic!("it does not come to an end");
    }

    fn check(&mut self, is_numbered: bool) {
        for bytes in std::mem::take(&mut self.late) {
            self.take_late(bytes);
        }
        assert_eq!(self.outcomes.len(), self.next_record as usize, "every record has an outcome");
        assert_eq!((self.lane.queue.len(), self.lane.outstanding, self.lane.unsent), (0, 0, 0));
        for (record, outcome) in &self.outcomes {
            let places: Vec<usize> = (0..self.log.len()).filter(|at| self.log[*at] == *record).collect();
            assert!(places.len() <= 1, "record {record} is in the log at {places:?}");
            match outcome {
                Ok(offset) => assert_eq!(places, [*offset as usize], "record {record}"),
                Err(kind) if kind.retry_class() == engine::RetryClass::OutcomeUnknown => {}
                Err(kind) => assert!(places.is_empty(), "record {record} was refused as {kind:?} and is at {places:?}"),
            }
        }
        // Records with an uncertain outcome may still arrive after later records.
        let is_in_order = |record: &&u32| self.outcomes[record].is_ok() || !self.came_late.contains(record);
        let in_order = self.log.iter().filter(is_in_order);
        assert!(!is_numbered || in_order.is_sorted(), "out of order: {:?}", self.log);
    }
}

fn an_op() -> impl Strategy<Value = Op> {
    let kinds =
        [ErrorKind::Busy, ErrorKind::Corrupt, ErrorKind::ShuttingDown, ErrorKind::NotLeader, ErrorKind::Internal];
    let fatal = [ErrorKind::NotFound, ErrorKind::Denied, ErrorKind::TooLarge];
    let broker = prop_oneof![
        8 => Just(Broker::Takes),
        2 => prop::sample::select(kinds.to_vec()).prop_map(Broker::Refuses),
        1 => prop::sample::select(fatal.to_vec()).prop_map(Broker::Refuses),
        1 => Just(Broker::TakesAndFails),
    ];
    prop_oneof![
        12 => any::<bool>().prop_map(|is_last| Op::Gather { is_last }),
        16 => Just(Op::Step),
        12 => broker.prop_map(Op::Broker),
        12 => Just(Op::Answer),
        3 => (0usize..4).prop_map(|arrive| Op::Cut { arrive }),
        3 => any::<usize>().prop_map(|at| Op::Late { at }),
        1 => Just(Op::Vanish),
        1 => Just(Op::Forget),
        4 => prop_oneof![1u64..50, 1_000u64..5_000, 20_000u64..70_000].prop_map(Op::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn each_record_is_in_the_log_as_its_outcome_says(
        ops in prop::collection::vec(an_op(), 1..120),
        is_numbered in any::<bool>(),
    ) {
        let mut world = World::new(is_numbered);
        for op in ops {
            world.apply(op);
        }
        world.heal();
        world.check(is_numbered);
    }
}

/// Batches of one record each, all on the wire.
fn on_the_wire(is_numbered: bool, records: usize) -> World {
    let mut world = World::new(is_numbered);
    for _ in 0..records {
        world.apply(Op::Gather { is_last: true });
        world.apply(Op::Step);
    }
    assert_eq!(world.to_broker.len(), records);
    world
}

#[test]
fn batches_accepted_before_a_disconnect_are_not_accepted_again() {
    let mut world = on_the_wire(true, 5);
    world.apply(Op::Cut { arrive: 3 });
    world.heal();
    assert_eq!(world.log, [0, 1, 2, 3, 4]);
    assert!(world.outcomes.values().all(Result::is_ok), "{:?}", world.outcomes);
}

#[test]
fn without_numbers_a_lost_answer_is_not_asked_for_again() {
    let mut world = on_the_wire(false, 5);
    world.apply(Op::Cut { arrive: 3 });
    world.heal();
    assert_eq!(world.log, [0, 1, 2]);
    assert!(world.outcomes.values().all(|outcome| *outcome == Err(ErrorKind::Disconnected)), "{:?}", world.outcomes);
}

#[test]
fn a_batch_that_is_refused_for_a_time_comes_later_in_its_place() {
    for (is_numbered, expected) in [(true, [0, 1, 2, 3]), (false, [0, 2, 3, 1])] {
        let mut world = on_the_wire(is_numbered, 4);
        world.apply(Op::Broker(Broker::Takes));
        world.apply(Op::Broker(Broker::Refuses(ErrorKind::Busy)));
        world.heal();
        assert_eq!(world.log, expected);
    }
}

#[test]
fn a_batch_that_is_refused_for_good_leaves_no_gap() {
    let mut world = on_the_wire(true, 4);
    world.apply(Op::Broker(Broker::Takes));
    world.apply(Op::Broker(Broker::Refuses(ErrorKind::TooLarge)));
    world.heal();
    assert_eq!(world.log, [0, 2, 3]);
    assert_eq!(world.outcomes[&1], Err(ErrorKind::TooLarge));
    assert_eq!(world.next_identity, 1, "the same producer goes on");
}

#[test]
fn renumbered_batches_are_not_mistaken_for_those_on_a_broken_connection() {
    let mut world = on_the_wire(true, 4);
    world.apply(Op::Broker(Broker::Takes));
    world.apply(Op::Broker(Broker::Refuses(ErrorKind::TooLarge)));
    world.apply(Op::Answer);
    world.apply(Op::Answer);
    world.apply(Op::Cut { arrive: 0 });
    world.apply(Op::Wait(5_000));
    // Record 2 is accepted from the new connection first; then records 2 and 3 arrive from the old one.
    while !matches!(world.to_broker.front(), Some((2, _))) {
        assert!(world.step(true), "it is sent again");
    }
    world.apply(Op::Broker(Broker::Takes));
    for _ in 0..2 {
        world.apply(Op::Late { at: 0 });
    }
    world.heal();
    world.check(true);
    assert_eq!(world.log, [0, 2, 3]);
    assert_eq!([world.outcomes[&2], world.outcomes[&3]], [Ok(1), Ok(2)]);
    assert_eq!(world.next_identity, 2);
}

#[test]
fn a_producer_that_was_forgotten_goes_on_as_another() {
    let mut world = on_the_wire(true, 1);
    world.heal();
    world.apply(Op::Forget);
    for _ in 0..3 {
        world.apply(Op::Gather { is_last: true });
        world.apply(Op::Step);
    }
    world.heal();
    assert_eq!(world.log, [0, 1, 2, 3]);
    assert_eq!(world.next_identity, 2);
    // Batches that may have been accepted under the old identity are not sent again.
    for _ in 0..2 {
        world.apply(Op::Gather { is_last: true });
        world.apply(Op::Step);
    }
    world.apply(Op::Cut { arrive: 1 });
    world.apply(Op::Gather { is_last: true });
    world.partition = Partition::resume(world.partition.end(), engine::producers::Producers::default());
    world.heal();
    assert_eq!(world.log, [0, 1, 2, 3, 4, 6]);
    assert_eq!([world.outcomes[&4], world.outcomes[&5]], [Err(ErrorKind::Disconnected); 2]);
    assert!(world.outcomes[&6].is_ok());
}

#[test]
fn batches_that_wait_too_long_fail_and_the_rest_continues() {
    let mut world = on_the_wire(true, 2);
    world.apply(Op::Wait(30_000));
    world.apply(Op::Gather { is_last: true });
    world.apply(Op::Wait(30_000));
    assert_eq!(world.outcomes, BTreeMap::from([(0, Err(ErrorKind::Timeout)), (1, Err(ErrorKind::Timeout))]));
    assert_eq!(world.lane.settled_to(), 2);
    // Their answers still arrive, and the batches after them are numbered from there.
    world.heal();
    assert_eq!(world.log, [0, 1, 2]);
    assert_eq!((world.outcomes[&2], world.next_identity), (Ok(2), 1));
}

#[test]
fn an_expired_batch_fails_with_its_own_refusal_or_a_timeout() {
    let mut world = on_the_wire(true, 2);
    world.apply(Op::Broker(Broker::Refuses(ErrorKind::TooLarge)));
    world.apply(Op::Broker(Broker::Takes));
    for _ in 0..2 {
        world.apply(Op::Answer);
    }
    world.apply(Op::Wait(60_000));
    assert_eq!(world.outcomes, BTreeMap::from([(0, Err(ErrorKind::TooLarge)), (1, Err(ErrorKind::Timeout))]));
    let mut world = on_the_wire(true, 1);
    world.apply(Op::Broker(Broker::Refuses(ErrorKind::Busy)));
    world.apply(Op::Answer);
    world.apply(Op::Wait(60_000));
    assert_eq!(world.outcomes, BTreeMap::from([(0, Err(ErrorKind::Busy))]));
}

#[test]
fn no_more_is_on_the_way_than_the_broker_remembers() {
    let mut world = World::new(true);
    for _ in 0..2 * PRODUCER_BATCHES_MAX {
        world.apply(Op::Gather { is_last: true });
        world.apply(Op::Step);
    }
    assert_eq!(world.to_broker.len(), PRODUCER_BATCHES_MAX);
    world.apply(Op::Cut { arrive: PRODUCER_BATCHES_MAX });
    world.heal();
    world.check(true);
    assert!(world.outcomes.values().all(Result::is_ok));
}

#[test]
fn a_lone_record_does_not_linger() {
    let linger = Duration::from_millis(100);
    let mut world = World::new(true);
    let seal = |world: &mut World| {
        world.gather();
        match world.lane.step(world.now, linger) {
            Step::Seal { open, producer } => {
                let (sealed, _) = open.seal(Codec::None, producer);
                world.lane.sent(sealed);
                None
            }
            Step::Wait(until) => until,
            _ => panic!("neither sent nor held back"),
        }
    };
    assert_eq!(seal(&mut world), None, "nobody else is there");
    let opened = world.now;
    assert_eq!(seal(&mut world), Some(opened + linger), "one is on the way");
    assert_eq!(seal(&mut world), Some(opened + linger));
    world.now += linger;
    assert_eq!(seal(&mut world), None, "it has waited long enough");
    for number in 0..2 {
        let published =
            Published { partition: 0, base_offset: number, level: Level::Accepted, receivers: 0, partitions: 1 };
        world.lane.answered(number, Ok(published), world.now);
    }
    assert_eq!(seal(&mut world), Some(world.now + linger), "the last one had company");
    world.now += linger;
    assert_eq!(seal(&mut world), None, "and that was a while ago");
}

#[test]
fn sequences_wrap() {
    let mut world = World::new(true);
    world.lane.next_sequence = i32::MAX - 1;
    world.partition = Partition::default();
    let mut first = BatchBuilder::new();
    first.push(1, None, Some(&u32::MAX.to_be_bytes()), &[]).expect("a small record");
    for sequence in [0, i32::MAX - 2] {
        // As if the producer had come this far.
        let mut draft = BatchBuilder::new();
        draft.push(1, None, None, &[]).expect("a small record");
        let producer = Some(Producer { id: 0, epoch: 0, sequence });
        let batch = draft.finish_with(Codec::None, producer).expect("a record").stamp(world.partition.end());
        world.partition.replay(&batch);
    }
    world.log = vec![u32::MAX; 2];
    for _ in 0..4 {
        world.apply(Op::Gather { is_last: true });
        world.apply(Op::Step);
    }
    assert_eq!(world.lane.next_sequence, 2);
    world.apply(Op::Broker(Broker::Refuses(ErrorKind::TooLarge)));
    world.heal();
    assert_eq!(world.log[2..], [1, 2, 3]);
    assert_eq!(world.lane.next_sequence, 1);
    assert!(is_before(i32::MAX, 0) && !is_before(0, i32::MAX) && !is_before(5, 5));
}
