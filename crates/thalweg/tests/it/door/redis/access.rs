//! Access control at the Redis door. Refusals were compared with those of redis-server 7.0.15, whose user had the rules
//! `~user:* %R~ro:* %W~wo:* &news.* +@all -@dangerous`.

use client::security::UserName;
use client::{Client, Record};

use super::commands::{Redis, server};
use crate::support::access::acls;
use crate::support::server::{Server, until};

const NO_KEY: &str = "-NOPERM this user has no permissions to access one of the keys used as arguments";
const NO_CHANNEL: &str = "-NOPERM this user has no permissions to access one of the channels used as arguments";

/// Starts a broker with a super user `admin`, and `bob`, who may do nothing yet. Its native door asks nobody.
fn strict() -> Server {
    server(&["auth=required", "authorization=true", "users=admin:a,bob:b", "super_users=admin", "insecure=true"])
}

fn log_in(server: &Server, user: &str) -> Redis {
    let mut redis = Redis::open(server);
    assert_eq!(redis.call(&format!("AUTH {user} {}", &user[..1])), "+OK");
    redis
}

/// Adds an entry, written as for [`acls`].
async fn allow(client: &Client, principal: &str, entry: &str) {
    client.create_acls(acls(principal, entry, true)).await.expect("added");
}

fn no_command(name: &str) -> String {
    format!("-NOPERM this user has no permissions to run the '{name}' command")
}

#[tokio::test]
async fn keys_and_channels_are_allowed_as_by_the_rules_of_redis() {
    let server = strict();
    let client = server.client("tcp").await;
    for entry in [
        "read,write cache db0/user:...",
        "read cache db0/ro:...",
        "write cache db0/wo:...",
        "read,write channel news....",
    ] {
        allow(&client, "User:bob", entry).await;
    }
    let mut bob = log_in(&server, "bob");
    for command in [
        "GET x",
        "SET ro:1 v",
        "GET wo:1",
        "GETSET wo:1 v",
        "SET wo:1 a GET",
        "INCR wo:1",
        "TTL wo:1",
        "LPOP wo:1",
        "MGET user:1 x",
        "EXISTS x",
        "TYPE x",
        "SINTERSTORE user:1 x",
        "RENAME user:1 x",
        "RENAME x user:1",
        "WATCH x",
        "OBJECT ENCODING x",
        "MEMORY USAGE x",
        "XADD x * a b",
        "COPY ro:1 user:z DB 1",
        "MOVE user:1 1",
        "SORT x",
        "SORT user:1 STORE x",
    ] {
        assert_eq!(bob.call(command), NO_KEY, "{command}");
    }
    for command in ["PUBLISH foo x", "SUBSCRIBE foo", "PSUBSCRIBE foo*", "SPUBLISH foo x", "SSUBSCRIBE news.a foo"] {
        assert_eq!(bob.call(command), NO_CHANNEL, "{command}");
    }
    for (command, name) in [
        ("KEYS *", "keys"),
        ("SCAN 0", "scan"),
        ("FLUSHALL", "flushall"),
        ("FLUSHDB", "flushdb"),
        ("CONFIG GET *", "config|get"),
        ("CONFIG SET timeout 0", "config|set"),
        ("INFO", "info"),
        ("CLIENT LIST", "client|list"),
        ("CLIENT KILL TYPE normal", "client|kill"),
        ("DEBUG SLEEP 0", "debug"),
        ("ACL LIST", "acl|list"),
        ("SORT user:1 BY w_*", "sort"),
    ] {
        assert!(bob.call(command).starts_with(&no_command(name)), "{command}");
    }
    for (command, answer) in [
        ("SET wo:1 v", "+OK"),
        ("APPEND wo:1 x", ":2"),
        ("GET user:1", "nil"),
        ("SET user:1 v", "+OK"),
        ("INCR user:2", ":1"),
        ("SINTERSTORE user:d ro:1", ":0"),
        ("BITOP AND user:3 ro:1", ":0"),
        ("COPY ro:1 user:z", ":0"),
        ("PUBLISH news.a x", ":0"),
        ("ACL WHOAMI", "bob"),
        ("SORT user:4", "()"),
    ] {
        assert_eq!(bob.call(command), answer, "{command}");
    }
    // In a transaction, a command is refused when it is queued, for the database that it will use.
    assert_eq!(bob.call("MULTI"), "+OK");
    assert_eq!(bob.call("SELECT 1"), "+QUEUED");
    assert_eq!(bob.call("SET user:1 v"), NO_KEY);
    assert!(bob.call("EXEC").starts_with("-EXECABORT"));
    assert_eq!(bob.call("SUBSCRIBE news.b"), "(subscribe news.b :1)");
    assert_eq!(log_in(&server, "admin").call("DBSIZE"), ":3");
}

/// Data moves under another name only for a user who may read it.
#[tokio::test]
async fn moved_and_copied_keys_require_reading_them() {
    let server = strict();
    let client = server.client("tcp").await;
    for entry in ["write cache db0/...", "read cache db0/pub:...", "all cache db1/..."] {
        allow(&client, "User:bob", entry).await;
    }
    let mut admin = log_in(&server, "admin");
    for command in ["SET secret v", "ZADD z 1 m", "SADD s m", "XADD orders 1-1 a b"] {
        admin.call(command);
    }
    let mut bob = log_in(&server, "bob");
    for command in [
        "RENAME secret pub:x",
        "RENAMENX secret pub:x",
        "COPY secret pub:x",
        "MOVE secret 1",
        "SMOVE s pub:s m",
        "BZPOPMIN z 1",
        "BZPOPMAX z 1",
        "ZADD z INCR 0 m",
    ] {
        assert_eq!(bob.call(command), NO_KEY, "{command}");
    }
    assert_eq!(bob.call("ZADD z 2 m"), ":0");
    for entry in ["read cache db0/...", "describe,delete topic orders", "all topic mine..."] {
        allow(&client, "User:bob", entry).await;
    }
    for command in ["COPY orders mine", "RENAME orders mine", "MOVE orders 1"] {
        assert_eq!(bob.call(command), NO_KEY, "{command}");
    }
    allow(&client, "User:bob", "read topic orders").await;
    assert_eq!((bob.call("COPY orders mine"), bob.call("XRANGE mine - +")), (":1".into(), "((1-1 (a b)))".into()));
    assert_eq!(bob.call("COPY orders other"), NO_KEY, "it would create a topic");
    assert_eq!(bob.call("COPY mine orders REPLACE"), NO_KEY, "it would write to a topic");
    assert_eq!((bob.call("RENAME secret pub:x"), bob.call("GET pub:x")), ("+OK".into(), "v".into()));
}

/// A denial of one key also denies what would show it among others.
#[tokio::test]
async fn commands_on_all_keys_require_each_of_them() {
    let server = strict();
    let client = server.client("tcp").await;
    for entry in ["all cache db0/...", "all topic *"] {
        allow(&client, "User:bob", entry).await;
    }
    let mut bob = log_in(&server, "bob");
    for command in ["SET secret v", "RPUSH list secret"] {
        bob.call(command);
    }
    assert_eq!(bob.call("SORT list BY nosort GET *"), "(v)");
    client.create_acls(acls("User:bob", "all cache db0/secret", false)).await.expect("added");
    for (command, name) in
        [("KEYS *", "keys"), ("SCAN 0", "scan"), ("SORT list BY nosort GET *", "sort"), ("FLUSHDB", "flushdb")]
    {
        let refused = bob.call(command);
        let operation = match name {
            "sort" => "read",
            "flushdb" => "delete",
            _ => "describe",
        };
        let entry = format!("thalweg acl add USER {operation} cache db0/ --prefix");
        let why = format!(", which needs {operation} on every key ({entry}) and no denial of one");
        assert_eq!(refused, no_command(name) + &why, "{command}");
    }
    assert_eq!((bob.call("GET secret"), bob.call("LLEN list")), (NO_KEY.to_owned(), ":1".to_owned()));
}

#[tokio::test]
async fn trimming_a_stream_requires_deleting_from_it() {
    let server = strict();
    let client = server.client("tcp").await;
    allow(&client, "User:bob", "write topic logs").await;
    let mut admin = log_in(&server, "admin");
    assert_eq!(admin.call("XADD logs 1-1 a b"), "1-1");
    let mut bob = log_in(&server, "bob");
    for command in ["XADD logs MAXLEN 0 * a b", "XADD logs NOMKSTREAM MINID ~ 9 * a b", "XTRIM logs MAXLEN 0"] {
        assert_eq!(bob.call(command), NO_KEY, "{command}");
    }
    assert_eq!(bob.call("XADD logs 2-1 maxlen 5"), "2-1", "a field may have the name of an option");
    assert_eq!(bob.call("XADD fresh * nomkstream 5"), NO_KEY, "it would create a topic");
    assert_eq!(admin.call("XLEN logs"), ":2");
}

/// Permissions are those of the moment at which a transaction runs.
#[tokio::test]
async fn a_transaction_does_not_outlive_its_permissions() {
    let server = strict();
    let client = server.client("tcp").await;
    allow(&client, "User:bob", "write cache db0/k").await;
    let mut bob = log_in(&server, "bob");
    for (command, answer) in [("MULTI", "+OK"), ("SET k v", "+QUEUED"), ("EXEC", "(+OK)")] {
        assert_eq!(bob.call(command), answer);
    }
    assert_eq!((bob.call("MULTI"), bob.call("SET k w")), ("+OK".into(), "+QUEUED".into()));
    client.delete_acls(client::security::AclFilter::default()).await.expect("deleted");
    let refused = bob.call("EXEC");
    assert!(refused.starts_with("-EXECABORT") && refused.contains("NOPERM"), "{refused}");
    assert_eq!(bob.call("EXEC"), "-ERR EXEC without MULTI");
    assert_eq!(log_in(&server, "admin").call("GET k"), "v");
}

/// A stream is a topic, whichever command names it, and so is a channel that has a topic's name.
#[tokio::test]
async fn topics_require_their_own_permission() {
    let server = strict();
    let client = server.client("tcp").await;
    for entry in ["all cache db0/...", "all channel *"] {
        allow(&client, "User:bob", entry).await;
    }
    let mut admin = log_in(&server, "admin");
    assert_eq!(admin.call("XADD orders 1-1 a b"), "1-1");
    let mut bob = log_in(&server, "bob");
    for command in
        ["XADD orders * a b", "XRANGE orders - +", "XLEN orders", "DEL orders", "RENAME orders x", "EXPIRE orders 1"]
    {
        assert_eq!(bob.call(command), NO_KEY, "{command}");
    }
    for command in ["PUBLISH orders evil", "SUBSCRIBE orders"] {
        assert_eq!(bob.call(command), NO_CHANNEL, "{command}");
    }
    let refused = bob.call("FLUSHDB");
    assert!(refused.starts_with(&no_command("flushdb")) && refused.contains("delete topic '*'"), "{refused}");
    assert_eq!(bob.call("XADD mine * a b"), NO_KEY, "it would create a topic");
    allow(&client, "User:bob", "read topic orders").await;
    assert_eq!(bob.call("XRANGE orders - +"), "((1-1 (a b)))");
    assert_eq!(bob.call("TYPE orders"), "+stream");
    assert_eq!((bob.call("XADD orders * a b"), bob.call("DEL orders")), (NO_KEY.to_owned(), NO_KEY.to_owned()));
    allow(&client, "User:bob", "write,delete topic orders").await;
    assert_eq!(bob.call("XADD orders 2-1 c d"), "2-1");
    assert_eq!(bob.call("DEL orders"), ":1");
    assert_eq!(bob.call("XADD orders 3-1 c d"), NO_KEY, "it would create the topic again");
    allow(&client, "User:bob", "create topic orders").await;
    assert_eq!(bob.call("XADD orders 3-1 c d"), "3-1");
}

/// A subscriber neither receives the records of a topic that is created later, nor those of channels of others.
#[tokio::test]
async fn subscriptions_receive_only_what_their_user_may_read() {
    let server = strict();
    let client = server.client("tcp").await;
    for entry in ["read,write channel news....", "write cache db0/end"] {
        allow(&client, "User:bob", entry).await;
    }
    let mut bob = log_in(&server, "bob");
    assert_eq!(bob.call("PSUBSCRIBE news.*"), "(psubscribe news.* :1)");
    let mut admin = log_in(&server, "admin");
    assert_eq!((admin.call("PUBLISH news.a one"), admin.call("PUBLISH other two")), (":1".into(), ":0".into()));
    assert_eq!(bob.answer(), "(pmessage news.* news.a one)");
    client.publish("news.b", Record::new("secret")).await.expect("published");
    assert_eq!(admin.call("PUBLISH news.c three"), ":1");
    assert_eq!(bob.answer(), "(pmessage news.* news.c three)", "and not the secret");
    allow(&client, "User:bob", "read topic news.d").await;
    client.publish("news.d", Record::new("secret")).await.expect("published");
    assert_eq!(bob.answer(), "(pmessage news.* news.d secret)");
}

/// A subscription ends with its permission, although its client sends nothing that could be refused.
#[tokio::test]
async fn a_permission_that_is_taken_away_ends_subscriptions() {
    let server = strict();
    let client = server.client("tcp").await;
    let readers = client::security::RoleName::parse("readers").expect("a name");
    let bob_name = UserName::parse("bob").expect("a name");
    allow(&client, "Role:readers", "read channel news....").await;
    client.set_member(bob_name.clone(), readers.clone(), true).await.expect("a member");
    let mut bob = log_in(&server, "bob");
    assert_eq!(bob.call("SUBSCRIBE news.a"), "(subscribe news.a :1)");
    let mut admin = log_in(&server, "admin");
    assert_eq!(admin.call("PUBLISH news.a one"), ":1");
    assert_eq!(bob.answer(), "(message news.a one)");
    client.set_member(bob_name, readers, false).await.expect("not a member");
    assert_eq!(bob.rest(), "", "the connection is closed");
    until("no subscriber", async || admin.call("PUBLISH news.a two") == ":0").await;
    assert_eq!(log_in(&server, "bob").call("SUBSCRIBE news.a"), NO_CHANNEL);
}

/// A client that may use every key is limited from the moment that an entry denies one, a topic has the name of one, or
/// its permission ends.
#[tokio::test]
async fn a_permission_for_every_key_follows_each_change() {
    let server = strict();
    let client = server.client("tcp").await;
    allow(&client, "User:bob", "read,write cache db0/...").await;
    let mut bob = log_in(&server, "bob");
    for command in ["SET a 1", "SET b:1 1", "MSET c 1 d 1", "RENAME c e"] {
        assert_eq!(bob.call(command), "+OK", "{command}");
    }
    client.create_acls(acls("User:bob", "write cache db0/a", false)).await.expect("added");
    assert_eq!((bob.call("SET a 2"), bob.call("GET a")), (NO_KEY.to_owned(), "1".to_owned()));
    assert_eq!((bob.call("MSET d 2 a 2"), bob.call("SET b:1 2")), (NO_KEY.to_owned(), "+OK".to_owned()));
    // A topic of another door, and a stream of another client.
    client.create_topic("t", client::TopicSettings::default()).await.expect("created");
    assert_eq!(log_in(&server, "admin").call("XADD s:1 1-1 f v"), "1-1");
    for command in ["TYPE t", "SET t 1", "EXISTS s:1", "DEL s:1", "MGET b:1 s:1", "DEL b:1 t"] {
        assert_eq!(bob.call(command), NO_KEY, "{command}");
    }
    assert_eq!(bob.call("SELECT 1"), "+OK");
    assert_eq!(bob.call("GET a"), NO_KEY);
    assert_eq!(bob.call("SELECT 0"), "+OK");
    assert_eq!(bob.call("GET b:1"), "2");
    client.delete_acls(Default::default()).await.expect("deleted");
    assert_eq!((bob.call("GET b:1"), bob.call("SET b:1 3")), (NO_KEY.to_owned(), NO_KEY.to_owned()));
}
