//! Cost of a permit, alone and while a second thread uses the same limit without a pause: `cargo bench -p thalweg-net
//! --bench runtime_limits`.

use std::hint::black_box;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, criterion_group, criterion_main};
use net::limits::{Cap, ConnectionLimits, Connections};

fn runtime_limits(c: &mut Criterion) {
    let mut group = c.benchmark_group("runtime_limits");

    let requests = Cap::new(65_536);
    measure(&mut group, "request_permit_acquire_drop", || {
        let lease = requests.lease();
        move || drop(black_box(lease.acquire(1).expect("far from the maximum")))
    });

    let budget = Cap::with_block(1 << 30, 1 << 20);
    measure(&mut group, "memory_allocate_drop_1k", || {
        let lease = budget.lease();
        move || drop(black_box(lease.acquire(1024).expect("far from the maximum")))
    });

    let unbounded = Cap::with_block(u64::MAX, 1 << 20);
    measure(&mut group, "memory_allocate_drop_unbounded_1k", || {
        let lease = unbounded.lease();
        move || drop(black_box(lease.acquire(1024).expect("there is no maximum")))
    });

    let peer = Some(IpAddr::from([192, 0, 2, 1]));
    let no_rate = ConnectionLimits { opens_per_second_per_peer_max: None, ..ConnectionLimits::default() };
    let rate = ConnectionLimits { opens_per_second_per_peer_max: NonZeroU32::new(1_000_000_000), ..no_rate };
    let connections = [
        ("connection_permit_acquire_drop", no_rate, None),
        ("connection_per_peer_acquire_drop", no_rate, peer),
        ("connection_per_peer_rate_acquire_drop", rate, peer),
    ];
    for (name, limits, peer) in connections {
        let connections = Connections::new(limits);
        measure(&mut group, name, || {
            || drop(black_box(connections.admit(black_box(peer)).expect("far from every limit")))
        });
    }
    group.finish();
}

/// Measures the work of `worker` on one thread, alone and next to another thread with the same work.
fn measure<W: FnMut()>(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, worker: impl Fn() -> W + Sync) {
    group.bench_function(BenchmarkId::new(name, "1 thread"), |b| b.iter(worker()));
    group.bench_function(BenchmarkId::new(name, "2 threads"), |b| b.iter_custom(|times| time_beside(&worker, times)));
}

/// Flag on its own cache lines: its neighbors on the stack are written by the measured thread.
#[repr(align(128))]
struct IsOver(AtomicBool);

/// Returns the time for `times` rounds of work while a second thread works without a pause.
fn time_beside<W: FnMut()>(worker: &(impl Fn() -> W + Sync), times: u64) -> Duration {
    let both = Barrier::new(2);
    let is_over = IsOver(AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut work = worker();
            both.wait();
            while !is_over.0.load(Ordering::Relaxed) {
                work();
            }
        });
        let mut work = worker();
        both.wait();
        let begin = Instant::now();
        for _ in 0..times {
            work();
        }
        let time = begin.elapsed();
        is_over.0.store(true, Ordering::Relaxed);
        time
    })
}

criterion_group!(benches, runtime_limits);
criterion_main!(benches);
