//! Clients of the durable cache over the Redis protocol: additions to counters, and reads of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{AGAIN, Ending};
use crate::history::{CounterEvent, History, now};
use crate::network::Outcome as Step;
use crate::plan::Random;

const KEYS: u64 = 4;
const PAUSE: Duration = Duration::from_millis(15);
const TIMEOUT: Duration = Duration::from_secs(5);
/// Time in which every node answers after the last fault.
const READ_TIMEOUT: Duration = Duration::from_secs(20);

/// Answer of the server.
enum Answer {
    Value(u64),
    /// It says that nothing was executed.
    Refused,
    Unknown,
}

/// Adds to counters and reads them, at one node after the other.
pub async fn count(nodes: Vec<String>, seed: u64, history: Arc<History<CounterEvent>>, mut ending: Ending) -> Step {
    let mut random = Random::new(seed);
    let mut connection: Option<BufReader<TcpStream>> = None;
    while !ending.has_begun() {
        let Some(stream) = &mut connection else {
            let node = &nodes[random.below(nodes.len() as u64) as usize];
            match timeout(TIMEOUT, TcpStream::connect(node)).await {
                Ok(Ok(stream)) => connection = Some(BufReader::new(stream)),
                _ => ending.pause(AGAIN).await,
            }
            continue;
        };
        let key = format!("c{}", random.below(KEYS));
        let is_add = random.below(10) < 6;
        if !step(stream, key, is_add, &history).await {
            connection = None;
        }
        ending.pause(PAUSE).await;
    }
    Ok(())
}

/// Reads all counters after the last fault.
pub async fn read(nodes: &[String], history: &History<CounterEvent>) -> Step {
    for node in nodes {
        let begin = Instant::now();
        while !read_at(node, history).await {
            if begin.elapsed() > READ_TIMEOUT {
                return Err(format!("{node} does not answer {} s after the last fault", READ_TIMEOUT.as_secs()));
            }
            tokio::time::sleep(AGAIN).await;
        }
    }
    Ok(())
}

/// Reads all counters at a node. Returns `false` if it does not answer.
async fn read_at(node: &str, history: &History<CounterEvent>) -> bool {
    let Ok(Ok(stream)) = timeout(TIMEOUT, TcpStream::connect(node)).await else { return false };
    let mut stream = BufReader::new(stream);
    for key in 0..KEYS {
        if !step(&mut stream, format!("c{key}"), false, history).await {
            return false;
        }
    }
    true
}

/// Sends one command. Returns `false` if the connection cannot be used any more.
async fn step(stream: &mut BufReader<TcpStream>, key: String, is_add: bool, history: &History<CounterEvent>) -> bool {
    let command = format!("{} {key}\r\n", if is_add { "INCR" } else { "GET" });
    let begin = now();
    let answer = timeout(TIMEOUT, ask(stream, &command)).await.ok().and_then(Result::ok).unwrap_or(Answer::Unknown);
    let end = now();
    match (answer, is_add) {
        (Answer::Value(value), true) => history.add(&CounterEvent::Add { key, begin, end, value: Some(value) }),
        (Answer::Value(value), false) => history.add(&CounterEvent::Get { key, begin, end, value }),
        (Answer::Unknown, true) => {
            history.add(&CounterEvent::Add { key, begin, end, value: None });
            return false;
        }
        (Answer::Unknown, false) | (Answer::Refused, _) => return false,
    }
    true
}

async fn ask(stream: &mut BufReader<TcpStream>, command: &str) -> std::io::Result<Answer> {
    stream.write_all(command.as_bytes()).await?;
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    let line = line.trim_end();
    let number = |text: &str| text.parse().map_or(Answer::Unknown, Answer::Value);
    Ok(match line.split_at_checked(1) {
        Some((":", value)) => number(value),
        Some(("$", "-1")) => Answer::Value(0),
        Some(("$", length)) => {
            let length: usize = length.parse().map_err(std::io::Error::other)?;
            let mut value = vec![0; length.min(32) + 2];
            stream.read_exact(&mut value).await?;
            number(String::from_utf8_lossy(&value).trim_end())
        }
        Some(("-", error)) if error.starts_with("LOADING") => Answer::Refused,
        _ => Answer::Unknown,
    })
}
