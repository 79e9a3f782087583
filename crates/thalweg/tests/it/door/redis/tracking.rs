//! `CLIENT TRACKING`: what tracking clients receive when keys that they have read are changed. The rules are those of
//! "Client-side caching" in the documentation of Redis, and of `tracking.c` of Redis 7.0.

use super::commands::{Redis, server};
use crate::support::server::{Server, metric, until};

/// Returns a connection that speaks RESP3.
fn resp3(server: &Server) -> Redis {
    let mut redis = Redis::open(server);
    assert!(redis.call("HELLO 3").contains("redis"));
    redis
}

/// Returns the number of a connection.
fn id_of(redis: &mut Redis) -> String {
    redis.call("CLIENT ID").trim_start_matches(':').to_owned()
}

/// Returns the invalidations that a client has received so far.
fn received(redis: &mut Redis) -> Vec<String> {
    redis.ask("PING end");
    let mut received = Vec::new();
    loop {
        let answer = redis.answer();
        if answer == "end" || answer == "(pong end)" {
            return received;
        }
        received.push(answer);
    }
}

const NONE: [&str; 0] = [];

#[tokio::test]
async fn a_client_is_told_once_about_each_key_that_it_has_read() {
    let server = server(&[]);
    let client = server.client("tcp").await;
    let mut reader = resp3(&server);
    let mut writer = Redis::open(&server);
    assert_eq!(reader.call("CLIENT TRACKING ON"), "+OK");
    assert_eq!((reader.call("GET k"), reader.call("HGETALL h")), ("null".to_owned(), "%()".to_owned()));
    assert_eq!(metric(&client, "thalweg_redis_tracked_keys").await, 2);
    assert_eq!((writer.call("SET k 1"), writer.call("SET k 2")), ("+OK".to_owned(), "+OK".to_owned()));
    assert_eq!(reader.answer(), ">(invalidate (k))");
    assert_eq!(writer.call("SET other 1"), "+OK");
    assert_eq!(received(&mut reader), NONE);
    // Keys that expire, in a transaction, of a script, and changed through another door.
    assert_eq!(reader.call("MGET a b c d"), "(null null null null)");
    assert_eq!((writer.call("MULTI"), writer.call("SET a 1 PX 30"), writer.call("INCR b")).2, "+QUEUED");
    assert_eq!(writer.call("EXEC"), "(+OK :1)");
    assert_eq!((reader.answer(), reader.answer()), (">(invalidate (a))".to_owned(), ">(invalidate (b))".to_owned()));
    assert_eq!(reader.call("EXISTS a"), ":1");
    assert_eq!(reader.answer(), ">(invalidate (a))");
    writer.send(&super::commands::request(&[b"EVAL", b"return redis.call('SET', KEYS[1], 1)", b"1", b"c"]));
    assert_eq!((writer.answer(), reader.answer()), ("+OK".to_owned(), ">(invalidate (c))".to_owned()));
    client.cache("db0").put("d", "1").await.expect("put");
    assert_eq!(reader.answer(), ">(invalidate (d))");
    // Its own changes, after their replies.
    assert_eq!((reader.call("GET k"), reader.call("SET k 3")), ("2".to_owned(), "+OK".to_owned()));
    assert_eq!(reader.answer(), ">(invalidate (k))");
    assert_eq!((reader.call("GET k"), writer.call("FLUSHDB")), ("3".to_owned(), "+OK".to_owned()));
    assert_eq!(reader.answer(), ">(invalidate null)");
    assert_eq!(reader.call("CLIENT TRACKING OFF"), "+OK");
    assert_eq!((reader.call("GET k"), writer.call("SET k 4")), ("null".to_owned(), "+OK".to_owned()));
    assert_eq!(received(&mut reader), NONE);
    assert_eq!(metric(&client, "thalweg_redis_tracking_clients").await, 0);
}

#[tokio::test]
async fn clients_choose_what_is_tracked() {
    let server = server(&[]);
    let mut reader = resp3(&server);
    let mut writer = Redis::open(&server);
    let mut change = |key: &str| assert_eq!(writer.call(&format!("SET {key} v")), "+OK");
    assert_eq!(reader.call("CLIENT TRACKING ON OPTIN NOLOOP"), "+OK");
    assert_eq!(reader.call("GET a"), "null");
    assert_eq!((reader.call("CLIENT CACHING YES"), reader.call("GET b")), ("+OK".to_owned(), "null".to_owned()));
    assert_eq!(reader.call("GET c"), "null");
    assert!(reader.call("CLIENT INFO").contains(" flags=t "), "{}", reader.call("CLIENT INFO"));
    assert_eq!(reader.call("CLIENT GETREDIR"), ":0");
    assert_eq!(reader.call("CLIENT TRACKINGINFO"), "%(flags ~(on optin noloop) redirect :0 prefixes ())");
    ["a", "b", "c"].into_iter().for_each(&mut change);
    assert_eq!(reader.answer(), ">(invalidate (b))");
    assert_eq!((reader.call("CLIENT CACHING YES"), reader.call("GET b")), ("+OK".to_owned(), "v".to_owned()));
    assert_eq!(reader.call("SET b 2"), "+OK");
    assert_eq!(received(&mut reader), NONE);
    let refused = "-ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.";
    assert_eq!(reader.call("CLIENT CACHING NO"), refused);
    assert_eq!(
        reader.call("CLIENT TRACKING ON OPTOUT"),
        "-ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, and then re-enabling it \
         with a different mode."
    );
    assert_eq!(reader.call("CLIENT TRACKING OFF"), "+OK");
    assert_eq!(reader.call("CLIENT TRACKING ON OPTOUT"), "+OK");
    assert_eq!((reader.call("CLIENT CACHING NO"), reader.call("GET a")), ("+OK".to_owned(), "v".to_owned()));
    assert_eq!(reader.call("GET c"), "v");
    ["a", "c"].into_iter().for_each(&mut change);
    assert_eq!(reader.answer(), ">(invalidate (c))");
    assert_eq!(received(&mut reader), NONE);
    assert_eq!(reader.call("CLIENT TRACKING OFF"), "+OK");
    assert_eq!(reader.call("CLIENT TRACKING ON BCAST PREFIX user: PREFIX item:"), "+OK");
    assert!(reader.call("CLIENT TRACKING ON BCAST PREFIX user:1").starts_with("-ERR Prefix 'user:1' overlaps"));
    assert!(reader.call("CLIENT INFO").contains(" flags=tB "));
    ["user:1", "other", "item:1"].into_iter().for_each(&mut change);
    // Keys that change while the connection is busy come in one message, as in Redis.
    let mut both = reader.answer();
    if both == ">(invalidate (user:1))" {
        both = format!("{both} {}", reader.answer());
    }
    let separate = ">(invalidate (user:1)) >(invalidate (item:1))";
    assert!(both == separate || both == ">(invalidate (item:1 user:1))", "{both}");
    assert_eq!(received(&mut reader), NONE);
}

#[tokio::test]
async fn invalidations_are_redirected_until_their_receiver_has_gone() {
    let server = server(&[]);
    let mut reader = resp3(&server);
    let mut writer = Redis::open(&server);
    let mut receiver = Redis::open(&server);
    let id = id_of(&mut receiver);
    assert_eq!(
        reader.call("CLIENT TRACKING ON REDIRECT 9999"),
        "-ERR The client ID you want redirect to does not exist"
    );
    assert_eq!(receiver.call("SUBSCRIBE __redis__:invalidate"), "(subscribe __redis__:invalidate :1)");
    assert_eq!(reader.call(&format!("CLIENT TRACKING ON REDIRECT {id}")), "+OK");
    assert_eq!(reader.call("CLIENT GETREDIR"), format!(":{id}"));
    assert_eq!((reader.call("GET k"), writer.call("SET k 1")), ("null".to_owned(), "+OK".to_owned()));
    assert_eq!(receiver.answer(), "(message __redis__:invalidate (k))");
    assert_eq!(writer.call("FLUSHALL"), "+OK");
    assert_eq!(receiver.answer(), "(message __redis__:invalidate nil)");
    assert_eq!(received(&mut reader), NONE);
    assert_eq!(
        (reader.call("GET k"), writer.call(&format!("CLIENT KILL ID {id}"))),
        ("null".to_owned(), ":1".to_owned())
    );
    assert_eq!(writer.call("SET k 2"), "+OK");
    assert_eq!(reader.answer(), format!(">(tracking-redir-broken :{id})"));
    assert!(reader.call("CLIENT INFO").contains(" flags=tR "));
}

#[tokio::test]
async fn the_table_of_tracked_keys_is_bounded_by_invalidating_some() {
    let server = server(&[]);
    let client = server.client("tcp").await;
    let mut reader = resp3(&server);
    assert_eq!(reader.call("CONFIG SET tracking-table-max-keys 10"), "+OK");
    assert_eq!(reader.call("CLIENT TRACKING ON"), "+OK");
    for number in 0..100 {
        reader.ask(&format!("GET k{number}"));
    }
    let answers: Vec<String> = (0..190).map(|_| reader.answer()).collect();
    let mut invalidated: Vec<&String> = answers.iter().filter(|answer| answer.starts_with(">(invalidate (k")).collect();
    invalidated.sort_unstable();
    invalidated.dedup();
    assert_eq!(invalidated.len(), 90);
    assert_eq!(metric(&client, "thalweg_redis_tracked_keys").await, 10);
    assert_eq!(metric(&client, "thalweg_redis_tracked_keys_evicted_total").await, 90);
}

/// Sends commands together, so that the broker reads them in one turn.
fn send_together(redis: &mut Redis, commands: &[&str]) {
    let each = commands.iter().map(|words| {
        let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        super::commands::request(&words)
    });
    redis.send(&each.collect::<Vec<_>>().concat());
}

#[tokio::test]
async fn invalidations_that_are_queued_survive_a_change_of_the_options() {
    let server = server(&[]);
    let mut reader = resp3(&server);
    assert_eq!((reader.call("CLIENT TRACKING ON"), reader.call("GET k")), ("+OK".to_owned(), "null".to_owned()));
    send_together(&mut reader, &["SET k 1", "CLIENT TRACKING ON NOLOOP", "GET other"]);
    assert_eq!(reader.answer(), "+OK");
    // The invalidation follows the reply to the change. Other replies may come before it.
    let (invalidations, replies): (Vec<_>, Vec<_>) =
        (0..3).map(|_| reader.answer()).partition(|answer| answer.starts_with(">(invalidate"));
    assert_eq!((invalidations, replies), (vec![">(invalidate (k))".into()], vec!["+OK".into(), "null".to_owned()]));
    // Keys from before are still tracked, with the new options.
    assert_eq!((reader.call("SET other 1"), reader.call("PING")), ("+OK".to_owned(), "+PONG".to_owned()));
}

#[tokio::test]
async fn a_client_that_reads_slowly_is_told_that_all_keys_have_changed() {
    let server = server(&[]);
    let client = server.client("tcp").await;
    let mut reader = resp3(&server);
    let mut writer = Redis::open(&server);
    let value = "v".repeat(4 << 20);
    assert_eq!(writer.call(&format!("SET large {value}")), "+OK");
    assert_eq!(reader.call("CLIENT TRACKING ON BCAST"), "+OK");
    // Its own replies fill the connection, and it has not read them yet.
    let replies = 8;
    (0..replies).for_each(|_| reader.ask("GET large"));
    let key = "k".repeat(60_000);
    for number in 0..100 {
        assert_eq!(writer.call(&format!("SET {key}{number} v")), "+OK");
    }
    assert_eq!(writer.call("SET last v"), "+OK");
    let (mut values, mut has_received_all, mut is_last) = (0, false, false);
    while values < replies || !is_last {
        let answer = reader.answer();
        values += i32::from(answer == value);
        // The last change may be among those that became one, and values may follow.
        is_last |= answer == ">(invalidate null)" || answer.ends_with("last))");
        has_received_all |= answer == ">(invalidate null)";
    }
    assert!(has_received_all);
    assert_eq!(metric(&client, "thalweg_redis_slow_tracking_clients_total").await, 0);
}

#[tokio::test]
async fn a_client_that_does_not_read_at_all_takes_bounded_memory() {
    let server = server(&[]);
    let client = server.client("tcp").await;
    let mut reader = resp3(&server);
    assert_eq!(reader.call("CLIENT TRACKING ON BCAST"), "+OK");
    let mut writer = Redis::open(&server);
    let key = "k".repeat(60_000);
    for number in 0..1000 {
        assert_eq!(writer.call(&format!("SET {key}{number} v")), "+OK");
    }
    // 60 MB of keys were changed.
    let waiting = metric(&client, "thalweg_outbox_bytes_high_water").await;
    assert!(waiting < 4 << 20, "{waiting}");
    drop(reader);
    until("no tracking client", async || metric(&client, "thalweg_redis_tracking_clients").await == 0).await;
}

#[tokio::test]
async fn prefixes_and_long_keys_take_bounded_memory() {
    let server = server(&[]);
    let client = server.client("tcp").await;
    let mut reader = resp3(&server);
    let many: String = (0..20_000).map(|number| format!(" PREFIX p{number:05}")).collect();
    let refused = "-ERR a client tracks at most 1024 prefixes of 65536 bytes together: use shorter ones";
    assert_eq!(reader.call(&format!("CLIENT TRACKING ON BCAST{many}")), refused);
    assert_eq!(reader.call(&format!("CLIENT TRACKING ON BCAST PREFIX {}", "p".repeat(70_000))), refused);
    let long = reader.call(&format!("CLIENT TRACKING ON BCAST PREFIX {}", "p".repeat(1025)));
    assert_eq!(long, "-ERR a prefix has at most 1024 bytes: use a shorter one");
    let first: String = (0..1024).map(|number| format!(" PREFIX p{number:05}")).collect();
    assert_eq!(reader.call(&format!("CLIENT TRACKING ON BCAST{first}")), "+OK");
    assert_eq!(reader.call("CLIENT TRACKING ON BCAST PREFIX q"), refused);
    assert_eq!(reader.call("CLIENT TRACKING OFF"), "+OK");
    assert_eq!(reader.call("CLIENT TRACKING ON"), "+OK");
    // No value has such a key.
    assert_eq!(reader.call(&format!("EXISTS {} k", "k".repeat(70_000))), ":0");
    assert_eq!(metric(&client, "thalweg_redis_tracked_keys").await, 1);
}

/// `resetClient` in `networking.c` of Redis 7.0 ends `CLIENT CACHING` after any other command.
#[tokio::test]
async fn commands_about_the_client_run_in_their_order() {
    let server = server(&[]);
    let client = server.client("tcp").await;
    let mut redis = resp3(&server);
    for words in ["MULTI", "CLIENT SETNAME a", "SET k 1", "CLIENT TRACKING ON", "CLIENT GETNAME", "GET k"] {
        redis.call(words);
    }
    // What the transaction reads is remembered before it runs.
    let refused =
        "-ERR CLIENT TRACKING and CLIENT CACHING are not allowed inside a transaction: send them before MULTI";
    assert_eq!(redis.call("EXEC"), format!("(+OK +OK {refused} a 1)"));
    assert_eq!(redis.call("CLIENT TRACKING ON OPTIN"), "+OK");
    assert_eq!((redis.call("MULTI"), redis.call("MONITOR")), ("+OK".to_owned(), "+QUEUED".to_owned()));
    assert_eq!(redis.call("EXEC"), "(-ERR MONITOR isn't allowed for DENY BLOCKING client)");
    assert_eq!(redis.call("CLIENT CACHING YES"), "+OK");
    assert!(redis.call("NOSUCH").starts_with("-ERR unknown command"));
    assert_eq!(redis.call("GET k"), "1");
    assert_eq!(metric(&client, "thalweg_redis_tracked_keys").await, 0);
    assert_eq!((redis.call("CLIENT CACHING YES"), redis.call("GET k")), ("+OK".to_owned(), "1".to_owned()));
    assert_eq!(metric(&client, "thalweg_redis_tracked_keys").await, 1);
}

#[tokio::test]
async fn an_entry_invalidates_its_stream_even_if_its_client_is_killed_before_it_is_durable() {
    let directory = tempfile::tempdir().expect("created");
    let data = format!("data={}", directory.path().display());
    let server = server(&[&data, "redis_durable=true"]);
    let client = server.client("tcp").await;
    let (mut reader, mut other) = (resp3(&server), Redis::open(&server));
    assert!(other.call("XADD s * f v").contains('-'));
    assert_eq!(reader.call("CLIENT TRACKING ON"), "+OK");
    let (mut entries, mut killed) = (1, 0);
    for _ in 0..20 {
        assert_eq!(reader.call("XLEN s"), format!(":{entries}"));
        let mut writer = Redis::open(&server);
        let id = id_of(&mut writer);
        writer.ask("XADD s * f v");
        assert_eq!(other.call(&format!("CLIENT KILL ID {id}")), ":1");
        until("the end of the connection", async || metric(&client, "thalweg_redis_clients").await == 2).await;
        // This write follows that of the entry, if there is one.
        assert_eq!(other.call("SET after v"), "+OK");
        if other.call("XLEN s") == format!(":{}", entries + 1) {
            entries += 1;
            killed += i32::from(writer.try_answer().is_none());
            assert_eq!(reader.answer(), ">(invalidate (s))");
        }
    }
    assert!(killed > 0, "no client was killed before its entry was durable");
}
