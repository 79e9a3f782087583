//! List of consumer groups.

use maud::{Markup, html};

use crate::parts::{empty, encode, pager, search, table};
use crate::shell::Page;
use crate::units::count;

pub struct Row {
    pub name: String,
    pub state: &'static str,
    pub members: usize,
    /// Number of partitions with a committed offset.
    pub partitions: usize,
    pub lag: u64,
}

pub struct Groups {
    pub rows: Vec<Row>,
    pub query: String,
    pub after: String,
    pub is_last: bool,
}

pub fn page(groups: &Groups) -> Page {
    let tools = html! { div.tools { (search("Search groups", &groups.query)) } };
    Page::new("Consumer groups").tools(tools).live(list(groups))
}

pub fn path(group: &str) -> String {
    format!("/console/groups/{}", encode(group))
}

fn list(groups: &Groups) -> Markup {
    if groups.rows.is_empty() {
        return empty(
            "No consumer groups here, or none that you may describe.",
            html! {
                "A group exists as soon as a consumer joins it or commits an offset: "
            code { "thalweg subscribe orders --consumer-group billing" }
            },
        );
    }
    let rows = html! { @for row in &groups.rows { tr {
        th scope="row" { a href=(path(&row.name)) { (row.name) } }
        td { (row.state) }
        td.n { (row.members) }
        td.n { (row.partitions) }
        td.n { (count(row.lag)) }
    } } };
    let query = encode(&groups.query);
    let first = (!groups.after.is_empty()).then(|| format!("/console/groups?q={query}"));
    let next = groups.rows.last().filter(|_| !groups.is_last);
    let next = next.map(|last| format!("/console/groups?q={query}&after={}", encode(&last.name)));
    html! {
        (table("Consumer groups", &["Group", "State", "#Members", "#Partitions", "#Lag"], rows))
        (pager(first.as_deref(), next.as_deref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_their_lag_and_an_empty_list_says_how_one_begins() {
        let row = Row { name: "g<".to_owned(), state: "stable", members: 2, partitions: 4, lag: 12_345 };
        let mut groups = Groups { rows: vec![row], query: String::new(), after: String::new(), is_last: true };
        let text = page(&groups).live.into_string();
        assert!(text.contains("12,345") && text.contains("/console/groups/g%3C") && !text.contains("Next page"));
        groups.rows.clear();
        assert!(page(&groups).live.into_string().contains("thalweg subscribe"));
    }
}
