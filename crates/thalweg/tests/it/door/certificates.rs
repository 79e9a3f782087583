//! Logins with client certificates at every door, and their end.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use client::{Address, Client, ClientSettings, ErrorKind, Record};
use kafka_protocol::messages::{MetadataRequest, SaslAuthenticateRequest, SaslHandshakeRequest};
use net::tls::Identity;
use net::tls::trust::{self, Trust};

use super::access::exchange;
use super::kafka::raw::{Raw, text};
use super::redis::commands::Redis;
use crate::support::access::acls;
use crate::support::certificates::{Authority, Folder, Made};
use crate::support::command;
use crate::support::server::{PATIENCE, Server, metric, until, within};
use crate::support::tunnel;

const LISTED: &str = "/v1/projects/shop/topics";

/// Broker whose clients may log in with certificates of an authority.
struct Stand {
    ca: Authority,
    folder: Folder,
    server: Server,
}

impl Stand {
    fn with(set: &[&str]) -> Self {
        let ca = Authority::new();
        let folder = Folder::new();
        let own = ca.issue("broker", &["localhost"], 2100);
        folder.put("broker", &own);
        folder.write("ca.pem", &ca.pem);
        folder.write("revoked.pem", &ca.revoke(&[]));
        let file = |key: &str, name: &str| format!("{key}={}", folder.path(name).display());
        let files = [
            file("tls_cert", "broker.crt"),
            file("tls_key", "broker.key"),
            file("tls_client_ca", "ca.pem"),
            file("tls_client_crl", "revoked.pem"),
        ];
        let doors = [
            "auth=required",
            "authorization=true",
            "users=bob:secret",
            "http=127.0.0.1:0",
            "redis=127.0.0.1:0",
            "pubsub=127.0.0.1:0",
            "pubsub_project=shop",
        ];
        let files = files.iter().map(String::as_str);
        let all: Vec<&str> = files.chain(doors).chain(set.iter().copied()).collect();
        let server = Server::with(&all);
        Self { ca, folder, server }
    }

    /// Returns the files of a client's certificate and its key.
    fn files(&self, own: &Made) -> (PathBuf, PathBuf) {
        self.folder.put("client", own);
        (self.folder.path("client.crt"), self.folder.path("client.key"))
    }

    async fn connect(&self, scheme: &str, own: &Made) -> Result<Client, ErrorKind> {
        let address = Address::parse(&self.server.url(scheme)).expect("an address");
        let settings = ClientSettings { identity: Some(self.files(own)), ..ClientSettings::default() };
        within("a connection", Client::connect_with(address, settings)).await.map_err(|error| error.kind)
    }

    /// Opens a tunnel to a door, for a client with this certificate.
    async fn tunnel(&self, door: &str, own: Option<&Made>) -> SocketAddr {
        let identity = own.map(|own| {
            let (certificate, key) = self.files(own);
            Identity::from_pem(&certificate, &key).expect("an identity")
        });
        let config = trust::client_config(Trust::Anyone, &[], identity).expect("a configuration");
        tunnel::open(self.door(door), Arc::new(config)).await
    }

    fn door(&self, name: &str) -> SocketAddr {
        match name {
            "kafka" => self.server.kafka,
            "sqs" => self.server.sqs,
            other => self.server.door(other),
        }
    }

    /// Allows bob what the clients of these tests do.
    async fn allow(&self) -> Client {
        let admin = self.server.client("tcp").await;
        admin.create_topic("t", client::TopicSettings::default()).await.expect("created");
        for entry in ["all topic t", "all cache db0/...", "all queue q"] {
            admin.create_acls(acls("User:bob", entry, true)).await.expect("added");
        }
        admin
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_with_a_certificate_alone_has_a_page_while_connected() {
    let stand = Stand::with(&["super_users=bob"]);
    let carol = stand.ca.issue("carol", &[], 2100);
    let mut connection = KeptAlive::open(stand.tunnel("http", Some(&carol)).await);
    let door = stand.tunnel("http", None).await;
    let bob = format!("Basic {}", BASE64.encode("bob:secret"));
    let page = || exchange(door, "GET", "/console/security/users/carol", Some(&bob), "");
    assert_eq!(page().0, 404);
    assert_eq!(connection.call("/v1/topics"), Some(200));
    let (status, shown) = page();
    assert!(status == 200 && shown.contains("<h1>carol</h1>") && shown.contains("certificate"), "{shown}");
    drop(connection);
    until("the end of the connection", async || page().0 == 404).await;
}

fn all_topics() -> MetadataRequest {
    MetadataRequest::default().with_topics(None)
}

/// Connection for several HTTP requests.
struct KeptAlive(BufReader<TcpStream>);

impl KeptAlive {
    fn open(at: SocketAddr) -> Self {
        let socket = TcpStream::connect(at).expect("connected");
        socket.set_read_timeout(Some(PATIENCE)).expect("set");
        Self(BufReader::new(socket))
    }

    /// Sends a request, and returns the status of the response; `None` if the connection has ended.
    fn call(&mut self, path: &str) -> Option<u16> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        self.0.get_mut().write_all(request.as_bytes()).expect("sent");
        let mut line = String::new();
        let mut status = None;
        let mut length = 0;
        while line != "\r\n" {
            line.clear();
            if self.0.read_line(&mut line).expect("a line") == 0 {
                return None;
            }
            status = status.or_else(|| line.split(' ').nth(1).and_then(|code| code.parse().ok()));
            if let Some(given) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
                length = given.trim().parse().expect("a number");
            }
        }
        self.0.read_exact(&mut vec![0; length]).expect("a body");
        status
    }
}

fn http(at: SocketAddr, path: &str) -> u16 {
    exchange(at, "GET", path, None, "").0
}

fn send_to_queue(at: SocketAddr) -> u16 {
    exchange(at, "GET", "/?Action=GetQueueUrl&QueueName=q&Version=2012-11-05", None, "").0
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_logs_in_at_every_door() {
    let stand = Stand::with(&[]);
    let admin = stand.allow().await;
    command::on(&stand.server, ["queue", "create", "q"]).ok();
    let bob = stand.ca.issue("bob", &["worker.example"], 2100);
    for scheme in ["tls", "quic"] {
        let client = stand.connect(scheme, &bob).await.expect("it is valid");
        client.publish("t", Record::new("v")).await.expect("bob may");
        assert_eq!(client.delete_topic("u").await.expect_err("bob may not").kind, ErrorKind::Denied);
    }
    let mut raw = Raw::connect_to(stand.tunnel("kafka", Some(&bob)).await).await;
    assert_eq!(raw.call(4, all_topics()).await.topics.len(), 1);
    for (door, path) in [("http", "/v1/topics/t"), ("pubsub", LISTED)] {
        let at = stand.tunnel(door, Some(&bob)).await;
        assert_eq!(http(at, path), 200, "{door}");
    }
    assert_eq!(send_to_queue(stand.tunnel("sqs", Some(&bob)).await), 200);
    let mut redis = Redis::open_at(stand.tunnel("redis", Some(&bob)).await);
    assert_eq!((redis.call("ACL WHOAMI"), redis.call("SET k v")), ("bob".to_owned(), "+OK".to_owned()));
    assert_eq!((redis.call("RESET"), redis.call("GET k")), ("+RESET".to_owned(), "v".to_owned()));
    let refused = redis.call("FLUSHALL");
    assert!(refused.starts_with("-NOPERM this user has no permissions to run the 'flushall' command"), "{refused}");
    assert!(metric(&admin, "thalweg_authentications_total").await >= 6);

    // Without a certificate a login is needed, as without TLS.
    let none = stand.tunnel("http", None).await;
    assert_eq!(http(none, "/v1/topics/t"), 401);
    let mut redis = Redis::open_at(stand.tunnel("redis", None).await);
    assert_eq!(
        (redis.call("GET k"), redis.call("AUTH bob secret")),
        ("-NOAUTH Authentication required.".to_owned(), "+OK".to_owned())
    );
    assert_eq!(send_to_queue(stand.tunnel("sqs", None).await), 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_certificates_are_refused() {
    let stand = Stand::with(&["tls_client_names=RULE:^CN=(.*?)@shop$/$1/L"]);
    stand.allow().await;
    let other = Authority::new();
    for wrong in [other.issue("BOB@shop", &[], 2100), stand.ca.issue("BOB@shop", &[], 2001)] {
        assert_eq!(stand.connect("tls", &wrong).await.err(), Some(ErrorKind::Disconnected));
        assert_eq!(stand.connect("quic", &wrong).await.err(), Some(ErrorKind::Disconnected));
    }
    // A valid certificate without a user is a client that has not logged in.
    let unnamed = stand.ca.issue("bob", &[], 2100);
    let client = stand.connect("tls", &unnamed).await.expect("it is valid");
    assert_eq!(client.publish("t", Record::new("v")).await.expect_err("no user").kind, ErrorKind::Denied);
    assert_eq!(http(stand.tunnel("http", Some(&unnamed)).await, "/v1/topics/t"), 401);
    let named = stand.ca.issue("BOB@shop", &[], 2100);
    let client = stand.connect("tls", &named).await.expect("it is valid");
    client.publish("t", Record::new("v")).await.expect("it is bob's");
    let log = stand.server.log();
    let is_whole =
        |line: &str| line.contains("refused a client's certificate: invalid") && line.contains("peer=127.0.0.1:");
    assert!(log.lines().any(is_whole), "{log}");
}

/// A Kafka client may log in by SASL beside its certificate, and is the user of SASL then, as in Kafka.
#[tokio::test(flavor = "multi_thread")]
async fn a_login_by_sasl_replaces_that_of_the_certificate() {
    let stand = Stand::with(&[]);
    let admin = stand.allow().await;
    admin.create_topic("u", client::TopicSettings::default()).await.expect("created");
    let ann = stand.ca.issue("ann", &[], 2100);
    let mut raw = Raw::connect_to(stand.tunnel("kafka", Some(&ann)).await).await;
    assert!(raw.call(4, all_topics()).await.topics.is_empty(), "ann may see nothing");
    assert_eq!(raw.call(1, SaslHandshakeRequest::default().with_mechanism(text("PLAIN"))).await.error_code, 0);
    let login = SaslAuthenticateRequest::default().with_auth_bytes(b"\0bob\0secret"[..].into());
    assert_eq!(raw.call(2, login).await.error_code, 0);
    assert_eq!(raw.call(4, all_topics()).await.topics.len(), 1);
}

/// Checks that the streams and requests of a client end once its certificate is no longer accepted.
async fn ends(stand: &Stand, own: &Made, end: impl FnOnce()) {
    let admin = stand.allow().await;
    let mut native = Vec::new();
    for scheme in ["tls", "quic"] {
        let client = stand.connect(scheme, own).await.expect("it is valid");
        native.push((within("a subscription", client.subscribe("t").open()).await.expect("subscribed"), client));
    }
    let mut raw = Raw::connect_to(stand.tunnel("kafka", Some(own)).await).await;
    assert_eq!(raw.call(4, all_topics()).await.topics.len(), 1);
    let mut redis = Redis::open_at(stand.tunnel("redis", Some(own)).await);
    assert_eq!(redis.call("SET k v"), "+OK");
    let mut http = KeptAlive::open(stand.tunnel("http", Some(own)).await);
    assert_eq!(http.call("/v1/topics/t"), Some(200));
    admin.publish("t", Record::new("before")).await.expect("published");
    for (subscription, _) in &mut native {
        within("a record", subscription.next()).await.expect("a record");
    }
    end();
    for (subscription, client) in &mut native {
        until("the end of the subscription", async || subscription.next().await.is_err()).await;
        assert!(client.list_topics().await.is_err());
    }
    assert_eq!(redis.call("GET k"), "-NOAUTH Authentication required.");
    raw.send(4, &all_topics()).await;
    assert!(raw.frame().await.is_none(), "the connection ends");
    assert!(stand.connect("tls", own).await.is_err());
    // The connection is older than the end of the certificate. An idle one is closed after a while.
    let status = http.call("/v1/topics/t");
    assert!(matches!(status, Some(401) | None), "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_that_a_client_does_ends_when_its_certificate_is_revoked() {
    let stand = Stand::with(&[]);
    let bob = stand.ca.issue("bob", &[], 2100);
    ends(&stand, &bob, || drop(stand.folder.write("revoked.pem", &stand.ca.revoke(&[&bob])))).await;
    let other = stand.ca.issue("bob", &[], 2100);
    assert!(stand.connect("tls", &other).await.is_ok(), "another certificate of his is not revoked");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_that_a_client_does_ends_when_its_certificate_expires() {
    let stand = Stand::with(&[]);
    let soon = stand.ca.issue_until("bob", &[], SystemTime::now() + Duration::from_secs(5));
    ends(&stand, &soon, || {}).await;
}

/// The certificate of a trusted proxy says nothing about the clients behind it.
#[tokio::test(flavor = "multi_thread")]
async fn the_certificate_of_a_proxy_logs_nobody_in() {
    let stand = Stand::with(&["http_trusted_proxies=127.0.0.1"]);
    stand.allow().await;
    let proxy = stand.ca.issue("bob", &[], 2100);
    assert_eq!(http(stand.tunnel("http", Some(&proxy)).await, "/v1/topics/t"), 401);
    assert_eq!(send_to_queue(stand.tunnel("sqs", Some(&proxy)).await), 403);
}

/// With `tls_client_auth = required` nobody comes in over TLS without a certificate, and only the listed ones do.
#[tokio::test(flavor = "multi_thread")]
async fn certificates_can_be_required_and_listed() {
    let stand = Stand::with(&["tls_client_auth=required", "tls_client_allow=bob,worker.example"]);
    stand.allow().await;
    let address = Address::parse(&stand.server.url("tls")).expect("an address");
    assert!(Client::connect_with(address, ClientSettings::default()).await.is_err());
    let [bob, worker, eve] = [("bob", None), ("x", Some("worker.example")), ("eve", None)]
        .map(|(name, host)| stand.ca.issue(name, &host.into_iter().collect::<Vec<_>>(), 2100));
    for allowed in [&bob, &worker] {
        assert!(stand.connect("tls", allowed).await.is_ok());
    }
    assert_eq!(stand.connect("tls", &eve).await.err(), Some(ErrorKind::Disconnected));
    // The command line has keys of its own for its certificate.
    let (certificate, key) = stand.files(&bob);
    let url = stand.server.url("tls");
    let set = [format!("client_cert={}", certificate.display()), format!("client_key={}", key.display())];
    let run =
        |args: &[&str]| command::thalweg([&["--server", &url, "--set", &set[0], "--set", &set[1]], args].concat());
    run(&["publish", "t", "v"]).ok();
    assert!(run(&["user", "list"]).failed(1).contains("User:bob may not describe the cluster"));
    assert!(
        command::thalweg(["--server", &url, "--set", &set[0], "topic", "list"]).failed(2).contains("belong together")
    );
}

#[test]
fn settings_that_cannot_work_are_refused_at_the_start() {
    for (set, wanted) in [
        ("tls_client_auth=required", "without tls_client_ca"),
        ("tls_client_crl=x.pem", "without tls_client_ca"),
        ("tls_client_ca=/nowhere/ca.pem", "/nowhere/ca.pem"),
        ("tls_client_names=RULE:(/x/", "tls_client_names"),
    ] {
        let any = [
            "--native",
            "127.0.0.1:0",
            "--http",
            "off",
            "--kafka",
            "off",
            "--redis",
            "off",
            "--sqs",
            "off",
            "--pubsub",
            "off",
        ];
        let refused = command::thalweg(["serve", "--set", set].into_iter().chain(any));
        assert!(refused.err.contains(wanted), "{set}: {refused:?}");
    }
}
