//! Streams of Redis's clients: entries are records for all other clients, and records of other clients are entries.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use client::{Record, Start, TopicSettings};
use tempfile::TempDir;

use crate::support::server::{Launch, PATIENCE, Server, metric, within};

const OPEN: &str = "redis=127.0.0.1:0";

/// Connection to the Redis door.
pub struct Redis(BufReader<TcpStream>);

impl Redis {
    pub fn open(server: &Server) -> Self {
        let socket = TcpStream::connect(server.door("redis")).expect("connected");
        socket.set_read_timeout(Some(PATIENCE)).expect("set");
        Self(BufReader::new(socket))
    }

    pub fn ask(&mut self, words: &str) {
        let words: Vec<&str> = words.split(' ').collect();
        let mut request = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| request.push_str(&format!("${}\r\n{word}\r\n", word.len())));
        self.0.get_mut().write_all(request.as_bytes()).expect("sent");
    }

    /// Returns a response in readable notation: `(a b)` for arrays, `nil` for null.
    pub fn answer(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a line");
        let (sign, rest) = line.trim_end().split_at(1);
        match (sign, rest) {
            ("$" | "*", "-1") | ("_", _) => "nil".to_owned(),
            ("$", length) => {
                let mut text = vec![0; length.parse::<usize>().expect("a length") + 2];
                self.0.read_exact(&mut text).expect("a text");
                String::from_utf8_lossy(&text[..text.len() - 2]).into_owned()
            }
            ("*", count) => {
                let count: usize = count.parse().expect("a count");
                let values: Vec<String> = (0..count).map(|_| self.answer()).collect();
                format!("({})", values.join(" "))
            }
            (_, rest) => rest.to_owned(),
        }
    }

    pub fn call(&mut self, words: &str) -> String {
        self.ask(words);
        self.answer()
    }
}

fn header<'r>(record: &'r Record, name: &str) -> Option<&'r [u8]> {
    record.header(name).map(|value| &value[..])
}

#[tokio::test]
async fn entries_are_records_and_records_are_entries() {
    let server = Server::with(&[OPEN]);
    let client = server.client("tcp").await;
    let mut redis = Redis::open(&server);
    assert_eq!(redis.call("XADD orders 5-1 key c7 value v1 unit kg"), "5-1");
    assert_eq!(redis.call("XADD orders 5-2 unit kg value v2"), "5-2");
    let publisher = within("open", client.publisher("orders").open()).await.expect("a publisher");
    let record = Record { timestamp_ms: 7, ..Record::new("v3").with_key("c8").with_header("unit", "g") };
    within("send", publisher.send(&record)).await.expect("sent");
    within("flush", publisher.flush()).await.expect("acknowledged");

    // For Redis's clients.
    let all = "((5-1 (key c7 value v1 unit kg)) (5-2 (unit kg value v2)) (7-2 (key c8 value v3 unit g)))";
    assert_eq!(redis.call("XRANGE orders - +"), all);
    assert_eq!(redis.call("XLEN orders"), "3");
    assert_eq!(redis.call("XREAD STREAMS orders 5-2"), "((orders ((7-2 (key c8 value v3 unit g)))))");
    assert_eq!((redis.call("TYPE orders"), redis.call("EXISTS orders none")), ("stream".into(), "1".into()));

    // For all others.
    let opened = client.subscribe("orders").start(Start::Earliest).open();
    let mut subscription = within("subscribe", opened).await.expect("a subscription");
    let first = within("a record", subscription.next()).await.expect("a record").record;
    assert_eq!((first.key.as_deref(), first.value(), first.timestamp_ms), (Some(&b"c7"[..]), &b"v1"[..], 5));
    assert_eq!(header(&first, "unit"), Some(&b"kg"[..]));
    assert_eq!(header(&first, "thalweg.entry"), Some(&b"5-1"[..]));
    let second = within("a record", subscription.next()).await.expect("a record").record;
    assert_eq!((second.value.as_deref(), header(&second, "value")), (None, Some(&b"v2"[..])));
    assert_eq!(metric(&client, "thalweg_streams").await, 1);
}

#[tokio::test]
async fn blocked_readers_get_entries_of_any_publisher() {
    let server = Server::with(&[OPEN]);
    let client = server.client("tcp").await;
    let mut redis = Redis::open(&server);
    let mut waiting = Redis::open(&server);
    let mut member = Redis::open(&server);
    // A nonexistent stream, whose name is not a valid topic name.
    waiting.ask("XREAD BLOCK 0 STREAMS a:b 0");
    assert_eq!(redis.call("XGROUP CREATE orders g $ MKSTREAM"), "OK");
    member.ask("XREADGROUP GROUP g c BLOCK 0 STREAMS orders >");
    assert_eq!(redis.call("XADD a:b 5-1 f v"), "5-1");
    assert_eq!(waiting.answer(), "((a:b ((5-1 (f v)))))");
    let publisher = within("open", client.publisher("orders").open()).await.expect("a publisher");
    within("send", publisher.send(&Record { timestamp_ms: 7, ..Record::new("v") })).await.expect("sent");
    within("flush", publisher.flush()).await.expect("acknowledged");
    assert_eq!(member.answer(), "((orders ((7-0 (value v)))))");
    assert_eq!(redis.call("XPENDING orders g"), "(1 7-0 7-0 ((c 1)))");

    // The wait may time out, or be ended by another client.
    assert_eq!(waiting.call("XREAD BLOCK 1 STREAMS orders $"), "nil");
    let id = waiting.call("CLIENT ID");
    waiting.ask("XREAD BLOCK 0 STREAMS orders $");
    while redis.call(&format!("CLIENT UNBLOCK {id} ERROR")) == "0" {}
    assert!(waiting.answer().starts_with("UNBLOCKED"));
    assert!(redis.call("XREAD BLOCK 0 STREAMS orders 7-0 x").starts_with("ERR Unbalanced"));

    // A key has one type.
    assert_eq!(redis.call("SET text v"), "OK");
    assert!(redis.call("XADD text * f v").starts_with("WRONGTYPE"));
    member.ask("XREADGROUP GROUP g c BLOCK 0 STREAMS orders >");
    assert_eq!(redis.call("DEL orders text none"), "2");
    // The command may have run before or after the deletion.
    let answer = member.answer();
    assert!(answer.starts_with("UNBLOCKED") || answer.starts_with("NOGROUP"), "{answer}");
    assert_eq!(redis.call("XLEN orders"), "0");
}

/// Response of redis-server 7.0.15: the lag is `entries_added - entries_read` of its `xinfoReplyWithStreamInfo`.
#[tokio::test]
async fn lag_is_negative_where_more_was_read_than_added() {
    let server = Server::with(&[OPEN]);
    let mut redis = Redis::open(&server);
    assert_eq!(redis.call("XADD s 3-2 f v"), "3-2");
    assert_eq!(redis.call("XGROUP CREATE s g $ ENTRIESREAD 3"), "OK");
    let group = "((name g consumers 0 pending 0 last-delivered-id 3-2 entries-read 3 lag -2))";
    assert_eq!(redis.call("XINFO GROUPS s"), group);
}

#[tokio::test]
async fn topics_of_several_partitions_are_no_streams() {
    let server = Server::with(&[OPEN]);
    let mut redis = Redis::open(&server);
    let settings = TopicSettings { partitions: 3, ..TopicSettings::default() };
    let made = server.client("tcp").await.create_topic("three", settings).await;
    made.expect("created");
    assert!(redis.call("XLEN three").contains("has 3 partitions"));
    assert_eq!((redis.call("EXISTS three"), redis.call("DEL three")), ("0".into(), "0".into()));
}

/// After a crash, added, delivered and acknowledged entries are restored.
#[tokio::test]
async fn streams_and_their_groups_survive_the_broker() {
    let data = TempDir::new().expect("a folder");
    let set = vec![OPEN.to_owned(), format!("data={}", data.path().display())];
    let mut server = Server::launch(Launch { set, ..Launch::default() });
    let mut redis = Redis::open(&server);
    assert_eq!(redis.call("XGROUP CREATE s g 0 MKSTREAM"), "OK");
    for number in 1..=6 {
        assert_eq!(redis.call(&format!("XADD s 1-{number} f {number}")), format!("1-{number}"));
    }
    assert_eq!(redis.call("XREADGROUP GROUP g c COUNT 3 STREAMS s >").matches("1-").count(), 3);
    assert_eq!(redis.call("XREADGROUP GROUP g d COUNT 1 STREAMS s >").matches("1-").count(), 1);
    // The acknowledgement is durable, and so are all deliveries before it.
    assert_eq!(redis.call("XACK s g 1-2"), "1");
    assert_eq!(redis.call("XDEL s 1-5"), "1");
    assert_eq!(redis.call("XTRIM s MINID 1-2"), "1");
    server.crash_and_restart();
    let mut redis = Redis::open(&server);
    assert_eq!(redis.call("XRANGE s - +"), "((1-2 (f 2)) (1-3 (f 3)) (1-4 (f 4)) (1-6 (f 6)))");
    assert_eq!(redis.call("XPENDING s g"), "(3 1-1 1-4 ((c 2) (d 1)))");
    assert_eq!(redis.call("XREADGROUP GROUP g c STREAMS s 0"), "((s ((1-1 nil) (1-3 (f 3)))))");
    assert_eq!(redis.call("XREADGROUP GROUP g c STREAMS s >"), "((s ((1-6 (f 6)))))");
    assert!(redis.call("XADD s 1-6 f v").contains("equal or smaller"));
    assert_eq!(redis.call("DEL s"), "1");
    server.crash_and_restart();
    let mut redis = Redis::open(&server);
    assert_eq!((redis.call("EXISTS s"), redis.call("XADD s 1-1 f v")), ("0".into(), "1-1".into()));
    assert!(redis.call("XPENDING s g").starts_with("NOGROUP"));
}

impl Redis {
    /// Returns the responses to commands in a transaction.
    fn transact(&mut self, commands: &[&str]) -> String {
        assert_eq!(self.call("MULTI"), "OK");
        commands.iter().for_each(|command| assert_eq!(self.call(command), "QUEUED", "{command}"));
        self.call("EXEC")
    }

    /// Runs commands and checks the response of each.
    fn expect(&mut self, calls: &[(&str, &str)]) {
        for (command, answer) in calls {
            assert_eq!(self.call(command), *answer, "{command}");
        }
    }
}

/// <https://redis.io/docs/latest/develop/using-commands/keyspace/>: commands on keys do not depend on their type.
#[tokio::test]
async fn a_stream_is_a_key_like_any_other() {
    let server = Server::with(&[OPEN]);
    let client = server.client("tcp").await;
    let mut redis = Redis::open(&server);
    redis.expect(&[
        ("XADD s 1-1 f v", "1-1"),
        ("TYPE s", "stream"),
        ("EXISTS s s none", "2"),
        ("TOUCH s none", "1"),
        ("KEYS *", "(s)"),
        ("SCAN 0 TYPE stream", "(0 (s))"),
        ("SCAN 0 TYPE hash", "(0 ())"),
        ("DBSIZE", "1"),
        ("RANDOMKEY", "s"),
        ("OBJECT ENCODING s", "stream"),
        ("OBJECT REFCOUNT s", "1"),
        ("TTL s", "-1"),
        ("EXPIRE s 1000000", "1"),
        ("TTL none", "-2"),
        ("EXPIREAT s 4102444800", "1"),
        ("EXPIRETIME s", "4102444800"),
        ("PERSIST s", "1"),
        ("PTTL s", "-1"),
        ("SETNX s v", "0"),
        ("XLEN s", "1"),
    ]);
    for command in ["GET s", "LPUSH s v", "HSET s f v", "SADD s m", "ZADD s 1 m", "INCR s", "APPEND s v", "SORT s"] {
        assert!(redis.call(command).starts_with("WRONGTYPE"), "{command}");
    }
    // Another value replaces it, and its topic is deleted.
    redis.expect(&[("SET s v", "OK"), ("TYPE s", "string"), ("DBSIZE", "1")]);
    assert!(redis.call("XADD s * f v").starts_with("WRONGTYPE"));
    assert!(within("describe", client.describe_topic("s")).await.is_err());
    redis.expect(&[("DEL s", "1"), ("XADD s 1-1 f v", "1-1"), ("UNLINK s", "1"), ("EXISTS s", "0"), ("XLEN s", "0")]);
    // An expired stream is deleted with its entries.
    redis.expect(&[("XADD s 1-1 f v", "1-1"), ("PEXPIRE s 1", "1")]);
    while redis.call("EXISTS s") == "1" {}
    redis.expect(&[("XLEN s", "0"), ("XADD s 1-1 f w", "1-1"), ("XRANGE s - +", "((1-1 (f w)))")]);
    // Each database has separate streams, and a flush deletes them.
    redis.expect(&[
        ("SELECT 1", "OK"),
        ("XLEN s", "0"),
        ("XADD s 2-2 f v", "2-2"),
        ("XADD t 2-2 f v", "2-2"),
        ("DBSIZE", "2"),
        ("FLUSHDB", "OK"),
        ("DBSIZE", "0"),
        ("XLEN s", "0"),
        ("SELECT 0", "OK"),
        ("XLEN s", "1"),
        ("FLUSHALL", "OK"),
        ("XLEN s", "0"),
        ("DBSIZE", "0"),
    ]);
    assert!(within("describe", client.describe_topic("s")).await.is_err());
    // A topic that another door deletes is no longer a key.
    redis.expect(&[("XADD s 1-1 f v", "1-1")]);
    within("delete", client.delete_topic("s")).await.expect("deleted");
    redis.expect(&[("EXISTS s", "0"), ("DBSIZE", "0"), ("XADD s 1-1 f v", "1-1")]);
}

/// `RENAME`, `COPY` and `MOVE` include the groups, with their pending entries (`streamDup` in Redis's t_stream.c).
#[tokio::test]
async fn streams_are_renamed_moved_and_copied_with_their_groups() {
    let server = Server::with(&[OPEN]);
    let client = server.client("tcp").await;
    let mut redis = Redis::open(&server);
    redis.expect(&[("XADD a 1-1 f 1", "1-1"), ("XADD a 1-2 f 2", "1-2"), ("XADD a 1-3 f 3", "1-3")]);
    redis.expect(&[
        ("XGROUP CREATE a g 0", "OK"),
        ("XREADGROUP GROUP g c COUNT 2 STREAMS a >", "((a ((1-1 (f 1)) (1-2 (f 2)))))"),
    ]);
    redis.expect(&[
        ("XDEL a 1-2", "1"),
        ("EXPIREAT a 4102444800", "1"),
        ("SET b v", "OK"),
        ("COPY a b", "0"),
        ("RENAMENX a b", "0"),
    ]);
    redis.expect(&[
        ("RENAME a b", "OK"),
        ("EXISTS a b", "1"),
        ("EXPIRETIME b", "4102444800"),
        ("XRANGE b - +", "((1-1 (f 1)) (1-3 (f 3)))"),
    ]);
    redis.expect(&[("XPENDING b g", "(2 1-1 1-2 ((c 2)))"), ("XADD a 9-9 f v", "9-9"), ("COPY a b", "0")]);
    redis.expect(&[
        ("COPY b c", "1"),
        ("XPENDING c g", "(2 1-1 1-2 ((c 2)))"),
        ("EXPIRETIME c", "4102444800"),
        ("XADD c 1-4 f 4", "1-4"),
    ]);
    redis.expect(&[("XLEN b", "2"), ("XLEN c", "3"), ("COPY a c REPLACE", "1"), ("XRANGE c - +", "((9-9 (f v)))")]);
    redis.expect(&[
        ("MOVE b 1", "1"),
        ("EXISTS b", "0"),
        ("MOVE b 1", "0"),
        ("COPY c b DB 1", "0"),
        ("SELECT 1", "OK"),
    ]);
    redis.expect(&[
        ("XPENDING b g", "(2 1-1 1-2 ((c 2)))"),
        ("DBSIZE", "1"),
        ("RENAME b b", "OK"),
        ("RENAMENX b b", "0"),
    ]);
    assert_eq!(redis.call("XREADGROUP GROUP g d STREAMS b >"), "((b ((1-3 (f 3)))))");
    assert!(redis.call("XINFO STREAM b").contains("entries-added 3"));
    assert!(redis.call("COPY b b").contains("same"));
    assert!(redis.call("XADD b 1-3 f v").contains("equal or smaller"));
    // The topic has the name of the key.
    assert!(within("describe", client.describe_topic("c")).await.is_ok());
    assert!(within("describe", client.describe_topic("db1_x_b")).await.is_ok());
    assert!(within("describe", client.describe_topic("b")).await.is_err());
}

/// Commands on streams are queued in transactions, and each sees the effects of earlier ones; on disk, too.
#[tokio::test]
async fn commands_on_streams_are_done_in_transactions() {
    let data = TempDir::new().expect("a folder");
    for set in [vec![OPEN.to_owned()], vec![OPEN.to_owned(), format!("data={}", data.path().display())]] {
        let server = Server::launch(Launch { set, ..Launch::default() });
        let mut redis = Redis::open(&server);
        let mut other = Redis::open(&server);
        let commands =
            ["XADD s 1-1 f v", "XADD s 1-2 f w", "XLEN s", "XRANGE s - +", "SET k v", "XREAD BLOCK 0 STREAMS s 1-2"];
        assert_eq!(redis.transact(&commands), "(1-1 1-2 2 ((1-1 (f v)) (1-2 (f w))) OK nil)");
        let commands = ["DEL s", "EXISTS s", "XLEN s", "XADD s 1-1 f x", "XRANGE s - +", "TYPE s"];
        assert_eq!(redis.transact(&commands), "(1 0 0 1-1 ((1-1 (f x))) stream)");
        let commands = ["SET s v", "XADD s * f v", "DEL s", "XGROUP CREATE s g $ MKSTREAM", "XADD s 1-1 f v"];
        let answer = redis.transact(&commands);
        assert!(answer.starts_with("(OK WRONGTYPE") && answer.ends_with("1 OK 1-1)"), "{answer}");
        let commands = ["XREADGROUP GROUP g c STREAMS s >", "XACK s g 1-1", "RENAME s t", "XLEN t", "XADD s 2-1 f v"];
        assert_eq!(redis.transact(&commands), "(((s ((1-1 (f v))))) 1 OK 1 2-1)");
        assert_eq!(redis.transact(&["FLUSHALL", "DBSIZE", "XLEN s", "XADD s 1-1 f v"]), "(OK 0 0 1-1)");

        // Changes of a watched stream by another connection are noticed.
        for change in ["XADD s 1-9 f v", "XDEL s 1-9", "XTRIM s MAXLEN 0", "EXPIRE s 1000", "DEL s"] {
            redis.expect(&[("WATCH s", "OK")]);
            assert!(!other.call(change).starts_with("ERR"), "{change}");
            assert_eq!(redis.transact(&["XADD s 9-9 f v"]), "nil", "{change}");
        }
        redis.expect(&[("WATCH s", "OK")]);
        other.expect(&[("XADD s 5-5 f v", "5-5")]);
        assert_eq!(redis.transact(&["PING"]), "nil");
        // Reads are not changes.
        redis.expect(&[("WATCH s", "OK")]);
        other.expect(&[("XLEN s", "1"), ("EXISTS s", "1")]);
        assert_eq!(redis.transact(&["XADD s 6-6 f v", "PING"]), "(6-6 PONG)");
        // A waiting client is woken by a transaction.
        other.ask("XREAD BLOCK 0 STREAMS s 6-6");
        assert_eq!(redis.transact(&["XADD s 7-7 f v"]), "(7-7)");
        assert_eq!(other.answer(), "((s ((7-7 (f v)))))");
    }
}

/// Keys of streams are restored with their expiry, whether or not their database is durable; deleted ones are not.
#[tokio::test]
async fn keys_of_streams_survive_the_broker() {
    for is_durable in [false, true] {
        let data = TempDir::new().expect("a folder");
        let set = [OPEN.to_owned(), format!("data={}", data.path().display()), format!("redis_durable={is_durable}")];
        let mut server = Server::launch(Launch { set: set.to_vec(), ..Launch::default() });
        let mut redis = Redis::open(&server);
        redis.expect(&[("XADD s 1-1 f v", "1-1"), ("EXPIREAT s 4102444800", "1"), ("XADD a:b 1-1 f v", "1-1")]);
        redis.expect(&[
            ("XADD over 1-1 f v", "1-1"),
            ("SET over v", "OK"),
            ("XADD del 1-1 f v", "1-1"),
            ("DEL del", "1"),
        ]);
        redis.expect(&[
            ("SELECT 3", "OK"),
            ("XADD s 3-3 f v", "3-3"),
            ("XGROUP CREATE s g 0", "OK"),
            ("RENAME s t", "OK"),
        ]);
        server.crash_and_restart();
        let mut redis = Redis::open(&server);
        redis.expect(&[("EXPIRETIME s", "4102444800"), ("XRANGE s - +", "((1-1 (f v)))"), ("TYPE a:b", "stream")]);
        redis.expect(&[
            ("EXISTS del", "0"),
            ("XLEN del", "0"),
            ("TYPE over", if is_durable { "string" } else { "none" }),
        ]);
        redis.expect(&[("DBSIZE", if is_durable { "3" } else { "2" }), ("PERSIST s", "1"), ("SELECT 3", "OK")]);
        redis.expect(&[("KEYS *", "(t)"), ("XLEN t", "1"), ("XPENDING t g", "(0 nil nil nil)")]);
        server.crash_and_restart();
        let mut redis = Redis::open(&server);
        redis.expect(&[("TTL s", "-1"), ("FLUSHALL", "OK"), ("DBSIZE", "0")]);
        server.crash_and_restart();
        let mut redis = Redis::open(&server);
        redis.expect(&[
            ("DBSIZE", "0"),
            ("XLEN s", "0"),
            ("EXISTS s a:b over", "0"),
            ("SELECT 3", "OK"),
            ("EXISTS t", "0"),
        ]);
        redis.expect(&[("XADD t 1-1 f v", "1-1"), ("DBSIZE", "1")]);
    }
}

/// A topic of another door is a stream for commands that name it, but is not listed, changed or deleted.
#[tokio::test]
async fn topics_of_other_doors_are_read_and_added_to_and_left_alone() {
    let server = Server::with(&[OPEN]);
    let client = server.client("tcp").await;
    let mut redis = Redis::open(&server);
    let publisher = within("open", client.publisher("orders").open()).await.expect("a publisher");
    within("send", publisher.send(&Record { timestamp_ms: 7, ..Record::new("v") })).await.expect("sent");
    within("flush", publisher.flush()).await.expect("acknowledged");
    redis.expect(&[("XLEN orders", "1"), ("EXISTS orders", "1"), ("TYPE orders", "stream"), ("TTL orders", "-1")]);
    redis.expect(&[("OBJECT ENCODING orders", "stream"), ("XADD orders 8-1 f v", "8-1"), ("XLEN orders", "2")]);
    redis.expect(&[("KEYS *", "()"), ("DBSIZE", "0"), ("SCAN 0", "(0 ())"), ("RANDOMKEY", "nil")]);
    redis.expect(&[("RPUSH list 1", "1")]);
    for command in ["SORT orders", "SORT_RO orders", "SORT orders BY nosort STORE d"] {
        assert!(redis.call(command).starts_with("WRONGTYPE"), "{command}");
    }
    assert!(redis.call("SORT list STORE orders").starts_with("ERR 'orders' is a topic"));
    redis.expect(&[("EXISTS orders d", "1"), ("DEL list", "1")]);
    for command in ["GET orders", "LPUSH orders v", "LRANGE orders 0 -1", "SADD orders m", "INCR orders"] {
        assert!(redis.call(command).starts_with("WRONGTYPE"), "{command}");
    }
    for command in ["DEL orders", "EXPIRE orders 9", "RENAME orders a", "SET orders v", "MOVE orders 1", "XX"] {
        assert!(redis.call(command).starts_with("ERR"), "{command}");
    }
    redis.expect(&[("SET a v", "OK"), ("FLUSHALL", "OK"), ("XLEN orders", "2"), ("COPY orders mine", "1")]);
    redis.expect(&[("XRANGE mine - +", "((7-0 (value v)) (8-1 (f v)))"), ("KEYS *", "(mine)"), ("DEL mine", "1")]);
    redis.expect(&[("SELECT 1", "OK"), ("EXISTS orders", "0"), ("XLEN orders", "0"), ("SELECT 0", "OK")]);
    // It can be watched like any other key.
    redis.expect(&[("WATCH orders", "OK"), ("EXISTS orders", "1"), ("TYPE orders", "stream")]);
    assert_eq!(redis.transact(&["XLEN orders", "TYPE orders", "KEYS *"]), "(2 stream ())");
    redis.expect(&[("WATCH orders", "OK")]);
    within("send", publisher.send(&Record { timestamp_ms: 9, ..Record::new("v") })).await.expect("sent");
    within("flush", publisher.flush()).await.expect("acknowledged");
    assert_eq!(redis.transact(&["XLEN orders"]), "nil");
}

/// The entries that a step adds and deletes are not yet on disk.
#[tokio::test]
async fn a_transaction_deletes_its_own_entries_before_they_are_durable() {
    let dir = TempDir::new().expect("a folder");
    let set = vec![OPEN.to_owned(), format!("data={}", dir.path().display())];
    let server = Server::launch(Launch { set, ..Launch::default() });
    let mut redis = Redis::open(&server);
    for _ in 0..5 {
        let answer = redis.transact(&["XADD s 1-1 f v", "EXPIRE s 0", "XLEN s", "XADD s 1-1 f v", "DEL s", "EXISTS s"]);
        assert_eq!(answer, "(1-1 1 0 1-1 1 0)");
        redis.expect(&[("XADD s 1-1 f v", "1-1"), ("COPY s t", "1"), ("XRANGE t - +", "((1-1 (f v)))")]);
        assert_eq!(redis.transact(&["COPY s u", "RENAME u w", "XRANGE w - +", "DEL w"]), "(1 OK ((1-1 (f v))) 1)");
        redis.expect(&[("DEL s t", "2"), ("XLEN s", "0")]);
    }
}

/// A refused `XADD` leaves no stream; the ids that Redis accepts for a group; trimming by whole nodes.
#[tokio::test]
async fn streams_behave_like_those_of_redis_in_edge_cases() {
    let server = Server::with(&[OPEN]);
    let mut redis = Redis::open(&server);
    // More fields than a record may have headers.
    assert!(redis.call(&format!("XADD s 1-1{}", " f v".repeat(1100))).starts_with("ERR"));
    assert!(redis.call("XADD s 0-0 f v").contains("greater than 0-0"));
    redis.expect(&[("EXISTS s", "0"), ("DBSIZE", "0"), ("TYPE s", "none"), ("XADD s NOMKSTREAM 1-1 f v", "nil")]);
    redis.expect(&[("XADD s 5-1 f v", "5-1"), ("XGROUP CREATE s g 0", "OK")]);
    // XGROUP SETID parses its id as the end of a range, XGROUP CREATE does not (xgroupCommand in t_stream.c).
    assert!(redis.call("XGROUP CREATE s h -").contains("Invalid stream ID"));
    redis.expect(&[("XGROUP SETID s g +", "OK"), ("XREADGROUP GROUP g c STREAMS s >", "nil")]);
    redis.expect(&[("XGROUP SETID s g -", "OK"), ("XREADGROUP GROUP g c STREAMS s >", "((s ((5-1 (f v)))))")]);
    // streamTrim removes nodes of 100 entries if no entry of the node is kept.
    redis.expect(&[("DEL s", "1")]);
    for number in 1..=130 {
        redis.expect(&[(&*format!("XADD s 1-{number} f v"), &*format!("1-{number}"))]);
    }
    redis.expect(&[("XTRIM s MAXLEN ~ 31", "0"), ("XTRIM s MAXLEN ~ 30", "100"), ("XTRIM s MAXLEN ~ 1", "0")]);
    redis.expect(&[("XTRIM s MINID ~ 1-130", "0"), ("XTRIM s MAXLEN = 5", "25"), ("XTRIM s MAXLEN ~ 0 LIMIT 4", "0")]);
    redis.expect(&[("XTRIM s MINID ~ 2", "5"), ("XLEN s", "0"), ("EXISTS s", "1")]);
    redis.expect(&[("XADD s 2-1 f v", "2-1"), ("XADD s MAXLEN ~ 0 2-2 f v", "2-2"), ("XLEN s", "0")]);
    // xsetidCommand since Redis 7.2 (#11444); earlier versions accept an id below that of a deleted entry.
    redis.expect(&[("DEL s", "1"), ("XADD s 40-1 f v", "40-1"), ("XDEL s 40-1", "1"), ("XSETID s 40-1", "OK")]);
    assert!(redis.call("XSETID s 9-1").contains("smaller than current max_deleted_entry_id"));
}
