//! Message transforms: JavaScript functions that change or filter the messages of a topic or of a subscription.
//!
//! Functions run on dedicated threads, never on those of connections. Each has a separate engine with limits on memory,
//! stack and time ([`engine`]). A built-in function of the engine may still run for long without checking the time: its
//! thread is then abandoned and replaced by another, up to a limit.

mod engine;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use broker::metrics::{Counter, Exposition, Histogram};
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use engine::Engine;
pub use engine::Fault;

/// Maximum number of threads that run functions; there is one for each processor.
const THREADS_MAX: usize = 4;
/// Maximum number of stuck threads that are replaced at a time. Further ones reduce the number of threads.
const STUCK_MAX: usize = 4;
/// Maximum time of all messages of one call together.
const JOB_TIME_MAX: Duration = Duration::from_secs(10);
/// Time after which a call with more messages waits for a thread again, behind other calls.
const SLICE_TIME: Duration = Duration::from_secs(1);
/// Time beyond that limit after which a thread is considered stuck.
const STUCK_AFTER: Duration = Duration::from_secs(1);
/// Maximum wait of a call for a thread.
const PLACE_WAIT_MAX: Duration = Duration::from_secs(10);
/// Maximum number of engines that a thread keeps for later messages of the same functions; the oldest is dropped.
const ENGINES_MAX: usize = 16;
/// Maximum bytes of a message that a function returns, and maximum number of its attributes: those of a message that is
/// published. Attributes may share one long text, so that a small heap could return any number of bytes.
pub const OUTPUT_BYTES_MAX: usize = 10_000_000;
pub const OUTPUT_ATTRIBUTES_MAX: usize = 100;
/// Stack of a thread, which includes that of its engine.
const THREAD_STACK_BYTES: usize = 2 << 20;

/// Function of a user, and the code that defines it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    pub code: String,
}

/// Message with its metadata, as passed to a function.
#[derive(Clone, Debug, Default)]
pub struct Input {
    pub data: Bytes,
    pub attributes: BTreeMap<String, String>,
    pub message_id: Option<String>,
    /// Time of publication as `YYYY-MM-DDTHH:MM:SSZ`.
    pub publish_time: Option<String>,
    pub ordering_key: Option<String>,
}

/// Message that a function returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    pub data: String,
    pub attributes: BTreeMap<String, String>,
}

impl Output {
    pub fn bytes(&self) -> usize {
        self.data.len() + self.attributes.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>()
    }
}

/// Message after all functions; `None` if one of them filtered it. A fault has the index of its function, from 0.
pub type Transformed = Result<Option<Output>, (usize, Fault)>;

/// Reason for which functions were not run to their end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// No thread was free: the call may be retried.
    Busy(String),
    /// The thread with the messages does not return. A retry would block another thread.
    Endless,
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy(message) => f.write_str(message),
            Self::Endless => f.write_str(
                "message_transforms: a function does not end, and is not called again until it ends: change it",
            ),
        }
    }
}

struct Job {
    functions: Arc<[Function]>,
    messages: Vec<Input>,
    bytes_max: usize,
    until: Instant,
    answer: oneshot::Sender<Slice>,
    state: Arc<AtomicU8>,
    place: OwnedSemaphorePermit,
}

/// Results of the first messages of a job.
struct Slice {
    transformed: Vec<Transformed>,
    bytes: usize,
    /// Messages that the functions were not applied to.
    rest: Vec<Input>,
    ran: Duration,
}

/// State of a job. The side that changes it from `RUNNING` decides which thread has the place.
const RUNNING: u8 = 0;
const DONE: u8 = 1;
/// The caller has given up, and another thread has replaced this one.
const REPLACED: u8 = 2;

/// Count of a running thread.
struct Alive(Arc<AtomicUsize>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Threads for transforms, and their statistics.
pub struct Transforms {
    places: Arc<Semaphore>,
    jobs: mpsc::Sender<Job>,
    waiting: Arc<Mutex<mpsc::Receiver<Job>>>,
    threads_max: usize,
    threads: Arc<AtomicUsize>,
    stuck: Arc<Stuck>,
    stats: Arc<Stats>,
}

/// Functions of stuck threads that have been replaced, at most [`STUCK_MAX`]. These functions are not run in the
/// meantime: an endless function blocks only one thread, however often it is called.
#[derive(Default)]
struct Stuck(Mutex<Vec<Arc<[Function]>>>);

impl Stuck {
    fn count(&self) -> usize {
        self.0.lock().len()
    }

    fn has(&self, functions: &Arc<[Function]>) -> bool {
        self.0.lock().contains(functions)
    }

    /// Adds a stuck thread. Returns `false` if there are too many.
    fn add(&self, functions: &Arc<[Function]>) -> bool {
        let mut stuck = self.0.lock();
        let has_room = stuck.len() < STUCK_MAX;
        if has_room {
            stuck.push(functions.clone());
        }
        has_room
    }

    fn remove(&self, functions: &Arc<[Function]>) {
        let mut stuck = self.0.lock();
        if let Some(at) = stuck.iter().position(|one| one == functions) {
            stuck.swap_remove(at);
        }
    }
}

#[derive(Default)]
struct Stats {
    results: [Counter; RESULTS.len()],
    seconds: Histogram,
}

const RESULTS: [&str; 4] = ["transformed", "filtered", "failed", "timed_out"];
const TIMED_OUT: usize = 3;

impl Default for Transforms {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self::new(processors.min(THREADS_MAX))
    }
}

impl Transforms {
    fn new(threads_max: usize) -> Self {
        let (jobs, waiting) = mpsc::channel();
        Self {
            places: Arc::new(Semaphore::new(threads_max)),
            jobs,
            waiting: Arc::new(Mutex::new(waiting)),
            threads_max,
            threads: Arc::default(),
            stuck: Arc::default(),
            stats: Arc::default(),
        }
    }

    /// Applies the functions to each message in turn, until the results have more than `bytes_max` bytes. There are
    /// fewer results than messages then.
    pub async fn apply(
        &self,
        functions: Arc<[Function]>,
        messages: Vec<Input>,
        bytes_max: usize,
    ) -> Result<Vec<Transformed>, Unanswered> {
        let Slice { mut transformed, mut bytes, mut rest, mut ran } =
            self.apply_some(&functions, messages, bytes_max, JOB_TIME_MAX).await?;
        while !rest.is_empty() && bytes <= bytes_max {
            let left = JOB_TIME_MAX.saturating_sub(ran);
            let next = self.apply_some(&functions, rest, bytes_max - bytes, left).await?;
            transformed.extend(next.transformed);
            bytes += next.bytes;
            ran += next.ran;
            rest = next.rest;
        }
        Ok(transformed)
    }

    /// Waits for a thread, and applies the functions to the first messages: to all, unless they take long or their
    /// results have more than `bytes_max` bytes.
    async fn apply_some(
        &self,
        functions: &Arc<[Function]>,
        messages: Vec<Input>,
        bytes_max: usize,
        time_max: Duration,
    ) -> Result<Slice, Unanswered> {
        if self.stuck.has(functions) {
            self.stats.results[TIMED_OUT].add(messages.len() as u64);
            return Err(Unanswered::Endless);
        }
        let place = tokio::time::timeout(PLACE_WAIT_MAX, self.places.clone().acquire_owned()).await;
        let Ok(Ok(place)) = place else {
            let message = format!(
                "all {} threads for message transforms are busy, {} of them with functions that do not end: try again \
                 later",
                self.threads_max,
                self.stuck.count()
            );
            return Err(Unanswered::Busy(message));
        };
        self.start_threads()?;
        let (answer, answered) = oneshot::channel();
        let state = Arc::new(AtomicU8::new(RUNNING));
        let until = Instant::now() + time_max;
        let count = messages.len() as u64;
        let job = Job { functions: functions.clone(), messages, bytes_max, until, answer, state: state.clone(), place };
        let gone = |what: &str| Unanswered::Busy(format!("the thread for message transforms {what}: try again"));
        self.jobs.send(job).map_err(|error| gone(&format!("has stopped ({error})")))?;
        match tokio::time::timeout(JOB_TIME_MAX + STUCK_AFTER, answered).await {
            Ok(Ok(slice)) => Ok(slice),
            Ok(Err(error)) => Err(gone(&format!("ended ({error})"))),
            Err(_) => {
                self.replace(functions, &state);
                self.stats.results[TIMED_OUT].add(count);
                Err(Unanswered::Endless)
            }
        }
    }

    /// Checks a function by running its code once, without a message.
    pub async fn check(&self, function: Function) -> Result<Result<(), Fault>, Unanswered> {
        let transformed = self.apply([function].into(), Vec::new(), 0).await?;
        Ok(transformed.into_iter().next().map_or(Ok(()), |only| only.map(drop).map_err(|(_, fault)| fault)))
    }

    pub fn expose(&self, out: &mut Exposition<'_>) -> fmt::Result {
        let results: Vec<(String, u64)> =
            RESULTS.iter().zip(&self.stats.results).map(|(name, count)| ((*name).to_owned(), count.get())).collect();
        out.counters("thalweg_pubsub_transforms", "Messages processed by message transforms", "result", &results)?;
        out.gauge(
            "thalweg_pubsub_transform_threads_stuck",
            "Replaced threads whose function does not end",
            self.stuck.count() as u64,
        )?;
        out.histogram(
            "thalweg_pubsub_transform_seconds",
            "Duration of all functions for one message",
            &self.stats.seconds,
        )
    }

    /// Starts the threads, unless they are running. A broker without transforms has no threads for them.
    fn start_threads(&self) -> Result<(), Unanswered> {
        while self.threads.load(Ordering::Relaxed) < self.threads_max {
            self.start_thread()?;
        }
        Ok(())
    }

    fn start_thread(&self) -> Result<(), Unanswered> {
        let waiting = self.waiting.clone();
        let stuck = self.stuck.clone();
        let stats = self.stats.clone();
        self.threads.fetch_add(1, Ordering::Relaxed);
        let alive = Alive(self.threads.clone());
        let thread = std::thread::Builder::new().name("transform".to_owned()).stack_size(THREAD_STACK_BYTES);
        let started = thread.spawn(move || {
            let _alive = alive;
            run(&waiting, &stuck, &stats);
        });
        started.map(drop).map_err(|error| Unanswered::Busy(format!("no thread for message transforms: {error}")))
    }

    /// Replaces a stuck thread by another one.
    fn replace(&self, functions: &Arc<[Function]>, state: &AtomicU8) {
        if !self.stuck.add(functions) {
            tracing::error!("a function of a message transform does not end, and no thread may replace its own");
            return;
        }
        if state.compare_exchange(RUNNING, REPLACED, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // It returned just now.
            self.stuck.remove(functions);
            return;
        }
        let names: Vec<&str> = functions.iter().map(|function| &*function.name).collect();
        tracing::error!(?names, "a function of a message transform does not end; another thread replaces its own");
        self.places.add_permits(1);
        if let Err(error) = self.start_thread() {
            // The next call retries.
            tracing::error!(%error);
        }
    }
}

/// Main loop of a thread, until the broker is dropped.
fn run(waiting: &Mutex<mpsc::Receiver<Job>>, stuck: &Stuck, stats: &Stats) {
    let mut engines = Engines::default();
    loop {
        let job = waiting.lock().recv();
        let Ok(Job { functions, messages, bytes_max, until, answer, state, place }) = job else {
            return;
        };
        let began = Instant::now();
        let mut transformed = if messages.is_empty() { engines.check(&functions, until) } else { Vec::new() };
        let mut bytes = 0;
        let mut messages = messages.into_iter();
        for message in messages.by_ref() {
            let one = engines.apply(&functions, message, until, stats);
            bytes += one.as_ref().map_or(0, |output| output.as_ref().map_or(0, Output::bytes));
            transformed.push(one);
            if bytes > bytes_max || began.elapsed() >= SLICE_TIME {
                break;
            }
        }
        let slice = Slice { transformed, bytes, rest: messages.collect(), ran: began.elapsed() };
        engines.leave_small();
        if state.compare_exchange(RUNNING, DONE, Ordering::AcqRel, Ordering::Acquire).is_err() {
            stuck.remove(&functions);
            place.forget();
            return;
        }
        drop(place);
        // The caller may no longer be waiting.
        drop(answer.send(slice));
    }
}

/// Engines of one thread, the most recently used last.
#[derive(Default)]
struct Engines(Vec<(Function, Engine)>);

impl Engines {
    fn check(&mut self, functions: &[Function], until: Instant) -> Vec<Transformed> {
        let checked = functions.iter().enumerate().map(|(i, function)| match Engine::new(function, until) {
            Ok(_) => Ok(None),
            Err(fault) => Err((i, fault)),
        });
        checked.collect()
    }

    fn apply(&mut self, functions: &[Function], input: Input, until: Instant, stats: &Stats) -> Transformed {
        let began = Instant::now();
        let transformed = self.transform(functions, input, until);
        stats.seconds.record(began.elapsed());
        let result = match &transformed {
            Ok(Some(_)) => 0,
            Ok(None) => 1,
            Err((_, Fault::Failed(_))) => 2,
            Err((_, Fault::TimedOut(_))) => TIMED_OUT,
        };
        stats.results[result].add(1);
        transformed
    }

    fn transform(&mut self, functions: &[Function], mut input: Input, until: Instant) -> Transformed {
        let mut last = None;
        for (i, function) in functions.iter().enumerate() {
            if let Some(Output { data, attributes }) = last.take() {
                input = Input { data: Bytes::from(data.into_bytes()), attributes, ..input };
            }
            match self.call(function, &input, until) {
                Ok(Some(output)) => last = Some(output),
                Ok(None) => return Ok(None),
                Err(fault) => return Err((i, fault)),
            }
        }
        Ok(last)
    }

    /// Calls a function. An engine in which a function failed is not used again.
    fn call(&mut self, function: &Function, input: &Input, until: Instant) -> Result<Option<Output>, Fault> {
        let (known, engine) = match self.0.iter().position(|(known, _)| known == function) {
            Some(at) => self.0.remove(at),
            None => (function.clone(), Engine::new(function, until)?),
        };
        let output = engine.call(input, until)?;
        if self.0.len() >= ENGINES_MAX {
            self.0.remove(0);
        }
        self.0.push((known, engine));
        Ok(output)
    }

    /// Drops engines with a large heap before the thread waits.
    fn leave_small(&mut self) {
        self.0.retain(|(_, engine)| engine.is_small());
    }
}
