//! Which requests are let in, by their heads alone: no clock, no socket.

use hyper::header::{HOST, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Version};

use super::refusal::{Reason, Refusal};
use crate::names::Names;

/// What a head may be.
#[derive(Debug)]
pub(super) struct Policy {
    hosts: Hosts,
    /// Empty: any.
    methods: Vec<Method>,
    pub uri_bytes_max: usize,
    pub headers_count_max: usize,
    pub header_bytes_max: usize,
    pub body_bytes_max: u64,
}

/// What a policy is made of.
pub(super) struct Limits {
    pub uri_bytes_max: usize,
    pub headers_count_max: usize,
    pub header_bytes_max: usize,
    pub body_bytes_max: u64,
}

impl Policy {
    pub fn new(hosts: &[String], methods: &[Method], limits: Limits) -> Self {
        let Limits { uri_bytes_max, headers_count_max, header_bytes_max, body_bytes_max } = limits;
        let (hosts, methods) = (Hosts::new(hosts), methods.to_vec());
        Self { hosts, methods, uri_bytes_max, headers_count_max, header_bytes_max, body_bytes_max }
    }

    /// Refuses a head that may not be, or one that announces such a body.
    pub fn check(&self, head: &Parts, body_bytes_min: u64) -> Result<(), Refusal> {
        self.check_host(head)?;
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

    /// Refuses a head that does not say for which host it is, in one way, or for another host.
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
        if given.peek().is_none() || !given.all(|host| self.hosts.has(host)) {
            return Err(Refusal::new(Reason::Host, "this host is not served here"));
        }
        Ok(())
    }

    fn allow(&self) -> Option<HeaderValue> {
        let names: Vec<&str> = self.methods.iter().map(Method::as_str).collect();
        HeaderValue::try_from(names.join(", ")).ok()
    }
}

/// Hosts that are served, with or without a port.
#[derive(Debug, Default)]
struct Hosts {
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
        self.on_any_port.is_empty() && self.on_one_port.is_empty()
    }

    fn has(&self, host: &[u8]) -> bool {
        let Ok(host) = std::str::from_utf8(host) else {
            return false;
        };
        self.on_any_port.find(split_port(host).0).is_some() || self.on_one_port.find(host).is_some()
    }
}

/// A host and the port after it. An IPv6 address is in brackets.
fn split_port(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    }
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    fn policy(hosts: &[&str], methods: &[Method]) -> Policy {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let limits = Limits { uri_bytes_max: 20, headers_count_max: 3, header_bytes_max: 60, body_bytes_max: 1000 };
        Policy::new(&hosts, methods, limits)
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
        // What an absolute URI says counts as well, and over HTTP/2 it is all there is.
        let evil = head(Version::HTTP_11, "http://evil.example/", &[("host", "a.example")]);
        assert_eq!(refused(&listed, &evil, 0), Some(Reason::Host));
        let evil = head(Version::HTTP_11, "http://a.example/", &[("host", "evil.example")]);
        assert_eq!(refused(&listed, &evil, 0), Some(Reason::Host));
        assert_eq!(refused(&listed, &head(Version::HTTP_2, "https://a.example/", &[]), 0), None);
        assert_eq!(refused(&listed, &head(Version::HTTP_10, "/", &[]), 0), Some(Reason::Host));
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
    fn each_limit_refuses_what_is_one_over_it() {
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
