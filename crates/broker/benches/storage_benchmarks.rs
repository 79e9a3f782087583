//! Cost of one call to a queue inside the process, for each storage of messages: `cargo bench -p thalweg-broker --bench
//! storage_benchmarks`. The rows are described in `docs/benchmarks/queues.md`.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::{Broker, Clock, NewQueue, OutMessage, Receipt, Receive, Received, Settings};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use engine::Storage;
use engine::queue::QueueName;
use storage::{RealDisk, Store, StoreSettings};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Allocator of the server.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const QUEUE: &str = "measured";
/// Maximum bytes in a queue: it is emptied before it exceeds them, outside of the measured time.
const WAITING_BYTES_MAX: usize = 64 << 20;
const WAITING_MAX: u64 = 10_000;
/// Body of messages whose size is not measured.
const BODY: &[u8] = b"Benchmark message";

/// Broker with one queue, and the storage of its messages.
struct Backend {
    name: &'static str,
    runtime: Runtime,
    broker: Arc<Broker>,
    _dir: Option<TempDir>,
}

impl Backend {
    fn all() -> Vec<Self> {
        let kinds = [("memory", Storage::Memory), ("disk", Storage::Disk), ("sqlite", Storage::Sqlite)];
        kinds.into_iter().map(|(name, storage)| Self::start(name, storage)).collect()
    }

    fn start(name: &'static str, storage: Storage) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("two threads");
        let dir = (storage != Storage::Memory).then(|| tempfile::tempdir().expect("a directory"));
        let stored = dir.as_ref().map(|dir| {
            let disk = Arc::new(RealDisk);
            Store::open(disk, dir.path(), StoreSettings::default(), Clock::SYSTEM.read(), &mut |_| {})
                .expect("a data directory")
        });
        let broker = Broker::start_with(Settings::default(), &[runtime.handle().clone()], stored).expect("starts");
        let queue = NewQueue { storage, ..NewQueue::new(QueueName::parse(QUEUE).expect("a name")) };
        runtime.block_on(broker.queues.create(queue)).expect("created");
        Self { name, runtime, broker, _dir: dir }
    }

    fn fill(&self, messages: u64) {
        let message = OutMessage { body: BODY, ..OutMessage::default() };
        self.runtime.block_on(async {
            self.broker.queues.purge(QUEUE).await.expect("empty");
            let mut left = messages;
            while left > 0 {
                let some = left.min(1000);
                let sent = self.broker.queues.send(QUEUE, &vec![message; some as usize]).await.expect("sent");
                assert!(sent.iter().all(Result::is_ok), "all are accepted");
                left -= some;
            }
        });
    }

    async fn receive(&self, max: usize) -> Vec<Received> {
        self.broker.queues.receive(QUEUE, &Receive { max, ..Receive::default() }).await.expect("received")
    }

    /// Times `iters` calls on a thread of the runtime, in stretches of at most `stretch`, with a queue that has
    /// `filled` messages at the beginning of each.
    fn time<F: Future<Output = ()>>(&self, iters: u64, stretch: u64, filled: u64, call: impl Fn() -> F) -> Duration {
        let mut left = iters;
        let mut time = Duration::ZERO;
        while left > 0 {
            let some = left.min(stretch);
            self.fill(filled);
            time += self.runtime.block_on(async {
                let begin = Instant::now();
                for _ in 0..some {
                    call().await;
                }
                begin.elapsed()
            });
            left -= some;
        }
        time
    }
}

fn receipts(messages: &[Received]) -> Vec<Receipt> {
    messages.iter().map(|message| message.receipt).collect()
}

fn send(c: &mut Criterion, backends: &[Backend]) {
    let mut group = c.benchmark_group("send_message");
    for (name, bytes) in [("100B", 100), ("1KB", 1024), ("10KB", 10 << 10), ("100KB", 100 << 10)] {
        let body = vec![b'x'; bytes];
        let messages = [OutMessage { body: &body, ..OutMessage::default() }];
        let stretch = (WAITING_BYTES_MAX / bytes).min(WAITING_MAX as usize) as u64;
        group.throughput(Throughput::Elements(1));
        for backend in backends {
            group.bench_function(BenchmarkId::new(name, backend.name), |b| {
                b.iter_custom(|iters| {
                    backend.time(iters, stretch, 0, || async {
                        let sent = backend.broker.queues.send(QUEUE, black_box(&messages)).await.expect("sent");
                        assert!(sent[0].is_ok(), "it is accepted");
                    })
                });
            });
        }
    }
    group.finish();

    let mut group = c.benchmark_group("send_messages_batch");
    for count in [1, 10, 100, 1000] {
        let messages = vec![OutMessage { body: BODY, ..OutMessage::default() }; count];
        group.throughput(Throughput::Elements(count as u64));
        for backend in backends {
            group.bench_function(BenchmarkId::new(count.to_string(), backend.name), |b| {
                b.iter_custom(|iters| {
                    backend.time(iters, WAITING_MAX.div_ceil(count as u64), 0, || async {
                        let sent = backend.broker.queues.send(QUEUE, black_box(&messages)).await.expect("sent");
                        assert!(sent.iter().all(Result::is_ok), "all are accepted");
                    })
                });
            });
        }
    }
    group.finish();
}

fn receive(c: &mut Criterion, backends: &[Backend]) {
    let mut group = c.benchmark_group("receive_messages");
    for max in [1u64, 10, 100] {
        group.throughput(Throughput::Elements(max));
        for backend in backends {
            group.bench_function(BenchmarkId::new(max.to_string(), backend.name), |b| {
                b.iter_custom(|iters| {
                    backend.time(iters, WAITING_MAX / max, WAITING_MAX, || async {
                        assert_eq!(backend.receive(max as usize).await.len() as u64, max, "the queue contains them");
                    })
                });
            });
        }
    }
    group.finish();

    let mut group = c.benchmark_group("delete_message");
    for backend in backends {
        group.bench_function(backend.name, |b| {
            b.iter_custom(|iters| {
                let mut left = iters;
                let mut time = Duration::ZERO;
                while left > 0 {
                    let some = left.min(WAITING_MAX);
                    backend.fill(some);
                    time += backend.runtime.block_on(async {
                        let mut leased = Vec::new();
                        while leased.len() < some as usize {
                            leased.extend(receipts(&backend.receive(1000).await));
                        }
                        let begin = Instant::now();
                        for receipt in leased {
                            let answers =
                                backend.broker.queues.ack(QUEUE, black_box(&[receipt])).await.expect("answered");
                            assert!(answers[0].is_ok(), "it is leased");
                        }
                        begin.elapsed()
                    });
                    left -= some;
                }
                time
            });
        });
    }
    group.finish();
}

fn round_trip(c: &mut Criterion, backends: &[Backend]) {
    let mut group = c.benchmark_group("round_trip");
    let messages = [OutMessage { body: BODY, ..OutMessage::default() }];
    for backend in backends {
        group.bench_function(backend.name, |b| {
            b.iter_custom(|iters| {
                backend.time(iters, iters, 0, || async {
                    backend.broker.queues.send(QUEUE, black_box(&messages)).await.expect("sent");
                    let received = backend.receive(1).await;
                    let receipt = received.first().expect("one message").receipt;
                    let answers = backend.broker.queues.ack(QUEUE, &[receipt]).await.expect("answered");
                    assert!(answers[0].is_ok(), "it is leased");
                })
            });
        });
    }
    group.finish();
}

fn manage(c: &mut Criterion, backends: &[Backend]) {
    let mut group = c.benchmark_group("purge_queue");
    for count in [100, 1000, 10_000] {
        for backend in backends {
            group.bench_function(BenchmarkId::new(count.to_string(), backend.name), |b| {
                b.iter_custom(|iters| {
                    backend.time(iters, 1, count, || async {
                        assert_eq!(backend.broker.queues.purge(QUEUE).await.expect("purged"), count);
                    })
                });
            });
        }
    }
    group.finish();

    let mut group = c.benchmark_group("get_stats");
    for backend in backends {
        backend.fill(1000);
        group.bench_function(backend.name, |b| {
            b.iter_custom(|iters| {
                backend.time(iters, iters, 1000, || async {
                    assert_eq!(backend.broker.queues.counts(QUEUE).await.expect("counted").visible, 1000);
                })
            });
        });
    }
    group.finish();
}

/// Measures tasks that send one message each; ends when all have sent.
fn concurrent(c: &mut Criterion, backends: &[Backend]) {
    let mut group = c.benchmark_group("concurrent_sends");
    for tasks in [1u64, 10, 100] {
        group.throughput(Throughput::Elements(tasks));
        for backend in backends {
            let round = move |broker: Arc<Broker>, rounds: u64| async move {
                let begin = Instant::now();
                for _ in 0..rounds {
                    let one = || {
                        let broker = broker.clone();
                        tokio::spawn(async move {
                            let message = [OutMessage { body: BODY, ..OutMessage::default() }];
                            let sent = broker.queues.send(QUEUE, &message).await.expect("sent");
                            assert!(sent[0].is_ok(), "it is accepted");
                        })
                    };
                    let senders: Vec<_> = (0..tasks).map(|_| one()).collect();
                    for sender in senders {
                        sender.await.expect("it was sent");
                    }
                }
                begin.elapsed()
            };
            group.bench_function(BenchmarkId::new(tasks.to_string(), backend.name), |b| {
                b.iter_custom(|iters| {
                    let mut left = iters;
                    let mut time = Duration::ZERO;
                    while left > 0 {
                        let some = left.min(WAITING_MAX / tasks);
                        backend.fill(0);
                        let task = backend.runtime.spawn(round(backend.broker.clone(), some));
                        time += backend.runtime.block_on(task).expect("all were sent");
                        let counts = backend.runtime.block_on(backend.broker.queues.counts(QUEUE)).expect("counted");
                        assert_eq!(counts.visible, some * tasks, "no message is lost");
                        left -= some;
                    }
                    time
                });
            });
        }
    }
    group.finish();
}

fn storage_benchmarks(c: &mut Criterion) {
    let backends = Backend::all();
    send(c, &backends);
    receive(c, &backends);
    round_trip(c, &backends);
    manage(c, &backends);
    concurrent(c, &backends);
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(3));
    targets = storage_benchmarks
}
criterion_main!(benches);
