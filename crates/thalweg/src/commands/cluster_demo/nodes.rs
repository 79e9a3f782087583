//! Nodes of the demonstration: processes of this program on ports of the loopback interface.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use thalweg::Door;

use crate::output::{FAILED, Failure, Result};

const START_TIMEOUT: Duration = Duration::from_secs(20);
const POLL_EVERY: Duration = Duration::from_millis(5);
/// Ports of the nodes. The system assigns only higher ones by itself, so no client takes the port of a killed node.
const PORTS: Range<u16> = 20_000..32_000;
/// End of a log that a failure shows, in bytes.
const LOG_SHOWN: usize = 2000;

/// Data directories of all nodes. Dropping it kills the processes and removes the directories.
pub(super) struct Nodes {
    folder: PathBuf,
    nodes: Vec<Node>,
    /// Ports that no node uses yet.
    ports: Range<u16>,
}

/// Node with its process, if it runs.
struct Node {
    data: PathBuf,
    native: u16,
    cluster: u16,
    child: Option<Child>,
}

impl Nodes {
    /// Creates an empty folder for the data of all nodes.
    pub(super) fn new() -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("thalweg-cluster-demo-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        // Two demonstrations side by side begin at different ports.
        let first = PORTS.start + (std::process::id() % 1000) as u16 * 10;
        Ok(Self { folder, nodes: Vec::new(), ports: first..PORTS.end })
    }

    /// Founds the cluster with the first node, or joins one more node to it, and starts that node.
    pub(super) fn add(&mut self) -> Result {
        let number = self.nodes.len() + 1;
        let data = self.folder.join(format!("node-{number}"));
        let node = Node { native: self.free_port()?, cluster: self.free_port()?, data, child: None };
        let advertise = format!("127.0.0.1:{}", node.cluster);
        let to = ["--data", text(&node.data)?, "--advertise", &advertise];
        match self.nodes.first() {
            None => command(&["cluster", "init"], &to)?,
            Some(first) => {
                let token = command(&["cluster", "token"], &["--data", text(&first.data)?])?;
                let token = token["token"].as_str().unwrap_or_default().to_owned();
                command(&["cluster", "join", &token], &to)?
            }
        };
        self.nodes.push(node);
        self.start(number as u64)
    }

    /// Takes a port that is free for TCP and for UDP.
    fn free_port(&mut self) -> Result<u16> {
        let is_free = |port| {
            let address = (Ipv4Addr::LOCALHOST, port);
            TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok()
        };
        let free = self.ports.find(|port| is_free(*port));
        free.ok_or_else(|| Failure::new(FAILED, format!("no port up to {} is free for both TCP and UDP", PORTS.end)))
    }

    /// Starts the process of a node on its ports.
    pub(super) fn start(&mut self, number: u64) -> Result {
        let ready = self.folder.join(format!("ready-{number}.json"));
        let log = File::options().create(true).append(true).open(self.log(number))?;
        let node = self.node(number)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("serve").arg("--data").arg(&node.data).arg("--ready-file").arg(&ready);
        command.args(Door::ALL.map(|door| match door {
            Door::Native => format!("--native=127.0.0.1:{}", node.native),
            other => format!("--{}=off", other.key()),
        }));
        let output = log.try_clone()?;
        let child = command.stdin(Stdio::null()).stdout(output).stderr(log).spawn()?;
        node.child = Some(child);
        self.wait_until_ready(number, &ready)
    }

    fn wait_until_ready(&mut self, number: u64, ready: &Path) -> Result {
        let begin = Instant::now();
        while !ready.exists() {
            let ended = match &mut self.node(number)?.child {
                Some(child) => child.try_wait()?,
                None => None,
            };
            if ended.is_some() || begin.elapsed() > START_TIMEOUT {
                let how = ended.map_or("was not ready in time".to_owned(), |status| format!("ended with {status}"));
                return Err(Failure::new(FAILED, format!("node {number} {how}:\n{}", self.end_of_log(number))));
            }
            std::thread::sleep(POLL_EVERY);
        }
        Ok(std::fs::remove_file(ready)?)
    }

    /// Kills the process of a node, as a power failure would.
    pub(super) fn kill(&mut self, number: u64) -> Result {
        if let Some(mut child) = self.node(number)?.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Returns the address of all nodes, as a client writes it.
    pub(super) fn address(&self) -> String {
        let nodes: Vec<String> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.native)).collect();
        format!("tcp://{}", nodes.join(","))
    }

    fn node(&mut self, number: u64) -> Result<&mut Node> {
        let at = usize::try_from(number).unwrap_or_default().checked_sub(1);
        at.and_then(|at| self.nodes.get_mut(at))
            .ok_or_else(|| Failure::new(FAILED, format!("the demo has no node {number}; please report this defect")))
    }

    fn log(&self, number: u64) -> PathBuf {
        self.folder.join(format!("node-{number}.log"))
    }

    fn end_of_log(&self, number: u64) -> String {
        let log = std::fs::read_to_string(self.log(number)).unwrap_or_default();
        let from = log.char_indices().rev().nth(LOG_SHOWN).map_or(0, |(at, _)| at);
        log[from..].trim().to_owned()
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for child in self.nodes.iter_mut().filter_map(|node| node.child.as_mut()) {
            // The process may have ended by itself.
            child.kill().unwrap_or_default();
            child.wait().map(drop).unwrap_or_default();
        }
        if let Err(error) = std::fs::remove_dir_all(&self.folder) {
            crate::output::note(&format!("cannot remove {}: {error}", self.folder.display()));
        }
    }
}

/// Runs this program and returns its JSON answer.
fn command(words: &[&str], options: &[&str]) -> Result<Value> {
    let output =
        Command::new(std::env::current_exe()?).arg("--json").args(words).args(options).stdin(Stdio::null()).output()?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        let words = words[..2].join(" ");
        return Err(Failure::new(FAILED, format!("`thalweg {words}` failed: {}", why.trim())));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| {
        Failure::new(FAILED, format!("the temporary folder {} is not UTF-8: set TMPDIR", path.display()))
    })
}
