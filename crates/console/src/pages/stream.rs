//! One stream of Redis: its groups, their consumers, and the entries that are pending.

use maud::{Markup, html};

use super::streams::Counts;
use super::topics;
use crate::decode::{Cut, preview};
use crate::parts::{empty, facts, table, time};
use crate::shell::Page;
use crate::units::count;

pub struct Consumer {
    pub name: Cut,
    pub seen_ms: u64,
    pub pending: usize,
}

pub struct Pending {
    pub id: String,
    pub consumer: Cut,
    pub delivered_ms: u64,
    pub deliveries: u64,
}

pub struct Group {
    pub name: Cut,
    pub last: String,
    pub read: Option<u64>,
    pub pending_count: usize,
    pub consumer_count: usize,
    /// First consumers.
    pub consumers: Vec<Consumer>,
    /// Oldest pending entries.
    pub pending: Vec<Pending>,
}

pub struct Stream {
    pub topic: String,
    pub counts: Counts,
    /// First groups.
    pub groups: Vec<Group>,
}

pub fn page(stream: &Stream) -> Page {
    let Counts { entries, groups, pending } = &stream.counts;
    let unknown = || html! { span.muted { "not read since startup" } };
    Page::new(&stream.topic).below("/console/streams", "Streams").live(html! {
        (facts(&[
            ("Entries", entries.as_ref().map_or_else(unknown, |(entries, _)| html! { (count(*entries)) })),
            ("Last id", entries.as_ref().map_or_else(unknown, |(_, last)| html! { code { (last) } })),
            ("Groups", html! { (groups) }),
            ("Pending", html! { (count(*pending as u64)) }),
            ("Topic", html! { a href=(topics::path(&stream.topic)) { (stream.topic) } }),
        ]))
        @if stream.groups.is_empty() {
            (empty("No group reads this stream.", html! {
                "A Redis client creates one with " code { "XGROUP CREATE" } "."
            }))
        } @else {
            h2 { "Groups" } (all(stream))
            @for group in &stream.groups { (one(group)) }
        }
    })
}

fn all(stream: &Stream) -> Markup {
    let rows = html! { @for group in &stream.groups { tr {
        th scope="row" { (preview(&group.name)) }
        td { code { (group.last) } }
        td.n { (group.read.map_or("–".to_owned(), count)) }
        td.n { (count(group.pending_count as u64)) }
        td.n { (group.consumer_count) }
    } } };
    html! {
        (table("Groups", &["Group", "Last delivered id", "#Entries read", "#Pending", "#Consumers"], rows))
        (left_out(stream.groups.len(), stream.counts.groups, "groups"))
    }
}

fn left_out(shown: usize, all: usize, what: &str) -> Markup {
    html! { @if all > shown { p.muted { "The first " (shown) " of " (count(all as u64)) " " (what) "." } } }
}

fn one(group: &Group) -> Markup {
    let name = preview(&group.name);
    let consumers = html! { @for consumer in &group.consumers { tr {
        th scope="row" { (preview(&consumer.name)) }
        td { (time(consumer.seen_ms as i64)) }
        td.n { (count(consumer.pending as u64)) }
    } } };
    let pending = html! { @for entry in &group.pending { tr {
        th scope="row" { code { (entry.id) } }
        td { (preview(&entry.consumer)) }
        td { (time(entry.delivered_ms as i64)) }
        td.n { (count(entry.deliveries)) }
    } } };
    html! {
        @if !group.consumers.is_empty() {
            h3 { "Consumers of " (name) }
            (table(&format!("Consumers of {name}"), &["Consumer", "Last seen", "#Pending"], consumers))
            (left_out(group.consumers.len(), group.consumer_count, "consumers"))
        }
        @if !group.pending.is_empty() {
            h3 { "Pending entries of " (name) }
            (table(&format!("Pending entries of {name}"), &["Entry", "Consumer", "Delivered", "#Deliveries"], pending))
            (left_out(group.pending.len(), group.pending_count, "pending entries"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_shows_its_consumers_and_oldest_pending_entries_as_text() {
        let cut = |bytes: &[u8]| Cut::new(bytes, 100);
        let group = Group {
            name: cut(b"<crew>"),
            last: "7-0".to_owned(),
            read: None,
            pending_count: 1500,
            consumer_count: 1,
            consumers: vec![Consumer { name: cut(b"ann"), seen_ms: 0, pending: 1500 }],
            pending: vec![Pending { id: "5-0".to_owned(), consumer: cut(b"ann"), delivered_ms: 0, deliveries: 3 }],
        };
        let counts = Counts { entries: None, groups: 1, pending: 1500 };
        let text = page(&Stream { topic: "s".to_owned(), counts, groups: vec![group] }).live.into_string();
        assert!(text.contains("&lt;crew&gt;") && !text.contains("<crew>"), "{text}");
        assert!(text.contains("The first 1 of 1,500 pending entries") && text.contains("5-0"), "{text}");
        assert!(text.contains("not read since startup"), "{text}");
    }
}
