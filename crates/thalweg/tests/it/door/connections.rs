//! Open connections of all doors: how they are listed, and closed by an administrator.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use client::TopicSettings;
use serde_json::Value;

use super::access::exchange;
use super::redis::commands::Redis;
use crate::support::command;
use crate::support::server::{PATIENCE, Server, until, within};

/// ApiVersions, version 0, without a client id.
const API_VERSIONS: &[u8] = b"\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff";
const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
const EVENTS: &[u8] = b"GET /v1/topics/t/events HTTP/1.1\r\nHost: localhost\r\n\r\n";
const WEB_SOCKET: &[u8] = b"GET /v1/topics/t/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\
    Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// Opens a connection that the door has answered.
fn open(address: SocketAddr, first: &[u8]) -> TcpStream {
    let mut socket = TcpStream::connect(address).expect("connected");
    socket.set_read_timeout(Some(PATIENCE)).expect("a time limit");
    socket.write_all(first).expect("sent");
    let read = socket.read(&mut [0; 16 << 10]).expect("an answer");
    assert!(read > 0, "the door closed the connection");
    socket
}

/// Returns `true` once the door has closed the connection.
fn is_closed(mut socket: TcpStream) -> bool {
    let mut buffer = [0; 16 << 10];
    loop {
        match socket.read(&mut buffer) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == ErrorKind::ConnectionReset,
        }
    }
}

fn json(response: &str) -> Value {
    let (_, body) = response.split_once("\r\n\r\n").expect("a body");
    serde_json::from_str(body).expect("JSON")
}

/// Returns the connections of a page of the list, and whether it is the last.
fn list(server: &Server, query: &str, login: Option<&str>) -> (Vec<Value>, bool) {
    let (status, response) = exchange(server.door("http"), "GET", &format!("/v1/connections{query}"), login, "");
    assert_eq!(status, 200, "{response}");
    let page = json(&response);
    (page["connections"].as_array().expect("a list").clone(), page["is_last"] == true)
}

fn disconnect(server: &Server, id: &Value, login: Option<&str>) -> (u16, String) {
    exchange(server.door("http"), "DELETE", &format!("/v1/connections/{id}"), login, "")
}

#[tokio::test]
async fn a_connection_of_each_door_is_listed_and_closed() {
    let server = Server::with(&["http=127.0.0.1:0", "redis=127.0.0.1:0", "pubsub=127.0.0.1:0"]);
    let http = server.door("http");
    assert_eq!(exchange(http, "PUT", "/v1/topics/t", None, "{}").0, 201);
    let cases: [(&str, &str, &[u8]); 6] = [
        ("kafka", "kafka", API_VERSIONS),
        ("redis", "redis", b"PING\r\n"),
        ("sqs", "sqs", GET),
        ("pubsub", "pubsub", GET),
        ("http", "events", EVENTS),
        ("http", "WebSocket", WEB_SOCKET),
    ];
    for (door, what, first) in cases {
        let socket = open(server.door(door), first);
        let address = socket.local_addr().expect("an address").to_string();
        let mut of = Value::Null;
        // The request is counted after its answer was sent.
        until("the connection with its request", async || {
            let (found, is_last) = list(&server, &format!("?door={door}"), None);
            assert!(is_last, "{what}");
            of = found.into_iter().find(|of| of["address"] == address.as_str()).unwrap_or_default();
            of["door"] == door && of["requests"] == 1
        })
        .await;
        assert_eq!(disconnect(&server, &of["connection"], None).0, 204, "{what}");
        assert!(is_closed(socket), "{what}");
        until("the end of the connection", async || {
            let path = format!("/v1/connections/{}", of["connection"]);
            exchange(http, "GET", &path, None, "").0 == 404
        })
        .await;
    }
    for scheme in ["tcp", "quic"] {
        let client = server.client(scheme).await;
        let (found, _) = list(&server, "?door=native", None);
        let last = found.last().expect("the client");
        assert_eq!(disconnect(&server, &last["connection"], None).0, 204, "{scheme}");
        // The client connects again by itself, with another connection.
        until("another connection", async || {
            let name = format!("{scheme}-again");
            let created = client.create_topic(&name, TopicSettings::default()).await;
            let (found, _) = list(&server, "?door=native", None);
            created.is_ok() && found.iter().all(|of| of["connection"] != last["connection"])
        })
        .await;
        within("the end", client.close()).await;
    }
    let missing = disconnect(&server, &999_999.into(), None);
    assert_eq!(missing.0, 404, "{}", missing.1);
    assert!(missing.1.contains("there is no open connection 999999"), "{}", missing.1);
}

#[tokio::test]
async fn a_connection_has_its_user_and_only_an_administrator_closes_it() {
    let server = Server::with(&[
        "auth=required",
        "authorization=true",
        "users=bob:secret,root:r00t",
        "super_users=root",
        "http=127.0.0.1:0",
        "redis=127.0.0.1:0",
    ]);
    let basic = |login: &str| Some(format!("Basic {}", BASE64.encode(login)));
    let (root, bob) = (basic("root:r00t"), basic("bob:secret"));
    let (root, bob) = (root.as_deref(), bob.as_deref());
    let mut redis = Redis::open(&server);
    let user_of = |door: &str| list(&server, &format!("?door={door}"), root).0[0]["user"].clone();
    assert_eq!(user_of("redis"), Value::Null, "it has not logged in");
    assert_eq!(redis.call("AUTH bob secret"), "+OK");
    assert_eq!(user_of("redis"), "bob");
    let (of_bob, is_last) = list(&server, "?user=bob", root);
    assert_eq!((of_bob.len(), is_last), (1, true));
    let id = of_bob[0]["connection"].clone();
    assert_eq!(disconnect(&server, &id, bob).0, 403);
    assert_eq!(exchange(server.door("http"), "GET", "/v1/connections", bob, "").0, 403);
    assert_eq!(disconnect(&server, &id, root).0, 204);
    until("a record of the audit", async || {
        let printed = command::on(&server, ["audit", "--from", "earliest", "--until-end", "--json"]).ok();
        let mut records = printed.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        records.any(|of| {
            let name = of["name"].as_str().unwrap_or_default();
            of["action"] == "disconnect client"
                && of["user"] == "root"
                && name.starts_with("User:bob from 127.0.0.1:")
                && name.ends_with(&format!("connection {id} at redis"))
        })
    })
    .await;
    let page = exchange(server.door("http"), "GET", "/console/clients?q=root", root, "");
    assert!(page.0 == 200 && page.1.contains("<a href=\"/console/security/users/root\">root</a>"), "{}", page.1);

    let (mut of_bob, mut of_root) = (Redis::open(&server), Redis::open(&server));
    assert_eq!((of_bob.call("AUTH bob secret"), of_root.call("AUTH root r00t")), ("+OK".into(), "+OK".into()));
    let id = list(&server, "?user=bob", root).0[0]["connection"].clone();
    assert_eq!(of_root.call(&format!("CLIENT KILL ID {id}")), ":1");
    until("a record of the audit", async || {
        let printed = command::on(&server, ["audit", "--from", "earliest", "--until-end", "--json"]).ok();
        printed.lines().any(|line| {
            line.contains("User:bob from 127.0.0.1:") && line.contains(&format!("connection {id} at redis"))
        })
    })
    .await;
}

#[test]
fn the_command_line_lists_connections_and_closes_one() {
    let server = Server::with(&["redis=127.0.0.1:0"]);
    let sockets: Vec<TcpStream> = (0..3).map(|_| open(server.door("redis"), b"PING\r\n")).collect();
    let of_redis = || command::on(&server, ["connections", "--door", "redis", "--json"]).json();
    let listed = of_redis();
    let listed = listed.as_array().expect("a list");
    assert_eq!(listed.len(), 3, "{listed:?}");
    let second = &sockets[1];
    let address = second.local_addr().expect("an address").to_string();
    let of = listed.iter().find(|of| of["address"] == address.as_str()).expect("the second");
    assert_eq!((&of["door"], &of["user"]), (&"redis".into(), &"ANONYMOUS".into()));
    let id = of["connection"].to_string();
    let table = command::on(&server, ["connections"]).ok();
    assert!(table.contains(&address) && table.contains("native") && table.contains(&id), "{table}");

    let closed = command::on(&server, ["disconnect", &id]).ok();
    assert!(closed.contains(&format!("closed connection {id} of user ANONYMOUS from {address} at redis")), "{closed}");
    assert!(is_closed(second.try_clone().expect("a socket")));
    let missing = command::on(&server, ["disconnect", &id]).failed(4);
    assert!(missing.contains(&format!("there is no open connection {id}")), "{missing}");
    let unknown = command::on(&server, ["connections", "--door", "telnet"]).failed(2);
    assert!(unknown.contains("choose one of native, http, kafka"), "{unknown}");
    let none = command::on(&server, ["connections", "--user", "ann"]).ok();
    assert!(none.contains("no client is connected that matches"), "{none}");
}

#[tokio::test]
async fn a_native_client_lists_connections_in_pages_and_does_not_close_its_own() {
    let server = Server::with(&["redis=127.0.0.1:0"]);
    let _sockets: Vec<TcpStream> = (0..5).map(|_| open(server.door("redis"), b"PING\r\n")).collect();
    for scheme in ["tcp", "quic"] {
        let client = server.client(scheme).await;
        let mut seen = Vec::new();
        loop {
            let after = seen.last().copied().unwrap_or(0);
            let page = within("a page", client.list_connections(after, 2, Some("redis"), None)).await.expect("a page");
            assert!(page.connections.len() <= 2, "{page:?}");
            seen.extend(page.connections.iter().map(|of| of.connection));
            if page.is_last {
                break;
            }
        }
        assert!(seen.len() == 5 && seen.is_sorted(), "{seen:?}");
        let own = within("a list", client.list_connections(0, 10, Some("native"), None)).await.expect("a list");
        let own = own.connections.last().expect("the client").connection;
        let refused = within("an error", client.disconnect_client(own)).await.expect_err("its own");
        assert!(refused.message.contains("is that of this request"), "{refused}");
        within("the end", client.close()).await;
    }
}

#[test]
fn a_list_of_connections_has_pages_and_a_request_does_not_close_its_own() {
    let server = Server::with(&["http=127.0.0.1:0", "redis=127.0.0.1:0"]);
    let sockets: Vec<TcpStream> = (0..5).map(|_| open(server.door("redis"), b"PING\r\n")).collect();
    let mut after = Value::from(0);
    let mut seen = Vec::new();
    loop {
        let (page, is_last) = list(&server, &format!("?door=redis&max=2&after={after}"), None);
        assert!(page.len() <= 2, "{page:?}");
        seen.extend(page.iter().map(|of| of["connection"].as_u64().expect("a number")));
        if is_last {
            break;
        }
        after = page.last().expect("a page that is not the last has some")["connection"].clone();
    }
    assert_eq!(seen.len(), sockets.len());
    assert!(seen.is_sorted(), "{seen:?}");

    let mut own = open(server.door("http"), GET);
    let address = own.local_addr().expect("an address").to_string();
    let (found, _) = list(&server, "?door=http", None);
    let of = found.iter().find(|of| of["address"] == address.as_str()).expect("this one");
    let head = format!("DELETE /v1/connections/{} HTTP/1.1\r\nHost: localhost\r\n", of["connection"]);
    own.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes()).expect("sent");
    let mut response = String::new();
    own.read_to_string(&mut response).expect("a response");
    assert!(response.starts_with("HTTP/1.1 400") && response.contains("is that of this request"), "{response}");
    let unknown = exchange(server.door("http"), "GET", "/v1/connections?door=telnet", None, "");
    assert!(unknown.0 == 400 && unknown.1.contains("choose one of native, http, kafka"), "{}", unknown.1);
}
