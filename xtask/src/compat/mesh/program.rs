//! Programs of the clients, which execute commands and print the results.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use crate::compat::report::Report;
use crate::run::{Call, Outcome};

/// Maximum time of a command. Each wait of a program has its own limit, which is shorter.
const LIMIT: Duration = Duration::from_secs(180);

/// Program that runs. Dropping it kills the process.
pub struct Program {
    pub report: Report,
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Program {
    pub fn start(name: &str, call: &Call, folder: &Path) -> Outcome<Self> {
        let log = folder.join(format!("{name}.log"));
        let log = File::create(&log).map_err(|e| format!("{}: {e}", log.display()))?;
        let mut command = call.command();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().map_err(|e| format!("{call}: {e}"))?;
        let input = child.stdin.take().ok_or("no input")?;
        let output = child.stdout.take().ok_or("no output")?;
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Ok(Self { report: Report::new(name), child, input, lines })
    }

    /// Gives the program a command, and does not wait for it.
    pub fn tell(&mut self, command: &str) -> Outcome {
        writeln!(self.input, "{command}").map_err(|e| format!("{}: {e}", self.report.client))
    }

    /// Waits until the program has executed its command.
    pub fn finish(&mut self) -> Outcome {
        loop {
            let line = self.lines.recv_timeout(LIMIT);
            let line = line.map_err(|e| format!("{}: no result of a command: {e}", self.report.client))?;
            if line.starts_with("done ") {
                return Ok(());
            }
            println!("{:16} {line}", self.report.client);
            self.report.take(&line);
        }
    }

    pub fn run(&mut self, command: &str) -> Outcome {
        self.tell(command)?;
        self.finish()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.child.kill().unwrap_or_default();
        self.child.wait().map(drop).unwrap_or_default();
    }
}
