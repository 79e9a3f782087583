//! Lookup by host name, exact or as `*.domain`.

use std::collections::HashMap;

/// Names with their values. If a name is added twice, the first value is kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    exact: HashMap<String, usize>,
    /// Names without their leading `*.`, which matches one label.
    wildcards: HashMap<String, usize>,
}

impl Names {
    pub fn add(&mut self, name: &str, what: usize) {
        let name = normal(name);
        match name.strip_prefix("*.") {
            Some(domain) => self.wildcards.entry(domain.to_owned()).or_insert(what),
            None => self.exact.entry(name).or_insert(what),
        };
    }

    pub fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.wildcards.is_empty()
    }

    /// Returns the value of this name; an exact name takes precedence over a wildcard.
    pub fn find(&self, name: &str) -> Option<usize> {
        let name = normal(name);
        if let Some(what) = self.exact.get(&name) {
            return Some(*what);
        }
        let (label, domain) = name.split_once('.')?;
        self.wildcards.get(domain).filter(|_| !label.is_empty()).copied()
    }
}

/// Returns the normal form of a name: lower case, without the dot of the root.
fn normal(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_stands_for_one_label_and_goes_last() {
        let mut names = Names::default();
        assert!(names.is_empty());
        for (what, name) in ["a.example", "*.Example", "b.example", "A.example."].into_iter().enumerate() {
            names.add(name, what);
        }
        let cases = [
            ("A.EXAMPLE", Some(0)),
            ("b.example.", Some(2)),
            ("c.example", Some(1)),
            ("c.d.example", None),
            ("example", None),
            (".example", None),
            ("*.example", Some(1)),
            ("", None),
        ];
        for (name, expected) in cases {
            assert_eq!(names.find(name), expected, "{name}");
        }
    }
}
