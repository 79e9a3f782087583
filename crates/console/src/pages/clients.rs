//! Doors with their connections and requests.

use maud::html;

use crate::brief::{count, per_s};
use crate::figures::History;
use crate::parts::{empty, table};
use crate::shell::Page;

pub fn page(history: &History) -> Page {
    let page = Page::new("Clients");
    let Some(now) = history.last() else {
        return page.live(empty("No figures yet.", html! { "They appear within a few seconds." }));
    };
    let first = history.first();
    let rate = |name: &str, requests: Option<f64>| {
        let before = first.filter(|first| first.at_ms < now.at_ms)?;
        let was = before.doors.iter().find(|door| door.name == name)?.requests?;
        Some((requests? - was).max(0.0) * 1000.0 / (now.at_ms - before.at_ms) as f64)
    };
    let rows = html! { @for door in &now.doors { tr {
        th scope="row" { (door.name) }
        td { code { (door.address) } }
        td.n { (count(door.connections)) }
        td.n { (rate(&door.name, door.requests).map_or("–".to_owned(), |rate| per_s(count(rate)))) }
        td.n { (door.requests.map_or("–".to_owned(), count)) }
    } } };
    page.live(html! {
        p.muted { (count(now.connections())) " connections and " (count(now.subscribers)) " subscriptions are open. "
            "Rates are of the last five minutes." }
        (table("Doors", &["Door", "Address", "#Connections", "#Requests", "#Since startup"], rows))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::tests::figures;

    #[test]
    fn doors_have_their_address_and_connections() {
        let mut history = History::default();
        history.push(figures(1));
        let text = page(&history).live.into_string();
        assert!(text.contains("127.0.0.1:7401") && text.contains("3 connections"), "{text}");
    }
}
