//! Run of one tree: its server, and the load from another process.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Child;
use std::thread::{ScopedJoinHandle, scope, sleep};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::THALWEG;
use super::figures::{Kind, Run};
use super::trees::Tree;
use crate::run::{Call, Outcome, root};

/// Time limit of a load. A longer load has failed: its servers and subscribers have given up long before.
const LOAD_TIMEOUT: Duration = Duration::from_secs(300);
const START_TIMEOUT: Duration = Duration::from_secs(30);
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_EVERY: Duration = Duration::from_millis(5);

/// Arguments of a broker with only the native door. The loads are lossless: a publisher waits for slow subscribers.
const BROKER: &str = "serve --native 127.0.0.1:0 --http off --kafka off --pubsub off --redis off --sqs off \
                      --set log=warn --set publish_queue_wait_timeout_ms=20000 --ready-file {ready}";
/// Command that runs another one on the first processor only.
const ON_ONE_PROCESSOR: &str = "taskset --cpu-list 0";
const RPC: &str = "bench rpc serve --bind 127.0.0.1:0";

/// Runs the load once for each tree, and returns its outputs: of the old one, and of the new one.
pub fn round(run: &Run, is_quick: bool, [old, new]: [&Tree; 2]) -> Outcome<[String; 2]> {
    let sample = |tree| sample(run, is_quick, tree, new);
    match run.kind {
        Kind::TimedBench(_) => {
            let [old, new] = scope(|scope| [old, new].map(|tree| scope.spawn(move || sample(tree))).map(ended));
            Ok([old?, new?])
        }
        Kind::Broker(_) | Kind::Rpc(_) | Kind::Own | Kind::Bench(_) => Ok([sample(old)?, sample(new)?]),
    }
}

fn ended(run: ScopedJoinHandle<'_, Outcome<String>>) -> Outcome<String> {
    run.join().unwrap_or_else(|_| Err("the measurement panicked".to_owned()))
}

/// Runs the load against the server of this tree, and returns the output of the load. If the load can connect to a
/// running server, it is the program of the new tree.
fn sample(run: &Run, is_quick: bool, tree: &Tree, new: &Tree) -> Outcome<String> {
    let size = if is_quick { run.quick.unwrap_or_default() } else { run.size };
    let load = format!("{} {size}", run.load);
    let bench = |tree: &Tree| Ok::<_, String>(Call::new(tree.program(THALWEG)?).arg("--json"));
    let (server, load_of) = match run.kind {
        Kind::Bench(target) => {
            return Call::new(tree.program(target)?).args(load.split_whitespace()).within(LOAD_TIMEOUT).output();
        }
        Kind::TimedBench(target) => {
            let call = Call::new(tree.program(target)?).args(load.split_whitespace());
            return call.after(Call::line(ON_ONE_PROCESSOR)).within(LOAD_TIMEOUT).output();
        }
        Kind::Own => {
            return bench(tree)?.arg("bench").args(load.split_whitespace()).within(LOAD_TIMEOUT).output();
        }
        Kind::Broker(flags) => (format!("{BROKER} {flags}"), "--server {server} bench"),
        Kind::Rpc(flags) => (format!("{RPC} {flags}"), "bench"),
    };
    let server = Server::start(&tree.program(THALWEG)?, &server)?;
    server.load(bench(new)?, &format!("{load_of} {load}"))
}

/// Server in a separate process, with a folder for its data and its output. Dropping it ends the process and removes
/// the folder.
struct Server {
    child: Child,
    folder: PathBuf,
    /// Address of a broker's native door, or the port of a server of the service runtime.
    address: String,
}

impl Server {
    /// Starts the server and waits until it reports its address.
    fn start(program: &str, line: &str) -> Outcome<Self> {
        let folder = root().join(format!("target/compare/run-{}", std::process::id()));
        fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let [data, ready, output] = ["data", "ready.json", "output"].map(|name| folder.join(name));
        let path = |word: &str| {
            word.replace("{data}", &data.display().to_string()).replace("{ready}", &ready.display().to_string())
        };
        let call = Call::new(program).args(line.split_whitespace().map(path));
        let file = File::create(&output).map_err(|e| format!("{}: {e}", output.display()))?;
        let errors = file.try_clone().map_err(|e| format!("{}: {e}", output.display()))?;
        let child = call.command().stdout(file).stderr(errors).spawn().map_err(|e| format!("{call}: {e}"))?;
        let mut server = Self { child, folder, address: String::new() };
        let begin = Instant::now();
        loop {
            if let Some(address) = server.listens_at() {
                server.address = address;
                return Ok(server);
            }
            let ended = server.child.try_wait().map_err(|e| format!("{call}: {e}"))?;
            if ended.is_some() || begin.elapsed() > START_TIMEOUT {
                return Err(format!("`{call}` is not ready ({ended:?}):\n{}", server.output()));
            }
            sleep(POLL_EVERY);
        }
    }

    /// Returns the reported address: a broker writes its addresses into the ready file, another server prints its port.
    fn listens_at(&self) -> Option<String> {
        if let Ok(text) = fs::read_to_string(self.folder.join("ready.json")) {
            let ready: Value = serde_json::from_str(&text).ok()?;
            return ready["native"].as_str().map(str::to_owned);
        }
        let output = self.output();
        let (line, _) = output.strip_prefix("listening ")?.split_once('\n')?;
        Some(line.to_owned())
    }

    fn output(&self) -> String {
        fs::read_to_string(self.folder.join("output")).unwrap_or_default()
    }

    /// Runs a load and returns its output, if this server is still running after it.
    fn load(mut self, call: Call, line: &str) -> Outcome<String> {
        let pid = self.child.id().to_string();
        let words = line.split_whitespace().map(|word| word.replace("{server}", &self.address).replace("{pid}", &pid));
        let output = call.args(words).within(LOAD_TIMEOUT).output()?;
        let ended = self.child.try_wait().map_err(|e| format!("the server: {e}"))?;
        let printed = self.output();
        if ended.is_some() || printed.contains("panicked at") {
            return Err(format!("the server did not survive the load ({ended:?}):\n{printed}"));
        }
        Ok(output)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        Call::new("kill").arg(self.child.id().to_string()).succeeds();
        let begin = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && begin.elapsed() < STOP_TIMEOUT {
            sleep(POLL_EVERY);
        }
        // The process may have ended by itself.
        self.child.kill().unwrap_or_default();
        self.child.wait().map(drop).unwrap_or_default();
        fs::remove_dir_all(&self.folder).unwrap_or_default();
    }
}
