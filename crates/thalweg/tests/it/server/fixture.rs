//! In-process server for tests: all doors, on free ports.

use client::{Client, Record, Start};
use thalweg::config::Config;
use thalweg::{Door, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Two servers at the same time have separate ports and separate data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_run_beside_each_other_with_all_doors() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = || Config::builder().free_ports().set("memory_max", "64MiB");
    let first = Server::start(&config().data(folder.path()).build().expect("valid")).await.expect("started");
    let second = Server::start(&config().build().expect("valid")).await.expect("started");
    for server in [&first, &second] {
        let doors = Door::ALL.map(|door| server.address(door));
        assert!(doors.iter().all(|door| door.is_some_and(|address| address.ip().is_loopback())), "{doors:?}");
    }

    let native = first.address(Door::Native).expect("open");
    let client = Client::connect(&format!("tcp://{native}")).await.expect("connected");
    client.publish("orders", Record::new("one coffee")).await.expect("published");
    let mut orders = client.subscribe("orders").start(Start::Earliest).open().await.expect("subscribed");
    assert_eq!(orders.next().await.expect("a message").record.value(), b"one coffee");

    let topics = |server: &Server| {
        let address = server.address(Door::Http).expect("open");
        async move {
            let mut socket = TcpStream::connect(address).await.expect("connected");
            let request = format!("GET /v1/topics/orders HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
            socket.write_all(request.as_bytes()).await.expect("sent");
            let mut answer = String::new();
            socket.read_to_string(&mut answer).await.expect("answered");
            answer.split_whitespace().nth(1).map(str::to_owned)
        }
    };
    assert_eq!(topics(&first).await.as_deref(), Some("200"));
    assert_eq!(topics(&second).await.as_deref(), Some("404"));

    let mut redis = TcpStream::connect(second.address(Door::Redis).expect("open")).await.expect("connected");
    redis.write_all(b"PING\r\n").await.expect("sent");
    let mut pong = [0; 7];
    redis.read_exact(&mut pong).await.expect("answered");
    assert_eq!(&pong, b"+PONG\r\n");
    drop((orders, client));
    assert!(first.shut_down().await && second.shut_down().await);
}

#[test]
fn a_key_that_does_not_exist_is_refused_with_the_nearest() {
    let wrong = Config::builder().set("memory_mx", "1GiB").build().expect_err("refused");
    assert!(wrong.0.contains("did you mean memory_max?"), "{wrong}");
    assert!(Config::builder().set("memory_max", "many").build().is_err());
}
