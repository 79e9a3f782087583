//! One topic: its partitions, its settings, and what can be done with it.

use maud::{Markup, html};

use super::topics::{path, retention};
use crate::brief::size;
use crate::parts::{Field, Form, choice, encode, facts, field, panel, table};
use crate::shell::Page;
use crate::units::count;

pub struct Partition {
    pub start: u64,
    pub end: u64,
    pub bytes: u64,
    pub subscribers: usize,
}

pub struct Topic {
    pub name: String,
    pub id: String,
    pub storage: &'static str,
    pub retention_ms: u64,
    pub retention_bytes: u64,
    pub is_compacted: bool,
    pub batch_bytes_max: u32,
    pub mesh: &'static str,
    /// Queue that owns the topic.
    pub owner: Option<String>,
    /// Partitions that are shown, from the first one on.
    pub partitions: Vec<Partition>,
    pub partition_count: usize,
    /// Records and bytes of all partitions.
    pub records: u64,
    pub bytes: u64,
    /// Queues that read the topic, as far as the user may see them.
    pub queues: Vec<String>,
    /// Consumer groups with offsets of the topic, as far as the user may see them.
    pub groups: Vec<Group>,
    /// Number of groups that were searched, if there are more.
    pub groups_searched: Option<usize>,
}

/// Consumer group of a topic.
pub struct Group {
    pub name: String,
    pub state: &'static str,
    pub members: usize,
    /// Records after the committed offsets of this topic.
    pub lag: u64,
}

pub fn page(topic: &Topic) -> Page {
    let page = Page::new(&topic.name).below("/console/topics", "Topics");
    page.live(html! { (summary(topic)) (partitions(topic)) }).rest(html! { (groups(topic)) (actions(topic)) })
}

fn groups(topic: &Topic) -> Markup {
    let rows = html! { @for group in &topic.groups { tr {
        th scope="row" { a href={ "/console/groups/" (encode(&group.name)) } { (group.name) } }
        td { (group.state) }
        td.n { (group.members) }
        td.n { (count(group.lag)) }
    } } };
    html! {
        @if !topic.groups.is_empty() {
            h2 { "Consumer groups" }
            p.muted { "As this page was loaded." }
            (table("Consumer groups", &["Group", "State", "#Members", "#Lag"], rows))
        }
        @if let Some(searched) = topic.groups_searched {
            p.muted { "Of all consumer groups, the first " (searched) " were searched." }
        }
    }
}

fn summary(topic: &Topic) -> Markup {
    let to = path(&topic.name);
    html! {
        nav.tabs aria-label="Topic" {
            a href=(to) aria-current="page" { "Partitions" }
            a href={ (to) "/records" } { "Records" }
            a href={ (to) "/tail" } { "Live tail" }
        }
        (facts(&[
            ("Records", html! { (count(topic.records)) }),
            ("Size", html! { (size(topic.bytes as f64)) }),
            ("Storage", html! { (topic.storage) }),
            ("Retention", html! { (retention(topic.retention_ms, topic.retention_bytes)) }),
            ("Compacted", html! { (if topic.is_compacted { "yes" } else { "no" }) }),
            ("Largest batch", html! { (size(f64::from(topic.batch_bytes_max))) }),
            ("Mesh", html! { (topic.mesh) }),
            ("Owner", html! { @match &topic.owner {
                Some(queue) => a href={ "/console/queues/" (encode(queue)) } { "queue " (queue) },
                None => "none",
            } }),
            ("Queues", html! { @if topic.queues.is_empty() { "none" }
                @for queue in &topic.queues { a href={ "/console/queues/" (encode(queue)) } { (queue) } " " } }),
            ("Id", html! { code { (topic.id) } }),
        ]))
    }
}

fn partitions(topic: &Topic) -> Markup {
    let to = path(&topic.name);
    let rows = html! { @for (number, of) in topic.partitions.iter().enumerate() { tr {
        th scope="row" { a href={ (to) "/records?partition=" (number) } { (number) } }
        td.n { (count(of.start)) }
        td.n { (count(of.end)) }
        td.n { (count(of.end - of.start)) }
        td.n { (size(of.bytes as f64)) }
        td.n { (of.subscribers) }
    } } };
    html! {
        (table("Partitions", &["Partition", "#Start", "#End", "#Records", "#Size", "#Readers"], rows))
        @if topic.partition_count > topic.partitions.len() {
            p.muted { "The first " (topic.partitions.len()) " of " (topic.partition_count) " partitions." }
        }
    }
}

fn actions(topic: &Topic) -> Markup {
    let of_api = format!("/v1/topics/{}", encode(&topic.name));
    html! {
        h2 { "Actions" }
        (panel("Publish a record", publish(&of_api)))
        (panel("Change settings", alter(&of_api)))
        (panel("Delete the topic", delete(topic, &of_api)))
    }
}

fn publish(of_api: &str) -> Markup {
    let form = Form {
        method: "POST",
        action: &format!("{of_api}/records"),
        body: "list:records",
        then: None,
        done: "Published to partition {results.0.partition} at offset {results.0.base_offset}.",
        button: "Publish",
        confirm: None,
    };
    form.render(html! { div.fields {
        (field(Field::Text, "key", "Key", "none"))
        (field(Field::Query, "partition", "Partition", "by the key, or in turn"))
        (choice("encoding", "Encoding", &[("", "text"), ("base64", "base64")]))
        (field(Field::Area, "value", "Value", "{\"hello\": \"world\"}"))
        (field(Field::Null, "value", "Without a value: in a compacted topic, this deletes the key", ""))
        (field(Field::Pairs, "headers", "Headers, one in each line", "name: value"))
    } })
}

fn alter(of_api: &str) -> Markup {
    let form = Form {
        method: "PATCH",
        action: of_api,
        body: "json",
        then: None,
        done: "Changed. Reload the page to see all settings.",
        button: "Change",
        confirm: None,
    };
    let flag = [("", "unchanged"), ("true", "yes"), ("false", "no")];
    form.render(html! { div.fields {
        (field(Field::Number, "partitions", "Partitions in total", "unchanged"))
        (field(Field::Number, "retention_ms", "Retention in ms; 0 is no limit", "unchanged"))
        (field(Field::Number, "retention_bytes", "Retention in bytes; 0 is no limit", "unchanged"))
        (field(Field::Number, "batch_bytes_max", "Largest batch in bytes", "unchanged"))
        label { span { "Keep the newest record of each key" } select name="compact" data-send="flag" {
            @for (value, text) in flag { option value=(value) { (text) } }
        } }
    } })
}

fn delete(topic: &Topic, of_api: &str) -> Markup {
    let form = Form {
        method: "DELETE",
        action: of_api,
        body: "",
        then: Some("/console/topics"),
        done: "",
        button: "Delete the topic and all its records",
        confirm: Some(&topic.name),
    };
    form.render(html! {})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_shows_its_records_and_the_form_that_deletes_it_waits_for_the_name() {
        let topic = Topic {
            name: "<script>".to_owned(),
            id: "1".to_owned(),
            storage: "disk",
            retention_ms: 0,
            retention_bytes: 0,
            is_compacted: false,
            batch_bytes_max: 1 << 20,
            mesh: "off",
            owner: None,
            partitions: vec![Partition { start: 10, end: 1510, bytes: 2048, subscribers: 1 }],
            partition_count: 3,
            records: 30,
            bytes: 3000,
            queues: Vec::new(),
            groups: vec![Group { name: "a/b".to_owned(), state: "stable", members: 2, lag: 1200 }],
            groups_searched: Some(100),
        };
        let page = page(&topic);
        let (live, rest) = (page.live.into_string(), page.rest.into_string());
        assert!(live.contains("1,500") && live.contains("The first 1 of 3 partitions"), "{live}");
        assert!(rest.contains("data-confirm=\"&lt;script&gt;\"") && !rest.contains("<script"), "{rest}");
        assert!(rest.contains("/console/groups/a%2Fb") && rest.contains("1,200"), "{rest}");
        assert!(rest.contains("the first 100") && rest.contains("data-send=\"pairs\""), "{rest}");
    }
}
