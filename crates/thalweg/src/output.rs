//! Exit codes and output of commands.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use client::ErrorKind;
use thalweg::config::ConfigError;

/// Failure of a command, with the exit code for scripts.
#[derive(Debug)]
pub struct Failure {
    pub code: u8,
    pub message: String,
}

pub type Result<T = (), E = Failure> = std::result::Result<T, E>;

pub const DONE: u8 = 0;
pub const FAILED: u8 = 1;
pub const USAGE: u8 = 2;
pub const NO_BROKER: u8 = 3;
pub const NOT_FOUND: u8 = 4;
pub const LOST: u8 = 5;
pub const DAMAGED: u8 = 6;

impl Failure {
    pub fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub fn exit(self) -> ExitCode {
        if self.code != DONE {
            note(&self.message);
        }
        ExitCode::from(self.code)
    }
}

impl From<client::Error> for Failure {
    fn from(error: client::Error) -> Self {
        let code = match error.kind {
            ErrorKind::Disconnected => NO_BROKER,
            ErrorKind::NotFound | ErrorKind::NoResponders => NOT_FOUND,
            ErrorKind::Invalid => USAGE,
            _ => FAILED,
        };
        Self::new(code, error.to_string())
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::new(USAGE, error.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        // A reader that closes the pipe early is not a failure.
        let code = if is_broken_pipe(&error) { DONE } else { FAILED };
        Self::new(code, error.to_string())
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self::new(FAILED, format!("cannot write JSON: {error}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Prints a message to the standard error. A closed standard error is ignored.
pub fn note(message: &str) {
    writeln!(io::stderr(), "thalweg: {message}").unwrap_or_default();
}

/// Prints a progress message for a person. Prints nothing in a script.
pub fn remark(message: &str) {
    if io::stderr().is_terminal() {
        note(message);
    }
}

/// Returns `true` if the reader of the output has closed it, so that the command can end.
pub fn is_broken_pipe(failure: &io::Error) -> bool {
    failure.kind() == io::ErrorKind::BrokenPipe
}
