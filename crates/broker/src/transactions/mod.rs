//! The coordinator of all transactions: their clock, their decisions, and carrying these out.
//!
//! The state machine of a transaction (`engine::transactions`) determines its possible next steps. Here each
//! transactional id has a lock and its records in the topic of transactions. A decision is appended there first; then
//! the transaction's partitions get their markers and its groups their offsets. As the journal keeps that order, all of
//! them become durable with one sync, and a restart finds the decision and carries out the rest.

mod log;
mod status;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use engine::groups::{Committer, GroupName};
use engine::limits::TRANSACTIONS_MAX;
use engine::transactions::{
    End, Init, Phase, ProducerEpoch, StagedOffsets, Transaction, TransactionError, TransactionReason, TransactionalId,
};
use engine::{Decision, Error, ErrorKind, Marker, Result, TopicPartition};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::commit::{Appended, Commit};
use crate::core::{Core, TopicObserver};
use crate::groups::Groups;
use crate::metrics::Counter;
use crate::partition::{AppendOptions, PartitionCell};
use crate::restored::Restored;
use crate::topic::{Topic, refuse_internal};
use crate::wakes::Wakes;

use log::{append_transaction, read_transactions};
pub use status::TransactionSummary;

/// Interval at which transactions are checked for timeouts and for decisions that could not be carried out.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Maximum time that a step waits until the previous decision has been carried out.
const SETTLE_WAIT: Duration = Duration::from_secs(2);
/// Epoch of the coordinator: constant, because there is only one, which never changes.
const COORDINATOR_EPOCH: i32 = 0;

type Outcome<T = ()> = Result<T, TransactionError>;

/// Transactions: their clock, the decisions, and their completion.
pub struct Transactions {
    core: Arc<Core>,
    groups: Arc<Groups>,
    table: Arc<TransactionTable>,
}

/// All transactional ids of a broker.
pub(crate) struct TransactionTable {
    cells: RwLock<HashMap<TransactionalId, Arc<Cell>>>,
    /// Done once the ids have been read from the topic of transactions, and partitions know the open transactions.
    restored: Restored,
    /// Transactional ids by the groups whose offsets they may commit. May list a transaction that has already ended.
    of_groups: Mutex<HashMap<GroupName, BTreeSet<TransactionalId>>>,
    /// Reference point of the monotonic clock, with the system time at that moment in ms since 1970.
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

/// A transactional id with its lock.
struct Cell {
    id: TransactionalId,
    state: Mutex<State>,
    /// Notified when the decision has been carried out.
    settled: Notify,
}

/// State of a transactional id. Invariant: the transaction equals the newest record of the id.
struct State {
    transaction: Transaction,
    /// `true` if the id was removed or forgotten: a caller that still holds it must look it up again.
    is_gone: bool,
    /// `true` if the id was forgotten: it exists, and is being restored.
    is_forgotten: bool,
}

/// Outcome of one attempt to initialize a transactional id.
enum Begun {
    Now(ProducerEpoch, Appended),
    WantsId,
    /// Another operation must complete first; try again.
    NotYet,
}

impl TransactionTable {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            cells: RwLock::default(),
            restored: Restored::default(),
            of_groups: Mutex::default(),
            begin: (tokio::time::Instant::now(), clock.now_ms()),
            counts: Counts::default(),
        }
    }

    fn now_ms(&self) -> u64 {
        self.begin.1 + self.begin.0.elapsed().as_millis() as u64
    }

    fn find(&self, id: &TransactionalId) -> Option<Arc<Cell>> {
        self.cells.read().get(id).cloned()
    }

    /// Fails if the transactions were forgotten since the caller waited for them.
    fn check_restored(&self) -> Result<()> {
        if self.restored.is_done() { Ok(()) } else { Err(still_restoring()) }
    }

    fn cells(&self) -> Vec<Arc<Cell>> {
        self.cells.read().values().cloned().collect()
    }

    /// Sets the next state of an id. It takes effect immediately, and is durable when its record is.
    fn put(
        &self,
        core: &Core,
        cell: &Cell,
        state: &mut State,
        next: Transaction,
        wakes: &mut Wakes,
    ) -> Result<Appended> {
        let appended = append_transaction(core, &cell.id, Some(&next), wakes)?;
        self.note_groups(&cell.id, Some(&state.transaction), &next);
        state.transaction = next;
        Ok(appended)
    }

    /// Updates the groups whose offsets a transaction may commit.
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
    /// Fails if the id was removed or forgotten concurrently.
    fn check(&self, id: &TransactionalId) -> Outcome {
        match (self.is_gone, self.is_forgotten) {
            (false, _) => Ok(()),
            (true, true) => Err(still_restoring().into()),
            (true, false) => Err(other_producer(id)),
        }
    }
}

/// Returns the commit of a marker. A topic that is deleted in the meantime needs none.
fn commit_of_marker(marker: Appended) -> Commit {
    if marker.commit.is_done() {
        return marker.commit;
    }
    marker.commit.then(|outcome| async {
        match outcome {
            Err(deleted) if deleted.kind == ErrorKind::NotFound => Ok(()),
            outcome => outcome,
        }
    })
}

fn still_restoring() -> Error {
    Error::busy("the broker is restoring its transactions: try again")
}

fn other_producer(id: &TransactionalId) -> TransactionError {
    TransactionError::new(TransactionReason::OtherProducer, format!("there is no transactional id '{id}'"))
}

impl TopicObserver for TransactionTable {
    /// Removes a deleted topic from all transactions: its partitions and offsets are void for a new topic of its name.
    fn topic_forgotten(&self, core: &Core, topic: &Topic) {
        for cell in self.cells() {
            let mut wakes = Wakes::default();
            let mut state = cell.state.lock();
            let next = state.transaction.without_topic(&topic.name, self.now_ms());
            if let Some(next) = next.filter(|_| !state.is_gone)
                && let Err(error) = self.put(core, &cell, &mut state, next, &mut wakes).map(drop)
            {
                let topic = &topic.name;
                tracing::warn!(id = %cell.id, %topic, %error, "a transaction still has offsets of a deleted topic");
            }
        }
    }
}

impl Transactions {
    pub(crate) fn new(core: Arc<Core>, groups: Arc<Groups>, table: Arc<TransactionTable>) -> Self {
        Self { core, groups, table }
    }

    /// Waits until the transactions have been restored to their state before the broker stopped.
    async fn restored(&self) -> Result<&TransactionTable> {
        let coordinator = &self.table;
        coordinator.restored.ensure(|| self.restore()).await?;
        Ok(coordinator)
    }

    /// Forgets all transactions, as a restart does: the next call restores them from their log. Until then, records of
    /// transactions are refused.
    pub(crate) async fn forget(&self) {
        let table = &self.table;
        let forgetting = table.restored.forgetting().await;
        self.core.admits_transactions.store(false, Ordering::Release);
        let cells = {
            let mut cells = table.cells.write();
            forgetting.begin();
            std::mem::take(&mut *cells)
        };
        for cell in cells.into_values() {
            {
                let mut state = cell.state.lock();
                state.is_gone = true;
                state.is_forgotten = true;
            }
            cell.settled.notify_waiters();
        }
        table.of_groups.lock().clear();
    }

    async fn restore(&self) -> Result<()> {
        // Decisions that are carried out may commit offsets.
        self.groups.wait_for_groups().await?;
        let coordinator = &self.table;
        let mut cells = HashMap::new();
        let mut known = HashSet::new();
        for (id, mut transaction) in read_transactions(&self.core).await? {
            // The clock may have been set back: this must not extend the timeout of an open transaction.
            transaction.opened_ms = transaction.opened_ms.map(|opened_ms| opened_ms.min(coordinator.now_ms()));
            coordinator.note_groups(&id, None, &transaction);
            if let Phase::Prepared(_) = transaction.phase {
                let decided_ms = transaction.offsets.values().flatten().map(|(_, committed)| committed.committed_ms);
                decided_ms.for_each(|decided_ms| self.groups.table().note_commit_ms(decided_ms));
            }
            let producer = transaction.producer;
            for at in &transaction.partitions {
                known.insert((producer.id, at.clone()));
                if transaction.phase == Phase::Open
                    && let Ok(partition) = self.partition_at(at)
                    && let Err(error) = partition.begin(producer.id, producer.epoch)
                {
                    tracing::warn!(%id, partition = %at, %error, "an open transaction cannot continue in a partition");
                }
            }
            cells.insert(id.clone(), Arc::new(Cell::new(id, transaction)));
        }
        if !cells.is_empty() {
            tracing::info!(ids = cells.len(), "transactions restored");
        }
        *coordinator.cells.write() = cells;
        self.abort_unknown(&known);
        self.core.admits_transactions.store(true, Ordering::Release);
        Ok(())
    }

    /// Aborts open writes in partitions that belong to no transaction known to the coordinator. A repair of the data
    /// directory may leave such writes, and nothing else would ever end them.
    fn abort_unknown(&self, known: &HashSet<(i64, TopicPartition)>) {
        let topics: Vec<_> = self.core.topics.read().values().cloned().collect();
        for topic in topics {
            for cell in topic.partitions() {
                let at = TopicPartition { topic: topic.name.clone(), partition: cell.id };
                let extent = cell.extent();
                if extent.stable_end == extent.end {
                    continue;
                }
                let open = cell.producers().into_iter().filter(|producer| producer.open.is_some());
                for producer in open.filter(|producer| !known.contains(&(producer.id, at.clone()))) {
                    tracing::warn!(
                        partition = %at,
                        producer = producer.id,
                        "aborting records that belong to no transaction"
                    );
                    let owner = ProducerEpoch { id: producer.id, epoch: producer.epoch };
                    self.abort_unasked(&at, owner, &mut Wakes::default());
                }
            }
        }
    }

    /// Aborts a producer's writes in a partition where it has no transaction.
    fn abort_unasked(&self, at: &TopicPartition, producer: ProducerEpoch, wakes: &mut Wakes) {
        if let Err(error) = self.mark(at, producer, Decision::Abort, wakes) {
            tracing::warn!(
                partition = %at,
                producer = producer.id,
                %error,
                "cannot abort; the records stay open until a restart"
            );
        }
    }

    fn partition_at(&self, at: &TopicPartition) -> Result<Arc<PartitionCell>> {
        self.core.topic(at.topic.as_str())?.partition(at.partition)
    }

    /// Returns the state of a transactional id once its last decision has been carried out.
    async fn settled_cell(&self, id: &TransactionalId) -> Outcome<Arc<Cell>> {
        let coordinator = self.restored().await?;
        let Some(cell) = coordinator.find(id) else {
            coordinator.check_restored()?;
            return Err(other_producer(id));
        };
        cell.wait_until_settled().await;
        Ok(cell)
    }

    /// Takes over a transactional id for a program: aborts the open transaction and fences the previous owner. A
    /// program that resumes after an error passes its previous producer, and is refused if another program has taken
    /// over.
    pub async fn init(
        self: &Arc<Self>,
        id: &TransactionalId,
        expected: Option<ProducerEpoch>,
        timeout_ms: u32,
    ) -> Outcome<ProducerEpoch> {
        let coordinator = self.restored().await?;
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
                    appended.commit.wait().await?;
                    return Ok(producer);
                }
                Begun::WantsId => new_id = Some(self.core.next_producer_id().await?),
                Begun::NotYet => tokio::task::yield_now().await,
            }
        }
    }

    /// Initializes a transactional id that did not exist before.
    fn begin_first(&self, id: &TransactionalId, new_id: Option<i64>, timeout_ms: u32) -> Outcome<Begun> {
        let coordinator = &self.table;
        let transaction = Transaction::new(new_id.unwrap_or_default(), timeout_ms, coordinator.now_ms())?;
        if new_id.is_none() {
            return Ok(Begun::WantsId);
        }
        let mut wakes = Wakes::default();
        let mut cells = coordinator.cells.write();
        coordinator.check_restored()?;
        if cells.contains_key(id) {
            return Ok(Begun::NotYet);
        }
        if cells.len() >= TRANSACTIONS_MAX {
            return Err(Error::busy(format!(
                "transactional id limit reached ({TRANSACTIONS_MAX}): reuse an id, or lower \
                 transactional_id_expiration_ms so that unused ids expire"
            ))
            .into());
        }
        let appended = append_transaction(&self.core, id, Some(&transaction), &mut wakes)?;
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
        Ok(match state.transaction.init(expected, new_id, timeout_ms, self.table.now_ms())? {
            Init::Begins(next) => {
                let producer = next.producer;
                Begun::Now(producer, self.table.put(&self.core, cell, &mut state, next, &mut wakes)?)
            }
            Init::Again(producer) => {
                // The record may not be durable yet.
                let same = state.transaction.clone();
                Begun::Now(producer, self.table.put(&self.core, cell, &mut state, same, &mut wakes)?)
            }
            Init::WantsId => Begun::WantsId,
            Init::Aborts(next) => {
                // The new state is durable only if this decision is.
                drop(self.take_decision(cell, &mut state, next, &mut wakes)?);
                Begun::NotYet
            }
        })
    }

    /// Adds partitions to which a transaction will write; other partitions refuse its writes. The addition is durable
    /// when this completes: after a restart, a producer whose partition is not known would be regarded as fenced.
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
            let next = state.transaction.add_partitions(producer, partitions, self.table.now_ms())?;
            let Some(next) = next else {
                return Ok(None);
            };
            let is_new = |at: &TopicPartition| !state.transaction.partitions.contains(at);
            let added: Vec<_> = found.iter().filter(|(at, _)| is_new(at)).collect();
            let begun = added.iter().try_for_each(|(_, partition)| partition.begin(producer.id, producer.epoch));
            let appended = begun.and_then(|()| self.table.put(&self.core, &cell, state, next, wakes));
            if appended.is_err() {
                for (at, _) in added {
                    self.abort_unasked(at, producer, wakes);
                }
            }
            Ok(Some(appended?))
        })
        .await
    }

    /// Adds a consumer group whose offsets a transaction will commit. The addition is durable when this completes.
    pub async fn add_offsets(&self, id: &TransactionalId, producer: ProducerEpoch, group: &GroupName) -> Outcome {
        let cell = self.settled_cell(id).await?;
        self.step(&cell, |state, wakes| {
            let next = state.transaction.add_group(producer, group, self.table.now_ms())?;
            Ok(next.map(|next| self.table.put(&self.core, &cell, state, next, wakes)).transpose()?)
        })
        .await
    }

    /// Stages offsets of a group that was added: they take effect if the transaction is committed. A committer that
    /// names a member of the group must be that member. The staged offsets are durable when this completes.
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
        let of_group = self.groups.staged_group(group, committer, &offsets).await?;
        self.step(&cell, |state, wakes| {
            self.groups.check_staged(&of_group, committer, &offsets)?;
            let next = state.transaction.stage_offsets(producer, group, offsets)?;
            Ok(Some(self.table.put(&self.core, &cell, state, next, wakes)?))
        })
        .await
    }

    /// Takes a step of an open transaction. Waits until it is durable, also if it was taken before.
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
                None if self.core.store().is_none() => return Ok(()),
                None => {
                    // The earlier record may not be durable yet: a later record is durable only if it is.
                    let same = state.transaction.clone();
                    self.table.put(&self.core, cell, &mut state, same, &mut wakes)?
                }
            }
        };
        drop(wakes);
        appended.commit.wait().await?;
        Ok(())
    }

    /// Ends a transaction: commits or aborts all of it. The end is durable and visible to readers when this completes.
    pub async fn end(&self, id: &TransactionalId, producer: ProducerEpoch, decision: Decision) -> Outcome {
        let cell = self.settled_cell(id).await?;
        let mut wakes = Wakes::default();
        let commit = {
            let mut state = cell.state.lock();
            state.check(id)?;
            let end = state.transaction.end(producer, decision, self.table.now_ms());
            match end.inspect_err(|refused| self.count_refused(refused))? {
                End::Prepares(next) => self.take_decision(&cell, &mut state, next, &mut wakes)?,
                // The earlier record may not be durable yet: a later record is durable only if it is.
                End::Again => {
                    let same = state.transaction.clone();
                    self.table.put(&self.core, &cell, &mut state, same, &mut wakes)?.commit
                }
            }
        };
        drop(wakes);
        Ok(commit.wait_to_the_end().await?)
    }

    /// Records a decision and carries it out. If that fails now, it is retried later: the decision is final.
    fn take_decision(
        &self,
        cell: &Cell,
        state: &mut State,
        prepared: Transaction,
        wakes: &mut Wakes,
    ) -> Result<Commit> {
        let prepared =
            if prepared.offsets.is_empty() { prepared } else { prepared.decided_at(self.groups.table().decision_ms()) };
        let decided = self.table.put(&self.core, cell, state, prepared, wakes)?;
        let (carried, outcome) = self.carry_out(cell, state, wakes);
        if let Err(error) = outcome {
            tracing::warn!(id = %cell.id, %error, "a decided transaction is not completed yet; it is retried");
        }
        Ok(decided.commit.and(carried))
    }

    /// Writes the markers of a decided transaction to its partitions, and the offsets to its groups. If a partition or
    /// a group fails, such as a partition that is not served, the decision stays pending: it is carried out once the
    /// partition is served again, or dropped with its topic.
    fn carry_out(&self, cell: &Cell, state: &mut State, wakes: &mut Wakes) -> (Commit, Result<()>) {
        let mut carried = Vec::new();
        let mut outcome = Ok(());
        let Phase::Prepared(decision) = state.transaction.phase else {
            return (Commit::done(), outcome);
        };
        let mut left = state.transaction.clone();
        left.partitions.retain(|at| {
            let marked = self.mark(at, state.transaction.producer, decision, wakes);
            marked
                .map(|marked| carried.extend(marked.map(commit_of_marker)))
                .map_err(|error| outcome = Err(error))
                .is_err()
        });
        left.offsets.retain(|group, staged| {
            let committed = self.groups.commit_staged(group, staged, wakes);
            let committed = committed.map(|committed| carried.extend(committed));
            committed.map_err(|refused| outcome = Err(refused.into())).is_err()
        });
        let is_complete = left.partitions.is_empty() && left.offsets.is_empty();
        let completed = left.completed(self.table.now_ms()).filter(|_| is_complete);
        let next = completed.unwrap_or(left);
        if next != state.transaction {
            match self.table.put(&self.core, cell, state, next, wakes) {
                Ok(appended) => carried.push(appended.commit),
                Err(error) => return (Commit::all(carried), Err(error)),
            }
        }
        if is_complete {
            cell.settled.notify_waiters();
            let counts = &self.table.counts;
            if decision == Decision::Commit { &counts.committed } else { &counts.aborted }.add(1);
        }
        (Commit::all(carried), outcome)
    }

    /// Closes a producer's transaction in a partition. If the transaction wrote there, appends the marker of its
    /// outcome.
    fn mark(
        &self,
        at: &TopicPartition,
        producer: ProducerEpoch,
        decision: Decision,
        wakes: &mut Wakes,
    ) -> Result<Option<Appended>> {
        // A topic that was deleted, or created again with fewer partitions, has no records of the transaction.
        let Some(topic) = self.core.existing_topic(at.topic.as_str()) else {
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
        let options = AppendOptions::own(&topic.settings, self.core.now_ms());
        self.core.append_own(&cell, &options, batch, wakes).map(Some)
    }

    fn count_refused(&self, refused: &TransactionError) {
        if refused.reason == TransactionReason::Fenced {
            self.table.counts.fenced.add(1);
        }
    }

    /// Aborts transactions that exceed their timeout, retries pending decisions, and removes unused ids.
    async fn look_through(&self) -> Result<()> {
        let coordinator = self.restored().await?;
        let retention_ms = self.core.settings().transactional_id_expiration.as_millis() as u64;
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
                    self.remove_unused(&cell, &mut state, &mut wakes).map(|()| Commit::done())
                } else {
                    continue;
                }
            };
            drop(wakes);
            match carried {
                // Groups apply their offsets when the log is durable.
                Ok(commit) => drop(tokio::spawn(commit.wait())),
                Err(error) => {
                    tracing::warn!(id = %cell.id, %error, "cannot end a transaction; retrying");
                }
            }
        }
        Ok(())
    }

    fn remove_unused(&self, cell: &Cell, state: &mut State, wakes: &mut Wakes) -> Result<()> {
        drop(append_transaction(&self.core, &cell.id, None, wakes)?);
        state.is_gone = true;
        self.table.cells.write().remove(&cell.id);
        tracing::info!(id = %cell.id, "an unused transactional id was removed");
        Ok(())
    }
}

impl Cell {
    fn new(id: TransactionalId, transaction: Transaction) -> Self {
        Self {
            id,
            state: Mutex::new(State { transaction, is_gone: false, is_forgotten: false }),
            settled: Notify::new(),
        }
    }

    /// Waits until the last decision has been carried out, but at most for `SETTLE_WAIT`.
    async fn wait_until_settled(&self) {
        let deadline = tokio::time::Instant::now() + SETTLE_WAIT;
        loop {
            let settled = self.settled.notified();
            tokio::pin!(settled);
            settled.as_mut().enable();
            let is_settled = {
                let state = self.state.lock();
                state.is_gone || !matches!(state.transaction.phase, Phase::Prepared(_))
            };
            if is_settled || tokio::time::timeout_at(deadline, settled).await.is_err() {
                return;
            }
        }
    }
}

/// Runs the timer of all transactions for as long as the broker exists.
pub(crate) async fn keep_time(transactions: Weak<Transactions>) {
    let mut interval = tokio::time::interval(LOOK_EVERY);
    loop {
        interval.tick().await;
        let Some(transactions) = transactions.upgrade() else {
            return;
        };
        if let Err(error) = transactions.look_through().await {
            tracing::error!(%error, "transactions cannot be checked");
        }
    }
}

#[cfg(test)]
mod tests;
