//! Commands that tools and libraries send before they start their work, and commands for administrators, with the
//! responses of redis-server 7.0.

use std::collections::BTreeMap;

use super::commands::{Redis, server};

fn fields(line: &str) -> BTreeMap<&str, &str> {
    line.split(' ').filter_map(|field| field.trim_end().split_once('=')).collect()
}

fn info(redis: &mut Redis, section: &str) -> BTreeMap<String, String> {
    let text = redis.call(&format!("INFO {section}"));
    text.lines().filter_map(|line| line.split_once(':')).map(|(name, value)| (name.into(), value.into())).collect()
}

/// Fields of CLIENT LIST in Redis 7.0 (`catClientInfoString` in networking.c), followed by two of 7.2.
#[test]
fn client_list_has_the_fields_of_redis() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    let mut other = Redis::open(&server);
    other.call("CLIENT SETNAME worker");
    other.call("MULTI");
    other.call("SET key value");
    let lines = redis.call("CLIENT LIST");
    let names = "id addr laddr fd name age idle flags db sub psub ssub multi qbuf qbuf-free argv-mem multi-mem rbs rbp \
                 obl oll omem tot-mem events cmd user redir resp lib-name lib-ver";
    for line in lines.lines() {
        let found: Vec<_> = line.split(' ').filter_map(|field| field.split_once('=')).map(|(name, _)| name).collect();
        assert_eq!(found.join(" "), names);
    }
    let of = |name: &str| fields(lines.lines().find(|line| line.contains(name)).expect("its line"));
    let own = of("cmd=client|list");
    let worker = of("name=worker");
    // As counted by Redis: the request of 26 bytes, and its two arguments.
    assert_eq!((own["qbuf"], own["argv-mem"], own["flags"], own["user"]), ("26", "10", "N", "default"));
    assert_eq!((worker["cmd"], worker["flags"], worker["multi"], worker["events"]), ("set", "x", "1", "r"));
    assert!(worker["multi-mem"].parse::<u64>().expect("a number") >= 11);
    assert!(worker["tot-mem"].parse::<u64>().expect("a number") > 0);
    // An incomplete request, and one that waits.
    other.call("DISCARD");
    other.send(b"*2\r\n$3\r\nGET\r\n");
    let begun = |redis: &mut Redis| {
        fields(redis.call("CLIENT LIST").lines().find(|it| it.contains("name=worker")).expect("it"))
            .get("qbuf")
            .map(|it| it.to_string())
    };
    while begun(&mut redis).as_deref() != Some("13") {}
    other.send(b"$1\r\nx\r\n");
    assert_eq!(other.answer(), "nil");
    assert_eq!(begun(&mut redis).as_deref(), Some("0"));
}

/// `clientKillCommand` and `clientHelpCommand` in networking.c: an invalid filter kills no client.
#[test]
fn client_kill_refuses_invalid_filters_and_answers_before_killing_its_own_client() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    let mut other = Redis::open(&server);
    let refused = [
        ("SKIPME foo", "-ERR syntax error"),
        ("TYPE foo", "-ERR Unknown client type 'foo'"),
        ("USER nobody", "-ERR No such user 'nobody'"),
        ("ID 0", "-ERR client-id should be greater than 0"),
        ("ID 5 SKIPME", "-ERR syntax error"),
        ("foo bar", "-ERR syntax error"),
        ("127.0.0.1:1", "-ERR No such client"),
    ];
    for (filter, error) in refused {
        assert_eq!(redis.call(&format!("CLIENT KILL {filter}")), error, "{filter}");
    }
    assert_eq!(redis.call("CLIENT KILL TYPE replica"), ":0");
    assert_eq!(other.call("PING"), "+PONG");
    assert_eq!(redis.call("CLIENT KILL USER default"), ":1");
    assert_eq!(other.rest(), "");
    assert_eq!(redis.call("PING"), "+PONG");
    // A later filter replaces an earlier one of its kind (`clientCommand` in networking.c of Redis).
    let mut other = Redis::open(&server);
    let id = other.call("CLIENT ID");
    let id = id.trim_start_matches(':');
    assert_eq!(redis.call(&format!("CLIENT KILL ID {id} ID 999999")), ":0");
    let many = "TYPE pubsub ID 999999 ADDR x:1 SKIPME no ".repeat(10_000);
    let local = server.door("redis");
    assert_eq!(redis.call(&format!("CLIENT KILL {many}TYPE normal LADDR {local} ADDR x:1 ID {id}")), ":0");
    assert_eq!(redis.call(&format!("CLIENT LIST ID {}{id}", "7 ".repeat(10_000))).lines().count(), 1);
    assert_eq!(
        redis.call(&format!("CLIENT KILL SKIPME no ID 999999 TYPE pubsub TYPE normal SKIPME yes ID {id}")),
        ":1"
    );
    assert_eq!(other.rest(), "");
    redis.send(b"CLIENT KILL SKIPME no\r\nPING\r\n");
    assert_eq!(redis.rest(), ":1\r\n");
    // In a transaction, too.
    let mut redis = Redis::open(&server);
    redis.send(b"MULTI\r\nCLIENT KILL SKIPME no\r\nEXEC\r\nPING\r\n");
    assert_eq!(redis.rest(), "+OK\r\n+QUEUED\r\n*1\r\n:1\r\n");
}

/// `ACLAuthenticateUser` in acl.c: without a password, the default user accepts any password, and no other user exists.
#[test]
fn without_users_only_the_default_one_logs_in() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.";
    assert_eq!(redis.call("AUTH anyname x"), wrong);
    assert_eq!(redis.call("HELLO 2 AUTH anyname x"), wrong);
    assert_eq!(redis.call("ACL WHOAMI"), "default");
    assert_eq!(redis.call("AUTH default x"), "+OK");
    assert!(redis.call("AUTH x").starts_with("-ERR AUTH <password> called without any password configured"));
    assert_eq!(redis.call("ACL WHOAMI"), "default");
    assert_eq!(redis.call("ACL NOSUCH"), "-ERR unknown subcommand 'NOSUCH'. Try ACL HELP.");
}

#[test]
fn info_counts_commands_and_can_be_reset() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    redis.call("SET a 1");
    redis.call("SET b 2 EX 1000");
    redis.call("GET a");
    redis.call("LPUSH a x");
    redis.call("LPUSH a");
    redis.call("NOSUCH");
    redis.call("CLIENT NOSUCH");
    redis.call("CONFIG GET hz");
    let commands = info(&mut redis, "commandstats");
    assert!(commands["cmdstat_set"].starts_with("calls=2,usec="), "{commands:?}");
    assert!(commands["cmdstat_lpush"].ends_with("rejected_calls=1,failed_calls=1"), "{commands:?}");
    assert!(commands["cmdstat_config|get"].starts_with("calls=1,"), "{commands:?}");
    let errors = info(&mut redis, "errorstats");
    assert_eq!((&*errors["errorstat_WRONGTYPE"], &*errors["errorstat_ERR"]), ("count=1", "count=3"));
    // As in Redis, an unknown subcommand is not counted as a command.
    assert!(!commands.contains_key("cmdstat_client"), "{commands:?}");
    let latencies = info(&mut redis, "latencystats");
    assert!(latencies["latency_percentiles_usec_set"].starts_with("p50="), "{latencies:?}");
    let shown = info(&mut redis, "everything");
    for name in ["run_id", "master_replid"] {
        assert!(shown[name].len() == 40 && shown[name].bytes().all(|digit| digit.is_ascii_hexdigit()), "{shown:?}");
    }
    assert_eq!((&*shown["hz"], &*shown["io_threads_active"], &*shown["second_repl_offset"]), ("10", "0", "-1"));
    let keyspace = info(&mut redis, "keyspace");
    let db0 = &keyspace["db0"];
    let ttl_ms: u64 = db0.strip_prefix("keys=2,expires=1,avg_ttl=").and_then(|ms| ms.parse().ok()).expect(db0);
    assert!((1..=1_000_000).contains(&ttl_ms), "{db0}");
    // Fields that `redis-cli --stat` shows.
    let all = info(&mut redis, "all");
    for name in ["used_memory", "connected_clients", "blocked_clients", "total_connections_received", "loading"] {
        assert!(all[name].parse::<u64>().is_ok(), "{name}");
    }
    assert!(all["total_commands_processed"].parse::<u64>().expect("a number") >= 8);
    assert!(all["used_cpu_user"].parse::<f64>().is_ok());
    assert_eq!(redis.call("CONFIG RESETSTAT"), "+OK");
    let again = info(&mut redis, "all");
    assert_eq!((&*again["total_commands_processed"], &*again["total_error_replies"]), ("1", "0"));
    assert!(!again.contains_key("cmdstat_set"));
    // By default without the statistics of each command, as in Redis.
    assert!(!redis.call("INFO").contains("cmdstat_") && redis.call("INFO everything").contains("cmdstat_"));
}

#[test]
fn startup_commands_of_tools_are_answered() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    let answers = [
        ("FUNCTION FLUSH", "+OK"),
        ("FUNCTION FLUSH foo", "-ERR FUNCTION FLUSH only supports SYNC|ASYNC option"),
        ("FUNCTION LIST WITHCODE", "()"),
        ("FUNCTION LIST foo", "-ERR Unknown argument foo"),
        ("SCRIPT FLUSH ASYNC", "+OK"),
        ("SCRIPT EXISTS a b", "(:0 :0)"),
        ("SCRIPT KILL", "-NOTBUSY No scripts in execution right now."),
        ("MODULE LIST", "()"),
        ("SLOWLOG GET abc", "-ERR count should be greater than or equal to -1"),
        ("SLOWLOG RESET", "+OK"),
        ("SLOWLOG LEN", ":0"),
        ("LATENCY LATEST", "()"),
        ("LATENCY RESET", ":0"),
        ("MEMORY PURGE", "+OK"),
        ("MEMORY USAGE none", "nil"),
        ("CONFIG SET hz 100 maxmemory-samples 7", "+OK"),
        ("CONFIG GET hz", "(hz 100)"),
        ("CONFIG SET nosuch 1", "-ERR Unknown option or number of arguments for CONFIG SET - 'nosuch'"),
        ("CONFIG SET hz 1 nosuch 1", "-ERR Unknown option or number of arguments for CONFIG SET - 'nosuch'"),
        ("CONFIG GET hz", "(hz 100)"),
        ("CONFIG SET hz 1 hz 2", "-ERR CONFIG SET failed (possibly related to argument 'hz') - duplicate parameter"),
        (
            "CONFIG SET databases 3",
            "-ERR CONFIG SET failed (possibly related to argument 'databases') - can't set immutable config",
        ),
        ("CLIENT NO-EVICT on", "+OK"),
        ("CLIENT TRACKING off", "+OK"),
        ("CLIENT TRACKING foo", "-ERR syntax error"),
        ("CLIENT TRACKINGINFO", "(flags (off) redirect :-1 prefixes ())"),
        ("CLUSTER INFO", "-ERR This instance has cluster support disabled"),
        ("READONLY", "-ERR This instance has cluster support disabled"),
        ("WAIT 0 -1", "-ERR timeout is negative"),
        ("WAIT 1 10", ":0"),
        ("COMMAND GETKEYS SORT a BY nosort STORE b", "(a b)"),
        ("COMMAND GETKEYS SORT a GET STORE", "(a)"),
        ("COMMAND GETKEYS LMPOP 0 a LEFT", "-ERR Invalid arguments specified for command"),
        ("COMMAND GETKEYS ZUNIONSTORE d 5 a b", "-ERR Invalid arguments specified for command"),
        ("COMMAND GETKEYS ZUNIONSTORE d 2 a b", "(d a b)"),
        ("COMMAND GETKEYS WATCH a b", "(a b)"),
        ("COMMAND INFO nosuch", "(nil)"),
        ("CONFIG SET hash-max-ziplist-entries 100 stream-node-max-bytes 4kb hz 501", "+OK"),
        (
            "CONFIG GET hash-max-listpack-entries stream-node-max-bytes",
            "(hash-max-listpack-entries 100 stream-node-max-bytes 4096)",
        ),
        ("CONFIG GET hz", "(hz 500)"),
        (
            "CONFIG SET active-expire-effort 11",
            "-ERR CONFIG SET failed (possibly related to argument 'active-expire-effort') - argument must be between 1 \
             and 10 inclusive",
        ),
        ("CLIENT LIST ID -1", ""),
        ("CLIENT HELP x", "-ERR wrong number of arguments for 'client|help' command"),
        ("CLIENT TRACKING off REDIRECT 99999999", "-ERR The client ID you want redirect to does not exist"),
        (
            "CLIENT UNBLOCK 99999 ERROR x",
            "-ERR unknown subcommand or wrong number of arguments for 'UNBLOCK'. Try CLIENT HELP.",
        ),
        ("COMMAND LIST FILTERBY ACLCAT transaction", "(discard exec multi unwatch watch)"),
    ];
    for (words, answer) in answers {
        assert_eq!(redis.call(words), answer, "{words}");
    }
    let saved: u64 = redis.call("LASTSAVE").trim_start_matches(':').parse().expect("a time");
    assert!(saved > 1_600_000_000);
    for container in ["CLIENT", "CONFIG", "COMMAND", "OBJECT", "MEMORY", "ACL", "SLOWLOG", "LATENCY", "SCRIPT"] {
        let help = redis.call(&format!("{container} HELP"));
        assert!(help.starts_with(&format!("(+{container} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:")));
    }
    for container in ["FUNCTION", "MODULE", "PUBSUB", "XGROUP", "XINFO"] {
        assert!(redis.call(&format!("{container} help")).ends_with("+HELP +    Return this text.)"), "{container}");
    }
}

#[test]
fn slow_commands_are_written_down() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    assert_eq!(redis.call("CONFIG SET slowlog-log-slower-than 0 slowlog-max-len 2"), "+OK");
    let long = "x".repeat(130);
    redis.call("SET a b");
    redis.call(&format!("SET c {long}"));
    assert_eq!(redis.call("CONFIG SET slowlog-log-slower-than -1"), "+OK");
    let log = redis.call("SLOWLOG GET");
    assert_eq!(redis.call("SLOWLOG LEN"), ":2");
    assert!(log.contains(&format!("(SET c {}... (2 more bytes))", "x".repeat(128))), "{log}");
    assert!(log.contains("127.0.0.1:"), "{log}");
    redis.call("CONFIG SET slowlog-log-slower-than 20000");
    assert_eq!(redis.call("DEBUG SLEEP 0.02"), "+OK");
    assert!(redis.call("SLOWLOG GET 1").contains("(DEBUG SLEEP 0.02)"));
    assert!(redis.call("LATENCY HISTOGRAM set").starts_with("(set (calls :2 histogram_usec ("));
}

/// redis.io on CLIENT PAUSE: commands wait, and run when the pause times out or is ended.
#[test]
fn paused_clients_wait_and_readers_only_if_all_do() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    let mut writer = Redis::open(&server);
    let mut last = Redis::open(&server);
    assert_eq!(redis.call("CLIENT PAUSE abc"), "-ERR timeout is not an integer or out of range");
    assert_eq!(redis.call("CLIENT PAUSE -1"), "-ERR timeout is negative");
    assert_eq!(redis.call("CLIENT PAUSE 1 foo"), "-ERR CLIENT PAUSE mode must be WRITE or ALL");
    assert_eq!(redis.call("CLIENT PAUSE 600000 WRITE"), "+OK");
    writer.send(b"PING\r\nSET a 1\r\nGET a\r\n");
    assert_eq!(writer.answer(), "+PONG");
    assert_eq!(redis.call("GET a"), "nil");
    assert_eq!(redis.call("CLIENT UNPAUSE"), "+OK");
    assert_eq!((writer.answer(), writer.answer()), ("+OK".into(), "1".into()));
    // A pause of all commands ends automatically.
    assert_eq!(redis.call("CLIENT PAUSE 50 ALL"), "+OK");
    assert_eq!(last.call("GET a"), "1");
}

#[test]
fn shard_channels_are_those_of_a_single_node() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    let mut other = Redis::open(&server);
    assert_eq!(redis.call("SSUBSCRIBE a b"), "(ssubscribe a :1)");
    assert_eq!(redis.answer(), "(ssubscribe b :2)");
    assert!(redis.call("GET x").starts_with("-ERR Can't execute 'get'"));
    assert!(redis.call("CLIENT INFO").starts_with("-ERR Can't execute 'client|info'"));
    // Shard channels have a separate namespace.
    assert_eq!(other.call("PUBLISH a no"), ":0");
    assert_eq!(other.call("SPUBLISH a yes"), ":1");
    assert_eq!(redis.answer(), "(smessage a yes)");
    assert_eq!(other.call("PUBSUB SHARDCHANNELS"), "(a b)");
    assert_eq!(other.call("PUBSUB SHARDNUMSUB a c"), "(a :1 c :0)");
    assert_eq!(other.call("PUBSUB CHANNELS"), "()");
    assert!(other.call("CLIENT LIST TYPE pubsub").contains(" ssub=2 "));
    assert_eq!(redis.call("SUNSUBSCRIBE"), "(sunsubscribe a :1)");
    assert_eq!(redis.answer(), "(sunsubscribe b :0)");
    assert_eq!(redis.call("SUNSUBSCRIBE"), "(sunsubscribe nil :0)");
    assert_eq!(other.call("SPUBLISH a gone"), ":0");
}

/// `prepareClientToWrite` in networking.c: a push is not a reply, so that `CLIENT REPLY` does not suppress it.
#[test]
fn a_client_without_replies_receives_its_channels() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    let mut other = Redis::open(&server);
    redis.ask("CLIENT REPLY OFF");
    redis.ask("SET a 1");
    assert_eq!(redis.call("SUBSCRIBE x"), "(subscribe x :1)");
    assert_eq!(other.call("PUBLISH x hi"), ":1");
    assert_eq!(redis.answer(), "(message x hi)");
    redis.ask("PING");
    assert_eq!(redis.call("UNSUBSCRIBE"), "(unsubscribe x :0)");
    assert_eq!(redis.call("CLIENT REPLY ON"), "+OK");
    redis.ask("CLIENT REPLY SKIP");
    assert_eq!(redis.call("SSUBSCRIBE y"), "(ssubscribe y :1)");
    assert_eq!(redis.call("SUNSUBSCRIBE y"), "(sunsubscribe y :0)");
    // `resetClient`: each SKIP applies to the next request, even if that is another SKIP.
    ["CLIENT REPLY SKIP", "CLIENT REPLY SKIP", "GET a"].iter().for_each(|words| redis.ask(words));
    assert_eq!(redis.call("PING"), "+PONG");
}

#[test]
fn info_config_and_subscribe_are_allowed_in_transactions() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    for words in ["MULTI", "SET a 1", "INFO keyspace", "CONFIG GET hz", "SUBSCRIBE c", "CLIENT ID", "OBJECT HELP"] {
        assert!(["+OK", "+QUEUED"].contains(&&*redis.call(words)), "{words}");
    }
    assert_eq!(redis.call("MEMORY USAGE none"), "+QUEUED");
    redis.ask("EXEC");
    let answer = redis.answer();
    assert!(
        answer.starts_with("(+OK # Keyspace\r\ndb0:keys=1,expires=0,avg_ttl=0\r\n (hz 10) (subscribe c :1) :"),
        "{answer}"
    );
    assert!(answer.ends_with("+HELP +    Return this text.) nil)"), "{answer}");
}

/// `ssubscribeCommand` in pubsub.c of Redis 7.0: a transaction cannot subscribe to shard channels.
#[test]
fn shard_channels_are_not_listened_to_from_a_transaction() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    for words in ["MULTI", "SSUBSCRIBE a", "PSUBSCRIBE b*", "SPUBLISH a x"] {
        assert!(["+OK", "+QUEUED"].contains(&&*redis.call(words)), "{words}");
    }
    let answer = "(-ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client (psubscribe b* :1) :0)";
    assert_eq!(redis.call("EXEC"), answer);
}

/// `lookupKey` in db.c: commands on streams access their keys as all others do, and those that read have hits and
/// misses.
#[test]
fn streams_are_used_by_the_commands_on_them() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    crate::support::command::on(&server, ["cache", "create", "db1", "--eviction", "s3-fifo"]).ok();
    redis.call("SELECT 1");
    redis.call("XADD s 1-1 f v");
    let before = redis.call("OBJECT FREQ s");
    redis.call("CONFIG RESETSTAT");
    for words in ["XLEN s", "XLEN s", "XLEN none", "XADD s 2-1 f v"] {
        redis.call(words);
    }
    assert_ne!(redis.call("OBJECT FREQ s"), before);
    let stats = info(&mut redis, "stats");
    assert_eq!((&*stats["keyspace_hits"], &*stats["keyspace_misses"]), ("2", "1"));
}

#[test]
fn idle_times_and_frequencies_are_those_of_keys() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    redis.call("SET a 1");
    assert_eq!(redis.call("OBJECT FREQ none"), "nil");
    assert!(redis.call("OBJECT FREQ a").starts_with("-ERR An LFU maxmemory policy is not selected"));
    // It grows with time, and is reset by an access. OBJECT is not an access.
    let idle = |redis: &mut Redis| redis.call("OBJECT IDLETIME a").trim_start_matches(':').parse::<u64>().expect("one");
    while idle(&mut redis) < 3 {}
    redis.call("GET a");
    assert!(idle(&mut redis) < 3);
    crate::support::command::on(&server, ["cache", "create", "db1", "--eviction", "s3-fifo"]).ok();
    redis.call("SELECT 1");
    redis.call("SET a 1");
    assert_eq!(redis.call("OBJECT FREQ a"), ":5");
    redis.call("GET a");
    assert_eq!(redis.call("OBJECT FREQ a"), ":6");
    assert!(redis.call("OBJECT IDLETIME a").starts_with("-ERR An LFU maxmemory policy is selected"));
}

/// sort.c: a value with an inherent order keeps it, and DESC reverses it.
#[test]
fn numbers_and_orders_are_those_of_redis() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    let zeros = "0".repeat(300);
    let add = format!("ZADD z {zeros}1.5 long");
    let set = format!("SET f {zeros}1.5");
    redis.call("ZADD z 1 a 2 b 3 c");
    redis.call("RPUSH l 3 1 2");
    redis.call("SADD s 3 1 2");
    redis.call("RPUSH n 1e400 1");
    let answers = [
        ("SORT z BY nosort DESC", "(c b a)".to_owned()),
        ("SORT z BY nosort DESC LIMIT 0 1", "(c)".to_owned()),
        ("SORT l BY nosort DESC", "(2 1 3)".to_owned()),
        ("SORT l BY nosort", "(3 1 2)".to_owned()),
        ("SORT s BY nosort DESC STORE d", ":3".to_owned()),
        ("LRANGE d 0 -1", "(3 2 1)".to_owned()),
        ("ZADD z 1e400 x", "-ERR value is not a valid float".to_owned()),
        ("ZINCRBY z 1e-400 x", "-ERR value is not a valid float".to_owned()),
        ("ZCOUNT z -1e400 1e400", ":3".to_owned()),
        ("SORT n", "-ERR One or more scores can't be converted into double".to_owned()),
        (&*add, ":1".to_owned()),
        ("ZSCORE z long", "1.5".to_owned()),
        (&*set, "+OK".to_owned()),
        ("INCRBYFLOAT f 1", "2.5".to_owned()),
    ];
    for (words, answer) in answers {
        assert_eq!(redis.call(words), answer, "{words}");
    }
}

/// Replies of redis-server 7.0.15.
#[test]
fn the_registers_of_sketches_are_shown() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    assert_eq!(redis.call("PFADD k a b c"), ":1");
    redis.call("SET s x");
    redis.call("RPUSH l x");
    let answers = [
        ("PFDEBUG encoding k", "+sparse"),
        ("PFDEBUG DECODE k", "Z:8436 v:1,1 Z:4274 v:2,1 Z:3068 v:1,1 Z:603"),
        ("PFDEBUG foo k", "-ERR Unknown PFDEBUG subcommand 'foo'"),
        ("PFDEBUG DECODE none", "-ERR The specified key does not exist"),
        ("PFDEBUG GETREG s", "-WRONGTYPE Key is not a valid HyperLogLog string value."),
        ("PFDEBUG GETREG l", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ("PFDEBUG TODENSE k", ":1"),
        ("PFDEBUG TODENSE k", ":0"),
        ("PFDEBUG ENCODING k", "+dense"),
        ("PFDEBUG DECODE k", "-ERR HLL encoding is not sparse"),
        ("PFCOUNT k", ":3"),
        ("PFSELFTEST", "+OK"),
        ("PFDEBUG DECODE", "-ERR wrong number of arguments for 'pfdebug' command"),
    ];
    for (command, answer) in answers {
        assert_eq!(redis.call(command), answer, "{command}");
    }
    let registers = redis.call("PFDEBUG GETREG k");
    let values: Vec<u32> =
        registers.trim_matches(['(', ')']).split(' ').map(|value| value[1..].parse().expect("a number")).collect();
    assert_eq!((values.len(), values.iter().sum::<u32>()), (16384, 4));
}
