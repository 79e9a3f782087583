//! List of queues, and the form that creates one.

use maud::{Markup, html};

use crate::parts::{Field, Form, choice, empty, encode, field, pager, panel, search, table};
use crate::shell::Page;
use crate::units::{count, elapsed};

pub struct Counts {
    pub waiting: u64,
    pub leased: u64,
    pub delayed: u64,
    /// Age of the oldest unfinished message, if it is known.
    pub oldest_ms: Option<u64>,
}

pub struct Row {
    pub name: String,
    pub topic: String,
    /// `None` if the topic of the queue was deleted.
    pub counts: Option<Counts>,
    /// Destination of messages that failed too often.
    pub dead_letter: Option<String>,
}

pub struct Queues {
    pub rows: Vec<Row>,
    pub query: String,
    pub after: String,
    pub is_last: bool,
}

pub fn page(queues: &Queues) -> Page {
    let tools = html! {
        div.tools { (search("Search queues", &queues.query)) }
        (panel("Create a queue", create()))
    };
    Page::new("Queues").tools(tools).live(list(queues))
}

pub fn path(queue: &str) -> String {
    format!("/console/queues/{}", encode(queue))
}

fn list(queues: &Queues) -> Markup {
    if queues.rows.is_empty() {
        return empty(
            "No queues here, or none that you may describe.",
            html! {
                "Create one above, or send to one over SQS or Pub/Sub."
            },
        );
    }
    let number = |counts: &Option<Counts>, of: fn(&Counts) -> u64| {
        counts.as_ref().map_or("–".to_owned(), |counts| count(of(counts)))
    };
    let rows = html! { @for row in &queues.rows { tr {
        th scope="row" { a href=(path(&row.name)) { (row.name) } }
        td.n { (number(&row.counts, |counts| counts.waiting)) }
        td.n { (number(&row.counts, |counts| counts.leased)) }
        td.n { (number(&row.counts, |counts| counts.delayed)) }
        td.n { (row.counts.as_ref().and_then(|counts| counts.oldest_ms).map_or("–".to_owned(), elapsed)) }
        td { @match &row.dead_letter { Some(to) => (to), None => span.muted { "none" } } }
    } } };
    let query = encode(&queues.query);
    let first = (!queues.after.is_empty()).then(|| format!("/console/queues?q={query}"));
    let next = queues.rows.last().filter(|_| !queues.is_last);
    let next = next.map(|last| format!("/console/queues?q={query}&after={}", encode(&last.name)));
    html! {
        (table("Queues", &["Queue", "#Waiting", "#Leased", "#Delayed", "#Oldest", "Dead letters"], rows))
        (pager(first.as_deref(), next.as_deref()))
    }
}

fn create() -> Markup {
    let form = Form {
        method: "PUT",
        action: "/v1/queues/{name}",
        body: "json",
        then: Some("/console/queues/{name}"),
        done: "",
        button: "Create",
        confirm: None,
    };
    form.render(html! { div.fields {
        (field(Field::Path, "name", "Name", "jobs"))
        (choice("storage", "Storage", &[("", "default"), ("memory", "memory"), ("disk", "disk"), ("sqlite", "sqlite")]))
        (field(Field::Number, "lease_ms", "Lease in ms", "30000"))
        (field(Field::Number, "attempts_max", "Attempts before a message is dead", "no limit"))
        (field(Field::Text, "dead_letter", "Topic of dead letters", "none"))
    } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_without_its_topic_has_no_counts() {
        let row = |counts| Row { name: "q".to_owned(), topic: "q".to_owned(), counts, dead_letter: None };
        let known = Counts { waiting: 1234, leased: 5, delayed: 0, oldest_ms: Some(61_000) };
        let queues = Queues {
            rows: vec![row(Some(known)), row(None)],
            query: String::new(),
            after: "a".to_owned(),
            is_last: true,
        };
        let text = page(&queues).live.into_string();
        assert!(text.contains("1,234") && text.contains("1m 1s") && text.contains('–'), "{text}");
        assert!(text.contains("First page"), "{text}");
    }
}
