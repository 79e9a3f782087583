//! One record: its key, its value and its headers in a readable form.

use maud::{Markup, html};

use super::topics::path;
use crate::brief::size;
use crate::decode::{Cut, Decoded, Form, decode};
use crate::parts::{empty, encode, facts, time};
use crate::shell::Page;
use crate::units::count;

/// Maximum number of headers that are shown.
const HEADERS_MAX: usize = 100;

/// Name and value of a header.
pub type Header = (Vec<u8>, Option<Cut>);

pub struct Record {
    pub offset: u64,
    pub timestamp_ms: i64,
    pub key: Option<Cut>,
    pub value: Option<Cut>,
    /// Value by the schema that the record names.
    pub by_schema: Option<BySchema>,
    /// First headers, and the number of all.
    pub headers: Vec<Header>,
    pub header_count: usize,
}

/// Value of a record by a schema.
pub struct BySchema {
    /// Name of the schema, and its revision.
    pub schema: String,
    /// Text in JSON, or why there is none.
    pub text: Result<String, String>,
}

pub struct Place {
    pub topic: String,
    pub partition: u32,
    pub offset: u64,
    pub form: Form,
}

pub fn page(place: &Place, record: Option<&Record>) -> Page {
    let to = path(&place.topic);
    let list = format!("{to}/records?partition={}&offset={}", place.partition, place.offset);
    let page = Page::new(format!("Record {} of partition {}", place.offset, place.partition))
        .below("/console/topics", "Topics")
        .below(&to, &place.topic)
        .below(list, "Records");
    page.rest(match record {
        Some(record) => shown(place, record),
        None => empty(
            "There is no record at this offset.",
            html! {
                "Retention or compaction deleted it, or it was never published."
            },
        ),
    })
}

fn shown(place: &Place, record: &Record) -> Markup {
    let len = |cut: &Option<Cut>| cut.as_ref().map_or("none".to_owned(), |cut| size(cut.len as f64));
    html! {
        (facts(&[
            ("Offset", html! { (count(record.offset)) }),
            ("Time", time(record.timestamp_ms)),
            ("Key", html! { (len(&record.key)) }),
            ("Value", html! { (len(&record.value)) }),
            ("Headers", html! { (count(record.header_count as u64)) }),
        ]))
        nav.tabs aria-label="Form of the bytes" { @for form in Form::ALL {
            a href={ "?as=" (form.name()) } aria-current=[(form == place.form).then_some("page")] { (form.name()) }
        } }
        @if let Some(key) = &record.key { h2 { "Key" } (bytes(key, place.form)) }
        h2 { "Value" }
        @match &record.value {
            Some(value) => (by_schema(value, record.by_schema.as_ref(), place.form)),
            None => p.muted { "This record has no value: it deletes the earlier ones with its key." },
        }
        p { a href={ "/v1/topics/" (encode(&place.topic)) "/records?partition=" (place.partition) "&offset="
            (place.offset) "&max_records=1" } { "The whole record as JSON" } }
        @if !record.headers.is_empty() {
            h2 { "Headers" }
            dl.headers { @for (name, value) in record.headers.iter().take(HEADERS_MAX) {
                dt { (String::from_utf8_lossy(name)) }
                dd { @match value { Some(value) => (bytes(value, place.form)), None => span.muted { "no value" } } }
            } }
        }
    }
}

/// Renders a value, by its schema if the form is up to the page.
fn by_schema(value: &Cut, schema: Option<&BySchema>, form: Form) -> Markup {
    match schema {
        Some(BySchema { schema, text: Ok(text) }) if form == Form::Auto => html! {
            pre.bytes tabindex="0" { code { (decode(&Cut::new(text.as_bytes(), text.len()), Form::Json).text) } }
            p.muted { (bytes_of(value)) ", decoded by the schema " code { (schema) } }
        },
        Some(BySchema { schema, text: Err(why) }) => html! {
            (bytes(value, form))
            p.muted { "Not decoded by the schema " code { (schema) } ": " (why) }
        },
        _ => bytes(value, form),
    }
}

/// Returns the number of bytes with its unit.
fn bytes_of(cut: &Cut) -> String {
    if cut.len == 1 { "1 byte".to_owned() } else { format!("{} bytes", count(cut.len as u64)) }
}

/// Renders bytes with the form in which they are shown.
pub fn bytes(cut: &Cut, form: Form) -> Markup {
    if cut.len == 0 {
        return html! { p.muted { "empty" } };
    }
    let Decoded { text, form, left_out } = decode(cut, form);
    html! {
        pre.bytes tabindex="0" { code { (text) } }
        p.muted {
            (form.name()) ", " (bytes_of(cut))
            @if left_out > 0 { "; the last " (count(left_out as u64)) " are not shown" }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_shown_in_the_requested_form() {
        let record = Record {
            offset: 7,
            timestamp_ms: 0,
            key: None,
            value: Some(Cut::new(br#"{"a":"<script>"}"#, 100)),
            by_schema: None,
            headers: vec![(b"<h>".to_vec(), None)],
            header_count: 1,
        };
        let shown = |form| {
            let place = Place { topic: "t".to_owned(), partition: 0, offset: 7, form };
            page(&place, Some(&record)).rest.into_string()
        };
        assert!(shown(Form::Auto).contains("&quot;a&quot;: &quot;&lt;script&gt;&quot;"), "{}", shown(Form::Auto));
        assert!(shown(Form::Hex).contains("7b 22 61"));
        assert!(!shown(Form::Text).contains("<h>"));
    }

    #[test]
    fn a_value_is_shown_by_its_schema_unless_its_bytes_are_requested() {
        let shown = |text: Result<&str, &str>, form| {
            let text = text.map(str::to_owned).map_err(str::to_owned);
            let schema = BySchema { schema: "projects/p/schemas/<s>@1".to_owned(), text };
            by_schema(&Cut::new(b"\x02\xff", 100), Some(&schema), form).into_string()
        };
        let decoded = shown(Ok(r#"{"id":1}"#), Form::Auto);
        assert!(decoded.contains("&quot;id&quot;: 1") && decoded.contains("schemas/&lt;s&gt;@1"), "{decoded}");
        assert!(shown(Ok("{}"), Form::Hex).contains("02 ff"));
        let refused = shown(Err("it was deleted"), Form::Auto);
        assert!(refused.contains("02 ff") && refused.contains(": it was deleted"), "{refused}");
    }
}
