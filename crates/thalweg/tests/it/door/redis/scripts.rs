//! Lua scripts at the Redis door. The expected replies are those of redis-server 7.0.15, unless a test says otherwise.

use std::time::Duration;

use super::commands::{Redis, request, server, until_blocked};
use crate::support::server::{Server, metric, until};

/// Runs a command whose arguments may have spaces.
pub fn run(redis: &mut Redis, words: &[&str]) -> String {
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    redis.send(&request(&words));
    redis.answer()
}

/// Runs a script without keys and arguments.
fn eval(redis: &mut Redis, script: &str) -> String {
    run(redis, &["EVAL", script, "0"])
}

/// Returns the error without the name and the place of the script.
fn short(answer: &str) -> &str {
    answer.split(" script: ").next().unwrap_or(answer)
}

#[tokio::test]
async fn values_are_converted_as_in_redis() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    assert_eq!(redis.call("SET s x"), "+OK");
    assert_eq!(redis.call("HSET h a 1"), ":1");
    let results = [
        ("return 'text'", "text"),
        ("return 3.99", ":3"),
        ("return -0.5", ":0"),
        ("return 1e30", ":-9223372036854775808"),
        ("return true", ":1"),
        ("return false", "nil"),
        ("return nil", "nil"),
        ("return", "nil"),
        ("return {1, 2.9, 'a', nil, 4}", "(:1 :2 a)"),
        ("return {true, false, 1}", "(:1 nil :1)"),
        ("return {{}, {{}}}", "(() (()))"),
        ("return {ok = 'fine'}", "+fine"),
        ("return {ok = 1}", "()"),
        ("return {err = 'My Err'}", "-My Err"),
        ("return redis.error_reply('My Err')", "-My Err"),
        ("return redis.error_reply('boom')", "-ERR boom"),
        ("return redis.error_reply(1)", "-ERR wrong number or type of arguments"),
        ("return redis.status_reply('fine')", "+fine"),
        ("return redis.status_reply()", "-ERR wrong number or type of arguments"),
        ("return {double = 3.5}", "3.5"),
        ("return {map = {a = 1}}", "(a :1)"),
        ("return redis.call('get', 's')", "x"),
        ("return redis.call('get', 'none')", "nil"),
        ("return redis.call('ping')", "+PONG"),
        ("return redis.call('exists', 's')", ":1"),
        ("return redis.call('mget', 's', 'none', 's')", "(x nil x)"),
        ("return redis.call('hgetall', 'h')", "(a 1)"),
        ("return type(redis.call('get', 'none'))", "boolean"),
        ("return redis.call('set', 'n', 'v').ok", "OK"),
        ("redis.call('set', 'n', 3.0) return redis.call('get', 'n')", "3"),
        ("redis.call('set', 'n', 0.1 + 0.2) return redis.call('get', 'n')", "0.30000000000000004"),
        ("redis.call('set', 'n', 1e20) return redis.call('get', 'n')", "1e+20"),
        ("return #KEYS + #ARGV", ":0"),
        ("return redis.sha1hex('')", "da39a3ee5e6b4b0d3255bfef95601890afd80709"),
        ("redis.setresp(3) return redis.call('hgetall', 'h').map.a", "1"),
        ("redis.setresp(3) return type(redis.call('get', 'none'))", "nil"),
        ("return redis.call('select', 1)", "+OK"),
        ("return unpack({1, 2, 3})", ":1"),
        ("local t = {} for i = 1, 100 do t[i] = i end return #{pcall(unpack, t)}", ":101"),
        ("return select('#', redis.call('get', 's'), redis.pcall('get', 's'), redis.pcall('nosuch'))", ":3"),
        (
            "local t = {} table.insert(t, redis.call('get', 's')) table.insert(t, redis.pcall('get', 's')) return t",
            "(x x)",
        ),
        ("return {type(os), 1}", "-ERR user_script:1: Script attempted to access nonexistent global variable 'os'"),
    ];
    for (script, answer) in results {
        assert_eq!(short(&eval(&mut redis, script)), answer, "{script}");
    }
    assert_eq!(
        run(&mut redis, &["EVAL", "return {KEYS[1], ARGV[1], #KEYS, #ARGV}", "1", "k", "a", "b"]),
        "(k a :1 :2)"
    );
    assert!(redis.call("HELLO 3").starts_with('%'));
    let results = [
        ("return false", "null"),
        ("redis.setresp(3) return true", "#t"),
        ("return true", ":1"),
        ("return {double = 3.5}", ",3.5"),
        ("return {map = {a = 1}}", "%(a :1)"),
        ("return {set = {a = true}}", "~(a)"),
        ("redis.setresp(3) return redis.call('hgetall', 'h')", "%(a 1)"),
        ("return redis.call('hgetall', 'h')", "(a 1)"),
    ];
    for (script, answer) in results {
        assert_eq!(eval(&mut redis, script), answer, "{script}");
    }
}

#[tokio::test]
async fn errors_have_the_words_of_redis() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    assert_eq!(redis.call("SET s x"), "+OK");
    let line = eval(&mut redis, "return redis.call('nosuch')");
    let whole = "-ERR Unknown Redis command called from script script: 206396248e12c6e742fd7296250433c8d7343b74, on \
                 @user_script:1.";
    assert_eq!(line, whole);
    let errors = [
        ("return foo", "-ERR user_script:1: Script attempted to access nonexistent global variable 'foo'"),
        ("foo = 1", "-ERR user_script:1: Attempt to modify a readonly table"),
        ("redis.x = 1", "-ERR user_script:1: Attempt to modify a readonly table"),
        ("string.x = 1", "-ERR user_script:1: Attempt to modify a readonly table"),
        ("KEYS = 1", "-ERR user_script:1: Attempt to modify a readonly table"),
        ("return rawset(_G, 'a', 1)", "-ERR Attempt to modify a readonly table"),
        ("setmetatable(_G, {})", "-ERR Attempt to modify a readonly table"),
        ("getmetatable('').__index.x = 1", "-ERR user_script:1: Attempt to modify a readonly table"),
        ("table.insert(_G, 1)", "-ERR Attempt to modify a readonly table"),
        ("return require('x')", "-ERR user_script:1: Script attempted to access nonexistent global variable 'require'"),
        ("return print", "-ERR user_script:1: Script attempted to access nonexistent global variable 'print'"),
        ("return redis.call()", "-ERR Please specify at least one argument for this redis lib call"),
        ("return redis.call({})", "-ERR Lua redis lib command arguments must be strings or integers"),
        ("return redis.call('get')", "-ERR Wrong number of args calling Redis command from script"),
        ("return redis.call('blpop', 'a', 0)", "-ERR This Redis command is not allowed from script"),
        ("return redis.call('multi')", "-ERR This Redis command is not allowed from script"),
        ("return redis.call('eval', 'return 1', 0)", "-ERR This Redis command is not allowed from script"),
        ("return redis.call('object', 'foo')", "-ERR Unknown Redis command called from script"),
        ("return redis.call('lpush', 's', 'a')", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ("return redis.pcall('lpush', 's', 'a')", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ("return redis.call('set', 'a', 'b', 'zz')", "-ERR syntax error"),
        ("error('boom')", "-ERR user_script:1: boom"),
        ("error({err = 'MY boom'})", "-MY boom"),
        ("return 1 + nil", "-ERR user_script:1: attempt to perform arithmetic on a nil value"),
        ("local function f() return f() + 1 end return f()", "-ERR user_script:1: stack overflow"),
        ("redis.setresp(4)", "-ERR RESP version must be 2 or 3."),
        ("redis.set_repl(7)", "-ERR Invalid replication flags. Use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE."),
        ("redis.log(1)", "-ERR redis.log() requires two arguments or more."),
        ("return redis.acl_check_cmd('foo')", "-ERR Invalid command passed to redis.acl_check_cmd()"),
        ("syntax error here", "-ERR Error compiling script (new function): user_script:1: '=' expected near 'error'"),
        ("#!lua flags=foo\nreturn 1", "-ERR Unexpected flag in script shebang: foo"),
        ("#!foo\nreturn 1", "-ERR Unexpected engine in script shebang: #!foo"),
        ("#!lua name=x\nreturn 1", "-ERR Unknown lua shebang option: name=x"),
        ("#!lua", "-ERR Invalid script shebang"),
        (
            "#!lua flags=no-writes\nreturn redis.call('set', 'a', 'b')",
            "-ERR Write commands are not allowed from read-only scripts.",
        ),
        (
            "return redis.call('xread', 'block', 0, 'streams', 'x', '$')",
            "-ERR xread command is not allowed with BLOCK option from scripts",
        ),
    ];
    for (script, answer) in errors {
        assert_eq!(short(&eval(&mut redis, script)), answer, "{script}");
    }
    // An error in the second line is named there, also behind a line of flags.
    assert!(eval(&mut redis, "#!lua\nreturn foo").ends_with("on @user_script:2."));
    assert!(eval(&mut redis, "local a = 1\nfor i = 1, 1 do\nreturn foo end").ends_with("on @user_script:3."));
    let caught = "local ok, e = pcall(redis.call, 'get') return {tostring(ok), type(e), e}";
    assert_eq!(eval(&mut redis, caught), "(false string ERR Wrong number of args calling Redis command from script)");
    assert_eq!(eval(&mut redis, "return {pcall(error, 'x')}"), "(nil x)");
    assert_eq!(run(&mut redis, &["EVAL", "return 1", "x"]), "-ERR value is not an integer or out of range");
    assert_eq!(
        run(&mut redis, &["EVAL", "return 1", "2", "a"]),
        "-ERR Number of keys can't be greater than number of args"
    );
    assert_eq!(run(&mut redis, &["EVAL", "return 1", "-1"]), "-ERR Number of keys can't be negative");
    let write = "return redis.call('set', KEYS[1], 'b')";
    let answer = run(&mut redis, &["EVAL_RO", write, "1", "a"]);
    assert_eq!(short(&answer), "-ERR Write commands are not allowed from read-only scripts.");
    let flags = run(&mut redis, &["EVAL_RO", "#!lua\nreturn 1", "0"]);
    assert_eq!(flags, "-ERR Can not execute a script with write flag using *_ro command.");
}

#[tokio::test]
async fn scripts_are_called_by_their_sha() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    let missing = "-NOSCRIPT No matching script. Please use EVAL.";
    let sha = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
    assert_eq!(redis.call("EVALSHA abc 0"), missing);
    assert_eq!(redis.call(&format!("EVALSHA {sha} 0")), missing);
    assert_eq!(run(&mut redis, &["SCRIPT", "LOAD", "return 1"]), sha);
    assert_eq!(redis.call(&format!("EVALSHA {sha} 0")), ":1");
    assert_eq!(redis.call(&format!("EVALSHA_RO {} 0", sha.to_uppercase())), ":1");
    assert_eq!(redis.call(&format!("SCRIPT EXISTS {sha} abc")), "(:1 :0)");
    assert_eq!(redis.call("SCRIPT FLUSH x"), "-ERR SCRIPT FLUSH only support SYNC|ASYNC option");
    assert_eq!(redis.call("SCRIPT FLUSH"), "+OK");
    assert_eq!(redis.call(&format!("SCRIPT EXISTS {sha}")), "(:0)");
    assert_eq!(redis.call(&format!("EVALSHA {sha} 0")), missing);
    assert_eq!(eval(&mut redis, "return 1"), ":1");
    assert_eq!(redis.call(&format!("EVALSHA {sha} 0")), ":1", "EVAL keeps the script");
    assert_eq!(redis.call("SCRIPT KILL"), "-NOTBUSY No scripts in execution right now.");
}

#[tokio::test]
async fn libraries_are_those_of_redis() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    let results = [
        ("return cjson.encode({1, 2, {a = 1}})", r#"[1,2,{"a":1}]"#),
        ("return cjson.encode({})", "{}"),
        ("return cjson.encode({1.5, 1e20, 'a/\"\\n', true, cjson.null})", r#"[1.5,1e+20,"a\/\"\n",true,null]"#),
        ("return cjson.decode('[1, {\"a\": \"\\\\u00e9\"}]')[2].a", "é"),
        ("return tostring(cjson.decode('null') == cjson.null)", "true"),
        ("return cjson.decode('[1,')", "-ERR user_script:1: Expected value but found T_END at character 4"),
        (
            "return cjson.decode('{x}')",
            "-ERR user_script:1: Expected object key string but found invalid token at character 2",
        ),
        (
            "return cjson.encode({[1] = 1, [1000] = 2})",
            "-ERR user_script:1: Cannot serialise table: excessively sparse array",
        ),
        ("return cmsgpack.unpack(cmsgpack.pack({1, 'a', {b = -70000}}))[3].b", ":-70000"),
        ("return {cmsgpack.unpack_one(cmsgpack.pack(1, 2))}", "(:1 :1)"),
        ("return {struct.unpack('>I2h', struct.pack('>I2h', 258, -3))}", "(:258 :-3 :5)"),
        ("return struct.size('!4 b i')", ":8"),
        ("return bit.tohex(bit.bxor(0xff, 0x0f))", "000000f0"),
        ("return {bit.lshift(1, 31), bit.rshift(-1, 28), bit.arshift(-8, 1)}", "(:-2147483648 :15 :-4)"),
        ("local t = {3, 1, 2} table.sort(t) return t", "(:1 :2 :3)"),
        ("local s = 0 for k, v in pairs({a = 1, b = 2}) do s = s + v end return s", ":3"),
        ("local c = coroutine.wrap(function() coroutine.yield(redis.call('ping').ok) end) return c()", "PONG"),
        ("return ('abc'):upper() .. string.rep('x', 2)", "ABCxx"),
        ("return loadstring('return 5')()", ":5"),
        ("return tostring(loadstring('\\27Lua'))", "nil"),
        ("return redis.REDIS_VERSION", "7.0.15"),
        ("return {redis.LOG_WARNING, redis.replicate_commands(), redis.breakpoint()}", "(:3 :1 nil)"),
    ];
    for (script, answer) in results {
        assert_eq!(short(&eval(&mut redis, script)), answer, "{script}");
    }
}

/// A script leaves nothing for the next one, whatever it tries.
#[tokio::test]
async fn a_script_cannot_change_the_world_of_another_one() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    let attempts = [
        "local _, real = pairs(string) real.upper = nil",
        "setfenv(1, {}) x = 1",
        "pcall(setfenv, 0, {})",
        "rawset(getfenv(0), 'leak', 1)",
        "getfenv(0).leak = 1",
        "getfenv(tostring).leak = 1",
        "local mt = getmetatable('') mt.__index = nil",
        "local f = loadstring('leak = 1') f()",
        "string.upper = nil",
        "getmetatable(string).__index = nil",
        "math.random = nil",
        "setmetatable(string, {})",
        "rawset(redis, 'call', nil)",
        "KEYS.leak = 1",
    ];
    for script in attempts {
        eval(&mut redis, script);
        eval(&mut redis, script);
        let check = "return {('a'):upper(), tostring(rawget(_G, 'leak')), type(redis.call), type(KEYS.leak), #KEYS}";
        assert_eq!(eval(&mut redis, check), "(A nil function nil :0)", "after {script}");
        assert_eq!(
            short(&eval(&mut redis, "for i = 1, 1 do return leak end")),
            "-ERR user_script:1: Script attempted to access nonexistent global variable 'leak'"
        );
    }
}

#[tokio::test]
async fn scripts_are_steps_that_no_client_sees_halfway() {
    let server = server(&[]);
    // With a loop on a thread for scripts, without one on the thread of the connection.
    let scripts = [
        "redis.call('incr', KEYS[1]) for i = 1, 50 do redis.call('get', KEYS[1]) end redis.call('incr', KEYS[2]) \
         return 1",
        "redis.call('incr', KEYS[1]) redis.call('incr', KEYS[2]) return 1",
        "redis.call('incr', KEYS[1]) redis.call('incr', 'und' .. 'eclared') redis.call('incr', KEYS[2]) return 1",
    ];
    for script in scripts {
        let mut reader = Redis::open(&server);
        reader.call("FLUSHALL");
        let writers: Vec<_> = (0..4)
            .map(|_| {
                let mut redis = Redis::open(&server);
                let script = script.to_owned();
                std::thread::spawn(move || {
                    (0..100).for_each(|_| assert_eq!(run(&mut redis, &["EVAL", &script, "2", "a", "b"]), ":1"));
                })
            })
            .collect();
        let read = "return {redis.call('get', KEYS[1]), redis.call('get', KEYS[2])}";
        for _ in 0..200 {
            let seen = run(&mut reader, &["EVAL", read, "2", "a", "b"]);
            let halves: Vec<&str> = seen.trim_matches(['(', ')']).split(' ').collect();
            assert_eq!(halves[0], halves[1], "{seen}");
            let seen = reader.call("MGET a b");
            let halves: Vec<&str> = seen.trim_matches(['(', ')']).split(' ').collect();
            assert_eq!(halves[0], halves[1], "{seen}");
        }
        writers.into_iter().for_each(|writer| writer.join().expect("no writer fails"));
        assert_eq!(reader.call("MGET a b"), "(400 400)", "{script}");
    }
}

#[tokio::test]
async fn scripts_use_streams_channels_databases_and_keys_that_they_are_not_given() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    let mut listener = Redis::open(&server);
    assert_eq!(listener.call("SUBSCRIBE news"), "(subscribe news :1)");
    let results = [
        (
            "redis.call('xadd', KEYS[1], '1-1', 'f', 'v') redis.call('xadd', KEYS[1], '2-1', 'f', 'w') \
             return redis.call('xlen', KEYS[1])",
            ":2",
        ),
        ("return redis.call('xrange', KEYS[1], '-', '+')", "((1-1 (f v)) (2-1 (f w)))"),
        (
            "redis.call('set', 'x', 1) redis.call('xadd', KEYS[1], '3-1', 'f', 'x') \
             return redis.call('xlen', 'stream')",
            ":3",
        ),
        ("return redis.call('xlen', 'str' .. 'eam')", ":3"),
        ("redis.call('rename', KEYS[1], 'other') return redis.call('type', 'other')", "+stream"),
        ("redis.call('del', 'other') return redis.call('exists', 'other')", ":0"),
        ("return redis.call('publish', 'news', 'hello')", ":1"),
        ("redis.call('select', 3) redis.call('set', 'in3', 'v') return redis.call('get', 'in3')", "v"),
        ("return redis.call('dbsize')", ":1"),
        ("for i = 1, 20 do redis.call('set', 'key' .. i, i) end return #redis.call('keys', 'key*')", ":20"),
        ("return redis.call('del', unpack(redis.call('keys', '*')))", ":21"),
        ("return redis.call('time')[1] + 0 > 1000000000", ":1"),
    ];
    for (script, answer) in results {
        assert_eq!(run(&mut redis, &["EVAL", script, "1", "stream"]), answer, "{script}");
    }
    assert_eq!(listener.answer(), "(message news hello)");
    assert_eq!(redis.call("EXISTS in3"), ":0");
    assert_eq!(redis.call("SELECT 3"), "+OK");
    assert_eq!(redis.call("GET in3"), "v");
}

/// `MEMORY USAGE` has no flag `noscript` in Redis (`src/commands/memory-usage.json`). The library asynq measures queues
/// with it in a script (`memoryUsageCmd` in `internal/rdb/inspect.go`).
#[tokio::test]
async fn a_script_measures_keys_that_it_is_not_given() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    assert_eq!(redis.call("RPUSH list a b c"), ":3");
    let usage: &str = &redis.call("MEMORY USAGE list");
    assert!(usage.starts_with(':') && usage != ":0", "{usage}");
    let results = [
        ("return redis.call('memory', 'usage', 'li' .. 'st')", usage),
        ("return redis.call('MEMORY', 'USAGE', 'list', 'SAMPLES', 0)", usage),
        ("#!lua flags=no-writes\nreturn redis.call('memory', 'usage', 'list')", usage),
        ("return redis.call('memory', 'usage', 'none')", "nil"),
        ("redis.call('set', 'new', 'x') return redis.call('memory', 'usage', 'new') > 0", ":1"),
        ("return redis.call('memory', 'usage', 'list', 'SAMPLES', -1)", "-ERR syntax error"),
        ("return redis.call('memory', 'usage')", "-ERR Wrong number of args calling Redis command from script"),
        // Redis allows it in scripts, too.
        ("return redis.call('memory', 'stats')", "-ERR This Redis command is not allowed from script"),
    ];
    for (script, answer) in results {
        assert_eq!(short(&eval(&mut redis, script)), answer, "{script}");
    }
}

#[tokio::test]
async fn a_transaction_runs_scripts_as_part_of_its_step() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    assert_eq!(redis.call("MULTI"), "+OK");
    assert_eq!(redis.call("SET a 1"), "+QUEUED");
    assert_eq!(run(&mut redis, &["EVAL", "return redis.call('incr', KEYS[1])", "1", "a"]), "+QUEUED");
    assert_eq!(
        run(&mut redis, &["EVAL", "for i = 1, 3 do redis.call('incr', 'a') end return redis.call('nosuch')", "0"]),
        "+QUEUED"
    );
    assert_eq!(redis.call("GET a"), "+QUEUED");
    let answer = redis.call("EXEC");
    assert!(answer.starts_with("(+OK :2 -ERR Unknown Redis command called from script script: "), "{answer}");
    assert!(answer.ends_with(" 5)"), "{answer}");
}

/// A client that waits for a key is served by a script, as by any other client, once the script has ended.
#[tokio::test]
async fn a_script_serves_blocked_clients() {
    let server = server(&[]);
    let mut blocked = Redis::open(&server);
    let mut redis = Redis::open(&server);
    blocked.ask("BLPOP list 0");
    until_blocked(&server, 1).await;
    assert_eq!(
        run(
            &mut redis,
            &["EVAL", "redis.call('rpush', KEYS[1], 'a', 'b') return redis.call('llen', KEYS[1])", "1", "list"]
        ),
        ":2"
    );
    assert_eq!(blocked.answer(), "(list a)");
}

/// Starts a script that runs until it is killed, and returns its connection.
async fn endless(server: &Server, script: &str, key: &str) -> Redis {
    let client = server.client("tcp").await;
    let mut redis = Redis::open(server);
    let words: Vec<&[u8]> = ["EVAL", script, "1", key].iter().map(|word| word.as_bytes()).collect();
    redis.send(&request(&words));
    until("a script that runs", async || metric(&client, "thalweg_redis_scripts_running").await == 1).await;
    redis
}

#[tokio::test]
async fn a_script_that_runs_long_makes_others_busy_and_can_be_killed() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    let forever = "while true do redis.pcall('get', KEYS[1]) end";
    // The first run of a script locks all keys, the others only those that it was given.
    let mut first = endless(&server, forever, "key").await;
    assert_eq!(redis.call("CONFIG SET lua-time-limit 20"), "+OK");
    let busy = "-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.";
    assert_eq!(redis.call("GET other"), busy);
    assert_eq!(redis.call("PING"), "+PONG");
    assert_eq!(
        redis.call("FUNCTION KILL"),
        "-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."
    );
    assert_eq!(redis.call("SCRIPT KILL"), "+OK");
    let killed = first.answer();
    assert!(killed.contains("Script killed by user with SCRIPT KILL..."), "{killed}");
    assert_eq!(redis.call("GET other"), "nil");

    let mut second = endless(&server, forever, "key").await;
    assert_eq!(redis.call("GET key"), busy);
    assert_eq!(redis.call("MULTI"), "+OK");
    assert_eq!(redis.call("GET key"), busy);
    let aborted = format!("-EXECABORT Transaction discarded because of: {}", &busy[1..]);
    assert_eq!(redis.call("EXEC"), aborted);
    assert_eq!(redis.call("SCRIPT KILL"), "+OK");
    assert!(second.answer().contains("Script killed by user with SCRIPT KILL..."));
    assert_eq!(redis.call("SCRIPT KILL"), "-NOTBUSY No scripts in execution right now.");
}

#[tokio::test]
async fn clients_wait_for_a_script_and_other_keys_and_doors_do_not() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    // The second run locks only the stripe of its key.
    assert_eq!(redis.call("CONFIG SET busy-reply-threshold 0"), "+OK");
    let script = "local n = tonumber(ARGV[1]) for i = 1, n do local x = i * i end return redis.call('get', KEYS[1])";
    assert_eq!(run(&mut redis, &["EVAL", script, "1", "key", "1"]), "nil");
    let mut slow = Redis::open(&server);
    let words: Vec<&[u8]> = ["EVAL", script, "1", "key", "2e8"].iter().map(|word| word.as_bytes()).collect();
    slow.send(&request(&words));
    let client = server.client("tcp").await;
    until("a script that runs", async || metric(&client, "thalweg_redis_scripts_running").await == 1).await;
    let mut waiter = Redis::open(&server);
    waiter.ask("SET key new");
    let mut other = 0;
    for at in 0..64 {
        // Keys of all stripes but one.
        let mut redis = Redis::open(&server);
        redis.ask(&format!("SET other{at} 1"));
        other += usize::from(redis.answer_within(Duration::from_secs(2)) == Some("+OK".to_owned()));
        if metric(&client, "thalweg_redis_scripts_running").await == 0 {
            // A fast machine: the rest proves nothing.
            break;
        }
    }
    assert!(other > 0, "no key was free");
    assert_eq!(slow.answer(), "nil", "the waiter is served after the script");
    assert_eq!(waiter.answer(), "+OK");
    assert_eq!(redis.call("GET key"), "new");
}

#[tokio::test]
async fn a_script_that_has_written_is_not_killed() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    let script = "redis.call('set', KEYS[1], 1) local n = 0 while n < 3e8 do n = n + 1 end return n";
    let mut running = endless(&server, script, "key").await;
    let mut answer = redis.call("SCRIPT KILL");
    // It is shown as running before its first command.
    while answer == "+OK" {
        assert!(running.answer().contains("Script killed by user"));
        running = endless(&server, script, "key").await;
        answer = redis.call("SCRIPT KILL");
    }
    assert!(answer.starts_with("-UNKILLABLE Sorry the script already executed write commands"), "{answer}");
    assert_eq!(running.answer(), ":300000000");
    assert_eq!(redis.call("GET key"), "1");
}

#[tokio::test]
async fn a_script_that_needs_too_much_memory_ends_with_an_error() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    for script in ["local t = {} for i = 1, 1e9 do t[i] = 'x' .. i end", "return string.rep('x', 1e9)"] {
        for _ in 0..2 {
            let answer = eval(&mut redis, script);
            assert!(answer.starts_with("-ERR") && answer.contains("memory"), "{answer}");
        }
        assert_eq!(eval(&mut redis, "for i = 1, 1 do return 'the next one' end"), "the next one");
    }
}

/// Returns a script that doubles a text of 8 bytes this many times, without a loop.
fn doubling(times: usize) -> String {
    format!("local a = 'xxxxxxxx'{} return #a", " a = a .. a".repeat(times))
}

/// The environment of functions of the server is out of reach, and so is what Redis removes (`src/script_lua.c`).
#[tokio::test]
async fn a_script_cannot_reach_the_environment_of_the_server() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    let results = [
        ("return {type(rawget(getfenv(pcall), 'loadfile'))}", "(nil)"),
        ("return getfenv(pcall) == _G", ":1"),
        (
            "for i = 0, 9 do local ok, e = pcall(getfenv, i) if ok and e ~= _G then return i end end return 'none'",
            "none",
        ),
        ("return {type(string.dump), type(rawget(_G, 'newproxy'))}", "(nil nil)"),
        ("setfenv(1, {y = 5}) return y", ":5"),
        ("local f = function() return x end setfenv(f, {x = 4}) return f()", ":4"),
        (
            "setfenv(collectgarbage, {}) return 1",
            "-ERR user_script:1: 'setfenv' cannot change environment of given object",
        ),
        ("setfenv(3, {}) return 1", "-ERR user_script:1: 'setfenv' cannot change environment of given object"),
        ("local a = string.find(nil, 'x')", "-ERR user_script:1: bad argument #1 to 'find' (string expected, got nil)"),
    ];
    for (script, answer) in results {
        assert_eq!(short(&eval(&mut redis, script)), answer, "{script}");
        // The next run has the world of all scripts.
        assert_eq!(short(&eval(&mut redis, script)), answer, "{script} again");
    }
}

#[tokio::test]
async fn functions_in_c_do_not_run_for_long() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    let results = [
        ("local a = ('a'):rep(1e6) local b = a:find(('a?'):rep(1e6)) return b", "pattern too complex"),
        ("local a = ('a'):rep(1e6) for w in a:gmatch(('a?'):rep(1e6)) do return w end", "pattern too complex"),
        ("return #('a'):rep(1e6):match(('a*'):rep(17))", ":1000000"),
        ("return #('a'):rep(5000):gsub(('a?'):rep(3000), 'b')", ":3"),
        ("local a = ('.'):rep(5000) return {a:find(('.'):rep(4000), 1, true)}", "(:1 :4000)"),
        ("return ('a'):rep(5000):find(('a'):rep(3000))", ":1"),
        ("return #string.rep('', 1e15)", ":0"),
        ("table.insert({}, -2147483647, 1)", "position out of bounds"),
        ("for i = 1, 1 do table.insert({}, 2147483649, 1) end", "position out of bounds"),
        ("local t = {1} table.insert(t, 1, 0) table.insert(t, 3, 2) return t", "(:0 :1 :2)"),
        ("return math.random(-9e18, 9e18) <= 9e18", ":1"),
    ];
    for (script, part) in results {
        let answer = eval(&mut redis, script);
        assert!(answer.contains(part), "{script}: {answer}");
    }
}

/// Redis' matcher of patterns runs in C until it has tried everything.
#[tokio::test]
async fn a_search_that_tries_very_much_can_be_killed() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    let hard = "('a'):rep(4096), ('a-'):rep(15) .. 'b'";
    for script in [
        format!("return string.find({hard})"),
        format!("return string.gsub({hard}, function() return '' end)"),
        format!("while true do pcall(string.match, {hard}) end"),
    ] {
        let mut running = endless(&server, &script, "key").await;
        assert_eq!(redis.call("SCRIPT KILL"), "+OK");
        let killed = running.answer();
        assert!(killed.contains("Script killed by user with SCRIPT KILL..."), "{script}: {killed}");
        assert_eq!(redis.call("GET key"), "nil");
    }
    let library = "#!lua name=a\nlocal x = ('a'):rep(4096):find(('a-'):rep(15) .. 'b')";
    let answer = run(&mut redis, &["FUNCTION", "LOAD", library]);
    assert_eq!(answer, "-ERR Error registering functions: ERR FUNCTION LOAD timeout");
}

#[tokio::test]
async fn functions_of_the_server_build_at_most_64_mib() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    let shared = "local t = {1} for i = 1, 5 do local n = {} for j = 1, 100 do n[j] = t end t = n end ";
    let long = "local s, t = ('x'):rep(2^20), {} for i = 1, 100 do t[i] = s end ";
    let results = [
        ("local t = {1} for i = 1, 40 do t = {t, t} end return cjson.encode(t)".to_owned(), "not enough memory"),
        (format!("{shared} return cmsgpack.pack(t)"), "not enough memory"),
        (format!("{long} return cjson.encode(t)"), "not enough memory"),
        (format!("{long} return cmsgpack.pack(t)"), "not enough memory"),
        (format!("{long} return struct.pack(('c0'):rep(100), unpack(t))"), "not enough memory"),
        (format!("{long} return redis.call('del', unpack(t))"), "the arguments have more than 64 MiB"),
        (format!("{long} return #cjson.encode({{s, s}})"), ":2097159"),
        // lua-cjson compares with `encode_sparse_safe` only.
        (format!("return cjson.encode({{{} 12}})", "nil, ".repeat(11)), "excessively sparse array"),
    ];
    for (script, part) in results {
        let answer = eval(&mut redis, &script);
        assert!(answer.contains(part), "{script}: {}", &answer[..answer.len().min(200)]);
    }
    let large = "local s, t = ('x'):rep(2^20), {} for i = 1, 300 do t[i] = {ok = s} end ";
    for what in ["return t", "local m = {} for i = 1, 300 do m[i] = t[i] end return {map = m}"] {
        let answer = eval(&mut redis, &format!("{large} {what}"));
        assert!(answer.starts_with("-ERR"), "{}", &answer[..answer.len().min(200)]);
    }
}

/// A script without loops that needs much memory moves to a thread for scripts, unless it has written.
#[tokio::test]
async fn a_straight_script_that_needs_much_memory_leaves_the_thread_of_its_connection() {
    let server = server(&[]);
    let client = server.client("tcp").await;
    let mut redis = Redis::open(&server);
    assert_eq!(eval(&mut redis, &doubling(10)), ":8192");
    assert_eq!(metric(&client, "thalweg_redis_scripts_queued_total").await, 0);
    assert_eq!(eval(&mut redis, &doubling(18)), ":2097152");
    assert_eq!(metric(&client, "thalweg_redis_scripts_queued_total").await, 1);
    let written = format!("redis.call('set', KEYS[1], 1) {}", doubling(18));
    let answer = run(&mut redis, &["EVAL", &written, "1", "key"]);
    assert!(answer.starts_with("-ERR") && answer.contains("not enough memory"), "{answer}");
    // Arguments and replies may be large.
    let large = "x".repeat(2 << 20);
    let script = "redis.call('set', KEYS[1], ARGV[1]) return #(redis.call('get', KEYS[1]) .. ARGV[1])";
    assert_eq!(run(&mut redis, &["EVAL", script, "1", "key", &large]), ":4194304");
    assert_eq!(metric(&client, "thalweg_redis_scripts_queued_total").await, 1);
}

/// Each key and argument becomes an object of Lua before the script begins.
#[tokio::test]
async fn a_script_with_many_arguments_leaves_the_thread_of_its_connection() {
    let server = server(&[]);
    let client = server.client("tcp").await;
    let mut redis = Redis::open(&server);
    for (count, queued) in [(4096, 0), (4097, 1)] {
        let words = vec!["x"; count];
        let answer = run(&mut redis, &[&["EVAL", "return {#KEYS, #ARGV}", "1"], &words[..]].concat());
        assert_eq!(answer, format!("(:1 :{})", count - 1));
        assert_eq!(metric(&client, "thalweg_redis_scripts_queued_total").await, queued);
    }
}

/// Replies that a script stores where it makes no allocation of its own count, too.
#[tokio::test]
async fn small_replies_do_not_exceed_the_memory_of_a_script() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    let text = (0..20_000).map(|number| format!("{number:05}")).collect::<String>();
    assert_eq!(run(&mut redis, &["SET", "key", &text]), "+OK");
    let script = "local t = {} for i = 1, 8192 do t[i] = 0 end \
                  for i = 1, 8192 do t[i] = redis.call('getrange', KEYS[1], i, i + 60000) end return #t";
    let answer = run(&mut redis, &["EVAL", script, "1", "key"]);
    assert!(answer.starts_with("-ERR") && answer.contains("not enough memory"), "{answer}");
    // A script that catches the error does not get more.
    let caught = script.replace("redis.call(", "select(2, pcall(redis.call, ").replace("60000)", "60000))");
    let answer = run(&mut redis, &["EVAL", &caught, "1", "key"]);
    assert!(answer.starts_with("-ERR") && answer.contains("not enough memory"), "{answer}");
    assert_eq!(redis.call("STRLEN key"), ":100000");
}

#[tokio::test]
async fn a_script_that_is_killed_does_not_survive_in_coroutines() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    let scripts = [
        "while true do pcall(coroutine.wrap(function() while true do end end)) end",
        "while true do coroutine.resume(coroutine.create(function() while true do end end)) end",
        "while true do xpcall(coroutine.wrap(function() while true do end end), function() return 1 end) end",
    ];
    for script in scripts {
        let mut running = endless(&server, script, "key").await;
        assert_eq!(redis.call("SCRIPT KILL"), "+OK");
        let killed = running.answer();
        assert!(killed.contains("Script killed by user with SCRIPT KILL..."), "{script}: {killed}");
    }
}

/// `FLUSHALL` needs the keys of all databases, also of those that are not selected.
#[tokio::test]
async fn flushall_is_busy_while_a_script_holds_keys_of_another_database() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    assert_eq!(redis.call("SELECT 2"), "+OK");
    assert_eq!(redis.call("CONFIG SET lua-time-limit 20"), "+OK");
    let mut running = endless(&server, "while true do redis.pcall('get', KEYS[1]) end", "key").await;
    redis.ask("FLUSHALL");
    let answer = redis.answer_within(Duration::from_secs(5));
    let busy = "-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.";
    assert_eq!(answer.as_deref(), Some(busy));
    assert_eq!(redis.call("SCRIPT KILL"), "+OK");
    assert!(running.answer().contains("Script killed by user with SCRIPT KILL..."));
    assert_eq!(redis.call("FLUSHALL"), "+OK");
}

/// Functions of Lua in C may be nested 200 times, each with a buffer on the stack, and then a decoder recurs.
#[tokio::test]
async fn nested_functions_in_c_do_not_overflow_the_stack() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    let nested = |innermost: &str| {
        format!(
            "local n = 0 local function f() n = n + 1 if n >= 185 then pcall({innermost}) return 'x' end \
             return (string.gsub('a', 'a', f)) end return f()"
        )
    };
    let decode = nested("cjson.decode, string.rep('[', 999) .. string.rep(']', 999)");
    let encode = format!("local t = {{}} for i = 1, 900 do t = {{t}} end {}", nested("cjson.encode, t"));
    for script in [decode, encode] {
        assert_eq!(eval(&mut redis, &script), "x");
    }
    assert_eq!(redis.call("PING"), "+PONG");
}

/// A few tables may stand for more values than any memory has.
#[tokio::test]
async fn replies_that_repeat_tables_are_refused() {
    let server = server(&[]);
    let client = server.client("tcp").await;
    let mut redis = Redis::open(&server);
    let doubled = format!("local t = {{}} {}return t", "t = {t, t} ".repeat(40));
    let repeated = "the reply of the script has far more values than its memory: it repeats tables";
    assert_eq!(eval(&mut redis, &doubled), format!("-ERR {repeated}"));
    assert_eq!(eval(&mut redis, "local t = {} for i = 1, 40 do t = {t, t} end return t"), format!("-ERR {repeated}"));
    assert_eq!(eval(&mut redis, "local t = {1} for i = 1, 3 do t = {t, t} end return t").matches(":1").count(), 8);
    // Encoding such tables takes a thread for scripts.
    let queued = metric(&client, "thalweg_redis_scripts_queued_total").await;
    assert!(eval(&mut redis, &doubled.replace("return t", "return cjson.encode(t)")).contains("not enough memory"));
    assert_eq!(metric(&client, "thalweg_redis_scripts_queued_total").await, queued + 1);
}

/// Compiling takes time that grows with the square of the number of jumps.
#[tokio::test]
async fn scripts_that_would_take_long_to_compile_are_refused() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    let script = |count: usize| format!("local a = 1 return a{}", " or a".repeat(count));
    let refused = "-ERR the script has the words and, or, else, elseif and break 8193 times; at most 8192 are allowed: \
                   use tables and loops";
    assert_eq!(run(&mut redis, &["SCRIPT", "LOAD", &script(8193)]), refused);
    assert_eq!(eval(&mut redis, &script(8193)), refused);
    assert_eq!(eval(&mut redis, &script(8192)), ":1");
    let library = format!("#!lua name=lib\nredis.register_function('f', function() {} end)", script(8193));
    assert_eq!(run(&mut redis, &["FUNCTION", "LOAD", &library]), refused);
}

/// A script may have changed data, so its reply is limited before it is written.
#[tokio::test]
async fn replies_of_scripts_take_bounded_memory() {
    let server = server(&["response_memory_max=64MiB"]);
    let mut redis = Redis::open(&server);
    let reply = |mib: usize, before: &str| {
        format!("{before} local s, t = ('x'):rep(2^20), {{}} for i = 1, {mib} do t[i] = s end return t")
    };
    assert_eq!(eval(&mut redis, &reply(7, "")).len(), (7 << 20) + "(      )".len());
    let refused = eval(&mut redis, &reply(40, ""));
    assert!(refused.starts_with("-ERR the reply of the script has more than 16777216 bytes"), "{refused}");
    // Repeating it would change the data again.
    let written = eval(&mut redis, &reply(40, "redis.call('incr', 'n')"));
    assert!(written.ends_with("return less; the script has run and changed data"), "{written}");
    assert_eq!(redis.call("GET n"), "1");
}

/// The changes of a script to durable data are logged as one step.
#[tokio::test]
async fn a_script_cannot_change_any_amount_of_durable_data() {
    let directory = tempfile::tempdir().expect("a directory");
    let data = format!("data={}", directory.path().display());
    let server = server(&[&data, "redis_durable=true"]);
    let mut redis = Redis::open(&server);
    let script = "local s = ('x'):rep(2^20) while true do redis.call('set', KEYS[1], s) end";
    let answer = run(&mut redis, &["EVAL", script, "1", "key"]);
    assert!(answer.contains("has changed more than 67108864 bytes of durable data"), "{answer}");
    assert_eq!(redis.call("STRLEN key"), ":1048576");
}
