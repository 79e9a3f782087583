//! Spans of traced records, until an exporter takes them.
//!
//! A record is traced if its producer says so in its context, or if the ratio of the configuration chooses it
//! ([`engine::trace`]). A broker without tracing has none of this: each hook reads one pointer.
//!
//! The queue of spans is bounded: if it is full, further spans are dropped and counted, and nothing waits for it. A
//! span is finished when it is put there, so none is lost halfway.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use engine::limits::{TRACE_COMMITS_MAX, TRACE_LEASES_MAX, TRACE_SPANS_MAX};
use engine::queue::{MessageId, QueueId, QueueName};
use engine::trace::{Carrier, Sampled, Sampler, SpanId, TraceId};
use engine::{Error, Offset, PartitionId, Record, RecordBatch, TopicId, TopicName};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::acting;
use crate::clock::Clock;
use crate::doors::Door;
use crate::metrics::{Counter, Exposition};

/// Number of queued spans from which an exporter is woken before its interval has elapsed.
const READY_SPANS: usize = 512;

/// Settings of a broker that traces records.
#[derive(Clone, Debug)]
pub struct TracingSettings {
    /// Share of the records without a context that are traced, from 0 to 1.
    pub ratio: f64,
    /// Headers that carry contexts, in addition to those of W3C Trace Context.
    pub carriers: &'static [Carrier],
}

/// Step of a record through the broker, which is a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// From the request of the producer to its response.
    Publish,
    /// From the append to the time at which the record is durable.
    Commit,
    /// From the append to the time at which a majority of the nodes of a cluster has the record, under this term.
    Replicate(u64),
    /// Delivery to a reader, a subscriber or a receiver.
    Deliver,
    /// Time for which a receiver holds a message.
    Lease(LeaseEnd),
    /// From the acknowledgement of a receiver to the time at which it is durable.
    Ack,
}

/// End of the lease of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseEnd {
    Acked,
    /// The receiver returned the message to the queue.
    Returned,
    Expired,
}

/// Record of a span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub topic: TopicName,
    pub partition: PartitionId,
    pub offset: Offset,
    /// Id of the message, as the clients of queues know it.
    pub message: MessageId,
    /// Queue that delivers the record; `None` for a publish, and for a delivery without a lease.
    pub queue: Option<QueueName>,
}

/// Finished span.
#[derive(Clone, Debug)]
pub struct Span {
    pub step: Step,
    pub trace: TraceId,
    pub id: SpanId,
    pub parent: Option<SpanId>,
    /// Span of the producer, whose context the record carries, if it is not the parent.
    pub link: Option<SpanId>,
    /// Value of the header `tracestate`.
    pub state: Option<Arc<str>>,
    pub place: Place,
    /// Door of the client; `None` if the broker itself acts.
    pub door: Option<Door>,
    /// Beginning and end, in microseconds since 1970.
    pub began_us: u64,
    pub ended_us: u64,
    /// Reason for which the step failed.
    pub error: Option<String>,
}

/// Partition whose records are examined.
#[derive(Clone, Copy)]
pub(crate) struct Source<'s> {
    pub topic: &'s TopicName,
    pub topic_id: TopicId,
    pub partition: PartitionId,
}

/// A record that is traced.
#[derive(Clone, Debug)]
pub(crate) struct Traced {
    sampled: Sampled,
    place: Place,
    door: Option<Door>,
}

/// Function that is called at the end of a commit, with its error if it failed.
pub(crate) type AtCommit = Box<dyn FnOnce(Option<&Error>) + Send>;

/// Identifies a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LeaseKey {
    pub queue: QueueId,
    pub partition: PartitionId,
    pub offset: Offset,
    pub lease: u64,
}

/// Lease of a traced message, whose span ends with it.
struct OpenLease {
    traced: Traced,
    id: SpanId,
    parent: SpanId,
    began_us: u64,
    deadline_us: u64,
}

/// Spans of a broker; nothing if it traces no records.
#[derive(Default)]
pub struct Traces {
    on: Option<Box<On>>,
}

struct On {
    clock: Clock,
    sampler: Sampler,
    queue: Mutex<VecDeque<Span>>,
    /// Notified when the queue has many spans.
    ready: Notify,
    leases: Mutex<HashMap<LeaseKey, OpenLease, foldhash::fast::RandomState>>,
    /// Number of traced records whose commit is awaited for their spans.
    commits: AtomicUsize,
    /// Random number from which the ids of spans are made, and the number of ids so far.
    seed: u64,
    ids: AtomicU64,
    finished: Counter,
    dropped: Counter,
    left_out: Counter,
    invalid: Counter,
    unread: Counter,
}

impl Traces {
    pub(crate) fn new(settings: Option<&TracingSettings>, clock: Clock) -> Self {
        let on = settings.map(|settings| {
            Box::new(On {
                clock,
                sampler: Sampler::new(settings.ratio, settings.carriers),
                queue: Mutex::default(),
                ready: Notify::new(),
                leases: Mutex::default(),
                commits: AtomicUsize::new(0),
                seed: RandomState::new().hash_one(clock.now_us()),
                ids: AtomicU64::new(0),
                finished: Counter::default(),
                dropped: Counter::default(),
                left_out: Counter::default(),
                invalid: Counter::default(),
                unread: Counter::default(),
            })
        });
        Self { on }
    }

    /// Returns `true` if records are traced.
    pub fn is_on(&self) -> bool {
        self.on.is_some()
    }

    /// Returns the current time in microseconds since 1970; `None` if no records are traced.
    #[inline]
    pub(crate) fn now_us(&self) -> Option<u64> {
        self.on.as_ref().map(|on| on.clock.now_us())
    }

    /// Returns up to `max` finished spans, the oldest first. Leases that have expired end here.
    pub fn take(&self, max: usize) -> Vec<Span> {
        let Some(on) = &self.on else { return Vec::new() };
        on.end_expired();
        let mut queue = on.queue.lock();
        let count = queue.len().min(max);
        queue.drain(..count).collect()
    }

    /// Waits until many spans are finished.
    pub async fn ready(&self) {
        match &self.on {
            Some(on) => on.ready.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Counts spans that were taken and will not be exported.
    pub fn note_lost(&self, spans: usize) {
        if let Some(on) = &self.on {
            on.dropped.add(spans as u64);
        }
    }

    /// Returns the traced records of a batch that a client publishes.
    pub(crate) fn published(&self, source: Source<'_>, batch: &RecordBatch) -> Vec<Traced> {
        let Some(on) = &self.on else { return Vec::new() };
        let decided = on.sampler.decide_batch(source.topic_id, source.partition, batch, 0);
        // Counted once per record, not with each of its deliveries.
        on.left_out.add(decided.left_out);
        on.invalid.add(decided.invalid);
        on.unread.add(u64::from(decided.is_unread));
        let door = if decided.sampled.is_empty() { None } else { acting::door() };
        decided.sampled.into_iter().map(|sampled| Traced::new(source, sampled, door)).collect()
    }

    /// Finishes the spans of a publish whose records are in the log since `appended_us`.
    pub(crate) fn finish_publish(&self, traced: &[Traced], times: PublishTimes, error: Option<&str>) {
        let Some(on) = &self.on else { return };
        let PublishTimes { began_us, appended_us, answered_us, committed_us, term } = times;
        for one in traced {
            let publish = one.sampled.publish;
            let span = |step, id, parent, began_us, ended_us: u64| Span {
                error: error.map(str::to_owned),
                ..one.span(step, id, parent, began_us, ended_us.max(began_us))
            };
            on.put(span(Step::Publish, publish, one.sampled.producer, began_us, answered_us.unwrap_or(appended_us)));
            if let Some(committed_us) = committed_us {
                let commit = on.next_id();
                on.put(span(Step::Commit, commit, Some(publish), appended_us, committed_us));
                if let Some(term) = term {
                    let step = Step::Replicate(term);
                    on.put(span(step, on.next_id(), Some(commit), appended_us, committed_us));
                }
            }
        }
    }

    /// Returns what finishes the spans of a publish once its commit has ended, with an error if it failed. Returns
    /// `None`, and drops the spans, if the commits of more than [`TRACE_COMMITS_MAX`] traced records would be awaited.
    /// `awaits_commit`: the producer waits for the commit too.
    pub(crate) fn at_commit(
        self: &Arc<Self>,
        traced: Vec<Traced>,
        times: PublishTimes,
        awaits_commit: bool,
    ) -> Option<AtCommit> {
        let on = self.on.as_ref()?;
        let records = traced.len();
        // Dropping it makes room again, also if there is none for it.
        let awaited = AwaitedCommit { traces: self.clone(), records };
        if on.commits.fetch_add(records, Ordering::Relaxed) + records > TRACE_COMMITS_MAX {
            on.dropped.add(records as u64);
            return None;
        }
        Some(Box::new(move |error| {
            let traces = &awaited.traces;
            let committed_us = traces.now_us();
            let answered_us = committed_us.filter(|_| awaits_commit);
            let error = error.map(|error| error.message.as_str());
            traces.finish_publish(&traced, PublishTimes { answered_us, committed_us, ..times }, error);
        }))
    }

    /// Notes that the records of a batch at or after an offset were delivered, after `began_us`.
    pub(crate) fn delivered(
        &self,
        source: Source<'_>,
        batch: &RecordBatch,
        from: Offset,
        door: Option<Door>,
        began_us: u64,
    ) {
        let Some(on) = &self.on else { return };
        let decided = on.sampler.decide_batch(source.topic_id, source.partition, batch, from);
        for sampled in decided.sampled {
            on.deliver(&Traced::new(source, sampled, door), began_us);
        }
    }

    /// Notes that messages of a batch were delivered under leases which end at `deadline_ms`: those for whose offsets
    /// `key_of` returns one.
    pub(crate) fn leased_of(
        &self,
        source: Source<'_>,
        batch: &RecordBatch,
        (queue, key_of): (&QueueName, &dyn Fn(Offset) -> Option<LeaseKey>),
        began_us: u64,
        deadline_ms: u64,
    ) {
        let Some(on) = &self.on else { return };
        let decided = on.sampler.decide_batch(source.topic_id, source.partition, batch, 0);
        for sampled in decided.sampled {
            if let Some(key) = key_of(sampled.offset) {
                let mut traced = Traced::new(source, sampled, acting::door());
                traced.place.queue = Some(queue.clone());
                on.lease(traced, key, began_us, deadline_ms);
            }
        }
    }

    /// Notes that a message was delivered under a lease which ends at `deadline_ms`.
    pub(crate) fn leased(
        &self,
        source: Source<'_>,
        record: &Record,
        (queue, message, key): (&QueueName, MessageId, LeaseKey),
        began_us: u64,
        deadline_ms: u64,
    ) {
        let Some(on) = &self.on else { return };
        let place = MessageId::at(source.topic_id, source.partition, record.offset);
        let Some(sampled) = on.sampler.decide_record(place, record).sampled else { return };
        let mut traced = Traced::new(source, sampled, acting::door());
        traced.place.queue = Some(queue.clone());
        traced.place.message = message;
        on.lease(traced, key, began_us, deadline_ms);
    }

    /// Notes another end of a lease.
    pub(crate) fn extended(&self, key: LeaseKey, deadline_ms: u64) {
        if let Some(on) = &self.on
            && let Some(lease) = on.leases.lock().get_mut(&key)
        {
            lease.deadline_us = deadline_ms.saturating_mul(1000);
        }
    }

    /// Finishes the span of a lease, and that of the acknowledgement that ends it, whose request began at `began_us`.
    pub(crate) fn lease_ended(&self, key: LeaseKey, end: LeaseEnd, began_us: u64) {
        let Some(on) = &self.on else { return };
        let Some(lease) = on.leases.lock().remove(&key) else { return };
        let now_us = on.clock.now_us();
        if end == LeaseEnd::Acked {
            let traced = Traced { door: acting::door(), ..lease.traced.clone() };
            on.put(traced.span(Step::Ack, on.next_id(), Some(lease.id), began_us, now_us.max(began_us)));
        }
        on.put(lease.finish(end, now_us));
    }

    pub(crate) fn expose(&self, out: &mut Exposition<'_>) -> fmt::Result {
        let Some(on) = &self.on else { return Ok(()) };
        out.counter("thalweg_trace_spans", "Finished spans of traced records", on.finished.get())?;
        out.counter(
            "thalweg_trace_spans_dropped",
            "Spans that were dropped: a limit was reached, or the collector refused them",
            on.dropped.get(),
        )?;
        out.gauge("thalweg_trace_spans_queued", "Spans that wait for their export", on.queue.lock().len() as u64)?;
        out.gauge("thalweg_trace_leases", "Traced messages that receivers hold", on.leases.lock().len() as u64)?;
        out.gauge(
            "thalweg_trace_commits",
            "Traced records whose commit is awaited",
            on.commits.load(Ordering::Relaxed) as u64,
        )?;
        out.counter(
            "thalweg_trace_records_left_out",
            "Traced records without spans, since their batch has too many of them",
            on.left_out.get(),
        )?;
        out.counter(
            "thalweg_trace_contexts_invalid",
            "Published records with a trace context that is not valid and was ignored",
            on.invalid.get(),
        )?;
        out.counter(
            "thalweg_trace_batches_unread",
            "Published batches that were not searched for trace contexts: they are compressed and large",
            on.unread.get(),
        )
    }
}

/// Times of a publish, in microseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PublishTimes {
    pub began_us: u64,
    pub appended_us: u64,
    /// Time of the response; that of the append if `None`.
    pub answered_us: Option<u64>,
    /// Time at which the records were durable; `None` in memory.
    pub committed_us: Option<u64>,
    /// Term of the leadership, in a cluster.
    pub term: Option<u64>,
}

/// Room of a publish whose commit is awaited.
struct AwaitedCommit {
    traces: Arc<Traces>,
    /// Number of its traced records.
    records: usize,
}

impl Drop for AwaitedCommit {
    fn drop(&mut self) {
        if let Some(on) = &self.traces.on {
            on.commits.fetch_sub(self.records, Ordering::Relaxed);
        }
    }
}

impl On {
    fn put(&self, span: Span) {
        let mut queue = self.queue.lock();
        if queue.len() >= TRACE_SPANS_MAX {
            drop(queue);
            self.dropped.add(1);
            return;
        }
        queue.push_back(span);
        let is_ready = queue.len() == READY_SPANS;
        drop(queue);
        self.finished.add(1);
        if is_ready {
            self.ready.notify_one();
        }
    }

    /// Finishes the span of a delivery, and returns its id.
    fn deliver(&self, traced: &Traced, began_us: u64) -> SpanId {
        let id = self.next_id();
        let now_us = self.clock.now_us();
        self.put(Span {
            link: traced.sampled.producer,
            ..traced.span(Step::Deliver, id, Some(traced.sampled.publish), began_us, now_us.max(began_us))
        });
        id
    }

    /// Finishes the span of a delivery, and begins that of the lease.
    fn lease(&self, traced: Traced, key: LeaseKey, began_us: u64, deadline_ms: u64) {
        let parent = self.deliver(&traced, began_us);
        let id = self.next_id();
        let (began_us, deadline_us) = (self.clock.now_us(), deadline_ms.saturating_mul(1000));
        let mut leases = self.leases.lock();
        if leases.len() < TRACE_LEASES_MAX {
            leases.insert(key, OpenLease { traced, id, parent, began_us, deadline_us });
        } else {
            drop(leases);
            self.dropped.add(1);
        }
    }

    fn end_expired(&self) {
        let now_us = self.clock.now_us();
        let mut leases = self.leases.lock();
        let expired: Vec<OpenLease> =
            leases.extract_if(|_, lease| lease.deadline_us <= now_us).map(|(_, lease)| lease).collect();
        drop(leases);
        for lease in expired {
            let deadline_us = lease.deadline_us;
            self.put(lease.finish(LeaseEnd::Expired, deadline_us));
        }
    }

    /// Returns a new id of a span.
    fn next_id(&self) -> SpanId {
        let number = self.ids.fetch_add(1, Ordering::Relaxed);
        let mixed = foldhash::fast::FixedState::with_seed(self.seed).hash_one(number);
        mixed.max(1).to_be_bytes()
    }
}

impl OpenLease {
    fn finish(self, end: LeaseEnd, ended_us: u64) -> Span {
        let Self { traced, id, parent, began_us, .. } = self;
        traced.span(Step::Lease(end), id, Some(parent), began_us, ended_us.max(began_us))
    }
}

impl Traced {
    fn new(source: Source<'_>, sampled: Sampled, door: Option<Door>) -> Self {
        let Source { topic, partition, .. } = source;
        let place =
            Place { topic: topic.clone(), partition, offset: sampled.offset, message: sampled.message, queue: None };
        Self { sampled, place, door }
    }

    fn span(&self, step: Step, id: SpanId, parent: Option<SpanId>, began_us: u64, ended_us: u64) -> Span {
        Span {
            step,
            trace: self.sampled.trace,
            id,
            parent,
            link: None,
            state: self.sampled.state.clone(),
            place: self.place.clone(),
            door: self.door,
            began_us,
            ended_us,
            error: None,
        }
    }
}
