//! Table of the keys that tracking clients of a tenant have read, and of the clients that read each.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;

/// Numbers of the connections that read a key, in their order.
pub(super) type Readers = SmallVec<[u64; 2]>;

/// Memory of a key in addition to its bytes: its places in both collections, which are half full, and its reference
/// counts.
const KEY_BYTES: usize = 160;
/// Number of readers of a key from which on those that have gone are searched for, each time that it has doubled.
const READERS_MIN: usize = 8;

#[derive(Default)]
pub(super) struct Table {
    by_key: HashMap<Arc<[u8]>, (usize, Readers), foldhash::quality::RandomState>,
    /// The keys, each at the position that is in `by_key`, so that any of them can be evicted.
    keys: Vec<Arc<[u8]>>,
    /// Number of readers of all keys together.
    readers: usize,
    /// Memory of all keys and their readers.
    bytes: usize,
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn readers(&self) -> usize {
        self.readers
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Remembers that a client has read a key. Readers that track no longer are forgotten from time to time.
    pub(super) fn add(&mut self, key: &[u8], client: u64, is_tracking: impl Fn(u64) -> bool) {
        if let Some((_, readers)) = self.by_key.get_mut(key) {
            let Err(mut at) = readers.binary_search(&client) else {
                return;
            };
            let before = readers.len();
            if before >= READERS_MIN && before.is_power_of_two() {
                readers.retain(|id| is_tracking(*id));
                at = readers.partition_point(|id| *id < client);
            }
            readers.insert(at, client);
            let added = readers.len() as isize - before as isize;
            self.readers = self.readers.saturating_add_signed(added);
            self.bytes = self.bytes.saturating_add_signed(added * size_of::<u64>() as isize);
            return;
        }
        let key: Arc<[u8]> = key.into();
        let mut readers = Readers::new();
        readers.push(client);
        self.readers += 1;
        self.bytes += bytes_of(&key, 1);
        self.by_key.insert(key.clone(), (self.keys.len(), readers));
        self.keys.push(key);
    }

    /// Removes a key, and returns the clients that have read it.
    pub(super) fn take(&mut self, key: &[u8]) -> Readers {
        let Some((_, (at, readers))) = self.by_key.remove_entry(key) else {
            return Readers::new();
        };
        self.keys.swap_remove(at);
        if let Some(moved) = self.keys.get(at).and_then(|moved| self.by_key.get_mut(moved)) {
            moved.0 = at;
        }
        self.readers -= readers.len();
        self.bytes -= bytes_of(key, readers.len());
        readers
    }

    #[cfg(test)]
    pub(super) fn any_key(&self) -> Option<Arc<[u8]>> {
        self.keys.first().cloned()
    }

    /// Removes a key that a random number selects, and returns it with the clients that have read it.
    pub(super) fn evict(&mut self, random: u64) -> Option<(Arc<[u8]>, Readers)> {
        let at = random.checked_rem(self.keys.len() as u64)?;
        let key = self.keys[at as usize].clone();
        let readers = self.take(&key);
        Some((key, readers))
    }
}

fn bytes_of(key: &[u8], readers: usize) -> usize {
    KEY_BYTES + key.len() + readers * size_of::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_given_once_to_all_its_readers() {
        let mut table = Table::default();
        for (key, client) in [("a", 2), ("b", 1), ("a", 1), ("a", 2), ("c", 3)] {
            table.add(key.as_bytes(), client, |_| true);
        }
        assert_eq!((table.len(), table.readers()), (3, 4));
        assert_eq!(table.take(b"a").as_slice(), [1, 2]);
        assert_eq!(table.take(b"a").as_slice(), [0; 0]);
        // The last key has moved to the place of the first one.
        assert_eq!(table.take(b"c").as_slice(), [3]);
        assert_eq!((table.len(), table.readers()), (1, 1));
        let (key, readers) = table.evict(7).expect("one key");
        assert_eq!((&*key, readers.as_slice()), (&b"b"[..], &[1][..]));
        assert_eq!((table.len(), table.readers(), table.bytes(), table.evict(7)), (0, 0, 0, None));
    }

    #[test]
    fn readers_that_have_gone_are_forgotten() {
        let mut table = Table::default();
        for client in 0..10_000 {
            table.add(b"k", client, |id| id + 3 > client);
        }
        assert!(table.readers() <= READERS_MIN, "{}", table.readers());
        assert_eq!(table.bytes(), bytes_of(b"k", table.readers()));
    }
}
