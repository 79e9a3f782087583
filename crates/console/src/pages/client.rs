//! One open connection of a client, and the form that closes it.

use maud::html;

use super::clients::{Row, address, user};
use crate::brief::{count, per_s};
use crate::parts::{Form, empty, facts, panel};
use crate::shell::Page;
use crate::units::elapsed;

/// Renders the page of a connection; `None` if it has ended. `is_own`: the browser itself uses the connection.
pub fn page(id: &str, row: Option<&Row>, is_own: bool) -> Page {
    let page = Page::new(format!("Connection {id}")).below("/console/clients", "Clients");
    let Some(row) = row else {
        return page.live(empty(
            "This connection has ended.",
            html! {
                a href="/console/clients" { "Show open connections" } "."
            },
        ));
    };
    let of_api = format!("/v1/connections/{id}");
    let form = Form {
        method: "DELETE",
        action: &of_api,
        body: "",
        then: Some("/console/clients"),
        done: "",
        button: "Disconnect",
        confirm: Some(id),
    };
    let live = facts(&[
        ("Door", html! { (row.door) }),
        ("User", user(row)),
        ("Address", address(row)),
        ("Open for", html! { (elapsed(row.age_ms)) }),
        ("Requests", html! { (count(row.requests as f64)) }),
        ("Rate", html! { (row.rate.map_or("–".to_owned(), |rate| per_s(count(rate)))) }),
    ]);
    page.live(live).rest(html! {
        h2 { "Actions" }
        @if is_own {
            p.muted { "This browser uses the connection, so it cannot be closed here." }
        } @else {
            (panel("Disconnect", html! {
                p { "Requests in progress have no answer, and may take effect. The client may connect again: to keep "
                    "it out, delete its user or token, or take its permissions away." }
                (form.render(html! {}))
            }))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_closed_after_its_number_was_typed_unless_it_is_that_of_the_browser() {
        let row = Row {
            id: 7,
            door: "kafka",
            user: Some("<ann>".to_owned()),
            address: None,
            age_ms: 61_000,
            requests: 3,
            rate: None,
        };
        let other = page("7", Some(&row), false);
        let (live, rest) = (other.live.into_string(), other.rest.into_string());
        assert!(live.contains("&lt;ann&gt;") && live.contains("1m 1s") && live.contains("this machine"), "{live}");
        assert!(rest.contains("data-confirm=\"7\"") && rest.contains("/v1/connections/7"), "{rest}");
        assert!(!page("7", Some(&row), true).rest.into_string().contains("data-confirm"));
        assert!(page("7", None, false).live.into_string().contains("has ended"));
    }
}
