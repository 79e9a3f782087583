//! The metrics of `docs/reference/metrics.md`, by its sections.

use crate::run::Outcome;

/// Number of cells in a row of a table of metrics: name, type, unit, meaning, and when to investigate.
const CELLS: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    pub name: String,
    pub kind: Kind,
    pub unit: String,
    /// Labels that divide the metric into series.
    pub labels: Vec<String>,
    meaning: String,
    investigate: String,
}

impl Metric {
    /// Returns the text that explains the metric.
    pub fn about(&self) -> String {
        match (self.meaning.is_empty(), self.investigate.is_empty()) {
            (_, true) => self.meaning.clone(),
            (true, false) => format!("Investigate when {}.", self.investigate),
            (false, false) => format!("{}. Investigate when {}.", self.meaning, self.investigate),
        }
    }
}

/// Section of the page with a table, by its title.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    pub title: String,
    pub metrics: Vec<Metric>,
}

/// Reads the tables of the page.
pub fn read(page: &str) -> Outcome<Vec<Section>> {
    let mut sections: Vec<Section> = Vec::new();
    let mut titles = [String::new(), String::new()];
    // Labels that the text above a table names.
    let mut labels: Vec<String> = Vec::new();
    for line in page.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            titles = [title.to_owned(), String::new()];
            labels.clear();
        } else if let Some(title) = line.strip_prefix("### ") {
            titles[1] = title.to_owned();
            labels.clear();
        } else if let Some(row) = line.strip_prefix("| `") {
            let metrics = metrics(row, &labels).map_err(|e| format!("{line}: {e}"))?;
            let title = titles.iter().filter(|title| !title.is_empty()).map(String::as_str).collect::<Vec<_>>();
            let title = title.join(": ");
            match sections.last_mut() {
                _ if metrics.is_empty() => {}
                Some(last) if last.title == title => last.metrics.extend(metrics),
                _ => sections.push(Section { title, metrics }),
            }
        } else {
            labels.extend(labels_in(line));
        }
    }
    Ok(sections)
}

/// Returns the labels that a text names as ``label `name` ``.
fn labels_in(text: &str) -> Vec<String> {
    let parts = text.split("label `").skip(1);
    parts.filter_map(|part| part.split_once('`')).map(|(label, _)| label.to_owned()).collect()
}

/// Reads a row, which begins after its first backtick. It may have several metrics, or none.
fn metrics(row: &str, labels: &[String]) -> Outcome<Vec<Metric>> {
    let row = row.trim_end();
    let cells: Vec<&str> = row.strip_suffix('|').unwrap_or(row).split('|').map(str::trim).collect();
    let [names, kind, unit, meaning, investigate] = cells[..] else {
        // Other tables have other cells. Those of metrics must not be overlooked.
        let is_metric = row.starts_with("thalweg_") && cells.len() > 2;
        return if is_metric { Err(format!("it has {} cells, not {CELLS}", cells.len())) } else { Ok(Vec::new()) };
    };
    let (kind, by) = kind.split_once(", by ").unwrap_or((kind, ""));
    let mut metrics = Vec::new();
    for name in names.split('`').filter(|name| name.starts_with("thalweg_") || name.starts_with("process_")) {
        let (name, braces) = name.split_once('{').unwrap_or((name, ""));
        let own = braces.trim_end_matches('}').split(',').chain([by.trim_matches('`')]).filter(|of| !of.is_empty());
        let mut all: Vec<String> = own.map(str::to_owned).chain(labels_in(meaning)).collect();
        if all.is_empty() {
            all.extend(labels.iter().cloned());
        }
        let kind = match kind {
            "counter" => Kind::Counter,
            "gauge" => Kind::Gauge,
            "histogram" => Kind::Histogram,
            "" if name.ends_with("_total") => Kind::Counter,
            "" => Kind::Gauge,
            other => return Err(format!("{other} is no type of a metric")),
        };
        let (unit, meaning, investigate) = (unit.to_owned(), plain(meaning), plain(investigate));
        metrics.push(Metric { name: name.to_owned(), kind, unit, labels: all, meaning, investigate });
    }
    Ok(metrics)
}

/// Returns a text without its links to other places of the page, and without marks of code.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once('[') {
        plain += before;
        let (shown, after) = link.split_once("](").unwrap_or((link, ""));
        plain += if shown == "see below" { "" } else { shown };
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    plain += rest;
    plain.replace('`', "").trim_end_matches([' ', ',', '.']).to_owned()
}

/// Returns Grafana's name of a unit.
pub fn unit(unit: &str) -> &'static str {
    match unit {
        "bytes" => "bytes",
        "seconds" => "s",
        "milliseconds" | "ms" => "ms",
        "microseconds" => "\u{b5}s",
        "0 or 1" => "bool",
        "seconds since 1970" => "dateTimeFromNow",
        _ => "short",
    }
}

/// Returns Grafana's name of the unit of a counter's rate.
pub fn unit_of_rate(unit: &str) -> &'static str {
    match unit {
        "bytes" => "Bps",
        // Time per second: the number of threads that it takes.
        "seconds" | "milliseconds" | "ms" | "nanoseconds" => "short",
        _ => "cps",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Metrics

## Lanes

Each has a series, with the label `lane`.

| Metric | Type | Unit | Meaning | Investigate when |
|---|---|---|---|---|
| `thalweg_lane_queued` | gauge | batches | queued, [see below](#more) | above 80 % of the `depth` |
| `thalweg_lag{group,topic}`, `thalweg_lost_total` | | records | by the [guide](a.md), label `site` | |

### More

| Label `result` | Values |
|---|---|
| `thalweg_lane_queued` | `a`, `b` |
| `thalweg_wait_seconds` | histogram | seconds | | it rises |
";

    #[test]
    fn metrics_are_read_with_their_labels_and_texts() {
        let sections = read(PAGE).expect("sections");
        assert_eq!(sections.iter().map(|section| &section.title).collect::<Vec<_>>(), ["Lanes", "Lanes: More"]);
        let [queued, lag, lost] = &sections[0].metrics[..] else { panic!("{sections:?}") };
        assert_eq!(
            (queued.name.as_str(), queued.kind, &queued.labels[..]),
            ("thalweg_lane_queued", Kind::Gauge, &["lane".to_owned()][..])
        );
        assert_eq!(queued.about(), "queued. Investigate when above 80 % of the depth.");
        assert_eq!((lag.kind, &lag.labels[..]), (Kind::Gauge, &["group", "topic", "site"].map(str::to_owned)[..]));
        assert_eq!((lost.kind, lost.about()), (Kind::Counter, "by the guide, label site".to_owned()));
        let [wait] = &sections[1].metrics[..] else { panic!("{sections:?}") };
        assert_eq!((wait.kind, wait.about()), (Kind::Histogram, "Investigate when it rises.".to_owned()));
    }

    #[test]
    fn a_row_that_cannot_be_read_is_an_error() {
        let of = |row: &str| read(row).expect_err("an error");
        assert!(of("| `thalweg_a` | gauge | bytes | text |").ends_with("it has 4 cells, not 5"));
        assert!(of("| `thalweg_a` | gouge | bytes | text | |").ends_with("gouge is no type of a metric"));
    }
}
