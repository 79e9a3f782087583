//! Requests that botocore and the test suite of AWS have signed, and the errors if a request differs from the signed
//! one.

use hyper::header::{HeaderName, HeaderValue};
use serde::Deserialize;

use super::*;

const SECRETS: &str = "AKIDEXAMPLE:wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY,\
                       AKIAIOSFODNN7EXAMPLE:wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY:111122223333,123456789012:test";
const DEFAULT_ACCOUNT: &str = "000000000000";

/// Request of `tests/vectors/sigv4`.
#[derive(Clone, Deserialize)]
struct Sent {
    name: String,
    service: String,
    method: String,
    path: String,
    query: String,
    headers: Vec<(String, String)>,
    body: String,
    at: u64,
    access_key: String,
    region: String,
}

impl Sent {
    fn is_in_query(&self) -> bool {
        self.query.contains("X-Amz-Signature=")
    }

    fn header(&mut self, name: &str) -> &mut String {
        let found = self.headers.iter_mut().find(|(key, _)| key.eq_ignore_ascii_case(name));
        &mut found.unwrap_or_else(|| panic!("no header {name}")).1
    }

    /// Returns the part that contains the signature: the header or the query.
    fn signature(&mut self) -> &mut String {
        if self.is_in_query() { &mut self.query } else { self.header("authorization") }
    }

    fn header_map(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in &self.headers {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
            // A server removes the space around a value.
            headers.append(name, HeaderValue::from_bytes(value.trim().as_bytes()).expect("a value"));
        }
        headers
    }

    fn verify_at(&self, now_s: u64, credentials: &Credentials) -> Result<String, AuthError> {
        let headers = self.header_map();
        let method = &*self.method;
        let path = &*self.path;
        let query = &*self.query;
        let body = self.body.as_bytes();
        let request = Request { method, path, query, authority: None, headers: &headers, body };
        let scope = Scope::parse(&request);
        let identity = verify(&request, credentials, |_| None, &self.service, now_s)?;
        assert_eq!(scope.map(|scope| scope.access_key), Some(&*self.access_key), "{}", self.name);
        assert!(matches!(&identity.signer, Some(Signer::Configured(key, _)) if *key == self.access_key));
        assert_eq!(identity.region, Some(&*self.region));
        Ok(identity.account.expect("every key has an account").into_owned())
    }

    fn verify(&self) -> Result<String, AuthError> {
        self.verify_at(self.at, &credentials())
    }

    /// Returns the error for the request after a change.
    fn refused(&self, change: impl FnOnce(&mut Self)) -> AuthError {
        let mut changed = self.clone();
        change(&mut changed);
        changed.verify().expect_err(&self.name)
    }
}

fn credentials() -> Credentials {
    Credentials::parse(SECRETS.split(','), DEFAULT_ACCOUNT).expect("valid credentials")
}

fn read(file: &str) -> Vec<Sent> {
    let path = format!("{}/tests/vectors/sigv4/{file}.jsonl", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    text.lines().map(|line| serde_json::from_str(line).expect("a request")).collect()
}

fn all() -> Vec<Sent> {
    let all = [read("botocore"), read("suite")].concat();
    assert!(all.len() > 200);
    assert!(all.iter().filter(|sent| sent.is_in_query()).count() > 70);
    all
}

/// Returns one request that is signed in a header and one that is signed in the query. Both have further signed headers
/// and a query.
fn two() -> [Sent; 2] {
    let all = read("botocore");
    let find = |is_in_query| {
        let mut fitting = all.iter().filter(|sent| {
            let mut names = sent.headers.iter().map(|(name, _)| &**name);
            sent.is_in_query() == is_in_query && names.any(|name| name == "X-Amz-Target") && sent.query.contains("a=")
        });
        fitting.next().cloned().expect("there is one")
    };
    [find(false), find(true)]
}

fn replaced(text: &mut String, from: &str, to: &str) {
    assert!(text.contains(from), "{from} is in {text}");
    *text = text.replacen(from, to, 1);
}

#[test]
fn requests_signed_by_other_programs_are_accepted() {
    for sent in all() {
        let account = sent.verify().unwrap_or_else(|e| panic!("{}: {e}", sent.name));
        let expected = match &*sent.access_key {
            "AKIAIOSFODNN7EXAMPLE" => "111122223333",
            "123456789012" => "123456789012",
            _ => DEFAULT_ACCOUNT,
        };
        assert_eq!(account, expected, "{}", sent.name);
    }
}

#[test]
fn nothing_that_is_signed_may_change() {
    for sent in all() {
        let mismatch = |change: &dyn Fn(&mut Sent), what: &str| {
            let error = sent.refused(change);
            assert_eq!(error.kind, AuthErrorKind::SignatureDoesNotMatch, "{}, {what}: {error}", sent.name);
            assert!(error.message.starts_with("The request signature we calculated"), "{}, {what}", sent.name);
        };
        mismatch(&|sent| sent.method = "DELETE".into(), "method");
        mismatch(&|sent| sent.path.push_str("/x"), "path");
        mismatch(&|sent| sent.query.push_str("&more=1"), "query");
        mismatch(&|sent| sent.header("host").push('x'), "host");
        let is_any_body = sent.headers.iter().any(|(_, value)| value == "UNSIGNED-PAYLOAD");
        if !is_any_body {
            mismatch(&|sent| sent.body.push(' '), "body");
        }
        let end = |sent: &mut Sent| {
            let signature = sent.signature();
            let last = signature.pop().expect("a digit");
            signature.push(if last == '0' { '1' } else { '0' });
        };
        if sent.is_in_query() == sent.query.ends_with(|c: char| c.is_ascii_hexdigit()) {
            mismatch(&end, "signature");
        }
        let shorter = |sent: &mut Sent| {
            sent.signature().pop();
        };
        mismatch(&shorter, "a shorter signature");
    }
}

#[test]
fn a_body_that_says_so_in_a_signed_header_is_not_signed() {
    let is_unsigned = |sent: &Sent| sent.headers.iter().any(|(_, value)| value == "UNSIGNED-PAYLOAD");
    let mut sent = read("botocore").into_iter().find(is_unsigned).expect("one has no hash");
    sent.body = "anything".into();
    assert!(sent.verify().is_ok());
    // The header must be signed to have this effect.
    let [signed, _] = two();
    let error = signed.refused(|sent| {
        sent.headers.push(("x-amz-content-sha256".into(), "UNSIGNED-PAYLOAD".into()));
        sent.body = "anything".into();
    });
    assert_eq!(error.kind, AuthErrorKind::SignatureDoesNotMatch);
}

#[test]
fn headers_that_decide_have_to_be_signed() {
    let [sent, _] = two();
    let error = sent.refused(|sent| replaced(sent.signature(), "host;", ""));
    assert_eq!(error.kind, AuthErrorKind::SignatureDoesNotMatch);
    assert!(error.message.starts_with("'Host'"), "{error}");
    let error = sent.refused(|sent| replaced(sent.signature(), ";x-amz-target", ""));
    assert!(error.message.starts_with("'X-Amz-Target'"), "{error}");
    let error = sent.refused(|sent| replaced(sent.signature(), "host;", "host;host;"));
    assert!(error.message.contains("sorted"), "{error}");
    // A header that is not signed may have any value.
    let mut sent = sent;
    sent.headers.push(("X-Forwarded-For".into(), "10.0.0.1".into()));
    assert!(sent.verify().is_ok());
}

#[test]
fn the_host_may_be_an_authority() {
    let [mut sent, _] = two();
    let host = sent.header("host").clone();
    sent.headers.retain(|(name, _)| name != "Host");
    let headers = sent.header_map();
    let verify = |authority| {
        let method = &*sent.method;
        let path = &*sent.path;
        let query = &*sent.query;
        let body = sent.body.as_bytes();
        let request = Request { method, path, query, authority, headers: &headers, body };
        verify(&request, &credentials(), |_| None, "sqs", sent.at).map(|_| ())
    };
    assert_eq!(verify(Some(&host)), Ok(()));
    assert!(verify(None).is_err());
    assert!(verify(Some("elsewhere")).is_err());
}

#[test]
fn a_signature_is_good_for_a_quarter_of_an_hour() {
    let [sent, _] = two();
    let known = credentials();
    for now_s in [sent.at - SKEW_S, sent.at, sent.at + SKEW_S] {
        assert!(sent.verify_at(now_s, &known).is_ok());
    }
    let at = Time::of(sent.at).text;
    let now = Time::of(sent.at + SKEW_S + 1).text;
    let error = sent.verify_at(sent.at + SKEW_S + 1, &known).expect_err("too old");
    let edge = Time::of(sent.at + 1).text;
    assert_eq!(error, no_match(format!("Signature expired: {at} is now earlier than {edge} ({now} - 15 min.)")));
    let error = sent.verify_at(sent.at - SKEW_S - 1, &known).expect_err("not yet");
    let edge = Time::of(sent.at - 1).text;
    let now = Time::of(sent.at - SKEW_S - 1).text;
    assert_eq!(
        error,
        no_match(format!("Signature not yet current: {at} is still later than {edge} ({now} + 15 min.)"))
    );
}

#[test]
fn a_signed_query_is_good_for_as_long_as_it_says() {
    let known = credentials();
    for sent in read("botocore").iter().filter(|sent| sent.is_in_query()) {
        let expires_s: u64 = query_value(&sent.query, "X-Amz-Expires").and_then(|s| s.parse().ok()).expect("a number");
        assert!(sent.verify_at(sent.at + expires_s, &known).is_ok());
        let error = sent.verify_at(sent.at + expires_s + 1, &known).expect_err("expired");
        assert_eq!((error.kind, error.kind.status()), (AuthErrorKind::RequestExpired, 403));
        let error = sent.verify_at(sent.at - SKEW_S - 1, &known).expect_err("not yet");
        assert_eq!(error.kind, AuthErrorKind::SignatureDoesNotMatch);
        for wrong in ["0", "604801", "-1", "1e3", "18446744073709551616"] {
            let from = format!("X-Amz-Expires={expires_s}");
            let error = sent.refused(|sent| replaced(&mut sent.query, &from, &format!("X-Amz-Expires={wrong}")));
            assert_eq!(error.kind, AuthErrorKind::IncompleteSignature, "{wrong}");
        }
    }
}

#[test]
fn errors_name_the_missing_part() {
    let [in_header, in_query] = two();
    let unsigned = in_header.refused(|sent| sent.headers.retain(|(name, _)| name != "Authorization"));
    assert_eq!(unsigned.kind, AuthErrorKind::MissingAuthenticationToken);
    assert_eq!(unsigned.message, "Request is missing Authentication Token");
    let strange = in_header.refused(|sent| replaced(sent.header("authorization"), "HMAC-SHA256", "HMAC-SHA512"));
    assert_eq!(strange, incomplete("Unsupported AWS 'algorithm': 'AWS4-HMAC-SHA512'."));
    for name in ["Credential", "SignedHeaders", "Signature"] {
        let error = in_header.refused(|sent| replaced(sent.header("authorization"), &format!(" {name}="), " X="));
        assert_eq!(error, incomplete(format!("Authorization header requires '{name}' parameter.")));
    }
    let bare = in_header.refused(|sent| *sent.header("authorization") = ALGORITHM.into());
    assert_eq!(bare.message.matches("requires").count(), 3, "{bare}");
    let undated = in_header.refused(|sent| sent.headers.retain(|(name, _)| name != "X-Amz-Date" && name != "Date"));
    assert!(undated.message.contains("'X-Amz-Date' or a 'Date'"), "{undated}");
    for name in ["Algorithm", "Credential", "Date", "SignedHeaders", "Signature"] {
        let error = in_query.refused(|sent| replaced(&mut sent.query, &format!("X-Amz-{name}="), "X-Amz-x="));
        let message =
            format!("AWS query-string parameters must include 'X-Amz-{name}'. Re-examine the query-string parameters.");
        assert_eq!(error, incomplete(message));
    }
}

#[test]
fn a_scope_that_is_not_ours_is_refused() {
    let [sent, _] = two();
    let scope = |from: &str, to: &str| sent.refused(|sent| replaced(sent.header("authorization"), from, to));
    assert!(scope("/sqs/", "/s3/").message.contains("correct service: 'sqs'"));
    assert!(scope("/aws4_request", "/aws3").message.contains("terminator"));
    assert!(scope("/aws4_request", "").message.contains("exactly 5 slash-delimited"));
    assert!(scope("/aws4_request", "/aws4_request/x").message.contains("exactly 5 slash-delimited"));
    let region = format!("/{}/", sent.region);
    assert!(scope(&region, "/Some where/").message.contains("valid region"));
    assert_eq!(scope(&region, "/eu-south-9/").kind, AuthErrorKind::SignatureDoesNotMatch);
    let day = format!("/{}/", &Time::of(sent.at).text[..8]);
    assert!(scope(&day, "/20150830/").message.contains("does not match YYYYMMDD"));
    let error = scope(&sent.access_key, "AKIDSTRANGER");
    assert_eq!((error.kind.code(), error.kind.status()), ("InvalidClientTokenId", 403));
    assert_eq!(error.message, "The security token included in the request is invalid.");
    let error = sent.refused(|sent| *sent.header("x-amz-date") = "Sunday".into());
    assert!(error.message.starts_with("Date must be in ISO-8601"), "{error}");
    let other = Credentials::parse([format!("{}:other", sent.access_key)].iter().map(|s| &**s), DEFAULT_ACCOUNT);
    assert!(sent.verify_at(sent.at, &other.expect("valid")).is_err());
}

#[test]
fn truncated_signatures_are_refused() {
    for sent in two() {
        let whole = sent.clone().signature().len();
        for end in 0..whole {
            let error = sent.refused(|sent| sent.signature().truncate(end));
            assert!([400, 403].contains(&error.kind.status()));
        }
        for byte in ["=", ",", "/", "%", "%2", ";", " ", "&"] {
            if sent.clone().signature().contains(byte) {
                let error = sent.refused(|sent| *sent.signature() = sent.signature().replace(byte, ""));
                assert!([400, 403].contains(&error.kind.status()));
            }
        }
    }
}

#[test]
fn unchecked_requests_belong_to_the_account_they_name() {
    let [mut sent, _] = two();
    replaced(sent.header("authorization"), "Signature=", "Signature=0");
    let key = sent.access_key.clone();
    for (written, account) in [("210987654321", Some("210987654321")), ("12345678901", None), ("AKIDX", None)] {
        let mut sent = sent.clone();
        replaced(sent.header("authorization"), &key, written);
        let headers = sent.header_map();
        let request = Request { method: "POST", path: "/", query: "", authority: None, headers: &headers, body: b"" };
        let identity = Auth::Off.identify(&request, |_| None, 0).expect("nothing is checked");
        assert_eq!(Scope::parse(&request).map(|scope| scope.access_key), Some(written));
        let account = account.map(Cow::Borrowed);
        assert_eq!(identity, Identity { signer: None, account, region: Some(&sent.region) });
        assert!(Auth::Verify(credentials()).identify(&request, |_| None, sent.at).is_err());
    }
    let headers = HeaderMap::new();
    let request = Request { method: "POST", path: "/", query: "", authority: None, headers: &headers, body: b"" };
    assert_eq!(Auth::Off.identify(&request, |_| None, 0), Ok(Identity::default()));
}

#[test]
fn credentials_are_read_or_refused() {
    let parse = |text: &'static str| Credentials::parse(text.split(','), DEFAULT_ACCOUNT);
    let long: &'static str = "k".repeat(129).leak();
    for wrong in
        ["key", "key:", ":secret", "a b:c", "key:se cret", "key:secret:12", "key:secret:1234567890ab", "a:b:c:d"]
    {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
    assert!(parse(format!("{long}:secret").leak()).is_err());
    assert!(parse("key:one,key:two").expect_err("twice").message.contains("twice"));
    assert!(Credentials::parse(["key:secret"].into_iter(), "").is_err(), "an account is needed");
    assert!(Credentials::parse(std::iter::empty(), "").expect("none").find("key").is_none());
    let shown = format!("{:?}", parse("key:geheim").expect("valid"));
    assert!(shown.contains("key") && !shown.contains("geheim"), "{shown}");
}

#[test]
fn times_are_read_and_written() {
    let cases = [
        ("19700101T000000Z", 0),
        ("20000229T235959Z", 951_868_799),
        ("20150830T123600Z", 1_440_938_160),
        ("21000301T000000Z", 4_107_542_400),
        ("99991231T235959Z", 253_402_300_799),
    ];
    for (text, unix_s) in cases {
        assert_eq!(Time::parse(text).map(|time| time.unix_s), Some(unix_s), "{text}");
        assert_eq!(Time::of(unix_s).text, text);
    }
    for day in (0..3_000_000).step_by(61) {
        let (year, month, date) = date_of(day);
        assert_eq!(day_of(year, month, date), day);
    }
    for wrong in [
        "",
        "20150830",
        "20150830T1236",
        "20150830 123600Z",
        "20150830T123600z",
        "20150229T000000Z",
        "20151301T000000Z",
        "20150830T240000Z",
        "20150830T126000Z",
        "+0150830T123600Z",
        "19691231T235959Z",
        "2015083\u{e9}T123600Z",
    ] {
        assert!(Time::parse(wrong).is_none(), "{wrong}");
    }
    for zone in ["GMT", "-0000"] {
        let text = format!("Sun, 30 Aug 2015 12:36:00 {zone}");
        assert_eq!(Time::parse_http(&text).map(|time| time.text), Some("20150830T123600Z".into()));
    }
    for wrong in ["Sun, 30 Aug 2015 12:36:00 CET", "Sun, 31 Jun 2015 12:36:00 GMT", "Sun, 30 Aug 2015", "30 Aug"] {
        assert!(Time::parse_http(wrong).is_none(), "{wrong}");
    }
}

#[test]
fn paths_have_one_form() {
    let cases = [
        ("", "/"),
        ("/", "/"),
        ("//", "/"),
        ("/a//b/", "/a/b/"),
        ("/./a/../b", "/b"),
        ("/a/..", "/"),
        ("/a/b/..", "/a"),
        ("/../../a", "/a"),
        ("/a%20b/%e2", "/a%2520b/%25e2"),
        ("/jobs.fifo~-_", "/jobs.fifo~-_"),
    ];
    for (path, canonical) in cases {
        assert_eq!(canonical_path(path), canonical, "{path}");
    }
    assert_eq!(canonical_query("b=%7e%2f&a=2&&a=1&a&x=%zz%4"), "a=&a=1&a=2&b=~%2F&x=%25zz%254");
}
