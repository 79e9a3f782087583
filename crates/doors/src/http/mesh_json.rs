//! State of a mesh as JSON: the HTTP door and the command line show the same.

use engine::mesh::{CacheStats, CopyStatus, MeshStats, MeshStatus, MeshTopic, RouteStats, SiteName, SiteStatus};
use serde_json::{Value, json};

/// Returns the state of a mesh, as its site knows it.
pub fn status(status: &MeshStatus) -> Value {
    json!({
        "site": status.site.as_str(),
        "key": status.key.to_string(),
        "role": status.role.name(),
        "address": status.address,
        "isolated_ms": status.isolated_ms,
        "sites": status.sites.iter().map(site).collect::<Vec<_>>(),
        "stats": stats(&status.stats),
    })
}

/// Returns another site and the link to it.
pub fn site(of: &SiteStatus) -> Value {
    json!({
        "site": of.site.as_str(),
        "key": of.key.to_string(),
        "role": of.role.name(),
        "address": of.address,
        "link": of.link.name(),
        "via": of.via.as_ref().map(SiteName::as_str),
        "since_ms": of.since_ms,
        "round_trip_us": of.round_trip_us,
        "error": of.error,
        "sent_records": of.sent_records,
        "sent_bytes": of.sent_bytes,
        "received_records": of.received_records,
        "received_bytes": of.received_bytes,
        "lost_records": of.lost_records,
    })
}

/// Returns the statistics of discovery.
pub fn stats(MeshStats { cache, routes, lookups, directory_entries }: &MeshStats) -> Value {
    let CacheStats { hits, misses, stores, rate_limited, table_size } = cache;
    let cache = json!({
        "hits": hits,
        "misses": misses,
        "hit_rate": cache.hit_rate(),
        "table_size": table_size,
        "rate_limited": rate_limited,
        "stores": stores,
    });
    let RouteStats { hits, misses, stores, table_size } = routes;
    let routes = json!({
        "hits": hits,
        "misses": misses,
        "hit_rate": routes.hit_rate(),
        "table_size": table_size,
        "stores": stores,
    });
    json!({ "cache": cache, "routes": routes, "lookups": lookups, "directory_entries": directory_entries })
}

/// Returns a topic that is in the mesh.
pub fn topic(of: &MeshTopic) -> Value {
    json!({
        "topic": of.topic.as_str(),
        "mode": of.mode.name(),
        "is_wanted": of.is_wanted,
        "sites": of.sites.iter().map(SiteName::as_str).collect::<Vec<_>>(),
        "sent_records": of.sent_records,
        "received_records": of.received_records,
        "copy": of.copy.as_ref().map(copy),
    })
}

fn copy(CopyStatus { origin, behind, lost_records, error }: &CopyStatus) -> Value {
    json!({ "origin": origin.as_str(), "behind": behind, "lost_records": lost_records, "error": error })
}

#[cfg(test)]
mod tests {
    use engine::TopicName;
    use engine::mesh::MeshMode;

    use super::*;

    #[test]
    fn only_a_copy_has_the_state_of_one() {
        let oslo = || SiteName::parse("oslo").expect("a name");
        let live = MeshTopic {
            topic: TopicName::parse("prices").expect("a name"),
            mode: MeshMode::Live,
            is_wanted: true,
            sites: vec![oslo()],
            sent_records: 7,
            received_records: 5,
            copy: None,
        };
        let shown = json!({
            "topic": "prices",
            "mode": "live",
            "is_wanted": true,
            "sites": ["oslo"],
            "sent_records": 7,
            "received_records": 5,
            "copy": null,
        });
        assert_eq!(topic(&live), shown);
        let unreached = CopyStatus { origin: oslo(), behind: None, lost_records: 0, error: Some("no link".into()) };
        let shown = json!({ "origin": "oslo", "behind": null, "lost_records": 0, "error": "no link" });
        assert_eq!(copy(&unreached), shown);
        let reached = CopyStatus { origin: oslo(), behind: Some(9), lost_records: 3, error: None };
        let of_copy = topic(&MeshTopic { mode: MeshMode::Copy, copy: Some(reached), ..live });
        let shown = json!({ "origin": "oslo", "behind": 9, "lost_records": 3, "error": null });
        assert_eq!((&of_copy["mode"], &of_copy["copy"]), (&json!("copy"), &shown));
    }
}
