//! Suggestions for unknown names, for the errors that clients show to people.

use engine::nearest_resource;
use parking_lot::Mutex;

/// Work of all searches that a broker does per ms, in compared pairs of characters, and that it may do at once. A pair
/// takes about a nanosecond: searches take at most half a percent of a processor.
const WORK_PER_MS: u64 = 5_000;
const WORK_MAX: usize = 4_000_000;

/// Searches for the nearest name, as far as they have work left. A request may name thousands of resources that do not
/// exist: its errors are then without suggestions.
pub(crate) struct Suggestions(Mutex<Left>);

struct Left {
    work: usize,
    /// Time at which work was last added, in ms since 1970.
    added_ms: u64,
}

impl Default for Suggestions {
    fn default() -> Self {
        Self(Mutex::new(Left { work: WORK_MAX, added_ms: 0 }))
    }
}

impl Suggestions {
    /// Returns the known name that is nearest to an unknown one, if there is one, and work is left.
    pub(crate) fn nearest<'a>(&self, now_ms: u64, name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
        // A caller that finds another one searching goes without.
        let mut left = self.0.try_lock()?;
        let added = now_ms.saturating_sub(left.added_ms).saturating_mul(WORK_PER_MS);
        left.work = left.work.saturating_add(usize::try_from(added).unwrap_or(WORK_MAX)).min(WORK_MAX);
        left.added_ms = now_ms;
        nearest_resource(name, known, &mut left.work)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn many_unknown_names_are_not_all_searched_for() {
        let names: Vec<String> = (0..50_000).map(|number| format!("{number:0>200}")).collect();
        let compared = Cell::new(0);
        let known = || names.iter().map(|name| name.as_str()).inspect(|_| compared.set(compared.get() + 1));
        let suggestions = Suggestions::default();
        let unknown = format!("x{}", &names[7][1..]);
        let search = |now_ms| suggestions.nearest(now_ms, &unknown, known());
        assert_eq!(search(1_000_000), Some(names[7].as_str()), "among the first");
        (0..10_000).for_each(|_| _ = search(1_000_000));
        assert!(compared.get() <= WORK_MAX / 200 + 10_000, "{} names were compared", compared.get());
        assert_eq!(search(1_000_000), None);
        assert!(search(1_001_000).is_some(), "a second later there is work left");
        assert!(search(0).is_some(), "a clock that is set back does no harm");
        let before = suggestions.0.lock().work;
        assert!(search(0).is_some() && suggestions.0.lock().work < before, "nor does it add work");
    }
}
