//! `thalweg doctor`: facts of this machine, exit codes, and what it leaves behind.

use std::net::TcpListener;

use serde_json::Value;

use crate::support::command::thalweg;
use crate::support::server::Server;

const USAGE: i32 = 2;

/// Returns the arguments that turn off all doors but the HTTP door, at this address.
fn http_only(address: &str) -> Vec<String> {
    let doors = ["native", "kafka", "pubsub", "redis", "sqs"];
    let mut args: Vec<String> = doors.into_iter().flat_map(|door| [format!("--{door}"), "off".into()]).collect();
    args.extend(["--http".into(), address.into()]);
    args
}

fn doctor(args: &[String]) -> crate::support::command::Done {
    thalweg(["doctor"].into_iter().chain(args.iter().map(String::as_str)))
}

fn finding<'a>(report: &'a Value, check: &str) -> &'a Value {
    let findings = report["findings"].as_array().expect("findings");
    findings.iter().find(|finding| finding["check"] == check).unwrap_or_else(|| panic!("no {check} in {report}"))
}

#[test]
fn the_disk_is_measured_and_nothing_is_left() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    std::fs::create_dir(&data).expect("created");
    let mut args = http_only("127.0.0.1:0");
    args.extend(["--json".into(), "--data".into(), data.display().to_string()]);
    let done = doctor(&args);
    // A temporary folder in memory is a problem, so the exit code depends on the machine.
    let report: Value = serde_json::from_str(&done.out).expect("JSON");
    let is_problem = report["result"] == "problem";
    assert_eq!(done.code, Some(i32::from(is_problem)), "{done:?}");
    let sync = &report["facts"]["data"]["sync"];
    assert!(sync["count"].as_u64() > Some(0) && sync["p99_us"].as_u64() >= sync["median_us"].as_u64(), "{sync}");
    assert_eq!(finding(&report, "data directory")["found"], "writable");
    assert_eq!(std::fs::read_dir(&data).expect("a folder").count(), 0, "the measurement is deleted");
    assert!(report["facts"]["files_max"].as_u64() > Some(0), "{report}");
}

#[test]
fn a_taken_port_is_a_problem_and_a_free_one_is_not() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let mut args = http_only(&address);
    let done = doctor(&args);
    let text = done.out.clone();
    assert!(done.failed(1).contains("found 1 problem"), "{text}");
    assert!(text.contains(&format!("{address} (http) is in use by another program")), "{text}");
    assert!(text.contains("move it with --http ADDR"), "{text}");
    drop(taken);
    args.push("--json".into());
    let report = doctor(&args).json();
    assert_eq!(finding(&report, "ports")["severity"], "ok");
    assert!(report["facts"]["data"].is_null(), "nothing is measured without a data directory");
}

#[test]
fn ports_of_the_broker_in_the_directory_are_not_a_problem() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().display().to_string();
    let server = Server::with(&[&format!("data={data}")]);
    let mut args = http_only(&server.kafka.to_string());
    args.extend(["--json".into(), "--data".into(), data]);
    let report: Value = serde_json::from_str(&doctor(&args).out).expect("JSON");
    let port = finding(&report, "ports");
    assert_eq!(port["severity"], "note", "{port}");
    assert!(port["found"].as_str().expect("a text").contains(&format!("process {}", server.pid())), "{port}");
}

#[test]
fn a_wrong_configuration_is_refused_before_the_machine_is_checked() {
    let done = thalweg(["doctor", "--set", "memory_max=lots"]);
    assert!(done.out.is_empty());
    assert!(done.failed(USAGE).contains("memory_max"));
    assert!(thalweg(["doctor", "--kafka", "nowhere.invalid:1"]).failed(USAGE).contains("kafka = nowhere.invalid:1"));
}
