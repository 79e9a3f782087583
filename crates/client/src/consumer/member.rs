//! Membership in a group: a task that stays in touch with the broker, and what it and the consumer tell each other.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine::groups::Assignor;
use engine::{Error, ErrorKind, Offset, Result, RetryClass, TopicPartition};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use wire::groups::{Heartbeat, OffsetCommit, Step};
use wire::{GroupRequest, GroupResponse, Response};

use crate::backoff::Backoff;
use crate::groups::{self, by_topic, new_offset, partitions_of};
use crate::link::unexpected;
use crate::pool::is_transient;
use crate::session::Session;

/// Heartbeats are answered so many times in a session, if not sooner.
const BEATS_PER_SESSION: u32 = 3;

/// What a member joins with.
#[derive(Clone)]
pub(super) struct Terms {
    pub group: String,
    pub instance: String,
    pub topics: Vec<String>,
    pub assignor: Assignor,
    pub session_timeout: Duration,
    pub rebalance_timeout: Duration,
}

/// A membership. Dropping it leaves the group in the background.
pub(super) struct Member {
    pub link: Arc<Link>,
    /// Its end tells the task to leave.
    leave: Option<oneshot::Sender<()>>,
    task: Option<JoinHandle<Result<()>>>,
}

/// What the task and the consumer share.
pub(super) struct Link {
    session: Arc<Session>,
    terms: Terms,
    id: String,
    state: Mutex<State>,
    /// That of `state`, to be looked at for each record.
    version: AtomicU64,
    /// For the consumer: there is something to follow.
    pub changed: Notify,
    /// For the task: what the consumer reads has changed.
    owned_changed: Notify,
}

#[derive(Default)]
struct State {
    epoch: u32,
    /// Counts memberships: the broker may end one, and then what was owned is lost.
    generation: u64,
    /// All that the consumer may read.
    assignment: BTreeSet<TopicPartition>,
    /// What it reads.
    owned: BTreeSet<TopicPartition>,
    /// Rises with each change of `owned`.
    owned_version: u64,
    /// Why there is no membership any more.
    failed: Option<Error>,
}

/// What the consumer has to be like.
pub(super) struct View {
    pub version: u64,
    pub generation: u64,
    pub assignment: BTreeSet<TopicPartition>,
}

impl Member {
    /// Joins. The first assignment is there when this returns.
    pub(super) async fn join(session: Arc<Session>, terms: Terms) -> Result<Self> {
        // A new hasher is keyed at random, and that is all the randomness that is needed here.
        let random = RandomState::new();
        let id = format!("{:016x}{:016x}", random.hash_one(0), random.hash_one(1));
        let link = Arc::new(Link {
            session,
            terms,
            id,
            state: Mutex::default(),
            version: AtomicU64::new(0),
            changed: Notify::new(),
            owned_changed: Notify::new(),
        });
        let (leave, told_to_leave) = oneshot::channel();
        let (joined, has_joined) = oneshot::channel();
        let task = tokio::spawn(link.clone().live(joined, told_to_leave));
        // Whoever waits may go before the answer comes: this is dropped then, and leaves.
        let member = Self { link, leave: Some(leave), task: Some(task) };
        match has_joined.await {
            Ok(joined) => joined.map(|()| member),
            Err(_) => member.leave().await.and(Err(Error::new(ErrorKind::Internal, "the membership did not begin"))),
        }
    }

    /// Leaves, and waits until the broker knows.
    pub(super) async fn leave(mut self) -> Result<()> {
        drop(self.leave.take());
        match self.task.take() {
            Some(task) => task.await.unwrap_or_else(|panic| {
                Err(Error::new(ErrorKind::Internal, format!("the task of the membership failed: {panic}")))
            }),
            None => Ok(()),
        }
    }
}

impl Link {
    /// Rises with each assignment and each loss.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub(super) fn group(&self) -> &str {
        &self.terms.group
    }

    pub(super) fn view(&self) -> Result<View> {
        let state = self.state.lock();
        match &state.failed {
            Some(error) => Err(error.clone()),
            None => {
                Ok(View { version: self.version(), generation: state.generation, assignment: state.assignment.clone() })
            }
        }
    }

    /// What the consumer reads from now on, unless that membership is over.
    pub(super) fn own(&self, generation: u64, owned: BTreeSet<TopicPartition>) {
        let mut state = self.state.lock();
        if state.generation == generation && state.owned != owned {
            state.owned = owned;
            state.owned_version += 1;
            self.owned_changed.notify_one();
        }
    }

    /// Commits as this member what it read in this membership. A later one may have begun elsewhere.
    pub(super) async fn commit(&self, generation: u64, offsets: &[(TopicPartition, Offset, String)]) -> Result<()> {
        loop {
            let epoch = self.epoch_of(generation)?;
            let new = offsets.iter().map(|(at, offset, metadata)| (at, new_offset(at, *offset, metadata)));
            let commit = OffsetCommit {
                group: self.terms.group.clone(),
                member: self.id.clone(),
                instance: self.terms.instance.clone(),
                epoch,
                offsets: by_topic(new),
            };
            let sent = groups::commit(&self.session, commit).await;
            let is_fenced = sent.as_ref().is_err_and(|error| error.kind == ErrorKind::Fenced);
            // A heartbeat with a later epoch has overtaken it.
            if !(is_fenced && self.epoch_of(generation)? != epoch) {
                return sent;
            }
        }
    }

    /// The epoch of a membership, unless that is over.
    fn epoch_of(&self, generation: u64) -> Result<u32> {
        let state = self.state.lock();
        match state.generation == generation {
            true => Ok(state.epoch),
            false => Err(Error::new(
                ErrorKind::Fenced,
                "the broker has put this consumer out; what it read before is not committed and comes again",
            )),
        }
    }

    fn update(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        change(&mut state);
        self.version.fetch_add(1, Ordering::Release);
        self.changed.notify_one();
    }

    /// Joins, stays until it is told to leave, and leaves.
    async fn live(
        self: Arc<Self>,
        joined: oneshot::Sender<Result<()>>,
        told_to_leave: oneshot::Receiver<()>,
    ) -> Result<()> {
        // It waits for the answer in any case: a leave could overtake the join.
        let result = self.join().await;
        let failed = result.as_ref().err().cloned();
        // Who waited for it may be gone, and is about to tell it to leave then.
        joined.send(result).unwrap_or_default();
        match failed {
            None => self.stay(told_to_leave).await,
            Some(error) if error.retry_class() == RetryClass::OutcomeUnknown => self.depart().await,
            Some(error) => Err(error),
        }
    }

    /// Heartbeats until it is told to leave, and then leaves.
    async fn stay(&self, told_to_leave: oneshot::Receiver<()>) -> Result<()> {
        tokio::select! {
            biased;
            // An error is the end of the sender, which tells the same.
            _ = told_to_leave => {}
            error = self.beat() => {
                self.update(|state| state.failed = Some(error.clone()));
                return Err(error);
            }
        }
        self.depart().await
    }

    /// A static member only steps away.
    async fn depart(&self) -> Result<()> {
        let step = if self.terms.instance.is_empty() { Step::Leave } else { Step::Away };
        self.say(step, Duration::ZERO).await.map(drop)
    }

    /// Heartbeats for as long as it goes well.
    async fn beat(&self) -> Error {
        // What the broker was last told of what is read; nothing on a new connection.
        let mut told = None;
        let mut trouble = Trouble::default();
        loop {
            let (epoch, version, owned) = {
                let state = self.state.lock();
                (state.epoch, state.owned_version, state.owned.clone())
            };
            let owned = (told != Some(version)).then(|| by_topic(owned.iter().map(|at| (at, at.partition))));
            let wait = if owned.is_some() { Duration::ZERO } else { self.terms.session_timeout / BEATS_PER_SESSION };
            let (is_waiting, begin) = (owned.is_none(), tokio::time::Instant::now());
            let step = Step::Alive { epoch, wait_ms: wait.as_millis() as u32, owned, topics: None };
            let answer = tokio::select! {
                answer = self.say(step, wait) => answer,
                // It is said at once. The answer that is not waited for may have been news, so all is asked for again.
                () = self.owned_changed.notified(), if is_waiting => {
                    told = None;
                    continue;
                }
            };
            let result = match answer {
                Ok(turn) => {
                    trouble = Trouble::default();
                    told = Some(version);
                    let is_early = is_waiting && turn.1.is_none();
                    self.hear(turn);
                    if is_early {
                        // The broker lets no more heartbeats of this connection wait.
                        let rest = tokio::time::sleep_until(begin + wait);
                        tokio::select! {
                            () = rest => {}
                            () = self.owned_changed.notified() => {}
                        }
                    }
                    continue;
                }
                Err(error) if error.kind == ErrorKind::Fenced => self.rejoin(&error).await,
                Err(error) => Err(error),
            };
            told = None;
            if let Err(error) = result
                && let Err(error) = trouble.wait(error, self.session.settings().request_timeout).await
            {
                return error;
            }
        }
    }

    /// The broker knows this member no more: all that it owned is lost.
    async fn rejoin(&self, error: &Error) -> Result<()> {
        tracing::info!(group = self.terms.group, %error, "put out of the consumer group; joining again");
        self.update(|state| {
            state.generation += 1;
            state.assignment.clear();
            state.owned.clear();
            state.owned_version += 1;
        });
        self.join().await
    }

    async fn join(&self) -> Result<()> {
        let terms = &self.terms;
        let step = Step::Join {
            client: self.session.settings().name.clone(),
            session_timeout_ms: terms.session_timeout.as_millis().try_into().unwrap_or(u32::MAX),
            rebalance_timeout_ms: terms.rebalance_timeout.as_millis().try_into().unwrap_or(u32::MAX),
            assignor: terms.assignor,
            topics: terms.topics.clone(),
        };
        let turn = self.say(step, Duration::ZERO).await?;
        self.hear(turn);
        Ok(())
    }

    fn hear(&self, (epoch, assignment): (u32, Option<Vec<TopicPartition>>)) {
        match assignment {
            Some(assignment) => self.update(|state| {
                state.epoch = epoch;
                state.assignment = assignment.into_iter().collect();
            }),
            None => self.state.lock().epoch = epoch,
        }
    }

    async fn say(&self, step: Step, wait: Duration) -> Result<(u32, Option<Vec<TopicPartition>>)> {
        let request = GroupRequest::Heartbeat(Heartbeat {
            group: self.terms.group.clone(),
            member: self.id.clone(),
            instance: self.terms.instance.clone(),
            step,
        });
        // A connection that hangs is given up before the session is over.
        let timeout = wait + (self.terms.session_timeout / 2).min(self.session.settings().request_timeout);
        match groups::call_within(&self.session, request, timeout).await? {
            GroupResponse::Turn { epoch, assignment } => Ok((epoch, assignment.map(partitions_of).transpose()?)),
            other => Err(unexpected(&Response::Group(other))),
        }
    }
}

/// Errors in a row.
#[derive(Default)]
struct Trouble {
    began: Option<tokio::time::Instant>,
    backoff: Backoff,
}

impl Trouble {
    /// Waits before the next try; an error that does not go away, or for too long, comes back.
    async fn wait(&mut self, error: Error, patience: Duration) -> Result<()> {
        let began = *self.began.get_or_insert_with(tokio::time::Instant::now);
        // A topic that is made anew may be missing for a while.
        let may_pass = is_transient(&error) || error.kind == ErrorKind::NotFound;
        if !may_pass || began.elapsed() >= patience {
            return Err(error);
        }
        tokio::time::sleep(self.backoff.next()).await;
        Ok(())
    }
}
