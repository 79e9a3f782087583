//! Records of a partition, from an offset or a time on, or with one key.

use maud::{Markup, html};

use super::topics::path;
use crate::brief::size;
use crate::decode::{Cut, preview};
use crate::parts::{empty, encode, time, warning};
use crate::shell::Page;
use crate::text::sentence;
use crate::units::count;

/// Record in the list. Key and value are cut to what a row shows.
pub struct Row {
    pub offset: u64,
    pub timestamp_ms: i64,
    pub key: Option<Cut>,
    pub value: Option<Cut>,
    pub headers: usize,
}

pub struct Records {
    pub topic: String,
    pub partition: u32,
    pub partition_count: u32,
    /// Offset that the reader has asked for.
    pub asked: Option<u64>,
    /// Bounds of the log.
    pub start: u64,
    pub end: u64,
    pub rows: Vec<Row>,
    /// Offset at which the list begins, and the one at which the next list does.
    pub from: u64,
    pub next: u64,
    /// Number of records in a page.
    pub page_max: u64,
    pub key: String,
    /// Reason why the list ends early.
    pub trouble: Option<String>,
}

pub fn page(records: &Records) -> Page {
    let to = path(&records.topic);
    Page::new("Records").below("/console/topics", "Topics").below(&to, &records.topic).rest(html! {
        nav.tabs aria-label="Topic" {
            a href=(to) { "Partitions" }
            a href={ (to) "/records" } aria-current="page" { "Records" }
            a href={ (to) "/tail" } { "Live tail" }
        }
        (controls(records))
        p.muted {
            "Partition " (records.partition) " of " (records.partition_count)
            @if records.start == records.end { " is empty." }
            @else { " has the offsets " (count(records.start)) " to " (count(records.end - 1)) "." }
        }
        @if let Some(trouble) = &records.trouble { (warning(&sentence(trouble))) }
        (list(records))
        (pages(records))
    })
}

fn controls(records: &Records) -> Markup {
    html! {
        form.bar data-clean {
            label { span { "Partition" } input name="partition" value=(records.partition) inputmode="numeric"
                pattern="[0-9]*" size="4"; }
            label { span { "From offset" } input name="offset" value=[records.asked] placeholder=(records.from)
                inputmode="numeric" pattern="[0-9]*" size="10"; }
            label { span { "or from a time" } input type="datetime-local" step="1" data-ms="timestamp_ms"; }
            label { span { "With the key" } input name="key" value=(records.key) size="14" spellcheck="false"; }
            button { "Show" }
        }
    }
}

fn list(records: &Records) -> Markup {
    if records.rows.is_empty() {
        return match (records.key.is_empty(), records.start == records.end) {
            (_, true) => empty(
                "This partition has no records.",
                html! {
                    "Publish one on the page of the " a href=(path(&records.topic)) { "topic" } "."
                },
            ),
            (true, _) => empty("No records here.", html! { "Choose an earlier offset." }),
            (false, _) => empty(
                "No record with this key in this part of the log.",
                html! {
                    "Go on with the newer records, or begin at an earlier offset."
                },
            ),
        };
    }
    let rows = html! { @for row in &records.rows { tr {
        th.n scope="row" { a href={ (path(&records.topic)) "/records/" (records.partition) "/" (row.offset) } {
            (row.offset)
        } }
        td { (time(row.timestamp_ms)) }
        td { (bytes(row.key.as_ref(), "no key")) }
        td.wide { (bytes(row.value.as_ref(), "deleted")) }
        td.n { (row.headers) }
        td.n { (size(row.key.iter().chain(&row.value).map(|cut| cut.len).sum::<usize>() as f64)) }
    } } };
    crate::parts::table("Records", &["#Offset", "Time", "Key", "Value", "#Headers", "#Size"], rows)
}

fn bytes(cut: Option<&Cut>, missing: &str) -> Markup {
    html! { @match cut {
        Some(cut) if cut.len == 0 => span.muted { "empty" },
        Some(cut) => code { (preview(cut)) },
        None => span.muted { (missing) },
    } }
}

fn pages(records: &Records) -> Markup {
    let to = path(&records.topic);
    let at = |offset: u64| {
        let key = if records.key.is_empty() { String::new() } else { format!("&key={}", encode(&records.key)) };
        format!("{to}/records?partition={}&offset={offset}{key}", records.partition)
    };
    html! {
        nav.pager aria-label="Pages" {
            @if records.from > records.start {
                a href=(at(records.start)) { "Oldest" }
                a href=(at(records.from.saturating_sub(records.page_max).max(records.start))) rel="prev" { "Older" }
            }
            @if records.next < records.end {
                a href=(at(records.next)) rel="next" { "Newer" }
                a href=(at(records.end.saturating_sub(records.page_max).max(records.start))) { "Newest" }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(rows: Vec<Row>) -> Records {
        Records {
            topic: "t".to_owned(),
            partition: 0,
            partition_count: 1,
            asked: None,
            start: 0,
            end: 500,
            rows,
            from: 100,
            next: 150,
            page_max: 50,
            key: String::new(),
            trouble: None,
        }
    }

    #[test]
    fn a_value_is_text_and_never_markup() {
        let row = Row {
            offset: 100,
            timestamp_ms: 0,
            key: None,
            value: Some(Cut::new(b"<script>alert(1)</script>", 100)),
            headers: 0,
        };
        let text = page(&records(vec![row])).rest.into_string();
        assert!(!text.contains("<script") && text.contains("&lt;script&gt;"), "{text}");
        assert!(
            text.contains("offset=50\"") && text.contains("offset=150\"") && text.contains("offset=450\""),
            "{text}"
        );
    }

    #[test]
    fn an_empty_list_says_why() {
        assert!(page(&records(Vec::new())).rest.into_string().contains("Choose an earlier offset"));
        let none = Records { end: 0, from: 0, next: 0, ..records(Vec::new()) };
        assert!(page(&none).rest.into_string().contains("Publish one on the page of the"));
    }
}
