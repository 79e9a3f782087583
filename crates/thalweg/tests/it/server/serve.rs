//! The broker as a process: its startup, and its shutdown.

use std::fs::File;
use std::io::ErrorKind::WouldBlock;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Stdio;
use std::time::{Duration, Instant};

use client::{ErrorKind, Overflow, Start};
use rustix::fs::{FileType, Mode};
use rustix::process::Signal;
use tokio::io::AsyncReadExt;
use wire::{Push, Request, Response};

use crate::support::bystander::Bystander;
use crate::support::command::thalweg;
use crate::support::raw::{Incoming, Raw, subscribe};
use crate::support::reading::{self, spans, values};
use crate::support::server::{Launch, Server, metric, program, size, until, within};

/// A TCP or UDP port in use: exit code 1, and a message that names the address and the flag.
#[test]
fn a_port_that_is_taken_is_named() {
    let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
    let udp = UdpSocket::bind("127.0.0.1:0").expect("a port");
    for address in [tcp.local_addr().expect("bound"), udp.local_addr().expect("bound")] {
        let text = address.to_string();
        let message =
            thalweg(["serve", "--native", &text, "--http", "off", "--kafka", "off", "--sqs", "off"]).failed(1);
        assert!(message.contains(&text) && message.contains("--native"), "{message}");
    }
    let text = tcp.local_addr().expect("bound").to_string();
    let message = thalweg(["serve", "--native", "off", "--http", &text, "--kafka", "off", "--sqs", "off"]).failed(1);
    assert!(message.contains(&text) && message.contains("--http"), "{message}");
}

/// All ports in use are named in one error, each with the flags that move and disable its door.
#[test]
fn all_ports_that_are_taken_are_named_together() {
    let taken: Vec<TcpListener> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
    let addresses: Vec<String> =
        taken.iter().map(|listener| listener.local_addr().expect("bound").to_string()).collect();
    let [http, kafka, redis] = &addresses[..] else { panic!("three ports") };
    let message = thalweg([
        "serve",
        "--native",
        "127.0.0.1:0",
        "--pubsub",
        "off",
        "--sqs",
        "127.0.0.1:0",
        "--http",
        http,
        "--kafka",
        kafka,
        "--redis",
        redis,
    ])
    .failed(1);
    for (door, address) in [("http", http), ("kafka", kafka), ("redis", redis)] {
        let row = message.lines().find(|line| line.contains(address)).expect("a line for each");
        assert!(row.contains(&format!("--{door} PORT")) && row.contains(&format!("--{door} off")), "{row}");
    }
    assert!(!message.contains("--sqs") && !message.contains("--native"), "{message}");
}

/// A wrong configuration is refused as a whole, with exit code 2 and a suggestion.
#[test]
fn a_wrong_configuration_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("thalweg.toml");
    std::fs::write(&file, "pub_queue_deph = 1\n").expect("written");
    let file = file.to_str().expect("a path");
    let cases: [(&[&str], &[&str]); 8] = [
        (&["--set", "pub_queue_deph=1", "serve"], &["pub_queue_deph", "pub_queue_depth"]),
        (&["--set", "pub_queue_depth=0", "serve"], &["pub_queue_depth", "1 to 65536"]),
        (&["--set", "pub_queue_depth", "serve"], &["KEY=VALUE"]),
        (&["--config", file, "serve"], &["pub_queue_depth", file]),
        (&["--config", "/nowhere/thalweg.toml", "serve"], &["/nowhere/thalweg.toml"]),
        (&["serve", "--native", "nowhere"], &["native", "host:port"]),
        (&["serve", "--native", "0.0.0.0:0"], &["native", "--insecure"]),
        (&["serve", "--profile", "fast"], &["profile", "balanced", "latency", "throughput"]),
    ];
    for (args, expected) in cases {
        let message = thalweg(args.iter().copied()).failed(2);
        assert!(expected.iter().all(|part| message.contains(part)), "{args:?}: {message}");
        assert_eq!(message.trim_end().lines().count(), 1, "one line is enough: {message}");
    }
    let variable = program().env("THALWEG_MEMORY_MAXIMUM", "1GiB").arg("serve").stderr(Stdio::piped()).output();
    let message = String::from_utf8_lossy(&variable.expect("ended").stderr).into_owned();
    assert!(message.contains("THALWEG_MEMORY_MAXIMUM") && message.contains("memory_max"), "{message}");
}

/// A file in the place of the data directory is a user error, and not a defect.
#[test]
fn a_data_directory_that_is_a_file_is_refused() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let path = file.path().to_str().expect("a path");
    let message = thalweg([
        "serve",
        "--data",
        path,
        "--native",
        "127.0.0.1:0",
        "--http",
        "off",
        "--kafka",
        "off",
        "--sqs",
        "off",
    ])
    .failed(1);
    assert!(message.contains("this is a file; name a directory (invalid)"), "{message}");
}

/// A data directory that cannot be created is an error in its name, and not a defect of the broker.
#[test]
fn a_data_directory_that_cannot_be_created_is_no_defect() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let below = file.path().join("data");
    let data = below.to_str().expect("a path");
    let doors = ["--http", "off", "--kafka", "off", "--sqs", "off", "--redis", "off", "--pubsub", "off"];
    let args = ["serve", "--data", data, "--native", "127.0.0.1:0"].into_iter().chain(doors);
    let message = thalweg(args).failed(1);
    assert!(message.contains("name a directory that can be created (invalid)"), "{message}");
}

/// An unreadable certificate is named.
#[test]
fn a_missing_certificate_is_named() {
    let set = ["--set", "tls_cert=/nowhere/cert.pem", "--set", "tls_key=/nowhere/key.pem"];
    let message = thalweg(set.into_iter().chain([
        "serve",
        "--native",
        "127.0.0.1:0",
        "--http",
        "off",
        "--kafka",
        "off",
        "--sqs",
        "off",
    ]))
    .failed(1);
    assert!(message.contains("/nowhere/cert.pem"), "{message}");
}

/// A full standard output and error cause neither a refusal to serve nor a panic.
#[tokio::test]
async fn a_full_output_is_no_reason_to_stop() {
    let launch = Launch { output: Some("/dev/full".into()), set: vec!["log=debug".into()], ..Launch::default() };
    let mut server = Server::launch(launch);
    let mut bystander = Bystander::of(&server).await;
    for _ in 0..3 {
        let mut raw = Raw::connect(server.address).await;
        raw.write(&[0xff; 64]).await;
        raw.last_words().await.expect("a reason");
    }
    bystander.is_unharmed().await;
    drop(bystander);
    server.signal(Signal::TERM);
    assert_eq!(server.ended().await.code(), Some(0));
}

/// SIGTERM: a client with queued records receives them and a shutdown notice, and then the connection ends; the exit
/// code is 0.
#[tokio::test]
async fn a_stop_drains_queued_records() {
    let mut server = Server::start();
    let mut subscriber = Raw::open(server.address).await;
    subscriber.subscribe(subscribe("t", Overflow::Replay, 0, 1 << 30)).await;
    let quic = server.client("quic").await;
    let mut over_quic = reading::subscribe(&quic, "t", Start::Live).await;
    let mut idle = Raw::open(server.address).await;
    let mut publisher = Raw::open(server.address).await;
    // More than the sockets on the path buffer, less than the overflow of the queue.
    let count = 100;
    for i in 0..count {
        assert_eq!(publisher.publish("t", &[&[b'x'; 128 << 10]]).await, i);
    }
    server.signal(Signal::TERM);
    assert!(matches!(idle.push().await, Push::GoAway { error } if error.kind == ErrorKind::ShuttingDown));
    assert!(matches!(idle.incoming().await, Incoming::Closed));
    let mut deliveries = Vec::new();
    let mut was_told = false;
    loop {
        match subscriber.incoming().await {
            Incoming::Push(Push::GoAway { .. }) => was_told = true,
            Incoming::Push(Push::Ended { error, .. }) => {
                assert_eq!(error.kind, ErrorKind::ShuttingDown);
                break;
            }
            Incoming::Push(push) => deliveries.push(push),
            other => panic!("no push but {other:?}"),
        }
    }
    assert!(was_told);
    assert_eq!(spans(&deliveries), [(0, count, false)]);
    assert!(matches!(subscriber.incoming().await, Incoming::Closed));
    assert_eq!(reading::take(&mut over_quic, count as usize).await.len(), count as usize);
    drop((over_quic, quic));
    assert_eq!(server.ended().await.code(), Some(0));
}

/// A connection without a complete hello does not delay a stop.
#[tokio::test]
async fn a_stop_does_not_wait_for_silent_connections() {
    let mut server = Server::with(&["hello_timeout_ms=600000", "shutdown_timeout_ms=600000"]);
    let mut silent = Raw::connect(server.address).await;
    let mut half = Raw::connect(server.address).await;
    half.write(&[0, 0, 0]).await;
    let mut tls = Raw::connect(server.address).await;
    tls.write(&[0x16]).await;
    Raw::open(server.address).await;
    server.signal(Signal::TERM);
    assert!(matches!(silent.incoming().await, Incoming::Closed));
    assert_eq!(half.last_words().await.expect("a reason").kind, ErrorKind::ShuttingDown);
    assert_eq!(server.ended().await.code(), Some(0));
}

/// A stuck client delays the stop up to its timeout; a second SIGTERM ends it immediately.
#[tokio::test]
async fn a_second_stop_ends_at_once() {
    let mut server = Server::with(&["shutdown_timeout_ms=600000"]);
    let mut stuck = Raw::open(server.address).await;
    stuck.subscribe(subscribe("t", Overflow::Replay, 0, 1 << 30)).await;
    let mut idle = Raw::open(server.address).await;
    let mut publisher = Raw::open(server.address).await;
    for _ in 0..100 {
        publisher.publish("t", &[&[b'x'; 128 << 10]]).await;
    }
    server.signal(Signal::TERM);
    assert!(matches!(idle.push().await, Push::GoAway { .. }));
    assert!(server.is_running(), "it waits for the one that is stuck");
    let begin = Instant::now();
    server.signal(Signal::TERM);
    assert_eq!(server.ended().await.code(), Some(1), "not everything was finished");
    assert!(begin.elapsed() < Duration::from_secs(5));
    assert!(server.log().contains("before everything was finished"));
    drop(stuck);
}

/// A stop ends within its timeout regardless of the clients.
#[tokio::test]
async fn a_stop_has_its_time() {
    let mut server = Server::with(&["shutdown_timeout_ms=300"]);
    let mut stuck = Raw::open(server.address).await;
    stuck.subscribe(subscribe("t", Overflow::Replay, 0, 1 << 30)).await;
    let mut publisher = Raw::open(server.address).await;
    for _ in 0..100 {
        publisher.publish("t", &[&[b'x'; 128 << 10]]).await;
    }
    let begin = Instant::now();
    server.signal(Signal::INT);
    assert_eq!(server.ended().await.code(), Some(1));
    assert!(begin.elapsed() >= Duration::from_millis(300));
    drop(stuck);
}

/// Starts a broker all of whose threads are blocked by writing to a log that no program reads.
fn stuck(shutdown_timeout: &str) -> (Server, File) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("log");
    rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
    // Open at both ends and never read.
    let pipe = File::options().read(true).write(true).open(&path).expect("opened");
    let set = vec!["log=trace".to_owned(), format!("shutdown_timeout_ms={shutdown_timeout}")];
    let server = Server::launch(Launch { output: Some(path), set, ..Launch::default() });
    let until_full = (0..20_000).take_while(|_| {
        let mut socket = TcpStream::connect(server.address).expect("connected");
        socket.set_read_timeout(Some(Duration::from_secs(1))).expect("set");
        socket.write_all(&[0xff; 64]).is_ok() && !matches!(socket.read(&mut [0; 1]), Err(e) if e.kind() == WouldBlock)
    });
    assert!(until_full.count() < 20_000, "no thread is stuck");
    (server, pipe)
}

#[tokio::test]
async fn a_stop_has_its_time_even_if_all_threads_are_stuck() {
    let (mut server, _pipe) = stuck("300");
    let begin = Instant::now();
    server.signal(Signal::TERM);
    assert_eq!(server.ended().await.code(), Some(1), "not everything was finished");
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn a_second_stop_ends_at_once_even_if_all_threads_are_stuck() {
    let (mut server, _pipe) = stuck("600000");
    server.signal(Signal::TERM);
    let begin = Instant::now();
    // A different signal: two pending signals of the same kind are merged.
    server.signal(Signal::INT);
    assert_eq!(server.ended().await.code(), Some(1), "not everything was finished");
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
}

/// Datagrams that are not QUIC, of all sizes and prefixes, have no effect.
#[tokio::test]
async fn garbage_datagrams_are_ignored() {
    let server = Server::start();
    let mut bystander = Bystander::of(&server).await;
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let mut state = 0x5eed_u32;
    for i in 0..size("HARDENING_DATAGRAMS", 3_000) {
        let datagram: Vec<u8> = (0..i % 1_500)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            })
            .collect();
        socket.send_to(&datagram, server.address).expect("sent");
    }
    // Headers that look like the start of a connection of some version.
    for version in [0u32, 1, 2, 0x0a0a_0a0a, u32::MAX] {
        let mut datagram = vec![0xc0];
        datagram.extend(version.to_be_bytes());
        datagram.extend([20; 1_200]);
        socket.send_to(&datagram, server.address).expect("sent");
    }
    bystander.is_unharmed().await;
    let late = server.client("quic").await;
    within("ping", late.ping()).await.expect("served");
}

/// A QUIC client that vanishes is detected by its silence.
#[tokio::test]
async fn a_client_that_vanishes_is_noticed() {
    let server = Server::start();
    let watcher = server.client("tcp").await;
    let mut client = program()
        .args(["--server", &server.url("quic"), "subscribe", "t", "--create"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    until("it subscribes", async || metric(&watcher, "thalweg_subscribers").await == 1).await;
    client.kill().expect("killed");
    client.wait().expect("gone");
    let begin = Instant::now();
    until("it is noticed", async || metric(&watcher, "thalweg_native_connections").await == 1).await;
    assert!(begin.elapsed() < Duration::from_secs(15));
    until("its subscription is gone", async || metric(&watcher, "thalweg_subscribers").await == 0).await;
}

/// The ready file exists once every door accepts connections, and contains their addresses.
#[tokio::test]
async fn the_ready_file_tells_the_truth() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let ready_file = folder.path().join("ready.json");
    let mut child = program()
        .args([
            "serve",
            "--native",
            "127.0.0.1:0",
            "--http",
            "127.0.0.1:0",
            "--kafka",
            "off",
            "--sqs",
            "off",
            "--ready-file",
        ])
        .arg(&ready_file)
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    until("it is ready", async || ready_file.exists()).await;
    let text = std::fs::read_to_string(&ready_file).expect("whole");
    let ready: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(ready["pid"], child.id());
    let native: std::net::SocketAddr = ready["native"].as_str().expect("an address").parse().expect("an address");
    assert!(matches!(Raw::open(native).await.call(&Request::Ping).await, Response::Pong));
    let http = ready["http"].as_str().expect("an address").to_owned();
    let mut socket = within("http", tokio::net::TcpStream::connect(&http)).await.expect("connected");
    let request = format!("GET /healthz HTTP/1.1\r\nHost: {http}\r\nConnection: close\r\n\r\n");
    within("a request", tokio::io::AsyncWriteExt::write_all(&mut socket, request.as_bytes())).await.expect("written");
    let mut answer = String::new();
    within("an answer", socket.read_to_string(&mut answer)).await.expect("text");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    child.kill().expect("killed");
    let out = child.wait_with_output().expect("ended").stdout;
    let banner = String::from_utf8_lossy(&out).into_owned();
    assert!(banner.contains(&native.to_string()) && banner.contains(&http), "{banner}");
}

/// Every door alike must not be bound for other machines without TLS and logins, unless `--insecure` permits it.
#[test]
fn every_door_that_others_reach_needs_tls_and_logins_or_insecure() {
    for door in broker::Door::ALL.map(broker::Door::key) {
        let flag = format!("--{door}");
        for more in [&[][..], &["--set", "auth=required"], &["--set", "tls_cert=a", "--set", "tls_key=b"]] {
            let message = thalweg([&["serve", &flag, "0.0.0.0:0"], more].concat()).failed(2);
            assert!(message.contains(&format!("{door} = 0.0.0.0:0 can be reached")), "{more:?}: {message}");
            assert!(message.contains("--insecure"), "{message}");
        }
    }
}

/// The banner and the status name each door with its address and what it requires, and why some doors are exempt.
#[tokio::test]
async fn the_banner_and_the_status_show_what_each_door_requires() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [ready_file, socket] = ["ready.json", "native.sock"].map(|name| folder.path().join(name));
    let unix = format!("native_unix={}", socket.display());
    let others = ["http", "kafka", "pubsub", "redis", "sqs"];
    let mut child = program()
        .args(["serve", "--native", "127.0.0.1:0", "--insecure", "--set", "auth=required", "--set", &unix])
        .args(others.iter().flat_map(|door| [format!("--{door}"), "0.0.0.0:0".to_owned()]))
        .arg("--ready-file")
        .arg(&ready_file)
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    until("it is ready", async || ready_file.exists()).await;
    let ready: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&ready_file).expect("whole")).expect("JSON");
    let address = format!("unix:{}", socket.display());
    let status = thalweg(["--server", &address, "status"]).ok();
    let doors = thalweg(["--server", &address, "status", "--json"]).json()["doors"].clone();
    child.kill().expect("killed");
    let out = child.wait_with_output().expect("ended").stdout;
    let banner = String::from_utf8_lossy(&out).into_owned();
    for (at, door) in broker::Door::ALL.into_iter().enumerate() {
        let login = if door == broker::Door::Sqs { "signature" } else { "password, token" };
        let bound = ready[door.key()].as_str().expect("an address");
        let row = banner.lines().find(|line| line.contains(bound)).expect("a line for each door");
        assert!(row.trim_start().starts_with(door.key()), "{banner}");
        assert!(row.ends_with(&format!("TLS optional, login: {login}")), "{banner}");
        let exempt = if door == broker::Door::Native { "loopback" } else { "insecure" };
        let row = status.lines().find(|line| line.contains(bound)).expect("a row for each door");
        assert!(["optional", login, exempt].iter().all(|part| row.contains(part)), "{status}");
        let shown = &doors[at];
        let [tls, of_login, why] = ["tls", "login", "exempt"].map(|key| shown[key].as_str().unwrap_or_default());
        assert_eq!((tls, of_login, why), ("optional", login, exempt), "{shown}");
    }
    assert!([&banner, &status].iter().all(|text| text.contains(&address)), "{status}");
    assert_eq!(doors[0]["unix"].as_str(), socket.to_str());
    for exempt in [
        "tls     generated certificate",
        "exempt  native: no TLS needed, as only this machine reaches them",
        "exempt  http, kafka, pubsub, redis, sqs: no TLS needed from other machines (--insecure)",
        "exempt  unix: no TLS needed, and no login for the broker's own user and root",
    ] {
        assert!(banner.contains(exempt), "{banner}");
    }
}

/// A broker process that is stopped for a while, as on a sleeping laptop, continues.
#[tokio::test]
async fn a_broker_that_sleeps_goes_on() {
    let server = Server::start();
    let client = server.client("tcp").await;
    let mut subscription = reading::subscribe(&client, "t", Start::Live).await;
    server.freeze();
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.publish("t", client::Record::new("x")).await }
    });
    let nothing = tokio::time::timeout(Duration::from_millis(200), subscription.next()).await;
    assert!(nothing.is_err(), "it sleeps");
    server.signal(Signal::CONT);
    within("the publish", waiting).await.expect("no panic").expect("published");
    assert_eq!(values(&mut subscription, 1).await, ["x"]);
}
