//! Client of the Kafka protocol: librdkafka from Python, if it is installed.

use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use crate::network::Outcome as Step;

const PROGRAM: &str = include_str!("kafka.py");
/// Time for its last acknowledgements.
const END_TIMEOUT: Duration = Duration::from_secs(60);

/// Running client. It ends when its standard input does.
pub struct Kafka {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Kafka {
    /// Starts the client; `None` if the library is not installed.
    pub fn start(servers: &str, topic: &str, history: &Path) -> Step<Option<Self>> {
        let check = Command::new("python3").args(["-c", "import confluent_kafka"]).stderr(Stdio::null()).status();
        if !check.is_ok_and(|status| status.success()) {
            return Ok(None);
        }
        let mut child = Command::new("python3")
            .args(["-c", PROGRAM, servers, topic])
            .arg(history)
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("python3: {error}"))?;
        let stdin = child.stdin.take();
        Ok(Some(Self { child, stdin }))
    }

    /// Waits until the client has the outcomes of all its records.
    pub fn end(mut self) -> Step {
        drop(self.stdin.take());
        let begin = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(format!("the Kafka client ended with {status}")),
                Ok(None) if begin.elapsed() < END_TIMEOUT => std::thread::sleep(Duration::from_millis(20)),
                _ => {
                    self.child.kill().unwrap_or_default();
                    return Err(format!("the Kafka client did not end within {} s", END_TIMEOUT.as_secs()));
                }
            }
        }
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        self.child.kill().unwrap_or_default();
        self.child.wait().map(drop).unwrap_or_default();
    }
}
