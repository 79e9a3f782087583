//! The service runtime under its own load, each half in a process of its own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::command::thalweg;
use crate::server::{PATIENCE, program};

/// A server of the reference frames. It is killed when this is dropped.
struct Serve {
    child: Child,
    out: BufReader<ChildStdout>,
    /// As it says where it listens: a port, or a path.
    place: String,
}

impl Serve {
    fn with(args: &[&str]) -> Self {
        let mut child = program()
            .args(["bench", "rpc", "serve"])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        out.read_line(&mut line).expect("its first line");
        let place = line.strip_prefix("listening ").map(str::trim).unwrap_or_default().to_owned();
        Self { child, out, place }
    }

    /// What it says it has done.
    fn stop(mut self) -> Value {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a process");
        kill_process(pid, Signal::TERM).expect("signalled");
        let mut said = String::new();
        self.out.read_to_string(&mut said).expect("its last line");
        assert!(self.child.wait().expect("its status").success());
        serde_json::from_str(&said).expect("JSON")
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.child.kill().unwrap_or_default();
        self.child.wait().map(drop).unwrap_or_default();
    }
}

/// A request or a response of the reference frames.
fn frame(id: u64, body: &[u8]) -> Vec<u8> {
    let mut frame = (20 + body.len() as u32).to_le_bytes().to_vec();
    frame.extend(id.to_le_bytes());
    frame.extend(1u64.to_le_bytes());
    frame.extend(3u32.to_le_bytes());
    frame.extend(body);
    frame
}

/// Requests that come at once are answered in their order, by the bytes that were asked for; the last line says
/// how many.
#[test]
fn a_server_answers_and_says_what_it_did() {
    let serve = Serve::with(&["--bind", "127.0.0.1:0", "--server-threads", "1", "--response-bytes", "5"]);
    let mut socket = TcpStream::connect(format!("127.0.0.1:{}", serve.place)).expect("connected");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket.write_all(&[frame(7, b"seven"), frame(8, b""), frame(9, &[0; 70_000])].concat()).expect("sent");
    let mut answers = vec![0; 3 * 29];
    socket.read_exact(&mut answers).expect("answered");
    assert_eq!(answers, [frame(7, b"aaaaa"), frame(8, b"aaaaa"), frame(9, b"aaaaa")].concat());
    drop(socket);
    let served = serve.stop();
    assert_eq!(
        (&served["requests"], &served["connections"], &served["bytes_written"], &served["faults"]),
        (&3.into(), &1.into(), &87.into(), &0.into())
    );
}

/// What cannot be is refused before anything is served.
#[test]
fn a_server_that_cannot_be_is_refused() {
    let taken = Serve::with(&["--bind", "127.0.0.1:0"]);
    let place = format!("127.0.0.1:{}", taken.place);
    let message = thalweg(["bench", "rpc", "serve", "--bind", &place]).failed(1);
    assert!(message.contains(&format!("cannot serve at {place}")), "{message}");
    thalweg(["bench", "rpc", "serve", "--unix", "socket", "--tls"]).failed(2);
    thalweg(["bench", "rpc", "serve", "--tls-cert", "chain.pem"]).failed(2);
    let message = thalweg(["bench", "rpc", "serve", "--tls-cert", "none.pem", "--tls-key", "none.pem"]).failed(1);
    assert!(message.contains("none.pem"), "{message}");
}
