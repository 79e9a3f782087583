//! Keys that a script holds for as long as a client likes: nothing that others do waits for it on a thread, of which
//! these brokers have one.

use std::time::Duration;

use client::Record;

use super::commands::{Redis, request, server, until_blocked};
use crate::support::cluster::http;
use crate::support::server::{Server, metric, until, within};

/// Time limit that only a broker reaches whose thread waits.
const PATIENCE: Duration = Duration::from_secs(60);
/// A script that runs until it is killed. Its second run holds only the stripe of its key.
const FOREVER: &str = "while true do redis.pcall('get', KEYS[1]) end";

fn start(server: &Server, key: &str) -> Redis {
    let mut redis = Redis::open(server);
    redis.send(&request(&[b"EVAL", FOREVER.as_bytes(), b"1", key.as_bytes()]));
    redis
}

/// Starts the script, and waits until it runs.
async fn running(server: &Server, key: &str) -> Redis {
    let client = server.client("tcp").await;
    let redis = start(server, key);
    until("a script that runs", async || metric(&client, "thalweg_redis_scripts_running").await == 1).await;
    redis
}

/// Ends the script.
async fn kill(server: &Server, running: &mut Redis) {
    let mut redis = Redis::open(server);
    until("a script to kill", async || redis.call("SCRIPT KILL") == "+OK").await;
    assert!(running.answer().contains("Script killed by user"));
}

/// Checks that the thread serves other clients, at other doors, too.
async fn all_doors_answer(server: &Server, what: &str) {
    let mut redis = Redis::open(server);
    redis.ask("PING");
    assert_eq!(redis.answer_within(PATIENCE).as_deref(), Some("+PONG"), "{what}");
    let client = server.client("tcp").await;
    within("a publish", client.publish("elsewhere", Record::new("x"))).await.expect(what);
    let health = tokio::time::timeout(PATIENCE, http(server.door("http"), "GET", "/healthz", "")).await;
    assert_eq!(health.expect(what).expect(what).0, 200, "{what}");
}

/// Returns a key that the script does not hold.
async fn free_key(server: &Server) -> String {
    for at in 0..64 {
        let mut redis = Redis::open(server);
        redis.ask(&format!("SET free{at} 1"));
        if redis.answer_within(Duration::from_secs(1)).as_deref() == Some("+OK") {
            assert_eq!(redis.call(&format!("DEL free{at}")), ":1");
            return format!("free{at}");
        }
    }
    panic!("the script holds all keys");
}

/// A command that comes as the script begins is decoded before its keys are announced as held.
#[tokio::test]
async fn commands_that_come_as_a_script_begins_do_not_block_a_thread() {
    let server = server(&["threads=1", "http=127.0.0.1:0"]);
    let mut redis = Redis::open(&server);
    let commands = [
        "WATCH key",
        "XREAD BLOCK 0 STREAMS key $",
        "XADD key * a b",
        "XLEN key",
        "RENAME key other",
        "MULTI\nXADD key * a b\nEXEC",
    ];
    for command in commands {
        for _ in 0..8 {
            redis.call("DEL other");
            redis.call("XADD key * a b");
            let mut script = start(&server, "key");
            let mut client = Redis::open(&server);
            let lines: Vec<Vec<&[u8]>> =
                command.split('\n').map(|line| line.split(' ').map(str::as_bytes).collect()).collect();
            client.send(&lines.iter().map(|line| request(line)).collect::<Vec<_>>().concat());
            all_doors_answer(&server, command).await;
            kill(&server, &mut script).await;
            if !command.contains("BLOCK") {
                lines.iter().for_each(|_| drop(client.answer()));
            }
        }
    }
}

/// Redis answers `BUSY` once a script has run for `busy-reply-threshold`, not because many run one after the other.
#[tokio::test]
async fn a_command_waits_for_scripts_that_follow_each_other() {
    let server = server(&["threads=1"]);
    let mut redis = Redis::open(&server);
    assert_eq!(redis.call("CONFIG SET busy-reply-threshold 600000"), "+OK");
    let slow = "local function ms() local now = redis.call('time') return now[1] * 1000 + now[2] / 1000 end \
                local from = ms() repeat redis.call('get', KEYS[1]) until ms() - from > 150";
    let client = server.client("tcp").await;
    let mut scripts: Vec<Redis> = (0..4).map(|_| Redis::open(&server)).collect();
    let script = request(&[b"EVAL", slow.as_bytes(), b"1", b"key"]);
    scripts.iter_mut().for_each(|of| of.send(&script.repeat(3)));
    until("a script that runs", async || metric(&client, "thalweg_redis_scripts_running").await >= 1).await;
    for _ in 0..4 {
        let mut other = Redis::open(&server);
        other.ask("SET key 1");
        assert_eq!(other.answer_within(PATIENCE).as_deref(), Some("+OK"));
    }
    for of in &mut scripts {
        (0..3).for_each(|_| assert_eq!(of.answer(), "nil"));
    }
}

#[tokio::test]
async fn a_push_does_not_wait_for_a_blocked_client_whose_other_key_is_held() {
    let server = server(&["threads=1", "http=127.0.0.1:0"]);
    kill(&server, &mut running(&server, "held").await).await;
    let mut script = running(&server, "held").await;
    let free = free_key(&server).await;
    kill(&server, &mut script).await;
    let mut blocked = Redis::open(&server);
    blocked.ask(&format!("BLPOP {free} held 0"));
    until_blocked(&server, 1).await;
    let mut script = running(&server, "held").await;
    let mut redis = Redis::open(&server);
    redis.ask(&format!("RPUSH {free} a"));
    assert_eq!(redis.answer_within(PATIENCE).as_deref(), Some(":1"));
    all_doors_answer(&server, "RPUSH").await;
    kill(&server, &mut script).await;
    assert_eq!(blocked.answer(), format!("({free} a)"));
}

#[tokio::test]
async fn a_blocked_read_of_a_stream_that_is_held_waits_for_the_script_or_its_timeout() {
    let server = server(&["threads=1", "http=127.0.0.1:0"]);
    let mut redis = Redis::open(&server);
    assert!(redis.call("XADD stream * a b").contains('-'));
    assert_eq!(redis.call("CONFIG SET busy-reply-threshold 20"), "+OK");
    let (mut blocked, mut timed) = (Redis::open(&server), Redis::open(&server));
    blocked.ask("XREAD BLOCK 0 STREAMS stream $");
    timed.ask("XREAD BLOCK 4000 STREAMS stream $");
    until_blocked(&server, 2).await;
    let mut script = running(&server, "stream").await;
    let client = server.client("tcp").await;
    within("a publish", client.publish("stream", Record::new("new"))).await.expect("published");
    all_doors_answer(&server, "a blocked XREAD").await;
    assert_eq!(timed.answer_within(PATIENCE).as_deref(), Some("nil"), "the timeout takes effect");
    kill(&server, &mut script).await;
    let answer = blocked.answer();
    assert!(answer.starts_with("((stream ((") && answer.contains("new"), "{answer}");
}

#[tokio::test]
async fn a_cache_whose_keys_are_held_is_not_deleted_and_others_are_served() {
    let server = server(&["threads=1", "http=127.0.0.1:0"]);
    let mut script = running(&server, "key").await;
    let address = server.door("http");
    let (status, body) = http(address, "DELETE", "/v1/caches/db0", "").await.expect("answered");
    assert!(status == 503 || status == 429, "{status} {body}");
    assert!(body.contains("a script of a Redis client holds keys of the cache 'db0'"), "{body}");
    let client = server.client("tcp").await;
    within("a put", client.cache("other").put("a", "b")).await.expect("another cache");
    all_doors_answer(&server, "DELETE").await;
    kill(&server, &mut script).await;
    let (status, body) = http(address, "DELETE", "/v1/caches/db0", "").await.expect("answered");
    assert!(status < 300, "{status} {body}");
}

/// A transaction that comes as the script begins waits for it with the keys of one database, which others use.
#[tokio::test]
async fn keys_of_a_transaction_that_waits_for_another_database_do_not_block_a_thread() {
    let server = server(&["threads=1", "http=127.0.0.1:0"]);
    let mut redis = Redis::open(&server);
    assert_eq!(redis.call("SET key 1"), "+OK");
    // EXEC waits for the script, however slow the machine is.
    assert_eq!(redis.call("CONFIG SET busy-reply-threshold 600000"), "+OK");
    // SCRIPT KILL ends no function, so it cannot end the one of the transaction.
    let library = b"#!lua name=lib\nredis.register_function('one', function() return 1 end)";
    redis.send(&request(&[b"FUNCTION", b"LOAD", library]));
    assert_eq!(redis.answer(), "lib");
    let client = server.client("tcp").await;
    for _ in 0..8 {
        let mut script = Redis::open(&server);
        assert_eq!(script.call("SELECT 1"), "+OK");
        let mut both = Redis::open(&server);
        both.send(&[request(&[b"MULTI"]), request(&[b"FCALL", b"one", b"1", b"key"])].concat());
        both.send(&[request(&[b"SELECT", b"1"]), request(&[b"SET", b"other", b"1"])].concat());
        let queued: Vec<String> = (0..4).map(|_| both.answer()).collect();
        assert_eq!(queued, ["+OK", "+QUEUED", "+QUEUED", "+QUEUED"]);
        script.send(&request(&[b"EVAL", FOREVER.as_bytes(), b"1", b"held"]));
        both.ask("EXEC");
        let mut reader = Redis::open(&server);
        reader.ask("GET key");
        let read = within("a get", client.cache("db0").get("key")).await;
        assert!(read.as_ref().is_ok() || read.is_err_and(|error| error.kind == client::ErrorKind::Busy));
        all_doors_answer(&server, "EXEC and GET").await;
        kill(&server, &mut script).await;
        assert_eq!(both.answer(), "(:1 +OK +OK)");
        // One that was decoded before the transaction announced its keys is refused if they remain locked.
        let answer = reader.answer();
        assert!(answer == "1" || answer.starts_with("-BUSY Redis is busy"), "{answer}");
    }
}
