//! The Redis door as a client meets it, in bytes that are not made by the broker's own code.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use client::Record;
use rustix::process::Signal;

use crate::command::on;
use crate::server::{Server, metric, until, within};

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);
const OPEN: &str = "redis=127.0.0.1:0";

pub fn server(set: &[&str]) -> Server {
    Server::with(&[&[OPEN], set].concat())
}

/// One connection.
pub struct Redis {
    socket: TcpStream,
    bytes: Vec<u8>,
}

impl Redis {
    pub fn open(server: &Server) -> Self {
        let socket = TcpStream::connect(server.door("redis")).expect("connected");
        socket.set_read_timeout(Some(PATIENCE)).expect("set");
        socket.set_nodelay(true).expect("set");
        Self { socket, bytes: Vec::new() }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).expect("sent");
    }

    pub fn ask(&mut self, words: &str) {
        let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        self.send(&request(&words));
    }

    /// What is answered, in a notation that shows its kind: strings as they are, `(1 2)` for several.
    pub fn call(&mut self, words: &str) -> String {
        self.ask(words);
        self.answer()
    }

    fn line(&mut self) -> String {
        loop {
            if let Some(end) = self.bytes.windows(2).position(|two| two == b"\r\n") {
                let line = String::from_utf8_lossy(&self.bytes[..end]).into_owned();
                self.bytes.drain(..end + 2);
                return line;
            }
            self.more();
        }
    }

    fn more(&mut self) {
        let mut buffer = [0; 64 << 10];
        let count = self.socket.read(&mut buffer).expect("something comes");
        assert!(count > 0, "the connection is closed; it had {}", self.bytes.escape_ascii());
        self.bytes.extend_from_slice(&buffer[..count]);
    }

    pub fn answer(&mut self) -> String {
        let line = self.line();
        let (sign, rest) = line.split_at(1);
        match (sign, rest) {
            ("$" | "*", "-1") => "nil".to_owned(),
            ("_", _) => "null".to_owned(),
            ("$" | "=", length) => {
                let length: usize = length.parse().expect("a length");
                while self.bytes.len() < length + 2 {
                    self.more();
                }
                let text = String::from_utf8_lossy(&self.bytes[..length]).into_owned();
                self.bytes.drain(..length + 2);
                text
            }
            ("*" | "~" | ">" | "%", count) => {
                let count: usize = count.parse().expect("a count");
                let count = if sign == "%" { 2 * count } else { count };
                let values: Vec<String> = (0..count).map(|_| self.answer()).collect();
                let open = if sign == "*" { "" } else { sign };
                format!("{open}({})", values.join(" "))
            }
            _ => line,
        }
    }

    /// What comes until the broker closes the connection.
    pub fn rest(&mut self) -> String {
        let mut rest = std::mem::take(&mut self.bytes);
        self.socket.read_to_end(&mut rest).expect("it is closed");
        String::from_utf8_lossy(&rest).into_owned()
    }
}

pub fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Waits until so many connections wait for a key.
async fn until_blocked(server: &Server, count: u64) {
    let client = server.client("tcp").await;
    until("connections that wait", async || metric(&client, "thalweg_redis_blocked_clients").await == count).await;
}

#[tokio::test]
async fn commands_are_answered_in_both_versions_of_the_protocol() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    assert_eq!(redis.call("SET user:1 ann EX 100"), "+OK");
    assert_eq!(redis.call("get user:1"), "ann");
    assert_eq!(redis.call("TTL user:1"), ":100");
    assert_eq!(redis.call("GET none"), "nil");
    assert_eq!(redis.call("HSET h a 1 b 2"), ":2");
    assert_eq!(redis.call("HGETALL h"), "(a 1 b 2)");
    assert_eq!(redis.call("LPUSH h x"), "-WRONGTYPE Operation against a key holding the wrong kind of value");
    assert_eq!(redis.call("ZADD z 1.5 a"), ":1");
    assert_eq!(redis.call("ZSCORE z a"), "1.5");
    assert!(redis.call("HELLO 3").contains("proto :3"));
    assert_eq!(redis.call("HGETALL h"), "%(a 1 b 2)");
    assert_eq!((redis.call("GET none"), redis.call("ZSCORE z a")), ("null".into(), ",1.5".into()));
    assert_eq!(redis.call("SELECT 3"), "+OK");
    assert_eq!(redis.call("DBSIZE"), ":0");
    assert_eq!(redis.call("EVAL x 0"), "-ERR EVAL: scripts are not supported: use MULTI with WATCH");
    assert!(redis.call("NOSUCH a").starts_with("-ERR unknown command 'NOSUCH', with args beginning with: 'a'"));
    // As somebody types it.
    redis.send(b"set 'a b' \"c\\x64\"\r\n\r\nget 'a b'\n");
    assert_eq!((redis.answer(), redis.answer()), ("+OK".into(), "cd".into()));
    // A cache of the native client, and the other way round.
    let client = server.client("tcp").await;
    let cache = client.cache("db0");
    let found = within("a get", cache.get("user:1")).await.expect("answered").expect("there");
    assert_eq!(&found.value[..], b"ann");
    cache.put("n", "41").await.expect("put");
    let mut redis = Redis::open(&server);
    assert_eq!(redis.call("INCR n"), ":42");
    assert_eq!(on(&server, ["cache", "get", "db0", "n"]).ok().trim_end(), "42");
    assert_eq!(redis.call("QUIT"), "+OK");
    assert_eq!(redis.rest(), "");
}

#[test]
fn many_requests_of_one_write_are_answered_in_their_order() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    let large = vec![b'x'; 100_000];
    let mut all = Vec::new();
    for number in 0..2000 {
        let key = format!("key:{}", number % 50);
        match number % 4 {
            0 => all.extend(request(&[b"SET", key.as_bytes(), number.to_string().as_bytes()])),
            1 => all.extend(request(&[b"RPUSH", b"list", number.to_string().as_bytes()])),
            2 if number % 100 == 2 => all.extend(request(&[b"SET", b"large", &large])),
            2 => all.extend(request(&[b"GET", b"large"])),
            _ => all.extend(request(&[b"ECHO", number.to_string().as_bytes()])),
        }
    }
    let mut writer = redis.socket.try_clone().expect("another handle");
    let sent = std::thread::spawn(move || writer.write_all(&all).expect("sent"));
    for number in 0..2000 {
        let answer = redis.answer();
        match number % 4 {
            0 => assert_eq!(answer, "+OK"),
            1 => assert_eq!(answer, format!(":{}", number / 4 + 1)),
            2 if number % 100 == 2 => assert_eq!(answer, "+OK"),
            2 => assert_eq!(answer.len(), large.len()),
            _ => assert_eq!(answer, number.to_string()),
        }
    }
    sent.join().expect("all was sent");
}

/// Pools connect ahead of their first command, and Redis keeps such a client (`timeout 0` in redis.conf).
#[test]
fn a_connection_that_has_said_nothing_yet_is_kept() {
    let server = server(&["hello_timeout_ms=300"]);
    let mut idle = Redis::open(&server);
    // The Kafka door closes one that says nothing in time, so the time is over for the first one as well.
    let mut clock = TcpStream::connect(server.kafka).expect("connected");
    clock.set_read_timeout(Some(PATIENCE)).expect("a time limit");
    assert_eq!(clock.read(&mut [0]).expect("the end"), 0);
    assert_eq!(idle.call("PING"), "+PONG");
}

#[test]
fn what_is_no_request_ends_its_connection_and_no_other() {
    let server = server(&[]);
    let mut other = Redis::open(&server);
    assert_eq!(other.call("SET k v"), "+OK");
    let wrong: [(&[u8], &str); 7] = [
        (b"*1\r\n$536870912\r\n", "-ERR Protocol error: invalid bulk length, a value has at most 8388608 bytes\r\n"),
        (b"*1048577\r\n", "-ERR Protocol error: invalid multibulk length\r\n"),
        (b"*-2x\r\n", "-ERR Protocol error: invalid multibulk length\r\n"),
        (b"*1\r\n*1\r\n$4\r\nPING\r\n", "-ERR Protocol error: expected '$', got '*'\r\n"),
        (
            b"*2\r\n$3\r\nGET\r\n$-5\r\n",
            "-ERR Protocol error: invalid bulk length, a value has at most 8388608 bytes\r\n",
        ),
        (b"GET 'k\r\n", "-ERR Protocol error: unbalanced quotes in request\r\n"),
        (&[b'x'; 70_000], "-ERR Protocol error: too big inline request\r\n"),
    ];
    for (bytes, answer) in wrong {
        let mut redis = Redis::open(&server);
        assert_eq!(redis.call("PING"), "+PONG");
        redis.send(bytes);
        assert_eq!(redis.rest(), answer, "{}", bytes[..bytes.len().min(40)].escape_ascii());
        assert_eq!(other.call("GET k"), "v");
    }
    // Redis closes without an answer on `POST` and `Host:` (processCommand and securityWarningCommand, since 3.2.7), so
    // that the lines of a body after them are not run.
    for head in ["POST /", "Host: 127.0.0.1:6379"] {
        let mut redis = Redis::open(&server);
        assert_eq!(redis.call("PING"), "+PONG");
        redis.send(format!("{head}\r\nSET k evil\r\n").as_bytes());
        assert_eq!(redis.rest(), "", "{head}");
        assert_eq!(other.call("GET k"), "v");
    }
    // Half a request, and nothing more: it is not done.
    let mut redis = Redis::open(&server);
    redis.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nhal");
    redis.socket.shutdown(Shutdown::Write).expect("shut down");
    assert_eq!(redis.rest(), "");
    assert_eq!(other.call("GET k"), "v");
    let numbers =
        ["INCRBY k 9223372036854775808", "SETRANGE k -1 x", "SETBIT k 99999999999 1", "EXPIRE k 9223372036854775807"];
    for words in numbers {
        assert!(other.call(words).starts_with("-ERR"), "{words}");
    }
    assert!(other.call("SETRANGE k 8388608 x").starts_with("-ERR string exceeds maximum allowed size"));
    assert_eq!(other.call("GET k"), "v");
}

#[test]
fn transactions_are_one_step_or_none() {
    let server = server(&[]);
    let (mut one, mut other) = (Redis::open(&server), Redis::open(&server));
    assert_eq!(one.call("SET n 1"), "+OK");
    assert_eq!((one.call("WATCH n"), one.call("MULTI")), ("+OK".into(), "+OK".into()));
    assert_eq!((one.call("INCR n"), one.call("GET n")), ("+QUEUED".into(), "+QUEUED".into()));
    assert_eq!(other.call("GET n"), "1");
    assert_eq!(one.call("EXEC"), "(:2 2)");
    assert_eq!(
        (one.call("WATCH n"), other.call("SET n 2"), one.call("MULTI")),
        ("+OK".into(), "+OK".into(), "+OK".into())
    );
    assert_eq!(
        (one.call("SET n 9"), one.call("EXEC"), one.call("GET n")),
        ("+QUEUED".into(), "nil".into(), "2".into())
    );
    // A key that is not there must not have been there meanwhile either.
    assert_eq!((one.call("WATCH absent"), other.call("SET absent 1"), other.call("DEL absent")).2, ":1");
    assert_eq!((one.call("MULTI"), one.call("SET absent 2"), one.call("EXEC")).2, "nil");
    assert_eq!((one.call("WATCH absent"), one.call("MULTI"), one.call("SET absent 2")).2, "+QUEUED");
    assert_eq!((one.call("EXEC"), one.call("DEL absent")), ("(+OK)".into(), ":1".into()));
    // Whatever else goes meanwhile.
    assert_eq!((one.call("WATCH absent"), other.call("FLUSHALL"), one.call("MULTI")).1, "+OK");
    assert_eq!((one.call("SET n 2"), one.call("EXEC")), ("+QUEUED".into(), "(+OK)".into()));
    let long = "k".repeat(70_000);
    assert_eq!(one.call("RPUSH from item"), ":1");
    let refused = one.call(&format!("LMOVE from {long} LEFT LEFT"));
    assert!(refused.starts_with("-ERR") && refused.contains("at most 65535"), "{refused}");
    assert_eq!((one.call("LRANGE from 0 -1"), one.call("DEL from")), ("(item)".into(), ":1".into()));
    assert!(one.call(&format!("MSET a 1 {long} 2")).starts_with("-ERR") && one.call("GET a") == "nil");
    assert_eq!((one.call("MULTI"), one.call("NOSUCH x")).0, "+OK");
    assert_eq!(one.call("EXEC"), "-EXECABORT Transaction discarded because of previous errors.");
    assert_eq!(one.call("MULTI"), "+OK");
    for words in ["SET a x", "INCR a", "SELECT 1", "SET a y", "FLUSHALL", "SET a z", "BLPOP l 0"] {
        assert_eq!(one.call(words), "+QUEUED");
    }
    assert_eq!(one.call("EXEC"), "(+OK -ERR value is not an integer or out of range +OK +OK +OK +OK nil)");
    assert_eq!((one.call("GET a"), one.call("DBSIZE")), ("z".into(), ":1".into()));
    // Many at once, which all count on what they have seen.
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let mut redis = Redis::open(&server);
            std::thread::spawn(move || {
                let mut done = 0;
                while done < 50 {
                    redis.call("WATCH count");
                    let count: i64 = redis.call("GET count").parse().unwrap_or_default();
                    redis.call("MULTI");
                    redis.call(&format!("SET count {}", count + 1));
                    done += usize::from(redis.call("EXEC") != "nil");
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("done"));
    assert_eq!(other.call("GET count"), "200");
}

#[tokio::test]
async fn who_waits_for_an_item_gets_it_in_turn_and_who_is_gone_takes_none() {
    let mut server = server(&[]);
    let mut pusher = Redis::open(&server);
    let mut waiting: Vec<Redis> = Vec::new();
    for count in 1..=3 {
        let mut redis = Redis::open(&server);
        redis.ask(if count == 2 { "BLMOVE list done LEFT RIGHT 0" } else { "BLPOP none list 0" });
        waiting.push(redis);
        until_blocked(&server, count).await;
    }
    // Who closes its end waits no longer.
    let gone = waiting.remove(0);
    drop(gone);
    until_blocked(&server, 2).await;
    assert_eq!(pusher.call("RPUSH list a b c"), ":3");
    assert_eq!((waiting[0].answer(), waiting[1].answer()), ("a".into(), "(list b)".into()));
    assert_eq!((pusher.call("LRANGE list 0 -1"), pusher.call("LRANGE done 0 -1")), ("(c)".into(), "(a)".into()));
    assert_eq!(waiting[0].call("BLPOP empty 0.01"), "nil");
    // What is asked behind it is done after it.
    waiting[0].send(b"BZPOPMIN z 0\r\nPING\r\n");
    until_blocked(&server, 1).await;
    assert_eq!(pusher.call("ZADD z 2 b 1 a"), ":2");
    assert_eq!((waiting[0].answer(), waiting[0].answer()), ("(z a 1)".into(), "+PONG".into()));
    let id = waiting[0].call("CLIENT ID");
    waiting[0].ask("BRPOP empty 0");
    until_blocked(&server, 1).await;
    assert_eq!(pusher.call(&format!("CLIENT UNBLOCK {} ERROR", &id[1..])), ":1");
    assert_eq!(waiting[0].answer(), "-UNBLOCKED client unblocked via CLIENT UNBLOCK");
    // The broker goes away.
    waiting[1].ask("BLPOP empty 0");
    until_blocked(&server, 1).await;
    server.signal(Signal::TERM);
    assert!(waiting[1].answer().starts_with("-UNBLOCKED the server is shutting down"));
    assert!(server.ended().await.success());
}

#[tokio::test]
async fn a_thousand_connections_wait_and_each_gets_its_item() {
    const COUNT: usize = 1000;
    let server = server(&[]);
    let mut waiting: Vec<Redis> = (0..COUNT).map(|_| Redis::open(&server)).collect();
    waiting.iter_mut().for_each(|redis| redis.ask("BLPOP queue 0"));
    until_blocked(&server, COUNT as u64).await;
    let mut pusher = Redis::open(&server);
    for number in 0..COUNT {
        pusher.ask(&format!("RPUSH queue {number}"));
    }
    (0..COUNT).for_each(|_| assert_eq!(pusher.answer(), ":1"));
    let mut items: Vec<usize> = waiting
        .iter_mut()
        .map(|redis| {
            redis.answer().trim_matches(['(', ')']).split(' ').nth(1).expect("an item").parse().expect("a number")
        })
        .collect();
    items.sort_unstable();
    assert_eq!(items, (0..COUNT).collect::<Vec<_>>());
    assert_eq!(pusher.call("EXISTS queue"), ":0");
    until_blocked(&server, 0).await;
}

#[tokio::test]
async fn channels_are_topics_for_everybody_else() {
    let server = server(&[]);
    let (mut listener, mut redis) = (Redis::open(&server), Redis::open(&server));
    assert_eq!(redis.call("PUBLISH news.eu nobody"), ":0");
    assert_eq!(listener.call("SUBSCRIBE news.eu user:1"), "(subscribe news.eu :1)");
    assert_eq!(listener.answer(), "(subscribe user:1 :2)");
    assert_eq!(listener.call("PSUBSCRIBE n*"), "(psubscribe n* :3)");
    assert_eq!(redis.call("PUBLISH news.eu hello"), ":2");
    let mut heard = [listener.answer(), listener.answer()];
    heard.sort();
    assert_eq!(heard, ["(message news.eu hello)", "(pmessage n* news.eu hello)"]);
    assert!(listener.call("GET a").starts_with("-ERR Can't execute 'get': only"));
    assert_eq!(redis.call("PUBSUB NUMSUB news.eu none"), "(news.eu :1 none :0)");

    // From the native client, and to it.
    let client = server.client("tcp").await;
    within("a publish", client.publish("user_x3a_1", Record::new("from afar"))).await.expect("published");
    assert_eq!(listener.answer(), "(message user:1 from afar)");
    let mut native = within("subscribe", client.subscribe("news.>").open()).await.expect("subscribed");
    assert_eq!(redis.call("PUBLISH news.asia konnichiwa"), ":2");
    assert_eq!(listener.answer(), "(pmessage n* news.asia konnichiwa)");
    let message = within("a record", native.next()).await.expect("a record");
    assert_eq!((&*message.topic, message.record.value()), ("news.asia", &b"konnichiwa"[..]));
    assert_eq!(listener.call("UNSUBSCRIBE"), "(unsubscribe news.eu :2)");
    assert_eq!(
        (listener.answer(), listener.call("PUNSUBSCRIBE")),
        ("(unsubscribe user:1 :1)".into(), "(punsubscribe n* :0)".into())
    );
    assert_eq!(redis.call("PUBLISH user:1 nobody"), ":0");
    // In RESP3 everything else goes on beside it.
    assert!(listener.call("HELLO 3").contains("proto :3"));
    assert_eq!(listener.call("SUBSCRIBE c"), ">(subscribe c :1)");
    assert_eq!(listener.call("SET a 1"), "+OK");
    assert_eq!(redis.call("PUBLISH c x"), ":1");
    assert_eq!(listener.answer(), ">(message c x)");
}

#[test]
fn a_full_cache_says_so_or_makes_room() {
    let server = server(&[]);
    on(&server, ["cache", "create", "db0", "--bytes-max", "1000000"]).ok();
    on(&server, ["cache", "create", "db1", "--bytes-max", "1000000", "--eviction", "s3-fifo"]).ok();
    let mut redis = Redis::open(&server);
    let value = "v".repeat(10_000);
    let answers: Vec<String> = (0..200).map(|number| redis.call(&format!("SET key:{number} {value}"))).collect();
    let full = answers.iter().filter(|answer| answer.starts_with("-OOM")).count();
    assert!((90..150).contains(&full), "{full} of 200 were refused");
    assert!(answers.iter().all(|answer| answer == "+OK" || answer.starts_with("-OOM command not allowed")));
    assert_eq!(redis.call(&format!("RPUSH list {value}")).split(' ').next(), Some("-OOM"));
    assert_eq!((redis.call("DEL key:0 key:1"), redis.call(&format!("RPUSH list {value}"))), (":2".into(), ":1".into()));
    assert_eq!(redis.call("SELECT 1"), "+OK");
    for number in 0..500 {
        assert_eq!(redis.call(&format!("SET key:{number} {value}")), "+OK");
        assert_eq!(redis.call(&format!("HSET hash:{number} f {value}")), ":1");
    }
    let size: usize = redis.call("DBSIZE")[1..].parse().expect("a number");
    assert!((50..150).contains(&size), "{size} entries of 10 KB in 1 MB");
}

#[test]
fn who_has_to_log_in_does_nothing_before() {
    let server = server(&["auth=required", "users=ann:pencil,default:word"]);
    let mut redis = Redis::open(&server);
    assert_eq!(redis.call("GET a"), "-NOAUTH Authentication required.");
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.";
    assert_eq!((redis.call("AUTH ann wrong"), redis.call("AUTH nobody pencil")), (wrong.into(), wrong.into()));
    assert_eq!(redis.call("GET a"), "-NOAUTH Authentication required.");
    assert_eq!(redis.call("AUTH ann pencil"), "+OK");
    assert_eq!(redis.call("ACL WHOAMI"), "ann");
    assert!(redis.call("CLIENT INFO").contains(" user=ann "));
    assert_eq!((redis.call("SET a 1"), redis.call("ACL WHOAMI")), ("+OK".into(), "ann".into()));
    assert_eq!(
        (redis.call("RESET"), redis.call("GET a")),
        ("+RESET".into(), "-NOAUTH Authentication required.".into())
    );
    let mut redis = Redis::open(&server);
    assert!(redis.call("HELLO 3").starts_with("-NOAUTH HELLO must be called"));
    assert!(redis.call("HELLO 3 AUTH default word SETNAME me").contains("proto :3"));
    assert_eq!((redis.call("CLIENT GETNAME"), redis.call("GET a")), ("me".into(), "1".into()));
    // Before it has said who it is a connection may not send much.
    let mut redis = Redis::open(&server);
    redis.send(b"*11\r\n");
    assert_eq!(redis.rest(), "-ERR Protocol error: unauthenticated multibulk length\r\n");
}

/// It is closed after a while, and holds nobody up until then.
#[tokio::test]
async fn a_client_that_never_reads_is_closed() {
    let server = server(&[]);
    let (mut deaf, mut other) = (Redis::open(&server), Redis::open(&server));
    let value = "v".repeat(1 << 20);
    assert_eq!(other.call(&format!("SET large {value}")), "+OK");
    let before = server.resident_bytes();
    let gets = request(&[b"GET", b"large"]).repeat(2000);
    let mut writer = deaf.socket.try_clone().expect("another handle");
    let sent = std::thread::spawn(move || writer.write_all(&gets));
    for _ in 0..100 {
        assert_eq!(other.call("PING"), "+PONG");
    }
    let client = server.client("tcp").await;
    let begin = Instant::now();
    while metric(&client, "thalweg_redis_clients").await > 1 {
        assert!(begin.elapsed() < PATIENCE, "it is still there");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes for 2 GB that nobody reads");
    // What it was sent before is there; the rest never comes.
    let mut all = Vec::new();
    let end = deaf.socket.read_to_end(&mut all);
    assert!(end.is_err() || all.len() < 2000 << 20);
    drop(sent.join());
}

#[test]
fn databases_that_are_durable_have_after_a_kill_what_they_answered() {
    let dir = tempfile::TempDir::new().expect("a folder");
    let data = format!("data={}", dir.path().display());
    let mut server = server(&[&data, "redis_durable=true"]);
    let mut redis = Redis::open(&server);
    // Many at once: their answers come in order, when all of them last.
    let calls: Vec<String> = (0..200).map(|number| format!("rpush list {number}")).collect();
    calls.iter().for_each(|call| redis.ask(call));
    for number in 1..=200 {
        assert_eq!(redis.answer(), format!(":{number}"));
    }
    for (call, answer) in [
        ("set text one ex 10000", "+OK"),
        ("append text two", ":6"),
        ("hset hash a 1 b 2", ":2"),
        ("hdel hash a", ":1"),
        ("sadd set x y z", ":3"),
        ("smove set other x", ":1"),
        ("zadd sorted 1 one 2 two", ":2"),
        ("zincrby sorted 5 one", "6"),
        ("ltrim list 100 -1", "+OK"),
        ("lpop list", "100"),
        ("lmove list moved left right", "101"),
        ("multi", "+OK"),
        ("set a 1", "+QUEUED"),
        ("select 3", "+QUEUED"),
        ("set b 2", "+QUEUED"),
        ("exec", "(+OK +OK +OK)"),
        ("set gone 1", "+OK"),
        ("flushdb", "+OK"),
        ("set b 3", "+OK"),
        ("select 0", "+OK"),
        ("copy hash copied", ":1"),
    ] {
        assert_eq!(redis.call(call), answer, "{call}");
    }
    let mut waiting = Redis::open(&server);
    waiting.ask("blpop later 0");
    // It may be before or after the push: the answer is the same.
    assert_eq!(redis.call("rpush later first second"), ":2");
    assert_eq!(waiting.answer(), "(later first)");
    for round in 0..2 {
        server.crash_and_restart();
        let mut redis = Redis::open(&server);
        for (call, answer) in [
            ("get text", "onetwo"),
            ("hgetall hash", "(b 2)"),
            ("hgetall copied", "(b 2)"),
            ("smembers set", "(y z)"),
            ("smembers other", "(x)"),
            ("zrange sorted 0 -1 withscores", "(two 2 one 6)"),
            ("llen list", ":98"),
            ("lrange moved 0 -1", "(101)"),
            ("lrange later 0 -1", "(second)"),
            ("get a", "1"),
            ("select 3", "+OK"),
            ("keys *", "(b)"),
            ("get b", "3"),
        ] {
            let got = redis.call(call);
            let got = if call.starts_with("smembers set") { sorted(&got) } else { got };
            assert_eq!(got, answer, "{call}, round {round}");
        }
        assert_eq!(redis.call("select 0"), "+OK");
        let ttl: i64 = redis.call("ttl text").trim_start_matches(':').parse().expect("a number");
        assert!((1..=10_000).contains(&ttl));
    }
    let mut redis = Redis::open(&server);
    assert_eq!(redis.call("flushall"), "+OK");
    server.crash_and_restart();
    assert_eq!(Redis::open(&server).call("dbsize"), ":0");
}

/// The words of an answer in their order.
fn sorted(answer: &str) -> String {
    let mut words: Vec<&str> = answer.trim_matches(['(', ')']).split(' ').collect();
    words.sort_unstable();
    format!("({})", words.join(" "))
}
