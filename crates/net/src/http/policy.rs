//! Policy: admission of requests by their heads, without a clock or a socket.
//!
//! Web pages are a part of that: any page can make a browser send requests to a server that only this machine can
//! reach. `Origin` and `Sec-Fetch-Site` identify the page of a request, and no page can change them. A page that has
//! resolved its own name to this machine (DNS rebinding) has the same origin as its requests: only `Host` reveals it.

use std::net::IpAddr;

use hyper::header::{HOST, HeaderName, HeaderValue, ORIGIN};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Uri, Version};

use super::refusal::{Reason, Refusal};
use crate::names::Names;

/// Header that tells whether a request comes from the server's own page, from the same site, or from another site
/// (Fetch Metadata).
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Conditions on a request's head.
#[derive(Debug)]
pub(super) struct Policy {
    hosts: Hosts,
    /// Origins whose pages are allowed in addition to the server's own; `None` if no such list is offered.
    origins: Option<Vec<String>>,
    /// Path of pages that links on web pages of any origin may open.
    pages: Option<&'static str>,
    /// Allowed methods; if empty, all.
    methods: Vec<Method>,
    pub uri_bytes_max: usize,
    pub headers_count_max: usize,
    pub header_bytes_max: usize,
    pub body_bytes_max: u64,
}

/// Size limits of a policy.
pub(super) struct Limits {
    pub uri_bytes_max: usize,
    pub headers_count_max: usize,
    pub header_bytes_max: usize,
    pub body_bytes_max: u64,
}

impl Policy {
    /// Creates a policy. `is_local` adds the names of this machine to the hosts, and no unlisted hosts are served then.
    pub fn new(
        hosts: &[String],
        is_local: bool,
        origins: Option<Vec<String>>,
        methods: &[Method],
        limits: Limits,
    ) -> Self {
        let Limits { uri_bytes_max, headers_count_max, header_bytes_max, body_bytes_max } = limits;
        let hosts = Hosts { is_local, ..Hosts::new(hosts) };
        let methods = methods.to_vec();
        Self {
            hosts,
            origins,
            pages: None,
            methods,
            uri_bytes_max,
            headers_count_max,
            header_bytes_max,
            body_bytes_max,
        }
    }

    /// Sets the path of pages that links on web pages of any origin may open.
    pub fn with_pages(self, pages: Option<&'static str>) -> Self {
        Self { pages, ..self }
    }

    /// Refuses a head that violates the policy, or that announces a body of too many bytes.
    pub fn check(&self, head: &Parts, body_bytes_min: u64) -> Result<(), Refusal> {
        self.check_host(head)?;
        self.check_origin(head)?;
        if !self.methods.is_empty() && !self.methods.contains(&head.method) {
            let message = format!("the method {} is not allowed here", head.method);
            return Err(Refusal { allow: self.allow(), ..Refusal::new(Reason::Method, message) });
        }
        let uri_bytes = head.uri.path_and_query().map_or(0, |path| path.as_str().len());
        if uri_bytes > self.uri_bytes_max {
            return Err(self.uri_too_long());
        }
        let header_bytes: usize = head.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
        if head.headers.len() > self.headers_count_max || header_bytes > self.header_bytes_max {
            return Err(self.headers_too_large());
        }
        if body_bytes_min > self.body_bytes_max {
            return Err(self.body_too_large());
        }
        Ok(())
    }

    pub fn uri_too_long(&self) -> Refusal {
        Refusal::new(Reason::UriSize, format!("a path with its query has at most {} bytes", self.uri_bytes_max))
    }

    pub fn headers_too_large(&self) -> Refusal {
        let Self { headers_count_max, header_bytes_max, .. } = self;
        let message =
            format!("a request has at most {headers_count_max} headers with {header_bytes_max} bytes together");
        Refusal::new(Reason::HeaderSize, message)
    }

    pub fn body_too_large(&self) -> Refusal {
        Refusal::new(Reason::BodySize, format!("a body has at most {} bytes", self.body_bytes_max))
    }

    /// Refuses a head without a unique host, or for a host that is not served.
    fn check_host(&self, head: &Parts) -> Result<(), Refusal> {
        let malformed = |message: &'static str| Err(Refusal::new(Reason::Malformed, message));
        let mut headers = head.headers.get_all(HOST).iter();
        let header = headers.next();
        if headers.next().is_some() {
            return malformed("the header Host is given twice");
        }
        if header.is_none() && head.version == Version::HTTP_11 {
            return malformed("the header Host is missing");
        }
        if self.hosts.is_any() {
            return Ok(());
        }
        let authority = head.uri.authority().map(|authority| authority.as_str().as_bytes());
        let mut given = authority.into_iter().chain(header.map(HeaderValue::as_bytes)).peekable();
        // Every browser sends the host; a client that only speaks HTTP/1.0, such as a probe, runs no page.
        if given.peek().is_none() && self.hosts.is_local {
            return Ok(());
        }
        match given.find(|host| !self.hosts.has(host)) {
            None if header.is_none() && authority.is_none() => {
                Err(Refusal::new(Reason::Host, "the request names no host: add the header Host"))
            }
            None => Ok(()),
            Some(host) => Err(Refusal::new(Reason::Host, self.hosts.refusal(host))),
        }
    }

    /// Refuses requests that a page of another origin makes a browser send.
    fn check_origin(&self, head: &Parts) -> Result<(), Refusal> {
        let listed = self.origins.as_deref().unwrap_or_default();
        if listed.iter().any(|listed| listed == "*") {
            return Ok(());
        }
        if head.headers.get_all(ORIGIN).iter().nth(1).is_some() {
            return Err(Refusal::new(Reason::Malformed, "the header Origin is given twice"));
        }
        match foreign_page(&head.headers, &head.uri, listed) {
            Some(_) if self.is_link_to_page(head) => Ok(()),
            Some(page) => Err(self.no_page_of(&page)),
            None => Ok(()),
        }
    }

    /// Returns `true` if a link on another web page opens one of the pages.
    fn is_link_to_page(&self, head: &Parts) -> bool {
        let path = head.uri.path();
        let is_page =
            |pages: &str| path.strip_prefix(pages).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        is_followed_link(&head.method, &head.headers) && self.pages.is_some_and(is_page)
    }

    fn no_page_of(&self, origin: &str) -> Refusal {
        let what = match self.origins {
            Some(_) => {
                "allow it with http_cors_origins, or open the address itself in the browser; behind a proxy, pass on \
                 the header Host"
            }
            None => "send the request from a program, or from a server of the page",
        };
        Refusal::new(Reason::Origin, format!("a page of {origin} may not use this broker: {what}"))
    }

    fn allow(&self) -> Option<HeaderValue> {
        let names: Vec<&str> = self.methods.iter().map(Method::as_str).collect();
        HeaderValue::try_from(names.join(", ")).ok()
    }
}

/// Returns the origin of the web page that makes a browser send a request, if it is neither the server's own nor one of
/// these; `another origin` if the browser does not name it. A program sends neither `Origin` nor `Sec-Fetch-Site`.
pub fn foreign_page(headers: &HeaderMap, uri: &Uri, listed: &[String]) -> Option<String> {
    let is_listed =
        |origin: &HeaderValue| listed.iter().any(|listed| listed.as_bytes().eq_ignore_ascii_case(origin.as_bytes()));
    let origins = headers.get_all(ORIGIN);
    let foreign = origins.iter().find(|origin| !is_listed(origin) && !is_own_origin(origin, headers, uri));
    if let Some(origin) = foreign {
        return Some(String::from_utf8_lossy(origin.as_bytes()).into_owned());
    }
    if origins.iter().any(is_listed) {
        return None;
    }
    // A page loads images and scripts without sending its origin.
    let mut sites = headers.get_all(SEC_FETCH_SITE).iter();
    let is_foreign = sites.any(|site| !matches!(site.as_bytes(), b"same-origin" | b"none"));
    is_foreign.then(|| "another origin".to_owned())
}

/// Returns `true` if a browser opens a page in a window, because its user has followed a link. The web page with the
/// link cannot read it.
pub fn is_followed_link(method: &Method, headers: &HeaderMap) -> bool {
    let is = |name: &str, value: &[u8]| {
        let mut values = headers.get_all(name).iter();
        values.next().is_some_and(|first| first.as_bytes() == value) && values.next().is_none()
    };
    *method == Method::GET
        && !headers.contains_key(ORIGIN)
        && is("sec-fetch-mode", b"navigate")
        && is("sec-fetch-dest", b"document")
}

/// Returns `true` if the request comes from a page of the same host and port.
pub fn is_own_origin(origin: &HeaderValue, headers: &HeaderMap, uri: &Uri) -> bool {
    let host = headers.get(HOST).map(HeaderValue::as_bytes);
    let host = host.or_else(|| uri.authority().map(|authority| authority.as_str().as_bytes()));
    let origin = origin.as_bytes();
    let site = origin.windows(3).position(|part| part == b"://").map(|at| &origin[at + 3..]);
    site.zip(host).is_some_and(|(site, host)| site.eq_ignore_ascii_case(host))
}

/// Served hosts, with or without a port.
#[derive(Debug, Default)]
struct Hosts {
    /// `true` if the names of this machine are served, and others only if they are listed.
    is_local: bool,
    on_any_port: Names,
    on_one_port: Names,
}

impl Hosts {
    fn new(hosts: &[String]) -> Self {
        let mut known = Self::default();
        for host in hosts {
            match split_port(host) {
                (host, None) => known.on_any_port.add(host, 0),
                (_, Some(_)) => known.on_one_port.add(host, 0),
            }
        }
        known
    }

    fn is_any(&self) -> bool {
        !self.is_local && self.on_any_port.is_empty() && self.on_one_port.is_empty()
    }

    fn has(&self, host: &[u8]) -> bool {
        let Ok(host) = std::str::from_utf8(host) else {
            return false;
        };
        let name = split_port(host).0;
        self.is_local && is_this_machine(name)
            || self.on_any_port.find(name).is_some()
            || self.on_one_port.find(host).is_some()
    }

    fn refusal(&self, host: &[u8]) -> String {
        let host = String::from_utf8_lossy(host);
        let why = if self.is_local {
            "this door is bound to loopback and serves localhost and 127.0.0.1"
        } else {
            "it is not in the list of served hosts"
        };
        format!("the host {host} is not served here: {why}; add it to http_hosts")
    }
}

/// Splits a host from the port after it. An IPv6 address is in brackets.
fn split_port(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => (host, Some(port)),
        _ => (text, None),
    }
}

/// Returns `true` if a request is for this machine by its own name for itself.
pub(super) fn is_for_this_machine(head: &Parts) -> bool {
    let header = || head.headers.get(HOST).and_then(|host| host.to_str().ok());
    let host = head.uri.authority().map(|authority| authority.as_str()).or_else(header);
    host.is_some_and(|host| is_this_machine(split_port(host).0))
}

/// Returns `true` if a host can only mean this machine: no name server is queried for these names (RFC 6761, section
/// 6.3).
fn is_this_machine(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    if let Ok(address) = bare.unwrap_or(host).parse::<IpAddr>() {
        return address.is_ipv6() == bare.is_some() && address.to_canonical().is_loopback();
    }
    let name = host.strip_suffix('.').unwrap_or(host);
    let label = name.rsplit('.').next().unwrap_or_default();
    label.eq_ignore_ascii_case("localhost") && name.split('.').all(|label| !label.is_empty())
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    fn policy(hosts: &[&str], methods: &[Method]) -> Policy {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let limits = Limits { uri_bytes_max: 20, headers_count_max: 3, header_bytes_max: 60, body_bytes_max: 1000 };
        Policy::new(&hosts, false, Some(Vec::new()), methods, limits)
    }

    fn head(version: Version, uri: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().version(version).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).expect("a request").into_parts().0
    }

    fn refused(policy: &Policy, head: &Parts, body: u64) -> Option<Reason> {
        policy.check(head, body).err().map(|refusal| refusal.reason)
    }

    #[test]
    fn a_host_is_on_the_list_or_refused() {
        let listed = policy(&["a.example", "*.b.example", "c.example:8080", "[::1]", "10.0.0.1"], &[]);
        let cases = [
            ("a.example", true),
            ("A.Example:7401", true),
            ("x.b.example", true),
            ("b.example", false),
            ("c.example:8080", true),
            ("c.example", false),
            ("c.example:80", false),
            ("[::1]", true),
            ("[::1]:7401", true),
            ("10.0.0.1:80", true),
            ("evil.example", false),
            ("a.example.evil.example", false),
            ("a.example@evil.example", false),
            ("", false),
        ];
        for (host, is_served) in cases {
            let head = head(Version::HTTP_11, "/", &[("host", host)]);
            assert_eq!(refused(&listed, &head, 0), (!is_served).then_some(Reason::Host), "{host}");
        }
        // The host of an absolute URI counts as well, and over HTTP/2 it is the only one.
        let evil = head(Version::HTTP_11, "http://evil.example/", &[("host", "a.example")]);
        assert_eq!(refused(&listed, &evil, 0), Some(Reason::Host));
        let evil = head(Version::HTTP_11, "http://a.example/", &[("host", "evil.example")]);
        assert_eq!(refused(&listed, &evil, 0), Some(Reason::Host));
        assert_eq!(refused(&listed, &head(Version::HTTP_2, "https://a.example/", &[]), 0), None);
        assert_eq!(refused(&listed, &head(Version::HTTP_10, "/", &[]), 0), Some(Reason::Host));
    }

    #[test]
    fn on_loopback_only_names_of_this_machine_and_listed_ones_are_served() {
        let mut local = policy(&["localhost.localstack.cloud", "*.example:80"], &[]);
        local.hosts.is_local = true;
        let cases = [
            ("localhost", true),
            ("LOCALHOST:7401", true),
            ("localhost.", true),
            ("sqs.us-east-1.localhost:9324", true),
            ("127.0.0.1:9324", true),
            ("127.9.9.9", true),
            ("[::1]", true),
            ("[::1]:7401", true),
            ("[::ffff:127.0.0.1]:7401", true),
            ("localhost.localstack.cloud:4566", true),
            ("a.example:80", true),
            ("a.example:81", false),
            ("evil.example", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("evillocalhost", false),
            (".localhost", false),
            ("localhost:80@evil.example", false),
            ("localhost:80evil", false),
            ("128.0.0.1", false),
            ("0.0.0.0", false),
            ("192.168.1.1", false),
            ("::1", false),
            ("[127.0.0.1]", false),
            ("sqs.us-east-1.localhost.localstack.cloud", false),
            ("", false),
        ];
        for (host, is_served) in cases {
            let head = head(Version::HTTP_11, "/", &[("host", host)]);
            assert_eq!(refused(&local, &head, 0), (!is_served).then_some(Reason::Host), "{host}");
        }
        let refusal = local.check(&head(Version::HTTP_11, "/", &[("host", "evil.example")]), 0).expect_err("refused");
        assert!(refusal.message.contains("evil.example") && refusal.message.contains("http_hosts"), "{refusal:?}");
        // Every browser sends it.
        assert_eq!(refused(&local, &head(Version::HTTP_10, "/", &[]), 0), None);
        assert_eq!(refused(&local, &head(Version::HTTP_2, "http://evil.example/", &[]), 0), Some(Reason::Host));
        assert_eq!(refused(&local, &head(Version::HTTP_2, "http://[::1]:8085/", &[]), 0), None);
    }

    #[test]
    fn a_link_opens_a_page_and_nothing_else() {
        let limits = Limits { uri_bytes_max: 50, headers_count_max: 9, header_bytes_max: 300, body_bytes_max: 1000 };
        let policy = Policy::new(&[], true, None, &[], limits).with_pages(Some("/console"));
        let (mode, dest) = (("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document"));
        type Headers<'a> = &'a [(&'a str, &'a str)];
        let cases: [(&str, Headers<'_>, bool); 8] = [
            ("/console", &[mode, dest], true),
            ("/console/topics/a?q=1", &[mode, dest], true),
            ("/consoles", &[mode, dest], false),
            ("/v1/topics", &[mode, dest], false),
            ("/console", &[mode], false),
            ("/console", &[mode, ("sec-fetch-dest", "iframe")], false),
            ("/console", &[("sec-fetch-mode", "no-cors"), dest], false),
            ("/console", &[mode, dest, ("origin", "https://evil.example")], false),
        ];
        for (path, headers, is_served) in cases {
            let of_site = [("host", "localhost:1"), ("sec-fetch-site", "cross-site")];
            let headers: Vec<_> = of_site.iter().chain(headers).copied().collect();
            let head = head(Version::HTTP_11, path, &headers);
            assert_eq!(refused(&policy, &head, 0), (!is_served).then_some(Reason::Origin), "{path} {headers:?}");
        }
    }

    #[test]
    fn pages_of_other_origins_are_refused_unless_they_are_listed() {
        let limits = || Limits { uri_bytes_max: 20, headers_count_max: 9, header_bytes_max: 200, body_bytes_max: 1000 };
        let with = |origins: Option<&[&str]>| {
            let origins = origins.map(|origins| origins.iter().map(|origin| (*origin).to_owned()).collect());
            Policy::new(&[], true, origins, &[], limits())
        };
        let own = with(None);
        let listed = with(Some(&["https://app.example"]));
        let any = with(Some(&["*"]));
        let o = "origin";
        let s = "sec-fetch-site";
        type Headers<'a> = &'a [(&'a str, &'a str)];
        let cases: [(Headers<'_>, [bool; 3]); 15] = [
            (&[], [true, true, true]),
            (&[(o, "http://localhost:1")], [true, true, true]),
            (&[(o, "https://LOCALHOST:1"), (s, "same-origin")], [true, true, true]),
            (&[(s, "none")], [true, true, true]),
            (&[(s, "same-origin")], [true, true, true]),
            (&[(s, "cross-site")], [false, false, true]),
            (&[(s, "same-site")], [false, false, true]),
            (&[(s, "same-origin"), (s, "cross-site")], [false, false, true]),
            (&[(o, "http://localhost:1"), (s, "cross-site")], [false, false, true]),
            (&[(o, "http://localhost:2"), (s, "same-site")], [false, false, true]),
            (&[(o, "https://app.example"), (s, "cross-site")], [false, true, true]),
            (&[(o, "https://APP.example")], [false, true, true]),
            (&[(o, "https://evil.example")], [false, false, true]),
            (&[(o, "null")], [false, false, true]),
            (&[(o, "")], [false, false, true]),
        ];
        for (headers, expected) in cases {
            let headers: Vec<_> = [("host", "localhost:1")].iter().chain(headers).copied().collect();
            let head = head(Version::HTTP_11, "/", &headers);
            let seen = [&own, &listed, &any].map(|policy| refused(policy, &head, 0));
            assert_eq!(seen, expected.map(|is_served| (!is_served).then_some(Reason::Origin)), "{headers:?}");
        }
        let twice = [("host", "localhost:1"), (o, "http://localhost:1"), (o, "http://evil.example")];
        assert_eq!(refused(&own, &head(Version::HTTP_11, "/", &twice), 0), Some(Reason::Malformed));
    }

    #[test]
    fn a_host_is_given_once() {
        let any = policy(&[], &[]);
        assert_eq!(refused(&any, &head(Version::HTTP_11, "/", &[]), 0), Some(Reason::Malformed));
        let twice = head(Version::HTTP_11, "/", &[("host", "a"), ("host", "a")]);
        assert_eq!(refused(&any, &twice, 0), Some(Reason::Malformed));
        assert_eq!(refused(&any, &head(Version::HTTP_10, "/", &[]), 0), None);
        assert_eq!(refused(&any, &head(Version::HTTP_11, "/", &[("host", "")]), 0), None);
    }

    #[test]
    fn each_limit_refuses_one_more_than_it_allows() {
        let policy = policy(&[], &[Method::POST, Method::GET]);
        let host = ("host", "a");
        let get = |uri: &str, headers: &[(&str, &str)]| head(Version::HTTP_11, uri, headers);
        let path = |n: usize| format!("/{}?{}", "p".repeat(n - 5), "qqq");
        assert_eq!(refused(&policy, &get(&path(20), &[host]), 0), None);
        assert_eq!(refused(&policy, &get(&path(21), &[host]), 0), Some(Reason::UriSize));
        let value = "v".repeat(60 - 9 - 5);
        assert_eq!(refused(&policy, &get("/", &[host, ("x", &value)]), 0), None);
        assert_eq!(refused(&policy, &get("/", &[host, ("xx", &value)]), 0), Some(Reason::HeaderSize));
        assert_eq!(refused(&policy, &get("/", &[host, ("x", ""), ("y", "")]), 0), None);
        let four = get("/", &[host, ("x", ""), ("y", ""), ("x", "")]);
        assert_eq!(refused(&policy, &four, 0), Some(Reason::HeaderSize));
        assert_eq!(refused(&policy, &get("/", &[host]), 1000), None);
        assert_eq!(refused(&policy, &get("/", &[host]), 1001), Some(Reason::BodySize));
        let mut put = get("/", &[host]);
        put.method = Method::PUT;
        let refusal = policy.check(&put, 0).expect_err("not allowed");
        assert_eq!((refusal.reason, refusal.allow), (Reason::Method, Some(HeaderValue::from_static("POST, GET"))));
    }
}
