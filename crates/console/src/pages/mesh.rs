//! Sites of the mesh, their links, and the topics that they share.

use maud::{Markup, html};

use super::topics;
use crate::parts::{Field, Form, empty, facts, field, panel, select, table};
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
    let page = Page::new("Mesh");
    match mesh {
        Ok(mesh) => page
            .live(html! { (summary(mesh)) h2 { "Sites" } (sites(mesh)) h2 { "Topics" } (shared(mesh)) })
            .rest(actions(mesh)),
        Err(why) => page
            .live(empty(
                "This broker is in no mesh.",
                html! {
                    (sentence(why)) " " code { "thalweg mesh init SITE" }
                    " or the form below makes it the first site of one."
                },
            ))
            .rest(beginnings()),
    }
}

const FORM: Form<'_> = Form {
    method: "POST",
    action: "/v1/mesh/invitations",
    body: "json",
    then: Some("/console/mesh"),
    done: "",
    button: "",
    confirm: None,
};

/// Renders the forms of a broker that is in no mesh.
fn beginnings() -> Markup {
    let init = Form { action: "/v1/mesh/init", button: "Begin", ..FORM };
    let join = Form { action: "/v1/mesh/join", button: "Join", ..FORM };
    html! {
        h2 { "Actions" }
        (panel("Begin a mesh", init.render(html! { div.fields {
            (field(Field::Text, "site", "Name of this site", "oslo"))
        } })))
        (panel("Join a mesh", join.render(html! { div.fields {
            (field(Field::Text, "site", "Name of this site", "bergen"))
            (field(Field::Secret, "invitation", "Invitation, which a site of the mesh has issued", ""))
        } })))
    }
}

fn actions(mesh: &Mesh) -> Markup {
    let invite = Form {
        then: None,
        done: "{invitation} lets one site join within {minutes} minutes. Keep it now: it is not shown again.",
        button: "Invite a site",
        ..FORM
    };
    let remove = Form {
        method: "DELETE",
        action: "/v1/mesh/sites/{site}",
        body: "",
        button: "Remove the site",
        confirm: Some(&mesh.site),
        ..FORM
    };
    let leave = Form { action: "/v1/mesh/leave", body: "", button: "Leave", confirm: Some(&mesh.site), ..FORM };
    let others: Vec<(&str, &str)> = mesh.sites.iter().map(|site| (site.name.as_str(), site.name.as_str())).collect();
    html! {
        h2 { "Actions" }
        (panel("Invite a site", invite.render(html! { div.fields {
            (field(Field::Number, "minutes", "Minutes for which the invitation is valid", "60"))
        } })))
        @if !others.is_empty() {
            (panel("Remove a site", html! {
                p { "Type the name of this site." }
                (remove.render(html! { div.fields { (select(Field::Path, "site", "Site", &others)) } }))
            }))
        }
        (panel("Leave the mesh", html! {
            p { "Topics and copies stay as they are; records of live topics are sent to no other site any more." }
            (leave.render(html! {}))
        }))
    }
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
        let outside = page(&Err("no mesh".to_owned()));
        assert!(outside.live.into_string().contains("thalweg mesh init"));
        assert!(outside.rest.into_string().contains("/v1/mesh/join"));
        let alone = Mesh {
            site: "oslo".to_owned(),
            role: "hub",
            address: None,
            isolated_ms: Some(5000),
            sites: Vec::new(),
            topics: Vec::new(),
        };
        let page = page(&Ok(alone));
        let (text, rest) = (page.live.into_string(), page.rest.into_string());
        assert!(rest.contains("data-confirm=\"oslo\"") && !rest.contains("Remove a site"), "{rest}");
        assert!(text.contains("for 5s") && text.contains("thalweg mesh invite"), "{text}");
    }
}
