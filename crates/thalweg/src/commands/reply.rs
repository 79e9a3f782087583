//! `thalweg reply`: answer requests.

use std::io;
use std::process::{Output, Stdio};

use client::{Client, Message, Missing, Record};
use thalweg::config::Config;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::{connect, units};
use crate::args::Reply;
use crate::block_on;
use crate::output::{FAILED, Failure, Result, note, remark};

pub fn run(config: &Config, args: &Reply, is_json: bool) -> Result {
    block_on(async {
        let client = connect(config).await?;
        let answered = answer_all(&client, args, config.server_address()).await;
        client.close().await;
        let answered = answered?;
        if is_json {
            println!("{}", serde_json::json!({ "topic": args.topic, "answered": answered }));
        } else {
            remark(&format!("answered {}", units::count(answered, "request")));
        }
        Ok(())
    })
}

/// Answers requests until `--count` is reached, or until a signal.
async fn answer_all(client: &Client, args: &Reply, address: &str) -> Result<u64> {
    // The first request may create the topic.
    let mut requests = client.subscribe(&args.topic).missing(Missing::Wait);
    if let Some(group) = &args.group {
        requests = requests.group(group);
    }
    let mut requests = requests.open().await?;
    remark(&format!("answering requests to {} at {address}; Ctrl-C ends", args.topic));
    let mut answered = 0;
    let wanted = args.count.unwrap_or(u64::MAX);
    while answered < wanted {
        let message = tokio::select! {
            message = requests.next() => message?,
            interrupt = tokio::signal::ctrl_c() => {
                interrupt?;
                break;
            }
        };
        if let Some(answer) = answer(args, &message).await? {
            match client.reply(&message.record, answer).await {
                Ok(()) => answered += 1,
                Err(error) => note(&format!("record {} was not answered: {error}", message.record.offset)),
            }
        }
    }
    Ok(answered)
}

async fn answer(args: &Reply, message: &Message) -> Result<Option<Record>> {
    if args.echo {
        return Ok(Some(Record::new(message.record.value().to_vec())));
    }
    if let Some(value) = &args.value {
        return Ok(Some(Record::new(value.clone())));
    }
    let Output { status, mut stdout, .. } = run_command(&args.command, message.record.value())
        .await
        .map_err(|error| Failure::new(FAILED, format!("cannot run {}: {error}", args.command[0])))?;
    if !status.success() {
        note(&format!("record {} was not answered: its command ended with {status}", message.record.offset));
        return Ok(None);
    }
    // A trailing line feed is for people; the answer is the text without it.
    if stdout.last() == Some(&b'\n') {
        stdout.pop();
    }
    Ok(Some(Record::new(stdout)))
}

async fn run_command(command: &[String], request: &[u8]) -> io::Result<Output> {
    let mut child = Command::new(&command[0])
        .args(&command[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let stdin = child.stdin.take();
    let feed = async {
        if let Some(mut stdin) = stdin {
            // A command may ignore its input.
            stdin.write_all(request).await.unwrap_or_default();
        }
    };
    let (output, ()) = tokio::join!(child.wait_with_output(), feed);
    output
}
