//! Cluster whose nodes are processes on this machine.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Instant;

use client::{Client, ClientSettings};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::command::{Done, run};
use super::ports::free_ports;
use super::server::{PATIENCE, connect, program, until, within};

/// Ports of a node: one for other nodes, one for each door, and one for its own state.
const PORTS: u16 = 8;
/// Doors of a node, in the order of their ports after that of the cluster.
const DOORS: [&str; 6] = ["native", "http", "kafka", "pubsub", "redis", "sqs"];

/// Running cluster. Dropping it kills the processes.
pub struct Cluster {
    nodes: BTreeMap<u64, Node>,
    /// Pairs for `--set`.
    set: Vec<String>,
    folder: TempDir,
}

/// Node of a cluster.
struct Node {
    /// `None` while it does not run.
    child: Option<Child>,
    port: u16,
}

impl Cluster {
    /// Starts a cluster of this number of nodes, and waits until all vote.
    pub async fn start(count: usize) -> Self {
        Self::with(count, &[]).await
    }

    /// Starts a cluster whose nodes have these settings.
    pub async fn with(count: usize, set: &[&str]) -> Self {
        let set = set.iter().map(|pair| (*pair).to_owned()).collect();
        let mut cluster = Self { nodes: BTreeMap::new(), set, folder: tempfile::tempdir().expect("a folder") };
        cluster.found().ok();
        cluster.restart(1);
        for _ in 1..count {
            cluster.add().await;
        }
        cluster.until_voters(count).await;
        cluster
    }

    /// Makes the directory of the first node, which is not started.
    pub fn found(&mut self) -> Done {
        let port = self.nodes.entry(1).or_insert_with(|| Node { child: None, port: free_ports(PORTS) }).port;
        let (data, advertise) = (self.data(1), format!("127.0.0.1:{port}"));
        thalweg(&["cluster", "init", "--data", path(&data), "--advertise", &advertise])
    }

    /// Adds a node with a new token, and starts it. Returns its number.
    pub async fn add(&mut self) -> u64 {
        let token = self.token();
        let node = self.join(&token).expect("the node joins");
        self.restart(node);
        node
    }

    /// Returns a token of the directory of a node that runs.
    pub fn token(&self) -> String {
        let node = self.running()[0];
        thalweg(&["cluster", "token", "--data", path(&self.data(node))]).ok().trim().to_owned()
    }

    /// Makes a directory of a new node, which requests its token from a running one. Returns its number.
    pub fn join_by_asking(&mut self) -> u64 {
        let server = self.door(self.running()[0], "native").to_string();
        self.join_with(&["--ask", "--server", &server]).expect("the node joins")
    }

    /// Makes a directory of a new node with a token. Returns its number, or the error of the command.
    pub fn join(&mut self, token: &str) -> Result<u64, String> {
        self.join_with(&[token])
    }

    fn join_with(&mut self, words: &[&str]) -> Result<u64, String> {
        let port = free_ports(PORTS);
        let joining = self.folder.path().join("joining");
        let advertise = format!("127.0.0.1:{port}");
        let node = ["--data", path(&joining), "--advertise", &advertise];
        let done = thalweg(&[&["--json", "cluster", "join"], words, &node].concat());
        if done.code != Some(0) {
            return Err(done.err);
        }
        let node = done.json()["node"].as_u64().expect("a number");
        std::fs::rename(joining, self.data(node)).expect("renamed");
        self.nodes.insert(node, Node { child: None, port });
        Ok(node)
    }

    /// Starts a node that does not run, and waits until it accepts connections.
    pub fn restart(&mut self, node: u64) {
        let of = self.nodes.get_mut(&node).expect("a node");
        assert!(of.child.is_none(), "node {node} runs");
        let folder = self.folder.path();
        let ready = folder.join(format!("ready-{node}"));
        if ready.exists() {
            std::fs::remove_file(&ready).expect("removed");
        }
        let log = File::options().create(true).append(true).open(folder.join(format!("log-{node}"))).expect("a log");
        let mut command = program();
        command.arg("serve").arg("--data").arg(folder.join(format!("n{node}"))).arg("--ready-file").arg(&ready);
        for (door, port) in DOORS.into_iter().zip(of.port + 1..) {
            command.arg(format!("--{door}")).arg(format!("127.0.0.1:{port}"));
        }
        command.args(["--set", &format!("cluster_status=127.0.0.1:{}", of.port + PORTS - 1)]);
        for pair in &self.set {
            command.args(["--set", pair]);
        }
        command.current_dir(folder).stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
        let mut child = command.spawn().expect("the node starts");
        let begin = Instant::now();
        while !ready.exists() {
            let status = child.try_wait().expect("its status");
            if status.is_some() || begin.elapsed() > PATIENCE {
                child.kill().unwrap_or_default();
                panic!("node {node} did not get ready ({status:?}):\n{}", self.log(node));
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        self.nodes.get_mut(&node).expect("a node").child = Some(child);
    }

    /// Kills a node, as a power failure would.
    pub fn kill(&mut self, node: u64) {
        let mut child = self.nodes.get_mut(&node).and_then(|of| of.child.take()).expect("it runs");
        child.kill().expect("killed");
        child.wait().expect("gone");
    }

    /// Stops a node as its operator does, and waits for its end.
    pub async fn stop(&mut self, node: u64) {
        self.signal(node, Signal::TERM);
        let mut child = self.nodes.get_mut(&node).and_then(|of| of.child.take()).expect("it runs");
        let status = tokio::task::spawn_blocking(move || child.wait());
        let status = within("the end of a node", status).await.expect("no panic").expect("its status");
        assert!(status.success(), "node {node}: {status:?}\n{}", self.log(node));
    }

    /// Waits for a node that ends by itself, as it should.
    pub async fn until_ended(&mut self, node: u64) {
        let mut child = self.nodes.get_mut(&node).and_then(|of| of.child.take()).expect("it runs");
        let mut status = None;
        until("the end of a node", async || {
            status = child.try_wait().expect("its status");
            status.is_some()
        })
        .await;
        assert!(status.is_some_and(|status| status.success()), "node {node}: {status:?}\n{}", self.log(node));
    }

    /// Starts a node that does not run, and returns its log after it has refused to start.
    pub fn refused(&self, node: u64) -> String {
        let data = self.data(node);
        thalweg(&["serve", "--data", path(&data)]).failed(1)
    }

    /// Sends a signal to a node: with `STOP`, it hangs until `CONT`.
    pub fn signal(&self, node: u64, signal: Signal) {
        let child = self.nodes[&node].child.as_ref().expect("it runs");
        kill_process(Pid::from_raw(child.id() as i32).expect("a process"), signal).expect("signalled");
    }

    /// Forgets a node that has left, and ended. Its directory stays.
    pub fn forget(&mut self, node: u64) {
        let removed = self.nodes.remove(&node).expect("a node");
        assert!(removed.child.is_none(), "node {node} runs");
    }

    /// Returns the numbers of the nodes that run.
    pub fn running(&self) -> Vec<u64> {
        self.nodes.iter().filter(|(_, of)| of.child.is_some()).map(|(node, _)| *node).collect()
    }

    /// Returns the numbers of the nodes that run and do not lead.
    pub async fn followers(&self) -> Vec<u64> {
        let leader = self.leader().await;
        self.running().into_iter().filter(|node| *node != leader).collect()
    }

    pub fn data(&self, node: u64) -> PathBuf {
        self.folder.path().join(format!("n{node}"))
    }

    pub fn log(&self, node: u64) -> String {
        std::fs::read_to_string(self.folder.path().join(format!("log-{node}"))).unwrap_or_default()
    }

    /// Returns the address of a door of a node.
    pub fn door(&self, node: u64, door: &str) -> SocketAddr {
        let at = DOORS.iter().position(|of| *of == door).expect("a door");
        SocketAddr::from(([127, 0, 0, 1], self.nodes[&node].port + 1 + at as u16))
    }

    /// Returns what a node answers for itself: a status and a text.
    pub async fn own(&self, node: u64, path: &str) -> (u16, String) {
        let address = SocketAddr::from(([127, 0, 0, 1], self.nodes[&node].port + PORTS - 1));
        http(address, "GET", path, "").await.unwrap_or_else(|| panic!("node {node} does not answer {path}"))
    }

    /// Returns a client of a node.
    pub async fn client(&self, node: u64) -> Client {
        connect(&format!("tcp://{}", self.door(node, "native")), ClientSettings::default()).await
    }

    /// Returns a client that knows the addresses of all nodes.
    pub async fn client_of_all(&self) -> Client {
        let nodes: Vec<String> =
            self.nodes.keys().map(|node| format!("tcp://{}", self.door(*node, "native"))).collect();
        within("a connection", Client::connect(&nodes.join(","))).await.expect("connected")
    }

    /// Runs the program with these arguments against a node.
    pub fn on(&self, node: u64, args: &[&str]) -> Done {
        let server = format!("tcp://{}", self.door(node, "native"));
        thalweg(&[&["--server", &server], args].concat())
    }

    /// Runs the program as a user who may not read the files of the nodes' user.
    pub fn without_files(&self, node: u64, args: &[&str]) -> Done {
        let server = format!("tcp://{}", self.door(node, "native"));
        let mut command = program();
        command.args(["--server", &server]).args(args).env("XDG_RUNTIME_DIR", self.folder.path().join("none"));
        run(command.stdout(Stdio::piped()).stderr(Stdio::piped()), b"")
    }

    /// Waits for a node that leads and serves, and returns its number.
    pub async fn leader(&self) -> u64 {
        let mut leader = None;
        until("a leader", async || {
            for node in self.running() {
                let (status, text) = self.own(node, "/readyz").await;
                if status == 200 && text.contains(" leads in term ") {
                    leader = Some(node);
                }
            }
            leader.is_some()
        })
        .await;
        leader.expect("a leader")
    }

    /// Waits until the cluster has this number of nodes that vote.
    pub async fn until_voters(&self, count: usize) {
        let is_voter = |line: &&str| line.starts_with("thalweg_cluster_node_voter{") && line.ends_with(" 1");
        until("enough voters", async || {
            match self.metrics().await {
                Some(text) => text.lines().filter(is_voter).count() == count,
                // It needs a login, which the command has.
                None => self.running().first().is_some_and(|node| self.voters(*node) == Some(count)),
            }
        })
        .await;
    }

    /// Returns the number of nodes that vote, as the command shows it at a node; `None` if it fails.
    fn voters(&self, node: u64) -> Option<usize> {
        let shown = self.on(node, &["--json", "cluster", "status"]);
        let shown: Value = serde_json::from_str(&shown.out).ok()?;
        Some(shown["nodes"].as_array()?.iter().filter(|of| of["is_voter"] == true).count())
    }

    /// Returns the metrics of the leader, which each node hands over.
    pub async fn metrics(&self) -> Option<String> {
        for node in self.running() {
            if let Some((200, text)) = http(self.door(node, "http"), "GET", "/metrics", "").await {
                return Some(text);
            }
        }
        None
    }

    /// Sends a request to the HTTP door of a node, and returns the status and the JSON of the answer.
    pub async fn http(&self, node: u64, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = http(self.door(node, "http"), method, path, &body).await;
        let (status, text) = answer.unwrap_or_else(|| panic!("{method} {path}: no answer of node {node}"));
        (status, serde_json::from_str(&text).unwrap_or(Value::Null))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for (node, of) in &mut self.nodes {
            if let Some(child) = &mut of.child {
                child.kill().unwrap_or_default();
                child.wait().map(drop).unwrap_or_default();
            }
            let log = std::fs::read_to_string(self.folder.path().join(format!("log-{node}"))).unwrap_or_default();
            if std::thread::panicking() {
                eprintln!("the log of node {node}:\n{log}");
            } else {
                assert!(!log.contains("panic"), "node {node} panicked:\n{log}");
            }
        }
    }
}

/// Sends a request over a new connection. Returns the status and the body; `None` if there is no answer.
pub async fn http(address: SocketAddr, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
    let length = body.len();
    let text = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    let answer = async {
        let mut stream = TcpStream::connect(address).await.ok()?;
        stream.write_all(text.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split_whitespace().nth(1)?.parse().ok()?, body.to_owned()))
    };
    within("an answer", answer).await
}

fn thalweg(args: &[&str]) -> Done {
    run(program().args(args).stdout(Stdio::piped()).stderr(Stdio::piped()), b"")
}

fn path(path: &std::path::Path) -> &str {
    path.to_str().expect("UTF-8")
}
