//! Parts that several pages have: tables, tiles, notes, times, forms and links to the next page of a list.

use maud::{Markup, html};

use crate::units;

/// Maximum number of bytes of a name, a key or a value in a cell.
pub const CELL_BYTES_MAX: usize = 160;

/// Renders a table that can be scrolled on its own, also by the keyboard.
pub fn table(caption: &str, head: &[&str], rows: Markup) -> Markup {
    html! {
        div.table role="region" aria-label=(caption) tabindex="0" {
            table {
                caption.hidden { (caption) }
                thead { tr { @for name in head { th scope="col" class=[name.strip_prefix('#').map(|_| "n")] {
                    (name.trim_start_matches('#'))
                } } } }
                tbody { (rows) }
            }
        }
    }
}

/// Renders names with their values.
pub fn facts(rows: &[(&str, Markup)]) -> Markup {
    html! { dl.facts { @for (name, value) in rows { div { dt { (name) } dd { (value) } } } } }
}

/// Renders figures in large type, each with its description and a remark.
pub fn tiles(rows: &[(&str, String, String)]) -> Markup {
    html! {
        dl.tiles { @for (name, value, remark) in rows {
            div { dt { (name) } dd { b { (value) } @if !remark.is_empty() { span { (remark) } } } }
        } }
    }
}

/// Renders the text that replaces an empty list: what is missing, and what to do about it.
pub fn empty(what: &str, advice: Markup) -> Markup {
    html! { div.empty { p { b { (what) } } p { (advice) } } }
}

/// Renders a sentence that needs attention.
pub fn warning(text: &str) -> Markup {
    html! { p.warning role="alert" { (text) } }
}

/// Latest time in ms since 1970 that a browser knows.
const TIME_MS_MAX: u64 = 8_640_000_000_000_000;

/// Renders a time. The script replaces it by the time in the zone of the viewer, with its offset.
pub fn time(ms: i64) -> Markup {
    match u64::try_from(ms) {
        Ok(far) if far > TIME_MS_MAX => html! { (far) " ms" },
        Ok(known) => html! { time data-ms=(ms) { (units::format_time(known)) } },
        Err(_before_1970) => html! { (ms) " ms" },
    }
}

/// Renders a limit of bytes or time, for which 0 stands for no limit.
pub fn limit(value: u64, show: impl Fn(u64) -> String) -> String {
    if value == 0 { "no limit".to_owned() } else { show(value) }
}

/// Renders a search form of a list.
pub fn search(label: &str, query: &str) -> Markup {
    html! {
        form.search role="search" {
            label { span.hidden { (label) } input type="search" name="q" value=(query) placeholder=(label); }
            button { "Search" }
        }
    }
}

/// Renders the links to the first page and to the next one.
pub fn pager(first: Option<&str>, next: Option<&str>) -> Markup {
    html! {
        @if first.is_some() || next.is_some() {
            nav.pager aria-label="Pages" {
                @if let Some(first) = first { a href=(first) { "First page" } }
                @if let Some(next) = next { a href=(next) rel="next" { "Next page" } }
            }
        }
    }
}

/// Form whose script sends a request to the HTTP API, and shows the error sentence of the response.
pub struct Form<'a> {
    pub method: &'a str,
    /// Path of the request. `{name}` stands for the value of a field.
    pub action: &'a str,
    /// Form of the body: `json`, `list:NAME` for one object in a list, `raw:NAME` for one field, or nothing.
    pub body: &'a str,
    /// Page that is opened after success; `{name}` stands for the value of a field. Without one, `done` is shown.
    pub then: Option<&'a str>,
    /// Sentence after success. `{path.to.field}` stands for a part of the response.
    pub done: &'a str,
    pub button: &'a str,
    /// Name that the user has to type before the button works.
    pub confirm: Option<&'a str>,
}

impl Form<'_> {
    pub fn render(&self, fields: Markup) -> Markup {
        let class = if self.confirm.is_some() { "api danger" } else { "api" };
        html! {
            form class=(class) data-method=(self.method) data-action=(self.action) data-body=(self.body)
                data-then=[self.then] data-done=(self.done) {
                (fields)
                @if let Some(name) = self.confirm {
                    label { span { "Type " code { (name) } " to confirm" }
                        input data-confirm=(name) autocomplete="off" spellcheck="false" required;
                    }
                }
                div.send { button disabled[self.confirm.is_some()] { (self.button) } output role="status" {} }
            }
        }
    }
}

/// Kind of a field, which decides how its value is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Text,
    Number,
    Flag,
    Area,
    /// Part of the path only.
    Path,
    /// Parameter of the query.
    Query,
    /// Password, which the browser does not show.
    Secret,
    /// Words separated by spaces or commas, which are sent as a list.
    Words,
    /// Lines with a name, a colon and a value, which are sent as an object.
    Pairs,
    /// Flag with which null is sent in place of a value.
    Null,
    /// Header of the request.
    Header,
}

impl Field {
    /// Returns the name by which the script knows how to send a value.
    fn send(self) -> &'static str {
        match self {
            Self::Text | Self::Area | Self::Secret => "text",
            Self::Number => "number",
            Self::Flag => "flag",
            Self::Path => "path",
            Self::Query => "query",
            Self::Words => "words",
            Self::Pairs => "pairs",
            Self::Null => "null",
            Self::Header => "header",
        }
    }
}

/// Renders a field with its label. An empty one is not sent.
pub fn field(kind: Field, name: &str, label: &str, hint: &str) -> Markup {
    let send = kind.send();
    html! {
        @match kind {
            Field::Flag | Field::Null => label.flag {
                input type="checkbox" name=(name) data-send=(send); span { (label) }
            },
            Field::Area | Field::Pairs => label { span { (label) } textarea name=(name) data-send=(send) rows="4"
                placeholder=(hint) spellcheck="false" {} },
            Field::Number => label { span { (label) } input name=(name) data-send=(send) inputmode="numeric"
                pattern="[0-9]*" placeholder=(hint); },
            Field::Secret => label { span { (label) } input type="password" name=(name) data-send=(send)
                autocomplete="new-password" required; },
            _ => label { span { (label) } input name=(name) data-send=(send) placeholder=(hint) autocomplete="off"
                spellcheck="false" required[kind == Field::Path]; },
        }
    }
}

/// Renders a choice with its label; the first option is not sent if its value is empty.
pub fn choice(name: &str, label: &str, options: &[(&str, &str)]) -> Markup {
    select(Field::Text, name, label, options)
}

/// Renders a choice whose value is sent as this kind of field.
pub fn select(kind: Field, name: &str, label: &str, options: &[(&str, &str)]) -> Markup {
    html! {
        label { span { (label) } select name=(name) data-send=(kind.send()) {
            @for (value, text) in options { option value=(value) { (text) } }
        } }
    }
}

/// Renders a value that a form sends without showing it.
pub fn hidden(kind: Field, name: &str, value: &str) -> Markup {
    html! { input type="hidden" name=(name) value=(value) data-send=(kind.send()); }
}

/// Renders a panel that opens with a click or the space bar.
pub fn panel(summary: &str, content: Markup) -> Markup {
    html! { details.panel { summary { (summary) } (content) } }
}

/// Encodes a segment of a path, or a value of a query.
pub fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_encoded_for_paths() {
        assert_eq!(encode("a-b.c_d~"), "a-b.c_d~");
        assert_eq!(encode("<a/b?ä"), "%3Ca%2Fb%3F%C3%A4");
    }

    #[test]
    fn a_form_that_destroys_waits_for_the_name() {
        let form = Form {
            method: "DELETE",
            action: "/v1/topics/t",
            body: "",
            then: Some("/console/topics"),
            done: "",
            button: "Delete",
            confirm: Some("t<"),
        };
        let text = form.render(html! {}).into_string();
        assert!(text.contains("data-confirm=\"t&lt;\"") && text.contains("<button disabled>"), "{text}");
    }
}
