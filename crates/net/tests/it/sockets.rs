//! Leftovers of a listener, and obstacles to one: socket files, and a process without descriptors.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use net::{Address, Listener, Ports, Sockets, UnixSocket};

use crate::harness::framed::call;
use crate::harness::stand::patient;
use crate::harness::{Fixture, PATIENCE, ServerFrame, Way, until};

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("socket");
    (folder, path)
}

fn refusal(path: &Path) -> ErrorKind {
    Listener::unix(path).err().expect("refused").kind()
}

#[tokio::test]
async fn a_stale_socket_is_replaced() {
    let (_folder, path) = folder();
    drop(UnixListener::bind(&path).expect("bound"));
    assert!(path.exists(), "the file exists without a listener");
    let _listener = Listener::unix(&path).expect("replaced");
    assert!(UnixStream::connect(&path).is_ok());
    let mode = std::fs::metadata(&path).expect("a file").permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    drop(_listener);
    let _listener = Listener::unix_for(&path, 0o666).expect("bound");
    assert_eq!(std::fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o666);
}

#[tokio::test]
async fn a_live_socket_is_refused_and_keeps_working() {
    let (_folder, path) = folder();
    let live = UnixListener::bind(&path).expect("bound");
    assert_eq!(refusal(&path), ErrorKind::AddrInUse);
    let mut near = UnixStream::connect(&path).expect("connected");
    near.write_all(b"x").expect("sent");
    // The first connection was the check for a listener.
    let (mut probe, _) = live.accept().expect("accepted");
    assert_eq!(probe.read(&mut [0]).expect("the end"), 0);
    let (mut far, _) = live.accept().expect("accepted");
    far.read_exact(&mut [0]).expect("received");
}

/// A live socket is refused even if its backlog is full.
#[tokio::test]
async fn a_live_socket_that_accepts_no_connection_is_refused_immediately() {
    let (_folder, path) = folder();
    let live = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).expect("a socket");
    live.bind(&socket2::SockAddr::unix(&path).expect("a path")).expect("bound");
    live.listen(0).expect("listening");
    let connect = || {
        let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).expect("a socket");
        socket.set_nonblocking(true).expect("set");
        socket.connect(&socket2::SockAddr::unix(&path).expect("a path")).map(|()| socket)
    };
    let mut waiting = Vec::new();
    while let Ok(socket) = connect() {
        waiting.push(socket);
        assert!(waiting.len() < 100, "its queue is full");
    }
    let (sender, refused) = std::sync::mpsc::channel();
    let at = path.clone();
    // In a thread that may hang, on a runtime that no other thread waits for.
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let _entered = runtime.enter();
        sender.send(refusal(&at))
    });
    assert_eq!(refused.recv_timeout(PATIENCE), Ok(ErrorKind::AddrInUse));
    drop(live);
    let _listener = Listener::unix(&path).expect("it is stale now");
}

#[tokio::test]
async fn a_file_of_another_kind_is_not_touched() {
    let (_folder, path) = folder();
    std::fs::write(&path, "mine").expect("written");
    assert_eq!(refusal(&path), ErrorKind::AlreadyExists);
    assert_eq!(std::fs::read_to_string(&path).expect("still there"), "mine");
    std::fs::remove_file(&path).expect("removed");

    let target = path.with_extension("target");
    drop(UnixListener::bind(&target).expect("bound"));
    std::os::unix::fs::symlink(&target, &path).expect("linked");
    assert_eq!(refusal(&path), ErrorKind::AlreadyExists);
    assert!(target.exists());
    std::fs::remove_file(&path).expect("removed");

    let _datagrams = UnixDatagram::bind(&path).expect("bound");
    assert!(Listener::unix(&path).is_err());
    assert!(path.exists());
    assert_eq!(refusal(&path.with_extension("none").join("socket")), ErrorKind::NotFound);
}

#[tokio::test]
async fn a_socket_is_removed_at_the_end_and_no_other() {
    let fixture = Fixture::in_order(patient());
    fixture.dial(Way::Unix).await.assert_served().await;
    let path = fixture.socket_path();
    assert!(path.exists());
    assert!(fixture.end(PATIENCE).await.is_clean());
    until("it is removed", || !path.exists()).await;

    // A socket that took its place in the meantime belongs to another listener.
    let (_folder, path) = folder();
    let listener = Listener::unix(&path).expect("bound");
    std::fs::remove_file(&path).expect("removed");
    let _other = UnixListener::bind(&path).expect("bound");
    drop(listener);
    assert!(UnixStream::connect(&path).is_ok(), "it is still reached");
}

/// Sockets with a listener of each kind.
fn sockets(unix: &Path) -> Sockets {
    let unix = UnixSocket { path: unix.to_owned(), mode: 0o600 };
    let address = (Ipv4Addr::LOCALHOST, 0).into();
    Sockets::bind(&Ports { address, unix: Some(unix), quic_sockets: 2 }).expect("bound")
}

#[tokio::test]
async fn bound_sockets_outlive_the_services_over_them() {
    let (_folder, path) = folder();
    let sockets = sockets(&path);
    for way in [Way::Tcp, Way::Tls, Way::Unix, Way::Quic] {
        for round in 0..3 {
            let fixture = Fixture::in_order(patient());
            // The first connection arrives while no service is open.
            let endpoint = match way {
                Way::Tcp => Some(Endpoint::Tcp(sockets.address())),
                Way::Unix => Some(Endpoint::Unix(path.clone())),
                _ => None,
            };
            let early = endpoint.map(|endpoint| {
                let mut early = endpoint.open();
                early.write_all(&call(7, "echo early")).expect("sent");
                early
            });
            fixture.listen_over(&sockets, way);
            let mut peer = fixture.dial(way).await;
            peer.assert_served().await;
            if let Some(mut early) = early {
                let mut answer = [0; 14];
                let read = move || early.read_exact(&mut answer).map(|()| answer);
                let answer = tokio::task::spawn_blocking(read).await.expect("no panic").expect("an answer");
                assert_eq!(ServerFrame::take(&mut answer[..].into()), Some(ServerFrame::Answer(7, b"early".into())));
            }
            // One service ends with the connections of its clients, and the other at once.
            let deadline = if round == 0 { PATIENCE } else { Duration::ZERO };
            fixture.end(deadline).await;
            while peer.reader.next_or_cut().await.is_some() {}
            assert!(path.exists(), "the socket is still bound");
        }
    }
    drop(sockets);
    assert!(!path.exists(), "the file is removed with the sockets");
}

#[tokio::test]
async fn quic_clients_are_refused_until_a_service_opens() {
    let (_folder, path) = folder();
    let sockets = sockets(&path);
    let fixture = Fixture::in_order(patient());
    let shutdown = net::Shutdown::default();
    let refusing = sockets.refuse_quic(fixture.quic_config(), shutdown.drain());
    let clients = async {
        for _ in 0..5 {
            let refused = fixture.quic_at(sockets.address()).await.expect_err("refused");
            assert!(refused.to_string().contains("refused"), "{refused}");
        }
        shutdown.run(PATIENCE).await;
    };
    let (refused, ()) = tokio::join!(refusing, clients);
    refused.expect("an endpoint");
    fixture.listen_over(&sockets, Way::Quic);
    fixture.dial(Way::Quic).await.assert_served().await;
}

#[tokio::test]
async fn sockets_are_bound_all_or_none() {
    let (_folder, path) = folder();
    let taken = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = taken.local_addr().expect("an address");
    let unix = UnixSocket { path: path.clone(), mode: 0o600 };
    let ports = Ports { address, unix: Some(unix), quic_sockets: 1 };
    let error = Sockets::bind(&ports).err().expect("the UDP port is taken");
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    assert!(!path.exists());
    let free = Ports { address: (Ipv4Addr::LOCALHOST, 0).into(), ..ports };
    let bound = Sockets::bind(&free).expect("free");
    assert_ne!(bound.address().port(), 0);
    let refused = Sockets::bind(&free).err().expect("the path is taken");
    assert!(refused.to_string().contains(path.to_str().expect("text")), "{refused}");
}

const CHILD_SOCKET: &str = "THALWEG_NET_TEST_SOCKET";
const FILES_MAX: u64 = 40;

/// Server of the next test, in a separate process that has few descriptors. It ends when its input does.
#[test]
#[ignore = "another test runs it in a separate process"]
fn with_few_descriptors() {
    let Ok(path) = std::env::var(CHILD_SOCKET) else {
        return;
    };
    let fixture = Fixture::in_order(patient());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async move {
        let unix = Listener::unix(Path::new(&path)).expect("bound");
        fixture.server.listen(unix).expect("an address");
        let tcp = Listener::tcp((Ipv4Addr::LOCALHOST, 0).into()).expect("bound");
        let Ok(Address::Tcp(tcp)) = fixture.server.listen(tcp) else { panic!("no address") };
        let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        limit.current = Some(FILES_MAX);
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).expect("lowered");
        println!("tcp {tcp}");
        let (ended, end) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            std::io::stdin().read_to_end(&mut Vec::new()).expect("the end");
            ended.send(())
        });
        end.await.expect("the end");
        let stats = net::accept::stats();
        let count = |count: &std::sync::atomic::AtomicU64| count.load(std::sync::atomic::Ordering::Relaxed);
        println!("failed {} shed {}", count(&stats.failed), count(&stats.shed));
    });
}

/// Endpoint whose connections are opened until no descriptors are left for them.
enum Endpoint {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

trait ReadWrite: Read + Write + Send {}

impl<T: Read + Write + Send> ReadWrite for T {}

impl Endpoint {
    fn open(&self) -> Box<dyn ReadWrite> {
        match self {
            Self::Unix(path) => {
                let socket = UnixStream::connect(path).expect("connected");
                socket.set_read_timeout(Some(PATIENCE)).expect("set");
                Box::new(socket)
            }
            Self::Tcp(address) => {
                let socket = TcpStream::connect(address).expect("connected");
                socket.set_read_timeout(Some(PATIENCE)).expect("set");
                Box::new(socket)
            }
        }
    }

    /// Returns the connection if a request is answered, and `None` if it is closed.
    fn serves(&self) -> Option<Box<dyn ReadWrite>> {
        let mut socket = self.open();
        let mut answer = [0; 11];
        let is_served = socket.write_all(&call(1, "echo in")).and_then(|()| socket.read_exact(&mut answer)).is_ok();
        is_served.then(|| {
            assert_eq!(ServerFrame::take(&mut answer[..].into()), Some(ServerFrame::Answer(1, b"in".into())));
            socket
        })
    }
}

/// Without descriptors, connections are closed rather than left to hang, failures are counted, and open connections are
/// served; once there are descriptors again, all connections are.
#[test]
fn running_out_of_descriptors_passes_on_every_kind_of_socket() {
    for is_unix in [true, false] {
        let (_folder, path) = folder();
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "sockets::with_few_descriptors", "--ignored", "--nocapture"])
            .env(CHILD_SOCKET, &path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("started");
        let mut output = std::io::BufReader::new(child.stdout.take().expect("its output"));
        let mut line_with = |start: &str| loop {
            let mut line = String::new();
            assert!(std::io::BufRead::read_line(&mut output, &mut line).expect("a line") > 0, "no {start}");
            if let Some(rest) = line.strip_prefix(start) {
                return rest.trim().to_owned();
            }
        };
        let tcp = line_with("tcp ").parse().expect("an address");
        let endpoint = if is_unix { Endpoint::Unix(path.clone()) } else { Endpoint::Tcp(tcp) };
        let first = endpoint.serves().expect("served");
        // Some of these are closed; none of them hangs.
        let mut held: Vec<_> = (0..2 * FILES_MAX).map(|_| endpoint.serves()).collect();
        let served = held.iter().filter(|held| held.is_some()).count();
        assert!(served > 5 && served < FILES_MAX as usize, "{served}");
        held.clear();
        drop(first);
        // Descriptors are freed when the server has detected the end of those connections.
        let deadline = std::time::Instant::now() + PATIENCE;
        while endpoint.serves().is_none() {
            assert!(std::time::Instant::now() < deadline, "no connection is served any more");
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(child.stdin.take());
        let counts = line_with("failed ");
        let (failed, shed) = counts.split_once(" shed ").expect("two counts");
        assert!(failed.parse::<u64>().expect("a number") > 0, "{counts}");
        assert!(shed.parse::<u64>().expect("a number") >= 10, "{counts}");
        assert!(child.wait().expect("ended").success());
    }
}
