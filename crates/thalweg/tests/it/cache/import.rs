//! `thalweg cache import`: from a server that runs, here another broker, and from a file of Redis.

use crate::door::redis::commands::Redis;
use crate::support::command::{Done, thalweg};
use crate::support::server::Server;

/// File that redis-server 7.0.15 wrote. Database 0: text, number (expires in the year 2100), repeated (compressed),
/// list, numbers (a set of integers), words, hash, sorted, stream; database 3: other; and a library of functions.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/cache/testdata/redis-7.0.15.rdb");

fn server() -> Server {
    Server::with(&["redis=127.0.0.1:0"])
}

fn url(server: &Server) -> String {
    format!("redis://{}", server.door("redis"))
}

/// Copies from one broker to the other.
fn import(from: &str, to: &Server, more: &[&str]) -> Done {
    thalweg([&["--json", "cache", "import", "--from", from, "--to", &url(to)], more].concat())
}

/// Returns the counts of an import that succeeded.
fn counts(done: Done) -> [u64; 5] {
    let json = done.json();
    ["copied", "equal", "kept", "verified", "failed"].map(|name| json[name].as_u64().expect("a count"))
}

#[tokio::test]
async fn every_kind_of_value_is_copied_from_a_server_and_compared() {
    let (from, to) = (server(), server());
    let mut source = Redis::open(&from);
    for command in [
        "SET text hello",
        "SET session x PX 600000",
        "RPUSH list a b c",
        "SADD set a b",
        "HSET hash f v g w",
        "ZADD sorted 1.5 a -inf b",
        "PFADD sketch a b c",
        "XADD stream 1-1 f v",
        "XADD stream 2-1 f w",
        "XADD stream 3-1 f x",
        "XGROUP CREATE stream group 0",
        "XREADGROUP GROUP group alice COUNT 2 STREAMS stream >",
        "XACK stream group 1-1",
        "XDEL stream 3-1",
    ] {
        let answer = source.call(command);
        assert!(!answer.starts_with("-"), "{command}: {answer}");
    }
    // Values that are copied in parts.
    let item = "x".repeat(100);
    for round in 0..50 {
        let items: Vec<String> = (0..1000).map(|at| format!("{item}{}", 1000 * round + at)).collect();
        source.call(&format!("RPUSH large-list {}", items.join(" ")));
        source.call(&format!("SADD large-set {}", items.join(" ")));
        let scored: Vec<String> = items.iter().enumerate().map(|(at, item)| format!("{at}.5 {item}")).collect();
        source.call(&format!("ZADD large-sorted {}", scored.join(" ")));
        let pairs: Vec<String> = items.iter().map(|item| format!("{item} {item}")).collect();
        source.call(&format!("HSET large-hash {}", pairs.join(" ")));
    }
    source.call("SETRANGE large-text 5000000 end");
    source.call("SELECT 5");
    source.call("SET elsewhere 5");

    let done = import(&url(&from), &to, &[]);
    assert_eq!(counts(done), [14, 0, 0, 14, 0]);
    let mut target = Redis::open(&to);
    source.call("SELECT 0");
    for command in [
        "DBSIZE",
        "GET text",
        "LRANGE list 0 -1",
        "SMISMEMBER set a b",
        "HMGET hash f g",
        "ZRANGE sorted 0 -1 WITHSCORES",
        "PFCOUNT sketch",
        "XRANGE stream - +",
        "XPENDING stream group",
        "LRANGE large-list 49990 50010",
        "SCARD large-set",
        "ZRANGE large-sorted -3 -1 WITHSCORES",
        "HLEN large-hash",
        "STRLEN large-text",
    ] {
        assert_eq!(target.call(command), source.call(command), "{command}");
    }
    let ttl_ms: u64 = target.call("PTTL session").trim_start_matches(':').parse().expect("a time to live");
    assert!((1..=600_000).contains(&ttl_ms), "{ttl_ms}");
    assert_eq!(target.call("SELECT 5"), "+OK");
    assert_eq!(target.call("GET elsewhere"), "5");

    // A second import finds all of them. A key that has another value stays, unless it is to be replaced.
    target.call("SELECT 0");
    target.call("SET text mine");
    let again = import(&url(&from), &to, &["--match", "te*"]);
    assert_eq!(counts(again), [0, 0, 1, 0, 0]);
    let again = import(&format!("{}/0", url(&from)), &to, &["--replace"]);
    assert_eq!(counts(again), [13, 0, 0, 13, 0]);
    assert_eq!(target.call("GET text"), "hello");
    let again = import(&url(&from), &to, &["--without-verify"]);
    assert_eq!(again.code, Some(0), "{again:?}");
    assert_eq!(target.call("KEYS *unfinished*"), "()");
}

#[tokio::test]
async fn a_file_of_redis_is_copied_but_its_streams() {
    let to = server();
    let words = ["--json", "cache", "import", "--file", FILE, "--to"];
    let done = thalweg([&words[..], &[&url(&to)]].concat());
    assert_eq!(done.code, Some(1), "the stream is named: {done:?}");
    let json: serde_json::Value = serde_json::from_str(&done.out).expect("JSON");
    assert_eq!((json["copied"].as_u64(), json["verified"].as_u64()), (Some(9), Some(9)), "{json}");
    let failures: Vec<&str> =
        json["failures"].as_array().into_iter().flatten().filter_map(|failure| failure["what"].as_str()).collect();
    assert_eq!(failures[0], "stream in database 0", "{json}");
    let mut target = Redis::open(&to);
    for (command, answer) in [
        ("GET text", "hello"),
        ("GET number", "70000"),
        ("PEXPIRETIME number", ":4102444800000"),
        ("STRLEN repeated", ":120"),
        ("LRANGE list 0 -1", "(a b 3)"),
        ("SMISMEMBER numbers 1 2 3 4", "(:1 :1 :1 :0)"),
        ("SCARD words", ":3"),
        ("HMGET hash f g", "(v 7)"),
        ("ZRANGE sorted 0 -1 WITHSCORES", "(n -inf m 1.5)"),
    ] {
        assert_eq!(target.call(command), answer, "{command}");
    }
    assert_eq!((target.call("SELECT 3"), target.call("GET other")), ("+OK".into(), "3".into()));

    // A file that is cut says so, and how many keys were copied before.
    let folder = tempfile::tempdir().expect("a folder");
    let cut = folder.path().join("cut.rdb").display().to_string();
    let whole = std::fs::read(FILE).expect("the file");
    std::fs::write(&cut, &whole[..whole.len() - 9]).expect("written");
    let done = thalweg(["cache", "import", "--file", &cut, "--to", &url(&to)]);
    assert!(done.code != Some(0) && done.err.contains("the file ends within an entry"), "{done:?}");
}

#[tokio::test]
async fn what_cannot_be_imported_says_why() {
    let to = server();
    let itself = import(&url(&to), &to, &[]);
    assert!(itself.failed(1).contains("is both the source and the target"));
    let nobody = crate::support::ports::free_ports(1);
    let error = import(&format!("redis://127.0.0.1:{nobody}"), &to, &[]).failed(3);
    assert!(error.contains(&format!("cannot connect to 127.0.0.1:{nobody}")), "{error}");
    let error = import("http://127.0.0.1:80", &to, &[]).failed(2);
    assert!(error.contains("use redis://"), "{error}");
    let error = import("redis://:secret@127.0.0.1:80/abc", &to, &[]).failed(2);
    assert!(error.contains("use redis://") && !error.contains("secret"), "{error}");
    let error = thalweg(["cache", "import", "--from", &url(&to), "--to", &format!("{}/1", url(&to))]).failed(2);
    assert!(error.contains("--to names no database"), "{error}");
    let error = thalweg(["cache", "import", "--to", &url(&to)]).failed(2);
    assert!(error.contains("--from"), "{error}");
    let error = thalweg(["cache", "import", "--file", "/nowhere.rdb", "--to", &url(&to)]).failed(1);
    assert!(error.contains("cannot read /nowhere.rdb"), "{error}");
}
