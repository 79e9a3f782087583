//! Logins of browsers at the console: the form, its cookie, and what the cookie counts for.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::Value;

use crate::support::command;
use crate::support::server::{PATIENCE, Server, metric, until};

/// Time within which whatever a login allowed has to end.
const SOON: Duration = Duration::from_secs(1);
const STRICT: [&str; 5] =
    ["auth=required", "authorization=true", "users=bob:secret,root:r00t", "super_users=root", "http=127.0.0.1:0"];
const FORM: &str = "Content-Type: application/x-www-form-urlencoded\r\n";
const OPENS_PAGE: &str = "Accept: text/html\r\nSec-Fetch-Site: none\r\nSec-Fetch-Mode: navigate\r\n\
                          Sec-Fetch-Dest: document\r\n";
const FROM_CONSOLE: &str = "Sec-Fetch-Site: same-origin\r\n";

pub(super) struct Answer {
    pub(super) status: u16,
    /// Head, whose names of headers are as they were sent.
    head: String,
    pub(super) body: String,
}

impl Answer {
    fn of(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text}"));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        Self { status, head: head.to_owned(), body: body.to_owned() }
    }

    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Returns the cookie that the answer sets, as a browser sends it.
    fn cookie(&self) -> String {
        let set = self.header("set-cookie").unwrap_or_else(|| panic!("no cookie: {} {}", self.head, self.body));
        set.split(';').next().expect("a pair").to_owned()
    }
}

/// A broker whose console requires a login, and its HTTP door.
pub(super) struct Site {
    server: Server,
    door: SocketAddr,
}

impl Site {
    fn open(set: &[&str]) -> Self {
        Self::of(Server::with(&[&STRICT[..], set].concat()))
    }

    pub(super) fn of(server: Server) -> Self {
        let door = server.door("http");
        Self { server, door }
    }

    fn begin(&self, call: &str, headers: &str, body: &str) -> TcpStream {
        let mut socket = TcpStream::connect(self.door).expect("connected");
        socket.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        socket.write_all(request(&self.door.to_string(), call, headers, body).as_bytes()).expect("sent");
        socket
    }

    fn send(&self, call: &str, headers: &str, body: &str) -> Answer {
        let mut received = Vec::new();
        self.begin(call, headers, body).read_to_end(&mut received).expect("an answer");
        Answer::of(&String::from_utf8_lossy(&received))
    }

    /// Opens a stream of events, whose first bytes have arrived.
    fn stream(&self, path: &str, cookie: &str) -> TcpStream {
        let headers = format!("Accept: text/event-stream\r\n{FROM_CONSOLE}Cookie: {cookie}\r\n");
        let mut socket = self.begin(&format!("GET {path}"), &headers, "");
        let mut received = Vec::new();
        let mut part = [0; 4096];
        while !String::from_utf8_lossy(&received).contains("\n\n") {
            let read = socket.read(&mut part).expect("the stream");
            assert!(read > 0, "{}", String::from_utf8_lossy(&received));
            received.extend_from_slice(&part[..read]);
        }
        let head = String::from_utf8_lossy(&received).into_owned();
        assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/event-stream"), "{path}: {head}");
        socket
    }

    pub(super) fn submit(&self, more: &str, fields: &str) -> Answer {
        self.send("POST /console/login", &format!("{FORM}{FROM_CONSOLE}{more}"), fields)
    }

    /// Logs in with the form, and returns the cookie.
    pub(super) fn log_in(&self, fields: &str) -> String {
        let answer = self.submit("", fields);
        assert_eq!(answer.status, 303, "{} {}", answer.head, answer.body);
        answer.cookie()
    }

    pub(super) fn page(&self, path: &str, cookie: &str) -> Answer {
        self.send(&format!("GET {path}"), &format!("{OPENS_PAGE}Cookie: {cookie}\r\n"), "")
    }

    /// Does an act of an administrator, who logs in with the request.
    fn administer(&self, call: &str, body: &str) -> Value {
        let login = format!("Content-Type: application/json\r\nAuthorization: {}\r\n", basic("root:r00t"));
        let answer = self.send(call, &login, body);
        assert!((200..300).contains(&answer.status), "{call}: {}", answer.body);
        serde_json::from_str(&answer.body).unwrap_or(Value::Null)
    }
}

fn request(host: &str, call: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("{call} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}")
}

fn basic(login: &str) -> String {
    format!("Basic {}", BASE64.encode(login))
}

/// Returns how long it takes until a stream ends.
fn end_of(mut stream: TcpStream) -> Duration {
    let begin = Instant::now();
    let mut rest = [0; 4096];
    while stream.read(&mut rest).expect("the end of the stream") > 0 {
        assert!(begin.elapsed() < PATIENCE, "the stream does not end");
    }
    begin.elapsed()
}

#[test]
fn a_browser_logs_in_with_a_form_and_out_again() {
    let site = Site::open(&[]);
    let led = site.send("GET /console/topics?q=a%20b", OPENS_PAGE, "");
    assert_eq!(led.status, 303);
    let to = led.header("location").expect("a location");
    assert_eq!(to, "/console/login?to=%2Fconsole%2Ftopics%3Fq%3Da%2520b");
    assert!(led.header("www-authenticate").is_none(), "{}", led.head);

    let form = site.send(&format!("GET {to}"), OPENS_PAGE, "");
    assert_eq!((form.status, form.header("cache-control")), (200, Some("no-store")));
    assert!(form.body.contains("value=\"/console/topics?q=a%20b\"") && !form.body.contains("<script"), "{}", form.body);
    let policy = form.header("content-security-policy").expect("a policy");
    assert!(policy.contains("form-action 'self'") && policy.contains("frame-ancestors 'none'"), "{policy}");

    let origin = format!("Origin: http://{}\r\n", site.door);
    let fields = "user=root&password=r00t&to=%2Fconsole%2Ftopics%3Fq%3Da%2520b";
    let logged_in = site.send("POST /console/login", &format!("{FORM}{origin}"), fields);
    assert_eq!(logged_in.header("location"), Some("/console/topics?q=a%20b"), "{}", logged_in.head);
    let set = logged_in.header("set-cookie").expect("a cookie");
    let (pair, attributes) = set.split_once("; ").expect("attributes");
    assert_eq!(attributes, "Path=/; HttpOnly; SameSite=Strict");
    let secret = pair.strip_prefix("thalweg=").expect("its name");
    assert!(secret.len() == 64 && secret.bytes().all(|byte| byte.is_ascii_hexdigit()), "{secret}");

    let page = site.page("/console/topics", pair);
    assert_eq!((page.status, page.header("cache-control")), (200, Some("no-store")));
    assert!(page.body.contains("<b>root</b>") && page.body.contains("action=\"/console/logout\""), "{}", page.body);
    let api = site.send("GET /v1/topics", &format!("{FROM_CONSOLE}Cookie: {pair}\r\n"), "");
    assert_eq!((api.status, api.header("cache-control")), (200, Some("no-store")));
    assert!(site.page("/console/api", pair).body.contains("<b>root</b>"), "a page for everyone, too");
    assert_eq!(site.page("/console/login?to=%2Fconsole%2Fmesh", pair).header("location"), Some("/console/mesh"));

    let out = site.send("POST /console/logout", &format!("{origin}Cookie: {pair}\r\n"), "");
    assert_eq!((out.status, out.header("location")), (303, Some("/console/login?out=1")));
    let removed = out.header("set-cookie").expect("the cookie is removed");
    assert!(removed.starts_with("thalweg=; Max-Age=0; Path=/"), "{removed}");
    assert!(site.send("GET /console/login?out=1", OPENS_PAGE, "").body.contains("You have logged out."));
    assert_eq!(site.page("/console/topics", pair).status, 303, "the secret is worth nothing");
    assert_eq!(site.send("GET /v1/topics", &format!("Cookie: {pair}\r\n"), "").status, 401);
}

#[test]
fn a_login_never_returns_to_another_host() {
    let site = Site::open(&[]);
    for to in [
        "//evil.example",
        "%2F%2Fevil.example",
        "%252F%252Fevil.example",
        "/%5Cevil.example",
        "%5C%5Cevil.example",
        "https:evil.example",
        "https%3A%2F%2Fevil.example%2Fconsole",
        "javascript%3Aalert(1)",
        "/console/..%2Fv1%2Ftopics",
        "/console/%252e%252e/v1/topics",
        "/console%0D%0ASet-Cookie%3A%20a%3Db",
        "/v1/topics",
        "/console/logout",
        "",
    ] {
        let answer = site.submit("", &format!("user=bob&password=secret&to={to}"));
        assert_eq!((answer.status, answer.header("location")), (303, Some("/console")), "{to}: {}", answer.head);
        let form = site.send(&format!("GET /console/login?to={to}"), OPENS_PAGE, "");
        assert!(form.body.contains("name=\"to\" value=\"/console\""), "{to}: {}", form.body);
    }
}

#[test]
fn a_token_logs_a_browser_in_until_it_is_deleted() {
    let site = Site::open(&[]);
    let made = site.administer("POST /v1/tokens", r#"{"user":"ci","roles":["monitor"]}"#);
    let (id, token) = (made["id"].as_str().expect("an id"), made["token"].as_str().expect("a token"));
    let cookie = site.log_in(&format!("token=+{token}+&to=/console/clients"));
    let with_user = site.log_in(&format!("user=ci&password={token}"));
    assert!(site.page("/console/clients", &cookie).body.contains("<b>ci</b>"));
    let stream = site.stream("/console/clients", &cookie);
    site.administer(&format!("DELETE /v1/tokens/{id}"), "");
    assert!(end_of(stream) < SOON);
    assert_eq!([&cookie, &with_user].map(|cookie| site.page("/console/clients", cookie).status), [303, 303]);
}

#[tokio::test]
async fn a_refused_login_says_nothing_about_the_part_that_was_wrong_and_is_answered_late() {
    let site = Site::open(&[]);
    let mut pages = Vec::new();
    for fields in ["user=bob&password=wrong", "user=nobody&password=wrong", "token=wrong", "user=%00&password=x"] {
        let refused = site.submit("", fields);
        assert_eq!(refused.status, 403, "{fields}");
        assert!(refused.header("set-cookie").is_none() && refused.header("www-authenticate").is_none());
        let alert = refused.body.split("role=\"alert\">").nth(1).expect("an error that is announced");
        pages.push(alert.split('<').next().expect("its text").to_owned());
    }
    assert!(
        pages.iter().all(|page| page == "The login was refused: check what you entered, and try again."),
        "{pages:?}"
    );
    let empty = site.submit("", "user=&password=&token=");
    assert!(empty.status == 400 && empty.body.contains("Enter a user and a password"), "{}", empty.body);
    let other = site.send("POST /console/login", &format!("{FROM_CONSOLE}Content-Type: application/json\r\n"), "{}");
    assert_eq!(other.status, 415);

    // The address has failed four times; its pauses double.
    let wrong = || {
        let begin = Instant::now();
        assert_eq!(site.submit("", "user=eve&password=wrong").status, 403);
        begin.elapsed()
    };
    let times: Vec<Duration> = (0..3).map(|_| wrong()).collect();
    for (time, pause_ms) in times.iter().zip([200, 400, 800]) {
        assert!(*time >= Duration::from_millis(pause_ms), "{times:?}");
    }
    let begin = Instant::now();
    let cookie = site.log_in("user=bob&password=secret");
    assert!(begin.elapsed() < SOON, "a right password does not pay for wrong ones");
    site.send("POST /console/logout", &format!("{FROM_CONSOLE}Cookie: {cookie}\r\n"), "");

    let client = site.server.client("tcp").await;
    for (name, count) in [
        ("thalweg_logins_refused_total{door=\"http\"}", 7),
        ("thalweg_web_sessions_opened_total", 1),
        ("thalweg_web_sessions_ended_total{reason=\"logout\"}", 1),
        ("thalweg_web_sessions", 0),
    ] {
        assert_eq!(metric(&client, name).await, count, "{name}");
    }
    let mut seen: Vec<String> = Vec::new();
    until("the records of the audit", async || {
        let printed = command::on(&site.server, ["audit", "--from", "earliest", "--until-end", "--json"]);
        let records: Vec<Value> = printed.ok().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let of_door = records.iter().filter(|record| record["door"] == "http");
        let text = |record: &Value| {
            ["user", "action", "outcome"].map(|field| record[field].as_str().unwrap_or("-").to_owned()).join(" ")
        };
        seen = of_door.map(text).collect();
        seen.iter().any(|record| record == "bob end session ok")
    })
    .await;
    for record in ["bob login denied", "eve login denied", "bob login ok", "bob open session ok"] {
        assert!(seen.iter().any(|other| other == record), "{record}: {seen:?}");
    }
}

#[test]
fn a_login_makes_a_new_secret_and_ends_the_session_before() {
    let site = Site::open(&[]);
    let planted = format!("thalweg={}", "0".repeat(64));
    let first = site.submit(&format!("Cookie: {planted}\r\n"), "user=bob&password=secret").cookie();
    assert_ne!(first, planted);
    assert_eq!(site.page("/console/topics", &planted).status, 303);
    let stream = site.stream("/console/topics", &first);
    let second = site.submit(&format!("Cookie: {first}\r\n"), "user=root&password=r00t").cookie();
    assert_ne!(first, second);
    assert!(end_of(stream) < SOON);
    assert_eq!(site.page("/console/topics", &first).status, 303);
    assert!(site.page("/console/topics", &second).body.contains("<b>root</b>"));
    let both = format!("{second}; {planted}");
    assert_eq!(site.page("/console/topics", &both).status, 303, "of two cookies neither counts");
}

/// The end of a login ends its streams within a second: those of pages, and of records.
#[test]
fn a_session_ends_with_a_logout_a_new_password_and_its_user() {
    let site = Site::open(&[]);
    site.administer("PUT /v1/topics/orders", "");
    let entry = |name: &str, kind: &str, operation: &str| {
        format!(r#"{{"principal":"User:ann","operation":"{operation}","kind":"{kind}","name":"{name}"}}"#)
    };
    let entries = format!(r#"{{"acls":[{}]}}"#, entry("orders", "topic", "read"));
    let streams = |cookie: &str| ["/console/topics", "/v1/topics/orders/events"].map(|path| site.stream(path, cookie));
    type End<'a> = (&'a str, &'a dyn Fn(&str));
    let log_out = |cookie: &str| {
        site.send("POST /console/logout", &format!("{FROM_CONSOLE}Cookie: {cookie}\r\n"), "");
    };
    let change = |_: &str| drop(site.administer("PUT /v1/users/ann", r#"{"password":"other"}"#));
    let delete = |_: &str| drop(site.administer("DELETE /v1/users/ann", ""));
    let ends: [End<'_>; 3] = [("logout", &log_out), ("a new password", &change), ("the user", &delete)];
    for (what, end) in ends {
        site.administer("PUT /v1/users/ann", r#"{"password":"pencil"}"#);
        site.administer("POST /v1/acls", &entries);
        let cookie = site.log_in("user=ann&password=pencil");
        let open = streams(&cookie);
        end(&cookie);
        let times = open.map(end_of);
        assert!(times.iter().all(|time| *time < SOON), "{what}: {times:?}");
        assert_eq!(site.page("/console/topics", &cookie).status, 303, "{what}");
        let of_script = format!("Accept: text/event-stream\r\n{FROM_CONSOLE}Cookie: {cookie}\r\n");
        let again = site.send("GET /console/topics", &of_script, "");
        assert_eq!((again.status, again.header("www-authenticate")), (401, Some("Bearer realm=\"thalweg\"")), "{what}");
    }
}

#[test]
fn a_session_follows_the_permissions_of_its_user() {
    let site = Site::open(&[]);
    let cookie = site.log_in("user=bob&password=secret");
    let refused = site.page("/console/settings", &cookie);
    assert!(refused.status == 403 && refused.body.contains("Log out"), "another login may help: {}", refused.body);
    site.administer("PUT /v1/users/bob/roles/admin", "");
    assert_eq!(site.page("/console/settings", &cookie).status, 200);
    let stream = site.stream("/console", &cookie);
    site.administer("DELETE /v1/users/bob/roles/admin", "");
    assert!(end_of(stream) < SOON);
    assert_eq!(site.page("/console/settings", &cookie).status, 403);
}

#[test]
fn a_restart_ends_sessions() {
    let data = tempfile::tempdir().expect("a folder");
    let mut site = Site::open(&[&format!("data={}", data.path().display())]);
    let cookie = site.log_in("user=bob&password=secret");
    assert_eq!(site.page("/console/topics", &cookie).status, 200);
    site.server.crash_and_restart();
    site.door = site.server.door("http");
    assert_eq!(site.page("/console/topics", &cookie).status, 303);
}

#[test]
fn a_user_has_a_bounded_number_of_sessions() {
    let site = Site::open(&[]);
    let first = site.log_in("user=bob&password=secret");
    let second = site.log_in("user=bob&password=secret");
    // The time of a use is in milliseconds.
    std::thread::sleep(Duration::from_millis(2));
    assert_eq!(site.page("/console/topics", &first).status, 200);
    let others: Vec<String> = (2..=32).map(|_| site.log_in("user=bob&password=secret")).collect();
    assert_eq!(site.page("/console/topics", &second).status, 303, "it was used longest ago");
    assert_eq!(site.page("/console/topics", &first).status, 200);
    assert!(others.iter().all(|cookie| site.page("/console/topics", cookie).status == 200));
}

/// The cookie counts for what the console sends, and for requests that only read.
#[test]
fn only_a_page_of_the_console_changes_something_with_the_cookie() {
    let site = Site::open(&["http_cors_origins=https://app.example"]);
    site.administer("PUT /v1/topics/orders", "");
    let made = site.administer("POST /v1/tokens", r#"{"user":"root"}"#);
    let cookie = format!("Cookie: {}\r\n", site.log_in("user=root&password=r00t"));
    let bearer = format!("Authorization: Bearer {}\r\n", made["token"].as_str().expect("a token"));
    let basic = format!("Authorization: {}\r\n", basic("root:r00t"));
    let own = format!("Origin: http://{}\r\n", site.door);
    let own_and_site = format!("{own}{FROM_CONSOLE}");
    let own_and_none = format!("{own}Sec-Fetch-Site: none\r\n");
    let own_and_cross = format!("{own}Sec-Fetch-Site: cross-site\r\n");
    let (publish, read) = ("POST /v1/topics/orders/records", "GET /v1/topics/orders");
    // The headers, and the status of a change and of a read: with the cookie, with Basic, with a bearer token.
    let cases: [(&str, [u16; 6]); 11] = [
        ("", [403, 200, 200, 200, 200, 200]),
        ("Sec-Fetch-Site: none\r\n", [403, 200, 200, 200, 200, 200]),
        (FROM_CONSOLE, [200, 200, 200, 200, 200, 200]),
        (&own, [200, 200, 200, 200, 200, 200]),
        (&own_and_site, [200, 200, 200, 200, 200, 200]),
        (&own_and_none, [200, 200, 200, 200, 200, 200]),
        (&own_and_cross, [403, 403, 403, 403, 403, 403]),
        ("Sec-Fetch-Site: same-site\r\n", [403, 403, 403, 403, 403, 403]),
        ("Origin: https://evil.example\r\n", [403, 403, 403, 403, 403, 403]),
        ("Origin: null\r\n", [403, 403, 403, 403, 403, 403]),
        // A page of a listed origin may use the API, but the cookie is not its login.
        ("Origin: https://app.example\r\nSec-Fetch-Site: cross-site\r\n", [403, 401, 200, 200, 200, 200]),
    ];
    for (headers, expected) in cases {
        let seen: Vec<u16> = [&cookie, &basic, &bearer]
            .into_iter()
            .flat_map(|login| {
                let headers = format!("Content-Type: text/plain\r\n{headers}{login}");
                [site.send(publish, &headers, "x").status, site.send(read, &headers, "").status]
            })
            .collect();
        assert_eq!(seen, expected, "{headers}");
    }
    let unproven = site.send("DELETE /v1/topics/orders", &cookie, "");
    assert!(unproven.status == 403 && unproven.body.contains("by its own pages"), "{}", unproven.body);
    // A WebSocket publishes, although it begins with a GET.
    let upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let socket = site.send("GET /v1/topics/orders/ws", &format!("{upgrade}{cookie}"), "");
    assert_eq!(socket.status, 403, "{}", socket.body);
    // A login and a logout come from the console, too: other pages could choose the user of a browser.
    for (call, body) in [("POST /console/login", "user=bob&password=secret"), ("POST /console/logout", "")] {
        for headers in
            ["", "Sec-Fetch-Site: none\r\n", "Origin: https://app.example\r\n", "Sec-Fetch-Site: cross-site\r\n"]
        {
            let answer = site.send(call, &format!("{FORM}{headers}{cookie}"), body);
            assert!(answer.status == 403 && answer.header("set-cookie").is_none(), "{call} {headers}: {}", answer.head);
        }
    }
    assert_eq!(site.send(read, &cookie, "").status, 200, "the session is still open");
}

#[test]
fn pages_that_a_wildcard_admits_have_no_use_of_the_cookie() {
    let site = Site::open(&["http_cors_origins=*"]);
    let cookie = format!("Cookie: {}\r\n", site.log_in("user=root&password=r00t"));
    let page = "Origin: https://evil.example\r\nSec-Fetch-Site: cross-site\r\n";
    assert_eq!(site.send("GET /v1/topics", &format!("{page}{cookie}"), "").status, 401);
    assert_eq!(site.send("PUT /v1/topics/t", &format!("{page}{cookie}"), "").status, 403);
    assert_eq!(site.send("GET /console/topics", &format!("{page}{cookie}"), "").status, 401);
    assert_eq!(site.send("PUT /v1/users/eve", &format!("{page}{cookie}"), r#"{"password":"x"}"#).status, 403);
    let login = site.send("POST /console/login", &format!("{FORM}{page}"), "user=bob&password=secret");
    assert_eq!(login.status, 403);
    assert_eq!(site.send("PUT /v1/topics/t", &format!("{FROM_CONSOLE}{cookie}"), "").status, 201);
}

#[test]
fn a_link_of_another_site_opens_its_page_again_from_the_console() {
    let site = Site::open(&[]);
    let cookie = site.log_in("user=bob&password=secret");
    let link =
        "Accept: text/html\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n";
    let first = site.send("GET /console/topics?q=a", link, "");
    assert_eq!(first.status, 200);
    assert!(first.body.contains("content=\"0; url=/console/topics?q=a\""), "{}", first.body);
    let with_cookie = site.send("GET /console/topics?q=a", &format!("{link}Cookie: {cookie}\r\n"), "");
    assert!(!with_cookie.body.contains("<b>bob</b>"), "the cookie does not count for a link of another site");
    let own =
        "Accept: text/html\r\nSec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n";
    assert_eq!(site.send("GET /console/topics?q=a", own, "").status, 303, "it is not opened again and again");
    assert_eq!(site.send("GET /console/topics?q=a", &format!("{own}Cookie: {cookie}\r\n"), "").status, 200);
}

#[test]
fn a_browser_is_never_asked_by_its_own_dialog_and_a_program_is_told_its_schemes() {
    let site = Site::open(&[]);
    let stale = format!("Cookie: thalweg={}\r\n", "0".repeat(64));
    let plain_navigation = "Accept: text/html\r\nUpgrade-Insecure-Requests: 1\r\n";
    assert_eq!(site.send("GET /console/topics", plain_navigation, "").status, 303, "a browser without Sec-Fetch-Mode");
    for headers in [
        "Accept: text/event-stream\r\n",
        "Sec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: cors\r\n",
        &format!("Origin: http://{}\r\n", site.door),
        &stale,
    ] {
        let refused = site.send("GET /console/topics", headers, "");
        assert_eq!(
            (refused.status, refused.header("www-authenticate")),
            (401, Some("Bearer realm=\"thalweg\"")),
            "{headers}"
        );
    }
    let wrong = format!("{OPENS_PAGE}Authorization: {}\r\n", basic("bob:wrong"));
    for (path, headers) in [
        ("/console/topics", "Accept: */*\r\n"),
        ("/v1/topics", "Accept: */*\r\n"),
        ("/v1/topics", OPENS_PAGE),
        // Only so does a browser drop a login that it still sends of its own accord.
        ("/console/topics", &wrong),
    ] {
        let refused = site.send(&format!("GET {path}"), headers, "");
        let schemes = refused.header("www-authenticate").unwrap_or_default();
        assert!(refused.status == 401 && schemes.starts_with("Basic "), "{path} {headers}: {}", refused.head);
    }
    let by_program = format!("Authorization: {}\r\n", basic("bob:secret"));
    let page = site.send("GET /console/topics", &by_program, "");
    assert!(page.status == 200 && page.body.contains("<b>bob</b>") && !page.body.contains("Log out"), "{}", page.body);
    // A deliberate login goes before the cookie.
    let cookie = site.log_in("user=root&password=r00t");
    let both = site.send("GET /console/topics", &format!("{by_program}Cookie: {cookie}\r\n"), "");
    assert!(both.body.contains("<b>bob</b>"), "{}", both.body);
}

#[test]
fn without_logins_there_is_nothing_to_log_in_to() {
    let server = Server::with(&["http=127.0.0.1:0"]);
    let site = Site { door: server.door("http"), server };
    let page = site.send("GET /console/topics", OPENS_PAGE, "");
    assert!(page.status == 200 && !page.body.to_lowercase().contains("log out"), "{}", page.body);
    for call in ["GET /console/login", "POST /console/login", "POST /console/logout"] {
        let answer = site.send(call, &format!("{FORM}{FROM_CONSOLE}"), "user=a&password=b");
        assert_eq!((answer.status, answer.header("location")), (303, Some("/console")), "{call}");
        assert!(answer.header("set-cookie").is_none(), "{}", answer.head);
    }
    let without = Site::open(&["http_console=false"]);
    assert_eq!(
        without.send("GET /console/login", &format!("Authorization: {}\r\n", basic("bob:secret")), "").status,
        404
    );
    let script = without.send("GET /v1/topics", FROM_CONSOLE, "");
    assert!(script.header("www-authenticate").is_some_and(|schemes| schemes.starts_with("Basic ")), "{}", script.head);
}

/// Over TLS the name of the cookie has a prefix that a browser accepts only with `Secure`, `Path=/` and no `Domain`
/// (draft-ietf-httpbis-rfc6265bis, section 4.1.3.2).
#[test]
fn over_tls_the_cookie_is_secure_and_of_this_host_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    let made = rcgen::generate_simple_self_signed(vec!["broker.example".to_owned()]).expect("a certificate");
    std::fs::write(&key, made.signing_key.serialize_pem()).expect("written");
    std::fs::write(&cert, made.cert.pem()).expect("written");
    let (set_cert, set_key) = (format!("tls_cert={}", cert.display()), format!("tls_key={}", key.display()));
    let site = Site::open(&[&set_cert, &set_key, "http_hosts=broker.example"]);
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&cert).expect("a certificate")).expect("a root");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = Arc::new(config.expect("versions").with_root_certificates(roots).with_no_client_auth());
    let send = |call: &str, headers: &str, body: &str| {
        let name = ServerName::try_from("broker.example").expect("a name");
        let session = rustls::ClientConnection::new(config.clone(), name).expect("a session");
        let socket = TcpStream::connect(site.door).expect("connected");
        socket.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        let mut tls = rustls::StreamOwned::new(session, socket);
        tls.write_all(request("broker.example", call, headers, body).as_bytes()).expect("sent");
        let mut received = Vec::new();
        tls.read_to_end(&mut received).expect("an answer");
        Answer::of(&String::from_utf8_lossy(&received))
    };
    let fields = "user=root&password=r00t";
    let plain_page = format!("{FORM}Origin: http://broker.example\r\n");
    assert_eq!(send("POST /console/login", &plain_page, fields).status, 403, "a page without TLS is another page");
    let answer = send("POST /console/login", &format!("{FORM}Origin: https://broker.example\r\n"), fields);
    let set = answer.header("set-cookie").expect("a cookie");
    let (pair, attributes) = set.split_once("; ").expect("attributes");
    assert!(pair.starts_with("__Host-thalweg=") && answer.status == 303, "{set}");
    assert_eq!(attributes, "Path=/; HttpOnly; SameSite=Strict; Secure");
    assert_eq!(answer.header("strict-transport-security"), Some("max-age=604800"));
    let headers = format!("{OPENS_PAGE}Cookie: {pair}\r\n");
    assert!(send("GET /console/topics", &headers, "").body.contains("<b>root</b>"));
    let secret = pair.split_once('=').expect("a pair").1;
    assert_eq!(send("GET /console/topics", &format!("{OPENS_PAGE}Cookie: thalweg={secret}\r\n"), "").status, 303);
    let removed = send("POST /console/logout", &format!("{FROM_CONSOLE}Cookie: {pair}\r\n"), "");
    let set = removed.header("set-cookie").expect("the cookie is removed");
    assert_eq!(set, "__Host-thalweg=; Max-Age=0; Path=/; HttpOnly; SameSite=Strict; Secure");
    assert_eq!(send("GET /console/topics", &headers, "").status, 303);
}

/// A proxy that ends TLS, and that the broker trusts, makes the cookie secure.
#[test]
fn behind_a_trusted_proxy_with_tls_the_cookie_is_secure() {
    let site = Site::open(&["http_trusted_proxies=127.0.0.1"]);
    let proxy = "X-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: https\r\n";
    let answer = site.submit(proxy, "user=root&password=r00t");
    let set = answer.header("set-cookie").expect("a cookie");
    assert!(set.starts_with("__Host-thalweg=") && set.ends_with("; Secure"), "{set}");
}
