//! Server of the reference frames in a separate process.

use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::output::{FAILED, Failure, Result};

/// Time limit for the end of a server, including its own shutdown time.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Server that prints `listening PORT` or `listening PATH`, and its statistics after SIGTERM. The process is killed
/// when this is dropped.
pub struct Server {
    child: Child,
    out: BufReader<ChildStdout>,
    place: String,
}

impl Server {
    pub fn start(mut command: Command) -> Result<Self> {
        let name = command.get_program().display().to_string();
        let wrong = |why: String| Failure::new(FAILED, format!("{name}: {why}"));
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|e| wrong(e.to_string()))?;
        let out = child.stdout.take().ok_or_else(|| wrong("it has no output".to_owned()))?;
        let mut server = Self { child, out: BufReader::new(out), place: String::new() };
        let mut line = String::new();
        server.out.read_line(&mut line)?;
        match line.strip_prefix("listening ") {
            Some(place) => server.place = place.trim_end().to_owned(),
            None => return Err(wrong("the server ended before it was listening".to_owned())),
        }
        Ok(server)
    }

    /// Returns the port or the path that the server listens at.
    pub fn place(&self) -> &str {
        &self.place
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends the server. Returns its statistics.
    pub fn stop(mut self) -> Result<Value> {
        if let Some(status) = self.child.try_wait()? {
            return Err(Failure::new(FAILED, format!("the server ended under load, with {status}")));
        }
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            kill_process(pid, Signal::TERM).map_err(io::Error::from)?;
        }
        let begin = Instant::now();
        while self.child.try_wait()?.is_none() {
            if begin.elapsed() > STOP_TIMEOUT {
                return Err(Failure::new(FAILED, format!("the server did not end within {STOP_TIMEOUT:?}")));
            }
            sleep(Duration::from_millis(2));
        }
        let mut output = String::new();
        self.out.read_to_string(&mut output)?;
        last_json(&output).ok_or_else(|| Failure::new(FAILED, "the server did not report its statistics"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server may have ended by itself.
        self.child.kill().unwrap_or_default();
        self.child.wait().map(drop).unwrap_or_default();
    }
}

/// Returns the last line that is JSON.
pub fn last_json(text: &str) -> Option<Value> {
    text.lines().rev().find_map(|line| serde_json::from_str(line).ok())
}
