//! Members of a consumer group at the leader's broker: what they are told to read, and the offsets that they commit.
//!
//! A member that is told to read a partition may do so until its session would end, counted from when it sent the
//! heartbeat: the broker gives the partition to nobody else before, whichever node leads.

use std::collections::{BTreeMap, BTreeSet};

use broker::{Beat, OffsetCommit};
use consensus::{NodeId, Time};
use engine::groups::{Committer, GroupError, GroupName, Identity, Join, MemberId, NO_LEADER_EPOCH, Turn};
use engine::{Error, ErrorKind, Offset, PartitionId, Pattern, Result, TopicName, TopicPartition};

use super::views::{Answer, Busy, Views};
use super::{MS, World};
use crate::violation::{Outcome, Violation, check};

pub const TOPIC: &str = "numbers";
pub const PARTITIONS: u32 = 4;
const GROUP: &str = "readers";
const MEMBERS: usize = 3;
const SESSION_MS: u32 = 3000;
/// Time by which a session may end early: the broker counts in whole ms.
const CLOCK_MS: u32 = 2;
/// Longer than any run: no member is removed because it releases partitions late.
const REBALANCE_MS: u32 = 3_600_000;
/// A member ends without leaving, or leaves, once in this many calls.
const END_EVERY: u64 = 40;
const LEAVE_EVERY: u64 = 40;

/// Answer to a member of the group.
pub enum Told {
    /// It was told what to read, or why it was not.
    Beaten(Result<Turn, GroupError>),
    Committed(PartitionId, Offset),
    Left,
}

/// Clients of the group, and what they were told.
#[derive(Default)]
pub struct Members {
    clients: [Client; MEMBERS],
    /// Offsets of each partition, in the order of the commits.
    offsets: BTreeMap<PartitionId, Register>,
}

#[derive(Default)]
struct Client {
    /// Number of programs that have ended: each has another id.
    ended: u64,
    /// Epoch of its membership; 0 if it has to join.
    epoch: u32,
    reads: BTreeSet<PartitionId>,
    /// Time until which it may read them without another answer.
    until: Time,
    is_busy: bool,
}

/// Offset that a group has committed in a partition.
#[derive(Clone, Copy, Default)]
struct Register {
    issued: Offset,
    acknowledged: Offset,
}

impl Members {
    pub fn set_busy(&mut self, client: usize, is_busy: bool) {
        self.clients[client].is_busy = is_busy;
    }

    /// Returns `true` if every partition is read by a member.
    pub fn is_complete(&self, now: Time) -> bool {
        let reading = self.clients.iter().filter(|client| client.until > now);
        reading.flat_map(|client| &client.reads).count() == PARTITIONS as usize
    }

    pub fn about_missing(&self) -> String {
        let reads = |client: &Client| format!("{:?} until {} ms", client.reads, client.until / MS);
        format!("members read {:?}", self.clients.iter().map(reads).collect::<Vec<_>>())
    }

    /// Notes what a client was told. `begun` is when it asked.
    pub fn told(&mut self, node: NodeId, client: usize, begun: Time, now: Time, told: Told) -> Outcome {
        match told {
            Told::Beaten(Ok(turn)) => {
                check(turn.epoch >= self.clients[client].epoch, || {
                    format!("node {node} sends member {client} back to epoch {}", turn.epoch)
                })?;
                self.clients[client].epoch = turn.epoch;
                self.clients[client].until = begun + Time::from(SESSION_MS - CLOCK_MS) * MS;
                let Some(assignment) = turn.assignment else { return Ok(()) };
                let reads: BTreeSet<PartitionId> = assignment.iter().map(|at| at.partition).collect();
                let others = (0..MEMBERS).filter(|other| *other != client);
                for other in others.filter(|other| self.clients[*other].until > now) {
                    let mut both = reads.intersection(&self.clients[other].reads);
                    check(both.next().is_none(), || {
                        format!("node {node} gives member {client} {reads:?} while {other} reads some of them")
                    })?;
                }
                self.clients[client].reads = reads;
            }
            Told::Beaten(Err(refused)) if refused.error.kind == ErrorKind::Fenced => {
                // It may only have lost its membership if it was silent.
                check(self.clients[client].epoch == 0 || self.clients[client].until <= now, || {
                    format!("node {node} does not know member {client}: {}", refused.error)
                })?;
                self.clients[client].epoch = 0;
                self.clients[client].reads.clear();
            }
            // It tries again.
            Told::Beaten(Err(_)) => {}
            Told::Committed(partition, offset) => {
                let register = self.offsets.entry(partition).or_default();
                register.acknowledged = register.acknowledged.max(offset);
            }
            Told::Left => self.end(client),
        }
        Ok(())
    }

    /// Ends the program of a client.
    fn end(&mut self, client: usize) {
        let ended = self.clients[client].ended + 1;
        self.clients[client] = Client { ended, ..Client::default() };
    }

    /// Checks the committed offsets that a node has. `before` are those that were acknowledged before the call.
    pub fn found(
        &mut self,
        node: NodeId,
        before: &BTreeMap<PartitionId, Offset>,
        found: &[(PartitionId, Offset)],
    ) -> Outcome {
        let found: BTreeMap<PartitionId, Offset> = found.iter().copied().collect();
        for partition in 0..PARTITIONS {
            let register = self.offsets.entry(partition).or_default();
            let (offset, before) = (found.get(&partition).copied(), before.get(&partition).copied());
            let (offset, before) = (offset.unwrap_or_default(), before.unwrap_or_default());
            let issued = register.issued;
            check((before..=issued).contains(&offset), || {
                format!("node {node} has offset {offset} of {partition}: {before} was committed, {issued} sent")
            })?;
            register.acknowledged = register.acknowledged.max(offset);
        }
        Ok(())
    }
}

fn invalid(error: Error) -> Violation {
    Violation(error.to_string())
}

fn group() -> Result<GroupName> {
    GroupName::parse(GROUP)
}

fn at(partition: PartitionId) -> Result<TopicPartition> {
    Ok(TopicPartition { topic: TopicName::parse(TOPIC)?, partition })
}

impl Views {
    fn beat(
        &mut self,
        now: Time,
        client: usize,
        who: Identity,
        epoch: u32,
        reads: &BTreeSet<PartitionId>,
    ) -> Result<()> {
        let broker = self.broker();
        let owned = reads.iter().map(|partition| at(*partition)).collect::<Result<_>>()?;
        let join = Join {
            who: who.clone(),
            client: "simulated".to_owned(),
            host: "here".to_owned(),
            topics: vec![Pattern::parse(TOPIC)?],
            assignor: Default::default(),
            session_timeout_ms: SESSION_MS,
            rebalance_timeout_ms: REBALANCE_MS,
            takes_over: false,
        };
        let beat =
            Beat { who, epoch, owned: Some(owned), topics: None, session_timeout_ms: None, wait: Default::default() };
        let group = group()?;
        self.spawn(now, Some(Busy::Member(client)), async move {
            let outcome = match epoch {
                0 => broker.groups.join(&group, join).await,
                _ => broker.groups.heartbeat(&group, beat).await,
            };
            Ok(Answer::Member(client, Told::Beaten(outcome)))
        });
        Ok(())
    }

    fn commit(
        &mut self,
        now: Time,
        client: usize,
        committer: Committer,
        partition: PartitionId,
        offset: Offset,
    ) -> Result<()> {
        let broker = self.broker();
        let (group, partition_at) = (group()?, at(partition)?);
        let commit =
            OffsetCommit { partition: partition_at, offset, leader_epoch: NO_LEADER_EPOCH, metadata: String::new() };
        self.spawn(now, Some(Busy::Member(client)), async move {
            broker.groups.commit_offsets(&group, &committer, vec![commit]).await?;
            Ok(Answer::Member(client, Told::Committed(partition, offset)))
        });
        Ok(())
    }

    fn leave(&mut self, now: Time, client: usize, who: Identity) -> Result<()> {
        let broker = self.broker();
        let group = group()?;
        self.spawn(now, Some(Busy::Member(client)), async move {
            broker.groups.leave(&group, &who, false).await?;
            Ok(Answer::Member(client, Told::Left))
        });
        Ok(())
    }

    fn fetch_offsets(&mut self, now: Time, before: BTreeMap<PartitionId, Offset>) -> Result<()> {
        let broker = self.broker();
        let group = group()?;
        self.spawn(now, None, async move {
            let found = broker.groups.committed_offsets(&group, None).await?;
            let found = found.into_iter().map(|(at, committed)| (at.partition, committed.offset)).collect();
            Ok(Answer::Offsets(before, found))
        });
        Ok(())
    }
}

impl World {
    /// A member of the group calls a node that leads, or somebody asks for the committed offsets.
    pub(super) fn call_group(&mut self, at: usize) -> Outcome {
        let client = self.random.below(MEMBERS as u64) as usize;
        let chosen = self.random.below(10);
        let (ends, leaves) = (self.random.one_in(END_EVERY), self.random.one_in(LEAVE_EVERY));
        let partition = self.random.below(u64::from(PARTITIONS)) as PartitionId;
        let (now, is_quiet) = (self.now, self.is_quiet);
        let members = &mut self.views_ledger.members;
        let views = self.nodes[at].process.as_mut().and_then(|process| process.leading.as_mut()?.views.as_mut());
        let Some(views) = views.filter(|views| views.has_room()) else { return Ok(()) };
        if members.clients[client].is_busy {
            return Ok(());
        }
        if ends && !is_quiet {
            members.end(client);
        }
        let Client { ended, epoch, reads, until, .. } = &members.clients[client];
        let (epoch, until) = (*epoch, *until);
        let member = MemberId::parse(&format!("m{client}-{ended}")).map_err(invalid)?;
        let who = Identity { member, instance: None };
        let called = match chosen {
            _ if leaves && !is_quiet && epoch > 0 => {
                // It stops reading first.
                members.clients[client].reads.clear();
                members.clients[client].until = 0;
                views.leave(now, client, who)
            }
            0..2 if !is_quiet && until > now && reads.contains(&partition) => {
                let register = members.offsets.entry(partition).or_default();
                register.issued += 1;
                views.commit(now, client, Committer::Member { who, epoch }, partition, register.issued)
            }
            2..4 => {
                let known = members.offsets.iter().map(|(partition, register)| (*partition, register.acknowledged));
                return views.fetch_offsets(now, known.collect()).map_err(invalid);
            }
            _ => views.beat(now, client, who, epoch, reads),
        };
        members.set_busy(client, true);
        called.map_err(invalid)
    }
}
