//! Users: their list, and the page of one.

use maud::{Markup, html};

use super::{Listed, Rules, Tab, item};
use crate::parts::{Field, Form, empty, encode, facts, field, hidden, panel, select, table};
use crate::shell::Page;

/// User of whom the broker has something, or who is connected.
pub struct User {
    pub name: String,
    /// Mechanisms for which the user has a password; empty for one who has none.
    pub mechanisms: Vec<String>,
    pub tokens: usize,
    pub access_keys: usize,
    pub roles: Vec<String>,
    /// `true` if access control entries name the user.
    pub has_entries: bool,
    pub tenant: Option<String>,
    pub is_super: bool,
    pub is_configured: bool,
    /// `true` if the broker has a password, a token or an access key of the user.
    pub has_credential: bool,
    /// `false` if the name stands for clients without a login.
    pub may_log_in: bool,
}

/// Returns the path of a user's page.
pub fn path(user: &str) -> String {
    format!("/console/security/users/{}", encode(user))
}

pub fn list(rules: Rules, users: &Listed<User>) -> Page {
    super::page(rules, Tab::Users, users, panel("Create a user", create()), rows(users))
}

fn rows(users: &Listed<User>) -> Markup {
    if users.rows.is_empty() {
        return if users.query.is_empty() && users.after.is_empty() {
            empty("No users yet.", html! { "Create one above, or with " code { "thalweg user add NAME" } "." })
        } else {
            empty("No user matches.", html! { a href="/console/security" { "Show all users" } "." })
        };
    }
    let rows = html! { @for user in &users.rows { tr {
        th scope="row" { a href=(path(&user.name)) { (user.name) } }
        td { (passwords(user)) }
        td.n { (user.tokens) }
        td.n { (user.access_keys) }
        td { (user.roles.join(", ")) }
        td { (yes(user.has_entries)) }
        td { (user.tenant.as_deref().unwrap_or_default()) }
        td { (yes(user.is_super)) }
        td { (kept_in(user)) }
    } } };
    let head = [
        "User",
        "Passwords",
        "#Tokens",
        "#Access keys",
        "Roles",
        "Entries",
        "Tenant",
        "Super user",
        "Passwords kept in",
    ];
    table("Users", &head, rows)
}

fn yes(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

/// Renders the mechanisms of the password.
fn passwords(user: &User) -> Markup {
    html! { @if user.mechanisms.is_empty() { span.muted { "none" } } @else { (user.mechanisms.join(", ")) } }
}

fn kept_in(user: &User) -> &'static str {
    match (user.is_configured, user.mechanisms.is_empty()) {
        (true, _) => "configuration",
        (false, false) => "broker",
        (false, true) => "–",
    }
}

/// Renders the form that creates a user. It does not replace the password of one who exists.
fn create() -> Markup {
    let form = Form {
        method: "PUT",
        action: "/v1/users/{user}",
        body: "json",
        then: Some("/console/security/users/{user}"),
        done: "",
        button: "Create",
        confirm: None,
    };
    form.render(html! { div.fields {
        (field(Field::Path, "user", "Name", "ann"))
        (field(Field::Secret, "password", "Password", ""))
        (hidden(Field::Header, "if-none-match", "*"))
    } })
}

/// Renders the page of a user.
pub fn one(user: &User) -> Page {
    item(&user.name, Tab::Users).rest(html! {
        (facts(&[
            ("Passwords", passwords(user)),
            ("Passwords kept in", html! { (kept_in(user)) }),
            ("Tokens", html! { (user.tokens) " "
                a href={ "/console/security/tokens?q=" (encode(&user.name)) } { "Show" } }),
            ("Access keys", html! { (user.access_keys) }),
            ("Roles", html! { @if user.roles.is_empty() { span.muted { "none" } } @else { (user.roles.join(", ")) } }),
            ("Entries of the user", html! { @if user.has_entries {
                a href={ "/console/security/acls?q=" (encode(&format!("User:{}", user.name))) } { "Show" }
            } @else { span.muted { "none" } } }),
            ("Tenant", html! { @match &user.tenant { Some(tenant) => (tenant), None => span.muted { "none" } } }),
            ("Super user", html! { (yes(user.is_super)) }),
            ("Connections", html! { a href={ "/console/clients?q=" (encode(&user.name)) } { "Show" } }),
        ]))
        h2 { "Actions" }
        (role_forms(user))
        @if user.is_configured {
            p.muted { "The user is in the configuration: change the password there, or delete the user there." }
        } @else if !user.may_log_in {
            p.muted { "The name stands for clients that have not logged in: it has no password." }
        } @else { (own_forms(user)) }
    })
}

fn role_forms(user: &User) -> Markup {
    let own = path(&user.name);
    let of_api = format!("/v1/users/{}/roles/{{role}}", encode(&user.name));
    let add = Form {
        method: "PUT",
        action: &of_api,
        body: "",
        then: Some(&own),
        done: "",
        button: "Add the role",
        confirm: None,
    };
    let remove = Form { method: "DELETE", button: "Remove the role", confirm: Some(&user.name), ..add };
    let roles: Vec<(&str, &str)> = user.roles.iter().map(|role| (role.as_str(), role.as_str())).collect();
    html! {
        (panel("Add a role", add.render(html! { div.fields { (field(Field::Path, "role", "Role", "monitor")) } })))
        @if !roles.is_empty() {
            (panel("Remove a role", remove.render(html! { div.fields {
                (select(Field::Path, "role", "Role", &roles))
            } })))
        }
    }
}

fn own_forms(user: &User) -> Markup {
    let of_api = format!("/v1/users/{}", encode(&user.name));
    let set = Form {
        method: "PUT",
        action: &of_api,
        body: "json",
        then: None,
        done: "The password was set. Tokens that the user created were deleted.",
        button: "Set the password",
        confirm: None,
    };
    let delete = Form {
        method: "DELETE",
        body: "",
        then: Some("/console/security"),
        done: "",
        button: "Delete the user",
        confirm: Some(&user.name),
        ..set
    };
    html! {
        (panel("Set the password", set.render(html! { div.fields {
            (field(Field::Secret, "password", "Password", ""))
        } })))
        @if user.has_credential {
            (panel("Delete the user", html! {
                p { "Its passwords, tokens and access keys are deleted. Entries and roles of this name stay." }
                (delete.render(html! {}))
            }))
        } @else {
            p.muted { "The broker has no password, token or access key of the user, who may log in with a certificate "
                "or a token of an issuer. Remove roles, entries and the tenant to take all permissions away." }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{RULES, one as listed};
    use super::*;

    fn user(is_configured: bool) -> User {
        User {
            name: "a<b/c".to_owned(),
            mechanisms: vec!["SCRAM-SHA-256".to_owned()],
            tokens: 2,
            access_keys: 1,
            roles: vec!["monitor".to_owned()],
            has_entries: true,
            tenant: Some("acme<".to_owned()),
            is_super: false,
            is_configured,
            has_credential: true,
            may_log_in: true,
        }
    }

    #[test]
    fn a_list_links_each_user_and_the_next_page() {
        let text = list(RULES, &listed(user(false))).rest.into_string();
        assert!(text.contains("/console/security/users/a%3Cb%2Fc") && text.contains("a&lt;b/c"), "{text}");
        assert!(text.contains("q=a%26b&amp;after=y%3C") && text.contains("type=\"password\""), "{text}");
        assert!(text.contains("name=\"if-none-match\" value=\"*\" data-send=\"header\""), "{text}");
        let none = Listed { rows: Vec::new(), query: String::new(), after: String::new(), next: None };
        assert!(list(RULES, &none).rest.into_string().contains("Create one above"));
    }

    #[test]
    fn a_deletion_waits_for_the_name_and_a_configured_user_is_changed_elsewhere() {
        let text = one(&user(false)).rest.into_string();
        assert_eq!(text.matches("data-confirm=\"a&lt;b/c\"").count(), 2, "{text}");
        assert!(text.contains("acme&lt;") && text.contains("q=User%3Aa%3Cb%2Fc") && text.contains("2 <a"), "{text}");
        let configured = one(&user(true)).rest.into_string();
        assert!(configured.contains("in the configuration") && !configured.contains("Delete the user"), "{configured}");
    }

    #[test]
    fn a_user_without_a_credential_has_a_page_that_does_not_delete_one() {
        let bare = || User { mechanisms: Vec::new(), tokens: 0, access_keys: 0, has_credential: false, ..user(false) };
        let text = one(&bare()).rest.into_string();
        assert!(text.contains("Set the password") && text.contains("Add a role"), "{text}");
        assert!(text.contains("log in with a certificate") && !text.contains("Delete the user"), "{text}");
        let reserved = one(&User { may_log_in: false, ..bare() }).rest.into_string();
        assert!(reserved.contains("have not logged in") && !reserved.contains("Set the password"), "{reserved}");
        let row = list(RULES, &listed(bare())).rest.into_string();
        assert!(row.contains("<td><span class=\"muted\">none</span></td>"), "{row}");
    }
}
