//! Administration of users, roles, tokens, access control entries and the audit over HTTP, and its pages.

use std::net::SocketAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use super::access::exchange;
use super::web::ask;
use crate::support::server::{Server, until};

const STRICT: [&str; 5] =
    ["auth=required", "authorization=true", "users=root:r00t", "super_users=root", "http=127.0.0.1:0"];

fn basic(login: &str) -> String {
    format!("Basic {}", BASE64.encode(login))
}

/// Encodes a value of a query.
fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Door with the login of an administrator.
struct Root(SocketAddr, String);

impl Root {
    /// Sends a request. Returns its status, and its response as JSON; null if it has none.
    fn call(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let (status, response) = exchange(self.0, method, path, Some(&self.1), body);
        let (_, body) = response.split_once("\r\n\r\n").expect("a response");
        (status, serde_json::from_str(body).unwrap_or_default())
    }

    fn get(&self, path: &str) -> Value {
        let (status, response) = self.call("GET", path, "");
        assert_eq!(status, 200, "{path}: {response}");
        response
    }

    fn done(&self, method: &str, path: &str, body: &str) {
        let (status, response) = self.call(method, path, body);
        assert_eq!(status, 204, "{method} {path}: {response}");
    }

    /// Puts a user with this password, if a condition is met. Returns the status and the body of the response.
    fn put(&self, user: &str, password: &str, condition: &str) -> (u16, String) {
        let body = json!({ "password": password }).to_string();
        let head = format!("PUT /v1/users/{user} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{condition}\r\n");
        let of_body = format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
        ask(self.0, &format!("{head}{of_body}Authorization: {}\r\n\r\n{body}", self.1))
    }

    fn page(&self, path: &str) -> String {
        let (status, page) = exchange(self.0, "GET", path, Some(&self.1), "");
        assert_eq!(status, 200, "{path}: {page}");
        page
    }
}

fn root(server: &Server) -> Root {
    Root(server.door("http"), basic("root:r00t"))
}

#[test]
fn users_with_roles_are_created_listed_and_deleted() {
    let server = Server::with(&STRICT);
    let root = root(&server);
    let status_of = |login: &str| exchange(root.0, "GET", "/v1/cluster", Some(&basic(login)), "").0;
    assert_eq!(status_of("ann:pencil"), 401, "there is no such user");
    root.done("PUT", "/v1/users/ann", r#"{"password":"pencil"}"#);
    assert_eq!(status_of("ann:pencil"), 403, "it has no permission");
    root.done("PUT", "/v1/users/ann/roles/monitor", "");
    assert_eq!(status_of("ann:pencil"), 501, "it may describe the cluster, which a single node has not");
    let users = root.get("/v1/users");
    assert_eq!((&users["users"][0]["user"], &users["users"][1]["is_configured"]), (&json!("ann"), &json!(true)));
    assert_eq!(users["users"][0]["roles"], json!(["monitor"]));
    let first = root.get("/v1/users?max=1");
    assert_eq!((first["users"].as_array().map(Vec::len), &first["is_last"]), (Some(1), &json!(false)));
    assert_eq!(root.get("/v1/users?max=1&after=ann")["users"][0]["user"], "root");
    assert_eq!(root.get("/v1/roles")["members"], json!([{ "user": "ann", "roles": ["monitor"] }]));
    let page = root.page("/console/security/users/ann");
    assert!(page.contains("data-confirm=\"ann\"") && page.contains("monitor"), "{page}");
    assert!(root.page("/console/security?q=an").contains("/console/security/users/ann"));

    root.done("DELETE", "/v1/users/ann/roles/monitor", "");
    assert_eq!(status_of("ann:pencil"), 403);
    root.done("DELETE", "/v1/users/ann", "");
    assert_eq!(status_of("ann:pencil"), 401);
    assert_eq!(root.call("DELETE", "/v1/users/ann", "").0, 404);
    let (status, refused) = root.call("PUT", "/v1/users/root", r#"{"password":"other"}"#);
    let message = refused["error"]["message"].as_str().unwrap_or_default();
    assert!(status == 400 && message.contains("is in the configuration"), "{refused}");
    let (status, refused) = root.call("PUT", "/v1/users/ann", r#"{"password":""}"#);
    assert!(status == 400 && refused["error"]["message"] == "password: it must not be empty", "{refused}");
    let long = json!({ "password": "x".repeat(1025) }).to_string();
    let (status, refused) = root.call("PUT", "/v1/users/ann", &long);
    let message = refused["error"]["message"].as_str().unwrap_or_default();
    assert!(status == 400 && message.contains("a password has at most 1024 bytes"), "{refused}");
}

/// RFC 9110, 13.1.2: with `If-None-Match: *` a request is refused with 412 if the resource exists.
#[test]
fn a_creation_replaces_no_password() {
    const NEW: &str = "If-None-Match: *";
    let server = Server::with(&STRICT);
    let root = root(&server);
    let is_login = |login: &str| exchange(root.0, "GET", "/v1/cluster", Some(&basic(login)), "").0 != 401;
    assert_eq!(root.put("ann", "pencil", NEW).0, 204);
    let (status, refused) = root.put("ann", "other", NEW);
    assert!(status == 412 && refused.contains("user ann exists already"), "{status} {refused}");
    assert!(is_login("ann:pencil") && !is_login("ann:other"));
    assert_eq!(root.put("root", "other", NEW).0, 412, "a user of the configuration");
    let token = json!({ "user": "ci" }).to_string();
    assert_eq!(root.call("POST", "/v1/tokens", &token).0, 201);
    assert_eq!(root.put("ci", "pencil", NEW).0, 412, "others use its token");
    root.done("PUT", "/v1/users/bob/roles/monitor", "");
    assert_eq!(root.put("bob", "pencil", NEW).0, 204, "a role may precede its user");
    for wrong in ["If-None-Match: \"7\"", "If-None-Match: *\r\nIf-None-Match: *", "If-Match: *"] {
        let (status, refused) = root.put("eve", "pencil", wrong);
        assert!(status == 400 && refused.contains("if-none-match: *"), "{wrong}: {status} {refused}");
    }
    let put = |password: &str| root.put("dan", password, NEW).0;
    let mut both = std::thread::scope(|scope| {
        let racing = ["first", "second"].map(|password| scope.spawn(move || put(password)));
        racing.map(|one| one.join().expect("a status"))
    });
    both.sort_unstable();
    assert_eq!(both, [204, 412], "one of two requests creates the user");
    assert_ne!(is_login("dan:first"), is_login("dan:second"));
    assert_eq!(root.put("dan", "third", "Accept: */*").0, 204, "without the condition the password is replaced");
    assert!(is_login("dan:third"));
    assert!(root.page("/console/security").contains("name=\"if-none-match\" value=\"*\""));
}

#[test]
fn users_without_a_password_are_listed_and_have_a_page() {
    let server = Server::with(&[&STRICT[..], &["super_users=root,boss"]].concat());
    let root = root(&server);
    assert_eq!(root.call("POST", "/v1/tokens", r#"{"user":"ci"}"#).0, 201);
    root.done("PUT", "/v1/users/rob/roles/monitor", "");
    let entry = r#"{"principal":"User:ed","operation":"read","kind":"topic","name":"t"}"#;
    root.done("POST", "/v1/acls", &format!(r#"{{"acls":[{entry}]}}"#));
    let mut all = Vec::new();
    let mut after = String::new();
    loop {
        let page = root.get(&format!("/v1/users?max=2&after={after}"));
        all.extend(page["users"].as_array().expect("a list").clone());
        if page["is_last"] == true {
            break;
        }
        after = all.last().and_then(|user| user["user"].as_str()).expect("a name").to_owned();
    }
    let of = |user: &Value| {
        let Value::Array(mechanisms) = &user["mechanisms"] else { panic!("{user}") };
        let is_member = user["roles"] == json!(["monitor"]);
        let [name, tokens, has_entries, is_super] = ["user", "tokens", "has_entries", "is_super"].map(|of| &user[of]);
        format!("{name} {} {tokens} {is_member} {has_entries} {is_super}", mechanisms.len())
    };
    let all: Vec<String> = all.iter().map(of).collect();
    assert_eq!(
        all,
        [
            "\"boss\" 0 0 false false true",
            "\"ci\" 0 1 false false false",
            "\"ed\" 0 0 false true false",
            "\"rob\" 0 0 true false false",
            "\"root\" 2 0 false false true",
        ]
    );
    let list = root.page("/console/security");
    for user in ["boss", "ci", "ed", "rob", "root"] {
        assert!(list.contains(&format!("/console/security/users/{user}")), "{list}");
        assert!(root.page(&format!("/console/security/users/{user}")).contains(&format!("<h1>{user}</h1>")));
    }
    let found = root.page("/console/security?q=ro");
    assert!(found.contains("users/rob") && !found.contains("users/ci"), "{found}");
    assert_eq!(exchange(root.0, "GET", "/console/security/users/none", Some(&root.1), "").0, 404);
    assert_eq!(root.call("DELETE", "/v1/users/ci", "").0, 204);
    assert_eq!(exchange(root.0, "GET", "/console/security/users/ci", Some(&root.1), "").0, 404);
}

#[test]
fn a_token_is_shown_once_and_valid_until_it_is_deleted() {
    let server = Server::with(&STRICT);
    let root = root(&server);
    let (status, token) = root.call("POST", "/v1/tokens", r#"{"user":"ci","roles":["monitor"],"lifetime_ms":3600000}"#);
    assert_eq!(status, 201, "{token}");
    let bearer = format!("Bearer {}", token["token"].as_str().expect("a token"));
    let status_of = || exchange(root.0, "GET", "/v1/cluster", Some(&bearer), "").0;
    assert_eq!(status_of(), 501, "it may describe the cluster");
    let id = token["id"].as_str().expect("an id");
    let listed = root.get("/v1/tokens?user=ci");
    assert_eq!((&listed["tokens"][0]["id"], &listed["tokens"][0]["roles"]), (&json!(id), &json!(["monitor"])));
    assert!(!listed.to_string().contains(&bearer[7..]), "the secret is not shown again");
    let path = format!("/console/security/tokens/{id}");
    assert!(root.page(&path).contains(&format!("data-confirm=\"{id}\"")));
    root.done("DELETE", &format!("/v1/tokens/{id}"), "");
    assert_eq!(status_of(), 401);
    let (_, forever) = root.call("POST", "/v1/tokens", r#"{"user":"ci","lifetime_ms":0}"#);
    assert_eq!(forever["expires_ms"], Value::Null, "{forever}");
}

/// Each status that a request returns is in the description of the API.
#[test]
fn a_role_that_does_not_exist_is_given_to_no_user_and_no_token() {
    let server = Server::with(&STRICT);
    let root = root(&server);
    let (_, api) = ask(root.0, "GET /v1/openapi.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let api: Value = serde_json::from_str(&api).expect("JSON");
    for (method, path, of_api, body) in [
        ("PUT", "/v1/users/ann/roles/auditor", "/v1/users/{user}/roles/{role}", ""),
        ("POST", "/v1/tokens", "/v1/tokens", r#"{"user":"ci","roles":["auditor"]}"#),
    ] {
        let (status, refused) = root.call(method, path, body);
        assert!(status == 404 && refused.to_string().contains("there is no role 'auditor'"), "{status} {refused}");
        let described = &api["paths"][of_api][method.to_lowercase()]["responses"]["404"]["$ref"];
        assert_eq!(described, "#/components/responses/NoRole", "{of_api}");
    }
    assert!(api["components"]["responses"]["NoRole"]["description"].is_string());
    assert!(api["paths"]["/v1/users/{user}"]["put"]["responses"]["412"].is_object());
}

#[test]
fn entries_are_added_and_exactly_they_are_deleted() {
    let server = Server::with(&STRICT);
    let root = root(&server);
    root.done("PUT", "/v1/users/ann", r#"{"password":"pencil"}"#);
    assert_eq!(root.call("PUT", "/v1/topics/orders", "{}").0, 201);
    let status_of = || exchange(root.0, "GET", "/v1/topics/orders", Some(&basic("ann:pencil")), "").0;
    assert_eq!(status_of(), 403);
    let literal = r#"{"principal":"User:ann","operation":"read","kind":"topic","name":"orders"}"#;
    let prefix = literal.replace("\"orders\"", "\"orders\",\"matching\":\"prefix\"");
    root.done("POST", "/v1/acls", &format!(r#"{{"acls":[{literal},{prefix}]}}"#));
    assert_eq!(status_of(), 200);
    let all = root.get("/v1/acls?principal=User:ann");
    assert_eq!(all["acls"].as_array().map(Vec::len), Some(2), "{all}");
    let page = |after: &Value| {
        let after = if after.is_null() { String::new() } else { format!("&after={}", encoded(&after.to_string())) };
        let page = root.get(&format!("/v1/acls?principal=User:ann&max=1{after}"));
        assert_eq!(page["acls"].as_array().map(Vec::len), Some(1), "{page}");
        (page["acls"][0].clone(), page["is_last"] == true)
    };
    let (first, is_last) = page(&Value::Null);
    assert_eq!((&first, is_last), (&all["acls"][0], false));
    assert_eq!(page(&first), (all["acls"][1].clone(), true));
    let (status, refused) = root.call("GET", "/v1/acls?after=7", "");
    assert!(status == 400 && refused.to_string().contains("last entry of a page"), "{refused}");
    let entry = "principal=User%3Aann&operation=read&kind=topic&name=orders&matching=prefix&host=%2A&is_allowed=true";
    assert!(root.page("/console/security/acls").contains("User%3Aann"));
    assert!(root.page(&format!("/console/security/acl?{entry}")).contains("data-confirm=\"User:ann\""));
    assert_eq!(root.call("DELETE", "/v1/acls", &format!(r#"{{"acls":[{prefix}]}}"#)), (200, json!({ "deleted": 1 })));
    assert_eq!(status_of(), 200, "the other entry remains");
    assert!(root.page(&format!("/console/security/acl?{entry}")).contains("There is no such entry"));
    assert_eq!(root.call("DELETE", "/v1/acls", &format!(r#"{{"acls":[{literal}]}}"#)), (200, json!({ "deleted": 1 })));
    assert_eq!(status_of(), 403);
    for (wrong, why) in [
        (r#"{"acls":[]}"#, "at least one entry"),
        (r#"{"acls":[{"principal":"ann","operation":"read","kind":"topic","name":"t"}]}"#, "User:NAME, Role:NAME"),
        (r#"{"acls":[{"principal":"User:ann","operation":"read","kind":"topic"}]}"#, "names a resource"),
    ] {
        let (status, refused) = root.call("POST", "/v1/acls", wrong);
        let message = refused["error"]["message"].as_str().unwrap_or_default();
        assert!(status == 400 && message.contains(why), "{wrong}: {refused}");
    }
}

#[tokio::test]
async fn the_audit_has_pages_from_the_newest_record_to_the_oldest() {
    let server = Server::with(&STRICT);
    let root = root(&server);
    for topic in 0..5 {
        assert_eq!(root.call("PUT", &format!("/v1/topics/t{topic}"), "{}").0, 201);
    }
    assert_eq!(exchange(root.0, "GET", "/v1/audit", Some(&basic("eve:guess")), "").0, 401);
    let mut page = Value::Null;
    until("a record of the last act", async || {
        page = root.call("GET", "/v1/audit?action=create%20topic&max=2", "").1;
        page["records"][0]["name"] == "t4"
    })
    .await;
    let mut names = Vec::new();
    loop {
        let records = page["records"].as_array().expect("records");
        assert!(records.len() <= 2, "{page}");
        names.extend(records.iter().map(|record| record["name"].as_str().expect("a name").to_owned()));
        let Some(before) = page["next_before"].as_u64() else { break };
        page = root.get(&format!("/v1/audit?action=create%20topic&max=2&before={before}"));
    }
    assert_eq!(names, ["t4", "t3", "t2", "t1", "t0"]);
    assert_eq!(root.get("/v1/audit?user=root&text=%22t3%22")["records"][0]["action"], "create topic");
    until("a record of the refused login", async || {
        let refused = root.get("/v1/audit?refused=true");
        let of_eve = |record: &Value| record["action"] == "login" && record["outcome"] == "denied";
        refused["records"].as_array().is_some_and(|records| records.len() == 1 && records.iter().all(of_eve))
    })
    .await;
    let shown = root.page("/console/audit?user=root&q=create");
    assert!(shown.contains("create topic") && !shown.contains("denied"), "{shown}");
    root.done("PUT", "/v1/users/ann", r#"{"password":"pencil"}"#);
    let by_ann = exchange(root.0, "GET", "/v1/audit", Some(&basic("ann:pencil")), "");
    assert!(by_ann.0 == 403 && by_ann.1.contains("_audit"), "{}", by_ann.1);
    let off = Server::with(&["http=127.0.0.1:0"]);
    let (status, none) = exchange(off.door("http"), "GET", "/v1/audit", None, "");
    assert!(status == 404 && none.contains("audit = on"), "{none}");
    let page = exchange(off.door("http"), "GET", "/console/audit", None, "");
    assert!(page.0 == 200 && page.1.contains("There are no records"), "{}", page.1);
}
