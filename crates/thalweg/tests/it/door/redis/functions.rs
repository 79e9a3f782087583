//! Functions of libraries at the Redis door. The expected replies are those of redis-server 7.0.15, unless a test says
//! otherwise.

use std::time::Duration;

use super::commands::{Redis, request, server};
use super::scripts::run;
use crate::support::command::on;
use crate::support::server::{Server, metric, until};

const LIBRARY: &str = "#!lua name=lib
local function twice(text) return text .. text end
redis.register_function('f', function(keys, args) return {#keys, #args, keys[1], args[1]} end)
redis.register_function{function_name = 'ro', callback = function(keys) return redis.call('get', keys[1]) end, \
                       flags = {'no-writes'}, description = 'reads'}
redis.register_function{function_name = 'bad', callback = function(keys) return redis.call('set', keys[1], 1) end, \
                       flags = {'no-writes'}}
redis.register_function('w', function(keys, args) return redis.call('set', keys[1], twice(args[1])) end)
redis.register_function('globals', function() return {type(string.format), type(redis.register_function)} end)
redis.register_function('keys', function() return KEYS end)
redis.register_function('set', function() foo = 1 end)
redis.register_function('nosuch', function() return redis.call('nosuch') end)
redis.register_function('raise', function() error('boom') end)
redis.register_function('e', function() return {err = 'My e'} end)
redis.register_function('fcall', function() return redis.call('fcall', 'f', 0) end)
";

fn load(redis: &mut Redis, text: &str) -> String {
    run(redis, &["FUNCTION", "LOAD", text])
}

/// Sends the words, of which the last may be any bytes.
fn with_bytes(redis: &mut Redis, words: &[&str], last: &[u8], more: &[&str]) -> String {
    let mut all: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    all.push(last);
    all.extend(more.iter().map(|word| word.as_bytes()));
    redis.send(&request(&all));
    redis.answer()
}

/// The changes of a function are those of its commands, as for scripts: `call` in `server.c` of Redis.
#[tokio::test]
async fn functions_notify_track_and_are_shown_as_scripts_are() {
    let server = server(&["redis_keyspace_events=EA"]);
    let mut redis = Redis::open(&server);
    assert_eq!(load(&mut redis, LIBRARY), "lib");
    let mut events = Redis::open(&server);
    assert_eq!(events.call("PSUBSCRIBE __keyevent@0__:*"), "(psubscribe __keyevent@0__:* :1)");
    let mut reader = Redis::open(&server);
    assert!(reader.call("HELLO 3").contains("redis"));
    assert_eq!((reader.call("CLIENT TRACKING ON"), reader.call("FCALL_RO ro 1 k")), ("+OK".into(), "null".to_owned()));
    let mut monitor = Redis::open(&server);
    assert_eq!(monitor.call("MONITOR"), "+OK");
    for words in ["FCALL w 1 k x", "MULTI", "FCALL w 1 k y", "EXEC"] {
        redis.call(words);
    }
    assert_eq!(reader.answer(), ">(invalidate (k))");
    for _ in 0..2 {
        assert_eq!(events.answer(), "(pmessage __keyevent@0__:* __keyevent@0__:set k)");
    }
    assert_eq!(reader.call("FCALL ro 1 k"), "yy");
    let lines = [
        r#""FCALL" "w" "1" "k" "x""#,
        r#" lua] "set" "k" "xx""#,
        r#""MULTI""#,
        r#""FCALL" "w" "1" "k" "y""#,
        r#" lua] "set" "k" "yy""#,
        r#""EXEC""#,
        r#""FCALL" "ro" "1" "k""#,
        r#" lua] "get" "k""#,
    ];
    for wanted in lines {
        let line = monitor.answer();
        assert!(line.ends_with(wanted), "{line} instead of {wanted}");
    }
}

#[tokio::test]
async fn functions_are_called_by_their_names() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    assert_eq!(load(&mut redis, LIBRARY), "lib");
    let results = [
        ("FCALL f 1 a b", "(:1 :1 a b)"),
        ("FCALL F 0", "(:0 :0)"),
        ("FCALL other 0", "-ERR Function not found"),
        ("FCALL f x", "-ERR Bad number of keys provided"),
        ("FCALL other x", "-ERR Function not found"),
        ("FCALL f 3 a", "-ERR Number of keys can't be greater than number of args"),
        ("FCALL f -1", "-ERR Number of keys can't be negative"),
        ("FCALL f", "-ERR wrong number of arguments for 'fcall' command"),
        ("FCALL_RO f 0", "-ERR Can not execute a script with write flag using *_ro command."),
        ("FCALL w 1 k v", "+OK"),
        ("FCALL_RO ro 1 k", "vv"),
        ("FCALL ro 1 k", "vv"),
        (
            "FCALL bad 1 k",
            "-ERR Write commands are not allowed from read-only scripts. script: bad, on @user_function:5.",
        ),
        ("FCALL globals 0", "(function nil)"),
        (
            "FCALL keys 0",
            "-ERR user_function:8: Script attempted to access nonexistent global variable 'KEYS' script: keys, on \
             @user_function:8.",
        ),
        ("FCALL set 0", "-ERR user_function:9: Attempt to modify a readonly table script: set, on @user_function:9."),
        ("FCALL nosuch 0", "-ERR Unknown Redis command called from script script: nosuch, on @user_function:10."),
        ("FCALL raise 0", "-ERR user_function:11: boom script: raise, on @user_function:11."),
        ("FCALL e 0", "-My e"),
        ("FCALL fcall 0", "-ERR This Redis command is not allowed from script script: fcall, on @user_function:13."),
    ];
    // Each thread for scripts loads the library once.
    for _ in 0..2 {
        for (command, answer) in results {
            assert_eq!(redis.call(command), answer, "{command}");
        }
    }
    // A script runs in the world of scripts afterwards.
    let script = "for i = 1, 1 do return {#KEYS, ARGV[1]} end";
    assert_eq!(run(&mut redis, &["EVAL", script, "0", "a"]), "(:0 a)");
    assert_eq!(redis.call("MULTI"), "+OK");
    assert_eq!(redis.call("FCALL w 1 k x"), "+QUEUED");
    assert_eq!(redis.call("FCALL_RO ro 1 k"), "+QUEUED");
    assert_eq!(redis.call("EXEC"), "(+OK xx)");
}

#[tokio::test]
async fn libraries_are_listed_replaced_and_deleted() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    let one = "#!lua name=one\nredis.register_function{function_name = 'a', callback = function() return 1 end, \
               flags = {'no-writes', 'allow-oom'}}";
    assert_eq!(load(&mut redis, one), "one");
    assert_eq!(load(&mut redis, "#!lua name=Two\nredis.register_function('b', function() return 2 end)"), "Two");
    let listed = "((library_name Two engine LUA functions ((name b description nil flags ()))) \
                  (library_name one engine LUA functions ((name a description nil flags (+no-writes +allow-oom)))))";
    assert_eq!(redis.call("FUNCTION LIST"), listed);
    let answer = redis.call("FUNCTION LIST withcode libraryname O*");
    assert!(answer.starts_with("((library_name one ") && answer.contains(&format!("library_code {one}")), "{answer}");
    assert_eq!(redis.call("FUNCTION LIST LIBRARYNAME x*"), "()");
    let errors = [
        ("FUNCTION LIST LIBRARYNAME", "-ERR library name argument was not given"),
        ("FUNCTION LIST WITHCODE WITHCODE", "-ERR Unknown argument WITHCODE"),
        ("FUNCTION DELETE three", "-ERR Library not found"),
        ("FUNCTION DELETE two", "-ERR Library not found"),
        ("FUNCTION LOAD", "-ERR wrong number of arguments for 'function|load' command"),
        ("FUNCTION LOAD REPLACE", "-ERR Missing library metadata"),
        ("FUNCTION LOAD x y", "-ERR Unknown option given: x"),
        ("FUNCTION FLUSH x", "-ERR FUNCTION FLUSH only supports SYNC|ASYNC option"),
        (
            "FUNCTION FLUSH SYNC x",
            "-ERR unknown subcommand or wrong number of arguments for 'FLUSH'. Try FUNCTION HELP.",
        ),
        ("FUNCTION RESTORE x", "-ERR DUMP payload version or checksum are wrong"),
        ("FUNCTION RESTORE x y", "-ERR Wrong restore policy given, value should be either FLUSH, APPEND or REPLACE."),
        (
            "FUNCTION RESTORE x y z",
            "-ERR unknown subcommand or wrong number of arguments for 'RESTORE'. Try FUNCTION HELP.",
        ),
        ("FUNCTION KILL", "-NOTBUSY No scripts in execution right now."),
        ("FUNCTION STATS", "(running_script nil engines (LUA (libraries_count :2 functions_count :2)))"),
    ];
    for (command, answer) in errors {
        assert_eq!(redis.call(command), answer, "{command}");
    }
    assert_eq!(load(&mut redis, one), "-ERR Library 'one' already exists");
    let taken = "#!lua name=three\nredis.register_function('a', function() return 3 end)";
    assert_eq!(load(&mut redis, taken), "-ERR Function a already exists");
    let replaced = "#!lua name=one\nredis.register_function('a', function() return 'new' end)";
    assert_eq!(run(&mut redis, &["FUNCTION", "LOAD", "replace", replaced]), "one");
    assert_eq!(redis.call("FCALL a 0"), "new");
    assert_eq!(redis.call("FUNCTION DELETE one"), "+OK");
    assert_eq!(redis.call("FCALL a 0"), "-ERR Function not found");
    assert_eq!(redis.call("FUNCTION FLUSH ASYNC"), "+OK");
    assert_eq!(redis.call("FUNCTION LIST"), "()");
    assert!(redis.call("INFO memory").contains("number_of_functions:0"));
}

#[tokio::test]
async fn libraries_move_as_payloads_with_a_policy() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    assert_eq!(load(&mut redis, "#!lua name=a\nredis.register_function('f', function() return 1 end)"), "a");
    redis.send(&request(&[b"FUNCTION", b"DUMP"]));
    let dumped = redis.answer_bytes();
    let restore = |redis: &mut Redis, more: &[&str]| with_bytes(redis, &["FUNCTION", "RESTORE"], &dumped, more);
    assert_eq!(restore(&mut redis, &[]), "-ERR Library a already exists");
    assert_eq!(restore(&mut redis, &["APPEND"]), "-ERR Library a already exists");
    assert_eq!(restore(&mut redis, &["replace"]), "+OK");
    assert_eq!(load(&mut redis, "#!lua name=b\nredis.register_function('g', function() return 2 end)"), "b");
    assert_eq!(restore(&mut redis, &["FLUSH"]), "+OK");
    assert_eq!(redis.call("FCALL g 0"), "-ERR Function not found");
    assert_eq!(redis.call("FCALL f 0"), ":1");
    assert_eq!(redis.call("FUNCTION DELETE a"), "+OK");
    assert_eq!(load(&mut redis, "#!lua name=c\nredis.register_function('F', function() return 3 end)"), "c");
    assert_eq!(restore(&mut redis, &["REPLACE"]), "-ERR Function f already exists");
    assert_eq!(redis.call("FCALL f 0"), ":3", "nothing was changed");
    let mut damaged = dumped.clone();
    damaged[3] ^= 1;
    let answer = with_bytes(&mut redis, &["FUNCTION", "RESTORE"], &damaged, &[]);
    assert_eq!(answer, "-ERR DUMP payload version or checksum are wrong");
}

#[tokio::test]
async fn libraries_survive_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = format!("data={}", folder.path().display());
    let mut server = server(&[&data]);
    let mut redis = Redis::open(&server);
    assert_eq!(load(&mut redis, LIBRARY), "lib");
    assert_eq!(load(&mut redis, "#!lua name=other\nredis.register_function('g', function() return 5 end)"), "other");
    assert_eq!(redis.call("FCALL g 0"), ":5");
    server.crash_and_restart();
    let mut redis = Redis::open(&server);
    assert_eq!(redis.call("FCALL g 0"), ":5");
    assert_eq!(redis.call("FCALL f 1 a b"), "(:1 :1 a b)");
    assert_eq!(redis.call("FUNCTION DELETE other"), "+OK");
    server.crash_and_restart();
    let mut redis = Redis::open(&server);
    assert_eq!(redis.call("FCALL g 0"), "-ERR Function not found");
    assert_eq!(redis.call("FCALL f 1 a b"), "(:1 :1 a b)");
    let client = server.client("tcp").await;
    assert_eq!(metric(&client, "thalweg_redis_libraries").await, 1);
    assert_eq!(metric(&client, "thalweg_redis_functions").await, 11);
}

#[tokio::test]
async fn a_function_that_runs_long_is_shown_and_killed() {
    let server = server(&[]);
    let client = server.client("tcp").await;
    let mut redis = Redis::open(&server);
    let forever = "#!lua name=a\nredis.register_function('forever', function() while true do end end)";
    assert_eq!(load(&mut redis, forever), "a");
    assert_eq!(redis.call("CONFIG SET busy-reply-threshold 20"), "+OK");
    let mut running = Redis::open(&server);
    running.ask("FCALL forever 1 key");
    until("a function that runs", async || metric(&client, "thalweg_redis_scripts_running").await == 1).await;
    let stats = redis.call("FUNCTION STATS");
    let begin = "(running_script (name forever command (FCALL forever 1 key) duration_ms :";
    assert!(stats.starts_with(begin), "{stats}");
    assert_eq!(
        redis.call("SCRIPT KILL"),
        "-BUSY Redis is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE."
    );
    assert_eq!(redis.call("FUNCTION KILL"), "+OK");
    let killed = running.answer();
    assert!(killed.contains("Script killed by user with SCRIPT KILL..."), "{killed}");
    // A library that does not end registers nothing, and the thread serves the next one.
    let endless = load(&mut redis, "#!lua name=b\nwhile true do end");
    assert_eq!(endless, "-ERR Error registering functions: ERR FUNCTION LOAD timeout");
    assert_eq!(load(&mut redis, "#!lua name=b\nredis.register_function('g', function() return 2 end)"), "b");
    assert_eq!(redis.call("FCALL g 0"), ":2");
}

/// Opens a connection that has logged in.
fn log_in(server: &Server, user: &str, password: &str) -> Redis {
    let mut redis = Redis::open(server);
    assert_eq!(redis.call(&format!("AUTH {user} {password}")), "+OK");
    redis
}

#[tokio::test]
async fn each_tenant_has_its_own_libraries_and_ends_its_own_scripts() {
    let users = "users=root:r00t,ann:secret,carl:secret,bob:secret";
    let server = server(&["auth=required", users, "super_users=root,bob", "authorization=true"]);
    for user in ["ann", "bob"] {
        on(&server, ["role", "add", "admin", user]).ok();
    }
    for (tenant, user) in [("a", "ann"), ("a", "carl"), ("b", "bob")] {
        on(&server, ["tenant", "assign", tenant, user]).ok();
    }
    let mut root = log_in(&server, "root", "r00t");
    let mut ann = log_in(&server, "ann", "secret");
    let mut bob = log_in(&server, "bob", "secret");
    let text = |what: &str| format!("#!lua name=lib\nredis.register_function('f', function() {what} end)");
    assert_eq!(load(&mut ann, &text("return 'of ann'")), "lib");
    assert_eq!(bob.call("FCALL f 0"), "-ERR Function not found");
    assert_eq!(root.call("FUNCTION LIST"), "()");
    assert_eq!(load(&mut bob, &text("while true do end")), "lib");
    assert_eq!(ann.call("FCALL f 0"), "of ann");
    assert_eq!(root.call("CONFIG SET busy-reply-threshold 0"), "+OK");
    let mut carl = log_in(&server, "carl", "secret");
    assert!(load(&mut carl, &text("return 1")).starts_with("-NOPERM"), "what others call is not his to change");
    assert!(carl.call("FUNCTION FLUSH").starts_with("-NOPERM"));

    // A text that all functions of a library share is copied for each.
    let large = "#!lua name=large\nlocal d = ('x'):rep(2^20) for i = 1, 10000 do redis.register_function{\
                 function_name = 'f' .. i, callback = function() end, description = d} end";
    let refused = load(&mut ann, large);
    assert!(refused.contains("the names and descriptions of a library have at most 1048576 bytes"), "{refused}");

    // The endless functions of one tenant do not keep the other from running its own.
    let mut running: Vec<Redis> = (0..5).map(|_| log_in(&server, "bob", "secret")).collect();
    running.iter_mut().enumerate().for_each(|(at, redis)| redis.ask(&format!("FCALL f 1 key{at}")));
    until("a function that runs", async || bob.call("FUNCTION STATS").contains("(name f command (FCALL f 1 key")).await;
    assert_eq!(ann.call("FCALL f 0"), "of ann");
    let kill = ["FUNCTION KILL", "SCRIPT KILL"];
    kill.iter().for_each(|kill| assert_eq!(ann.call(kill), "-NOTBUSY No scripts in execution right now."));
    assert!(ann.call("FUNCTION STATS").starts_with("(running_script nil "));
    for redis in &mut running {
        let mut killed = None;
        until("a function that ends", async || {
            bob.call("FUNCTION KILL");
            killed = redis.answer_within(Duration::from_millis(50));
            killed.is_some()
        })
        .await;
        let killed = killed.expect("an answer");
        assert!(killed.contains("Script killed by user"), "{killed}");
    }
}
