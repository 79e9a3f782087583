//! List in the order of arrival, from which values are removed by their numbers.

/// Values in the order in which they came, each with a number.
///
/// A removed value leaves a gap. Gaps are closed when they are half of the list. So a removal looks at few of the other
/// values on average, however many there are.
pub(crate) struct Ordered<V> {
    /// Numbers in ascending order, and their values; `None` is a gap.
    entries: Vec<(u64, Option<V>)>,
    /// Number of values.
    count: usize,
}

impl<V> Default for Ordered<V> {
    fn default() -> Self {
        Self { entries: Vec::new(), count: 0 }
    }
}

impl<V> Ordered<V> {
    /// Adds a value, whose number is larger than all before.
    pub(crate) fn push(&mut self, number: u64, value: V) {
        if self.entries.is_empty() {
            // Most lists have one value.
            self.entries.reserve_exact(1);
        }
        self.entries.push((number, Some(value)));
        self.count += 1;
    }

    /// Removes the value with a number, if it is in the list.
    pub(crate) fn remove(&mut self, number: u64) {
        self.remove_counted(number);
    }

    /// Removes a value. Returns the number of entries that were looked at.
    fn remove_counted(&mut self, number: u64) -> usize {
        let mut looked_at = 0;
        let found = self.entries.binary_search_by(|(of, _)| {
            looked_at += 1;
            of.cmp(&number)
        });
        if let Some(value) = found.ok().and_then(|at| self.entries[at].1.take()) {
            drop(value);
            self.count -= 1;
            if self.count <= self.entries.len() / 2 {
                looked_at += self.entries.len();
                self.close_gaps();
            }
        }
        looked_at
    }

    /// Keeps the values for which `keeps` returns `true`.
    pub(crate) fn retain(&mut self, keeps: impl Fn(&V) -> bool) {
        for (_, entry) in &mut self.entries {
            entry.take_if(|value| !keeps(value));
        }
        self.close_gaps();
    }

    fn close_gaps(&mut self) {
        self.entries.retain(|(_, value)| value.is_some());
        self.count = self.entries.len();
        self.entries.shrink_to(2 * self.count);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.numbered().map(|(_, value)| value)
    }

    /// Returns all values and their numbers.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = (u64, &V)> {
        self.entries.iter().filter_map(|(number, value)| Some((*number, value.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The other values are not looked at one by one, in whichever order values are removed.
    #[test]
    fn a_removal_looks_at_few_of_many_values() {
        const MANY: u64 = 1 << 16;
        let orders: [fn(u64) -> u64; 3] = [|at| at, |at| MANY - 1 - at, |at| at * 40_503 % MANY];
        for order in orders {
            let mut list = Ordered::default();
            (0..MANY).for_each(|number| list.push(number, number));
            // The first 8,192 removals are those of one client among others.
            let first: usize = (0..8192).map(|at| list.remove_counted(order(at))).sum();
            assert!(first <= 8192 * 20, "{first}");
            let rest: usize = (8192..MANY).map(|at| list.remove_counted(order(at))).sum();
            assert!(rest <= MANY as usize * 20, "{rest}");
            assert!(list.is_empty() && list.entries.capacity() == 0);
        }
    }

    #[test]
    fn values_stay_in_the_order_in_which_they_came() {
        let mut list = Ordered::default();
        let mut expected: Vec<u64> = Vec::new();
        let mut random = 1_u64;
        for number in 0..2000 {
            list.push(number, number);
            expected.push(number);
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Some of these numbers were removed before.
            let removed = (random >> 33) % (number + 1);
            list.remove(removed);
            expected.retain(|of| *of != removed);
            assert_eq!((list.values().copied().collect::<Vec<_>>(), list.count), (expected.clone(), expected.len()));
        }
        list.retain(|value| value % 2 == 0);
        expected.retain(|value| value % 2 == 0);
        assert_eq!(list.numbered().map(|(number, value)| (number, *value)).collect::<Vec<_>>().len(), expected.len());
        assert_eq!(list.values().copied().collect::<Vec<_>>(), expected);
    }
}
