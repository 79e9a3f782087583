//! Test vectors of queues.

use bytes::Bytes;
use engine::{Error, ErrorKind, Start, Storage};
use wire::queues::{
    LeaseAnswer, MessageInfo, MessagePhase, NewQueue, OutMessage, PeekedMessage, QueueCounts, QueueInfo, Receive,
    ReceivedMessage, RedriveInfo, RedriveState, Sent,
};
use wire::{QueueRequest, QueueResponse};

fn jobs() -> String {
    "jobs".to_owned()
}

fn named(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn receipt() -> String {
    "AAAAAAAAAAAAAAAHAAAAAAAAAAkBAgMEBQYHCAkKCwwNDg8Q".to_owned()
}

pub fn requests() -> Vec<(&'static str, QueueRequest)> {
    let new = NewQueue {
        queue: jobs(),
        topic: "orders.eu".into(),
        is_live: true,
        storage: Storage::Disk,
        settings: named(&[("lease_ms", "30000"), ("order", "groups")]),
        notes: named(&[("sqs.tag.team", "a")]),
    };
    let plain = OutMessage { body: Bytes::from_static(b"plain"), ..OutMessage::default() };
    let whole = OutMessage {
        body: Bytes::from_static(&[0, 0xff]),
        group: Some(Bytes::from_static(b"g")),
        dedup: Some("d-1".into()),
        delay_ms: Some(1500),
        headers: vec![("a".into(), Bytes::from_static(b"b")), ("empty".into(), Bytes::new())],
    };
    let send = |is_move, messages| QueueRequest::Send { queue: jobs(), is_move, messages };
    let receive = |lease_ms, outlives_connection| {
        let count_max = 10;
        let bytes_max = 1 << 20;
        let wait_ms = 20_000;
        QueueRequest::Receive(Receive { queue: jobs(), count_max, bytes_max, lease_ms, wait_ms, outlives_connection })
    };
    let peek = |after| QueueRequest::Peek { queue: jobs(), after, count_max: 100 };
    let redrive =
        |to: Option<&str>, rate| QueueRequest::StartRedrive { queue: "dead".into(), to: to.map(str::to_owned), rate };
    vec![
        ("queue_create", QueueRequest::Create(NewQueue { queue: jobs(), ..NewQueue::default() })),
        ("queue_create_over_a_topic", QueueRequest::Create(new)),
        ("queue_alter", QueueRequest::Alter { queue: jobs(), settings: named(&[("dead_letter", "")]) }),
        ("queue_delete", QueueRequest::Delete { queue: jobs() }),
        ("queue_describe", QueueRequest::Describe { queue: jobs() }),
        ("queue_list", QueueRequest::List { prefix: "j".into(), after: jobs(), count_max: 100 }),
        ("queue_send", send(false, vec![plain, whole.clone()])),
        ("queue_send_moved", send(true, vec![whole])),
        ("queue_receive", receive(None, false)),
        ("queue_receive_for_so_long", receive(Some(60_000), true)),
        ("queue_ack", QueueRequest::Ack { queue: jobs(), receipts: vec![receipt()] }),
        ("queue_nack", QueueRequest::Nack { queue: jobs(), leases: vec![(receipt(), None), (receipt(), Some(0))] }),
        ("queue_extend", QueueRequest::Extend { queue: jobs(), leases: vec![(receipt(), 60_000)] }),
        ("queue_peek", peek(None)),
        ("queue_peek_after", peek(Some((3, 1 << 40)))),
        ("queue_purge", QueueRequest::Purge { queue: jobs() }),
        ("queue_seek_earliest", QueueRequest::Seek { queue: jobs(), to: Start::Earliest }),
        ("queue_seek_time", QueueRequest::Seek { queue: jobs(), to: Start::Time(-1) }),
        ("redrive_start", redrive(None, None)),
        ("redrive_start_to", redrive(Some("jobs"), Some(50))),
        ("redrive_list", QueueRequest::ListRedrives { queue: "dead".into() }),
        ("redrive_cancel", QueueRequest::CancelRedrive { redrive: 1 << 40 }),
    ]
}

pub fn responses() -> Vec<(&'static str, QueueResponse)> {
    let info = |counts| QueueInfo {
        queue: jobs(),
        topic: jobs(),
        owns_topic: true,
        created_ms: 1_700_000_000_000,
        altered_ms: 1_700_000_000_001,
        settings: named(&[("lease_ms", "30000"), ("dead_letter", "")]),
        notes: named(&[("sqs.tag.team", "a")]),
        counts,
    };
    let counts = |oldest_ms| {
        let visible = 3;
        let in_flight = 2;
        let delayed = 1;
        let bytes = 1 << 33;
        let noisy_groups = 1;
        Some(QueueCounts { visible, in_flight, delayed, bytes, oldest_ms, noisy_groups })
    };
    let sent =
        Sent { id: "01234567-89ab-8def-8123-456789abcdef".into(), partition: 3, offset: 1 << 40, is_duplicate: true };
    let message = |group: Option<&'static [u8]>| MessageInfo {
        id: sent.id.clone(),
        partition: 3,
        offset: 1 << 40,
        sent_ms: 1_700_000_000_000,
        attempts: 2,
        body: Bytes::from_static(&[0, 0xff]),
        group: group.map(Bytes::from_static),
        headers: vec![("a".into(), Bytes::from_static(b"b"))],
    };
    let received =
        ReceivedMessage { receipt: receipt(), first_received_ms: 1_700_000_000_002, message: message(Some(b"g")) };
    let peeked = |phase, due_ms| PeekedMessage { phase, due_ms, message: message(None) };
    let redrive = |state, to: Option<&str>, failure: Option<&str>| RedriveInfo {
        redrive: 1 << 40,
        from: "dead".into(),
        to: to.map(str::to_owned),
        rate: to.map(|_| 50),
        started_ms: 1_700_000_000_000,
        state,
        moved: 7,
        to_move: 1 << 33,
        failure: failure.map(str::to_owned),
    };
    let answers = |more: &[LeaseAnswer]| [&[LeaseAnswer::Done][..], more].concat();
    use LeaseAnswer::{Expired, Gone, Invalid, NotLeased, TooLong};
    use MessagePhase::{Delayed, Leased, Waiting};
    let all = vec![
        redrive(RedriveState::Failed, Some("jobs"), Some("there is no queue jobs")),
        redrive(RedriveState::Cancelling, None, None),
        redrive(RedriveState::Cancelled, None, None),
        redrive(RedriveState::Completed, None, None),
    ];
    let refused = Err(Error::new(ErrorKind::Busy, "the queue is full"));
    vec![
        ("queue_created", QueueResponse::Created(info(counts(None)))),
        ("queue_altered", QueueResponse::Altered(info(counts(Some(1_700_000_000_000))))),
        ("queue_deleted", QueueResponse::Deleted),
        ("queue_described", QueueResponse::Described(info(None))),
        ("queues", QueueResponse::Queues { queues: vec![info(counts(None)), info(None)], is_last: true }),
        ("queue_sent", QueueResponse::Sent(vec![Ok(sent.clone()), refused])),
        ("queue_received", QueueResponse::Received { lease_ms: 30_000, messages: vec![received] }),
        ("queue_received_nothing", QueueResponse::Received { lease_ms: 30_000, messages: Vec::new() }),
        ("queue_acked", QueueResponse::Acked(answers(&[Gone, Expired, Invalid]))),
        ("queue_nacked", QueueResponse::Nacked(answers(&[NotLeased]))),
        ("queue_extended", QueueResponse::Extended(answers(&[TooLong]))),
        (
            "queue_peeked",
            QueueResponse::Peeked(vec![peeked(Leased, Some(5)), peeked(Waiting, None), peeked(Delayed, Some(6))]),
        ),
        ("queue_purged", QueueResponse::Purged(1 << 33)),
        ("queue_sought", QueueResponse::Sought),
        ("redrive_started", QueueResponse::RedriveStarted(1 << 40)),
        ("redrives", QueueResponse::Redrives(all)),
        ("redrive_cancelled", QueueResponse::RedriveCancelled(redrive(RedriveState::Running, None, None))),
    ]
}
