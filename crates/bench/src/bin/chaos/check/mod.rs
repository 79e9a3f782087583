//! Checkers of histories. Each returns the violations that it found, as sentences.

pub mod counters;
pub mod groups;
pub mod log;
pub mod queue;

/// Maximum number of violations of one kind that are listed.
const LISTED_MAX: usize = 5;

/// Violations of one history.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Violations {
    listed: Vec<(&'static str, Vec<String>, usize)>,
}

impl Violations {
    fn add(&mut self, kind: &'static str, what: String) {
        let at = self.listed.iter().position(|(known, ..)| *known == kind).unwrap_or_else(|| {
            self.listed.push((kind, Vec::new(), 0));
            self.listed.len() - 1
        });
        let (_, examples, count) = &mut self.listed[at];
        *count += 1;
        if examples.len() < LISTED_MAX {
            examples.push(what);
        }
    }

    /// Returns the number of violations of a kind.
    #[cfg(test)]
    fn count(&self, kind: &str) -> usize {
        self.listed.iter().find(|(known, ..)| *known == kind).map_or(0, |(.., count)| *count)
    }

    /// Returns a sentence for each kind.
    pub fn sentences(&self) -> Vec<String> {
        let sentence = |(kind, examples, count): &(&str, Vec<String>, usize)| {
            format!("{kind}: {count}, for example {}", examples.join("; "))
        };
        self.listed.iter().map(sentence).collect()
    }

    #[cfg(test)]
    fn kinds(&self) -> Vec<&'static str> {
        self.listed.iter().map(|(kind, ..)| *kind).collect()
    }
}
