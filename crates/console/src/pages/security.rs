//! Users, tokens and access control entries, without their secrets.

use maud::{Markup, html};

use crate::parts::{empty, facts, table, time};
use crate::shell::Page;

pub struct User {
    pub name: String,
    pub mechanisms: Vec<String>,
    pub roles: Vec<String>,
    pub is_super: bool,
    pub is_configured: bool,
}

pub struct Token {
    pub id: String,
    pub user: String,
    pub roles: Vec<String>,
    pub created_ms: u64,
    pub expires_ms: Option<u64>,
}

pub struct Acl {
    pub principal: String,
    pub is_allowed: bool,
    pub operation: String,
    pub kind: String,
    pub name: String,
    pub host: String,
}

/// Part of a list with the number of all.
pub struct Listed<T> {
    pub rows: Vec<T>,
    pub total: usize,
}

pub struct Security {
    pub is_login_required: bool,
    pub is_authorizing: bool,
    pub users: Listed<User>,
    pub tokens: Listed<Token>,
    pub acls: Listed<Acl>,
}

/// Maximum number of rows of each table.
pub const ROWS_MAX: usize = 200;

impl<T> Listed<T> {
    /// Keeps the first [`ROWS_MAX`] items.
    pub fn new<I>(items: Vec<I>, row: impl Fn(I) -> T) -> Self {
        let total = items.len();
        Self { rows: items.into_iter().take(ROWS_MAX).map(row).collect(), total }
    }
}

pub fn page(security: &Security) -> Page {
    let yes = |is: bool| html! { (if is { "yes" } else { "no" }) };
    Page::new("Security").rest(html! {
        (facts(&[
            ("Logins required", yes(security.is_login_required)),
            ("Authorization", yes(security.is_authorizing)),
        ]))
        h2 { "Users" } (users(&security.users))
        h2 { "Tokens" } (tokens(&security.tokens))
        h2 { "Access control entries" } (acls(&security.acls))
        h2 { "Audit log" }
        p { "Logins, refusals and changes are records of the topic "
            code { "_audit" } ", if the key " code { "audit" } " is set." }
    })
}

fn users(users: &Listed<User>) -> Markup {
    if users.rows.is_empty() {
        return empty("No users yet.", html! { code { "thalweg user add NAME" } " adds one." });
    }
    let rows = html! { @for user in &users.rows { tr {
        th scope="row" { (user.name) }
        td { (user.mechanisms.join(", ")) }
        td { (user.roles.join(", ")) }
        td { (if user.is_super { "yes" } else { "no" }) }
        td { (if user.is_configured { "configuration" } else { "broker" }) }
    } } };
    html! { (table("Users", &["User", "Mechanisms", "Roles", "Super user", "Kept in"], rows)) (left_out(users)) }
}

fn tokens(tokens: &Listed<Token>) -> Markup {
    if tokens.rows.is_empty() {
        return empty("No tokens yet.", html! { code { "thalweg token create" } " issues one." });
    }
    let rows = html! { @for token in &tokens.rows { tr {
        th scope="row" { code { (token.id) } }
        td { (token.user) }
        td { (token.roles.join(", ")) }
        td { (time(token.created_ms as i64)) }
        td { @match token.expires_ms { Some(at) => (time(at as i64)), None => "never" } }
    } } };
    html! { (table("Tokens", &["Token", "User", "Roles", "Created", "Expires"], rows)) (left_out(tokens)) }
}

fn acls(acls: &Listed<Acl>) -> Markup {
    if acls.rows.is_empty() {
        return empty("No entries yet.", html! { code { "thalweg acl add" } " adds one." });
    }
    let rows = html! { @for acl in &acls.rows { tr {
        th scope="row" { (acl.principal) }
        td { (if acl.is_allowed { "may" } else { "may not" }) }
        td { (acl.operation) }
        td { (acl.kind) }
        td { (acl.name) }
        td { (acl.host) }
    } } };
    let head = ["Principal", "May", "Operation", "Kind", "Name", "Host"];
    html! { (table("Access control entries", &head, rows)) (left_out(acls)) }
}

fn left_out<T>(listed: &Listed<T>) -> Markup {
    html! { @if listed.total > listed.rows.len() {
        p.muted { "The first " (listed.rows.len()) " of " (listed.total) "; the command line lists all." }
    } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_cut_and_say_so() {
        let user = |n: usize| User {
            name: format!("u{n}<"),
            mechanisms: Vec::new(),
            roles: Vec::new(),
            is_super: n == 0,
            is_configured: false,
        };
        let security = Security {
            is_login_required: true,
            is_authorizing: false,
            users: Listed::new((0..ROWS_MAX + 1).collect(), user),
            tokens: Listed::new(Vec::<Token>::new(), |token| token),
            acls: Listed::new(Vec::<Acl>::new(), |acl| acl),
        };
        let text = page(&security).rest.into_string();
        assert!(text.contains("The first 200 of 201") && text.contains("u0&lt;"), "{text}");
        assert!(text.contains("thalweg token create"), "{text}");
    }
}
