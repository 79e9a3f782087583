//! Consumer groups on the command line: members that share partitions, are killed and return, and commands for groups.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::command::{Done, feed, on};
use crate::support::server::{Launch, PATIENCE, Server, program};

const USAGE: i32 = 2;
const NOT_FOUND: i32 = 4;

/// Running member, and the lines that it prints.
struct Member {
    child: Child,
    lines: Receiver<String>,
}

impl Member {
    fn start(server: &Server, more: &[&str]) -> Self {
        let mut command = program();
        command.args(["--server", &server.url("tcp"), "subscribe", "t", "--consumer-group", "g"]).args(more);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("started");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, lines) = channel();
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { child, lines }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a process");
        kill_process(pid, signal).expect("signalled");
    }

    /// Ends the member, and returns its output that was not read yet.
    fn end(mut self, signal: Signal) -> Vec<String> {
        self.signal(signal);
        let status = self.child.wait().expect("gone");
        assert!(signal == Signal::KILL || status.success(), "{status:?}");
        self.lines.iter().collect()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // It may already have ended.
        self.child.kill().unwrap_or_default();
        self.child.wait().map(drop).unwrap_or_default();
    }
}

fn group(server: &Server) -> Value {
    on(server, ["--json", "group", "describe", "g"]).json()
}

/// A member ends if its topic is deleted, as a subscription does.
#[test]
fn a_member_ends_when_its_topic_is_deleted() {
    let server = Server::start();
    on(&server, ["topic", "create", "t"]).ok();
    let mut command = program();
    command.args(["--server", &server.url("tcp"), "subscribe", "t", "--consumer-group", "g"]);
    let member = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("started");
    until_shared(&server, 1);
    on(&server, ["topic", "delete", "t", "--yes"]).ok();
    let ended = member.wait_with_output().expect("ended");
    assert_eq!(ended.status.code(), Some(NOT_FOUND));
    assert!(String::from_utf8_lossy(&ended.stderr).contains("topic t was deleted"), "{ended:?}");
}

/// Waits until the group has `members` members, all with an assignment.
fn until_shared(server: &Server, members: usize) -> Value {
    until(|| {
        let done = on(server, ["--json", "group", "describe", "g"]);
        // The group may not have members yet.
        let group = (done.code == Some(0)).then(|| done.json())?;
        let is_shared = group["state"] == "stable" && group["members"].as_array().map(Vec::len) == Some(members);
        is_shared.then_some(group)
    })
}

fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Reads lines of these members until each of the values was printed by one of them.
fn read_all(members: &[&Member], values: impl IntoIterator<Item = u64>) {
    let mut missing: BTreeSet<String> = values.into_iter().map(|value| value.to_string()).collect();
    until(|| {
        for line in members.iter().flat_map(|member| member.lines.try_iter()) {
            missing.remove(&line);
        }
        missing.is_empty().then_some(())
    });
}

fn publish(server: &Server, values: std::ops::Range<u64>) {
    // One after the other, so that every partition gets some.
    for value in values {
        on(server, ["publish", "t", &value.to_string(), "--partition", &(value % 4).to_string()]).ok();
    }
}

/// Two members share a topic. If one is killed, the other gets its partitions within the session timeout, and no
/// published record is missing. A member that is stopped leaves immediately.
#[test]
fn a_member_that_is_killed_is_replaced() {
    let server = Server::start();
    on(&server, ["topic", "create", "t", "--partitions", "4"]).ok();
    let first = Member::start(&server, &["--session-timeout-ms", "500"]);
    until_shared(&server, 1);
    let second = Member::start(&server, &[]);
    until_shared(&server, 2);
    publish(&server, 0..12);
    read_all(&[&first, &second], 0..12);
    first.end(Signal::KILL);
    publish(&server, 12..24);
    read_all(&[&second], 12..24);
    let third = Member::start(&server, &[]);
    until_shared(&server, 2);
    assert_eq!(second.end(Signal::TERM), [""; 0], "nothing came twice");
    // The other gets everything without waiting for the timeout of 30 s.
    until_shared(&server, 1);
    publish(&server, 24..28);
    read_all(&[&third], 24..28);
    third.end(Signal::INT);
    let ended = group(&server);
    assert_eq!((&ended["state"], &ended["lag"]), (&json!("empty"), &json!(0)), "{ended}");
}

/// A static member that is killed or stopped, and started again, keeps its partitions, and other members are not
/// notified.
#[test]
fn a_static_member_keeps_its_partitions() {
    let server = Server::start();
    on(&server, ["topic", "create", "t", "--partitions", "4"]).ok();
    let fixed = || Member::start(&server, &["--instance-id", "one"]);
    let mut one = fixed();
    let _other = Member::start(&server, &[]);
    let before = until_shared(&server, 2);
    let shares = |group: &Value| -> BTreeMap<String, Vec<u64>> {
        let name = |id: &Value| {
            let members = group["members"].as_array().expect("members");
            let member = members.iter().find(|member| member["member"] == *id).expect("a member");
            member["instance"].as_str().unwrap_or("other").to_owned()
        };
        let mut shares: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for partition in group["partitions"].as_array().expect("partitions") {
            let number = partition["partition"].as_u64().expect("a number");
            shares.entry(name(&partition["member"])).or_default().push(number);
        }
        shares
    };
    assert_eq!(shares(&before).values().map(Vec::len).collect::<Vec<_>>(), [2, 2]);
    for signal in [Signal::KILL, Signal::TERM] {
        let id = |group: &Value| {
            let members = group["members"].as_array().expect("members").iter();
            members.filter(|member| member["instance"] == "one").map(|m| m["member"].clone()).collect::<Vec<_>>()
        };
        let old = id(&group(&server));
        one.end(signal);
        one = fixed();
        let now = until(|| Some(group(&server)).filter(|group| id(group) != old && group["state"] == "stable"));
        assert_eq!(shares(&now), shares(&before));
        assert_eq!(now["epoch"], before["epoch"], "the group was not rebalanced");
    }
}

/// Printed records are committed, and the group continues after them: across commands, and across a crash of the
/// broker.
#[test]
fn a_group_goes_on_where_it_was() {
    let data = tempfile::tempdir().expect("a folder");
    let set = vec![format!("data={}", data.path().display())];
    let mut server = Server::launch(Launch { set, ..Launch::default() });
    feed(&server, ["publish", "t"], &(0..10).map(|i| format!("{i}\n")).collect::<String>()).ok();
    let read = |server: &Server, more: &[&str]| -> Done {
        on(server, ["subscribe", "t", "--consumer-group", "g"].into_iter().chain(more.iter().copied()))
    };
    assert_eq!(read(&server, &["-n", "3"]).ok(), "0\n1\n2\n", "from the oldest");
    assert_eq!(read(&server, &["--end=5"]).ok(), "3\n4\n");
    assert_eq!(read(&server, &["--end=5"]).ok(), "", "it is there already");
    server.crash_and_restart();
    assert_eq!(read(&server, &["-n", "1", "--from", "0"]).ok(), "5\n", "what is committed counts more");
    assert_eq!(read(&server, &["--end"]).ok(), "6\n7\n8\n9\n");
    assert_eq!(read(&server, &["--end"]).ok(), "");
    let latest = ["subscribe", "t", "--consumer-group", "new", "--offset", "latest", "--end"];
    assert_eq!(on(&server, latest).ok(), "");
    let bounds = ["subscribe", "t", "--offset", "2", "--end=4"];
    assert_eq!(on(&server, bounds).ok(), "2\n3\n", "without a group, too");
    for wrong in [&["--group", "q"][..], &["--partition", "0"], &["--overflow", "block"], &["--end=soon"]] {
        read(&server, wrong).failed(USAGE);
    }
    on(&server, ["subscribe", "t", "--instance-id", "one"]).failed(USAGE);
}

/// Groups are listed, described, reset and deleted, with output for people and for programs.
#[test]
fn group_commands() {
    let server = Server::start();
    assert!(on(&server, ["group", "list"]).ok().contains("no consumer groups yet"));
    assert_eq!(on(&server, ["--json", "group", "list"]).json(), json!([]));
    for missing in [&["group", "describe", "g"][..], &["group", "delete", "g"]] {
        assert!(on(&server, missing.iter().copied()).failed(NOT_FOUND).contains("'g'"));
    }
    on(&server, ["topic", "create", "t", "--partitions", "2"]).ok();
    feed(&server, ["publish", "t", "--partition", "0"], "a\nb\nc\n").ok();
    feed(&server, ["publish", "t", "--partition", "1"], "d\n").ok();
    on(&server, ["subscribe", "t", "--consumer-group", "g", "--end"]).ok();
    feed(&server, ["publish", "t", "--partition", "0"], "e\nf\n").ok();
    let words = |text: &str| -> Vec<Vec<String>> {
        text.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
    };
    let list = words(&on(&server, ["group", "list"]).ok());
    assert_eq!(list, [["GROUP", "STATE", "MEMBERS", "OFFSETS", "LAG"], ["g", "empty", "0", "2", "2"]]);
    let listed = on(&server, ["--json", "group", "list"]).json();
    assert_eq!(listed, json!([{ "group": "g", "state": "empty", "members": 0, "offsets": 2, "lag": 2 }]));
    let described = on(&server, ["group", "describe", "g"]).ok();
    for line in [["t", "0", "3", "0", "5", "2", "-"], ["t", "1", "1", "0", "1", "0", "-"]] {
        assert!(words(&described).iter().any(|words| *words == line), "{line:?} in\n{described}");
    }
    let json = group(&server);
    assert_eq!((&json["lag"], &json["partitions"][0]["committed"]), (&json!(2), &json!(3)), "{json}");

    let reset = |more: &[&str]| {
        on(&server, ["--json", "group", "reset", "g", "--topic", "t"].into_iter().chain(more.iter().copied()))
    };
    let offsets = |told: &Value| -> Vec<Value> {
        told["partitions"].as_array().expect("rows").iter().map(|row| row["to"].clone()).collect()
    };
    let dry = reset(&["--to", "earliest", "--dry-run"]).json();
    let row = |partition: u32, from: u64, to: u64| json!({ "partition": partition, "from": from, "to": to });
    let expected = json!({ "group": "g", "topic": "t", "dry_run": true, "partitions": [row(0, 3, 0), row(1, 1, 0)] });
    assert_eq!(dry, expected);
    assert_eq!(group(&server), json, "a dry run changes nothing");
    for (to, expected) in [
        ("latest", [json!(5), json!(1)]),
        ("2", [json!(2), json!(1)]),
        ("@-5m", [json!(0), json!(0)]),
        ("@2999-01-01", [json!(5), json!(1)]),
        ("none", [Value::Null, Value::Null]),
    ] {
        assert_eq!(offsets(&reset(&["--to", to]).json()), expected, "{to}");
        let now: Vec<Value> = on(&server, ["--json", "group", "describe", "g"]).json()["partitions"]
            .as_array()
            .expect("partitions")
            .iter()
            .map(|partition| partition["committed"].clone())
            .collect();
        assert_eq!(now, if to == "none" { vec![] } else { expected.to_vec() }, "{to}");
    }
    let one = on(&server, ["group", "reset", "g", "--topic", "t", "--partition", "0", "--to", "4"]).ok();
    assert!(words(&one).iter().any(|words| *words == ["0", "-", "4"]), "{one}");
    assert_eq!(on(&server, ["subscribe", "t", "--consumer-group", "g", "--end", "-p", "0"]).code, Some(USAGE));
    let mut rest: Vec<String> =
        on(&server, ["subscribe", "t", "--consumer-group", "g", "--end"]).ok().lines().map(str::to_owned).collect();
    rest.sort();
    assert_eq!(rest, ["d", "f"], "from where it was set, and from the oldest where nothing is committed");
    reset(&["--to", "soon"]).failed(USAGE);
    reset(&["--to", "0", "--partition", "7"]).failed(NOT_FOUND);
    on(&server, ["group", "reset", "g", "--topic", "nowhere", "--to", "0"]).failed(NOT_FOUND);

    let member = Member::start(&server, &[]);
    until_shared(&server, 1);
    assert!(reset(&["--to", "0"]).failed(1).contains("members (1)"));
    on(&server, ["group", "delete", "g"]).failed(1);
    member.end(Signal::TERM);
    assert!(on(&server, ["group", "delete", "g"]).ok().contains("deleted"));
    on(&server, ["group", "describe", "g"]).failed(NOT_FOUND);
    on(&server, ["group", "reset", "g", "--topic", "t", "--to", "none"]).failed(NOT_FOUND);
    // A nonexistent group is created, so that it starts at the given position.
    on(&server, ["group", "reset", "g", "--topic", "t", "--to", "latest"]).ok();
    assert_eq!(on(&server, ["subscribe", "t", "--consumer-group", "g", "--end"]).ok(), "");
    assert_eq!(on(&server, ["--json", "group", "delete", "g"]).json(), json!({ "deleted": "g" }));
}
