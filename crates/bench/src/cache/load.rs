//! Operations of one kind, with a fixed number in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use client::{Cache, Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use super::{Entry, Operation};
use crate::pubsub::panicked;

/// Failures of operations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Faults {
    /// Operations that the server answered with an error.
    pub refused: u64,
    /// Operations without an answer.
    pub lost: u64,
    /// Operations with an incorrect answer.
    pub wrong: u64,
    /// Description of the first failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first: Option<String>,
}

impl Faults {
    pub fn count(&self) -> u64 {
        self.refused + self.lost + self.wrong
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.refused += other.refused;
        self.lost += other.lost;
        self.wrong += other.wrong;
        self.first = self.first.take().or_else(|| other.first.clone());
    }

    fn note(&mut self, error: &Error) {
        match error.kind {
            ErrorKind::Timeout | ErrorKind::Disconnected => self.lost += 1,
            ErrorKind::Malformed => self.wrong += 1,
            _ => self.refused += 1,
        }
        self.first.get_or_insert_with(|| error.to_string());
    }
}

/// Generator of the load.
pub(super) struct Load {
    cache: Cache,
    entries: Arc<[Entry]>,
    concurrency: usize,
    /// Failures of all passes.
    pub faults: Faults,
}

impl Load {
    pub(super) fn new(cache: Cache, entries: Arc<[Entry]>, concurrency: usize) -> Self {
        Self { cache, entries, concurrency, faults: Faults::default() }
    }

    /// Runs `count` operations on alternating keys. Returns the durations of the correctly answered ones. Once an
    /// answer was lost, no further operation is started.
    pub(super) async fn pass(&mut self, operation: Operation, count: usize) -> Result<Vec<Duration>> {
        if self.faults.lost > 0 {
            return Ok(Vec::new());
        }
        let cache = self.cache.clone();
        let entries = self.entries.clone();
        let pass = Arc::new(Pass { cache, entries, operation, count, next: AtomicUsize::new(0) });
        let mut workers = JoinSet::new();
        let mut times = Vec::with_capacity(count);
        for _ in 0..self.concurrency.max(1).min(count) {
            workers.spawn(Pass::ask_on(pass.clone()));
        }
        while let Some(found) = workers.join_next().await {
            let found = found.map_err(panicked)?;
            times.extend(found.times);
            self.faults.add(&found.faults);
        }
        Ok(times)
    }
}

/// State that concurrent tasks of a pass share.
struct Pass {
    cache: Cache,
    entries: Arc<[Entry]>,
    operation: Operation,
    count: usize,
    /// Number of the next operation.
    next: AtomicUsize,
}

/// Results of one task.
#[derive(Default)]
struct Found {
    times: Vec<Duration>,
    faults: Faults,
}

impl Pass {
    /// Runs operations one after the other, until all are started.
    async fn ask_on(self: Arc<Self>) -> Found {
        let mut found = Found::default();
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.count {
                return found;
            }
            let entry = &self.entries[number % self.entries.len()];
            let begin = Instant::now();
            let answer = self.ask(entry).await;
            let elapsed = begin.elapsed();
            match answer {
                Ok(()) => found.times.push(elapsed),
                Err(error) => found.faults.note(&error),
            }
            if found.faults.lost > 0 {
                self.next.fetch_max(self.count, Ordering::Relaxed);
            }
        }
    }

    async fn ask(&self, entry: &Entry) -> Result<()> {
        let Self { cache, operation, .. } = self;
        let found = match operation {
            Operation::Put => return cache.put(entry.key.clone(), entry.value.clone()).await.map(drop),
            Operation::GetHit | Operation::GetMiss => cache.get(entry.key.clone()).await?,
        };
        let is_right = match (operation, &found) {
            (Operation::GetHit, Some(found)) => found.value == entry.value,
            (_, found) => found.is_none() && *operation == Operation::GetMiss,
        };
        let key = String::from_utf8_lossy(&entry.key);
        match (is_right, found) {
            (true, _) => Ok(()),
            (false, None) => Err(Error::malformed(format!("no value was found for {key}, which was put"))),
            (false, Some(_)) => Err(Error::malformed(format!("a value that was not put was found for {key}"))),
        }
    }
}
