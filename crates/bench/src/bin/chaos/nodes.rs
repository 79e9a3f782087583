//! Processes of the nodes, with their data directories.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::network::{Network, Outcome, call};

const START_TIMEOUT: Duration = Duration::from_secs(30);
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// Size of the file system of each node's data, if each has its own.
const DATA_BYTES: &str = "size=512m";
/// Doors of a node, with the digit of their ports.
const DOORS: [(&str, u16); 4] = [("native", 1), ("http", 2), ("kafka", 3), ("redis", 4)];
const CLUSTER_PORT: u16 = 0;
const JOIN_TRIES: usize = 50;

/// Nodes of a round. Dropping it kills the processes, and unmounts their data.
pub struct Nodes {
    program: String,
    folder: PathBuf,
    pub network: Network,
    nodes: Vec<Node>,
}

struct Node {
    child: Option<Child>,
    is_paused: bool,
    is_mounted: bool,
}

impl Nodes {
    pub fn new(program: &Path, folder: &Path, network: Network) -> Self {
        let program = program.display().to_string();
        Self { program, folder: folder.to_owned(), network, nodes: Vec::new() }
    }

    /// Numbers of all nodes.
    pub fn numbers(&self) -> std::ops::RangeInclusive<u64> {
        1..=self.nodes.len() as u64
    }

    pub fn data(&self, node: u64) -> PathBuf {
        self.folder.join(format!("node-{node}")).join("data")
    }

    pub fn log(&self, node: u64) -> PathBuf {
        self.folder.join(format!("node-{node}.log"))
    }

    /// Returns the address of a door of a node: of its digit.
    pub fn address(&self, node: u64, digit: u16) -> String {
        format!("{}:{}", self.network.host(node), self.network.port(node, digit))
    }

    /// Returns the addresses of a door at all nodes, with commas between them.
    pub fn addresses(&self, door: &str) -> String {
        let digit = DOORS.iter().find(|(name, _)| *name == door).map_or(0, |(_, digit)| *digit);
        let all: Vec<String> = self.numbers().map(|node| self.address(node, digit)).collect();
        all.join(",")
    }

    /// Founds the cluster, or joins one more node, and starts that node.
    pub fn add(&mut self) -> Outcome {
        let node = self.nodes.len() as u64 + 1;
        let base = self.folder.join(format!("node-{node}"));
        std::fs::create_dir_all(&base).map_err(|error| format!("{}: {error}", base.display()))?;
        let shown = base.display().to_string();
        let is_mounted =
            self.network.can_cut() && call("mount", &["-t", "tmpfs", "-o", DATA_BYTES, "tmpfs", &shown]).is_ok();
        self.nodes.push(Node { child: None, is_paused: false, is_mounted });
        let data = self.data(node).display().to_string();
        let advertise = self.address(node, CLUSTER_PORT);
        if node == 1 {
            self.command(node, &["cluster", "init", "--data", &data, "--advertise", &advertise])?;
        } else {
            self.join(node, &data, &advertise)?;
        }
        self.start(node)
    }

    /// Joins with a token of any node that runs: the cluster may have no leader at the moment.
    fn join(&self, node: u64, data: &str, advertise: &str) -> Outcome {
        let mut last = String::new();
        for attempt in 0..JOIN_TRIES {
            let by = attempt as u64 % (node - 1) + 1;
            let by_data = self.data(by).display().to_string();
            let joined = self.command(by, &["cluster", "token", "--data", &by_data]).and_then(|answer| {
                let token = answer["token"].as_str().unwrap_or_default();
                self.command(node, &["cluster", "join", token, "--data", data, "--advertise", advertise])
            });
            match joined {
                Ok(_) => return Ok(()),
                Err(error) => last = error,
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        Err(last)
    }

    /// Removes the newest node from the cluster, and ends it. The cluster may have no leader at the moment.
    pub fn remove_last(&mut self) -> Outcome {
        let node = self.nodes.len() as u64;
        let servers = format!("tcp://{}", self.addresses("native"));
        let leave = ["--server", &servers, "cluster", "leave", &node.to_string(), "--yes"];
        let mut left = Err(String::new());
        for _ in 0..JOIN_TRIES {
            // From outside of all namespaces, as some node is cut off.
            left = call(&self.program, &leave);
            // An answer that was lost is followed by one that the node is not known.
            if left.as_ref().map_or_else(|error| error.contains("has no node"), |()| true) {
                self.end(node);
                self.nodes.pop();
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        left
    }

    fn command(&self, node: u64, args: &[&str]) -> Outcome<Value> {
        let output = self.clean(node).arg("--json").args(args).stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("{}: {error}", self.program))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
    }

    /// Returns a command of the program at a node, without the configuration of this process.
    fn clean(&self, node: u64) -> Command {
        let mut command = self.network.command(node, &self.program);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("THALWEG_")) {
            command.env_remove(name);
        }
        command
    }

    /// Starts the process of a node.
    pub fn start(&mut self, node: u64) -> Outcome {
        let ready = self.folder.join(format!("ready-{node}.json"));
        std::fs::remove_file(&ready).unwrap_or_default();
        let log = File::options().create(true).append(true).open(self.log(node)).map_err(|error| error.to_string())?;
        let output = log.try_clone().map_err(|error| error.to_string())?;
        let mut command = self.clean(node);
        command.arg("serve").arg("--data").arg(self.data(node)).arg("--ready-file").arg(&ready);
        command.args(DOORS.map(|(door, digit)| format!("--{door}={}", self.address(node, digit))));
        command.args(["--sqs=off", "--pubsub=off"]);
        for set in ["redis_durable=true", "insecure=true", "default_partitions=2"] {
            command.args(["--set", set]);
        }
        let child = command.stdin(Stdio::null()).stdout(output).stderr(log).spawn();
        let child = child.map_err(|error| format!("{}: {error}", self.program))?;
        self.node(node).child = Some(child);
        let begin = Instant::now();
        while !ready.exists() {
            let ended = self.node(node).child.as_mut().and_then(|child| child.try_wait().ok().flatten());
            if let Some(status) = ended {
                return Err(format!(
                    "node {node} ended with {status} when it was started: {}",
                    self.log(node).display()
                ));
            }
            if begin.elapsed() > START_TIMEOUT {
                return Err(format!("node {node} was not ready in time: {}", self.log(node).display()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    pub fn kill(&mut self, node: u64) {
        if let Some(mut child) = self.node(node).child.take() {
            // The process may have ended by itself.
            child.kill().unwrap_or_default();
            child.wait().map(drop).unwrap_or_default();
        }
    }

    /// Stops a node in an orderly way.
    pub fn stop(&mut self, node: u64) -> Outcome {
        self.signal(node, Signal::TERM);
        let Some(mut child) = self.node(node).child.take() else { return Ok(()) };
        let begin = Instant::now();
        while matches!(child.try_wait(), Ok(None)) {
            if begin.elapsed() > STOP_TIMEOUT {
                child.kill().unwrap_or_default();
                child.wait().map(drop).unwrap_or_default();
                return Err(format!("node {node} did not stop within {} s", STOP_TIMEOUT.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Stops the process of a node as a debugger does, until [`Nodes::resume`].
    pub fn pause(&mut self, node: u64) {
        self.signal(node, Signal::STOP);
        self.node(node).is_paused = true;
    }

    pub fn resume(&mut self, node: u64) {
        self.signal(node, Signal::CONT);
        self.node(node).is_paused = false;
    }

    fn signal(&mut self, node: u64, signal: Signal) {
        if let Some(pid) = self.node(node).child.as_ref().and_then(|child| Pid::from_raw(child.id() as i32)) {
            // The process may have ended by itself.
            kill_process(pid, signal).unwrap_or_default();
        }
    }

    /// Fills the file system of a node's data, if it has its own.
    pub fn fill_disk(&self, node: u64) -> Outcome {
        if !self.nodes[node as usize - 1].is_mounted {
            return Err(format!("node {node} has no file system of its own"));
        }
        // It fails when the file system is full, as it should.
        let file = format!("of={}", self.filler(node).display());
        call("dd", &["if=/dev/zero", &file, "bs=1M"]).map_or(Ok(()), |()| Err("the disk did not get full".into()))
    }

    pub fn empty_disk(&self, node: u64) {
        std::fs::remove_file(self.filler(node)).unwrap_or_default();
    }

    fn filler(&self, node: u64) -> PathBuf {
        self.folder.join(format!("node-{node}")).join("filler")
    }

    /// Undoes all faults, and starts the nodes that do not run.
    pub fn heal(&mut self) -> Outcome {
        let mut failed = BTreeSet::new();
        for node in self.numbers() {
            self.empty_disk(node);
            self.network.heal(node)?;
            if self.node(node).is_paused {
                self.resume(node);
            }
        }
        for node in self.numbers() {
            let is_running = self.node(node).child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)));
            if !is_running && let Err(error) = self.start(node) {
                failed.insert(error);
            }
        }
        failed.pop_first().map_or(Ok(()), Err)
    }

    /// Reads a directory offline, completely. The node must not run.
    pub fn inspect(&self, node: u64) -> Outcome {
        let data = self.data(node).display().to_string();
        self.command(node, &["inspect", "--verify", &data]).map(drop)
    }

    /// Copies the data directories to a folder, for a person.
    pub fn keep(&self, folder: &Path) {
        std::fs::create_dir_all(folder).unwrap_or_default();
        for node in self.numbers() {
            let to = folder.join(format!("node-{node}")).display().to_string();
            call("cp", &["-r", &self.data(node).display().to_string(), &to]).unwrap_or_else(|why| eprintln!("{why}"));
        }
    }

    /// Kills the process of a node, and removes its file system.
    fn end(&mut self, node: u64) {
        self.resume(node);
        self.kill(node);
        if self.node(node).is_mounted {
            let base = self.folder.join(format!("node-{node}")).display().to_string();
            call("umount", &[&base]).unwrap_or_else(|why| eprintln!("{why}"));
        }
    }

    fn node(&mut self, node: u64) -> &mut Node {
        &mut self.nodes[node as usize - 1]
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.numbers().for_each(|node| self.end(node));
    }
}
