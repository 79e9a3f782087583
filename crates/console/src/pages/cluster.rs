//! Nodes of the cluster: which one leads, and how far the others are behind.

use maud::{Markup, html};

use crate::brief::size;
use crate::parts::{Field, Form, empty, facts, field, panel, select, table};
use crate::shell::Page;
use crate::text::sentence;
use crate::units::{count, elapsed};

pub struct Node {
    pub node: u64,
    pub address: String,
    pub program: String,
    pub role: &'static str,
    pub is_alive: bool,
    /// Further state, such as that it is being removed; empty if there is none.
    pub remark: &'static str,
    /// Entries of the log that it does not have yet.
    pub behind: u64,
    pub silent_ms: Option<u64>,
}

pub struct Cluster {
    pub id: String,
    pub node: u64,
    pub leader: Option<u64>,
    pub term: u64,
    pub committed: u64,
    pub applied: u64,
    pub elections: u64,
    pub waiting_bytes: u64,
    pub nodes: Vec<Node>,
}

/// Renders the cluster. The reason says why there is none.
pub fn page(cluster: &Result<Cluster, String>) -> Page {
    let page = Page::new("Cluster");
    match cluster {
        Ok(cluster) => page.live(live(cluster)).rest(actions(cluster)),
        Err(why) => page.live(empty("This broker is a single node.", html! { (sentence(why)) })),
    }
}

fn live(cluster: &Cluster) -> Markup {
    let rows = html! { @for node in &cluster.nodes { tr {
        th scope="row" { (node.node) @if node.node == cluster.node { " (this one)" } }
        td { (node.role) }
        td {
            @if node.is_alive { span.ok { "answers" } } @else { span.bad { "silent" } }
            @if let Some(silent) = node.silent_ms.filter(|_| !node.is_alive) { " for " (elapsed(silent)) } }
        td.n { (count(node.behind)) }
        td { code { (node.address) } }
        td { (node.program) }
        td { (node.remark) }
    } } };
    html! {
        (facts(&[
            ("Leader", html! { @match cluster.leader { Some(leader) => { "node " (leader) }, None => "unknown" } }),
            ("Term", html! { (count(cluster.term)) }),
            ("Committed", html! { (count(cluster.committed)) }),
            ("Applied", html! { (count(cluster.applied)) }),
            ("Elections of this node", html! { (count(cluster.elections)) }),
            ("Waiting for a majority", html! { (size(cluster.waiting_bytes as f64)) }),
            ("Cluster", html! { code { (cluster.id) } }),
        ]))
        (table("Nodes", &["Node", "Role", "State", "#Behind", "Address", "Program", "Remark"], rows))
    }
}

fn actions(cluster: &Cluster) -> Markup {
    let transfer = Form {
        method: "POST",
        action: "/v1/cluster/leader",
        body: "json",
        then: None,
        done: "The transfer to node {leader} began.",
        button: "Transfer",
        confirm: None,
    };
    let token = Form {
        action: "/v1/cluster/tokens",
        done: "{token} lets one node join within {minutes} minutes: thalweg cluster join. Keep it now: it is not \
               shown again.",
        button: "Issue a token",
        ..transfer
    };
    let others: Vec<String> = cluster.nodes.iter().map(|node| node.node.to_string()).collect();
    let others: Vec<(&str, &str)> = others.iter().map(|node| (node.as_str(), node.as_str())).collect();
    let remove = Form {
        method: "DELETE",
        action: "/v1/cluster/nodes/{node}",
        body: "",
        then: Some("/console/cluster"),
        done: "",
        button: "Remove the node",
        confirm: Some(&cluster.id),
    };
    html! {
        h2 { "Actions" }
        (panel("Transfer the leadership", transfer.render(html! { div.fields {
            (select(Field::Number, "node", "To the node", &others))
        } })))
        (panel("Let a node join", token.render(html! { div.fields {
            (field(Field::Number, "minutes", "Minutes for which the token is valid", "60"))
        } })))
        (panel("Remove a node", html! {
            p { "The node loses its copy of the log, and its number is never given again. Type the id of the cluster." }
            (remove.render(html! { div.fields { (select(Field::Path, "node", "Node", &others)) } }))
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_node_is_named_and_a_single_node_says_why() {
        let node = Node {
            node: 2,
            address: "b:7405".to_owned(),
            program: "1".to_owned(),
            role: "voter",
            is_alive: false,
            remark: "",
            behind: 1500,
            silent_ms: Some(61_000),
        };
        let cluster = Cluster {
            id: "c".to_owned(),
            node: 1,
            leader: Some(1),
            term: 3,
            committed: 9,
            applied: 9,
            elections: 1,
            waiting_bytes: 0,
            nodes: vec![node],
        };
        let page = page(&Ok(cluster));
        let (text, rest) = (page.live.into_string(), page.rest.into_string());
        assert!(text.contains("silent") && text.contains("for 1m 1s") && text.contains("1,500"), "{text}");
        assert!(rest.contains("/v1/cluster/tokens") && rest.contains("data-confirm=\"c\""), "{rest}");
        assert!(super::page(&Err("not clustered".to_owned())).live.into_string().contains("Not clustered."));
    }
}
