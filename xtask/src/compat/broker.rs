//! What clients are tried against: brokers of ours on free ports, Apache Kafka itself, or what is there already.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::run::{Call, Outcome, root};

/// Apache Kafka on a busy machine takes half of it.
const READY: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(50);
const USER: &str = "alice";
const PASSWORD: &str = "alice-secret";

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
    /// Ends them when this is dropped.
    _running: Vec<Running>,
}

struct Running {
    child: Child,
    folder: PathBuf,
}

impl Broker {
    pub fn start(wanted: Wanted) -> Outcome<Self> {
        match wanted {
            Wanted::At(address) => Ok(Self { address, env: Vec::new(), _running: Vec::new() }),
            Wanted::Ours => ours(),
            Wanted::Peer => peer(),
        }
    }
}

/// Two of them: a broker asks all of its connections for a user, or none.
fn ours() -> Outcome<Broker> {
    Call::line("cargo build --quiet -p thalweg").run()?;
    let (open, address) = serve(folder("thalweg")?, &[])?;
    let folder = folder("thalweg-users")?;
    let [certificate, key] = certificate(&folder)?;
    let settings = [
        "auth=required".to_owned(),
        format!("users={USER}:{PASSWORD}"),
        format!("tls_cert={certificate}"),
        format!("tls_key={key}"),
    ];
    let (guarded, login) = serve(folder, &settings)?;
    let env = vec![
        ("COMPAT_SASL", login.clone()),
        ("COMPAT_SASL_TLS", login),
        ("COMPAT_CA", certificate),
        ("COMPAT_USER", USER.to_owned()),
        ("COMPAT_PASSWORD", PASSWORD.to_owned()),
    ];
    Ok(Broker { address, env, _running: vec![open, guarded] })
}

/// A broker of this tree with its data in this folder, and where its door for Kafka's clients is.
fn serve(folder: PathBuf, settings: &[String]) -> Outcome<(Running, String)> {
    let (data, ready) = (folder.join("data"), folder.join("ready.json"));
    let call =
        Call::line("target/debug/thalweg serve --native 127.0.0.1:0 --http 127.0.0.1:0 --kafka 127.0.0.1:0 --sqs off")
            .args(["--data".to_owned(), data.display().to_string()])
            .args(["--ready-file".to_owned(), ready.display().to_string()])
            .args(settings.iter().flat_map(|setting| ["--set", setting]));
    let (running, ready) = Running::start(&call, folder, ready)?;
    let address = ready["kafka"].as_str().ok_or("the broker has no door for Kafka's clients")?.to_owned();
    Ok((running, address))
}

/// Files with a certificate for this machine, which is its own authority, and with its key.
fn certificate(folder: &Path) -> Outcome<[String; 2]> {
    let files = ["ca.pem", "key.pem"].map(|name| folder.join(name).display().to_string());
    let call = Call::line("openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=localhost").args([
        "-addext",
        "subjectAltName=IP:127.0.0.1,DNS:localhost",
        "-out",
        &files[0],
        "-keyout",
        &files[1],
    ]);
    if call.succeeds() { Ok(files) } else { Err(format!("no certificate was made; try: {call}")) }
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
    Ok(Broker { address: said("open"), env, _running: vec![running] })
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
