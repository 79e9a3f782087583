//! Random numbers from a seed, so that a run can be repeated: SplitMix64 (Steele, Lea, Flood: "Fast splittable
//! pseudorandom number generators", 2014).

/// Source of random numbers that no secret may depend on.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns a number below `end`; 0 if that is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.number()) * u128::from(end)) >> 64) as u64
    }

    /// Returns `true` in one of `times` calls on average, and never for 0.
    pub fn one_in(&mut self, times: u64) -> bool {
        times > 0 && self.below(times) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_its_numbers() {
        // From the reference implementation (https://prng.di.unimi.it/splitmix64.c) with the seed 1234567.
        let mut random = Random::new(1_234_567);
        let numbers = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([(); 3].map(|()| random.number()), numbers);
    }

    #[test]
    fn numbers_stay_below_their_end() {
        let mut random = Random::new(1);
        assert!((0..1000).all(|_| random.below(7) < 7));
        assert_eq!((random.below(0), random.below(1), random.one_in(0), random.one_in(1)), (0, 0, false, true));
    }
}
