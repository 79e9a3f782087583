//! Keyspace events of the Redis door, as its subscribers receive them. That each command publishes the events of
//! redis-server is shown by `compat/redis/differential`.

use super::commands::{Redis, server};
use crate::support::server::{Server, metric, until};

/// Returns a subscriber of all events of the server.
fn subscriber(server: &Server) -> Redis {
    let mut redis = Redis::open(server);
    assert_eq!(redis.call("PSUBSCRIBE __key*@*__:*"), "(psubscribe __key*@*__:* :1)");
    redis
}

/// Returns the messages that the subscriber has received so far, without the pattern.
fn received(redis: &mut Redis) -> Vec<String> {
    redis.ask("PING end");
    let mut received = Vec::new();
    loop {
        let answer = redis.answer();
        if answer == "(pong end)" {
            return received;
        }
        let message = answer.strip_prefix("(pmessage __key*@*__:* ").and_then(|rest| rest.strip_suffix(')'));
        received.push(message.unwrap_or_else(|| panic!("no message: {answer}")).to_owned());
    }
}

#[tokio::test]
async fn events_name_the_key_the_database_and_what_was_done() {
    let server = server(&["redis_keyspace_events=KEA"]);
    let mut redis = Redis::open(&server);
    assert_eq!(redis.call("CONFIG GET notify-keyspace-events"), "(notify-keyspace-events AKE)");
    let mut events = subscriber(&server);
    assert_eq!(redis.call("SET k v EX 100"), "+OK");
    let set = ["__keyspace@0__:k set", "__keyevent@0__:set k", "__keyspace@0__:k expire", "__keyevent@0__:expire k"];
    assert_eq!(received(&mut events), set);
    assert_eq!((redis.call("SELECT 3"), redis.call("RPUSH l a")), ("+OK".to_owned(), ":1".to_owned()));
    assert_eq!(redis.call("LPOP l"), "a");
    assert_eq!(
        received(&mut events),
        [
            "__keyspace@3__:l rpush",
            "__keyevent@3__:rpush l",
            "__keyspace@3__:l lpop",
            "__keyevent@3__:lpop l",
            "__keyspace@3__:l del",
            "__keyevent@3__:del l"
        ]
    );
    // Only the wanted classes, to the wanted kind of channel.
    assert_eq!(redis.call("CONFIG SET notify-keyspace-events Kl"), "+OK");
    assert_eq!((redis.call("SET k v"), redis.call("RPUSH l a")), ("+OK".to_owned(), ":1".to_owned()));
    assert_eq!(received(&mut events), ["__keyspace@3__:l rpush"]);
    let why = "-ERR CONFIG SET failed (possibly related to argument 'notify-keyspace-events') - Invalid event class \
               character. Use 'Ag$lshzxeKEtmdn'.";
    assert_eq!(redis.call("CONFIG SET notify-keyspace-events Kq"), why);
    assert_eq!(redis.call("CONFIG GET notify-keyspace-events"), "(notify-keyspace-events lK)");
    assert_eq!(
        (redis.call("CONFIG SET notify-keyspace-events :"), redis.call("RPUSH l b")),
        (why.to_owned(), ":2".to_owned())
    );
    assert_eq!(received(&mut events), ["__keyspace@3__:l rpush"]);
}

#[tokio::test]
async fn steps_scripts_and_other_doors_publish_their_effects() {
    let server = server(&["redis_keyspace_events=EAnm"]);
    let mut redis = Redis::open(&server);
    let mut events = subscriber(&server);
    assert_eq!(redis.call("MULTI"), "+OK");
    for queued in ["INCR n", "SADD s a", "RENAME s t", "XADD x 1-1 f v"] {
        assert_eq!(redis.call(queued), "+QUEUED");
    }
    assert_eq!(redis.call("EXEC"), "(:1 :1 +OK 1-1)");
    assert_eq!(
        received(&mut events),
        [
            "__keyevent@0__:new n",
            "__keyevent@0__:incrby n",
            "__keyevent@0__:new s",
            "__keyevent@0__:sadd s",
            "__keyevent@0__:new t",
            "__keyevent@0__:rename_to t",
            "__keyevent@0__:rename_from s",
            "__keyevent@0__:new x",
            "__keyevent@0__:xadd x"
        ]
    );
    redis.send(&super::commands::request(&[
        b"EVAL",
        b"redis.call('SREM', KEYS[1], 'a') return redis.call('GET', KEYS[1])",
        b"1",
        b"t",
    ]));
    assert_eq!(redis.answer(), "nil");
    assert_eq!(received(&mut events), ["__keyevent@0__:srem t", "__keyevent@0__:del t", "__keyevent@0__:keymiss t"]);
    let cache = server.client("tcp").await.cache("db0");
    cache.put("native", "1").await.expect("put");
    assert!(cache.delete("native").await.expect("deleted"));
    assert_eq!(
        received(&mut events),
        ["__keyevent@0__:new native", "__keyevent@0__:set native", "__keyevent@0__:del native"]
    );
    // A client that is served while it blocks takes the item after the push.
    let mut blocked = Redis::open(&server);
    blocked.ask("BLMOVE a b LEFT RIGHT 0");
    super::commands::until_blocked(&server, 1).await;
    assert_eq!(redis.call("RPUSH a one"), ":1");
    assert_eq!(blocked.answer(), "one");
    let served = received(&mut events);
    let order = ["rpush a", "lpop a", "del a", "new b", "rpush b"].map(|event| format!("__keyevent@0__:{event}"));
    let found: Vec<_> = served.iter().filter(|event| order.contains(event)).cloned().collect();
    assert_eq!(found, order, "{served:?}");
}

#[tokio::test]
async fn keys_that_expire_or_are_evicted_publish_it_when_it_happens() {
    let server = server(&["redis_keyspace_events=Exe"]);
    let mut redis = Redis::open(&server);
    let mut events = subscriber(&server);
    // No client reads this key: the broker removes it.
    assert_eq!(redis.call("SET gone v PX 20"), "+OK");
    assert_eq!(events.answer(), "(pmessage __key*@*__:* __keyevent@0__:expired gone)");
    assert_eq!(redis.call("GET gone"), "nil");
    assert_eq!(received(&mut events), [""; 0]);
    // An expiry time in the past removes the key at once, which is no expiry.
    assert_eq!((redis.call("SET k v"), redis.call("PEXPIREAT k 1")), ("+OK".to_owned(), ":1".to_owned()));
    assert_eq!(received(&mut events), [""; 0]);
    let client = server.client("tcp").await;
    let settings = client::CacheSettings {
        bytes_max: Some(256 << 10),
        eviction: client::Eviction::S3Fifo,
        ..client::CacheSettings::default()
    };
    client.create_cache("db5", settings).await.expect("created");
    assert_eq!(redis.call("SELECT 5"), "+OK");
    let value = "v".repeat(1000);
    let mut evicted = Vec::new();
    for number in 0..1000 {
        assert_eq!(redis.call(&format!("SET key{number} {value}")), "+OK");
        evicted.extend(received(&mut events));
    }
    let left = redis.call("DBSIZE");
    let left: usize = left.trim_start_matches(':').parse().expect("a number");
    assert_eq!(evicted.len() + left, 1000);
    assert!(evicted.iter().all(|event| event.starts_with("__keyevent@5__:evicted key")), "{evicted:?}");
}

#[tokio::test]
async fn subscriptions_of_events_end_and_a_subscriber_that_does_not_read_is_disconnected() {
    let server = server(&["redis_keyspace_events=KA"]);
    let client = server.client("tcp").await;
    let mut redis = Redis::open(&server);
    let mut events = Redis::open(&server);
    assert_eq!(events.call("SUBSCRIBE __keyspace@0__:k"), "(subscribe __keyspace@0__:k :1)");
    assert_eq!((redis.call("SET k 1"), redis.call("SET other 1")), ("+OK".to_owned(), "+OK".to_owned()));
    assert_eq!(events.answer(), "(message __keyspace@0__:k set)");
    assert_eq!(events.call("UNSUBSCRIBE"), "(unsubscribe __keyspace@0__:k :0)");
    assert_eq!(metric(&client, "thalweg_redis_event_subscriptions").await, 0);
    assert_eq!((redis.call("SET k 2"), events.call("PING")), ("+OK".to_owned(), "+PONG".to_owned()));
    let slow = subscriber(&server);
    let key = "k".repeat(60_000);
    until("the end of the slow subscriber", async || {
        assert_eq!(redis.call(&format!("SET {key} v")), "+OK");
        metric(&client, "thalweg_redis_slow_event_subscribers_total").await == 1
    })
    .await;
    drop(slow);
    until("no subscription", async || metric(&client, "thalweg_redis_event_subscriptions").await == 0).await;
}

#[tokio::test]
async fn events_of_many_long_keys_come_in_the_order_of_their_changes() {
    let server = server(&["redis_keyspace_events=KA"]);
    let client = server.client("tcp").await;
    let mut events = subscriber(&server);
    let mut redis = Redis::open(&server);
    // Comparing all of them with the pattern takes too long to do it under their locks.
    let keys: Vec<String> = (0..80).map(|number| format!("{number:060000}")).collect();
    let mset: String = keys.iter().map(|key| format!(" {key} v")).collect();
    assert_eq!(
        (redis.call(&format!("MSET{mset}")), redis.call(&format!("DEL {}", keys[0]))),
        ("+OK".into(), ":1".into())
    );
    let message = |key: &str, event: &str| format!("(pmessage __key*@*__:* __keyspace@0__:{key} {event})");
    for key in &keys {
        assert_eq!(events.answer(), message(key, "set"));
    }
    assert_eq!(events.answer(), message(&keys[0], "del"));
    until("no backlog", async || metric(&client, "thalweg_redis_event_backlog_bytes").await == 0).await;
    assert_eq!(metric(&client, "thalweg_redis_event_subscribers_behind_total").await, 0);
}

#[tokio::test]
async fn patterns_that_cost_too_much_are_refused_while_events_are_published() {
    let server = server(&["redis_keyspace_events=KA"]);
    let client = server.client("tcp").await;
    let mut redis = Redis::open(&server);
    let mut hostile = Redis::open(&server);
    let many = "a".repeat(400);
    let mut subscribe = |number: usize| hostile.call(&format!("PSUBSCRIBE __key*{many}[^{many}]{number}*"));
    for number in 0..3 {
        assert!(subscribe(number).ends_with(&format!(" :{})", number + 1)));
    }
    let refused = "the patterns that may match keyspace events take too much work for each change of a key";
    assert!(subscribe(3).starts_with(&format!("-ERR {refused}")));
    assert_eq!(metric(&client, "thalweg_redis_event_pattern_sets").await, 12);
    assert_eq!(metric(&client, "thalweg_redis_event_patterns_refused_total").await, 1);
    // Thousands of ordinary patterns are no work.
    let mut events = Redis::open(&server);
    for number in 0..2000 {
        let pattern = format!("__keyspace@0__:user:{number}:*");
        assert_eq!(events.call(&format!("PSUBSCRIBE {pattern}")), format!("(psubscribe {pattern} :{})", number + 1));
    }
    let before = metric(&client, "thalweg_redis_event_pattern_steps_total").await;
    assert_eq!(redis.call("SET user:77:name v"), "+OK");
    assert_eq!(events.answer(), "(pmessage __keyspace@0__:user:77:* __keyspace@0__:user:77:name set)");
    let steps = metric(&client, "thalweg_redis_event_pattern_steps_total").await - before;
    let channel = "__keyspace@0__:user:77:name".len() as u64;
    assert!(steps <= 12 * channel + 16, "{steps}");
    // Without events, patterns of channels cost nothing here. Then the events wait for them.
    assert_eq!(redis.call("CONFIG SET notify-keyspace-events "), "+OK");
    assert!(subscribe(3).ends_with(" :4)"));
    let failed = redis.call("CONFIG SET slowlog-max-len 7 notify-keyspace-events KA");
    let why = "-ERR CONFIG SET failed (possibly related to argument 'notify-keyspace-events') - the patterns that may";
    assert!(failed.starts_with(why), "{failed}");
    assert_eq!(redis.call("CONFIG GET notify-keyspace-events"), "(notify-keyspace-events )");
    assert_eq!(redis.call("CONFIG GET slowlog-max-len"), "(slowlog-max-len 128)");
    assert_eq!(hostile.call("PUNSUBSCRIBE").split(' ').next(), Some("(punsubscribe"));
    until("room for the patterns", async || redis.call("CONFIG SET notify-keyspace-events KA") == "+OK").await;
    assert_eq!(metric(&client, "thalweg_redis_event_pattern_sets").await, 0);
}

#[tokio::test]
async fn subscribers_of_both_protocols_share_a_pattern() {
    let server = server(&["redis_keyspace_events=KEA"]);
    let mut redis = Redis::open(&server);
    let (mut old, mut new) = (subscriber(&server), Redis::open(&server));
    assert!(new.call("HELLO 3").contains("proto :3"));
    assert_eq!(new.call("PSUBSCRIBE __key*@*__:*"), ">(psubscribe __key*@*__:* :1)");
    assert_eq!(redis.call("MSET a 1 b 2"), "+OK");
    let wanted = ["keyspace@0__:a set", "keyevent@0__:set a", "keyspace@0__:b set", "keyevent@0__:set b"];
    for event in wanted {
        assert_eq!(old.answer(), format!("(pmessage __key*@*__:* __{event})"));
        assert_eq!(new.answer(), format!(">(pmessage __key*@*__:* __{event})"));
    }
    // The other one remains.
    drop(new);
    assert_eq!(redis.call("SET c 1"), "+OK");
    assert_eq!(received(&mut old), ["__keyspace@0__:c set", "__keyevent@0__:set c"]);
}

/// `afterCommand` in `server.c` of Redis 7.2 adds the messages for a client after the reply to its transaction.
#[tokio::test]
async fn messages_follow_the_reply_to_the_transaction_that_subscribes() {
    let server = server(&["redis_keyspace_events=KA"]);
    let mut redis = Redis::open(&server);
    for words in ["MULTI", "SUBSCRIBE news", "SUBSCRIBE __keyspace@0__:k"] {
        redis.call(words);
    }
    // The transaction runs on another thread, which writes the messages, and takes a while before and after.
    let text = "for i = 1, 3000000 do end redis.call('SET', KEYS[1], 1) redis.call('PUBLISH', 'news', 'x') \
                for i = 1, 3000000 do end return 'done'";
    redis.send(&super::commands::request(&[b"EVAL", text.as_bytes(), b"1", b"k"]));
    assert_eq!(redis.answer(), "+QUEUED");
    assert_eq!(redis.call("EXEC"), "((subscribe news :1) (subscribe __keyspace@0__:k :2) done)");
    let mut messages = [redis.answer(), redis.answer()];
    messages.sort_unstable();
    assert_eq!(messages, ["(message __keyspace@0__:k set)", "(message news x)"]);
    // A transaction without scripts.
    assert_eq!(redis.call("UNSUBSCRIBE"), "(unsubscribe __keyspace@0__:k :1)");
    assert_eq!(redis.answer(), "(unsubscribe news :0)");
    for words in ["MULTI", "SUBSCRIBE __keyspace@0__:k", "INCR k"] {
        redis.call(words);
    }
    assert_eq!(redis.call("EXEC"), "((subscribe __keyspace@0__:k :1) :2)");
    assert_eq!(redis.answer(), "(message __keyspace@0__:k incrby)");
}
