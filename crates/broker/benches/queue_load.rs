//! Benchmarks of queues: memory and allocations, and the latency of a receiver among many others.
//!
//! - `cargo bench -p thalweg-broker --bench queue_load -- costs`: allocations of each call, and its time in the
//!   fastest stretch, which is meaningful on a busy machine, too. To count instructions, run this once for each call
//!   and divide by [`CALLS`]: `valgrind --tool=callgrind --collect-atstart=no --toggle-collect='*measured*'
//!   target/release/deps/queue_load-* costs send`.
//! - `cargo bench -p thalweg-broker --bench queue_load`: memory of a waiting message and of one in flight, with 1 M
//!   messages, and the time of a receive among 10,000 queues.

use std::alloc::{GlobalAlloc, Layout};
use std::future::Future;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use broker::{Broker, NewQueue, OutMessage, Receipt, Receive, Settings};
use engine::Storage;
use engine::queue::QueueName;
use tokio::runtime::Runtime;

/// Counting wrapper of the server's allocator.
struct Counted;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
/// Bytes in use, as requested.
static BYTES: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counted = Counted;

// All calls are forwarded to mimalloc, with unchanged arguments.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        unsafe { mimalloc::MiMalloc.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { mimalloc::MiMalloc.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(size, Ordering::Relaxed);
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { mimalloc::MiMalloc.realloc(pointer, layout, size) }
    }
}

/// Calls whose costs are added up.
const CALLS: usize = 10_000;
/// Calls that are timed together: at least one stretch is short enough not to be interrupted.
const STRETCH: usize = 1000;
const QUEUE: &str = "measured";
const WAITING: usize = 1_000_000;
const IN_FLIGHT: usize = 100_000;
const QUEUES: usize = 10_000;
/// Receives that are timed.
const SAMPLES: usize = 20_000;
const BODY: [u8; 100] = [b'x'; 100];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    match arguments.first().map(String::as_str) {
        Some("costs") => {
            let calls = ["send", "send_1k", "batch", "receive", "receive_10", "ack", "counts", "round_trip"];
            for call in calls.into_iter().filter(|call| arguments.get(1).is_none_or(|only| only == call)) {
                costs(&runtime, call);
            }
        }
        _ => load(&runtime),
    }
}

fn broker(runtime: &Runtime) -> Arc<Broker> {
    let settings = Settings { log_bytes_max: 4 << 30, ..Settings::default() };
    let broker = Broker::start(settings, &[runtime.handle().clone()]).expect("starts");
    runtime.block_on(create(&broker, QUEUE));
    broker
}

async fn create(broker: &Broker, name: &str) {
    let queue = NewQueue { storage: Storage::Memory, ..NewQueue::new(QueueName::parse(name).expect("a name")) };
    broker.queues.create(queue).await.expect("created");
}

async fn send(broker: &Broker, queue: &str, messages: &[OutMessage<'_>]) {
    let sent = broker.queues.send(queue, black_box(messages)).await.expect("sent");
    assert!(sent.iter().all(Result::is_ok), "all are accepted");
}

async fn receive(broker: &Arc<Broker>, queue: &str, max: usize) -> Vec<Receipt> {
    let received = broker.queues.receive(queue, &Receive { max, ..Receive::default() }).await.expect("received");
    assert_eq!(received.len(), max, "the queue contains them");
    received.iter().map(|message| message.receipt).collect()
}

async fn ack(broker: &Arc<Broker>, queue: &str, receipts: &[Receipt]) {
    let answers = broker.queues.ack(queue, black_box(receipts)).await.expect("answered");
    assert!(answers.iter().all(Result::is_ok), "they are leased");
}

/// Runs the code that callgrind measures.
#[inline(never)]
fn measured(runtime: &Runtime, calls: impl Future<Output = ()>) {
    runtime.block_on(calls);
}

fn costs(runtime: &Runtime, call: &str) {
    let broker = broker(runtime);
    let body = vec![b'x'; if call == "send_1k" { 1024 } else { BODY.len() }];
    let message = OutMessage { body: &body, ..OutMessage::default() };
    let thousand = vec![message; 1000];
    let mut leased = Vec::new();
    runtime.block_on(async {
        // Tables have reached their size then.
        for _ in 0..CALLS {
            send(&broker, QUEUE, &[message]).await;
        }
        let some = receive(&broker, QUEUE, 1000).await;
        ack(&broker, QUEUE, &some).await;
        match call {
            "send" | "send_1k" | "batch" | "round_trip" => {
                broker.queues.purge(QUEUE).await.expect("purged");
            }
            "receive_10" => {
                for _ in 0..CALLS / 100 {
                    send(&broker, QUEUE, &thousand).await;
                }
            }
            _ => {
                send(&broker, QUEUE, &thousand).await;
            }
        }
        if call == "ack" {
            for _ in 0..CALLS / 1000 {
                leased.extend(receive(&broker, QUEUE, 1000).await);
            }
        }
    });
    let broker = &broker;
    let thousand = &thousand;
    let leased = &leased;
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let mut fastest = Duration::MAX;
    let shortest = &mut fastest;
    measured(runtime, async move {
        let mut begin = Instant::now();
        for i in 0..CALLS {
            match call {
                "send" | "send_1k" => send(broker, QUEUE, &[message]).await,
                "batch" if i % thousand.len() == 0 => send(broker, QUEUE, thousand).await,
                "receive" => drop(receive(broker, QUEUE, 1).await),
                "receive_10" => drop(receive(broker, QUEUE, 10).await),
                "ack" => ack(broker, QUEUE, &leased[i..=i]).await,
                "counts" => drop(black_box(broker.queues.counts(QUEUE).await)),
                "round_trip" => {
                    send(broker, QUEUE, &[message]).await;
                    let receipts = receive(broker, QUEUE, 1).await;
                    ack(broker, QUEUE, &receipts).await;
                }
                _ => {}
            }
            if (i + 1) % STRETCH == 0 {
                *shortest = begin.elapsed().min(*shortest);
                begin = Instant::now();
            }
        }
    });
    let allocations = (ALLOCATIONS.load(Ordering::Relaxed) - before) as f64 / CALLS as f64;
    let fastest = fastest / STRETCH as u32;
    println!("{call}: {allocations:.2} allocations per call (or message of the batch), {fastest:?} at the fastest");
}

/// Returns the resident memory of the process, as reported by the system.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux reports it");
    let pages: usize = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number");
    pages * 4096
}

fn load(runtime: &Runtime) {
    let broker = broker(runtime);
    runtime.block_on(async {
        let alone = times(&broker).await;
        for queue in 1..QUEUES {
            create(&broker, &format!("queue-{queue}")).await;
        }
        let message = OutMessage { body: &BODY, ..OutMessage::default() };
        let before = (BYTES.load(Ordering::Relaxed), resident());
        for i in 0..WAITING {
            let name = format!("queue-{}", 1 + i % 100);
            send(&broker, &name, &[message]).await;
        }
        let waiting = (BYTES.load(Ordering::Relaxed), resident());
        report("a message of 100 B that waits", before, waiting, WAITING);
        for i in 0..IN_FLIGHT / 10 {
            receive(&broker, &format!("queue-{}", 1 + i % 100), 10).await;
        }
        let leased = (BYTES.load(Ordering::Relaxed), resident());
        report("a lease in addition to its message", waiting, leased, IN_FLIGHT);
        let among = times(&broker).await;
        for (what, at) in [("p50", 2), ("p99", 100), ("p99.9", 1000)] {
            let index = |times: &[Duration]| times[times.len() - 1 - times.len() / at];
            let alone = index(&alone);
            let among = index(&among);
            let ratio = among.as_secs_f64() / alone.as_secs_f64();
            println!("receive, {what}: alone {alone:?}, among {QUEUES} queues {among:?}, {ratio:.2} times");
        }
    });
}

fn report(what: &str, before: (usize, usize), after: (usize, usize), count: usize) {
    let each = |before: usize, after: usize| after.saturating_sub(before) / count;
    let asked = each(before.0, after.0);
    let resident = each(before.1, after.1);
    println!("{what}: {asked} B requested, {resident} B resident");
}

/// Returns the sorted times of receives of one message each from a queue that has it.
async fn times(broker: &Arc<Broker>) -> Vec<Duration> {
    let message = OutMessage { body: &BODY, ..OutMessage::default() };
    let mut times = Vec::with_capacity(SAMPLES);
    for _ in 0..SAMPLES {
        send(broker, QUEUE, &[message]).await;
        let begin = Instant::now();
        let receipts = receive(broker, QUEUE, 1).await;
        times.push(begin.elapsed());
        ack(broker, QUEUE, &receipts).await;
    }
    times.sort_unstable();
    times
}
