//! Servers for the clients: brokers of this tree on free ports, another server of the protocol, or a running server.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::systems::{Peer, System};
use crate::built;
use crate::run::{Call, Outcome, root};

/// Maximum time until a server is ready. A Java server needs half of it on a busy machine.
const READY: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Doors for other systems' clients that a broker opens by default.
const DOORS: [&str; 4] = ["kafka", "sqs", "pubsub", "redis"];
const USER: &str = "alice";
const PASSWORD: &str = "alice-secret";

/// Selected broker.
pub enum Wanted {
    Ours,
    /// Server against which the scenarios are validated.
    Peer(&'static Peer),
    At(String),
}

/// Address for the clients, and their environment variables.
pub struct Broker {
    pub address: String,
    pub env: Vec<(&'static str, String)>,
    /// Processes, which end when this is dropped.
    running: Vec<Running>,
}

struct Running {
    child: Child,
    folder: PathBuf,
}

impl Broker {
    pub fn start(system: &System, wanted: &Wanted) -> Outcome<Self> {
        match wanted {
            Wanted::At(address) => Ok(Self { address: address.clone(), env: Vec::new(), running: Vec::new() }),
            Wanted::Ours => (system.start)(),
            Wanted::Peer(wanted) => peer(wanted),
        }
    }
}

/// Starts a broker with this door.
pub fn one(door: &str, settings: &[String]) -> Outcome<Broker> {
    built::build(&["thalweg"], false)?;
    let (running, address) = serve(folder("thalweg")?, door, settings)?;
    Ok(Broker { address, env: Vec::new(), running: vec![running] })
}

/// Starts two brokers: the first waits between purges as AWS does, the second requires signatures.
pub fn sqs() -> Outcome<Broker> {
    let mut broker = one("sqs", &["sqs_cooldown_s=60".to_owned()])?;
    let settings = ["sqs_auth=verify".to_owned(), format!("sqs_credentials={USER}:{PASSWORD}")];
    let (signed, address) = serve(folder("thalweg-signed")?, "sqs", &settings)?;
    broker.running.push(signed);
    let variables = [("COMPAT_SIGNED", address.as_str()), ("COMPAT_USER", USER), ("COMPAT_PASSWORD", PASSWORD)];
    broker.env = variables.map(|(name, value)| (name, value.to_owned())).to_vec();
    Ok(broker)
}

/// Starts two brokers: the second is emptied again and again.
pub fn redis() -> Outcome<Broker> {
    let mut broker = one("redis", &[])?;
    let (empty, address) = serve(folder("thalweg-empty")?, "redis", &[])?;
    broker.running.push(empty);
    broker.env.push(("COMPAT_EMPTY", address));
    Ok(broker)
}

/// Starts two brokers, because a broker requires a user for all of its connections, or for none. The first has an
/// authorizer that lets every client do everything, as Kafka's has for the same scenarios, and no other door.
pub fn kafka() -> Outcome<Broker> {
    let settings = ["authorization=true", "super_users=ANONYMOUS", "native=off", "http=off"].map(str::to_owned);
    let Broker { address, mut running, .. } = one("kafka", &settings)?;
    let folder = folder("thalweg-users")?;
    let [certificate, key] = certificate(&folder)?;
    let settings = [
        "auth=required".to_owned(),
        format!("users={USER}:{PASSWORD}"),
        format!("tls_cert={certificate}"),
        format!("tls_key={key}"),
    ];
    let (guarded, login) = serve(folder, "kafka", &settings)?;
    running.push(guarded);
    let env = vec![
        ("COMPAT_SASL", login.clone()),
        ("COMPAT_SASL_TLS", login),
        ("COMPAT_CA", certificate),
        ("COMPAT_USER", USER.to_owned()),
        ("COMPAT_PASSWORD", PASSWORD.to_owned()),
    ];
    Ok(Broker { address, env, running })
}

/// Starts a broker of this tree with its data in this folder. Returns it with the address of this door.
fn serve(folder: PathBuf, door: &str, settings: &[String]) -> Outcome<(Running, String)> {
    let data = folder.join("data");
    let ready = folder.join("ready.json");
    let others = DOORS.into_iter().filter(|other| *other != door).map(|other| (other, "off"));
    let opened = ["native", "http"].into_iter().chain(Some(door).filter(|door| *door != "http"));
    let doors = opened.map(|door| (door, "127.0.0.1:0")).chain(others);
    let call = Call::line("target/debug/thalweg serve")
        .args(doors.flat_map(|(door, address)| [format!("--{door}"), address.to_owned()]))
        .args(["--data".to_owned(), data.display().to_string()])
        .args(["--ready-file".to_owned(), ready.display().to_string()])
        .args(settings.iter().flat_map(|setting| ["--set", setting]));
    let (running, ready) = Running::start(&call, folder, ready)?;
    let address = ready[door].as_str().ok_or_else(|| format!("the broker has no door {door}"))?.to_owned();
    Ok((running, address))
}

/// Creates files with a self-signed certificate for this machine, and with its key.
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
    if call.succeeds() { Ok(files) } else { Err(format!("no certificate was generated; try: {call}")) }
}

fn peer(peer: &Peer) -> Outcome<Broker> {
    let folder = folder(peer.name)?;
    let server = folder.join("server");
    let call = (peer.start)(&server.display().to_string());
    let (running, ready) = Running::start(&call, folder, server.join("ready.json"))?;
    let said = |key: &str| ready[key].as_str().map(str::to_owned);
    let variables = [
        ("sasl", "COMPAT_SASL"),
        ("sasl_tls", "COMPAT_SASL_TLS"),
        ("ca", "COMPAT_CA"),
        ("user", "COMPAT_USER"),
        ("password", "COMPAT_PASSWORD"),
        ("empty", "COMPAT_EMPTY"),
    ];
    let env = variables.into_iter().filter_map(|(key, variable)| Some((variable, said(key)?))).collect();
    let address = said("open").ok_or("the server does not report its address")?;
    Ok(Broker { address, env, running: vec![running] })
}

/// Creates a folder for one server.
fn folder(of: &str) -> Outcome<PathBuf> {
    static CREATED: AtomicUsize = AtomicUsize::new(0);
    let number = CREATED.fetch_add(1, Ordering::Relaxed);
    let folder = root().join(format!("target/compat/run-{of}-{}-{number}", std::process::id()));
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    Ok(folder)
}

impl Running {
    /// Starts the process, and waits for the file by which it reports that it is ready.
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
                return Err(format!("the broker did not become ready ({ended:?}):\n{said}"));
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
        // The peer ends with its input, and ends its broker; a broker of this tree gets a signal.
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
