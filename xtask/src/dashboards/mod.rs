//! `cargo xtask dashboards`: writes the dashboards for Grafana from the table of metrics.
//!
//! Each is in Grafana's JSON model
//! (<https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/>). The overview is
//! chosen by hand in `overview.rs`; the other dashboard has every metric of `docs/reference/metrics.md`, in its order.

mod metrics;
mod overview;

use serde_json::{Value, json};

use crate::docs::compare;
use crate::run::{Outcome, root};
use metrics::{Kind, Metric, Section};

const METRICS: &str = "docs/reference/metrics.md";
const FOLDER: &str = "docs/dashboards";
/// Version of the JSON model: that of Grafana 10.0, which newer ones read.
const SCHEMA_VERSION: u32 = 38;
/// Width of a dashboard, in the units of its grid.
const WIDTH: u32 = 24;
const PANEL_WIDTH: u32 = 8;
const PANEL_HEIGHT: u32 = 7;
const STAT_WIDTH: u32 = 4;
const STAT_HEIGHT: u32 = 4;
const ROW_HEIGHT: u32 = 1;
/// Selection of brokers, which the variables of a dashboard make.
const SELECTED: &str = r#"job=~"$job", instance=~"$instance""#;

pub fn run(args: &[&str]) -> Outcome {
    let is_check = match args {
        [] => false,
        ["--check"] => true,
        _ => return Err("unknown arguments: the only argument is --check".into()),
    };
    let page = std::fs::read_to_string(root().join(METRICS)).map_err(|e| format!("{METRICS}: {e}"))?;
    for (name, dashboard) in dashboards(&metrics::read(&page)?)? {
        let path = format!("{FOLDER}/{name}.json");
        let text = text(&dashboard);
        let file = root().join(&path);
        if is_check {
            compare(&file, &text).map_err(|e| format!("{path} {e}; regenerate it with: cargo xtask dashboards"))?;
            println!("{path} is up to date");
        } else {
            let written = std::fs::create_dir_all(root().join(FOLDER)).and_then(|()| std::fs::write(&file, text));
            written.map_err(|e| format!("{path}: {e}"))?;
            println!("wrote {path}");
        }
    }
    Ok(())
}

/// Returns a dashboard as JSON, with each panel on its own line.
fn text(dashboard: &Value) -> String {
    let mut members = Vec::new();
    for (name, value) in dashboard.as_object().into_iter().flatten() {
        let shown = if name == "panels" { lines(value, "  ") } else { value.to_string() };
        members.push(format!("  \"{name}\": {shown}"));
    }
    format!("{{\n{}\n}}\n", members.join(",\n"))
}

/// Returns panels as JSON, each on its own line, those of rows too.
fn lines(panels: &Value, indent: &str) -> String {
    let line = |panel: &Value| match panel["panels"].as_array() {
        Some(inner) if !inner.is_empty() => {
            let mut row = panel.clone();
            row["panels"] = Value::Null;
            let inner = lines(&panel["panels"], &format!("{indent}  "));
            format!("{indent}  {}", row.to_string().replace("\"panels\":null", &format!("\"panels\":{inner}")))
        }
        _ => format!("{indent}  {panel}"),
    };
    let all: Vec<String> = panels.as_array().into_iter().flatten().map(line).collect();
    format!("[\n{}\n{indent}]", all.join(",\n"))
}

/// Returns the dashboards with the names of their files.
fn dashboards(sections: &[Section]) -> Outcome<[(&'static str, Value); 2]> {
    let overview = overview::rows();
    for row in &overview {
        for query in row.panels.iter().flat_map(|panel| &panel.queries) {
            check(sections, &query.of)?;
        }
    }
    let all = sections.iter().map(|section| Row {
        title: section.title.clone(),
        is_collapsed: true,
        panels: section.metrics.iter().map(panel_of).collect(),
    });
    Ok([
        ("thalweg", dashboard("thalweg-overview", "Thalweg", "Rates, latencies, lag and limits of brokers.", overview)),
        (
            "thalweg-metrics",
            dashboard(
                "thalweg-metrics",
                "Thalweg: all metrics",
                "Every metric of Thalweg, with its meaning and when to investigate it.",
                all.collect(),
            ),
        ),
    ])
}

/// Checks that an expression uses only metrics of the table.
fn check(sections: &[Section], expression: &str) -> Outcome {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    for word in expression.split(|c| !is_word(c)) {
        let is_metric = word.starts_with("thalweg_") || word.starts_with("process_");
        let name = ["_bucket", "_sum", "_count"].iter().find_map(|end| word.strip_suffix(end)).unwrap_or(word);
        let is_known = |metric: &Metric| metric.name == word || metric.name == name;
        if is_metric && !sections.iter().flat_map(|section| &section.metrics).any(is_known) {
            return Err(format!("{METRICS} has no metric {word}, which a dashboard shows"));
        }
    }
    Ok(())
}

/// Row of a dashboard with a title.
struct Row {
    title: String,
    is_collapsed: bool,
    panels: Vec<Panel>,
}

/// Plot of some queries, or their last values.
struct Panel {
    title: String,
    about: String,
    /// Unit as Grafana names it.
    unit: &'static str,
    is_stat: bool,
    queries: Vec<Query>,
}

/// Query with the text that names its series.
struct Query {
    of: String,
    legend: String,
}

/// Returns the panel of a metric in the dashboard of all metrics.
fn panel_of(metric: &Metric) -> Panel {
    let Metric { name, kind, unit, labels, .. } = metric;
    let by = [&["instance".to_owned()], &labels[..]].concat();
    let legend = by.iter().map(|label| format!("{{{{{label}}}}}")).collect::<Vec<_>>().join(" ");
    let by = by.join(", ");
    let rate = |name: &str, by: &str| format!("sum by ({by}) (rate({name}{{{SELECTED}}}[$__rate_interval]))");
    let query = |of, legend: &str| Query { of, legend: legend.to_owned() };
    let (queries, unit) = match kind {
        Kind::Counter => (vec![query(rate(name, &by), &legend)], metrics::unit_of_rate(unit)),
        Kind::Gauge => (vec![query(format!("max by ({by}) ({name}{{{SELECTED}}})"), &legend)], metrics::unit(unit)),
        Kind::Histogram => {
            let buckets = rate(&format!("{name}_bucket"), &format!("le, {by}"));
            let quantile = |of: &str, shown: &str| {
                query(format!("histogram_quantile({of}, {buckets})"), &format!("{shown} {legend}"))
            };
            (vec![quantile("0.5", "p50"), quantile("0.99", "p99")], metrics::unit(unit))
        }
    };
    Panel { title: name.clone(), about: metric.about(), unit, is_stat: false, queries }
}

fn dashboard(uid: &str, title: &str, about: &str, rows: Vec<Row>) -> Value {
    let mut panels = Vec::new();
    let mut id = 0;
    let mut y = 0;
    for row in rows {
        id += 1;
        let row_at = json!({ "h": ROW_HEIGHT, "w": WIDTH, "x": 0, "y": y });
        let row_id = id;
        y += ROW_HEIGHT;
        let (mut x, mut height) = (0, 0);
        let mut inner = Vec::new();
        for one in &row.panels {
            id += 1;
            let (w, h) = if one.is_stat { (STAT_WIDTH, STAT_HEIGHT) } else { (PANEL_WIDTH, PANEL_HEIGHT) };
            if x + w > WIDTH {
                (x, y) = (0, y + height);
                height = 0;
            }
            inner.push(panel(id, one, &json!({ "h": h, "w": w, "x": x, "y": y })));
            x += w;
            height = height.max(h);
        }
        y += height;
        // Grafana keeps the panels of a closed row inside of it, and those of an open one behind it.
        let (closed, open) = if row.is_collapsed { (inner, Vec::new()) } else { (Vec::new(), inner) };
        panels.push(json!({
            "type": "row", "id": row_id, "title": row.title, "collapsed": row.is_collapsed, "gridPos": row_at,
            "panels": closed,
        }));
        panels.extend(open);
    }
    json!({
        "uid": uid,
        "title": title,
        "description": about,
        "tags": ["thalweg"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": true,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": { "from": "now-1h", "to": "now" },
        "templating": { "list": variables() },
        "annotations": { "list": [restarts()] },
        "links": [{
            "type": "dashboards", "title": "Thalweg", "tags": ["thalweg"], "asDropdown": true, "icon": "external link",
            "includeVars": true, "keepTime": true, "targetBlank": false, "tooltip": "", "url": "",
        }],
        "panels": panels,
    })
}

/// Returns the choices at the top of a dashboard: the data source, and which brokers are shown.
fn variables() -> Value {
    let labels = |name: &str, shown: &str, of: &str| {
        json!({
            "type": "query", "name": name, "label": shown, "datasource": source(), "refresh": 2, "sort": 1,
            "multi": true, "includeAll": true, "allValue": ".*", "current": { "text": "All", "value": "$__all" },
            "query": { "query": of, "refId": name },
        })
    };
    json!([
        { "type": "datasource", "name": "source", "label": "Data source", "query": "prometheus" },
        labels("job", "Job", "label_values(thalweg_build, job)"),
        labels("instance", "Broker", r#"label_values(thalweg_build{job=~"$job"}, instance)"#),
    ])
}

fn source() -> Value {
    json!({ "type": "prometheus", "uid": "${source}" })
}

/// Returns the marks of restarts.
fn restarts() -> Value {
    json!({
        "name": "Restarts", "enable": true, "iconColor": "orange", "datasource": source(),
        "target": {
            "refId": "Restarts", "expr": format!("changes(process_start_time_seconds{{{SELECTED}}}[1m]) > 0"),
        },
        "titleFormat": "{{instance}} restarted",
    })
}

fn panel(id: u32, panel: &Panel, at: &Value) -> Value {
    let target = |(at, query): (usize, &Query)| {
        json!({
            "refId": char::from(b'A' + at as u8).to_string(), "expr": query.of, "legendFormat": query.legend,
            "datasource": source(),
        })
    };
    let targets: Vec<Value> = panel.queries.iter().enumerate().map(target).collect();
    let options = if panel.is_stat {
        json!({
            "reduceOptions": { "calcs": ["lastNotNull"], "fields": "", "values": false },
            "colorMode": "value", "graphMode": "area", "justifyMode": "auto", "orientation": "auto", "textMode": "auto",
        })
    } else {
        json!({
            "legend": { "displayMode": "list", "placement": "bottom", "showLegend": true, "calcs": [] },
            "tooltip": { "mode": "multi", "sort": "desc" },
        })
    };
    json!({
        "type": if panel.is_stat { "stat" } else { "timeseries" },
        "id": id,
        "title": panel.title,
        "description": panel.about,
        "gridPos": at,
        "datasource": source(),
        "targets": targets,
        "options": options,
        "fieldConfig": { "defaults": { "unit": panel.unit, "min": 0 }, "overrides": [] },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sections() -> Vec<Section> {
        let page = std::fs::read_to_string(root().join(METRICS)).expect("the page");
        metrics::read(&page).expect("its tables")
    }

    /// Returns the panels of a dashboard, those of closed rows too, without the rows.
    fn panels(dashboard: &Value) -> Vec<&Value> {
        let outer = dashboard["panels"].as_array().expect("panels").iter();
        let all = outer.flat_map(|panel| panel["panels"].as_array().into_iter().flatten().chain([panel]));
        all.filter(|panel| panel["type"] != "row").collect()
    }

    #[test]
    fn every_metric_of_the_page_has_a_panel() {
        let sections = sections();
        let [_, (_, all)] = dashboards(&sections).expect("dashboards");
        let shown: Vec<&str> = panels(&all).iter().filter_map(|panel| panel["title"].as_str()).collect();
        let listed: Vec<&str> =
            sections.iter().flat_map(|section| &section.metrics).map(|metric| metric.name.as_str()).collect();
        assert_eq!(shown, listed);
        assert!(listed.len() > 200 && listed.contains(&"thalweg_publish_seconds"), "{}", listed.len());
    }

    #[test]
    fn no_panel_covers_another_and_each_has_a_query() {
        for (name, dashboard) in dashboards(&sections()).expect("dashboards") {
            let mut cells = std::collections::HashSet::new();
            let mut ids = std::collections::HashSet::new();
            for panel in panels(&dashboard) {
                assert!(ids.insert(panel["id"].as_u64()), "{name}: {}", panel["title"]);
                assert!(panel["targets"].as_array().is_some_and(|targets| !targets.is_empty()), "{}", panel["title"]);
                let at = |key: &str| panel["gridPos"][key].as_u64().expect("a number");
                for x in at("x")..at("x") + at("w") {
                    assert!(x < u64::from(WIDTH), "{name}: {}", panel["title"]);
                    for y in at("y")..at("y") + at("h") {
                        assert!(cells.insert((x, y)), "{name}: {} covers another", panel["title"]);
                    }
                }
            }
        }
    }

    #[test]
    fn the_files_are_the_dashboards() {
        assert_eq!(run(&["--check"]), Ok(()));
        for (name, dashboard) in dashboards(&sections()).expect("dashboards") {
            let read: Value = serde_json::from_str(&text(&dashboard)).expect("JSON");
            assert_eq!(read, dashboard, "{name}");
        }
    }

    #[test]
    fn a_query_of_an_unknown_metric_is_refused() {
        let sections = sections();
        assert_eq!(check(&sections, "rate(thalweg_publish_seconds_bucket[1m])"), Ok(()));
        let error = check(&sections, "sum(thalweg_publish_second)").expect_err("unknown");
        assert_eq!(error, format!("{METRICS} has no metric thalweg_publish_second, which a dashboard shows"));
    }
}
