//! Search in the newest batches of a partition.

use std::collections::VecDeque;

/// Returns the number of elements at the beginning for which a condition holds, like `VecDeque::partition_point`. The
/// search begins at the end: if few elements are left there, it meets few others, whose memory has not been used for
/// long.
pub(super) fn partition_from_end<T>(queue: &VecDeque<T>, holds: impl Fn(&T) -> bool) -> usize {
    let end = queue.len();
    let (mut low, mut high, mut step) = (0, end, 1);
    while step <= end {
        let at = end - step;
        if holds(&queue[at]) {
            low = at + 1;
            break;
        }
        high = at;
        step *= 2;
    }
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(&queue[middle]) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn it_finds_what_a_search_from_the_middle_finds() {
        for len in 0..70 {
            let queue: VecDeque<usize> = (0..len).collect();
            for first in 0..=len {
                assert_eq!(partition_from_end(&queue, |at| *at < first), first, "of {len}");
            }
        }
    }

    #[test]
    fn it_looks_at_few_elements_far_from_the_end() {
        let queue: VecDeque<usize> = (0..100_000).collect();
        let lowest = Cell::new(usize::MAX);
        let found = partition_from_end(&queue, |at| {
            lowest.set(lowest.get().min(*at));
            *at < 99_990
        });
        assert_eq!(found, 99_990);
        assert!(lowest.get() >= 99_980, "{}", lowest.get());
    }
}
