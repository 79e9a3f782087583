//! Message transforms as seen by Pub/Sub clients: set, shown, refused, and applied on publishing and on delivery.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::push::{call, done};
use crate::support::server::{Server, metric, until, within};

const TOPIC: &str = "projects/shop/topics/orders";
const DEAD: &str = "projects/shop/topics/dead";
const BILLING: &str = "projects/shop/subscriptions/billing";
const LOST: &str = "projects/shop/subscriptions/lost";

fn udf(name: &str, code: &str) -> Value {
    json!({ "javascriptUdf": { "functionName": name, "code": code } })
}

async fn publish(server: &Server, data: &[&str]) -> (u16, Value) {
    let messages: Vec<Value> = data.iter().map(|data| json!({ "data": STANDARD.encode(data) })).collect();
    call(server.pubsub(), "POST", &format!("/v1/{TOPIC}:publish"), &json!({ "messages": messages })).await
}

/// Pulls the available messages, without waiting for more.
async fn pull(server: &Server, subscription: &str) -> Vec<Value> {
    let asked = json!({ "maxMessages": 10, "returnImmediately": true });
    let pulled = done(server.pubsub(), "POST", &format!("/v1/{subscription}:pull"), asked).await;
    pulled["receivedMessages"].as_array().cloned().unwrap_or_default()
}

fn data(messages: &[Value]) -> Vec<String> {
    let text = |message: &Value| {
        let bytes = STANDARD.decode(message["message"]["data"].as_str().unwrap_or_default()).expect("base64");
        String::from_utf8(bytes).expect("UTF-8")
    };
    messages.iter().map(text).collect()
}

fn server() -> Server {
    Server::with(&["pubsub=127.0.0.1:0"])
}

/// Google's rule: a function that returns null filters the message, and its publisher receives an id for it; one that
/// throws fails the whole request, of which nothing is published.
#[tokio::test(flavor = "multi_thread")]
async fn a_topics_functions_change_filter_and_refuse_messages() {
    let server = server();
    let rest = server.pubsub();
    let code = "function shout(message, metadata) {
        if (message.data === 'secret') return null;
        if (message.data === 'bad') throw new Error('no such thing');
        return { data: message.data.toUpperCase(), attributes: { known: Object.keys(metadata).join() } };
    }";
    let transforms = json!([udf("shout", code), udf("mark", "const mark = m => { m.data += '!'; return m; };")]);
    let made = done(rest, "PUT", &format!("/v1/{TOPIC}"), json!({ "messageTransforms": transforms })).await;
    assert_eq!(made["messageTransforms"], transforms, "they are shown as they were given");
    assert_eq!(done(rest, "GET", &format!("/v1/{TOPIC}"), Value::Null).await["messageTransforms"], transforms);
    done(rest, "PUT", &format!("/v1/{BILLING}"), json!({ "topic": TOPIC })).await;
    let (status, published) = publish(&server, &["a", "secret", "b"]).await;
    let ids = published["messageIds"].as_array().expect("ids");
    assert_eq!((status, ids.len()), (200, 3), "{published}");
    let pulled = pull(&server, BILLING).await;
    assert_eq!(data(&pulled), ["A!", "B!"]);
    assert_eq!((&pulled[0]["message"]["messageId"], &pulled[1]["message"]["messageId"]), (&ids[0], &ids[2]));
    assert_eq!(pulled[0]["message"]["attributes"], json!({ "known": "" }), "no id and no time before it is published");
    let (status, all_filtered) = publish(&server, &["secret"]).await;
    assert_eq!((status, all_filtered["messageIds"].as_array().map(Vec::len)), (200, Some(1)));

    let (status, refused) = publish(&server, &["c", "bad"]).await;
    assert_eq!((status, &refused["error"]["status"]), (400, &json!("INVALID_ARGUMENT")), "{refused}");
    let message = refused["error"]["message"].as_str().expect("a message");
    assert!(message.contains("function shout: Error: no such thing"), "{message}");
    assert_eq!(data(&pull(&server, BILLING).await), [""; 0], "none of them is published");

    let off = json!([{ "javascriptUdf": transforms[0]["javascriptUdf"], "disabled": true }]);
    let change = json!({ "topic": { "name": TOPIC, "messageTransforms": off }, "updateMask": "messageTransforms" });
    assert_eq!(done(rest, "PATCH", &format!("/v1/{TOPIC}"), change).await["messageTransforms"], off);
    assert_eq!(publish(&server, &["bad"]).await.0, 200);
    assert_eq!(data(&pull(&server, BILLING).await), ["bad"], "a disabled transform is not run");
    let client = server.client("tcp").await;
    assert_eq!(metric(&client, r#"thalweg_pubsub_transforms_total{result="filtered"}"#).await, 2);
    assert_eq!(metric(&client, r#"thalweg_pubsub_transforms_total{result="failed"}"#).await, 1);
}

/// The results of functions are gathered up to the size of a request or of a response; the other messages of a
/// subscription return to it as if they had not been delivered.
#[tokio::test(flavor = "multi_thread")]
async fn functions_that_return_far_more_than_they_received_are_bounded() {
    let server = server();
    let rest = server.pubsub();
    let grow = json!([udf("grow", "function grow(m) { return { data: m.data.repeat(4000000) }; }")]);
    done(rest, "PUT", &format!("/v1/{TOPIC}"), json!({ "messageTransforms": grow })).await;
    let (status, refused) = publish(&server, &["x"; 1000]).await;
    let message = "the output of message_transforms is not valid: The value for request_size is too large. You passed \
                   12000000 in the request, but the maximum value is 10000000.";
    assert_eq!((status, refused["error"]["message"].as_str()), (400, Some(message)));

    done(rest, "PUT", &format!("/v1/{DEAD}"), json!({})).await;
    let dead = json!({ "deadLetterTopic": DEAD, "maxDeliveryAttempts": 5 });
    let billing = json!({ "topic": DEAD, "messageTransforms": grow, "deadLetterPolicy": dead });
    done(rest, "PUT", &format!("/v1/{BILLING}"), billing).await;
    let messages: Vec<Value> = ["a", "b", "c", "d"].map(|data| json!({ "data": STANDARD.encode(data) })).to_vec();
    done(rest, "POST", &format!("/v1/{DEAD}:publish"), json!({ "messages": messages })).await;
    let first = pull(&server, BILLING).await;
    let second = pull(&server, BILLING).await;
    let begins = |messages: &[Value]| data(messages).iter().map(|data| data[..1].to_owned()).collect::<String>();
    assert_eq!((begins(&first), begins(&second)), ("abc".to_owned(), "d".to_owned()));
    assert_eq!(second[0]["deliveryAttempt"], 1, "the first pull did not deliver it: {}", second[0]["ackId"]);
}

/// Google's rule: a subscription's function also receives the id and the time; null acknowledges the message, and a
/// failure returns it to the queue until it becomes a dead letter.
#[tokio::test(flavor = "multi_thread")]
async fn a_subscriptions_functions_change_filter_and_dead_letter() {
    let server = server();
    let rest = server.pubsub();
    for topic in [TOPIC, DEAD] {
        done(rest, "PUT", &format!("/v1/{topic}"), json!({})).await;
    }
    let code = "function f(message, metadata) {
        if (message.data === 'drop') return null;
        if (message.data === 'bad') throw new Error('no');
        return { data: message.data + ' ' + metadata.message_id + ' ' + metadata.publish_time };
    }";
    let wanted = json!({
        "topic": TOPIC,
        "messageTransforms": [udf("f", code)],
        "deadLetterPolicy": { "deadLetterTopic": DEAD, "maxDeliveryAttempts": 5 },
        "retryPolicy": { "minimumBackoff": "0.001s", "maximumBackoff": "0.001s" },
    });
    let made = done(rest, "PUT", &format!("/v1/{BILLING}"), wanted).await;
    assert_eq!(made["messageTransforms"], json!([udf("f", code)]));
    done(rest, "PUT", &format!("/v1/{LOST}"), json!({ "topic": DEAD })).await;
    let (_, published) = publish(&server, &["a", "drop", "bad"]).await;
    let pulled = pull(&server, BILLING).await;
    assert_eq!(pulled.len(), 1, "one is filtered, one fails: {pulled:?}");
    let message = &pulled[0]["message"];
    let time = message["publishTime"].as_str().expect("a time");
    let expected = format!("a {} {}Z", published["messageIds"][0].as_str().expect("an id"), &time[..19]);
    assert_eq!((data(&pulled), message.get("attributes")), (vec![expected], None));
    until("the dead letter", async || {
        assert_eq!(pull(&server, BILLING).await.len(), 0, "what is leased, filtered or wrong is not delivered");
        let lost = pull(&server, LOST).await;
        assert!(lost.is_empty() || data(&lost) == ["bad"], "as it was published: {lost:?}");
        !lost.is_empty()
    })
    .await;
}

/// A stream picks up changes, and an ordered subscription never delivers a message that follows a failed one.
#[tokio::test(flavor = "multi_thread")]
async fn order_is_kept_behind_a_message_that_fails() {
    let server = server();
    let rest = server.pubsub();
    done(rest, "PUT", &format!("/v1/{TOPIC}"), json!({})).await;
    let fails = udf("f", "function f(m) { if (m.data === 'first') throw new Error('no'); return m; }");
    let wanted = json!({
        "topic": TOPIC,
        "enableMessageOrdering": true,
        "messageTransforms": [fails],
        "retryPolicy": { "minimumBackoff": "0.001s", "maximumBackoff": "0.001s" },
    });
    done(rest, "PUT", &format!("/v1/{BILLING}"), wanted).await;
    let message = |data: &str, key: &str| json!({ "data": STANDARD.encode(data), "orderingKey": key });
    let messages = json!({ "messages": [message("first", "k"), message("second", "k"), message("other", "l")] });
    done(rest, "POST", &format!("/v1/{TOPIC}:publish"), messages).await;
    let mut seen = Vec::new();
    within("the other key", async {
        while seen.is_empty() {
            seen.extend(data(&pull(&server, BILLING).await));
        }
    })
    .await;
    assert_eq!(seen, ["other"]);
    let change = json!({ "subscription": { "name": BILLING }, "updateMask": "messageTransforms" });
    done(rest, "PATCH", &format!("/v1/{BILLING}"), change).await;
    within("both", async {
        while seen.len() < 3 {
            let pulled = pull(&server, BILLING).await;
            let ids: Vec<&Value> = pulled.iter().map(|message| &message["ackId"]).collect();
            if !ids.is_empty() {
                done(rest, "POST", &format!("/v1/{BILLING}:acknowledge"), json!({ "ackIds": ids })).await;
            }
            seen.extend(data(&pulled));
        }
    })
    .await;
    assert_eq!(seen, ["other", "first", "second"]);
}

/// Endless functions block only their own call.
#[tokio::test(flavor = "multi_thread")]
async fn a_function_that_does_not_end_stops_nothing_else() {
    let server = server();
    let rest = server.pubsub();
    let code = "function f(m) { if (m.data === 'loop') for (;;); return m; }";
    done(rest, "PUT", &format!("/v1/{TOPIC}"), json!({ "messageTransforms": [udf("f", code)] })).await;
    done(rest, "PUT", &format!("/v1/{BILLING}"), json!({ "topic": TOPIC })).await;
    let loops: Vec<_> = (0..8).map(|_| publish(&server, &["loop"])).collect();
    let fast = async {
        for _ in 0..20 {
            let asked = tokio::time::timeout(
                Duration::from_millis(400),
                call(rest, "GET", "/v1/projects/shop/topics", &Value::Null),
            );
            assert_eq!(asked.await.expect("other calls are answered at once").0, 200);
        }
    };
    let (ended, ()) = tokio::join!(futures_util::future::join_all(loops), fast);
    for (status, refused) in ended {
        let message = refused["error"]["message"].as_str().expect("a message");
        assert!(status == 400 && message.contains("longer than 500 ms"), "{refused}");
    }
    assert_eq!(publish(&server, &["a"]).await.0, 200);
    assert_eq!(data(&pull(&server, BILLING).await), ["a"]);
}

/// Five functions of 20 KiB are the maximum of Google's service. They survive a restart, and a detached subscription
/// shows them.
#[tokio::test(flavor = "multi_thread")]
async fn transforms_as_large_as_they_may_be_are_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let data_dir = format!("data={}", folder.path().join("data").display());
    let mut server = Server::with(&["pubsub=127.0.0.1:0", &data_dir]);
    let large = |i: usize| {
        let code = format!("function f{i}(m) {{ m.data += '{i}'; return m; }} //");
        udf(&format!("f{i}"), &format!("{code}{}", "\n".repeat((20 << 10) - code.len())))
    };
    let transforms: Vec<Value> = (0..5).map(large).collect();
    let wanted = json!({ "messageTransforms": transforms });
    done(server.pubsub(), "PUT", &format!("/v1/{TOPIC}"), wanted).await;
    let wanted = json!({ "topic": TOPIC, "messageTransforms": transforms });
    let made = done(server.pubsub(), "PUT", &format!("/v1/{BILLING}"), wanted).await;
    assert_eq!(made["messageTransforms"], json!(transforms));
    publish(&server, &["a"]).await;
    server.crash_and_restart();
    assert_eq!(data(&pull(&server, BILLING).await), ["a0123401234"]);
    let rest = server.pubsub();
    done(rest, "POST", &format!("/v1/{BILLING}:detach"), json!({})).await;
    let shown = done(rest, "GET", &format!("/v1/{BILLING}"), Value::Null).await;
    assert_eq!(shown["messageTransforms"], json!(transforms));
    done(rest, "DELETE", &format!("/v1/{BILLING}"), Value::Null).await;
    done(rest, "PUT", &format!("/v1/{BILLING}"), json!({ "topic": TOPIC })).await;
    publish(&server, &["b"]).await;
    assert_eq!(data(&pull(&server, BILLING).await), ["b01234"], "another subscription of that name has no transforms");
}

#[tokio::test(flavor = "multi_thread")]
async fn transforms_that_cannot_run_are_refused_when_they_are_set() {
    let server = server();
    let rest = server.pubsub();
    let good = udf("f", "function f(m) { return m; }");
    let long = "x".repeat(21 << 10);
    for (transforms, expected) in [
        (json!([udf("f", "function f(m) {")]), "message_transforms[0]: the code cannot be run: SyntaxError"),
        (
            json!([good, udf("g", "function f(m) { return m; }")]),
            "message_transforms[1]: the code does not define the function g",
        ),
        (json!([udf("", "function f(m) { return m; }")]), "needs both code and function_name"),
        (json!([udf("f", &format!("function f(m) {{ return m; }} // {long}"))]), "javascript_udf.code"),
        (json!([{ "disabled": true }]), "the transform is missing"),
        (json!([good, good]), "message_transforms[1]: a function f exists already"),
        (json!([good, good, good, good, good, good]), "the maximum value is 5"),
    ] {
        let (status, refused) =
            call(rest, "PUT", &format!("/v1/{TOPIC}"), &json!({ "messageTransforms": transforms })).await;
        let message = refused["error"]["message"].as_str().expect("a message");
        assert!(status == 400 && message.contains(expected), "{transforms}: {refused}");
    }
    let inference = json!([{ "aiInference": { "endpoint": "projects/p/locations/l/endpoints/e" } }]);
    let (status, refused) =
        call(rest, "PUT", &format!("/v1/{TOPIC}"), &json!({ "messageTransforms": inference })).await;
    assert_eq!((status, &refused["error"]["status"]), (501, &json!("UNIMPLEMENTED")), "{refused}");
    done(rest, "PUT", &format!("/v1/{TOPIC}"), json!({ "messageTransforms": [good] })).await;
    let bad = json!({ "topic": TOPIC, "messageTransforms": [udf("f", "nonsense(")] });
    assert_eq!(call(rest, "PUT", &format!("/v1/{BILLING}"), &bad).await.0, 400);
    done(rest, "PUT", &format!("/v1/{BILLING}"), json!({ "topic": TOPIC })).await;
    let given = json!({ "name": BILLING, "messageTransforms": [udf("f", "nonsense(")] });
    let change = json!({ "subscription": given, "updateMask": "messageTransforms" });
    assert_eq!(call(rest, "PATCH", &format!("/v1/{BILLING}"), &change).await.0, 400);
}
