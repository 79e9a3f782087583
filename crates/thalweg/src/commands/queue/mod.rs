//! `thalweg queue`: queues and their messages.

mod message;
mod transfer;
mod work;

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use client::{
    Client, ErrorKind, LeaseAnswer, NewQueue, OutMessage, Queue as ClientQueue, QueueCounts, QueueInfo, Receive,
    RedriveInfo, RedriveState, Sent,
};
use comfy_table::Table;
use engine::queue::{QueueSettings, SettingValue};
use serde_json::{Map, Value, json};
use thalweg::config::Config;
use tokio::io::{AsyncBufReadExt, BufReader};

use super::time::{format_time, parse_start};
use super::{confirm, connect, units};
use crate::args::{Queue, QueueCreate, QueueReceive, QueueRedrive, QueueSend};
use crate::block_on;
use crate::output::{FAILED, Failure, Result, USAGE, note, remark};

/// Text of an empty cell.
const DASH: &str = "-";
/// Size of the input buffer, in bytes.
const INPUT_BUFFER_BYTES: usize = 256 << 10;
/// Maximum number of lines that are sent together.
const LINES_TOGETHER: usize = 4096;
/// Interval between checks of a running move.
const LOOK_EVERY: Duration = Duration::from_millis(200);

pub fn run(config: &Config, command: Queue, is_json: bool) -> Result {
    block_on(async {
        let client = connect(config).await?;
        let done = dispatch(&client, command, is_json).await;
        client.close().await;
        done
    })
}

async fn dispatch(client: &Client, command: Queue, is_json: bool) -> Result {
    let out = &mut io::stdout();
    match command {
        Queue::Create(args) => create(out, client, args, is_json).await,
        Queue::Alter { queue, options } => {
            let settings = options.named();
            if settings.is_empty() {
                return Err(Failure::new(
                    USAGE,
                    "name at least one setting to change, such as --lease 60s; see --help",
                ));
            }
            let info = client.queue(&queue).alter(settings).await?;
            if is_json {
                Ok(writeln!(out, "{}", to_json(&info))?)
            } else {
                Ok(writeln!(out, "queue {queue} has these settings now:\n{}", settings_table(&info))?)
            }
        }
        Queue::Delete { queue, yes } => {
            confirm::ask(yes, &format!("Delete queue {queue} with its messages?"))?;
            client.queue(&queue).delete().await?;
            print(out, is_json, &json!({ "deleted": queue }), &format!("deleted queue {queue}"))
        }
        Queue::List { prefix } => list(out, &client.list_queues(&prefix).await?, is_json),
        Queue::Stats { queue } => stats(out, &client.queue(&queue).describe().await?, is_json),
        Queue::Send(args) => send(out, &client.queue(&args.queue), &args, is_json).await,
        Queue::Receive(args) => {
            if args.create {
                create_missing(client, &args.queue).await?;
            }
            receive(out, &client.queue(&args.queue), &args, is_json).await
        }
        Queue::Ack { queue, receipt } => {
            let answers = client.queue(&queue).ack(&receipt).await?;
            settled(out, "acknowledged", &receipt, &answers, is_json)
        }
        Queue::Nack { queue, receipt, delay } => {
            let leases: Vec<_> = receipt.iter().map(|one| (one.clone(), delay.map(Duration::from_millis))).collect();
            let answers = client.queue(&queue).nack(&leases).await?;
            settled(out, "returned", &receipt, &answers, is_json)
        }
        Queue::Extend { queue, receipt, lease } => {
            let leases: Vec<_> = receipt.iter().map(|one| (one.clone(), Duration::from_millis(lease))).collect();
            let answers = client.queue(&queue).extend(&leases).await?;
            settled(out, "extended", &receipt, &answers, is_json)
        }
        Queue::Peek { queue, max } => message::peek(out, &client.queue(&queue), max, is_json).await,
        Queue::Purge { queue, yes } => {
            confirm::ask(yes, &format!("Delete all messages of queue {queue}?"))?;
            let purged = client.queue(&queue).purge().await?;
            let text = format!("deleted {} of queue {queue}", units::count(purged, "message"));
            print(out, is_json, &json!({ "queue": queue, "purged": purged }), &text)
        }
        Queue::Seek { queue, to } => {
            let start = parse_start("--to", &to)?;
            client.queue(&queue).seek(start).await?;
            let json = json!({ "queue": queue, "to": to });
            print(out, is_json, &json, &format!("queue {queue} continues at {to}"))
        }
        Queue::Redrive(args) => redrive(out, client, &args, is_json).await,
        Queue::Work(args) => work::run(out, &client.queue(&args.queue), &args, is_json).await,
        Queue::Export { queue } => transfer::export(out, &client.queue(&queue)).await,
        Queue::Import { name, storage, file } => {
            transfer::import(out, client, name.as_deref(), storage, file.as_deref(), is_json).await
        }
    }
}

fn print(out: &mut impl Write, is_json: bool, json: &Value, text: &str) -> Result {
    if is_json { Ok(writeln!(out, "{json}")?) } else { Ok(writeln!(out, "{text}")?) }
}

async fn create(out: &mut impl Write, client: &Client, args: QueueCreate, is_json: bool) -> Result {
    let new = NewQueue {
        topic: args.topic.unwrap_or_default(),
        is_live: args.live,
        storage: args.storage,
        settings: args.options.named(),
        ..NewQueue::new(args.queue)
    };
    let info = client.create_queue(new).await?;
    let over = if info.owns_topic { "with its own topic".to_owned() } else { format!("over topic {}", info.topic) };
    print(out, is_json, &to_json(&info), &format!("created queue {} {over}", info.queue))
}

/// Creates a queue with the broker's defaults if it does not exist.
async fn create_missing(client: &Client, queue: &str) -> Result {
    match client.queue(queue).describe().await {
        Err(error) if error.kind == ErrorKind::NotFound => match client.create_queue(NewQueue::new(queue)).await {
            // Another client created the queue at the same time, with other settings.
            Err(error) if error.kind == ErrorKind::AlreadyExists => Ok(()),
            created => created.map(drop).map_err(Failure::from),
        },
        described => described.map(drop).map_err(Failure::from),
    }
}

async fn send(out: &mut impl Write, queue: &ClientQueue, args: &QueueSend, is_json: bool) -> Result {
    let mut template = OutMessage {
        group: args.group.clone().map(Into::into),
        dedup: args.dedup.clone(),
        delay_ms: args.delay,
        ..OutMessage::default()
    };
    for header in &args.header {
        let Some((name, value)) = header.split_once('=') else {
            return Err(Failure::new(USAGE, format!("--header {header}: write NAME=VALUE")));
        };
        template = template.with_header(name, value.to_owned());
    }
    if let Some(body) = &args.body {
        let Sent { id, partition, offset, is_duplicate } =
            queue.send(OutMessage { body: body.clone().into(), ..template }).await?;
        let sent = json!({ "id": id, "partition": partition, "offset": offset, "is_duplicate": is_duplicate });
        return print(out, is_json, &sent, &id);
    }
    let sent = send_lines(queue, args.file.as_deref(), &template).await?;
    if is_json {
        Ok(writeln!(out, "{}", json!({ "queue": queue.name(), "sent": sent }))?)
    } else {
        remark(&format!("sent {} to {}", units::count(sent, "message"), queue.name()));
        Ok(())
    }
}

/// Sends each line as a message. Available lines are sent immediately, even if they are few.
async fn send_lines(queue: &ClientQueue, file: Option<&Path>, template: &OutMessage) -> Result<u64> {
    if file.is_none() && io::stdin().is_terminal() {
        note("reading messages from the terminal, one per line; Ctrl-D ends");
    }
    let mut input = input(file)?;
    let mut line = Vec::new();
    let mut sent = 0;
    loop {
        let mut messages = Vec::new();
        while messages.len() < LINES_TOGETHER && (messages.is_empty() || input.buffer().contains(&b'\n')) {
            line.clear();
            let read = input.read_until(b'\n', &mut line).await;
            let name = || file.map_or("the standard input".to_owned(), |path| path.display().to_string());
            if read.map_err(|e| Failure::new(FAILED, format!("{}: {e}", name())))? == 0 {
                break;
            }
            if line.last() == Some(&b'\n') {
                line.pop();
            }
            messages.push(OutMessage { body: line.clone().into(), ..template.clone() });
        }
        if messages.is_empty() {
            return Ok(sent);
        }
        sent += all_sent(queue.send_many(messages).await, sent)?;
    }
}

/// Returns the number of messages if all were accepted.
fn all_sent(answers: Vec<client::Result<Sent>>, before: u64) -> Result<u64> {
    let count = answers.len() as u64;
    let taken = answers.iter().filter(|sent| sent.is_ok()).count() as u64;
    match answers.into_iter().find_map(|sent| sent.err()) {
        None => Ok(count),
        Some(error) => {
            let failure = Failure::from(error);
            let sent = before + taken;
            Err(Failure::new(failure.code, format!("{sent} messages were sent, then sending failed: {failure}")))
        }
    }
}

fn input(file: Option<&Path>) -> Result<BufReader<Box<dyn tokio::io::AsyncRead + Unpin>>> {
    let input: Box<dyn tokio::io::AsyncRead + Unpin> = match file {
        Some(path) => {
            let file = File::open(path).map_err(|e| Failure::new(FAILED, format!("{}: {e}", path.display())))?;
            Box::new(tokio::fs::File::from_std(file))
        }
        None => Box::new(tokio::io::stdin()),
    };
    Ok(BufReader::with_capacity(INPUT_BUFFER_BYTES, input))
}

async fn receive(out: &mut impl Write, queue: &ClientQueue, args: &QueueReceive, is_json: bool) -> Result {
    let wanted = Receive {
        count_max: args.max,
        lease: args.lease.map(Duration::from_millis),
        wait: Duration::from_millis(args.wait.unwrap_or_default()),
        // Otherwise the messages would be redelivered before their receipts could be used.
        outlives_connection: !args.ack,
        ..Receive::default()
    };
    if !wanted.wait.is_zero() {
        remark(&format!(
            "waiting up to {} for a message of queue {}",
            units::millis(args.wait.unwrap_or(0)),
            queue.name()
        ));
    }
    let received = queue.receive(&wanted).await?;
    if received.messages.is_empty() {
        remark(&format!("queue {} has no message to deliver now", queue.name()));
    }
    for one in &received.messages {
        if is_json {
            writeln!(out, "{}", message::received_to_json(one))?
        } else {
            if !args.ack {
                write!(out, "{}\t", one.receipt)?;
            }
            out.write_all(&one.message.body)?;
            writeln!(out)?;
        }
    }
    out.flush()?;
    if !args.ack || received.messages.is_empty() {
        return Ok(());
    }
    let receipts: Vec<String> = received.messages.into_iter().map(|one| one.receipt).collect();
    let answers = queue.ack(&receipts).await?;
    settled(&mut io::sink(), "acknowledged", &receipts, &answers, is_json)
}

/// Prints the results for leases. A rejected receipt is a failure, reported after all results are printed.
fn settled(out: &mut impl Write, verb: &str, receipts: &[String], answers: &[LeaseAnswer], is_json: bool) -> Result {
    let refused: Vec<_> =
        receipts.iter().zip(answers).filter_map(|(receipt, answer)| Some((receipt, answer.refusal()?))).collect();
    let done = answers.len() - refused.len();
    let errors: Vec<Value> =
        refused.iter().map(|(receipt, why)| json!({ "receipt": receipt, "message": why })).collect();
    print(
        out,
        is_json,
        &json!({ verb: done, "refused": errors }),
        &format!("{verb} {}", units::count(done as u64, "message")),
    )?;
    match refused.first() {
        None => Ok(()),
        Some((receipt, why)) => {
            let message = format!("{} of {} receipts rejected: {receipt}: {why}", refused.len(), answers.len());
            Err(Failure::new(FAILED, message))
        }
    }
}

async fn redrive(out: &mut impl Write, client: &Client, args: &QueueRedrive, is_json: bool) -> Result {
    let queue = client.queue(&args.queue);
    if args.list {
        return list_redrives(out, &queue.redrives().await?, is_json);
    }
    if let Some(number) = args.cancel {
        let redrive = client.cancel_redrive(number).await?;
        return print(
            out,
            is_json,
            &redrive_to_json(&redrive),
            &format!("stopping, with {} messages moved", redrive.moved),
        );
    }
    let number = queue.start_redrive(args.to.as_deref(), args.rate).await?;
    let found = loop {
        let found = queue.redrives().await?.into_iter().find(|redrive| redrive.redrive == number);
        let Some(found) = found else {
            return Err(Failure::new(FAILED, "the broker no longer knows the move of messages"));
        };
        if !args.wait || !matches!(found.state, RedriveState::Running | RedriveState::Cancelling) {
            break found;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    };
    let text = match found.state {
        RedriveState::Running => format!("moving {} messages, as number {number}", found.to_move),
        state => format!("{}: {} messages were moved", state.name(), found.moved),
    };
    print(out, is_json, &redrive_to_json(&found), &text)?;
    match &found.failure {
        Some(why) => Err(Failure::new(FAILED, why.clone())),
        None => Ok(()),
    }
}

fn list_redrives(out: &mut impl Write, redrives: &[RedriveInfo], is_json: bool) -> Result {
    if is_json {
        return Ok(writeln!(out, "{}", Value::Array(redrives.iter().map(redrive_to_json).collect()))?);
    }
    let mut table = units::table();
    table.set_header(["NUMBER", "TO", "STATE", "MOVED", "OF", "STARTED", "FAILURE"]);
    for redrive in redrives {
        table.add_row([
            redrive.redrive.to_string(),
            redrive.to.clone().unwrap_or_else(|| "original queues".to_owned()),
            redrive.state.name().to_owned(),
            redrive.moved.to_string(),
            redrive.to_move.to_string(),
            format_time(redrive.started_ms as i64),
            redrive.failure.clone().unwrap_or_else(|| DASH.to_owned()),
        ]);
    }
    Ok(writeln!(out, "{table}")?)
}

fn redrive_to_json(redrive: &RedriveInfo) -> Value {
    json!({
        "redrive": redrive.redrive,
        "from": redrive.from,
        "to": redrive.to,
        "rate": redrive.rate,
        "started_ms": redrive.started_ms,
        "state": redrive.state.name(),
        "moved": redrive.moved,
        "to_move": redrive.to_move,
        "failure": redrive.failure,
    })
}

fn list(out: &mut impl Write, queues: &[QueueInfo], is_json: bool) -> Result {
    if is_json {
        return Ok(writeln!(out, "{}", Value::Array(queues.iter().map(to_json).collect()))?);
    }
    if queues.is_empty() {
        let advice = "`thalweg queue create NAME` creates one";
        return Ok(writeln!(out, "{}", units::nothing("queues", advice))?);
    }
    let mut table = units::table();
    table.set_header(["QUEUE", "TOPIC", "VISIBLE", "IN FLIGHT", "DELAYED", "OLDEST"]);
    for info in queues {
        let shown = |count: fn(&QueueCounts) -> u64| {
            info.counts.as_ref().map_or(DASH.to_owned(), |counts| count(counts).to_string())
        };
        table.add_row([
            info.queue.clone(),
            info.topic.clone(),
            shown(|counts| counts.visible),
            shown(|counts| counts.in_flight),
            shown(|counts| counts.delayed),
            oldest(info),
        ]);
    }
    Ok(writeln!(out, "{table}")?)
}

fn oldest(info: &QueueInfo) -> String {
    let oldest_ms = info.counts.as_ref().and_then(|counts| counts.oldest_ms);
    oldest_ms.map_or(DASH.to_owned(), |oldest_ms| format_time(oldest_ms as i64))
}

fn stats(out: &mut impl Write, info: &QueueInfo, is_json: bool) -> Result {
    if is_json {
        return Ok(writeln!(out, "{}", to_json(info))?);
    }
    let of = if info.owns_topic { "its own" } else { "which existed before" };
    writeln!(out, "queue {}\ntopic {}, {of}\n", info.queue, info.topic)?;
    match &info.counts {
        None => writeln!(out, "its topic was deleted\n")?,
        Some(counts) => {
            // A queue without messages may still have acknowledged ones in its log.
            let is_empty = counts.visible + counts.in_flight + counts.delayed == 0;
            let mut table = units::table();
            table.add_row(["visible".to_owned(), counts.visible.to_string()]);
            table.add_row(["in flight".to_owned(), counts.in_flight.to_string()]);
            table.add_row(["delayed".to_owned(), counts.delayed.to_string()]);
            table.add_row([
                "bytes since the oldest unacknowledged".to_owned(),
                units::bytes(if is_empty { 0 } else { counts.bytes }),
            ]);
            table.add_row(["oldest sent at".to_owned(), oldest(info)]);
            writeln!(out, "{table}\n")?;
        }
    }
    Ok(writeln!(out, "{}", settings_table(info))?)
}

fn settings_table(info: &QueueInfo) -> Table {
    let mut table = units::table();
    for (name, value) in &info.settings {
        table.add_row([name.clone(), shown_setting(name, value)]);
    }
    table
}

/// Formats a setting with its unit. The name shows whether a number is a time or a size.
fn shown_setting(name: &str, value: &str) -> String {
    match value.parse() {
        _ if value.is_empty() => DASH.to_owned(),
        Ok(ms) if name.contains("_ms") => units::millis(ms),
        Ok(bytes) if name.contains("bytes") && bytes > 0 => units::bytes(bytes),
        _ => value.to_owned(),
    }
}

fn to_json(info: &QueueInfo) -> Value {
    let mut shown = json!({
        "queue": info.queue,
        "topic": info.topic,
        "owns_topic": info.owns_topic,
        "created_ms": info.created_ms,
        "altered_ms": info.altered_ms,
        "settings": settings_to_json(&info.settings),
        "notes": info.notes.iter().map(|(name, value)| (name.clone(), json!(value))).collect::<Map<_, _>>(),
        "counts": Value::Null,
    });
    if let Some(counts) = &info.counts {
        shown["counts"] = json!({
            "visible": counts.visible,
            "in_flight": counts.in_flight,
            "delayed": counts.delayed,
            "bytes": counts.bytes,
            "oldest_ms": counts.oldest_ms,
            "noisy_groups": counts.noisy_groups,
        });
    }
    shown
}

/// Converts each setting to its JSON type. A setting that only a later broker knows is a string.
fn settings_to_json(settings: &[(String, String)]) -> Value {
    let known = QueueSettings::default().named();
    let value = |name: &str, value: &str| match known.iter().find(|(known, _)| *known == name) {
        Some((_, SettingValue::Count(_))) => value.parse::<u64>().map_or(json!(value), |count| json!(count)),
        Some((_, SettingValue::Flag(_))) => json!(value == "true"),
        _ if value.is_empty() => Value::Null,
        _ => json!(value),
    };
    settings.iter().map(|(name, text)| (name.clone(), value(name, text))).collect::<Map<_, _>>().into()
}
