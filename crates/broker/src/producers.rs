//! Ids of producers that number their batches. No id is assigned twice, not even after a restart.

use std::ops::Range;

use engine::Result;
use parking_lot::Mutex;

use crate::clock::Clock;

/// Ids that are reserved together, so that the storage of the reservations is seldom called.
const BLOCK_IDS: u32 = 1000;
/// Binary logarithm of the ids per millisecond that a broker without a disk may assign before ids could repeat after a
/// restart.
const IDS_PER_MS_LOG: u32 = 20;

/// Function that reserves `n` ids and returns the first. None of them was reserved before. It may wait for the disk.
pub type ReserveIds = Box<dyn FnMut(u32) -> Result<i64> + Send>;

/// Source of producer ids.
pub struct ProducerIds(Mutex<Block>);

struct Block {
    /// Ids that are reserved and not yet assigned.
    left: Range<i64>,
    reserve: ReserveIds,
}

impl ProducerIds {
    /// Creates a source for a broker without a disk: its ids begin with the time of the start.
    pub(crate) fn since(clock: Clock) -> Self {
        let mut next = (clock.now_ms() << IDS_PER_MS_LOG) as i64;
        let from_clock = move |count: u32| {
            let first = next;
            next += i64::from(count);
            Ok(first)
        };
        Self(Mutex::new(Block { left: 0..0, reserve: Box::new(from_clock) }))
    }

    /// Takes all further ids from `reserve`.
    pub fn reserve_from(&self, reserve: ReserveIds) {
        *self.0.lock() = Block { left: 0..0, reserve };
    }

    /// Returns a unique id.
    pub fn next(&self) -> Result<i64> {
        let mut block = self.0.lock();
        loop {
            if let Some(id) = block.left.next() {
                return Ok(id);
            }
            let first = (block.reserve)(BLOCK_IDS)?;
            block.left = first..first + i64::from(BLOCK_IDS);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use engine::{Error, ErrorKind};

    use super::*;

    #[test]
    fn no_id_is_given_twice() {
        let ids = ProducerIds::since(Clock::SYSTEM);
        let mut given: HashSet<i64> = (0..2500).map(|_| ids.next().expect("an id")).collect();
        let mut next = 7;
        ids.reserve_from(Box::new(move |count| {
            if next > 2000 {
                return Err(Error::new(ErrorKind::Internal, "the disk is full"));
            }
            next += i64::from(count);
            Ok(next - i64::from(count))
        }));
        given.extend((0..2000).map(|_| ids.next().expect("an id")));
        assert_eq!(given.len(), 4500);
        assert!(given.iter().all(|id| *id >= 0) && given.contains(&7) && given.contains(&2006));
        assert_eq!(ids.next().map_err(|e| e.kind), Err(ErrorKind::Internal));
    }
}
