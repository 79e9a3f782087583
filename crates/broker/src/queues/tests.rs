//! Tests of queues end to end inside the broker: send, receive, acknowledge, return, and restore.

use std::sync::Arc;
use std::time::Duration;

use engine::queue::{
    DedupRule, LeaseError, Order, Phase, QueueDefinition, QueueName, QueueOverflow, QueueSettings, header,
};
use engine::{Acks, BatchBuilder, ErrorKind, Storage, TopicName, TopicSettings};
use storage::{RealDisk, Store, StoreSettings};
use tempfile::TempDir;
use tokio::runtime::Handle;

use super::*;
use crate::broker::Broker;
use crate::view::Receipt;
use crate::view::Received;
use crate::{Settings, Wakes};

fn in_memory() -> Arc<Broker> {
    Broker::start(Settings::default(), &[Handle::current()]).expect("starts")
}

fn on_disk(dir: &TempDir) -> Arc<Broker> {
    let settings = StoreSettings::default();
    let opened =
        Store::open(Arc::new(RealDisk), dir.path(), settings, crate::Clock::SYSTEM.read(), &mut |_| {}).expect("opens");
    Broker::start_with(Settings::default(), &[Handle::current()], Some(opened)).expect("starts")
}

fn queue_name(name: &str) -> QueueName {
    QueueName::parse(name).expect("a name")
}

async fn create(broker: &Broker, name: &str, settings: QueueSettings) {
    let new = NewQueue { settings, ..NewQueue::new(queue_name(name)) };
    broker.queues.create(new).await.expect("created");
}

async fn send(broker: &Broker, queue: &str, bodies: &[&str]) -> Vec<Sent> {
    let messages: Vec<_> =
        bodies.iter().map(|body| OutMessage { body: body.as_bytes(), ..OutMessage::default() }).collect();
    let sent = broker.queues.send(queue, &messages).await.expect("sent");
    sent.into_iter().map(|sent| sent.expect("taken")).collect()
}

async fn send_grouped(broker: &Broker, queue: &str, group: &str, body: &str, dedup: Option<&str>) -> Sent {
    let message = OutMessage { body: body.as_bytes(), group: Some(group.as_bytes()), dedup, ..OutMessage::default() };
    broker.queues.send(queue, &[message]).await.expect("sent").remove(0).expect("taken")
}

async fn receive(broker: &Arc<Broker>, queue: &str, max: usize) -> Vec<Received> {
    broker.queues.receive(queue, &Receive { max, ..Receive::default() }).await.expect("received")
}

fn bodies(messages: &[Received]) -> Vec<String> {
    messages.iter().map(|message| String::from_utf8_lossy(message.message.body()).into_owned()).collect()
}

async fn ack(broker: &Arc<Broker>, queue: &str, messages: &[Received]) {
    let receipts: Vec<Receipt> = messages.iter().map(|message| message.receipt).collect();
    for answer in broker.queues.ack(queue, &receipts).await.expect("answered") {
        answer.expect("acknowledged");
    }
}

async fn counts(broker: &Broker, queue: &str) -> (u64, u64, u64) {
    let QueueCounts { visible, in_flight, delayed, .. } = broker.queues.counts(queue).await.expect("counted");
    (visible, in_flight, delayed)
}

/// Runs a call to its end, and returns how often other tasks could run in between.
async fn pauses<T>(call: impl Future<Output = T>) -> (T, usize) {
    let mut call = std::pin::pin!(call);
    let mut pauses = 0;
    let outcome = std::future::poll_fn(|context| {
        let polled = call.as_mut().poll(context);
        pauses += usize::from(polled.is_pending());
        polled
    });
    (outcome.await, pauses)
}

/// Each message with a deduplication id is appended by itself, and a peek may pass any number of finished messages.
#[tokio::test]
async fn other_tasks_run_while_many_messages_are_sent_or_peeked_at() {
    let broker = in_memory();
    create(&broker, "jobs", QueueSettings { dedup: DedupRule::Queue, ..QueueSettings::default() }).await;
    let ids: Vec<String> = (0..SEND_MAX).map(|i| i.to_string()).collect();
    let message = |id| OutMessage { body: b"x", dedup: Some(id), ..OutMessage::default() };
    let messages: Vec<_> = ids.iter().map(|id| message(id)).collect();
    let (sent, paused) = pauses(broker.queues.send("jobs", &messages)).await;
    assert!(sent.expect("sent").iter().all(Result::is_ok));
    assert!(paused >= SEND_MAX / 64, "{paused}");

    create(&broker, "batches", QueueSettings::default()).await;
    let bodies = ["x"; SEND_MAX];
    send(&broker, "batches", &bodies).await;
    receive(&broker, "batches", 900).await;
    let (peeked, paused) = pauses(broker.queues.peek("batches", None, PEEK_MAX)).await;
    let phases = peeked.expect("peeked").into_iter().map(|one| (one.message.offset(), one.phase));
    let expected = (0..1000).map(|offset| (offset, if offset < 900 { Phase::Leased } else { Phase::Waiting }));
    assert_eq!(phases.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    assert!(paused >= 3, "{paused}");
}

/// A queue takes memory for each partition of its topic, which any number of queues may have in common.
#[tokio::test]
async fn all_queues_together_have_a_limit_of_partitions() {
    let broker = in_memory();
    let of = |partitions| TopicSettings { partitions, ..TopicSettings::default() };
    broker.create_topic("t", of(1024)).await.expect("created");
    broker.create_topic("small", of(1)).await.expect("created");
    let over = |name: &str, topic: &str| NewQueue {
        topic: Some(TopicName::parse(topic).expect("a name")),
        ..NewQueue::new(queue_name(name))
    };
    for i in 0..255 {
        broker.queues.create(over(&format!("q{i}"), "t")).await.expect("created");
    }
    broker.queues.create(over("one", "small")).await.expect("created");
    let kind = |error: Error| error.kind;
    let full = broker.queues.create(over("last", "t")).await.map(drop);
    assert_eq!(full.map_err(kind), Err(ErrorKind::Busy));
    broker.grow_topic("small", 1024).await.expect("there is room for it");
    let none = broker.queues.create(NewQueue::new(queue_name("more"))).await.map(drop);
    assert_eq!(none.map_err(kind), Err(ErrorKind::Busy));
    assert!(broker.describe_topic("more").is_err(), "no topic is created for a queue that is refused");

    broker.queues.delete("q0").await.expect("deleted");
    broker.create_topic("two", of(2)).await.expect("created");
    broker.queues.create(over("first", "two")).await.expect("created");
    broker.queues.create(over("second", "two")).await.expect("created");
    let grown = broker.grow_topic("two", 1024).await.map(drop);
    assert_eq!(grown.map_err(kind), Err(ErrorKind::Busy), "each of its two queues would have all of them");
    broker.grow_topic("two", 512).await.expect("there is room for both");

    // A queue begins again over a topic that has the name of a deleted one.
    broker.delete_topic("small").await.expect("deleted");
    broker.queues.create(over("again", "t")).await.expect("created");
    broker.create_topic("small", of(1)).await.expect("created");
    let renewed = broker.queues.counts("one").await.map(drop);
    assert_eq!(renewed.map_err(kind), Err(ErrorKind::Busy));
    broker.queues.delete("again").await.expect("deleted");
    broker.queues.counts("one").await.expect("there is room again");
}

/// The partitions of a queue are counted in slices.
#[tokio::test]
async fn other_tasks_run_while_many_partitions_are_counted() {
    let broker = in_memory();
    let settings = TopicSettings { partitions: 200, ..TopicSettings::default() };
    broker.create_topic("t", settings).await.expect("created");
    let new = NewQueue { topic: Some(TopicName::parse("t").expect("a name")), ..NewQueue::new(queue_name("jobs")) };
    broker.queues.create(new).await.expect("created");
    send(&broker, "jobs", &["x"; 500]).await;
    let (counted, paused) = pauses(broker.queues.counts("jobs")).await;
    assert_eq!((counted.expect("counted").visible, paused), (500, 3));
}

#[tokio::test]
async fn a_message_is_given_to_one_receiver_until_it_is_returned_or_done_with() {
    let broker = in_memory();
    create(&broker, "jobs", QueueSettings::default()).await;
    let empty = broker.log_budget().used();
    let sent = send(&broker, "jobs", &["a", "b", "c"]).await;
    assert_eq!(counts(&broker, "jobs").await, (3, 0, 0));
    let first = receive(&broker, "jobs", 2).await;
    assert_eq!(bodies(&first), ["a", "b"]);
    assert_eq!(first[0].id, sent[0].id);
    assert_eq!(counts(&broker, "jobs").await, (1, 2, 0));
    ack(&broker, "jobs", &first[..1]).await;
    broker.queues.nack("jobs", &[(first[1].receipt, None)]).await.expect("answered")[0].expect("returned");
    let again = receive(&broker, "jobs", 10).await;
    assert_eq!(bodies(&again), ["b", "c"]);
    assert_eq!(again.iter().map(|message| message.attempts).collect::<Vec<_>>(), [2, 1]);
    ack(&broker, "jobs", &again).await;
    assert_eq!(counts(&broker, "jobs").await, (0, 0, 0));
    assert_eq!(broker.log_budget().used(), empty, "what is done with takes no memory");
    assert!(receive(&broker, "jobs", 1).await.is_empty());
}

#[tokio::test]
async fn a_message_that_a_receiver_holds_is_read_again() {
    let dir = TempDir::new().expect("a directory");
    for broker in [in_memory(), on_disk(&dir)] {
        create(&broker, "jobs", QueueSettings::default()).await;
        send(&broker, "jobs", &["a", "b", "c"]).await;
        broker.queues.nack("jobs", &[(receive(&broker, "jobs", 1).await[0].receipt, None)]).await.expect("answered");
        let held = receive(&broker, "jobs", 3).await;
        let delivered: Vec<_> = held.iter().map(Received::delivered).collect();
        let again = broker.queues.read_again("jobs", &delivered).await.expect("read").expect("all exist");
        let of = |messages: &[Received]| -> Vec<_> {
            let of = |one: &Received| (one.receipt, one.id, one.message.clone(), one.attempts, one.first_received_ms);
            messages.iter().map(of).collect()
        };
        assert_eq!(of(&again), of(&held));
        assert_eq!(counts(&broker, "jobs").await, (0, 3, 0), "reading changes nothing");
        ack(&broker, "jobs", &held[..1]).await;
        broker.queues.purge("jobs").await.expect("purged");
        broker.delete_records("jobs", 0, engine::Offset::MAX).await.expect("deleted");
        assert!(broker.queues.read_again("jobs", &delivered).await.expect("read").is_none());
    }
}

/// A page is read from its first queue on, without visiting those before it.
#[tokio::test]
async fn a_page_of_queues_visits_only_its_queues() {
    let broker = in_memory();
    for i in 0..100 {
        create(&broker, &format!("a.{i:02}"), QueueSettings::default()).await;
        create(&broker, &format!("b.{i:02}"), QueueSettings::default()).await;
    }
    let visited = std::cell::Cell::new(0);
    let is_shown = |_: &str| {
        visited.set(visited.get() + 1);
        true
    };
    let mut after = String::new();
    let mut seen = Vec::new();
    loop {
        let (queues, is_last) = broker.queues.list("b.", &after, 7, is_shown).await.expect("listed");
        seen.extend(queues.iter().map(|queue| queue.name.as_str().to_owned()));
        if is_last {
            break;
        }
        after = seen.last().expect("a page").clone();
    }
    assert_eq!(seen, (0..100).map(|i| format!("b.{i:02}")).collect::<Vec<_>>());
    // Each of the 15 pages but the last one visits one more, to find out that there is another.
    assert_eq!(visited.get(), 100 + 14);
    let of = async |prefix: &str, after: &str| broker.queues.list(prefix, after, 7, |_| true).await.expect("listed");
    assert_eq!(of("b.", "a.50").await.0[0].name.as_str(), "b.00", "a position before the prefix");
    assert_eq!(of("a.", "b.50").await, (Vec::new(), true), "a position after it");
    assert_eq!(of("b.9", "b.98").await.0.len(), 1);
}

#[tokio::test]
async fn a_waiter_is_woken_by_a_message_by_a_return_and_by_the_end_of_a_lease() {
    let broker = in_memory();
    create(&broker, "jobs", QueueSettings::default()).await;
    let wait = |broker: &Arc<Broker>| {
        let broker = broker.clone();
        tokio::spawn(async move {
            let wanted = Receive { wait: Duration::from_secs(20), lease_ms: Some(40), ..Receive::default() };
            broker.queues.receive("jobs", &wanted).await.expect("received")
        })
    };
    let waiting = wait(&broker);
    tokio::task::yield_now().await;
    send(&broker, "jobs", &["a"]).await;
    let first = waiting.await.expect("woken");
    assert_eq!(bodies(&first), ["a"]);
    let waiting = wait(&broker);
    let by_time = waiting.await.expect("woken");
    assert_eq!((bodies(&by_time), by_time[0].attempts), (vec!["a".to_owned()], 2));
    let waiting = wait(&broker);
    tokio::task::yield_now().await;
    broker.queues.extend("jobs", &[(by_time[0].receipt, 0)]).await.expect("answered")[0].expect("returned");
    assert_eq!(waiting.await.expect("woken")[0].attempts, 3);
    let none = broker.queues.receive("jobs", &Receive { wait: Duration::from_millis(1), ..Receive::default() }).await;
    assert!(none.expect("answered").is_empty());
}

#[tokio::test]
async fn groups_keep_their_order_and_a_deduplication_id_counts_once() {
    let broker = in_memory();
    let settings =
        QueueSettings { order: Order::Groups, dedup: DedupRule::Queue, is_strict: true, ..QueueSettings::default() };
    create(&broker, "jobs.fifo", settings).await;
    let first = send_grouped(&broker, "jobs.fifo", "x", "x1", Some("1")).await;
    let again = send_grouped(&broker, "jobs.fifo", "x", "other", Some("1")).await;
    assert_eq!((again.id, again.is_duplicate), (first.id, true));
    for (group, body) in [("x", "x2"), ("y", "y1"), ("x", "x3"), ("y", "y2")] {
        send_grouped(&broker, "jobs.fifo", group, body, Some(body)).await;
    }
    let a = receive(&broker, "jobs.fifo", 1).await;
    assert_eq!(bodies(&a), ["x1"]);
    let b = receive(&broker, "jobs.fifo", 10).await;
    assert_eq!(bodies(&b), ["y1", "y2"], "the other group");
    ack(&broker, "jobs.fifo", &a).await;
    let c = receive(&broker, "jobs.fifo", 1).await;
    assert_eq!(bodies(&c), ["x2"]);
    broker.queues.nack("jobs.fifo", &[(c[0].receipt, None)]).await.expect("answered")[0].expect("returned");
    let answers = broker.queues.ack("jobs.fifo", &[c[0].receipt]).await.expect("answered");
    assert_eq!(answers, [Err(LeaseError::Expired)], "the lease is over");
    assert_eq!(bodies(&receive(&broker, "jobs.fifo", 10).await), ["x2", "x3"]);
    ack(&broker, "jobs.fifo", &b).await;
    let answers = broker.queues.ack("jobs.fifo", &[b[0].receipt]).await.expect("answered");
    assert_eq!(answers, [Err(LeaseError::Gone)]);
}

#[tokio::test]
async fn a_queue_that_may_have_few_bytes_drops_its_oldest_messages() {
    let broker = in_memory();
    let overflow = QueueOverflow::DropOldest;
    create(&broker, "jobs", QueueSettings { bytes_max: 2000, overflow, ..QueueSettings::default() }).await;
    let body = "x".repeat(300);
    for i in 0..20 {
        send(&broker, "jobs", &[&format!("{i}{body}")]).await;
    }
    let first_left = |found: &[Received]| bodies(found)[0].trim_end_matches('x').parse::<u32>().expect("a number");
    let counts = broker.queues.counts("jobs").await.expect("counted");
    let found = receive(&broker, "jobs", 20).await;
    assert!((3..=6).contains(&found.len()) && found.len() as u64 == counts.visible, "{} of {counts:?}", found.len());
    assert_eq!(first_left(&found) as usize, 20 - found.len());
    // The queue may have more messages from now on.
    let more = |definition: &mut QueueDefinition| {
        definition.settings.bytes_max = 1 << 20;
        Ok(())
    };
    broker.queues.alter("jobs", more).await.expect("altered");
    ack(&broker, "jobs", &found).await;
    for i in 0..20 {
        send(&broker, "jobs", &[&format!("{i}{body}")]).await;
    }
    assert_eq!(receive(&broker, "jobs", 20).await.len(), 20);
}

#[tokio::test]
async fn a_message_out_of_attempts_moves_to_the_dead_letters_without_a_receiver() {
    let broker = in_memory();
    create(&broker, "dead", QueueSettings::default()).await;
    let dead_letter = Some(TopicName::parse("dead").expect("a name"));
    create(&broker, "jobs", QueueSettings { attempts_max: 1, dead_letter, ..QueueSettings::default() }).await;
    send(&broker, "jobs", &["given back", "let go", "ended"]).await;
    let got = receive(&broker, "jobs", 3).await;
    broker.queues.nack("jobs", &[(got[0].receipt, Some(60_000))]).await.expect("answered")[0].expect("returned");
    assert_eq!(broker.queues.release("jobs", &[got[1].receipt]).await.expect("answered"), 1);
    broker.queues.extend("jobs", &[(got[2].receipt, 0)]).await.expect("answered")[0].expect("ended");
    let wanted = Receive { wait: Duration::from_secs(20), ..Receive::default() };
    for expected in ["given back", "let go", "ended"] {
        assert_eq!(bodies(&broker.queues.receive("dead", &wanted).await.expect("received")), [expected]);
    }
}

/// Two queues are each other's dead letters, or one is its own: a message is moved only after a delivery, not by
/// itself.
#[tokio::test]
async fn dead_letters_that_go_in_a_circle_neither_spin_nor_are_lost() {
    let broker = in_memory();
    let one_attempt = |dead: &str| {
        let dead_letter = Some(TopicName::parse(dead).expect("a name"));
        QueueSettings { attempts_max: 1, dead_letter, ..QueueSettings::default() }
    };
    create(&broker, "b", QueueSettings::default()).await;
    create(&broker, "a", one_attempt("b")).await;
    let circle = |definition: &mut QueueDefinition| {
        definition.settings = one_attempt("a");
        Ok(())
    };
    broker.queues.alter("b", circle).await.expect("altered");
    let message = OutMessage { body: b"x", headers: &[("own", b"y")], ..OutMessage::default() };
    let sent: Vec<_> =
        (0..3).map(|_| OutMessage { body: message.body, headers: message.headers, ..OutMessage::default() }).collect();
    let sent = broker.queues.send("a", &sent).await.expect("sent");
    let ids: std::collections::BTreeSet<String> =
        sent.into_iter().map(|sent| sent.expect("taken").id.to_string()).collect();
    let mut bytes = std::collections::BTreeSet::new();
    let mut moved = 0;
    for round in 0..20 {
        let from = ["a", "b"][round % 2];
        for _ in 0..3 {
            let wanted = Receive { wait: Duration::from_secs(20), ..Receive::default() };
            let got = broker.queues.receive(from, &wanted).await.expect("received").remove(0);
            assert!(ids.contains(&got.id.to_string()));
            assert_eq!((got.attempts, got.message.header("own")), (1, Some("y")), "round {round}");
            if round > 1 {
                bytes.insert(got.message.bytes());
            }
            match round % 3 {
                0 => broker.queues.nack(from, &[(got.receipt, None)]).await.expect("answered")[0].expect("returned"),
                1 => assert_eq!(broker.queues.release(from, &[got.receipt]).await.expect("answered"), 1),
                _ => broker.queues.extend(from, &[(got.receipt, 0)]).await.expect("answered")[0].expect("ended"),
            }
            moved += 1;
            // Moved messages are visible there immediately, and no others exist.
            while broker.queues.events.dead.get() < moved || counts(&broker, from).await.1 > 0 {
                tokio::task::yield_now().await;
            }
        }
        let to = ["b", "a"][round % 2];
        assert_eq!((counts(&broker, from).await, counts(&broker, to).await), ((0, 0, 0), (3, 0, 0)), "round {round}");
    }
    assert_eq!(broker.queues.events.dead.get(), 60, "each once a round");
    assert_eq!(bytes.len(), 1, "it does not grow on its way: {bytes:?}");

    create(&broker, "own", QueueSettings::default()).await;
    let own = |definition: &mut QueueDefinition| {
        definition.settings = one_attempt("own");
        Ok(())
    };
    broker.queues.alter("own", own).await.expect("altered");
    send(&broker, "own", &["x"]).await;
    for _ in 0..5 {
        let wanted = Receive { wait: Duration::from_secs(20), ..Receive::default() };
        let got = broker.queues.receive("own", &wanted).await.expect("received").remove(0);
        assert_eq!((got.attempts, counts(&broker, "own").await), (1, (0, 1, 0)));
        broker.queues.nack("own", &[(got.receipt, None)]).await.expect("answered")[0].expect("returned");
    }
    while counts(&broker, "own").await != (1, 0, 0) {
        tokio::task::yield_now().await;
    }
    assert_eq!(broker.queues.events.dead.get(), 65);
}

#[tokio::test]
async fn failed_messages_move_to_the_dead_letters_and_are_redriven() {
    let broker = in_memory();
    create(&broker, "dead", QueueSettings::default()).await;
    let dead_letter = Some(TopicName::parse("dead").expect("a name"));
    create(&broker, "jobs", QueueSettings { attempts_max: 2, dead_letter, ..QueueSettings::default() }).await;
    let sent = send(&broker, "jobs", &["bad"]).await;
    for _ in 0..2 {
        let got = receive(&broker, "jobs", 1).await;
        broker.queues.nack("jobs", &[(got[0].receipt, None)]).await.expect("answered")[0].expect("returned");
    }
    assert!(receive(&broker, "jobs", 1).await.is_empty());
    let wanted = Receive { wait: Duration::from_secs(20), ..Receive::default() };
    let dead = broker.queues.receive("dead", &wanted).await.expect("received");
    assert_eq!((dead[0].id, dead[0].source(), dead[0].attempts), (sent[0].id, Some("jobs"), 1));
    broker.queues.nack("dead", &[(dead[0].receipt, None)]).await.expect("answered")[0].expect("returned");
    let id = broker.queues.start_redrive("dead", None, None).await.expect("started");
    let back = broker.queues.receive("jobs", &wanted).await.expect("received");
    assert_eq!((bodies(&back), back[0].id), (vec!["bad".to_owned()], sent[0].id));
    while broker.queues.redrives("dead").iter().any(|shown| shown.id == id && shown.state == RedriveState::Running) {
        tokio::task::yield_now().await;
    }
    let shown = broker.queues.redrives("dead").remove(0);
    assert_eq!((shown.state, shown.moved), (RedriveState::Completed, 1));
    assert_eq!(broker.queues.start_redrive("nowhere", None, None).await.map_err(|e| e.kind), Err(ErrorKind::NotFound));
}

#[tokio::test]
async fn a_queue_is_restored_with_its_leases() {
    let dir = TempDir::new().expect("a folder");
    let (receipt, ids) = {
        let broker = on_disk(&dir);
        create(&broker, "jobs", QueueSettings::default()).await;
        let sent = send(&broker, "jobs", &["a", "b", "c", "d"]).await;
        let later = OutMessage { body: b"later", delay_ms: Some(600_000), ..OutMessage::default() };
        broker.queues.send("jobs", &[later]).await.expect("sent").remove(0).expect("taken");
        let got = receive(&broker, "jobs", 3).await;
        ack(&broker, "jobs", &got[1..2]).await;
        broker.documents.put("kind", "name", Some("value".into())).await.expect("kept");
        assert_eq!(counts(&broker, "jobs").await, (1, 2, 1));
        broker.stop().expect("stops");
        let definition = broker.queues.get("jobs").await.expect("there");
        (broker.queues.seal(&definition, &got[0].receipt).expect("sealed"), sent)
    };
    let broker = on_disk(&dir);
    assert_eq!(counts(&broker, "jobs").await, (1, 2, 1));
    assert_eq!(broker.documents.get("kind", "name").await.expect("read"), Some("value".into()));
    let definition = broker.queues.get("jobs").await.expect("there");
    let receipt = broker.queues.unseal(&definition, &receipt).expect("a receipt");
    assert_eq!(broker.queues.ack("jobs", &[receipt]).await.expect("answered"), [Ok(())]);
    let rest = receive(&broker, "jobs", 10).await;
    assert_eq!((bodies(&rest), rest[0].id), (vec!["d".to_owned()], ids[3].id));
    let definition_of_other = {
        create(&broker, "other", QueueSettings::default()).await;
        broker.queues.get("other").await.expect("there")
    };
    let sealed = broker.queues.seal(&definition, &receipt).expect("sealed");
    broker.queues.unseal(&definition_of_other, &sealed).expect_err("a receipt of another queue");
    broker.queues.unseal(&definition, &sealed.replace('A', "B")).expect_err("a forged receipt");
    broker.queues.delete("jobs").await.expect("deleted");
    broker.stop().expect("stops");
    drop(broker);
    let broker = on_disk(&dir);
    assert_eq!(broker.queues.get("jobs").await.map_err(|error| error.kind), Err(ErrorKind::NotFound));
    assert_eq!(
        broker
            .list_topics("", 10, |_| true)
            .0
            .iter()
            .map(|topic| topic.name.as_str())
            .filter(|name| !name.starts_with("_"))
            .collect::<Vec<_>>(),
        ["other"]
    );
}

#[tokio::test]
async fn each_queue_over_a_topic_gets_all_of_it() {
    let broker = in_memory();
    let settings = TopicSettings { partitions: 3, storage: Storage::Memory, ..TopicSettings::default() };
    broker.create_topic("news", settings).await.expect("created");
    for name in ["one", "two"] {
        let topic = Some(TopicName::parse("news").expect("a name"));
        broker.queues.create(NewQueue { topic, ..NewQueue::new(queue_name(name)) }).await.expect("created");
    }
    for value in ["a", "b", "c", "d"] {
        let mut builder = BatchBuilder::new();
        builder
            .push(crate::Clock::SYSTEM.now_ms() as i64, Some(value.as_bytes()), Some(value.as_bytes()), &[])
            .expect("small");
        let batch = builder.finish().expect("a record");
        broker.publish("news", None, Acks::Committed, batch, &mut Wakes::default()).await.expect("published");
    }
    for name in ["one", "two"] {
        let mut got = bodies(&receive(&broker, name, 10).await);
        got.sort_unstable();
        assert_eq!(got, ["a", "b", "c", "d"], "{name}");
    }
}

#[tokio::test]
async fn purged_and_sought() {
    let broker = in_memory();
    let settings = TopicSettings { storage: Storage::Memory, ..TopicSettings::default() };
    broker.create_topic("log", settings).await.expect("created");
    let topic = Some(TopicName::parse("log").expect("a name"));
    broker.queues.create(NewQueue { topic, ..NewQueue::new(queue_name("view")) }).await.expect("created");
    let messages = ["a", "b", "c"].map(|body| OutMessage { body: body.as_bytes(), ..OutMessage::default() });
    broker.queues.send_to_topic("log", &messages).await.expect("sent");
    let got = receive(&broker, "view", 2).await;
    let peeked = broker.queues.peek("view", None, 10).await.expect("seen");
    assert_eq!(peeked.iter().map(|peeked| peeked.attempts).collect::<Vec<_>>(), [1, 1, 0]);
    assert_eq!(broker.queues.purge("view").await.expect("purged"), 3);
    assert_eq!(counts(&broker, "view").await, (0, 0, 0));
    assert_eq!(broker.queues.ack("view", &[got[0].receipt]).await.expect("answered"), [Ok(())], "it is done with");
    broker.queues.seek("view", SeekTo::Earliest).await.expect("sought");
    assert_eq!(bodies(&receive(&broker, "view", 10).await), ["a", "b", "c"]);
}

#[tokio::test]
async fn a_release_returns_only_messages_whose_leases_are_still_held() {
    let broker = in_memory();
    create(&broker, "jobs", QueueSettings::default()).await;
    send(&broker, "jobs", &["a", "b"]).await;
    let gone = receive(&broker, "jobs", 2).await;
    let receipts: Vec<Receipt> = gone.iter().map(|message| message.receipt).collect();
    broker.queues.nack("jobs", &[(receipts[0], Some(0))]).await.expect("answered")[0].expect("returned");
    let other = receive(&broker, "jobs", 1).await;
    assert_eq!(bodies(&other), ["a"]);
    assert_eq!(broker.queues.release("jobs", &receipts).await, Ok(1));
    assert_eq!(counts(&broker, "jobs").await, (1, 1, 0), "what another has now stays with them");
    let again = receive(&broker, "jobs", 2).await;
    assert_eq!((bodies(&again), again[0].attempts), (vec!["b".to_owned()], 2));
}

#[tokio::test]
async fn a_message_that_was_moved_as_it_was_keeps_its_attempts() {
    let broker = in_memory();
    create(&broker, "jobs", QueueSettings::default()).await;
    let headers: [(&str, &[u8]); 2] = [(header::ATTEMPTS, b"3"), ("a", b"b")];
    let message = OutMessage { body: b"moved", headers: &headers, ..OutMessage::default() };
    broker.queues.send("jobs", &[message]).await.expect("sent").remove(0).expect("taken");
    for attempts in 4..7 {
        let received = receive(&broker, "jobs", 1).await;
        assert_eq!(received[0].attempts, attempts);
        broker.queues.nack("jobs", &[(received[0].receipt, Some(0))]).await.expect("answered")[0].expect("returned");
    }
}

#[tokio::test]
async fn times_that_nobody_can_mean_are_refused() {
    let broker = in_memory();
    create(&broker, "jobs", QueueSettings::default()).await;
    let late = OutMessage { body: b"late", delay_ms: Some(u64::MAX), ..OutMessage::default() };
    let kind = |error: Error| error.kind;
    assert_eq!(broker.queues.send("jobs", &[late]).await.map(drop).map_err(kind), Err(ErrorKind::Invalid));
    send(&broker, "jobs", &["a"]).await;
    let long = Receive { lease_ms: Some(u64::MAX), ..Receive::default() };
    assert_eq!(broker.queues.receive("jobs", &long).await.map(drop).map_err(kind), Err(ErrorKind::Invalid));
    let received = receive(&broker, "jobs", 1).await;
    let receipt = received[0].receipt;
    assert_eq!(
        broker.queues.nack("jobs", &[(receipt, Some(u64::MAX))]).await.map(drop).map_err(kind),
        Err(ErrorKind::Invalid)
    );
    assert_eq!(broker.queues.extend("jobs", &[(receipt, u64::MAX)]).await, Ok(vec![Err(LeaseError::TooLong)]));
}

#[tokio::test]
async fn a_full_queue_refuses_or_drops_its_oldest() {
    let broker = in_memory();
    create(&broker, "strict", QueueSettings { messages_max: 2, ..QueueSettings::default() }).await;
    let overflow = QueueOverflow::DropOldest;
    create(&broker, "loose", QueueSettings { messages_max: 2, overflow, ..QueueSettings::default() }).await;
    for queue in ["strict", "loose"] {
        send(&broker, queue, &["a"]).await;
        send(&broker, queue, &["b"]).await;
    }
    let third = OutMessage { body: b"c", ..OutMessage::default() };
    let refused = broker.queues.send("strict", &[third]).await.expect("answered").remove(0);
    assert_eq!(refused.map_err(|error| error.kind), Err(ErrorKind::Busy));
    broker.queues.send("loose", &[third]).await.expect("answered").remove(0).expect("taken");
    assert_eq!(bodies(&receive(&broker, "loose", 10).await), ["b", "c"]);
    let got = receive(&broker, "strict", 10).await;
    assert_eq!(bodies(&got), ["a", "b"]);
    ack(&broker, "strict", &got[..1]).await;
    broker.queues.send("strict", &[third]).await.expect("answered").remove(0).expect("there is room again");
}

/// Retention of a topic with that setting waits for its queues. Without queues it works as for any other topic.
#[tokio::test]
async fn retention_keeps_unacknowledged_messages() {
    let dir = TempDir::new().expect("a folder");
    for storage in [Storage::Memory, Storage::Disk, Storage::Sqlite] {
        let broker = on_disk(&dir);
        let name = storage.name();
        let settings = TopicSettings { retention_bytes: 1, retention_ms: 1_000, storage, ..TopicSettings::default() };
        broker.create_topic(name, TopicSettings { keeps_unacked: true, ..settings }).await.expect("created");
        let topic = Some(TopicName::parse(name).expect("a name"));
        let view = &format!("view-{name}");
        broker.queues.create(NewQueue { topic, ..NewQueue::new(queue_name(view)) }).await.expect("created");
        for body in ["a", "b", "c"] {
            let message = OutMessage { body: body.as_bytes(), ..OutMessage::default() };
            broker.queues.send_to_topic(name, &[message]).await.expect("sent");
        }
        let later = crate::Clock::SYSTEM.now_ms() + 10_000;
        let start = |broker: &Broker| {
            broker.queues.trim_all(later);
            broker.describe_topic(name).expect("there").partitions[0].start
        };
        // A log on disk removes whole segments, and never the newest: here it keeps all records.
        let reaches = async |wanted: u64| {
            if storage == Storage::Disk {
                return assert_eq!(start(&broker), 0, "{name}");
            }
            let reached = async {
                while start(&broker) != wanted {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            let reached = tokio::time::timeout(Duration::from_secs(30), reached).await;
            reached.unwrap_or_else(|_| panic!("{name}: the log begins at {}, not {wanted}", start(&broker)));
        };
        assert_eq!(start(&broker), 0, "{name}: nothing is acknowledged");
        let got = receive(&broker, view, 3).await;
        assert_eq!(bodies(&got), ["a", "b", "c"], "{name}");
        ack(&broker, view, &got[..1]).await;
        reaches(1).await;
        ack(&broker, view, &got[1..]).await;
        let message = OutMessage { body: b"d", ..OutMessage::default() };
        broker.queues.send_to_topic(name, &[message]).await.expect("sent");
        reaches(3).await;
        assert_eq!(bodies(&receive(&broker, view, 3).await), ["d"], "{name}");
        broker.queues.delete(view).await.expect("deleted");
        reaches(4).await;
        broker.stop().expect("stops");
    }
}

/// Records that queues need are not deleted to make room for others: publishing is refused.
#[tokio::test]
async fn a_full_memory_takes_acknowledged_records_only() {
    let settings = Settings { log_bytes_max: 1 << 20, ..Settings::default() };
    let broker = Broker::start(settings, &[Handle::current()]).expect("starts");
    let unlimited = TopicSettings { retention_bytes: 0, retention_ms: 0, ..TopicSettings::default() };
    broker.create_topic("log", TopicSettings { keeps_unacked: true, ..unlimited }).await.expect("created");
    let topic = Some(TopicName::parse("log").expect("a name"));
    broker.queues.create(NewQueue { topic, ..NewQueue::new(queue_name("view")) }).await.expect("created");
    let body = [b'x'; 1 << 16];
    let message = OutMessage { body: &body, ..OutMessage::default() };
    let mut sent = 0;
    let refused = loop {
        match broker.queues.send_to_topic("log", &[message]).await {
            Ok(_) => sent += 1,
            Err(error) => break error,
        }
        assert!(sent < 32, "more is taken than there is room for");
    };
    assert_eq!(refused.kind, ErrorKind::Busy);
    let got = receive(&broker, "view", 32).await;
    assert_eq!(got.len(), sent, "all of them are still there");
    ack(&broker, "view", &got[..1]).await;
    broker.queues.send_to_topic("log", &[message]).await.expect("the acknowledged one makes room");
}

#[tokio::test]
async fn a_snapshot_keeps_unacknowledged_messages() {
    let dir = TempDir::new().expect("a folder");
    let broker = on_disk(&dir);
    let settings = TopicSettings { drop_consumed: true, storage: Storage::Disk, ..TopicSettings::on_disk() };
    broker.create_topic("log", settings).await.expect("created");
    let topic = Some(TopicName::parse("log").expect("a name"));
    broker.queues.create(NewQueue { topic, ..NewQueue::new(queue_name("view")) }).await.expect("created");
    let messages = ["a", "b", "c"].map(|body| OutMessage { body: body.as_bytes(), ..OutMessage::default() });
    broker.queues.send_to_topic("log", &messages).await.expect("sent");
    let got = receive(&broker, "view", 2).await;
    ack(&broker, "view", &got[..1]).await;
    broker.queues.create_snapshot("kept", "view", u64::MAX).await.expect("created");
    let again = broker.queues.create_snapshot("kept", "view", u64::MAX).await;
    assert_eq!(again.map_err(|error| error.kind), Err(ErrorKind::AlreadyExists));
    broker.queues.purge("view").await.expect("purged");
    broker.queues.trim_all(crate::Clock::SYSTEM.now_ms());
    broker.stop().expect("stops");
    drop(broker);
    let broker = on_disk(&dir);
    assert_eq!(counts(&broker, "view").await, (0, 0, 0));
    broker.queues.trim_all(crate::Clock::SYSTEM.now_ms());
    broker.queues.seek_to_snapshot("view", "kept").await.expect("sought");
    assert_eq!(bodies(&receive(&broker, "view", 10).await), ["b", "c"]);
    broker.queues.delete_snapshot("kept").await.expect("deleted");
    let gone = broker.queues.seek_to_snapshot("view", "kept").await;
    assert_eq!(gone.map_err(|error| error.kind), Err(ErrorKind::NotFound));
}

#[tokio::test]
async fn a_snapshot_is_not_one_of_another_topic_of_the_same_name() {
    let broker = in_memory();
    let create_topic = async || {
        let settings = TopicSettings { storage: Storage::Memory, ..TopicSettings::default() };
        broker.create_topic("log", settings).await.expect("created");
    };
    create_topic().await;
    let topic = Some(TopicName::parse("log").expect("a name"));
    broker.queues.create(NewQueue { topic, ..NewQueue::new(queue_name("view")) }).await.expect("created");
    send(&broker, "view", &["a", "b"]).await;
    assert_eq!(receive(&broker, "view", 2).await.len(), 2);
    broker.queues.create_snapshot("kept", "view", u64::MAX).await.expect("created");
    broker.delete_topic("log").await.expect("deleted");
    create_topic().await;
    send(&broker, "view", &["c"]).await;
    let sought = broker.queues.seek_to_snapshot("view", "kept").await;
    assert_eq!(sought.map_err(|error| error.kind), Err(ErrorKind::NotFound));
    assert_eq!(bodies(&receive(&broker, "view", 10).await), ["c"]);
}

#[tokio::test]
async fn queues_follow_a_topic_that_grows_and_go_with_their_own() {
    let broker = in_memory();
    create(&broker, "jobs", QueueSettings::default()).await;
    broker.grow_topic("jobs", 4).await.expect("grown");
    let sent = send(&broker, "jobs", &["a", "b", "c", "d", "e"]).await;
    assert!(sent.iter().any(|sent| sent.partition > 0));
    let mut got = bodies(&receive(&broker, "jobs", 10).await);
    got.sort_unstable();
    assert_eq!(got, ["a", "b", "c", "d", "e"]);
    let waiting = {
        let broker = broker.clone();
        let wanted = Receive { wait: Duration::from_secs(20), ..Receive::default() };
        tokio::spawn(async move { broker.queues.receive("jobs", &wanted).await.map(|got| got.len()) })
    };
    while !broker.queues.cell("jobs").await.expect("there").0.is_awaited() {
        tokio::task::yield_now().await;
    }
    broker.delete_topic("jobs").await.expect("deleted");
    assert_eq!(waiting.await.expect("ends").map_err(|error| error.kind), Err(ErrorKind::NotFound));
    assert_eq!(broker.queues.get("jobs").await.map_err(|error| error.kind), Err(ErrorKind::NotFound));
    create(&broker, "jobs", QueueSettings::default()).await;
    assert_eq!(counts(&broker, "jobs").await, (0, 0, 0), "another one");
}

#[tokio::test]
async fn a_message_that_is_stuck_keeps_no_memory_of_those_after_it() {
    let broker = in_memory();
    create(&broker, "jobs", QueueSettings::default()).await;
    send(&broker, "jobs", &["stuck"]).await;
    let with_one = broker.log_budget().used();
    let stuck = receive(&broker, "jobs", 1).await;
    for i in 0..100 {
        send(&broker, "jobs", &[&format!("{i}")]).await;
        let got = receive(&broker, "jobs", 1).await;
        ack(&broker, "jobs", &got).await;
    }
    let one = broker.log_budget().used();
    assert!(one < with_one + 300, "{one} bytes for one message, {with_one} before");
    ack(&broker, "jobs", &stuck).await;
    assert_eq!(counts(&broker, "jobs").await, (0, 0, 0));
}

#[tokio::test]
async fn a_queue_keeps_its_name_and_its_topic() {
    let broker = in_memory();
    create(&broker, "jobs", QueueSettings::default()).await;
    broker.create_topic("other", TopicSettings::default()).await.expect("created");
    let renamed = broker.queues.alter("jobs", |definition| {
        definition.name = queue_name("tasks");
        Ok(())
    });
    assert_eq!(renamed.await.map_err(|error| error.kind), Err(ErrorKind::Invalid));
    let moved = broker.queues.alter("jobs", |definition| {
        definition.topic = TopicName::parse("other")?;
        Ok(())
    });
    assert_eq!(moved.await.map_err(|error| error.kind), Err(ErrorKind::Invalid));
}

#[tokio::test]
async fn messages_of_a_call_keep_their_order_whether_or_not_they_have_a_deduplication_id() {
    let broker = in_memory();
    create(&broker, "jobs", QueueSettings { dedup: DedupRule::Queue, ..QueueSettings::default() }).await;
    let ids = [None, Some("1"), None, None, Some("4")];
    let bodies_sent = ["0", "1", "2", "3", "4"];
    let out = |(body, dedup): (&&'static str, &Option<&'static str>)| OutMessage {
        body: body.as_bytes(),
        dedup: *dedup,
        ..OutMessage::default()
    };
    let messages: Vec<_> = bodies_sent.iter().zip(&ids).map(out).collect();
    let sent = broker.queues.send("jobs", &messages).await.expect("sent");
    let offsets: Vec<u64> = sent.into_iter().map(|sent| sent.expect("taken").offset).collect();
    assert_eq!(offsets, [0, 1, 2, 3, 4]);
    assert_eq!(bodies(&receive(&broker, "jobs", 10).await), bodies_sent);
}

#[tokio::test]
async fn a_receiver_that_waits_alone_sleeps() {
    let broker = in_memory();
    let settings = TopicSettings { partitions: 2, storage: Storage::Memory, ..TopicSettings::default() };
    broker.create_topic("log", settings).await.expect("created");
    let topic = Some(TopicName::parse("log").expect("a name"));
    broker.queues.create(NewQueue { topic, ..NewQueue::new(queue_name("jobs")) }).await.expect("created");
    send(&broker, "jobs", &["a"]).await;
    let held = receive(&broker, "jobs", 1).await;
    // An acknowledgement by another receiver wakes it, but no message is available.
    let wait = Receive { wait: Duration::from_millis(200), ..Receive::default() };
    let (received, ()) = tokio::join!(broker.queues.receive("jobs", &wait), ack(&broker, "jobs", &held));
    assert!(received.expect("received").is_empty());
    // Each access to the queue takes a turn: one for the message, and without a message one at first, when woken, and
    // at last.
    let (cell, _) = broker.queues.cell("jobs").await.expect("there");
    let looks = cell.turn.load(Ordering::Relaxed);
    assert!((3..10).contains(&looks), "{looks} looks");
}

/// Sends a message from each of many threads, and returns all their answers.
async fn sent_from_threads(broker: &Arc<Broker>, queue: &'static str, message: OutMessage<'static>) -> Vec<String> {
    let mut told = Vec::new();
    for _ in 0..16 {
        let broker = broker.clone();
        let runtime = Handle::current();
        let send = move || runtime.block_on(async { broker.queues.send(queue, &[message]).await?.remove(0) });
        let (done, sent) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || done.send(send()));
        told.push(match sent.await.expect("it ends") {
            Ok(sent) if sent.is_duplicate => "duplicate".into(),
            Ok(_) => "sent".into(),
            Err(error) => error.kind.name().to_owned(),
        });
    }
    told.dedup();
    told
}

#[tokio::test]
async fn every_thread_uses_the_current_definition_of_a_queue() {
    let broker = in_memory();
    create(&broker, "jobs", QueueSettings::default()).await;
    let message = OutMessage { body: &[b'x'; 2000], dedup: Some("1"), ..OutMessage::default() };
    assert_eq!(sent_from_threads(&broker, "jobs", message).await, ["sent"]);
    broker
        .queues
        .alter("jobs", |definition| {
            definition.settings.dedup = DedupRule::Queue;
            Ok(())
        })
        .await
        .expect("altered");
    assert_eq!(sent_from_threads(&broker, "jobs", message).await, ["sent", "duplicate"], "the first is remembered");
    let change = engine::SettingsChange { batch_bytes_max: Some(1024), ..engine::SettingsChange::default() };
    broker.alter_topic("jobs", change).await.expect("altered");
    assert_eq!(sent_from_threads(&broker, "jobs", message).await, ["too_large"]);
    broker.queues.delete("jobs").await.expect("deleted");
    assert_eq!(sent_from_threads(&broker, "jobs", message).await, ["not_found"]);
    create(&broker, "jobs", QueueSettings::default()).await;
    assert_eq!(sent_from_threads(&broker, "jobs", message).await, ["sent"]);
    assert_eq!(counts(&broker, "jobs").await, (16, 0, 0), "of the new one alone");
}

#[tokio::test]
async fn receipts_of_several_partitions_are_answered_in_the_order_of_the_call() {
    let broker = in_memory();
    let settings = TopicSettings { partitions: 3, storage: Storage::Memory, ..TopicSettings::default() };
    broker.create_topic("log", settings).await.expect("created");
    let topic = Some(TopicName::parse("log").expect("a name"));
    broker.queues.create(NewQueue { topic, ..NewQueue::new(queue_name("jobs")) }).await.expect("created");
    send(&broker, "jobs", &["a", "b", "c", "d", "e", "f"]).await;
    let got = receive(&broker, "jobs", 10).await;
    let mut receipts: Vec<Receipt> = got.iter().map(|message| message.receipt).collect();
    receipts.sort_by_key(|receipt| receipt.offset);
    receipts[3].lease = 0;
    receipts.insert(1, Receipt { partition: 9, ..receipts[0] });
    let answers = broker.queues.ack("jobs", &receipts).await.expect("answered");
    let expired = Err(LeaseError::Expired);
    let gone = Err(LeaseError::Gone);
    assert_eq!(answers, [Ok(()), gone, Ok(()), Ok(()), expired, Ok(()), Ok(())]);
    assert_eq!(counts(&broker, "jobs").await, (0, 1, 0));
    assert_eq!(broker.queues.ack("jobs", &[]).await, Ok(Vec::new()));
}

/// A receiver that reads the files of a topic in several passes receives no message twice in one call.
#[tokio::test]
async fn a_call_that_reads_files_is_given_all_of_a_group_and_each_message_once() {
    let dir = TempDir::new().expect("a folder");
    let broker = on_disk(&dir);
    let settings = QueueSettings { order: Order::Groups, lease_ms: 0, ..QueueSettings::default() };
    create(&broker, "jobs", settings).await;
    let body = "x".repeat(600_000);
    for (group, i) in [("a", 1), ("b", 1), ("b", 2), ("a", 2), ("a", 3)] {
        send_grouped(&broker, "jobs", group, &format!("{group}{i}{body}"), None).await;
    }
    broker.stop().expect("stops");
    drop(broker);
    let broker = on_disk(&dir);
    let got = receive(&broker, "jobs", 100).await;
    let first: Vec<String> = bodies(&got).iter().map(|body| body.trim_end_matches('x').to_owned()).collect();
    assert_eq!(first, ["a1", "a2", "a3", "b1", "b2"]);
}

#[tokio::test]
async fn a_peek_returns_messages_that_are_due_again() {
    let broker = in_memory();
    create(&broker, "jobs", QueueSettings { lease_ms: 0, ..QueueSettings::default() }).await;
    send(&broker, "jobs", &["returned"]).await;
    let delayed = OutMessage { body: b"delayed", delay_ms: Some(1), ..OutMessage::default() };
    broker.queues.send("jobs", &[delayed]).await.expect("sent").remove(0).expect("taken");
    assert_eq!(receive(&broker, "jobs", 1).await.len(), 1);
    let sent_ms = crate::Clock::SYSTEM.now_ms();
    while crate::Clock::SYSTEM.now_ms() <= sent_ms + 1 {
        tokio::task::yield_now().await;
    }
    let seen = broker.queues.peek("jobs", None, 10).await.expect("seen");
    let phases: Vec<_> = seen.iter().map(|seen| (seen.phase, seen.attempts, seen.due_ms)).collect();
    assert_eq!(phases, [(Phase::Waiting, 1, None), (Phase::Waiting, 0, None)]);
}
