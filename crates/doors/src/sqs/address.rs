//! Addresses of queues: account, region and name, as a URL, as an ARN, and as the name that all other doors use.

use std::net::IpAddr;

use engine::security::Account;

use super::errors::{Failure, INVALID_ADDRESS, Result};

/// Maximum length of the name of a queue.
const NAME_CHARS_MAX: usize = 80;
const REGION_CHARS_MAX: usize = 32;
const FIFO: &str = ".fifo";

/// An account in a region. Queues of different homes are independent of each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Home {
    pub account: String,
    pub region: String,
}

/// Address of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub home: Home,
    pub name: String,
}

/// Returns `true` if a text may be a region.
pub fn is_region(text: &str) -> bool {
    let is_char = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=REGION_CHARS_MAX).contains(&text.len()) && text.bytes().all(is_char)
}

/// Returns `true` if a text looks like a region of AWS, and unlike any other part of a host name.
fn is_known_region(text: &str) -> bool {
    is_region(text) && text.matches('-').count() >= 2 && text.ends_with(|c: char| c.is_ascii_digit())
}

pub(super) fn is_name(text: &str) -> bool {
    let is_char = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let stem = text.strip_suffix(FIFO).unwrap_or(text);
    !stem.is_empty() && text.len() <= NAME_CHARS_MAX && stem.bytes().all(is_char)
}

/// Returns the host name in a URL, without its port.
pub(super) fn host_in(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    Some(name_of_host(rest.split('/').next().unwrap_or(rest)))
}

/// Returns the host name without its port.
pub(super) fn name_of_host(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => host.split(':').next().unwrap_or(host),
    }
}

/// Returns `true` if a host in the URL of a queue does not identify a service: every machine has such a name, or AWS
/// and its emulators return it.
pub(super) fn is_anybodys(host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    let is_below = |domain: &str| host.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    let domains =
        ["localhost", "amazonaws.com", "amazonaws.com.cn", "localhost.localstack.cloud", "host.docker.internal"];
    domains.into_iter().any(is_below)
        || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback() || address.is_unspecified())
}

impl Home {
    /// Returns the partition in an ARN, which distinguishes the separate clouds of AWS.
    pub fn partition(&self) -> &'static str {
        match &self.region {
            region if region.starts_with("cn-") => "aws-cn",
            region if region.starts_with("us-gov-") => "aws-us-gov",
            _ => "aws",
        }
    }

    /// Returns the ARN of an account as a principal of a policy.
    pub fn principal(&self, account: &str) -> String {
        format!("arn:{}:iam::{account}:root", self.partition())
    }

    /// Returns the prefix of the names of its queues at other doors.
    pub fn prefix(&self, default: &Self) -> String {
        if self == default { String::new() } else { self.full_prefix() }
    }

    /// Returns the prefix that the names of its queues have unless it is the default.
    pub fn full_prefix(&self) -> String {
        format!("{}.{}.", self.account, self.region)
    }
}

impl Place {
    pub fn new(home: &Home, name: &str) -> Self {
        Self { home: home.clone(), name: name.to_owned() }
    }

    /// Returns the queue of a URL, of the path of a URL, or of a name. Missing parts are those of the request.
    pub fn parse(url: &str, home: &Home) -> Result<Self> {
        Self::parse_url(url, home)
            .ok_or_else(|| Failure::new(&INVALID_ADDRESS, format!("The address {url} is not valid for this endpoint.")))
    }

    fn parse_url(url: &str, home: &Home) -> Option<Self> {
        let (host, path) = match url.split_once("://") {
            Some((_, rest)) => rest.split_once('/')?,
            None => ("", url),
        };
        let region_of_host = || {
            let mut labels = host.split([':', '.']);
            match (labels.next(), labels.next()) {
                (Some("sqs"), Some(region)) | (Some(region), Some("queue")) => Some(region),
                _ => None,
            }
        };
        let path = path.trim_matches('/');
        let segments: Vec<&str> = path.split('/').collect();
        let (region, account, name) = match segments[..] {
            [name] | ["queue", name] => (None, None, name),
            [account, name] => (None, Some(account), name),
            ["queue", region, account, name] => (Some(region), Some(account), name),
            _ => return None,
        };
        let region = region.or_else(|| region_of_host().filter(|region| is_known_region(region)));
        let region = region.unwrap_or(&home.region);
        let account = account.unwrap_or(&home.account);
        if !Account::is_valid(account) || !is_region(region) || !is_name(name) {
            return None;
        }
        Some(Self::new(&Home { account: account.to_owned(), region: region.to_owned() }, name))
    }

    /// Returns the queue in the path of a request, if there is one.
    pub fn of_path(path: &str, host: &str, home: &Home) -> Option<Self> {
        if path == "/" || path == "/queue" {
            return None;
        }
        Self::parse_url(&format!("http://{host}{path}"), home)
    }

    pub fn of_arn(arn: &str) -> Option<Self> {
        let parts: Vec<&str> = arn.split(':').collect();
        match parts[..] {
            ["arn", _, "sqs", region, account, name]
                if Account::is_valid(account) && is_region(region) && is_name(name) =>
            {
                Some(Self::new(&Home { account: account.to_owned(), region: region.to_owned() }, name))
            }
            _ => None,
        }
    }

    pub fn arn(&self) -> String {
        let Home { account, region } = &self.home;
        format!("arn:{}:sqs:{region}:{account}:{}", self.home.partition(), self.name)
    }

    /// Returns the path that identifies the queue independent of the host and the request.
    pub fn path(&self) -> String {
        format!("/queue/{}/{}/{}", self.home.region, self.home.account, self.name)
    }

    /// Returns the URL at this base. The region is omitted if it is the default.
    pub fn url(&self, base: &str, default: &Home) -> String {
        if self.home.region == default.region {
            format!("{base}/{}/{}", self.home.account, self.name)
        } else {
            format!("{base}{}", self.path())
        }
    }

    /// Returns the queue that has this name at other doors; `None` if SQS cannot name it.
    pub fn of_known(name: &str, default: &Home) -> Option<Self> {
        if is_name(name) {
            return Some(Self::new(default, name));
        }
        Self::of_full(name).filter(|place| place.home != *default)
    }

    /// Returns the queue of a name with an account and a region.
    pub fn of_full(name: &str) -> Option<Self> {
        let mut parts = name.splitn(3, '.');
        let account = parts.next()?;
        let region = parts.next()?;
        let name = parts.next()?;
        let home = Home { account: account.to_owned(), region: region.to_owned() };
        (Account::is_valid(account) && is_region(region) && is_name(name)).then(|| Self::new(&home, name))
    }

    pub fn is_fifo(&self) -> bool {
        self.name.ends_with(FIFO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home(account: &str, region: &str) -> Home {
        Home { account: account.into(), region: region.into() }
    }

    #[test]
    fn a_url_of_any_emulator_means_its_queue() {
        let here = home("000000000000", "us-east-1");
        let place = |account, region| Some(Place::new(&home(account, region), "q-1.fifo"));
        let same = [
            "q-1.fifo",
            "/000000000000/q-1.fifo",
            "http://localhost:9324/000000000000/q-1.fifo",
            "http://localhost:9324/000000000000/q-1.fifo/",
            "http://localhost:9324/queue/q-1.fifo",
            "https://queue.amazonaws.com/000000000000/q-1.fifo",
            "http://sqs.local:9324/000000000000/q-1.fifo",
            "http://[::1]:9324/000000000000/q-1.fifo",
        ];
        for url in same {
            assert_eq!(Place::parse_url(url, &here), place("000000000000", "us-east-1"), "{url}");
        }
        let elsewhere = [
            "https://sqs.eu-west-1.amazonaws.com/123456789012/q-1.fifo",
            "https://eu-west-1.queue.amazonaws.com/123456789012/q-1.fifo",
            "http://sqs.eu-west-1.localhost.localstack.cloud:4566/123456789012/q-1.fifo",
            "http://localhost:4566/queue/eu-west-1/123456789012/q-1.fifo",
            "/queue/eu-west-1/123456789012/q-1.fifo",
        ];
        for url in elsewhere {
            assert_eq!(Place::parse_url(url, &here), place("123456789012", "eu-west-1"), "{url}");
        }
        for wrong in ["", "/", "http://x", "http://x/", "a b", "http://x/1/q", "http://x/a/b/c", "x/y/q", "a.b"] {
            assert_eq!(Place::parse_url(wrong, &here), None, "{wrong}");
        }
    }

    #[test]
    fn a_host_identifies_the_owner_of_a_queue_unless_it_is_generic() {
        assert_eq!(
            (host_in("http://h:1/a/b"), host_in("http://[::1]:1/a/b"), host_in("/a/b")),
            (Some("h"), Some("::1"), None)
        );
        let anybodys = ["localhost", "LOCALHOST", "a.localhost", "127.0.0.2", "::1", "0.0.0.0", "queue.amazonaws.com"];
        for host in anybodys.into_iter().chain(["sqs.eu-west-1.localhost.localstack.cloud"]) {
            assert!(is_anybodys(host), "{host}");
        }
        for host in ["example.com", "broker", "notlocalhost", "10.0.0.1", "amazonaws.com.example.org"] {
            assert!(!is_anybodys(host), "{host}");
        }
    }

    #[test]
    fn urls_arns_and_names_lead_back() {
        let here = home("000000000000", "us-east-1");
        for home in [here.clone(), home("000000000000", "eu-west-1"), home("123456789012", "us-east-1")] {
            let place = Place::new(&home, "q_1");
            assert_eq!(Place::parse_url(&place.url("http://h:1", &here), &here), Some(place.clone()));
            assert_eq!(Place::of_arn(&place.arn()), Some(place.clone()));
            let known_as = format!("{}{}", home.prefix(&here), place.name);
            assert_eq!(Place::of_known(&known_as, &here), Some(place));
        }
        assert_eq!((here.prefix(&here).as_str(), here.full_prefix().as_str()), ("", "000000000000.us-east-1."));
        assert_eq!(Place::new(&here, "q").arn(), "arn:aws:sqs:us-east-1:000000000000:q");
        for other in ["a.b", "_inbox.x", "000000000000.us-east-1.q", "1.us-east-1.q", "123456789012.us-east-1.a.b"] {
            assert_eq!(Place::of_known(other, &here), None, "{other}");
        }
    }
}
