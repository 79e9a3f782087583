//! Map of prefixes, in which those of a name are found.

/// Values of prefixes, as a radix tree. Those of a name are found on one path from the root. It ends where the name
/// differs from all prefixes, whatever their number and their lengths are.
///
/// Callers bound the lengths of prefixes, and with them the depth of the tree.
pub struct PrefixMap<V> {
    root: Node<V>,
    count: usize,
}

struct Node<V> {
    /// Bytes that the prefix has in addition to that of the parent; empty only for the root.
    label: Box<[u8]>,
    value: Option<V>,
    /// Longer prefixes, in the order of the first bytes of their labels, which are different.
    children: Vec<Node<V>>,
}

impl<V> Default for PrefixMap<V> {
    fn default() -> Self {
        Self { root: Node::new(&[]), count: 0 }
    }
}

impl<V: Default> PrefixMap<V> {
    /// Returns the value of a prefix, which is added if it does not exist.
    pub fn entry(&mut self, prefix: &[u8]) -> &mut V {
        let value = self.root.entry(prefix);
        self.count += usize::from(value.is_none());
        value.get_or_insert_default()
    }
}

impl<V> PrefixMap<V> {
    /// Changes the value of a prefix, and removes the prefix if `change` returns `true`.
    pub fn change(&mut self, prefix: &[u8], change: impl FnOnce(&mut V) -> bool) {
        self.count -= usize::from(self.root.change(prefix, change));
    }

    /// Returns the values of all prefixes that a name begins with, the shortest first.
    pub fn of<'m>(&'m self, name: &[u8]) -> impl Iterator<Item = &'m V> {
        self.path(name).filter_map(|node| node.value.as_ref())
    }

    /// Returns the values of all prefixes, in no order.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        let mut rest = vec![&self.root];
        let nodes = std::iter::from_fn(move || {
            let node = rest.pop()?;
            rest.extend(&node.children);
            Some(node)
        });
        nodes.filter_map(|node| node.value.as_ref())
    }

    fn path<'m>(&'m self, name: &[u8]) -> impl Iterator<Item = &'m Node<V>> {
        let mut rest = name;
        std::iter::successors(Some(&self.root), move |node| {
            let child = &node.children[node.find(*rest.first()?).ok()?];
            rest = rest.strip_prefix(&*child.label)?;
            Some(child)
        })
    }

    /// Returns the number of prefixes.
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the number of nodes on the path of a name.
    pub fn nodes_of(&self, name: &[u8]) -> usize {
        self.path(name).count()
    }
}

impl<V> Node<V> {
    fn new(label: &[u8]) -> Self {
        Self { label: label.into(), value: None, children: Vec::new() }
    }

    /// Returns the place of the child whose label begins with this byte, or the place for it.
    fn find(&self, first: u8) -> Result<usize, usize> {
        self.children.binary_search_by_key(&first, |child| child.label[0])
    }

    /// Returns the value of the node with these bytes below this one. The node is added if it does not exist.
    fn entry(&mut self, bytes: &[u8]) -> &mut Option<V> {
        let (mut node, mut rest) = (self, bytes);
        while let Some(first) = rest.first() {
            let at = node.find(*first).unwrap_or_else(|at| {
                node.children.insert(at, Self::new(rest));
                at
            });
            node = &mut node.children[at];
            let common = node.label.iter().zip(rest).take_while(|(of_label, of_rest)| of_label == of_rest).count();
            if common < node.label.len() {
                node.split(common);
            }
            rest = &rest[common..];
        }
        &mut node.value
    }

    /// Splits a node, so that its label has this length.
    fn split(&mut self, length: usize) {
        let (upper, lower) = self.label.split_at(length);
        let child =
            Self { label: lower.into(), value: self.value.take(), children: std::mem::take(&mut self.children) };
        self.label = upper.into();
        self.children.push(child);
    }

    /// Changes the value of the node with these bytes below this one. Returns `true` if it is removed.
    fn change(&mut self, bytes: &[u8], change: impl FnOnce(&mut V) -> bool) -> bool {
        let Some(first) = bytes.first() else {
            return self.value.take_if(change).is_some();
        };
        let Ok(at) = self.find(*first) else {
            return false;
        };
        let child = &mut self.children[at];
        let Some(rest) = bytes.strip_prefix(&*child.label) else {
            return false;
        };
        let is_removed = child.change(rest, change);
        if is_removed && child.value.is_none() {
            match child.children.len() {
                0 => drop(self.children.remove(at)),
                1 => child.merge(),
                _ => {}
            }
        }
        is_removed
    }

    /// Merges a node without a value and its only child.
    fn merge(&mut self) {
        if let Some(child) = self.children.pop() {
            let label = [&*self.label, &*child.label].concat().into();
            *self = Self { label, ..child };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

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
        assert_eq!((map.len(), map.nodes_of(b"abd"), map.nodes_of(b"zy")), (6, 3, 1));
        map.change(b"a", |values| values.pop().is_none());
        assert_eq!(of(&map, "abd"), ",a,ab");
        map.change(b"a", |_| true);
        map.change(b"zz", |_| true);
        map.change(b"none", |_| true);
        assert_eq!((of(&map, "abd"), map.len(), map.nodes_of(b"abd")), (",ab".into(), 4, 2));
        map.change(b"ab", |_| true);
        assert_eq!((of(&map, "abd"), of(&map, "abc"), map.len()), ("".into(), ",abc".to_owned(), 3));
    }

    /// Compares the map with one whose prefixes are all compared, for random changes of prefixes of few letters.
    #[test]
    fn it_finds_the_same_as_a_comparison_with_each_prefix() {
        let mut map: PrefixMap<usize> = PrefixMap::default();
        let mut all: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
        let mut random = 1_u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for number in 0..20_000 {
            let name: Vec<u8> = (0..next(9)).map(|_| b'a' + next(3) as u8).collect();
            if next(2) == 0 {
                *map.entry(&name) = number;
                all.insert(name, number);
            } else {
                map.change(&name, |_| true);
                all.remove(&name);
            }
            let name: Vec<u8> = (0..next(12)).map(|_| b'a' + next(3) as u8).collect();
            let expected: Vec<usize> =
                all.iter().filter(|(prefix, _)| name.starts_with(prefix)).map(|(_, value)| *value).collect();
            assert_eq!(map.values().sum::<usize>(), all.values().sum());
            assert_eq!((map.of(&name).copied().collect::<Vec<_>>(), map.len()), (expected, all.len()));
        }
        let names: Vec<Vec<u8>> = all.into_keys().collect();
        names.iter().for_each(|name| map.change(name, |_| true));
        // No node without a value is left.
        assert!(map.is_empty() && map.root.children.is_empty() && map.root.value.is_none());
    }
}
