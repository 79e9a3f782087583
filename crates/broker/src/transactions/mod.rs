//! The one coordinator of all transactions: their clock, what is decided of them, and that it is carried out.
//!
//! What a transaction may do next is said by its state machine (`engine::transactions`). Here each transactional id has
//! a lock and a place in the topic of transactions. A decision has its place there first; then the transaction's
//! partitions get their markers and its groups their offsets. As the journal keeps that order, it all lasts with one
//! sync, and a restart finds what is decided and carries out the rest.

mod log;
mod status;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use engine::groups::{Committer, GroupName};
use engine::limits::TRANSACTIONS_MAX;
use engine::transactions::{
    End, Init, Phase, ProducerEpoch, StagedOffsets, Transaction, TransactionError, TransactionReason, TransactionalId,
};
use engine::{Decision, Error, ErrorKind, Marker, Result, TopicName, TopicPartition};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, OnceCell};

use crate::broker::Broker;
use crate::groups::StagedCommit;
use crate::internal::Appended;
use crate::metrics::Counter;
use crate::partition::PartitionCell;
use crate::publish::Wakes;
use crate::timers;
use crate::topics::refuse_internal;

pub use status::TransactionSummary;

/// How often transactions are looked through for those that take too long, or could not be carried out.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a step waits for the one before it to be carried out.
const SETTLE_WAIT: Duration = Duration::from_secs(2);
/// There is only one coordinator, and so it never changed hands.
const COORDINATOR_EPOCH: i32 = 0;

type Outcome<T = ()> = Result<T, TransactionError>;

/// All transactional ids of a broker.
pub(crate) struct Coordinator {
    cells: RwLock<HashMap<TransactionalId, Arc<Cell>>>,
    /// Set once they were read from the topic of transactions, and partitions know which are open.
    is_restored: OnceCell<()>,
    /// Who has added a group whose offsets it may commit. May say so of one that is over already.
    of_groups: Mutex<HashMap<GroupName, BTreeSet<TransactionalId>>>,
    /// A moment, and what the clock showed then, ms since 1970: from there time does not step back.
    begin: (tokio::time::Instant, u64),
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    committed: Counter,
    aborted: Counter,
    timed_out: Counter,
    fenced: Counter,
}

/// One transactional id at work.
struct Cell {
    id: TransactionalId,
    state: Mutex<State>,
    /// What was decided is carried out.
    settled: Notify,
}

/// Invariant: the transaction is what the newest record of the id says.
struct State {
    transaction: Transaction,
    /// Forgotten: whoever still holds it looks for it anew.
    is_gone: bool,
}

/// A decision with all that follows from it, on its way to the disk.
#[derive(Default)]
#[must_use]
struct Carried {
    appended: Vec<Appended>,
    offsets: Vec<StagedCommit>,
}

/// What one try to begin came to.
enum Begun {
    Now(ProducerEpoch, Appended),
    WantsId,
    /// Something else had to come first.
    NotYet,
}

impl Default for Coordinator {
    fn default() -> Self {
        Self {
            cells: RwLock::default(),
            is_restored: OnceCell::new(),
            of_groups: Mutex::default(),
            begin: (tokio::time::Instant::now(), timers::now_ms()),
            counts: Counts::default(),
        }
    }
}

impl Coordinator {
    pub(crate) fn is_restored(&self) -> bool {
        self.is_restored.initialized()
    }

    fn now_ms(&self) -> u64 {
        self.begin.1 + self.begin.0.elapsed().as_millis() as u64
    }

    fn find(&self, id: &TransactionalId) -> Option<Arc<Cell>> {
        self.cells.read().get(id).cloned()
    }

    fn cells(&self) -> Vec<Arc<Cell>> {
        self.cells.read().values().cloned().collect()
    }

    /// Keeps it known which groups a transaction may commit offsets of.
    fn note_groups(&self, id: &TransactionalId, before: Option<&Transaction>, after: &Transaction) {
        let before: Vec<&GroupName> = before.iter().flat_map(|before| before.offsets.keys()).collect();
        if before.is_empty() && after.offsets.is_empty() {
            return;
        }
        let mut of_groups = self.of_groups.lock();
        for group in before.into_iter().filter(|group| !after.offsets.contains_key(*group)) {
            if let Some(ids) = of_groups.get_mut(group) {
                ids.remove(id);
                if ids.is_empty() {
                    of_groups.remove(group);
                }
            }
        }
        for group in after.offsets.keys() {
            of_groups.entry(group.clone()).or_default().insert(id.clone());
        }
    }
}

impl State {
    /// The transaction, unless its id was forgotten just now.
    fn check(&self, id: &TransactionalId) -> Outcome {
        if self.is_gone { Err(other_producer(id)) } else { Ok(()) }
    }
}

impl Carried {
    /// Returns when all of it lasts and is seen. Whoever decided may go before that.
    async fn lasts(self) -> Result<()> {
        if self.appended.iter().all(Appended::is_reached) {
            return self.finish().await;
        }
        tokio::spawn(self.finish()).await.unwrap_or_else(|gone| {
            Err(Error::new(ErrorKind::Internal, format!("the broker stopped before the decision was durable: {gone}")))
        })
    }

    /// One that fails does not keep the others from what they have to wait for.
    async fn finish(self) -> Result<()> {
        let mut outcome = Ok(());
        for appended in self.appended {
            outcome = outcome.and(match appended.lasts().await.map(drop) {
                // Its topic was deleted meanwhile.
                Err(gone) if gone.kind == ErrorKind::NotFound => Ok(()),
                lasts => lasts,
            });
        }
        for offsets in self.offsets {
            outcome = outcome.and(offsets.finish().await);
        }
        outcome
    }
}

fn other_producer(id: &TransactionalId) -> TransactionError {
    TransactionError::new(TransactionReason::OtherProducer, format!("there is no transactional id '{id}'"))
}

impl Broker {
    /// Waits until the transactions are as they were when the broker stopped.
    async fn restored_transactions(&self) -> Result<&Coordinator> {
        let coordinator = self.transactions();
        coordinator.is_restored.get_or_try_init(|| self.restore_transactions()).await?;
        Ok(coordinator)
    }

    async fn restore_transactions(&self) -> Result<()> {
        // What is carried out may commit offsets.
        self.wait_for_groups().await?;
        let coordinator = self.transactions();
        let (mut cells, mut known) = (HashMap::new(), HashSet::new());
        for (id, mut transaction) in self.read_transactions().await? {
            // The clock may have been set back meanwhile: nothing is open for longer than it may be for that.
            transaction.opened_ms = transaction.opened_ms.map(|opened_ms| opened_ms.min(coordinator.now_ms()));
            coordinator.note_groups(&id, None, &transaction);
            if let Phase::Prepared(_) = transaction.phase {
                let decided_ms = transaction.offsets.values().flatten().map(|(_, committed)| committed.committed_ms);
                decided_ms.for_each(|decided_ms| self.groups().note_commit_ms(decided_ms));
            }
            let producer = transaction.producer;
            for at in &transaction.partitions {
                known.insert((producer.id, at.clone()));
                if transaction.phase == Phase::Open
                    && let Ok(partition) = self.partition_at(at)
                    && let Err(error) = partition.begin(producer.id, producer.epoch)
                {
                    tracing::warn!(%id, partition = %at, %error, "an open transaction cannot go on in a partition");
                }
            }
            cells.insert(id.clone(), Arc::new(Cell::new(id, transaction)));
        }
        if !cells.is_empty() {
            tracing::info!(ids = cells.len(), "transactions restored");
        }
        *coordinator.cells.write() = cells;
        self.abort_unknown(&known);
        Ok(())
    }

    /// Aborts what is open in a partition and in no transaction that the coordinator knows of: a repair of the data
    /// directory may leave that, and nobody else would ever end it.
    fn abort_unknown(&self, known: &HashSet<(i64, TopicPartition)>) {
        let topics: Vec<_> = self.topics.read().values().cloned().collect();
        for topic in topics {
            for cell in topic.partitions() {
                let (at, extent) = (TopicPartition { topic: topic.name.clone(), partition: cell.id }, cell.extent());
                if extent.stable_end == extent.end {
                    continue;
                }
                let open = cell.producers().into_iter().filter(|producer| producer.open.is_some());
                for producer in open.filter(|producer| !known.contains(&(producer.id, at.clone()))) {
                    tracing::warn!(partition = %at, producer = producer.id, "aborts what no transaction knows of");
                    let owner = ProducerEpoch { id: producer.id, epoch: producer.epoch };
                    self.abort_unasked(&at, owner, &mut Wakes::default());
                }
            }
        }
    }

    /// Ends in a partition what is no transaction there.
    fn abort_unasked(&self, at: &TopicPartition, producer: ProducerEpoch, wakes: &mut Wakes) {
        if let Err(error) = self.mark(at, producer, Decision::Abort, wakes) {
            tracing::warn!(partition = %at, producer = producer.id, %error, "what is open stays so until a restart");
        }
    }

    fn partition_at(&self, at: &TopicPartition) -> Result<Arc<PartitionCell>> {
        self.topic(at.topic.as_str())?.partition(at.partition)
    }

    /// The id of a transaction that goes on, once the last one is carried out.
    async fn settled_cell(&self, id: &TransactionalId) -> Outcome<Arc<Cell>> {
        let cell = self.restored_transactions().await?.find(id).ok_or_else(|| other_producer(id))?;
        cell.wait_until_settled().await;
        Ok(cell)
    }

    /// A program takes over a transactional id: what is open is aborted, and whoever had it is fenced. One that goes on
    /// after an error says who it was, and is refused where another has taken over.
    pub async fn init_transactions(
        self: &Arc<Self>,
        id: &TransactionalId,
        expected: Option<ProducerEpoch>,
        timeout_ms: u32,
    ) -> Outcome<ProducerEpoch> {
        let coordinator = self.restored_transactions().await?;
        let mut new_id = None;
        loop {
            let begun = match coordinator.find(id) {
                None => self.begin_first(id, new_id, timeout_ms)?,
                Some(cell) => {
                    cell.wait_until_settled().await;
                    self.begin_next(&cell, expected, new_id, timeout_ms)
                        .inspect_err(|refused| self.count_refused(refused))?
                }
            };
            match begun {
                Begun::Now(producer, appended) => {
                    appended.lasts().await?;
                    return Ok(producer);
                }
                Begun::WantsId => new_id = Some(self.next_producer_id().await?),
                Begun::NotYet => tokio::task::yield_now().await,
            }
        }
    }

    /// Nobody had the transactional id before.
    fn begin_first(&self, id: &TransactionalId, new_id: Option<i64>, timeout_ms: u32) -> Outcome<Begun> {
        let coordinator = self.transactions();
        let transaction = Transaction::new(new_id.unwrap_or_default(), timeout_ms, coordinator.now_ms())?;
        if new_id.is_none() {
            return Ok(Begun::WantsId);
        }
        let mut wakes = Wakes::default();
        let mut cells = coordinator.cells.write();
        if cells.contains_key(id) {
            return Ok(Begun::NotYet);
        }
        if cells.len() >= TRANSACTIONS_MAX {
            return Err(Error::busy(format!(
                "this broker has {TRANSACTIONS_MAX} transactional ids, which is the limit"
            ))
            .into());
        }
        let appended = self.append_transaction(id, Some(&transaction), &mut wakes)?;
        let producer = transaction.producer;
        cells.insert(id.clone(), Arc::new(Cell::new(id.clone(), transaction)));
        drop(cells);
        Ok(Begun::Now(producer, appended))
    }

    fn begin_next(
        &self,
        cell: &Cell,
        expected: Option<ProducerEpoch>,
        new_id: Option<i64>,
        timeout_ms: u32,
    ) -> Outcome<Begun> {
        let mut wakes = Wakes::default();
        let mut state = cell.state.lock();
        if state.is_gone {
            return Ok(Begun::NotYet);
        }
        Ok(match state.transaction.init(expected, new_id, timeout_ms, self.transactions().now_ms())? {
            Init::Begins(next) => {
                let producer = next.producer;
                Begun::Now(producer, self.put_transaction(cell, &mut state, next, &mut wakes)?)
            }
            Init::Again(producer) => {
                // It may be on its way to the disk yet.
                let same = state.transaction.clone();
                Begun::Now(producer, self.put_transaction(cell, &mut state, same, &mut wakes)?)
            }
            Init::WantsId => Begun::WantsId,
            Init::Aborts(next) => {
                // That it begins lasts only if this does.
                drop(self.take_decision(cell, &mut state, next, &mut wakes)?);
                Begun::NotYet
            }
        })
    }

    /// The next state of an id. It counts from now on; it lasts when its record does.
    fn put_transaction(
        &self,
        cell: &Cell,
        state: &mut State,
        next: Transaction,
        wakes: &mut Wakes,
    ) -> Result<Appended> {
        let appended = self.append_transaction(&cell.id, Some(&next), wakes)?;
        self.transactions().note_groups(&cell.id, Some(&state.transaction), &next);
        state.transaction = next;
        Ok(appended)
    }

    /// Partitions that a transaction will write to. Nothing of it is taken elsewhere. That lasts when this is over: a
    /// producer whose partition is not known after a restart would be taken for one that was replaced.
    pub async fn add_partitions(
        &self,
        id: &TransactionalId,
        producer: ProducerEpoch,
        partitions: &[TopicPartition],
    ) -> Outcome {
        let cell = self.settled_cell(id).await?;
        partitions.iter().try_for_each(|at| refuse_internal(at.topic.as_str()))?;
        let found: Vec<_> = partitions.iter().map(|at| Ok((at, self.partition_at(at)?))).collect::<Result<_>>()?;
        self.step(&cell, |state, wakes| {
            let next = state.transaction.add_partitions(producer, partitions, self.transactions().now_ms())?;
            let Some(next) = next else {
                return Ok(None);
            };
            let is_new = |at: &TopicPartition| !state.transaction.partitions.contains(at);
            let added: Vec<_> = found.iter().filter(|(at, _)| is_new(at)).collect();
            let begun = added.iter().try_for_each(|(_, partition)| partition.begin(producer.id, producer.epoch));
            let appended = begun.and_then(|()| self.put_transaction(&cell, state, next, wakes));
            if appended.is_err() {
                for (at, _) in added {
                    self.abort_unasked(at, producer, wakes);
                }
            }
            Ok(Some(appended?))
        })
        .await
    }

    /// A consumer group whose offsets a transaction will commit. That lasts when this is over.
    pub async fn add_offsets(&self, id: &TransactionalId, producer: ProducerEpoch, group: &GroupName) -> Outcome {
        let cell = self.settled_cell(id).await?;
        self.step(&cell, |state, wakes| {
            let next = state.transaction.add_group(producer, group, self.transactions().now_ms())?;
            Ok(next.map(|next| self.put_transaction(&cell, state, next, wakes)).transpose()?)
        })
        .await
    }

    /// Offsets of a group that was added: they count if the transaction is committed. Who says which member of the
    /// group it is has to be that member. They last, as something that is not decided, when this is over.
    pub async fn stage_offsets(
        &self,
        id: &TransactionalId,
        producer: ProducerEpoch,
        group: &GroupName,
        committer: Option<&Committer>,
        offsets: StagedOffsets,
    ) -> Outcome {
        let cell = self.settled_cell(id).await?;
        cell.state.lock().transaction.check_open(producer).inspect_err(|refused| self.count_refused(refused))?;
        let of_group = self.staged_group(group, committer, &offsets).await?;
        self.step(&cell, |state, wakes| {
            self.check_staged(&of_group, committer, &offsets)?;
            let next = state.transaction.stage_offsets(producer, group, offsets)?;
            Ok(Some(self.put_transaction(&cell, state, next, wakes)?))
        })
        .await
    }

    /// A step of an open transaction. Returns when it lasts, or where it was taken before: when that does.
    async fn step(
        &self,
        cell: &Cell,
        take: impl FnOnce(&mut State, &mut Wakes) -> Outcome<Option<Appended>>,
    ) -> Outcome {
        let mut wakes = Wakes::default();
        let appended = {
            let mut state = cell.state.lock();
            state.check(&cell.id)?;
            match take(&mut state, &mut wakes).inspect_err(|refused| self.count_refused(refused))? {
                Some(appended) => appended,
                None if self.store().is_none() => return Ok(()),
                None => {
                    // It may be on its way to the disk yet: what comes behind it lasts only if it does.
                    let same = state.transaction.clone();
                    self.put_transaction(cell, &mut state, same, &mut wakes)?
                }
            }
        };
        drop(wakes);
        appended.lasts().await?;
        Ok(())
    }

    /// Ends a transaction: all of it counts, or nothing. When this returns, that lasts and readers are told of it.
    pub async fn end_transaction(&self, id: &TransactionalId, producer: ProducerEpoch, decision: Decision) -> Outcome {
        let cell = self.settled_cell(id).await?;
        let mut wakes = Wakes::default();
        let carried = {
            let mut state = cell.state.lock();
            state.check(id)?;
            let end = state.transaction.end(producer, decision, self.transactions().now_ms());
            match end.inspect_err(|refused| self.count_refused(refused))? {
                End::Prepares(next) => self.take_decision(&cell, &mut state, next, &mut wakes)?,
                // It may be on its way to the disk yet: what comes behind it lasts only if it does.
                End::Again => {
                    let same = state.transaction.clone();
                    Carried {
                        appended: vec![self.put_transaction(&cell, &mut state, same, &mut wakes)?],
                        offsets: Vec::new(),
                    }
                }
            }
        };
        drop(wakes);
        Ok(carried.lasts().await?)
    }

    /// Takes a decision and carries it out. Where that does not work now it is tried again later: it is decided.
    fn take_decision(
        &self,
        cell: &Cell,
        state: &mut State,
        prepared: Transaction,
        wakes: &mut Wakes,
    ) -> Result<Carried> {
        let prepared = match prepared.offsets.is_empty() {
            true => prepared,
            false => prepared.decided_at(self.groups().decision_ms()),
        };
        let decided = self.put_transaction(cell, state, prepared, wakes)?;
        let (mut carried, outcome) = self.carry_out(cell, state, wakes);
        carried.appended.push(decided);
        if let Err(error) = outcome {
            tracing::warn!(id = %cell.id, %error, "a decided transaction is not completed yet; it is retried");
        }
        Ok(carried)
    }

    /// Tells all partitions of a transaction how it ended, and groups their offsets. Those that cannot be told, as a
    /// partition that is not served, keep the decision waiting: it is carried out when they are back, or deleted.
    fn carry_out(&self, cell: &Cell, state: &mut State, wakes: &mut Wakes) -> (Carried, Result<()>) {
        let (mut carried, mut outcome) = (Carried::default(), Ok(()));
        let Phase::Prepared(decision) = state.transaction.phase else {
            return (carried, outcome);
        };
        let mut left = state.transaction.clone();
        left.partitions.retain(|at| {
            let marked = self.mark(at, state.transaction.producer, decision, wakes);
            marked.map(|marked| carried.appended.extend(marked)).map_err(|error| outcome = Err(error)).is_err()
        });
        left.offsets.retain(|group, staged| {
            let committed = self.commit_staged(group, staged, wakes);
            let committed = committed.map(|committed| carried.offsets.extend(committed));
            committed.map_err(|refused| outcome = Err(refused.into())).is_err()
        });
        let is_complete = left.partitions.is_empty() && left.offsets.is_empty();
        let completed = left.completed(self.transactions().now_ms()).filter(|_| is_complete);
        let next = completed.unwrap_or(left);
        if next != state.transaction {
            match self.put_transaction(cell, state, next, wakes) {
                Ok(appended) => carried.appended.push(appended),
                Err(error) => return (carried, Err(error)),
            }
        }
        if is_complete {
            cell.settled.notify_waiters();
            let counts = &self.transactions().counts;
            if decision == Decision::Commit { &counts.committed } else { &counts.aborted }.add(1);
        }
        (carried, outcome)
    }

    /// Nothing more of a transaction is taken by a partition; where something was, its marker says what became of it.
    fn mark(
        &self,
        at: &TopicPartition,
        producer: ProducerEpoch,
        decision: Decision,
        wakes: &mut Wakes,
    ) -> Result<Option<Appended>> {
        // A topic that is gone, or was made again with fewer partitions, has nothing of it.
        let Ok(topic) = self.topic(at.topic.as_str()) else {
            return Ok(None);
        };
        let Ok(cell) = topic.partition(at.partition) else {
            return Ok(None);
        };
        let Some(timestamp_ms) = cell.close(producer.id)? else {
            return Ok(None);
        };
        let marker = Marker { decision, coordinator_epoch: COORDINATOR_EPOCH };
        let batch = marker.draft(producer.id, producer.epoch, timestamp_ms)?;
        self.publish_internal(&topic, at.partition, batch, wakes).map(Some)
    }

    fn count_refused(&self, refused: &TransactionError) {
        if refused.reason == TransactionReason::Fenced {
            self.transactions().counts.fenced.add(1);
        }
    }

    /// Ends what takes too long, carries out what could not be, and forgets ids that nobody uses.
    async fn look_through_transactions(&self) -> Result<()> {
        let coordinator = self.restored_transactions().await?;
        let retention_ms = self.settings().transactional_id_expiration.as_millis() as u64;
        for cell in coordinator.cells() {
            let mut wakes = Wakes::default();
            let carried = {
                let mut state = cell.state.lock();
                let now_ms = coordinator.now_ms();
                if state.is_gone {
                    continue;
                }
                if let Some(late) = state.transaction.expire(now_ms) {
                    tracing::info!(id = %cell.id, timeout_ms = late.timeout_ms, "a transaction took too long");
                    coordinator.counts.timed_out.add(1);
                    self.take_decision(&cell, &mut state, late, &mut wakes)
                } else if let Phase::Prepared(_) = state.transaction.phase {
                    let (carried, outcome) = self.carry_out(&cell, &mut state, &mut wakes);
                    if let Err(error) = outcome {
                        tracing::debug!(id = %cell.id, %error, "a decided transaction is still not completed");
                    }
                    Ok(carried)
                } else if retention_ms > 0 && state.transaction.is_expired(retention_ms, now_ms) {
                    self.forget_transaction(&cell, &mut state, &mut wakes).map(|()| Carried::default())
                } else {
                    continue;
                }
            };
            drop(wakes);
            match carried {
                // Groups take their offsets when the log is safe for it.
                Ok(carried) => drop(tokio::spawn(carried.lasts())),
                Err(error) => {
                    tracing::warn!(id = %cell.id, %error, "a transaction cannot be ended; it is tried again");
                }
            }
        }
        Ok(())
    }

    /// A topic was deleted: what transactions would do there means nothing any more.
    pub(crate) fn forget_topic_of_transactions(&self, topic: &TopicName) {
        for cell in self.transactions().cells() {
            let mut wakes = Wakes::default();
            let mut state = cell.state.lock();
            let next = state.transaction.without_topic(topic, self.transactions().now_ms());
            if let Some(next) = next.filter(|_| !state.is_gone)
                && let Err(error) = self.put_transaction(&cell, &mut state, next, &mut wakes).map(drop)
            {
                tracing::warn!(id = %cell.id, %topic, %error, "a transaction still has offsets of a deleted topic");
            }
        }
    }

    fn forget_transaction(&self, cell: &Cell, state: &mut State, wakes: &mut Wakes) -> Result<()> {
        drop(self.append_transaction(&cell.id, None, wakes)?);
        state.is_gone = true;
        self.transactions().cells.write().remove(&cell.id);
        tracing::info!(id = %cell.id, "an unused transactional id was removed");
        Ok(())
    }
}

impl Cell {
    fn new(id: TransactionalId, transaction: Transaction) -> Self {
        Self { id, state: Mutex::new(State { transaction, is_gone: false }), settled: Notify::new() }
    }

    /// Waits until what was decided is carried out, or for a while.
    async fn wait_until_settled(&self) {
        let deadline = tokio::time::Instant::now() + SETTLE_WAIT;
        loop {
            let settled = self.settled.notified();
            tokio::pin!(settled);
            settled.as_mut().enable();
            let is_settled = !matches!(self.state.lock().transaction.phase, Phase::Prepared(_));
            if is_settled || tokio::time::timeout_at(deadline, settled).await.is_err() {
                return;
            }
        }
    }
}

/// The timer of all transactions, for as long as the broker lives.
pub(crate) async fn keep_time(broker: Weak<Broker>) {
    let mut interval = tokio::time::interval(LOOK_EVERY);
    loop {
        interval.tick().await;
        let Some(broker) = broker.upgrade() else {
            return;
        };
        if let Err(error) = broker.look_through_transactions().await {
            tracing::error!(%error, "transactions cannot be checked");
        }
    }
}

#[cfg(test)]
mod tests;
