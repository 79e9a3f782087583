//! Page of a request that was refused.

use maud::html;

use crate::shell::Page;
use crate::text::sentence;

/// Renders the sentence of an error, and says where the reader can continue.
pub fn page(status: u16, message: &str) -> Page {
    let title = match status {
        401 => "Log in first",
        403 => "You may not see this",
        404 => "Not found",
        _ => "This did not work",
    };
    Page::new(title).rest(html! {
        p.warning role="alert" { (sentence(message)) }
        p.muted { "Status " (status) ". Other sections of the navigation may be open to you." }
    })
}
