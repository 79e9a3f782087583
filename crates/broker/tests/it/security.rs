//! Users and access control lists of a broker: authentication, authorization and durability.

use std::path::Path;
use std::sync::Arc;

use broker::{Broker, ConfiguredUser, Door, Holding, Identity, LoginSource, SecuritySettings, Settings, Usage};
use engine::ErrorKind;
use engine::ids::{AUDIT_TOPIC, INTERNAL_TOPICS};
use engine::limits::{ACLS_MAX, OWN_TOKEN_LIFETIME_MS_MAX, OWN_TOKENS_PER_USER_MAX};
use engine::security::{
    Acl, AclFilter, Credential, Mechanism, Operation, Pattern, PatternKind, Principal, QuotaEntity, QuotaKind,
    QuotaSubject, Resource, ResourceKind, RoleName, TenantName, Token, TokenText, UserName,
};

use crate::durable::open_with;
use crate::support::{start, within};

fn name(name: &str) -> UserName {
    UserName::parse(name).expect("a name")
}

fn credential(mechanism: Mechanism, password: &str) -> Credential {
    Credential::of_password(mechanism, password, vec![5; 16], 4096).expect("a credential")
}

fn allow(user: &str, operation: Operation, topic: &str) -> Acl {
    Acl {
        pattern: Pattern { kind: ResourceKind::Topic, name: topic.into(), matching: PatternKind::Literal },
        principal: Principal::User(name(user)),
        host: "*".into(),
        operation,
        is_allowed: true,
    }
}

fn settings() -> Settings {
    let user = |user: &str| ConfiguredUser { name: name(user), password: format!("{user}'s").into() };
    let security = SecuritySettings {
        users: vec![user("root"), user("app")],
        super_users: vec![name("root")],
        is_authorizing: true,
        ..SecuritySettings::default()
    };
    Settings { security, ..Settings::default() }
}

/// Source of the logins in these tests.
const SOURCE: LoginSource = LoginSource { door: Door::Kafka, address: None };

async fn log_in(broker: &Broker, user: &str, password: &str) -> Result<String, ErrorKind> {
    let user = within("a login", broker.security.log_in(name(user), password.into(), SOURCE)).await;
    user.map(|identity| identity.user().to_string()).map_err(|error| error.kind)
}

fn may(broker: &Broker, user: &str, operation: Operation, topic: &str) -> bool {
    let identity = Identity::new(name(user), [], "127.0.0.1");
    let outcome = broker.security.authorize(&identity, operation, &Resource::topic(topic));
    assert!(outcome.as_ref().err().is_none_or(|error| error.kind == ErrorKind::Denied));
    outcome.is_ok()
}

fn reopen(dir: &Path) -> Arc<Broker> {
    open_with(dir, settings())
}

#[tokio::test]
async fn users_of_the_configuration_come_in_and_do_not_change() {
    let broker = start(settings());
    assert_eq!(log_in(&broker, "app", "app's").await, Ok("app".into()));
    for (user, password) in [("app", "root's"), ("nobody", "app's")] {
        assert_eq!(log_in(&broker, user, password).await, Err(ErrorKind::Denied));
    }
    let put = vec![(name("app"), credential(Mechanism::Sha256, "mine"))];
    assert_eq!(broker.security.put_credentials(put).await.expect_err("refused").kind, ErrorKind::Invalid);
    let gone = vec![(name("app"), Mechanism::Sha256)];
    assert_eq!(broker.security.delete_credentials(gone).await.expect_err("refused").kind, ErrorKind::Invalid);
    assert!(may(&broker, "root", Operation::Write, "t") && !may(&broker, "app", Operation::Write, "t"));
    let users = broker.security.users().await.expect("users");
    assert_eq!(
        users.iter().map(|user| (user.is_configured, user.is_super)).collect::<Vec<_>>(),
        [(true, false), (true, true)]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_survive_a_restart() {
    let dir = tempfile::tempdir().expect("a folder");
    let broker = reopen(dir.path());
    let both = Mechanism::ALL.map(|mechanism| (name("ann"), credential(mechanism, "pencil")));
    broker.security.put_credentials(both.to_vec()).await.expect("kept");
    broker.security.put_credentials(vec![(name("bob"), credential(Mechanism::Sha512, "b"))]).await.expect("kept");
    broker.security.create_acls(vec![allow("ann", Operation::Read, "t"); 2]).await.expect("kept");
    broker.security.create_acls(vec![allow("ann", Operation::Write, "t")]).await.expect("kept");
    assert!(may(&broker, "ann", Operation::Read, "t") && may(&broker, "ann", Operation::Write, "t"));
    broker.security.delete_credentials(vec![(name("bob"), Mechanism::Sha512)]).await.expect("gone");
    let filter = AclFilter { operation: Some(Operation::Write), ..AclFilter::default() };
    let gone = broker.security.delete_acls(vec![filter.clone(), filter], |_| true).await.expect("gone");
    assert_eq!(gone, vec![vec![allow("ann", Operation::Write, "t")]; 2]);
    drop(broker);

    for _ in 0..2 {
        let broker = reopen(dir.path());
        assert!(!may(&broker, "ann", Operation::Read, "t"), "nothing is allowed before it was read");
        assert_eq!(log_in(&broker, "ann", "pencil").await, Ok("ann".into()));
        assert_eq!(log_in(&broker, "bob", "b").await, Err(ErrorKind::Denied));
        assert!(may(&broker, "ann", Operation::Read, "t") && !may(&broker, "ann", Operation::Write, "t"));
        assert_eq!(
            broker.security.acls(&AclFilter::default()).await.expect("read"),
            [allow("ann", Operation::Read, "t")]
        );
        // No client can read the topic of users, or see that it exists.
        assert!(broker.list_topics("", 100, |_| true).0.is_empty());
        assert_eq!(broker.describe_topic("_security").expect_err("hidden").kind, ErrorKind::NotFound);
        assert!(broker.create_topic("_security", engine::TopicSettings::of_broker()).await.is_err());
        assert!(
            broker
                .topic_by_id(engine::TopicId::new(
                    u64::from_be_bytes(broker.cluster_id()[..8].try_into().expect("eight bytes")),
                    0
                ))
                .is_err()
        );
    }
}

/// Roles and their members are restored after a restart, like the entries themselves.
#[tokio::test(flavor = "multi_thread")]
async fn members_of_roles_survive_a_restart() {
    let dir = tempfile::tempdir().expect("a folder");
    let role = |name| RoleName::parse(name).expect("a name");
    let of_role = Acl { principal: Principal::Role(role("sales")), ..allow("ann", Operation::Read, "t") };
    let broker = reopen(dir.path());
    broker.security.create_acls(vec![of_role]).await.expect("kept");
    for (user, given) in [("ann", "sales"), ("ann", "publisher"), ("bob", "sales")] {
        broker.security.set_member(name(user), role(given), true).await.expect("kept");
    }
    broker.security.set_member(name("bob"), role("sales"), false).await.expect("gone");
    broker.security.set_member(name("eve"), role("sales"), false).await.expect("there was nothing to do");
    assert!(may(&broker, "ann", Operation::Read, "t") && !may(&broker, "bob", Operation::Read, "t"));
    drop(broker);

    let broker = reopen(dir.path());
    assert!(!may(&broker, "ann", Operation::Read, "t"), "nothing is allowed before it was read");
    let members = broker.security.members().await.expect("read");
    assert_eq!(members, [(name("ann"), vec![role("publisher"), role("sales")])]);
    assert!(may(&broker, "ann", Operation::Read, "t") && may(&broker, "ann", Operation::Write, "any"));
    assert!(!may(&broker, "ann", Operation::Read, "any") && !may(&broker, "bob", Operation::Read, "t"));
}

/// Between two restores, connected clients keep their permissions, and nothing that was changed is lost.
#[tokio::test(flavor = "multi_thread")]
async fn users_and_lists_are_forgotten_and_read_again() {
    let dir = tempfile::tempdir().expect("a folder");
    let broker = reopen(dir.path());
    for round in 0..4 {
        let user = format!("user{round}");
        broker.security.put_credentials(vec![(name(&user), credential(Mechanism::Sha256, "p"))]).await.expect("kept");
        broker.security.create_acls(vec![allow(&user, Operation::Read, "t")]).await.expect("kept");
        broker.forget_views().await.expect("restored");
        assert!(may(&broker, &user, Operation::Read, "t"), "a connected client stays");
        assert_eq!(log_in(&broker, &user, "p").await, Ok(user.clone()));
        assert_eq!(log_in(&broker, "app", "app's").await, Ok("app".into()), "so do users of the configuration");
        assert!(may(&broker, &user, Operation::Read, "t") && !may(&broker, &user, Operation::Write, "t"));
        assert_eq!(broker.security.users().await.expect("read").len(), 3 + round);
        assert_eq!(broker.security.acls(&AclFilter::default()).await.expect("read").len(), 1 + round);
    }
    broker.security.delete_credentials(vec![(name("user0"), Mechanism::Sha256)]).await.expect("gone");
    broker.forget_views().await.expect("restored");
    assert_eq!(log_in(&broker, "user0", "p").await, Err(ErrorKind::Denied));
}

#[tokio::test]
async fn a_scram_exchange_of_somebody_unknown_looks_like_any_other() {
    let broker = start(settings());
    let begin = async |user: &str| {
        let first = format!("n,,n={user},r=abc");
        let (exchange, answer) =
            broker.security.begin_scram(Mechanism::Sha256, first.as_bytes()).await.expect("a challenge");
        let answer = String::from_utf8(answer).expect("text");
        let salt = answer.split(",s=").nth(1).and_then(|rest| rest.split(',').next()).expect("a salt").to_owned();
        assert!(answer.starts_with("r=abc") && answer.ends_with(",i=4096"), "{answer}");
        let nonce = answer[2..].split(',').next().expect("a nonce").to_owned();
        let last = format!("c=biws,r={nonce},p={}=", "A".repeat(43));
        (salt, broker.security.finish_scram(exchange, last.as_bytes(), SOURCE).await.expect_err("a wrong proof"))
    };
    let known = begin("app").await;
    let unknown = begin("nobody").await;
    assert_eq!((known.1.kind, known.1), (ErrorKind::Denied, unknown.1));
    assert_eq!(unknown.0.len(), known.0.len());
    // The salt of an unknown user does not change between attempts, like that of an existing user.
    assert!(begin("nobody").await.0 == unknown.0 && begin("somebody").await.0 != unknown.0);
}

#[tokio::test]
async fn nothing_is_asked_where_nothing_is_set() {
    let broker = start(Settings::default());
    assert!(!broker.is_authorizing() && may(&broker, "ANONYMOUS", Operation::Delete, "t"));
    // Without a disk, changes are kept until the broker stops.
    broker.security.put_credentials(vec![(name("ann"), credential(Mechanism::Sha256, "x"))]).await.expect("kept");
    assert_eq!(log_in(&broker, "ann", "x").await, Ok("ann".into()));
    let missing = broker.security.delete_credentials(vec![(name("ann"), Mechanism::Sha512)]).await;
    assert_eq!(missing.expect_err("she has none").kind, ErrorKind::NotFound);
}

/// The broker's own secrets are durable, and are in no topic that can be read.
#[tokio::test]
async fn secrets_last_and_are_read_by_no_request() {
    let temp = tempfile::tempdir().expect("a folder");
    {
        let broker = open_with(temp.path(), Settings::default());
        assert_eq!(broker.security.secret("key").await.expect("read"), None);
        broker.security.put_secret("key", b"one").await.expect("kept");
        broker.security.put_secret("key", b"two").await.expect("kept");
        assert!(broker.security.put_secret("long", &vec![0; 1 << 20]).await.is_err());
        for count in 1..64 {
            broker.security.put_secret(&format!("{count}"), b"").await.expect("kept");
        }
        assert_eq!(broker.security.put_secret("more", b"").await.expect_err("full").kind, ErrorKind::Busy);
        broker.stop().expect("stopped");
    }
    let broker = open_with(temp.path(), Settings::default());
    assert_eq!(broker.security.secret("key").await.expect("read").as_deref(), Some(&b"two"[..]));
    let wait = std::time::Duration::ZERO;
    let hidden = broker.fetch("_security", 0, 0, 1 << 20, wait).await.expect_err("hidden");
    assert_eq!(hidden.kind, ErrorKind::Denied);
}

/// Clients without a name have no permissions: with access control lists, they can read no internal topic.
#[tokio::test]
async fn clients_without_a_name_read_no_internal_topic_of_a_broker_with_lists() {
    for (is_authorizing, refused) in [(false, &["_queues", "_caches"][..]), (true, &INTERNAL_TOPICS[..])] {
        let security = SecuritySettings { is_authorizing, ..SecuritySettings::default() };
        let broker = start(Settings { security, ..Settings::default() });
        for topic in INTERNAL_TOPICS {
            let fetched = broker.fetch(topic, 0, 0, 1 << 20, std::time::Duration::ZERO).await.expect_err("not there");
            // Who may read the audit is decided by its name: see `the_topic_is_read_by_name_and_changed_by_no_client`.
            let is_refused = topic != AUDIT_TOPIC && (refused.contains(&topic) || topic == "_security");
            assert_eq!(fetched.kind == ErrorKind::Denied, is_refused, "{topic} {is_authorizing}: {fetched}");
        }
    }
}

/// Tokens survive a restart, and end with their user, with their deletion and with their time.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_kept_until_they_end() {
    let dir = tempfile::tempdir().expect("a folder");
    let broker = reopen(dir.path());
    let text = |fill: u8| TokenText::of_random(&[fill; TokenText::RANDOM_BYTES]);
    let token = |user: &str, fill: u8| {
        let expires_ms = Some(broker.now_ms() + 60_000);
        Token { user: name(user), roles: Vec::new(), created_ms: 0, expires_ms, hash: text(fill).hash(), is_own: false }
    };
    broker.security.put_credentials(vec![(name("ann"), credential(Mechanism::Sha256, "pencil"))]).await.expect("kept");
    for (user, fill) in [("ann", 1), ("ann", 2), ("bob", 3)] {
        broker.security.put_token(text(fill).id, token(user, fill)).await.expect("kept");
    }
    let again = broker.security.put_token(text(3).id, token("eve", 3)).await.expect_err("it exists");
    assert_eq!(again.kind, ErrorKind::AlreadyExists);
    let late = Token { expires_ms: Some(1), ..token("bob", 4) };
    assert_eq!(broker.security.put_token(text(4).id, late).await.expect_err("expired").kind, ErrorKind::Invalid);
    broker.security.delete_token(text(1).id).await.expect("gone");
    assert_eq!(broker.security.delete_token(text(1).id).await.expect_err("gone").kind, ErrorKind::NotFound);
    drop(broker);

    let broker = reopen(dir.path());
    let log_in = async |fill: u8| {
        let outcome = broker.security.log_in_with_token(&text(fill).reveal(), None, SOURCE).await;
        outcome.map_err(|error| error.kind)
    };
    let of_ann = log_in(2).await.expect("it is right");
    let of_bob = log_in(3).await.expect("it is right");
    assert_eq!((of_ann.user(), of_bob.user()), (&name("ann"), &name("bob")));
    assert_eq!(log_in(1).await.err(), Some(ErrorKind::Denied));
    assert!(broker.security.is_valid(&of_ann) && broker.security.is_valid(&of_bob));
    broker.security.delete_credentials(vec![(name("ann"), Mechanism::Sha256); 2]).await.expect("gone");
    assert!(!broker.security.is_valid(&of_ann) && broker.security.is_valid(&of_bob));
    assert_eq!(log_in(2).await.err(), Some(ErrorKind::Denied));
    let root = broker.security.log_in(name("root"), "root's".into(), SOURCE).await.expect("it is right");
    let kept = broker.security.tokens(&root).await.expect("read");
    assert_eq!(kept.iter().map(|(id, token)| (*id, &token.user)).collect::<Vec<_>>(), [(text(3).id, &name("bob"))]);
}

/// A user who has logged in with a password creates tokens for themselves, which end with that password.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_creates_tokens_that_end_with_the_password() {
    let dir = tempfile::tempdir().expect("a folder");
    let broker = reopen(dir.path());
    let text = |fill: u8| TokenText::of_random(&[fill; TokenText::RANDOM_BYTES]);
    let soon = broker.now_ms() + 60_000;
    let put_password = async |broker: &Arc<Broker>, password: &str| {
        let credentials = vec![(name("ann"), credential(Mechanism::Sha256, password))];
        broker.security.put_credentials(credentials).await.expect("kept");
    };
    put_password(&broker, "pencil").await;
    let create = async |broker: &Arc<Broker>, identity: &Identity, fill: u8, expires_ms: u64| {
        let outcome = broker.security.put_own_token(identity, text(fill).id, text(fill).hash(), expires_ms).await;
        outcome.map(|user| user.to_string()).map_err(|error| error.kind)
    };
    let log_in = async |broker: &Arc<Broker>, fill: u8| {
        let outcome = broker.security.log_in_with_token(&text(fill).reveal(), None, SOURCE).await;
        outcome.map_err(|error| error.kind)
    };
    let ann = broker.security.log_in(name("ann"), "pencil".into(), SOURCE).await.expect("it is right");
    assert_eq!(create(&broker, &ann, 1, soon).await, Ok("ann".into()));
    assert_eq!(create(&broker, &ann, 1, soon).await, Err(ErrorKind::AlreadyExists));
    let too_late = soon + OWN_TOKEN_LIFETIME_MS_MAX;
    for expires_ms in [0, too_late, u64::MAX] {
        assert_eq!(create(&broker, &ann, 2, expires_ms).await, Err(ErrorKind::Invalid), "{expires_ms}");
    }
    // Neither a token nor an unproved name is enough.
    let of_token = log_in(&broker, 1).await.expect("it is right");
    for other in [&of_token, &Identity::new(name("ann"), [], "h"), &Identity::anonymous("h")] {
        assert_eq!(create(&broker, other, 3, soon).await, Err(ErrorKind::Denied));
    }
    drop(broker);

    // It survives a restart, and has the rights of its user and no others.
    let broker = reopen(dir.path());
    let of_token = log_in(&broker, 1).await.expect("it is right");
    let may = |operation| broker.security.allows(&of_token, operation, &Resource::topic("t"));
    assert!(!may(Operation::Read));
    broker.security.create_acls(vec![allow("ann", Operation::Read, "t")]).await.expect("kept");
    assert!(may(Operation::Read) && !may(Operation::Write));

    // It sees and deletes tokens of its own kind and user, and no others.
    let given = |user: &str, fill: u8| {
        let (user, hash) = (name(user), text(fill).hash());
        Token { user, roles: Vec::new(), created_ms: 0, expires_ms: Some(soon), hash, is_own: false }
    };
    for (user, fill) in [("ann", 11), ("bob", 12)] {
        broker.security.put_token(text(fill).id, given(user, fill)).await.expect("kept");
    }
    let seen = broker.security.tokens(&of_token).await.expect("read");
    assert_eq!(seen.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [text(1).id, text(11).id]);
    let may_delete = |identity: &Identity, fill: u8| {
        broker.security.authorize_token_deletion(identity, &text(fill).id).map_err(|error| error.kind)
    };
    assert_eq!(may_delete(&of_token, 1), Ok(()));
    for fill in [11, 12, 99] {
        assert_eq!(may_delete(&of_token, fill), Err(ErrorKind::Denied), "{fill}");
    }
    let app = broker.security.log_in(name("app"), "app's".into(), SOURCE).await.expect("it is right");
    assert_eq!(may_delete(&app, 1), Err(ErrorKind::Denied));
    assert_eq!(may_delete(&Identity::new(name("ann"), [], "h"), 1), Err(ErrorKind::Denied), "an unproved name");
    let of_given = log_in(&broker, 11).await.expect("it is right");
    assert_eq!(may_delete(&of_given, 11), Ok(()), "the one with which it has logged in");

    // A password that was guessed once does not live on in a token.
    put_password(&broker, "crayon").await;
    assert!(!broker.security.is_valid(&of_token) && broker.security.is_valid(&of_given));
    assert_eq!(log_in(&broker, 1).await.err(), Some(ErrorKind::Denied));
    drop(broker);
    let broker = reopen(dir.path());
    assert_eq!(log_in(&broker, 1).await.err(), Some(ErrorKind::Denied));
    assert!(log_in(&broker, 11).await.is_ok());
}

/// A user of the configuration who is removed from it loses the tokens of their own.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_refused_when_its_user_has_left_the_configuration() {
    let dir = tempfile::tempdir().expect("a folder");
    let text = TokenText::of_random(&[7; TokenText::RANDOM_BYTES]);
    let broker = reopen(dir.path());
    let app = broker.security.log_in(name("app"), "app's".into(), SOURCE).await.expect("it is right");
    let soon = broker.now_ms() + 60_000;
    broker.security.put_own_token(&app, text.id, text.hash(), soon).await.expect("kept");
    assert!(broker.security.log_in_with_token(&text.reveal(), None, SOURCE).await.is_ok());
    drop((app, broker));

    let mut without = settings();
    without.security.users.retain(|user| user.name != name("app"));
    let broker = open_with(dir.path(), without);
    let refused = broker.security.log_in_with_token(&text.reveal(), None, SOURCE).await.expect_err("no user");
    assert!(refused.message.contains("no password any more"), "{refused}");
}

/// A user has a limited number of tokens of their own; expired ones make room.
#[tokio::test]
async fn the_tokens_of_one_user_are_bounded() {
    let broker = start(settings());
    let app = broker.security.log_in(name("app"), "app's".into(), SOURCE).await.expect("it is right");
    let create = async |fill: u8, lifetime_ms: u64| {
        let text = TokenText::of_random(&[fill; TokenText::RANDOM_BYTES]);
        let expires_ms = broker.now_ms() + lifetime_ms;
        broker.security.put_own_token(&app, text.id, text.hash(), expires_ms).await
    };
    for fill in 1..OWN_TOKENS_PER_USER_MAX as u8 {
        create(fill, 60_000).await.expect("kept");
    }
    create(100, 50).await.expect("kept");
    let refused = create(101, 60_000).await;
    if let Err(error) = &refused {
        assert_eq!(error.kind, ErrorKind::Busy, "{error}");
        let begin = std::time::Instant::now();
        while create(101, 60_000).await.is_err() {
            assert!(begin.elapsed().as_secs() < 20, "the expired one makes room");
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
    assert!(create(102, 60_000).await.expect_err("full").message.contains("thalweg token delete"));
    let root = broker.security.log_in(name("root"), "root's".into(), SOURCE).await.expect("it is right");
    assert_eq!(broker.security.tokens(&root).await.expect("read").len(), OWN_TOKENS_PER_USER_MAX);
}

/// A door that authorized a change of one resource, or of one user, changes nothing else.
#[tokio::test]
async fn replaced_entries_are_those_of_a_filter_and_no_others() {
    let broker = start(settings());
    let old = [allow("app", Operation::Read, "t"), allow("app", Operation::Read, "u")];
    broker.security.create_acls(old.to_vec()).await.expect("added");
    let of_topic = || AclFilter::of_pattern(allow("app", Operation::Read, "t").pattern);
    let replace = async |filter: AclFilter, after: Vec<Acl>| {
        broker
            .security
            .replace_acls(filter, |_| Ok((after.into_iter().collect(), ())))
            .await
            .map_err(|error| error.kind)
    };
    let all = async || broker.security.acls(&AclFilter::default()).await.expect("listed");
    let on = |kind, name: &str| Acl {
        pattern: Pattern { kind, name: name.into(), matching: PatternKind::Literal },
        ..allow("app", Operation::All, "t")
    };
    let prefix = Pattern { matching: PatternKind::Prefix, ..allow("app", Operation::Read, "t").pattern };
    for outside in [
        allow("app", Operation::Write, "u"),
        on(ResourceKind::Cluster, Resource::CLUSTER_NAME),
        on(ResourceKind::Queue, "t"),
        Acl { pattern: prefix, ..allow("app", Operation::Write, "t") },
    ] {
        let both = vec![allow("app", Operation::Write, "t"), outside.clone()];
        assert_eq!(replace(of_topic(), both).await, Err(ErrorKind::Denied), "{outside:?}");
    }
    let of_user = AclFilter::of_principal(Principal::User(name("app")));
    assert_eq!(replace(of_user, vec![allow("other", Operation::Read, "t")]).await, Err(ErrorKind::Denied));
    // It would be read back as everyone.
    assert_eq!(replace(of_topic(), vec![allow("*", Operation::Read, "t")]).await, Err(ErrorKind::Invalid));
    assert_eq!(all().await, old);
    replace(of_topic(), vec![allow("app", Operation::Write, "t")]).await.expect("replaced");
    assert_eq!(all().await, [allow("app", Operation::Write, "t"), allow("app", Operation::Read, "u")]);
    assert!(may(&broker, "app", Operation::Write, "t") && !may(&broker, "app", Operation::Read, "t"));
}

#[tokio::test]
async fn entries_for_which_there_is_no_room_replace_nothing() {
    let broker = start(settings());
    let many = (0..ACLS_MAX).map(|at| allow("app", Operation::Read, &format!("t{at}")));
    broker.security.create_acls(many.collect()).await.expect("there is room");
    let filter = AclFilter::of_pattern(allow("app", Operation::Read, "t0").pattern);
    let more = [allow("app", Operation::Write, "t0"), allow("app", Operation::Delete, "t0")];
    let full = broker.security.replace_acls(filter, |_| Ok((more.into(), ()))).await.expect_err("it is full");
    assert!(full.kind == ErrorKind::Busy && full.message.contains("delete some first"), "{full}");
    assert!(may(&broker, "app", Operation::Read, "t0") && !may(&broker, "app", Operation::Write, "t0"));
}

#[tokio::test]
async fn users_of_a_tenant_share_its_quotas_in_addition_to_their_own() {
    let broker = start(settings());
    let security = &broker.security;
    let acme = TenantName::parse("acme").expect("a name");
    for user in ["root", "app"] {
        security.assign_tenant(name(user), acme.clone()).await.expect("assigned");
    }
    let of = |subject| QuotaEntity { subject: Some(subject), ..QuotaEntity::default() };
    let [tenant, app] = [QuotaSubject::Tenant(acme), QuotaSubject::User(name("app"))].map(of);
    let quota = |entity: &QuotaEntity, kind, value| (entity.clone(), kind, Some(value));
    let quotas = vec![
        quota(&tenant, QuotaKind::Requests, 10.0),
        quota(&app, QuotaKind::Requests, 1000.0),
        quota(&tenant, QuotaKind::OpenConnections, 2.0),
        quota(&app, QuotaKind::OpenConnections, 1.0),
    ];
    security.change_quotas(quotas).await.expect("set");
    let log_in = async |user: &str| {
        within("a login", security.log_in(name(user), format!("{user}'s").into(), SOURCE)).await.expect("it is right")
    };
    let [root, app] = [log_in("root").await, log_in("app").await];
    let requests = |count| Usage { requests: count, ..Usage::default() };
    // Both have used what the tenant may use at once, though the quota of one of them alone is much higher.
    assert!(security.charge(Door::Kafka, &root, None, requests(5)).is_zero());
    assert!(security.charge(Door::Kafka, &app, None, requests(5)).is_zero());
    assert!(!security.charge(Door::Kafka, &app, None, requests(5)).is_zero());
    assert!(security.admit(Door::Http, &root, requests(1), false).expect_err("the other has used it").is_throttled());
    let open = |identity| security.hold(Door::Kafka, identity, Holding::Connection);
    let first = open(&app).expect("room");
    assert!(open(&app).expect_err("her own quota").message.contains("User:app has 1 open connections"));
    let second = open(&root).expect("room");
    assert!(open(&root).expect_err("that of the tenant").message.contains("tenant acme has 2 open connections"));
    drop((first, second));
    assert!(open(&root).is_ok());
}
