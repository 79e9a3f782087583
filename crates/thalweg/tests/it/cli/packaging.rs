//! Files of `packaging` that name keys, options and addresses of the program.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::command::{run, thalweg};
use crate::support::server::{Server, program};

fn packaging(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(path)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(packaging(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn the_configuration_of_the_debian_package_is_the_generated_one() {
    let generated = thalweg(["init", "single", "--out", "-"]).ok();
    assert_eq!(
        read("thalweg.toml"),
        generated,
        "write it again: cargo run -- init single --out - > packaging/thalweg.toml"
    );
}

/// Returns the words between quotes.
fn quoted(text: &str) -> Vec<&str> {
    text.split('"').skip(1).step_by(2).collect()
}

/// Returns the program with the variables of the image.
fn in_image(text: &str) -> Command {
    let mut command = program();
    let variables = text.split_whitespace().filter_map(|word| word.split_once('='));
    let variables: Vec<_> = variables.filter(|(name, _)| name.starts_with("THALWEG_")).collect();
    assert!(variables.len() >= 7, "{text}");
    command.envs(variables).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn the_image_opens_each_door_at_a_port_that_it_exposes() {
    let text = read("docker/Dockerfile");
    let mut command = in_image(&text);
    let refused = run(command.args(["config", "show"]), b"").failed(2);
    assert!(refused.contains("use --insecure"), "a container is not open by accident: {refused}");
    let keys: Value = run(command.args(["--json", "--set", "insecure=true"]), b"").json();
    let exposed = text.lines().find_map(|line| line.strip_prefix("EXPOSE ")).expect("ports");
    for door in ["native", "http", "kafka", "pubsub", "redis", "sqs"] {
        let address = keys[door]["value"].as_str().expect("an address");
        let port = address.strip_prefix("0.0.0.0:").unwrap_or_else(|| panic!("{door} listens only at {address}"));
        assert!(exposed.split(' ').any(|one| one == format!("{port}/tcp")), "{door}: {port} is not in {exposed}");
    }
    let home = text.lines().find_map(|line| line.strip_prefix("VOLUME ")).expect("a volume");
    assert!(keys["data"]["value"].as_str().is_some_and(|data| data.starts_with(home)), "{keys}");
    assert!(text.contains("\nUSER 65532:65532\n") && text.contains("\nHEALTHCHECK "), "{text}");
}

#[test]
fn the_health_check_of_the_image_succeeds_if_the_broker_serves() {
    let text = read("docker/Dockerfile");
    let (_, check) = text.split_once("HEALTHCHECK ").expect("a check");
    let (_, words) = check.split_once("CMD ").expect("a command");
    let words = quoted(words.lines().next().unwrap_or_default());
    assert_eq!(words[0], "/usr/bin/thalweg");
    let mut server = Server::start();
    let port = server.address.port();
    let health = || run(in_image(&text).args(&words[1..]).env("THALWEG_NATIVE", format!("0.0.0.0:{port}")), b"");
    health().ok();
    server.crash();
    health().failed(3);
}

/// Command lines are read up to `--help`, so an unknown option or command is an error, and nothing is done.
#[test]
fn commands_of_containers_and_units_are_valid() {
    let mut checked = 0;
    for path in ["docker/compose.yaml", "docker/compose.cluster.yaml"] {
        for line in read(path).lines().filter_map(|line| line.trim().strip_prefix("command: ")) {
            thalweg(quoted(line).into_iter().chain(["--help"])).ok();
            checked += 1;
        }
    }
    let unit = read("systemd/thalweg.service");
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/thalweg ")).expect("a command");
    thalweg(start.split(' ').chain(["--help"])).ok();
    let chart = read("helm/thalweg/templates/statefulset.yaml");
    let words = chart.lines().filter_map(|line| line.trim().strip_prefix("- ")).filter(|word| {
        ["cluster", "join"].contains(word) || (word.starts_with("--") && !word.starts_with("--founder"))
    });
    // Values are made by the chart.
    let words: Vec<String> = words.map(|word| word.split("{{").next().unwrap_or_default().to_owned() + "x").collect();
    let words = words.iter().map(|word| word.strip_suffix('x').filter(|word| !word.ends_with('=')).unwrap_or(word));
    let words: Vec<&str> = words.collect();
    assert!(words.starts_with(&["cluster", "join", "--if-needed", "--ask"]), "{words:?}");
    thalweg(words.into_iter().chain(["--help"])).ok();
    assert_eq!(checked, 4, "commands of the compose files");
}

#[test]
fn the_chart_sets_keys_that_exist() {
    let text = read("helm/thalweg/templates/configmap.yaml");
    let (_, body) = text.split_once("thalweg.toml: |\n").expect("a file");
    let file: String =
        body.lines().filter(|line| !line.contains("{{")).map(|line| format!("{}\n", line.trim())).collect();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("thalweg.toml");
    std::fs::write(&path, &file).expect("written");
    let keys = thalweg(["config", "show", "--json", "--config", path.to_str().expect("a path")]).json();
    for key in ["data", "native", "tls_cert", "auth", "insecure"] {
        assert_eq!(keys[key]["origin"], path.display().to_string(), "{key}: {file}");
    }
    let set = read("helm/thalweg/templates/statefulset.yaml") + &read("helm/thalweg/templates/_helpers.tpl");
    let names = set.lines().filter_map(|line| line.trim().strip_prefix("- name: THALWEG_"));
    let names: Vec<String> = names.map(str::to_lowercase).filter(|name| name != "config").collect();
    assert!(names.len() >= 6, "{names:?}");
    thalweg(["config", "show"].into_iter().chain(names.iter().map(String::as_str))).ok();
}
