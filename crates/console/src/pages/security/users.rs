//! Users: their list, and the page of one.

use maud::{Markup, html};

use super::{Listed, Rules, Tab, item};
use crate::parts::{Field, Form, empty, encode, facts, field, panel, select, table};
use crate::shell::Page;

pub struct User {
    pub name: String,
    pub mechanisms: Vec<String>,
    pub roles: Vec<String>,
    pub is_super: bool,
    pub is_configured: bool,
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
        td { (user.mechanisms.join(", ")) }
        td { (user.roles.join(", ")) }
        td { (if user.is_super { "yes" } else { "no" }) }
        td { (kept_in(user)) }
    } } };
    table("Users", &["User", "Mechanisms", "Roles", "Super user", "Kept in"], rows)
}

fn kept_in(user: &User) -> &'static str {
    if user.is_configured { "configuration" } else { "broker" }
}

fn password(button: &str, then: Option<&str>) -> Markup {
    let form = Form {
        method: "PUT",
        action: "/v1/users/{user}",
        body: "json",
        then,
        done: "The password was set. Tokens that the user created were deleted.",
        button,
        confirm: None,
    };
    form.render(html! { div.fields {
        (field(Field::Path, "user", "Name", "ann"))
        (field(Field::Secret, "password", "Password", ""))
    } })
}

fn create() -> Markup {
    password("Create", Some("/console/security/users/{user}"))
}

/// Renders the page of a user.
pub fn one(user: &User) -> Page {
    item(&user.name, Tab::Users).rest(html! {
        (facts(&[
            ("Mechanisms", html! { (user.mechanisms.join(", ")) }),
            ("Roles", html! { @if user.roles.is_empty() { span.muted { "none" } } @else { (user.roles.join(", ")) } }),
            ("Super user", html! { (if user.is_super { "yes" } else { "no" }) }),
            ("Kept in", html! { (kept_in(user)) }),
            ("Connections", html! { a href={ "/console/clients?q=" (encode(&user.name)) } { "Show" } }),
        ]))
        h2 { "Actions" }
        (role_forms(user))
        @if user.is_configured {
            p.muted { "The user is in the configuration: change the password there, or delete the user there." }
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
        (panel("Delete the user", html! {
            p { "Its passwords, tokens and access keys are deleted. Entries and roles of this name stay." }
            (delete.render(html! {}))
        }))
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
            roles: vec!["monitor".to_owned()],
            is_super: false,
            is_configured,
        }
    }

    #[test]
    fn a_list_links_each_user_and_the_next_page() {
        let text = list(RULES, &listed(user(false))).rest.into_string();
        assert!(text.contains("/console/security/users/a%3Cb%2Fc") && text.contains("a&lt;b/c"), "{text}");
        assert!(text.contains("q=a%26b&amp;after=y%3C") && text.contains("type=\"password\""), "{text}");
        let none = Listed { rows: Vec::new(), query: String::new(), after: String::new(), next: None };
        assert!(list(RULES, &none).rest.into_string().contains("Create one above"));
    }

    #[test]
    fn a_deletion_waits_for_the_name_and_a_configured_user_is_changed_elsewhere() {
        let text = one(&user(false)).rest.into_string();
        assert_eq!(text.matches("data-confirm=\"a&lt;b/c\"").count(), 2, "{text}");
        let configured = one(&user(true)).rest.into_string();
        assert!(configured.contains("in the configuration") && !configured.contains("Delete the user"), "{configured}");
    }
}
