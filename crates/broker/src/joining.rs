//! Subscriptions of patterns that match many partitions. These are joined, and left, in slices, between which other
//! tasks get the locks and the thread.

use std::ops::ControlFlow;
use std::sync::Arc;

use engine::fanout::Member;
use engine::{Error, ErrorKind, Fanout, Pattern, Result, Start, TopicName};
use tokio::runtime::Handle;
use tokio::task::{JoinSet, spawn_blocking, yield_now};

use crate::channels::Listener;
use crate::core::Core;
use crate::subscribe::Subscription;
use crate::subscriber::Subscriber;
use crate::turns::{JOINED_AT_ONCE, Pending};

/// Partitions that are joined, or left, before other tasks get their turn: about 50 us.
const JOINED_PER_TURN: usize = 64;

/// Names that patterns are compared with before other tasks get their turn: some milliseconds. A caller that subscribes
/// to several patterns counts them by [`Subscription::compared`], and yields.
pub const COMPARED_PER_TURN: usize = 16_384;

impl Core {
    /// Returns `true` if patterns are matched and joined in slices, because the broker has many partitions.
    pub fn joins_in_slices(&self) -> bool {
        self.partition_count() > JOINED_AT_ONCE
    }

    /// Returns `true` if subscriptions to this many patterns may take more than one turn of the thread.
    pub fn subscribes_in_turns(&self, patterns: usize) -> bool {
        let names = || self.topic_count() + self.listeners.lock().channel_count();
        self.joins_in_slices() || patterns > 1 && patterns.saturating_mul(names()) >= COMPARED_PER_TURN
    }

    /// Removes a subscriber that has ended from its partitions, in slices if they are many.
    pub(crate) fn leave_all(self: &Arc<Self>, subscriber: &Arc<Subscriber>) {
        let mut from = 0;
        if subscriber.source_count() > JOINED_AT_ONCE
            && let Ok(runtime) = Handle::try_current()
        {
            let core = self.clone();
            let subscriber = subscriber.clone();
            runtime.spawn(async move {
                // One subscriber at a time: each of many would have a slice before other tasks get their turn. The
                // semaphore is never closed.
                let _turn = core.joining.leaving.acquire().await.ok();
                while core.leave_some(&subscriber, &mut from).is_continue() {
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
                self.listeners.lock().close_unused(self.log_budget(), &cell);
            }
            if cell.topic.is_inbox() && cell.extent().subscribers == 0 {
                // An inbox lives as long as its subscriber; another task may have removed it already.
                self.remove(cell.topic.as_str()).map(drop).unwrap_or_default();
            }
        }
        ControlFlow::Continue(())
    }

    /// Returns the names of all topics that match a pattern. The search runs on a thread that serves no connection.
    async fn names_matching(self: &Arc<Self>, pattern: &Pattern) -> Result<Vec<TopicName>> {
        let core = self.clone();
        let pattern = pattern.clone();
        let names = spawn_blocking(move || {
            let mut names: Vec<TopicName> = core.topics.read().values().map(|topic| topic.name.clone()).collect();
            names.retain(|name| !name.is_hidden() && pattern.matches(name));
            names
        });
        names.await.map_err(|error| {
            let message = format!("the search for topics was interrupted ({error}): reconnect and subscribe again");
            Error::new(ErrorKind::ShuttingDown, message)
        })
    }
}

/// Ends the subscriptions of a deleted topic, and takes its partitions from those of patterns, in slices if they are
/// many. `readers` has the subscribers of each partition.
pub(crate) fn lose_all(readers: Vec<Fanout<Arc<Subscriber>>>, error: Error) {
    let lose = move |member: &Member<Arc<Subscriber>>| member.handle.lose_source(member.source, error.clone());
    if readers.iter().map(|of_partition| of_partition.members().count()).sum::<usize>() <= JOINED_AT_ONCE {
        readers.iter().flat_map(Fanout::members).for_each(lose);
    } else if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(async move {
            for (done, member) in readers.iter().flat_map(Fanout::members).enumerate() {
                lose(member);
                if done % JOINED_PER_TURN == JOINED_PER_TURN - 1 {
                    yield_now().await;
                }
            }
        });
    } else {
        readers.iter().flat_map(Fanout::members).for_each(lose);
    }
}

impl Subscription {
    pub(crate) async fn join_pattern(mut self, pattern: Pattern, start: Start, group: Option<String>) -> Result<Self> {
        let core = self.core.clone();
        if core.joins_in_slices() {
            self.subscriber.hold_back();
            // As a separate task it completes, and releases its turn, whatever else its connection does. If the caller
            // is dropped, the task is aborted.
            let mut task = JoinSet::new();
            task.spawn(async move { self.join_in_slices(pattern, &start, group).await.map(|()| self) });
            let ended = || Err(Error::new(ErrorKind::ShuttingDown, "the broker is shutting down"));
            return task.join_next().await.and_then(std::result::Result::ok).unwrap_or_else(ended);
        }
        let mut listeners = core.listeners.lock();
        let permit = self.subscriber.scope.permit.clone();
        for topic in core.topics_matching(&pattern).iter().filter(|topic| permit.allows(&topic.name, false)) {
            for cell in topic.partitions() {
                self.join(cell, &start, group.as_deref())?;
            }
        }
        let subscriber = self.subscriber.clone();
        let (place, channels) = listeners.add_pattern(pattern, Listener { group, partition: None, subscriber })?;
        self.place = place;
        self.compared = channels + core.topic_count();
        drop(listeners);
        Ok(self)
    }

    /// Joins the topics of a pattern in slices. Topics created after the first step are joined as for every listener;
    /// the existing ones are joined one after the other. No subscriber reads a partition twice.
    async fn join_in_slices(&mut self, pattern: Pattern, start: &Start, group: Option<String>) -> Result<()> {
        let core = self.core.clone();
        let _pending = Pending::count(&core.joining);
        // The semaphore is never closed.
        let _turn = core.joining.turns.acquire().await.ok();
        let listener = Listener { group: group.clone(), partition: None, subscriber: self.subscriber.clone() };
        (self.place, _) = core.listeners.lock().add_pattern(pattern.clone(), listener)?;
        let mut left = JOINED_PER_TURN;
        let permit = self.subscriber.scope.permit.clone();
        for name in core.names_matching(&pattern).await? {
            if !permit.allows(&name, false) {
                continue;
            }
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

    /// Joins up to `max` partitions of a topic from partition `from` on, if the topic still exists. Returns the next
    /// partition to join, if the topic has more, and the number of partitions that may still be joined in this slice.
    fn join_some(
        &mut self,
        name: &TopicName,
        from: usize,
        max: usize,
        start: &Start,
        group: Option<&str>,
    ) -> Result<(Option<usize>, usize)> {
        let core = self.core.clone();
        // The topic cannot grow while the listeners are locked; subscribers of its first partition get later
        // partitions.
        let _control = core.listeners.lock();
        let topic = core.topics.read().get(name.as_str()).cloned();
        let cells = topic.as_ref().and_then(|topic| topic.partitions().get(from..)).unwrap_or_default();
        for cell in cells.iter().take(max) {
            self.join(cell, start, group)?;
        }
        Ok(((cells.len() > max).then_some(from + max), max - cells.len().min(max)))
    }
}

#[cfg(test)]
mod tests {
    use engine::TopicSettings;

    use super::*;
    use crate::broker::Broker;
    use crate::settings::Settings;
    use crate::subscribe::tests::live;

    const PARTITIONS: usize = 1024;
    const SUBSCRIBERS: usize = 8;

    /// Starts a broker with several subscribers of one topic with many partitions.
    async fn start() -> (Arc<Broker>, Vec<Subscription>) {
        let broker = Broker::start(Settings::default(), &[Handle::current()]).expect("starts");
        let settings = TopicSettings { partitions: PARTITIONS as u32, ..TopicSettings::default() };
        broker.create_topic("t", settings).await.expect("created");
        let mut all = Vec::new();
        for _ in 0..SUBSCRIBERS {
            all.push(broker.subscribe(live("t")).await.expect("subscribed"));
        }
        (broker, all)
    }

    /// Many subscribers that leave together take no more of a turn than one of them.
    #[tokio::test]
    async fn subscribers_of_many_partitions_leave_one_after_the_other() {
        let (broker, all) = start().await;
        let topic = broker.existing_topic("t").expect("exists");
        let members = || topic.partitions().iter().map(|cell| cell.extent().subscribers).sum::<usize>();
        let mut before = members();
        assert_eq!(before, SUBSCRIBERS * PARTITIONS);
        drop(all);
        while before > 0 {
            yield_now().await;
            let left = members();
            assert!(before - left <= JOINED_PER_TURN, "{} left in one turn", before - left);
            before = left;
        }
    }

    /// The subscriptions of a deleted topic lose its partitions in slices.
    #[tokio::test]
    async fn other_tasks_run_while_many_subscribers_lose_a_topic() {
        let (broker, mut all) = start().await;
        broker.delete_topic("t").await.expect("deleted");
        let has = |all: &[Subscription]| all.iter().map(|one| one.subscriber.source_count()).sum::<usize>();
        let mut before = has(&all);
        assert!(before > SUBSCRIBERS * PARTITIONS / 2, "{before} are left after the first slices");
        while before > 0 {
            yield_now().await;
            let left = has(&all);
            assert!(before - left <= JOINED_PER_TURN, "{} were lost in one turn", before - left);
            before = left;
        }
        for one in &mut all {
            let end = one.next(&mut Vec::new()).await.expect_err("the topic is deleted");
            assert_eq!(end.kind, ErrorKind::NotFound);
        }
    }
}
