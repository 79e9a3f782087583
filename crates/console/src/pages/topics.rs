//! List of topics, and the form that creates one.

use maud::{Markup, html};

use crate::brief::{count, per_s, size};
use crate::parts::{Field, Form, choice, empty, encode, field, limit, pager, panel, search, table};
use crate::shell::Page;
use crate::units;

/// Topic in the list.
pub struct Row {
    pub name: String,
    /// Records per second; `None` until it is measured.
    pub rate: Option<f64>,
    pub records: u64,
    pub bytes: u64,
    pub partitions: u32,
    pub subscribers: usize,
    pub storage: &'static str,
    pub retention_ms: u64,
    pub retention_bytes: u64,
}

pub struct Topics {
    pub rows: Vec<Row>,
    pub query: String,
    /// Name after which the list begins.
    pub after: String,
    pub is_last: bool,
}

pub fn page(topics: &Topics) -> Page {
    let tools = html! {
        div.tools { (search("Search topics", &topics.query)) }
        (panel("Create a topic", create()))
    };
    Page::new("Topics").tools(tools).live(list(topics))
}

/// Returns the path of a topic's page.
pub fn path(topic: &str) -> String {
    format!("/console/topics/{}", encode(topic))
}

fn list(topics: &Topics) -> Markup {
    if topics.rows.is_empty() {
        return match (topics.query.is_empty(), topics.after.is_empty()) {
            (true, true) => empty(
                "No topics yet, or none that you may describe.",
                html! {
                    "Create one above, or publish a record: the topic is created with it."
                },
            ),
            _ => empty("No topic matches.", html! { a href="/console/topics" { "Show all topics" } "." }),
        };
    }
    let rows = html! { @for row in &topics.rows { tr {
        th scope="row" { a href=(path(&row.name)) { (row.name) } }
        td.n { (row.rate.map_or("–".to_owned(), |rate| per_s(count(rate)))) }
        td.n { (units::count(row.records)) }
        td.n { (size(row.bytes as f64)) }
        td.n { (row.partitions) }
        td.n { (row.subscribers) }
        td { (row.storage) }
        td { (retention(row.retention_ms, row.retention_bytes)) }
    } } };
    let head = ["Topic", "#In", "#Records", "#Size", "#Partitions", "#Readers", "Storage", "Retention"];
    let query = encode(&topics.query);
    let first = (!topics.after.is_empty()).then(|| format!("/console/topics?q={query}"));
    let next = topics.rows.last().filter(|_| !topics.is_last);
    let next = next.map(|last| format!("/console/topics?q={query}&after={}", encode(&last.name)));
    html! { (table("Topics", &head, rows)) (pager(first.as_deref(), next.as_deref())) }
}

/// Returns how long and how much of a partition is kept.
pub fn retention(ms: u64, bytes: u64) -> String {
    match (ms, bytes) {
        (0, 0) => "no limit".to_owned(),
        (ms, 0) => units::elapsed(ms),
        (0, bytes) => size(bytes as f64),
        (ms, bytes) => format!("{}, {}", units::elapsed(ms), limit(bytes, |bytes| size(bytes as f64))),
    }
}

fn create() -> Markup {
    let form = Form {
        method: "PUT",
        action: "/v1/topics/{name}",
        body: "json",
        then: Some("/console/topics/{name}"),
        done: "",
        button: "Create",
        confirm: None,
    };
    form.render(html! { div.fields {
        (field(Field::Path, "name", "Name", "orders"))
        (field(Field::Number, "partitions", "Partitions", "1"))
        (choice("storage", "Storage", &[("", "default"), ("memory", "memory"), ("disk", "disk"), ("sqlite", "sqlite")]))
        (field(Field::Number, "retention_ms", "Retention in ms", "the broker's default"))
        (field(Field::Number, "retention_bytes", "Retention in bytes", "the broker's default"))
        (field(Field::Flag, "compact", "Keep the newest record of each key", ""))
    } })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str) -> Row {
        Row {
            name: name.to_owned(),
            rate: Some(1500.0),
            records: 1_234_567,
            bytes: 3 << 20,
            partitions: 4,
            subscribers: 2,
            storage: "disk",
            retention_ms: 86_400_000,
            retention_bytes: 0,
        }
    }

    #[test]
    fn a_page_of_topics_leads_to_the_next_one() {
        let mut topics =
            Topics { rows: vec![row("a"), row("<b>/")], query: "x&".to_owned(), after: String::new(), is_last: false };
        let text = page(&topics).live.into_string();
        assert!(text.contains("1500/s") && text.contains("1,234,567") && text.contains("3.0 MiB"), "{text}");
        assert!(text.contains("/console/topics/%3Cb%3E%2F") && text.contains("&lt;b&gt;/"), "{text}");
        assert!(text.contains("q=x%26&amp;after=%3Cb%3E%2F"), "{text}");
        topics.is_last = true;
        assert!(!page(&topics).live.into_string().contains("Next page"));
    }

    #[test]
    fn an_empty_list_says_what_to_do() {
        let empty = |query: &str| {
            let topics = Topics { rows: Vec::new(), query: query.to_owned(), after: String::new(), is_last: true };
            page(&topics).live.into_string()
        };
        assert!(empty("").contains("Create one above") && empty("zz").contains("Show all topics"));
    }

    #[test]
    fn retention_has_the_limits_that_are_set() {
        assert_eq!(
            [retention(0, 0), retention(60_000, 0), retention(0, 1 << 20), retention(60_000, 1 << 20)],
            ["no limit", "1m", "1.0 MiB", "1m, 1.0 MiB"]
        );
    }
}
