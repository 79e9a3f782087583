//! The queue against a naive model, with restarts at any point, and the semantics of each order.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::ids::Offset;
use crate::limits::QUEUE_DELAYED_MAX;

const ATTEMPTS: u32 = 3;

#[derive(Clone, Debug)]
enum Op {
    Append {
        delay_ms: Option<u64>,
        group: Option<u64>,
    },
    /// Records of an aborted transaction, or a marker.
    AppendVoid {
        count: usize,
    },
    Take {
        max: usize,
        lease_ms: u64,
    },
    Ack {
        which: usize,
    },
    Extend {
        which: usize,
        lease_ms: u64,
    },
    Nack {
        which: usize,
        delay_ms: u64,
    },
    Untake {
        which: usize,
    },
    Pass {
        ms: u64,
    },
    Trim {
        records: u64,
    },
    Restart,
}

fn op() -> impl Strategy<Value = Op> {
    let delay = prop_oneof![3 => Just(None), 1 => (1u64..50).prop_map(Some)];
    let group = prop_oneof![1 => Just(None), 4 => (0u64..3).prop_map(Some)];
    prop_oneof![
        6 => (delay, group).prop_map(|(delay_ms, group)| Op::Append { delay_ms, group }),
        2 => (1usize..4).prop_map(|count| Op::AppendVoid { count }),
        4 => (1usize..4, 1u64..40).prop_map(|(max, lease_ms)| Op::Take { max, lease_ms }),
        3 => any::<usize>().prop_map(|which| Op::Ack { which }),
        1 => (any::<usize>(), 0u64..40).prop_map(|(which, lease_ms)| Op::Extend { which, lease_ms }),
        2 => (any::<usize>(), 0u64..30).prop_map(|(which, delay_ms)| Op::Nack { which, delay_ms }),
        1 => any::<usize>().prop_map(|which| Op::Untake { which }),
        3 => (1u64..30).prop_map(|ms| Op::Pass { ms }),
        1 => (0u64..4).prop_map(|records| Op::Trim { records }),
        1 => Just(Op::Restart),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Is {
    There,
    Leased { until: u64 },
    Delayed { until: u64 },
    Done,
}

#[derive(Clone, Copy, Debug)]
struct Modelled {
    is: Is,
    attempts: u32,
    /// Lease of the last delivery.
    lease: u64,
    group: Option<u64>,
    is_void: bool,
}

/// Model of every message ever sent, which is searched from the first one each time.
#[derive(Debug, Default)]
struct Model {
    messages: Vec<Modelled>,
    now: u64,
}

impl Model {
    fn tick(&mut self) {
        for message in &mut self.messages {
            match message.is {
                Is::Leased { until } | Is::Delayed { until } if until <= self.now => message.is = Is::There,
                _ => {}
            }
        }
    }

    fn counts(&self) -> Counts {
        let count = |is: fn(&Is) -> bool| self.messages.iter().filter(|message| is(&message.is)).count() as u64;
        Counts {
            visible: count(|is| *is == Is::There),
            leased: count(|is| matches!(is, Is::Leased { .. })),
            delayed: count(|is| matches!(is, Is::Delayed { .. })),
        }
    }

    /// Returns the messages that could be delivered, in the order of the log.
    fn next(&self, order: Order) -> Vec<Offset> {
        let is_free = |offset: usize, message: &Modelled| {
            let before = self.messages[..offset].iter().filter(|other| other.group == message.group);
            let mut before = before.filter(|_| order == Order::Groups && message.group.is_some());
            message.is == Is::There && before.all(|other| matches!(other.is, Is::There | Is::Done))
        };
        let free = self.messages.iter().enumerate().filter(|(offset, message)| is_free(*offset, message));
        free.map(|(offset, _)| offset as Offset).collect()
    }

    /// Checks which of the available messages one scan delivered: the oldest, or with ordered groups all of one group
    /// before the next.
    fn check(&self, given: &[Offset], free: &[Offset], order: Order) {
        if order != Order::Groups {
            assert!(free.starts_with(given), "{given:?} of {free:?}: {self:?}");
            return;
        }
        let group = |offset: &Offset| self.messages[*offset as usize].group;
        let mut left = free.to_vec();
        for (i, offset) in given.iter().enumerate() {
            let at = left.iter().position(|other| other == offset);
            left.remove(at.unwrap_or_else(|| panic!("{offset} of {given:?} is not free: {free:?} {self:?}")));
            let Some(id) = group(offset) else {
                continue;
            };
            assert!(!left.iter().any(|other| other < offset && group(other) == Some(id)), "{given:?}: {self:?}");
            if given.get(i + 1).is_some_and(|next| group(next) != Some(id)) {
                assert!(!left.iter().any(|other| group(other) == Some(id)), "{given:?} of {free:?}: {self:?}");
            }
        }
    }
}

fn settings(order: Order) -> QueueSettings {
    let dead_letter = Some(TopicName::parse("dead").expect("a name"));
    QueueSettings { order, attempts_max: ATTEMPTS, dead_letter, is_strict: true, ..QueueSettings::default() }
}

/// State that a broker would restore after a restart.
#[derive(Default)]
struct Kept {
    entries: BTreeMap<Offset, Entry>,
    next: Offset,
}

impl Kept {
    fn save(&mut self, queue: &mut Queue) {
        for (offset, entry) in queue.take_changes() {
            match entry {
                Some(entry) => self.entries.insert(offset, entry),
                None => self.entries.remove(&offset),
            };
        }
        self.next = queue.next();
    }

    fn restored(&self, order: Order, start: Offset, end: Offset) -> Queue {
        let mut queue = Queue::new(settings(order), start, end, true);
        self.entries.iter().for_each(|(offset, entry)| queue.restore(*offset, Some(*entry)));
        queue.restore_next(self.next);
        queue.resume(start, end);
        queue
    }
}

fn run(order: Order, ops: Vec<Op>) {
    let mut queue = Queue::new(settings(order), 0, 0, true);
    let mut model = Model::default();
    let mut kept = Kept::default();
    let mut leases: Vec<Lease> = Vec::new();
    let mut start: Offset = 0;
    model.now = 1;
    for op in ops {
        model.tick();
        let pick = |which: usize| leases.get(which % leases.len().max(1)).copied();
        let runs = |model: &Model, lease: &Lease| {
            let message = &model.messages[lease.offset as usize];
            matches!(message.is, Is::Leased { .. }) && message.lease == lease.lease
        };
        match op {
            Op::Append { delay_ms, group } => {
                let offset = model.messages.len() as Offset;
                let is = delay_ms.map_or(Is::There, |delay_ms| Is::Delayed { until: model.now + delay_ms });
                model.messages.push(Modelled { is, attempts: 0, lease: 0, group, is_void: false });
                if let Some(delay_ms) = delay_ms {
                    queue.delay(offset, model.now + delay_ms);
                }
                queue.append(offset + 1);
            }
            Op::AppendVoid { count } => {
                let void = Modelled { is: Is::Done, attempts: 0, lease: 0, group: None, is_void: true };
                let from = model.messages.len();
                model.messages.extend(vec![void; count]);
                queue.append_void(from as Offset..(from + count) as Offset);
            }
            Op::Take { max, lease_ms } => {
                let groups: Vec<Option<u64>> = model.messages.iter().map(|message| message.group).collect();
                let taken = queue.take(model.now, max, lease_ms, |offset| Look::Message(groups[offset as usize]));
                let free = model.next(order);
                let mut given: Vec<&Lease> = taken.leases.iter().chain(&taken.dead).collect();
                given.sort_unstable_by_key(|lease| lease.lease);
                let given: Vec<Offset> = given.into_iter().map(|lease| lease.offset).collect();
                model.check(&given, &free, order);
                assert!(taken.leases.len() == max || given.len() == free.len());
                for lease in &taken.leases {
                    let message = &mut model.messages[lease.offset as usize];
                    message.attempts += 1;
                    message.is = Is::Leased { until: model.now + lease_ms };
                    message.lease = lease.lease;
                    assert_eq!(lease.attempts, message.attempts);
                }
                for lease in &taken.dead {
                    assert_eq!(model.messages[lease.offset as usize].attempts, ATTEMPTS);
                    model.messages[lease.offset as usize].is = Is::Done;
                    assert_eq!(queue.ack(lease.offset, lease.lease, model.now), Ok(true), "the broker has moved it");
                }
                leases.extend(taken.leases);
            }
            Op::Ack { which } => {
                if let Some(lease) = pick(which) {
                    let runs = runs(&model, &lease);
                    assert_eq!(queue.ack(lease.offset, lease.lease, model.now).is_ok(), runs, "{lease:?} {model:?}");
                    if runs {
                        model.messages[lease.offset as usize].is = Is::Done;
                    }
                }
            }
            Op::Extend { which, lease_ms } => {
                if let Some(lease) = pick(which) {
                    let runs = runs(&model, &lease);
                    assert_eq!(queue.extend(lease.offset, lease.lease, model.now, lease_ms).is_ok(), runs);
                    if runs {
                        let is = if lease_ms == 0 { Is::There } else { Is::Leased { until: model.now + lease_ms } };
                        model.messages[lease.offset as usize].is = is;
                    }
                }
            }
            Op::Nack { which, delay_ms } => {
                if let Some(lease) = pick(which) {
                    let runs = runs(&model, &lease);
                    assert_eq!(queue.nack(lease.offset, lease.lease, model.now, Some(delay_ms)).is_ok(), runs);
                    if runs {
                        let is = if delay_ms == 0 { Is::There } else { Is::Delayed { until: model.now + delay_ms } };
                        model.messages[lease.offset as usize].is = is;
                    }
                }
            }
            Op::Untake { which } => {
                if let Some(lease) = pick(which).filter(|lease| runs(&model, lease)) {
                    queue.untake(&lease);
                    let message = &mut model.messages[lease.offset as usize];
                    message.is = Is::There;
                    message.attempts -= 1;
                }
            }
            Op::Pass { ms } => {
                model.now += ms;
                model.tick();
            }
            Op::Trim { records } => {
                start = (start + records).min(model.messages.len() as Offset);
                model.messages.iter_mut().take(start as usize).for_each(|message| message.is = Is::Done);
                queue.trim(start);
            }
            Op::Restart => {
                kept.save(&mut queue);
                queue = kept.restored(order, start, model.messages.len() as Offset);
                // Messages that were never delivered tell by their headers that they are delayed, or no message.
                queue.forget_ahead();
                for (offset, message) in (0..).zip(&model.messages).skip(queue.next() as usize) {
                    match message.is {
                        _ if message.is_void => queue.append_void(offset..offset + 1),
                        Is::Delayed { until } => queue.delay(offset, until),
                        _ => {}
                    }
                    queue.append(offset + 1);
                }
            }
        }
        kept.save(&mut queue);
        assert_eq!(queue.counts(model.now), model.counts(), "{model:?}");
        let is_done = |offset: &usize| model.messages[*offset].is == Is::Done;
        let floor = (0..model.messages.len()).take_while(is_done).count() as Offset;
        assert!(queue.floor() <= floor.max(start));
        for offset in 0..model.messages.len() {
            assert!(!queue.is_done(offset as Offset) || is_done(&offset));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_queue_agrees_with_its_model(ops in prop::collection::vec(op(), 1..120)) {
        run(Order::Any, ops);
    }

    #[test]
    fn a_queue_of_groups_agrees_with_its_model(ops in prop::collection::vec(op(), 1..120)) {
        run(Order::Groups, ops);
    }
}

/// Returns a queue with one message for each of these groups.
fn queue_of(order: Order, groups: &[Option<u64>]) -> Queue {
    let mut queue = Queue::new(QueueSettings { order, ..QueueSettings::default() }, 0, 0, false);
    queue.append(groups.len() as Offset);
    queue
}

fn take(queue: &mut Queue, groups: &[Option<u64>], max: usize) -> Vec<Offset> {
    let taken = queue.take(1, max, 1000, |offset| Look::Message(groups[offset as usize]));
    taken.leases.iter().map(|lease| lease.offset).collect()
}

#[test]
fn a_noisy_group_steps_back_behind_the_others() {
    let mut groups = vec![Some(1); 200];
    groups.extend([Some(2), None, Some(3)]);
    let mut queue = queue_of(Order::Fair, &groups);
    assert_eq!(take(&mut queue, &groups, 100), (0..100).collect::<Vec<_>>(), "nobody else is there to be seen yet");
    assert_eq!(queue.noisy_groups(), 1);
    assert_eq!(take(&mut queue, &groups, 5), [200, 201, 202, 100, 101], "the quiet ones first, then it goes on");
    assert_eq!(queue.counts(1), Counts { visible: 98, leased: 105, delayed: 0 });
}

#[test]
fn cold_messages_are_waited_for_and_absent_ones_are_skipped() {
    let groups = [Some(1), None, Some(2)];
    let mut queue = queue_of(Order::Groups, &groups);
    let taken = queue.take(1, 10, 1000, |offset| match offset {
        0 => Look::Absent,
        1 => Look::Message(None),
        _ => Look::Cold,
    });
    assert_eq!((taken.leases.len(), taken.leases[0].offset, taken.cold), (1, 1, Some(2)));
    assert_eq!(take(&mut queue, &groups, 10), [2]);
}

#[test]
fn no_more_is_leased_than_may_be() {
    let settings = QueueSettings { in_flight_max: 2, ..QueueSettings::default() };
    let mut queue = Queue::new(settings, 0, 5, false);
    let taken = queue.take(1, 10, 1000, |_| Look::Message(None));
    assert_eq!((taken.leases.len(), taken.is_full), (2, true));
    assert_eq!(queue.ack(0, taken.leases[0].lease, 1), Ok(true));
    assert_eq!(queue.take(1, 10, 1000, |_| Look::Message(None)).leases.len(), 1);
}

#[test]
fn nobody_holds_a_message_for_ever_and_timers_do_not_pile_up() {
    let mut queue = Queue::new(QueueSettings::default(), 0, 1, false);
    let lease = queue.take(0, 1, 1000, |_| Look::Message(None)).leases[0];
    for now in 0..100_000 {
        assert_eq!(queue.extend(0, lease.lease, now, 1000), Ok(()));
    }
    assert!(queue.timers_kept() < 5000);
    assert_eq!(queue.extend(0, lease.lease, 100_000, LEASE_TOTAL_MS_MAX), Err(LeaseError::TooLong));
}

#[test]
fn a_returned_message_returns_the_following_ones_of_its_group() {
    let groups = [Some(1); 3];
    let settings = QueueSettings { order: Order::Groups, returns_following: true, ..QueueSettings::default() };
    let mut queue = Queue::new(settings, 0, 3, false);
    let taken = queue.take(1, 3, 1000, |_| Look::Message(Some(1)));
    assert_eq!(queue.nack(1, taken.leases[1].lease, 1, Some(0)), Ok(()));
    assert_eq!(queue.counts(1), Counts { visible: 2, leased: 1, delayed: 0 });
    assert_eq!(take(&mut queue, &groups, 3), Vec::<Offset>::new(), "the first is still out");
    assert_eq!(queue.ack(0, taken.leases[0].lease, 1), Ok(true));
    assert_eq!(take(&mut queue, &groups, 3), [1, 2]);
}

/// If a crash cuts a save short at any point, no message is lost and no finished message is delivered again.
#[test]
fn a_save_that_was_cut_short_loses_nothing() {
    let groups: Vec<Option<u64>> = (0..40).map(|offset| Some(offset % 3)).collect();
    let look = |offset: Offset| Look::Message(groups[offset as usize]);
    for order in [Order::Any, Order::Groups] {
        let mut queue = Queue::new(settings(order), 0, 40, true);
        let mut kept = Kept::default();
        let first = queue.take(1, 5, 1000, look);
        kept.save(&mut queue);
        for lease in &first.leases {
            assert_eq!(queue.ack(lease.offset, lease.lease, 1), Ok(true));
        }
        kept.save(&mut queue);
        let before = kept.next;
        let second = queue.take(1, 20, 1000, look);
        let changes = queue.take_changes();
        for cut in 0..=changes.len() {
            let mut torn = Kept { entries: kept.entries.clone(), next: before };
            for (offset, entry) in &changes[..cut] {
                entry.map(|entry| torn.entries.insert(*offset, entry));
            }
            let mut queue = torn.restored(order, 0, 40);
            let mut got: Vec<Offset> = first.leases.iter().map(|lease| lease.offset).collect();
            loop {
                let taken = queue.take(2000, 7, 1000, look);
                if taken.leases.is_empty() {
                    break;
                }
                for lease in taken.leases {
                    got.push(lease.offset);
                    assert_eq!(queue.ack(lease.offset, lease.lease, 2000), Ok(true));
                }
            }
            got.sort_unstable();
            assert_eq!(got, (0..40).collect::<Vec<_>>(), "{order:?}, {cut} of {}", changes.len());
            assert!(second.leases.len() > 5);
        }
    }
}

#[test]
fn messages_that_were_never_leased_are_not_stored() {
    let mut queue = Queue::new(QueueSettings::default(), 0, 0, true);
    for offset in 0..1000 {
        match offset % 2 {
            0 => queue.append_void(offset..offset + 1),
            _ => queue.delay(offset, 50),
        }
        queue.append(offset + 1);
    }
    assert_eq!(queue.counts(1), Counts { visible: 0, leased: 0, delayed: 500 });
    assert_eq!(queue.take_changes(), []);
    assert_eq!(queue.counts(50), Counts { visible: 500, leased: 0, delayed: 0 });
    assert_eq!(queue.take(50, 1000, 1000, |_| Look::Message(None)).leases.len(), 500);
    assert_eq!(queue.take_changes().len(), 500, "only what was given out");
    assert_eq!(queue.counts(2000).visible, 500, "the leases have ended");
    assert_eq!(queue.take_changes(), [], "a restart would end them as well");
}

#[test]
fn a_message_that_comes_back_after_a_day_can_be_held_again() {
    let mut queue = Queue::new(QueueSettings::default(), 0, 1, false);
    let day_ms = 24 * 3_600_000;
    queue.take(1, 1, 1000, |_| Look::Message(None));
    let again = queue.take(day_ms, 1, 1000, |_| Look::Message(None)).leases[0];
    assert_eq!(again.attempts, 2);
    assert_eq!(queue.extend(0, again.lease, day_ms, 60_000), Ok(()));
    assert_eq!(queue.extend(0, again.lease, day_ms, LEASE_TOTAL_MS_MAX + 1000), Err(LeaseError::TooLong));
}

#[test]
fn a_clock_that_is_set_back_holds_nothing_longer() {
    let mut queue = Queue::new(QueueSettings::default(), 0, 3, false);
    let year_ms = 365 * 24 * 3_600_000;
    let taken = queue.take(year_ms, 2, 1000, |_| Look::Message(None));
    assert_eq!(queue.nack(1, taken.leases[1].lease, year_ms, Some(5000)), Ok(()));
    queue.delay(2, 9000);
    assert_eq!(queue.counts(10), Counts { visible: 0, leased: 1, delayed: 2 });
    assert_eq!(queue.counts(1010), Counts { visible: 1, leased: 0, delayed: 2 });
    assert_eq!(queue.counts(5010), Counts { visible: 2, leased: 0, delayed: 1 });
    assert_eq!(queue.counts(9000), Counts { visible: 3, leased: 0, delayed: 0 });
}

/// With a clock that is set an hour forward and back at random, no lease or delay takes longer than it should, none is
/// lost, and no finished message is delivered again.
#[test]
fn a_clock_that_jumps_both_ways_loses_nothing_and_holds_nothing_longer() {
    let count = 50;
    let lease_ms = 30_000;
    let delay_ms = 10_000;
    let hour_ms = 3_600_000_u64;
    for seed in 0..20_u32 {
        let mut queue = Queue::new(QueueSettings::default(), 0, count, true);
        let mut state = seed;
        let mut random = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % below
        };
        // The clock is some hours off the elapsed time.
        let mut passed_ms = 0_u64;
        let mut off_ms = 10 * hour_ms;
        let mut held = Vec::new();
        let mut done = std::collections::BTreeSet::new();
        for _ in 0..400 {
            passed_ms += u64::from(random(5_000));
            match random(10) {
                0 => off_ms += hour_ms,
                1 => off_ms = off_ms.saturating_sub(hour_ms),
                _ => {}
            }
            let now_ms = passed_ms + off_ms;
            match random(3) {
                0 => {
                    let taken = queue.take(now_ms, 3, lease_ms, |_| Look::Message(None));
                    assert!(taken.leases.iter().all(|lease| !done.contains(&lease.offset)), "{taken:?}");
                    held.extend(taken.leases);
                }
                answer if !held.is_empty() => {
                    let at = random(held.len() as u32) as usize;
                    let lease: Lease = held.swap_remove(at);
                    // The lease may have expired, or another receiver may hold the message.
                    let settled = match answer {
                        1 => queue.ack(lease.offset, lease.lease, now_ms).map(drop),
                        _ => queue.nack(lease.offset, lease.lease, now_ms, Some(delay_ms)),
                    };
                    if answer == 1 && settled.is_ok() {
                        done.insert(lease.offset);
                    }
                }
                _ => {}
            }
            let Counts { visible, leased, delayed } = queue.counts(now_ms);
            assert_eq!(visible + leased + delayed, count - done.len() as u64);
        }
        let left = Counts { visible: count - done.len() as u64, leased: 0, delayed: 0 };
        assert_eq!(queue.counts(passed_ms + off_ms + lease_ms.max(delay_ms)), left, "seed {seed}");
    }
}

/// A call takes several scans of a queue whose leases end as soon as they begin.
#[test]
fn a_call_is_given_each_message_once_though_its_lease_has_ended() {
    let dead_letter = Some(TopicName::parse("dead").expect("a name"));
    for order in Order::ALL {
        let groups = [Some(1), None, Some(2), Some(1)];
        let settings = QueueSettings { order, attempts_max: 2, dead_letter: dead_letter.clone(), ..settings(order) };
        let mut queue = Queue::new(settings, 0, 4, false);
        let mut next = |now: u64, call: &mut Call, max: usize| {
            let look = |offset: Offset| Look::Message(groups[offset as usize]);
            let taken = queue.take_for(call, Offset::MAX, now, max, 0, look);
            assert_eq!(taken.dead, [], "{order:?}");
            taken.leases.iter().map(|lease| lease.offset).collect::<Vec<_>>()
        };
        let mut call = Call::default();
        let mut given = next(1, &mut call, 3);
        assert_eq!(given.len(), 3, "{order:?}");
        given.extend(next(1, &mut call, 10));
        given.extend(next(2, &mut call, 10));
        given.sort_unstable();
        assert_eq!(given, [0, 1, 2, 3], "{order:?}");
        assert_eq!(next(3, &mut Call::default(), 10).len(), 4, "{order:?}: others are given them");
    }
}

/// "SQS first attempts to return as many messages with the same message group ID as possible." (Amazon SQS Developer
/// Guide, "FIFO queue delivery logic"), including those that were sent after messages of other groups.
#[test]
fn a_look_takes_all_of_one_group_before_the_next() {
    let groups = [Some(1), Some(2), Some(1), Some(2), Some(3), Some(1), Some(2)];
    let mut queue = queue_of(Order::Groups, &groups);
    assert_eq!(take(&mut queue, &groups, 2), [0, 2]);
    assert_eq!(take(&mut queue, &groups, 3), [1, 3, 6], "the first is in flight");
    assert_eq!(take(&mut queue, &groups, 10), [4]);
    let mut queue = queue_of(Order::Groups, &groups);
    assert_eq!(take(&mut queue, &groups, 10), [0, 2, 5, 1, 3, 6, 4]);
}

#[test]
fn the_receipt_of_a_lease_that_was_lost_does_not_finish_its_message() {
    for is_strict in [false, true] {
        let settings = QueueSettings { is_strict, ..settings(Order::Groups) };
        let started = || Queue::new(settings.clone(), 0, 1, false);
        let look = |_| Look::Message(None);
        let lost = started().take(1, 1, 1000, look).leases[0];
        // The next leader has the message, but not the lease.
        let mut queue = started();
        assert_eq!(queue.ack(0, lost.lease, 2), Err(LeaseError::Expired), "an answer of success would be wrong");
        assert_eq!(queue.ack(1, lost.lease, 2), Err(LeaseError::Gone), "no such message");
        let again = queue.take(2, 1, 1000, look).leases[0];
        assert_eq!(queue.ack(0, again.lease, 3), Ok(true));
    }
}

#[test]
fn a_group_that_can_be_had_again_goes_behind_the_others() {
    let groups = [Some(1), Some(1), Some(1), Some(2), Some(1), Some(3), Some(2), Some(4)];
    let mut queue = Queue::new(QueueSettings { order: Order::Groups, ..settings(Order::Groups) }, 0, 7, false);
    let look = |offset: Offset| Look::Message(groups[offset as usize]);
    let first = queue.take(1, 1, 1000, look).leases[0];
    assert_eq!(first.offset, 0);
    assert_eq!(queue.ack(0, first.lease, 1), Ok(true), "nothing is known of its group now");
    let second = queue.take(1, 1, 1000, look).leases[0];
    assert_eq!(second.offset, 3);
    assert_eq!(queue.nack(3, second.lease, 1, Some(0)), Ok(()));
    // Later messages come after both.
    queue.append(8);
    let order: Vec<Offset> = queue.take(1, 10, 1000, look).leases.iter().map(|lease| lease.offset).collect();
    assert_eq!(order, [5, 1, 2, 4, 3, 6, 7]);
    // Messages whose leases end at the same time return in the order in which they were delivered.
    let order: Vec<Offset> = queue.take(1001, 10, 1000, look).leases.iter().map(|lease| lease.offset).collect();
    assert_eq!(order, [5, 1, 2, 4, 3, 6, 7]);
}

#[test]
fn only_earlier_messages_of_its_group_hold_a_message_back() {
    let groups = [Some(1), Some(1), Some(1)];
    let mut queue = queue_of(Order::Groups, &groups);
    let taken = queue.take(1, 2, 1000, |_| Look::Message(Some(1)));
    assert_eq!(queue.nack(0, taken.leases[0].lease, 1, Some(0)), Ok(()));
    assert_eq!(take(&mut queue, &groups, 3), [0], "the second is still in flight, and the third is behind it");
    assert_eq!(queue.nack(1, taken.leases[1].lease, 1, Some(0)), Ok(()));
    assert_eq!(take(&mut queue, &groups, 3), Vec::<Offset>::new());
}

#[test]
fn an_undelivered_message_returns_to_its_place() {
    let groups = [Some(1), Some(1), Some(2)];
    let mut queue = queue_of(Order::Groups, &groups);
    let taken = queue.take(1, 2, 1000, |offset| Look::Message(groups[offset as usize]));
    taken.leases.iter().for_each(|lease| queue.untake(lease));
    assert_eq!(take(&mut queue, &groups, 3), [0, 1, 2]);
}

/// Two groups have messages that are far apart: neither memory nor time is spent on distant messages.
#[test]
fn a_look_for_more_of_a_group_has_an_end() {
    let mut groups = vec![Some(1)];
    groups.extend((0..20_000).map(|i| Some(100 + i)));
    groups.push(Some(1));
    let mut queue = queue_of(Order::Groups, &groups);
    assert_eq!(take(&mut queue, &groups, 10).len(), 10);
    assert!(queue.next() <= LOOK_AHEAD_MAX + 10, "{}", queue.next());
}

/// `ChangeMessageVisibility` of SQS returns 200 for a receipt that has expired, as long as no client received the
/// message since: recorded from AWS in LocalStack's
/// `test_change_message_visibility_after_visibility_timeout_expiration`.
#[test]
fn a_lease_that_has_expired_runs_again_unless_another_was_given_the_message() {
    for backoff_ms in [(0, 0), (5000, 5000)] {
        let mut queue = Queue::new(QueueSettings { backoff_ms, ..QueueSettings::default() }, 0, 1, false);
        let first = queue.take(1, 1, 1000, |_| Look::Message(None)).leases[0];
        assert_eq!(queue.extend(0, first.lease, 2000, 0), Ok(()), "it is back already");
        assert_eq!(queue.extend(0, first.lease, 2000, 1000), Ok(()));
        assert_eq!(queue.counts(2999), Counts { visible: 0, leased: 1, delayed: 0 });
        let second = queue.take(20_000, 1, 1000, |_| Look::Message(None)).leases.first().copied();
        let second = second.unwrap_or_else(|| queue.take(30_000, 1, 1000, |_| Look::Message(None)).leases[0]);
        assert_eq!(second.attempts, 2);
        assert_eq!(queue.ack(0, second.lease, 30_000), Ok(true));
        assert_eq!(queue.extend(0, first.lease, 30_000, 1000), Err(LeaseError::Gone));
    }
    let mut queue = Queue::new(QueueSettings::default(), 0, 1, false);
    let first = queue.take(1, 1, 1000, |_| Look::Message(None)).leases[0];
    assert_eq!(queue.nack(0, first.lease, 1, Some(0)), Ok(()));
    assert_eq!(queue.extend(0, first.lease, 1, 1000), Err(LeaseError::NotLeased), "it was given back");
    assert_eq!(queue.counts(1).visible, 1);
}

/// A receipt from before the newest receive must neither hold nor return a message that another receiver holds: "each
/// time you receive a message, you get a different receipt handle" (Amazon SQS Developer Guide, "SQS queue and message
/// identifiers"). It can still acknowledge the message.
#[test]
fn an_older_lease_acknowledges_but_neither_extends_nor_returns_a_message_leased_again() {
    let mut queue = Queue::new(QueueSettings::default(), 0, 1, false);
    let first = queue.take(1, 1, 1000, |_| Look::Message(None)).leases[0];
    let second = queue.take(2000, 1, 1000, |_| Look::Message(None)).leases[0];
    for lease_ms in [0, 60_000] {
        assert_eq!(queue.extend(0, first.lease, 2000, lease_ms), Err(LeaseError::Expired));
        assert_eq!(queue.renew(0, first.lease, 2000, lease_ms), Err(LeaseError::Expired));
    }
    assert_eq!(queue.nack(0, first.lease, 2000, Some(0)), Err(LeaseError::Expired));
    assert_eq!(queue.held(0, second.lease, 2999), Some(2));
    assert_eq!(queue.counts(3000), Counts { visible: 1, leased: 0, delayed: 0 }, "its lease ends when it was to end");
    assert_eq!(queue.extend(0, first.lease, 3000, 1000), Err(LeaseError::NotLeased));
    assert_eq!(queue.extend(0, second.lease, 3000, 1000), Ok(()));
    assert_eq!(queue.ack(0, first.lease, 3000), Ok(true));
}

#[test]
fn an_expired_lease_is_renewed_but_not_extended() {
    let mut queue = Queue::new(settings(Order::Groups), 0, 2, false);
    let first = queue.take(1, 1, 1000, |_| Look::Message(Some(1))).leases[0];
    assert_eq!(queue.extend(0, first.lease, 2000, 1000), Err(LeaseError::Expired));
    assert_eq!(queue.renew(0, first.lease, 2000, 1000), Ok(()));
    assert_eq!(queue.take(2500, 2, 1000, |_| Look::Message(Some(1))).leases.as_slice(), []);
    assert_eq!(queue.ack(0, first.lease, 2500), Ok(true));
}

#[test]
fn no_look_goes_by_more_than_it_may() {
    let mut groups = vec![Some(1); 10_000];
    groups.push(Some(2));
    let mut queue = queue_of(Order::Groups, &groups);
    assert_eq!(take(&mut queue, &groups, 1), [0]);
    let mut looks = 0;
    let found = loop {
        let taken = queue.take(1, 1, 1000, |offset| {
            looks += 1;
            Look::Message(groups[offset as usize])
        });
        assert!(looks < 5000, "{looks} messages in one look");
        looks = 0;
        if !taken.is_cut {
            break taken;
        }
    };
    assert_eq!(found.leases[0].offset, 10_000);
}

#[test]
fn nobody_holds_or_delays_a_message_for_ever() {
    let mut queue = Queue::new(QueueSettings::default(), 0, 2, false);
    let taken = queue.take(1, 2, u64::MAX, |_| Look::Message(None));
    assert_eq!(queue.nack(0, taken.leases[0].lease, 1, Some(u64::MAX)), Ok(()));
    assert_eq!(queue.counts(1 + DELAY_MS_MAX), Counts { visible: 2, leased: 0, delayed: 0 });
}

#[test]
fn a_trim_forgets_all_earlier_messages_in_any_state() {
    for held in [1, 500] {
        let mut queue = Queue::new(QueueSettings::default(), 0, 1000, true);
        queue.take(1, held, 1000, |_| Look::Message(None));
        queue.delay(700, 5000);
        queue.trim(800);
        assert_eq!((queue.floor(), queue.counts(1)), (800, Counts { visible: 200, leased: 0, delayed: 0 }));
    }
}

#[test]
fn delays_that_end_together_end_a_few_at_a_time() {
    let count = 3 * leases::ENDED_PER_CALL_MAX as u64;
    let mut queue = Queue::new(QueueSettings::default(), 0, 0, false);
    for offset in 0..count {
        queue.delay(offset, 50);
        queue.append(offset + 1);
    }
    let ended = queue.counts(50).visible;
    assert_eq!(ended, count / 3);
    assert!(queue.has_due(50));
    let taken = queue.take(50, 1, 1000, |_| Look::Message(None));
    assert_eq!((taken.leases[0].offset, taken.is_cut), (0, true), "the earliest first; another call finds more");
    assert_eq!(queue.counts(50), Counts { visible: count - 1, leased: 1, delayed: 0 });
    assert!(!queue.take(50, 1, 1000, |_| Look::Message(None)).is_cut);
}

#[test]
fn a_queue_reads_ahead_until_too_many_messages_are_delayed() {
    let mut queue = Queue::new(QueueSettings::default(), 0, 0, false);
    for offset in 0..QUEUE_DELAYED_MAX {
        assert!(queue.has_room_ahead());
        queue.delay(offset, 50);
        queue.append(offset + 1);
    }
    assert!(!queue.has_room_ahead());
    queue.expire(50);
    assert!(queue.has_room_ahead());
}

#[test]
fn offsets_without_a_message_are_known_until_the_cursor_has_passed_them() {
    let mut queue = Queue::new(QueueSettings::default(), 0, 1, false);
    queue.append_void(1..3);
    queue.append(5);
    queue.append_void(5..6);
    assert_eq!(
        [0, 1, 2, 3, 4, 5, 6].map(|offset| queue.is_void(offset)),
        [false, true, true, false, false, true, false]
    );
    queue.take(1, 2, 1000, |_| Look::Message(None));
    assert!(queue.is_done(1) && !queue.is_void(1) && queue.is_void(5));
}
