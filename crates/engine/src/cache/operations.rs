//! Answers to operations that a client may repeat, for instance after its connection broke. A repeated operation gets
//! the first answer and is not executed twice.
//!
//! A client numbers its operations and has at most [`IN_FLIGHT_MAX`] of them in flight: it begins operation `n` only
//! after operation `n - IN_FLIGHT_MAX` is finished. Answers to older operations are no longer needed.

use std::collections::{BTreeMap, HashMap};

use bytes::BufMut;

use super::{Added, Stored};
use crate::error::{Error, ErrorKind, Result};
use crate::fields::Fields;

/// Maximum number of unfinished operations of one client.
pub const IN_FLIGHT_MAX: u64 = 128;
/// Maximum number of clients whose answers one cache keeps. For a new client, the answers of the client that was silent
/// for longest are deleted.
pub const CLIENTS_MAX: usize = 1024;

const STORED: u8 = 1;
const ADDED: u8 = 2;
const UNMET: u8 = 3;
const NONE: u64 = u64::MAX;

/// Identifier of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OperationId {
    /// Number of the client, which no other client has.
    pub client: u64,
    /// Number of the operation. A client numbers its operations across all its connections.
    pub sequence: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationAnswer {
    Stored(Stored),
    Added(Added),
}

#[derive(Debug, Default)]
pub struct Operations {
    clients: HashMap<u64, Client, foldhash::fast::RandomState>,
    /// Number of answers so far, to find the client that was silent for longest.
    turn: u64,
}

#[derive(Debug, Default)]
struct Client {
    /// Answers by operation number: those less than [`IN_FLIGHT_MAX`] before the newest.
    answers: BTreeMap<u64, OperationAnswer>,
    newest: u64,
    turn: u64,
}

impl Operations {
    /// Returns the answer to an operation, or `None` if it has not been executed. Fails with `OutOfRange` if the
    /// operation is too old for its answer to be kept.
    pub fn find(&self, id: OperationId) -> Result<Option<OperationAnswer>> {
        let Some(client) = self.clients.get(&id.client) else {
            return Ok(None);
        };
        if id.sequence.saturating_add(IN_FLIGHT_MAX) <= client.newest {
            let sequence = id.sequence;
            let newest = client.newest;
            return Err(Error::new(
                ErrorKind::OutOfRange,
                format!("operation {sequence} is too old: the newest is {newest}, and its answer is no longer kept"),
            ));
        }
        Ok(client.answers.get(&id.sequence).copied())
    }

    pub fn remember(&mut self, id: OperationId, answer: OperationAnswer) {
        if self.clients.len() == CLIENTS_MAX && !self.clients.contains_key(&id.client) {
            let silent = self.clients.iter().min_by_key(|(_, client)| client.turn).map(|(id, _)| *id);
            silent.and_then(|silent| self.clients.remove(&silent));
        }
        self.turn += 1;
        let client = self.clients.entry(id.client).or_default();
        client.turn = self.turn;
        client.newest = client.newest.max(id.sequence);
        client.answers.insert(id.sequence, answer);
        let oldest = client.newest.saturating_sub(IN_FLIGHT_MAX - 1);
        if client.answers.first_key_value().is_some_and(|(first, _)| *first < oldest) {
            client.answers = client.answers.split_off(&oldest);
        }
    }

    /// Returns `true` if no answer is remembered.
    pub fn is_empty(&self) -> bool {
        self.clients.values().all(|client| client.answers.is_empty())
    }

    /// Returns all remembered answers: the client that was silent for longest first, and each client's answers in the
    /// order of its operations.
    pub fn iter(&self) -> impl Iterator<Item = (OperationId, OperationAnswer)> {
        let mut clients: Vec<_> = self.clients.iter().collect();
        clients.sort_unstable_by_key(|(_, client)| client.turn);
        clients.into_iter().flat_map(|(id, client)| {
            let operation = |sequence: &u64| OperationId { client: *id, sequence: *sequence };
            client.answers.iter().map(move |(sequence, answer)| (operation(sequence), *answer))
        })
    }
}

impl OperationAnswer {
    pub(super) fn encode(self, out: &mut Vec<u8>) {
        match self {
            Self::Stored(Stored::Done { version, previous }) => {
                out.put_u8(STORED);
                out.put_u64(version);
                out.put_u64(previous.unwrap_or(NONE));
            }
            Self::Stored(Stored::Unmet { current }) => {
                out.put_u8(UNMET);
                out.put_u64(current.unwrap_or(NONE));
            }
            Self::Added(Added { value, version, expires_ms }) => {
                out.put_u8(ADDED);
                out.put_i64(value);
                out.put_u64(version);
                out.put_u64(expires_ms.unwrap_or(NONE));
            }
        }
    }

    pub(super) fn decode(fields: &mut Fields<'_>) -> Result<Self> {
        let number = |number: u64| (number != NONE).then_some(number);
        Ok(match fields.u8()? {
            STORED => Self::Stored(Stored::Done { version: fields.u64()?, previous: number(fields.u64()?) }),
            UNMET => Self::Stored(Stored::Unmet { current: number(fields.u64()?) }),
            ADDED => Self::Added(Added {
                value: fields.u64()? as i64,
                version: fields.u64()?,
                expires_ms: number(fields.u64()?),
            }),
            other => return Err(Error::malformed(format!("unknown answer {other}"))),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn answer(version: u64) -> OperationAnswer {
        OperationAnswer::Stored(Stored::Done { version, previous: None })
    }

    proptest! {
        /// Operations are executed in any order that the bound allows, and are repeated at any time before they are
        /// finished.
        #[test]
        fn nothing_is_done_twice(
            picks in proptest::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 1..600)
        ) {
            let mut operations = Operations::default();
            let mut done = 0;
            let mut open = BTreeMap::<u64, Option<OperationAnswer>>::new();
            let mut next = 0;
            for (pick, is_over) in picks {
                while open.first_key_value().is_none_or(|(first, _)| next - first < IN_FLIGHT_MAX) && open.len() < 200 {
                    open.insert(next, None);
                    next += 1;
                }
                let sequence = *open.keys().nth(pick.index(open.len())).expect("there is one");
                let id = OperationId { client: 7, sequence };
                let found = operations.find(id).expect("it is not too old");
                prop_assert_eq!(found, open[&sequence]);
                if found.is_none() {
                    done += 1;
                    operations.remember(id, answer(done));
                    open.insert(sequence, Some(answer(done)));
                } else if is_over {
                    open.remove(&sequence);
                }
                prop_assert!(operations.iter().count() as u64 <= IN_FLIGHT_MAX);
            }
            let mut again = Operations::default();
            operations.iter().for_each(|(id, answer)| again.remember(id, answer));
            prop_assert!(again.iter().eq(operations.iter()));
        }
    }

    #[test]
    fn outdated_operations_are_refused_and_silent_clients_are_evicted() {
        let mut operations = Operations::default();
        let id = |client, sequence| OperationId { client, sequence };
        operations.remember(id(1, 0), answer(1));
        operations.remember(id(1, IN_FLIGHT_MAX), answer(2));
        assert_eq!(operations.find(id(1, 0)).map_err(|error| error.kind), Err(ErrorKind::OutOfRange));
        assert_eq!(operations.find(id(1, 1)), Ok(None));
        for client in 2..=CLIENTS_MAX as u64 {
            operations.remember(id(client, 5), answer(client));
        }
        operations.remember(id(1, IN_FLIGHT_MAX), answer(3));
        operations.remember(id(5000, 5), answer(5000));
        assert_eq!(operations.find(id(2, 5)), Ok(None), "it was silent for longest");
        assert_eq!(operations.find(id(1, IN_FLIGHT_MAX)), Ok(Some(answer(3))));
        assert_eq!(operations.find(id(3, 5)), Ok(Some(answer(3))));
    }

    #[test]
    fn answers_are_read_as_they_were_written() {
        let unmet = |current| OperationAnswer::Stored(Stored::Unmet { current });
        let done = OperationAnswer::Stored(Stored::Done { version: 9, previous: Some(8) });
        let added = OperationAnswer::Added(Added { value: -5, version: 7, expires_ms: Some(1) });
        for answer in [answer(1), done, unmet(None), unmet(Some(4)), added] {
            let mut bytes = Vec::new();
            answer.encode(&mut bytes);
            assert_eq!(OperationAnswer::decode(&mut Fields(&bytes)), Ok(answer));
            OperationAnswer::decode(&mut Fields(&bytes[..bytes.len() - 1])).expect_err("cut short");
        }
        OperationAnswer::decode(&mut Fields(&[9])).expect_err("no answer");
    }
}
