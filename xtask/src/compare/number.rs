//! Number that a figure takes from the output of its run.

use std::fmt;

use serde_json::Value;

use crate::run::Outcome;

/// Units of times as the standard library shows them, and their length in nanoseconds.
const TIMES: [(&str, f64); 4] = [("ns", 1.0), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)];

/// Place of the number in the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// JSON pointer into the last line of the output, as `/rows/0/operations_per_s`.
    Json(&'static str),
    /// Word after `after` in the line that begins with `line`. A time is converted to nanoseconds.
    Text { line: &'static str, after: &'static str },
}

impl Number {
    /// Returns the number, which is greater than 0. An error names the place that has no such number.
    pub fn choose(self, output: &str) -> Outcome<f64> {
        let found = match self {
            Self::Json(pointer) => json(output, pointer),
            Self::Text { line, after } => text(output, line, after),
        };
        // 0 is no result: nothing was measured, and it has no ratio.
        found.filter(|number| number.is_finite() && *number > 0.0).ok_or_else(|| {
            format!("the output has no number above 0 at {self}: correct the row in xtask/src/compare/figures.rs")
        })
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(pointer) => f.write_str(pointer),
            Self::Text { line, after } => write!(f, "'{after}' of the line '{line}..'"),
        }
    }
}

fn json(output: &str, pointer: &str) -> Option<f64> {
    let report: Value = serde_json::from_str(output.lines().last()?).ok()?;
    report.pointer(pointer)?.as_f64()
}

fn text(output: &str, line: &str, after: &str) -> Option<f64> {
    let found = output.lines().find(|found| found.starts_with(line))?;
    let word = found.split_once(after)?.1.split_whitespace().next()?.trim_end_matches([',', ';']);
    let digits = word.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(word.len());
    let (number, unit) = word.split_at(digits);
    let scale = if unit.is_empty() { 1.0 } else { TIMES.iter().find(|(name, _)| *name == unit)?.1 };
    Some(number.parse::<f64>().ok()? * scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_the_one_at_its_pointer_in_the_last_line() {
        let output = "{\"rps\":1}\n{\"rps\":2.5,\"rows\":[{\"us\":{\"p50\":21}}],\"text\":\"7\"}\n";
        assert_eq!(Number::Json("/rps").choose(output), Ok(2.5));
        assert_eq!(Number::Json("/rows/0/us/p50").choose(output), Ok(21.0));
        assert!(Number::Json("/text").choose(output).is_err(), "a text is no number");
        assert!(Number::Json("/rps").choose("").is_err() && Number::Json("/rps").choose("ready").is_err());
    }

    #[test]
    fn a_number_of_text_is_the_word_after_its_mark_and_times_are_nanoseconds() {
        let text = "send_1k: 2 calls, 1.5µs at best\nsend: 3 calls, 416ns at best, 7.25; 2ms\nwait: 1s\n";
        let number = |line, after| Number::Text { line, after }.choose(text);
        assert_eq!(number("send:", "calls, "), Ok(416.0));
        assert_eq!(number("send_1k:", "calls, "), Ok(1500.0));
        assert_eq!(number("send:", "best, "), Ok(7.25));
        assert_eq!(number("send:", "7.25; "), Ok(2e6));
        assert_eq!(number("wait", ": "), Ok(1e9));
        assert!(number("send:", "at ").is_err(), "a word is no number");
    }

    #[test]
    fn an_output_without_the_number_is_refused_and_says_which() {
        let missing = Number::Json("/p50").choose("{\"p99\":1}").expect_err("no number");
        assert!(missing.contains("/p50") && missing.contains("figures.rs"), "{missing}");
        assert!(Number::Json("/p50").choose("{\"p50\":0}").is_err(), "0 has no ratio");
        let missing = Number::Text { line: "put", after: "rate " }.choose("get: rate 7").expect_err("no number");
        assert!(missing.contains("'rate '"), "{missing}");
    }
}
