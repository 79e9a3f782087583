//! Share sessions: the partitions that a member consumes from and the messages that it holds, across its requests.
//!
//! A session ends with its connection, or when its member ends it. Messages that the member still holds are then
//! released.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use broker::metrics::Exposition;
use broker::{AcquireFrom, Broker, SHARE_IN_FLIGHT_MAX};
use engine::groups::{GroupName, MemberId};
use engine::limits::GROUP_PARTITIONS_MAX;
use engine::queue::{Lease, QueueName};
use engine::{Offset, PartitionId, TopicId};
use parking_lot::Mutex;

use super::super::errors::Code;

/// Maximum number of sessions of all connections, and of the partitions in all of these sessions.
pub(super) const SESSIONS_MAX: usize = 16_384;
const PLACES_MAX: usize = 1 << 21;
/// Values of the epoch for a session that begins, and for one that ends.
pub(super) const BEGINS: i32 = 0;
pub(super) const ENDS: i32 = -1;

/// Owner of a session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub group: GroupName,
    pub member: MemberId,
}

/// Partition as named in requests.
pub(super) type Place = (TopicId, PartitionId);

#[derive(Default)]
pub(in super::super) struct ShareSessions {
    sessions: Mutex<Sessions>,
    connections: AtomicU64,
}

/// Invariant: `places` is the number of partitions of all sessions.
#[derive(Default)]
struct Sessions {
    by_key: HashMap<Key, Session>,
    places: usize,
}

#[derive(Default)]
struct Session {
    /// Connection of its last request.
    connection: u64,
    /// Epoch of its next request.
    epoch: i32,
    partitions: BTreeSet<Place>,
    /// Messages that the member holds, or held until their leases expired.
    taken: HashMap<Place, Taken>,
}

/// Messages of one partition by offset, each with its lease.
#[derive(Clone, Debug)]
pub(super) struct Taken {
    pub queue: QueueName,
    pub leases: BTreeMap<Offset, u64>,
}

/// Changes that a request makes to the partitions of a session.
#[derive(Debug, Default)]
pub(super) struct Change {
    pub added: Vec<Place>,
    pub forgotten: Vec<Place>,
}

impl ShareSessions {
    /// Applies a request to a session; its epoch must be the next, or the first. Returns the partitions of the session
    /// in turn. A refused request changes nothing.
    pub(super) fn step(&self, key: &Key, connection: u64, epoch: i32, change: Change) -> Result<Vec<Place>, Code> {
        let mut sessions = self.sessions.lock();
        match sessions.by_key.get(key) {
            None if epoch != BEGINS => return Err(Code::SHARE_SESSION_NOT_FOUND),
            None if sessions.by_key.len() >= SESSIONS_MAX => return Err(Code::SHARE_SESSION_LIMIT_REACHED),
            Some(_) if epoch == ENDS => return Ok(Vec::new()),
            Some(session) if epoch != BEGINS && epoch != session.epoch => {
                return Err(Code::INVALID_SHARE_SESSION_EPOCH);
            }
            current => {
                let had = current.map_or(0, |session| session.partitions.len());
                let kept = current.filter(|_| epoch != BEGINS).map(|session| &session.partitions);
                let is_new = |place: &&Place| kept.is_none_or(|kept| !kept.contains(place));
                let left = GROUP_PARTITIONS_MAX - kept.map_or(0, BTreeSet::len);
                let more = change.added.iter().filter(is_new).count().min(left);
                if sessions.places - had + kept.map_or(0, BTreeSet::len) + more > PLACES_MAX {
                    return Err(Code::SHARE_SESSION_LIMIT_REACHED);
                }
            }
        }
        let Sessions { by_key, places } = &mut *sessions;
        let session = by_key.entry(key.clone()).or_default();
        *places -= session.partitions.len();
        if epoch == BEGINS {
            // The member keeps the messages that it holds.
            session.partitions = BTreeSet::new();
        }
        session.connection = connection;
        session.epoch = if epoch == i32::MAX { 1 } else { epoch + 1 };
        for place in change.added {
            if session.partitions.len() < GROUP_PARTITIONS_MAX {
                session.partitions.insert(place);
            }
        }
        change.forgotten.iter().for_each(|place| _ = session.partitions.remove(place));
        *places += session.partitions.len();
        let mut partitions: Vec<Place> = session.partitions.iter().copied().collect();
        if !partitions.is_empty() {
            let turn = epoch as usize % partitions.len();
            partitions.rotate_left(turn);
        }
        Ok(partitions)
    }

    /// Calls `look` with the messages of a partition that a member holds.
    pub(super) fn taken<T>(&self, key: &Key, place: &Place, look: impl FnOnce(&Taken) -> T) -> Option<T> {
        self.sessions.lock().by_key.get(key)?.taken.get(place).map(look)
    }

    /// Records the messages as held by the member. Returns `false` if its session has ended, so that it does not
    /// receive them.
    pub(super) fn take(&self, key: &Key, place: Place, queue: &QueueName, leases: &[Lease]) -> bool {
        let mut sessions = self.sessions.lock();
        let Some(session) = sessions.by_key.get_mut(key) else {
            return false;
        };
        let taken = session.taken.entry(place);
        let taken = taken.or_insert_with(|| Taken { queue: queue.clone(), leases: BTreeMap::new() });
        taken.leases.extend(leases.iter().map(|lease| (lease.offset, lease.lease)));
        true
    }

    /// Removes messages from those that the member holds, unless they were leased to it again.
    pub(super) fn forget(&self, key: &Key, place: &Place, leases: &[(Offset, u64)]) {
        let mut sessions = self.sessions.lock();
        let Some(session) = sessions.by_key.get_mut(key) else {
            return;
        };
        let Some(taken) = session.taken.get_mut(place) else {
            return;
        };
        for (offset, lease) in leases {
            if taken.leases.get(offset) == Some(lease) {
                taken.leases.remove(offset);
            }
        }
        if taken.leases.is_empty() {
            session.taken.remove(place);
        }
    }

    /// Removes messages whose leases have expired, if there are many.
    pub(super) async fn tidy(&self, broker: &Broker, key: &Key, place: &Place) {
        let much = |taken: &Taken| (taken.leases.len() > SHARE_IN_FLIGHT_MAX as usize).then(|| taken.clone());
        let Some(taken) = self.taken(key, place, much).flatten() else {
            return;
        };
        let from = AcquireFrom { queue: taken.queue, partition: place.1 };
        let mut over: Vec<(Offset, u64)> = taken.leases.into_iter().collect();
        let all = over.clone();
        if let Err(error) = broker.queues.held(&from, &mut over).await {
            tracing::debug!(%error, "the topic of a session was deleted");
            over.clear();
        }
        let held: BTreeMap<Offset, u64> = over.into_iter().collect();
        let over: Vec<_> = all.into_iter().filter(|(offset, _)| !held.contains_key(offset)).collect();
        self.forget(key, place, &over);
    }

    /// Ends a session.
    pub(super) async fn end(&self, broker: &Broker, key: &Key) {
        let ended = self.sessions.lock().remove(key);
        if let Some(session) = ended {
            session.release(broker).await;
        }
    }

    pub(in super::super) fn expose(&self, out: &mut Exposition<'_>) -> fmt::Result {
        let count = self.sessions.lock().by_key.len() as u64;
        out.gauge("thalweg_kafka_share_sessions", "Sessions in which members of share groups receive messages", count)
    }
}

impl Sessions {
    fn remove(&mut self, key: &Key) -> Option<Session> {
        let session = self.by_key.remove(key)?;
        self.places -= session.partitions.len();
        Some(session)
    }
}

impl Session {
    async fn release(self, broker: &Broker) {
        for ((_, partition), Taken { queue, leases }) in self.taken {
            let leases: Vec<(Offset, u64)> = leases.into_iter().collect();
            if let Err(error) = broker.queues.release_acquired(&AcquireFrom { queue, partition }, &leases).await {
                tracing::debug!(%error, "cannot release the leases of a session");
            }
        }
    }
}

/// Share sessions of one connection; they end with it.
pub(in super::super) struct ShareConnection {
    pub(super) sessions: Arc<ShareSessions>,
    broker: Weak<Broker>,
    pub(super) id: u64,
}

impl ShareConnection {
    pub(in super::super) fn new(sessions: Arc<ShareSessions>, broker: Weak<Broker>) -> Self {
        let id = sessions.connections.fetch_add(1, Ordering::Relaxed);
        Self { sessions, broker, id }
    }
}

impl Drop for ShareConnection {
    fn drop(&mut self) {
        let mut sessions = self.sessions.sessions.lock();
        let is_of = |(key, session): (&Key, &Session)| (session.connection == self.id).then(|| key.clone());
        let ended: Vec<Key> = sessions.by_key.iter().filter_map(is_of).collect();
        let ended: Vec<Session> = ended.iter().filter_map(|key| sessions.remove(key)).collect();
        drop(sessions);
        if ended.is_empty() {
            return;
        }
        // When the process ends, the leases expire.
        if let (Ok(runtime), Some(broker)) = (tokio::runtime::Handle::try_current(), self.broker.upgrade()) {
            runtime.spawn(async move {
                for session in ended {
                    session.release(&broker).await;
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(member: &str) -> Key {
        let group = GroupName::parse("g").expect("a name");
        Key { group, member: MemberId::parse(member).expect("an id") }
    }

    #[test]
    fn sessions_beyond_the_limit_are_refused() {
        let sessions = ShareSessions::default();
        for number in 0..SESSIONS_MAX {
            sessions.step(&key(&number.to_string()), 0, BEGINS, Change::default()).expect("room");
        }
        let one_more = sessions.step(&key("one more"), 0, BEGINS, Change::default());
        assert_eq!(one_more, Err(Code::SHARE_SESSION_LIMIT_REACHED));
        sessions.step(&key("7"), 0, BEGINS, Change::default()).expect("it is there already");
        drop(ShareConnection { sessions: Arc::new(sessions), broker: Weak::new(), id: 0 });
    }

    #[test]
    fn all_sessions_together_take_from_no_more_than_they_may() {
        let sessions = ShareSessions::default();
        let many = || Change {
            added: (0..GROUP_PARTITIONS_MAX as u32).map(|number| (TopicId::new(2, 3), number)).collect(),
            forgotten: Vec::new(),
        };
        let full = PLACES_MAX / GROUP_PARTITIONS_MAX;
        for number in 0..full {
            sessions.step(&key(&number.to_string()), 0, BEGINS, many()).expect("room");
        }
        let limit = Some(Code::SHARE_SESSION_LIMIT_REACHED);
        assert_eq!(sessions.step(&key("one more"), 0, BEGINS, many()).err(), limit);
        assert_eq!(sessions.step(&key("one more"), 0, 1, Change::default()), Err(Code::SHARE_SESSION_NOT_FOUND));
        sessions.step(&key("0"), 0, 1, many()).expect("it has them already");
        sessions.step(&key("0"), 0, BEGINS, many()).expect("in place of those before");
        let forgotten = Change { added: Vec::new(), forgotten: many().added };
        sessions.step(&key("0"), 0, 1, forgotten).expect("fewer");
        sessions.step(&key("one more"), 1, BEGINS, many()).expect("room again");
        assert_eq!(sessions.step(&key("0"), 0, 2, many()).err(), limit);
        let sessions = Arc::new(sessions);
        drop(ShareConnection { sessions: sessions.clone(), broker: Weak::new(), id: 1 });
        sessions.step(&key("0"), 0, 2, many()).expect("room again, and the same request");
    }

    #[test]
    fn a_request_that_is_refused_leaves_a_session_where_it_is() {
        let sessions = Arc::new(ShareSessions::default());
        sessions.step(&key("m"), 1, BEGINS, Change::default()).expect("begins");
        let other = ShareConnection { sessions: sessions.clone(), broker: Weak::new(), id: 2 };
        assert_eq!(sessions.step(&key("m"), 2, 7, Change::default()), Err(Code::INVALID_SHARE_SESSION_EPOCH));
        drop(other);
        sessions.step(&key("m"), 1, 1, Change::default()).expect("it goes on");
    }

    #[test]
    fn a_session_takes_from_its_partitions_in_turn() {
        let sessions = ShareSessions::default();
        let place = |number| (TopicId::new(2, 3), number);
        let of = |added: &[u32], forgotten: &[u32]| {
            let places = |numbers: &[u32]| numbers.iter().map(|number| place(*number)).collect();
            Change { added: places(added), forgotten: places(forgotten) }
        };
        let step = |epoch, change| {
            let places = sessions.step(&key("m"), 0, epoch, change)?;
            Ok(places.into_iter().map(|(_, number)| number).collect::<Vec<_>>())
        };
        assert_eq!(step(0, of(&[2, 1, 2], &[])), Ok(vec![1, 2]));
        assert_eq!(step(1, of(&[3], &[])), Ok(vec![2, 3, 1]));
        assert_eq!(step(2, of(&[4], &[4, 1, 9])), Ok(vec![2, 3]));
        assert_eq!(step(2, of(&[], &[])), Err(Code::INVALID_SHARE_SESSION_EPOCH));
        assert_eq!(step(0, of(&[], &[])), Ok(vec![]), "it begins again");
        let too_many: Vec<u32> = (0..=GROUP_PARTITIONS_MAX as u32).collect();
        assert_eq!(step(1, of(&too_many, &[])).map(|places| places.len()), Ok(GROUP_PARTITIONS_MAX));
    }
}
