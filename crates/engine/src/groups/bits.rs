//! Sets of small numbers.

/// Set of small numbers, with a bit for each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bits(Vec<u64>);

impl Bits {
    pub(super) fn insert(&mut self, number: u32) {
        let at = number as usize / 64;
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        self.0[at] |= 1 << (number % 64);
    }

    pub(super) fn remove(&mut self, number: u32) {
        if let Some(word) = self.0.get_mut(number as usize / 64) {
            *word &= !(1 << (number % 64));
        }
    }

    pub(super) fn has(&self, number: u32) -> bool {
        self.0.get(number as usize / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    pub(super) fn add(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0.iter_mut().zip(&other.0).for_each(|(word, more)| *word |= more);
    }
}

/// Returns the numbers of the bits that are set, in ascending order.
pub(super) fn ones(words: &[u64]) -> impl Iterator<Item = usize> + '_ {
    words.iter().enumerate().flat_map(|(at, word)| {
        // Each step clears the lowest bit.
        let left = std::iter::successors(Some(*word), |left| Some(left & left.wrapping_sub(1)));
        left.take_while(|left| *left != 0).map(move |left| at * 64 + left.trailing_zeros() as usize)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_hold_what_was_inserted() {
        let mut bits = Bits::default();
        let mut others = Bits::default();
        [0, 5, 63, 64, 200].into_iter().for_each(|number| bits.insert(number));
        bits.remove(5);
        bits.remove(999);
        others.insert(300);
        bits.add(&others);
        assert_eq!(ones(&bits.0).collect::<Vec<_>>(), [0, 63, 64, 200, 300]);
        assert!(bits.has(200) && !bits.has(5) && !bits.has(999));
    }
}
