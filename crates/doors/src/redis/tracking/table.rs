//! Table of the keys that tracking clients have read, and of the clients that read each.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;

/// Numbers of the connections that read a key.
pub(super) type Readers = SmallVec<[u64; 2]>;

/// Keys with the prefix of their tenant, so that no tenant meets a key of another.
#[derive(Default)]
pub(super) struct Table {
    by_key: HashMap<Arc<[u8]>, (usize, Readers), foldhash::quality::RandomState>,
    /// The keys, each at the position that is in `by_key`, so that any of them can be evicted.
    keys: Vec<Arc<[u8]>>,
    /// Number of readers of all keys together.
    readers: usize,
}

/// Returns a key with the prefix of its tenant. No prefix contains the separator.
pub(super) fn scoped(prefix: &str, key: &[u8]) -> Vec<u8> {
    [prefix.as_bytes(), b"\0", key].concat()
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn readers(&self) -> usize {
        self.readers
    }

    /// Remembers that a client has read a key.
    pub(super) fn add(&mut self, key: &[u8], client: u64) {
        if let Some((_, readers)) = self.by_key.get_mut(key) {
            if !readers.contains(&client) {
                readers.push(client);
                self.readers += 1;
            }
            return;
        }
        let key: Arc<[u8]> = key.into();
        let mut readers = Readers::new();
        readers.push(client);
        self.readers += 1;
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
        readers
    }

    /// Removes a key that a random number selects, and returns it with the clients that have read it.
    pub(super) fn evict(&mut self, random: u64) -> Option<(Arc<[u8]>, Readers)> {
        let at = random.checked_rem(self.keys.len() as u64)?;
        let key = self.keys[at as usize].clone();
        let readers = self.take(&key);
        Some((key, readers))
    }

    /// Removes all keys of a tenant.
    pub(super) fn clear(&mut self, prefix: &str) {
        let start = scoped(prefix, b"");
        let of_tenant: Vec<Arc<[u8]>> = self.keys.iter().filter(|key| key.starts_with(&start)).cloned().collect();
        of_tenant.iter().for_each(|key| drop(self.take(key)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_given_once_to_all_its_readers() {
        let mut table = Table::default();
        for (key, client) in [("a", 1), ("b", 1), ("a", 2), ("a", 1), ("c", 3)] {
            table.add(key.as_bytes(), client);
        }
        assert_eq!((table.len(), table.readers()), (3, 4));
        assert_eq!(table.take(b"a").as_slice(), [1, 2]);
        assert_eq!(table.take(b"a").as_slice(), [0; 0]);
        // The last key has moved to the place of the first one.
        assert_eq!(table.take(b"c").as_slice(), [3]);
        assert_eq!((table.len(), table.readers()), (1, 1));
        let (key, readers) = table.evict(7).expect("one key");
        assert_eq!((&*key, readers.as_slice()), (&b"b"[..], &[1][..]));
        assert_eq!((table.len(), table.readers(), table.evict(7)), (0, 0, None));
    }

    #[test]
    fn a_tenant_loses_only_its_own_keys() {
        let mut table = Table::default();
        table.add(&scoped("acme.", b"k"), 1);
        table.add(&scoped("", b"acme.k"), 2);
        table.clear("acme.");
        assert_eq!(table.take(&scoped("acme.", b"k")).as_slice(), [0; 0]);
        assert_eq!(table.take(&scoped("", b"acme.k")).as_slice(), [2]);
    }
}
