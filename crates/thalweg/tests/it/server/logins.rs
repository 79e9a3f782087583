//! Logins at the doors that require them: the order of the responses, and the errors of refused logins.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use kafka_protocol::messages::MetadataRequest;

use crate::door::access::exchange;
use crate::door::kafka::raw::Raw;
use crate::door::kafka::security::log_in;
use crate::door::redis::commands::{Redis, server};
use crate::support::server::{metric, size, until};

/// Returns a number of logins that exceeds the queue for one address.
fn guesses() -> usize {
    size("HARDENING_GUESSES", 400)
}

/// Opens connections that each try another password, whose responses are not read.
fn guess(server: &crate::support::server::Server, round: usize) -> Vec<Redis> {
    let guesser = |number: usize| {
        let mut redis = Redis::open(server);
        redis.ask(&format!("AUTH admin guess-{round}-{number}"));
        redis
    };
    (0..guesses()).map(guesser).collect()
}

#[tokio::test]
async fn right_passwords_are_answered_while_others_guess() {
    let server = server(&["auth=required", "users=admin:right,other:word"]);
    let log_in = |user: &str, password: &str| {
        let mut redis = Redis::open(&server);
        let begin = Instant::now();
        assert_eq!(redis.call(&format!("AUTH {user} {password}")), "+OK");
        begin.elapsed()
    };
    let mut guessers = guess(&server, 0);
    // A user that the broker has not seen yet waits for the logins before it, which are few.
    let first = log_in("admin", "right");
    assert!(first < Duration::from_secs(5), "{first:?}");
    guessers.extend(guess(&server, 1));
    // From then on the user is known, whatever the number of waiting logins.
    let times = ["admin"; 5].map(|user| log_in(user, "right"));
    assert!(times.iter().all(|time| *time < Duration::from_secs(1)), "{times:?}");
    let client = server.client("tcp").await;
    assert!(metric(&client, "thalweg_logins_pushed_out_total").await > 0);
    drop(guessers);
    until("no login that waits", async || metric(&client, "thalweg_logins_waiting").await == 0).await;
    assert!(server.log().matches("refused a login").count() < 50, "they are not logged one by one for ever");
}

/// Wrong passwords for one name are answered with an increasing delay, and are not cut off by the login timeout.
#[tokio::test]
async fn wrong_passwords_are_answered_after_a_pause() {
    let server = server(&["auth=required", "users=admin:right", "hello_timeout_ms=500"]);
    let wrong = || {
        let mut redis = Redis::open(&server);
        let begin = Instant::now();
        let answer = redis.call("AUTH admin wrong");
        assert!(answer.starts_with("-WRONGPASS"), "{answer}");
        begin.elapsed()
    };
    for _ in 0..3 {
        wrong();
    }
    let times: Vec<Duration> = (0..4).map(|_| wrong()).collect();
    for (time, pause_ms) in times.iter().zip([100, 200, 400, 800]) {
        assert!(*time >= Duration::from_millis(pause_ms), "{times:?}");
    }
    let mut redis = Redis::open(&server);
    let begin = Instant::now();
    assert_eq!(redis.call("AUTH admin right"), "+OK");
    assert!(begin.elapsed() < Duration::from_secs(1), "who is right does not pay for who was wrong");
}

/// A client that does not log in has no refused login, and is noticed nevertheless.
#[tokio::test]
async fn requests_without_a_login_are_counted_and_some_are_logged() {
    let server = server(&["auth=required", "http=127.0.0.1:0", "pubsub=127.0.0.1:0"]);
    let mut redis = Redis::open(&server);
    for _ in 0..3 {
        assert!(redis.call("GET k").starts_with("-NOAUTH"));
    }
    assert!(redis.call("HELLO 3").starts_with("-NOAUTH"), "a greeting is no request");
    for (door, path) in [("http", "/v1/topics"), ("pubsub", "/v1/projects/p/topics")] {
        assert_eq!(exchange(server.door(door), "GET", path, None, "").0, 401);
    }
    let address = client::Address::parse(&server.url("tcp")).expect("an address");
    let native = client::Client::connect_with(address, client::ClientSettings::default()).await.expect("connected");
    native.list_topics().await.expect_err("it has not logged in");
    let mut kafka = Raw::connect(&server).await;
    assert!(kafka.try_call(4, &MetadataRequest::default()).await.is_none(), "the connection is closed");
    let admin = server.client("tcp").await;
    for (door, count) in [("redis", 3), ("http", 1), ("pubsub", 1), ("native", 1), ("kafka", 1), ("sqs", 0)] {
        let name = format!("thalweg_logins_missing_total{{door=\"{door}\"}}");
        assert_eq!(metric(&admin, &name).await, count, "{door}");
    }
    assert_eq!(metric(&admin, "thalweg_authentication_errors_total").await, 0);
    let log = server.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("refused a request without a login")).collect();
    assert!((1..7).contains(&lines.len()), "{log}");
    assert!(lines[0].contains("door=Redis") && lines[0].contains("address=127.0.0.1"), "{}", lines[0]);
}

#[tokio::test]
async fn refused_logins_are_logged_with_their_address_at_every_door_and_counted() {
    let server =
        server(&["auth=required", "users=admin:right", "sqs_auth=verify", "sqs_credentials=AKIDEXAMPLE:secret"]);
    assert!(Redis::open(&server).call("AUTH admin wrong").starts_with("-WRONGPASS"));
    assert_eq!(log_in(&server, "admin", "wrong").await.err(), Some(58));
    let mut sqs = TcpStream::connect(server.sqs).expect("connected");
    let body = r#"{"QueueName":"q"}"#;
    let head = "host: localhost\r\nconnection: close\r\nx-amz-target: AmazonSQS.CreateQueue\r\n\
                x-amz-date: 20260101T000000Z\r\n\
                content-type: application/x-amz-json-1.0\r\nauthorization: AWS4-HMAC-SHA256 \
                Credential=AKIDEXAMPLE/20260101/us-east-1/sqs/aws4_request, \
                SignedHeaders=host;x-amz-date, Signature=00";
    write!(sqs, "POST / HTTP/1.1\r\n{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).expect("sent");
    let mut answer = String::new();
    sqs.read_to_string(&mut answer).expect("answered");
    assert!(answer.starts_with("HTTP/1.1 403") || answer.starts_with("HTTP/1.1 400"), "{answer}");
    let log = server.log();
    for (door, user) in [("Redis", "admin"), ("Kafka", "admin"), ("SQS", "AKIDEXAMPLE")] {
        let line = log.lines().find(|line| line.contains("refused a login") && line.contains(&format!("door={door}")));
        let line = line.unwrap_or_else(|| panic!("no line of {door} in\n{log}"));
        assert!(line.contains("INFO") && line.contains("address=127.0.0.1") && line.contains(user), "{line}");
    }
    let client = server.client("tcp").await;
    for door in ["redis", "kafka", "sqs"] {
        assert_eq!(metric(&client, &format!("thalweg_logins_refused_total{{door=\"{door}\"}}")).await, 1);
    }
    assert_eq!(metric(&client, "thalweg_authentication_errors_total").await, 3);
}
