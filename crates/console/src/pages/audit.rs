//! Records of the audit, the newest first.

use maud::{Markup, html};

use crate::parts::{empty, encode, pager, table, time};
use crate::shell::Page;
use crate::text::sentence;

pub struct Record {
    pub time_ms: i64,
    pub outcome: String,
    pub user: String,
    pub address: String,
    pub door: String,
    pub action: String,
    pub name: String,
    pub error: Option<String>,
    /// Records that were lost before this one, and refusals before it that have none.
    pub lost: u64,
    pub unrecorded: u64,
}

pub struct Audit {
    pub records: Vec<Record>,
    pub user: String,
    pub text: String,
    /// `true` if the page begins with the newest record.
    pub is_first: bool,
    /// Offset before which the next page begins.
    pub next: Option<u64>,
}

/// Renders a page of the audit. The reason says why there is none.
pub fn page(audit: &Result<Audit, String>) -> Page {
    let page = Page::new("Audit");
    match audit {
        Ok(audit) => page.tools(filter(audit)).rest(html! {
            (records(audit))
            (pages(audit))
        }),
        Err(why) => page.rest(empty("There are no records.", html! { (sentence(why)) })),
    }
}

fn filter(audit: &Audit) -> Markup {
    html! {
        form.bar data-clean role="search" {
            label { span { "User" } input name="user" value=(audit.user) autocomplete="off" spellcheck="false"; }
            label { span { "Text" } input name="q" value=(audit.text) autocomplete="off" spellcheck="false"; }
            button { "Show" }
        }
    }
}

fn records(audit: &Audit) -> Markup {
    if audit.records.is_empty() {
        let advice = match audit.next {
            Some(_) => html! { "Older records may match: continue on the next page." },
            None => html! { a href="/console/audit" { "Show all records" } "." },
        };
        return empty("No record matches here.", advice);
    }
    let rows = html! { @for record in &audit.records { tr {
        td { (time(record.time_ms)) }
        td { span class=(if record.outcome == "ok" { "ok" } else { "bad" }) { (record.outcome) } }
        td { (record.user) }
        td { (record.address) }
        td { (record.door) }
        th scope="row" { (record.action) }
        td.wide { (record.name)
            @if let Some(error) = &record.error { ": " (error) }
            @if record.lost > 0 { span.bad { " (" (record.lost) " records before this one were lost)" } }
            @if record.unrecorded > 0 { span.muted { " (" (record.unrecorded) " more refusals)" } }
        }
    } } };
    table("Records of the audit", &["Time", "Outcome", "User", "Address", "Door", "Action", "Object"], rows)
}

fn pages(audit: &Audit) -> Markup {
    let of = format!("/console/audit?user={}&q={}", encode(&audit.user), encode(&audit.text));
    let first = (!audit.is_first).then_some(of.as_str());
    let next = audit.next.map(|before| format!("{of}&before={before}"));
    pager(first, next.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_text_and_the_next_page_keeps_the_filter() {
        let record = Record {
            time_ms: 0,
            outcome: "denied".to_owned(),
            user: "<eve>".to_owned(),
            address: "192.0.2.1".to_owned(),
            door: "redis".to_owned(),
            action: "request".to_owned(),
            name: "write topic <b>".to_owned(),
            error: Some("no".to_owned()),
            lost: 2,
            unrecorded: 0,
        };
        let audit = Audit {
            records: vec![record],
            user: "<eve>".to_owned(),
            text: "a b".to_owned(),
            is_first: true,
            next: Some(7),
        };
        let page = page(&Ok(audit));
        let text = page.rest.into_string();
        assert!(
            text.contains("&lt;eve&gt;") && text.contains("write topic &lt;b&gt;") && !text.contains("<b>"),
            "{text}"
        );
        assert!(text.contains("user=%3Ceve%3E&amp;q=a%20b&amp;before=7") && text.contains("2 records"), "{text}");
        assert!(page.tools.into_string().contains("value=\"&lt;eve&gt;\""));
    }

    #[test]
    fn an_audit_that_is_off_says_how_it_begins() {
        let text = page(&Err("set audit = on".to_owned())).rest.into_string();
        assert!(text.contains("Set audit = on."), "{text}");
    }
}
