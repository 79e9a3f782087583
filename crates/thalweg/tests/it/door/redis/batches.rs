//! Scripts that a client sends together, without reading the replies in between.

use std::time::Duration;

use super::commands::{Redis, request, server};
use super::scripts::run;
use crate::support::server::metric;

/// Returns a script that runs on a thread for scripts.
fn looped(body: &str) -> String {
    format!("for i = 1, 1 do {body} end")
}

fn eval(script: &str, key: &str) -> Vec<u8> {
    request(&[b"EVAL", script.as_bytes(), b"1", key.as_bytes()])
}

#[tokio::test]
async fn scripts_and_commands_of_a_pipeline_are_steps_in_its_order() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    let (increase, straight) = (looped("return redis.call('incr', KEYS[1])"), "return redis.call('incr', KEYS[1])");
    let mut sent = Vec::new();
    let mut expected = Vec::new();
    let mut value = 0;
    // More than fit in one batch, of one read and of several.
    for at in 0..1_000 {
        value += 1;
        expected.push(format!(":{value}"));
        match at % 97 {
            3 => sent.extend(request(&[b"INCR", b"n"])),
            7 => sent.extend(eval(straight, "n")),
            11 => {
                sent.extend(eval("while", "n"));
                value -= 1;
                expected.pop();
                expected.push("-ERR Error compiling script (new function):".to_owned());
            }
            13 => {
                sent.extend([request(&[b"MULTI"]), eval(&increase, "n"), request(&[b"EXEC"])].concat());
                expected.pop();
                expected.extend(["+OK".to_owned(), "+QUEUED".to_owned(), format!("(:{value})")]);
            }
            _ => sent.extend(eval(&increase, "n")),
        }
    }
    redis.send(&sent);
    for (at, expected) in expected.iter().enumerate() {
        let answer = redis.answer();
        assert!(answer.starts_with(expected.as_str()), "{at}: {answer} is not {expected}");
    }
    assert_eq!(redis.call("GET n"), value.to_string());
    let client = server.client("tcp").await;
    let queued = metric(&client, "thalweg_redis_scripts_queued_total").await;
    assert!(queued >= 900, "{queued} scripts ran on a thread for scripts");
    assert_eq!(metric(&client, "thalweg_redis_scripts_waiting").await, 0);
}

#[tokio::test]
async fn a_reply_does_not_wait_for_a_later_script_that_takes_long() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    let mut other = Redis::open(&server);
    assert_eq!(other.call("CONFIG SET slowlog-log-slower-than 100000"), "+OK");
    let first = looped("return redis.call('set', KEYS[1], 'set')");
    let last = looped("return 'last'");
    redis.send(&[eval(&first, "a"), eval("while true do end", "b"), eval(&last, "c")].concat());
    assert_eq!(redis.answer(), "+OK", "the second script runs");
    assert_eq!(redis.answer_within(Duration::from_millis(300)), None);
    assert_eq!(other.call("SCRIPT KILL"), "+OK");
    assert!(redis.answer().contains("Script killed by user with SCRIPT KILL..."));
    assert_eq!(redis.answer(), "last", "a script is killed, and not its batch");
    // The time of a script is its own: those before it do not make the last one slow.
    let log = other.call("SLOWLOG GET");
    assert!(log.contains("while true do end") && !log.contains("return 'last'"), "{log}");
}

#[tokio::test]
async fn a_client_that_sends_no_more_has_its_scripts_run() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    let increase = looped("return redis.call('incr', KEYS[1])");
    redis.send(&eval(&increase, "n").repeat(20));
    redis.end_sending();
    for number in 1..=20 {
        assert_eq!(redis.answer(), format!(":{number}"));
    }
    assert_eq!(redis.try_answer(), None, "then it is disconnected");
}

#[tokio::test]
async fn the_lines_of_scripts_that_are_sent_together_do_not_mix() {
    let server = server(&[]);
    let mut redis = Redis::open(&server);
    let mut monitor = Redis::open(&server);
    assert_eq!(monitor.call("MONITOR"), "+OK");
    let script = looped("redis.call('set', KEYS[1], 'x')");
    redis.send(&[eval(&script, "a"), eval(&script, "b")].concat());
    assert_eq!([redis.answer(), redis.answer()], ["nil", "nil"]);
    let lines: Vec<String> = (0..4).map(|_| monitor.answer()).collect();
    let shows = |line: usize, word: &str| lines[line].contains(&format!("\"{word}\""));
    assert!(shows(0, "EVAL") && shows(1, "set") && shows(1, "a"), "{lines:?}");
    assert!(shows(2, "EVAL") && shows(3, "set") && shows(3, "b"), "{lines:?}");
    assert_eq!(run(&mut redis, &["GET", "b"]), "x");
}
