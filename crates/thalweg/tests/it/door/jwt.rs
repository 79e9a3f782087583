//! Logins with JSON Web Tokens of an OpenID provider at every door.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use client::{Address, Client, ClientSettings, ErrorKind, Login, Record};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use kafka_protocol::messages::{MetadataRequest, SaslAuthenticateRequest, SaslHandshakeRequest};
use rcgen::{KeyPair, PublicKeyData};
use serde_json::{Value, json};

use super::access::exchange;
use super::console_login::Site;
use super::kafka::raw::{Raw, text};
use super::redis::commands::Redis;
use crate::support::access::acls;
use crate::support::command;
use crate::support::server::{Server, until, within};

const ISSUER: &str = "https://id.example/realm";
const LISTED: &str = "/v1/projects/shop/topics";

/// Signer of tokens with one key.
struct Signer {
    id: &'static str,
    key: KeyPair,
}

impl Signer {
    fn new(id: &'static str) -> Self {
        Self { id, key: KeyPair::generate().expect("a key") }
    }

    /// Returns the set with the public key.
    fn set(&self) -> String {
        let point = self.key.der_bytes();
        let [x, y] = [&point[1..33], &point[33..]].map(|half| BASE64.encode(half));
        json!({ "keys": [{ "kty": "EC", "crv": "P-256", "use": "sig", "kid": self.id, "x": x, "y": y }] }).to_string()
    }

    fn sign(&self, claims: &Value) -> String {
        let mut header = Header::new(Algorithm::ES256);
        header.kid = Some(self.id.to_owned());
        encode(&header, claims, &EncodingKey::from_ec_der(&self.key.serialize_der())).expect("a token")
    }

    /// Returns a token of bob that is valid for some seconds.
    fn token(&self, issuer: &str, seconds: u64) -> String {
        self.token_of(issuer, seconds, Value::Null)
    }

    /// Returns a token of bob with this claim `org`.
    fn token_of(&self, issuer: &str, seconds: u64, org: Value) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        let groups = json!(["writers", "admin"]);
        let mut claims = json!({
            "iss": issuer, "aud": "thalweg", "preferred_username": "bob", "sub": "4711", "groups": groups,
            "exp": now + seconds,
        });
        if !org.is_null() {
            claims["org"] = org;
        }
        self.sign(&claims)
    }
}

/// Starts a broker that accepts tokens of an issuer, whose keys are there.
fn server(issuer: &str, keys: &str) -> Server {
    Server::with(&[
        "auth=required",
        "authorization=true",
        "http=127.0.0.1:0",
        "redis=127.0.0.1:0",
        "pubsub=127.0.0.1:0",
        "pubsub_project=shop",
        &format!("oidc_issuer={issuer}"),
        &format!("oidc_jwks={keys}"),
        "oidc_audience=other,thalweg",
        "oidc_user_claim=preferred_username",
        "oidc_roles=writers=publisher",
        "oidc_tenant_claim=org",
        "oidc_clock_skew_s=0",
    ])
}

fn with_file(signer: &Signer, folder: &Path) -> Server {
    let file = folder.join("keys.json");
    std::fs::write(&file, signer.set()).expect("written");
    server(ISSUER, &file.display().to_string())
}

async fn connect(server: &Server, token: &str) -> Result<Client, ErrorKind> {
    let address = Address::parse(&server.url("tls")).expect("an address");
    let login = Some(Login::token(token).expect("a login"));
    let settings = ClientSettings { login, ..ClientSettings::default() };
    within("a connection", Client::connect_with(address, settings)).await.map_err(|error| error.kind)
}

/// Logs in at the Kafka door. Returns the connection and the lifetime of the login in ms, or the error code.
async fn kafka(server: &Server, mechanism: &str, message: String) -> Result<(Raw, i64), i16> {
    let mut raw = Raw::connect(server).await;
    let shaken = raw.call(1, SaslHandshakeRequest::default().with_mechanism(text(mechanism))).await;
    assert_eq!(shaken.error_code, 0);
    let login = SaslAuthenticateRequest::default().with_auth_bytes(message.into_bytes().into());
    let answer = raw.call(2, login).await;
    if answer.error_code == 0 { Ok((raw, answer.session_lifetime_ms)) } else { Err(answer.error_code) }
}

fn bearer(token: &str) -> String {
    format!("n,,\u{1}auth=Bearer {token}\u{1}\u{1}")
}

fn http(server: &Server, door: &str, path: &str, token: &str) -> u16 {
    exchange(server.door(door), "GET", path, Some(&format!("Bearer {token}")), "").0
}

#[tokio::test]
async fn a_token_of_an_issuer_logs_in_at_every_door() {
    let signer = Signer::new("one");
    let folder = tempfile::tempdir().expect("a folder");
    let server = with_file(&signer, folder.path());
    let token = signer.token(ISSUER, 3600);
    let bob = connect(&server, &token).await.expect("it is right");
    bob.publish("t", Record::new("v")).await.expect("a group has the role");
    assert_eq!(bob.delete_topic("t").await.expect_err("admin is a group, not a role").kind, ErrorKind::Denied);
    let (mut raw, lifetime_ms) = kafka(&server, "OAUTHBEARER", bearer(&token)).await.expect("it is right");
    assert!((3_500_000..=3_600_000).contains(&lifetime_ms), "{lifetime_ms}");
    assert_eq!(raw.call(4, MetadataRequest::default().with_topics(None)).await.topics.len(), 1);
    assert!(kafka(&server, "PLAIN", format!("\0bob\0{token}")).await.is_ok());
    assert_eq!(kafka(&server, "PLAIN", format!("\0eve\0{token}")).await.err(), Some(58));
    assert_eq!((http(&server, "http", "/v1/topics/t", &token), http(&server, "pubsub", LISTED, &token)), (200, 200));
    for login in [format!("AUTH {token}"), format!("AUTH bob {token}")] {
        let mut redis = Redis::open(&server);
        assert_eq!((redis.call(&login), redis.call("ACL WHOAMI")), ("+OK".to_owned(), "bob".to_owned()));
        assert_eq!(redis.call("SET k v"), "+OK");
    }
    // Another issuer, and another signer of the same name.
    for wrong in [signer.token("https://other.example", 60), Signer::new("one").token(ISSUER, 60)] {
        assert_eq!(connect(&server, &wrong).await.err(), Some(ErrorKind::Denied));
        assert_eq!(http(&server, "http", "/v1/topics/t", &wrong), 401);
    }
    assert!(!server.log().contains(&token[token.len() - 20..]), "a token is not logged");
}

/// The tenant of a token is that of its user, or the one that the token names. Both must not differ.
#[tokio::test]
async fn a_token_names_the_tenant_of_its_client() {
    let signer = Signer::new("one");
    let folder = tempfile::tempdir().expect("a folder");
    let server = with_file(&signer, folder.path());
    let token = |org: Value| signer.token_of(ISSUER, 3600, org);
    let [acme, none] = [token(json!("acme")), token(Value::Null)];
    let in_acme = connect(&server, &acme).await.expect("it is right");
    in_acme.publish("t", Record::new("v")).await.expect("a group has the role");
    let anywhere = connect(&server, &none).await.expect("it is right");
    assert!(anywhere.describe_topic("acme.t").await.is_ok());
    for wrong in [json!("a.b"), json!(7), json!("_queues")] {
        assert_eq!(connect(&server, &token(wrong)).await.err(), Some(ErrorKind::Denied));
    }
    command::on(&server, ["tenant", "assign", "acme", "bob"]).ok();
    assert!(in_acme.describe_topic("t").await.is_ok(), "it has been in that one");
    assert!(connect(&server, &none).await.expect("it is right").describe_topic("t").await.is_ok());
    assert_eq!(http(&server, "http", "/v1/topics/t", &acme), 200);
    command::on(&server, ["tenant", "assign", "globex", "bob"]).ok();
    assert_eq!(connect(&server, &acme).await.err(), Some(ErrorKind::Denied), "the user has another one here");
    assert_eq!(http(&server, "http", "/v1/topics/t", &acme), 401);
    assert_eq!(http(&server, "http", "/v1/topics/t", &none), 404);
}

#[tokio::test]
async fn all_that_a_client_does_ends_when_its_token_expires() {
    let signer = Signer::new("one");
    let folder = tempfile::tempdir().expect("a folder");
    let server = with_file(&signer, folder.path());
    let admin = server.client("tcp").await;
    admin.create_topic("t", client::TopicSettings::default()).await.expect("created");
    admin.create_acls(acls("User:bob", "read topic t", true)).await.expect("added");
    let token = signer.token(ISSUER, 4);
    let bob = connect(&server, &token).await.expect("it is right");
    let mut subscription = within("a subscription", bob.subscribe("t").open()).await.expect("subscribed");
    let mut redis = Redis::open(&server);
    assert_eq!((redis.call(&format!("AUTH {token}")), redis.call("SET k v")), ("+OK".to_owned(), "+OK".to_owned()));
    let (mut raw, _) = kafka(&server, "OAUTHBEARER", bearer(&token)).await.expect("it is right");
    until("the end of the subscription", async || subscription.next().await.is_err()).await;
    assert_eq!(redis.call("GET k"), "-NOAUTH Authentication required.");
    raw.send(4, &MetadataRequest::default()).await;
    assert!(raw.frame().await.is_none(), "the connection ends");
    assert_eq!(http(&server, "http", "/v1/topics/t", &token), 401);
}

#[tokio::test]
async fn a_token_logs_a_browser_in_until_it_expires() {
    let signer = Signer::new("one");
    let folder = tempfile::tempdir().expect("a folder");
    let site = Site::of(with_file(&signer, folder.path()));
    for wrong in [signer.token("https://other.example", 60), Signer::new("one").token(ISSUER, 60)] {
        assert_eq!(site.submit("", &format!("token={wrong}")).status, 403);
    }
    let cookie = site.log_in(&format!("token={}&to=/console/topics", signer.token(ISSUER, 3600)));
    let [with_user, short] =
        ["user=bob&password", "token"].map(|field| site.log_in(&format!("{field}={}", signer.token(ISSUER, 6))));
    assert!(site.page("/console/topics", &cookie).body.contains("<b>bob</b>"));
    for expires in [with_user, short] {
        until("the end of the session", async || site.page("/console/topics", &expires).status == 303).await;
    }
    assert_eq!(site.page("/console/topics", &cookie).status, 200);
}

/// A replaced file is read within a second, and a damaged one changes nothing.
#[tokio::test]
async fn keys_of_a_file_are_rotated() {
    let [first, second] = [Signer::new("one"), Signer::new("two")];
    let folder = tempfile::tempdir().expect("a folder");
    let server = with_file(&first, folder.path());
    let [of_first, of_second] = [first.token(ISSUER, 3600), second.token(ISSUER, 3600)];
    assert_eq!(
        (http(&server, "http", "/v1/topics", &of_first), http(&server, "http", "/v1/topics", &of_second)),
        (200, 401)
    );
    let file = folder.path().join("keys.json");
    std::fs::write(&file, second.set()).expect("written");
    until("the new key", async || http(&server, "http", "/v1/topics", &of_second) == 200).await;
    assert_eq!(http(&server, "http", "/v1/topics", &of_first), 401);
    std::fs::write(&file, "{").expect("written");
    until("the complaint", async || server.log().contains("those read before stay")).await;
    assert_eq!(http(&server, "http", "/v1/topics", &of_second), 200);
}

/// OpenID provider with a description and a set of keys.
struct Provider {
    address: SocketAddr,
    set: Arc<Mutex<String>>,
}

impl Provider {
    fn start(set: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let set = Arc::new(Mutex::new(set));
        let served = set.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let mut lines = BufReader::new(stream.try_clone().expect("a copy")).lines().map_while(Result::ok);
                let first = lines.next().unwrap_or_default();
                lines.find(String::is_empty);
                let (status, body) = match first.split(' ').nth(1) {
                    Some("/.well-known/openid-configuration") => {
                        ("200 OK", json!({ "jwks_uri": format!("http://{address}/keys") }).to_string())
                    }
                    Some("/keys") => ("200 OK", served.lock().expect("a set").clone()),
                    _ => ("404 Not Found", String::new()),
                };
                let length = body.len();
                write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
                    .unwrap_or_default();
            }
        });
        Self { address, set }
    }
}

/// The keys come from where the issuer's description says, and again when a token names another key.
#[tokio::test]
async fn keys_of_a_provider_are_found_and_rotated() {
    let [first, second] = [Signer::new("one"), Signer::new("two")];
    let provider = Provider::start(first.set());
    let issuer = format!("http://{}", provider.address);
    let server = server(&issuer, "");
    let [of_first, of_second] = [first.token(&issuer, 3600), second.token(&issuer, 3600)];
    until("the first key", async || http(&server, "http", "/v1/topics", &of_first) == 200).await;
    *provider.set.lock().expect("a set") = second.set();
    until("the second key", async || http(&server, "http", "/v1/topics", &of_second) == 200).await;
    assert_eq!(http(&server, "http", "/v1/topics", &of_first), 401);
}

#[test]
fn settings_that_cannot_work_are_refused_at_the_start() {
    let start = |set: &[&str]| {
        let doors = ["native=127.0.0.1:0", "http=off", "kafka=off", "redis=off", "sqs=off", "pubsub=off"];
        let args = doors.iter().chain(set).flat_map(|pair| ["--set", *pair]);
        command::thalweg(["serve"].into_iter().chain(args)).err
    };
    for (set, wanted) in [
        (&["oidc_issuer=https://a.example"][..], "oidc_audience is missing"),
        (&["oidc_audience=a"], "without oidc_issuer"),
        (&["oidc_issuer=a", "oidc_audience=b"], "https URL"),
        (&["oidc_issuer=a", "oidc_audience=b", "oidc_jwks=http://a.example/"], "https URL"),
        (&["oidc_issuer=a", "oidc_audience=b", "oidc_jwks=/nowhere/keys.json"], "/nowhere/keys.json"),
        (&["oidc_issuer=a", "oidc_audience=b", "oidc_jwks=x", "oidc_roles=ops"], "VALUE=ROLE"),
    ] {
        let refused = start(set);
        assert!(refused.contains(wanted), "{set:?}: {refused}");
    }
}
