//! The web console as a browser receives it, without a browser: pages, headers, refusals and live parts.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::redis::commands::Redis;
use crate::support::server::{PATIENCE, Server, metric, until, within};

/// Maximum size of a page, in bytes.
const PAGE_BYTES_MAX: usize = 150_000;
/// Name, key and value that would be a program if a page contained it as markup.
const EVIL: &str = "<script>alert(1)</script>";
const EVIL_ENCODED: &str = "%3Cscript%3Ealert(1)%3C%2Fscript%3E";

struct Answer {
    status: u16,
    head: String,
    body: String,
}

/// Sends a request, and reads until the door closes the connection or `is_enough` holds for what arrived.
fn send(door: SocketAddr, call: &str, headers: &str, body: &str, is_enough: impl Fn(&str) -> bool) -> Answer {
    let mut socket = TcpStream::connect(door).expect("connected");
    socket.set_read_timeout(Some(PATIENCE)).expect("a time limit");
    let length = body.len();
    let request = format!(
        "{call} HTTP/1.1\r\nHost: {door}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n{headers}\r\n{body}"
    );
    socket.write_all(request.as_bytes()).expect("written");
    let mut received = Vec::new();
    let mut part = [0; 16 << 10];
    loop {
        let read = socket.read(&mut part).expect("read");
        received.extend_from_slice(&part[..read]);
        let text = String::from_utf8_lossy(&received);
        if read == 0 || is_enough(&text) {
            let (head, body) = text.split_once("\r\n\r\n").expect("an answer");
            let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
            return Answer { status, head: head.to_lowercase(), body: body.to_owned() };
        }
    }
}

fn get(door: SocketAddr, path: &str) -> Answer {
    send(door, &format!("GET {path}"), "Accept: text/html\r\n", "", |_| false)
}

/// Sends a request to the API, which must succeed.
fn call(door: SocketAddr, request: &str, body: &str) {
    let answer = send(door, request, "", body, |_| false);
    assert!((200..300).contains(&answer.status), "{request}: {} {}", answer.status, answer.body);
}

fn login(user: &str) -> String {
    format!("Accept: text/html\r\nAuthorization: Basic {}\r\n", BASE64.encode(user))
}

/// Fills a broker with one thing of each kind, some of which have hostile names.
fn filled() -> (Server, SocketAddr) {
    let server = Server::with(&["http=127.0.0.1:0"]);
    let door = server.door("http");
    call(door, "PUT /v1/topics/orders", r#"{"partitions":3}"#);
    let record = format!(r#"{{"records":[{{"key":"{EVIL}","value":"{EVIL}","headers":{{"{EVIL}":"{EVIL}"}}}}]}}"#);
    call(door, "POST /v1/topics/orders/records?partition=0", &record);
    call(door, "PUT /v1/queues/jobs", "{}");
    call(door, "POST /v1/queues/jobs/messages", &format!(r#"{{"messages":[{{"body":"{EVIL}"}}]}}"#));
    call(door, "PUT /v1/caches/sessions", "{}");
    call(door, &format!("PUT /v1/caches/sessions/entries/{EVIL_ENCODED}"), EVIL);
    call(door, "PUT /v1/groups/billing/offsets", r#"{"topic":"orders","to":"earliest"}"#);
    (server, door)
}

const PAGES: [&str; 24] = [
    "/console",
    "/console/topics",
    "/console/topics/orders",
    "/console/topics/orders/tail",
    "/console/topics/orders/records",
    "/console/topics/orders/records/0/0",
    "/console/topics/orders/records/0/0?as=hex",
    "/console/groups",
    "/console/groups/billing",
    "/console/queues",
    "/console/queues/jobs",
    "/console/streams",
    "/console/caches",
    "/console/caches/sessions",
    "/console/clients",
    "/console/cluster",
    "/console/mesh",
    "/console/security",
    "/console/security/tokens",
    "/console/security/acls",
    "/console/audit",
    "/console/clients/1",
    "/console/settings",
    "/console/api",
];

#[test]
fn every_page_is_small_and_lets_a_browser_run_only_the_script_of_the_console() {
    let (_server, door) = filled();
    let entry = format!("/console/caches/sessions/entries/{EVIL_ENCODED}");
    for path in PAGES.into_iter().chain([entry.as_str()]) {
        let answer = get(door, path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        let policy = "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'";
        assert!(answer.head.contains(policy) && !answer.head.contains("unsafe"), "{path}: {}", answer.head);
        assert!(answer.head.contains("x-content-type-options: nosniff"), "{path}: {}", answer.head);
        assert!(answer.body.len() < PAGE_BYTES_MAX, "{path}: {} bytes", answer.body.len());
        assert_eq!(answer.body.matches("<script").count(), 1, "{path}: {}", answer.body);
        assert!(!answer.body.contains("style=") && !answer.body.contains("onclick"), "{path}: {}", answer.body);
    }
    for (path, shown) in [
        ("/console/topics/orders/records?partition=0", "&lt;script&gt;alert(1)"),
        ("/console/topics/orders/records?partition=0&key=%3Cscript%3E", "No record with this key"),
        ("/console/topics/orders/records/0/0", "&lt;script&gt;alert(1)"),
        ("/console/queues/jobs", "&lt;script&gt;alert(1)"),
        ("/console/caches/sessions", "&lt;script&gt;alert(1)"),
        ("/console/groups/billing", "orders"),
        (&entry, "&lt;script&gt;alert(1)"),
        ("/console/settings?q=http_console", "http_console"),
    ] {
        let answer = get(door, path);
        assert!(answer.body.contains(shown), "{path}: {}", answer.body);
    }
}

#[test]
fn files_are_fetched_once() {
    let server = Server::with(&["http=127.0.0.1:0"]);
    let door = server.door("http");
    for name in ["console.css", "console.js", "icon.svg"] {
        let path = format!("/console/assets/{name}");
        let first = get(door, &path);
        let tag = first.head.lines().find_map(|line| line.strip_prefix("etag: ")).expect("a tag");
        let again = send(door, &format!("GET {path}"), &format!("If-None-Match: {tag}\r\n"), "", |_| false);
        assert_eq!((first.status, again.status, again.body.len()), (200, 304, 0), "{name}");
    }
    assert_eq!(get(door, "/console/assets/../secrets").status, 404);
}

#[test]
fn a_browser_is_led_to_the_console_and_a_program_is_not() {
    let server = Server::with(&["http=127.0.0.1:0"]);
    let door = server.door("http");
    let browser = get(door, "/");
    assert_eq!(browser.status, 303);
    assert!(browser.head.contains("location: /console"), "{}", browser.head);
    let program = send(door, "GET /", "Accept: */*\r\n", "", |_| false);
    assert!(program.status == 200 && program.body.contains("curl"), "{}", program.body);
    let missing = get(door, "/console/nothing/here");
    assert!(missing.status == 404 && missing.body.contains("no page /console/nothing/here."), "{}", missing.body);
    let unknown = get(door, "/console/topics/unknown");
    assert!(unknown.status == 404 && unknown.body.contains("<h1>Not found</h1>"), "{}", unknown.body);

    let without = Server::with(&["http=127.0.0.1:0", "http_console=false"]);
    let door = without.door("http");
    assert_eq!((get(door, "/").status, get(door, "/console").status), (200, 404));
}

#[test]
fn a_change_from_a_page_of_another_origin_is_refused() {
    let (_server, door) = filled();
    for headers in ["Origin: http://elsewhere.example\r\n", "Sec-Fetch-Site: cross-site\r\n"] {
        for request in ["POST /v1/topics/orders/records", "DELETE /v1/topics/orders", "DELETE /v1/queues/jobs/messages"]
        {
            let refused = send(door, request, headers, r#"{"records":[{"value":"v"}]}"#, |_| false);
            assert!(refused.status == 403 && refused.body.contains("may not use this broker"), "{}", refused.body);
        }
    }
    let own = format!("Origin: http://{door}\r\nSec-Fetch-Site: same-origin\r\n");
    let body = r#"{"records":[{"value":"v"}]}"#;
    assert_eq!(send(door, "POST /v1/topics/orders/records", &own, body, |_| false).status, 200);
}

#[test]
fn a_page_shows_only_what_its_user_may_see() {
    let strict = ["auth=required", "authorization=true", "users=bob:secret,root:r00t", "super_users=root"];
    let server = Server::with(&[&strict[..], &["http=127.0.0.1:0"]].concat());
    let door = server.door("http");
    let stranger = get(door, "/console/topics");
    assert_eq!(stranger.status, 401);
    assert!(stranger.head.contains("www-authenticate: basic"), "{}", stranger.head);
    assert!(stranger.body.contains("<h1>Log in first</h1>"), "{}", stranger.body);
    let by = |user: &str, request: &str| send(door, request, &login(user), "", |_| false);
    assert_eq!(by("root:r00t", "PUT /v1/topics/secret-plans").status, 201);
    let plans = by("root:r00t", "GET /console/topics");
    assert!(plans.body.contains("secret-plans") && plans.body.contains("<b>root</b>"), "{}", plans.body);

    let list = by("bob:secret", "GET /console/topics");
    assert_eq!(list.status, 200);
    assert!(!list.body.contains("secret-plans") && list.body.contains("none that you may describe"), "{}", list.body);
    for path in ["/console", "/console/topics/secret-plans", "/console/settings", "/console/security"] {
        let refused = by("bob:secret", &format!("GET {path}"));
        assert_eq!(refused.status, 403, "{path}");
        assert!(refused.body.contains("You may not see this") && refused.body.contains("bob"), "{}", refused.body);
    }
    assert_eq!(get(door, "/console/assets/console.css").status, 200, "the page of a refusal has its style");
}

#[test]
fn a_record_is_decoded_by_its_schema_for_those_who_may_describe_the_schema() {
    let strict = ["auth=required", "authorization=true", "users=bob:secret,root:r00t", "super_users=root"];
    let server = Server::with(&[&strict[..], &["http=127.0.0.1:0", "pubsub=127.0.0.1:0"]].concat());
    let (door, pubsub) = (server.door("http"), server.door("pubsub"));
    let by_root = |door: SocketAddr, call: &str, body: &str| {
        let answer = send(door, call, &login("root:r00t"), body, |_| false);
        assert!((200..300).contains(&answer.status), "{call}: {} {}", answer.status, answer.body);
    };
    let avro = r#"{\"type\":\"record\",\"name\":\"R\",\"fields\":[{\"name\":\"cents\",\"type\":\"int\"}]}"#;
    let proto = r#"syntax = \"proto3\"; message R { int32 cents = 1; }"#;
    for (id, kind, definition, message) in
        [("prices", "AVRO", avro, &b"\x54"[..]), ("sums", "PROTOCOL_BUFFER", proto, &b"\x08\x2a"[..])]
    {
        let schema = format!(r#"{{"type":"{kind}","definition":"{definition}"}}"#);
        by_root(pubsub, &format!("POST /v1/projects/thalweg/schemas?schemaId={id}"), &schema);
        let settings = format!(r#"{{"schema":"projects/thalweg/schemas/{id}","encoding":"BINARY"}}"#);
        let topic = format!("/v1/projects/thalweg/topics/of-{id}");
        by_root(pubsub, &format!("PUT {topic}"), &format!(r#"{{"schemaSettings":{settings}}}"#));
        let messages = format!(r#"{{"messages":[{{"data":"{}"}}]}}"#, BASE64.encode(message));
        by_root(pubsub, &format!("POST {topic}:publish"), &messages);
    }
    let page = |user: &str, path: &str| {
        let answer = send(door, &format!("GET /console/topics/{path}"), &login(user), "", |_| false);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.body
    };
    for id in ["prices", "sums"] {
        let decoded = page("root:r00t", &format!("of-{id}/records/0/0"));
        assert!(decoded.contains("&quot;cents&quot;: 42"), "{decoded}");
        assert!(decoded.contains(&format!("decoded by the schema <code>projects/thalweg/schemas/{id}@")), "{decoded}");
        assert!(!page("root:r00t", &format!("of-{id}/records/0/0?as=hex")).contains("cents"));
    }
    // A publisher chooses the attributes of its records, so they give no access to a schema.
    by_root(
        door,
        "POST /v1/acls",
        r#"{"acls":[{"principal":"User:bob","operation":"read","kind":"topic","name":"*"}]}"#,
    );
    let refused = page("bob:secret", "of-prices/records/0/0");
    assert!(refused.contains("permission to describe the schema prices") && !refused.contains("cents"), "{refused}");
    let entry = r#"{"acls":[{"principal":"User:bob","operation":"describe","kind":"schema","name":"prices"}]}"#;
    by_root(door, "POST /v1/acls", entry);
    assert!(page("bob:secret", "of-prices/records/0/0").contains("&quot;cents&quot;: 42"));
    by_root(pubsub, "DELETE /v1/projects/thalweg/schemas/prices", "");
    let deleted = page("root:r00t", "of-prices/records/0/0");
    assert!(deleted.contains("does not exist any more") && deleted.contains("<code>T</code>"), "{deleted}");
}

#[tokio::test]
async fn ten_megabytes_of_a_record_and_thousands_of_topics_do_not_make_a_page_large() {
    let server = Server::with(&["http=127.0.0.1:0"]);
    let door = server.door("http");
    call(door, "PUT /v1/topics/large", r#"{"batch_bytes_max":10485760}"#);
    let client = within("a connection", client::Client::connect(&server.url("tcp"))).await.expect("connected");
    let publisher = within("open", client.publisher("large").open()).await.expect("a publisher");
    within("send", publisher.send(&client::Record::new("x".repeat(10_000_000)))).await.expect("sent");
    within("flush", publisher.flush()).await.expect("acknowledged");
    for path in ["/console/topics/large/records", "/console/topics/large/records/0/0"] {
        let answer = get(door, path);
        assert!(answer.status == 200 && answer.body.len() < PAGE_BYTES_MAX, "{path}: {}", answer.body.len());
    }
    assert!(get(door, "/console/topics/large/records/0/0").body.contains("9,979,520 are not shown"));
    for n in 0..120 {
        call(door, &format!("PUT /v1/topics/many-{n:03}"), "");
    }
    let first = get(door, "/console/topics?q=many").body;
    assert!(first.contains(">many-049<") && !first.contains(">many-050<") && !first.contains(">large<"), "{first}");
    assert!(first.contains("/console/topics?q=many&amp;after=many-049"), "{first}");
    let last = get(door, "/console/topics?q=many&after=many-099").body;
    assert!(last.contains(">many-119<") && !last.contains("Next page"), "{last}");
}

#[tokio::test]
async fn the_live_part_of_a_page_is_sent_again_and_its_stream_ends_with_the_client() {
    let (server, door) = filled();
    let headers = "Accept: text/event-stream\r\n";
    let list = send(door, "GET /console/topics", headers, "", |text| text.contains("</table>"));
    assert!(list.head.contains("text/event-stream") && list.body.contains("event: live\ndata: "), "{}", list.body);
    assert!(list.body.contains("/s</td>"), "a list has rates from the second look on: {}", list.body);
    let overview = send(door, "GET /console", headers, "", |text| text.contains("<svg"));
    assert!(overview.body.contains("Records per second"), "{}", overview.body);
    let client = within("a connection", client::Client::connect(&server.url("tcp"))).await.expect("connected");
    until("no stream is open", async || metric(&client, "thalweg_http_streams{kind=\"events\"}").await == 0).await;
}

#[test]
fn a_link_on_another_page_opens_the_console_and_a_page_without_live_parts_has_no_stream() {
    let (_server, door) = filled();
    let link = "Accept: text/html\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n\
                Sec-Fetch-Dest: document\r\n";
    assert_eq!(send(door, "GET /console/topics/orders", link, "", |_| false).status, 200);
    assert_eq!(send(door, "GET /v1/topics", link, "", |_| false).status, 403);
    let events = "Accept: text/event-stream\r\n";
    for page in ["/console/api", "/console/topics/orders/records", "/console/settings"] {
        assert_eq!(send(door, &format!("GET {page}"), events, "", |_| false).status, 204, "{page}");
    }
}

#[test]
fn a_key_that_is_cut_or_that_a_path_cannot_have_is_no_link() {
    let (_server, door) = filled();
    let long = "k".repeat(600);
    for key in [&long, "plain"] {
        call(door, &format!("PUT /v1/caches/sessions/entries/{key}"), "v");
    }
    let list = get(door, "/console/caches/sessions").body;
    assert!(list.contains("entries/plain\"") && !list.contains("entries/kkk"), "{list}");
}

#[test]
fn a_stream_of_redis_shows_its_groups_and_pending_entries() {
    let server = Server::with(&["http=127.0.0.1:0", "redis=127.0.0.1:0"]);
    let door = server.door("http");
    assert!(get(door, "/console/streams").body.contains("XADD"), "nothing was used as a stream yet");
    let mut redis = Redis::open(&server);
    redis.call("XADD s 1-1 field value");
    redis.call("XADD s 2-1 field value");
    assert_eq!(redis.call("XGROUP CREATE s crew 0"), "+OK");
    redis.call("XREADGROUP GROUP crew ann COUNT 1 STREAMS s >");
    let list = get(door, "/console/streams");
    assert!(list.body.contains("2-1") && list.body.contains("<td class=\"n\">2</td>"), "{}", list.body);
    let link = list.body.split("href=\"").find(|rest| rest.starts_with("/console/streams/")).expect("a link");
    let page = get(door, link.split('"').next().expect("its end"));
    for shown in ["crew", "ann", "<code>1-1</code>"] {
        assert!(page.status == 200 && page.body.contains(shown), "{shown}: {}", page.body);
    }
    let missing = get(door, "/console/streams/unknown");
    assert!(missing.status == 404 && missing.body.contains("unknown"), "{}", missing.body);
}
