//! The login of a browser, and the page that opens another one again.

use maud::{Markup, html};

use crate::shell::plain;
use crate::text::sentence;

/// Values of the form.
pub struct Form<'a> {
    /// Path to which the login returns.
    pub to: &'a str,
    pub user: &'a str,
    /// `true` if the reader has sent a token.
    pub has_token: bool,
}

/// Notice above the form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice<'a> {
    None,
    /// The reader has logged out.
    LoggedOut,
    /// The form was empty.
    Empty,
    /// The login was refused. It does not say which part was wrong, as that would help to guess.
    Refused,
    /// The login could not be checked, for this reason.
    Failed(&'a str),
}

/// Id of the notice, to which the fields refer.
const NOTICE: &str = "notice";

impl Notice<'_> {
    fn is_error(self) -> bool {
        !matches!(self, Self::None | Self::LoggedOut)
    }

    fn render(self) -> Markup {
        let error = |text: &str| html! { p.warning #(NOTICE) role="alert" { (text) } };
        match self {
            Self::None => html! {},
            Self::LoggedOut => html! { p.good #(NOTICE) role="status" { "You have logged out." } },
            Self::Empty => error("Enter a user and a password, or a token."),
            Self::Refused => error("The login was refused: check what you entered, and try again."),
            Self::Failed(why) => error(&sentence(why)),
        }
    }
}

/// Renders the form. It needs no script.
pub fn form(form: &Form<'_>, notice: Notice<'_>, version: &str) -> String {
    let described = notice.is_error().then_some(NOTICE);
    // The first field has the focus, unless a reader of the screen has to read the notice first.
    let has_focus = !notice.is_error();
    let content = html! {
        (notice.render())
        form.login method="post" action="/console/login" {
            input type="hidden" name="to" value=(form.to);
            label { span { "User" }
                input name="user" value=(form.user) autocomplete="username" autocapitalize="none" spellcheck="false"
                    required autofocus[has_focus] aria-describedby=[described];
            }
            label { span { "Password" }
                input type="password" name="password" autocomplete="current-password" required
                    aria-describedby=[described];
            }
            div.send { button { "Log in" } }
        }
        details.panel open[form.has_token] {
            summary { "Log in with a token" }
            form.login method="post" action="/console/login" {
                input type="hidden" name="to" value=(form.to);
                label { span { "Token" }
                    input type="password" name="token" autocomplete="off" required aria-describedby=[described];
                }
                div.send { button { "Log in with the token" } }
            }
        }
        p.muted { "The login ends after 30 minutes without use, after 12 hours, and when the broker restarts." }
    };
    plain("Log in", None, version, &content)
}

/// Renders the page that opens a page of the console again.
pub fn again(to: &str, version: &str) -> String {
    let content = html! { p { a href=(to) { "Continue to the page" } "." } };
    plain("One moment", Some(to), version, &content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_has_labels_and_what_managers_of_passwords_need_and_no_script() {
        let values = Form { to: "/console/topics?q=\"a\"", user: "", has_token: false };
        let text = form(&values, Notice::None, "1.2.3");
        for part in [
            "autocomplete=\"username\"",
            "autocomplete=\"current-password\"",
            "method=\"post\" action=\"/console/login\"",
            "value=\"/console/topics?q=&quot;a&quot;\"",
            "autofocus",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("<script") && !text.contains("role=\"alert\"") && !text.contains("<nav"), "{text}");
    }

    #[test]
    fn an_error_is_announced_and_keeps_the_user_but_no_secret() {
        let values = Form { to: "/console", user: "<ann>", has_token: false };
        let text = form(&values, Notice::Refused, "1.2.3");
        assert!(text.contains("id=\"notice\" role=\"alert\"") && text.contains("&lt;ann&gt;"), "{text}");
        assert!(text.contains("aria-describedby=\"notice\"") && !text.contains("autofocus"), "{text}");
        let failed = form(&values, Notice::Failed("the broker is busy: try again"), "1.2.3");
        assert!(failed.contains("The broker is busy: try again."), "{failed}");
        assert!(
            form(&Form { has_token: true, ..values }, Notice::Refused, "1.2.3")
                .contains("<details class=\"panel\" open")
        );
    }

    #[test]
    fn a_page_opens_another_one_without_a_script() {
        let text = again("/console/topics?q=\"&x", "1.2.3");
        assert!(text.contains("http-equiv=\"refresh\" content=\"0; url=/console/topics?q=&quot;&amp;x\""), "{text}");
        assert!(text.contains("<a href=\"/console/topics?q=&quot;&amp;x\""), "{text}");
    }
}
