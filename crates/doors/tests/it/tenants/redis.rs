//! Tenants at the Redis door.

use std::time::{Duration, Instant};

use broker::Wakes;
use doors::redis::{Settings, TRANSACTION_TIME_MAX};
use engine::{Acks, BatchBuilder, TopicSettings};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::Server;

/// Maximum time of a reply, which only a failure takes.
const PATIENCE: Duration = Duration::from_secs(20);

async fn start() -> Server {
    super::start(Settings {
        hello_timeout: Duration::from_secs(30),
        allow_plain: true,
        is_login_required: true,
        is_durable: false,
        keyspace_events: String::new(),
        transaction_time_max: TRANSACTION_TIME_MAX,
    })
    .await
}

struct Redis(BufReader<TcpStream>);

impl Redis {
    async fn log_in(server: &Server, user: &str) -> Self {
        let mut redis = Self(BufReader::new(TcpStream::connect(server.address).await.expect("the door is open")));
        assert_eq!(redis.call(&format!("AUTH {user} {user}")).await, "+OK");
        redis
    }

    async fn send(&mut self, line: &str) {
        self.0.write_all(format!("{line}\r\n").as_bytes()).await.expect("sent");
    }

    /// Reads one reply: its line, the text of a bulk string, or the items of an array in parentheses.
    async fn answer(&mut self) -> String {
        let mut line = String::new();
        let read = tokio::time::timeout(PATIENCE, self.0.read_line(&mut line)).await;
        read.expect("a reply in time").expect("a line");
        let line = line.trim_end().to_owned();
        let count = line.get(1..).and_then(|count| count.parse::<usize>().ok());
        match (line.as_bytes().first(), count) {
            (Some(b'$'), Some(count)) => {
                let mut bytes = vec![0; count + 2];
                self.0.read_exact(&mut bytes).await.expect("a string");
                String::from_utf8_lossy(&bytes[..count]).into_owned()
            }
            (Some(b'*'), Some(count)) => {
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

    /// Repeats a command until it has this reply: the end of a subscription becomes visible a little later.
    async fn until(&mut self, line: &str, answer: &str) {
        let begin = Instant::now();
        while self.call(line).await != answer {
            assert!(begin.elapsed() < PATIENCE, "{line}: not {answer}");
            tokio::task::yield_now().await;
        }
    }

    /// Checks the replies to commands, in turn.
    async fn expect(&mut self, calls: &[(&str, &str)]) {
        for (line, answer) in calls {
            assert_eq!(self.call(line).await, *answer, "{line}");
        }
    }
}

#[tokio::test]
async fn databases_of_tenants_have_their_own_keys() {
    let server = start().await;
    let mut ann = Redis::log_in(&server, "ann").await;
    let mut amy = Redis::log_in(&server, "amy").await;
    let mut bob = Redis::log_in(&server, "bob").await;
    let mut root = Redis::log_in(&server, "root").await;
    ann.expect(&[("SET key a", "+OK"), ("SET other a", "+OK"), ("SELECT 3", "+OK"), ("SET key a3", "+OK")]).await;
    bob.expect(&[("GET key", "$-1"), ("SET key b", "+OK"), ("DBSIZE", ":1"), ("KEYS *", "(key)")]).await;
    root.expect(&[("DBSIZE", ":0"), ("SET key r", "+OK")]).await;
    amy.expect(&[
        ("GET key", "a"),
        ("DBSIZE", ":2"),
        ("SCAN 0 MATCH k*", "(0 (key))"),
        ("MOVE other 3", ":1"),
        ("COPY key copied DB 3", ":1"),
        ("SORT key", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ("OBJECT ENCODING key", "embstr"),
    ])
    .await;
    ann.expect(&[("DBSIZE", ":3"), ("GET other", "a")]).await;
    // Transactions and watched keys.
    ann.expect(&[("SELECT 0", "+OK"), ("WATCH key", "+OK")]).await;
    bob.expect(&[("SET key b2", "+OK")]).await;
    ann.expect(&[("MULTI", "+OK"), ("INCR n", "+QUEUED"), ("EXEC", "(:1)"), ("WATCH key", "+OK")]).await;
    amy.expect(&[("SET key a2", "+OK")]).await;
    ann.expect(&[("MULTI", "+OK"), ("INCR n", "+QUEUED"), ("EXEC", "*-1")]).await;
    // A client that blocks is answered by its own tenant alone.
    ann.send("BLPOP list 0").await;
    bob.expect(&[("LPUSH list b", ":1")]).await;
    amy.expect(&[("LPUSH list a", ":1")]).await;
    assert_eq!(ann.answer().await, "(list a)");
    bob.expect(&[("LRANGE list 0 -1", "(b)")]).await;
    let keyspace = bob.call("INFO keyspace").await;
    assert!(keyspace.contains("db0:keys=2,") && !keyspace.contains("db3"), "{keyspace}");
    let caches: Vec<String> = ["acme.db0", "acme.db3", "globex.db0", "db0"].map(str::to_owned).to_vec();
    assert!(caches.iter().all(|name| server.broker.caches.find(name).is_ok()));
    // All databases of one tenant.
    bob.expect(&[("FLUSHALL", "+OK"), ("DBSIZE", ":0")]).await;
    amy.expect(&[("GET key", "a2"), ("SELECT 3", "+OK"), ("GET key", "a3")]).await;
    root.expect(&[("GET key", "r"), ("FLUSHALL", "+OK")]).await;
    amy.expect(&[("GET key", "a3"), ("MULTI", "+OK"), ("FLUSHALL", "+QUEUED"), ("EXEC", "(+OK)"), ("DBSIZE", ":0")])
        .await;
    amy.expect(&[("SELECT 0", "+OK"), ("DBSIZE", ":0")]).await;
}

#[tokio::test]
async fn streams_of_tenants_are_topics_with_their_prefix() {
    let server = start().await;
    let mut ann = Redis::log_in(&server, "ann").await;
    let mut bob = Redis::log_in(&server, "bob").await;
    ann.expect(&[
        ("XADD jobs 1-1 f a", "1-1"),
        ("SELECT 2", "+OK"),
        ("XADD jobs 2-1 f a", "2-1"),
        ("SELECT 0", "+OK"),
        ("KEYS *", "(jobs)"),
        ("TYPE jobs", "+stream"),
    ])
    .await;
    bob.expect(&[
        ("EXISTS jobs", ":0"),
        ("XLEN jobs", ":0"),
        ("XRANGE jobs - +", "()"),
        ("XINFO STREAM jobs", "-ERR no such key"),
        ("KEYS *", "()"),
    ])
    .await;
    assert!(server.broker.has_topic("acme.jobs") && server.broker.has_topic("acme.db2_x_jobs"));
    assert!(!server.broker.has_topic("jobs"));
    // A reader that waits receives the entries of its own tenant.
    bob.send("XREAD BLOCK 0 STREAMS jobs $").await;
    ann.expect(&[("XADD jobs 1-2 f a", "1-2")]).await;
    let mut bert = Redis::log_in(&server, "bob").await;
    bert.expect(&[("XADD jobs 5-1 f b", "5-1")]).await;
    assert_eq!(bob.answer().await, "((jobs ((5-1 (f b)))))");
    bob.expect(&[
        ("XGROUP CREATE jobs workers 0", "+OK"),
        ("XREADGROUP GROUP workers w COUNT 9 STREAMS jobs >", "((jobs ((5-1 (f b)))))"),
        ("XADD jobs 6-1 f b", "6-1"),
    ])
    .await;
    let info = bob.call("XINFO GROUPS jobs").await;
    assert!(info.contains("workers") && !info.contains("globex"), "{info}");
    ann.expect(&[
        ("XINFO GROUPS jobs", "()"),
        ("MULTI", "+OK"),
        ("XADD jobs 1-3 f a", "+QUEUED"),
        ("XLEN jobs", "+QUEUED"),
        ("EXEC", "(1-3 :3)"),
        ("RENAME jobs done", "+OK"),
        ("EXISTS jobs done", ":1"),
        ("COPY done jobs", ":1"),
    ])
    .await;
    assert!(server.broker.has_topic("acme.done") && !server.broker.has_topic("done"));
    bob.expect(&[("XLEN jobs", ":2"), ("EXISTS done", ":0")]).await;
    // A topic of another door is the stream of the tenant that has its prefix.
    let settings = TopicSettings { partitions: 1, ..TopicSettings::of_broker() };
    server.broker.create_topic("globex.made", settings).await.expect("created");
    let mut builder = BatchBuilder::new();
    builder.push(7, None, Some(b"v"), &[]).expect("a record");
    let batch = builder.finish().expect("a batch");
    let published = server.broker.publish("globex.made", Some(0), Acks::Committed, batch, &mut Wakes::default()).await;
    published.expect("published");
    bob.expect(&[("XLEN made", ":1"), ("EXISTS made", ":1")]).await;
    ann.expect(&[("XLEN made", ":0"), ("EXISTS made globex.made", ":0"), ("XLEN globex.made", ":0")]).await;
    // The deletion of all keys deletes the streams of one tenant.
    ann.expect(&[("FLUSHALL", "+OK"), ("EXISTS jobs done", ":0")]).await;
    assert!(!server.broker.has_topic("acme.jobs") && server.broker.has_topic("globex.jobs"));
    assert!(server.broker.has_topic("globex.made"));
    bob.expect(&[("DEL jobs", ":1")]).await;
    assert!(!server.broker.has_topic("globex.jobs"));
}

#[tokio::test]
async fn channels_of_tenants_have_the_same_names_and_other_subscribers() {
    let server = start().await;
    let mut ann = Redis::log_in(&server, "ann").await;
    let mut amy = Redis::log_in(&server, "amy").await;
    let mut bob = Redis::log_in(&server, "bob").await;
    let mut root = Redis::log_in(&server, "root").await;
    let mut bert = Redis::log_in(&server, "bob").await;
    ann.expect(&[("SUBSCRIBE news a:b", "(subscribe news :1)")]).await;
    assert_eq!(ann.answer().await, "(subscribe a:b :2)");
    ann.expect(&[("PSUBSCRIBE *", "(psubscribe * :3)"), ("SSUBSCRIBE shard", "(ssubscribe shard :1)")]).await;
    bert.expect(&[("SUBSCRIBE news", "(subscribe news :1)"), ("PSUBSCRIBE acme.*", "(psubscribe acme.* :2)")]).await;
    root.expect(&[("PUBSUB CHANNELS acme.*", "(acme.a:b acme.news)"), ("PUBSUB NUMPAT", ":2")]).await;
    amy.expect(&[
        ("PUBSUB CHANNELS", "(a:b news)"),
        ("PUBSUB CHANNELS acme.*", "()"),
        ("PUBSUB NUMSUB news acme.news", "(news :1 acme.news :0)"),
        ("PUBSUB NUMPAT", ":1"),
        ("PUBSUB SHARDCHANNELS", "(shard)"),
        ("PUBSUB SHARDNUMSUB shard", "(shard :1)"),
        // One subscription to the channel, and one to the pattern.
        ("PUBLISH news a", ":2"),
        ("PUBLISH a:b a2", ":2"),
        ("SPUBLISH shard s", ":1"),
    ])
    .await;
    bob.expect(&[
        ("PUBSUB CHANNELS", "(news)"),
        ("PUBSUB SHARDCHANNELS", "()"),
        ("PUBLISH news b", ":1"),
        ("PUBLISH acme.news b", ":1"),
        ("PUBLISH a:b b", ":0"),
        ("SPUBLISH shard b", ":0"),
    ])
    .await;
    let mut received = Vec::new();
    for _ in 0..5 {
        received.push(ann.answer().await);
    }
    received.sort();
    let expected =
        ["(message a:b a2)", "(message news a)", "(pmessage * a:b a2)", "(pmessage * news a)", "(smessage shard s)"];
    assert_eq!(received, expected);
    // `acme.news` is a channel of globex, whose whole name is `globex.acme.news`.
    let mut received = [bert.answer().await, bert.answer().await];
    received.sort();
    assert_eq!(received, ["(message news b)", "(pmessage acme.* acme.news b)"]);
    // A client without a tenant uses the names of the broker, and reaches any of them.
    root.expect(&[("PUBLISH acme.news r", ":2"), ("PUBLISH news r", ":0"), ("SPUBLISH acme.shard r", ":1")]).await;
    let mut received = [ann.answer().await, ann.answer().await, ann.answer().await];
    received.sort();
    assert_eq!(received, ["(message news r)", "(pmessage * news r)", "(smessage shard r)"]);
    ann.expect(&[("UNSUBSCRIBE news", "(unsubscribe news :2)")]).await;
    amy.until("PUBSUB CHANNELS", "(a:b)").await;
    amy.expect(&[("PUBLISH news a", ":1")]).await;
}

#[tokio::test]
async fn a_client_that_logs_in_to_another_tenant_leaves_the_first() {
    let server = start().await;
    let mut redis = Redis::log_in(&server, "ann").await;
    let mut bob = Redis::log_in(&server, "bob").await;
    redis.expect(&[("SET key a", "+OK"), ("HELLO 3 AUTH ann ann", "%7")]).await;
    for _ in 0..14 {
        redis.answer().await;
    }
    redis.send("SUBSCRIBE news").await;
    for expected in [">3", "subscribe", "news", ":1"] {
        assert_eq!(redis.answer().await, expected);
    }
    redis.expect(&[("AUTH bob bob", "+OK"), ("GET key", "_"), ("SET key b", "+OK"), ("PING", "+PONG")]).await;
    bob.expect(&[("GET key", "b"), ("PUBSUB NUMSUB news", "(news :0)"), ("PUBLISH news b", ":0")]).await;
    let mut amy = Redis::log_in(&server, "amy").await;
    amy.until("PUBSUB NUMSUB news", "(news :0)").await;
    amy.expect(&[("GET key", "a"), ("PUBLISH news a", ":0")]).await;
    redis.send("SUBSCRIBE news").await;
    for expected in [">3", "subscribe", "news", ":1"] {
        assert_eq!(redis.answer().await, expected);
    }
    bob.expect(&[("PUBLISH news b", ":1")]).await;
}

/// Commands about the whole broker are refused, as nothing of it may be a tenant's.
#[tokio::test]
async fn commands_about_the_broker_are_not_for_clients_of_a_tenant() {
    let server = start().await;
    let mut ann = Redis::log_in(&server, "ann").await;
    for (line, name) in [
        ("CLIENT LIST", "client|list"),
        ("CLIENT KILL ID 1", "client|kill"),
        ("CLIENT PAUSE 1", "client|pause"),
        ("CONFIG GET maxmemory", "config|get"),
        ("CONFIG SET maxmemory 1", "config|set"),
        ("ACL LIST", "acl|list"),
        ("ACL USERS", "acl|users"),
        ("ACL SETUSER eve on", "acl|setuser"),
        ("ACL LOG", "acl|log"),
        ("SLOWLOG GET", "slowlog|get"),
        ("MEMORY STATS", "memory|stats"),
        ("ROLE", "role"),
        ("DEBUG SLEEP 0", "debug"),
    ] {
        let refused = format!("-NOPERM this user has no permissions to run the '{name}' command");
        assert_eq!(ann.call(line).await, refused, "{line}");
    }
    ann.expect(&[("ACL WHOAMI", "ann"), ("CLIENT GETNAME", "$-1"), ("PING", "+PONG")]).await;
    let info = ann.call("INFO everything").await;
    assert!(info.contains("redis_version:") && !info.contains("process_id") && !info.contains("# Clients"), "{info}");
    let info = Redis::log_in(&server, "root").await.call("INFO").await;
    assert!(info.contains("process_id:") && info.contains("# Clients"), "{info}");
}
