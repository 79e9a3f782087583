//! Access control entries: their list, and the page of one.

use maud::{Markup, html};

use super::{Listed, Rules, Tab, item};
use crate::parts::{Field, Form, empty, encode, facts, field, hidden, panel, select, table};
use crate::shell::Page;

pub struct Acl {
    pub principal: String,
    pub is_allowed: bool,
    pub operation: String,
    pub kind: String,
    pub name: String,
    /// Interpretation of the name: `literal`, `prefix` or `glob`.
    pub matching: String,
    pub host: String,
}

/// Names that a form offers.
pub struct Words {
    pub operations: Vec<&'static str>,
    pub kinds: Vec<&'static str>,
    pub matchings: Vec<&'static str>,
}

fn path(acl: &Acl) -> String {
    let Acl { principal, is_allowed, operation, kind, name, matching, host } = acl;
    let [principal, name, host] = [principal, name, host].map(|text| encode(text));
    format!(
        "/console/security/acl?principal={principal}&operation={operation}&kind={kind}&name={name}\
         &matching={matching}&host={host}&is_allowed={is_allowed}"
    )
}

pub fn list(rules: Rules, words: &Words, acls: &Listed<Acl>) -> Page {
    let create = html! {
        @if !rules.is_authorizing {
            p.muted {
                "Authorization is off: entries take effect once the broker has " code { "authorization = true" } "."
            }
        }
        (panel("Add an entry", create(words)))
    };
    super::page(rules, Tab::Acls, acls, create, rows(acls))
}

fn may(acl: &Acl) -> &'static str {
    if acl.is_allowed { "may" } else { "may not" }
}

fn rows(acls: &Listed<Acl>) -> Markup {
    if acls.rows.is_empty() {
        return if acls.query.is_empty() && acls.after.is_empty() {
            empty("No entries yet.", html! { "Add one above, or with " code { "thalweg acl add" } "." })
        } else {
            empty("No entry matches.", html! { a href="/console/security/acls" { "Show all entries" } "." })
        };
    }
    let rows = html! { @for acl in &acls.rows { tr {
        th scope="row" { a href=(path(acl)) { (acl.principal) } }
        td { (may(acl)) }
        td { (acl.operation) }
        td { (acl.kind) }
        td { (acl.name) }
        td { (acl.matching) }
        td { (acl.host) }
    } } };
    table("Access control entries", &["Principal", "May", "Operation", "Kind", "Name", "Matching", "Host"], rows)
}

fn create(words: &Words) -> Markup {
    let form = Form {
        method: "POST",
        action: "/v1/acls",
        body: "list:acls",
        then: Some("/console/security/acls"),
        done: "",
        button: "Add",
        confirm: None,
    };
    let same = |words: &[&'static str]| words.iter().map(|word| (*word, *word)).collect::<Vec<_>>();
    form.render(html! { div.fields {
        (field(Field::Text, "principal", "Principal: User:NAME, Role:NAME or User:*", "User:ann"))
        (select(Field::Flag, "is_allowed", "Effect", &[("true", "may"), ("false", "may not")]))
        (select(Field::Text, "operation", "Operation", &same(&words.operations)))
        (select(Field::Text, "kind", "Kind of resource", &same(&words.kinds)))
        (field(Field::Text, "name", "Name; the cluster has none", "orders"))
        (select(Field::Text, "matching", "The name is", &same(&words.matchings)))
        (field(Field::Text, "host", "Host", "any"))
    } })
}

/// Renders the page of an entry; `None` if there is no such entry.
pub fn one(acl: Option<&Acl>) -> Page {
    let page = item("Access control entry", Tab::Acls);
    let Some(acl) = acl else {
        return page.rest(empty(
            "There is no such entry.",
            html! {
                a href="/console/security/acls" { "Show all entries" } "."
            },
        ));
    };
    let delete = Form {
        method: "DELETE",
        action: "/v1/acls",
        body: "list:acls",
        then: Some("/console/security/acls"),
        done: "",
        button: "Delete the entry",
        confirm: Some(&acl.principal),
    };
    page.rest(html! {
        (facts(&[
            ("Principal", html! { (acl.principal) }),
            ("May", html! { (may(acl)) " " (acl.operation) }),
            ("Resource", html! { (acl.kind) " " code { (acl.name) } " (" (acl.matching) ")" }),
            ("Host", html! { (acl.host) }),
        ]))
        h2 { "Actions" }
        (panel("Delete the entry", delete.render(html! {
            (hidden(Field::Text, "principal", &acl.principal))
            (hidden(Field::Flag, "is_allowed", if acl.is_allowed { "true" } else { "false" }))
            (hidden(Field::Text, "operation", &acl.operation))
            (hidden(Field::Text, "kind", &acl.kind))
            (hidden(Field::Text, "name", &acl.name))
            (hidden(Field::Text, "matching", &acl.matching))
            (hidden(Field::Text, "host", &acl.host))
        })))
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{RULES, one as listed};
    use super::*;

    #[test]
    fn an_entry_has_a_page_that_deletes_exactly_it() {
        let acl = || Acl {
            principal: "User:a&b".to_owned(),
            is_allowed: false,
            operation: "read".to_owned(),
            kind: "topic".to_owned(),
            name: "<x>".to_owned(),
            matching: "prefix".to_owned(),
            host: "*".to_owned(),
        };
        let words = Words { operations: vec!["read"], kinds: vec!["topic"], matchings: vec!["literal", "prefix"] };
        let text = list(RULES, &words, &listed(acl())).rest.into_string();
        assert!(text.contains("Authorization is off"), "{text}");
        assert!(text.contains("principal=User%3Aa%26b&amp;operation=read") && text.contains("may not"), "{text}");
        let page = one(Some(&acl())).rest.into_string();
        assert!(page.contains("value=\"&lt;x&gt;\"") && page.contains("data-confirm=\"User:a&amp;b\""), "{page}");
        assert_eq!(page.matches("type=\"hidden\"").count(), 7, "{page}");
        assert!(one(None).rest.into_string().contains("There is no such entry"));
    }
}
