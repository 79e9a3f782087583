//! `thalweg init`: the files that it writes, and the brokers that start with them.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::command::{Done, thalweg};
use crate::support::server::Server;

fn init(purpose: &str, file: &Path) -> Done {
    thalweg(["init", purpose, "--out", file.to_str().expect("a path")])
}

/// The doors of the files are fixed or closed to others, so the broker of the test replaces their addresses.
#[test]
fn a_broker_starts_with_the_file_of_each_purpose() {
    let folder = tempfile::tempdir().expect("a folder");
    for purpose in ["laptop", "ci", "single"] {
        let text = thalweg(["init", purpose, "--out", "-"]).ok();
        let data = folder.path().join(purpose).display().to_string();
        let is_stored = purpose != "ci";
        let set = format!("data={data}");
        let set: Vec<&str> = if is_stored { vec![set.as_str()] } else { Vec::new() };
        let server = Server::with_file(&text, &set);
        let status = thalweg(["--server", &server.url("tcp"), "status", "--json"]).json();
        assert_eq!(status["storage"], if is_stored { "disk" } else { "memory" }, "{purpose}");
    }
}

#[test]
fn an_existing_file_is_not_overwritten() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("thalweg.toml");
    let said = init("laptop", &file).ok();
    let text = std::fs::read_to_string(&file).expect("written");
    assert!(text.starts_with("# Configuration of a broker on a laptop"), "{text}");
    assert_eq!(std::fs::metadata(&file).expect("a file").permissions().mode() & 0o777, 0o600);
    assert!(said.contains("Next:") && said.contains("thalweg serve --config "), "{said}");
    let message = init("ci", &file).failed(1);
    assert!(message.contains("it exists: name another file with --out, or delete it"), "{message}");
    assert_eq!(std::fs::read_to_string(&file).expect("still there"), text);
    let message = init("ci", &folder.path().join("missing/thalweg.toml")).failed(1);
    assert!(message.contains("missing/thalweg.toml"), "{message}");
}

#[test]
fn the_next_commands_are_a_list_for_programs() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("node.toml").display().to_string();
    let report = thalweg(["init", "cluster", "--out", &file, "--json"]).json();
    assert_eq!((report["file"].as_str(), report["purpose"].as_str()), (Some(file.as_str()), Some("cluster")));
    let next = report["next"].as_array().expect("a list");
    let joins = next.iter().filter(|step| step["command"].as_str().is_some_and(|text| text.contains("cluster join")));
    assert_eq!(joins.count(), 1, "{report}");
}
