//! One entry of a cache.

use maud::html;

use super::caches::path;
use super::record::bytes;
use crate::decode::{self, Cut};
use crate::parts::{Field, Form, empty, encode, facts, field, panel, time};
use crate::shell::Page;

pub struct Value {
    pub bytes: Cut,
    pub version: u64,
    pub expires_ms: Option<u64>,
}

pub fn page(cache: &str, key: &str, form: decode::Form, value: Option<&Value>) -> Page {
    let page = Page::new(key).below("/console/caches", "Caches").below(path(cache), cache);
    let of_api = format!("/v1/caches/{}/entries/{}", encode(cache), encode(key));
    let put = Form {
        method: "PUT",
        action: &of_api,
        body: "raw:value",
        then: None,
        done: "Stored as version {version}. Reload the page to see it.",
        button: "Put",
        confirm: None,
    };
    let then = path(cache);
    let delete = Form {
        method: "DELETE",
        body: "",
        then: Some(&then),
        done: "",
        button: "Delete the entry",
        confirm: Some(key),
        ..put
    };
    page.rest(html! {
        @match value {
            None => (empty("There is no such entry.", html! {
                "It expired, was evicted or deleted, or never existed."
            })),
            Some(value) => {
                (facts(&[
                    ("Version", html! { (value.version) }),
                    ("Expires", html! { @match value.expires_ms { Some(at) => (time(at as i64)), None => "never" } }),
                ]))
                nav.tabs aria-label="Form of the bytes" { @for one in decode::Form::ALL {
                    a href={ "?as=" (one.name()) } aria-current=[(one == form).then_some("page")] { (one.name()) }
                } }
                (bytes(&value.bytes, form))
            }
        }
        h2 { "Actions" }
        (panel("Put a value", put.render(html! { div.fields {
            (field(Field::Query, "ttl_ms", "Time to live in ms", "the cache's setting"))
            (field(Field::Area, "value", "Value", ""))
        } })))
        (panel("Delete the entry", delete.render(html! {})))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_its_version_and_a_missing_one_says_so() {
        let value = Value { bytes: Cut::new(b"<b>", 100), version: 42, expires_ms: None };
        let text = page("c", "k", decode::Form::Auto, Some(&value)).rest.into_string();
        assert!(text.contains("42") && text.contains("&lt;b&gt;") && text.contains("never"), "{text}");
        assert!(page("c", "k", decode::Form::Auto, None).rest.into_string().contains("There is no such entry"));
    }
}
