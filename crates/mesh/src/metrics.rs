//! Metrics of a site.

use std::fmt;
use std::sync::Arc;

use broker::metrics::{Collect, Exposition};
use engine::mesh::{CopyStatus, LinkState, MeshStats, MeshTopic, SiteStatus};

use crate::live::SEARCHES_MAX;
use crate::site::Site;

/// Adds the metrics of a site to those of its broker. They have values only while it is in a mesh.
pub(crate) fn register(site: &Arc<Site>) {
    let weak = Arc::downgrade(site);
    let Ok(broker) = site.broker() else { return };
    broker.register(Box::new(Collect(move |out: &mut Exposition<'_>| {
        let Some(site) = weak.upgrade() else { return Ok(()) };
        let Ok(status) = site.state() else { return Ok(()) };
        let isolated = status.isolated_ms.map_or(0, |ms| ms / 1000);
        out.gauge("thalweg_mesh_isolated_seconds", "Time since this site has had no link to another one", isolated)?;
        let help = "Connections refused because too many peers were not known yet";
        out.counter("thalweg_mesh_refused_connections", help, site.refused())?;
        let help = "Patterns and queue groups of clients of other sites";
        out.gauge("thalweg_mesh_listeners", help, site.listeners())?;
        let help = "Replies that are kept while the sites of their inboxes are looked for";
        out.gauge("thalweg_mesh_inbox_searches", help, site.searches())?;
        out.gauge("thalweg_mesh_inbox_searches_max", "Maximum of thalweg_mesh_inbox_searches", SEARCHES_MAX as u64)?;
        expose_sites(out, &status.sites)?;
        expose_waits(out, &site.waited_ms())?;
        expose_copies(out, &site.copies())?;
        expose_discovery(out, &status.stats)
    })));
}

fn expose_sites(out: &mut Exposition<'_>, sites: &[SiteStatus]) -> fmt::Result {
    let rows = |value: &dyn Fn(&SiteStatus) -> u64| -> Vec<(String, u64)> {
        sites.iter().map(|of| (of.site.to_string(), value(of))).collect()
    };
    let is_direct = rows(&|of| u64::from(of.link == LinkState::Direct));
    out.gauges("thalweg_mesh_link_direct", "1 if there is a link to the site itself", "site", &is_direct)?;
    let is_reachable = rows(&|of| u64::from(of.link != LinkState::Down));
    out.gauges(
        "thalweg_mesh_site_reachable",
        "1 if records reach the site, on a link or through a hub",
        "site",
        &is_reachable,
    )?;
    let round_trips = rows(&|of| of.round_trip_us.unwrap_or_default());
    out.gauges("thalweg_mesh_round_trip_microseconds", "Round-trip time of the link to a site", "site", &round_trips)?;
    let sent = rows(&|of| of.sent_records);
    out.counters("thalweg_mesh_sent_records", "Records sent to a site", "site", &sent)?;
    out.counters("thalweg_mesh_sent_bytes", "Bytes of records sent to a site", "site", &rows(&|of| of.sent_bytes))?;
    let received = rows(&|of| of.received_records);
    out.counters("thalweg_mesh_received_records", "Records of a site that were published here", "site", &received)?;
    let bytes = rows(&|of| of.received_bytes);
    out.counters(
        "thalweg_mesh_received_bytes",
        "Bytes of the records of a site that were published here",
        "site",
        &bytes,
    )?;
    let lost = rows(&|of| of.lost_records);
    out.counters(
        "thalweg_mesh_lost_records",
        "Records between this site and another one that did not arrive",
        "site",
        &lost,
    )
}

fn expose_waits(out: &mut Exposition<'_>, waited: &[(String, u64, u64)]) -> fmt::Result {
    let sent: Vec<_> = waited.iter().map(|(site, sent, _)| (site.clone(), *sent)).collect();
    let received: Vec<_> = waited.iter().map(|(site, _, received)| (site.clone(), *received)).collect();
    let help = "Time for which records for a site have waited for the limit of its link";
    out.counters("thalweg_mesh_send_wait_milliseconds", help, "site", &sent)?;
    let help = "Time for which records of a site have waited for the limit of the site";
    out.counters("thalweg_mesh_receive_wait_milliseconds", help, "site", &received)
}

fn expose_copies(out: &mut Exposition<'_>, topics: &[MeshTopic]) -> fmt::Result {
    let rows = |value: &dyn Fn(&MeshTopic, &CopyStatus) -> u64| -> Vec<(String, u64)> {
        let copies = topics.iter().filter_map(|of| Some((of, of.copy.as_ref()?)));
        copies.map(|(of, copy)| (of.topic.to_string(), value(of, copy))).collect()
    };
    let copied = rows(&|of, _| of.received_records);
    out.counters("thalweg_mesh_copied_records", "Records of another site that were copied", "topic", &copied)?;
    let behind = rows(&|_, copy| copy.behind.unwrap_or_default());
    let help = "Records of the origin that are not copied, at the last contact";
    out.gauges("thalweg_mesh_copy_behind_records", help, "topic", &behind)?;
    let failing = rows(&|_, copy| u64::from(copy.error.is_some()));
    out.gauges("thalweg_mesh_copy_failing", "1 while a copy does not go on", "topic", &failing)?;
    let lost = rows(&|_, copy| copy.lost_records);
    let help = "Records that the origin deleted before they were copied";
    out.counters("thalweg_mesh_copy_lost_records", help, "topic", &lost)
}

fn expose_discovery(out: &mut Exposition<'_>, stats: &MeshStats) -> fmt::Result {
    let MeshStats { cache, lookups, directory_entries, .. } = stats;
    out.counter("thalweg_mesh_lookups", "Lookups of topics in the directory", *lookups)?;
    out.counter("thalweg_mesh_cache_hits", "Lookups that the subscriber cache has answered", cache.hits)?;
    out.counter("thalweg_mesh_cache_misses", "Lookups that the subscriber cache could not answer", cache.misses)?;
    out.counter("thalweg_mesh_cache_stores", "Answers stored in the subscriber cache", cache.stores)?;
    let limited = "Lookups that were put off because one of the same topic was recent";
    out.counter("thalweg_mesh_cache_rate_limited", limited, cache.rate_limited)?;
    out.gauge("thalweg_mesh_cache_topics", "Topics in the subscriber cache", cache.table_size)?;
    out.gauge(
        "thalweg_mesh_directory_entries",
        "Readers of topics in this site's part of the directory",
        *directory_entries,
    )
}
