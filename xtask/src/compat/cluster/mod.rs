//! `cargo xtask compat cluster`: unmodified clients under load while the leader of their cluster is killed.

mod check;
mod history;
mod nodes;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::json;

use super::clients::Client;
use super::systems::SYSTEMS;
use crate::built;
use crate::run::{Call, Outcome, root};
use check::Findings;
use history::{Event, History};
pub use nodes::free_ports;
use nodes::{NODES, Nodes};

/// Leaders that are killed if no number is given.
const KILLS: u32 = 20;
/// Maximum time in which every stream of every client has an acknowledgement after a kill. Clients decide themselves
/// how long they wait between attempts; none of them waits for that long.
const PROGRESS: Duration = Duration::from_secs(120);
/// Maximum time in which a program settles its last requests and reads everything back.
const ENDING: Duration = Duration::from_secs(180);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Pause under load before a kill. It differs from kill to kill.
const PAUSE: std::ops::Range<u64> = 300..1800;
/// Node that is never killed with `--one`.
const SPARED: u64 = NODES;
const FOLDER: &str = "target/compat/cluster";

/// Client under load: one of a registry, or this project's own.
#[derive(Clone, Copy)]
enum Under {
    Client(&'static Client),
    Native,
}

impl Under {
    fn all() -> impl Iterator<Item = Self> {
        let clients = SYSTEMS.iter().flat_map(|system| system.clients).filter(|client| client.survives_failovers);
        clients.map(Self::Client).chain([Self::Native])
    }

    fn name(self) -> &'static str {
        match self {
            Self::Client(client) => client.name,
            Self::Native => "native",
        }
    }

    fn door(self) -> &'static str {
        match self {
            Self::Client(client) => client.system,
            Self::Native => "native",
        }
    }

    fn install(self, options: &Options) -> Outcome {
        match self {
            Self::Client(client) => client.install().and_then(|()| client.install_failover()),
            Self::Native => {
                let build = Call::line("cargo build --quiet -p thalweg-client --example failover");
                build.args(options.profile()).run()
            }
        }
    }

    fn call(self, options: &Options) -> Call {
        match self {
            Self::Client(client) => client.failover(),
            Self::Native => Call::new(format!("{}/examples/failover", options.built())),
        }
    }
}

struct Options {
    clients: Vec<Under>,
    kills: u32,
    /// `true` if clients know one node only, which is not killed.
    is_one: bool,
    is_release: bool,
    json: Option<String>,
}

impl Options {
    fn read(args: &[&str]) -> Outcome<Self> {
        let mut options = Self { clients: Vec::new(), kills: KILLS, is_one: false, is_release: false, json: None };
        let mut args = args.iter().copied();
        while let Some(arg) = args.next() {
            if let Some(client) = Under::all().find(|client| client.name() == arg) {
                options.clients.push(client);
                continue;
            }
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            match arg {
                "--kills" => options.kills = value()?.parse().map_err(|e| format!("--kills: {e}"))?,
                "--one" => options.is_one = true,
                "--release" => options.is_release = true,
                "--json" => options.json = Some(value()?.to_owned()),
                _ => {
                    let names: Vec<&str> = Under::all().map(Under::name).collect();
                    return Err(format!(
                        "'{arg}' is neither a client ({}) nor an option: --kills N, --one, --release, --json FILE",
                        names.join(", ")
                    ));
                }
            }
        }
        if options.clients.is_empty() {
            options.clients.extend(Under::all());
        }
        Ok(options)
    }

    fn profile(&self) -> impl Iterator<Item = &'static str> {
        self.is_release.then_some("--release").into_iter()
    }

    /// Returns the folder of the built programs.
    fn built(&self) -> &'static str {
        if self.is_release { "target/release" } else { "target/debug" }
    }
}

pub fn run(args: &[&str]) -> Outcome {
    let options = Options::read(args)?;
    let programs = built::build(&["thalweg"], options.is_release)?;
    for client in &options.clients {
        client.install(&options).map_err(|why| format!("{} is not available: {why}", client.name()))?;
    }
    let folder = root().join(FOLDER).join(format!("run-{}", std::process::id()));
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let folder_shown = folder.display().to_string();
    let program = programs.join("thalweg").display().to_string();
    let mut nodes = Nodes::start(&program, folder.clone())?;
    println!("== {NODES} nodes run; logs and histories are in {folder_shown}");
    let reports = under_kills(&options, &mut nodes, folder.clone())?;
    let mut violations: Vec<String> = reports.iter().flat_map(Report::sentences).collect();
    violations.extend(nodes.panicked().iter().map(|node| format!("node {node} panicked")));
    drop(nodes);
    if let Some(path) = &options.json {
        fs::write(path, format!("{:#}\n", to_json(&reports, options.kills))).map_err(|e| format!("{path}: {e}"))?;
    }
    println!("\n{}", table(&reports, options.kills));
    if violations.is_empty() {
        return fs::remove_dir_all(&folder).map_err(|e| format!("{folder_shown}: {e}"));
    }
    violations.iter().for_each(|sentence| println!("{sentence}"));
    Err(format!("{} kinds of violations; logs and histories are in {folder_shown}", violations.len()))
}

/// Starts the programs, kills leaders, ends the programs, and checks their histories.
fn under_kills(options: &Options, nodes: &mut Nodes, folder: PathBuf) -> Outcome<Vec<Report>> {
    let mut programs = Vec::new();
    for client in &options.clients {
        programs.push(Program::start(*client, options, nodes, &folder)?);
    }
    let mut late = await_progress(&mut programs, "after the start")?;
    for kill in 1..=options.kills {
        if !late.is_empty() {
            break;
        }
        sleep(Duration::from_millis(PAUSE.start + u64::from(kill) * 7919 % (PAUSE.end - PAUSE.start)));
        if options.is_one {
            nodes.drain(SPARED)?;
        }
        let killed = nodes.leader()?;
        nodes.kill(killed)?;
        let begin = Instant::now();
        let next = nodes.leader()?;
        programs.iter_mut().try_for_each(Program::mark)?;
        nodes.restart(killed)?;
        nodes.until_complete()?;
        let whole = begin.elapsed();
        late = await_progress(&mut programs, &format!("after kill {kill}"))?;
        println!(
            "== kill {kill} of {}: node {killed}; node {next} leads, all nodes are complete after {:.1} s, all streams \
             continue after {:.1} s",
            options.kills,
            whole.as_secs_f64(),
            begin.elapsed().as_secs_f64()
        );
    }
    programs.into_iter().map(|program| program.end(&late)).collect()
}

/// Waits until every stream has an acknowledgement since the last mark. Returns the streams that have none in time.
fn await_progress(programs: &mut [Program], when: &str) -> Outcome<BTreeMap<&'static str, Vec<String>>> {
    let begin = Instant::now();
    loop {
        let mut late = BTreeMap::new();
        for program in &mut *programs {
            let waiting = program.without_progress()?;
            if !waiting.is_empty() {
                let sentence = |stream| format!("{stream}: no acknowledgement for {} s {when}", PROGRESS.as_secs());
                late.insert(program.client.name(), waiting.into_iter().map(sentence).collect());
            }
        }
        if late.is_empty() || begin.elapsed() > PROGRESS {
            return Ok(late);
        }
        sleep(LOOK_EVERY);
    }
}

/// Program of a client that runs.
struct Program {
    client: Under,
    child: Child,
    log: PathBuf,
    history: History,
    /// Length of the history at the last kill.
    marked: usize,
}

impl Program {
    fn start(client: Under, options: &Options, nodes: &Nodes, folder: &std::path::Path) -> Outcome<Self> {
        let name = client.name();
        let log = folder.join(format!("{name}.log"));
        let path = folder.join(format!("{name}.jsonl"));
        let known = if options.is_one { SPARED..=SPARED } else { 1..=NODES };
        let addresses: Vec<String> = known.map(|node| nodes.address(node, client.door())).collect();
        let call = client.call(options).arg(path.display().to_string()).args(addresses);
        let open = || File::options().create(true).append(true).open(&log).map_err(|e| format!("{name}.log: {e}"));
        let child = call.command().stdin(Stdio::piped()).stdout(open()?).stderr(open()?).spawn();
        let child = child.map_err(|e| format!("{call}: {e}"))?;
        Ok(Self { client, child, log, history: History::new(&path), marked: 0 })
    }

    fn mark(&mut self) -> Outcome {
        self.history.refresh()?;
        self.marked = self.history.events.len();
        Ok(())
    }

    /// Returns the streams without an acknowledgement since the last mark.
    fn without_progress(&mut self) -> Outcome<Vec<String>> {
        self.history.refresh()?;
        if let Some(status) = self.child.try_wait().map_err(|e| e.to_string())? {
            return Err(format!("{} ended with {status}; its log is {}", self.client.name(), self.log.display()));
        }
        let streams = self.history.events.iter().filter_map(|event| match event {
            Event::Stream { stream, .. } => Some(stream),
            _ => None,
        });
        let mut waiting: Vec<String> = streams.cloned().collect();
        if waiting.is_empty() {
            return Ok(vec!["its program".to_owned()]);
        }
        let since = self.history.events[self.marked..].iter();
        let acknowledged = since.filter(|event| event.acknowledged().is_some()).filter_map(Event::stream);
        acknowledged.for_each(|stream| waiting.retain(|waiting| waiting != stream));
        Ok(waiting)
    }

    /// Waits until the program has read everything back, and checks its history.
    fn end(mut self, late: &BTreeMap<&str, Vec<String>>) -> Outcome<Report> {
        drop(self.child.stdin.take());
        let begin = Instant::now();
        let mut failed = late.get(self.client.name()).cloned().unwrap_or_default();
        loop {
            match self.child.try_wait().map_err(|e| e.to_string())? {
                Some(status) if status.success() => break,
                Some(status) => {
                    failed.push(format!("its program ended with {status}; its log is {}", self.log.display()));
                    break;
                }
                None if begin.elapsed() > ENDING => {
                    failed.push(format!("its program did not end within {} s", ENDING.as_secs()));
                    break;
                }
                None => sleep(LOOK_EVERY),
            }
        }
        self.history.refresh()?;
        let version = self.history.events.iter().find_map(|event| match event {
            Event::Client { version } => Some(version.clone()),
            _ => None,
        });
        let version = version.unwrap_or_default();
        Ok(Report { client: self.client.name(), version, streams: check::check(&self.history.events), failed })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.child.kill().unwrap_or_default();
        self.child.wait().map(drop).unwrap_or_default();
    }
}

/// Results of a client.
struct Report {
    client: &'static str,
    version: String,
    streams: Vec<Findings>,
    /// Violations that are not in its history.
    failed: Vec<String>,
}

impl Report {
    fn sentences(&self) -> Vec<String> {
        let all = self.failed.iter().cloned().chain(self.streams.iter().flat_map(Findings::sentences));
        all.map(|sentence| format!("FAILED {}: {sentence}", self.client)).collect()
    }
}

fn table(reports: &[Report], kills: u32) -> String {
    let mut out = format!(
        "{:<16} {:<14} {:>5} {:>8} {:>5} {:>7} {:>6} {:>11} {:>6} {:>9}\n",
        "client", "stream", "kills", "acked", "lost", "unknown", "copies", "redelivered", "errors", "stall s"
    );
    for report in reports {
        for of in &report.streams {
            let stall = of.stall_ms as f64 / 1000.0;
            // Writing to a string does not fail.
            let _ = writeln!(
                out,
                "{:<16} {:<14} {kills:>5} {:>8} {:>5} {:>7} {:>6} {:>11} {:>6} {stall:>9.1}",
                report.client, of.stream, of.acknowledged, of.lost, of.unknown, of.copies, of.redelivered, of.errors
            );
        }
    }
    out
}

fn to_json(reports: &[Report], kills: u32) -> serde_json::Value {
    let stream = |of: &Findings| {
        json!({
            "stream": of.stream, "acknowledged": of.acknowledged, "lost": of.lost, "unknown": of.unknown,
            "copies": of.copies, "redelivered": of.redelivered, "errors": of.errors, "stall_ms": of.stall_ms,
            "violations": of.sentences(),
        })
    };
    let report = |of: &Report| {
        let streams: Vec<_> = of.streams.iter().map(stream).collect();
        json!({ "client": of.client, "version": of.version, "kills": kills, "streams": streams, "failed": of.failed })
    };
    reports.iter().map(report).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_checked() {
        let all = Options::read(&[]).expect("all");
        assert!(all.clients.len() > 5 && all.kills == KILLS && !all.is_one);
        let some = Options::read(&["java", "--kills", "2", "native", "--one"]).expect("two");
        assert_eq!(some.clients.iter().map(|client| client.name()).collect::<Vec<_>>(), ["java", "native"]);
        assert!(some.kills == 2 && some.is_one);
        for wrong in [&["--kills"][..], &["--kills", "many"], &["nobody"]] {
            assert!(Options::read(wrong).is_err(), "{wrong:?}");
        }
    }
}
