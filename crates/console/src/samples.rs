//! Parser for OpenMetrics text, as far as the metrics of a broker need it.

/// Line of an exposition.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub name: String,
    pub labels: Vec<(String, String)>,
    pub value: f64,
}

impl Sample {
    /// Returns the value of a label; empty if it has none.
    pub fn label(&self, name: &str) -> &str {
        self.labels.iter().find(|(label, _)| label == name).map_or("", |(_, value)| value)
    }
}

/// Samples of an exposition, in their order. Other lines are skipped: a newer broker may write lines that this program
/// does not understand.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<Sample>);

impl Samples {
    pub fn parse(text: &str) -> Self {
        Self(text.lines().filter_map(parse_line).collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the value of a metric without labels.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.named(name).find(|sample| sample.labels.is_empty()).map(|sample| sample.value)
    }

    pub fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Sample> {
        self.0.iter().filter(move |sample| sample.name == name)
    }

    /// Returns the sum of all metrics without labels whose names have this prefix and this suffix.
    pub fn sum(&self, prefix: &str, suffix: &str) -> f64 {
        let is_meant = |sample: &&Sample| {
            sample.labels.is_empty() && sample.name.starts_with(prefix) && sample.name.ends_with(suffix)
        };
        self.0.iter().filter(is_meant).map(|sample| sample.value).sum()
    }

    /// Returns the values of a metric by one of its labels.
    pub fn by_label<'a>(&'a self, name: &'a str, label: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
        self.named(name).filter_map(move |sample| {
            let (_, value) = sample.labels.iter().find(|(name, _)| name == label)?;
            Some((value.as_str(), sample.value))
        })
    }
}

/// Parses `name{label="value",...} number`. A time and an exemplar may follow.
fn parse_line(line: &str) -> Option<Sample> {
    let line = line.trim();
    let name_end = line.find(|c: char| c == '{' || c.is_whitespace()).filter(|at| *at > 0)?;
    let (name, rest) = line.split_at(name_end);
    if name.starts_with('#') {
        return None;
    }
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => parse_labels(rest)?,
        None => (Vec::new(), rest),
    };
    let value = parse_number(rest.split_whitespace().next()?)?;
    Some(Sample { name: name.to_owned(), labels, value })
}

/// Parses the labels between the braces. Returns them, and the text after them.
fn parse_labels(mut rest: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, after) = rest.split_once("=\"")?;
        let (value, after) = parse_quoted(after)?;
        labels.push((name.trim().to_owned(), value));
        rest = after;
    }
}

/// Parses the value of a label up to its closing quote. Returns it, and the text after it.
fn parse_quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                escaped => value.push(escaped),
            },
            c => value.push(c),
        }
    }
    None
}

fn parse_number(text: &str) -> Option<f64> {
    match text {
        "+Inf" => Some(f64::INFINITY),
        "-Inf" => Some(f64::NEG_INFINITY),
        text => text.parse().ok(),
    }
}

/// Cumulative counts of a histogram, by upper bound in ascending order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Buckets(Vec<(f64, f64)>);

impl Buckets {
    pub fn read(samples: &Samples, name: &str) -> Self {
        let name = format!("{name}_bucket");
        let mut buckets: Vec<(f64, f64)> =
            samples.by_label(&name, "le").filter_map(|(le, count)| Some((parse_number(le)?, count))).collect();
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        Self(buckets)
    }

    /// Returns the observations since `before`, or `None` if the two are not from the same run of the same histogram.
    pub fn since(&self, before: &Self) -> Option<Self> {
        let is_same = self.0.len() == before.0.len()
            && self.0.iter().zip(&before.0).all(|(now, before)| now.0 == before.0 && now.1 >= before.1);
        is_same.then(|| Self(self.0.iter().zip(&before.0).map(|(now, before)| (now.0, now.1 - before.1)).collect()))
    }

    /// Returns the value that the given share of the observations did not exceed, assuming that they are evenly
    /// distributed within their bucket. For the last bucket, which has no upper bound, returns its lower bound.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let total = self.0.last().map(|(_, count)| *count).filter(|total| *total > 0.0)?;
        let wanted = share * total;
        let at = self.0.iter().position(|(_, count)| *count >= wanted && *count > 0.0)?;
        let (below, count_below) = if at == 0 { (0.0, 0.0) } else { self.0[at - 1] };
        let (bound, count) = self.0[at];
        // The last bound is infinite or practically infinite.
        if bound >= f64::MAX {
            return Some(below);
        }
        Some(below + (bound - below) * ((wanted - count_below) / (count - count_below)).clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_samples_with_labels_or_not_at_all() {
        let sample = |name: &str, labels: &[(&str, &str)], value| {
            let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            Some(Sample { name: name.to_owned(), labels, value })
        };
        for (line, expected) in [
            ("a_total 3", sample("a_total", &[], 3.0)),
            ("  a 1.5e3  ", sample("a", &[], 1500.0)),
            ("a{} 1", sample("a", &[], 1.0)),
            (r#"a{lane="0"} 7"#, sample("a", &[("lane", "0")], 7.0)),
            (r#"a{x="1", y="}, =\"2\\ \n",} -4"#, sample("a", &[("x", "1"), ("y", "}, =\"2\\ \n")], -4.0)),
            (r#"a_bucket{le="+Inf"} 9 1234 # {id="x"} 0.5"#, sample("a_bucket", &[("le", "+Inf")], 9.0)),
            ("a +Inf", sample("a", &[], f64::INFINITY)),
            ("# HELP a b 1", None),
            ("# EOF", None),
            ("", None),
            ("a", None),
            ("{} 1", None),
            ("a b", None),
            (r#"a{x="1 2"#, None),
            (r#"a{x=1} 2"#, None),
            (r#"a{x="\"#, None),
        ] {
            assert_eq!(parse_line(line), expected, "{line}");
        }
    }

    #[test]
    fn metrics_are_found_by_name_and_label() {
        let samples = Samples::parse(
            "# TYPE x_connections gauge\nx_native_connections 3\nx_http_connections 4\nx_connections_max 9\n\
             x_worker_connections{worker=\"0\"} 7\nx_lane{lane=\"0\"} 1\nx_lane{lane=\"1\"} 2\n",
        );
        assert_eq!(samples.sum("x_", "_connections"), 7.0);
        assert_eq!(samples.value("x_connections_max"), Some(9.0));
        assert_eq!(samples.value("x_lane"), None);
        assert_eq!(samples.by_label("x_lane", "lane").collect::<Vec<_>>(), [("0", 1.0), ("1", 2.0)]);
        assert!(Samples::parse("nothing of this kind").is_empty());
    }

    #[test]
    fn quantiles_come_from_the_new_samples() {
        let read = |counts: [u64; 4]| {
            let line = |(le, n): (&str, u64)| format!("h_bucket{{le=\"{le}\"}} {n}\n");
            let text: String = ["0.001", "0.002", "0.004", "+Inf"].into_iter().zip(counts).map(line).collect();
            Buckets::read(&Samples::parse(&text), "h")
        };
        let before = read([100, 100, 100, 100]);
        let after = read([100, 110, 110, 120]);
        let new = after.since(&before).expect("the same histogram");
        assert_eq!(new.quantile(0.25), Some(0.0015));
        assert_eq!(new.quantile(0.5), Some(0.002));
        // Above the last finite bound, only that bound is known.
        assert_eq!(new.quantile(0.99), Some(0.004));
        assert_eq!(after.since(&after).and_then(|none| none.quantile(0.5)), None);
        assert_eq!(before.since(&after), None, "the broker was restarted");
        assert_eq!(before.since(&Buckets::default()), None);
        assert_eq!(read([10, 10, 10, 10]).quantile(0.5), Some(0.0005));
    }
}
