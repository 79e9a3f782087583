//! Tokens: their list, and the page of one.

use maud::{Markup, html};

use super::{Listed, Rules, Tab, item, users};
use crate::parts::{Field, Form, empty, encode, facts, field, panel, select, table, time};
use crate::shell::Page;

pub struct Token {
    pub id: String,
    pub user: String,
    pub roles: Vec<String>,
    pub created_ms: u64,
    pub expires_ms: Option<u64>,
}

fn path(id: &str) -> String {
    format!("/console/security/tokens/{}", encode(id))
}

pub fn list(rules: Rules, tokens: &Listed<Token>) -> Page {
    super::page(rules, Tab::Tokens, tokens, panel("Create a token", create()), rows(tokens))
}

fn expires(token: &Token) -> Markup {
    html! { @match token.expires_ms { Some(at) => (time(at as i64)), None => "never" } }
}

fn rows(tokens: &Listed<Token>) -> Markup {
    if tokens.rows.is_empty() {
        return if tokens.query.is_empty() && tokens.after.is_empty() {
            empty(
                "No tokens yet.",
                html! {
                    "Create one above, or with " code { "thalweg token create USER" } "."
                },
            )
        } else {
            empty("No token matches.", html! { a href="/console/security/tokens" { "Show all tokens" } "." })
        };
    }
    let rows = html! { @for token in &tokens.rows { tr {
        th scope="row" { a href=(path(&token.id)) { code { (token.id) } } }
        td { (token.user) }
        td { (token.roles.join(", ")) }
        td { (time(token.created_ms as i64)) }
        td { (expires(token)) }
    } } };
    table("Tokens", &["Token", "User", "Roles", "Created", "Expires"], rows)
}

const LIFETIMES: [(&str, &str); 6] = [
    ("", "30 days"),
    ("3600000", "an hour"),
    ("86400000", "a day"),
    ("604800000", "a week"),
    ("31536000000", "a year"),
    ("0", "no limit"),
];

fn create() -> Markup {
    let form = Form {
        method: "POST",
        action: "/v1/tokens",
        body: "json",
        then: None,
        done: "{token} is the token. Keep it now: it is not shown again.",
        button: "Create",
        confirm: None,
    };
    form.render(html! { div.fields {
        (field(Field::Text, "user", "User", "ci"))
        (field(Field::Words, "roles", "Roles in addition to those of the user", "publisher monitor"))
        (select(Field::Number, "lifetime_ms", "Lifetime", &LIFETIMES))
    } })
}

/// Renders the page of a token.
pub fn one(token: &Token) -> Page {
    let of_api = format!("/v1/tokens/{}", encode(&token.id));
    let delete = Form {
        method: "DELETE",
        action: &of_api,
        body: "",
        then: Some("/console/security/tokens"),
        done: "",
        button: "Delete the token",
        confirm: Some(&token.id),
    };
    item(format!("Token {}", token.id), Tab::Tokens).rest(html! {
        (facts(&[
            ("User", html! { a href=(users::path(&token.user)) { (token.user) } }),
            ("Roles", html! {
                @if token.roles.is_empty() { span.muted { "none" } } @else { (token.roles.join(", ")) }
            }),
            ("Created", time(token.created_ms as i64)),
            ("Expires", expires(token)),
        ]))
        h2 { "Actions" }
        (panel("Delete the token", html! {
            p { "The next request of clients that have logged in with it is refused." }
            (delete.render(html! {}))
        }))
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{RULES, one as listed};
    use super::*;

    #[test]
    fn a_token_is_listed_without_its_secret_and_deleted_after_its_id_was_typed() {
        let token = || Token {
            id: "1f0c8e3a5b7d9f21".to_owned(),
            user: "ci<".to_owned(),
            roles: Vec::new(),
            created_ms: 0,
            expires_ms: None,
        };
        let text = list(RULES, &listed(token())).rest.into_string();
        assert!(text.contains("ci&lt;") && text.contains("never") && text.contains("data-send=\"words\""), "{text}");
        let page = one(&token()).rest.into_string();
        assert!(page.contains("data-confirm=\"1f0c8e3a5b7d9f21\"") && page.contains("users/ci%3C"), "{page}");
    }
}
