//! The service runtime under its own load generator, each in a separate process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::command::{Done, run, thalweg};
use crate::support::server::{PATIENCE, program};

/// Server of the reference frames. Dropping it kills the process.
struct Serve {
    child: Child,
    out: BufReader<ChildStdout>,
    /// Address as printed by the server: a port, or a path.
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

    /// Stops the server and returns its report.
    fn stop(mut self) -> Value {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a process");
        kill_process(pid, Signal::TERM).expect("signalled");
        let mut report = String::new();
        self.out.read_to_string(&mut report).expect("its last line");
        assert!(self.child.wait().expect("its status").success());
        serde_json::from_str(&report).expect("JSON")
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        // It may already have ended.
        self.child.kill().unwrap_or_default();
        self.child.wait().map(drop).unwrap_or_default();
    }
}

/// Returns a request or a response of the reference frames.
fn frame(id: u64, body: &[u8]) -> Vec<u8> {
    let mut frame = (20 + body.len() as u32).to_le_bytes().to_vec();
    frame.extend(id.to_le_bytes());
    frame.extend(1u64.to_le_bytes());
    frame.extend(3u32.to_le_bytes());
    frame.extend(body);
    frame
}

/// Pipelined requests are answered in order, with the requested number of bytes; the last line contains their number.
#[test]
fn a_server_answers_and_reports_its_requests() {
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

/// Impossible settings are refused before anything is served.
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

/// Returns the report of a load of a fraction of a second, which must succeed.
fn load(args: &[&str]) -> Value {
    let short = ["--duration-secs", "0.4", "--warm-up-secs", "0.05", "--json"];
    thalweg(["bench", "rpc", "load"].into_iter().chain(args.iter().copied()).chain(short)).json()
}

/// Checks that the server has answered the requests of the load and those before and after it, without errors.
fn check(found: &Value, served: &Value, connections: u64) {
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("no count in {found} or {served}"));
    assert_eq!((number(&found["errors"]), number(&served["faults"]), number(&served["timeouts"])), (0, 0, 0));
    assert_eq!((number(&served["connections"]), number(&served["cut_off"])), (connections, 0));
    let requests = number(&found["requests"]);
    let served = number(&served["requests"]);
    assert!(requests > 0 && requests <= served, "{requests} of {served}");
}

/// Over every transport the load receives all responses, and reports the settings that a comparison has to keep fixed.
#[test]
fn every_transport_carries_a_load() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket").display().to_string();
    let tcp = ["--bind", "127.0.0.1:0", "--server-threads", "1"];
    let cases: [(&str, &[&str], &[&str]); 4] = [
        ("tcp", &[], &[]),
        ("tls", &["--tls"], &["--tls", "--tls-insecure"]),
        ("quic", &["--quic"], &["--quic", "--tls-insecure"]),
        ("unix", &[], &[]),
    ];
    for (transport, serve_args, load_args) in cases {
        let serve = match transport {
            "unix" => Serve::with(&["--unix", &path, "--server-threads", "1"]),
            _ => Serve::with(&[&tcp, serve_args].concat()),
        };
        let place = serve.place.clone();
        let place: &[&str] = if transport == "unix" { &["--unix", &place] } else { &[&place] };
        let found = load(&[place, load_args, &["--connections", "6", "--threads", "2", "--pipeline", "3"]].concat());
        assert_eq!(
            (&found["transport"], &found["connections"], &found["pipeline"], &found["client_threads"]),
            (&transport.into(), &6.into(), &3.into(), &2.into())
        );
        for key in ["commit", "kernel", "cpu", "governor", "allocator", "client", "command", "load_average_before"] {
            assert!(found.get(key).is_some(), "no {key} in {found}");
        }
        check(&found, &serve.stop(), 6);
    }
}

/// A certificate is trusted only if the named file contains it.
#[test]
fn a_load_over_tls_requires_a_trusted_certificate() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name).display().to_string();
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).expect("a certificate");
    std::fs::write(file("chain.pem"), made.cert.pem()).expect("written");
    std::fs::write(file("key.pem"), made.signing_key.serialize_pem()).expect("written");
    let other = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).expect("a certificate");
    std::fs::write(file("other.pem"), other.cert.pem()).expect("written");
    let chain = file("chain.pem");
    let key = file("key.pem");
    let other = file("other.pem");
    let serve = Serve::with(&["--bind", "127.0.0.1:0", "--tls", "--tls-cert", &chain, "--tls-key", &key]);
    let place = serve.place.clone();
    let message = thalweg(["bench", "rpc", "load", &place, "--tls"]).failed(2);
    assert!(message.contains("--ca-file") && message.contains("--tls-insecure"), "{message}");
    let message = thalweg(["bench", "rpc", "load", &place, "--tls", "--ca-file", &other]).failed(1);
    assert!(message.contains("certificate"), "{message}");
    let found = load(&[&place, "--tls", "--ca-file", &chain, "--connections", "2"]);
    assert_eq!(found["errors"], 0);
}

/// An open-loop client keeps its rate, and reports its delays.
#[test]
fn an_open_loop_keeps_to_its_rate() {
    let serve = Serve::with(&["--bind", "127.0.0.1:0"]);
    let place = serve.place.clone();
    let found = load(&[&place, "--rate", "2000", "--connections", "7", "--threads", "2"]);
    assert_eq!((&found["due"], &found["timed"]), (&800.into(), &800.into()), "{found}");
    assert!(found["sent_late_p99_us"].as_f64().is_some_and(|us| us > 0.0), "{found}");
    let served = serve.stop();
    assert_eq!(served["requests"], 900, "those of the warm-up, too");
}

/// A load with wrong responses fails.
#[test]
fn a_load_with_errors_fails() {
    let serve = Serve::with(&["--bind", "127.0.0.1:0", "--response-bytes", "3"]);
    let args = ["bench", "rpc", "load", &serve.place, "--connections", "2", "--duration-secs", "0.1"];
    let message = thalweg(args).failed(1);
    assert!(message.contains("the answer to 0 has 3 bytes, not 64"), "{message}");
    let place = serve.place.clone();
    serve.stop();
    let message = thalweg(["bench", "rpc", "load", &place]).failed(1);
    assert!(message.contains("cannot connect to 127.0.0.1:"), "{message}");
}

/// Runs the program in a folder with this profile, and with a broker's configuration in the environment.
fn with_profile(profile: &str, args: &[&str]) -> Done {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("profile.toml"), profile).expect("written");
    let mut program = program();
    program.current_dir(folder.path()).env("THALWEG_CONFIG", "broker.toml").args(["bench", "rpc"]).args(args);
    run(program.stdout(Stdio::piped()).stderr(Stdio::piped()), b"")
}

const SHORT: [&str; 7] = ["--connections", "4", "--duration-secs", "0.4", "--warm-up-secs", "0.05", "--json"];

/// Without `serve` or `load` both are run, and the cost of a request for the server is reported as well.
#[test]
fn both_halves_come_with_one_command() {
    let done = with_profile("", &[&["--server-threads", "1", "--response-bytes", "9"], &SHORT[..]].concat());
    let found = done.json();
    assert_eq!((&found["transport"], &found["response_bytes"]), (&"tcp".into(), &9.into()));
    assert_eq!((&found["server_threads"], &found["server"]["threads"]), (&1.into(), &1.into()));
    assert!(found["server_cpu_us_per_request"].as_f64().is_some_and(|us| us > 0.0), "{found}");
    check(&found, &found["server"], 4);
    let done = with_profile("", &[&["--quic", "--rounds", "2", "--server-threads", "1"], &SHORT[..]].concat());
    let found = done.json();
    assert_eq!((&found["transport"], &found["rounds"]["count"]), (&"quic".into(), &2.into()));
}

/// A profile sets the server, and thereby the protocol of the load; options override it.
#[test]
fn a_profile_sets_both_halves() {
    let profile = "server_threads = 1\ntls_self_signed = true\nresponse_bytes = 7\nlow_memory = true\n\
        read_buffer_capacity = 1\n[request_metrics]\nbytes = false";
    let args = ["--config", "profile.toml"];
    let found = with_profile(profile, &[&args, &SHORT[..]].concat()).json();
    assert_eq!((&found["transport"], &found["response_bytes"]), (&"tls".into(), &7.into()));
    assert!(found["server"].get("bytes_read").is_none(), "{found}");
    assert_eq!(found["allocator"], "mimalloc, on the server with low_memory");
    let found = with_profile(profile, &[&args, &["--response-bytes", "8"], &SHORT[..]].concat()).json();
    assert_eq!(found["response_bytes"], 8);
    let done = with_profile(profile, &[&args, &SHORT[..6]].concat());
    assert!(done.err.contains("read_buffer_capacity changes nothing"), "{done:?}");
}

/// An invalid profile is refused, with a suggestion of the nearest valid key.
#[test]
fn a_key_that_no_profile_has_is_refused() {
    let args = ["--config", "profile.toml"];
    for half in [&["serve"][..], &[]] {
        let message = with_profile("[limits]\nmax_conections = 5", &[half, &args].concat()).failed(2);
        let hint = "profile.toml: there is no key limits.max_conections; did you mean limits.max_connections?";
        assert!(message.contains(hint), "{message}");
    }
    let message = with_profile("tls_self_signed = true", &[&args[..], &["--floor"]].concat()).failed(2);
    assert!(message.contains("does not use TLS"), "{message}");
    let message = with_profile("", &["--floor", "nowhere"]).failed(2);
    assert!(message.contains("make -C nowhere"), "{message}");
}
