//! `thalweg queue work`: a command for each message.

use std::cell::RefCell;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStringExt;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use client::{Outcome, Queue, ReceivedMessage};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use super::tell;
use crate::args::QueueWork;
use crate::output::{FAILED, Failure, Result, note};

/// The exit code of a command that could do it later.
const EX_TEMPFAIL: i32 = 75;
/// How the variables begin that tell a command about its message.
const PREFIX: &str = thalweg::config::ENV_MESSAGE_PREFIX;

pub async fn run(out: &mut impl Write, queue: &Queue, args: &QueueWork, is_json: bool) -> Result {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let failure = RefCell::new(None);
    let has_failed = Notify::new();
    let handle = async |received: ReceivedMessage| match run_command(queue.name(), &args.command, &received).await {
        Ok(status) if status.success() => Outcome::Done,
        Ok(status) if status.code() == Some(EX_TEMPFAIL) => {
            Outcome::Return { delay: Some(Duration::from_millis(args.retry_delay)) }
        }
        Ok(status) => {
            note(&format!("message {} goes back: its command ended with {status}", received.message.id));
            Outcome::Return { delay: None }
        }
        Err(error) => {
            // The next message would fare no better.
            failure.replace(Some(format!("cannot run {}: {error}", args.command[0])));
            has_failed.notify_one();
            Outcome::Return { delay: None }
        }
    };
    let (mut is_asked, stopped) = (false, Notify::new());
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
                    return Err(Failure::new(FAILED, "what was running was stopped; its messages go back"));
                }
                is_asked = true;
                stopped.notify_one();
                note("finishes what is running; once more ends at once");
            }
        }
    };
    let client::WorkReport { done, returned, lost } = report;
    let told = json!({ "queue": queue.name(), "done": done, "returned": returned, "lost": lost });
    tell(out, is_json, &told, &format!("{done} done, {returned} returned, {lost} lost"))?;
    match failure.take() {
        Some(why) => Err(Failure::new(FAILED, why)),
        None => Ok(()),
    }
}

/// Runs the command with the body as its input. It has a process group of its own, so that Ctrl-C is for the worker.
async fn run_command(queue: &str, command: &[String], received: &ReceivedMessage) -> io::Result<ExitStatus> {
    let mut child = Command::new(&command[0])
        .args(&command[1..])
        .envs(variables(queue, received))
        .stdin(Stdio::piped())
        .kill_on_drop(true)
        .process_group(0)
        .spawn()?;
    let mut stdin = child.stdin.take();
    let body = received.message.body.clone();
    let feed = async move {
        if let Some(stdin) = &mut stdin {
            // A command need not read its input.
            stdin.write_all(&body).await.unwrap_or_default();
        }
    };
    let (_, status) = tokio::join!(feed, child.wait());
    status
}

fn variables(queue: &str, received: &ReceivedMessage) -> Vec<(String, OsString)> {
    let message = &received.message;
    let named = [
        ("QUEUE", queue.to_owned()),
        ("ID", message.id.clone()),
        ("ATTEMPTS", message.attempts.to_string()),
        ("SENT_MS", message.sent_ms.to_string()),
        ("RECEIPT", received.receipt.clone()),
    ];
    let mut variables: Vec<(String, OsString)> =
        named.into_iter().map(|(name, value)| (format!("{PREFIX}{name}"), value.into())).collect();
    if let Some(source) = message.source() {
        variables.push((format!("{PREFIX}SOURCE"), source.into()));
    }
    let mut add = |name: String, value: &[u8]| {
        // No variable can hold a zero byte.
        if !value.contains(&0) {
            variables.push((name, OsString::from_vec(value.to_vec())));
        }
    };
    if let Some(group) = &message.group {
        add(format!("{PREFIX}GROUP"), group);
    }
    for (name, value) in message.sender_headers() {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
        add(format!("{PREFIX}HEADER_{}", name.chars().map(plain).collect::<String>()), value);
    }
    variables
}
