//! Subscriptions of patterns that mean many partitions: those are joined, and left, in slices, between which others
//! have the locks and the thread.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::{Error, ErrorKind, Pattern, Result, Start, TopicName};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, spawn_blocking, yield_now};

use crate::broker::Broker;
use crate::channels::{Listener, Place};
use crate::metrics::Exposition;
use crate::subscribe::Subscription;
use crate::subscriber::Subscriber;

/// Partitions up to which a broker has a pattern join its topics in one step, and a subscriber leaves them so.
pub(crate) const JOINED_AT_ONCE: usize = 512;
/// Partitions that are joined, or left, before others have their turn: some 50 us.
const JOINED_PER_TURN: usize = 64;

/// The turns of those who join many partitions: one subscription at a time, so that the others of a thread wait for one
/// slice however many subscribe. The rest waits in the order in which it came, each with a request of its client.
pub(crate) struct Joining {
    turns: Semaphore,
    /// Subscriptions that join partitions or wait for their turn.
    pending: AtomicUsize,
}

impl Default for Joining {
    fn default() -> Self {
        Self { turns: Semaphore::new(1), pending: AtomicUsize::new(0) }
    }
}

impl Joining {
    pub(crate) fn expose(&self, out: &mut Exposition<'_>) -> std::fmt::Result {
        out.gauge(
            "thalweg_subscriptions_joining",
            "Subscriptions of patterns that are joining many topics, or wait for their turn",
            self.pending.load(Ordering::Relaxed) as u64,
        )
    }
}

/// A subscription that joins or waits, as it is counted.
struct Pending<'b>(&'b Joining);

impl<'b> Pending<'b> {
    fn count(joining: &'b Joining) -> Self {
        joining.pending.fetch_add(1, Ordering::Relaxed);
        Self(joining)
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Broker {
    /// Whether a pattern is matched and its topics are joined in slices, because the broker has many.
    pub fn joins_in_slices(&self) -> bool {
        self.partition_count() > JOINED_AT_ONCE
    }

    /// Has a subscriber that has ended leave its partitions, in slices if they are many.
    pub(crate) fn leave_all(self: &Arc<Self>, subscriber: &Arc<Subscriber>) {
        let mut from = 0;
        if subscriber.source_count() > JOINED_AT_ONCE
            && let Ok(runtime) = Handle::try_current()
        {
            let (broker, subscriber) = (self.clone(), subscriber.clone());
            runtime.spawn(async move {
                while broker.leave_some(&subscriber, &mut from).is_continue() {
                    yield_now().await;
                }
            });
            return;
        }
        while self.leave_some(subscriber, &mut from).is_continue() {}
    }

    fn leave_some(&self, subscriber: &Arc<Subscriber>, from: &mut usize) -> ControlFlow<()> {
        let Some(cells) = subscriber.sources(*from, JOINED_PER_TURN) else {
            return ControlFlow::Break(());
        };
        *from += JOINED_PER_TURN;
        for cell in cells {
            cell.leave(subscriber);
            if subscriber.scope.is_channel {
                self.close_channel(&cell);
            }
            if cell.topic.is_inbox() && cell.extent().subscribers == 0 {
                // An inbox lives as long as its subscriber; somebody else may have removed it already.
                self.remove(cell.topic.as_str()).map(drop).unwrap_or_default();
            }
        }
        ControlFlow::Continue(())
    }

    /// The names of all topics that a pattern means. Found by a thread that serves no connection.
    async fn names_matching(self: &Arc<Self>, pattern: &Pattern) -> Result<Vec<TopicName>> {
        let (broker, pattern) = (self.clone(), pattern.clone());
        let names = spawn_blocking(move || {
            let mut names: Vec<TopicName> = broker.topics.read().values().map(|topic| topic.name.clone()).collect();
            names.retain(|name| !name.is_hidden() && pattern.matches(name));
            names
        });
        names.await.map_err(|error| Error::new(ErrorKind::ShuttingDown, format!("the topics were not found: {error}")))
    }
}

impl Subscription {
    pub(crate) async fn join_pattern(mut self, pattern: Pattern, start: Start, group: Option<String>) -> Result<Self> {
        let broker = self.broker.clone();
        if broker.joins_in_slices() {
            self.subscriber.hold_back();
            // As a task it comes to its end, and so does its turn, whatever else its connection does. With who asked
            // for it it ends.
            let mut task = JoinSet::new();
            task.spawn(async move { self.join_in_slices(pattern, &start, group).await.map(|()| self) });
            let ended = || Err(Error::new(ErrorKind::ShuttingDown, "the broker is shutting down"));
            return task.join_next().await.and_then(std::result::Result::ok).unwrap_or_else(ended);
        }
        let mut listeners = broker.listeners.lock();
        for topic in broker.topics_matching(&pattern) {
            for cell in topic.partitions() {
                self.join(cell, &start, group.as_deref())?;
            }
        }
        let subscriber = self.subscriber.clone();
        listeners.add_pattern(pattern, Listener { group, partition: None, subscriber })?;
        self.place = Place::Pattern;
        drop(listeners);
        Ok(self)
    }

    /// Topics that are created from its first step on come to it as to every listener, those from before one after the
    /// other: no subscriber reads a partition twice.
    async fn join_in_slices(&mut self, pattern: Pattern, start: &Start, group: Option<String>) -> Result<()> {
        let broker = self.broker.clone();
        let _pending = Pending::count(&broker.joining);
        // It is never closed.
        let _turn = broker.joining.turns.acquire().await.ok();
        let listener = Listener { group: group.clone(), partition: None, subscriber: self.subscriber.clone() };
        broker.listeners.lock().add_pattern(pattern.clone(), listener)?;
        self.place = Place::Pattern;
        let mut left = JOINED_PER_TURN;
        for name in broker.names_matching(&pattern).await? {
            let mut next = Some(0);
            while let Some(from) = next {
                (next, left) = self.join_some(&name, from, left, start, group.as_deref())?;
                if left == 0 {
                    left = JOINED_PER_TURN;
                    yield_now().await;
                }
            }
            if self.subscriber.has_ended() {
                break;
            }
        }
        Ok(())
    }

    /// Joins up to `max` partitions of a topic, from one on, if the topic is still there. Returns where the next ones
    /// begin, if it has more, and how many may still be joined in this slice.
    fn join_some(
        &mut self,
        name: &TopicName,
        from: usize,
        max: usize,
        start: &Start,
        group: Option<&str>,
    ) -> Result<(Option<usize>, usize)> {
        let broker = self.broker.clone();
        // While this is locked it does not grow: new partitions come to whoever reads the first one.
        let _control = broker.listeners.lock();
        let topic = broker.topics.read().get(name.as_str()).cloned();
        let cells = topic.as_ref().and_then(|topic| topic.partitions().get(from..)).unwrap_or_default();
        for cell in cells.iter().take(max) {
            self.join(cell, start, group)?;
        }
        Ok(((cells.len() > max).then_some(from + max), max - cells.len().min(max)))
    }
}
