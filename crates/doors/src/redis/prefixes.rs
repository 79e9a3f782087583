//! Map of prefixes, in which those of a name are found.

use std::collections::{BTreeMap, HashMap};

/// Values of prefixes. Those of a name are found by one lookup for each length that prefixes have, whatever their
/// number is.
pub(super) struct PrefixMap<V> {
    by_prefix: HashMap<Box<[u8]>, V, foldhash::quality::RandomState>,
    /// Number of prefixes of each length.
    lengths: BTreeMap<usize, usize>,
}

impl<V> Default for PrefixMap<V> {
    fn default() -> Self {
        Self { by_prefix: HashMap::default(), lengths: BTreeMap::new() }
    }
}

impl<V: Default> PrefixMap<V> {
    /// Returns the value of a prefix, which is added if it does not exist.
    pub(super) fn entry(&mut self, prefix: &[u8]) -> &mut V {
        self.by_prefix.entry(prefix.into()).or_insert_with(|| {
            *self.lengths.entry(prefix.len()).or_default() += 1;
            V::default()
        })
    }
}

impl<V> PrefixMap<V> {
    /// Changes the value of a prefix, and removes the prefix if `change` returns `true`.
    pub(super) fn change(&mut self, prefix: &[u8], change: impl FnOnce(&mut V) -> bool) {
        if !self.by_prefix.get_mut(prefix).is_some_and(change) {
            return;
        }
        self.by_prefix.remove(prefix);
        if let Some(count) = self.lengths.get_mut(&prefix.len()) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&prefix.len());
            }
        }
    }

    /// Returns the values of all prefixes that a name begins with, the shortest first.
    pub(super) fn of<'m>(&'m self, name: &[u8]) -> impl Iterator<Item = &'m V> {
        self.lengths.range(..=name.len()).filter_map(move |(length, _)| self.by_prefix.get(&name[..*length]))
    }

    /// Returns the number of prefixes.
    pub(super) fn len(&self) -> usize {
        self.by_prefix.len()
    }

    /// Returns the number of lookups for a long name.
    pub(super) fn lookups(&self) -> usize {
        self.lengths.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_prefixes_of_a_name_are_found() {
        let mut map: PrefixMap<Vec<&str>> = PrefixMap::default();
        for prefix in ["", "a", "ab", "abc", "b", "a", "zz"] {
            map.entry(prefix.as_bytes()).push(prefix);
        }
        let of = |map: &PrefixMap<Vec<&str>>, name: &str| {
            map.of(name.as_bytes()).flatten().copied().collect::<Vec<_>>().join(",")
        };
        assert_eq!((of(&map, "abd"), of(&map, ""), of(&map, "b")), (",a,a,ab".into(), "".into(), ",b".to_owned()));
        assert_eq!((map.len(), map.lookups()), (6, 4));
        map.change(b"a", |values| values.pop().is_none());
        assert_eq!(of(&map, "abd"), ",a,ab");
        map.change(b"a", |_| true);
        map.change(b"zz", |_| true);
        map.change(b"none", |_| true);
        assert_eq!((of(&map, "abd"), map.len(), map.lookups()), (",ab".into(), 4, 4));
        map.change(b"ab", |_| true);
        assert_eq!((of(&map, "abd"), map.lookups()), (String::new(), 3));
    }
}
