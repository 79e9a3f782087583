//! The commands of Redis.

use doors::permissions::{Call, tables};

use super::super::redis::commands::Redis;
use super::{Answer, Example, Site};

type Command = Example<String>;

/// Requests whose arguments are not only keys, by the name of their row.
const WRITTEN: &[(&str, &str)] = &[
    ("AUTH", "AUTH bob secret"),
    ("HELLO", "HELLO 3 AUTH bob secret"),
    ("SELECT", "SELECT 0"),
    ("WAIT", "WAIT 0 0"),
    ("SCAN", "SCAN 0"),
    ("BITOP", "BITOP AND d k"),
    ("SDIFFSTORE", "SDIFFSTORE d k"),
    ("SINTERSTORE", "SINTERSTORE d k"),
    ("SUNIONSTORE", "SUNIONSTORE d k"),
    ("ZDIFFSTORE", "ZDIFFSTORE d 1 k"),
    ("ZINTERSTORE", "ZINTERSTORE d 1 k"),
    ("ZUNIONSTORE", "ZUNIONSTORE d 1 k"),
    ("ZRANGESTORE", "ZRANGESTORE d k 0 1"),
    ("PFMERGE", "PFMERGE d k"),
    ("PFDEBUG", "PFDEBUG ENCODING k"),
    ("GEOSEARCHSTORE", "GEOSEARCHSTORE d k FROMLONLAT 1 1 BYRADIUS 1 km"),
    ("GEORADIUS", "GEORADIUS k 1 1 1 km"),
    ("GEORADIUSBYMEMBER", "GEORADIUSBYMEMBER k m 1 km"),
    ("LMPOP", "LMPOP 1 k LEFT"),
    ("ZMPOP", "ZMPOP 1 k MIN"),
    ("BLMPOP", "BLMPOP 0.01 1 k LEFT"),
    ("BZMPOP", "BZMPOP 0.01 1 k MIN"),
    ("SINTERCARD", "SINTERCARD 1 k"),
    ("ZINTERCARD", "ZINTERCARD 1 k"),
    ("ZUNION", "ZUNION 1 k"),
    ("ZINTER", "ZINTER 1 k"),
    ("ZDIFF", "ZDIFF 1 k"),
    ("SORT", "SORT k"),
    ("SORT_RO", "SORT_RO k"),
    ("SET", "SET k v"),
    ("ZADD", "ZADD k 1 m"),
    ("RENAME", "RENAME k n"),
    ("RENAMENX", "RENAMENX k n"),
    ("COPY", "COPY k n"),
    ("MOVE", "MOVE k 1"),
    ("XADD", "XADD s * a b"),
    ("XREAD", "XREAD STREAMS s 0"),
    ("XREADGROUP", "XREADGROUP GROUP c c STREAMS s >"),
    ("PUBLISH", "PUBLISH ch m"),
    ("SPUBLISH", "SPUBLISH ch m"),
    ("SUBSCRIBE", "SUBSCRIBE ch"),
    ("SSUBSCRIBE", "SSUBSCRIBE ch"),
    ("PSUBSCRIBE", "PSUBSCRIBE ch"),
    ("FLUSHDB", "FLUSHDB"),
    ("FLUSHALL", "FLUSHALL"),
    ("SWAPDB", "SWAPDB 0 1"),
    ("DEBUG", "DEBUG SLEEP 0"),
    ("CLIENT KILL", "CLIENT KILL ID 999999"),
    ("CLIENT PAUSE", "CLIENT PAUSE 1"),
    ("CLIENT UNBLOCK", "CLIENT UNBLOCK 999999"),
    ("CLIENT REPLY", "CLIENT REPLY ON"),
    ("CONFIG SET", "CONFIG SET timeout 0"),
    ("COMMAND GETKEYS", "COMMAND GETKEYS GET k"),
    ("EVAL", "EVAL return{} 1 k"),
    ("EVAL_RO", "EVAL_RO return{} 1 k"),
    ("EVALSHA", "EVALSHA abc 1 k"),
    ("EVALSHA_RO", "EVALSHA_RO abc 1 k"),
    ("FCALL", "FCALL f 1 k"),
    ("FCALL_RO", "FCALL_RO f 1 k"),
    ("FUNCTION LOAD", "FUNCTION LOAD REPLACE #!lua\tname=l\nredis.register_function('f',redis.log)"),
    ("FUNCTION RESTORE", "FUNCTION RESTORE x"),
    ("SCRIPT LOAD", "SCRIPT LOAD return{}"),
    ("SCRIPT DEBUG", "SCRIPT DEBUG NO"),
];

/// Returns the request of a row: what [`WRITTEN`] says, or as many keys as the broker accepts. A wrong number of
/// arguments is reported first, also to a client without permissions.
fn request_of(row: &Call, open: impl Fn() -> Redis) -> String {
    if let Some((_, request)) = WRITTEN.iter().find(|(name, _)| *name == row.name) {
        return (*request).to_owned();
    }
    let key = if row.name.starts_with('X') { "s" } else { "k" };
    let requests = (0..ARGUMENTS_MAX).map(|count| [&[row.name.as_str()], &vec![key; count][..]].concat().join(" "));
    let is_whole = |request: &String| !open().call(request).contains("wrong number of arguments");
    requests.into_iter().find(is_whole).unwrap_or_else(|| panic!("{}: write its request", row.name))
}

/// Maximum number of arguments of the commands that [`WRITTEN`] does not have.
const ARGUMENTS_MAX: usize = 8;

fn usual(request: String, row: &Call) -> Command {
    Example::new(row.name.clone(), request)
        .on("each key", "db0/k")
        .on("the key", "db0/k")
        .on("the first key", "db0/k")
        .on("each other key", "db0/k")
        .on("the destination", "db0/d")
        .on("the new key", if row.name == "MOVE" { "db1/k" } else { "db0/n" })
        .on("all keys of the database", "db0/...")
        .on("all keys of each database", "db...")
        .on("every topic", "*")
        .on("each stream", "s")
}

/// Returns further requests of a row: one for each of its conditions.
fn conditional(row: &Call) -> Vec<Command> {
    let is_stream = "if the key is a stream";
    let is_new = "if the key is a stream and the new one is not";
    let example = |request: &str| usual(request.to_owned(), row);
    // Of the names with the same phrase, the first is taken.
    let named = |mut example: Command, names: &[(&'static str, &'static str)]| {
        example.names.splice(0..0, names.iter().copied());
        example
    };
    let renamed = |request: &str, key: &'static str, topic: &'static str| {
        let names = [("the key", "db0/s"), ("the new key", key), ("the stream", "s"), ("the new stream", topic)];
        named(example(request).when(is_stream).when(is_new), &names)
    };
    let of_topic = |request: &str| {
        let names = [("each channel", "t"), ("the channel", "t"), ("the topic with the name of the channel", "t")];
        named(example(request).when("if there is one"), &names)
    };
    let fresh = [("each stream", "fresh")];
    match row.name.as_str() {
        "SET" => vec![example("SET k v GET").when("with `GET`")],
        "ZADD" => vec![example("ZADD k INCR 1 m").when("with `INCR`")],
        "GEORADIUS" => vec![example("GEORADIUS k 1 1 1 km STORE d").when("with `STORE` or `STOREDIST`")],
        "GEORADIUSBYMEMBER" => {
            vec![example("GEORADIUSBYMEMBER k m 1 km STOREDIST d").when("with `STORE` or `STOREDIST`")]
        }
        "SORT" => vec![
            example("SORT k STORE d").when("with `STORE`"),
            example("SORT k BY w_*").when("with `BY` or `GET` of other keys"),
        ],
        "SORT_RO" => vec![example("SORT_RO k BY w_*").when("with `BY` or `GET` of other keys")],
        "COPY" => vec![renamed("COPY s n", "db0/n", "n")],
        "RENAME" | "RENAMENX" => vec![renamed(&format!("{} s n", row.name), "db0/n", "n")],
        "MOVE" => vec![renamed("MOVE s 1", "db1/s", "db1_x_s")],
        "XADD" => vec![
            example("XADD s MAXLEN 5 * a b").when("with `MAXLEN` or `MINID`"),
            named(example("XADD fresh * a b").when("if it does not exist, without `NOMKSTREAM`"), &fresh),
        ],
        "XGROUP CREATE" => {
            let create = example("XGROUP CREATE fresh c $ MKSTREAM");
            vec![named(create.when("if it does not exist, with `MKSTREAM`"), &fresh)]
        }
        "PUBLISH" => vec![of_topic("PUBLISH t m")],
        "SUBSCRIBE" => vec![of_topic("SUBSCRIBE t")],
        _ => Vec::new(),
    }
}

fn connected(site: &Site, login: Option<&str>) -> Redis {
    let mut redis = Redis::open(&site.server);
    if let Some(login) = login {
        assert_eq!(redis.call(&format!("AUTH {login}")), "+OK");
    }
    redis
}

#[tokio::test]
async fn every_command_of_redis_requires_what_its_row_says() {
    let site = Site::open(&["redis=127.0.0.1:0"]).await;
    let restore = async || {
        let mut root = connected(&site, Some("root r00t"));
        for command in ["DEL n d fresh", "SET k v", "XADD s * a b"] {
            root.call(command);
        }
        assert_eq!(root.call("SELECT 1"), "+OK");
        root.call("DEL k s");
    };
    restore().await;
    let table = tables().into_iter().find(|table| table.door.key() == "redis").expect("a table");
    let rows = table.calls.iter();
    let examples: Vec<Command> = rows
        .flat_map(|row| {
            let mut all = conditional(row);
            all.insert(0, usual(request_of(row, || connected(&site, Some("bob secret"))), row));
            all
        })
        .collect();
    site.walk("redis", &examples, restore, async |has_login, request| {
        let answer = connected(&site, has_login.then_some("bob secret")).call(request);
        match &answer {
            noperm if noperm.starts_with("-NOPERM") => Answer::Refused(answer),
            noauth if noauth.starts_with("-NOAUTH") || noauth.contains("NOAUTH Authentication required") => {
                Answer::NoLogin(answer)
            }
            _ => Answer::Passed(answer),
        }
    })
    .await;
}
