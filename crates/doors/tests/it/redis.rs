//! The Redis door, with limits that no configuration sets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use broker::Broker;
use doors::redis::{Settings, TRANSACTION_TIME_MAX, open};
use net::tls::{Identity, IdentitySource, Tls};
use net::{ConnectionLimits, Connections, Shards, Shutdown};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

struct Server {
    address: SocketAddr,
    _broker: Arc<Broker>,
    _shards: Arc<Shards>,
    _shutdown: Shutdown,
}

async fn start(transaction_time_max: Duration) -> Server {
    let shards = Arc::new(Shards::start(1).expect("a thread"));
    let broker = Broker::start(broker::Settings::default(), &shards.handles()).expect("started");
    let identity = Identity::self_signed(vec!["localhost".to_owned()]).expect("an identity");
    let tls = Tls::new(IdentitySource::Fixed(identity).into()).expect("TLS");
    let settings = Settings {
        address: ([127, 0, 0, 1], 0).into(),
        hello_timeout: Duration::from_secs(30),
        allow_plain: true,
        is_login_required: false,
        is_durable: false,
        transaction_time_max,
    };
    let (connections, shutdown) = (Connections::new(ConnectionLimits::up_to(100)), Shutdown::default());
    let opened = open(&settings, broker.clone(), &shards, connections, &shutdown, &tls);
    Server { address: opened.expect("a free port").0, _broker: broker, _shards: shards, _shutdown: shutdown }
}

struct Redis(BufReader<TcpStream>);

impl Redis {
    async fn open(server: &Server) -> Self {
        Self(BufReader::new(TcpStream::connect(server.address).await.expect("the door is open")))
    }

    async fn send(&mut self, line: &str) {
        self.0.write_all(format!("{line}\r\n").as_bytes()).await.expect("sent");
    }

    /// One answer: its line, the text of a bulk string, or those of an array in brackets.
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

    /// What EXEC answers to these.
    async fn transaction(&mut self, lines: &[&str]) -> String {
        assert_eq!(self.call("MULTI").await, "+OK");
        for line in lines {
            assert_eq!(self.call(line).await, "+QUEUED");
        }
        self.call("EXEC").await
    }
}

/// Each command of a transaction whose time is over is refused by itself, and none of them is done; commands outside of
/// one have no such time.
#[tokio::test]
async fn a_transaction_that_takes_too_long_is_refused_from_there_on() {
    let server = start(Duration::ZERO).await;
    let mut redis = Redis::open(&server).await;
    let why = "-ERR the transaction takes more than 0 ms: this command of it was not done. Use several transactions";
    assert_eq!(redis.transaction(&["SET k v", "INCR n"]).await, format!("({why} {why})"));
    assert_eq!(redis.call("EXISTS k n").await, ":0");
    // Those with streams are done by other code.
    assert_eq!(redis.transaction(&["XADD s * a 1", "SET k v"]).await, format!("({why} {why})"));
    assert_eq!(redis.call("EXISTS k s").await, ":0");
    assert_eq!(redis.call("XADD s 1-1 a 1").await, "1-1");
    assert_eq!(redis.call("SET k v").await, "+OK");
    let server = start(TRANSACTION_TIME_MAX).await;
    let mut redis = Redis::open(&server).await;
    assert_eq!(redis.transaction(&["SET k v", "XADD s 1-1 a 1", "EXISTS k s"]).await, "(+OK 1-1 :2)");
}
