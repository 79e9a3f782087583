//! A broker in a process of its own, for as long as a measurement takes.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::output::{FAILED, Failure, Result};

const START_TIMEOUT: Duration = Duration::from_secs(10);
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

pub struct Spawned {
    child: Child,
    pub native: String,
    /// From the start of the process to its ready file.
    pub ready_after: Duration,
}

impl Spawned {
    pub fn start(flags: &[String]) -> Result<Self> {
        let begin = Instant::now();
        let ready_file = ready_file();
        let program = std::env::current_exe()?;
        let mut child = Command::new(program)
            .args(["serve", "--native", "127.0.0.1:0", "--http", "off", "--ready-file"])
            .arg(&ready_file)
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        let native = loop {
            if let Ok(text) = std::fs::read_to_string(&ready_file) {
                let ready: Value = serde_json::from_str(&text)?;
                break ready["native"].as_str().unwrap_or_default().to_owned();
            }
            if let Some(status) = child.try_wait()? {
                return Err(Failure::new(FAILED, format!("the broker ended with {status} before it was ready")));
            }
            if begin.elapsed() > START_TIMEOUT {
                child.kill()?;
                return Err(Failure::new(FAILED, "the broker was not ready in time"));
            }
            std::thread::sleep(Duration::from_micros(200));
        };
        let ready_after = begin.elapsed();
        std::fs::remove_file(&ready_file)?;
        Ok(Self { child, native, ready_after })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Resident memory, from what Linux says of the process.
    pub fn resident_bytes(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id() as i32) {
            // It may have ended by itself.
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap_or_default();
        }
        let begin = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if begin.elapsed() > STOP_TIMEOUT {
                self.child.kill().unwrap_or_default();
                self.child.wait().map(drop).unwrap_or_default();
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn ready_file() -> PathBuf {
    std::env::temp_dir().join(format!("thalweg-ready-{}.json", std::process::id()))
}
