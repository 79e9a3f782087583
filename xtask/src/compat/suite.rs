//! `cargo xtask compat SYSTEM`: runs typical scenarios with unmodified clients and tools of a system.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Duration;

use super::broker::{Broker, Wanted};
use super::clients::Client;
use super::lacks::Lacks;
use super::report::{self, Report};
use super::systems::{Peer, SYSTEMS, System};
use crate::run::{Call, Outcome, root};

/// Time without output after which a program is ended. A scenario has its own limit, which is shorter.
const SILENCE: Duration = Duration::from_secs(300);
/// Number of clients that run in parallel: they mostly wait, so they do not disturb each other.
const QUICK_JOBS: usize = 4;
const LOGS: &str = "target/compat/logs";

struct Options<'a> {
    clients: Vec<&'static Client>,
    /// Named scenarios; all, if this is empty.
    scenarios: Vec<&'a str>,
    broker: Wanted,
    json: Option<&'a str>,
    /// File for a page of the documentation.
    table: Option<&'a str>,
    jobs: usize,
    env: Vec<(&'static str, String)>,
}

pub fn run(system: &'static System, args: &[&str]) -> Outcome {
    let options = options(system, args)?;
    let mut reports = Vec::new();
    let mut scenarios = options.scenarios;
    let lacks = match options.broker {
        Wanted::Peer(peer) => {
            (peer.install)()?;
            if scenarios.is_empty() {
                scenarios.extend(peer.only);
            }
            Some(Lacks::of(system.name, peer.name)?)
        }
        Wanted::Ours => Some(Lacks::of(system.name, "thalweg")?),
        Wanted::At(_) => None,
    };
    let mut ready = Vec::new();
    for client in options.clients {
        match client.install() {
            Ok(()) => ready.push(client),
            Err(why) => {
                let mut report = Report::new(client.name);
                report.fail("install", why);
                reports.push(report);
            }
        }
    }
    fs::create_dir_all(root().join(LOGS)).map_err(|e| format!("{LOGS}: {e}"))?;
    let mut broker = Broker::start(system, &options.broker)?;
    broker.env.extend(options.env);
    println!("== the broker is at {}", broker.address);
    reports.extend(all(&ready, &broker, &scenarios, options.jobs));
    drop(broker);
    if let Some(lacks) = lacks {
        reports.iter_mut().for_each(|report| lacks.apply(report));
    }
    let json = options.json.map(|path| (path, format!("{:#}\n", report::to_json(&reports))));
    let table = options.table.map(|path| (path, report::page(system.page, &reports)));
    for (path, text) in json.into_iter().chain(table) {
        fs::write(path, text).map_err(|e| format!("{path}: {e}"))?;
    }
    println!("\n{}", report::table(&reports));
    match report::failed(&reports) {
        0 => Ok(()),
        count => Err(format!("{count} scenarios failed; {LOGS} has the other output of the programs")),
    }
}

/// Returns the system's clients of `--quick` that are available here. Prints the missing parts of the others.
pub fn quick(system: &str) -> Vec<&'static str> {
    let mut available = Vec::new();
    let clients = SYSTEMS.iter().filter(|each| each.name == system).flat_map(|system| system.clients);
    for client in clients.filter(|client| client.is_quick) {
        match client.fetch() {
            Ok(()) => available.push(client.name),
            Err(why) => println!("== without {}: {why}", client.name),
        }
    }
    available
}

fn options<'a>(system: &'static System, args: &[&'a str]) -> Outcome<Options<'a>> {
    let mut options = Options {
        clients: Vec::new(),
        scenarios: Vec::new(),
        broker: Wanted::Ours,
        json: None,
        table: None,
        jobs: 1,
        env: Vec::new(),
    };
    let mut args = args.iter().copied();
    while let Some(arg) = args.next() {
        if let Some(client) = system.clients.iter().find(|client| client.name == arg) {
            options.clients.push(client);
            continue;
        }
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg {
            "--address" => options.broker = Wanted::At(value()?.to_owned()),
            "--scenario" => options.scenarios.push(value()?),
            "--json" => options.json = Some(value()?),
            "--table" => options.table = Some(value()?),
            "--jobs" => options.jobs = value()?.parse().map_err(|e| format!("--jobs: {e}"))?,
            "--quick" => {
                options.clients.extend(system.clients.iter().filter(|client| client.is_quick));
                options.jobs = QUICK_JOBS;
            }
            _ if arg == "--peer" || arg.starts_with("--peer=") => options.broker = Wanted::Peer(peer(system, arg)?),
            _ => {
                let Some((_, variable)) = system.options.iter().find(|(option, _)| *option == arg) else {
                    let names: Vec<&str> = system.clients.iter().map(|client| client.name).collect();
                    return Err(format!("'{arg}' is neither a client ({}) nor an option", names.join(", ")));
                };
                options.env.push((variable, value()?.to_owned()));
            }
        }
    }
    if options.clients.is_empty() {
        options.clients.extend(system.clients);
    }
    Ok(options)
}

/// Returns the peer of an argument: the first one for `--peer`, or the named one for `--peer=NAME`.
fn peer(system: &'static System, arg: &str) -> Outcome<&'static Peer> {
    let wanted = arg.strip_prefix("--peer=");
    system.peers.iter().find(|peer| wanted.is_none_or(|wanted| wanted == peer.name)).ok_or_else(|| {
        let names: Vec<&str> = system.peers.iter().map(|peer| peer.name).collect();
        format!("'{arg}' is not one of the peers ({})", names.join(", "))
    })
}

/// Runs all clients, `jobs` in parallel. Returns the reports in the order of the table.
fn all(clients: &[&Client], broker: &Broker, scenarios: &[&str], jobs: usize) -> Vec<Report> {
    let next = Mutex::new(clients.iter().enumerate());
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            let next = &next;
            let sender = sender.clone();
            scope.spawn(move || {
                loop {
                    let Some((place, client)) = next.lock().ok().and_then(|mut next| next.next()) else { return };
                    let mut report = Report::new(client.name);
                    if let Err(why) = one(client, broker, scenarios, &mut report) {
                        report.fail("program", why);
                    }
                    sender.send((place, report)).unwrap_or_default();
                }
            });
        }
        drop(sender);
    });
    let mut reports: Vec<(usize, Report)> = receiver.into_iter().collect();
    reports.sort_by_key(|(place, _)| *place);
    reports.into_iter().map(|(_, report)| report).collect()
}

fn one(client: &Client, broker: &Broker, scenarios: &[&str], report: &mut Report) -> Outcome {
    let call = broker.env.iter().fold(client.call().arg(&broker.address), |call, (name, value)| call.env(name, value));
    let call = call.args(scenarios.iter().copied());
    let path = root().join(LOGS).join(format!("{}.log", client.name));
    let log = File::create(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut child = call.command().stdout(Stdio::piped()).stderr(log).spawn().map_err(|e| format!("{call}: {e}"))?;
    let output = child.stdout.take().ok_or("no output")?;
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    let ended = loop {
        match lines.recv_timeout(SILENCE) {
            Ok(line) => {
                println!("{:16} {line}", client.name);
                report.take(&line);
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break Ok(()),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                child.kill().map_err(|e| e.to_string())?;
                break Err(format!("it printed nothing for {SILENCE:?}"));
            }
        }
    };
    let status = child.wait().map_err(|e| e.to_string())?;
    ended?;
    let is_told = report::failed(std::slice::from_ref(report)) > 0;
    if report.scenarios.is_empty() || (!status.success() && !is_told) {
        return Err(format!("`{}` ended with {status}", Call::to_string(&call)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kafka(args: &'static [&'static str]) -> Outcome<Options<'static>> {
        options(SYSTEMS[0], args)
    }

    #[test]
    fn arguments_are_checked() {
        let clients = SYSTEMS[0].clients;
        assert_eq!(kafka(&[]).expect("all").clients.len(), clients.len());
        let some = kafka(&["kcat", "--address", "127.0.0.1:9092", "sarama", "--scenario", "nulls"]).expect("two");
        assert_eq!(some.clients.iter().map(|client| client.name).collect::<Vec<_>>(), ["kcat", "sarama"]);
        assert!(matches!(some.broker, Wanted::At(address) if address == "127.0.0.1:9092"));
        assert_eq!(some.scenarios, ["nulls"]);
        let quick = kafka(&["--quick", "--user", "alice"]).expect("a few");
        assert!(quick.jobs > 1 && quick.clients.len() < clients.len());
        assert_eq!(quick.env, [("COMPAT_USER", "alice".to_owned())]);
        for wrong in [&["--address"][..], &["nobody"], &["--jobs", "many"], &["--peer=nobody"]] {
            assert!(kafka(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_first_peer_is_the_default() {
        let system = SYSTEMS.iter().find(|system| system.peers.len() > 1).expect("a system with two");
        let named = |arg: &str| peer(system, arg).expect("a peer").name;
        assert_eq!(named("--peer"), system.peers[0].name);
        assert_eq!(named(&format!("--peer={}", system.peers[1].name)), system.peers[1].name);
    }
}
