//! Ledger without a connection: when a batch is sent, which partition its records belong to, and which outcomes they
//! receive.

use std::sync::mpsc;

use engine::{Acks, Codec, ErrorKind, RecordBatch};
use futures_util::FutureExt;
use wire::{Level, Published};

use super::super::Delivered;
use super::*;

const TIMEOUT: Duration = Duration::from_secs(60);

fn settings() -> Settings {
    Settings {
        topic: "t".into(),
        acks: Acks::Default,
        partition: None,
        partitioner: Partitioner::Key,
        codec: Codec::None,
        batch_bytes: 1_000,
        linger: Duration::ZERO,
        buffer_bytes: 1 << 20,
        batches_in_flight_max: 5,
        delivery_timeout: TIMEOUT,
    }
}

fn ledger(partitions: u32, change: impl FnOnce(&mut Settings)) -> Ledger {
    let mut settings = settings();
    change(&mut settings);
    Ledger::new(settings, partitions, Some((7, 0)), 1)
}

/// Returns `None` if there is no room.
fn gather(ledger: &Ledger, record: &Record) -> Option<(Delivery, Wake)> {
    match ledger.gather(record, &mut None).expect("a record") {
        Gathered::Added { delivery, wake } => Some((delivery, wake)),
        Gathered::Full => None,
    }
}

fn added(ledger: &Ledger, value: &str) -> Delivery {
    gather(ledger, &Record::new(value.to_owned())).expect("there is room").0
}

/// Sends everything that may be sent.
fn sent(ledger: &Ledger) -> Vec<(BatchTag, RecordBatch)> {
    sent_at(ledger, Instant::now())
}

fn sent_at(ledger: &Ledger, now: Instant) -> Vec<(BatchTag, RecordBatch)> {
    let mut sent = Vec::new();
    loop {
        let (batch, bytes) = match ledger.next(now) {
            Next::Nothing { .. } => return sent,
            Next::Identity { .. } => panic!("it has an identity"),
            Next::Send { batch, bytes } => (batch, bytes),
            Next::Seal { lane, open, producer } => ledger.seal(lane, open, producer),
        };
        sent.push((batch, RecordBatch::parse(bytes).expect("a valid batch")));
    }
}

fn accept(ledger: &Ledger, batch: BatchTag, base_offset: u64) {
    let partition = batch.lane;
    let level = Level::Committed;
    let published = Published { partition, base_offset, level, receivers: 0, partitions: 1 };
    ledger.answered(batch, Ok(Response::Published(published)));
}

fn outcome(delivery: &Delivery) -> Option<Result<u64, ErrorKind>> {
    let outcome = delivery.delivered().now_or_never()?;
    Some(outcome.map(|delivered| delivered.offset).map_err(|error| error.kind))
}

fn held(ledger: &Ledger) -> usize {
    ledger.state.lock().held
}

#[test]
fn records_gather_until_a_batch_has_its_size() {
    let ledger = ledger(1, |_| {});
    let record = Record::new(vec![b'x'; 400]);
    let wakes: Vec<Wake> = (0..6).map(|_| gather(&ledger, &record).expect("room").1).collect();
    assert_eq!(wakes, [Wake::Idle, Wake::No, Wake::Now, Wake::Idle, Wake::No, Wake::Now]);
    let counts: Vec<u64> = sent(&ledger).iter().map(|(_, batch)| batch.next_offset() - batch.base_offset()).collect();
    assert_eq!(counts, [3, 3]);
}

#[test]
fn a_full_buffer_takes_no_more_until_a_quarter_is_free() {
    let ledger = ledger(1, |settings| settings.buffer_bytes = 4_000);
    let record = Record::new(vec![b'x'; 1_000]);
    let mut batches = 0;
    while gather(&ledger, &record).is_some() {
        batches += 1;
        assert!(batches < 10, "nothing bounds it");
    }
    assert_eq!(batches, 4);
    let room = std::pin::pin!(ledger.room());
    let mut room = room.fuse();
    let on_the_wire = sent(&ledger);
    assert!((&mut room).now_or_never().is_none());
    accept(&ledger, on_the_wire[0].0, 0);
    assert!((&mut room).now_or_never().is_none(), "{} bytes are held", held(&ledger));
    accept(&ledger, on_the_wire[1].0, 1);
    assert!(room.now_or_never().is_some(), "{} bytes are held", held(&ledger));
    assert!(gather(&ledger, &record).is_some());
}

#[test]
fn lingering_records_are_sent_when_the_buffer_is_full() {
    let ledger = ledger(1, |settings| {
        settings.linger = TIMEOUT;
        settings.batch_bytes = 100_000;
        settings.buffer_bytes = 2_000;
    });
    added(&ledger, "the first");
    assert_eq!(sent(&ledger).len(), 1, "nobody else is there");
    added(&ledger, "waits for company");
    assert!(sent(&ledger).is_empty());
    while gather(&ledger, &Record::new(vec![b'x'; 500])).is_some() {}
    assert_eq!(sent(&ledger).len(), 1);
}

#[test]
fn so_many_batches_are_unanswered_and_no_more() {
    let ledger = ledger(8, |settings| settings.batches_in_flight_max = 3);
    for partition in 0..8 {
        let key = (0..).map(|i| format!("{i}")).find(|key| partitioner::for_key(key.as_bytes(), 8) == partition);
        let record = Record::new("x").with_key(key.expect("a key for each partition"));
        gather(&ledger, &record).expect("room");
    }
    let first = sent(&ledger);
    assert_eq!(first.len(), 3);
    accept(&ledger, first[0].0, 0);
    assert!(ledger.has_more.notified().now_or_never().is_some(), "the sender hears of it");
    assert_eq!(sent(&ledger).len(), 1);
}

#[test]
fn each_record_goes_where_its_partitioner_says() {
    let lanes = |partitioner: Partitioner, records: &[Record]| -> Vec<u32> {
        let ledger = ledger(4, |settings| {
            settings.partitioner = partitioner;
            settings.batch_bytes = 1;
        });
        let mut lanes = Vec::new();
        for record in records {
            gather(&ledger, record).expect("room");
            for (batch, _) in sent(&ledger) {
                lanes.push(batch.lane);
                accept(&ledger, batch, 0);
            }
        }
        lanes
    };
    let keyed: Vec<Record> = (0..40).map(|i| Record::new("x").with_key(format!("key-{i}"))).collect();
    let by_key: Vec<u32> = keyed.iter().map(|r| partitioner::for_key(r.key.as_deref().expect("a key"), 4)).collect();
    assert_eq!(lanes(Partitioner::Key, &keyed), by_key);
    let sticky = lanes(Partitioner::Sticky, &keyed);
    assert!(sticky.windows(2).all(|pair| pair[0] != pair[1]), "each batch goes elsewhere: {sticky:?}");
    assert!((0..4).all(|lane| sticky.contains(&lane)), "{sticky:?}");
    let last = Partitioner::Custom(Arc::new(|_, partitions| partitions - 1));
    assert_eq!(lanes(last, &keyed), [3; 40]);
    let named = ledger(4, |settings| settings.partition = Some(2));
    gather(&named, &keyed[0]).expect("room");
    assert_eq!(sent(&named)[0].0.lane, 2);
    let wrong = ledger(4, |settings| settings.partitioner = Partitioner::Custom(Arc::new(|_, count| count)));
    let refused = wrong.gather(&keyed[0], &mut None).map(drop).expect_err("there is no such partition");
    assert_eq!(refused.kind, ErrorKind::NotFound, "{refused}");
}

#[test]
fn every_record_is_told_of_once() {
    let ledger = ledger(1, |_| {});
    let (told, outcomes) = mpsc::channel();
    for i in 0..3 {
        let told = told.clone();
        let callback: Callback = Box::new(move |outcome| told.send((i, outcome)).expect("somebody listens"));
        ledger.gather(&Record::new("x"), &mut Some(callback)).map(drop).expect("gathered");
    }
    let delivery = added(&ledger, "with a handle");
    let (batch, _) = sent(&ledger).remove(0);
    assert!(outcomes.try_recv().is_err() && outcome(&delivery).is_none(), "it is on its way");
    accept(&ledger, batch, 40);
    let expected: Vec<_> =
        (0..3).map(|i| (i, Ok(Delivered { partition: 0, offset: 40 + i, level: Level::Committed }))).collect();
    assert_eq!(outcomes.try_iter().collect::<Vec<_>>(), expected);
    assert_eq!(outcome(&delivery), Some(Ok(43)));
    assert_eq!(held(&ledger), 0);
}

#[test]
fn records_without_a_response_in_time_fail_and_free_the_buffer() {
    let ledger = ledger(1, |settings| settings.batches_in_flight_max = 1);
    let on_the_wire = added(&ledger, "on the wire");
    let (batch, _) = sent(&ledger).remove(0);
    let waits = added(&ledger, "waits for its turn");
    assert!(ledger.expire(Instant::now()).is_some_and(|next| next > Instant::now()));
    assert_eq!(ledger.expire(Instant::now() + TIMEOUT), None, "nothing is left to watch");
    assert_eq!([outcome(&on_the_wire), outcome(&waits)], [Some(Err(ErrorKind::Timeout)); 2]);
    assert_eq!(held(&ledger), 0);
    let flushed = ledger.flushed(&ledger.close_gathering()).now_or_never().expect("all is settled");
    assert!(flushed.expect_err("two failed").message.starts_with("2 batches failed"));
    // The first batch is still on the wire: no batch overtakes it, and its late answer changes no outcome.
    let behind = added(&ledger, "behind");
    assert!(sent(&ledger).is_empty());
    accept(&ledger, batch, 0);
    let (batch, sealed) = sent(&ledger).remove(0);
    assert_eq!(sealed.producer().map(|producer| producer.sequence), Some(1), "the first was taken after all");
    accept(&ledger, batch, 1);
    assert_eq!((outcome(&behind), outcome(&on_the_wire)), (Some(Ok(1)), Some(Err(ErrorKind::Timeout))));
}

#[test]
fn waiters_receive_an_error_when_the_publisher_is_dropped() {
    let ledger = ledger(1, |_| {});
    let sent_before = added(&ledger, "sent");
    let (batch, _) = sent(&ledger).remove(0);
    let being_closed = added(&ledger, "being closed");
    let Next::Seal { lane, open, producer } = ledger.next(Instant::now()) else { panic!("it is to be closed") };
    let gathered = added(&ledger, "gathered");
    ledger.close(&Error::new(ErrorKind::Disconnected, "it went away"));
    assert_eq!([outcome(&sent_before), outcome(&gathered)], [Some(Err(ErrorKind::Disconnected)); 2]);
    let (last, _) = ledger.seal(lane, open, producer);
    assert_eq!(outcome(&being_closed), Some(Err(ErrorKind::Disconnected)));
    accept(&ledger, batch, 0);
    ledger.answered(last, Err(Error::new(ErrorKind::Busy, "later")));
    assert!(sent(&ledger).is_empty() && !ledger.has_work() && held(&ledger) == 0);
}

#[test]
fn failed_records_are_no_longer_work() {
    let ledger = ledger(2, |_| {});
    let delivery = added(&ledger, "x");
    assert!(ledger.has_work());
    ledger.fail(&Error::new(ErrorKind::Denied, "go away"));
    assert_eq!(outcome(&delivery), Some(Err(ErrorKind::Denied)));
    assert!(!ledger.has_work());
    added(&ledger, "y");
    assert!(ledger.has_work(), "the next record is tried");
}

#[test]
fn batches_are_compressed_and_held_as_they_are() {
    for codec in Codec::ALL {
        let ledger = ledger(1, |settings| settings.codec = codec);
        for _ in 0..30 {
            added(&ledger, "a value like all the others");
        }
        let plain = held(&ledger);
        let on_the_wire = sent(&ledger);
        let batch = &on_the_wire[0].1;
        let values: Vec<Vec<u8>> = batch
            .records()
            .expect("records")
            .iter()
            .map(|record| record.expect("a record").value.expect("a value").to_vec())
            .collect();
        assert!(values.iter().all(|value| value == b"a value like all the others"), "{}", codec.name());
        assert_eq!(held(&ledger) < plain, codec != Codec::None, "{}", codec.name());
        for (batch, _) in on_the_wire {
            accept(&ledger, batch, 0);
        }
        assert_eq!(held(&ledger), 0);
    }
}

#[test]
fn records_that_come_together_stop_at_a_full_batch_and_at_a_full_buffer() {
    let ledger = ledger(1, |settings| settings.buffer_bytes = 1_500);
    let records: Vec<Record> = (0..30u8).map(|i| Record::new(vec![i; 100])).collect();
    let (first, wake, result) = ledger.gather_all(&records);
    assert_eq!((wake, result), (Wake::Now, Ok(())));
    assert!((8..10).contains(&first), "a batch of 1,000 bytes: {first}");
    let (second, wake, _) = ledger.gather_all(&records[first..]);
    assert_eq!(wake, Wake::Idle, "the next batch has begun");
    assert!(held(&ledger) >= 1_500 && first + second < 30);
    assert_eq!(ledger.gather_all(&records[first + second..]), (0, Wake::No, Ok(())), "there is no room");
    let mut values = Vec::new();
    let mut next = 0;
    for (batch, sent) in sent(&ledger) {
        let records = sent.records().expect("records");
        values.extend(records.iter().map(|view| view.expect("valid").value.expect("a value")[0]));
        accept(&ledger, batch, next);
        next = values.len() as u64;
    }
    assert_eq!(values, (0..(first + second) as u8).collect::<Vec<_>>());
    assert_eq!(held(&ledger), 0);
    // A record that is refused does not affect the others.
    let mixed =
        [Record::new("fits"), Record::new(vec![0; engine::limits::BATCH_BYTES_MAX]), Record::new("not reached")];
    let (added, wake, result) = ledger.gather_all(&mixed);
    assert_eq!((added, wake, result.map_err(|error| error.kind)), (1, Wake::Idle, Err(ErrorKind::TooLarge)));
}
