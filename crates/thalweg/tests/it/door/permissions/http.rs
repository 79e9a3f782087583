//! The routes of the HTTP door.

use std::net::SocketAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Answer, Example, Site};
use crate::door::redis::commands::Redis;
use crate::support::server::within;

/// Request: its method, path and body.
pub(super) struct Sent {
    pub method: &'static str,
    pub path: String,
    pub body: String,
    /// Further headers, each with its end of line.
    pub headers: &'static str,
}

type Http = Example<Sent>;

const WEB_SOCKET: &str = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                          Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
const CLOSE: &str = "Connection: close\r\n";
const OF_CONSOLE: &str = "Connection: close\r\nSec-Fetch-Site: same-origin\r\n";

/// Sends a request over HTTP. Returns the status and the whole response; of an open stream its head.
pub(super) async fn exchange(address: SocketAddr, login: Option<&str>, sent: &Sent) -> (u16, String) {
    let Sent { method, path, body, headers } = sent;
    let login = login.map(|text| format!("Authorization: Basic {}\r\n", BASE64.encode(text))).unwrap_or_default();
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}{login}Content-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    );
    let mut socket = within("a connection", TcpStream::connect(address)).await.expect("connected");
    within("the request", socket.write_all(request.as_bytes())).await.expect("sent");
    let mut response = Vec::new();
    loop {
        let read = within("a response", socket.read_buf(&mut response)).await.expect("read");
        let text = String::from_utf8_lossy(&response);
        let stays_open = text.contains("text/event-stream") || *headers == WEB_SOCKET;
        if read == 0 || stays_open && text.contains("\r\n\r\n") {
            let status = text.split(' ').nth(1).and_then(|code| code.parse().ok());
            return (status.unwrap_or_else(|| panic!("{method} {path}: {text}")), text.into_owned());
        }
    }
}

/// Returns an example of a route, whose path names the usual resources.
fn route(call: &'static str, body: &str) -> Http {
    let names = [
        ("topic", "t"),
        ("queue", "q"),
        ("cache", "c"),
        ("group", "g"),
        ("key", "k"),
        ("redrive", "1"),
        ("node", "1"),
        ("site", "oslo"),
        ("connection", "0"),
        ("user", "carol"),
        ("role", "crew"),
        ("token", "0909090909090909"),
    ];
    at(call, &names, body)
}

fn at(call: &'static str, names: &[(&str, &str)], body: &str) -> Http {
    let (method, path) = call.split_once(' ').expect("a method and a path");
    let path = names.iter().fold(path.to_owned(), |path, (name, value)| path.replace(&format!("{{{name}}}"), value));
    let headers = if path.ends_with("/ws") { WEB_SOCKET } else { CLOSE };
    Example::new(call, Sent { method, path, body: body.to_owned(), headers })
}

fn of_topics() -> Vec<Http> {
    let fresh = [("topic", "fresh")];
    let record = r#"{"records":[{"value":"v"}]}"#;
    vec![
        route("GET /", ""),
        route("GET /v1/openapi.json", ""),
        route("GET /healthz", ""),
        route("GET /readyz", ""),
        route("GET /metrics", ""),
        route("GET /v1/cluster", ""),
        route("POST /v1/cluster/tokens", ""),
        route("POST /v1/cluster/leader", r#"{"node":1}"#),
        route("DELETE /v1/cluster/nodes/{node}", ""),
        route("GET /v1/mesh", ""),
        route("POST /v1/mesh/init", r#"{"site":"berlin"}"#),
        route("POST /v1/mesh/join", r#"{"site":"berlin","invitation":"none"}"#),
        route("POST /v1/mesh/invitations", ""),
        route("DELETE /v1/mesh/sites/{site}", ""),
        route("GET /v1/mesh/topics", ""),
        route("POST /v1/mesh/leave", ""),
        route("GET /v1/connections", ""),
        route("GET /v1/connections/{connection}", ""),
        route("DELETE /v1/connections/{connection}", ""),
        route("GET /v1/topics", "").showing("\"t\""),
        at("PUT /v1/topics/{topic}", &fresh, "{}").on("the topic", "fresh"),
        route("GET /v1/topics/{topic}", ""),
        route("PATCH /v1/topics/{topic}", r#"{"retention_ms":3600000}"#),
        at("DELETE /v1/topics/{topic}", &[("topic", "gone")], "").on("the topic", "gone"),
        route("POST /v1/topics/{topic}/records", record),
        at("POST /v1/topics/{topic}/records", &fresh, record).when("if it does not exist").on("the topic", "fresh"),
        route("GET /v1/topics/{topic}/records", ""),
        route("DELETE /v1/topics/{topic}/records", r#"{"before":0}"#),
        route("GET /v1/topics/{topic}/events", ""),
        route("GET /v1/topics/{topic}/ws", ""),
    ]
}

fn of_security() -> Vec<Http> {
    let acls = r#"{"acls":[{"principal":"User:carol","operation":"read","kind":"topic","name":"t"}]}"#;
    vec![
        route("GET /v1/users", ""),
        route("PUT /v1/users/{user}", r#"{"password":"pencil"}"#),
        route("PUT /v1/users/{user}/roles/{role}", ""),
        route("DELETE /v1/users/{user}/roles/{role}", ""),
        route("DELETE /v1/users/{user}", ""),
        route("GET /v1/roles", ""),
        route("GET /v1/tokens", ""),
        route("POST /v1/tokens", r#"{"user":"carol"}"#),
        route("DELETE /v1/tokens/{token}", ""),
        route("GET /v1/acls", ""),
        route("POST /v1/acls", acls),
        route("DELETE /v1/acls", acls),
        route("GET /v1/audit", "").on("the topic _audit", "_audit"),
    ]
}

/// Returns the routes about messages, of a queue that owns its topic and of one that does not.
fn of_messages() -> Vec<Http> {
    let both = |call, body| {
        let over = at(call, &[("queue", "over")], body).when("if the queue does not own it");
        [route(call, body), over.on("the queue", "over").on("its topic", "base")]
    };
    let all = [
        both("POST /v1/queues/{queue}/messages", r#"{"messages":[{"body":"v"}]}"#),
        both("GET /v1/queues/{queue}/messages", ""),
        both("POST /v1/queues/{queue}/receive", r#"{"wait_ms":0}"#),
        both("POST /v1/queues/{queue}/acks", r#"{"receipts":[]}"#),
        both("POST /v1/queues/{queue}/nacks", r#"{"receipts":[]}"#),
        both("POST /v1/queues/{queue}/extensions", r#"{"receipts":[],"lease_ms":1000}"#),
    ];
    all.into_iter().flatten().collect()
}

fn of_queues() -> Vec<Http> {
    let free = "if it sets one that no queue owns";
    let owned = "if it sets the topic of a queue";
    let is_over = "if it is over another topic, or over one with its name that exists";
    let create = "PUT /v1/queues/{queue}";
    let alter = "PATCH /v1/queues/{queue}";
    let redrive = "POST /v1/queues/{queue}/redrives";
    let new = |body| at(create, &[("queue", "fresh")], body).on("the queue", "fresh");
    let moved = |from: &'static str, body| at(redrive, &[("queue", from)], body).on("the queue", from);
    let mut all = of_messages();
    all.extend([
        route("GET /v1/queues", "").showing("\"q\""),
        new("{}"),
        new(r#"{"topic":"base"}"#).when(is_over).on("the topic that it is over", "base"),
        at(create, &[("queue", "base")], "{}")
            .when(is_over)
            .on("the queue", "base")
            .on("the topic that it is over", "base"),
        new(r#"{"dead_letter":"t"}"#).when(free),
        new(r#"{"dead_letter":"dead"}"#).when(owned).on("the dead-letter queue", "dead"),
        route("GET /v1/queues/{queue}", ""),
        route(alter, r#"{"dead_letter":"t"}"#).when(free),
        route(alter, r#"{"dead_letter":"dead"}"#).when(owned).on("the dead-letter queue", "dead"),
        at("DELETE /v1/queues/{queue}", &[("queue", "gone-queue")], "").on("the queue", "gone-queue"),
        route("DELETE /v1/queues/{queue}/messages", ""),
        route("POST /v1/queues/{queue}/seek", r#"{"to":"earliest"}"#),
        moved("dead", r#"{"to":"q"}"#).when("if it names one").on("the destination", "q"),
        moved("dead", r#"{"to":"over"}"#)
            .when("if it names one")
            .when("if the destination does not own it")
            .on("the destination", "over")
            .on("its topic", "base"),
        moved("over", "{}")
            .when("if the queue does not own it")
            .when("if it names no destination")
            .on("its topic", "base"),
        route("GET /v1/queues/{queue}/redrives", ""),
        route("DELETE /v1/queues/{queue}/redrives/{redrive}", ""),
    ]);
    all
}

fn of_caches_and_groups() -> Vec<Http> {
    let all = "all entries of the cache";
    vec![
        route("GET /v1/caches", "").showing("\"c\""),
        at("PUT /v1/caches/{cache}", &[("cache", "fresh")], "{}").on(all, "fresh/..."),
        route("GET /v1/caches/{cache}", ""),
        at("DELETE /v1/caches/{cache}", &[("cache", "gone")], "").on(all, "gone/..."),
        route("GET /v1/caches/{cache}/entries", ""),
        route("GET /v1/caches/{cache}/entries/{key}", ""),
        route("PUT /v1/caches/{cache}/entries/{key}", "1"),
        route("POST /v1/caches/{cache}/entries/{key}/add", r#"{"delta":1}"#),
        route("DELETE /v1/caches/{cache}/entries/{key}", ""),
        route("DELETE /v1/caches/{cache}/entries", ""),
        route("GET /v1/groups", "").showing("\"g\""),
        route("GET /v1/groups/{group}", ""),
        at("DELETE /v1/groups/{group}", &[("group", "gone")], "").on("the group", "gone"),
        route("PUT /v1/groups/{group}/offsets", r#"{"topic":"t","to":"earliest"}"#),
    ]
}

fn of_console() -> Vec<Http> {
    let names = [("topic", "t"), ("partition", "0"), ("offset", "0"), ("name", "console.css"), ("*rest", "nowhere")];
    let page = |call| at(call, &names, "");
    let form = |call| {
        let example = route(call, "");
        let request = Sent { headers: OF_CONSOLE, ..example.request };
        Example { request, ..example }
    };
    vec![
        route("GET /console", ""),
        route("GET /console/", ""),
        route("GET /console/topics", "").showing("/console/topics/t"),
        page("GET /console/topics/{topic}"),
        page("GET /console/topics/{topic}/tail"),
        page("GET /console/topics/{topic}/records"),
        page("GET /console/topics/{topic}/records/{partition}/{offset}"),
        route("GET /console/groups", "").showing("/console/groups/g"),
        route("GET /console/groups/{group}", ""),
        route("GET /console/queues", "").showing("/console/queues/q"),
        route("GET /console/queues/{queue}", ""),
        route("GET /console/streams", "").showing("/console/streams/t"),
        route("GET /console/streams/{topic}", ""),
        route("GET /console/caches", "").showing("/console/caches/c"),
        route("GET /console/caches/{cache}", ""),
        route("GET /console/caches/{cache}/entries/{key}", ""),
        route("GET /console/clients", ""),
        route("GET /console/clients/{connection}", ""),
        route("GET /console/cluster", ""),
        route("GET /console/mesh", ""),
        route("GET /console/security", ""),
        route("GET /console/security/users/{user}", ""),
        route("GET /console/security/tokens", ""),
        route("GET /console/security/tokens/{token}", ""),
        route("GET /console/security/acls", ""),
        route("GET /console/security/acl", ""),
        route("GET /console/audit", "").on("the topic _audit", "_audit"),
        route("GET /console/settings", ""),
        route("GET /console/api", ""),
        route("GET /console/login", ""),
        form("POST /console/login"),
        route("GET /console/logout", ""),
        form("POST /console/logout"),
        page("GET /console/assets/{name}"),
        page("GET /console/{*rest}"),
    ]
}

/// Returns the answer with this status. Google's REST API has the same.
pub(super) fn of_status((status, text): (u16, String)) -> Answer {
    match status {
        401 => Answer::NoLogin(text),
        403 => Answer::Refused(text),
        _ => Answer::Passed(text),
    }
}

#[tokio::test]
async fn every_route_of_http_requires_what_its_row_says() {
    let site = Site::open(&["http=127.0.0.1:0", "redis=127.0.0.1:0"]).await;
    let address = site.server.door("http");
    // The list of streams has the topics that a client of Redis has used.
    let mut redis = Redis::open(&site.server);
    assert_eq!((redis.call("AUTH root r00t"), redis.call("XLEN t")), ("+OK".to_owned(), ":1".to_owned()));
    let examples: Vec<Http> =
        [of_topics(), of_security(), of_queues(), of_caches_and_groups(), of_console()].into_iter().flatten().collect();
    site.walk(
        "http",
        &examples,
        async || {},
        async |has_login, sent| of_status(exchange(address, has_login.then_some("bob:secret"), sent).await),
    )
    .await;
}
