//! Broker in a separate process, for the duration of a measurement or a demonstration.

use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use thalweg::Door;

use crate::output::{FAILED, Failure, Result};

const START_TIMEOUT: Duration = Duration::from_secs(10);
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

pub struct Spawned {
    child: Child,
    pub native: String,
    /// Time from the start of the process to its ready file.
    pub ready_after: Duration,
}

impl Spawned {
    pub fn start(flags: &[String]) -> Result<Self> {
        let begin = Instant::now();
        let ready_file = ready_file()?;
        let program = std::env::current_exe()?;
        let child = Command::new(program)
            .arg("serve")
            .args(Door::ALL.map(|door| {
                let address = if door == Door::Native { "127.0.0.1:0" } else { "off" };
                format!("--{}={address}", door.key())
            }))
            .arg("--ready-file")
            .arg(&ready_file)
            // Its start and stop need not be logged.
            .args(["--set", "log=warn"])
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        // From here on, a failure ends the process, too.
        let mut spawned = Self { child, native: String::new(), ready_after: Duration::ZERO };
        spawned.native = loop {
            if let Ok(text) = std::fs::read_to_string(&ready_file) {
                let ready: Value = serde_json::from_str(&text)?;
                break ready["native"].as_str().unwrap_or_default().to_owned();
            }
            if let Some(status) = spawned.child.try_wait()? {
                return Err(Failure::new(FAILED, format!("the broker ended with {status} before it was ready")));
            }
            if begin.elapsed() > START_TIMEOUT {
                return Err(Failure::new(FAILED, "the broker was not ready in time"));
            }
            std::thread::sleep(Duration::from_micros(200));
        };
        spawned.ready_after = begin.elapsed();
        std::fs::remove_file(&ready_file)?;
        Ok(spawned)
    }

    /// Kills the process, whose data is no longer needed.
    pub fn kill(&mut self) {
        // The process may have ended by itself.
        self.child.kill().unwrap_or_default();
        self.child.wait().map(drop).unwrap_or_default();
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the resident memory, which Linux reports for the process.
    pub fn resident_bytes(&self) -> Option<u64> {
        ::bench::resident_bytes(self.pid())
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id() as i32) {
            // A process that no longer exists need not be ended.
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap_or_default();
        }
        let begin = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if begin.elapsed() > STOP_TIMEOUT {
                return self.kill();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Returns an unused path for this start. An earlier process with the same id may have left its file, which is removed.
fn ready_file() -> Result<PathBuf> {
    static STARTS: AtomicU32 = AtomicU32::new(0);
    let start = STARTS.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("thalweg-ready-{}-{start}.json", std::process::id()));
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(path),
    }
}
