//! Files for each purpose, written from the table of keys: the comment of a key is its help.

use std::path::Path;

use thalweg::config::keys::{KEYS, Key};

use crate::args::Purpose;

/// Maximum width of a comment in the file.
const WIDTH: usize = 96;
/// Configuration file that commands read without an option.
const DEFAULT_FILE: &str = "thalweg.toml";

/// Part of a file.
#[derive(Clone, Copy)]
enum Part {
    /// Text between groups of keys.
    Note(&'static str),
    /// Key with a value.
    Set(&'static str, &'static str),
    /// Key with a value that the owner of the file may turn on: it is a comment.
    Offer(&'static str, &'static str),
    /// Key with its default, as a comment.
    Default(&'static str),
}

use Part::{Default, Note, Offer, Set};

const LAPTOP: &[Part] = &[
    Note("Records are kept in this directory, and are there after a restart."),
    Set("data", "thalweg-data"),
    Set("disk_retention_ms", "7d"),
    Note("Memory. A laptop has other work to do: these are small."),
    Set("memory_max", "256MiB"),
    Set("cache_memory_max", "256MiB"),
    Note("Doors. Only this machine reaches them. A port alone is one of this machine; off closes a door."),
    Default("native"),
    Default("http"),
    Default("kafka"),
    Default("redis"),
    Default("sqs"),
    Default("pubsub"),
    Note("More for trying things out."),
    Default("auto_create_topics"),
    Default("default_partitions"),
    Offer("redis_durable", "true"),
    Default("http_cors_origins"),
    Default("log"),
];

const CI: &[Part] = &[
    Note("There is no data directory: everything is in memory, starts empty, and needs no cleaning."),
    Set("profile", "latency"),
    Set("memory_max", "256MiB"),
    Set("cache_memory_max", "64MiB"),
    Set("group_initial_delay_ms", "0"),
    Set("shutdown_timeout_ms", "1s"),
    Set("log", "warn"),
    Note(
        "Doors. If jobs share a machine, port 0 selects a free port for each: `thalweg serve --ready-file FILE` writes \
         the addresses to a file, once every door accepts connections.",
    ),
    Offer("native", "127.0.0.1:0"),
    Offer("http", "127.0.0.1:0"),
    Offer("kafka", "127.0.0.1:0"),
    Offer("redis", "127.0.0.1:0"),
    Offer("sqs", "127.0.0.1:0"),
    Offer("pubsub", "127.0.0.1:0"),
    Note("Tests that expect a missing topic to be an error."),
    Offer("auto_create_topics", "false"),
];

const SINGLE: &[Part] = &[
    Note("Records are kept in this directory, which must be on a local disk. Only the broker's user may read it."),
    Set("data", "/var/lib/thalweg/data"),
    Set("disk_retention_ms", "7d"),
    Offer("disk_retention_bytes", "100GiB"),
    Note("Memory. All three together, with 1 GiB for Kafka fetches, should fit into the machine."),
    Set("memory_max", "1GiB"),
    Set("cache_memory_max", "1GiB"),
    Default("response_memory_max"),
    Note(
        "Access. Until these are set, only this machine reaches the broker. For other machines, set the certificate \
         and the login first, and then the addresses of the doors that you use. docs/guides/open-to-locked.md has \
         every step.",
    ),
    Offer("tls_cert", "/etc/thalweg/tls.crt"),
    Offer("tls_key", "/etc/thalweg/tls.key"),
    Offer("auth", "required"),
    Offer("authorization", "true"),
    Offer("super_users", "admin"),
    Note("Doors. off closes a door."),
    Offer("native", "0.0.0.0:7400"),
    Offer("http", "0.0.0.0:7401"),
    Offer("kafka", "0.0.0.0:9092"),
    Offer("kafka_advertised", "broker.example.com:9092"),
    Offer("redis", "0.0.0.0:6379"),
    Offer("sqs", "0.0.0.0:9324"),
    Offer("pubsub", "0.0.0.0:8085"),
    Note("Topics. On a server it is safer to create them on purpose."),
    Set("auto_create_topics", "false"),
    Default("default_partitions"),
    Note("Telemetry. Prometheus reads /metrics at the HTTP door."),
    Default("log"),
    Offer("log_format", "json"),
    Offer("otlp_endpoint", "http://localhost:4318"),
];

const CLUSTER: &[Part] = &[
    Note(
        "Use one file on all three nodes: any of them may lead. The address by which the nodes reach each other is \
         an argument of `thalweg cluster init` and `thalweg cluster join`.",
    ),
    Set("data", "/var/lib/thalweg/data"),
    Set("disk_retention_ms", "7d"),
    Offer("disk_retention_bytes", "100GiB"),
    Note("Probes and metrics of each node. Let only your monitoring reach the port: it has no login."),
    Set("cluster_status", "127.0.0.1:7403"),
    Default("cluster_catch_up_bytes_per_s"),
    Note("Memory. All three together, with 1 GiB for Kafka fetches, should fit into the machine."),
    Set("memory_max", "1GiB"),
    Set("cache_memory_max", "1GiB"),
    Default("response_memory_max"),
    Note(
        "Access. Until these are set, only its own machine reaches a node. For other machines, set the certificate \
         and the login first, and then the addresses of the doors that you use. The certificate must be valid for the \
         names of all nodes.",
    ),
    Offer("tls_cert", "/etc/thalweg/tls.crt"),
    Offer("tls_key", "/etc/thalweg/tls.key"),
    Offer("auth", "required"),
    Offer("authorization", "true"),
    Offer("super_users", "admin"),
    Note("Doors. off closes a door."),
    Offer("native", "0.0.0.0:7400"),
    Offer("http", "0.0.0.0:7401"),
    Offer("kafka", "0.0.0.0:9092"),
    Offer("redis", "0.0.0.0:6379"),
    Offer("sqs", "0.0.0.0:9324"),
    Offer("pubsub", "0.0.0.0:8085"),
    Note("Topics. On a server it is safer to create them on purpose."),
    Set("auto_create_topics", "false"),
    Default("default_partitions"),
    Note("Telemetry."),
    Default("log"),
    Offer("log_format", "json"),
];

fn parts(purpose: Purpose) -> &'static [Part] {
    match purpose {
        Purpose::Laptop => LAPTOP,
        Purpose::Ci => CI,
        Purpose::Single => SINGLE,
        Purpose::Cluster => CLUSTER,
    }
}

/// Returns what a file is for.
pub fn title(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Laptop => "a broker on a laptop, with records on disk",
        Purpose::Ci => "a broker for tests, in memory",
        Purpose::Single => "a broker on a server, with records on disk",
        Purpose::Cluster => "each of three nodes of a cluster",
    }
}

/// Returns the commands to run next, each with its purpose.
pub fn next(purpose: Purpose, file: &Path) -> Vec<(String, &'static str)> {
    let option = if file == Path::new(DEFAULT_FILE) { String::new() } else { format!(" --config {}", file.display()) };
    let command = |words: &str| format!("thalweg {words}{option}");
    match purpose {
        Purpose::Laptop => vec![
            (command("doctor"), "check this machine"),
            (command("serve"), "start the broker"),
            (command("status"), "in another terminal: its doors and topics"),
        ],
        Purpose::Ci => vec![
            (format!("{} --ready-file ready.json &", command("serve")), "start the broker"),
            (command("status"), "exit code 0 once it serves, 3 before"),
        ],
        Purpose::Single => vec![
            (command("doctor"), "check this machine, as the broker's user"),
            (command("serve"), "start the broker; with the Debian package: systemctl enable --now thalweg"),
            (command("status"), "in another terminal: its doors and topics"),
        ],
        Purpose::Cluster => vec![
            (command("doctor"), "check each machine, as the broker's user"),
            (command("cluster init --advertise A:7402"), "on the first node; A is its address"),
            (command("serve"), "on the first node"),
            (command("cluster token"), "on the first node: prints a token for one other node"),
            (command("cluster join TOKEN --advertise B:7402"), "on each other node, with a token for each; then serve"),
            (command("cluster status"), "three nodes answer"),
        ],
    }
}

/// Returns the file for a purpose.
pub fn text(purpose: Purpose) -> String {
    let mut text = format!(
        "# Configuration of {}.\n#\n# Keys that begin with # have no effect: remove it to set them. \
         `thalweg config show --help-keys`\n# lists all keys, and `thalweg config show` the active values.\n",
        title(purpose)
    );
    for part in parts(purpose) {
        match part {
            Note(note) => text += &format!("\n{}\n", comment("# ", &format!("--- {note}"))),
            Set(name, value) => text += &setting(name, "", |key| key.kind.show_toml(value)),
            Offer(name, value) => text += &setting(name, "# ", |key| key.kind.show_toml(value)),
            Default(name) => text += &setting(name, "# ", |key| key.kind.show_toml(key.profiles[0])),
        }
    }
    text
}

/// Returns a key with its help above it. `prefix` makes it a comment.
fn setting(name: &str, prefix: &str, value: impl Fn(&Key) -> String) -> String {
    let key = KEYS.iter().find(|key| key.name == name).expect("invariant: a test generates every file");
    format!("\n{}\n{prefix}{name} = {}\n", comment("# ", key.help), value(key))
}

/// Breaks a text into lines of at most [`WIDTH`] columns.
fn comment(prefix: &str, text: &str) -> String {
    let mut lines = vec![prefix.trim_end().to_owned()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("invariant: there is a line");
        if line.len() + 1 + word.len() <= WIDTH {
            *line += &format!(" {word}");
        } else {
            lines.push(format!("{prefix}{word}"));
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;
    use thalweg::config::{Config, Origin, Sources};

    use super::*;

    fn load(text: &str) -> Config {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("written");
        let sources = Sources { file: Some(file.path().to_owned()), ..Sources::default() };
        Config::load(&sources).unwrap_or_else(|error| panic!("{error}:\n{text}"))
    }

    /// Returns the number of keys that the file sets. The address of `server` follows from that of `native`.
    fn set_in_file(config: &Config) -> usize {
        let is_set =
            |(key, _, origin): &(&Key, &str, &Origin)| matches!(origin, Origin::File(_)) && key.name != "server";
        config.entries().filter(is_set).count()
    }

    /// Returns the file with every key set that it offers.
    fn with_offers(text: &str) -> String {
        let lines = text.lines().map(|line| match line.strip_prefix("# ") {
            Some(rest) if KEYS.iter().any(|key| rest.starts_with(&format!("{} = ", key.name))) => rest,
            _ => line,
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn every_file_is_a_valid_configuration_with_and_without_its_offers() {
        for purpose in Purpose::value_variants() {
            let text = text(*purpose);
            let set = set_in_file(&load(&text));
            let expected = parts(*purpose).iter().filter(|part| matches!(part, Set(..))).count();
            assert_eq!(set, expected, "{purpose:?}");
            let offered = with_offers(&text);
            let keys = parts(*purpose).iter().filter(|part| !matches!(part, Note(_))).count();
            let set = set_in_file(&load(&offered));
            assert_eq!(set, keys, "{purpose:?}:\n{offered}");
        }
    }

    /// A comment that differs from the help of its key would be a second description, which nobody corrects.
    #[test]
    fn comments_are_the_help_of_their_keys() {
        for purpose in Purpose::value_variants() {
            let text = text(*purpose);
            let mut found = 0;
            for block in text.trim_end().split("\n\n") {
                let (comments, setting) = block.rsplit_once('\n').unwrap_or_default();
                let setting = setting.strip_prefix("# ").unwrap_or(setting);
                let Some(key) = KEYS.iter().find(|key| setting.starts_with(&format!("{} = ", key.name))) else {
                    continue;
                };
                let words = comments.lines().map(|line| line.trim_start_matches("# ")).collect::<Vec<_>>().join(" ");
                assert_eq!(words, key.help, "{}", key.name);
                found += 1;
            }
            assert_eq!(found, parts(*purpose).iter().filter(|part| !matches!(part, Note(_))).count(), "{purpose:?}");
        }
    }

    #[test]
    fn lines_are_short_and_no_key_is_written_twice() {
        for purpose in Purpose::value_variants() {
            let text = text(*purpose);
            assert!(text.lines().all(|line| line.len() <= 100), "{text}");
            let mut names: Vec<&str> = parts(*purpose)
                .iter()
                .filter_map(|part| match part {
                    Note(_) => None,
                    Set(name, _) | Offer(name, _) | Default(name) => Some(*name),
                })
                .collect();
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count, "{purpose:?}");
        }
    }

    #[test]
    fn advice_names_a_file_that_is_not_found_by_itself() {
        for purpose in Purpose::value_variants() {
            let named = next(*purpose, Path::new("/etc/thalweg/thalweg.toml"));
            assert!(
                named.iter().all(|(command, _)| command.contains(" --config /etc/thalweg/thalweg.toml")),
                "{named:?}"
            );
            let here = next(*purpose, Path::new("thalweg.toml"));
            assert!(here.iter().all(|(command, _)| !command.contains("--config")), "{here:?}");
        }
    }
}
