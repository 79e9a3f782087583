//! Sites of the mesh, their links, and the topics that they share.

use maud::{Markup, html};

use super::topics;
use crate::parts::{empty, facts, table};
use crate::shell::Page;
use crate::text::sentence;
use crate::units::{count, elapsed, latency};

pub struct Site {
    pub name: String,
    pub role: &'static str,
    pub link: &'static str,
    /// Hub that relays, if one does.
    pub via: Option<String>,
    pub since_ms: u64,
    pub round_trip_us: Option<u64>,
    pub sent: u64,
    pub received: u64,
    pub lost: u64,
    pub error: Option<String>,
}

pub struct Topic {
    pub name: String,
    pub mode: &'static str,
    /// Sites to which records are sent, or the origin of a copy.
    pub sites: Vec<String>,
    pub sent: u64,
    pub received: u64,
    /// Records that a copy does not have yet.
    pub backlog: Option<u64>,
    pub error: Option<String>,
}

pub struct Mesh {
    pub site: String,
    pub role: &'static str,
    pub address: Option<String>,
    pub isolated_ms: Option<u64>,
    pub sites: Vec<Site>,
    pub topics: Vec<Topic>,
}

/// Renders the mesh. The reason says why there is none.
pub fn page(mesh: &Result<Mesh, String>) -> Page {
    Page::new("Mesh").live(match mesh {
        Ok(mesh) => html! { (summary(mesh)) h2 { "Sites" } (sites(mesh)) h2 { "Topics" } (shared(mesh)) },
        Err(why) => empty(
            "This broker is in no mesh.",
            html! {
                (sentence(why)) " " code { "thalweg mesh init SITE" } " makes it the first site of one."
            },
        ),
    })
}

fn summary(mesh: &Mesh) -> Markup {
    facts(&[
        ("This site", html! { (mesh.site) }),
        ("Role", html! { (mesh.role) }),
        ("Address", html! { (mesh.address.as_deref().unwrap_or("dials out only")) }),
        (
            "Isolated",
            html! { @match mesh.isolated_ms {
                Some(ms) => span.bad { "for " (elapsed(ms)) },
                None => "no",
            } },
        ),
    ])
}

fn sites(mesh: &Mesh) -> Markup {
    if mesh.sites.is_empty() {
        return empty("No other site yet.", html! { code { "thalweg mesh invite" } " lets another one join." });
    }
    let rows = html! { @for site in &mesh.sites { tr {
        th scope="row" { (site.name) }
        td { (site.role) }
        td { (site.link) @if let Some(via) = &site.via { " via " (via) } }
        td.n { (elapsed(site.since_ms)) }
        td.n { (site.round_trip_us.map_or("–".to_owned(), |us| latency(us as f64))) }
        td.n { (count(site.sent)) }
        td.n { (count(site.received)) }
        td.n { (count(site.lost)) }
        td { (site.error.as_deref().unwrap_or("")) }
    } } };
    let head = ["Site", "Role", "Link", "#Since", "#Round trip", "#Sent", "#Received", "#Lost", "Error"];
    table("Sites", &head, rows)
}

fn shared(mesh: &Mesh) -> Markup {
    if mesh.topics.is_empty() {
        return empty(
            "No topic is in the mesh.",
            html! { "The setting " code { "mesh" } " of a topic puts it there." },
        );
    }
    let rows = html! { @for topic in &mesh.topics { tr {
        th scope="row" { a href=(topics::path(&topic.name)) { (topic.name) } }
        td { (topic.mode) }
        td { (topic.sites.join(", ")) }
        td.n { (count(topic.sent)) }
        td.n { (count(topic.received)) }
        td.n { (topic.backlog.map_or("–".to_owned(), count)) }
        td { (topic.error.as_deref().unwrap_or("")) }
    } } };
    table("Topics", &["Topic", "Mode", "Sites", "#Sent", "#Received", "#Backlog", "Error"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_without_a_mesh_says_how_one_begins() {
        assert!(page(&Err("no mesh".to_owned())).live.into_string().contains("thalweg mesh init"));
        let alone = Mesh {
            site: "oslo".to_owned(),
            role: "hub",
            address: None,
            isolated_ms: Some(5000),
            sites: Vec::new(),
            topics: Vec::new(),
        };
        let text = page(&Ok(alone)).live.into_string();
        assert!(text.contains("for 5s") && text.contains("thalweg mesh invite"), "{text}");
    }
}
