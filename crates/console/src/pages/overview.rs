//! Overview: rates, latencies, memory, disk and alerts of the broker.

use maud::{Markup, PreEscaped, html};

use crate::alerts::{Alert, firing};
use crate::brief::{bytes, count, per_s, size};
use crate::figures::{Figures, History, Rates, SAMPLE_MS};
use crate::parts::{empty, facts, tiles, time};
use crate::plot::{Axis, Line, Plot, Stroke};
use crate::shell::Page;
use crate::units::{self, elapsed};

const UNKNOWN: &str = "–";

fn seconds(value: f64) -> String {
    units::latency(value * 1e6)
}

pub fn page(history: &History) -> Page {
    let Some(now) = history.last() else {
        return Page::new("Overview").live(empty("No figures yet.", html! { "They appear within a few seconds." }));
    };
    Page::new("Overview").live(html! {
        (alerts(&firing(history)))
        (tiles(&figures(now, history.rates())))
        (plots(history))
        (state(now))
    })
}

fn alerts(firing: &[Alert]) -> Markup {
    html! {
        @if firing.is_empty() { p.good { "No alert is firing." } }
        @else { ul.alerts aria-label="Firing alerts" { @for alert in firing {
            li class=(if alert.is_critical { "bad" } else { "warn" }) { b { (alert.name) } " " (alert.advice) }
        } } }
    }
}

fn figures(now: &Figures, rates: Option<Rates>) -> Vec<(&'static str, String, String)> {
    let rate = |of: fn(&Rates) -> f64| rates.as_ref().map_or(UNKNOWN.to_owned(), |rates| per_s(count(of(rates))));
    let flow = |of: fn(&Rates) -> f64| rates.as_ref().map_or(String::new(), |rates| per_s(bytes(of(rates))));
    let latency = |of: fn(&Rates) -> Option<f64>| rates.as_ref().and_then(of).map_or(UNKNOWN.to_owned(), seconds);
    let median = |of: fn(&Rates) -> Option<f64>| {
        rates.as_ref().and_then(of).map_or("no records".to_owned(), |value| format!("p50 {}", seconds(value)))
    };
    let cpu = rates.and_then(|rates| rates.cpu_share);
    vec![
        ("Records in", rate(|rates| rates.published_records), flow(|rates| rates.published_bytes)),
        ("Records out", rate(|rates| rates.delivered_records), flow(|rates| rates.delivered_bytes)),
        ("Publish, p99", latency(|rates| rates.publish_p99), median(|rates| rates.publish_p50)),
        ("Delivery wait, p99", latency(|rates| rates.delivery_p99), median(|rates| rates.delivery_p50)),
        (
            "Memory",
            now.resident_bytes.map_or(UNKNOWN.to_owned(), size),
            format!("CPU {}", cpu.map_or(UNKNOWN.to_owned(), |share| format!("{:.0} % of a core", share * 100.0))),
        ),
        ("Connections", count(now.connections()), format!("{} subscriptions", count(now.subscribers))),
    ]
}

fn state(now: &Figures) -> Markup {
    let started = now.started_s.map(|started| (started * 1000.0) as u64);
    let link = |path: &str, n: f64| html! { a href=(path) { (count(n)) } };
    let limit = |n: f64, max: f64| html! { (size(n)) @if max > 0.0 { " of " (size(max)) } };
    let mut rows = vec![
        ("Topics", link("/console/topics", now.topics)),
        ("Queues", link("/console/queues", now.queues)),
        ("Consumer groups", link("/console/groups", now.groups)),
        ("Caches", link("/console/caches", now.caches)),
        ("Records in memory", limit(now.log_bytes, now.log_bytes_max)),
        ("Caches in memory", limit(now.cache_bytes, now.cache_bytes_max)),
        ("Dropped records", html! { (count(now.dropped_records)) }),
        ("Refused publishes", html! { (count(now.publish_errors)) }),
    ];
    match &now.journal {
        Some(journal) => rows.extend([
            ("Journal", html! { (size(journal.bytes)) " written, " (size(journal.queued_bytes)) " queued" }),
            ("Journal files", html! { (count(journal.files)) " of 16" }),
            (
                "Mean sync",
                html! { (if journal.syncs > 0.0 { seconds(journal.sync_seconds / journal.syncs) } else {
                UNKNOWN.to_owned() }) },
            ),
        ]),
        None => rows.push(("Storage", html! { "memory" })),
    }
    if let Some(started) = started {
        rows.push(("Uptime", html! { (elapsed(now.at_ms.saturating_sub(started))) }));
        rows.push(("Started", time(started as i64)));
    }
    html! { h2 { "State" } (facts(&rows)) }
}

fn plots(history: &History) -> Markup {
    let Some(now) = history.last() else {
        return html! {};
    };
    let line = |name: &str, stroke: Stroke, of: fn(&Figures, &Rates) -> Option<f64>| Line {
        name: name.to_owned(),
        stroke,
        points: history
            .series()
            .filter_map(|(at, rates)| {
                let ago_s = now.at_ms.saturating_sub(at.at_ms) as f64 / -1000.0;
                Some((ago_s, of(at, &rates)?))
            })
            .collect(),
    };
    let plot = |title: &str, y, lines: Vec<Line>| Plot {
        title: title.to_owned(),
        x: Axis::Ago,
        y,
        is_filled: lines.len() == 1,
        lines,
    };
    let all = [
        plot(
            "Records per second",
            Axis::PerSecond,
            vec![
                line("in", Stroke::First, |_, rates| Some(rates.published_records)),
                line("out", Stroke::Second, |_, rates| Some(rates.delivered_records)),
            ],
        ),
        plot(
            "Bytes per second",
            Axis::BytesPerSecond,
            vec![
                line("in", Stroke::First, |_, rates| Some(rates.published_bytes)),
                line("out", Stroke::Second, |_, rates| Some(rates.delivered_bytes)),
            ],
        ),
        plot(
            "Publish latency",
            Axis::Latency,
            vec![
                line("p50", Stroke::First, |_, rates| rates.publish_p50.map(|value| value * 1e6)),
                line("p99", Stroke::Second, |_, rates| rates.publish_p99.map(|value| value * 1e6)),
            ],
        ),
        plot(
            "Resident memory",
            Axis::Megabytes,
            vec![line("memory", Stroke::First, |figures, _| figures.resident_bytes.map(|bytes| bytes / 1e6))],
        ),
    ];
    let shown: Vec<&Plot> = all.iter().filter(|plot| !plot.is_empty()).collect();
    html! {
        h2 { "Last five minutes" }
        @if shown.is_empty() {
            p.muted { "The broker is measured while this page, or Clients, is open. The plots begin in "
                (SAMPLE_MS / 1000) " seconds." }
        }
        div.plots { @for plot in shown { (PreEscaped(plot.render(2))) } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::tests::figures as at;

    #[test]
    fn rates_and_plots_appear_with_the_second_figures() {
        let mut history = History::default();
        history.push(at(3));
        let first = page(&history).live.into_string();
        assert!(first.contains("The plots begin in 3 seconds") && first.contains("No alert is firing"), "{first}");
        history.push(at(6));
        let second = page(&history).live.into_string();
        assert!(second.contains("1000/s") && second.contains("<svg"), "{second}");
    }
}
