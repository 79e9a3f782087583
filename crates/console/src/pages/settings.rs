//! Settings of the broker with the source of each value, as `config show` prints them.

use maud::html;

use crate::parts::{empty, search, table};
use crate::shell::Page;

/// Setting with the source of its value. Secrets are hidden before they come here.
#[derive(Clone, Debug)]
pub struct Setting {
    pub key: String,
    pub value: String,
    pub origin: String,
    pub help: String,
    /// `true` if the value is not a default.
    pub is_set: bool,
}

pub fn page(settings: &[Setting], query: &str) -> Page {
    let words = query.to_lowercase();
    let is_meant = |setting: &&Setting| setting.key.contains(&words) || setting.help.to_lowercase().contains(&words);
    let shown: Vec<&Setting> = settings.iter().filter(is_meant).collect();
    let rows = html! { @for setting in &shown { tr {
        th scope="row" title=(setting.help) { code { (setting.key) } }
        td.wide { @if setting.value.is_empty() { span.muted { "none" } } @else { code { (setting.value) } } }
        td class=[setting.is_set.then_some("set")] { (setting.origin) }
        td.help { (setting.help) }
    } } };
    Page::new("Settings").rest(html! {
        p.muted { (shown.len()) " keys. A setting changes in the configuration, and with a restart." }
        div.tools { (search("Search settings", query)) }
        @if shown.is_empty() {
            (empty("No setting matches.", html! { a href="/console/settings" { "Show all settings" } "." }))
        } @else { (table("Settings", &["Key", "Value", "From", "Meaning"], rows)) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_found_by_key_and_by_meaning() {
        let setting = |key: &str, help: &str| Setting {
            key: key.to_owned(),
            value: "<1>".to_owned(),
            origin: "default".to_owned(),
            help: help.to_owned(),
            is_set: false,
        };
        let all = [setting("http", "Address of the HTTP door"), setting("threads", "Worker threads")];
        let text = page(&all, "worker").rest.into_string();
        assert!(text.contains("threads") && !text.contains("<code>http<") && text.contains("&lt;1&gt;"), "{text}");
        assert!(page(&all, "zz").rest.into_string().contains("Show all settings"));
    }
}
