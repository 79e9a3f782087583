//! Section of a run on a page: latency, volume, memory and CPU over time, next to the tables.

use super::{Point, StreamReport, Usage};
use crate::html::units::{count, latency, short};
use crate::html::{Axis, Line, Page, Plot, Section, Stroke};

/// Returns a page of consecutive runs.
pub fn page(reports: &[StreamReport]) -> Option<Page> {
    let first = reports.first()?;
    let last = reports.last()?;
    let load = [first.load_average_before, last.load_average_after];
    let mut page = Page::new("thalweg bench stream", &last.host, &last.program, load);
    page.sections = reports.iter().map(StreamReport::section).collect();
    Some(page)
}

impl StreamReport {
    fn section(&self) -> Section {
        let charts = &self.charts;
        Section {
            title: self.mode.clone(),
            shape: self.shape(),
            is_whole: !self.faults().any(),
            verdict: self.verdict(),
            tiles: self.tiles(),
            plots: vec![
                vec![
                    over_time("Producer latency over time", &charts.producer),
                    percentiles("Producer latency by percentile", &charts.producer_curve),
                ],
                vec![
                    over_time("Consumer latency over time", &charts.consumer),
                    percentiles("Consumer latency by percentile", &charts.consumer_curve),
                ],
                vec![
                    over_time("End-to-end latency over time", &charts.e2e),
                    percentiles("End-to-end latency by percentile", &charts.e2e_curve),
                ],
                vec![
                    throughput("Throughput", &charts.producer, &charts.consumer),
                    usage("Memory of the server", Axis::Megabytes, &charts.server, |look| {
                        Some(look.resident_bytes as f64 / 1e6)
                    }),
                    usage("CPU of the server", Axis::CpuPercent, &charts.server, |look| look.cpu_percent),
                ],
            ],
            tables: self.tables().into(),
            notes: self.notes(),
        }
    }

    fn tiles(&self) -> Vec<(String, String)> {
        let mut tiles = vec![
            (count(self.records), format!("records, {} MB", short(self.bytes as f64 / 1e6))),
            (format!("{}/s", count(self.produced_per_s as u64)), "produced, mean".to_owned()),
        ];
        let mut add = |value: Option<String>, what: &str| tiles.extend(value.map(|value| (value, what.to_owned())));
        add(self.consumed_per_s.map(|per_s| format!("{}/s", count(per_s as u64))), "consumed, mean");
        add(self.producer_us.map(|p| latency(p.p50)), "ack, p50");
        add(self.producer_us.map(|p| latency(p.p99)), "ack, p99");
        add(self.e2e_us.map(|p| latency(p.p50)), "end to end, p50");
        add(self.e2e_us.map(|p| latency(p.p99)), "end to end, p99");
        add(self.memory_growth_mb().map(|mb| format!("{} MB", short(mb))), "memory growth");
        tiles
    }
}

fn over_time(title: &str, points: &[Point]) -> Plot {
    let line = |name: &str, stroke, value: fn(&Point) -> f64| Line {
        name: name.to_owned(),
        stroke,
        points: points.iter().map(|point| (point.at_s, value(point))).collect(),
    };
    Plot {
        title: title.to_owned(),
        x: Axis::Seconds,
        y: Axis::Latency,
        lines: vec![
            line("p50 of a step", Stroke::First, |point| point.p50_us),
            line("p99", Stroke::Second, |point| point.p99_us),
            line("max", Stroke::Faint, |point| point.max_us),
        ],
        is_filled: false,
    }
}

fn percentiles(title: &str, curve: &[(f64, f64)]) -> Plot {
    let lines = vec![Line { name: "this run".to_owned(), stroke: Stroke::First, points: curve.to_vec() }];
    Plot { title: title.to_owned(), x: Axis::Quantile, y: Axis::Latency, lines, is_filled: false }
}

fn throughput(title: &str, produced: &[Point], consumed: &[Point]) -> Plot {
    let line = |name: &str, stroke, points: &[Point]| Line {
        name: name.to_owned(),
        stroke,
        points: points.iter().map(|point| (point.at_s, point.mb_per_s)).collect(),
    };
    Plot {
        title: title.to_owned(),
        x: Axis::Seconds,
        y: Axis::MegabytesPerSecond,
        lines: vec![line("produced", Stroke::First, produced), line("consumed", Stroke::Second, consumed)],
        is_filled: true,
    }
}

fn usage(title: &str, axis: Axis, looks: &[Usage], value: fn(&Usage) -> Option<f64>) -> Plot {
    let points = looks.iter().filter_map(|look| Some((look.at_s, value(look)?))).collect();
    Plot {
        title: title.to_owned(),
        x: Axis::Seconds,
        y: axis,
        lines: vec![Line { name: title.to_owned(), stroke: Stroke::First, points }],
        is_filled: true,
    }
}
