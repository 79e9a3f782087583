//! Doors with their connections and requests, and the list of open connections.

use maud::{Markup, html};

use super::security::users;
use crate::brief::{count, per_s};
use crate::figures::History;
use crate::parts::{empty, encode, pager, search, table};
use crate::shell::Page;
use crate::units::elapsed;

/// Open connection.
pub struct Row {
    pub id: u64,
    pub door: &'static str,
    /// User as whom the client has logged in; `None` before that.
    pub user: Option<String>,
    pub address: Option<String>,
    pub age_ms: u64,
    pub requests: u64,
    /// Requests per second; `None` until it is measured.
    pub rate: Option<f64>,
}

/// Part of the open connections.
pub struct Clients {
    pub rows: Vec<Row>,
    pub query: String,
    /// Number after which the list begins; 0 for the first page.
    pub after: u64,
    pub is_last: bool,
}

pub fn page(history: &History, clients: &Clients) -> Page {
    let tools = html! { div.tools { (search("Search users, addresses and doors", &clients.query)) } };
    Page::new("Clients").tools(tools).live(html! {
        (doors(history))
        h2 { "Open connections" }
        (connections(clients))
    })
}

/// Renders the name of the user, with a link to its page.
pub fn user(row: &Row) -> Markup {
    html! { @match &row.user {
        Some(user) => a href=(users::path(user)) { (user) },
        None => span.muted { "not logged in" },
    } }
}

/// Renders the address of the client.
pub fn address(row: &Row) -> Markup {
    html! { @match &row.address { Some(address) => code { (address) }, None => "this machine" } }
}

fn connections(clients: &Clients) -> Markup {
    if clients.rows.is_empty() {
        return empty("No connection matches.", html! { a href="/console/clients" { "Show all connections" } "." });
    }
    let rows = html! { @for row in &clients.rows { tr {
        th scope="row" { a href={ "/console/clients/" (row.id) } { (row.id) } }
        td { (row.door) }
        td { (user(row)) }
        td { (address(row)) }
        td { (elapsed(row.age_ms)) }
        td.n { (row.rate.map_or("–".to_owned(), |rate| per_s(count(rate)))) }
        td.n { (count(row.requests as f64)) }
    } } };
    let head = ["Connection", "Door", "User", "Address", "Open for", "#Rate", "#Requests"];
    let query = encode(&clients.query);
    let first = (clients.after > 0).then(|| format!("/console/clients?q={query}"));
    let next = clients.rows.last().filter(|_| !clients.is_last);
    let next = next.map(|last| format!("/console/clients?q={query}&after={}", last.id));
    html! { (table("Open connections", &head, rows)) (pager(first.as_deref(), next.as_deref())) }
}

fn doors(history: &History) -> Markup {
    let Some(now) = history.last() else {
        return empty("No figures yet.", html! { "They appear within a few seconds." });
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
    html! {
        p.muted { (count(now.connections())) " connections and " (count(now.subscribers)) " subscriptions are open. "
            "Rates are of the last five minutes." }
        (table("Doors", &["Door", "Address", "#Connections", "#Requests", "#Since startup"], rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::tests::figures;

    #[test]
    fn doors_have_their_address_and_connections() {
        let mut history = History::default();
        history.push(figures(1));
        let row = |id| Row {
            id,
            door: "redis",
            user: None,
            address: Some("192.0.2.1:5000".to_owned()),
            age_ms: 3_600_000,
            requests: 12,
            rate: Some(2.0),
        };
        let clients = Clients { rows: vec![row(8), row(9)], query: "a b".to_owned(), after: 7, is_last: false };
        let text = page(&history, &clients).live.into_string();
        assert!(text.contains("127.0.0.1:7401") && text.contains("3 connections"), "{text}");
        assert!(text.contains("192.0.2.1:5000") && text.contains("not logged in") && text.contains("1h"), "{text}");
        assert!(text.contains("q=a%20b&amp;after=9") && text.contains("First page"), "{text}");
    }
}
