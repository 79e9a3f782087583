//! Processes of the nodes, with their data directories.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::clock::{self, Clocks};
use crate::network::{Network, Outcome, call};

const START_TIMEOUT: Duration = Duration::from_secs(30);
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// Size of the file system of each node's data, if each has its own: small, so that a node often needs more of it.
const DATA_BYTES: &str = "size=192m";
/// Doors of a node, with the digit of their ports.
const DOORS: [(&str, u16); 4] = [("native", 1), ("http", 2), ("kafka", 3), ("redis", 4)];
const CLUSTER_PORT: u16 = 0;
const JOIN_TRIES: usize = 50;
/// Parts of lines that no log may have.
const DEFECTS: [&str; 2] = ["panicked at", "something still holds the broker"];
const TRY_EVERY: Duration = Duration::from_millis(200);

/// Nodes of a round, each at a place that has an address and a disk: 1, 2 and so on. A node that was replaced has
/// another number than its place. Dropping it kills the processes, and unmounts their data.
pub struct Nodes {
    program: String,
    folder: PathBuf,
    pub network: Network,
    clocks: Option<Clocks>,
    nodes: Vec<Node>,
}

struct Node {
    /// Number in the cluster.
    number: u64,
    child: Option<Child>,
    is_paused: bool,
    is_mounted: bool,
    /// `true` if it was removed from the cluster, and its process may still run.
    has_left: bool,
}

/// Failure of a start.
pub enum NotStarted {
    /// The process ended by itself, with this code; `None` after a signal.
    Ended {
        code: Option<i32>,
        log: String,
    },
    Other(String),
}

impl From<NotStarted> for String {
    fn from(failed: NotStarted) -> Self {
        match failed {
            NotStarted::Ended { code, log } => format!("a node ended with {code:?} when it was started: {log}"),
            NotStarted::Other(why) => why,
        }
    }
}

impl Nodes {
    pub fn new(program: &Path, folder: &Path, network: Network, clocks: Option<Clocks>) -> Self {
        let program = program.display().to_string();
        Self { program, folder: folder.to_owned(), network, clocks, nodes: Vec::new() }
    }

    /// Places of all nodes.
    pub fn places(&self) -> std::ops::RangeInclusive<u64> {
        1..=self.nodes.len() as u64
    }

    /// Returns the number in the cluster of the node at a place.
    pub fn number(&self, place: u64) -> u64 {
        self.nodes[place as usize - 1].number
    }

    /// Returns the place of a node with this number in the cluster.
    pub fn place(&self, number: u64) -> Option<u64> {
        self.nodes.iter().position(|node| node.number == number).map(|at| at as u64 + 1)
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
        let all: Vec<String> = self.places().map(|node| self.address(node, digit)).collect();
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
        self.nodes.push(Node { number: node, child: None, is_paused: false, is_mounted, has_left: false });
        self.set_clock(node, 0)?;
        self.lose_directory(node)?;
        if node == 1 {
            let data = self.data(node).display().to_string();
            let advertise = self.address(node, CLUSTER_PORT);
            self.command(node, &["cluster", "init", "--data", &data, "--advertise", &advertise])?;
        } else {
            self.join(node)?;
        }
        Ok(self.start(node)?)
    }

    /// Joins with a token of any other node: the cluster may have no leader at the moment.
    fn join(&mut self, node: u64) -> Outcome {
        let others: Vec<u64> = self.places().filter(|place| *place != node).collect();
        let mut last = String::new();
        for by in others.iter().cycle().take(JOIN_TRIES) {
            let by_data = self.data(*by).display().to_string();
            let token = self.command(*by, &["cluster", "token", "--data", &by_data]);
            match token.and_then(|answer| self.join_with(node, answer["token"].as_str().unwrap_or_default())) {
                Ok(()) => return Ok(()),
                Err(error) => last = error,
            }
            std::thread::sleep(TRY_EVERY);
        }
        Err(format!("node {node} cannot join: {last}"))
    }

    fn join_with(&mut self, node: u64, token: &str) -> Outcome {
        let data = self.data(node).display().to_string();
        let advertise = self.address(node, CLUSTER_PORT);
        let joined = self.command(node, &["cluster", "join", token, "--data", &data, "--advertise", &advertise])?;
        let number = joined["node"].as_u64().ok_or_else(|| format!("no number of a node in {joined}"))?;
        self.node(node).number = number;
        Ok(())
    }

    /// Removes the newest node from the cluster, whose process runs on. The cluster may have no leader at the moment.
    pub fn remove_last(&mut self) -> Outcome {
        let node = self.nodes.len() as u64;
        let leave = ["cluster", "leave", &self.number(node).to_string(), "--yes"];
        let mut last = String::new();
        for _ in 0..JOIN_TRIES {
            match self.operate(&leave) {
                Ok(_) => last.clear(),
                // An answer that was lost is followed by one that the node is not known.
                Err(error) if error.contains("has no node") => last.clear(),
                Err(error) => last = error,
            }
            if last.is_empty() {
                self.node(node).has_left = true;
                return Ok(());
            }
            std::thread::sleep(TRY_EVERY);
        }
        Err(last)
    }

    /// Replaces a node that does not run by one with an empty directory, as the guide for operators says.
    pub fn replace(&mut self, node: u64) -> Outcome {
        let number = self.number(node).to_string();
        self.lose_directory(node)?;
        let mut last = String::new();
        for _ in 0..JOIN_TRIES {
            match self.operate(&["cluster", "replace", &number, "--yes"]) {
                Ok(answer) => {
                    let token = answer["token"].as_str().unwrap_or_default();
                    if self.join_with(node, token).is_err() {
                        self.join(node)?;
                    }
                    last.clear();
                }
                Err(error) if error.contains("has no node") => {
                    self.join(node)?;
                    last.clear();
                }
                Err(error) => last = error,
            }
            if last.is_empty() {
                return Ok(self.start(node)?);
            }
            std::thread::sleep(TRY_EVERY);
        }
        Err(format!("node {number} cannot be replaced: {last}"))
    }

    /// Tries once to remove a node that does not run, and its number with it.
    pub fn try_to_remove(&self, node: u64) {
        // The cluster may have no leader, or not know yet that the node is silent.
        self.operate(&["cluster", "replace", &self.number(node).to_string(), "--yes"]).map(drop).unwrap_or_default();
    }

    /// Removes all files of a node that does not run.
    pub fn lose_directory(&self, node: u64) -> Outcome {
        let data = self.data(node);
        match std::fs::remove_dir_all(&data) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(format!("{}: {error}", data.display())),
            _ => Ok(()),
        }
    }

    /// Calls the program as an operator does: from outside of all namespaces, as some node may be cut off.
    pub fn operate(&self, args: &[&str]) -> Outcome<Value> {
        let mut command = Command::new(&self.program);
        without_configuration(&mut command);
        self.answer(command.args(["--server", &format!("tcp://{}", self.addresses("native"))]), args)
    }

    fn command(&self, node: u64, args: &[&str]) -> Outcome<Value> {
        self.answer(&mut self.clean(node), args)
    }

    fn answer(&self, command: &mut Command, args: &[&str]) -> Outcome<Value> {
        let output = command.arg("--json").args(args).stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("{}: {error}", self.program))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
    }

    pub fn has_clocks(&self) -> bool {
        self.clocks.is_some()
    }

    /// Sets the seconds by which the wall clock of a node is wrong.
    pub fn set_clock(&self, node: u64, seconds: i64) -> Outcome {
        if self.clocks.is_some() { clock::set(&self.clock(node), seconds) } else { Ok(()) }
    }

    fn clock(&self, node: u64) -> PathBuf {
        self.folder.join(format!("clock-{node}"))
    }

    /// Returns a command of the program at a node, without the configuration of this process.
    fn clean(&self, node: u64) -> Command {
        let mut command = self.network.command(node, &self.program);
        without_configuration(&mut command);
        if let Some(clocks) = &self.clocks {
            clocks.apply(&mut command, &self.clock(node));
        }
        command
    }

    /// Starts the process of a node.
    pub fn start(&mut self, node: u64) -> Result<(), NotStarted> {
        let ready = self.folder.join(format!("ready-{node}.json"));
        std::fs::remove_file(&ready).unwrap_or_default();
        let path = self.log(node);
        let failed = |error: std::io::Error| NotStarted::Other(format!("{}: {error}", path.display()));
        let log = File::options().create(true).append(true).open(&path).map_err(failed)?;
        let logged = log.metadata().map_err(failed)?.len();
        let output = log.try_clone().map_err(failed)?;
        let mut command = self.clean(node);
        command.arg("serve").arg("--data").arg(self.data(node)).arg("--ready-file").arg(&ready);
        command.args(DOORS.map(|(door, digit)| format!("--{door}={}", self.address(node, digit))));
        command.args(["--sqs=off", "--pubsub=off"]);
        for set in ["redis_durable=true", "insecure=true", "default_partitions=2"] {
            command.args(["--set", set]);
        }
        let child = command.stdin(Stdio::null()).stdout(output).stderr(log).spawn();
        let child = child.map_err(|error| NotStarted::Other(format!("{}: {error}", self.program)))?;
        self.node(node).child = Some(child);
        let begin = Instant::now();
        while !ready.exists() {
            let ended = self.node(node).child.as_mut().and_then(|child| child.try_wait().ok().flatten());
            if let Some(status) = ended {
                let log = std::fs::read(&path).map_err(failed)?;
                let log = String::from_utf8_lossy(log.get(logged as usize..).unwrap_or_default()).into_owned();
                return Err(NotStarted::Ended { code: status.code(), log });
            }
            if begin.elapsed() > START_TIMEOUT {
                return Err(NotStarted::Other(format!("node {node} was not ready in time: {}", path.display())));
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

    /// Returns the length of the log of a node.
    pub fn logged(&self, node: u64) -> u64 {
        std::fs::metadata(self.log(node)).map_or(0, |log| log.len())
    }

    /// Returns `true` if the log of a node has a text after a position.
    pub fn has_logged(&self, node: u64, after: u64, text: &str) -> bool {
        let log = std::fs::read(self.log(node)).unwrap_or_default();
        String::from_utf8_lossy(log.get(after as usize..).unwrap_or_default()).contains(text)
    }

    /// Returns the lines of the logs of all nodes that show a defect, also of one that had no effect on clients.
    pub fn defects(&self) -> Vec<String> {
        let logs = (1..).map(|place| self.log(place)).map_while(|log| std::fs::read(log).ok());
        let lines = logs.flat_map(|log| String::from_utf8_lossy(&log).lines().map(str::to_owned).collect::<Vec<_>>());
        lines.filter(|line| DEFECTS.iter().any(|defect| line.contains(defect))).collect()
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

    /// Undoes all faults but those of clocks, ends the process of a node that has left, and starts the nodes that do
    /// not run.
    pub fn heal(&mut self) -> Outcome {
        let mut failed = BTreeSet::new();
        if self.nodes.last().is_some_and(|node| node.has_left) {
            let newest = self.nodes.len() as u64;
            self.network.heal(newest)?;
            self.end(newest);
            self.nodes.pop();
        }
        for node in self.places() {
            self.empty_disk(node);
            self.network.heal(node)?;
            if self.node(node).is_paused {
                self.resume(node);
            }
        }
        for node in self.places() {
            let is_running = self.node(node).child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)));
            if !is_running && let Err(error) = self.start(node) {
                failed.insert(format!("node {node}: {}", String::from(error)));
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
        for node in self.places() {
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

/// Keeps the configuration of this process from a command.
fn without_configuration(command: &mut Command) {
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("THALWEG_")) {
        command.env_remove(name);
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.places().for_each(|node| self.end(node));
    }
}
