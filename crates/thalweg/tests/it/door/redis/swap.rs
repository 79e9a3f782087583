//! `SWAPDB`: what every user of the two databases sees. Replies, and what is touched and served, are those of
//! redis-server 7.0: `swapdbCommand`, `dbSwapDatabases` and `touchAllWatchedKeysInDb` of its `db.c` and `multi.c`, and
//! its tests `unit/keyspace`, `unit/multi` and `unit/type/list`. `compat/redis/differential` compares both servers.

use std::time::Duration;

use client::NearSettings;
use tempfile::TempDir;

use super::commands::{Redis, request, server, until_blocked};
use crate::support::command::on;
use crate::support::server::{Server, metric, until, within};

const NONE: [&str; 0] = [];

/// Returns a connection with a selected database.
fn at(server: &Server, database: usize) -> Redis {
    let mut redis = Redis::open(server);
    assert_eq!(redis.call(&format!("SELECT {database}")), "+OK");
    redis
}

fn expect(redis: &mut Redis, calls: &[(&str, &str)]) {
    for (call, answer) in calls {
        assert_eq!(redis.call(call), *answer, "{call}");
    }
}

/// Runs commands as a transaction.
fn transact(redis: &mut Redis, commands: &[&str]) -> String {
    assert_eq!(redis.call("MULTI"), "+OK");
    for command in commands {
        assert_eq!(redis.call(command), "+QUEUED", "{command}");
    }
    redis.call("EXEC")
}

#[tokio::test]
async fn connections_keep_their_database_and_find_the_keys_of_the_other() {
    let server = server(&[]);
    let (mut zero, mut nine) = (at(&server, 0), at(&server, 9));
    expect(&mut zero, &[("SET k zero", "+OK"), ("RPUSH list a b", ":2"), ("SET brief v EX 100", "+OK")]);
    expect(&mut nine, &[("SET k nine", "+OK"), ("DBSIZE", ":1")]);
    expect(&mut zero, &[("SWAPDB 0 9", "+OK"), ("GET k", "nine"), ("DBSIZE", ":1"), ("EXISTS list", ":0")]);
    expect(&mut nine, &[("GET k", "zero"), ("LRANGE list 0 -1", "(a b)"), ("TTL brief", ":100"), ("DBSIZE", ":3")]);
    // One that was never used, from a third database.
    let mut third = at(&server, 3);
    expect(&mut third, &[("SWAPDB 9 12", "+OK"), ("SWAPDB 12 12", "+OK")]);
    expect(&mut nine, &[("DBSIZE", ":0"), ("SELECT 12", "+OK"), ("GET k", "zero")]);
    expect(
        &mut zero,
        &[
            ("SWAPDB 44 55", "-ERR DB index is out of range"),
            ("SWAPDB 0 16", "-ERR DB index is out of range"),
            ("SWAPDB -1 0", "-ERR DB index is out of range"),
            ("SWAPDB 44 a", "-ERR invalid second DB index"),
            ("SWAPDB a 55", "-ERR invalid first DB index"),
            ("SWAPDB a b", "-ERR invalid first DB index"),
            ("SWAPDB 0 99999999999", "-ERR invalid second DB index"),
            ("SWAPDB 0", "-ERR wrong number of arguments for 'swapdb' command"),
            ("COMMAND INFO SWAPDB", "((swapdb :3 (+write +fast) :0 :0 :0 (+@server +@write) () () ()))"),
            ("GET k", "nine"),
        ],
    );
}

#[tokio::test]
async fn watched_keys_are_touched_unless_neither_database_has_them() {
    let server = server(&[]);
    let (mut watcher, mut one, mut other) = (at(&server, 0), at(&server, 0), at(&server, 1));
    // A key that exists in either of the two, and one in none.
    expect(&mut one, &[("SET here 1", "+OK"), ("SET both 1", "+OK")]);
    expect(&mut other, &[("SET there 1", "+OK"), ("SET both 1", "+OK")]);
    for (key, answer) in [("here", "nil"), ("there", "nil"), ("both", "nil"), ("none", "(+PONG)")] {
        assert_eq!(watcher.call(&format!("WATCH {key}")), "+OK");
        assert_eq!(one.call("SWAPDB 0 1"), "+OK");
        assert_eq!(transact(&mut watcher, &["PING"]), answer, "{key}");
        assert_eq!(one.call("SWAPDB 1 0"), "+OK");
    }
    // There and back is a change, too.
    for key in ["here", "there"] {
        assert_eq!(watcher.call(&format!("WATCH {key}")), "+OK");
        expect(&mut one, &[("SWAPDB 0 1", "+OK"), ("SWAPDB 0 1", "+OK")]);
        assert_eq!(transact(&mut watcher, &["PING"]), "nil", "{key}");
    }
    // Other databases are not concerned.
    let mut fifth = at(&server, 5);
    expect(&mut fifth, &[("SET here 1", "+OK"), ("WATCH here there", "+OK")]);
    assert_eq!(one.call("SWAPDB 0 1"), "+OK");
    assert_eq!(transact(&mut fifth, &["PING"]), "(+PONG)");
}

#[tokio::test]
async fn blocked_clients_are_served_with_what_their_database_has_now() {
    let server = server(&[]);
    let (mut blocked, mut other, mut wrong) = (at(&server, 9), at(&server, 9), at(&server, 9));
    blocked.ask("BRPOP k 0");
    other.ask("BLPOP none 0");
    wrong.ask("BZPOPMIN text 0");
    until_blocked(&server, 3).await;
    let mut one = at(&server, 1);
    expect(&mut one, &[("RPUSH k hello", ":1"), ("SET text v", "+OK"), ("SWAPDB 1 9", "+OK")]);
    assert_eq!(blocked.answer(), "(k hello)");
    expect(&mut one, &[("DBSIZE", ":0"), ("SELECT 9", "+OK"), ("KEYS *", "(text)")]);
    // They still wait, in their database. A transaction serves them at its end.
    until_blocked(&server, 2).await;
    assert_eq!(transact(&mut one, &["RPUSH none first", "SWAPDB 9 1", "SWAPDB 1 9"]), "(:1 +OK +OK)");
    assert_eq!(other.answer(), "(none first)");
    assert_eq!(transact(&mut one, &["DEL text", "ZADD text 1 a"]), "(:1 :1)");
    assert_eq!(wrong.answer(), "(text a 1)");
}

#[tokio::test]
async fn an_exchange_is_a_part_of_a_transaction_and_of_a_script() {
    let server = server(&[]);
    let (mut zero, mut one) = (at(&server, 0), at(&server, 1));
    assert_eq!(one.call("SET k one"), "+OK");
    let commands = ["SET k zero", "SWAPDB 0 1", "GET k", "SELECT 1", "GET k", "SWAPDB 0 99", "SET k changed"];
    let range = "-ERR DB index is out of range";
    assert_eq!(transact(&mut zero, &commands), format!("(+OK +OK one +OK zero {range} +OK)"));
    expect(&mut zero, &[("SELECT 0", "+OK"), ("GET k", "one")]);
    assert_eq!(one.call("GET k"), "changed");
    // With commands on streams and scripts, a transaction runs otherwise.
    let mut other = at(&server, 2);
    assert_eq!(transact(&mut zero, &["XLEN none", "SWAPDB 0 2", "GET k", "XLEN none"]), "(:0 +OK nil :0)");
    expect(&mut other, &[("GET k", "one"), ("SWAPDB 2 0", "+OK")]);
    let eval = |redis: &mut Redis, text: &str| {
        redis.send(&request(&[b"EVAL", text.as_bytes(), b"1", b"k"]));
        redis.answer()
    };
    let swaps = "redis.call('SWAPDB', 0, 1) return redis.call('GET', KEYS[1])";
    assert_eq!(eval(&mut zero, swaps), "changed");
    assert_eq!(one.call("GET k"), "one");
    let fails = "return redis.pcall('SWAPDB', 0, 'x')['err']";
    assert_eq!(eval(&mut zero, fails), "ERR invalid second DB index");
    assert_eq!(eval(&mut zero, "return redis.call('SWAPDB', 7, 7)"), "+OK");
    zero.send(&request(&[b"EVAL_RO", b"return redis.call('SWAPDB', 0, 1)", b"0"]));
    assert!(zero.answer().contains("Write commands are not allowed from read-only scripts"));
    // After its first change a script takes no further database.
    let late = "redis.call('SET', KEYS[1], 1) return redis.pcall('SWAPDB', 0, 6)['err']";
    assert!(eval(&mut zero, late).contains("only after its first change"));
    // A script of a transaction has the databases of its other commands.
    let commands = ["SWAPDB 0 1", "SET k 2", "EVAL return(redis.call('SWAPDB',0,1)) 0", "GET k"];
    assert_eq!(transact(&mut zero, &commands), "(+OK +OK +OK 1)");
    assert_eq!(one.call("GET k"), "2");
}

#[tokio::test]
async fn databases_with_streams_or_other_settings_are_refused_and_keep_their_keys() {
    let server = server(&[]);
    let mut zero = at(&server, 0);
    expect(&mut zero, &[("SELECT 1", "+OK"), ("XADD s 1-1 f v", "1-1"), ("SELECT 0", "+OK"), ("SET k v", "+OK")]);
    for swap in ["SWAPDB 0 1", "SWAPDB 1 0"] {
        let refused = zero.call(swap);
        assert!(refused.starts_with("-ERR the cache 'db1' has the stream 's'"), "{refused}");
        assert!(refused.contains("move or delete all streams first"), "{refused}");
    }
    let answers = transact(&mut zero, &["SET k w", "SWAPDB 0 1", "GET k"]);
    assert!(answers.starts_with("(+OK -ERR the cache 'db1' has the stream") && answers.ends_with(" w)"), "{answers}");
    expect(&mut zero, &[("GET k", "w"), ("SELECT 1", "+OK"), ("XLEN s", ":1"), ("MOVE s 4", ":1")]);
    expect(&mut zero, &[("SWAPDB 0 1", "+OK"), ("GET k", "w"), ("SELECT 4", "+OK"), ("XLEN s", ":1")]);
    // A stream that was created and deleted in the same transaction is none.
    expect(&mut zero, &[("SELECT 1", "+OK")]);
    assert_eq!(transact(&mut zero, &["XADD s 1-1 f v", "DEL s", "SWAPDB 1 0", "EXISTS k"]), "(1-1 :1 +OK :0)");
    on(&server, ["cache", "create", "db6", "--bytes-max", "1MiB"]).ok();
    let refused = zero.call("SWAPDB 0 6");
    assert!(refused.starts_with("-ERR the caches 'db0' and 'db6' have different settings"), "{refused}");
    expect(&mut zero, &[("SELECT 0", "+OK"), ("GET k", "w")]);
}

#[tokio::test]
async fn a_script_that_holds_keys_of_one_database_is_waited_for_or_reported() {
    let server = server(&["threads=1"]);
    let mut zero = at(&server, 0);
    expect(&mut zero, &[("SET key 1", "+OK"), ("CONFIG SET busy-reply-threshold 50", "+OK")]);
    let mut script = at(&server, 1);
    script.send(&request(&[b"EVAL", b"while true do redis.pcall('get', KEYS[1]) end", b"1", b"key"]));
    let client = server.client("tcp").await;
    until("the script", async || metric(&client, "thalweg_redis_scripts_running").await == 1).await;
    let busy = "-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.";
    expect(&mut zero, &[("SWAPDB 0 1", busy), ("SWAPDB 1 0", busy), ("SWAPDB 1 3", busy)]);
    // The other database is served, and exchanged with others.
    expect(&mut zero, &[("GET key", "1"), ("SWAPDB 0 2", "+OK"), ("SWAPDB 2 1", busy), ("SWAPDB 0 2", "+OK")]);
    assert_eq!(zero.call("SCRIPT KILL"), "+OK");
    assert!(script.answer().contains("Script killed by user"));
    expect(&mut zero, &[("SWAPDB 0 1", "+OK"), ("EXISTS key", ":0"), ("SELECT 1", "+OK"), ("GET key", "1")]);
}

/// Returns the messages that a client has received so far.
fn heard(redis: &mut Redis) -> Vec<String> {
    redis.ask("PING end");
    let mut heard = Vec::new();
    loop {
        match redis.answer() {
            answer if answer == "end" || answer == "(pong end)" => return heard,
            answer => heard.push(answer),
        }
    }
}

/// redis-server publishes no event. It tells tracking clients nothing, either, so that they keep values of the other
/// database; here they are told to forget all.
#[tokio::test]
async fn tracking_clients_forget_their_keys_and_no_event_is_published() {
    let server = server(&["redis_keyspace_events=KEA"]);
    let (mut zero, mut reader, mut events) = (at(&server, 0), at(&server, 0), Redis::open(&server));
    expect(&mut zero, &[("SET k v", "+OK")]);
    assert!(reader.call("HELLO 3").contains("redis"));
    expect(&mut reader, &[("CLIENT TRACKING ON", "+OK"), ("GET k", "v"), ("GET none", "null")]);
    assert_eq!(events.call("PSUBSCRIBE __key*@*__:*"), "(psubscribe __key*@*__:* :1)");
    assert_eq!(zero.call("SWAPDB 0 1"), "+OK");
    assert_eq!(reader.answer(), ">(invalidate null)");
    assert_eq!(heard(&mut events), NONE);
    // Each of the two databases invalidates all keys, the other one at any time.
    let answer = |reader: &mut Redis| loop {
        let answer = reader.answer();
        if answer != ">(invalidate null)" {
            return answer;
        }
    };
    // Keys that it reads from then on are told as before.
    reader.ask("GET k");
    assert_eq!(answer(&mut reader), "null");
    assert_eq!(zero.call("SET k w"), "+OK");
    assert_eq!(answer(&mut reader), ">(invalidate (k))");
}

#[tokio::test]
async fn clients_of_other_doors_find_the_entries_of_now_and_a_near_cache_serves_no_others() {
    let server = server(&[]);
    let mut zero = at(&server, 0);
    let client = server.client("tcp").await;
    let cache = client.cache("db0");
    // Only the watch can invalidate an entry before the end of the test.
    let near = cache.clone().near(NearSettings { stale_max: Duration::from_secs(600), ..NearSettings::default() });
    let text = async |key: &str| {
        let found = within("a get", near.get(key.to_owned())).await.expect("answered");
        found.map(|found| String::from_utf8_lossy(&found.value).into_owned())
    };
    expect(&mut zero, &[("SET k zero", "+OK"), ("SET only 1", "+OK"), ("SELECT 1", "+OK"), ("SET k one", "+OK")]);
    until("the watch", async || {
        text("k").await;
        near.near_stats().expect("a near cache").is_live
    })
    .await;
    for (before, after) in [("zero", "one"), ("one", "zero"), ("zero", "one")] {
        until("the value", async || text("k").await.as_deref() == Some(before)).await;
        let known = within("a get", cache.get("k")).await.expect("answered").expect("it exists").version;
        text("only").await;
        assert_eq!(zero.call("SWAPDB 1 0"), "+OK");
        until("the other value", async || text("k").await.as_deref() == Some(after)).await;
        assert_eq!(text("only").await.is_some(), after == "zero");
        // A version from before is none of the value that the key has now.
        let late = cache.put_with("k", "late", client::Ttl::Kept, client::Condition::IfVersion(known)).await;
        let late = late.expect("answered");
        assert!(matches!(late, client::Stored::Unmet { current: Some(current) } if current > known), "{late:?}");
    }
    let resets = near.near_stats().expect("a near cache").resets;
    assert!(resets >= 3, "{resets}");
    assert_eq!(on(&server, ["cache", "get", "db1", "k"]).ok().trim_end(), "zero");
}

#[tokio::test]
async fn durable_databases_have_exchanged_their_keys_after_a_kill() {
    let dir = TempDir::new().expect("a folder");
    let data = format!("data={}", dir.path().display());
    let mut server = server(&[&data, "redis_durable=true"]);
    let mut zero = at(&server, 0);
    expect(&mut zero, &[("SET k zero", "+OK"), ("RPUSH l a", ":1"), ("SELECT 1", "+OK"), ("SET k one", "+OK")]);
    expect(&mut zero, &[("SWAPDB 0 1", "+OK"), ("RPUSH l b", ":2")]);
    let commands = ["SET t before", "SWAPDB 1 2", "SET t after", "SELECT 2", "APPEND t -later"];
    assert_eq!(transact(&mut zero, &commands), "(+OK +OK +OK +OK :12)");
    for round in 0..2 {
        server.crash_and_restart();
        for (database, calls) in [
            (0, &[("GET k", "one"), ("DBSIZE", ":1")][..]),
            (1, &[("GET t", "after"), ("DBSIZE", ":1")][..]),
            (2, &[("GET k", "zero"), ("LRANGE l 0 -1", "(a b)"), ("GET t", "before-later"), ("DBSIZE", ":3")][..]),
        ] {
            let mut redis = at(&server, database);
            for (call, answer) in calls {
                assert_eq!(redis.call(call), *answer, "{call}, database {database}, round {round}");
            }
        }
    }
    let mut zero = at(&server, 0);
    expect(&mut zero, &[("SWAPDB 2 0", "+OK"), ("GET k", "zero")]);
}
