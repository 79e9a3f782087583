//! The state of a mesh, as tables and as JSON.

use std::io::{Write, stdout};

use client::mesh::{CacheStats, MeshStats, RouteStats};
use client::{LinkState, MeshStatus, MeshTopic, SiteName, SiteStatus};
use doors::http::mesh_json;
use serde_json::Value;

use super::super::units::{bytes, count, elapsed, nothing, table};
use crate::output::Result;

const DASH: &str = "-";
const ONLY_DIALS: &str = "only dials out";
/// Number of digits of a key that distinguish it from others.
const KEY_DIGITS: usize = 16;

pub fn status(status: &MeshStatus, is_json: bool) -> Result {
    let mut out = stdout();
    if is_json {
        return Ok(writeln!(out, "{}", mesh_json::status(status))?);
    }
    writeln!(out, "{}", head(status))?;
    if status.sites.is_empty() {
        return Ok(writeln!(out, "no other sites yet; `thalweg mesh invite` prints an invitation for one")?);
    }
    let mut sites = table();
    sites.set_header(["SITE", "ADDRESS", "ROLE", "LINK", "SINCE", "ROUND TRIP"]);
    for of in &status.sites {
        let (address, role) = (of.address.as_deref().unwrap_or(ONLY_DIALS), of.role.name());
        sites.add_row([of.site.as_str(), address, role, &link(of), &elapsed(of.since_ms), &round_trip(of)]);
    }
    writeln!(out, "\n{sites}")?;
    let down = status.sites.iter().filter(|of| of.link == LinkState::Down);
    for (site, error) in down.filter_map(|of| Some((&of.site, of.error.as_ref()?))) {
        writeln!(out, "{site}: {error}")?;
    }
    Ok(())
}

/// Returns the line about this site.
pub fn head(status: &MeshStatus) -> String {
    let MeshStatus { site, key, role, address, isolated_ms, .. } = status;
    let reached = address.as_ref().map_or_else(|| ONLY_DIALS.to_owned(), |address| format!("reached at {address}"));
    let isolated = isolated_ms.map(|ms| format!(", isolated for {}", elapsed(ms))).unwrap_or_default();
    format!("site {site}, key {:.KEY_DIGITS$}, {}, {reached}{isolated}", key.to_string(), role.name())
}

fn link(of: &SiteStatus) -> String {
    match &of.via {
        Some(hub) => format!("{} by {hub}", of.link.name()),
        None => of.link.name().to_owned(),
    }
}

fn round_trip(of: &SiteStatus) -> String {
    of.round_trip_us.map_or_else(|| DASH.to_owned(), |us| format!("{:.1} ms", us as f64 / 1000.0))
}

pub fn topics(topics: &[MeshTopic], is_json: bool) -> Result {
    let mut out = stdout();
    if is_json {
        return Ok(writeln!(out, "{}", Value::Array(topics.iter().map(mesh_json::topic).collect()))?);
    }
    if topics.is_empty() {
        let advice = "`thalweg topic alter TOPIC --mesh live` adds one, as does --mesh mirror";
        return Ok(writeln!(out, "{}", nothing("topics in the mesh", advice))?);
    }
    Ok(writeln!(out, "{}", topic_rows(topics))?)
}

/// Returns a table of topics, and below it the reasons why copies are not copied now.
fn topic_rows(topics: &[MeshTopic]) -> String {
    let mut rows = table();
    rows.set_header(["TOPIC", "MODE", "WANTED HERE", "SENT TO", "SENT", "RECEIVED", "BEHIND", "LOST"]);
    for of in topics {
        let sites = if of.sites.is_empty() { DASH.to_owned() } else { names(&of.sites).join(" ") };
        let wanted = if of.is_wanted { "yes" } else { DASH };
        let (sent, received) = (of.sent_records.to_string(), of.received_records.to_string());
        let [behind, lost] = match &of.copy {
            Some(of) => [of.behind.map_or_else(|| "unknown".into(), |n| n.to_string()), of.lost_records.to_string()],
            None => [DASH, DASH].map(str::to_owned),
        };
        rows.add_row([of.topic.as_str(), of.mode.name(), wanted, &sites, &sent, &received, &behind, &lost]);
    }
    let errors = topics.iter().filter_map(|of| Some((&of.topic, of.copy.as_ref()?.error.as_ref()?)));
    errors.fold(rows.to_string(), |text, (topic, error)| format!("{text}\n{topic}: {error}"))
}

fn names(sites: &[SiteName]) -> Vec<&str> {
    sites.iter().map(SiteName::as_str).collect()
}

pub fn routes(status: &MeshStatus, is_json: bool) -> Result {
    let mut out = stdout();
    if is_json {
        return Ok(writeln!(out, "{}", Value::Array(status.sites.iter().map(mesh_json::site).collect()))?);
    }
    if status.sites.is_empty() {
        return Ok(writeln!(out, "no other sites yet; `thalweg mesh invite` prints an invitation for one")?);
    }
    let mut rows = table();
    rows.set_header(["SITE", "LINK", "VIA", "ROUND TRIP", "SENT", "RECEIVED", "LOST"]);
    for of in &status.sites {
        rows.add_row([
            of.site.as_str(),
            of.link.name(),
            of.via.as_ref().map_or(DASH, SiteName::as_str),
            &round_trip(of),
            &carried(of.sent_records, of.sent_bytes),
            &carried(of.received_records, of.received_bytes),
            &of.lost_records.to_string(),
        ]);
    }
    Ok(writeln!(out, "{rows}")?)
}

fn carried(records: u64, of_bytes: u64) -> String {
    format!("{}, {}", count(records, "record"), bytes(of_bytes))
}

pub fn stats(stats: &MeshStats, is_json: bool) -> Result {
    let mut out = stdout();
    if is_json {
        return Ok(writeln!(out, "{}", mesh_json::stats(stats))?);
    }
    let MeshStats { cache, routes, lookups, directory_entries } = stats;
    let mut rows = table();
    rows.set_header(["", "HITS", "MISSES", "HIT RATE", "STORES", "ENTRIES", "RATE LIMITED"]);
    let CacheStats { hits, misses, stores, table_size, rate_limited } = cache;
    let numbers = [stores, table_size, rate_limited].map(u64::to_string);
    rows.add_row(row("subscriber cache", [*hits, *misses], cache.hit_rate(), numbers));
    let RouteStats { hits, misses, stores, table_size } = routes;
    let numbers = [stores.to_string(), table_size.to_string(), DASH.to_owned()];
    rows.add_row(row("routing table", [*hits, *misses], routes.hit_rate(), numbers));
    writeln!(out, "{rows}")?;
    let (lookups, entries) = (count(*lookups, "lookup"), count(*directory_entries, "entry"));
    Ok(writeln!(out, "\n{lookups}; {entries} in this site's part of the directory")?)
}

fn row(name: &str, asked: [u64; 2], hit_rate: Option<f64>, numbers: [String; 3]) -> Vec<String> {
    let rate = hit_rate.map_or_else(|| DASH.to_owned(), |rate| format!("{rate:.1} %"));
    let asked = asked.map(|number| number.to_string());
    [name.to_owned()].into_iter().chain(asked).chain([rate]).chain(numbers).collect()
}

#[cfg(test)]
mod tests {
    use client::CopyStatus;
    use client::mesh::{MeshMode, SiteKey, SiteRole};
    use engine::TopicName;

    use serde_json::json;

    use super::*;

    #[test]
    fn the_head_tells_whether_others_reach_this_site() {
        let isolated = MeshStatus {
            site: SiteName::parse("berlin").expect("a name"),
            key: SiteKey::new([0xab; 32]),
            role: SiteRole::Leaf,
            address: None,
            isolated_ms: Some(61_000),
            sites: Vec::new(),
            stats: MeshStats::default(),
        };
        assert_eq!(head(&isolated), "site berlin, key abababababababab, leaf, only dials out, isolated for 1m 1s");
        let reached = MeshStatus {
            role: SiteRole::Hub,
            address: Some("berlin.example:7403".into()),
            isolated_ms: None,
            ..isolated
        };
        assert_eq!(head(&reached), "site berlin, key abababababababab, hub, reached at berlin.example:7403");
    }

    #[test]
    fn live_topics_and_copies_are_listed_together_and_errors_below() {
        let oslo = || SiteName::parse("oslo").expect("a name");
        let of = |name: &str, mode, copy| MeshTopic {
            topic: TopicName::parse(name).expect("a name"),
            mode,
            is_wanted: mode == MeshMode::Live,
            sites: Vec::new(),
            sent_records: 0,
            received_records: 5,
            copy,
        };
        let copied = CopyStatus { origin: oslo(), behind: Some(12), lost_records: 3, error: None };
        let unreached = CopyStatus { behind: None, lost_records: 0, error: Some("no link".into()), ..copied.clone() };
        let topics = [
            of("audit", MeshMode::Mirror, None),
            of("oslo.audit", MeshMode::Copy, Some(copied)),
            of("oslo.rates", MeshMode::Copy, Some(unreached)),
            MeshTopic { sites: vec![oslo()], sent_records: 7, ..of("prices", MeshMode::Live, None) },
        ];
        let text = topic_rows(&topics);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            lines[1..],
            [
                vec!["audit", "mirror", "-", "-", "0", "5", "-", "-"],
                vec!["oslo.audit", "copy", "-", "-", "0", "5", "12", "3"],
                vec!["oslo.rates", "copy", "-", "-", "0", "5", "unknown", "0"],
                vec!["prices", "live", "yes", "oslo", "7", "5", "-", "-"],
                vec!["oslo.rates:", "no", "link"],
            ]
        );
        assert_eq!(mesh_json::topic(&topics[0])["copy"], Value::Null);
        let shown = json!({ "origin": "oslo", "behind": 12, "lost_records": 3, "error": null });
        let of_copy = mesh_json::topic(&topics[1]);
        assert_eq!((&of_copy["mode"], &of_copy["copy"]), (&json!("copy"), &shown));
    }
}
