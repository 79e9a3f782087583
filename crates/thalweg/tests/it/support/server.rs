//! Broker in a separate process, and waits with a time limit.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use client::{Address, Client, ClientSettings, Login};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::ports::free_ports;

/// Maximum duration of any operation on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// Polling interval of conditions without a notification.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Folder in which brokers write the tokens of their administrators.
const RUNTIME_DIR: &str = env!("CARGO_TARGET_TMPDIR");
/// Folder that does not exist, so that the contexts of the user who runs the tests have no effect.
const NO_CONFIG: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/no-config");

/// Waits for a future, with a time limit.
pub async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, work).await {
        Ok(done) => done,
        Err(_) => panic!("{what}: not within {PATIENCE:?}"),
    }
}

/// Polls a condition until it holds, with a time limit.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begin = Instant::now();
    while !within(what, holds()).await {
        assert!(begin.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Returns the size of a test, which an environment variable may override, as `cargo xtask soak hardening` does.
pub fn size(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |number| number.parse().expect("a number"))
}

/// Returns a command for the binary, without the configuration of this process.
pub fn program() -> Command {
    clean(Command::new(env!("CARGO_BIN_EXE_thalweg")))
}

fn clean(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("THALWEG_") {
            command.env_remove(name);
        }
    }
    // Most tests do not use these doors, whose ports may be in use.
    command.env("THALWEG_PUBSUB", "off").env("THALWEG_REDIS", "off").env("XDG_RUNTIME_DIR", RUNTIME_DIR);
    command.env("XDG_CONFIG_HOME", NO_CONFIG);
    command
}

/// Launch options of a broker.
#[derive(Clone, Default)]
pub struct Launch {
    /// Pairs for `--set`.
    pub set: Vec<String>,
    /// Shell commands that run before the shell becomes the broker.
    pub shell: Option<&'static str>,
    /// Text of a configuration file.
    pub file: Option<String>,
    /// File for the standard output and error instead of the log.
    pub output: Option<PathBuf>,
}

/// Running broker. Dropping it kills the process.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    pub kafka: SocketAddr,
    pub sqs: SocketAddr,
    launch: Launch,
    folder: TempDir,
}

impl Server {
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a broker with these settings.
    pub fn with(set: &[&str]) -> Self {
        Self::launch(Launch { set: set.iter().map(|pair| (*pair).to_owned()).collect(), ..Launch::default() })
    }

    /// Starts a broker with this configuration file and these additional settings.
    pub fn with_file(text: &str, set: &[&str]) -> Self {
        let set = set.iter().map(|pair| (*pair).to_owned()).collect();
        Self::launch(Launch { set, file: Some(text.to_owned()), ..Launch::default() })
    }

    pub fn launch(launch: Launch) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let port = free_ports(3);
        let addresses = [port, port + 1, port + 2].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let (child, [address, kafka, sqs]) = spawn(&launch, folder.path(), addresses);
        Self { child, address, kafka, sqs, launch, folder }
    }

    /// Kills the process, as a power failure would, and starts another on the same port.
    pub fn crash_and_restart(&mut self) {
        self.crash();
        self.start_again();
    }

    /// Starts another process on the ports of the one that has ended.
    pub fn start_again(&mut self) {
        let before = [self.address, self.kafka, self.sqs];
        let (child, addresses) = spawn(&self.launch, self.folder.path(), before);
        self.child = child;
        assert_eq!(before, addresses);
    }

    pub fn crash(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("gone");
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a process");
        kill_process(pid, signal).expect("signalled");
    }

    /// Stops the process, as a debugger or a sleeping laptop does, until it receives `CONT`.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        let pid = Pid::from_raw(self.child.id() as i32);
        let stopped = rustix::process::waitpid(pid, rustix::process::WaitOptions::UNTRACED);
        let (_, status) = stopped.expect("a child").expect("its status");
        assert!(status.stopped(), "{status:?}");
    }

    /// Waits for the process to end on its own.
    pub async fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        until("the end of the broker", async || {
            status = self.child.try_wait().expect("its status");
            status.is_some()
        })
        .await;
        status.expect("it has ended")
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("its status").is_none()
    }

    /// Returns the address of the Pub/Sub door, which most tests do not open.
    pub fn pubsub(&self) -> SocketAddr {
        self.door("pubsub")
    }

    /// Returns the address of a door that the test opened.
    pub fn door(&self, name: &str) -> SocketAddr {
        let ready = std::fs::read_to_string(self.folder.path().join("ready.json")).expect("it is ready");
        let ready: serde_json::Value = serde_json::from_str(&ready).expect("JSON");
        ready[name].as_str().expect("the door is open").parse().expect("an address")
    }

    pub fn url(&self, scheme: &str) -> String {
        format!("{scheme}://{}", self.address)
    }

    pub async fn client(&self, scheme: &str) -> Client {
        self.client_with(scheme, ClientSettings::default()).await
    }

    pub async fn client_with(&self, scheme: &str, settings: ClientSettings) -> Client {
        connect(&self.url(scheme), settings).await
    }

    /// Returns the resident memory of the process, as reported by Linux.
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("its status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
        let kib = line.split_whitespace().next().expect("a number");
        kib.parse::<u64>().expect("a number") << 10
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may already have ended.
        self.child.kill().unwrap_or_default();
        self.child.wait().map(drop).unwrap_or_default();
        let log = self.log();
        if std::thread::panicking() {
            eprintln!("the broker's log:\n{log}");
        } else {
            assert!(!log.contains("panic"), "the broker panicked:\n{log}");
        }
    }
}

/// Connects a client to a running broker, as its administrator if the settings have no login.
pub async fn connect(url: &str, settings: ClientSettings) -> Client {
    let address = Address::parse(url).expect("an address");
    let login = settings.login.clone().or_else(|| administrator(&address));
    let settings = ClientSettings { login, ..settings };
    within("a connection", Client::connect_with(address, settings)).await.expect("connected")
}

fn administrator(address: &Address) -> Option<Login> {
    let file = format!("admin-{}.token", address.local_port()?);
    let token = std::fs::read_to_string(Path::new(RUNTIME_DIR).join("thalweg").join(file)).ok()?;
    Some(Login::administrator(token).expect("it is not empty"))
}

/// Returns the value of a metric without labels.
pub async fn metric(client: &Client, name: &str) -> u64 {
    let text = within("the metrics", client.stats()).await.expect("metrics");
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no metric {name} in\n{text}")).parse().expect("a whole number")
}

/// Starts a broker, and returns once its native, Kafka and SQS doors are open.
fn spawn(launch: &Launch, folder: &Path, addresses: [SocketAddr; 3]) -> (Child, [SocketAddr; 3]) {
    let ready_file = folder.join("ready.json");
    if ready_file.exists() {
        std::fs::remove_file(&ready_file).expect("removed");
    }
    let mut command = match launch.shell {
        None => program(),
        Some(before) => {
            let mut shell = clean(Command::new("sh"));
            shell.arg("-c").arg(format!("{before}; exec \"$0\" \"$@\"")).arg(env!("CARGO_BIN_EXE_thalweg"));
            shell
        }
    };
    let [native, kafka, sqs] = addresses.map(|address| address.to_string());
    command.args(["serve", "--native", &native, "--http", "off", "--kafka", &kafka, "--sqs", &sqs]);
    command.arg("--ready-file").arg(&ready_file);
    if let Some(text) = &launch.file {
        let file = folder.join("config.toml");
        std::fs::write(&file, text).expect("written");
        command.arg("--config").arg(file);
    }
    for pair in &launch.set {
        command.args(["--set", pair]);
    }
    let append = |path: &Path| File::options().create(true).append(true).open(path).expect("an output file");
    let path = launch.output.clone().unwrap_or_else(|| folder.join("log"));
    let child = command
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(append(&path))
        .stderr(append(&path))
        .spawn()
        .expect("the broker starts");
    wait_until_ready(child, &ready_file, folder)
}

fn wait_until_ready(mut child: Child, ready_file: &Path, folder: &Path) -> (Child, [SocketAddr; 3]) {
    let begin = Instant::now();
    let text = loop {
        if let Ok(text) = std::fs::read_to_string(ready_file) {
            break text;
        }
        let status = child.try_wait().expect("its status");
        if status.is_some() || begin.elapsed() > PATIENCE {
            child.kill().unwrap_or_default();
            let log = std::fs::read_to_string(folder.join("log")).unwrap_or_default();
            panic!("the broker did not get ready ({status:?}):\n{log}");
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let ready: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let address = |door: &str| ready[door].as_str().expect("an address").parse().expect("an address");
    let addresses = ["native", "kafka", "sqs"].map(address);
    (child, addresses)
}
