//! Authentication at the Kafka door, and permissions of users.

use aws_lc_rs::{digest, hmac, pbkdf2};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use engine::Record;
use engine::codec::Codec;
use kafka_protocol::messages::alter_user_scram_credentials_request::{
    ScramCredentialDeletion, ScramCredentialUpsertion,
};
use kafka_protocol::messages::create_acls_request::AclCreation;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::delete_acls_request::DeleteAclsFilter;
use kafka_protocol::messages::{
    AlterUserScramCredentialsRequest, ApiVersionsRequest, CreateAclsRequest, CreateTopicsRequest, DeleteAclsRequest,
    DescribeAclsRequest, DescribeClientQuotasRequest, DescribeConfigsRequest, DescribeUserScramCredentialsRequest,
    MetadataRequest, SaslAuthenticateRequest, SaslHandshakeRequest,
};

use super::raw::{Raw, batch, fetch, fetched, produce, produced, text, topic};
use crate::support::command;
use crate::support::server::{Launch, Server};

/// The native door is open for the command line, and checks no lists: only the last of these allows that.
pub const SET: [&str; 5] =
    ["auth=required", "users=root:r00t,app:secret", "super_users=root", "authorization=true", "insecure=true"];

/// Sends one SASL message, and returns the code and the bytes of the response.
async fn authenticate(raw: &mut Raw, message: &[u8]) -> (i16, String) {
    let request = SaslAuthenticateRequest::default().with_auth_bytes(message.to_vec().into());
    let response = raw.call(2, request).await;
    (response.error_code, String::from_utf8_lossy(&response.auth_bytes).into_owned())
}

pub async fn shake(raw: &mut Raw, mechanism: &str) -> i16 {
    raw.call(1, SaslHandshakeRequest::default().with_mechanism(text(mechanism))).await.error_code
}

/// Returns the message of a login with PLAIN.
pub fn plain(user: &str, password: &str) -> SaslAuthenticateRequest {
    SaslAuthenticateRequest::default().with_auth_bytes(format!("\0{user}\0{password}").into_bytes().into())
}

/// Opens a connection that is logged in as this user, with PLAIN.
pub async fn log_in(server: &Server, user: &str, password: &str) -> Result<Raw, i16> {
    let mut raw = Raw::connect(server).await;
    assert_eq!(shake(&mut raw, "PLAIN").await, 0);
    match authenticate(&mut raw, format!("\0{user}\0{password}").as_bytes()).await.0 {
        0 => Ok(raw),
        code => Err(code),
    }
}

/// Logs in with SCRAM-SHA-512, as a client does.
async fn scram(raw: &mut Raw, user: &str, password: &str) -> Result<(), i16> {
    assert_eq!(shake(raw, "SCRAM-SHA-512").await, 0);
    let bare = format!("n={user},r=clientnonce");
    let (code, first) = authenticate(raw, format!("n,,{bare}").as_bytes()).await;
    assert_eq!(code, 0);
    let field = |name: &str| first.split(',').find_map(|field| field.strip_prefix(name)).expect("a field").to_owned();
    let nonce = field("r=");
    let salt = BASE64.decode(field("s=")).expect("base64");
    let iterations = field("i=");
    assert!(nonce.starts_with("clientnonce") && nonce.len() > 30);
    let mut salted = [0; 64];
    let iterations = iterations.parse().expect("a number");
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA512, iterations, &salt, password.as_bytes(), &mut salted);
    let sign = |key: &[u8], text: &str| hmac::sign(&hmac::Key::new(hmac::HMAC_SHA512, key), text.as_bytes());
    let client_key = sign(&salted, "Client Key");
    let stored_key = digest::digest(&digest::SHA512, client_key.as_ref());
    let last = format!("c=biws,r={nonce}");
    let all = format!("{bare},{first},{last}");
    let signature = sign(stored_key.as_ref(), &all);
    let proof: Vec<u8> = client_key.as_ref().iter().zip(signature.as_ref()).map(|(a, b)| a ^ b).collect();
    let (code, answer) = authenticate(raw, format!("{last},p={}", BASE64.encode(proof)).as_bytes()).await;
    if code != 0 {
        return Err(code);
    }
    let server_key = sign(&salted, "Server Key");
    assert_eq!(answer, format!("v={}", BASE64.encode(sign(server_key.as_ref(), &all))), "the broker knows it, too");
    Ok(())
}

/// Allows the user `app` to read topics with this name, by an entry that a super user creates.
pub async fn allow_reading(root: &mut Raw, name: &str) {
    let acl = AclCreation::default()
        .with_resource_type(2)
        .with_resource_name(text(name))
        .with_resource_pattern_type(3)
        .with_principal(text("User:app"))
        .with_host(text("*"))
        .with_operation(3)
        .with_permission_type(3);
    let created = root.call(3, CreateAclsRequest::default().with_creations(vec![acl])).await;
    assert_eq!(created.results[0].error_code, 0);
}

async fn create(raw: &mut Raw, name: &str) -> i16 {
    let wanted = CreatableTopic::default().with_name(topic(name)).with_num_partitions(1).with_replication_factor(1);
    raw.call(7, CreateTopicsRequest::default().with_topics(vec![wanted])).await.topics[0].error_code
}

#[tokio::test]
async fn requests_before_the_login_are_not_answered() {
    let server = Server::with(&SET);
    let mut raw = Raw::connect(&server).await;
    let versions = raw.call(3, ApiVersionsRequest::default()).await;
    assert_eq!(versions.error_code, 0, "versions are no secret");
    let handshake = versions.api_keys.iter().find(|api| api.api_key == 17).expect("it is listed");
    // librdkafka 2.0 does not log in if version 0 is missing, and uses version 1.
    assert_eq!((handshake.min_version, handshake.max_version), (0, 1));
    let old = raw.call(0, SaslHandshakeRequest::default().with_mechanism(text("PLAIN"))).await;
    assert_eq!(old.error_code, 35);
    raw.send(4, &MetadataRequest::default()).await;
    assert!(raw.frame().await.is_none(), "the connection ends");

    let mut raw = log_in(&server, "app", "secret").await.expect("it is right");
    assert_eq!(raw.call(4, MetadataRequest::default()).await.brokers.len(), 1);
    assert_eq!(shake(&mut raw, "PLAIN").await, 34, "a connection authenticates once");
    for (user, password) in [("app", "r00t"), ("nobody", "secret"), ("app", "")] {
        assert_eq!(log_in(&server, user, password).await.err(), Some(58), "{user}");
    }
    let mut raw = Raw::connect(&server).await;
    assert_eq!(shake(&mut raw, "PLAIN").await, 0);
    assert_eq!(authenticate(&mut raw, b"\0app\0wrong").await.0, 58);
    assert!(raw.frame().await.is_none(), "after that the connection ends by itself");
    let mut raw = Raw::connect(&server).await;
    let refused = raw.call(1, SaslHandshakeRequest::default().with_mechanism(text("GSSAPI"))).await;
    let offered: Vec<&str> = refused.mechanisms.iter().map(|mechanism| mechanism.as_str()).collect();
    assert_eq!((refused.error_code, offered), (33, vec!["PLAIN", "OAUTHBEARER", "SCRAM-SHA-256", "SCRAM-SHA-512"]));
    let mut raw = Raw::connect(&server).await;
    assert_eq!(authenticate(&mut raw, b"\0app\0secret").await.0, 34, "a handshake comes first");
    assert!(raw.frame().await.is_none(), "and then never");
}

/// Requests that are allowed before the login do not extend its timeout.
#[tokio::test]
async fn a_client_that_does_not_log_in_in_time_is_closed() {
    let server = Server::with(&[SET[0], SET[1], "hello_timeout_ms=500"]);
    let mut stranger = Raw::connect(&server).await;
    assert_eq!(stranger.call(3, ApiVersionsRequest::default()).await.error_code, 0);
    assert_eq!(shake(&mut stranger, "PLAIN").await, 0);
    let mut app = log_in(&server, "app", "secret").await.expect("it is right");
    assert!(stranger.frame().await.is_none());
    // The login timeout of this client has elapsed by now as well.
    assert_eq!(app.call(4, MetadataRequest::default()).await.brokers.len(), 1);
}

/// A deleted user is disconnected, even during a wait for records.
#[tokio::test]
async fn a_deleted_user_asks_for_nothing_more() {
    let server = Server::with(&SET[..2]);
    command::feed(&server, ["user", "add", "ann"], "pencil\n").ok();
    let mut app = log_in(&server, "app", "secret").await.expect("it is right");
    app.create("t").await;
    let mut waiting = log_in(&server, "ann", "pencil").await.expect("it is right");
    let mut idle = log_in(&server, "ann", "pencil").await.expect("it is right");
    waiting.send(11, &fetch("t", 0, 0, 60_000)).await;
    assert_eq!(idle.call(4, MetadataRequest::default()).await.brokers.len(), 1);
    command::on(&server, ["user", "delete", "ann"]).ok();
    idle.send(4, &MetadataRequest::default()).await;
    assert!(idle.frame().await.is_none());
    app.call(9, produce("t", 0, -1, batch(Codec::None, &[Record::new("secret")]))).await;
    assert!(waiting.frame().await.is_none());
    assert_eq!(app.call(4, MetadataRequest::default()).await.brokers.len(), 1);
}

#[tokio::test]
async fn nobody_is_asked_where_nothing_is_set() {
    let server = Server::start();
    let mut raw = Raw::connect(&server).await;
    assert_eq!(shake(&mut raw, "PLAIN").await, 34);
    assert_eq!(create(&mut raw, "t").await, 0);
}

#[tokio::test]
async fn passwords_are_set_and_taken_away_over_the_wire() {
    let data = tempfile::tempdir().expect("a folder");
    let set = SET.iter().map(|set| (*set).to_owned()).chain([format!("data={}", data.path().display())]);
    let mut server = Server::launch(Launch { set: set.collect(), ..Launch::default() });
    let mut raw = log_in(&server, "root", "r00t").await.expect("it is right");
    let upsert_with = |salt: &[u8], name: &str, mechanism: i8, iterations: i32| {
        let mut salted = vec![0; if mechanism == 2 { 64 } else { 32 }];
        let algorithm = if mechanism == 2 { pbkdf2::PBKDF2_HMAC_SHA512 } else { pbkdf2::PBKDF2_HMAC_SHA256 };
        let times = std::num::NonZeroU32::new(iterations as u32).expect("not 0");
        pbkdf2::derive(algorithm, times, salt, b"pencil", &mut salted);
        ScramCredentialUpsertion::default()
            .with_name(text(name))
            .with_mechanism(mechanism)
            .with_iterations(iterations)
            .with_salt(salt.to_vec().into())
            .with_salted_password(salted.into())
    };
    let upsert = |name: &str, mechanism, iterations| upsert_with(b"0123456789abcdef", name, mechanism, iterations);
    let upsertions = vec![
        upsert("ann", 2, 8192),
        upsert("ann", 1, 4096),
        upsert("weak", 1, 100),
        upsert("app", 1, 4096),
        upsert("twice", 1, 4096),
        upsert("twice", 1, 4096),
        upsert("odd", 3, 4096),
        // Kafka has no minimum length of a salt, and clients send short ones.
        upsert_with(b"salt", "short", 2, 4096),
    ];
    let request = AlterUserScramCredentialsRequest::default().with_upsertions(upsertions);
    let response = raw.call(0, request).await;
    let codes: Vec<_> = response.results.iter().map(|result| (result.user.as_str(), result.error_code)).collect();
    assert_eq!(codes, [("ann", 0), ("weak", 93), ("app", 93), ("twice", 92), ("odd", 33), ("short", 0)]);

    server.crash_and_restart();
    let mut raw = Raw::connect(&server).await;
    assert_eq!(scram(&mut raw, "ann", "pencil").await, Ok(()));
    assert_eq!(scram(&mut Raw::connect(&server).await, "short", "pencil").await, Ok(()));
    assert_eq!(scram(&mut Raw::connect(&server).await, "ann", "pen").await, Err(58));
    assert_eq!(scram(&mut Raw::connect(&server).await, "nobody", "pencil").await, Err(58));
    assert!(log_in(&server, "ann", "pencil").await.is_ok(), "PLAIN asks the same password");
    // This user is not a super user.
    assert_eq!(raw.call(0, DescribeClientQuotasRequest::default()).await.error_code, 31);
    let described = raw.call(0, DescribeUserScramCredentialsRequest::default().with_users(None)).await;
    assert_eq!((described.error_code, described.results.len()), (31, 0));

    let mut raw = log_in(&server, "root", "r00t").await.expect("it is right");
    let described = raw.call(0, DescribeUserScramCredentialsRequest::default().with_users(None)).await;
    // Kafka's tool requests quotas before it describes a user.
    let quotas = raw.call(1, DescribeClientQuotasRequest::default()).await;
    assert_eq!((quotas.error_code, quotas.entries), (0, Some(Vec::new())));
    let ann = described.results.iter().find(|result| result.user.as_str() == "ann").expect("she is there");
    let infos: Vec<_> = ann.credential_infos.iter().map(|info| (info.mechanism, info.iterations)).collect();
    assert_eq!(infos, [(1, 4096), (2, 8192)]);
    let gone = |mechanism| ScramCredentialDeletion::default().with_name(text("ann")).with_mechanism(mechanism);
    let request = || AlterUserScramCredentialsRequest::default().with_deletions(vec![gone(1), gone(2)]);
    assert_eq!(raw.call(0, request()).await.results[0].error_code, 0);
    assert_eq!(raw.call(0, request()).await.results[0].error_code, 91);
    assert_eq!(scram(&mut Raw::connect(&server).await, "ann", "pencil").await, Err(58));
}

#[tokio::test]
async fn access_follows_the_access_control_lists() {
    let server = Server::with(&SET);
    let mut app = log_in(&server, "app", "secret").await.expect("it is right");
    assert_eq!(create(&mut app, "orders.eu").await, 29);
    let mut root = log_in(&server, "root", "r00t").await.expect("it is right");
    let allow = |name: &str, pattern, operation, permission| {
        AclCreation::default()
            .with_resource_type(2)
            .with_resource_name(text(name))
            .with_resource_pattern_type(pattern)
            .with_principal(text("User:app"))
            .with_host(text("*"))
            .with_operation(operation)
            .with_permission_type(permission)
    };
    let cluster = allow("kafka-cluster", 3, 8, 3).with_resource_type(4);
    let creations = vec![
        allow("orders.", 4, 5, 3),
        allow("orders.secret", 3, 5, 2),
        cluster,
        allow("x", 2, 5, 3),
        allow("x", 3, 99, 3),
        allow("x", 3, 5, 3).with_principal(text("app")),
    ];
    let response = root.call(3, CreateAclsRequest::default().with_creations(creations)).await;
    let codes: Vec<i16> = response.results.iter().map(|result| result.error_code).collect();
    assert_eq!(codes, [0, 0, 0, 42, 42, 42]);
    assert_eq!(create(&mut app, "orders.eu").await, 0);
    assert_eq!((create(&mut app, "orders.secret").await, create(&mut app, "other").await), (29, 29));

    let any = DescribeAclsRequest::default()
        .with_resource_type_filter(1)
        .with_resource_name_filter(None)
        .with_pattern_type_filter(1)
        .with_principal_filter(None)
        .with_host_filter(None)
        .with_operation(1)
        .with_permission_type(1);
    // The list permits to describe the cluster, and therefore the lists.
    for version in 1..=3 {
        let response = app.call(version, any.clone()).await;
        let found: Vec<_> = response.resources.iter().map(|r| (r.resource_type, r.resource_name.as_str())).collect();
        assert_eq!(found, [(2, "orders."), (2, "orders.secret"), (4, "kafka-cluster")]);
    }
    let covering = any.clone().with_resource_type_filter(2).with_pattern_type_filter(2);
    let covering = covering.with_resource_name_filter(Some(text("orders.secret")));
    assert_eq!(app.call(3, covering).await.resources.len(), 2);
    let gone = DeleteAclsFilter::default()
        .with_resource_type_filter(2)
        .with_resource_name_filter(Some(text("orders.")))
        .with_pattern_type_filter(4)
        .with_principal_filter(None)
        .with_host_filter(None)
        .with_operation(1)
        .with_permission_type(1);
    let request = || DeleteAclsRequest::default().with_filters(vec![gone.clone()]);
    assert_eq!(app.call(3, request()).await.filter_results[0].error_code, 31);
    let response = root.call(3, request()).await;
    assert_eq!(response.filter_results[0].matching_acls.len(), 1);
    assert_eq!(create(&mut app, "orders.us").await, 29);
    let response = app.call(4, DescribeConfigsRequest::default()).await;
    assert!(response.results.is_empty());
}

/// A client of a listener without a login is `User:ANONYMOUS`, as in Apache Kafka, and access control lists apply to it
/// (`KafkaPrincipal.ANONYMOUS`, `PlaintextChannelBuilder`).
#[tokio::test]
async fn lists_apply_to_clients_without_a_login() {
    let data = tempfile::tempdir().expect("a folder");
    let set =
        vec!["authorization=true".to_owned(), "insecure=true".to_owned(), format!("data={}", data.path().display())];
    let mut server = Server::launch(Launch { set, ..Launch::default() });
    let mut raw = Raw::connect(&server).await;
    assert_eq!(create(&mut raw, "orders").await, 29, "nothing is allowed that no entry allows");
    let acl = |words: &str| command::on(&server, ["acl", "add"].into_iter().chain(words.split(' '))).ok();
    acl("User:ANONYMOUS create,write topic orders");
    acl("User:* read topic orders");
    acl("User:bob all topic *");
    assert_eq!(create(&mut raw, "orders").await, 0);
    assert_eq!(create(&mut raw, "other").await, 29);
    let sent = batch(Codec::None, &[Record::new("one")]);
    assert_eq!(produced(&raw.call(9, produce("orders", 0, -1, sent.clone())).await).0, 0);
    assert_eq!(fetched(&raw.call(11, fetch("orders", 0, 0, 0)).await).2.len(), 1);
    acl("User:ANONYMOUS write topic orders --deny");
    assert_eq!(produced(&raw.call(9, produce("orders", 0, -1, sent.clone())).await).0, 29);
    acl("User:* read topic orders --host 10.0.0.1 --deny");
    assert_eq!(fetched(&raw.call(11, fetch("orders", 0, 0, 0)).await).0, 0, "that is another host");
    acl("User:* read topic orders --host 127.0.0.1 --deny");
    assert_eq!(fetched(&raw.call(11, fetch("orders", 0, 0, 0)).await).0, 29);
    server.crash_and_restart();
    let mut raw = Raw::connect(&server).await;
    assert_eq!(produced(&raw.call(9, produce("orders", 0, -1, sent)).await).0, 29, "also after a restart");

    let server = Server::with(&["authorization=true", "super_users=ANONYMOUS", "insecure=true"]);
    assert_eq!(create(&mut Raw::connect(&server).await, "orders").await, 0, "a super user as any other");
}

/// A filter is compared with entries and need not be a valid entry: values that no entry can have match none
/// (`AclBindingFilter.matches` of Apache Kafka).
#[tokio::test]
async fn a_filter_with_invalid_values_matches_no_entry() {
    let server = Server::with(&["authorization=true", "super_users=ANONYMOUS", "insecure=true"]);
    let mut raw = Raw::connect(&server).await;
    for who in ["User:*", "User:ann"] {
        command::on(&server, ["acl", "add", who, "read", "topic", "t"]).ok();
    }
    let any = DeleteAclsFilter::default()
        .with_resource_type_filter(1)
        .with_resource_name_filter(None)
        .with_pattern_type_filter(1)
        .with_principal_filter(None)
        .with_host_filter(None)
        .with_operation(1)
        .with_permission_type(1);
    let principal = |name: &str| any.clone().with_principal_filter(Some(text(name)));
    let filters = [
        (any.clone(), 2),
        (principal("User:*"), 1),
        (principal("User:ann"), 1),
        (principal("*"), 0),
        (principal("ann"), 0),
        (principal("Group:ann"), 0),
        (principal("User:"), 0),
        (principal(""), 0),
        (any.clone().with_host_filter(Some(text("*"))), 2),
        (any.clone().with_host_filter(Some(text("nowhere"))), 0),
        (any.clone().with_resource_type_filter(6), 0),
        (any.clone().with_resource_type_filter(7), 0),
        (any.clone().with_operation(13), 0),
        (any.clone().with_operation(15), 0),
    ];
    for (filter, expected) in &filters {
        let request = DescribeAclsRequest::default()
            .with_resource_type_filter(filter.resource_type_filter)
            .with_resource_name_filter(filter.resource_name_filter.clone())
            .with_pattern_type_filter(filter.pattern_type_filter)
            .with_principal_filter(filter.principal_filter.clone())
            .with_host_filter(filter.host_filter.clone())
            .with_operation(filter.operation)
            .with_permission_type(filter.permission_type);
        let response = raw.call(3, request).await;
        let found: usize = response.resources.iter().map(|resource| resource.acls.len()).sum();
        assert_eq!((response.error_code, found), (0, *expected), "{filter:?}");
    }
    let unknown = DescribeAclsRequest::default().with_resource_type_filter(99).with_pattern_type_filter(1);
    assert_eq!(raw.call(3, unknown.with_operation(1).with_permission_type(1)).await.error_code, 42);
    // A deletion uses the same filters.
    let none: Vec<_> =
        filters.iter().filter(|(_, expected)| *expected == 0).map(|(filter, _)| filter.clone()).collect();
    let response = raw.call(3, DeleteAclsRequest::default().with_filters(none)).await;
    assert!(response.filter_results.iter().all(|result| result.error_code == 0 && result.matching_acls.is_empty()));
    let response = raw.call(3, DeleteAclsRequest::default().with_filters(vec![principal("User:*")])).await;
    assert_eq!(response.filter_results[0].matching_acls.len(), 1);
}

/// The command line changes the same users and lists, and sends no plaintext passwords.
#[tokio::test]
async fn users_and_lists_are_changed_from_the_command_line() {
    let server = Server::with(&SET);
    let add = ["user", "add", "ann"];
    assert!(command::feed(&server, add, "").failed(2).contains("the password is empty"));
    command::feed(&server, add, "pencil\n").ok();
    assert!(command::feed(&server, ["user", "add", "app"], "mine\n").failed(2).contains("in the configuration"));
    let users = command::on(&server, ["user", "list", "--json"]).json();
    let names: Vec<&str> =
        users.as_array().expect("a list").iter().map(|u| u["user"].as_str().expect("a name")).collect();
    assert_eq!(names, ["ann", "app", "root"]);
    let mut ann = log_in(&server, "ann", "pencil").await.expect("it is right");
    assert_eq!(scram(&mut Raw::connect(&server).await, "ann", "pencil").await, Ok(()));

    assert_eq!(create(&mut ann, "orders.eu").await, 29);
    let output = command::on(&server, ["acl", "add", "User:ann", "create,read", "topic", "orders.", "--prefix"]).ok();
    assert!(output.contains("orders.* (prefix)") && output.contains("create"), "{output}");
    command::on(&server, ["acl", "add", "User:*", "create", "topic", "orders.no", "--deny"]).ok();
    command::on(&server, ["acl", "add", "User:ann", "describe", "cluster"]).ok();
    assert_eq!((create(&mut ann, "orders.eu").await, create(&mut ann, "orders.no").await), (0, 29));
    let about = command::on(&server, ["acl", "list", "--about", "orders.no", "--kind", "topic", "--json"]).json();
    assert_eq!(about.as_array().map(Vec::len), Some(3));
    assert!(command::on(&server, ["acl", "delete"]).failed(2).contains("--all"));
    let gone = command::on(&server, ["acl", "delete", "--principal", "User:ann", "--json"]).json();
    assert_eq!(gone.as_array().map(Vec::len), Some(3));
    assert_eq!(create(&mut ann, "orders.us").await, 29);
    command::on(&server, ["user", "delete", "ann"]).ok();
    assert_eq!(log_in(&server, "ann", "pencil").await.err(), Some(58));
    assert_eq!(command::on(&server, ["user", "delete", "ann"]).code, Some(4));
}

/// A broker without a certificate or without logins stays on this machine, and passwords are not shown.
#[tokio::test]
async fn a_configuration_that_only_seems_safe_is_refused() {
    let serve = |set: &[&str]| {
        let set = set.iter().flat_map(|set| ["--set", set]);
        command::thalweg(["serve", "--http", "off", "--kafka", "127.0.0.1:0", "--sqs", "off"].into_iter().chain(set))
    };
    // Every door refuses other machines without a certificate, and without logins.
    for door in ["native", "http", "kafka", "pubsub", "redis", "sqs"] {
        let others = ["native", "http", "kafka", "pubsub", "redis", "sqs"].into_iter().filter(|other| *other != door);
        let off: Vec<String> = others.map(|other| format!("{other}=off")).collect();
        let bind = format!("{door}=0.0.0.0:0");
        let set = off.iter().flat_map(|set| ["--set", set]);
        let output = command::thalweg(["serve", "--set", &bind].into_iter().chain(set)).failed(2);
        assert!(output.contains(&format!("{door} = 0.0.0.0:0 can be reached")), "{output}");
        let set = off.iter().map(String::as_str).chain([&*bind, "tls_cert=/none", "tls_key=/none"]);
        let output = command::thalweg(["serve"].into_iter().chain(set.flat_map(|set| ["--set", set]))).failed(2);
        assert!(output.contains("lets every client do everything") && output.contains("auth = required"), "{output}");
    }
    assert!(serve(&["users=root"]).failed(2).contains("name:password"));
    let shown = command::run(
        crate::support::server::program()
            .env("THALWEG_USERS", "root:r00t")
            .args(["config", "show"])
            .stdout(std::process::Stdio::piped()),
        b"",
    );
    assert!(!shown.out.contains("r00t") && shown.out.contains("(hidden)"), "{}", shown.out);
}

/// Behavior of Kafka without an authorizer (`AclApis` in its source). `thalweg acl` prepares entries, and reports that.
#[tokio::test]
async fn access_control_lists_are_refused_while_authorization_is_off() {
    let server = Server::start();
    let mut raw = Raw::connect(&server).await;
    let acl = AclCreation::default()
        .with_resource_type(2)
        .with_resource_name(text("t"))
        .with_resource_pattern_type(3)
        .with_principal(text("User:ann"))
        .with_host(text("*"))
        .with_operation(3)
        .with_permission_type(3);
    let created = raw.call(3, CreateAclsRequest::default().with_creations(vec![acl])).await;
    let any = DeleteAclsFilter::default()
        .with_resource_type_filter(1)
        .with_pattern_type_filter(1)
        .with_operation(1)
        .with_permission_type(1);
    let deleted = raw.call(3, DeleteAclsRequest::default().with_filters(vec![any])).await;
    let any = DescribeAclsRequest::default()
        .with_resource_type_filter(1)
        .with_pattern_type_filter(1)
        .with_operation(1)
        .with_permission_type(1);
    let described = raw.call(3, any).await;
    let codes = [created.results[0].error_code, deleted.filter_results[0].error_code, described.error_code];
    assert_eq!(codes, [54; 3]);
    assert!(described.error_message.is_some_and(|message| message.contains("No Authorizer is configured")));
    let prepared = command::on(&server, ["acl", "add", "User:ann", "read", "topic", "t"]);
    assert!(prepared.code == Some(0) && prepared.err.contains("authorization is off"), "{}", prepared.err);
}
