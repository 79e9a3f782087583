//! One queue: its numbers, its settings, its first messages, and what can be done with it.

use maud::{Markup, html};

use super::queues::Counts;
use super::topics;
use crate::brief::size;
use crate::decode::{Cut, preview};
use crate::parts::{Field, Form, choice, empty, encode, facts, field, panel, select, table, tiles, time};
use crate::shell::Page;
use crate::text::sentence;
use crate::units::{count, elapsed};

/// Message that was read without a delivery.
pub struct Message {
    pub id: String,
    pub state: &'static str,
    pub attempts: u32,
    /// Time at which the lease or the delay ends.
    pub due_ms: Option<u64>,
    pub body: Cut,
}

pub struct Redrive {
    pub id: String,
    pub to: String,
    pub state: String,
    pub moved: u64,
    /// Messages to move when it began.
    pub to_move: u64,
    /// Messages per second, if it is limited.
    pub rate: Option<u32>,
    pub started_ms: u64,
    pub failure: Option<String>,
    /// `true` if it can be cancelled.
    pub is_running: bool,
}

pub struct Queue {
    pub name: String,
    pub topic: String,
    pub owns_topic: bool,
    pub created_ms: u64,
    pub counts: Option<Counts>,
    pub bytes: u64,
    pub settings: Vec<(&'static str, String)>,
    /// First messages, or the reason why they are not shown.
    pub messages: Result<Vec<Message>, String>,
    pub redrives: Vec<Redrive>,
}

pub fn page(queue: &Queue) -> Page {
    let live = html! {
        (numbers(queue))
        @if !queue.redrives.is_empty() { h2 { "Redrives" } (redrives(queue)) }
    };
    let rest = html! {
    h2 { "First messages" }
    p.muted { "As this page was loaded. Read without a delivery: no lease begins, and no attempt counts." }
    (messages(queue))
    (actions(queue)) h2 { "Settings" } (settings(queue)) };
    Page::new(&queue.name).below("/console/queues", "Queues").live(live).rest(rest)
}

fn numbers(queue: &Queue) -> Markup {
    match &queue.counts {
        None => empty("The topic of this queue was deleted.", html! { "Delete the queue, or create the topic again." }),
        Some(counts) => tiles(&[
            (
                "Waiting",
                count(counts.waiting),
                counts.oldest_ms.map_or(String::new(), |age| format!("oldest {}", elapsed(age))),
            ),
            ("Leased", count(counts.leased), String::new()),
            ("Delayed", count(counts.delayed), String::new()),
            ("Size", size(queue.bytes as f64), String::new()),
        ]),
    }
}

fn messages(queue: &Queue) -> Markup {
    let messages = match &queue.messages {
        Err(why) => return html! { p.warning { (sentence(why)) } },
        Ok(messages) if messages.is_empty() => {
            return empty("This queue is empty.", html! { "Send a message below." });
        }
        Ok(messages) => messages,
    };
    let rows = html! { @for message in messages { tr {
        th scope="row" { code { (message.id) } }
        td { (message.state) @if let Some(due) = message.due_ms { " until " (time(due as i64)) } }
        td.n { (message.attempts) }
        td.n { (size(message.body.len as f64)) }
        td.wide { code { (preview(&message.body)) } }
    } } };
    table("First messages", &["Message", "State", "#Attempts", "#Size", "Body"], rows)
}

fn redrives(queue: &Queue) -> Markup {
    let rows = html! { @for redrive in &queue.redrives { tr {
        th scope="row" { (redrive.id) }
        td { (redrive.to) }
        td { (redrive.state) @if let Some(failure) = &redrive.failure { ": " span.bad { (sentence(failure)) } } }
        td { (progress(redrive)) }
        td.n { (count(redrive.moved)) }
        td.n { (count(redrive.to_move)) }
        td.n { (redrive.rate.map_or("no limit".to_owned(), |rate| format!("{rate}/s"))) }
        td { (time(redrive.started_ms as i64)) }
    } } };
    let head = ["Redrive", "To", "State", "Progress", "#Moved", "#Of", "#Limit", "Began"];
    table("Redrives", &head, rows)
}

fn progress(redrive: &Redrive) -> Markup {
    let label = format!("Progress of redrive {}", redrive.id);
    // More messages may arrive while it runs.
    let most = redrive.to_move.max(redrive.moved).max(1);
    html! { progress aria-label=(label) value=(redrive.moved) max=(most) {} }
}

fn settings(queue: &Queue) -> Markup {
    let mut rows = vec![
        (
            "topic",
            html! { a href=(topics::path(&queue.topic)) { (queue.topic) }
            @if queue.owns_topic { " (owned)" } },
        ),
        ("created", time(queue.created_ms as i64)),
    ];
    rows.extend(
        queue
            .settings
            .iter()
            .map(|(name, value)| (*name, html! { @if value.is_empty() { span.muted { "none" } } @else { (value) } })),
    );
    facts(&rows)
}

fn actions(queue: &Queue) -> Markup {
    let of_api = format!("/v1/queues/{}", encode(&queue.name));
    let form = |method, path: &str, body, done, button, confirm| {
        let action = format!("{of_api}{path}");
        let then = (method == "DELETE" && path.is_empty()).then_some("/console/queues");
        move |fields: Markup| Form { method, action: &action, body, then, done, button, confirm }.render(fields)
    };
    let name = Some(queue.name.as_str());
    let send = form("POST", "/messages", "list:messages", "Sent as {messages.0.id}.", "Send", None);
    let redrive = form("POST", "/redrives", "json", "Redrive {redrive} began.", "Redrive", None);
    let seek = form("POST", "/seek", "json", "The queue continues there.", "Seek", name);
    let purge = form("DELETE", "/messages", "", "Deleted {purged} messages.", "Delete all messages", name);
    let delete = form("DELETE", "", "", "", "Delete the queue", name);
    let cancel = form("DELETE", "/redrives/{redrive}", "", "Redrive {redrive} is {state}.", "Cancel", None);
    let running: Vec<(&str, &str)> =
        queue.redrives.iter().filter(|of| of.is_running).map(|of| (of.id.as_str(), of.id.as_str())).collect();
    let places = [("earliest", "the earliest record"), ("end", "the end")];
    html! {
        h2 { "Actions" }
        (panel("Send a message", send(html! { div.fields {
            (field(Field::Text, "group", "Group", "none"))
            (field(Field::Number, "delay_ms", "Delay in ms", "the queue's setting"))
            (field(Field::Area, "body", "Body", "hello"))
        } })))
        (panel("Move dead letters back", redrive(html! { div.fields {
            (field(Field::Text, "to", "Queue", "where each message came from"))
            (field(Field::Number, "rate", "Messages per second", "no limit"))
        } })))
        @if !running.is_empty() {
            (panel("Cancel a redrive", cancel(html! { div.fields {
                (select(Field::Path, "redrive", "Redrive", &running))
            } })))
        }
        (panel("Seek", seek(html! { div.fields { (choice("to", "To", &places)) } })))
        (panel("Purge", purge(html! {})))
        (panel("Delete the queue", delete(html! {})))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_text_and_every_action_that_destroys_waits_for_the_name() {
        let message = Message {
            id: "m1".to_owned(),
            state: "leased",
            attempts: 2,
            due_ms: Some(0),
            body: Cut::new(b"<script>", 100),
        };
        let queue = Queue {
            name: "jobs".to_owned(),
            topic: "jobs".to_owned(),
            owns_topic: true,
            created_ms: 0,
            counts: Some(Counts { waiting: 1, leased: 1, delayed: 0, oldest_ms: None }),
            bytes: 100,
            settings: vec![("lease_ms", "30000".to_owned())],
            messages: Ok(vec![message]),
            redrives: vec![Redrive {
                id: "5".to_owned(),
                to: "jobs".to_owned(),
                state: "running".to_owned(),
                moved: 30,
                to_move: 120,
                rate: Some(10),
                started_ms: 0,
                failure: None,
                is_running: true,
            }],
        };
        let page = page(&queue);
        let (live, rest) = (page.live.into_string(), page.rest.into_string());
        assert!(live.contains("value=\"30\" max=\"120\"") && live.contains("10/s"), "{live}");
        assert!(rest.contains("Cancel a redrive"), "{rest}");
        assert!(live.contains("Waiting") && rest.contains("&lt;script&gt;") && rest.contains("leased until"), "{rest}");
        assert_eq!(rest.matches("data-confirm=\"jobs\"").count(), 3, "{rest}");
    }
}
