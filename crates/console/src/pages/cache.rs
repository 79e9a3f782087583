//! One cache: its numbers, its entries by prefix, and what can be done with it.

use maud::{Markup, html};

use super::caches::{Row, path};
use crate::brief::size;
use crate::decode::{Cut, preview};
use crate::parts::{CELL_BYTES_MAX, Field, Form, empty, encode, facts, field, panel, search, table, tiles, time};
use crate::shell::Page;
use crate::text::sentence;
use crate::units::count;

pub struct Entry {
    pub key: Cut,
    pub value: Cut,
    pub version: u64,
    pub expires_ms: Option<u64>,
}

/// Entries of a part of the cache.
pub struct Entries {
    pub prefix: String,
    pub rows: Vec<Entry>,
    /// Position at which the next part begins.
    pub next: Option<u64>,
}

/// Renders a cache. `entries` is an error if the user may not read them.
pub fn page(cache: &Row, entries: &Result<Entries, String>) -> Page {
    let prefix = entries.as_ref().map_or("", |entries| entries.prefix.as_str());
    Page::new(&cache.name).below("/console/caches", "Caches").live(summary(cache)).rest(html! {
        h2 { "Entries" }
        div.tools { (search("Prefix of the key", prefix)) }
        @match entries { Ok(entries) => (list(cache, entries)), Err(why) => p.warning { (sentence(why)) } }
        (actions(cache))
    })
}

/// Returns the path of an entry, whose key is text.
pub fn entry_path(cache: &str, key: &str) -> String {
    format!("{}/entries/{}", path(cache), encode(key))
}

/// Returns `true` if a key stays as it is in a path: browsers remove the others.
fn is_segment(key: &str) -> bool {
    !matches!(key, "" | "." | "..")
}

fn summary(cache: &Row) -> Markup {
    html! {
        (tiles(&[
            ("Entries", count(cache.entries), String::new()),
            ("Memory", size(cache.bytes as f64), format!("of {}", size(cache.bytes_max as f64))),
            ("Hits", cache.hit_ratio(), format!("of {} gets", count(cache.hits + cache.misses))),
            ("Evicted", count(cache.evicted), format!("{} expired", count(cache.expired))),
        ]))
        (facts(&[
            ("Eviction", html! { (cache.eviction) }),
            ("Time to live", html! { (cache.ttl()) }),
            ("Durable", html! { (if cache.is_durable { "yes" } else { "no" }) }),
        ]))
    }
}

fn list(cache: &Row, entries: &Entries) -> Markup {
    if entries.rows.is_empty() && entries.next.is_none() {
        return empty("No entry here.", html! { "Put one below, or search for another prefix." });
    }
    let rows = html! { @for entry in &entries.rows { tr {
        th scope="row" { @match entry.key.whole_text().filter(|key| is_segment(key)) {
            Some(key) => a href=(entry_path(&cache.name, key)) { (preview(&entry.key.first(CELL_BYTES_MAX))) },
            None => code { (preview(&entry.key.first(CELL_BYTES_MAX))) },
        } }
        td.wide { code { (preview(&entry.value)) } }
        td.n { (size(entry.value.len as f64)) }
        td.n { (entry.version) }
        td { @match entry.expires_ms { Some(at) => (time(at as i64)), None => span.muted { "never" } } }
    } } };
    let next = entries.next.map(|cursor| format!("?q={}&cursor={cursor}", encode(&entries.prefix)));
    html! {
        (table("Entries", &["Key", "Value", "#Size", "#Version", "Expires"], rows))
        (crate::parts::pager(None, next.as_deref()))
    }
}

fn actions(cache: &Row) -> Markup {
    let of_api = format!("/v1/caches/{}", encode(&cache.name));
    let put = Form {
        method: "PUT",
        action: &format!("{of_api}/entries/{{key}}"),
        body: "raw:value",
        then: None,
        done: "Stored as version {version}.",
        button: "Put",
        confirm: None,
    };
    let flush = Form {
        method: "DELETE",
        action: &format!("{of_api}/entries"),
        body: "",
        then: None,
        done: "Deleted {removed} entries.",
        button: "Delete all entries",
        confirm: Some(&cache.name),
    };
    let delete = Form { action: &of_api, then: Some("/console/caches"), done: "", button: "Delete the cache", ..flush };
    html! {
        h2 { "Actions" }
        (panel("Put an entry", put.render(html! { div.fields {
            (field(Field::Path, "key", "Key", "alice"))
            (field(Field::Query, "ttl_ms", "Time to live in ms", "the cache's setting"))
            (field(Field::Area, "value", "Value", ""))
        } })))
        (panel("Delete all entries", flush.render(html! {})))
        (panel("Delete the cache", delete.render(html! {})))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_text_and_lead_to_their_pages() {
        let cache = Row {
            name: "c".to_owned(),
            entries: 2,
            bytes: 10,
            bytes_max: 100,
            hits: 0,
            misses: 0,
            expired: 0,
            evicted: 0,
            eviction: "s3-fifo",
            ttl_ms: None,
            is_durable: false,
        };
        let entry = |key: &[u8]| Entry {
            key: Cut::new(key, CELL_BYTES_MAX),
            value: Cut::new(b"<script>", 100),
            version: 1,
            expires_ms: None,
        };
        let rows = vec![entry(b"a/<"), entry(&[255])];
        let entries = Ok(Entries { prefix: "a".to_owned(), rows, next: Some(7) });
        let text = page(&cache, &entries).rest.into_string();
        assert!(text.contains("/console/caches/c/entries/a%2F%3C") && text.contains("?q=a&amp;cursor=7"), "{text}");
        assert!(!text.contains("<script") && text.contains("&lt;script&gt;"), "{text}");
        let refused = page(&cache, &Err("you may not read".to_owned())).rest.into_string();
        assert!(refused.contains("You may not read."), "{refused}");
    }
}
