//! Plots as inline SVG: they use the colours of the page, and show the figures of a step when the pointer is over it.

use std::fmt::Write;

use crate::text::escape;
use crate::{brief, units};

/// Widths of a plot that shares its row with one other plot, and with two.
const WIDE: f64 = 560.0;
const NARROW: f64 = 370.0;
const HEIGHT: f64 = 230.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 34.0;
/// Approximate distance of two ticks in pixels: horizontal, and vertical.
const TICK_WIDTH: f64 = 90.0;
const TICK_HEIGHT: f64 = 40.0;

/// Time that an axis of [`Axis::Ago`] covers, in seconds.
pub const AGO_S: f64 = 300.0;

/// Quantity of an axis, and its scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Seconds from 0 on.
    Seconds,
    /// Seconds before now, as negative numbers: the last [`AGO_S`].
    Ago,
    /// Number per second from 0 on.
    PerSecond,
    /// Bytes per second from 0 on.
    BytesPerSecond,
    /// Microseconds, logarithmic.
    Latency,
    /// Part of 1, logarithmic in the remaining part: each nine has the same width.
    Quantile,
    /// Megabytes from 0 on.
    Megabytes,
    /// Megabytes per second from 0 on.
    MegabytesPerSecond,
    /// Percent of one core from 0 on.
    CpuPercent,
}

/// Style of a line. The page defines the colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stroke {
    First,
    Second,
    Faint,
}

pub struct Line {
    pub name: String,
    pub stroke: Stroke,
    pub points: Vec<(f64, f64)>,
}

pub struct Plot {
    pub title: String,
    pub x: Axis,
    pub y: Axis,
    pub lines: Vec<Line>,
    /// `true` if the area below the first line is filled.
    pub is_filled: bool,
}

/// Range of an axis, mapped to pixels.
struct Scale {
    axis: Axis,
    min: f64,
    max: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn is_logarithmic(self) -> bool {
        self == Self::Latency
    }

    /// Returns the value on the linear scale of the page.
    fn project(self, value: f64) -> f64 {
        match self {
            Self::Latency => value.max(0.1).log10(),
            Self::Quantile => -(1.0 - value.min(0.999_999_9)).log10(),
            Self::Seconds
            | Self::Ago
            | Self::PerSecond
            | Self::BytesPerSecond
            | Self::Megabytes
            | Self::MegabytesPerSecond
            | Self::CpuPercent => value,
        }
    }

    pub fn show(self, value: f64) -> String {
        match self {
            Self::Seconds => format!("{} s", units::short(value)),
            Self::Ago if value == 0.0 => "now".to_owned(),
            Self::Ago => format!("{} ago", units::elapsed((-value * 1000.0) as u64)),
            Self::PerSecond => brief::per_s(brief::count(value)),
            Self::BytesPerSecond => brief::per_s(brief::bytes(value)),
            Self::Latency => units::latency(value),
            Self::Quantile => format!("p{}", units::percent(value)),
            Self::Megabytes => format!("{} MB", units::short(value)),
            Self::MegabytesPerSecond => format!("{} MB/s", units::short(value)),
            Self::CpuPercent => format!("{} %", units::short(value)),
        }
    }
}

impl Scale {
    fn new(axis: Axis, values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let mut min = f64::INFINITY;
        let mut max = f64::NEG_INFINITY;
        for value in values.map(|value| axis.project(value)) {
            min = min.min(value);
            max = max.max(value);
        }
        (min, max) = match axis {
            // Multiples of half a decade, so that the ends have a label.
            Axis::Latency => ((min * 2.0).floor() / 2.0, (max * 2.0).ceil() / 2.0),
            Axis::Quantile => (0.0, max),
            Axis::Seconds => (0.0, max),
            Axis::Ago => (-AGO_S, 0.0),
            Axis::PerSecond | Axis::BytesPerSecond | Axis::Megabytes | Axis::MegabytesPerSecond | Axis::CpuPercent => {
                (0.0, max * 1.08)
            }
        };
        if max <= min {
            max = min + 1.0;
        }
        Self { axis, min, max, from, to }
    }

    fn place(&self, value: f64) -> f64 {
        self.from + (self.axis.project(value) - self.min) / (self.max - self.min) * (self.to - self.from)
    }

    /// Returns the values that have a line and a label.
    fn ticks(&self) -> Vec<f64> {
        let within = |value: &f64| {
            let place = self.axis.project(*value);
            place >= self.min - 1e-9 && place <= self.max + 1e-9
        };
        if self.axis == Axis::Quantile {
            return [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999_999].into_iter().filter(within).collect();
        }
        if self.axis.is_logarithmic() {
            let decades = self.min.floor() as i32..=self.max.ceil() as i32;
            let steps: &[f64] = if self.max - self.min > 2.5 { &[1.0] } else { &[1.0, 2.0, 5.0] };
            let values = decades.flat_map(|decade| steps.iter().map(move |step| step * 10f64.powi(decade)));
            return values.filter(within).collect();
        }
        if self.axis == Axis::Ago {
            return (0..=5).rev().map(|part| -AGO_S * f64::from(part) / 5.0).collect();
        }
        let pixels = (self.to - self.from).abs();
        let tick = if self.axis == Axis::Seconds { TICK_WIDTH } else { TICK_HEIGHT };
        let rough = (self.max - self.min) / (pixels / tick).max(1.0);
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|step| *step >= rough).unwrap_or(rough);
        (0..).map(|i| f64::from(i) * step).take_while(within).collect()
    }
}

impl Stroke {
    fn class(self) -> &'static str {
        match self {
            Self::First => "a",
            Self::Second => "b",
            Self::Faint => "c",
        }
    }
}

impl Plot {
    pub fn is_empty(&self) -> bool {
        self.lines.iter().all(|line| line.points.is_empty())
    }

    /// Renders the figure, with its title and the names of its lines, for a row of `in_row` plots.
    pub fn render(&self, in_row: usize) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let width = if in_row > 2 { NARROW } else { WIDE };
        let x = Scale::new(self.x, points().map(|(x, _)| *x), LEFT, width - RIGHT);
        let y = Scale::new(self.y, points().map(|(_, y)| *y), HEIGHT - BOTTOM, TOP);
        let mut out = format!(
            "<figure><h3>{}</h3><svg viewBox=\"0 0 {width} {HEIGHT}\" role=\"img\" aria-label=\"{0}\">\n",
            escape(&self.title)
        );
        render_axes(&mut out, &x, &y);
        if let (true, Some(line)) = (self.is_filled, self.lines.first()) {
            let floor = HEIGHT - BOTTOM;
            if let (Some(first), Some(last)) = (line.points.first(), line.points.last()) {
                let _infallible = writeln!(
                    out,
                    "<path class=\"fill\" d=\"{}L{:.1},{floor}L{:.1},{floor}Z\"/>",
                    path(&line.points, &x, &y),
                    x.place(last.0),
                    x.place(first.0)
                );
            }
        }
        // The first line is drawn on top.
        for line in self.lines.iter().rev() {
            let class = line.stroke.class();
            let _infallible = writeln!(out, "<path class=\"{class}\" d=\"{}\"/>", path(&line.points, &x, &y));
        }
        self.render_looks(&mut out, &x);
        out.push_str("</svg><figcaption>");
        // A single line is described by the title.
        let named = if self.lines.len() > 1 { &self.lines[..] } else { &[] };
        for line in named.iter().filter(|line| !line.points.is_empty()) {
            let class = line.stroke.class();
            let _infallible = write!(out, "<span><i class=\"{class}\"></i>{}</span>", escape(&line.name));
        }
        out.push_str("</figcaption></figure>\n");
        out
    }

    /// Renders a strip for each point of the first line, which shows the figures of all lines there.
    fn render_looks(&self, out: &mut String, x: &Scale) {
        let Some(first) = self.lines.first() else {
            return;
        };
        let places: Vec<f64> = first.points.iter().map(|(at, _)| x.place(*at)).collect();
        for (i, (at, _)) in first.points.iter().enumerate() {
            let left = if i == 0 { x.from } else { f64::midpoint(places[i - 1], places[i]) };
            let right = places.get(i + 1).map_or(x.to, |next| f64::midpoint(*next, places[i]));
            let mut says = self.x.show(*at);
            for line in &self.lines {
                if let Some((_, value)) = line.points.iter().find(|(position, _)| position == at) {
                    let _infallible = write!(says, "\n{}: {}", line.name, self.y.show(*value));
                }
            }
            let width = right - left;
            let height = HEIGHT - BOTTOM - TOP;
            let _infallible = writeln!(
                out,
                "<rect class=\"look\" x=\"{left:.1}\" y=\"{TOP}\" width=\"{width:.1}\" height=\"{height}\">\
                 <title>{}</title></rect>",
                escape(&says)
            );
        }
    }
}

fn render_axes(out: &mut String, x: &Scale, y: &Scale) {
    let floor = HEIGHT - BOTTOM;
    for value in y.ticks() {
        let at = y.place(value);
        let label = y.axis.show(value);
        let _infallible = writeln!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            x.to,
            LEFT - 7.0,
            at + 4.0
        );
    }
    for value in x.ticks() {
        let at = x.place(value);
        let label = x.axis.show(value);
        let _infallible = writeln!(
            out,
            "<line class=\"axis\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{floor}\" y2=\"{:.1}\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
            floor + 4.0,
            floor + 18.0
        );
    }
    let _infallible =
        writeln!(out, "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{floor}\" y2=\"{floor}\"/>", x.to);
}

fn path(points: &[(f64, f64)], x: &Scale, y: &Scale) -> String {
    let mut path = String::new();
    for (i, (at, value)) in points.iter().enumerate() {
        let verb = if i == 0 { 'M' } else { 'L' };
        let _infallible = write!(path, "{verb}{:.1},{:.1}", x.place(*at), y.place(*value));
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scale(axis: Axis, values: &[f64]) -> Scale {
        Scale::new(axis, values.iter().copied(), 0.0, 300.0)
    }

    #[test]
    fn ticks_are_round_numbers_within_the_range() {
        assert_eq!(scale(Axis::Seconds, &[0.3, 1.1]).ticks(), [0.0, 0.5, 1.0]);
        assert_eq!(scale(Axis::Megabytes, &[0.0]).ticks().first(), Some(&0.0));
        assert_eq!(scale(Axis::Latency, &[60.0, 900.0]).ticks(), [50.0, 100.0, 200.0, 500.0, 1000.0]);
        assert_eq!(scale(Axis::Latency, &[10.0, 90_000.0]).ticks(), [10.0, 100.0, 1000.0, 10_000.0, 100_000.0]);
        assert_eq!(scale(Axis::Quantile, &[0.0, 0.9995]).ticks(), [0.0, 0.5, 0.9, 0.99, 0.999]);
    }

    #[test]
    fn each_nine_is_as_wide_as_the_one_before() {
        let scale = scale(Axis::Quantile, &[0.0, 0.999]);
        let places = [0.0, 0.9, 0.99, 0.999].map(|quantile| scale.place(quantile).round());
        assert_eq!(places, [0.0, 100.0, 200.0, 300.0]);
    }

    #[test]
    fn a_plot_contains_its_lines_and_their_names_as_text() {
        let line = |name: &str, points| Line { name: name.to_owned(), stroke: Stroke::First, points };
        let mut plot = Plot {
            title: "a < b".to_owned(),
            x: Axis::Seconds,
            y: Axis::Latency,
            lines: vec![line("p50 & more", vec![(0.5, 80.0), (1.5, 90.0)])],
            is_filled: true,
        };
        let svg = plot.render(2);
        assert!(svg.contains("<h3>a &lt; b</h3>") && svg.contains("p50 &amp; more: 80 µs"), "{svg}");
        assert_eq!(svg.matches("<rect").count(), 2);
        assert!(!plot.is_empty());
        plot.lines[0].points.clear();
        assert!(plot.is_empty());
    }
}
