//! Streams of Redis's clients: entries are records for everybody else, and what others publish is an entry.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use client::{Record, Start, TopicSettings};
use tempfile::TempDir;

use crate::server::{Launch, PATIENCE, Server, metric, within};

const OPEN: &str = "redis=127.0.0.1:0";

/// One connection.
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

    /// An answer as people would write it: `(a b)` for several, `nil` for nothing.
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
async fn who_waits_is_given_what_anybody_publishes() {
    let server = Server::with(&[OPEN]);
    let client = server.client("tcp").await;
    let (mut redis, mut waiting, mut member) = (Redis::open(&server), Redis::open(&server), Redis::open(&server));
    // One that is not there yet, and has no name that a topic could have.
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

    // Its time may be over, or others may end it; it may not be in a transaction.
    assert_eq!(waiting.call("XREAD BLOCK 1 STREAMS orders $"), "nil");
    let id = waiting.call("CLIENT ID");
    waiting.ask("XREAD BLOCK 0 STREAMS orders $");
    while redis.call(&format!("CLIENT UNBLOCK {id} ERROR")) == "0" {}
    assert!(waiting.answer().starts_with("UNBLOCKED"));
    assert_eq!(redis.call("MULTI"), "OK");
    assert!(redis.call("XADD orders * f v").contains("not allowed inside a transaction"));
    assert!(redis.call("EXEC").starts_with("EXECABORT"));

    // A key is one thing or the other.
    assert_eq!(redis.call("SET text v"), "OK");
    assert!(redis.call("XADD text * f v").starts_with("WRONGTYPE"));
    member.ask("XREADGROUP GROUP g c BLOCK 0 STREAMS orders >");
    assert_eq!(redis.call("DEL orders text none"), "2");
    // It may have asked before or after it was gone.
    let answer = member.answer();
    assert!(answer.starts_with("UNBLOCKED") || answer.starts_with("NOGROUP"), "{answer}");
    assert_eq!(redis.call("XLEN orders"), "0");
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

/// Killed in the middle of it: what was added, given out and acknowledged is found again.
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
    // What was acknowledged lasts, and all that was given out before it.
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
