//! Logins with tokens at every door, and their end.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::Stdio;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use client::{Client, ClientSettings, ErrorKind, Login, Receive, Record};
use kafka_protocol::messages::{MetadataRequest, SaslAuthenticateRequest, SaslHandshakeRequest};

use super::access::exchange;
use super::kafka::raw::{Raw, text};
use super::redis::commands::Redis;
use crate::support::access::acls;
use crate::support::command;
use crate::support::server::{PATIENCE, Server, program, until, within};

/// Starts a broker that requires logins and checks permissions at all doors that accept tokens.
fn server() -> Server {
    Server::with(&[
        "auth=required",
        "authorization=true",
        "users=bob:secret,root:r00t",
        "super_users=root",
        "http=127.0.0.1:0",
        "redis=127.0.0.1:0",
        "pubsub=127.0.0.1:0",
        "pubsub_project=shop",
    ])
}

/// Creates a token of bob.
fn create(server: &Server, options: &[&str]) -> String {
    command::on(server, [&["token", "create", "bob"], options].concat())
        .ok()
        .lines()
        .next()
        .expect("a token")
        .to_owned()
}

/// Returns tokens that are almost right: another secret, another id, and a shorter one.
fn almost(token: &str) -> [String; 3] {
    let flipped = |at: usize| {
        let digit = if token.as_bytes()[at] == b'0' { "1" } else { "0" };
        format!("{}{digit}{}", &token[..at], &token[at + 1..])
    };
    [flipped(token.len() - 1), flipped(3), token[..token.len() - 1].to_owned()]
}

fn settings(token: &str) -> ClientSettings {
    ClientSettings { login: Some(Login::token(token).expect("a login")), ..ClientSettings::default() }
}

async fn connect(server: &Server, scheme: &str, token: &str) -> Result<Client, ErrorKind> {
    let address = client::Address::parse(&server.url(scheme)).expect("an address");
    within("a connection", Client::connect_with(address, settings(token))).await.map_err(|error| error.kind)
}

/// Sends one message of a SASL mechanism on a Kafka connection. Returns the error code and the lifetime of the login in
/// ms.
async fn sasl(raw: &mut Raw, mechanism: &str, message: String) -> (i16, i64) {
    let shaken = raw.call(1, SaslHandshakeRequest::default().with_mechanism(text(mechanism))).await;
    if shaken.error_code != 0 {
        return (shaken.error_code, 0);
    }
    let response = raw.call(2, SaslAuthenticateRequest::default().with_auth_bytes(message.into_bytes().into())).await;
    (response.error_code, response.session_lifetime_ms)
}

async fn kafka(server: &Server, mechanism: &str, message: String) -> Result<Raw, i16> {
    let mut raw = Raw::connect(server).await;
    match sasl(&mut raw, mechanism, message).await.0 {
        0 => Ok(raw),
        code => Err(code),
    }
}

fn bearer(token: &str) -> String {
    format!("n,,\u{1}auth=Bearer {token}\u{1}\u{1}")
}

fn http(server: &Server, door: &str, path: &str, authorization: &str) -> u16 {
    exchange(server.door(door), "GET", path, Some(authorization), "").0
}

const LISTED: &str = "/v1/projects/shop/topics";

#[tokio::test]
async fn a_token_logs_in_at_every_door() {
    let server = server();
    let token = create(&server, &["--role", "publisher"]);
    for scheme in ["tcp", "tls", "quic"] {
        let bob = connect(&server, scheme, &token).await.expect("it is right");
        bob.publish("t", Record::new("v")).await.expect("the token has the role");
        assert_eq!(bob.delete_topic("t").await.expect_err("a role of others").kind, ErrorKind::Denied);
    }
    for (mechanism, message) in
        [("OAUTHBEARER", bearer(&token)), ("PLAIN", format!("\0bob\0{token}")), ("PLAIN", format!("bob\0bob\0{token}"))]
    {
        let mut raw = kafka(&server, mechanism, message).await.expect("it is right");
        assert_eq!(raw.call(4, MetadataRequest::default()).await.brokers.len(), 1);
    }
    let basic = format!("Basic {}", BASE64.encode(format!("bob:{token}")));
    for authorization in [format!("Bearer {token}"), format!("bearer  {token}"), basic] {
        assert_eq!(http(&server, "http", "/v1/topics/t", &authorization), 200, "{authorization}");
        assert_eq!(http(&server, "pubsub", LISTED, &authorization), 200, "{authorization}");
    }
    for login in [format!("AUTH {token}"), format!("AUTH bob {token}"), format!("AUTH default {token}")] {
        let mut redis = Redis::open(&server);
        assert_eq!(redis.call(&login), "+OK");
        assert_eq!(redis.call("ACL WHOAMI"), "bob");
        assert_eq!(redis.call("SET k v"), "+OK");
    }
    let mut redis = Redis::open(&server);
    assert!(redis.call(&format!("HELLO 2 AUTH bob {token}")).contains("server"));
}

/// Each refusal is answered later than the one before, so each door gets only a few.
#[tokio::test]
async fn wrong_tokens_are_refused_at_every_door() {
    let server = server();
    let token = create(&server, &[]);
    let [other_secret, other_id, cut] = almost(&token);
    for wrong in [&other_secret, &other_id] {
        assert_eq!(connect(&server, "tcp", wrong).await.err(), Some(ErrorKind::Denied), "{wrong}");
    }
    for (door, path) in [("http", "/v1/topics"), ("pubsub", LISTED)] {
        assert_eq!(http(&server, door, path, &format!("Bearer {other_secret}")), 401);
    }
    // A token belongs to one user.
    let of_another = format!("n,a=root,\u{1}auth=Bearer {token}\u{1}\u{1}");
    for (mechanism, message) in [
        ("OAUTHBEARER", bearer(&cut)),
        ("OAUTHBEARER", of_another),
        ("OAUTHBEARER", String::new()),
        ("PLAIN", format!("\0bob\0{other_secret}")),
    ] {
        assert_eq!(kafka(&server, mechanism, message).await.err(), Some(58), "{mechanism}");
    }
    let refused = Redis::open(&server).call(&format!("AUTH root {token}"));
    assert_eq!(refused, "-WRONGPASS invalid username-password pair or user is disabled.");
    let log = server.log();
    assert!(log.contains("refused a login") && !log.contains(&token[20..]), "{log}");
}

/// Checks that the streams and requests of a client end with its token.
async fn ends(server: &Server, token: &str, end: impl AsyncFnOnce()) {
    let admin = server.client("tcp").await;
    admin.create_topic("t", client::TopicSettings::default()).await.expect("created");
    for entry in ["all topic t", "all topic s", "all cache db0/...", "all channel news", "all queue q"] {
        admin.create_acls(acls("User:bob", entry, true)).await.expect("added");
    }
    let bob = connect(server, "tcp", token).await.expect("it is right");
    let mut subscription = within("a subscription", bob.subscribe("t").open()).await.expect("subscribed");
    let mut redis = Redis::open(server);
    assert_eq!(redis.call(&format!("AUTH {token}")), "+OK");
    assert_eq!(redis.call("SET k v"), "+OK");
    let mut listener = Redis::open(server);
    assert_eq!(listener.call(&format!("AUTH {token}")), "+OK");
    listener.call("SUBSCRIBE news");
    let mut root = Redis::open(server);
    assert_eq!(root.call("AUTH root r00t"), "+OK");
    let mut waiting = Vec::new();
    for command in ["SSUBSCRIBE news", "BLPOP list 0", "XREAD BLOCK 0 STREAMS s $"] {
        let mut redis = Redis::open(server);
        assert_eq!(redis.call(&format!("AUTH {token}")), "+OK");
        redis.ask(command);
        waiting.push(redis);
    }
    let [mut shard, mut popping, mut reading] = waiting.try_into().ok().expect("three");
    assert!(shard.answer().contains("ssubscribe"));
    until("the waits", async || {
        let clients = root.call("CLIENT LIST");
        clients.contains("cmd=blpop") && clients.contains("cmd=xread")
    })
    .await;
    let mut raw = kafka(server, "OAUTHBEARER", bearer(token)).await.expect("it is right");
    let mut events = TcpStream::connect(server.door("http")).expect("connected");
    events.set_read_timeout(Some(PATIENCE)).expect("set");
    let head = format!("GET /v1/topics/t/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n");
    events.write_all(head.as_bytes()).expect("sent");
    let mut events = BufReader::new(events).lines();
    assert_eq!(events.next().expect("a line").expect("a line"), "HTTP/1.1 200 OK");
    admin.publish("t", Record::new("before")).await.expect("published");
    within("a record", subscription.next()).await.expect("a record");
    command::on(server, ["queue", "create", "q"]).ok();
    let receiver = connect(server, "tcp", token).await.expect("it is right");
    let receive = Receive { wait: 3 * PATIENCE, ..Receive::default() };
    let mut receive = tokio::spawn(async move { receiver.queue("q").receive(&receive).await });
    let (address, authorization) = (server.door("http"), format!("Bearer {token}"));
    let path = "/v1/topics/t/records?offset=latest&wait_ms=60000";
    let mut poll = tokio::task::spawn_blocking(move || exchange(address, "GET", path, Some(&authorization), "").0);

    end().await;
    // Each of these waits longer than this test does, unless it ends with the login.
    assert_eq!(within("the end of a poll", &mut poll).await.expect("answered"), 403);
    let received = within("the end of a receive", &mut receive).await.expect("answered");
    assert_eq!(received.expect_err("it is over").kind, ErrorKind::Denied);
    assert_eq!(popping.answer(), "-NOAUTH Authentication required.");
    assert_eq!(reading.answer(), "-NOAUTH Authentication required.");
    until("the end of the subscription", async || subscription.next().await.is_err()).await;
    assert_eq!(bob.list_topics().await.expect_err("it is over").kind, ErrorKind::Denied);
    assert_eq!(redis.call("GET k"), "-NOAUTH Authentication required.");
    assert_eq!((redis.call("AUTH bob secret"), redis.call("GET k")), ("+OK".to_owned(), "v".to_owned()));
    // They get nothing that comes later.
    assert_eq!(root.call("SPUBLISH news x"), ":0");
    assert_eq!(shard.try_answer(), None, "the connection ends");
    assert_eq!(root.call("RPUSH list x"), ":1");
    assert_eq!(root.call("LLEN list"), ":1");
    raw.send(4, &MetadataRequest::default()).await;
    assert!(raw.frame().await.is_none(), "the connection ends");
    admin.publish("t", Record::new("too late")).await.expect("published");
    let seen: String = events.map_while(Result::ok).fold(String::new(), |mut seen, line| {
        writeln!(seen, "{line}").expect("text");
        seen
    });
    assert!(seen.contains("before") && !seen.contains("too late"), "{seen}");
    assert_eq!(http(server, "http", "/v1/topics/t", &format!("Bearer {token}")), 401);
    let mut fresh = Redis::open(server);
    assert!(fresh.call(&format!("AUTH {token}")).starts_with("-WRONGPASS"));
}

#[tokio::test]
async fn all_that_a_client_does_ends_when_its_token_is_deleted() {
    let server = server();
    let token = create(&server, &[]);
    let listed = command::on(&server, ["token", "list", "--json"]).json();
    let id = listed[0]["id"].as_str().expect("an id").to_owned();
    assert_eq!((listed[0]["user"].as_str(), &token[3..19]), (Some("bob"), &*id));
    ends(&server, &token, async || {
        command::on(&server, ["token", "delete", &id]).ok();
    })
    .await;
    assert!(command::on(&server, ["token", "list"]).ok().contains("no tokens"));
    assert!(command::on(&server, ["token", "delete", &id]).failed(4).contains("there is no token"));
}

#[tokio::test]
async fn all_that_a_client_does_ends_when_its_token_expires() {
    let server = server();
    let token = create(&server, &["--expires", "3s"]);
    ends(&server, &token, async || {}).await;
    let refused = kafka(&server, "OAUTHBEARER", bearer(&token)).await.err();
    assert_eq!(refused, Some(58));
    // Only a client that has the token itself is told that it was valid once.
    let mut redis = Redis::open(&server);
    for login in [format!("AUTH {token}"), format!("AUTH bob {token}")] {
        assert_eq!(redis.call(&login), "-WRONGPASS the token has expired: create another one");
    }
    let (head, last) = token.split_at(token.len() - 1);
    let other = format!("{head}{}", if last == "0" { "1" } else { "0" });
    for login in [format!("AUTH {other}"), format!("AUTH ann {token}"), format!("AUTH bob {other}")] {
        assert!(redis.call(&login).starts_with("-WRONGPASS invalid username-password pair"), "{login}");
    }
    for wrong in ["0s", "soon", "-1h", "5"] {
        command::on(&server, ["token", "create", "bob", "--expires", wrong]).failed(2);
    }
}

/// A user who has only tokens is deleted like any other.
#[tokio::test]
async fn a_user_is_deleted_with_all_tokens() {
    let server = server();
    let token = command::on(&server, ["token", "create", "svc", "--role", "consumer"]).ok();
    let token = token.lines().next().expect("a token");
    let service = connect(&server, "tcp", token).await.expect("it is right");
    assert!(service.list_topics().await.is_ok());
    command::on(&server, ["user", "delete", "svc"]).ok();
    assert_eq!(service.list_topics().await.expect_err("deleted").kind, ErrorKind::Denied);
    assert_eq!(connect(&server, "tcp", token).await.err(), Some(ErrorKind::Denied));
    assert!(command::on(&server, ["user", "delete", "svc"]).failed(4).contains("no user 'svc'"));
}

/// A Kafka client is told how long its login is valid, and logs in again on the same connection (KIP-368).
#[tokio::test]
async fn a_kafka_client_logs_in_again_before_its_token_expires() {
    let server = server();
    let [first, second, endless] =
        [&["--expires", "1h"], &["--expires", "2h"], &["--expires", "never"]].map(|options| create(&server, options));
    let mut raw = Raw::connect(&server).await;
    let (code, lifetime_ms) = sasl(&mut raw, "OAUTHBEARER", bearer(&first)).await;
    assert!(code == 0 && (3_500_000..=3_600_000).contains(&lifetime_ms), "{lifetime_ms}");
    let (code, lifetime_ms) = sasl(&mut raw, "OAUTHBEARER", bearer(&second)).await;
    assert!(code == 0 && lifetime_ms > 7_000_000, "{code} {lifetime_ms}");
    assert_eq!(raw.call(4, MetadataRequest::default()).await.brokers.len(), 1);
    let others = command::on(&server, ["token", "create", "ann"]).ok();
    let (code, _) = sasl(&mut raw, "OAUTHBEARER", bearer(others.lines().next().expect("a token"))).await;
    assert_eq!(code, 58, "it stays the same user");
    let mut raw = Raw::connect(&server).await;
    assert_eq!(sasl(&mut raw, "OAUTHBEARER", bearer(&endless)).await, (0, 0));
    assert_eq!(sasl(&mut raw, "OAUTHBEARER", bearer(&endless)).await.0, 34, "no login is due");

    // An idle client that comes back after its login has expired first logs in again.
    let short = create(&server, &["--expires", "1s"]);
    let mut raw = Raw::connect(&server).await;
    assert_eq!(sasl(&mut raw, "OAUTHBEARER", bearer(&short)).await.0, 0);
    let mut probe = Redis::open(&server);
    assert_eq!(probe.call(&format!("AUTH {short}")), "+OK");
    until("the expiry", async || probe.call("PING").starts_with("-NOAUTH")).await;
    assert_eq!(sasl(&mut raw, "OAUTHBEARER", bearer(&second)).await.0, 0);
    assert_eq!(raw.call(4, MetadataRequest::default()).await.brokers.len(), 1);
}

/// The command line logs in with a token from a file or the environment.
#[tokio::test]
async fn the_command_line_logs_in_with_a_token() {
    let server = server();
    let token = create(&server, &["--role", "publisher"]);
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("token");
    std::fs::write(&file, format!("{token}\n")).expect("written");
    let url = server.url("tcp");
    let run = |environment: &[(&str, &str)], args: &[&str]| {
        let mut command = program();
        command.envs(environment.iter().copied()).args(["--server", &url]).args(args);
        command::run(command.stdout(Stdio::piped()).stderr(Stdio::piped()), b"")
    };
    run(&[], &["publish", "t", "a", "--token-file", file.to_str().expect("text")]).ok();
    run(&[("THALWEG_TOKEN", &token)], &["publish", "t", "b"]).ok();
    assert!(run(&[("THALWEG_TOKEN", &token)], &["topic", "delete", "t", "--yes"]).failed(1).contains("may not delete"));
    assert!(run(&[("THALWEG_TOKEN", "tw_x")], &["publish", "t", "b"]).failed(1).contains("token is unknown"));
    let both = [("THALWEG_TOKEN", &*token), ("THALWEG_USER", "bob")];
    assert!(run(&both, &["topic", "list"]).failed(2).contains("both set"));
    assert!(run(&[], &["topic", "list", "--token-file", "none"]).failed(2).contains("cannot read none"));
}
