//! Protection of a broker from web pages, and from programs that fetch URLs for others, on the same machine.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::pubsub::push::{call, done};
use crate::support::server::{PATIENCE, Server, metric, until};

/// Returns the status and the body of an HTTP response.
pub fn ask(door: SocketAddr, request: &str) -> (u16, String) {
    let mut socket = TcpStream::connect(door).expect("connected");
    socket.set_read_timeout(Some(PATIENCE)).expect("a time limit");
    socket.write_all(request.as_bytes()).expect("written");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("the door closes the connection");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    (head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status"), body.to_owned())
}

/// Returns a request that each door answers with 200, with these headers.
fn harmless(door: &str, headers: &str) -> String {
    let path = match door {
        "http" => "/v1/topics",
        "sqs" => "/?Action=ListQueues",
        _ => "/v1/projects/p/topics",
    };
    format!("GET {path} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n")
}

/// A page whose name resolves to this machine has the same origin as its requests: only the host reveals it.
#[test]
fn only_names_of_this_machine_and_listed_ones_are_served_on_loopback() {
    let doors = ["http=127.0.0.1:0", "pubsub=127.0.0.1:0"];
    let default = Server::with(&doors);
    let listed = Server::with(&[&doors[..], &["http_hosts=*.us-east-1.localhost.localstack.cloud,mq"]].concat());
    for door in ["http", "sqs", "pubsub"] {
        let default = default.door(door);
        let listed = listed.door(door);
        let port = default.port();
        for host in ["localhost", "127.0.0.1", "[::1]", "sqs.us-east-1.localhost", "LOCALHOST."] {
            let headers = format!("Host: {host}:{port}\r\nOrigin: http://{host}:{port}\r\n");
            assert_eq!(ask(default, &harmless(door, &headers)).0, 200, "{door} {host}");
        }
        for host in ["mq", "sqs.us-east-1.localhost.localstack.cloud"] {
            let headers = format!("Host: {host}:{port}\r\nOrigin: http://{host}:{port}\r\n");
            let (status, body) = ask(default, &harmless(door, &headers));
            assert_eq!(status, 421, "{door} {host}: {body}");
            assert!(body.contains("http_hosts") && body.contains(host), "{door} {host}: {body}");
            assert_eq!(ask(listed, &harmless(door, &headers)).0, 200, "{door} {host}");
        }
    }
}

#[test]
fn a_page_of_another_site_is_refused_at_every_door_of_http() {
    let server = Server::with(&["http=127.0.0.1:0", "pubsub=127.0.0.1:0"]);
    for door in ["http", "sqs", "pubsub"] {
        let address = server.door(door);
        for headers in ["", "Sec-Fetch-Site: none\r\n", "Sec-Fetch-Site: same-origin\r\n"] {
            let headers = format!("Host: {address}\r\n{headers}");
            assert_eq!(ask(address, &harmless(door, &headers)).0, 200, "{door} {headers}");
        }
        for headers in ["Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site", "Origin: null", "Origin: http://a"] {
            let (status, body) = ask(address, &harmless(door, &format!("Host: {address}\r\n{headers}\r\n")));
            assert_eq!(status, 403, "{door} {headers}: {body}");
            assert!(body.contains("may not use this broker"), "{door} {headers}: {body}");
        }
    }
    // The request of an image or a frame of such a page creates nothing.
    let http = server.door("http");
    let events = "GET /v1/topics/_inbox.page/events HTTP/1.1\r\nConnection: close\r\nSec-Fetch-Site: cross-site\r\n";
    assert_eq!(ask(http, &format!("{events}Host: {http}\r\n\r\n")).0, 403);
    let (_, topics) = ask(http, &format!("GET /v1/topics HTTP/1.1\r\nConnection: close\r\nHost: {http}\r\n\r\n"));
    assert!(!topics.contains("_inbox.page"), "{topics}");
}

/// Returns the status and the body of the response to a request with headers, and with a body of JSON.
fn send(door: SocketAddr, request: &str, headers: &str, body: &str) -> (u16, String) {
    let of_body = format!("Content-Type: application/json\r\nContent-Length: {}", body.len());
    ask(door, &format!("{request} HTTP/1.1\r\nHost: {door}\r\nConnection: close\r\n{of_body}\r\n{headers}\r\n{body}"))
}

/// Headers of requests that a page of another site makes a browser send: of a script, of a form or an image, of a page
/// in a sandbox, and of a script whose page has another port of this machine.
const OF_STRANGERS: [&str; 4] = [
    "Origin: http://a.example\r\nSec-Fetch-Site: cross-site\r\n",
    "Sec-Fetch-Site: cross-site\r\n",
    "Origin: null\r\n",
    "Origin: http://localhost:1\r\nSec-Fetch-Site: same-site\r\n",
];
const CHANGES: [(&str, &str); 6] = [
    ("PUT /v1/users/eve", r#"{"password":"pencil"}"#),
    ("DELETE /v1/users/eve", ""),
    ("PUT /v1/users/eve/roles/admin", ""),
    ("POST /v1/tokens", r#"{"user":"eve"}"#),
    ("POST /v1/acls", r#"{"acls":[{"principal":"User:eve","operation":"all","kind":"topic","name":"*"}]}"#),
    ("DELETE /v1/connections/1", ""),
];

#[test]
fn a_page_that_only_the_wildcard_admits_publishes_and_does_not_administer() {
    let server = Server::with(&["http=127.0.0.1:0", "http_cors_origins=*,https://ops.example"]);
    let door = server.door("http");
    for page in OF_STRANGERS {
        let (status, body) = send(door, "POST /v1/topics/t/records", page, r#"{"records":[{"value":"v"}]}"#);
        assert_eq!(status, 200, "{page}: {body}");
        assert_eq!(send(door, "GET /v1/topics", page, "").0, 200, "{page}");
        for (request, body) in CHANGES {
            let (status, refused) = send(door, request, page, body);
            assert_eq!(status, 403, "{page} {request}: {refused}");
            assert!(refused.contains("http_cors_origins") && refused.contains("administer"), "{refused}");
        }
    }
    let own = format!("Origin: http://{door}\r\nSec-Fetch-Site: same-origin\r\n");
    for page in ["", "Sec-Fetch-Site: none\r\n", "Origin: https://ops.example\r\nSec-Fetch-Site: cross-site\r\n", &own]
    {
        for (request, body) in CHANGES {
            let (status, done) = send(door, request, page, body);
            assert!(
                matches!(status, 201 | 204) || request.ends_with("connections/1") && status == 404,
                "{page} {request}: {done}"
            );
        }
    }
}

/// A browser sends a stored login with simple requests, with forms and with WebSockets of any page. For them the Fetch
/// standard does not accept `*` (<https://fetch.spec.whatwg.org/#cors-protocol-and-credentials>), but only hides the
/// response from the page.
#[test]
fn a_page_that_only_the_wildcard_admits_has_no_login() {
    let server = Server::with(&[
        "http=127.0.0.1:0",
        "http_cors_origins=*,https://ops.example",
        "auth=required",
        "authorization=true",
        "users=root:r00t",
        "super_users=root",
    ]);
    let door = server.door("http");
    let login = format!("Authorization: Basic {}\r\n", STANDARD.encode("root:r00t"));
    let by = |page: &str, request: &str, body: &str| send(door, request, &format!("{page}{login}"), body);
    assert_eq!(by("", "PUT /v1/topics/t", "{}").0, 201);
    let socket = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                  Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    for page in OF_STRANGERS {
        for request in ["GET /v1/topics", "POST /v1/topics/t/records", "GET /v1/users", "GET /console/settings"] {
            let (status, refused) = by(page, request, r#"{"records":[{"value":"v"}]}"#);
            assert_eq!(status, 403, "{page} {request}: {refused}");
            assert!(refused.contains("http_cors_origins"), "{refused}");
        }
        assert_eq!(by(&format!("{page}{socket}"), "GET /v1/topics/t/ws", "").0, 403, "{page}");
        for (request, body) in CHANGES {
            assert_eq!(by(page, request, body).0, 403, "{page} {request}");
        }
        assert_eq!(send(door, "GET /v1/topics", page, "").0, 401, "without a login it is as any client");
        assert_eq!(send(door, "GET /healthz", page, "").0, 200, "{page}");
    }
    let link = "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n";
    assert_eq!(by(link, "GET /console/topics", "").0, 200, "its user has followed a link");
    assert_eq!(by(link, "GET /v1/topics", "").0, 403);
    let own = format!("Origin: http://{door}\r\nSec-Fetch-Site: same-origin\r\n");
    for page in ["", "Origin: https://ops.example\r\nSec-Fetch-Site: cross-site\r\n", &own] {
        assert_eq!(by(page, "GET /v1/users", "").0, 200, "{page}");
        assert_eq!(by(page, "PUT /v1/users/ann", r#"{"password":"pencil"}"#).0, 204, "{page}");
    }
}

/// gRPC clients show only the text of a status, so a refusal is a status.
#[tokio::test]
async fn a_client_of_grpc_is_told_which_key_allows_its_host() {
    let server = Server::with(&["pubsub=127.0.0.1:0"]);
    let address = server.pubsub();
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{address}"))
        .expect("an address")
        .origin("http://mq.example:8085".parse().expect("an origin"))
        .connect()
        .await
        .expect("connected");
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.expect("ready");
    let path = "/google.pubsub.v1.Publisher/ListTopics".parse().expect("a path");
    let codec = tonic_prost::ProstCodec::<(), ()>::default();
    let refused = grpc.unary(tonic::Request::new(()), path, codec).await.expect_err("another host");
    assert_eq!(refused.code(), tonic::Code::PermissionDenied);
    assert!(refused.message().contains("mq.example") && refused.message().contains("http_hosts"), "{refused}");
}

/// Otherwise a message would be a command: of Redis, or of the broker itself.
#[tokio::test]
async fn nothing_is_pushed_to_the_doors_of_the_broker() {
    let allow = "pubsub_push_allow=127.0.0.0/8,::1";
    let server = Server::with(&["pubsub=127.0.0.1:0", "redis=127.0.0.1:0", "http=127.0.0.1:0", allow]);
    let pubsub = server.pubsub();
    done(pubsub, "PUT", "/v1/projects/p/topics/top", json!({})).await;
    let doors = ["native", "http", "kafka", "pubsub", "redis", "sqs"];
    let ports: Vec<u16> = doors.iter().map(|door| server.door(door).port()).collect();
    let mut count = 0;
    for port in &ports {
        for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]"] {
            count += 1;
            let push = json!({ "pushEndpoint": format!("http://{host}:{port}/"), "noWrapper": {} });
            let subscription = json!({ "topic": "projects/p/topics/top", "pushConfig": push });
            done(pubsub, "PUT", &format!("/v1/projects/p/subscriptions/sub{count}"), subscription).await;
        }
    }
    let message = json!({ "messages": [{ "data": STANDARD.encode("FLUSHALL\r\nSET pushed 1\r\n") }] });
    done(pubsub, "POST", "/v1/projects/p/topics/top:publish", message).await;
    let client = server.client("tcp").await;
    until("all are denied", async || metric(&client, "thalweg_pubsub_pushes_total{result=\"denied\"}").await >= count)
        .await;
    assert_eq!(metric(&client, "thalweg_pubsub_push_connections_total").await, 0);
    assert!(server.log().contains("is a port of this broker"), "{}", server.log());
}

#[tokio::test]
async fn nothing_is_pushed_to_this_machine_unless_a_key_allows_it() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let data = tempfile::tempdir().expect("a folder");
    let data = format!("data={}", data.path().display());
    let push = json!({ "pushEndpoint": format!("http://{}/", listener.local_addr().expect("bound")) });
    let subscription = json!({ "topic": "projects/p/topics/top", "pushConfig": push });
    {
        let server = Server::with(&["pubsub=127.0.0.1:0", "pubsub_push_allow=127.0.0.0/8", &data]);
        done(server.pubsub(), "PUT", "/v1/projects/p/topics/top", json!({})).await;
        done(server.pubsub(), "PUT", "/v1/projects/p/subscriptions/sub", subscription.clone()).await;
    }
    let server = Server::with(&["pubsub=127.0.0.1:0", &data]);
    let pubsub = server.pubsub();
    let (status, refused) = call(pubsub, "PUT", "/v1/projects/p/subscriptions/more", &subscription).await;
    assert_eq!(status, 400, "{refused}");
    assert!(refused["error"]["message"].as_str().is_some_and(|why| why.contains("pubsub_push_allow")), "{refused}");
    // Nothing is pushed to an endpoint of a subscription that was created while it was allowed.
    done(pubsub, "POST", "/v1/projects/p/topics/top:publish", json!({ "messages": [{ "data": "YQ==" }] })).await;
    let client = server.client("tcp").await;
    until("it is denied", async || metric(&client, "thalweg_pubsub_pushes_total{result=\"denied\"}").await >= 1).await;
    assert_eq!(metric(&client, "thalweg_pubsub_push_connections_total").await, 0);
    assert!(server.log().contains("127.0.0.1 is not in pubsub_push_allow"), "{}", server.log());
}
