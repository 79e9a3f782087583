//! The broker that clients are tried against: ours on free ports, Apache Kafka itself, or one that is there already.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::run::{Call, Outcome, root};

/// Apache Kafka on a busy machine takes half of it.
const READY: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Which broker is wanted.
pub enum Wanted {
    Ours,
    /// Apache Kafka, which the scenarios are proved against.
    Peer,
    At(String),
}

/// Where clients connect, and what they are told by variables of the environment.
pub struct Broker {
    pub address: String,
    pub env: Vec<(&'static str, String)>,
    /// Ends it when this is dropped.
    _running: Option<Running>,
}

struct Running {
    child: Child,
    folder: PathBuf,
}

impl Broker {
    pub fn start(wanted: Wanted) -> Outcome<Self> {
        match wanted {
            Wanted::At(address) => Ok(Self { address, env: Vec::new(), _running: None }),
            Wanted::Ours => ours(),
            Wanted::Peer => peer(),
        }
    }
}

fn ours() -> Outcome<Broker> {
    Call::line("cargo build --quiet -p thalweg").run()?;
    let folder = folder("thalweg")?;
    let (data, ready) = (folder.join("data"), folder.join("ready.json"));
    let call = Call::line("target/debug/thalweg serve --native 127.0.0.1:0 --http 127.0.0.1:0 --kafka 127.0.0.1:0")
        .arg("--data")
        .arg(data.display().to_string())
        .arg("--ready-file")
        .arg(ready.display().to_string());
    let (running, ready) = Running::start(&call, folder, ready)?;
    let address = ready["kafka"].as_str().ok_or("the broker has no door for Kafka's clients")?.to_owned();
    Ok(Broker { address, env: Vec::new(), _running: Some(running) })
}

fn peer() -> Outcome<Broker> {
    let folder = folder("kafka")?;
    let broker = folder.join("broker");
    let call = Call::line("python3 compat/kafka/suite/peer.py --until-eof").arg(broker.display().to_string());
    let (running, ready) = Running::start(&call, folder, broker.join("ready.json"))?;
    let said = |key: &str| ready[key].as_str().unwrap_or_default().to_owned();
    let env = vec![
        ("COMPAT_SASL", said("sasl")),
        ("COMPAT_SASL_TLS", said("sasl_tls")),
        ("COMPAT_CA", said("ca")),
        ("COMPAT_USER", said("user")),
        ("COMPAT_PASSWORD", said("password")),
    ];
    Ok(Broker { address: said("open"), env, _running: Some(running) })
}

fn folder(of: &str) -> Outcome<PathBuf> {
    let folder = root().join(format!("target/compat/run-{of}-{}", std::process::id()));
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    Ok(folder)
}

impl Running {
    /// Starts it, and waits for the file with which it says that it is there.
    fn start(call: &Call, folder: PathBuf, ready: PathBuf) -> Outcome<(Self, Value)> {
        let log = folder.join("log");
        let open =
            || File::options().create(true).append(true).open(&log).map_err(|e| format!("{}: {e}", log.display()));
        let child = call.command().stdin(Stdio::piped()).stdout(open()?).stderr(open()?).spawn();
        let mut running = Self { child: child.map_err(|e| format!("{call}: {e}"))?, folder };
        let begin = Instant::now();
        while !ready.exists() {
            let ended = running.child.try_wait().map_err(|e| e.to_string())?;
            if ended.is_some() || begin.elapsed() > READY {
                let said = fs::read_to_string(&log).unwrap_or_default();
                return Err(format!("the broker did not get ready ({ended:?}):\n{said}"));
            }
            sleep(LOOK_EVERY);
        }
        let text = fs::read_to_string(&ready).map_err(|e| format!("{}: {e}", ready.display()))?;
        let value = serde_json::from_str(&text).map_err(|e| format!("{}: {e}", ready.display()))?;
        Ok((running, value))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The peer ends with its input, and takes its broker along; ours is told to.
        drop(self.child.stdin.take());
        let pid = self.child.id().to_string();
        Call::line("kill").arg(pid).succeeds();
        self.child.wait().map(drop).unwrap_or_default();
        let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        if log.contains("panicked at") {
            eprintln!("the broker panicked:\n{log}");
        }
        fs::remove_dir_all(&self.folder).unwrap_or_default();
    }
}
