//! Page of the APIs that the Kafka door serves, from the door's own response.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::docs::Program;
use crate::run::{Outcome, root};

/// File with the names of the APIs, each after its key.
const TABLE: &str = "crates/doors/src/kafka/messages/api/mod.rs";
/// Request `ApiVersions` in its first version, with the correlation id 7 and without a client name.
const QUESTION: [u8; 14] = [0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 7, 0xff, 0xff];
/// Length of the beginning of the response: its length, the correlation id, an error code and the number of APIs.
const ANSWER_HEAD_BYTES: usize = 14;
const PATIENCE: Duration = Duration::from_secs(20);

/// Served API: its key, and the lowest and the highest version.
type Api = (i16, i16, i16);

pub fn page(program: &Program) -> Outcome<String> {
    let apis = ask(&program.path).map_err(|e| format!("the Kafka door does not report its APIs: {e}"))?;
    let table = std::fs::read_to_string(root().join(TABLE)).map_err(|e| format!("{TABLE}: {e}"))?;
    let mut page = "| Key | API | Versions |\n|---|---|---|\n".to_owned();
    for (key, low, high) in apis {
        let name = name_of(&table, key).ok_or_else(|| format!("{TABLE} has no API with the key {key}"))?;
        let versions = if low == high { low.to_string() } else { format!("{low} to {high}") };
        writeln!(page, "| {key} | {name} | {versions} |").map_err(|e| e.to_string())?;
    }
    Ok(page)
}

/// Returns the name in the table row of this key. A row is a key, a name, and fields that this page ignores.
fn name_of(table: &str, key: i16) -> Option<&str> {
    table.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next()? == key.to_string()).then(|| words.next())?
    })
}

/// Starts a broker, and requests its APIs.
fn ask(program: &str) -> io::Result<Vec<Api>> {
    let folder = std::env::temp_dir().join(format!("thalweg-xtask-kafka-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let ready_file = folder.join("ready.json");
    let mut broker = Command::new(program)
        .args([
            "serve",
            "--native",
            "off",
            "--http",
            "off",
            "--kafka",
            "127.0.0.1:0",
            "--pubsub",
            "off",
            "--redis",
            "off",
            "--sqs",
            "off",
            "--ready-file",
        ])
        .arg(&ready_file)
        .current_dir(&folder)
        .stdout(Stdio::null())
        .spawn()?;
    let apis = address(&mut broker, &ready_file).and_then(|address| versions(TcpStream::connect(address)?));
    broker.kill()?;
    broker.wait()?;
    std::fs::remove_dir_all(&folder)?;
    apis
}

fn address(broker: &mut Child, ready_file: &Path) -> io::Result<String> {
    let begin = Instant::now();
    while broker.try_wait()?.is_none() && begin.elapsed() < PATIENCE {
        if let Ok(ready) = std::fs::read_to_string(ready_file) {
            let ready: serde_json::Value = serde_json::from_str(&ready)?;
            return ready["kafka"].as_str().map(str::to_owned).ok_or_else(|| io::Error::other("no Kafka door is open"));
        }
        sleep(Duration::from_millis(5));
    }
    Err(io::Error::other("the broker did not become ready"))
}

fn versions(mut broker: TcpStream) -> io::Result<Vec<Api>> {
    broker.write_all(&QUESTION)?;
    let mut head = [0; ANSWER_HEAD_BYTES];
    broker.read_exact(&mut head)?;
    let length = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
    let mut rows = vec![0; (length + 4).saturating_sub(ANSWER_HEAD_BYTES)];
    broker.read_exact(&mut rows)?;
    let number = |bytes: &[u8]| i16::from_be_bytes([bytes[0], bytes[1]]);
    Ok(rows.chunks_exact(6).map(|row| (number(row), number(&row[2..]), number(&row[4..]))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_behind_keys() {
        let table = "apis! {\n    by hand {\n        1 Fetch 4..=12, flexible Some(12);\n    11 JoinGroup 0..=9";
        assert_eq!(
            (name_of(table, 1), name_of(table, 11), name_of(table, 4)),
            (Some("Fetch"), Some("JoinGroup"), None)
        );
    }
}
