//! `MONITOR`: what a monitoring client receives of the commands of others.

use super::commands::{Redis, request, server};
use crate::support::server::{metric, until};

/// Returns the next line without its time and the port of the client.
fn line(monitor: &mut Redis) -> String {
    let line = monitor.answer();
    let (time, rest) = line.split_once(" [").unwrap_or_else(|| panic!("no line: {line}"));
    assert!(time.strip_prefix('+').is_some_and(|time| time.parse::<f64>().is_ok()), "{line}");
    let (by, command) = rest.split_once("] ").unwrap_or_else(|| panic!("no line: {line}"));
    format!("[{}] {command}", by.split(':').next().unwrap_or(by))
}

#[tokio::test]
async fn a_monitor_shows_what_others_execute_without_their_secrets() {
    let server = server(&[]);
    let mut monitor = Redis::open(&server);
    assert_eq!(monitor.call("MONITOR"), "+OK");
    let mut redis = Redis::open(&server);
    redis.send(&request(&[b"SET", b"a key", b"1\r\n\"\xff"]));
    assert_eq!(redis.answer(), "+OK");
    assert_eq!(line(&mut monitor), r#"[0 127.0.0.1] "SET" "a key" "1\r\n\"\xff""#);
    redis.call("AUTH ann secret");
    assert_eq!(line(&mut monitor), r#"[0 127.0.0.1] "AUTH" "(redacted)" "(redacted)""#);
    redis.call("HELLO 2 AUTH ann secret");
    assert_eq!(line(&mut monitor), r#"[0 127.0.0.1] "HELLO" "2" "AUTH" "(redacted)" "(redacted)""#);
    redis.call("CONFIG GET hz");
    assert_eq!(redis.call("SELECT 2"), "+OK");
    assert_eq!(line(&mut monitor), r#"[2 127.0.0.1] "SELECT" "2""#);
    redis.send(&request(&[b"EVAL", b"return redis.call('INCR', KEYS[1])", b"1", b"n"]));
    assert_eq!(redis.answer(), ":1");
    assert_eq!(line(&mut monitor), r#"[2 127.0.0.1] "EVAL" "return redis.call('INCR', KEYS[1])" "1" "n""#);
    assert_eq!(line(&mut monitor), r#"[2 lua] "INCR" "n""#);
    for words in ["MULTI", "INCR n", "EXEC"] {
        redis.call(words);
    }
    let lines = [line(&mut monitor), line(&mut monitor), line(&mut monitor)];
    assert_eq!(lines, ["MULTI", "INCR\" \"n", "EXEC"].map(|words| format!("[2 127.0.0.1] \"{words}\"")));
    assert!(redis.call("CLIENT LIST").contains(" flags=O "));
    assert_eq!(monitor.call("RESET"), "+RESET");
    let client = server.client("tcp").await;
    assert_eq!(metric(&client, "thalweg_redis_monitors").await, 0);
    assert_eq!((redis.call("SET a b"), monitor.call("PING")), ("+OK".to_owned(), "+PONG".to_owned()));
}

#[tokio::test]
async fn a_script_that_is_begun_again_is_shown_once() {
    let server = server(&[]);
    let mut monitor = Redis::open(&server);
    assert_eq!(monitor.call("MONITOR"), "+OK");
    let mut redis = Redis::open(&server);
    // A straight script and one with a loop: both are begun again with the database that they select.
    for begin in ["", "for i = 1, 1 do end "] {
        let text = format!("{begin}redis.call('GET', KEYS[1]) redis.call('SELECT', 3) return redis.call('GET', 'x')");
        redis.send(&request(&[b"EVAL", text.as_bytes(), b"1", b"k"]));
        assert_eq!((redis.answer(), redis.call("PING")), ("nil".to_owned(), "+PONG".to_owned()));
        assert_eq!(line(&mut monitor), format!(r#"[0 127.0.0.1] "EVAL" "{text}" "1" "k""#));
        let lines = [line(&mut monitor), line(&mut monitor), line(&mut monitor), line(&mut monitor)];
        let wanted =
            [r#"[0 lua] "GET" "k""#, r#"[3 lua] "SELECT" "3""#, r#"[3 lua] "GET" "x""#, r#"[0 127.0.0.1] "PING""#];
        assert_eq!(lines, wanted);
    }
}

#[tokio::test]
async fn a_monitor_that_does_not_read_is_disconnected() {
    let server = server(&[]);
    let client = server.client("tcp").await;
    let mut monitor = Redis::open(&server);
    assert_eq!(monitor.call("MONITOR"), "+OK");
    let mut redis = Redis::open(&server);
    let value = "v".repeat(60_000);
    until("the end of the slow monitor", async || {
        assert_eq!(redis.call(&format!("ECHO {value}")), value);
        metric(&client, "thalweg_redis_slow_monitors_total").await == 1
    })
    .await;
    until("no monitor", async || metric(&client, "thalweg_redis_monitors").await == 0).await;
}

#[tokio::test]
async fn latency_events_are_commands_that_took_longer_than_the_threshold() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    assert_eq!((redis.call("DEBUG SLEEP 0.05"), redis.call("LATENCY LATEST")), ("+OK".to_owned(), "()".to_owned()));
    assert!(redis.call("LATENCY DOCTOR").starts_with("Latencies are not sampled"));
    assert_eq!(redis.call("CONFIG SET latency-monitor-threshold 20"), "+OK");
    assert_eq!((redis.call("SET k v"), redis.call("LATENCY LATEST")), ("+OK".to_owned(), "()".to_owned()));
    assert_eq!(redis.call("DEBUG SLEEP 0.05"), "+OK");
    let latest = redis.call("LATENCY LATEST");
    let numbers: Vec<u64> = latest
        .trim_start_matches("((command ")
        .trim_end_matches("))")
        .split(' ')
        .map(|number| number.trim_start_matches(':').parse().unwrap_or_else(|_| panic!("{latest}")))
        .collect();
    let [at_s, ms, max_ms] = numbers[..] else {
        panic!("{latest}");
    };
    assert!(ms >= 50 && max_ms == ms, "{latest}");
    assert_eq!(redis.call("LATENCY HISTORY command"), format!("((:{at_s} :{ms}))"));
    assert_eq!(redis.call("LATENCY HISTORY none"), "()");
    let graph = redis.call("LATENCY GRAPH command");
    assert!(graph.starts_with(&format!("command - high {ms} ms, low {ms} ms (all time high {ms} ms)\n---")), "{graph}");
    assert_eq!(redis.call("LATENCY GRAPH none"), "-ERR No samples available for event 'none'");
    assert!(redis.call("LATENCY DOCTOR").starts_with("command: 1 seconds"));
    assert_eq!(
        (redis.call("LATENCY RESET none"), redis.call("LATENCY RESET command")),
        (":0".to_owned(), ":1".to_owned())
    );
    assert_eq!(redis.call("LATENCY LATEST"), "()");
}
