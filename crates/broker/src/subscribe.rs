//! A subscription from its request to its end.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::ids::is_internal;
use engine::limits::{GROUP_NAME_BYTES_MAX, SUBSCRIBER_QUEUE_BATCHES_MAX, SUBSCRIPTIONS_MAX};
use engine::mesh::MeshMode;
use engine::{
    Delivery, Error, Feed, FeedLimits, Missing, Offset, Overflow, PartitionId, Pattern, Result, SourceId, Start,
    Storage, TopicName, TopicSettings,
};
use parking_lot::Mutex;

use crate::acting;
use crate::channels::{Listener, Place};
use crate::clock;
use crate::core::Core;
use crate::holdings::Hold;
use crate::partition::PartitionCell;
use crate::permit::{Permit, refused};
use crate::reader::Reader;
use crate::subscriber::{Direct, Next, Scope, Subscriber};
use crate::topic::Topic;

/// Request of a door for a subscription.
pub struct Subscribe {
    pub pattern: Pattern,
    /// Partition to read, or `None` for all.
    pub partition: Option<PartitionId>,
    pub start: Start,
    pub overflow: Overflow,
    /// Queue size in batches; `None` for the broker's default.
    pub queue_batches: Option<usize>,
    pub group: Option<String>,
    /// Bytes that may be delivered before the first grant.
    pub credit: u64,
    /// Behavior if the topic does not exist. A pattern always waits for topics.
    pub missing: Missing,
    /// `true` to subscribe to a channel: the subscription receives records published to the name without a topic, and
    /// the records of every topic that has this name at any time. It creates no topic.
    pub is_channel: bool,
    /// Topics and channels that the client may read.
    pub permit: Permit,
    pub origin: Origin,
    /// Count of the subscription for the quotas of its client. It ends with the subscription.
    pub hold: Option<Hold>,
    /// Connection that takes deliveries without waking a task.
    pub direct: Option<Box<dyn Direct>>,
}

/// Origin of a subscription. The connection and its thread determine its lane.
#[derive(Clone, Copy, Debug, Default)]
pub struct Origin {
    pub connection: u64,
    /// Index of the thread that owns the connection, in the order of the broker's threads.
    pub thread: Option<usize>,
    pub reader: Reader,
}

/// A partition that a subscription reads, and the offset at which it began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceStart {
    pub source: SourceId,
    pub topic: TopicName,
    pub partition: PartitionId,
    pub start: Offset,
    pub end: Offset,
}

/// An open subscription. Dropping it closes it.
pub struct Subscription {
    pub(crate) core: Arc<Core>,
    pub(crate) subscriber: Arc<Subscriber>,
    pub lane: usize,
    /// Partitions with which the subscription began, in the order of their sources, which are not always consecutive.
    pub starts: Vec<SourceStart>,
    is_pattern: bool,
    pub(crate) place: Place,
    /// Number of names that the pattern was compared with in one step.
    pub(crate) compared: usize,
    /// `true` if the last turn took more than one batch.
    had_company: bool,
}

impl Core {
    /// Opens a subscription. It waits only if a pattern matches many partitions, which are joined in slices.
    pub async fn subscribe(self: &Arc<Self>, mut request: Subscribe) -> Result<Subscription> {
        if self.metrics().subscribers.load(Ordering::Relaxed) >= SUBSCRIPTIONS_MAX {
            return Err(Error::busy(format!("subscription limit reached ({SUBSCRIPTIONS_MAX}): close one first")));
        }
        let is_wildcard = !matches!(request.pattern, Pattern::Topic(_));
        if is_wildcard && matches!(request.start, Start::Offset(_) | Start::Offsets(_)) {
            let message = "a subscription to a pattern starts at live, earliest or a time: an offset is valid for one \
                           topic only, so name that topic";
            return Err(Error::invalid(message));
        }
        if is_wildcard && request.partition.is_some() {
            return Err(Error::invalid("a subscription to a pattern reads all partitions; name one topic to choose"));
        }
        if request.group.as_ref().is_some_and(|name| name.is_empty() || name.len() > GROUP_NAME_BYTES_MAX) {
            return Err(Error::invalid(format!("the name of a queue group has 1 to {GROUP_NAME_BYTES_MAX} bytes")));
        }
        if request.group.is_some() && request.start != Start::Live {
            return Err(Error::invalid("a queue group starts live: its members share what is published from now on"));
        }
        if let Pattern::Topic(name) = &request.pattern {
            request.permit.check(name, request.is_channel)?;
            self.check_read_of_records(name.as_str())?;
        }
        if request.overflow == Overflow::Block && is_internal(request.pattern.as_str()) {
            return Err(Error::invalid("a subscription to an internal topic cannot block: the broker does not wait"));
        }
        if request.overflow == Overflow::Block {
            self.peers().admit_blocking()?;
        }
        let defaults = self.settings().subscriber_queue;
        let limits = FeedLimits {
            batches_max: request.queue_batches.unwrap_or(defaults.batches_max).clamp(1, SUBSCRIBER_QUEUE_BATCHES_MAX),
            bytes_max: defaults.bytes_max,
        };
        let overflow = match (request.overflow, &request.group) {
            // A member of a group cannot read the log again: the log also has the records for the other members.
            (Overflow::Replay, Some(_)) => Overflow::DropOld,
            (overflow, _) => overflow,
        };
        let feed =
            Feed::new(limits, overflow, i64::try_from(request.credit).unwrap_or(i64::MAX), request.group.is_some());
        let id = self.next_subscriber_id();
        let lane = self.lanes().choose(id, request.origin.connection, request.origin.thread);
        let subscriber = Arc::new(Subscriber::new(
            id,
            Scope {
                is_channel: is_wildcard || request.is_channel,
                reuses_sources: request.is_channel,
                is_whole: request.partition.is_none(),
                reader: request.origin.reader,
                door: acting::door(),
                group: request.group.clone(),
                permit: request.permit.clone(),
                hold: Mutex::new(request.hold.take()),
            },
            feed,
            request.direct.take(),
            self.lanes().load(lane),
            self.settings(),
            (self.metrics(), self.traces()),
        ));
        self.limited.note(&subscriber);
        let mut subscription = Subscription {
            core: self.clone(),
            subscriber,
            lane,
            starts: Vec::new(),
            is_pattern: is_wildcard,
            place: Place::Topic,
            compared: 0,
            had_company: false,
        };
        match request.pattern.clone() {
            Pattern::Topic(name) if request.is_channel => subscription.wait_for(name, &request)?,
            Pattern::Topic(name) => subscription.join_topic(&name, request.missing, &request)?,
            pattern @ (Pattern::Wildcard(_) | Pattern::Rule(_)) => {
                subscription = subscription.join_pattern(pattern, request.start, request.group).await?;
            }
        }
        // Permissions may have changed before the partitions were joined.
        if request.permit.is_limited() {
            self.end_if_refused(&subscription.subscriber);
        }
        self.mesh.note_change();
        Ok(subscription)
    }

    /// Ends the subscriptions that read a topic or a channel which they may not read any more.
    pub(crate) fn end_refused_subscriptions(&self) {
        self.limited.all().iter().for_each(|subscriber| self.end_if_refused(subscriber));
    }

    fn end_if_refused(&self, subscriber: &Subscriber) {
        let is_channel = |name: &TopicName| self.topics.read().get(name.as_str()).is_none();
        let names = subscriber.topic_names();
        let lost = names.iter().find(|name| !subscriber.scope.permit.allows(name, is_channel(name)));
        if let Some(name) = lost {
            subscriber.end(refused(name));
        }
    }

    /// Runs a subscription's drain on its lane.
    pub async fn run_on_lane(&self, lane: usize, drain: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        self.lanes().run(lane, drain).await
    }
}

impl Subscription {
    fn join_topic(&mut self, name: &TopicName, missing: Missing, request: &Subscribe) -> Result<()> {
        if name.is_inbox() {
            let storage = Storage::Memory;
            let defaults = self.core.topic_defaults(storage);
            let settings = TopicSettings { partitions: 1, storage, mesh: MeshMode::Off, ..defaults };
            drop(self.core.create(name.clone(), settings)?);
        } else {
            match missing {
                Missing::Create => drop(self.core.topic_or_create(name.as_str())?),
                // No request creates an internal topic.
                Missing::Wait if !name.is_internal() => return self.wait_for(name.clone(), request),
                Missing::Refuse | Missing::Wait => {}
            }
        }
        let core = self.core.clone();
        let _control = core.listeners.lock();
        // The topic may have grown since.
        let topic = core.topic(name.as_str())?;
        self.join_partitions(&topic, request)
    }

    /// Reads a topic that exists, or waits for one that does not. A channel waits for the next topic in both cases.
    fn wait_for(&mut self, name: TopicName, request: &Subscribe) -> Result<()> {
        let core = self.core.clone();
        let mut listeners = core.listeners.lock();
        let topic = core.topics.read().get(name.as_str()).cloned();
        if let Some(topic) = &topic {
            self.join_partitions(topic, request)?;
        }
        if request.is_channel || topic.is_none() {
            let group = request.group.clone();
            let subscriber = self.subscriber.clone();
            self.place = listeners.add_named(name, Listener { group, partition: request.partition, subscriber })?;
        }
        Ok(())
    }

    fn join_partitions(&mut self, topic: &Topic, request: &Subscribe) -> Result<()> {
        let group = request.group.as_deref();
        request.permit.check(&topic.name, false)?;
        match request.partition {
            Some(partition) => self.join(&topic.partition(partition)?, &request.start, group),
            None => topic.partitions().iter().try_for_each(|cell| self.join(cell, &request.start, group)),
        }
    }

    pub(crate) fn join(&mut self, cell: &Arc<PartitionCell>, start: &Start, group: Option<&str>) -> Result<()> {
        if let Some((source, start, end)) = cell.join(&self.subscriber, start, cell, group)? {
            self.starts.push(SourceStart { source, topic: cell.topic.clone(), partition: cell.id, start, end });
        }
        Ok(())
    }

    /// Returns `true` if deliveries have to name their topics.
    pub fn is_pattern(&self) -> bool {
        self.is_pattern
    }

    /// Returns the number of topics and channels that the pattern was compared with in one step, in which no other task
    /// of the thread ran.
    pub fn compared(&self) -> usize {
        self.compared
    }

    pub fn handle(&self) -> SubscriptionHandle {
        SubscriptionHandle { core: self.core.clone(), subscriber: self.subscriber.clone(), place: self.place.clone() }
    }

    /// Waits for the next deliveries, at least one, and puts into `out` as many as the broker's batch limits allow. The
    /// end of the subscription is returned as its error.
    pub async fn next(&mut self, out: &mut Vec<Delivery>) -> Result<()> {
        out.clear();
        loop {
            match self.subscriber.next(out) {
                Next::Deliveries => {
                    self.wait_for_company(out).await;
                    return Ok(());
                }
                Next::Behind(cell, source, from) => {
                    cell.backfill(&self.subscriber, source, from).await;
                    // History comes in long runs: other tasks get the thread in between.
                    tokio::task::consume_budget().await;
                }
                Next::Wait => self.subscriber.ready().await,
                Next::Ended(error) => return Err(error),
            }
        }
    }

    /// Waits before the next deliveries, or until the subscription ends. Its queue fills in the meantime.
    pub async fn pause(&self, wait: impl Future<Output = ()>) {
        let ended = async {
            while !self.subscriber.has_ended() {
                self.subscriber.ready().await;
            }
        };
        tokio::select! {
            () = wait => {}
            () = ended => {}
        }
    }

    /// Delays a turn to collect more batches. A lone batch is delivered immediately; after a turn with several batches
    /// a short wait pays off, as more are likely to follow.
    async fn wait_for_company(&mut self, out: &mut Vec<Delivery>) {
        let settings = self.core.settings().clone();
        let records = |out: &[Delivery]| -> usize {
            out.iter().map(|d| if let Delivery::Batch { batch, .. } = d { batch.count() as usize } else { 0 }).sum()
        };
        let bytes = |out: &[Delivery]| -> usize {
            out.iter().map(|d| if let Delivery::Batch { batch, .. } = d { batch.len() } else { 0 }).sum()
        };
        let is_full = records(out) >= settings.event_batch_max_events || bytes(out) >= settings.event_batch_max_bytes;
        if self.had_company && !is_full && !settings.event_batch_max_delay.is_zero() {
            clock::delay(settings.event_batch_max_delay).await;
            self.subscriber.take_more(out);
        }
        self.had_company = out.len() > 1;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.handle().close();
    }
}

/// Handle by which a door controls a subscription that is drained elsewhere.
#[derive(Clone)]
pub struct SubscriptionHandle {
    core: Arc<Core>,
    subscriber: Arc<Subscriber>,
    place: Place,
}

impl SubscriptionHandle {
    pub fn add_credit(&self, bytes: u64) {
        self.subscriber.add_credit(bytes);
    }

    /// Ends the subscription: its drain receives this error after the queued deliveries.
    pub fn end(&self, error: Error) {
        self.subscriber.end(error);
    }

    /// Closes the subscription: ends it and removes it from its partitions, so that no more batches are offered to it.
    pub fn close(&self) {
        if self.place != Place::Topic {
            self.core.listeners.lock().remove(&self.place);
        }
        self.subscriber.end(Error::not_found("the subscription was closed"));
        self.subscriber.release_hold();
        if self.subscriber.begins_to_leave() {
            self.core.leave_all(&self.subscriber);
            self.core.mesh.note_change();
        }
    }

    /// Returns the topic and the partition of a source.
    pub fn source(&self, source: SourceId) -> (TopicName, PartitionId) {
        self.subscriber.source_name(source)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a request for a live subscription to a topic that exists, or to a pattern.
    pub(crate) fn live(pattern: &str) -> Subscribe {
        Subscribe {
            pattern: Pattern::parse(pattern).expect("a pattern"),
            partition: None,
            start: Start::Live,
            overflow: Overflow::Replay,
            queue_batches: None,
            group: None,
            credit: u64::MAX,
            missing: Missing::Refuse,
            is_channel: false,
            permit: Permit::ALL,
            origin: Origin::default(),
            hold: None,
            direct: None,
        }
    }
}
