//! `thalweg queue work`: a command for each message.

use std::cell::RefCell;
use std::convert::Infallible;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use client::{Outcome, Queue, ReceivedMessage};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use super::print;
use crate::args::QueueWork;
use crate::output::{FAILED, Failure, Result, note, remark};

/// Exit code of a command that may succeed later.
const EX_TEMPFAIL: i32 = 75;
/// Prefix of the variables that describe a message to its command.
const PREFIX: &str = thalweg::config::ENV_MESSAGE_PREFIX;
/// Maximum size of a variable with its name, the equals sign and the zero at the end: Linux allows no more.
const VARIABLE_BYTES_MAX: usize = 128 << 10;
/// Maximum size of all variables of a message. Linux allows 2 MiB for the whole environment and the arguments, unless
/// the limit of the stack is small.
const VARIABLES_BYTES_MAX: usize = 1 << 20;

pub async fn run(out: &mut impl Write, queue: &Queue, args: &QueueWork, is_json: bool) -> Result {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    if !command_exists(&args.command[0]) {
        let message = format!("cannot run {}: no executable file of this name exists", args.command[0]);
        return Err(Failure::new(FAILED, message));
    }
    remark(&format!("working on queue {}; Ctrl-C ends", queue.name()));
    let failure = RefCell::new(None);
    let has_failed = Notify::new();
    let handle = async |received: ReceivedMessage| match run_command(queue.name(), &args.command, &received).await {
        Ok(status) if status.success() => Outcome::Done,
        Ok(status) if status.code() == Some(EX_TEMPFAIL) => {
            Outcome::Return { delay: Some(Duration::from_millis(args.retry_delay)) }
        }
        Ok(status) => {
            note(&format!("message {} returns to the queue: its command ended with {status}", received.message.id));
            Outcome::Return { delay: None }
        }
        Err(error) if !is_of_command(&error) => {
            note(&format!(
                "message {} returns to the queue: cannot run {}: {error}",
                received.message.id, args.command[0]
            ));
            Outcome::Return { delay: None }
        }
        Err(error) => {
            // Every other message would fail in the same way.
            failure.replace(Some(format!("cannot run {}: {error}", args.command[0])));
            has_failed.notify_one();
            Outcome::Return { delay: None }
        }
    };
    let mut is_asked = false;
    let stopped = Notify::new();
    let mut worker = queue.worker().in_flight_max(args.concurrency);
    if let Some(lease) = args.lease {
        worker = worker.lease(Duration::from_millis(lease));
    }
    let working = worker.run(handle, stopped.notified());
    tokio::pin!(working);
    let report = loop {
        tokio::select! {
            report = &mut working => break report?,
            () = has_failed.notified() => stopped.notify_one(),
            () = async { tokio::select! { _ = terminate.recv() => {} _ = interrupt.recv() => {} } } => {
                if is_asked {
                    let message = "the running commands were stopped; their messages return to the queue";
                    return Err(Failure::new(FAILED, message));
                }
                is_asked = true;
                stopped.notify_one();
                note("finishing the commands that run; press Ctrl-C again to stop them now");
            }
        }
    };
    let client::WorkReport { done, returned, lost, .. } = report;
    let json = json!({ "queue": queue.name(), "done": done, "returned": returned, "lost": lost });
    print(out, is_json, &json, &format!("{done} done, {returned} returned, {lost} lost"))?;
    match failure.take() {
        Some(why) => Err(Failure::new(FAILED, why)),
        None => Ok(()),
    }
}

/// Returns `true` if there is a file to run, so that no message spends an attempt on a missing command.
fn command_exists(command: &str) -> bool {
    let is_executable = |path: &Path| rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok() && path.is_file();
    if command.contains('/') {
        return is_executable(Path::new(command));
    }
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|directory| is_executable(&directory.join(command)))
}

/// Returns `true` if this command cannot handle any message. Otherwise the error is due to the message, or temporary.
fn is_of_command(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
    matches!(error.kind(), NotFound | PermissionDenied | NotADirectory)
        || error.raw_os_error() == Some(Errno::NOEXEC.raw_os_error())
}

/// Process group of a command. Its processes are killed if this is dropped before the command ends.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            // The group may have ended just now.
            kill_process_group(leader, Signal::KILL).unwrap_or_default();
        }
    }
}

/// Runs the command with the body as its input. It gets a separate process group, so that Ctrl-C reaches only the
/// worker.
async fn run_command(queue: &str, command: &[String], received: &ReceivedMessage) -> io::Result<ExitStatus> {
    let mut child = Command::new(&command[0])
        .args(&command[1..])
        .envs(variables(queue, received))
        .stdin(Stdio::piped())
        .kill_on_drop(true)
        .process_group(0)
        .spawn()?;
    let mut group = Group(child.id().and_then(|id| Pid::from_raw(id.cast_signed())));
    let stdin = child.stdin.take();
    let body = received.message.body.clone();
    let feed = async move {
        if let Some(mut stdin) = stdin {
            // A command may ignore its input.
            stdin.write_all(&body).await.unwrap_or_default();
        }
        std::future::pending::<Infallible>().await
    };
    let status = tokio::select! {
        // Processes that the command leaves running may hold its input open; they are not waited for.
        status = child.wait() => status,
        never = feed => match never {},
    };
    group.0 = None;
    status
}

/// Returns the environment variables that describe a message, without values that no variable can hold.
fn variables(queue: &str, received: &ReceivedMessage) -> Vec<(String, OsString)> {
    let message = &received.message;
    let mut variables = Vec::new();
    let mut left = VARIABLES_BYTES_MAX;
    let mut add = |name: &str, value: &[u8]| {
        let bytes = PREFIX.len() + name.len() + 1 + value.len() + 1;
        if !value.contains(&0) && bytes <= VARIABLE_BYTES_MAX.min(left) {
            left -= bytes;
            variables.push((format!("{PREFIX}{name}"), OsString::from_vec(value.to_vec())));
        }
    };
    add("QUEUE", queue.as_bytes());
    add("ID", message.id.as_bytes());
    add("ATTEMPTS", message.attempts.to_string().as_bytes());
    add("SENT_MS", message.sent_ms.to_string().as_bytes());
    add("RECEIPT", received.receipt.as_bytes());
    if let Some(source) = message.source() {
        add("SOURCE", source.as_bytes());
    }
    if let Some(group) = &message.group {
        add("GROUP", group);
    }
    for (name, value) in message.sender_headers() {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
        add(&format!("HEADER_{}", name.chars().map(plain).collect::<String>()), value);
    }
    variables
}
