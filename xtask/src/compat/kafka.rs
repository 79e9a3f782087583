//! `cargo xtask compat kafka`: clients and tools of Kafka, unchanged, go through what people do with them.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Duration;

use super::broker::{Broker, Wanted};
use super::clients::{CLIENTS, Client, jars};
use super::report::{self, Report};
use crate::run::{Call, Outcome, root};

/// A scenario has its own limit, which is shorter; a program that says nothing for so long is ended.
const SILENCE: Duration = Duration::from_secs(300);
/// Clients mostly wait: a few at once do not disturb each other.
const QUICK_JOBS: usize = 4;
const LOGS: &str = "target/compat/logs";

struct Options<'a> {
    clients: Vec<&'static Client>,
    broker: Wanted,
    json: Option<&'a str>,
    /// Where a page of the documentation goes.
    table: Option<&'a str>,
    jobs: usize,
    env: Vec<(&'static str, String)>,
}

pub fn run(args: &[&str]) -> Outcome {
    let options = options(args)?;
    let mut reports = Vec::new();
    if matches!(options.broker, Wanted::Peer) {
        jars()?;
    }
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
    let mut broker = Broker::start(options.broker)?;
    broker.env.extend(options.env);
    println!("== the broker is at {}", broker.address);
    reports.extend(all(&ready, &broker, options.jobs));
    drop(broker);
    let json = options.json.map(|path| (path, format!("{:#}\n", report::to_json(&reports))));
    let table = options.table.map(|path| (path, report::page(&reports)));
    for (path, text) in json.into_iter().chain(table) {
        fs::write(path, text).map_err(|e| format!("{path}: {e}"))?;
    }
    println!("\n{}", report::table(&reports));
    match report::failed(&reports) {
        0 => Ok(()),
        count => Err(format!("{count} scenarios failed; {LOGS} has what else the programs said")),
    }
}

/// Those of the clients of `--quick` that can be had here. What the others lack is said.
pub fn quick() -> Vec<&'static str> {
    let mut there = Vec::new();
    for client in CLIENTS.iter().filter(|client| client.is_quick) {
        match client.fetch() {
            Ok(()) => there.push(client.name),
            Err(why) => println!("== without {}: {why}", client.name),
        }
    }
    there
}

fn options<'a>(args: &[&'a str]) -> Outcome<Options<'a>> {
    let mut options =
        Options { clients: Vec::new(), broker: Wanted::Ours, json: None, table: None, jobs: 1, env: Vec::new() };
    let mut args = args.iter().copied();
    while let Some(arg) = args.next() {
        if let Some(client) = CLIENTS.iter().find(|client| client.name == arg) {
            options.clients.push(client);
            continue;
        }
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg {
            "--address" => options.broker = Wanted::At(value()?.to_owned()),
            "--peer" => options.broker = Wanted::Peer,
            "--json" => options.json = Some(value()?),
            "--table" => options.table = Some(value()?),
            "--jobs" => options.jobs = value()?.parse().map_err(|e| format!("--jobs: {e}"))?,
            "--quick" => {
                options.clients.extend(CLIENTS.iter().filter(|client| client.is_quick));
                options.jobs = QUICK_JOBS;
            }
            "--sasl-address" => options.env.push(("COMPAT_SASL", value()?.to_owned())),
            "--sasl-tls-address" => options.env.push(("COMPAT_SASL_TLS", value()?.to_owned())),
            "--ca" => options.env.push(("COMPAT_CA", value()?.to_owned())),
            "--user" => options.env.push(("COMPAT_USER", value()?.to_owned())),
            "--password" => options.env.push(("COMPAT_PASSWORD", value()?.to_owned())),
            _ => {
                let names: Vec<&str> = CLIENTS.iter().map(|client| client.name).collect();
                return Err(format!("'{arg}' is no client ({}) and no option", names.join(", ")));
            }
        }
    }
    if options.clients.is_empty() {
        options.clients.extend(CLIENTS);
    }
    Ok(options)
}

/// All clients, a few at once, in the order of the table.
fn all(clients: &[&Client], broker: &Broker, jobs: usize) -> Vec<Report> {
    let next = Mutex::new(clients.iter().enumerate());
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            let (next, sender) = (&next, sender.clone());
            scope.spawn(move || {
                loop {
                    let Some((place, client)) = next.lock().ok().and_then(|mut next| next.next()) else { return };
                    let mut report = Report::new(client.name);
                    if let Err(why) = one(client, broker, &mut report) {
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

fn one(client: &Client, broker: &Broker, report: &mut Report) -> Outcome {
    let call = broker.env.iter().fold(client.call().arg(&broker.address), |call, (name, value)| call.env(name, value));
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
                break Err(format!("it said nothing for {SILENCE:?}"));
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

    #[test]
    fn what_it_takes_is_checked() {
        assert_eq!(options(&[]).expect("all").clients.len(), CLIENTS.len());
        let some = options(&["kcat", "--address", "127.0.0.1:9092", "sarama"]).expect("two");
        assert_eq!(some.clients.iter().map(|client| client.name).collect::<Vec<_>>(), ["kcat", "sarama"]);
        assert!(matches!(some.broker, Wanted::At(address) if address == "127.0.0.1:9092"));
        let quick = options(&["--quick"]).expect("a few");
        assert!(quick.jobs > 1 && quick.clients.len() < CLIENTS.len());
        for wrong in [&["--address"][..], &["nobody"], &["--jobs", "many"]] {
            assert!(options(wrong).is_err(), "{wrong:?}");
        }
    }
}
