//! Push subscriptions and schemas of Pub/Sub, over REST.

use std::net::SocketAddr;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::door::access::exchange;
use crate::support::access::acls;
use crate::support::command;
use crate::support::server::{Server, metric, until, within};

/// Calls the broker and returns the status and the JSON of its response.
pub async fn call(address: SocketAddr, method: &str, path: &str, body: &Value) -> (u16, Value) {
    try_call(address, method, path, body).await.expect("an answer")
}

/// Calls the broker as [`call`] does; returns `None` if the broker stopped in the meantime.
pub async fn try_call(address: SocketAddr, method: &str, path: &str, body: &Value) -> Option<(u16, Value)> {
    let mut socket = within("a connection", TcpStream::connect(address)).await.ok()?;
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    socket.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    within("an answer", socket.read_to_string(&mut answer)).await.ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let body = if head.contains("transfer-encoding: chunked") { dechunked(body) } else { body.to_owned() };
    Some((status, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {answer}"))))
}

/// Removes the chunk lengths from a body.
fn dechunked(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).expect("a length");
        whole.push_str(&rest[..length]);
        body = rest[length..].trim_start_matches("\r\n");
    }
    whole
}

pub async fn done(address: SocketAddr, method: &str, path: &str, body: Value) -> Value {
    let (status, answer) = call(address, method, path, &body).await;
    assert_eq!(status, 200, "{method} {path}: {answer}");
    answer
}

/// Reads one complete request and responds to it.
async fn receive(listener: &TcpListener, status: &str) -> (String, Value) {
    let (mut socket, _) = within("a push", listener.accept()).await.expect("accepted");
    let mut request = Vec::new();
    loop {
        within("the request", socket.read_buf(&mut request)).await.expect("read");
        let text = String::from_utf8_lossy(&request).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
        if body.len() == length.parse::<usize>().expect("a number") {
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            socket.write_all(answer.as_bytes()).await.expect("answered");
            return (head.to_owned(), serde_json::from_str(body).expect("JSON"));
        }
    }
}

fn publish(data: &str) -> Value {
    json!({ "messages": [{ "data": STANDARD.encode(data), "attributes": { "color": "red" } }] })
}

fn key_id(head: &str) -> Value {
    let token = head.lines().find_map(|line| line.strip_prefix("authorization: Bearer ")).expect("a token");
    let parts: Vec<&str> = token.split('.').collect();
    let part = |at: usize| -> Value {
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(parts[at]).expect("base64")).expect("JSON")
    };
    let claims = part(1);
    assert_eq!((&claims["iss"], &claims["email"]), (&json!("thalweg"), &json!("me@p.example")));
    assert_eq!(claims["aud"], "shop");
    part(0)["kid"].clone()
}

#[tokio::test]
async fn messages_are_pushed_until_they_are_taken_also_after_a_crash() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let url = format!("http://{}/push?a=b", listener.local_addr().expect("bound"));
    let data = tempfile::tempdir().expect("a folder");
    let data = format!("data={}", data.path().display());
    let mut server = Server::with(&["pubsub=127.0.0.1:0", "pubsub_push_allow=127.0.0.0/8", &data]);
    let address = server.pubsub();
    done(address, "PUT", "/v1/projects/thalweg/topics/orders", json!({})).await;
    let subscription = json!({
        "topic": "projects/thalweg/topics/orders",
        "pushConfig": {
            "pushEndpoint": url,
            "oidcToken": { "serviceAccountEmail": "me@p.example", "audience": "shop" },
        },
    });
    done(address, "PUT", "/v1/projects/thalweg/subscriptions/push", subscription).await;
    done(address, "POST", "/v1/projects/thalweg/topics/orders:publish", publish("one")).await;

    let (head, body) = receive(&listener, "503 Service Unavailable").await;
    assert!(head.starts_with("POST /push?a=b HTTP/1.1\r\n"), "{head}");
    assert_eq!(body["subscription"], "projects/thalweg/subscriptions/push");
    assert_eq!(body["message"]["data"], STANDARD.encode("one"));
    assert_eq!(body["message"]["attributes"], json!({ "color": "red" }));
    let (again, second) = receive(&listener, "204 No Content").await;
    assert_eq!(second["message"]["messageId"], body["message"]["messageId"]);
    let keys = done(address, "GET", "/oauth2/v3/certs", Value::Null).await;
    assert_eq!((&key_id(&head), &key_id(&again)), (&keys["keys"][0]["kid"], &keys["keys"][0]["kid"]));
    let client = server.client("tcp").await;
    until("both answers are counted", async || {
        let text = within("the metrics", client.stats()).await.expect("metrics");
        text.contains("thalweg_pubsub_pushes_total{result=\"acked\"} 1")
            && text.contains("thalweg_pubsub_pushes_total{result=\"refused\"} 1")
    })
    .await;
    assert_eq!(metric(&client, "thalweg_pubsub_push_subscriptions").await, 1);

    server.crash_and_restart();
    let address = server.pubsub();
    done(address, "POST", "/v1/projects/thalweg/topics/orders:publish", publish("two")).await;
    let (head, body) = receive(&listener, "200 OK").await;
    assert_eq!(body["message"]["data"], STANDARD.encode("two"), "what was taken does not come again");
    assert_eq!(key_id(&head), keys["keys"][0]["kid"], "the key is the same");

    // Without an endpoint messages are pulled.
    let none = json!({ "pushConfig": {} });
    done(address, "POST", "/v1/projects/thalweg/subscriptions/push:modifyPushConfig", none).await;
    let client = server.client("tcp").await;
    until("nothing is pushed any more", async || metric(&client, "thalweg_pubsub_push_subscriptions").await == 0).await;
    done(address, "POST", "/v1/projects/thalweg/topics/orders:publish", publish("three")).await;
    let pull = "/v1/projects/thalweg/subscriptions/push:pull";
    let pulled = done(address, "POST", pull, json!({ "maxMessages": 10 })).await;
    assert_eq!(pulled["receivedMessages"][0]["message"]["data"], STANDARD.encode("three"), "{pulled}");
}

#[tokio::test]
async fn an_address_that_the_operator_does_not_allow_gets_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let port = listener.local_addr().expect("bound").port();
    let data = tempfile::tempdir().expect("a folder");
    let data = format!("data={}", data.path().display());
    let push = json!({ "pushEndpoint": format!("http://localhost:{port}/") });
    let subscription = json!({ "topic": "projects/thalweg/topics/orders", "pushConfig": push });
    {
        let server = Server::with(&["pubsub=127.0.0.1:0", "pubsub_push_allow=127.0.0.0/8", &data]);
        let address = server.pubsub();
        done(address, "PUT", "/v1/projects/thalweg/topics/orders", json!({})).await;
        done(address, "PUT", "/v1/projects/thalweg/subscriptions/push", subscription.clone()).await;
    }
    // It was allowed when the subscription was created, and no longer is.
    let server = Server::with(&["pubsub=127.0.0.1:0", "pubsub_push_allow=*.example.com,10.0.0.0/8", &data]);
    let address = server.pubsub();
    let (status, refused) = call(address, "PUT", "/v1/projects/thalweg/subscriptions/more", &subscription).await;
    assert_eq!(status, 400, "{refused}");
    assert!(refused["error"]["message"].as_str().is_some_and(|why| why.contains("pubsub_push_allow")), "{refused}");
    done(address, "POST", "/v1/projects/thalweg/topics/orders:publish", publish("one")).await;
    let client = server.client("tcp").await;
    until("it is refused", async || {
        let text = within("the metrics", client.stats()).await.expect("metrics");
        text.lines().any(|line| {
            line.strip_prefix("thalweg_pubsub_pushes_total{result=\"denied\"} ").is_some_and(|count| count != "0")
        })
    })
    .await;
    assert_eq!(metric(&client, "thalweg_pubsub_push_connections_total").await, 0);
    assert!(server.log().contains("is not in pubsub_push_allow"));
}

#[tokio::test]
async fn messages_follow_the_schema_of_their_topic_also_after_a_crash() {
    let data = tempfile::tempdir().expect("a folder");
    let data = format!("data={}", data.path().display());
    let mut server = Server::with(&["pubsub=127.0.0.1:0", &data]);
    let address = server.pubsub();
    let schemas = "/v1/projects/thalweg/schemas";
    let name = "projects/thalweg/schemas/order";
    let definition = |field: &str| {
        format!(r#"{{"type": "record", "name": "R", "fields": [{{"name": "{field}", "type": "int", "default": 0}}]}}"#)
    };
    let schema = |field: &str| json!({ "type": "AVRO", "definition": definition(field) });
    assert_eq!(done(address, "GET", schemas, Value::Null).await, json!({}));
    let first = done(address, "POST", &format!("{schemas}?schemaId=order"), schema("a")).await;
    assert_eq!((&first["name"], &first["type"]), (&json!(name), &json!("AVRO")));
    let (status, broken) =
        call(address, "POST", &format!("{schemas}?schemaId=other"), &json!({ "type": "AVRO", "definition": "{" }))
            .await;
    assert_eq!((status, &broken["error"]["status"]), (400, &json!("INVALID_ARGUMENT")), "{broken}");

    let settings = json!({ "schema": name, "encoding": "JSON" });
    done(address, "PUT", "/v1/projects/thalweg/topics/orders", json!({ "schemaSettings": settings })).await;
    let topic = json!({ "topic": "projects/thalweg/topics/orders" });
    done(address, "PUT", "/v1/projects/thalweg/subscriptions/all", topic).await;
    let to = "/v1/projects/thalweg/topics/orders:publish";
    let (status, refused) = call(address, "POST", to, &publish(r#"{"a": "x"}"#)).await;
    let error = &refused["error"];
    assert_eq!((status, &error["status"]), (400, &json!("INVALID_ARGUMENT")), "{refused}");
    assert_eq!(error["message"], "Invalid data in message: Message failed schema validation.");
    assert_eq!(error["details"][0]["reason"], "INVALID_JSON_AVRO_MESSAGE", "{refused}");
    done(address, "POST", to, publish(r#"{"a": 1}"#)).await;

    let commit = json!({ "name": name, "schema": schema("b") });
    let second = done(address, "POST", &format!("/v1/{name}:commit"), commit).await;
    server.crash_and_restart();
    let address = server.pubsub();
    done(address, "POST", to, publish(r#"{"b": 1}"#)).await;
    let pulled =
        done(address, "POST", "/v1/projects/thalweg/subscriptions/all:pull", json!({ "maxMessages": 10 })).await;
    let messages = pulled["receivedMessages"].as_array().expect("messages");
    let revision = |at: usize| messages[at]["message"]["attributes"]["googclient_schemarevisionid"].clone();
    assert_eq!((revision(0), revision(1)), (first["revisionId"].clone(), second["revisionId"].clone()), "{pulled}");
    assert_eq!(messages[0]["message"]["attributes"]["googclient_schemaencoding"], "JSON");

    let listed = done(address, "GET", &format!("/v1/{name}:listRevisions?view=FULL"), Value::Null).await;
    assert_eq!(listed["schemas"], json!([second, first]));
    let back = json!({ "revisionId": first["revisionId"] });
    let third = done(address, "POST", &format!("/v1/{name}:rollback"), back).await;
    assert_eq!(third["definition"], first["definition"]);
    let id = second["revisionId"].as_str().expect("an id");
    done(address, "DELETE", &format!("/v1/{name}@{id}:deleteRevision"), Value::Null).await;
    let (status, _) = call(address, "POST", to, &publish(r#"{"b": 1}"#)).await;
    assert_eq!(status, 400, "no revision takes it any more");
    let message = STANDARD.encode(r#"{"a": 1}"#);
    let validate = json!({ "name": name, "message": message, "encoding": "JSON" });
    assert_eq!(done(address, "POST", &format!("{schemas}:validateMessage"), validate).await, json!({}));
    done(address, "DELETE", &format!("/v1/{name}"), Value::Null).await;
    let (status, gone) = call(address, "POST", to, &publish(r#"{"a": 1}"#)).await;
    assert_eq!((status, &gone["error"]["message"]), (404, &json!("Schema associated with topic deleted.")), "{gone}");
}

/// A push has the permissions of the user who set its endpoint, and not only at the time of the call.
#[tokio::test]
async fn pushes_are_paused_while_their_owner_may_not_read() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let url = format!("http://{}/", listener.local_addr().expect("bound"));
    let server = Server::with(&[
        "pubsub=127.0.0.1:0",
        "pubsub_project=shop",
        "pubsub_push_allow=127.0.0.0/8",
        "auth=required",
        "authorization=true",
        "users=bob:secret",
    ]);
    let admin = server.client("tcp").await;
    admin.create_topic("orders", client::TopicSettings::default()).await.expect("created");
    let read = || acls("User:bob", "read queue billing", true);
    for entry in ["create,alter,describe queue billing", "read,write topic orders"] {
        admin.create_acls(acls("User:bob", entry, true)).await.expect("added");
    }
    admin.create_acls(read()).await.expect("added");
    let login = format!("Basic {}", STANDARD.encode("bob:secret"));
    let bob = |method: &str, path: &str, body: Value| {
        let (status, text) = exchange(server.pubsub(), method, path, Some(&login), &body.to_string());
        assert_eq!(status, 200, "{text}");
    };
    let billing = "/v1/projects/shop/subscriptions/billing";
    let topic = "projects/shop/topics/orders";
    bob("PUT", billing, json!({ "topic": topic, "pushConfig": { "pushEndpoint": url } }));
    let published = format!("/v1/{topic}:publish");
    bob("POST", &published, publish("one"));
    assert_eq!(receive(&listener, "200 OK").await.1["message"]["data"], STANDARD.encode("one"));
    let deleted = command::on(
        &server,
        ["acl", "delete", "--principal", "User:bob", "--kind", "queue", "--operation"].into_iter().chain(["read"]),
    );
    deleted.ok();
    bob("POST", &published, publish("two"));
    until("it is paused", async || metric(&admin, "thalweg_pubsub_push_paused").await == 1).await;
    assert!(tokio::time::timeout(std::time::Duration::from_millis(300), listener.accept()).await.is_err());
    until("the log says so", async || server.log().contains("paused a push subscription")).await;
    admin.create_acls(read()).await.expect("added");
    let (_, body) = receive(&listener, "200 OK").await;
    assert_eq!(body["message"]["data"], STANDARD.encode("two"), "it was kept");
    until("it is resumed", async || metric(&admin, "thalweg_pubsub_push_paused").await == 0).await;
}
