//! Clients at the wrong door or without a broker: their errors, and the time until these are reported.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use crate::support::command::{on, thalweg};
use crate::support::server::{PATIENCE, Server};

const HTTP: &[u8] = b"GET /v1/topics HTTP/1.1\r\nHost: localhost\r\n\r\n";
const SQS: &[u8] =
    b"POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: AmazonSQS.ListQueues\r\nContent-Length: 2\r\n\r\n{}";
const REDIS: &[u8] = b"*1\r\n$4\r\nPING\r\n";
/// `ApiVersions` in version 3, from a client named c.
const KAFKA: &[u8] = b"\0\0\0\x14\0\x12\0\x03\0\0\0\x01\0\x01c\0\x02c\x021\0\0";
/// The first two bytes of the body are the version of the protocol; the rest does not matter here.
const NATIVE: &[u8] = b"\0\0\0\x10\x01\0\0\0\0\0\0\x01\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

fn everything() -> Server {
    Server::with(&["http=127.0.0.1:0", "redis=127.0.0.1:0", "pubsub=127.0.0.1:0"])
}

/// Returns all bytes that a door sends in response before it closes the connection.
fn answer(door: SocketAddr, first: &[u8]) -> String {
    let mut socket = TcpStream::connect(door).expect("connected");
    socket.set_read_timeout(Some(PATIENCE)).expect("a time limit");
    socket.write_all(first).expect("written");
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).expect("the door closes the connection");
    String::from_utf8_lossy(&answer).into_owned()
}

/// Each door tells clients of other doors its name, their protocol, and the right address; then it closes the
/// connection.
#[test]
fn a_door_sends_strangers_to_theirs() {
    let server = everything();
    let doors = ["native", "http", "kafka", "pubsub", "redis", "sqs"].map(|door| (door, server.door(door)));
    let at = |wanted: &str| doors.iter().find(|(door, _)| *door == wanted).expect("a door").1;
    for (here, name, first, spoken, wanted) in [
        ("native", "native", HTTP, "HTTP", "http"),
        ("native", "native", SQS, "Amazon SQS", "sqs"),
        ("native", "native", REDIS, "Redis", "redis"),
        ("native", "native", b"PING\r\n", "Redis", "redis"),
        ("native", "native", KAFKA, "Kafka", "kafka"),
        ("kafka", "Kafka", HTTP, "HTTP", "http"),
        ("kafka", "Kafka", REDIS, "Redis", "redis"),
        ("kafka", "Kafka", NATIVE, "native", "native"),
        ("redis", "Redis", HTTP, "HTTP", "http"),
        ("redis", "Redis", KAFKA, "Kafka", "kafka"),
        ("redis", "Redis", NATIVE, "native", "native"),
        ("http", "HTTP", KAFKA, "Kafka", "kafka"),
        ("http", "HTTP", REDIS, "Redis", "redis"),
        ("http", "HTTP", NATIVE, "native", "native"),
        ("sqs", "SQS", KAFKA, "Kafka", "kafka"),
        ("sqs", "SQS", REDIS, "Redis", "redis"),
        ("pubsub", "Pub/Sub", KAFKA, "Kafka", "kafka"),
        ("pubsub", "Pub/Sub", REDIS, "Redis", "redis"),
    ] {
        let told = answer(at(here), first);
        for expected in [format!("this is the {name} door"), spoken.to_owned(), at(wanted).to_string()] {
            assert!(told.contains(&expected), "{spoken} at {here}: no '{expected}' in {told}");
        }
    }
    // Each in a form that its client shows.
    assert!(answer(at("kafka"), HTTP).starts_with("HTTP/1.1 400 Bad Request\r\n"));
    assert!(answer(at("native"), REDIS).starts_with("-ERR "));
    // As Redis itself responds to other protocols.
    assert!(answer(at("redis"), HTTP).starts_with("-ERR "));
    assert!(answer(at("redis"), b"POST / HTTP/1.1\r\nHost: a\r\n\r\n").starts_with("-ERR this is the Redis door"));
}

/// Doors that use HTTP recognize each other's requests.
#[test]
fn a_request_for_another_http_door_is_referred_to_it() {
    let server = everything();
    let told = answer(server.door("http"), &[&SQS[..SQS.len() - 2], b"Connection: close\r\n\r\n{}"].concat());
    assert!(told.contains(&server.door("sqs").to_string()), "{told}");
    // Amazon's SDKs show the message only in this form.
    for door in ["http", "pubsub"] {
        let told = answer(server.door(door), &[&SQS[..SQS.len() - 2], b"Connection: close\r\n\r\n{}"].concat());
        let shown = r#"{"__type":"com.amazonaws.sqs#InvalidAddress","message":"this is the "#;
        assert!(told.contains(shown), "{door}: {told}");
    }
    let topics = b"GET /v1/topics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    for door in ["sqs", "pubsub"] {
        let told = answer(server.door(door), topics);
        assert!(told.contains(&server.door("http").to_string()), "{door}: {told}");
    }
    let project = b"GET /v1/projects/p/topics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    for door in ["http", "sqs"] {
        let told = answer(server.door(door), project);
        assert!(told.contains(&server.door("pubsub").to_string()), "{door}: {told}");
    }
}

/// A closed door is named with the flag that opens it. Inline commands of Redis are not taken for HTTP.
#[test]
fn a_closed_door_is_named_with_its_flag() {
    let server = Server::with(&["redis=127.0.0.1:0"]);
    let told = answer(server.kafka, HTTP);
    assert!(told.contains("the HTTP door is closed: start the broker with --http HOST:PORT"), "{told}");
    let mut socket = TcpStream::connect(server.door("redis")).expect("connected");
    socket.set_read_timeout(Some(PATIENCE)).expect("a time limit");
    socket.write_all(b"SET k HTTP/1.1\r\nGET k\r\n").expect("written");
    let mut answer = [0; 5 + 14];
    socket.read_exact(&mut answer).expect("two answers");
    assert_eq!(&answer[..], b"+OK\r\n$8\r\nHTTP/1.1\r\n");
}

/// With an unused port, QUIC fails as soon as TCP does, and names the address.
#[test]
fn an_unused_port_fails_immediately() {
    let free = {
        let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
        let udp = UdpSocket::bind(tcp.local_addr().expect("an address")).expect("the same for UDP");
        udp.local_addr().expect("an address")
    };
    let address = free.to_string();
    // The first run reads the program from disk.
    for attempt in 0..5 {
        let begin = Instant::now();
        let message = thalweg(["--server", &address, "topic", "list"]).failed(3);
        let took = begin.elapsed();
        assert!(message.contains(&format!("quic://{address}")) && message.contains("refused"), "{message}");
        if took < Duration::from_millis(100) {
            return;
        }
        // A busy machine may be slow at times, but not five times in a row.
        assert!(attempt < 4, "took {took:?}");
    }
}

/// The command line reports that it reached another door, or no door at all.
#[test]
fn the_command_line_is_told_which_door_it_found() {
    let server = everything();
    for (door, name) in
        [("http", "HTTP"), ("kafka", "Kafka"), ("redis", "Redis"), ("sqs", "SQS"), ("pubsub", "Pub/Sub")]
    {
        let address = server.door(door).to_string();
        for scheme in ["tcp", "quic"] {
            let begin = Instant::now();
            let message = thalweg(["--server", &format!("{scheme}://{address}"), "topic", "list"]).failed(3);
            let way = format!("the native door is at {}", server.address);
            assert!(message.contains(&format!("this is the {name} door")) && message.contains(&way), "{message}");
            assert!(begin.elapsed() < Duration::from_secs(4), "{scheme} at {door} took {:?}", begin.elapsed());
        }
    }
    // HTTP server that is not part of the broker.
    let other = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = other.local_addr().expect("an address").to_string();
    let served = std::thread::spawn(move || {
        let (mut socket, _) = other.accept().expect("a client");
        let mut first = [0; 12];
        socket.read_exact(&mut first).expect("a hello");
        socket.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").expect("written");
    });
    let message = thalweg(["--server", &format!("tcp://{address}"), "topic", "list"]).failed(3);
    assert!(message.contains("no native door") && message.contains("speaks HTTP"), "{message}");
    served.join().expect("no panic");
}

/// A port at which a silent program listens is named, over TCP, over QUIC, and over TLS.
#[test]
fn a_port_that_stays_silent_is_named() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("an address");
    for scheme in ["tcp", "quic"] {
        let server = format!("{scheme}://{address}");
        let set = ["--set", "connect_timeout_ms=300", "--server", &server, "topic", "list"];
        let message = thalweg(set).failed(3);
        let expected = format!("no connection to {server} within 300 ms; the server there accepts connections");
        assert!(message.contains(&expected), "{message}");
    }
    let server = everything();
    let http = format!("tls://{}", server.door("http"));
    let message = thalweg(["--server", &http, "topic", "list"]).failed(3);
    assert!(message.contains(&format!("no native door at {http}: the server there accepts connections")), "{message}");
}

/// `status` names every open door with its address.
#[test]
fn status_shows_doors_and_contents_of_a_broker() {
    let server = everything();
    on(&server, ["publish", "orders", "x", "-n", "3"]).ok();
    on(&server, ["queue", "create", "jobs"]).ok();
    on(&server, ["cache", "put", "c", "k", "v"]).ok();
    let status = on(&server, ["--json", "status"]).json();
    assert_eq!((&status["version"], &status["commit"]), (&thalweg::VERSION.into(), &thalweg::COMMIT.into()));
    assert_eq!((&status["queues"], &status["caches"], &status["cache_entries"]), (&1.into(), &1.into(), &1.into()));
    assert_eq!((&status["storage"], &status["records"]), (&"memory".into(), &3.into()));
    let doors = status["doors"].as_array().expect("a list");
    for door in ["native", "http", "kafka", "pubsub", "redis", "sqs"] {
        let found = doors.iter().find(|found| found["door"] == door).unwrap_or_else(|| panic!("{door}: {status}"));
        assert_eq!(found["address"], server.door(door).to_string(), "{door}");
    }
    let text = on(&server, ["status"]).ok();
    assert!(text.contains(&server.door("redis").to_string()) && text.contains("3 records"), "{text}");
}
