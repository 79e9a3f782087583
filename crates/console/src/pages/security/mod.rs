//! Users, tokens and access control entries, without their secrets: a list of each, a page of each item, and the forms
//! that create and delete them.

pub mod acls;
pub mod tokens;
pub mod users;

use maud::{Markup, html};

use crate::parts::{encode, facts, pager, search};
use crate::shell::Page;

/// Facts that all lists show.
#[derive(Clone, Copy)]
pub struct Rules {
    pub is_login_required: bool,
    pub is_authorizing: bool,
}

/// Part of a list.
pub struct Listed<T> {
    pub rows: Vec<T>,
    pub query: String,
    /// Parameter with which the page begins; empty for the first one.
    pub after: String,
    /// Parameter of the next page; `None` if this is the last one.
    pub next: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tab {
    Users,
    Tokens,
    Acls,
}

impl Tab {
    const ALL: [Self; 3] = [Self::Users, Self::Tokens, Self::Acls];

    fn name(self) -> &'static str {
        match self {
            Self::Users => "Users",
            Self::Tokens => "Tokens",
            Self::Acls => "Access control entries",
        }
    }

    fn path(self) -> &'static str {
        match self {
            Self::Users => "/console/security",
            Self::Tokens => "/console/security/tokens",
            Self::Acls => "/console/security/acls",
        }
    }
}

/// Renders the page of a list: `create` are the forms that add to it.
fn page<T>(rules: Rules, tab: Tab, list: &Listed<T>, create: Markup, rows: Markup) -> Page {
    let yes = |is: bool| html! { (if is { "yes" } else { "no" }) };
    let path = tab.path();
    let query = encode(&list.query);
    let first = (!list.after.is_empty()).then(|| format!("{path}?q={query}"));
    let next = list.next.as_ref().map(|next| format!("{path}?q={query}&after={}", encode(next)));
    Page::new("Security").rest(html! {
        (facts(&[
            ("Logins required", yes(rules.is_login_required)),
            ("Authorization", yes(rules.is_authorizing)),
            ("Audit", html! { a href="/console/audit" { "Show its records" } }),
        ]))
        nav.tabs aria-label="Lists" { @for one in Tab::ALL {
            a href=(one.path()) aria-current=[(one == tab).then_some("page")] { (one.name()) }
        } }
        h2 { (tab.name()) }
        div.tools { (search("Search", &list.query)) }
        (create)
        (rows)
        (pager(first.as_deref(), next.as_deref()))
    })
}

/// Returns the page of an item, below its list.
fn item(title: impl Into<String>, tab: Tab) -> Page {
    Page::new(title).below("/console/security", "Security").below(tab.path(), tab.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) const RULES: Rules = Rules { is_login_required: true, is_authorizing: false };

    pub(super) fn one<T>(row: T) -> Listed<T> {
        Listed { rows: vec![row], query: "a&b".to_owned(), after: "x".to_owned(), next: Some("y<".to_owned()) }
    }
}
