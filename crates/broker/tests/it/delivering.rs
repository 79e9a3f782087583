//! Delivery from the log to the subscriber: on the publisher's thread or on a lane, never both at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use broker::{Broker, Direct, Settings, Subscription};
use engine::{Delivery, ErrorKind, Overflow, PartitionId, SourceId, TopicName, TopicSettings};
use std::sync::Mutex;
use tokio::sync::Notify;

use crate::support::{Follow, ask, metric, publish, read_to, read_to_end, start, subscribe, with_direct, within};

/// A connection that has room only at times.
#[derive(Default)]
struct Sink {
    got: Mutex<Vec<Delivery>>,
    room: AtomicUsize,
    room_came: Notify,
    is_over: AtomicBool,
}

#[derive(Clone)]
struct Door(Arc<Sink>);

impl Direct for Door {
    fn has_room(&self) -> bool {
        self.0.room.load(Ordering::SeqCst) > 0
    }

    fn deliver(&self, deliveries: &mut Vec<Delivery>, source: &dyn Fn(SourceId) -> (TopicName, PartitionId)) {
        assert_eq!(source(0).0.as_str(), "t");
        let taken = deliveries.len();
        let used = |room: usize| Some(room.saturating_sub(taken));
        self.0.room.fetch_update(Ordering::SeqCst, Ordering::SeqCst, used).expect("always some");
        self.0.got.lock().expect("no panic").append(deliveries);
    }

    fn flush(&self) {}
}

/// Drains a subscription on a lane, as a connection does.
async fn drain(mut subscription: Subscription, sink: Arc<Sink>) {
    let mut out = Vec::new();
    loop {
        loop {
            let room = sink.room_came.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            if sink.room.load(Ordering::SeqCst) > 0 || sink.is_over.load(Ordering::SeqCst) {
                break;
            }
            room.await;
        }
        if subscription.next(&mut out).await.is_err() {
            return;
        }
        sink.room
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |room| Some(room.saturating_sub(out.len())))
            .expect("always some");
        sink.got.lock().expect("no panic").append(&mut out);
    }
}

/// Several publishing threads and a drain deliver to one connection that has room only at times: the order is kept and
/// nothing is lost between them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn publishers_and_the_drain_keep_one_order() {
    for queue in [4, 64] {
        let broker = start(Settings { event_batch_max_events: 4, ..Settings::default() });
        let sink = Arc::new(Sink::default());
        let mut request = with_direct(ask("t"), Door(sink.clone()));
        request.queue_batches = Some(queue);
        let subscription = subscribe(&broker, request).expect("subscribed");
        let handle = subscription.handle();
        let draining = tokio::spawn(drain(subscription, sink.clone()));
        let each = 2_000u64;
        let publishing: Vec<_> = (0..3)
            .map(|_| {
                let broker = broker.clone();
                tokio::spawn(async move {
                    for _ in 0..each {
                        publish(&broker, "t", 0).await.expect("published");
                        tokio::task::consume_budget().await;
                    }
                })
            })
            .collect();
        let end = 3 * each;
        let mut follow = Follow::default();
        let reading = async {
            while follow.next(0) < end {
                sink.room.fetch_add(7, Ordering::SeqCst);
                sink.room_came.notify_waiters();
                let got = std::mem::take(&mut *sink.got.lock().expect("no panic"));
                got.iter().for_each(|delivery| follow.see(delivery));
                tokio::task::yield_now().await;
            }
        };
        within("all records", reading).await;
        assert_eq!((follow.records, follow.missed), (end, 0));
        for publisher in publishing {
            within("a publisher", publisher).await.expect("no panic");
        }
        handle.end(engine::Error::invalid("the test is over"));
        sink.is_over.store(true, Ordering::SeqCst);
        sink.room_came.notify_waiters();
        within("the drain", draining).await.expect("no panic");
    }
}

/// Under each policy, deliveries and gaps together cover every offset once, and the number of dropped records is the
/// sum of the gaps.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_policy_accounts_for_every_offset() {
    for overflow in [Overflow::Replay, Overflow::Block, Overflow::DropNew, Overflow::DropOld] {
        let broker = start(Settings::default());
        let settings = TopicSettings { partitions: 3, ..TopicSettings::default() };
        broker.create_topic("t", settings).await.expect("created");
        let mut request = ask("t");
        request.overflow = overflow;
        request.queue_batches = Some(8);
        let mut subscription = subscribe(&broker, request).expect("subscribed");
        let each = 2_000u64;
        let publishing: Vec<_> = (0..3)
            .map(|partition| {
                let broker = broker.clone();
                tokio::spawn(async move {
                    for _ in 0..each {
                        publish(&broker, "t", partition).await.expect("published");
                    }
                })
            })
            .collect();
        let mut follow = Follow::of(&subscription);
        let mut out = Vec::new();
        while (0..3).any(|source| follow.next(source) < each) {
            within("a delivery", subscription.next(&mut out)).await.expect("it goes on");
            out.iter().for_each(|delivery| follow.see(delivery));
            // A slow reader: other tasks run first.
            for _ in 0..50 {
                tokio::task::yield_now().await;
            }
        }
        for publisher in publishing {
            within("a publisher", publisher).await.expect("no panic");
        }
        assert_eq!(follow.records + follow.missed, 3 * each);
        assert_eq!(metric(&broker, "thalweg_dropped_records_total"), follow.missed, "{overflow:?}");
        if matches!(overflow, Overflow::Replay | Overflow::Block) {
            assert_eq!(follow.missed, 0, "{overflow:?} loses nothing within retention");
        }
    }
}

/// Several publishers that wait for one blocking subscriber all continue, in turn, and those that exceed the maximum
/// wait receive a retryable error.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn publishers_that_wait_all_go_on() {
    let settings = Settings { publish_wait: std::time::Duration::from_secs(600), ..Settings::default() };
    let broker = start(settings);
    let mut request = ask("t");
    request.overflow = Overflow::Block;
    request.queue_batches = Some(1);
    let mut subscription = subscribe(&broker, request).expect("subscribed");
    let publishing: Vec<_> = (0..16)
        .map(|_| {
            let broker = broker.clone();
            tokio::spawn(async move {
                for _ in 0..20 {
                    publish(&broker, "t", 0).await.expect("published");
                }
            })
        })
        .collect();
    let mut follow = Follow::of(&subscription);
    read_to(&mut subscription, &mut follow, 1, 320).await;
    for publisher in publishing {
        within("a publisher", publisher).await.expect("no panic");
    }
    assert_eq!(follow.missed, 0);
    assert!(metric(&broker, "thalweg_publish_waits_total") > 0, "they had to wait");
}

/// A subscription that was ended still receives the queued deliveries, then the reason; publishers do not wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_follows_the_queued_deliveries() {
    let broker: Arc<Broker> = start(Settings::default());
    let mut request = ask("t");
    request.overflow = Overflow::Block;
    request.queue_batches = Some(4);
    let mut subscription = subscribe(&broker, request).expect("subscribed");
    for _ in 0..4 {
        publish(&broker, "t", 0).await.expect("published");
    }
    let waiting = tokio::spawn({
        let broker = broker.clone();
        async move { publish(&broker, "t", 0).await }
    });
    while metric(&broker, "thalweg_publish_waits_total") == 0 {
        tokio::task::yield_now().await;
    }
    subscription.handle().end(engine::Error::new(ErrorKind::ShuttingDown, "over"));
    within("the publisher", waiting).await.expect("no panic").expect("published");
    let mut follow = Follow::of(&subscription);
    assert_eq!(read_to_end(&mut subscription, &mut follow).await.kind, ErrorKind::ShuttingDown);
    assert_eq!(follow.records, 4);
}
