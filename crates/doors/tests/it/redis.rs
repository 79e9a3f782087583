//! Tests of the Redis door with limits that no configuration sets, and with more topics than one step visits.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use broker::{Broker, COMPARED_PER_TURN};
use doors::redis::{Settings, TRANSACTION_TIME_MAX};
use doors::{Door, Opening};
use engine::TopicSettings;
use net::tls::{Identity, IdentitySource, Tls};
use net::{ConnectionLimits, Connections, Shutdown, Sockets, Workers};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

struct Server {
    address: SocketAddr,
    broker: Arc<Broker>,
    _workers: Arc<Workers>,
    _shutdown: Shutdown,
}

async fn start(transaction_time_max: Duration) -> Server {
    let workers = Arc::new(Workers::start(1).expect("a thread"));
    let broker = Broker::start(broker::Settings::default(), &workers.handles()).expect("started");
    let identity = Identity::self_signed(vec!["localhost".to_owned()]).expect("an identity");
    let tls = Arc::new(Tls::new(IdentitySource::Fixed(identity).into()).expect("TLS"));
    let settings = Settings {
        hello_timeout: Duration::from_secs(30),
        allow_plain: true,
        is_login_required: false,
        is_durable: false,
        keyspace_events: String::new(),
        transaction_time_max,
    };
    let connections = Connections::new(ConnectionLimits::up_to(100));
    let shutdown = Shutdown::default();
    let sockets = Sockets::bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a free port");
    let opening = Opening {
        broker: broker.clone(),
        workers: &workers,
        sockets: &sockets,
        connections,
        shutdown: &shutdown,
        tls: &tls,
        gate: None,
    };
    let opened = Box::new(settings).open(opening).await;
    Server { address: opened.expect("open").address, broker, _workers: workers, _shutdown: shutdown }
}

struct Redis(BufReader<TcpStream>);

impl Redis {
    async fn open(server: &Server) -> Self {
        Self(BufReader::new(TcpStream::connect(server.address).await.expect("the door is open")))
    }

    async fn send(&mut self, line: &str) {
        self.0.write_all(format!("{line}\r\n").as_bytes()).await.expect("sent");
    }

    /// Reads one reply: its line, the text of a bulk string, or the items of an array in parentheses.
    async fn answer(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).await.expect("a line");
        let line = line.trim_end().to_owned();
        let count = line.get(1..).and_then(|count| count.parse::<usize>().ok()).unwrap_or_default();
        match line.as_bytes().first() {
            Some(b'$') => {
                let mut bytes = vec![0; count + 2];
                self.0.read_exact(&mut bytes).await.expect("a string");
                String::from_utf8_lossy(&bytes[..count]).into_owned()
            }
            Some(b'*') => {
                let mut each = Vec::new();
                for _ in 0..count {
                    each.push(Box::pin(self.answer()).await);
                }
                format!("({})", each.join(" "))
            }
            _ => line,
        }
    }

    async fn call(&mut self, line: &str) -> String {
        self.send(line).await;
        self.answer().await
    }

    /// Returns the reply of EXEC to a transaction of these commands.
    async fn transaction(&mut self, lines: &[&str]) -> String {
        assert_eq!(self.call("MULTI").await, "+OK");
        for line in lines {
            assert_eq!(self.call(line).await, "+QUEUED");
        }
        self.call("EXEC").await
    }
}

/// After the time limit of a transaction each remaining command is refused individually and does not run. Commands
/// outside of a transaction have no time limit.
#[tokio::test]
async fn the_rest_of_a_transaction_that_takes_too_long_is_refused() {
    let server = start(Duration::ZERO).await;
    let mut redis = Redis::open(&server).await;
    let why = "-ERR the transaction takes more than 0 ms: this command was not executed. Use several transactions";
    assert_eq!(redis.transaction(&["SET k v", "INCR n"]).await, format!("({why} {why})"));
    assert_eq!(redis.call("EXISTS k n").await, ":0");
    // Transactions with streams are run by other code.
    assert_eq!(redis.transaction(&["XADD s * a 1", "SET k v"]).await, format!("({why} {why})"));
    assert_eq!(redis.call("EXISTS k s").await, ":0");
    assert_eq!(redis.call("XADD s 1-1 a 1").await, "1-1");
    assert_eq!(redis.call("SET k v").await, "+OK");
    let server = start(TRANSACTION_TIME_MAX).await;
    let mut redis = Redis::open(&server).await;
    assert_eq!(redis.transaction(&["SET k v", "XADD s 1-1 a 1", "EXISTS k s"]).await, "(+OK 1-1 :2)");
}

/// The reply to a pattern over thousands of topics is sent when all of them are joined. The client receives no message
/// before the reply, and every message after it. Other clients are served in the meantime.
#[tokio::test]
async fn a_pattern_listens_to_thousands_of_topics_and_a_transaction_does_not_begin_to() {
    const MANY: usize = 3_000;
    let server = start(TRANSACTION_TIME_MAX).await;
    for i in 0..MANY {
        server.broker.create_topic(&format!("many.{i}"), TopicSettings::of_broker()).await.expect("created");
    }
    let mut listener = Redis::open(&server).await;
    let mut other = Redis::open(&server).await;
    // The second pattern is joined after the first one, which receives the messages that are published in the meantime
    // but must not write them before its confirmation.
    listener.send("PSUBSCRIBE many.* *.1").await;
    for i in 0..100 {
        assert_eq!(other.call("PING").await, "+PONG");
        let receivers = other.call(&format!("PUBLISH many.{i} early")).await;
        assert!([":0", ":1", ":2"].contains(&receivers.as_str()), "{receivers}");
    }
    assert_eq!(listener.answer().await, "(psubscribe many.* :1)");
    assert_eq!(listener.answer().await, "(psubscribe *.1 :2)");
    assert_eq!(other.call("PUBSUB NUMPAT").await, ":2");
    assert_eq!(other.call("PUBLISH many.2999 late").await, ":1");
    assert_eq!(other.call("PUBLISH new.1 late").await, ":1");
    let mut received = Vec::new();
    while !received.contains(&"(pmessage *.1 new.1 late)".to_owned()) || !received.iter().any(|it| it.contains("2999"))
    {
        received.push(listener.answer().await);
    }
    received.sort_unstable();
    let count = received.len();
    received.dedup();
    assert_eq!(received.len(), count, "each message is received once: {received:?}");
    assert_eq!(listener.call("PUNSUBSCRIBE *.1").await, "(punsubscribe *.1 :1)");
    let refused = other.transaction(&["PSUBSCRIBE many.*", "SUBSCRIBE many.2"]).await;
    assert!(refused.starts_with("(-ERR PSUBSCRIBE checks all topics") && refused.ends_with("(subscribe many.2 :1))"));
    // A client that disconnects while it is joining leaves nothing behind.
    let mut leaver = Redis::open(&server).await;
    leaver.send("PSUBSCRIBE many.*").await;
    drop((leaver, listener));
    let mut last = Redis::open(&server).await;
    while last.call("PUBLISH many.7 nobody").await != ":0" {
        tokio::task::yield_now().await;
    }
    assert_eq!(last.call("PUBSUB NUMPAT").await, ":0");
}

/// Other tasks of the thread run while a client subscribes to many patterns next to many channels.
#[tokio::test]
async fn patterns_are_compared_with_many_channels_in_turns() {
    const CHANNELS: usize = 1_000;
    const PATTERNS: usize = 64;
    let server = start(TRANSACTION_TIME_MAX).await;
    let mut every = Redis::open(&server).await;
    assert_eq!(every.call("PSUBSCRIBE x*").await, "(psubscribe x* :1)");
    let mut other = Redis::open(&server).await;
    for i in 0..CHANNELS {
        assert_eq!(other.call(&format!("PUBLISH x{i} message")).await, ":1");
    }
    // A task of the same thread writes down how many subscriptions it sees.
    let broker = server.broker.clone();
    let watch = server._workers.handles()[0].spawn(async move {
        let mut seen = std::collections::BTreeSet::new();
        while !seen.contains(&(1 + PATTERNS)) {
            let text = broker.stats().expect("metrics");
            let count = text.lines().find_map(|line| line.strip_prefix("thalweg_subscribers ")).expect("a count");
            seen.insert(count.parse::<usize>().expect("a number"));
            tokio::task::yield_now().await;
        }
        seen
    });
    let patterns: Vec<String> = (0..PATTERNS).map(|i| format!("*y{i}")).collect();
    let mut listener = Redis::open(&server).await;
    listener.send(&format!("PSUBSCRIBE {}", patterns.join(" "))).await;
    for (i, pattern) in patterns.iter().enumerate() {
        assert_eq!(listener.answer().await, format!("(psubscribe {pattern} :{})", i + 1));
    }
    let seen = watch.await.expect("all subscriptions were seen");
    // None, some and all of them: in one step no task would see some.
    const { assert!(PATTERNS * CHANNELS > 3 * COMPARED_PER_TURN) };
    assert!(seen.len() > 2, "{seen:?}");

    // A transaction does not wait for turns.
    let refused = other.transaction(&[&format!("PSUBSCRIBE {}", patterns.join(" ")), "PSUBSCRIBE *z"]).await;
    let why = "PSUBSCRIBE checks all topics and channels, which are too many for a transaction";
    assert_eq!(refused, format!("(-ERR {why}: send it outside of the transaction (psubscribe *z :1))"));
}
