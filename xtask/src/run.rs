//! Child processes: started in the root of the repository, and printed as one could type them there.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Result of a command. An error is a sentence for the developer who typed the command.
pub type Outcome<T = ()> = Result<T, String>;

/// Returns the root of the repository.
pub fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().expect("invariant: the package is a folder of the repository").to_owned()
}

/// Program with its arguments and additional environment variables.
#[derive(Clone, Debug)]
pub struct Call {
    program: String,
    args: Vec<String>,
    env: Vec<(&'static str, String)>,
}

impl Call {
    pub fn new(program: impl Into<String>) -> Self {
        Self { program: program.into(), args: Vec::new(), env: Vec::new() }
    }

    /// Creates a call from a command line without quotes: words between spaces.
    pub fn line(line: &str) -> Self {
        let mut words = line.split_whitespace();
        words.next().map_or_else(|| Self::new(""), Self::new).args(words)
    }

    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    pub fn args<A: Into<String>>(self, args: impl IntoIterator<Item = A>) -> Self {
        args.into_iter().fold(self, Self::arg)
    }

    pub fn env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.env.push((name, value.into()));
        self
    }

    /// Limits the duration of the call: at the limit, it and all its child processes are ended.
    pub fn within(self, limit: Duration) -> Self {
        self.after(Self::new("timeout").arg(limit.as_secs_f64().to_string()))
    }

    /// Returns the call of `other`, with this call as its last arguments.
    pub fn after(self, other: Self) -> Self {
        let env = [other.env, self.env].concat();
        Self { program: other.program, args: other.args, env }.arg(self.program).args(self.args)
    }

    /// Returns the command for the standard library. Variables that set a key of the configuration are removed, so that
    /// the result is the same on every machine.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).current_dir(root()).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("THALWEG_") {
                command.env_remove(name);
            }
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs the call with this terminal.
    pub fn run(&self) -> Outcome {
        let status = self.command().status().map_err(|e| format!("{}: {e}", self.program))?;
        if status.success() { Ok(()) } else { Err(format!("`{self}` failed ({status})")) }
    }

    /// Runs the call and returns its standard output.
    pub fn output(&self) -> Outcome<String> {
        let output = self.command().stderr(Stdio::inherit()).output().map_err(|e| format!("{}: {e}", self.program))?;
        if !output.status.success() {
            return Err(format!("`{self}` failed ({})", output.status));
        }
        String::from_utf8(output.stdout).map_err(|e| format!("`{self}`: {e}"))
    }

    /// Returns `true` if the program exists and succeeds. Prints nothing.
    pub fn succeeds(&self) -> bool {
        let status = self.command().stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.env {
            write!(f, "{name}={} ", quoted(value))?;
        }
        f.write_str(&quoted(&self.program))?;
        self.args.iter().try_for_each(|arg| write!(f, " {}", quoted(arg)))
    }
}

fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:+,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) { word.to_owned() } else { format!("'{word}'") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_reads_as_one_would_type_it() {
        let call = Call::line("cargo doc --no-deps").env("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(call.to_string(), "RUSTDOCFLAGS='-D warnings' cargo doc --no-deps");
    }

    #[test]
    fn a_failure_is_not_taken_for_success() {
        assert_eq!(Call::line("echo one two").output(), Ok("one two\n".to_owned()));
        assert!(Call::new("false").run().is_err());
        assert!(Call::new("false").output().is_err());
        assert!(!Call::new("no-such-program").succeeds());
    }

    #[test]
    fn a_command_is_ended_after_its_time_limit() {
        assert_eq!(Call::line("echo one").within(Duration::from_secs(300)).output(), Ok("one\n".to_owned()));
        assert!(!Call::line("sleep 300").within(Duration::from_millis(50)).succeeds());
    }
}
