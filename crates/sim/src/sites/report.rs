//! Table of the measurements of meshes of several sizes.

use std::fmt::Write;

use consensus::Time;

use super::MS;
use super::measure::{Joins, Lookups, Measured, Spread, Storms, Traffic};

fn ms(time: Time) -> String {
    format!("{:.0}", time as f64 / MS as f64)
}

fn both(spread: &Spread, show: impl Fn(u64) -> String) -> String {
    if spread.is_empty() {
        return "none".to_owned();
    }
    format!("{} / {}", show(spread.percentile(50)), show(spread.percentile(99)))
}

fn trips(of: &Lookups) -> String {
    both(&of.trips, |trips| trips.to_string())
}

fn storms(of: &Storms) -> String {
    format!("{} / {} / {}", of.published, of.in_flight_max, of.lost)
}

fn count(number: f64) -> String {
    if number < 100.0 { format!("{number:.2}") } else { format!("{number:.0}") }
}

fn differences(of: &Traffic) -> String {
    format!("{} / {} / {} / {}", of.missing, of.partial, of.wrong, of.ended)
}

/// Row of the table: its name, and its cell for a size.
type Row = (&'static str, fn(&Measured) -> String);

const ROWS: &[Row] = &[
    ("topics", |of| of.topics.to_string()),
    ("warm lookup, round trips, p50 / p99", |of| trips(&of.warm)),
    ("warm lookup, ms, p50 / p99", |of| both(&of.warm.latency, ms)),
    ("records with a warm lookup, %", |of| format!("{:.2}", of.steady.warm_percent)),
    ("cold lookup, round trips, p50 / p99", |of| trips(&of.cold)),
    ("cold lookup, ms, p50 / p99", |of| both(&of.cold.latency, ms)),
    ("cold lookups with other sites than the readers", |of| format!("{} of {}", of.cold.wrong, of.cold.latency.len())),
    ("first record of a new publisher arrives, ms, p50 / p99", |of| both(&of.cold.first_message, ms)),
    ("first record to a new reader arrives, ms, p50 / p99", |of| both(&of.new_readers.first_messages, ms)),
    ("publishers that missed a new reader", |of| of.new_readers.unaware.to_string()),
    ("messages for a new reader", |of| count(of.new_readers.messages)),
    ("messages/site/s, no changes", |of| count(of.steady.per_site)),
    ("records", |of| of.steady.publishes.to_string()),
    ("readers missing / partial, wrong / ended sites", |of| differences(&of.steady)),
    ("storm, expired entry: records / lookups in flight / lost", |of| storms(&of.stale_storms)),
    ("storm, no entry: records / lookups in flight / lost", |of| storms(&of.cold_storms)),
    ("join: messages, all watches", |of| count(of.joins_all.messages)),
    ("join: messages, changed owners", |of| count(of.joins_changed.messages)),
    ("join: first right lookup there, ms, p50 / p99", |of| {
        join(&of.joins_changed, &of.joins_all, |one| &one.first_right)
    }),
    ("join: wrong or partial records before that", |of| {
        (of.joins_changed.wrong_before + of.joins_all.wrong_before).to_string()
    }),
    ("join: found elsewhere, ms, p50 / p99", |of| join(&of.joins_changed, &of.joins_all, |one| &one.found_after)),
    ("join: publishers that missed the reader", |of| (of.joins_changed.unaware + of.joins_all.unaware).to_string()),
    ("churn 1 %/min: changes of sites", |of| of.churn.changes.to_string()),
    ("churn: messages/site/s, changed owners", |of| count(of.churn.per_site)),
    ("churn: records", |of| of.churn.publishes.to_string()),
    ("churn: readers missing / partial, wrong / ended sites", |of| differences(&of.churn)),
    ("churn: records to sites whose end is not noticed", |of| of.churn.ending.to_string()),
    ("churn: cold lookup, ms, p50 / p99", |of| both(&of.churn_lookups.latency, ms)),
    ("churn: messages/site/s, all watches", |of| match &of.churn_all {
        Some(traffic) => count(traffic.per_site),
        None => format!("{} (computed)", count(of.computed_churn())),
    }),
    ("churn, all watches: readers missing / partial, wrong / ended sites", |of| {
        of.churn_all.as_ref().map_or("not simulated".to_owned(), differences)
    }),
    ("`owners` over all sites, us", |of| count(of.costs.owners_ns as f64 / 1000.0)),
    ("`SiteHashes::ranked` over all sites, us", |of| count(of.costs.ranked_ns as f64 / 1000.0)),
    ("`Interest::due`, 100 topics, list changed, us", |of| count(of.costs.due_ns as f64 / 1000.0)),
    ("`Interest::due`, same list, us", |of| count(of.costs.due_same_list_ns as f64 / 1000.0)),
    ("resident memory per site, KB", |of| (of.bytes_per_site / 1000).to_string()),
    ("peak resident memory, MB", |of| (of.peak_bytes / 1_000_000).to_string()),
    ("events", |of| of.events.to_string()),
    ("simulated time, s", |of| format!("{:.0}", of.simulated_s)),
    ("wall time, s", |of| format!("{:.1}", of.wall_s)),
    ("processor time, s", |of| format!("{:.1}", of.processor_s)),
];

fn join(first: &Joins, second: &Joins, of: impl Fn(&Joins) -> &Spread) -> String {
    both(&of(first).with(of(second)), ms)
}

/// Returns the table of meshes in Markdown, with a column for each.
pub fn table(measured: &[Measured]) -> String {
    let mut out = String::from("| Simulated |");
    let mut line = |text: String| out.push_str(&text);
    measured.iter().for_each(|one| line(format!(" {} sites |", one.sites)));
    line(format!("\n|---|{}\n", "---|".repeat(measured.len())));
    for (name, cell) in ROWS {
        let cells: String = measured.iter().fold(String::new(), |mut cells, one| {
            // Writing to a string does not fail.
            write!(cells, " {} |", cell(one)).unwrap_or_default();
            cells
        });
        line(format!("| {name} |{cells}\n"));
    }
    out
}
