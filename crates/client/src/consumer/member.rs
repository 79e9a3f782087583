//! Group membership: a task that sends heartbeats to the broker, and the state that it shares with the consumer.

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

/// Minimum number of answered heartbeats per session timeout.
const BEATS_PER_SESSION: u32 = 3;

/// Parameters of a membership.
#[derive(Clone)]
pub(super) struct Terms {
    pub group: String,
    pub instance: String,
    pub topics: Vec<String>,
    pub assignor: Assignor,
    pub session_timeout: Duration,
    pub rebalance_timeout: Duration,
}

/// Membership in a group. Dropping it leaves the group in the background.
pub(super) struct Member {
    pub link: Arc<Link>,
    /// Sender whose drop tells the task to leave.
    leave: Option<oneshot::Sender<()>>,
    task: Option<JoinHandle<Result<()>>>,
}

/// State that the task and the consumer share.
pub(super) struct Link {
    session: Arc<Session>,
    terms: Terms,
    id: String,
    state: Mutex<State>,
    /// Version of `state`, which the consumer reads for each record without the lock.
    version: AtomicU64,
    /// Notifies the consumer that the assignment or the membership has changed.
    pub changed: Notify,
    /// Notifies the task that the consumer's set of partitions has changed.
    owned_changed: Notify,
}

#[derive(Default)]
struct State {
    epoch: u32,
    /// Number of the membership: the broker may end one, and then the owned partitions are lost.
    generation: u64,
    /// Partitions that the consumer may read.
    assignment: BTreeSet<TopicPartition>,
    /// Partitions that the consumer reads.
    owned: BTreeSet<TopicPartition>,
    /// Version of `owned`, which grows with each change.
    owned_version: u64,
    /// Error that ended the membership for good.
    failed: Option<Error>,
}

/// Assignment that the consumer has to apply.
pub(super) struct View {
    pub version: u64,
    pub generation: u64,
    pub assignment: BTreeSet<TopicPartition>,
}

impl Member {
    /// Joins the group. When this returns, the first assignment is known.
    pub(super) async fn join(session: Arc<Session>, terms: Terms) -> Result<Self> {
        // A new hasher has random keys, which is enough randomness here.
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
        // If the caller drops this future before the answer arrives, `member` is dropped too, and leaves the group.
        let member = Self { link, leave: Some(leave), task: Some(task) };
        match has_joined.await {
            Ok(joined) => joined.map(|()| member),
            Err(_) => {
                member.leave().await.and(Err(Error::new(ErrorKind::Internal, "the member did not join the group")))
            }
        }
    }

    /// Leaves the group, and waits until the broker has answered.
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
    /// Returns the version of the state, which grows with each assignment and each loss.
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

    /// Sets the partitions that the consumer reads from now on, unless that membership has ended.
    pub(super) fn own(&self, generation: u64, owned: BTreeSet<TopicPartition>) {
        let mut state = self.state.lock();
        if state.generation == generation && state.owned != owned {
            state.owned = owned;
            state.owned_version += 1;
            self.owned_changed.notify_one();
        }
    }

    /// Commits offsets that were read in this membership. Refuses if the membership has ended, since another member may
    /// read the partitions.
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
            // A heartbeat with a later epoch has overtaken the commit.
            if !(is_fenced && self.epoch_of(generation)? != epoch) {
                return sent;
            }
        }
    }

    /// Returns the epoch of a membership, or `fenced` if it has ended.
    fn epoch_of(&self, generation: u64) -> Result<u32> {
        let state = self.state.lock();
        if state.generation == generation {
            Ok(state.epoch)
        } else {
            Err(Error::new(
                ErrorKind::Fenced,
                "the broker removed this consumer from its group: uncommitted records will be redelivered",
            ))
        }
    }

    fn update(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        change(&mut state);
        self.version.fetch_add(1, Ordering::Release);
        self.changed.notify_one();
    }

    /// Joins, heartbeats until the consumer leaves, and leaves the group.
    async fn live(
        self: Arc<Self>,
        joined: oneshot::Sender<Result<()>>,
        told_to_leave: oneshot::Receiver<()>,
    ) -> Result<()> {
        // The task waits for the answer even if the caller has given up: otherwise, the leave could overtake the join.
        let result = self.join().await;
        let failed = result.as_ref().err().cloned();
        // A caller that has dropped the receiver also drops the member, which tells this task to leave.
        joined.send(result).unwrap_or_default();
        match failed {
            None => self.stay(told_to_leave).await,
            Some(error) if error.retry_class() == RetryClass::OutcomeUnknown => self.depart().await,
            Some(error) => Err(error),
        }
    }

    /// Heartbeats until the consumer leaves, and then leaves the group.
    async fn stay(&self, told_to_leave: oneshot::Receiver<()>) -> Result<()> {
        tokio::select! {
            biased;
            // An error means that the sender was dropped, which also tells the task to leave.
            _ = told_to_leave => {}
            error = self.beat() => {
                self.update(|state| state.failed = Some(error.clone()));
                return Err(error);
            }
        }
        self.depart().await
    }

    /// Leaves the group. A static member only announces its absence and keeps its partitions until its session expires.
    async fn depart(&self) -> Result<()> {
        let step = if self.terms.instance.is_empty() { Step::Leave } else { Step::Away };
        self.send_heartbeat(step, Duration::ZERO).await.map(drop)
    }

    /// Heartbeats until an error persists, and returns that error.
    async fn beat(&self) -> Error {
        // Version of the owned partitions that the broker knows; `None` if it may know none, as on a new connection.
        let mut told = None;
        let mut trouble = Trouble::default();
        loop {
            let (epoch, version, owned) = {
                let state = self.state.lock();
                (state.epoch, state.owned_version, state.owned.clone())
            };
            let owned = (told != Some(version)).then(|| by_topic(owned.iter().map(|at| (at, at.partition))));
            let wait = if owned.is_some() { Duration::ZERO } else { self.terms.session_timeout / BEATS_PER_SESSION };
            let is_waiting = owned.is_none();
            let begin = tokio::time::Instant::now();
            let step = Step::Alive { epoch, wait_ms: wait.as_millis() as u32, owned, topics: None };
            let answer = tokio::select! {
                answer = self.send_heartbeat(step, wait) => answer,
                // Ownership is reported immediately. The abandoned answer may have carried an assignment, so the next
                // request asks for everything again.
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
                    self.apply(turn);
                    if is_early {
                        // The broker has reached its limit of waiting heartbeats on this connection.
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

    /// Joins again after the broker has removed this member: all its partitions are lost.
    async fn rejoin(&self, error: &Error) -> Result<()> {
        tracing::info!(group = self.terms.group, %error, "removed from the consumer group; joining again");
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
        let turn = self.send_heartbeat(step, Duration::ZERO).await?;
        self.apply(turn);
        Ok(())
    }

    fn apply(&self, (epoch, assignment): (u32, Option<Vec<TopicPartition>>)) {
        match assignment {
            Some(assignment) => self.update(|state| {
                state.epoch = epoch;
                state.assignment = assignment.into_iter().collect();
            }),
            None => self.state.lock().epoch = epoch,
        }
    }

    async fn send_heartbeat(&self, step: Step, wait: Duration) -> Result<(u32, Option<Vec<TopicPartition>>)> {
        let request = GroupRequest::Heartbeat(Heartbeat {
            group: self.terms.group.clone(),
            member: self.id.clone(),
            instance: self.terms.instance.clone(),
            step,
        });
        // A hanging connection is abandoned before the session expires.
        let timeout = wait + (self.terms.session_timeout / 2).min(self.session.settings().request_timeout);
        match groups::call_within(&self.session, request, timeout).await? {
            GroupResponse::Turn { epoch, assignment } => Ok((epoch, assignment.map(partitions_of).transpose()?)),
            other => Err(unexpected(&Response::Group(other))),
        }
    }
}

/// Consecutive errors.
#[derive(Default)]
struct Trouble {
    began: Option<tokio::time::Instant>,
    backoff: Backoff,
}

impl Trouble {
    /// Waits before the next attempt. Returns an error that is permanent, or that has lasted for `patience`.
    async fn wait(&mut self, error: Error, patience: Duration) -> Result<()> {
        let began = *self.began.get_or_insert_with(tokio::time::Instant::now);
        // A topic that is created again may be missing for a while.
        let may_pass = is_transient(&error) || error.kind == ErrorKind::NotFound;
        if !may_pass || began.elapsed() >= patience {
            return Err(error);
        }
        tokio::time::sleep(self.backoff.next()).await;
        Ok(())
    }
}
