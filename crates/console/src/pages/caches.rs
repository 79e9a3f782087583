//! List of caches, and the form that creates one.

use maud::{Markup, html};

use crate::brief::size;
use crate::parts::{Field, Form, choice, empty, encode, field, pager, panel, search, table};
use crate::shell::Page;
use crate::units::{count, elapsed};

pub struct Row {
    pub name: String,
    pub entries: u64,
    pub bytes: u64,
    pub bytes_max: u64,
    pub hits: u64,
    pub misses: u64,
    pub expired: u64,
    pub evicted: u64,
    pub eviction: &'static str,
    pub ttl_ms: Option<u64>,
    pub is_durable: bool,
}

impl Row {
    /// Returns the share of the gets that found an entry.
    pub fn hit_ratio(&self) -> String {
        match self.hits + self.misses {
            0 => "–".to_owned(),
            all => format!("{:.0} %", 100.0 * self.hits as f64 / all as f64),
        }
    }

    pub fn ttl(&self) -> String {
        self.ttl_ms.map_or("none".to_owned(), elapsed)
    }
}

pub struct Caches {
    pub rows: Vec<Row>,
    pub query: String,
    pub after: String,
    pub is_last: bool,
}

pub fn page(caches: &Caches) -> Page {
    let tools = html! {
        div.tools { (search("Search caches", &caches.query)) }
        (panel("Create a cache", create()))
    };
    Page::new("Caches").tools(tools).live(list(caches))
}

pub fn path(cache: &str) -> String {
    format!("/console/caches/{}", encode(cache))
}

fn list(caches: &Caches) -> Markup {
    if caches.rows.is_empty() {
        return empty(
            "No caches here, or none that you may describe.",
            html! {
                "Create one above, or put an entry: " code { "thalweg cache put sessions alice 1" }
            },
        );
    }
    let rows = html! { @for row in &caches.rows { tr {
        th scope="row" { a href=(path(&row.name)) { (row.name) } }
        td.n { (count(row.entries)) }
        td.n { (size(row.bytes as f64)) }
        td.n { (size(row.bytes_max as f64)) }
        td.n { (row.hit_ratio()) }
        td.n { (count(row.evicted)) }
        td { (row.ttl()) }
        td { (if row.is_durable { "yes" } else { "no" }) }
    } } };
    let query = encode(&caches.query);
    let first = (!caches.after.is_empty()).then(|| format!("/console/caches?q={query}"));
    let next = caches.rows.last().filter(|_| !caches.is_last);
    let next = next.map(|last| format!("/console/caches?q={query}&after={}", encode(&last.name)));
    let head = ["Cache", "#Entries", "#Memory", "#of", "#Hits", "#Evicted", "TTL", "Durable"];
    html! { (table("Caches", &head, rows)) (pager(first.as_deref(), next.as_deref())) }
}

fn create() -> Markup {
    let form = Form {
        method: "PUT",
        action: "/v1/caches/{name}",
        body: "json",
        then: Some("/console/caches/{name}"),
        done: "",
        button: "Create",
        confirm: None,
    };
    let evictions = [
        ("", "default"),
        ("s3-fifo", "entries that are rarely used"),
        ("ttl-first", "entries that expire first"),
        ("none", "nothing: puts are refused"),
    ];
    form.render(html! { div.fields {
        (field(Field::Path, "name", "Name", "sessions"))
        (field(Field::Number, "bytes_max", "Memory in bytes", "no limit of its own"))
        (choice("eviction", "Evicts", &evictions))
        (field(Field::Number, "ttl_ms", "Time to live in ms", "none"))
        (field(Field::Flag, "is_durable", "Durable", ""))
    } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hit_ratio_is_of_all_gets() {
        let row = |hits, misses| Row {
            name: "c".to_owned(),
            entries: 1,
            bytes: 1,
            bytes_max: 1,
            hits,
            misses,
            expired: 0,
            evicted: 0,
            eviction: "lru",
            ttl_ms: None,
            is_durable: false,
        };
        assert_eq!((row(3, 1).hit_ratio(), row(0, 0).hit_ratio()), ("75 %".to_owned(), "–".to_owned()));
    }
}
