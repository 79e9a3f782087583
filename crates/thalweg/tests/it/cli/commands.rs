//! Command line: its input, its output and its exit codes.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use client::{Client, Codec, Event, RecordBatch, Start};
use serde_json::json;

use crate::support::command::{Done, feed, on, run, thalweg};
use crate::support::reading::{next_event, subscribe};
use crate::support::server::{PATIENCE, Server, program};

/// Exit codes as documented by `thalweg --help`.
const USAGE: i32 = 2;
const NO_BROKER: i32 = 3;
const NOT_FOUND: i32 = 4;

/// Returns all records of a topic as JSON, parsed from one record per line.
fn records(server: &Server, topic: &str) -> Vec<serde_json::Value> {
    let out = on(server, ["subscribe", topic, "--from", "earliest", "--until-end", "--output", "json"]).ok();
    out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Permissions of calls are a part of the program, so no broker has to run.
#[test]
fn permissions_of_calls_are_listed_without_a_broker() {
    let text = thalweg(["acl", "calls", "redis"]).ok();
    let set = text.lines().find(|line| line.split_whitespace().nth(1) == Some("GETSET")).expect("a row");
    assert!(set.contains("write") && set.contains("each key"), "{set}");
    let tables = thalweg(["acl", "calls", "--json"]).json();
    let doors: Vec<&str> =
        tables.as_array().expect("a list").iter().map(|table| table["door"].as_str().expect("a door")).collect();
    assert_eq!(doors, ["native", "http", "kafka", "pubsub", "redis", "sqs"]);
    assert!(thalweg(["acl", "calls", "smtp"]).failed(USAGE).contains("choose one of native, http"));
}

/// Records come from the command line, the standard input or a file, with one key and the same headers for all.
#[test]
fn publish_reads_values_lines_and_files() {
    let server = Server::start();
    on(&server, ["publish", "value", "hello", "--key", "k", "--header", "a=1", "--header", "b=x=y"]).ok();
    let record = &records(&server, "value")[0];
    assert_eq!(record["value"], "hello");
    assert_eq!((&record["key"], &record["headers"]), (&json!("k"), &json!({ "a": "1", "b": "x=y" })));
    assert_eq!((&record["topic"], &record["partition"], &record["offset"]), (&json!("value"), &json!(0), &json!(0)));
    let lines = "one\n\n  three \nno newline at the end";
    feed(&server, ["publish", "lines"], lines).ok();
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(lines.as_bytes()).expect("written");
    on(&server, ["publish", "file", "--file", file.path().to_str().expect("a path")]).ok();
    for topic in ["lines", "file"] {
        let values: Vec<_> = records(&server, topic).into_iter().map(|record| record["value"].clone()).collect();
        assert_eq!(values, ["one", "", "  three ", "no newline at the end"], "{topic}");
    }
    let message = on(&server, ["publish", "other", "--file", "/tmp"]).failed(1);
    assert!(message.contains("/tmp: this is a directory"), "{message}");
    assert!(!on(&server, ["topic", "list"]).ok().contains("other"), "a mistake creates no topic");
    let message = on(&server, ["publish", "file", "--file", "/nowhere/records"]).failed(1);
    assert!(message.contains("/nowhere/records"), "{message}");
    let message = on(&server, ["publish", "t", "x", "--header", "novalue"]).failed(USAGE);
    assert!(message.contains("NAME=VALUE"), "{message}");
}

/// `--count` limits lines and repeats a value, `--rate` spreads them, `--partition` and `--acks` take effect, `--json`
/// reports.
#[test]
fn publish_counts_and_paces() {
    let server = Server::start();
    on(&server, ["topic", "create", "spread", "--partitions", "3"]).ok();
    let done = on(&server, ["--json", "publish", "spread", "x", "-n", "5", "--partition", "2", "--acks", "committed"]);
    assert_eq!(done.json(), json!({ "topic": "spread", "published": 5, "acks": "committed" }));
    let one = on(&server, ["--json", "publish", "spread", "x", "--partition", "1"]).json();
    assert_eq!((&one["partition"], &one["offset"]), (&json!(1), &json!(0)), "where a single record is");
    on(&server, ["topic", "delete-records", "spread", "--partition", "1", "--before", "end"]).ok();
    assert!(records(&server, "spread").iter().all(|record| record["partition"] == 2));
    let done = feed(&server, ["--json", "publish", "lines", "--count", "2", "--acks", "none"], "a\nb\nc\n");
    assert_eq!(done.json()["published"], 2);
    let begin = std::time::Instant::now();
    on(&server, ["publish", "paced", "x", "--count", "6", "--rate", "20"]).ok();
    assert!(begin.elapsed().as_millis() >= 250, "five pauses of 50 ms");
    assert_eq!(records(&server, "paced").len(), 6);
    on(&server, ["publish", "spread", "x", "--partition", "3"]).failed(NOT_FOUND);
    on(&server, ["publish", "spread", "x", "--acks", "most"]).failed(USAGE);
}

async fn first_batch(client: &Client, topic: &str) -> RecordBatch {
    match next_event(&mut subscribe(client, topic, Start::Earliest).await).await {
        Event::Batch(batch) => batch.batch,
        other => panic!("no batch but {other:?}"),
    }
}

/// Each codec, with and without sequence numbers: batches have the requested form, and `subscribe` prints the same
/// records.
#[tokio::test]
async fn publish_compresses_and_numbers_batches() {
    let server = Server::start();
    let client = server.client("tcp").await;
    let lines: String = (0..500).map(|i| format!("{i} is a number\n")).collect();
    for codec in Codec::ALL {
        let topic = codec.name();
        let options = ["--compression", topic, "--batch-bytes", "2KiB", "--linger-ms", "5"];
        feed(&server, ["publish", topic].into_iter().chain(options), &lines).ok();
        let all = ["subscribe", topic, "--from", "earliest", "--until-end"];
        assert!(on(&server, all).ok() == lines, "{topic}: what went in came out");
        let batch = first_batch(&client, topic).await;
        assert_eq!((batch.codec(), batch.producer().is_some()), (Ok(codec), true));
        assert!(batch.count() < 200, "{topic}: a batch of {} is above 2 KiB", batch.count());
    }
    on(&server, ["publish", "plain", "x", "--no-idempotence", "--delivery-timeout-ms", "20000"]).ok();
    let batch = first_batch(&client, "plain").await;
    assert_eq!((batch.codec(), batch.producer()), (Ok(Codec::None), None));
    for wrong in [["--compression", "rar"], ["--batch-bytes", "some"], ["--delivery-timeout-ms", "0"]] {
        let message = on(&server, ["publish", "plain", "x"].into_iter().chain(wrong)).failed(USAGE);
        assert!(message.contains(wrong[0]), "{message}");
    }
}

/// The key of a line ends at the first separator; a line without one is reported, and earlier lines are published.
#[test]
fn publish_splits_keys_from_values() {
    let server = Server::start();
    feed(&server, ["publish", "t", "--key-separator", "::"], "a::1\n::2\nb::3::4\nc::\n").ok();
    let pairs: Vec<_> = records(&server, "t").into_iter().map(|r| (r["key"].clone(), r["value"].clone())).collect();
    let expected = [("a", "1"), ("", "2"), ("b", "3::4"), ("c", "")];
    assert_eq!(pairs, expected.map(|(key, value)| (json!(key), json!(value))));
    let message = feed(&server, ["publish", "half", "--key-separator", ":"], "a:1\nnothing\nb:2\n").failed(1);
    assert!(message.contains("line 2 has no ':'"), "{message}");
    assert_eq!(records(&server, "half").len(), 1);
    for wrong in [["x", "--key-separator", ":"], ["--key=k", "--key-separator", ":"], ["--json", "--key-separator", ""]]
    {
        feed(&server, ["publish", "t"].into_iter().chain(wrong), "a:1\n").failed(USAGE);
    }
}

/// A hundred thousand lines through a pipe: no line is lost and the order is kept.
#[test]
fn publish_takes_a_long_pipe() {
    let server = Server::with(&["retention_bytes=0"]);
    let count = 100_000;
    let lines: String = (0..count).map(|i| format!("{i}\n")).collect();
    assert_eq!(feed(&server, ["--json", "publish", "pipe"], &lines).json()["published"], count);
    let out = on(&server, ["subscribe", "pipe", "--from", "earliest", "--until-end"]).ok();
    assert!(out == lines, "what went in came out");
}

/// Every output format shows the same records.
#[test]
fn subscribe_prints_every_form() {
    let server = Server::start();
    on(&server, ["publish", "t", "with key", "--key", "k1"]).ok();
    on(&server, ["publish", "t", "without"]).ok();
    let read = |more: [&'static str; 2]| {
        on(&server, ["subscribe", "t", "--from", "earliest", "-n", "2"].into_iter().chain(more))
    };
    let print = |output: &'static str| read(["--output", output]).ok();
    assert_eq!(print("text"), "with key\nwithout\n");
    assert_eq!(print("raw"), "with keywithout");
    assert_eq!(
        read(["--format", r"{{topic}}/{{partition}}/{{ offset }}\t{{key}}={{value}}"]).ok(),
        "t/0/0\tk1=with key\nt/0/1\t=without\n"
    );
    let times = read(["--format", "{{time}}"]).ok();
    assert!(times.lines().all(|time| time.starts_with("20") && time.ends_with('Z')), "{times}");
    let json: Vec<serde_json::Value> =
        print("json").lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!((&json[0]["key"], &json[1]["key"]), (&json!("k1"), &serde_json::Value::Null));
    assert!(json.iter().all(|record| record["timestamp_ms"].as_i64() > Some(1_600_000_000_000)));
    let table = print("table");
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["TOPIC", "PART", "OFFSET", "TIME", "KEY", "VALUE"]);
    assert_eq!((&rows[1][..3], &rows[1][4..]), (&["t", "0", "0"][..], &["k1", "with", "key"][..]));
    assert!(rows[1][3].starts_with("20") && rows[1][3].ends_with('Z'), "{table}");
    let same = on(&server, ["--json", "subscribe", "t", "--from", "earliest", "-n", "2"]).ok();
    assert_eq!(same, print("json"), "--json is that format");
    let binary =
        program().args(["--server", &server.url("tcp"), "publish", "binary"]).stdin(Stdio::piped()).spawn().and_then(
            |mut child| {
                child.stdin.take().expect("a pipe").write_all(b"\xff\x00\n")?;
                child.wait()
            },
        );
    assert!(binary.expect("ended").success());
    assert_eq!(records(&server, "binary")[0]["value"], json!({ "hex": "ff00" }));
}

/// `--from` sets the start of a subscription; `--count` and `--until-end` end it.
#[test]
fn subscribe_begins_and_ends_where_it_is_told() {
    let server = Server::start();
    feed(&server, ["publish", "t"], "0\n1\n2\n3\n4\n").ok();
    let from = |from: &str| on(&server, ["subscribe", "t", "--until-end", "--from", from]);
    assert_eq!(from("earliest").ok(), "0\n1\n2\n3\n4\n");
    assert_eq!(from("3").ok(), "3\n4\n");
    assert_eq!(from("-2").ok(), "3\n4\n", "the last two");
    assert_eq!(from("-100").ok(), "0\n1\n2\n3\n4\n", "as many as there are");
    assert_eq!(on(&server, ["subscribe", "t", "--from-beginning", "--end"]).ok(), "0\n1\n2\n3\n4\n");
    for (from, why) in [("-2", "are those of one topic"), ("3", "an offset is valid for one topic only")] {
        let message = on(&server, ["subscribe", "t.>", "--from", from]).failed(USAGE);
        assert!(message.contains(why), "{message}");
    }
    on(&server, ["subscribe", "nothing", "--from", "-2"]).failed(NOT_FOUND);
    assert_eq!(from("live").ok(), "", "nothing is before the end");
    assert_eq!(from("@-5m").ok(), "0\n1\n2\n3\n4\n");
    assert_eq!(from("@2020-01-01").ok(), "0\n1\n2\n3\n4\n");
    assert_eq!(from("@2999-01-01T00:00:00Z").ok(), "");
    assert!(from("soon").failed(USAGE).contains("earliest"));
    assert_eq!(on(&server, ["subscribe", "t", "--from", "1", "-n", "2"]).ok(), "1\n2\n");
    assert_eq!(on(&server, ["subscribe", "t", "-n", "0"]).ok(), "");
    on(&server, ["topic", "create", "wide", "--partitions", "4"]).ok();
    feed(&server, ["publish", "wide", "--partition", "1"], "a\nb\n").ok();
    feed(&server, ["publish", "wide", "--partition", "3"], "c\n").ok();
    let mut all: Vec<String> = Vec::new();
    all.extend(on(&server, ["subscribe", "wide", "--from", "earliest", "--until-end"]).ok().lines().map(str::to_owned));
    all.sort();
    assert_eq!(all, ["a", "b", "c"], "the end of every partition");
    let one = on(&server, ["subscribe", "wide", "--from", "earliest", "--until-end", "--partition", "3"]).ok();
    assert_eq!(one, "c\n");
}

/// `--until-end` also ends if retention deletes the rest in the meantime, or the start offset was deleted long ago.
#[test]
fn subscribe_tells_gaps_and_still_ends() {
    let server = Server::start();
    on(&server, ["topic", "create", "short", "--retention-bytes", "4KiB"]).ok();
    for _ in 0..30 {
        on(&server, ["publish", "short", &"x".repeat(1_000)]).ok();
    }
    let done = on(&server, ["subscribe", "short", "--from", "0", "--until-end"]);
    assert!(done.err.contains("were lost"), "{done:?}");
    let kept = done.ok().lines().count();
    assert!((1..30).contains(&kept), "{kept}");
}

/// Topics are created, listed, described and deleted, with output for people and for programs.
#[test]
fn topic_commands() {
    let server = Server::start();
    assert!(on(&server, ["topic", "list"]).ok().contains("no topics yet"));
    assert_eq!(on(&server, ["--json", "topic", "list"]).json(), json!([]));
    let create =
        ["topic", "create", "orders", "--partitions", "2", "--retention-bytes", "1MiB", "--retention-ms", "1000"];
    assert!(on(&server, create).ok().contains("orders"));
    let settings = json!({ "topic": "orders", "retention_bytes": 1 << 20, "retention_ms": 1_000, "storage": "memory" });
    let created = on(&server, create.into_iter().chain(["--json"])).json();
    for (name, value) in settings.as_object().expect("an object") {
        assert_eq!(&created[name], value);
    }
    assert_eq!(created["partitions"].as_array().map(Vec::len), Some(2));
    feed(&server, ["publish", "orders", "--partition", "1"], "a\nb\n").ok();
    let list = on(&server, ["topic", "list"]).ok();
    let rows: Vec<Vec<&str>> = list.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["TOPIC", "STORAGE", "PARTITIONS", "RECORDS", "BYTES", "SUBSCRIBERS"]);
    assert_eq!(&rows[1][..4], ["orders", "memory", "2", "2"]);
    let listed = on(&server, ["--json", "topic", "list"]).json();
    assert_eq!(listed[0]["partitions"][1]["end"], 2);
    let described = on(&server, ["topic", "describe", "orders"]).ok();
    for line in [&["partitions", "2"][..], &["retention", "1", "MiB"], &["retention", "1s"]] {
        let says = |text: &str| line.iter().all(|word| text.split_whitespace().any(|found| found == *word));
        assert!(described.lines().any(says), "{described}");
    }
    assert!(described.contains("PARTITION"), "{described}");
    assert_eq!(on(&server, ["--json", "topic", "describe", "orders"]).json()["partitions"][1]["end"], 2);
    on(&server, ["topic", "create", "orders", "--partitions", "3"]).failed(1);
    on(&server, ["topic", "create", "or ders"]).failed(USAGE);
    on(&server, ["topic", "create", "t", "--retention-bytes", "many"]).failed(USAGE);
    assert!(on(&server, ["topic", "delete", "orders"]).ok().contains("orders"));
    on(&server, ["topic", "create", "again"]).ok();
    assert_eq!(on(&server, ["--json", "topic", "delete", "again"]).json(), json!({ "deleted": "again" }));
}

/// `reply` responds with a text, with the request, or with the output of a command.
#[test]
fn reply_answers_requests() {
    let server = Server::start();
    let url = server.url("tcp");
    for (args, answer) in [
        (&["reply", "text", "it is noon", "-n", "1"][..], "it is noon\n"),
        (&["reply", "echo", "--echo", "-n", "1"], "question\n"),
        (&["reply", "command", "-n", "1", "--", "tr", "a-z", "A-Z"], "QUESTION\n"),
    ] {
        let mut replier = program().args(["--server", &url]).args(args).spawn().expect("started");
        let done = loop {
            let done = on(&server, ["request", args[1], "question"]);
            if done.code != Some(NOT_FOUND) {
                break done;
            }
        };
        assert_eq!(done.ok(), answer, "{args:?}");
        assert!(replier.wait().expect("ended").success(), "{args:?}");
    }
    thalweg(["reply", "nothing"]).failed(USAGE);
}

/// Internal topics are listed only on request.
#[test]
fn internal_topics_are_listed_on_request() {
    let server = Server::start();
    on(&server, ["publish", "orders", "x"]).ok();
    on(&server, ["subscribe", "orders", "--consumer-group", "g", "--end"]).ok();
    let listed = |args: &[&str]| on(&server, args.iter().copied()).ok();
    let shown = listed(&["topic", "ls"]);
    assert!(shown.contains("orders") && !shown.contains("_offsets"), "{shown}");
    assert!(listed(&["topic", "list", "--all"]).contains("_offsets"));
}

/// Options and commands of other tools get a helpful hint, in the same form as all other errors.
#[test]
fn habits_of_other_tools_get_a_hint() {
    for (args, hint) in [
        (&["serve", "--port", "7500"][..], "--native and --kafka HOST:PORT"),
        (&["publish", "--topic", "foo", "bar"], "the topic is an argument"),
        (&["user", "add", "bob", "--password", "x"], "standard input"),
    ] {
        let message = thalweg(args.iter().copied()).failed(USAGE);
        assert!(message.starts_with("thalweg: unexpected argument") && message.contains(hint), "{message}");
        assert!(!message.contains("as a value"), "{message}");
    }
    let help = thalweg(["--help"]).ok();
    for expected in ["Data commands:", "[aliases: sub, consume]", "Global options:", "Examples:"] {
        assert!(help.contains(expected), "{expected}: {help}");
    }
    let serve = thalweg(["serve", "--help"]).ok();
    assert!(!serve.contains("--server") && serve.contains("--native"), "{serve}");
    assert!(thalweg(["--version"]).ok().contains(thalweg::COMMIT));
}

/// A request prints its response; without a responder, the exit code reports that.
#[test]
fn request_prints_the_answer() {
    let server = Server::start();
    let message = on(&server, ["request", "nobody", "question"]).failed(NOT_FOUND);
    assert!(message.contains("no subscriber of"), "{message}");
    let url = server.url("tcp");
    let mut silent = program()
        .args(["--server", &url, "subscribe", "silent", "--create"])
        .stdout(Stdio::null())
        .spawn()
        .expect("started");
    let late = loop {
        let done = on(&server, ["request", "silent", "question", "--timeout-ms", "50"]);
        if done.code != Some(NOT_FOUND) {
            break done;
        }
    };
    assert!(late.failed(1).contains("50 ms"));
    silent.kill().expect("killed");
    silent.wait().expect("gone");
}

/// Without a broker the exit code is 3 and the message tells how to start one; a missing topic is 4; wrong usage is 2.
#[test]
fn exit_codes_distinguish_a_missing_broker_topic_and_argument() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let nowhere = format!("tcp://{free}");
    for args in [&["topic", "list"][..], &["publish", "t", "x"], &["subscribe", "t"], &["request", "t", "x"]] {
        let message = thalweg(["--server", &nowhere].into_iter().chain(args.iter().copied())).failed(NO_BROKER);
        assert!(message.contains("thalweg serve") && message.contains(&nowhere), "{message}");
    }
    let quic = format!("quic://{free}");
    let message = thalweg(["--server", &quic, "--set", "connect_timeout_ms=100", "topic", "list"]).failed(NO_BROKER);
    assert!(message.contains(&quic), "{message}");
    let server = Server::with(&["auto_create_topics=false"]);
    for args in
        [&["topic", "describe", "t"][..], &["topic", "delete", "t"], &["publish", "t", "x"], &["subscribe", "t"]]
    {
        let message = on(&server, args.iter().copied()).failed(NOT_FOUND);
        assert!(message.contains("'t'"), "{message}");
    }
    for args in [&["no-such-command"][..], &["publish"], &["subscribe", "t", "--output", "xml"], &[]] {
        thalweg(args.iter().copied()).failed(USAGE);
    }
    // A wrong template is an error before any connection is opened.
    let message = thalweg(["--server", &quic, "subscribe", "t", "--format", "{{ofset}} {{value}}"]).failed(USAGE);
    assert!(message.contains("did you mean {{offset}}?"), "{message}");
    thalweg(["subscribe", "t", "--format", "{{value}}", "--output", "json"]).failed(USAGE);
    thalweg(["--server", "http://localhost", "topic", "list"]).failed(USAGE);
    thalweg(["--set", "shrads=1", "topic", "list"]).failed(USAGE);
}

/// A topic can be validated before it is created, described, and grown, but not shrunk.
#[test]
fn a_topic_is_tried_created_described_and_grown() {
    let server = Server::start();
    let create = ["topic", "create", "orders", "--partitions", "2", "--retention-ms", "0"];
    let tried = on(&server, ["--json"].into_iter().chain(create).chain(["--dry-run"])).json();
    assert_eq!(tried["would_create"], true);
    assert_eq!((&tried["partitions"], &tried["retention_ms"]), (&json!(2), &json!(0)));
    on(&server, ["topic", "describe", "orders"]).failed(NOT_FOUND);
    let text = on(&server, create.into_iter().chain(["--dry-run"])).ok();
    assert!(text.starts_with("topic orders would be created:") && text.contains("no limit"), "{text}");
    for bad in [["orders..eu", "1"], ["orders", "1025"], ["_inbox.mine", "1"]] {
        on(&server, ["topic", "create", bad[0], "--partitions", bad[1], "--dry-run"]).failed(USAGE);
    }
    on(&server, create).ok();
    assert_eq!(on(&server, ["--json"].into_iter().chain(create).chain(["--dry-run"])).json()["would_create"], false);
    let message = on(&server, ["topic", "create", "orders", "--partitions", "3", "--dry-run"]).failed(1);
    assert!(message.contains("exists with other settings"), "{message}");

    assert_eq!(
        on(&server, ["topic", "add-partitions", "orders", "3"]).ok(),
        "topic orders has 5 partitions now, 2 before\n"
    );
    let grown = on(&server, ["--json", "topic", "add-partitions", "orders", "1"]).json();
    assert_eq!(grown["partitions"].as_array().map(Vec::len), Some(6));
    on(&server, ["topic", "add-partitions", "orders", "0"]).failed(USAGE);
    on(&server, ["topic", "add-partitions", "orders", "1019"]).failed(USAGE);
    on(&server, ["topic", "add-partitions", "nothing", "1"]).failed(NOT_FOUND);
    on(&server, ["publish", "orders", "x", "--partition", "5", "-n", "3"]).ok();
    let described = on(&server, ["topic", "describe", "orders"]).ok();
    let row: Vec<&str> = described.lines().last().expect("rows").split_whitespace().collect();
    assert_eq!(row[..4], ["5", "0", "3", "3"], "{described}");
}

/// The output of `config show` is a file that `--config` reads back with the same values.
#[test]
fn the_output_of_config_show_is_a_valid_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("thalweg.toml");
    let shown = thalweg(["config", "show", "--set", "retention_ms=90m", "--set", "users=a:geheim"]).ok();
    assert!(shown.lines().any(|line| line.starts_with("retention_ms = \"90m\"")), "{shown}");
    std::fs::write(&file, &shown).expect("written");
    let file = file.to_str().expect("a path");
    let values = |text: &str| -> Vec<String> {
        text.lines().filter_map(|line| Some(line.split_once('#')?.0.trim_end().to_owned())).collect()
    };
    let again = thalweg(["--config", file, "config", "show"]).ok();
    let left_out = values(&shown).into_iter().filter(|line| line.is_empty()).count();
    assert_eq!(left_out, 1, "a secret is not shown");
    let keys: Vec<String> = values(&shown).into_iter().filter(|line| !line.is_empty()).collect();
    assert!(keys.len() > 80, "{shown}");
    assert!(keys.iter().all(|line| values(&again).contains(line)), "{again}");
    assert_eq!(thalweg(["config", "show", "sqs_region"]).ok(), "sqs_region = \"us-east-1\"  # default\n");
    assert!(thalweg(["config", "show", "sqs_regoin"]).failed(2).contains("did you mean sqs_region?"));
}

/// The configuration shows the origin of each value: flags override variables, the file, and the profile, in this
/// order.
#[test]
fn config_shows_origins() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = "profile = \"latency\"\nthreads = 3\nlog = \"warn\"\n[client]\npub_conn_pool = 5\n";
    std::fs::write(folder.path().join("thalweg.toml"), file).expect("written");
    let show = |args: &[&str]| -> Done {
        let mut command = program();
        command.current_dir(folder.path()).env("THALWEG_THREADS", "4").env("THALWEG_LOG", "debug").args(args);
        run(command.stdout(Stdio::piped()).stderr(Stdio::piped()), b"")
    };
    let shown = show(&["--json", "config", "show", "--set", "log=error"]).json();
    for (name, value, origin) in [
        ("log", "error", "--set log"),
        ("threads", "4", "$THALWEG_THREADS"),
        ("pub_conn_pool", "5", "thalweg.toml"),
        ("pub_queue_depth", "512", "profile latency"),
        ("memory_max", "1073741824", "default"),
    ] {
        assert_eq!((&shown[name]["value"], &shown[name]["origin"]), (&json!(value), &json!(origin)), "{name}");
    }
    let text = show(&["config", "show"]).ok();
    let line = text.lines().find(|line| line.contains("pub_queue_depth")).expect("a key");
    assert!(line.contains("= 512") && line.contains("profile latency"), "{line}");
    let help = show(&["config", "show", "--help-keys"]).ok();
    assert!(help.contains("Publishes in flight per connection; announced to clients, not enforced"));
    let read_back: String =
        text.lines().filter(|line| !line.starts_with('[')).map(|line| format!("{line}\n")).collect();
    assert!(read_back.contains("native"), "{read_back}");
}

/// A reader that closes the pipe early is not a failure, and causes no panic.
#[test]
fn a_closed_pipe_is_no_failure() {
    let server = Server::start();
    feed(&server, ["publish", "t"], &"line\n".repeat(50_000)).ok();
    for args in [
        &["subscribe", "t", "--from", "earliest"][..],
        &["subscribe", "t", "--from", "earliest", "--output", "table"],
        &["subscribe", "t", "--from", "earliest", "--until-end", "--output", "json"],
        &["topic", "list"],
        &["--json", "topic", "list"],
        &["topic", "describe", "t"],
        &["--json", "publish", "t", "x"],
        &["config", "show"],
        &["--json", "config", "show"],
        &["completions", "bash"],
        &["--help"],
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = program();
        command.args(["--server", &server.url("tcp")]).args(args).stdout(writer).stderr(Stdio::piped());
        let done = run(&mut command, b"");
        assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{args:?}");
    }
    let script = format!(
        "{} --server {} subscribe t --from earliest | head -1",
        env!("CARGO_BIN_EXE_thalweg"),
        server.url("tcp")
    );
    let mut shell = Command::new("bash");
    shell.args(["-o", "pipefail", "-c", &script]).stdout(Stdio::piped()).stderr(Stdio::piped());
    assert_eq!(run(&mut shell, b"").ok(), "line\n");
}

/// An output that cannot be written is a failure, reported once and without a panic.
#[test]
fn a_full_output_is_a_failure() {
    let server = Server::start();
    on(&server, ["publish", "t", "x"]).ok();
    for args in [
        &["subscribe", "t", "--from", "earliest", "--until-end"][..],
        &["topic", "list"],
        &["--json", "publish", "t", "x"],
        &["config", "show"],
        &["completions", "zsh"],
    ] {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("a device");
        let mut command = program();
        command.args(["--server", &server.url("tcp")]).args(args).stdout(full).stderr(Stdio::piped());
        let message = run(&mut command, b"").failed(1);
        assert!(message.starts_with("thalweg: ") && message.contains("No space left"), "{args:?}: {message}");
    }
}

/// Completions are scripts that their shell can parse, and man pages are written for every command.
#[test]
fn completions_and_man_pages() {
    let script = thalweg(["completions", "bash"]).ok();
    let mut bash = Command::new("bash");
    bash.args(["-n", "/dev/stdin"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    assert_eq!(run(&mut bash, script.as_bytes()).ok(), "");
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        assert!(thalweg(["completions", shell]).ok().contains("subscribe"), "{shell}");
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let pages = folder.path().join("man").join("man1");
    thalweg(["man", pages.to_str().expect("a path")]).ok();
    for page in ["thalweg", "thalweg-serve", "thalweg-publish", "thalweg-subscribe", "thalweg-topic-create"] {
        let text = std::fs::read_to_string(pages.join(format!("{page}.1"))).expect(page);
        assert!(text.contains(".TH"), "{page}");
    }
}

/// A subscriber over QUIC, TCP and TLS receives the records of another process.
#[test]
fn commands_speak_every_transport() {
    let server = Server::start();
    for scheme in ["quic", "tcp", "tls"] {
        let url = server.url(scheme);
        thalweg(["--server", &url, "publish", scheme, "hello"]).ok();
        let args = ["--server", &url, "subscribe", scheme, "--from", "earliest", "-n", "1"];
        assert_eq!(thalweg(args).ok(), "hello\n", "{scheme}");
    }
}

/// Records flow from pipe to pipe one by one while both stay open, and continue after a restart of the broker.
#[test]
fn pipes_that_stay_open_flow() {
    let mut server = Server::start();
    let url = server.url("tcp");
    let start = |args: &[&str]| {
        let mut command = program();
        command.args(["--server", &url]).args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("started")
    };
    on(&server, ["topic", "create", "t"]).ok();
    let mut reader = start(&["subscribe", "t", "--from", "earliest"]);
    let mut writer = start(&["publish", "t"]);
    let mut input = writer.stdin.take().expect("a pipe");
    let (sender, lines) = std::sync::mpsc::channel();
    let output = BufReader::new(reader.stdout.take().expect("a pipe"));
    std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    for i in 0..5 {
        writeln!(input, "line {i}").expect("written");
        assert_eq!(lines.recv_timeout(PATIENCE), Ok(format!("line {i}")));
    }
    drop(input);
    assert!(writer.wait().expect("ended").success());
    server.crash_and_restart();
    on(&server, ["publish", "t", "of the new one"]).ok();
    assert_eq!(lines.recv_timeout(PATIENCE), Ok("of the new one".to_owned()));
    reader.kill().expect("killed");
    let done = reader.wait_with_output().expect("ended");
    assert!(String::from_utf8_lossy(&done.stderr).contains("restarted"), "{done:?}");
}

/// Commands of other programs are answered with the corresponding command of this one.
#[test]
fn commands_of_other_programs_are_known() {
    for (typed, tip) in [("ls", "thalweg topic ls"), ("version", "thalweg --version"), ("stop", "Ctrl-C")] {
        let message = crate::support::command::thalweg([typed]).failed(USAGE);
        assert!(message.contains("tip: ") && message.contains(tip), "{message}");
    }
    let message = crate::support::command::thalweg(["queue", "version"]).failed(USAGE);
    assert!(!message.contains("thalweg --version"), "{message}");
}
