//! Unix sockets of the native and the HTTP door, and the processes at their other end.

use std::fs::Permissions;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use client::{Address, Client, ClientSettings, ErrorKind, Login, Record, Start};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::support::command::{self, Done};
use crate::support::server::{PATIENCE, Server, metric, program, within};

const LOCKED: [&str; 4] = ["auth=required", "authorization=true", "users=bob:secret", "http=127.0.0.1:0"];

/// User id that no account has.
const STRANGER: u32 = 54_321;

/// Folder that every user can enter, with the sockets of a broker.
struct Sockets {
    folder: TempDir,
}

impl Sockets {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("set");
        Self { folder }
    }

    fn native(&self) -> PathBuf {
        self.folder.path().join("native.sock")
    }

    fn http(&self) -> PathBuf {
        self.folder.path().join("http.sock")
    }

    fn settings(&self) -> [String; 2] {
        [format!("native_unix={}", self.native().display()), format!("http_unix={}", self.http().display())]
    }

    fn serve(&self, set: &[&str]) -> Server {
        let sockets = self.settings();
        Server::with(&[&sockets.each_ref().map(String::as_str)[..], set].concat())
    }

    fn url(&self) -> String {
        format!("unix:{}", self.native().display())
    }

    async fn connect(&self, settings: ClientSettings) -> client::Result<Client> {
        let address = Address::parse(&self.url()).expect("an address");
        within("a connection", Client::connect_with(address, settings)).await
    }

    /// Runs the command line over the socket. It finds no administrator's token.
    fn thalweg(&self, user: Option<u32>, args: &[&str]) -> Done {
        let mut command = program();
        command.args(["--server", &self.url()]).args(args).env("XDG_RUNTIME_DIR", self.folder.path());
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        command::run(command.current_dir("/").stdout(Stdio::piped()).stderr(Stdio::piped()), b"")
    }

    /// Sends an HTTP request over the socket with further headers. Returns the status of the response.
    fn http_status(&self, method: &str, path: &str, headers: &[&str]) -> u16 {
        let mut socket = UnixStream::connect(self.http()).expect("connected");
        socket.set_read_timeout(Some(PATIENCE)).expect("set");
        let more: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{more}\r\n");
        socket.write_all(head.as_bytes()).expect("sent");
        let mut response = String::new();
        socket.read_to_string(&mut response).expect("a response");
        let status = response.split(' ').nth(1).and_then(|code| code.parse().ok());
        status.unwrap_or_else(|| panic!("{response}"))
    }

    /// Sends a request with curl, as another user.
    fn curl_as(&self, user: u32, arguments: &[&str]) -> String {
        let mut command = std::process::Command::new("curl");
        command.args(["--silent", "--show-error", "--output", "/dev/null", "--write-out", "%{http_code}"]);
        command.arg("--unix-socket").arg(self.http()).args(arguments).arg("http://localhost/v1/topics");
        command.uid(user).gid(user).current_dir("/").stdout(Stdio::piped()).stderr(Stdio::piped());
        let done = command::run(&mut command, b"");
        if done.code == Some(0) { done.out } else { done.err }
    }
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("it exists").permissions().mode() & 0o777
}

/// Returns `true` if the tests may run programs as other users.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[tokio::test]
async fn the_owner_of_a_broker_is_its_administrator_over_unix_sockets() {
    let sockets = Sockets::new();
    let server = sockets.serve(&LOCKED);
    assert_eq!((mode(&sockets.native()), mode(&sockets.http())), (0o600, 0o600));
    let owner = sockets.connect(ClientSettings::default()).await.expect("connected");
    owner.create_topic("t", client::TopicSettings::default()).await.expect("an administrator may");
    owner.publish("t", Record::new("v")).await.expect("an administrator may");
    let mut records = owner.subscribe("t").start(Start::Earliest).open().await.expect("subscribed");
    assert_eq!(within("a record", records.next()).await.expect("a record").record.value(), b"v");
    assert_eq!(metric(&owner, "thalweg_users").await, 1);
    assert!(sockets.thalweg(None, &["topic", "list"]).ok().lines().any(|line| line.trim_start().starts_with("t ")));
    sockets.thalweg(None, &["acl", "add", "User:bob", "read", "topic", "t"]).ok();
    assert_eq!(sockets.http_status("GET", "/v1/topics/t", &[]), 200);
    assert_eq!(sockets.http_status("DELETE", "/v1/topics/t", &[]), 204);
    // The TCP ports of the same doors still require a login.
    let refused = super::access::exchange(server.door("http"), "GET", "/v1/topics", None, "");
    assert_eq!(refused.0, 401);
    let tcp = Client::connect_with(Address::parse(&server.url("tcp")).expect("an address"), ClientSettings::default());
    let refused = within("a connection", tcp).await.expect("connected").list_topics().await.expect_err("refused");
    assert_eq!(refused.kind, ErrorKind::Denied);
}

/// A client that logs in is the user of that login, and no administrator.
#[tokio::test]
async fn a_login_over_a_unix_socket_takes_the_place_of_the_owner() {
    let sockets = Sockets::new();
    let _server = sockets.serve(&LOCKED);
    let login = Some(Login::new("bob", "secret").expect("a login"));
    let bob = sockets.connect(ClientSettings { login, ..ClientSettings::default() }).await.expect("it is right");
    let denied = bob.create_topic("t", client::TopicSettings::default()).await.expect_err("bob may not");
    assert!(denied.message.contains("User:bob may not"), "{denied}");
    let login = Some(Login::new("bob", "wrong").expect("a login"));
    let wrong = sockets.connect(ClientSettings { login, ..ClientSettings::default() }).await;
    assert_eq!(wrong.err().map(|error| error.kind), Some(ErrorKind::Denied));
    // A token is sent over the socket, although it has no TLS.
    let token = sockets.thalweg(None, &["token", "create", "bob", "--role", "publisher"]).ok();
    let login = Some(Login::token(token.trim()).expect("a login"));
    let bob = sockets.connect(ClientSettings { login, ..ClientSettings::default() }).await.expect("it is right");
    bob.publish("t", Record::new("v")).await.expect("the token has the role");
    // `bob:secret` and `bob:wrong`.
    assert_eq!(sockets.http_status("PUT", "/v1/topics/u", &["Authorization: Basic Ym9iOnNlY3JldA=="]), 403);
    assert_eq!(sockets.http_status("GET", "/v1/topics", &["Authorization: Basic Ym9iOndyb25n"]), 401);
}

/// A request that a proxy of the broker's own user passes on is not one of that user.
#[tokio::test]
async fn a_proxy_on_a_unix_socket_makes_nobody_an_administrator() {
    let sockets = Sockets::new();
    let _server = sockets.serve(&[&LOCKED[..], &["http_trusted_proxies=127.0.0.1"]].concat());
    assert_eq!(sockets.http_status("GET", "/v1/topics", &[]), 200);
    for header in
        ["X-Forwarded-For: 192.0.2.1", "Forwarded: for=192.0.2.1", "Forwarded: for=_hidden", "X-Forwarded-For:"]
    {
        let untrusted = Sockets::new();
        let _server = untrusted.serve(&LOCKED);
        assert_eq!(untrusted.http_status("GET", "/v1/topics", &[header]), 401, "{header}");
        assert_eq!(sockets.http_status("GET", "/v1/topics", &[header]), 401, "{header}");
    }
    // Other checks of requests still apply.
    assert_eq!(sockets.http_status("GET", "/v1/topics", &["Origin: http://evil.example"]), 403);
}

/// Runs only as root, as no other user can run programs as somebody else.
#[tokio::test]
async fn another_user_of_the_machine_needs_the_permission_of_the_file_and_a_login() {
    if !is_root() {
        return;
    }
    let sockets = Sockets::new();
    let server = sockets.serve(&LOCKED);
    let list = ["topic", "list"];
    let refused = sockets.thalweg(Some(STRANGER), &list).failed(3);
    assert!(refused.contains("Permission denied") && refused.contains("unix_mode = 0660"), "{refused}");
    assert!(sockets.curl_as(STRANGER, &[]).contains("to connect"), "the socket is for its owner alone");
    drop(server);

    let server = sockets.serve(&[&LOCKED[..], &["unix_mode=0666"]].concat());
    assert_eq!((mode(&sockets.native()), mode(&sockets.http())), (0o666, 0o666));
    assert!(sockets.thalweg(Some(STRANGER), &list).failed(1).contains("requires a login"));
    assert_eq!(sockets.curl_as(STRANGER, &[]), "401");
    assert_eq!(sockets.curl_as(STRANGER, &["--user", "bob:secret"]), "200");
    assert_eq!(sockets.curl_as(0, &[]), "200", "curl is a client of these sockets");
    drop(server);

    // Without required logins a stranger is anonymous, and entries decide.
    let server = sockets.serve(&["authorization=true", "http=127.0.0.1:0", "unix_mode=0666"]);
    assert!(
        sockets.thalweg(Some(STRANGER), &["topic", "create", "t"]).failed(1).contains("User:ANONYMOUS may not create")
    );
    assert_eq!(sockets.curl_as(STRANGER, &["--request", "DELETE"]), "405");
    sockets.thalweg(None, &["topic", "create", "t"]).ok();
    drop(server);
}

/// The socket files are removed on stop. One that a killed broker left is replaced; one with a listener is not.
#[tokio::test]
async fn sockets_are_removed_on_stop_and_replaced_only_if_they_are_stale() {
    let sockets = Sockets::new();
    let mut server = sockets.serve(&["http=127.0.0.1:0"]);
    server.signal(Signal::TERM);
    assert!(server.ended().await.success());
    assert!(!sockets.native().exists() && !sockets.http().exists());

    let mut server = sockets.serve(&["http=127.0.0.1:0"]);
    server.crash();
    assert!(std::fs::metadata(sockets.native()).expect("it stays").file_type().is_socket());
    let server = sockets.serve(&["http=127.0.0.1:0"]);
    sockets.thalweg(None, &["topic", "create", "t"]).ok();
    assert!(server.log().contains(&sockets.url()), "the broker prints the path: {}", server.log());
    let serve = |set: &[&str]| {
        let mut command = program();
        command.args(["serve", "--native", "127.0.0.1:0", "--http", "127.0.0.1:0", "--kafka", "off", "--sqs", "off"]);
        command.args(set.iter().flat_map(|pair| ["--set", pair]));
        command::run(command.stdout(Stdio::piped()).stderr(Stdio::piped()), b"")
    };
    let [native, http] = sockets.settings();
    let refused = serve(&[&native]).failed(1);
    assert!(refused.contains("native.sock: another process is listening there"), "{refused}");
    assert!(serve(&[&http]).failed(1).contains("http.sock: another process is listening there"));
    sockets.thalweg(None, &["topic", "describe", "t"]).ok();
    drop(server);

    let other = sockets.folder.path().join("notes.txt");
    std::fs::write(&other, "mine").expect("written");
    let refused = serve(&[&format!("native_unix={}", other.display())]).failed(1);
    assert!(refused.contains("notes.txt: the file exists and is not a socket"), "{refused}");
    assert_eq!(std::fs::read_to_string(&other).expect("it stays"), "mine");
    for (set, why) in [
        (&["native_unix=a", "http_unix=a"][..], "another door has the socket a"),
        (&["native_unix=a", "native=off"], "native_unix has no effect while native = off"),
        (&["unix_mode=0777"], "0600, 0660, 0666"),
    ] {
        assert!(serve(set).failed(2).contains(why), "{set:?}");
    }
}

#[tokio::test]
async fn a_client_of_a_unix_socket_says_why_it_does_not_connect() {
    let sockets = Sockets::new();
    let missing = sockets.connect(ClientSettings::default()).await.err().expect("nothing is there");
    assert!(missing.kind == ErrorKind::Disconnected && missing.message.contains("native.sock"), "{missing}");
    drop(UnixListener::bind(sockets.native()).expect("bound"));
    let stale = sockets.connect(ClientSettings::default()).await.err().expect("nothing listens");
    assert!(stale.message.contains("is `thalweg serve` running there?"), "{stale}");
    // The HTTP door is no native door.
    let _server = sockets.serve(&["http=127.0.0.1:0"]);
    let http = Address::parse(&format!("unix:{}", sockets.http().display())).expect("an address");
    let wrong =
        within("an answer", Client::connect_with(http, ClientSettings::default())).await.err().expect("refused");
    assert!(wrong.message.contains("no native door"), "{wrong}");
}

/// A context has the socket of a broker, by its absolute path.
#[tokio::test]
async fn a_context_has_a_unix_socket() {
    let sockets = Sockets::new();
    let _server = sockets.serve(&LOCKED);
    let run = |args: &[&str]| {
        let mut command = program();
        command.env("XDG_CONFIG_HOME", sockets.folder.path().join("config"));
        command.env("XDG_RUNTIME_DIR", sockets.folder.path()).current_dir(sockets.folder.path()).args(args);
        command::run(command.stdout(Stdio::piped()).stderr(Stdio::piped()), b"")
    };
    run(&["context", "add", "here", "--server", "unix:native.sock", "--use"]).ok();
    run(&["topic", "create", "t"]).ok();
    let shown = run(&["--json", "config", "show", "server"]).json();
    let shown = shown["server"]["value"].as_str().expect("text").to_owned();
    assert!(shown.starts_with("unix:/") && shown.ends_with("native.sock"), "{shown}");
    run(&["--server", &shown, "topic", "describe", "t"]).ok();
    let other = run(&["--server", "unix:/nowhere/native.sock", "config", "show"]).ok();
    assert!(other.starts_with("# context here is not used"), "{other}");
}
