//! Frame of every page: navigation, heading, and the part that is updated while the page is open.

use maud::{DOCTYPE, Markup, html};

use crate::assets::{ICON, SCRIPT, STYLE};

/// Section of the console, in the order of the navigation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    Overview,
    Topics,
    Groups,
    Queues,
    Streams,
    Caches,
    Clients,
    Cluster,
    Mesh,
    Security,
    Audit,
    Settings,
    Api,
}

impl Section {
    pub const ALL: [Self; 13] = [
        Self::Overview,
        Self::Topics,
        Self::Groups,
        Self::Queues,
        Self::Streams,
        Self::Caches,
        Self::Clients,
        Self::Cluster,
        Self::Mesh,
        Self::Security,
        Self::Audit,
        Self::Settings,
        Self::Api,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Topics => "Topics",
            Self::Groups => "Groups",
            Self::Queues => "Queues",
            Self::Streams => "Streams",
            Self::Caches => "Caches",
            Self::Clients => "Clients",
            Self::Cluster => "Cluster",
            Self::Mesh => "Mesh",
            Self::Security => "Security",
            Self::Audit => "Audit",
            Self::Settings => "Settings",
            Self::Api => "API",
        }
    }

    pub fn path(self) -> &'static str {
        match self {
            Self::Overview => "/console",
            Self::Topics => "/console/topics",
            Self::Groups => "/console/groups",
            Self::Queues => "/console/queues",
            Self::Streams => "/console/streams",
            Self::Caches => "/console/caches",
            Self::Clients => "/console/clients",
            Self::Cluster => "/console/cluster",
            Self::Mesh => "/console/mesh",
            Self::Security => "/console/security",
            Self::Audit => "/console/audit",
            Self::Settings => "/console/settings",
            Self::Api => "/console/api",
        }
    }

    /// Returns the section of a path.
    pub fn of(path: &str) -> Self {
        let is_within = |section: &Self| {
            path.strip_prefix(section.path()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        Self::ALL.into_iter().rev().find(is_within).unwrap_or(Self::Overview)
    }
}

/// Page without its frame.
pub struct Page {
    pub title: String,
    /// Pages above this one: their paths and names.
    pub trail: Vec<(String, String)>,
    /// Part above the live one: tools for it.
    pub tools: Markup,
    /// Part that is sent again while the page is open.
    pub live: Markup,
    /// Part that stays: forms, and what a reader studies.
    pub rest: Markup,
}

impl Page {
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), trail: Vec::new(), tools: html! {}, live: html! {}, rest: html! {} }
    }

    /// Adds a page above this one.
    pub fn below(mut self, path: impl Into<String>, name: impl Into<String>) -> Self {
        self.trail.push((path.into(), name.into()));
        self
    }

    pub fn tools(self, tools: Markup) -> Self {
        Self { tools, ..self }
    }

    pub fn live(self, live: Markup) -> Self {
        Self { live, ..self }
    }

    pub fn rest(self, rest: Markup) -> Self {
        Self { rest, ..self }
    }
}

/// Facts that every page shows.
pub struct Frame<'a> {
    pub section: Section,
    pub version: &'a str,
    /// Name of the user, if the browser has logged in.
    pub user: Option<&'a str>,
    /// `true` if the user can log out: the login is that of the console, and not one that the browser sends.
    pub has_session: bool,
}

/// Renders the head of a page.
fn head(title: &str, more: &Markup) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            title { (title) " · Thalweg" }
            link rel="icon" type="image/svg+xml" href=(asset(ICON));
            link rel="stylesheet" href=(asset(STYLE));
            (more)
        }
    }
}

fn asset(name: &str) -> String {
    format!("/console/assets/{name}")
}

fn brand() -> Markup {
    html! {
        a.brand href="/console" {
            img src=(asset(ICON)) alt="" width="22" height="22";
            span { "Thalweg" }
        }
    }
}

/// Renders a page without navigation and script, for readers who have not logged in. A browser opens the path
/// `refresh` immediately.
pub fn plain(title: &str, refresh: Option<&str>, version: &str, content: &Markup) -> String {
    let more = html! {
        @if let Some(path) = refresh { meta http-equiv="refresh" content=(format!("0; url={path}")); }
    };
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            (head(title, &more))
            body.plain {
                header { (brand()) }
                main #main {
                    h1 { (title) }
                    (content)
                    p.about { "Version " (version) }
                }
            }
        }
    };
    markup.into_string()
}

impl Frame<'_> {
    /// Renders a page within the frame.
    pub fn render(&self, page: &Page) -> String {
        let is_live = !page.live.0.is_empty();
        let script = html! { script src=(asset(SCRIPT)) defer {} };
        let markup = html! {
            (DOCTYPE)
            html lang="en" {
                (head(&page.title, &script))
                body {
                    a.skip href="#main" { "Skip to the page" }
                    header.side {
                        (brand())
                        (self.navigation())
                        (self.account())
                        p.about { "Version " (self.version) }
                    }
                    main #main tabindex="-1" {
                        @if !page.trail.is_empty() {
                            nav.trail aria-label="Path" {
                                @for (at, (path, name)) in page.trail.iter().enumerate() {
                                    @if at > 0 { " / " }
                                    a href=(path) { (name) }
                                }
                            }
                        }
                        div.title {
                            h1 { (page.title) }
                            @if is_live { span.state #state role="status" { "Not live" } }
                        }
                        (page.tools)
                        @if is_live { div #live { (page.live) } }
                        (page.rest)
                    }
                }
            }
        };
        markup.into_string()
    }

    /// Renders the name of the user, and the button that ends the session.
    fn account(&self) -> Markup {
        html! {
            @if let Some(user) = self.user {
                div.account {
                    p { "User " b { (user) } }
                    @if self.has_session {
                        form method="post" action="/console/logout" { button { "Log out" } }
                    }
                }
            }
        }
    }

    fn navigation(&self) -> Markup {
        html! {
            nav.sections aria-label="Sections" {
                ul {
                    @for section in Section::ALL {
                        li {
                            a href=(section.path()) aria-current=[(section == self.section).then_some("page")] {
                                (section.name())
                            }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_belongs_to_its_section() {
        for (path, section) in [
            ("/console", Section::Overview),
            ("/console/topics", Section::Topics),
            ("/console/topics/console", Section::Topics),
            ("/console/apis", Section::Overview),
            ("/elsewhere", Section::Overview),
        ] {
            assert_eq!(Section::of(path), section, "{path}");
        }
    }

    #[test]
    fn a_page_has_no_inline_script_or_style_and_escapes_its_title() {
        let frame = Frame { section: Section::Topics, version: "1.2.3", user: Some("<b>"), has_session: false };
        let page = Page::new("<script>").live(html! { p { "x" } });
        let text = frame.render(&page);
        assert!(!text.contains("<script>") && !text.contains("style=") && !text.contains("<b>&lt;b>"), "{text}");
        assert!(text.contains("&lt;script&gt; · Thalweg") && text.contains("aria-current=\"page\""), "{text}");
    }

    #[test]
    fn only_a_session_can_be_ended() {
        let render = |user, has_session| {
            Frame { section: Section::Topics, version: "1.2.3", user, has_session }.render(&Page::new("Topics"))
        };
        assert!(render(Some("ann"), true).contains("<form method=\"post\" action=\"/console/logout\">"));
        let of_basic = render(Some("ann"), false);
        assert!(of_basic.contains("<b>ann</b>") && !of_basic.contains("Log out"), "{of_basic}");
        assert!(!render(None, false).contains("account"));
    }
}
