//! Operations that are executed once, however often they are sent.

use engine::cache::operations::{OperationAnswer, OperationId};
use engine::cache::{Added, Condition, Stored, Ttl};
use engine::{Error, ErrorKind, Result};

use super::cache::{Cache, Locked};

impl Cache {
    /// Executes [`Cache::put`], or returns its answer if the operation was executed before.
    pub fn put_once(
        &self,
        key: &[u8],
        value: &[u8],
        ttl: Ttl,
        condition: Condition,
        operation: OperationId,
    ) -> Result<Stored> {
        let expires = self.expires(ttl)?;
        let put = |locked: &mut Locked<'_>| locked.put(key, value, expires, condition).map(OperationAnswer::Stored);
        stored(self.once(key, value.len(), operation, put)?, operation)
    }

    /// Executes [`Cache::delete`], or returns its answer if the operation was executed before.
    pub fn delete_once(&self, key: &[u8], condition: Condition, operation: OperationId) -> Result<Stored> {
        let delete = |locked: &mut Locked<'_>| Ok(OperationAnswer::Stored(locked.delete_if(key, condition)));
        stored(self.once(key, 0, operation, delete)?, operation)
    }

    /// Executes [`Cache::add`], or returns its answer if the operation was executed before.
    pub fn add_once(&self, key: &[u8], delta: i64, ttl: Ttl, operation: OperationId) -> Result<Added> {
        let expires = self.expires(ttl)?;
        let add = |locked: &mut Locked<'_>| locked.add_for(key, delta, expires).map(OperationAnswer::Added);
        match self.once(key, 20, operation, add)? {
            OperationAnswer::Added(added) => Ok(added),
            OperationAnswer::Stored(_) => Err(another(operation)),
        }
    }

    /// Executes an operation once. If there is no room, other stripes free some and the operation is retried once.
    fn once(
        &self,
        key: &[u8],
        value_bytes: usize,
        operation: OperationId,
        work: impl Fn(&mut Locked<'_>) -> Result<OperationAnswer>,
    ) -> Result<OperationAnswer> {
        match self.try_once(key, operation, &work) {
            Err(error) if error.kind == ErrorKind::Busy => {
                self.admit()?;
                self.shed_for(self.key(key), value_bytes);
                self.try_once(key, operation, &work)
            }
            done => done,
        }
    }

    /// Executes an operation, unless it was executed before. A concurrent one with the same number waits for the lock
    /// of the key.
    fn try_once(
        &self,
        key: &[u8],
        operation: OperationId,
        work: &impl Fn(&mut Locked<'_>) -> Result<OperationAnswer>,
    ) -> Result<OperationAnswer> {
        self.admit()?;
        let mut locked = self.lock_one_or_busy(key)?;
        if let Some(answer) = self.operations.lock().find(operation)? {
            return Ok(answer);
        }
        let answer = work(&mut locked)?;
        self.operations.lock().remember(operation, answer);
        locked.answer(operation, answer);
        Ok(answer)
    }
}

fn stored(answer: OperationAnswer, operation: OperationId) -> Result<Stored> {
    match answer {
        OperationAnswer::Stored(stored) => Ok(stored),
        OperationAnswer::Added(_) => Err(another(operation)),
    }
}

fn another(operation: OperationId) -> Error {
    Error::invalid(format!("operation number {} was used for another operation: use a new number", operation.sequence))
}
