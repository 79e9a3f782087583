//! Examples, which must behave as their headers describe.

use std::path::Path;
use std::time::Duration;

use net::{Address, Server};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpStream, UnixStream};

use crate::harness::{noise, within};

#[allow(dead_code)]
#[path = "../../examples/custom_protocol.rs"]
mod custom_protocol;
#[allow(dead_code)]
#[path = "../../examples/echo.rs"]
mod echo;
#[allow(dead_code)]
#[path = "../../examples/kv.rs"]
mod kv;
#[allow(dead_code)]
#[path = "../../examples/layers.rs"]
mod layers;

fn anywhere() -> std::net::SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

async fn connect(address: &Address) -> TcpStream {
    let Address::Tcp(address) = address else { panic!("{address} is not TCP") };
    within("connecting", TcpStream::connect(address)).await.expect("connected")
}

/// Runs the console session in a header: the typed lines and their answers.
async fn dialogue(socket: &mut TcpStream, lines: &[(&str, &str)]) {
    let (input, mut output) = socket.split();
    let mut answers = BufReader::new(input).lines();
    for (line, answer) in lines {
        within("sending", output.write_all(format!("{line}\n").as_bytes())).await.expect("sent");
        let received = within("an answer", answers.next_line()).await.expect("a line");
        assert_eq!(received.as_deref(), Some(*answer), "to {line}");
    }
}

async fn end(server: Server) {
    let ended = within("the end", server.shutdown().run(Duration::from_millis(100))).await;
    assert_eq!(ended.stuck, 0, "{ended:?}");
}

#[tokio::test]
async fn a_custom_protocol_sums_lines_of_numbers() {
    let (server, address) = custom_protocol::serve(anywhere()).expect("bound");
    let mut socket = connect(&address).await;
    let lines =
        [("1 2 39", "42"), ("one two", "error: 'one': invalid digit found in string"), ("", "0"), ("-7 \t 7  1", "1")];
    dialogue(&mut socket, &lines).await;
    within("sending", socket.write_all(b"\xff\n")).await.expect("sent");
    let mut words = String::new();
    within("the end", socket.read_to_string(&mut words)).await.expect("a text");
    assert!(words.starts_with("error: invalid utf-8"), "{words}");
    end(server).await;
}

async fn is_echoed(mut socket: impl AsyncRead + AsyncWrite + Unpin) {
    let bytes = noise(1, 3_000_000);
    let mut echoed = vec![0; bytes.len()];
    let (mut input, mut output) = tokio::io::split(&mut socket);
    let (sent, read) = tokio::join!(output.write_all(&bytes), within("an echo", input.read_exact(&mut echoed)));
    assert!(sent.is_ok() && read.is_ok() && echoed == bytes);
}

#[tokio::test]
async fn an_echo_returns_its_input() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("echo");
    let (server, addresses) = echo::serve(anywhere(), &path).expect("bound");
    is_echoed(connect(&addresses[0]).await).await;
    is_echoed(UnixStream::connect(Path::new(&path)).await.expect("connected")).await;
    end(server).await;
}

#[tokio::test]
async fn a_store_is_shared_by_all_connections() {
    let (server, address) = kv::serve(anywhere()).expect("bound");
    let mut one = connect(&address).await;
    let mut other = connect(&address).await;
    dialogue(&mut one, &[("SET greeting hello world", "OK"), ("GET greeting", "hello world")]).await;
    dialogue(&mut other, &[("GET greeting", "hello world"), ("DEL greeting", "1"), ("DEL greeting", "0")]).await;
    dialogue(&mut one, &[("GET greeting", "NONE"), ("PUT a b", "ERROR it is GET key, SET key value or DEL key")]).await;
    end(server).await;
}

#[tokio::test]
async fn layers_refuse_and_change() {
    let (server, address) = layers::serve(anywhere()).expect("bound");
    let mut socket = connect(&address).await;
    let lines = [("hello", "1: HELLO"), ("DROP TABLE", "REFUSED: that is shouting"), ("again", "2: AGAIN")];
    dialogue(&mut socket, &lines).await;
    end(server).await;
}
