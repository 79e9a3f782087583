//! Medians, ratios and their spread.

use crate::run::Outcome;

/// Direction in which numbers are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Rates.
    Higher,
    /// Latencies, CPU time and memory.
    Lower,
}

/// Result of all rounds of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// Median of the old tree; `new` is that of the new tree.
    pub old: f64,
    pub new: f64,
    /// Median of the ratios within rounds. Above 1 the new tree is better, for any figure. It may differ from the ratio
    /// of the two medians, which may come from different rounds.
    pub ratio: f64,
    /// Lowest ratio of a round; `ratio_max` is the highest.
    pub ratio_min: f64,
    pub ratio_max: f64,
}

impl Comparison {
    /// Compares the numbers of each round, the old one before the new one. They are greater than 0.
    pub fn of(rounds: &[[f64; 2]], better: Better) -> Outcome<Self> {
        let ratio = |[old, new]: &[f64; 2]| match better {
            Better::Higher => new / old,
            Better::Lower => old / new,
        };
        let ratios = sorted(rounds.iter().map(ratio));
        let (Some(ratio_min), Some(ratio_max)) = (ratios.first().copied(), ratios.last().copied()) else {
            return Err("no round was measured: one is the least".into());
        };
        let [old, new] = [0, 1].map(|side| median(&sorted(rounds.iter().map(|round| round[side]))));
        Ok(Self { old, new, ratio: median(&ratios), ratio_min, ratio_max })
    }
}

fn sorted(numbers: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    numbers
}

/// Returns the middle number, or the mean of the two in the middle.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        1 => sorted[middle],
        _ => sorted[middle - 1..=middle].iter().sum::<f64>() / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_the_median_of_those_within_rounds() {
        // The medians of the columns are 20 and 21, and belong to different rounds.
        let rounds = [[10.0, 11.0], [20.0, 21.0], [40.0, 20.0], [80.0, 88.0], [16.0, 24.0]];
        let found = Comparison::of(&rounds, Better::Higher).expect("rounds");
        assert_eq!((found.old, found.new), (20.0, 21.0));
        assert_eq!((found.ratio, found.ratio_min, found.ratio_max), (1.1, 0.5, 1.5));
    }

    #[test]
    fn a_ratio_above_1_is_better_for_latencies_too() {
        let rounds = [[50.0, 40.0], [50.0, 100.0], [60.0, 60.0]];
        let found = Comparison::of(&rounds, Better::Lower).expect("rounds");
        assert_eq!((found.old, found.new), (50.0, 60.0));
        assert_eq!((found.ratio, found.ratio_min, found.ratio_max), (1.0, 0.5, 1.25));
    }

    #[test]
    fn an_even_number_of_rounds_has_the_mean_of_the_two_in_the_middle() {
        let found = Comparison::of(&[[1.0, 4.0], [1.0, 1.0], [1.0, 2.0], [1.0, 3.0]], Better::Higher).expect("rounds");
        assert_eq!((found.ratio, found.new), (2.5, 2.5));
        let one = Comparison::of(&[[2.0, 4.0]], Better::Higher).expect("rounds");
        assert_eq!((one.ratio, one.ratio_min, one.ratio_max), (2.0, 2.0, 2.0));
        assert!(Comparison::of(&[], Better::Higher).is_err());
    }
}
