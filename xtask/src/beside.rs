//! Commands that run beside others, in the processor time that these leave.

use std::io;
use std::process::{Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::run::{Call, Outcome};

/// Scheduling policy of Linux for programs that run only while a processor is idle.
const IDLE: &str = "chrt --idle 0";

/// Command that runs in the background. Dropping it ends the command with all its child processes.
pub struct Beside {
    call: Call,
    pid: u32,
    begin: Instant,
    waiting: Option<JoinHandle<io::Result<(Output, Duration)>>>,
}

impl Beside {
    /// Returns `true` if commands can run in the background without delaying others.
    pub fn is_possible() -> bool {
        Call::line(IDLE).arg("true").succeeds()
    }

    /// Starts a command, which is ended after the time limit.
    pub fn begin(call: &Call, limit: Duration) -> Outcome<Self> {
        let begin = Instant::now();
        let mut command = call.clone().within(limit).after(Call::line(IDLE)).command();
        let child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(|e| format!("{call}: {e}"))?;
        let pid = child.id();
        let waiting = std::thread::spawn(move || Ok((child.wait_with_output()?, begin.elapsed())));
        Ok(Self { call: call.clone(), pid, begin, waiting: Some(waiting) })
    }

    /// Waits for the end of the command, prints what it printed, and returns its duration.
    pub fn finish(mut self) -> Outcome<Duration> {
        let waiting = self.waiting.take().expect("invariant: only this method takes it");
        // tidy: the cause is a panic, which was printed.
        let ended = waiting.join().map_err(|_| format!("`{}`: its output could not be read", self.call))?;
        let (output, time) = ended.map_err(|e| format!("`{}`: {e}", self.call))?;
        print!("{}", String::from_utf8_lossy(&output.stdout));
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
        if output.status.success() {
            return Ok(time);
        }
        Err(format!("`{}` failed after {:.1} s ({})", self.call, self.begin.elapsed().as_secs_f64(), output.status))
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            // `timeout` passes the signal on to the command and its child processes.
            Call::new("kill").arg(self.pid.to_string()).succeeds();
            drop(waiting.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(300);

    #[test]
    fn a_command_beside_others_succeeds_or_fails_by_its_status() {
        assert!(Beside::is_possible(), "chrt is a part of each Debian");
        assert!(Beside::begin(&Call::line("echo one"), LIMIT).expect("it starts").finish().is_ok());
        let failed = Beside::begin(&Call::line("false --x"), LIMIT).expect("it starts").finish();
        assert!(failed.expect_err("it fails").starts_with("`false --x` failed after "));
        let late = Beside::begin(&Call::line("sleep 300"), Duration::from_millis(50)).expect("it starts").finish();
        assert!(late.is_err());
    }

    #[test]
    fn a_command_that_is_dropped_ends_with_its_child_processes() {
        let file = std::env::temp_dir().join(format!("thalweg-beside-{}", std::process::id()));
        let script = format!("sleep 300 & echo $! > {}; wait", file.display());
        let running = Beside::begin(&Call::new("sh").args(["-c", &script]), LIMIT).expect("it starts");
        let child = loop {
            match std::fs::read_to_string(&file) {
                Ok(pid) if pid.ends_with('\n') => break pid.trim().to_owned(),
                _ => std::thread::yield_now(),
            }
        };
        // One that has ended and that its parent has not asked about has the state Z.
        let status = format!("/proc/{child}/status");
        let is_running = || std::fs::read_to_string(&status).is_ok_and(|status| !status.contains("State:\tZ"));
        assert!(is_running());
        drop(running);
        while is_running() {
            std::thread::yield_now();
        }
        std::fs::remove_file(file).expect("removed");
    }
}
