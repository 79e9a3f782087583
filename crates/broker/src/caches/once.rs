//! Operations that are done once, however often they come.

use engine::cache::operations::{OperationAnswer, OperationId};
use engine::cache::{Added, Condition, Stored, Ttl};
use engine::{Error, ErrorKind, Result};

use super::{Cache, Locked};

impl Cache {
    /// [`Cache::put`], unless it was done before: then what was answered.
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

    /// [`Cache::delete`], unless it was done before: then what was answered.
    pub fn delete_once(&self, key: &[u8], condition: Condition, operation: OperationId) -> Result<Stored> {
        let delete = |locked: &mut Locked<'_>| Ok(OperationAnswer::Stored(locked.delete_if(key, condition)));
        stored(self.once(key, 0, operation, delete)?, operation)
    }

    /// [`Cache::add`], unless it was done before: then what was answered.
    pub fn add_once(&self, key: &[u8], delta: i64, ttl: Ttl, operation: OperationId) -> Result<Added> {
        let expires = self.expires(ttl)?;
        let add = |locked: &mut Locked<'_>| locked.add_for(key, delta, expires).map(OperationAnswer::Added);
        match self.once(key, 20, operation, add)? {
            OperationAnswer::Added(added) => Ok(added),
            OperationAnswer::Stored(_) => Err(another(operation)),
        }
    }

    /// Where there is no room for it others give some, and it is tried once more.
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

    /// Another of the same number waits for the lock of the key meanwhile.
    fn try_once(
        &self,
        key: &[u8],
        operation: OperationId,
        work: &impl Fn(&mut Locked<'_>) -> Result<OperationAnswer>,
    ) -> Result<OperationAnswer> {
        self.admit()?;
        let mut locked = self.lock([key]);
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
