//! The command line on a terminal: its questions, and its messages during a wait.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::support::command::{feed, on};
use crate::support::server::{PATIENCE, Server, program};

/// Program with a separate terminal.
pub(super) struct Terminal {
    child: Child,
    keyboard: File,
    screen: Receiver<String>,
    shown: String,
}

impl Terminal {
    fn run(server: &Server, args: &[&str]) -> Self {
        Self::open(program().args(["--server", &server.url("tcp")]).args(args))
    }

    /// Runs a command on a new terminal.
    pub(super) fn open(command: &mut Command) -> Self {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&controller).and_then(|()| unlockpt(&controller)).expect("for this user");
        let name = ptsname(&controller, Vec::new()).expect("a name").into_string().expect("a path");
        let open = || File::options().read(true).write(true).open(&name).expect("the other end");
        let child = command
            .stdin(Stdio::from(open()))
            .stdout(Stdio::from(open()))
            .stderr(Stdio::from(open()))
            .spawn()
            .expect("started");
        let keyboard = File::from(controller);
        let mut output = keyboard.try_clone().expect("another handle");
        let (sender, screen) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // It fails once the program has ended.
            while let Ok(n @ 1..) = output.read(&mut bytes) {
                if sender.send(String::from_utf8_lossy(&bytes[..n]).into_owned()).is_err() {
                    return;
                }
            }
        });
        Self { child, keyboard, screen, shown: String::new() }
    }

    /// Waits until this text is on the screen.
    pub(super) fn shows(&mut self, expected: &str) {
        let begin = Instant::now();
        while !self.shown.contains(expected) {
            let left = PATIENCE.saturating_sub(begin.elapsed());
            match self.screen.recv_timeout(left) {
                Ok(more) => self.shown += &more,
                Err(error) => panic!("no '{expected}' ({error}) in {:?}", self.shown),
            }
        }
    }

    pub(super) fn types(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).expect("typed");
    }

    pub(super) fn ends(mut self, code: i32) -> String {
        let begin = Instant::now();
        let status = loop {
            match self.child.try_wait().expect("its status") {
                Some(status) => break status,
                None if begin.elapsed() > PATIENCE => panic!("it does not end: {:?}", self.shown),
                // Its remaining output has to be read.
                None => self.shown.extend(self.screen.recv_timeout(std::time::Duration::from_millis(10))),
            }
        };
        self.shown.extend(self.screen.iter());
        assert_eq!(status.code(), Some(code), "{:?}", self.shown);
        std::mem::take(&mut self.shown)
    }

    fn interrupt(&self) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a process");
        kill_process(pid, Signal::INT).expect("signalled");
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It has usually ended.
        self.child.kill().unwrap_or_default();
        self.child.wait().map(drop).unwrap_or_default();
    }
}

/// On a terminal a deletion requires a confirmation, and only y continues. With `--yes` and in scripts there is no
/// question.
#[test]
fn deletions_ask_on_a_terminal() {
    let server = Server::start();
    on(&server, ["topic", "create", "orders"]).ok();
    on(&server, ["queue", "create", "jobs"]).ok();
    on(&server, ["cache", "put", "c", "k", "v"]).ok();
    for (args, question) in [
        (&["topic", "delete", "orders"][..], "Delete topic orders with all its records? [y/N]"),
        (
            &["topic", "delete-records", "orders", "--before", "end"],
            "Delete all records of partition 0 of topic orders?",
        ),
        (&["queue", "purge", "jobs"], "Delete all messages of queue jobs?"),
        (&["queue", "rm", "jobs"], "Delete queue jobs with its messages?"),
        (&["cache", "flush", "c"], "Delete all entries of cache c?"),
        (&["cache", "delete", "c"], "Delete cache c with all its entries?"),
    ] {
        let mut terminal = Terminal::run(&server, args);
        terminal.shows(question);
        terminal.types("\n");
        assert!(terminal.ends(1).contains("nothing was changed"), "{args:?}");
    }
    assert_eq!(on(&server, ["cache", "get", "c", "k"]).ok(), "v\n");
    on(&server, ["queue", "stats", "jobs"]).ok();
    let mut terminal = Terminal::run(&server, &["topic", "delete", "orders"]);
    terminal.shows("[y/N]");
    terminal.types("y\n");
    assert!(terminal.ends(0).contains("deleted topic orders"));
    assert!(Terminal::run(&server, &["cache", "delete", "c", "--yes"]).ends(0).contains("deleted cache c"));
    on(&server, ["queue", "delete", "jobs"]).ok();
}

/// A new password is not shown, so it is typed twice.
#[test]
fn a_new_password_is_typed_twice() {
    let server = Server::with(&["auth=required"]);
    for (again, code, shown) in [("pencl", 1, "the two passwords differ"), ("pencil", 0, "password set for user ann")] {
        let mut terminal = Terminal::run(&server, &["user", "add", "ann"]);
        terminal.shows("password of ann: ");
        terminal.types("pencil\r");
        terminal.shows("again: ");
        terminal.types(&format!("{again}\r"));
        let screen = terminal.ends(code);
        assert!(screen.contains(shown) && !screen.contains("penc"), "{screen}");
        assert_eq!(on(&server, ["user", "list"]).ok().contains("ann"), code == 0);
    }
}

/// A terminal shows the reason for a wait; a script does not.
#[test]
fn a_terminal_shows_the_reason_for_a_wait() {
    let mut server = Server::start();
    on(&server, ["queue", "create", "jobs"]).ok();
    let mut terminal = Terminal::run(&server, &["publish", "orders"]);
    terminal.shows("reading records from the terminal, one per line; Ctrl-D ends");
    terminal.types("one\ntwo\n\u{4}");
    assert!(terminal.ends(0).contains("published 2 records to orders"));
    assert!(Terminal::run(&server, &["publish", "orders", "x"]).ends(0).contains("published 1 record to orders"));
    let mut terminal = Terminal::run(&server, &["queue", "send", "jobs"]);
    terminal.shows("Ctrl-D ends");
    terminal.types("one\n\u{4}");
    assert!(terminal.ends(0).contains("sent 1 message to jobs"));
    assert!(Terminal::run(&server, &["queue", "receive", "jobs", "--ack"]).ends(0).contains("one"));
    assert!(Terminal::run(&server, &["queue", "receive", "jobs"]).ends(0).contains("queue jobs has no message"));
    let mut terminal = Terminal::run(&server, &["queue", "receive", "jobs", "--wait", "20s"]);
    terminal.shows("waiting up to 20s for a message of queue jobs");
    terminal.interrupt();

    let mut terminal = Terminal::run(&server, &["subscribe", "orders", "--consumer-group", "billing"]);
    terminal.shows("subscribed to orders in consumer group billing at tcp://");
    terminal.interrupt();

    let mut terminal = Terminal::run(&server, &["subscribe", "orders"]);
    terminal.shows("subscribed to orders (1 partition) at tcp://");
    server.crash();
    terminal.shows("lost the connection to tcp://");
    server.start_again();
    terminal.shows("connected to tcp://");
    terminal.interrupt();

    let done = feed(&server, ["publish", "orders"], "x\n");
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "a script is told nothing");
}

/// Records of a pattern are shown with their topics: in columns on a terminal, otherwise before a tab.
#[test]
fn records_of_a_pattern_have_their_topics() {
    let server = Server::start();
    on(&server, ["publish", "orders.eu", "one"]).ok();
    on(&server, ["publish", "orders.us", "two"]).ok();
    let all = ["subscribe", "orders.>", "--from", "earliest", "--end"];
    let screen = Terminal::run(&server, &all).ends(0);
    assert!(screen.contains("TOPIC") && screen.contains("orders.us"), "{screen}");
    let mut lines: Vec<String> = on(&server, all).ok().lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["orders.eu\tone", "orders.us\ttwo"]);
    let mut values: Vec<String> =
        on(&server, all.into_iter().chain(["-O", "text"])).ok().lines().map(str::to_owned).collect();
    values.sort();
    assert_eq!(values, ["one", "two"]);
}

/// `top` has a list of each kind of resource, and a key for each list.
#[test]
fn top_lists_each_kind_of_resource() {
    let server = Server::start();
    on(&server, ["publish", "orders", "x"]).ok();
    on(&server, ["queue", "create", "jobs"]).ok();
    on(&server, ["cache", "put", "sessions", "k", "v"]).ok();
    on(&server, ["subscribe", "orders", "--consumer-group", "billing", "--end"]).ok();
    let looks = on(&server, ["--json", "top", "--plain", "1", "--interval-ms", "100"]).json();
    let items = &looks["items"];
    assert_eq!((&items["queues"][0]["queue"], &items["caches"][0]["cache"]), (&"jobs".into(), &"sessions".into()));
    assert_eq!((&items["groups"][0]["group"], &items["groups"][0]["lag"]), (&"billing".into(), &0.into()));
    let has = |kind: &str, key: &str, name: &str| {
        items[kind].as_array().expect("a list").iter().any(|item| item[key] == name)
    };
    assert!(has("topics", "topic", "orders") && has("doors", "door", "native"), "{items}");
    assert!(!has("topics", "topic", "_offsets"), "{items}");
}
