//! A transactional id step by step, and random sequences of steps against invariants.

use proptest::prelude::*;

use super::*;
use crate::ids::TopicName;

const TIMEOUT_MS: u32 = 1000;

fn at(partition: u32) -> TopicPartition {
    TopicPartition { topic: TopicName::parse("t").expect("a name"), partition }
}

fn group(name: &str) -> GroupName {
    GroupName::parse(name).expect("a name")
}

fn committed(offset: u64) -> Committed {
    Committed { offset, leader_epoch: -1, metadata: "note".into(), committed_ms: 5 }
}

fn new() -> Transaction {
    Transaction::new(7, TIMEOUT_MS, 100).expect("a valid timeout")
}

fn open() -> Transaction {
    new().add_partitions(new().producer, &[at(0)], 200).expect("it is its own").expect("a change")
}

fn prepared(decision: Decision) -> Transaction {
    match open().end(open().producer, decision, 300) {
        Ok(End::Prepares(prepared)) => prepared,
        other => panic!("not prepared: {other:?}"),
    }
}

fn reason<T: fmt::Debug>(outcome: Outcome<T>) -> TransactionReason {
    outcome.expect_err("refused").reason
}

#[test]
fn a_transaction_goes_from_open_to_complete() {
    for decision in [Decision::Commit, Decision::Abort] {
        let staged = open().add_group(open().producer, &group("g"), 210).expect("open").expect("a change");
        let staged = staged.stage_offsets(staged.producer, &group("g"), [(at(3), committed(9))]).expect("added");
        let Ok(End::Prepares(prepared)) = staged.end(staged.producer, decision, 300) else { panic!("not prepared") };
        assert_eq!(prepared.phase, Phase::Prepared(decision));
        assert_eq!(prepared.partitions, open().partitions);
        // Offsets of an aborted transaction are not kept.
        assert_eq!(prepared.offsets.is_empty(), decision == Decision::Abort);
        assert_eq!(reason(prepared.end(prepared.producer, decision, 300)), TransactionReason::Concurrent);
        assert_eq!(reason(prepared.add_partitions(prepared.producer, &[at(1)], 300)), TransactionReason::Concurrent);
        assert_eq!(reason(prepared.init(None, None, TIMEOUT_MS, 300)), TransactionReason::Concurrent);
        let complete = prepared.completed(400).expect("it was prepared");
        assert_eq!(complete.end(complete.producer, decision, 500), Ok(End::Again));
        let other = if decision == Decision::Commit { Decision::Abort } else { Decision::Commit };
        assert_eq!(reason(complete.end(complete.producer, other, 500)), TransactionReason::WrongPhase);
        assert!(complete.partitions.is_empty() && complete.opened_ms.is_none());
        assert_eq!(complete.completed(500), None);
    }
    assert_eq!(reason(new().end(new().producer, Decision::Commit, 1)), TransactionReason::WrongPhase);
}

#[test]
fn a_new_producer_fences_the_previous_one() {
    let before = open();
    let Ok(Init::Aborts(aborting)) = before.init(None, None, TIMEOUT_MS, 300) else { panic!("it was open") };
    assert_eq!((aborting.phase, aborting.producer.epoch), (Phase::Prepared(Decision::Abort), 1));
    let aborted = aborting.completed(310).expect("prepared");
    let Ok(Init::Begins(next)) = aborted.init(None, None, TIMEOUT_MS, 320) else { panic!("it may begin") };
    assert_eq!((next.phase, next.producer), (Phase::Empty, ProducerEpoch { id: 7, epoch: 2 }));
    for zombie in [before.producer, aborted.producer] {
        assert_eq!(reason(next.add_partitions(zombie, &[at(0)], 330)), TransactionReason::Fenced);
        assert_eq!(reason(next.end(zombie, Decision::Commit, 330)), TransactionReason::Fenced);
        assert_eq!(reason(next.init(Some(zombie), None, TIMEOUT_MS, 330)), TransactionReason::Fenced);
    }
    let stranger = ProducerEpoch { id: 8, epoch: 2 };
    assert_eq!(reason(next.add_partitions(stranger, &[at(0)], 330)), TransactionReason::OtherProducer);
}

#[test]
fn a_producer_that_goes_on_after_an_error_asks_as_often_as_it_likes() {
    let first = new();
    let Ok(Init::Begins(next)) = first.init(Some(first.producer), None, TIMEOUT_MS, 200) else { panic!("it goes on") };
    assert_eq!(next.producer.epoch, 1);
    // Its response was lost.
    assert_eq!(next.init(Some(first.producer), None, TIMEOUT_MS, 210), Ok(Init::Again(next.producer)));
    // Once it has written with the new epoch, a producer with the old epoch is another program.
    let opened = next.add_partitions(next.producer, &[at(0)], 220).expect("its own").expect("a change");
    assert_eq!(reason(opened.init(Some(first.producer), None, TIMEOUT_MS, 230)), TransactionReason::Fenced);
    let Ok(Init::Aborts(aborting)) = opened.init(Some(next.producer), None, TIMEOUT_MS, 240) else { panic!("open") };
    let aborted = aborting.completed(250).expect("prepared");
    let again = ProducerEpoch { id: 7, epoch: 2 };
    assert_eq!(aborted.init(Some(next.producer), None, TIMEOUT_MS, 260), Ok(Init::Again(again)));
}

#[test]
fn a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced() {
    let late = open();
    assert_eq!(late.expire(199 + u64::from(TIMEOUT_MS)), None);
    let aborting = late.expire(200 + u64::from(TIMEOUT_MS)).expect("it is late");
    assert_eq!((aborting.phase, aborting.producer.epoch), (Phase::Prepared(Decision::Abort), 1));
    assert_eq!(reason(aborting.end(late.producer, Decision::Commit, 1300)), TransactionReason::Fenced);
    assert_eq!(prepared(Decision::Commit).expire(u64::MAX), None, "it is decided");
    // No other program has taken over, so it continues after it has requested its new epoch.
    let aborted = aborting.completed(1300).expect("prepared");
    assert_eq!(aborted.init(Some(late.producer), None, TIMEOUT_MS, 1400), Ok(Init::Again(aborted.producer)));
}

#[test]
fn after_the_last_epoch_comes_a_new_id() {
    let mut transaction = new();
    transaction.producer.epoch = EPOCH_MAX;
    let was = transaction.producer;
    assert_eq!(transaction.init(Some(was), None, TIMEOUT_MS, 200), Ok(Init::WantsId));
    let Ok(Init::Begins(next)) = transaction.init(Some(was), Some(99), TIMEOUT_MS, 200) else { panic!("it begins") };
    assert_eq!(next.producer, ProducerEpoch { id: 99, epoch: 0 });
    assert_eq!(next.init(Some(was), None, TIMEOUT_MS, 210), Ok(Init::Again(next.producer)));
    // The producer with the last epoch can still be fenced, and no producer gets the epoch after it.
    let opened = transaction.add_partitions(was, &[at(0)], 220).expect("its own").expect("a change");
    let Ok(Init::Aborts(aborting)) = opened.init(None, None, TIMEOUT_MS, 230) else { panic!("it was open") };
    assert_eq!(aborting.producer.epoch, i16::MAX);
    let aborted = aborting.completed(240).expect("prepared");
    assert_eq!(aborted.init(None, None, TIMEOUT_MS, 250), Ok(Init::WantsId));
    assert_eq!(aborted.init(Some(was), None, TIMEOUT_MS, 250), Ok(Init::WantsId));
}

#[test]
fn everything_is_bounded() {
    for timeout_ms in [0, TRANSACTION_TIMEOUT_MS_MAX + 1] {
        assert_eq!(reason(Transaction::new(1, timeout_ms, 0)), TransactionReason::InvalidTimeout);
    }
    let many: Vec<TopicPartition> = (0..=TRANSACTION_PARTITIONS_MAX as u32).map(at).collect();
    let refused = open().add_partitions(open().producer, &many, 1).expect_err("too many");
    assert_eq!(refused.error.kind, ErrorKind::TooLarge);
    let mut groups = open();
    for i in 0..TRANSACTION_GROUPS_MAX {
        groups = groups.add_group(groups.producer, &group(&i.to_string()), 1).expect("room").expect("a change");
    }
    assert_eq!(groups.add_group(groups.producer, &group("0"), 1), Ok(None));
    assert!(groups.add_group(groups.producer, &group("more"), 1).is_err());
    let offsets = many.into_iter().map(|at| (at, committed(1)));
    assert!(groups.stage_offsets(groups.producer, &group("0"), offsets).is_err());
    let foreign = groups.stage_offsets(groups.producer, &group("other"), [(at(0), committed(1))]);
    assert_eq!(reason(foreign), TransactionReason::WrongPhase);
}

#[derive(Clone, Debug)]
enum Op {
    Init { goes_on: bool },
    Add(u32),
    Group,
    Stage(u32),
    End(Decision),
    Complete,
    Late,
}

fn an_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        1 => any::<bool>().prop_map(|goes_on| Op::Init { goes_on }),
        4 => (0u32..3).prop_map(Op::Add),
        1 => Just(Op::Group),
        1 => (0u32..3).prop_map(Op::Stage),
        2 => any::<bool>().prop_map(|commits| Op::End(if commits { Decision::Commit } else { Decision::Abort })),
        4 => Just(Op::Complete),
        1 => Just(Op::Late),
    ]
}

proptest! {
    #[test]
    fn every_state_is_read_as_it_was_written_and_no_epoch_comes_back(ops in prop::collection::vec(an_op(), 1..60)) {
        let mut transaction = new();
        let mut now_ms = 0;
        let id = TransactionalId::parse("id").expect("an id");
        for op in ops {
            now_ms += 10;
            let producer = transaction.producer;
            let next = match op {
                Op::Init { goes_on } => {
                    let expected = goes_on.then_some(producer);
                    match transaction.init(expected, Some(9), TIMEOUT_MS, now_ms) {
                        Ok(Init::Begins(next) | Init::Aborts(next)) => {
                            prop_assert!(next.producer.epoch > producer.epoch, "the earlier producer is fenced");
                            Some(next)
                        }
                        _ => None,
                    }
                }
                Op::Add(partition) => transaction.add_partitions(producer, &[at(partition)], now_ms).ok().flatten(),
                Op::Group => transaction.add_group(producer, &group("g"), now_ms).ok().flatten(),
                Op::Stage(partition) => {
                    transaction.stage_offsets(producer, &group("g"), [(at(partition), committed(now_ms))]).ok()
                }
                Op::End(decision) => match transaction.end(producer, decision, now_ms) {
                    Ok(End::Prepares(next)) => {
                        prop_assert_eq!(transaction.phase, Phase::Open);
                        Some(next)
                    }
                    _ => None,
                },
                Op::Complete => transaction.completed(now_ms),
                Op::Late => transaction.expire(now_ms + u64::from(TIMEOUT_MS)),
            };
            let Some(next) = next else { continue };
            // The decision is final, and is carried out only after it is prepared.
            if let Phase::Prepared(decision) = transaction.phase {
                prop_assert_eq!(next.phase, Phase::Complete(decision));
                prop_assert_eq!(next.producer, producer);
            }
            prop_assert_eq!(next.opened_ms.is_some(), matches!(next.phase, Phase::Open | Phase::Prepared(_)));
            prop_assert!(next.opened_ms.is_some() || (next.partitions.is_empty() && next.offsets.is_empty()));
            let read = TransactionRecord::decode(&TransactionRecord::key(&id), Some(&TransactionRecord::value(&next)));
            prop_assert_eq!(read, Ok(TransactionRecord { id: id.clone(), transaction: Some(next.clone()) }));
            transaction = next;
        }
    }

    #[test]
    fn any_bytes_are_a_state_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
        let key = TransactionRecord::key(&TransactionalId::parse("id").expect("an id"));
        let value = [&[0, 1][..], &bytes].concat();
        let decoded = TransactionRecord::decode(&key, Some(&value));
        if let Ok(TransactionRecord { transaction: Some(transaction), .. }) = &decoded {
            let again = TransactionRecord::value(transaction);
            prop_assert_eq!(TransactionRecord::decode(&key, Some(&again)), decoded);
        }
    }
}

#[test]
fn a_record_that_is_cut_short_is_refused() {
    let id = TransactionalId::parse("id").expect("an id");
    let staged = open().add_group(open().producer, &group("g"), 210).expect("open").expect("a change");
    let staged = staged.stage_offsets(staged.producer, &group("g"), [(at(3), committed(9))]).expect("added");
    let key = TransactionRecord::key(&id);
    let value = TransactionRecord::value(&staged);
    for length in 0..value.len() {
        assert!(TransactionRecord::decode(&key, Some(&value[..length])).is_err(), "{length} bytes");
    }
    assert!(TransactionRecord::decode(&key[..key.len() - 1], Some(&value)).is_err());
    assert_eq!(TransactionRecord::decode(&key, None), Ok(TransactionRecord { id, transaction: None }));
}
