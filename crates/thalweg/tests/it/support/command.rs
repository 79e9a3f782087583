//! Running the program to its end, with a time limit.

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;

use rustix::process::{Pid, Signal, kill_process};

use super::server::{PATIENCE, Server, program};

/// Output and exit status of a program.
#[derive(Debug)]
pub struct Done {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Done {
    /// Returns the standard output, after checking that the program succeeded.
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out
    }

    /// Returns the standard error, after checking that the program ended with this code.
    pub fn failed(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        self.err
    }

    pub fn json(self) -> serde_json::Value {
        serde_json::from_str(&self.ok()).expect("JSON")
    }
}

/// Runs a command with this standard input.
pub fn run(command: &mut Command, input: &[u8]) -> Done {
    command.stdin(Stdio::piped());
    let mut child = command.spawn().expect("started");
    let pid = Pid::from_raw(child.id() as i32).expect("a process");
    let mut stdin = child.stdin.take().expect("a pipe");
    let input = input.to_vec();
    // A program that does not read all of its input closes it.
    let writer = std::thread::spawn(move || stdin.write_all(&input).unwrap_or_default());
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    let Ok(output) = receiver.recv_timeout(PATIENCE) else {
        kill_process(pid, Signal::KILL).unwrap_or_default();
        panic!("{command:?}: did not end within {PATIENCE:?}");
    };
    writer.join().expect("no panic");
    done(&output.expect("its output"))
}

/// Runs the program with these arguments.
pub fn thalweg<'a>(args: impl IntoIterator<Item = &'a str>) -> Done {
    run(program().args(args).stdout(Stdio::piped()).stderr(Stdio::piped()), b"")
}

/// Runs the program with these arguments against a broker.
pub fn on<'a>(server: &Server, args: impl IntoIterator<Item = &'a str>) -> Done {
    feed(server, args, "")
}

/// Runs the program with these arguments and this standard input against a broker.
pub fn feed<'a>(server: &Server, args: impl IntoIterator<Item = &'a str>, input: &str) -> Done {
    let url = server.url("tcp");
    let command = &mut program();
    command.args(["--server", &url]).args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    run(command, input.as_bytes())
}

fn done(output: &Output) -> Done {
    Done {
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
