//! Logins and permissions at the native, the HTTP and the Pub/Sub door.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use client::security::{RoleName, TokenId, UserName};
use client::{Client, ClientSettings, ErrorKind, Login, Record};
use wire::{QueueRequest, Request, Response};

use crate::support::access::acls;
use crate::support::command::{self, feed};
use crate::support::raw::{Incoming, Raw};
use crate::support::server::{PATIENCE, Server, program, until, within};

const STRICT: [&str; 4] = ["auth=required", "authorization=true", "users=bob:secret,root:r00t", "super_users=root"];

/// Starts a broker that requires logins and checks permissions.
fn strict() -> Server {
    Server::with(&[&STRICT[..], &["http=127.0.0.1:0"]].concat())
}

fn bob() -> UserName {
    UserName::parse("bob").expect("a name")
}

fn role(name: &str) -> RoleName {
    RoleName::parse(name).expect("a name")
}

fn as_user(user: &str, password: &str) -> ClientSettings {
    ClientSettings { login: Some(Login::new(user, password).expect("a login")), ..ClientSettings::default() }
}

async fn try_connect(server: &Server, scheme: &str, settings: ClientSettings) -> Result<Client, ErrorKind> {
    let address = client::Address::parse(&server.url(scheme)).expect("an address");
    within("a connection", Client::connect_with(address, settings)).await.map_err(|error| error.kind)
}

/// Returns the names of all topics but the broker's own.
async fn topics(client: &Client) -> Vec<String> {
    let all = client.list_topics().await.expect("listed").into_iter().map(|info| info.topic);
    all.filter(|name| !name.starts_with('_')).collect()
}

/// Adds an entry for bob, written as for [`acls`].
async fn allow(admin: &Client, entry: &str) {
    admin.create_acls(acls("User:bob", entry, true)).await.expect("added");
}

#[tokio::test]
async fn native_clients_log_in_over_every_transport() {
    let server = strict();
    for scheme in ["tcp", "tls", "quic"] {
        let anonymous = try_connect(&server, scheme, ClientSettings::default()).await.expect("a hello is answered");
        let refused = anonymous.list_topics().await.expect_err("it has not logged in");
        assert!(refused.kind == ErrorKind::Denied && refused.message.contains("requires a login"), "{refused}");
        for (user, password) in [("bob", "wrong"), ("nobody", "secret")] {
            let refused = try_connect(&server, scheme, as_user(user, password)).await.err();
            assert_eq!(refused, Some(ErrorKind::Denied), "{scheme} {user}");
        }
        let root = try_connect(&server, scheme, as_user("root", "r00t")).await.expect("it is right");
        root.publish(scheme, Record::new("v")).await.expect("a super user may");
    }
    let admin = server.client("tcp").await;
    assert_eq!(topics(&admin).await, ["quic", "tcp", "tls"]);
}

#[tokio::test]
async fn the_connection_of_a_deleted_user_ends() {
    let server = strict();
    assert!(feed(&server, ["user", "add", "ann"], "pencil\n").ok().contains("ann"));
    let ann = try_connect(&server, "tcp", as_user("ann", "pencil")).await.expect("it is right");
    assert!(ann.list_topics().await.is_ok());
    command::on(&server, ["user", "delete", "ann"]).ok();
    assert_eq!(ann.list_topics().await.expect_err("deleted").kind, ErrorKind::Denied);
}

/// A connection ends with the password with which it logged in, and so do the tokens of the user's own.
#[tokio::test]
async fn the_connection_of_a_replaced_password_ends() {
    let server = strict();
    assert!(feed(&server, ["user", "add", "ann"], "pencil\n").ok().contains("ann"));
    let ann = try_connect(&server, "tcp", as_user("ann", "pencil")).await.expect("it is right");
    let soon =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_millis() as u64;
    let own = |fill: u8| ann.put_own_token(TokenId::of_bytes([fill; 8]), [fill; 32], soon + 60_000);
    own(1).await.expect("created");
    assert!(feed(&server, ["user", "add", "ann"], "eraser\n").ok().contains("ann"));
    assert_eq!(own(2).await.expect_err("the password is an old one").kind, ErrorKind::Denied);
    assert_eq!(ann.list_topics().await.expect_err("it is over").kind, ErrorKind::Denied);
    assert!(command::on(&server, ["token", "list"]).ok().contains("no tokens"));
    try_connect(&server, "tcp", as_user("ann", "eraser")).await.expect("it is right");
    for name in ["ADMINISTRATOR", "ANONYMOUS"] {
        assert!(feed(&server, ["user", "add", name], "x\n").failed(2).contains("choose another name"));
        assert!(command::on(&server, ["token", "create", name]).failed(2).contains("choose another name"));
        assert!(command::on(&server, ["key", "create", name]).failed(2).contains("choose another name"));
    }
}

/// A pattern joins only what the user may read, and a subscription ends with its permission.
#[tokio::test]
async fn subscriptions_read_only_what_is_permitted() {
    let server = strict();
    let admin = server.client("tcp").await;
    admin.publish("open.a", Record::new("before")).await.expect("published");
    admin.publish("shut.a", Record::new("before")).await.expect("published");
    allow(&admin, "read topic open....").await;
    let reader = try_connect(&server, "tcp", as_user("bob", "secret")).await.expect("it is right");
    let mut all = within("a subscription", reader.subscribe(">").open()).await.expect("subscribed");
    let refused = within("a subscription", reader.subscribe("shut.a").open()).await.err().expect("refused");
    assert_eq!(refused.kind, ErrorKind::Denied);
    let mut one = within("a subscription", reader.subscribe("open.a").open()).await.expect("subscribed");
    for topic in ["shut.a", "shut.b", "open.a", "open.b"] {
        admin.publish(topic, Record::new(topic)).await.expect("published");
    }
    let mut seen = Vec::new();
    while seen.len() < 2 {
        seen.push(within("a record", all.next()).await.expect("open").topic.to_string());
    }
    assert_eq!(seen, ["open.a", "open.b"]);
    assert_eq!(reader.list_topics().await.expect("listed").len(), 2);
    within("a record", one.next()).await.expect("a record");
    admin.delete_acls(Default::default()).await.expect("deleted");
    until("the end of the subscription", async || one.next().await.is_err()).await;
}

/// A group assigns a member only what it may read, and says nothing of other topics.
#[tokio::test]
async fn patterns_of_group_members_take_only_what_is_permitted() {
    let server = strict();
    let admin = server.client("tcp").await;
    for topic in ["open.a", "shut.a"] {
        admin.publish(topic, Record::new(topic)).await.expect("published");
    }
    for entry in ["read topic open....", "all group g"] {
        allow(&admin, entry).await;
    }
    let reader = try_connect(&server, "tcp", as_user("bob", "secret")).await.expect("it is right");
    let mut member = within("a member", reader.consumer("g").topic(">").open()).await.expect("it joined");
    let record = within("a record", member.next()).await.expect("a record");
    assert_eq!(record.topic.to_string(), "open.a");
    let text = command::on(&server, ["group", "describe", "g"]).ok();
    assert!(text.contains("open.a") && !text.contains("shut.a"), "{text}");
}

/// A request that waits for data gets none once the permission has ended.
#[tokio::test]
async fn waiting_requests_end_with_their_permission() {
    let server = strict();
    let admin = server.client("tcp").await;
    admin.create_topic("t", client::TopicSettings::default()).await.expect("created");
    command::on(&server, ["queue", "create", "q"]).ok();
    for entry in ["read topic t", "read queue q"] {
        allow(&admin, entry).await;
    }
    let mut raw = Raw::open(server.address).await;
    let login = Request::Login { mechanism: "PLAIN".to_owned(), message: b"\0bob\0secret".to_vec() };
    assert!(matches!(raw.call(&login).await, Response::Login { is_done: true, .. }));
    let fetch = Request::Fetch { topic: "t".to_owned(), partition: 0, offset: 0, bytes_max: 100, wait_ms: 30_000 };
    let receive = wire::queues::Receive {
        queue: "q".to_owned(),
        count_max: 1,
        bytes_max: 100,
        lease_ms: None,
        wait_ms: 30_000,
        outlives_connection: false,
    };
    raw.send(&fetch).await;
    raw.send(&Request::Queue(QueueRequest::Receive(receive))).await;
    // The answer to a later request comes once the others wait.
    assert!(matches!(raw.call(&Request::Ping).await, Response::Pong));
    admin.delete_acls(Default::default()).await.expect("deleted");
    admin.publish("t", Record::new("secret")).await.expect("published");
    admin.queue("q").send(client::OutMessage::new("secret")).await.expect("sent");
    for _ in 0..2 {
        let answer = raw.incoming().await;
        let is_denied =
            matches!(&answer, Incoming::Answer(_, Response::Error(error)) if error.kind == ErrorKind::Denied);
        assert!(is_denied, "{answer:?}");
    }
}

/// Where only logins are required, deleting a user is all that ends its streams.
#[tokio::test]
async fn the_streams_of_a_deleted_user_end() {
    let server = Server::with(&["auth=required", "users=root:r00t"]);
    feed(&server, ["user", "add", "ann"], "pencil\n").ok();
    let admin = server.client("tcp").await;
    let ann = try_connect(&server, "tcp", as_user("ann", "pencil")).await.expect("it is right");
    admin.create_topic("t", client::TopicSettings::default()).await.expect("created");
    let mut one = within("a subscription", ann.subscribe("t").open()).await.expect("subscribed");
    let mut all = within("a subscription", ann.subscribe(">").open()).await.expect("subscribed");
    admin.publish("t", Record::new("v")).await.expect("published");
    within("a record", one.next()).await.expect("a record");
    within("a record", all.next()).await.expect("a record");
    command::on(&server, ["user", "delete", "ann"]).ok();
    until("the end of the subscription", async || one.next().await.is_err()).await;
    until("the end of the other one", async || all.next().await.is_err()).await;
    assert_eq!(ann.list_topics().await.expect_err("refused").kind, ErrorKind::Denied);
}

/// A queue neither publishes where its owner may not, nor gives what its owner may not read.
#[tokio::test]
async fn queues_reach_only_topics_and_queues_that_their_owner_may_use() {
    let server = strict();
    let admin = server.client("tcp").await;
    admin.create_topic("orders", client::TopicSettings::default()).await.expect("created");
    command::on(&server, ["queue", "create", "theirs"]).ok();
    allow(&admin, "all queue mine...").await;
    let put = |method: &str, queue: &str, body: &str| {
        request(server.door("http"), method, &format!("/v1/queues/{queue}"), Some("bob:secret"), body).0
    };
    assert_eq!(put("PUT", "mine-a", r#"{"dead_letter":"orders"}"#), 403);
    assert_eq!(put("PUT", "mine-a", r#"{"dead_letter":"theirs"}"#), 403);
    assert_eq!(put("PUT", "mine-a", r#"{"topic":"orders"}"#), 403);
    assert_eq!((put("PUT", "mine-a", "{}"), put("PUT", "mine-b", r#"{"dead_letter":"mine-a"}"#)), (201, 201));
    assert_eq!(put("PUT", "mine-a", "{}"), 200, "it exists");
    assert_eq!(put("PATCH", "mine-a", r#"{"dead_letter":"orders"}"#), 403);
    // A queue with the name of a topic would read that.
    allow(&admin, "all queue orders").await;
    assert_eq!(put("PUT", "orders", "{}"), 403);
    allow(&admin, "alter queue theirs").await;
    let redrive = |from: &str, to: &str| put("POST", &format!("{from}/redrives"), &format!(r#"{{"to":"{to}"}}"#));
    assert_eq!((redrive("theirs", "mine-a"), redrive("mine-a", "theirs")), (403, 403));
    assert!([200, 201, 202].contains(&redrive("mine-a", "mine-b")));
    allow(&admin, "read,write topic orders").await;
    assert_eq!((put("PATCH", "mine-a", r#"{"dead_letter":"orders"}"#), put("PUT", "orders", "{}")), (200, 201));
}

/// Sends a request over HTTP with this user and password. Returns the status and the whole response; of an open stream
/// its head.
fn request(address: SocketAddr, method: &str, path: &str, credentials: Option<&str>, body: &str) -> (u16, String) {
    let authorization = credentials.map(|text| format!("Basic {}", BASE64.encode(text)));
    exchange(address, method, path, authorization.as_deref(), body)
}

/// Sends a request over HTTP with this header `authorization`. Returns the status and the whole response; of an open
/// stream its head.
pub fn exchange(
    address: SocketAddr,
    method: &str,
    path: &str,
    authorization: Option<&str>,
    body: &str,
) -> (u16, String) {
    let mut socket = TcpStream::connect(address).expect("connected");
    socket.set_read_timeout(Some(PATIENCE)).expect("set");
    let login = authorization.map(|text| format!("Authorization: {text}\r\n")).unwrap_or_default();
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{login}");
    let request = format!("{head}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}");
    socket.write_all(request.as_bytes()).expect("sent");
    let mut response = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let read = socket.read(&mut buffer).expect("a response");
        response.extend_from_slice(&buffer[..read]);
        let text = String::from_utf8_lossy(&response);
        if read == 0 || text.contains("text/event-stream") && text.contains("\r\n\r\n") {
            let status = text.split(' ').nth(1).and_then(|code| code.parse().ok());
            return (status.unwrap_or_else(|| panic!("{method} {path}: {text}")), text.into_owned());
        }
    }
}

fn http(server: &Server, method: &str, path: &str, credentials: Option<&str>) -> (u16, String) {
    request(server.door("http"), method, path, credentials, "")
}

#[tokio::test]
async fn http_requests_are_those_of_the_user_who_logs_in() {
    let server = strict();
    let admin = server.client("tcp").await;
    admin.create_topic("x", client::TopicSettings::default()).await.expect("created");
    let (status, text) = http(&server, "GET", "/v1/topics", None);
    assert!(status == 401 && text.to_ascii_lowercase().contains("www-authenticate: basic"), "{text}");
    assert_eq!(http(&server, "GET", "/v1/topics", Some("bob:wrong")).0, 401);
    assert_eq!(http(&server, "GET", "/metrics", Some("root:r00t")).0, 200);
    admin.set_member(bob(), role("monitor"), true).await.expect("a member");
    assert_eq!(http(&server, "GET", "/metrics", Some("bob:secret")).0, 200);
    assert_eq!(http(&server, "GET", "/v1/topics/x", Some("bob:secret")).0, 200);
    assert_eq!(http(&server, "GET", "/v1/topics/x/records", Some("bob:secret")).0, 403);
    assert_eq!(http(&server, "DELETE", "/v1/topics/x", Some("bob:secret")).0, 403);
    allow(&admin, "read topic x").await;
    assert_eq!(http(&server, "GET", "/v1/topics/x/events", Some("bob:secret")).0, 200);
}

/// The command line on the same machine needs no password, and another user's needs one.
#[tokio::test]
async fn the_command_line_logs_in() {
    let server = strict();
    command::on(&server, ["topic", "create", "t"]).ok();
    let url = server.url("tcp");
    let as_bob = |args: &[&str], password: &str| {
        let mut command = program();
        command.env("THALWEG_USER", "bob").env("THALWEG_PASSWORD", password).args(["--server", &url]).args(args);
        command::run(command.stdout(Stdio::piped()).stderr(Stdio::piped()), b"")
    };
    assert!(as_bob(&["topic", "list"], "wrong").failed(1).contains("password is wrong"));
    assert!(as_bob(&["topic", "describe", "t"], "secret").failed(1).contains("User:bob may not describe topic t"));
    command::on(&server, ["role", "add", "monitor", "bob"]).ok();
    assert!(as_bob(&["topic", "describe", "t"], "secret").ok().contains('t'));
    assert!(as_bob(&["topic", "delete", "t", "--yes"], "secret").failed(1).contains("may not delete topic t"));
    let members = command::on(&server, ["role", "list", "--json"]).json();
    assert_eq!(members[0]["roles"][0], "monitor");
    command::on(&server, ["role", "remove", "monitor", "bob"]).ok();
    assert!(command::on(&server, ["role", "list"]).ok().contains("no user has a role yet"));
    // A name without entries may be misspelt.
    let refused = command::on(&server, ["role", "add", "publisherr", "bob"]);
    assert!(refused.err.contains("there is no role 'publisherr': choose one of admin"), "{}", refused.err);
    assert!(refused.err.contains("first give Role:publisherr permissions"), "{}", refused.err);
    command::on(&server, ["acl", "add", "Role:auditors", "read", "topic", "t"]).ok();
    for role in ["auditors", "publisher"] {
        let given = command::on(&server, ["role", "add", role, "bob"]);
        assert!(!given.err.contains("warning"), "{}", given.err);
        assert!(given.ok().contains("has the role"));
    }
    // An empty list may be one of what the reader may not see.
    command::on(&server, ["role", "remove", "publisher", "bob"]).ok();
    command::on(&server, ["acl", "delete", "--all"]).ok();
    assert!(as_bob(&["topic", "list"], "secret").ok().contains("no topics yet, or none that you may describe"));
    assert!(command::on(&server, ["acl", "list"]).ok().contains("no entries yet"));
    assert!(command::on(&server, ["acl", "list", "--kind", "queue"]).ok().contains("no entry matches"));
}

/// Pub/Sub tells its clients what they may do.
#[tokio::test]
async fn tested_permissions_of_pubsub_are_those_of_the_entries() {
    let server = Server::with(&[&STRICT[..], &["pubsub=127.0.0.1:0", "pubsub_project=shop"]].concat());
    let admin = server.client("tcp").await;
    admin.create_topic("orders", client::TopicSettings::default()).await.expect("created");
    let topic = "/v1/projects/shop/topics/orders";
    let address = server.pubsub();
    let call = |method: &str, path: &str, body| request(address, method, path, Some("bob:secret"), body);
    let tested = r#"{"permissions":["pubsub.topics.publish","pubsub.topics.get"]}"#;
    let permissions = || call("POST", &format!("{topic}:testIamPermissions"), tested).1;
    assert!(!permissions().contains("pubsub.topics"));
    allow(&admin, "describe topic orders").await;
    assert!(permissions().contains("pubsub.topics.get") && !permissions().contains("pubsub.topics.publish"));
    admin.set_member(bob(), role("admin"), true).await.expect("a member");
    assert!(permissions().contains("pubsub.topics.publish"));
}
