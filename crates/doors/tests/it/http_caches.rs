//! Caches and consumer groups over HTTP.

use serde_json::{Value, json};

use crate::http_client::*;

const K: &str = "/v1/caches/c/entries/k";

#[tokio::test]
async fn an_entry_is_put_got_changed_on_condition_and_deleted() {
    let server = start().await;
    assert_eq!(server.get(K).await.status, 404, "reading creates no cache");
    assert_eq!(server.get("/v1/caches").await.json()["caches"], json!([]));
    let put = server.send("PUT", K, &[], "one").await;
    assert_eq!((put.status, &put.json()["previous"]), (201, &Value::Null));
    let got = server.get(K).await;
    assert_eq!((got.status, got.text(), got.header("etag")), (200, "one", put.header("etag")));
    let first = put.json()["version"].as_u64().expect("a number");
    assert!(first < 1 << 53, "JavaScript reads it exactly");

    let unmet = server.send("PUT", K, &[("if-none-match", "*")], "two").await;
    assert_eq!((unmet.status, &unmet.json()["error"]["kind"]), (412, &json!("already_exists")));
    let put = server.send("PUT", K, &[("if-match", &format!("\"{first}\""))], "two").await;
    assert_eq!((put.status, &put.json()["previous"]), (200, &json!(first)));
    assert_eq!(server.send("DELETE", K, &[("if-match", &format!("\"{first}\""))], "").await.status, 412);
    assert_eq!(server.send("PUT", "/v1/caches/c/entries/none", &[("if-match", "*")], "x").await.status, 412);
    assert_eq!(server.send("PUT", K, &[("if-match", "first")], "x").await.status, 400);
    assert_eq!(server.get(K).await.text(), "two");
    assert_eq!(server.send("DELETE", K, &[], "").await.status, 204);
    assert_eq!((server.get(K).await.status, server.send("DELETE", K, &[], "").await.status), (404, 404));

    let expiring = server.send("PUT", &format!("{K}?ttl_ms=60000"), &[], vec![0, 0xff]).await;
    assert_eq!(expiring.status, 201);
    assert!(!server.get(K).await.header("thalweg-expires-ms").is_empty());
    let slash = "/v1/caches/c/entries/a%2Fb%20c";
    assert_eq!(server.send("PUT", slash, &[], "x").await.status, 201);
    let listed = server.get("/v1/caches/c/entries?prefix=a/").await.json();
    assert_eq!((&listed["entries"][0]["key"], &listed["cursor"]), (&json!("a/b c"), &Value::Null));
    let binary = server.get("/v1/caches/c/entries?prefix=k").await.json();
    assert_eq!((&binary["entries"][0]["value"], &binary["entries"][0]["encoding"]), (&json!("AP8="), &json!("base64")));
}

#[tokio::test]
async fn counters_are_added_to_and_are_texts() {
    let server = start().await;
    let add = "/v1/caches/c/entries/n/add";
    assert_eq!(server.send("POST", add, &[], "").await.json()["value"], "1");
    let large = json!({"delta": i64::MAX - 1}).to_string();
    assert_eq!(server.send("POST", add, &[JSON], large).await.json()["value"], "9223372036854775807");
    assert_eq!(server.send("POST", add, &[JSON], r#"{"delta":1}"#).await.status, 400);
    assert_eq!(server.get("/v1/caches/c/entries/n").await.text(), "9223372036854775807");
}

#[tokio::test]
async fn caches_are_created_listed_page_by_page_flushed_and_deleted() {
    let server = start().await;
    let settings = r#"{"bytes_max":1048576,"eviction":"ttl-first","ttl_ms":60000}"#;
    for status in [201, 200] {
        assert_eq!(server.send("PUT", "/v1/caches/a", &[JSON], settings).await.status, status);
    }
    assert_eq!(server.send("PUT", "/v1/caches/a", &[JSON], "{}").await.status, 409);
    assert_eq!(server.send("PUT", "/v1/caches/b", &[], "").await.status, 201);
    assert_eq!(server.send("PUT", "/v1/caches/x", &[JSON], r#"{"is_durable":true}"#).await.status, 400, "no --data");
    let first = server.get("/v1/caches?max=1").await.json();
    assert_eq!((&first["caches"][0]["cache"], &first["is_last"]), (&json!("a"), &json!(false)));
    assert_eq!(first["caches"][0]["settings"]["eviction"], "ttl-first");
    assert_eq!(server.get("/v1/caches?after=a").await.json()["caches"][0]["cache"], "b");
    for key in 0..250 {
        server.send("PUT", &format!("/v1/caches/a/entries/key-{key}"), &[], "v").await;
    }
    let mut seen = std::collections::BTreeSet::new();
    let mut cursor = String::new();
    loop {
        let page = server.get(&format!("/v1/caches/a/entries?max=100{cursor}")).await.json();
        let entries = page["entries"].as_array().expect("entries");
        seen.extend(entries.iter().map(|entry| entry["key"].to_string()));
        let Some(next) = page["cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(seen.len(), 250);
    assert_eq!(server.get("/v1/caches/a").await.json()["entries"], 250);
    assert_eq!(server.send("DELETE", "/v1/caches/a/entries", &[], "").await.json()["removed"], 250);
    assert_eq!(server.send("DELETE", "/v1/caches/a", &[], "").await.status, 204);
    for path in ["/v1/caches/a", "/v1/caches/a/entries"] {
        assert_eq!(server.get(path).await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn groups_are_listed_described_reset_and_deleted() {
    let server = start().await;
    server.publish("t", &["a", "b", "c"]).await;
    assert_eq!(server.get("/v1/groups").await.json()["groups"], json!([]));
    assert_eq!(server.get("/v1/groups/g").await.status, 404);
    let reset = |body: &'static str| server.send("PUT", "/v1/groups/g/offsets", &[JSON], body);
    let dry = reset(r#"{"topic":"t","to":"latest","dry_run":true}"#).await.json();
    assert_eq!(dry["offsets"], json!([{"partition": 0, "offset": 3}]));
    assert_eq!(server.get("/v1/groups/g").await.status, 404);
    assert_eq!(reset(r#"{"topic":"t","offset":1}"#).await.status, 200);
    let listed = server.get("/v1/groups").await.json();
    assert_eq!((&listed["groups"][0]["group"], &listed["groups"][0]["lag"]), (&json!("g"), &json!(2)));
    let partition = &server.get("/v1/groups/g").await.json()["partitions"][0];
    assert_eq!(json!([partition["topic"], partition["committed_offset"], partition["lag"]]), json!(["t", 1, 2]));
    for wrong in [r#"{"topic":"t"}"#, r#"{"topic":"t","to":"soon"}"#, r#"{"topic":"t","to":"latest","offset":1}"#] {
        assert_eq!(reset(wrong).await.status, 400, "{wrong}");
    }
    assert_eq!(server.send("DELETE", "/v1/groups/g", &[], "").await.status, 204);
    assert_eq!(server.get("/v1/groups/g").await.status, 404);
}
