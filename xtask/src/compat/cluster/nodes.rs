//! Cluster of three nodes on this machine, whose processes are killed and started again.

use std::fs::{self, File};
use std::net::{TcpListener, UdpSocket};
use std::path::PathBuf;
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::run::{Call, Outcome};

pub const NODES: u64 = 3;
/// Doors of a node, in the order of their ports after that of the cluster.
const DOORS: [&str; 6] = ["native", "http", "kafka", "pubsub", "redis", "sqs"];
/// Range for the ports of nodes: the ports that the system assigns by itself are higher.
const PORTS: std::ops::Range<u16> = 20_000..32_000;
/// Maximum time until a process is ready, until there is a leader, and until all nodes have everything.
const READY: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Entries that a node may be behind under load.
const BEHIND_MAX: u64 = 50;

/// Running nodes. Dropping it kills the processes.
pub struct Nodes {
    program: String,
    folder: PathBuf,
    nodes: Vec<Node>,
}

struct Node {
    child: Option<Child>,
    port: u16,
}

impl Nodes {
    /// Starts the nodes, and waits until all of them vote.
    pub fn start(program: &str, folder: PathBuf) -> Outcome<Self> {
        let mut nodes = Self { program: program.to_owned(), folder, nodes: Vec::new() };
        for node in 1..=NODES {
            nodes.add(node)?;
        }
        nodes.until_complete()?;
        Ok(nodes)
    }

    fn add(&mut self, node: u64) -> Outcome {
        let port = free_ports(self.nodes.last().map_or(PORTS.start, |last| last.port + 10))?;
        self.nodes.push(Node { child: None, port });
        let data = self.data(node);
        let ending = ["--data", &data, "--advertise", &format!("127.0.0.1:{port}")];
        if node == 1 {
            self.command(&["cluster", "init"]).args(ending).output()?;
        } else {
            let token = self.command(&["cluster", "token", "--data", &self.data(1)]).output()?;
            self.command(&["cluster", "join", token.trim()]).args(ending).output()?;
        }
        self.restart(node)?;
        self.until("a leader", |status| status["leader"].as_u64().is_some())
    }

    fn data(&self, node: u64) -> String {
        self.folder.join(format!("node-{node}")).display().to_string()
    }

    fn log(&self, node: u64) -> PathBuf {
        self.folder.join(format!("node-{node}.log"))
    }

    fn command(&self, args: &[&str]) -> Call {
        Call::new(&self.program).args(args.iter().copied())
    }

    /// Returns the address of a door of a node.
    pub fn address(&self, node: u64, door: &str) -> String {
        let digit = DOORS.iter().position(|known| *known == door).map_or(0, |at| at as u16 + 1);
        format!("127.0.0.1:{}", self.nodes[node as usize - 1].port + digit)
    }

    /// Starts the process of a node that does not run.
    pub fn restart(&mut self, node: u64) -> Outcome {
        let ready = self.folder.join(format!("ready-{node}.json"));
        fs::remove_file(&ready).unwrap_or_default();
        let log = self.log(node);
        let open =
            || File::options().create(true).append(true).open(&log).map_err(|e| format!("{}: {e}", log.display()));
        let call = self.command(&["serve", "--data", &self.data(node), "--ready-file", &ready.display().to_string()]);
        let call = call.args(DOORS.iter().flat_map(|door| [format!("--{door}"), self.address(node, door)]));
        let call = call.args(["--set", "redis_durable=true"]);
        let child = call.command().stdout(open()?).stderr(open()?).spawn().map_err(|e| format!("{call}: {e}"))?;
        let child = self.nodes[node as usize - 1].child.insert(child);
        let begin = Instant::now();
        while !ready.exists() {
            let ended = child.try_wait().map_err(|e| e.to_string())?;
            if ended.is_some() || begin.elapsed() > READY {
                return Err(format!("node {node} did not get ready ({ended:?}); its log is {}", log.display()));
            }
            sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Kills a node with SIGKILL.
    pub fn kill(&mut self, node: u64) -> Outcome {
        let Some(mut child) = self.nodes[node as usize - 1].child.take() else { return Ok(()) };
        child.kill().map_err(|e| format!("node {node}: {e}"))?;
        child.wait().map(drop).map_err(|e| format!("node {node}: {e}"))
    }

    /// Returns the node that leads.
    pub fn leader(&self) -> Outcome<u64> {
        let mut leader = None;
        self.until("a leader", |status| {
            leader = status["leader"].as_u64();
            leader.is_some()
        })?;
        leader.ok_or_else(|| "the cluster has no leader".to_owned())
    }

    /// Has another node lead than this one.
    pub fn drain(&self, node: u64) -> Outcome {
        while self.leader()? == node {
            // The connection of the command may end before its answer.
            let drain = self.command(&["--server", &self.servers(), "cluster", "drain", &node.to_string()]);
            drain.succeeds();
        }
        Ok(())
    }

    /// Waits until all nodes vote, answer and have everything.
    pub fn until_complete(&self) -> Outcome {
        self.until("all nodes to have everything", |status| {
            let is_complete = |of: &Value| {
                of["is_voter"] == true
                    && of["is_alive"] == true
                    && of["is_catching_up"] == false
                    && of["behind"].as_u64().is_some_and(|entries| entries <= BEHIND_MAX)
            };
            status["nodes"].as_array().is_some_and(|all| all.len() as u64 == NODES && all.iter().all(is_complete))
        })
    }

    fn servers(&self) -> String {
        let running = (1..).zip(&self.nodes).filter(|(_, of)| of.child.is_some());
        let all: Vec<String> = running.map(|(node, _)| format!("tcp://{}", self.address(node, "native"))).collect();
        all.join(",")
    }

    fn until(&self, what: &str, mut holds: impl FnMut(&Value) -> bool) -> Outcome {
        let begin = Instant::now();
        let mut last = String::new();
        while begin.elapsed() < READY {
            let call = self.command(&["--json", "--server", &self.servers(), "cluster", "status"]);
            let output = call.command().output().map_err(|e| format!("{call}: {e}"))?;
            last = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            if serde_json::from_str(&last).is_ok_and(|status| holds(&status)) {
                return Ok(());
            }
            sleep(LOOK_EVERY);
        }
        Err(format!("waited {} s for {what}; the last state is {last}", READY.as_secs()))
    }

    /// Returns the numbers of nodes that panicked.
    pub fn panicked(&self) -> Vec<u64> {
        let has_panicked = |node: &u64| {
            let log = fs::read(self.log(*node)).unwrap_or_default();
            String::from_utf8_lossy(&log).contains("panicked at")
        };
        (1..=self.nodes.len() as u64).filter(has_panicked).collect()
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for node in 1..=self.nodes.len() as u64 {
            self.kill(node).unwrap_or_default();
        }
    }
}

/// Returns the first of ten free ports, from this one on. With 0, the first one depends on the process.
pub fn free_ports(from: u16) -> Outcome<u16> {
    let is_free =
        |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok() && UdpSocket::bind(("127.0.0.1", port)).is_ok();
    let from = if from > PORTS.start { from } else { PORTS.start + std::process::id() as u16 % 1000 * 10 };
    let mut all = (from..PORTS.end).step_by(10);
    all.find(|first| (*first..first + 10).all(is_free)).ok_or_else(|| "no ten free ports in a row".to_owned())
}
