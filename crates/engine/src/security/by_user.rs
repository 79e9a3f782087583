//! Index of credentials by the users whom they log in.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::UserName;

/// Ids of credentials by user. Invariant: each user has at least one.
#[derive(Clone, Debug)]
pub(super) struct ByUser<K>(BTreeMap<UserName, BTreeSet<K>>);

impl<K> Default for ByUser<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> ByUser<K> {
    pub fn insert(&mut self, user: UserName, id: K) {
        self.0.entry(user).or_default().insert(id);
    }

    pub fn remove(&mut self, user: &UserName, id: &K) {
        let Some(ids) = self.0.get_mut(user) else { return };
        ids.remove(id);
        if ids.is_empty() {
            self.0.remove(user);
        }
    }

    /// Returns the ids of a user in their order.
    pub fn of(&self, user: &str) -> impl Iterator<Item = &K> {
        self.0.get(user).into_iter().flatten()
    }

    pub fn count_of(&self, user: &str) -> usize {
        self.0.get(user).map_or(0, BTreeSet::len)
    }

    pub fn next_user(&self, after: &str) -> Option<&UserName> {
        next_user(&self.0, after)
    }
}

/// Returns the first user of a table whose name is after this one.
pub(super) fn next_user<'t, V>(table: &'t BTreeMap<UserName, V>, after: &str) -> Option<&'t UserName> {
    table.range::<str, _>((Bound::Excluded(after), Bound::Unbounded)).next().map(|(user, _)| user)
}
