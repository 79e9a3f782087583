//! One consumer group: its members, the lag of each partition, and a reset of its offsets.

use maud::{Markup, html};

use super::{groups, topics};
use crate::parts::{Field, Form, choice, empty, encode, facts, field, panel, table};
use crate::shell::Page;
use crate::units::count;

/// Maximum number of rows of each table.
pub const ROWS_MAX: usize = 500;

pub struct Member {
    pub id: String,
    pub client: String,
    pub host: String,
    pub state: &'static str,
    /// Number of partitions that it may read.
    pub assigned: usize,
}

pub struct Partition {
    pub topic: String,
    pub partition: u32,
    pub owner: Option<String>,
    pub committed: Option<u64>,
    pub end: u64,
    pub lag: Option<u64>,
}

pub struct Group {
    pub name: String,
    pub state: &'static str,
    pub members: Vec<Member>,
    pub partitions: Vec<Partition>,
    /// Numbers of all members and partitions, of which the lists may have a part.
    pub member_count: usize,
    pub partition_count: usize,
    pub lag: u64,
}

pub fn page(group: &Group) -> Page {
    let live = html! {
        (facts(&[
            ("State", html! { (group.state) }),
            ("Members", html! { (group.member_count) }),
            ("Partitions", html! { (group.partition_count) }),
            ("Lag", html! { (count(group.lag)) " records" }),
        ]))
        h2 { "Partitions" }
        (partitions(group))
        h2 { "Members" }
        (members(group))
    };
    Page::new(&group.name).below(groups::path("").trim_end_matches('/'), "Groups").live(live).rest(actions(group))
}

fn partitions(group: &Group) -> Markup {
    if group.partitions.is_empty() {
        return empty("This group reads no partition.", html! { "It has committed no offset, and owns none." });
    }
    let rows = html! { @for of in &group.partitions { tr {
        th scope="row" { a href=(topics::path(&of.topic)) { (of.topic) } }
        td.n { (of.partition) }
        td.n { (of.committed.map_or("–".to_owned(), count)) }
        td.n { (count(of.end)) }
        td.n { (of.lag.map_or("–".to_owned(), count)) }
        td { (of.owner.as_deref().unwrap_or("none")) }
    } } };
    let head = ["Topic", "#Partition", "#Committed", "#End", "#Lag", "Owner"];
    html! { (table("Partitions", &head, rows)) (left_out(group.partitions.len(), group.partition_count)) }
}

fn members(group: &Group) -> Markup {
    if group.members.is_empty() {
        return empty("This group has no members now.", html! { "Its offsets can be reset or deleted." });
    }
    let rows = html! { @for member in &group.members { tr {
        th scope="row" { (member.id) }
        td { (member.client) }
        td { (member.host) }
        td { (member.state) }
        td.n { (member.assigned) }
    } } };
    let head = ["Member", "Client", "Host", "State", "#Partitions"];
    html! { (table("Members", &head, rows)) (left_out(group.members.len(), group.member_count)) }
}

fn left_out(shown: usize, all: usize) -> Markup {
    html! { @if all > shown { p.muted { "The first " (shown) " of " (all) "." } } }
}

fn actions(group: &Group) -> Markup {
    let of_api = format!("/v1/groups/{}", encode(&group.name));
    let reset = Form {
        method: "PUT",
        action: &format!("{of_api}/offsets"),
        body: "json",
        then: None,
        done: "The offsets were reset.",
        button: "Reset offsets",
        confirm: Some(&group.name),
    };
    let delete = Form {
        method: "DELETE",
        action: &of_api,
        body: "",
        then: Some("/console/groups"),
        done: "",
        button: "Delete the group and its offsets",
        confirm: Some(&group.name),
    };
    let to = [("", "an offset"), ("earliest", "the earliest record"), ("latest", "the end"), ("none", "no offset")];
    html! {
        h2 { "Actions" }
        (panel("Reset offsets", html! {
            p.muted { "A group can be reset while it has no members." }
            (reset.render(html! { div.fields {
                (field(Field::Text, "topic", "Topic", "orders"))
                (choice("to", "To", &to))
                (field(Field::Number, "offset", "Offset", "if To is an offset"))
            } }))
        }))
        (panel("Delete the group", delete.render(html! {})))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_shows_the_lag_of_each_partition() {
        let group = Group {
            name: "billing".to_owned(),
            state: "stable",
            members: Vec::new(),
            partitions: vec![Partition {
                topic: "orders".to_owned(),
                partition: 3,
                owner: None,
                committed: Some(1000),
                end: 2500,
                lag: Some(1500),
            }],
            member_count: 0,
            partition_count: 9,
            lag: 1500,
        };
        let page = page(&group);
        let live = page.live.into_string();
        assert!(live.contains("1,500 records") && live.contains("The first 1 of 9"), "{live}");
        assert!(live.contains("no members now") && page.rest.into_string().contains("data-confirm=\"billing\""));
        assert_eq!(page.trail[0].0, "/console/groups");
    }
}
