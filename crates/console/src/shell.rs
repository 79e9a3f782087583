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
}

impl Frame<'_> {
    /// Renders a page within the frame.
    pub fn render(&self, page: &Page) -> String {
        let asset = |name: &str| format!("/console/assets/{name}");
        let is_live = !page.live.0.is_empty();
        let markup = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (page.title) " · Thalweg" }
                    link rel="icon" type="image/svg+xml" href=(asset(ICON));
                    link rel="stylesheet" href=(asset(STYLE));
                    script src=(asset(SCRIPT)) defer {}
                }
                body {
                    a.skip href="#main" { "Skip to the page" }
                    header.side {
                        a.brand href="/console" {
                            img src=(asset(ICON)) alt="" width="22" height="22";
                            span { "Thalweg" }
                        }
                        (self.navigation())
                        p.about {
                            "Version " (self.version)
                            @if let Some(user) = self.user { br; "User " b { (user) } }
                        }
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
        let frame = Frame { section: Section::Topics, version: "1.2.3", user: Some("<b>") };
        let page = Page::new("<script>").live(html! { p { "x" } });
        let text = frame.render(&page);
        assert!(!text.contains("<script>") && !text.contains("style=") && !text.contains("<b>&lt;b>"), "{text}");
        assert!(text.contains("&lt;script&gt; · Thalweg") && text.contains("aria-current=\"page\""), "{text}");
    }
}
