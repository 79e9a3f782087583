//! Queues end to end: the client, its worker, the command line, definitions in the configuration, and bad input.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use client::{Client, ErrorKind, LeaseAnswer, MessagePhase, NewQueue, OutMessage, Outcome, Queue, Receive};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use serde_json::{Value, json};
use tempfile::{NamedTempFile, TempDir};
use tokio::sync::Notify;

use crate::support::command::{Done, feed, on, run};
use crate::support::server::{PATIENCE, Server, connect, program, until, within};

const FAILED: i32 = 1;
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 4;

async fn jobs(server: &Server, new: NewQueue) -> Queue {
    let client = server.client("tcp").await;
    client.create_queue(new).await.expect("created");
    client.queue("jobs")
}

async fn counts(queue: &Queue) -> (u64, u64, u64) {
    let counts = within("counts", queue.describe()).await.expect("described").counts.expect("its topic is there");
    (counts.visible, counts.in_flight, counts.delayed)
}

async fn receive(queue: &Queue, receive: Receive) -> Vec<client::ReceivedMessage> {
    within("messages", queue.receive(&receive)).await.expect("received").messages
}

fn ten() -> Receive {
    Receive::default()
}

fn bodies(messages: &[client::ReceivedMessage]) -> Vec<String> {
    messages.iter().map(|one| String::from_utf8_lossy(&one.message.body).into_owned()).collect()
}

#[tokio::test]
async fn messages_are_sent_leased_returned_kept_and_acknowledged() {
    let server = Server::start();
    for scheme in ["tcp", "quic"] {
        let client = server.client(scheme).await;
        client.create_queue(NewQueue::new(scheme).with("lease_ms", "60000")).await.expect("created");
        let queue = client.queue(scheme);
        let rich = OutMessage::new(vec![0, 0xff]).with_group("g").with_header("a", "b");
        let sent = queue.send_many(vec![OutMessage::new("one"), rich, OutMessage::new("three")]).await;
        let sent: Vec<_> = sent.into_iter().map(|sent| sent.expect("taken")).collect();
        let received = queue.receive(&ten()).await.expect("received");
        assert_eq!((received.lease, received.messages.len()), (Duration::from_secs(60), 3));
        let second = &received.messages[1];
        assert_eq!((&second.message.id, second.message.attempts), (&sent[1].id, 1));
        assert_eq!((second.message.group.as_deref(), &second.message.body[..]), (Some(&b"g"[..]), &[0, 0xff][..]));
        let headers: Vec<_> = second.message.sender_headers().map(|(name, value)| (name, &value[..])).collect();
        assert_eq!(headers, [("a", &b"b"[..])]);

        let receipt = |at: usize| received.messages[at].receipt.clone();
        let acked = queue.ack(&[receipt(0), "made up".to_owned()]).await.expect("answered");
        assert_eq!(acked, [LeaseAnswer::Done, LeaseAnswer::Invalid]);
        let kept = queue.extend(&[(receipt(1), Duration::from_secs(120)), (receipt(1), Duration::MAX)]).await;
        assert_eq!(kept.expect("answered"), [LeaseAnswer::Done, LeaseAnswer::TooLong]);
        let back = queue.nack(&[(receipt(2), Some(Duration::from_secs(3600))), (receipt(2), None)]).await;
        assert_eq!(back.expect("answered"), [LeaseAnswer::Done, LeaseAnswer::NotLeased]);
        assert_eq!(counts(&queue).await, (0, 1, 1));
        let peeked = queue.peek(None, 10).await.expect("peeked");
        let phases: Vec<_> = peeked.iter().map(|one| (one.phase, one.due_ms.is_some())).collect();
        assert_eq!(phases, [(MessagePhase::Leased, true), (MessagePhase::Delayed, true)]);
        assert_eq!(queue.purge().await, Ok(2));
        assert_eq!(counts(&queue).await, (0, 0, 0));
        queue.delete().await.expect("deleted");
        let gone = queue.send(OutMessage::new("late")).await;
        assert_eq!(gone.map(drop).map_err(|error| error.kind), Err(ErrorKind::NotFound));
    }
}

/// Waits for messages without blocking others, even after a spurious wake-up of the last waiter, which has to continue
/// to wait instead of spinning.
#[tokio::test]
async fn a_receive_that_waits_holds_nothing_up_and_hears_of_a_message_at_once() {
    let server = Server::start();
    let queue = jobs(&server, NewQueue::new("jobs")).await;
    let wait = Receive { wait: Duration::from_secs(50), ..ten() };
    let waiting: Vec<_> = (0..20)
        .map(|_| {
            let queue = queue.clone();
            let wait = wait.clone();
            tokio::spawn(async move { queue.receive(&Receive { count_max: 1, ..wait }).await })
        })
        .collect();
    // On the same connection, after the requests that wait.
    for i in 0..20 {
        within("an answer", queue.send(OutMessage::new(i.to_string()))).await.expect("sent");
    }
    let mut all = Vec::new();
    for one in waiting {
        all.extend(bodies(&within("a message", one).await.expect("no panic").expect("received").messages));
    }
    all.sort_by_key(|body| body.parse::<u32>().expect("a number"));
    assert_eq!(all, (0..20).map(|i| i.to_string()).collect::<Vec<_>>());
}

/// Leases of a connection are released as soon as it closes, unless they are to outlive it.
#[tokio::test]
async fn leases_end_with_their_connection() {
    let server = Server::start();
    let queue = jobs(&server, NewQueue::new("jobs").with("lease_ms", "3600000")).await;
    queue.send_many(["a", "b", "c"].map(OutMessage::new).to_vec()).await;
    for scheme in ["tcp", "quic"] {
        let other = server.client(scheme).await;
        let theirs = receive(&other.queue("jobs"), Receive { count_max: 2, ..ten() }).await;
        let kept = receive(&other.queue("jobs"), Receive { outlives_connection: true, ..ten() }).await;
        assert_eq!((theirs.len(), kept.len()), (2, 1));
        other.close().await;
        until("what was leased to be back", async || counts(&queue).await == (2, 1, 0)).await;
        let back = queue.nack(&[(kept[0].receipt.clone(), Some(Duration::ZERO))]).await.expect("answered");
        assert_eq!(back, [LeaseAnswer::Done], "{scheme}");
    }
    // A receive that waits when its connection closes acquires nothing.
    let other = server.client("tcp").await;
    queue.purge().await.expect("purged");
    let waiting = other.queue("jobs");
    let waiting =
        tokio::spawn(async move { waiting.receive(&Receive { wait: Duration::from_secs(50), ..ten() }).await });
    until("the receive to wait", async || !other.list_queues("").await.expect("listed").is_empty()).await;
    other.close().await;
    within("the end of the receive", waiting).await.expect("no panic").expect_err("the connection is gone");
    queue.send(OutMessage::new("d")).await.expect("sent");
    assert_eq!(bodies(&receive(&queue, Receive { wait: Duration::from_secs(20), ..ten() }).await), ["d"]);
}

#[tokio::test]
async fn a_worker_extends_its_leases_and_reports_each_outcome() {
    let server = Server::start();
    let queue = jobs(&server, NewQueue::new("jobs").with("lease_ms", "1500")).await;
    queue.send_many((0..6).map(|i| OutMessage::new(i.to_string())).collect()).await;
    let seen = RefCell::new(Vec::new());
    let enough = Notify::new();
    let handle = async |received: client::ReceivedMessage| {
        let body = String::from_utf8_lossy(&received.message.body).into_owned();
        if body == "0" {
            // Longer than its lease, which is extended: no other receiver gets it in the meantime.
            tokio::time::sleep(Duration::from_secs(4)).await;
        }
        let is_first = received.message.attempts == 1;
        seen.borrow_mut().push((body.clone(), received.message.attempts));
        if seen.borrow().len() == 7 {
            enough.notify_one();
        }
        if body == "3" && is_first { Outcome::Return { delay: None } } else { Outcome::Done }
    };
    let worker = queue.worker().in_flight_max(3).run(handle, enough.notified());
    let report = within("the work", worker).await.expect("worked");
    assert_eq!((report.done, report.returned, report.lost), (6, 1, 0));
    let mut seen = seen.into_inner();
    seen.sort();
    let all: Vec<(String, u32)> =
        [("0", 1), ("1", 1), ("2", 1), ("3", 1), ("3", 2), ("4", 1), ("5", 1)].map(|(b, n)| (b.into(), n)).to_vec();
    assert_eq!(seen, all);
    assert_eq!(counts(&queue).await, (0, 0, 0));
}

/// A worker that stops receives no more messages immediately, although its running work may take longer.
#[tokio::test]
async fn messages_for_a_stopping_worker_return_immediately() {
    let server = Server::start();
    let queue = jobs(&server, NewQueue::new("jobs").with("lease_ms", "3600000")).await;
    queue.send(OutMessage::new("slow")).await.expect("sent");
    let begun = Notify::new();
    let may_end = Notify::new();
    let may_stop = Notify::new();
    let stopped = Notify::new();
    let handle = async |_| {
        begun.notify_one();
        may_end.notified().await;
        Ok::<(), String>(())
    };
    let stop = async {
        may_stop.notified().await;
        stopped.notify_one();
    };
    let working = queue.worker().in_flight_max(2).run(handle, stop);
    let late = async {
        begun.notified().await;
        may_stop.notify_one();
        stopped.notified().await;
        queue.send(OutMessage::new("late")).await.expect("sent");
        let wanted = Receive { wait: Duration::from_secs(20), ..ten() };
        let late = receive(&queue, wanted).await;
        may_end.notify_one();
        late
    };
    let both = Box::pin(async { tokio::join!(working, late) });
    let (report, late) = within("the end", both).await;
    assert_eq!(bodies(&late), ["late"]);
    let report = report.expect("worked");
    assert_eq!((report.done, report.returned, report.lost), (1, 0, 0));
}

#[tokio::test]
async fn a_receive_may_wait_for_ever() {
    let server = Server::start();
    let queue = jobs(&server, NewQueue::new("jobs")).await;
    queue.send(OutMessage::new("there")).await.expect("sent");
    let received = receive(&queue, Receive { wait: Duration::MAX, ..ten() }).await;
    assert_eq!(bodies(&received), ["there"]);
}

#[tokio::test]
async fn a_worker_outlives_a_restart_of_its_broker_and_nothing_is_lost() {
    let data = TempDir::new().expect("a folder");
    let mut server = Server::with(&[&format!("data={}", data.path().display())]);
    let queue = jobs(&server, NewQueue::new("jobs").with("lease_ms", "1000")).await;
    let sent = queue.send_many((0..50).map(|i| OutMessage::new(i.to_string())).collect()).await;
    assert!(sent.iter().all(Result::is_ok), "{sent:?}");
    let done = RefCell::new(std::collections::BTreeSet::new());
    let reached = Notify::new();
    let over = Notify::new();
    let handle = async |received: client::ReceivedMessage| {
        tokio::time::sleep(Duration::from_millis(2)).await;
        done.borrow_mut().insert(String::from_utf8_lossy(&received.message.body).into_owned());
        match done.borrow().len() {
            10 => reached.notify_one(),
            50 => over.notify_one(),
            _ => {}
        }
        Ok::<(), String>(())
    };
    let worker = queue.worker().in_flight_max(2).run(handle, over.notified());
    tokio::pin!(worker);
    tokio::select! {
        report = &mut worker => panic!("it ended: {report:?}"),
        () = within("the first messages", reached.notified()) => {}
    }
    server.crash_and_restart();
    let report = within("the work", worker).await.expect("worked");
    assert!(report.done >= 39, "{report:?}");
    let after = server.client("tcp").await.queue("jobs");
    until("every message to be done with", async || counts(&after).await.0 == 0).await;
}

#[tokio::test]
async fn dead_letters_are_moved_back() {
    let server = Server::start();
    let queue = jobs(&server, NewQueue::new("jobs").with("attempts_max", "1").with("dead_letter", "dead")).await;
    let client = server.client("tcp").await;
    client.create_queue(NewQueue::new("dead")).await.expect("created");
    let sent = queue.send(OutMessage::new("poison")).await.expect("sent");
    let first = receive(&queue, ten()).await;
    queue.nack(&[(first[0].receipt.clone(), None)]).await.expect("answered");
    assert!(receive(&queue, ten()).await.is_empty());
    until("the dead letter", async || counts(&client.queue("dead")).await == (1, 0, 0)).await;
    let moved = on(&server, ["--json", "queue", "redrive", "dead", "--wait"]).json();
    assert_eq!(json!([moved["state"], moved["moved"]]), json!(["completed", 1]));
    let again = receive(&queue, Receive { wait: Duration::from_secs(20), ..ten() }).await;
    assert_eq!((&again[0].message.id, bodies(&again)), (&sent.id, vec!["poison".to_owned()]));
    let listed = on(&server, ["--json", "queue", "redrive", "dead", "--list"]).json();
    assert_eq!(listed[0]["to_move"], 1);
    let over = on(&server, ["queue", "redrive", "dead", "--cancel", &listed[0]["redrive"].to_string()]);
    assert!(over.failed(USAGE).contains("only a move of messages that is running can be cancelled"));
}

#[test]
fn the_command_line_has_every_verb() {
    let server = Server::start();
    let told = on(&server, ["queue", "create", "jobs", "--lease", "90s", "--dead-letter", "none"]).ok();
    assert_eq!(told, "created queue jobs with its own topic\n");
    on(&server, ["queue", "create", "jobs", "--lease", "90s"]).ok();
    let other = on(&server, ["queue", "create", "jobs", "--lease", "91s"]).failed(FAILED);
    assert!(other.contains("queue jobs already exists with other settings: lease_ms is 90000, not 91000"), "{other}");

    assert_eq!(on(&server, ["queue", "send", "jobs", "one", "--delay", "0s"]).ok().len(), 37, "an id and a line's end");
    assert_eq!(feed(&server, ["--json", "queue", "send", "jobs"], "two\nthree\nfour").json()["sent"], 3);
    let stats = on(&server, ["--json", "queue", "stats", "jobs"]).json();
    assert_eq!(json!([stats["counts"]["visible"], stats["settings"]["lease_ms"]]), json!([4, 90_000]));
    let peeked = on(&server, ["queue", "peek", "jobs", "-n", "2"]).ok();
    assert!(peeked.lines().all(|line| line.contains("\twaiting\t0\t")) && peeked.lines().count() == 2, "{peeked}");

    let received = on(&server, ["queue", "receive", "jobs", "-n", "2"]).ok();
    let lines: Vec<(&str, &str)> = received.lines().map(|line| line.split_once('\t').expect("a receipt")).collect();
    assert_eq!((lines[0].1, lines[1].1), ("one", "two"));
    assert_eq!(on(&server, ["queue", "extend", "jobs", lines[0].0, "--lease", "5m"]).ok(), "extended 1 message\n");
    assert_eq!(on(&server, ["queue", "ack", "jobs", lines[0].0]).ok(), "acknowledged 1 message\n");
    assert_eq!(on(&server, ["queue", "nack", "jobs", lines[1].0, "--delay", "0s"]).ok(), "returned 1 message\n");
    let wrong = on(&server, ["queue", "ack", "jobs", "made-up"]).failed(FAILED);
    assert!(wrong.contains("1 of 1 receipts rejected: made-up: this is not a receipt of this queue"), "{wrong}");
    assert_eq!(on(&server, ["queue", "receive", "jobs", "-n", "9", "--ack"]).ok(), "two\nthree\nfour\n");
    assert_eq!(on(&server, ["queue", "receive", "jobs"]).ok(), "");
    // A lease with a duration of zero has expired for the next call, but not for the same one.
    on(&server, ["queue", "send", "jobs", "again"]).ok();
    for attempts in [1, 2] {
        let once = on(&server, ["--json", "queue", "receive", "jobs", "-n", "5", "--lease", "0s"]).json();
        assert_eq!((&once["body"], &once["attempts"]), (&"again".into(), &attempts.into()));
    }
    let peeked = on(&server, ["queue", "peek", "jobs"]).ok();
    assert!(peeked.contains("\twaiting\t2\t"), "{peeked}");
    assert_eq!(on(&server, ["queue", "receive", "jobs", "--ack"]).ok(), "again\n");

    on(&server, ["queue", "seek", "jobs", "--to", "latest"]).ok();
    let altered = on(&server, ["--json", "queue", "alter", "jobs", "--attempts-max", "3"]).json();
    assert_eq!(altered["settings"]["attempts_max"], 3);
    on(&server, ["queue", "send", "jobs", "five"]).ok();
    assert_eq!(on(&server, ["--json", "queue", "purge", "jobs"]).json()["purged"], 1);
    let listed = on(&server, ["queue", "list"]).ok();
    assert!(listed.lines().nth(1).expect("a row").starts_with(" jobs"), "{listed}");
    on(&server, ["queue", "delete", "jobs"]).ok();
    assert_eq!(on(&server, ["--json", "queue", "list"]).json(), json!([]));

    for (args, code, why) in [
        (&["queue", "stats", "jobs"][..], NOT_FOUND, "there is no queue jobs"),
        (&["queue", "create", "a/b"], USAGE, "queue name 'a/b'"),
        (&["queue", "create", "x", "--lease", "90"], USAGE, "write 500ms, 90s, 5m, 2h or 7d"),
        (&["queue", "create", "x", "--order", "random"], USAGE, "order is any, groups or fair, not 'random'"),
        (&["queue", "create", "x", "--topic", "absent"], NOT_FOUND, "absent"),
        (&["queue", "create", "x", "--filter", "nonsense"], USAGE, ""),
        (&["queue", "alter", "jobs"], USAGE, "name at least one setting to change"),
        (&["queue", "seek", "jobs", "--to", "7"], USAGE, "not to an offset"),
        (&["queue", "receive", "jobs", "-n", "0"], USAGE, "0 is not in 1..=1000"),
        (&["queue", "send", "jobs", "x", "--header", "y"], USAGE, "--header y: write NAME=VALUE"),
        (&["queue", "send", "jobs", "x", "--header", "thalweg.due=1"], USAGE, "header thalweg.due: "),
        (&["queue", "redrive", "jobs"], NOT_FOUND, "there is no queue jobs"),
    ] {
        if args == ["queue", "send", "jobs", "x", "--header", "thalweg.due=1"] {
            on(&server, ["queue", "create", "jobs"]).ok();
        }
        let told = on(&server, args.iter().copied()).failed(code);
        assert!(told.contains(why), "{args:?}: {told}");
        if args.contains(&"thalweg.due=1") {
            on(&server, ["queue", "delete", "jobs"]).ok();
        }
    }
}

/// Running `thalweg queue work`, the lines that its commands print, and its other output.
struct Working {
    child: Child,
    lines: Receiver<String>,
    notes: Receiver<String>,
}

/// Returns the lines of a pipe; the channel ends once all writers have closed it.
fn lines_of(pipe: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let pipe = BufReader::new(pipe.expect("a pipe"));
    let (sender, lines) = channel();
    std::thread::spawn(move || pipe.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    lines
}

impl Working {
    fn start(server: &Server, args: &[&str], script: &str) -> Self {
        let mut command = program();
        command.args(["--server", &server.url("tcp"), "queue", "work", "jobs"]).args(args);
        command.args(["--", "sh", "-c", script]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("started");
        let lines = lines_of(child.stdout.take());
        let notes = lines_of(child.stderr.take());
        Self { child, lines, notes }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("a line")
    }

    fn note(&self) -> String {
        self.notes.recv_timeout(PATIENCE).expect("a note")
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a process");
        kill_process(pid, signal).expect("signalled");
    }

    fn end(&mut self) -> Option<i32> {
        self.child.wait().expect("gone").code()
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        // It may already have ended.
        self.child.kill().unwrap_or_default();
        self.child.wait().map(drop).unwrap_or_default();
    }
}

#[test]
fn a_command_is_run_for_each_message_and_its_exit_code_counts() {
    let server = Server::start();
    on(&server, ["queue", "create", "jobs", "--backoff-min", "1h", "--backoff-max", "1h"]).ok();
    for (body, header) in [("0", "a=x"), ("75", "a=y"), ("1", "My-Name=z")] {
        on(&server, ["queue", "send", "jobs", body, "--group", "g", "--header", header]).ok();
    }
    let script = "code=$(cat); v=THALWEG_MESSAGE; env | grep -c ^${v}_ID= > /dev/null; \
                  echo \"$code $THALWEG_MESSAGE_QUEUE $THALWEG_MESSAGE_ATTEMPTS $THALWEG_MESSAGE_GROUP \
                  $THALWEG_MESSAGE_HEADER_A$THALWEG_MESSAGE_HEADER_MY_NAME\"; exit $code";
    let mut working = Working::start(&server, &["--retry-delay", "2h"], script);
    let mut lines = [working.line(), working.line(), working.line()];
    lines.sort();
    assert_eq!(lines, ["0 jobs 1 g x", "1 jobs 1 g z", "75 jobs 1 g y"]);
    working.signal(Signal::INT);
    let report = working.line();
    assert_eq!(report, "1 done, 2 returned, 0 lost");
    assert_eq!(working.end(), Some(0));
    let shown = on(&server, ["--json", "queue", "peek", "jobs"]).ok();
    let shown: Vec<Value> = shown.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let due = |at: usize| shown[at]["due_ms"].as_i64().expect("delayed");
    assert!((due(0) - due(1) - 3_600_000).abs() < 600_000, "75 waits as the worker says, 1 as the queue does");
}

#[test]
fn ctrl_c_finishes_running_work_and_a_killed_worker_releases_its_leases() {
    let server = Server::start();
    on(&server, ["queue", "create", "jobs", "--lease", "1h"]).ok();
    feed(&server, ["queue", "send", "jobs"], "slow\nsecond").ok();
    let gate = TempDir::new().expect("a folder");
    let script = format!("echo begun; while [ ! -e {}/open ]; do sleep 0.02; done; echo done", gate.path().display());
    let mut working = Working::start(&server, &[], &script);
    assert_eq!(working.line(), "begun");
    working.signal(Signal::INT);
    std::fs::write(gate.path().join("open"), "").expect("written");
    assert_eq!((working.line(), working.line()), ("done".into(), "1 done, 0 returned, 0 lost".into()));
    assert_eq!(working.end(), Some(0));

    std::fs::remove_file(gate.path().join("open")).expect("removed");
    let working = Working::start(&server, &[], &script);
    assert_eq!(working.line(), "begun");
    working.signal(Signal::KILL);
    let got = on(&server, ["queue", "receive", "jobs", "--wait", "20s", "--ack"]).ok();
    assert_eq!(got, "second\n", "its lease of an hour went with it");
    std::fs::write(gate.path().join("open"), "").expect("written, so that the command that is left ends");

    feed(&server, ["queue", "send", "jobs"], "x").ok();
    let mut command = program();
    command.args(["--server", &server.url("tcp"), "queue", "work", "jobs", "--", "/nowhere/to/be/found"]);
    let failed = run(command.stdout(Stdio::piped()).stderr(Stdio::piped()), b"").failed(FAILED);
    assert!(failed.contains("cannot run /nowhere/to/be/found: "), "{failed}");
}

/// Linux refuses variables of 128 KiB or with a zero byte, and limits their total size.
#[tokio::test]
async fn values_that_a_variable_cannot_hold_are_omitted_and_the_command_runs() {
    let server = Server::start();
    let queue = jobs(&server, NewQueue::new("jobs")).await;
    let long = vec![b'x'; 128 << 10];
    let whole = vec![b'x'; 100 << 10];
    let mut many = OutMessage::new("many").with_header("a", "b");
    for i in 0..30 {
        many = many.with_header(format!("h{i}"), whole.clone());
    }
    let sent = queue.send_moved(vec![
        OutMessage::new("group").with_group(long.clone()),
        OutMessage::new("header").with_header("a", long).with_header("b", whole),
        OutMessage::new("source").with_header("thalweg.source", &b"a\0b"[..]),
        many,
    ]);
    for one in sent.await {
        one.expect("taken");
    }
    let script = "v=THALWEG_MESSAGE; echo $(cat) ${THALWEG_MESSAGE_SOURCE-none} ${#THALWEG_MESSAGE_GROUP} \
                  ${#THALWEG_MESSAGE_HEADER_A} ${#THALWEG_MESSAGE_HEADER_B} $(env | grep -c ^${v}_HEADER_H)";
    let mut working = Working::start(&server, &[], script);
    let lines = [working.line(), working.line(), working.line(), working.line()];
    assert_eq!(lines, ["group none 0 0 0 0", "header none 0 0 102400 0", "source none 0 0 0 0", "many none 0 1 0 10"]);
    working.signal(Signal::INT);
    assert_eq!((working.line(), working.end()), ("4 done, 0 returned, 0 lost".into(), Some(0)));
}

#[test]
fn a_command_that_cannot_be_run_for_one_message_is_run_for_the_next() {
    let server = Server::start();
    on(&server, ["queue", "create", "jobs", "--backoff-min", "1h", "--backoff-max", "1h"]).ok();
    let mut working = Working::start(&server, &[], "cat; echo");
    let send = |body: &str| drop(on(&server, ["queue", "send", "jobs", body]).ok());
    send("first");
    assert_eq!(working.line(), "first");
    // In the meantime no file can be opened, and no command can have an input.
    let worker = Pid::from_raw(working.child.id() as i32);
    let before = prlimit(worker, Resource::Nofile, Rlimit { current: Some(1), ..getrlimit(Resource::Nofile) });
    send("second");
    let told = working.note();
    assert!(told.contains(" returns to the queue: cannot run sh: "), "{told}");
    prlimit(worker, Resource::Nofile, before.expect("limited")).expect("as before");
    send("third");
    assert_eq!(working.line(), "third");
    working.signal(Signal::INT);
    assert_eq!((working.line(), working.end()), ("2 done, 1 returned, 0 lost".into(), Some(0)));
}

#[test]
fn ctrl_c_twice_ends_all_that_a_command_has_begun() {
    let server = Server::start();
    on(&server, ["queue", "create", "jobs"]).ok();
    on(&server, ["queue", "send", "jobs", "x"]).ok();
    let mut working = Working::start(&server, &[], "sleep 600 & echo begun; wait");
    assert_eq!(working.line(), "begun");
    working.signal(Signal::INT);
    assert!(working.note().contains("press Ctrl-C again to stop them now"));
    working.signal(Signal::INT);
    assert_eq!(working.end(), Some(FAILED));
    let end = working.lines.recv_timeout(PATIENCE);
    assert_eq!(end, Err(RecvTimeoutError::Disconnected), "what was begun in the background has its end of the pipe");
}

#[test]
fn a_command_has_ended_when_it_has_though_its_input_is_held_open() {
    let server = Server::start();
    on(&server, ["queue", "create", "jobs"]).ok();
    feed(&server, ["queue", "send", "jobs"], &"x".repeat(1 << 20)).ok();
    let script = "exec 3<&0; sleep 600 <&3 >/dev/null 2>&1 & echo $!";
    let mut working = Working::start(&server, &[], script);
    let left = Pid::from_raw(working.line().parse().expect("a number")).expect("a process");
    working.signal(Signal::INT);
    assert_eq!((working.line(), working.end()), ("1 done, 0 returned, 0 lost".into(), Some(0)));
    kill_process(left, Signal::KILL).expect("it outlives its command");
}

/// Ids, attempts, delays, groups and headers are preserved, and so are bytes that are not UTF-8.
#[tokio::test]
async fn a_queue_moves_between_brokers_and_kinds_of_storage() {
    let source = Server::start();
    let data = TempDir::new().expect("a folder");
    let target = Server::with(&[&format!("data={}", data.path().display())]);
    let new = NewQueue::new("jobs").with("order", "groups").with("dedup", "queue").with("delay_ms", "0");
    let queue = jobs(&source, new).await;
    let delayed = OutMessage::new("later").with_delay(Duration::from_secs(3600));
    let rich = OutMessage::new(vec![0, 0xff]).with_group("g").with_dedup("d").with_header("a", "b");
    for sent in queue.send_many(vec![OutMessage::new("tried"), rich, delayed]).await {
        sent.expect("taken");
    }
    let tried = receive(&queue, Receive { count_max: 1, ..ten() }).await;
    queue.nack(&[(tried[0].receipt.clone(), Some(Duration::ZERO))]).await.expect("answered");
    let tried = receive(&queue, Receive { count_max: 1, ..ten() }).await;
    assert_eq!((bodies(&tried), tried[0].message.attempts), (vec!["tried".to_owned()], 2));

    let exported = on(&source, ["queue", "export", "jobs"]).ok();
    assert_eq!(exported.lines().count(), 4, "{exported}");
    let imported = feed(&target, ["--json", "queue", "import", "--name", "moved", "--storage", "disk"], &exported);
    assert_eq!(imported.json(), json!({ "queue": "moved", "imported": 3 }));
    let again = on(&target, ["queue", "export", "moved"]).ok();
    let messages = |text: &str| text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
    let due = |text: &str| {
        let last: Value = serde_json::from_str(text.lines().last().expect("a line")).expect("JSON");
        last["due_ms"].as_u64().expect("delayed")
    };
    assert!(due(&again).abs_diff(due(&exported)) < 60_000, "it is due when it was");
    assert_eq!(messages(&again)[..2], messages(&exported)[..2]);
    let first: Value = serde_json::from_str(exported.lines().next().expect("a line")).expect("JSON");
    let second: Value = serde_json::from_str(again.lines().next().expect("a line")).expect("JSON");
    assert_eq!(first["settings"], second["settings"]);
    // From there the messages are imported into all kinds of storage.
    for storage in ["sqlite", "memory"] {
        let imported = feed(&target, ["--json", "queue", "import", "--name", storage, "--storage", storage], &again);
        assert_eq!(imported.json(), json!({ "queue": storage, "imported": 3 }));
        let onwards = on(&target, ["queue", "export", storage]).ok();
        assert_eq!(messages(&onwards)[..2], messages(&again)[..2], "{storage}");
        assert!(due(&onwards).abs_diff(due(&again)) < 60_000, "{storage}");
    }

    let moved = target.client("tcp").await.queue("moved");
    let got = receive(&moved, ten()).await;
    let ids = |messages: &[client::ReceivedMessage]| messages.iter().map(|m| m.message.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&got)[0], ids(&tried)[0]);
    let attempts: Vec<u32> = got.iter().map(|one| one.message.attempts).collect();
    assert_eq!(attempts, [3, 1], "the two tries of before count");
    assert_eq!(got[1].message.sender_headers().count(), 1, "what tells of the move is the broker's own");

    for (input, why) in [
        ("", "line 1: the input is empty"),
        ("{}", "line 1: missing field `thalweg_queue`"),
        (&exported.replace("\"thalweg_queue\":1", "\"thalweg_queue\":2"), "line 1: version 2 of this format"),
        (&exported.replace("\"base64\"", "\"hex\""), "line 3: the encoding is utf8 or base64, not 'hex'"),
        (&format!("{}\nnonsense", exported.lines().next().expect("a line")), "line 2: this is not JSON (column 2)"),
    ] {
        let told = feed(&target, ["queue", "import", "--name", "wrong"], input).failed(FAILED);
        assert!(told.contains(why), "{told}");
    }
}

/// Returns the output of a broker that refuses to start with this configuration.
fn refused_start(text: &str, set: &[&str]) -> Done {
    let mut file = NamedTempFile::new().expect("a file");
    file.write_all(text.as_bytes()).expect("written");
    let mut command = program();
    command.arg("--config").arg(file.path());
    command.args(["serve", "--native", "127.0.0.1:0", "--http", "off", "--kafka", "off", "--set", "sqs=off"]);
    for pair in set {
        command.args(["--set", pair]);
    }
    run(command.stdout(Stdio::piped()).stderr(Stdio::piped()), b"")
}

const DEFINED: &str = r#"
[[topics]]
name = "orders"
partitions = 2
mesh = "live"
[[queues]]
name = "jobs"
lease_ms = 60_000
attempts_max = 3
dead_letter = "jobs.dead"
[[queues]]
name = "jobs.dead"
retention_ms = 86_400_000
[[queues]]
name = "billing"
topic = "orders"
"#;

#[tokio::test]
async fn configured_queues_and_topics_exist_from_startup() {
    let data = TempDir::new().expect("a folder");
    let set = format!("data={}", data.path().display());
    let mut server = Server::with_file(DEFINED, &[&set]);
    let look = async |server: &Server| {
        let client: Client = connect(&server.url("tcp"), client::ClientSettings::default()).await;
        let queues = client.list_queues("").await.expect("listed");
        let topics: Vec<_> = queues.iter().map(|info| (info.queue.clone(), info.topic.clone())).collect();
        let expected = [("billing", "orders"), ("jobs", "jobs"), ("jobs.dead", "jobs.dead")];
        assert_eq!(topics, expected.map(|(queue, topic)| (queue.to_owned(), topic.to_owned())));
        client
    };
    let client = look(&server).await;
    let orders = client.describe_topic("orders").await.expect("there");
    assert_eq!((orders.partitions.len(), orders.settings.mesh), (2, client::MeshMode::Live));
    assert_eq!(client.describe_topic("jobs").await.expect("there").settings.mesh, client::MeshMode::Off);
    client.queue("jobs").send(OutMessage::new("kept")).await.expect("sent");
    let oldest_ms = async |client: &Client| {
        let queues = client.list_queues("").await.expect("listed");
        let jobs = queues.iter().find(|info| info.queue == "jobs").expect("there");
        jobs.counts.as_ref().expect("its topic exists").oldest_ms
    };
    let sent_ms = oldest_ms(&client).await;
    assert!(sent_ms.is_some());
    // Restarted with the current data.
    server.crash_and_restart();
    let client = look(&server).await;
    assert_eq!(counts(&client.queue("jobs")).await, (1, 0, 0));
    // It is read from the file, and known from then on.
    assert_eq!([oldest_ms(&client).await, oldest_ms(&client).await], [sent_ms; 2]);
    server.crash();

    for (was, is, why) in [
        (
            "lease_ms = 60_000",
            "lease_ms = 1",
            "[[queues]] jobs: it already exists with other settings: lease_ms is 60000, not 1;",
        ),
        (
            "partitions = 2",
            "partitions = 3",
            "[[topics]] orders: it already exists with other settings: partitions is 2, not 3;",
        ),
        (
            "mesh = \"live\"",
            "mesh = \"off\"",
            "[[topics]] orders: it already exists with other settings: mesh is live, not off;",
        ),
        (
            "topic = \"orders\"",
            "topic = \"absent\"",
            "[[queues]] billing: topic: there is no topic absent, and the file defines none",
        ),
        (
            "dead_letter = \"jobs.dead\"",
            "dead_letter = \"lost\"",
            "[[queues]] jobs: dead_letter: there is no topic lost",
        ),
    ] {
        let told = refused_start(&DEFINED.replace(was, is), &[&set]).failed(FAILED);
        assert!(told.contains(why), "{told}");
    }
    let told = refused_start(&DEFINED.replace("lease_ms", "lease"), &[]).failed(USAGE);
    assert!(told.contains("[[queues]] jobs: a queue has no setting 'lease'"), "{told}");
}
