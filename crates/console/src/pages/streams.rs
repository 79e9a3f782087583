//! List of topics that clients use as streams of Redis.

use maud::{Markup, html};

use crate::parts::{empty, encode, pager, search, table};
use crate::shell::Page;
use crate::units::count;

/// Numbers of a stream.
#[derive(Clone)]
pub struct Counts {
    /// Number of entries and last id; `None` if no client has used the stream since startup.
    pub entries: Option<(u64, String)>,
    pub groups: usize,
    pub pending: usize,
}

pub struct Row {
    pub topic: String,
    /// Numbers; `None` while a client uses the stream.
    pub counts: Option<Counts>,
}

pub struct Streams {
    pub rows: Vec<Row>,
    pub query: String,
    /// Name after which the list begins.
    pub after: String,
    pub is_last: bool,
}

/// Returns the path of a stream's page.
pub fn path(topic: &str) -> String {
    format!("/console/streams/{}", encode(topic))
}

pub fn page(streams: &Streams) -> Page {
    let tools = html! { div.tools { (search("Search streams", &streams.query)) } };
    Page::new("Streams").tools(tools).live(list(streams))
}

fn list(streams: &Streams) -> Markup {
    if streams.rows.is_empty() {
        return match (streams.query.is_empty(), streams.after.is_empty()) {
            (true, true) => empty(
                "No topic was used as a stream yet, or none that you may describe.",
                html! { "A Redis client uses one with " code { "XADD" } " or " code { "XREADGROUP" } "." },
            ),
            _ => empty("No stream matches.", html! { a href="/console/streams" { "Show all streams" } "." }),
        };
    }
    let rows = html! { @for row in &streams.rows { tr {
        th scope="row" { a href=(path(&row.topic)) { (row.topic) } }
        @match &row.counts {
            Some(Counts { entries, groups, pending }) => {
                td.n { (entries.as_ref().map_or("–".to_owned(), |(entries, _)| count(*entries))) }
                td { @if let Some((_, last)) = entries { code { (last) } } @else { "–" } }
                td.n { (groups) }
                td.n { (count(*pending as u64)) }
            }
            None => { td.muted colspan="4" { "in use; it is shown again in a moment" } }
        }
    } } };
    let query = encode(&streams.query);
    let first = (!streams.after.is_empty()).then(|| format!("/console/streams?q={query}"));
    let next = streams.rows.last().filter(|_| !streams.is_last);
    let next = next.map(|last| format!("/console/streams?q={query}&after={}", encode(&last.topic)));
    html! {
        p.muted { "Topics that clients of Redis use as streams, as they were when last used." }
        (table("Streams", &["Stream", "#Entries", "Last id", "#Groups", "#Pending"], rows))
        (pager(first.as_deref(), next.as_deref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_has_its_numbers_and_one_in_use_says_so() {
        let counts = Counts { entries: Some((1200, "5-1".to_owned())), groups: 2, pending: 7 };
        let rows =
            vec![Row { topic: "a/b".to_owned(), counts: Some(counts) }, Row { topic: "busy".to_owned(), counts: None }];
        let streams = Streams { rows, query: String::new(), after: String::new(), is_last: false };
        let text = page(&streams).live.into_string();
        assert!(text.contains("/console/streams/a%2Fb") && text.contains("1,200") && text.contains("5-1"), "{text}");
        assert!(text.contains("in use") && text.contains("after=busy"), "{text}");
        let none = Streams { rows: Vec::new(), query: String::new(), after: String::new(), is_last: true };
        assert!(page(&none).live.into_string().contains("XADD"));
    }
}
