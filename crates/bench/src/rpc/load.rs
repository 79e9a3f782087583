//! Load: connections on threads with a separate runtime each, a time window, and the total.

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt, stream};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::sleep_until;

use super::arrivals;
use super::dial::{Dialer, Link, Target};
use super::requester::Requester;
use super::worker::{self, Pace, Shape, Tally, Window, Worker};
use crate::latency::Latencies;
use crate::process::CpuTime;

/// Maximum number of connections that one thread opens concurrently.
const CONNECTING_MAX: usize = 32;
/// Pause between the last connection and the first request.
const START_PAUSE: Duration = Duration::from_millis(5);
/// Maximum time for answers that are outstanding when the window ends.
const GRACE: Duration = Duration::from_secs(5);
/// Maximum time for the peer to confirm that a QUIC connection is closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Parameters of a load.
#[derive(Clone, Debug)]
pub struct Plan {
    pub target: Target,
    pub connections: usize,
    /// Maximum number of requests in flight on each connection.
    pub pipeline: usize,
    pub payload_bytes: usize,
    /// Bytes of every answer.
    pub response_bytes: usize,
    /// Duration of the measured part.
    pub duration: Duration,
    /// Time before the measured part.
    pub warm_up: Duration,
    pub threads: usize,
    /// Requests per second of all connections together, each with its own due time; without a rate, a connection sends
    /// one request for each answer.
    pub rate: Option<f64>,
    pub is_one_write_per_request: bool,
}

/// Results of a load.
pub struct Outcome {
    /// Answers that were received within the window.
    pub requests: u64,
    pub latencies: Latencies,
    /// With a rate: requests that were due within the window. `late` counts those of them that were answered after it,
    /// and `lags` holds the delays with which they were sent.
    pub due: u64,
    pub late: u64,
    pub lags: Latencies,
    pub errors: u64,
    /// Descriptions of some of the errors.
    pub told: Vec<String>,
    /// CPU time of the load within the window; `server_cpu` is that of the server, if its process is known.
    pub client_cpu: Duration,
    pub server_cpu: Option<CpuTime>,
}

/// Results of one thread.
struct Found {
    tally: Tally,
    cpu: Duration,
}

/// Runs the load. The process of the server is only observed.
pub fn run(plan: &Plan, server: Option<u32>) -> io::Result<Outcome> {
    let dialer = Dialer::new(plan.target.clone())?;
    let threads = plan.threads.clamp(1, plan.connections.max(1));
    thread::scope(|scope| {
        let (ready, readies) = mpsc::channel();
        let (done, dones) = mpsc::channel();
        let mut begins = Vec::new();
        for i in 0..threads {
            let share = |i: usize| plan.connections * i / threads;
            let part = Part { plan, dialer: &dialer, connections: share(i)..share(i + 1) };
            let (begin, began) = oneshot::channel();
            begins.push(begin);
            let ready = ready.clone();
            let done = done.clone();
            thread::Builder::new().name(format!("load-{i}")).spawn_scoped(scope, move || {
                let found = part.run(ready, began);
                // The receiver is dropped if another thread could not connect.
                done.send(found).unwrap_or_default();
            })?;
        }
        // Only the senders of the threads remain.
        drop((ready, done));
        for _ in 0..threads {
            readies.recv().map_err(io::Error::other)??;
        }
        let begin = Instant::now() + START_PAUSE;
        let from = plan.warm_up.as_nanos() as u64;
        let window = Window { begin, from, until: from + plan.duration.as_nanos() as u64 };
        for begin in begins {
            // A thread that has ended has reported the reason.
            begin.send(window).unwrap_or_default();
        }
        collect(window, &dones, server)
    })
}

/// Waits for all threads, and reads the CPU time of the server at both ends of the window.
fn collect(window: Window, dones: &mpsc::Receiver<io::Result<Found>>, server: Option<u32>) -> io::Result<Outcome> {
    let look = || server.and_then(CpuTime::of);
    let mut founds = Vec::new();
    let mut wait_until = |at: u64| {
        while let Ok(found) = dones.recv_timeout(window.at(at).saturating_duration_since(Instant::now())) {
            founds.push(found);
        }
    };
    wait_until(window.from);
    let before = look();
    wait_until(window.until);
    let after = look();
    founds.extend(dones);
    let mut sum = Found { tally: Tally::default(), cpu: Duration::ZERO };
    for found in founds {
        let found = found?;
        sum.tally.add(found.tally);
        sum.cpu += found.cpu;
    }
    let Tally { answers, latencies, due, late, lags, errors, told } = sum.tally;
    let server_cpu = before.zip(after).map(|(before, after)| after.since(before));
    Ok(Outcome { requests: answers, latencies, due, late, lags, errors, told, client_cpu: sum.cpu, server_cpu })
}

/// Part of a load that runs on one thread.
struct Part<'a> {
    plan: &'a Plan,
    dialer: &'a Dialer,
    connections: Range<usize>,
}

impl Part<'_> {
    fn run(&self, ready: mpsc::Sender<io::Result<()>>, began: oneshot::Receiver<Window>) -> io::Result<Found> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let count = self.connections.len();
            let links = stream::iter(self.connections.clone().map(|_| self.dialer.connect()));
            let links: io::Result<Vec<Link>> = links.buffer_unordered(CONNECTING_MAX).try_collect().await;
            let (said, links) = match links {
                Ok(links) => (Ok(()), links),
                Err(error) => (Err(error), Vec::new()),
            };
            // The caller waits for this message.
            ready.send(said).unwrap_or_default();
            let Ok(window) = began.await else {
                return Err(io::Error::other("the load was cancelled"));
            };
            let plan = self.plan;
            let shape = Shape {
                pipeline: plan.pipeline,
                payload_bytes: plan.payload_bytes,
                response_bytes: plan.response_bytes,
                is_one_write_per_request: plan.is_one_write_per_request,
                pace: plan.rate.map(|rate| Pace { interval_ns: 1e9 / rate, connections: plan.connections }),
            };
            worker::install(Worker::new(shape, window, count));
            let cpu = self.serve(links, &shape, window).await;
            Ok(Found { tally: worker::take(), cpu })
        })
    }

    /// Runs all connections to their end. Returns the CPU time within the window.
    async fn serve(&self, links: Vec<Link>, shape: &Shape, window: Window) -> Duration {
        sleep_until(window.begin.into()).await;
        let mut tasks = JoinSet::new();
        for (place, link) in links.into_iter().enumerate() {
            let index = self.connections.start + place;
            match link {
                Link::Tcp(io) => tasks.spawn(Requester::new(io, shape, index, place)),
                Link::Unix(io) => tasks.spawn(Requester::new(io, shape, index, place)),
                Link::Tls(io) => tasks.spawn(Requester::new(io, shape, index, place)),
                Link::Quic(quic) => {
                    let requester = Requester::new(quic.stream, shape, index, place);
                    tasks.spawn(async move {
                        requester.await;
                        quic.connection.close(0u32.into(), b"done");
                        // If this takes too long, the server detects the end by itself.
                        tokio::time::timeout(CLOSE_TIMEOUT, quic.endpoint.wait_idle()).await.unwrap_or_default();
                    })
                }
            };
        }
        let arrivals = shape.pace.map(|pace| tokio::spawn(arrivals::run(pace, window, self.connections.clone())));
        let before = Cell::new(thread_cpu());
        let within = async {
            sleep_until(window.at(window.from).into()).await;
            before.set(thread_cpu());
            sleep_until(window.at(window.until).into()).await;
            thread_cpu()
        };
        let too_late = sleep_until((window.at(window.until) + GRACE).into());
        tokio::pin!(within, too_late);
        let mut after = None;
        loop {
            tokio::select! {
                joined = tasks.join_next() => match joined {
                    Some(Ok(())) => {}
                    Some(Err(error)) => fail(format!("a connection failed: {error}")),
                    None => break,
                },
                cpu = &mut within, if after.is_none() => after = Some(cpu),
                () = &mut too_late => {
                    tasks.shutdown().await;
                    break;
                }
            }
        }
        if let Some(arrivals) = arrivals {
            arrivals.abort();
            match arrivals.await {
                Ok(Err(error)) => fail(format!("the schedule failed: {error}")),
                Err(error) if error.is_panic() => fail(format!("the schedule failed: {error}")),
                Ok(Ok(())) | Err(_) => {}
            }
        }
        after.unwrap_or_else(thread_cpu).saturating_sub(before.get())
    }
}

fn fail(why: String) {
    worker::with(|worker| worker.tally.fail(why));
}

/// Returns the CPU time of this thread.
fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
