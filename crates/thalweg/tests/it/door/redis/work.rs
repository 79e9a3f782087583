//! Commands of the Redis door over many members and keys: their results, and their effect on other clients.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::commands::{Redis, request, server};
use crate::support::server::{metric, size, until};

const MEMBERS: usize = 20_000;

/// Creates a set, or a sorted set, with members that begin with this prefix.
fn fill(redis: &mut Redis, key: &str, prefix: &str, members: std::ops::Range<usize>, is_sorted: bool) {
    for from in members.clone().step_by(5000) {
        let names: Vec<String> = (from..members.end.min(from + 5000)).map(|i| format!("{prefix}{i:06}")).collect();
        let mut words: Vec<&[u8]> = vec![if is_sorted { b"ZADD" } else { b"SADD" }, key.as_bytes()];
        for name in &names {
            if is_sorted {
                words.push(b"2");
            }
            words.push(name.as_bytes());
        }
        redis.send(&request(&words));
        assert_eq!(redis.answer(), format!(":{}", names.len()));
    }
}

/// Returns a command that names the same key `times` times.
fn many(command: &str, key: &str, times: usize) -> Vec<u8> {
    let count = times.to_string();
    let mut words: Vec<&[u8]> = vec![command.as_bytes(), count.as_bytes()];
    words.extend(std::iter::repeat_n(key.as_bytes(), times));
    request(&words)
}

#[tokio::test]
async fn commands_over_many_members_leave_others_their_turn_and_end_with_their_clients() {
    let mut server = server(&[]);
    let client = server.client("tcp").await;
    let mut other = Redis::open(&server);
    fill(&mut other, "s", "m", 0..MEMBERS, false);
    let connections = size("HARDENING_CONNECTIONS", 4);
    let mut busy: Vec<Redis> = (0..connections).map(|_| Redis::open(&server)).collect();
    // Each of them takes minutes.
    busy.iter_mut().for_each(|redis| redis.send(&many("ZUNION", "s", 800)));
    until("commands in slices", async || metric(&client, "thalweg_redis_slices_waiting").await == connections as u64)
        .await;
    let mut longest = Duration::ZERO;
    for _ in 0..size("HARDENING_CALLS", 50) {
        let begin = Instant::now();
        assert_eq!(other.call("SET k v"), "+OK");
        assert_eq!(other.call("SADD s more"), if longest.is_zero() { ":1" } else { ":0" });
        longest = longest.max(begin.elapsed());
    }
    assert!(longest < Duration::from_secs(3), "{longest:?}");
    // Smaller commands do not wait for them.
    assert_eq!(other.call("SINTERCARD 2 s s"), format!(":{}", MEMBERS + 1));
    drop(busy);
    until("the end of the work without a waiter", async || metric(&client, "thalweg_redis_slices_waiting").await == 0)
        .await;
    let mut stays = Redis::open(&server);
    stays.send(&many("ZUNION", "s", 800));
    until("a command in slices", async || metric(&client, "thalweg_redis_slices_waiting").await == 1).await;
    server.signal(Signal::TERM);
    drop((stays, other, client));
    assert_eq!(server.ended().await.code(), Some(0));
}

#[tokio::test]
async fn sets_combined_in_slices_equal_those_combined_in_one_step() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    fill(&mut redis, "a", "m", 0..MEMBERS, false);
    fill(&mut redis, "b", "m", MEMBERS / 2..MEMBERS * 2, false);
    fill(&mut redis, "z", "m", 0..MEMBERS, true);
    assert_eq!(redis.call("SUNIONSTORE u a b"), format!(":{}", MEMBERS * 2));
    assert_eq!(redis.call("SCARD u"), format!(":{}", MEMBERS * 2));
    assert_eq!(redis.call("SINTERSTORE i a b nothing"), ":0");
    assert_eq!(redis.call("SINTERSTORE i a b"), format!(":{}", MEMBERS / 2));
    assert_eq!(redis.call("SDIFFSTORE d a b"), format!(":{}", MEMBERS / 2));
    assert_eq!(redis.call("SMISMEMBER d m000000 m015000"), "(:1 :0)");
    assert_eq!(redis.call("ZUNIONSTORE zu 3 a z b WEIGHTS 1 10 100"), format!(":{}", MEMBERS * 2));
    assert_eq!(redis.call("ZMSCORE zu m000000 m015000 m025000"), "(21 121 100)");
    assert_eq!(redis.call("ZINTERSTORE zi 2 z b AGGREGATE MIN"), format!(":{}", MEMBERS / 2));
    assert_eq!(redis.call("ZSCORE zi m015000"), "1");
    assert_eq!(redis.call("ZDIFFSTORE zd 2 z b"), format!(":{}", MEMBERS / 2));
    assert_eq!(redis.call("ZINTERCARD 2 z b LIMIT 7"), ":7");
    let union = redis.call("SUNION a b");
    assert_eq!(union.split(' ').count(), MEMBERS * 2);
    assert!(redis.call("ZDIFF 2 z b WITHSCORES").starts_with("(m000000 2 m000001 2 "));
    // A key of a wrong type at any position, and a destination that is replaced.
    assert_eq!(redis.call("SET text t"), "+OK");
    assert!(redis.call("SUNION a b text").starts_with("-WRONGTYPE"));
    assert_eq!(redis.call("SUNIONSTORE text a b"), format!(":{}", MEMBERS * 2));
    assert_eq!(redis.call("TYPE text"), "+set");
}

#[tokio::test]
async fn all_keys_of_a_large_database_come_once() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    for from in (0..MEMBERS).step_by(5000) {
        let names: Vec<String> = (from..from + 5000).map(|i| format!("key{i:06}")).collect();
        let mut words: Vec<&[u8]> = vec![b"MSET"];
        names.iter().for_each(|name| words.extend([name.as_bytes(), b"v"]));
        redis.send(&request(&words));
        assert_eq!(redis.answer(), "+OK");
    }
    let all = redis.call("KEYS *");
    let mut names: Vec<&str> = all.trim_matches(['(', ')']).split(' ').collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!((names.len(), names[0], names[MEMBERS - 1]), (MEMBERS, "key000000", "key019999"));
    assert_eq!(redis.call("KEYS key00001?").split(' ').count(), 10);
    assert_eq!(redis.call("KEYS nothing*"), "()");
    // In a transaction all of them are one step, which has a limit on its work.
    assert_eq!(redis.call("MULTI"), "+OK");
    for _ in 0..20 {
        assert_eq!(redis.call("KEYS nothing*"), "+QUEUED");
    }
    let answers = redis.call("EXEC");
    assert_eq!(answers.matches("()").count(), 262_144 / MEMBERS, "{answers}");
    assert!(answers.contains("read at most 262144 members, keys and items together"), "{answers}");
}

#[tokio::test]
async fn commands_that_read_too_much_are_refused_with_the_limit() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    fill(&mut redis, "s", "m", 0..MEMBERS, false);
    redis.send(&many("ZUNION", "s", 1000));
    let refused = redis.answer();
    assert!(refused.starts_with("-ERR the command reads 20001000 members") && refused.contains("16777216"));
    let mut words: Vec<&[u8]> = vec![b"SUNIONSTORE", b"to"];
    words.extend(std::iter::repeat_n(&b"s"[..], 1000));
    redis.send(&request(&words));
    assert!(redis.answer().contains("16777216"));
    assert_eq!(redis.call("EXISTS to"), ":0");
    // An intersection is computed from the smallest set.
    redis.send(&many("SINTERCARD", "s", 800));
    assert_eq!(redis.answer(), format!(":{MEMBERS}"));
    let patterns: String = ('a'..='l').map(|letter| format!(" GET {letter}_*")).collect();
    assert!(redis.call(&format!("SORT s BY nothing_*{patterns}")).contains("at most 262144"));
    assert_eq!(redis.call(&format!("SETBIT bits {} 1", (8 << 20) * 8 - 1)), ":0");
    let mut words: Vec<&[u8]> = vec![b"BITOP", b"OR", b"to"];
    words.extend(std::iter::repeat_n(&b"bits"[..], 9));
    redis.send(&request(&words));
    let refused = redis.answer();
    assert!(refused.contains("at most 262144"), "{refused}");
}

#[tokio::test]
async fn lists_of_many_channels_run_in_slices() {
    let server = server(&[]);
    let client = server.client("tcp").await;
    let mut subscriber = Redis::open(&server);
    let names: Vec<String> = (0..3000).map(|number| format!("c{number:05}")).collect();
    let with_names = |words: &[&'static str]| {
        let words = words.iter().copied().chain(names.iter().map(String::as_str));
        request(&words.map(str::as_bytes).collect::<Vec<_>>())
    };
    for command in ["SUBSCRIBE", "SSUBSCRIBE"] {
        subscriber.send(&with_names(&[command]));
        names.iter().for_each(|name| assert!(subscriber.answer().contains(name)));
    }
    let mut redis = Redis::open(&server);
    let all = format!("({})", names.join(" "));
    assert_eq!((redis.call("PUBSUB CHANNELS"), redis.call("PUBSUB SHARDCHANNELS")), (all.clone(), all));
    let some: Vec<&str> = names.iter().map(String::as_str).filter(|name| name.ends_with("17")).collect();
    assert_eq!(redis.call("PUBSUB CHANNELS c0*17"), format!("({})", some.join(" ")));
    redis.send(&with_names(&["PUBSUB", "NUMSUB", "none"]));
    let counts: Vec<String> = names.iter().map(|name| format!("{name} :1")).collect();
    assert_eq!(redis.answer(), format!("(none :0 {})", counts.join(" ")));
    assert_eq!(redis.call("PUBSUB SHARDNUMSUB c00007 none"), "(c00007 :1 none :0)");
    assert_eq!(metric(&client, "thalweg_redis_sliced_total").await, 4);
    // A transaction does not wait for slices.
    for words in ["MULTI", "PUBSUB CHANNELS", "PUBSUB NUMSUB c00007"] {
        redis.call(words);
    }
    let refused = "-ERR the command visits too many channels for a transaction: send it outside of the transaction";
    assert_eq!(redis.call("EXEC"), format!("({refused} (c00007 :1))"));
    assert_eq!(metric(&client, "thalweg_redis_slices_waiting").await, 0);
    drop(subscriber);
    until("no channel", async || redis.call("PUBSUB CHANNELS") == "()").await;
    // The patterns of one command are few.
    let patterns = |count: usize| format!("CONFIG GET{}", " hz".repeat(count));
    assert_eq!(redis.call(&patterns(64)), "(hz 10)");
    assert_eq!(redis.call(&patterns(65)), "-ERR CONFIG GET takes at most 64 patterns: use several commands, or *");
}
