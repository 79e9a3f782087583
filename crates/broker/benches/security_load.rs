//! Access control with 10,000 users and 100,000 entries: the time of a decision, until a change is visible, and of the
//! logins: `cargo bench -p thalweg-broker --bench security_load`. `docs/benchmarks/performance-model.md` has the rows.

use std::hint::black_box;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use broker::{Broker, Door, Identity, LoginSource, SecuritySettings, Settings};
use engine::security::{
    Acl, AclFilter, Credential, Mechanism, Operation, Pattern, PatternKind, Principal, Resource, ResourceKind, Token,
    TokenText, UserName,
};

/// Allocator of the server.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const USERS: usize = 10_000;
const ENTRIES_PER_USER: usize = 10;
const DECISIONS: u32 = 1_000_000;
const CHANGES: u32 = 20;
const LOGINS: u32 = 2000;
const SOURCE: LoginSource = LoginSource { door: Door::Kafka, address: None };

fn name(number: usize) -> UserName {
    UserName::parse(&format!("user{number}")).expect("a name")
}

fn acl(user: &UserName, topic: String, matching: PatternKind) -> Acl {
    Acl {
        pattern: Pattern { kind: ResourceKind::Topic, name: topic, matching },
        principal: Principal::User(user.clone()),
        host: "*".into(),
        operation: Operation::Read,
        is_allowed: true,
    }
}

fn report(what: &str, count: u32, took: Duration) {
    println!("{what:<60} {:>12.3} us", took.as_secs_f64() * 1e6 / f64::from(count));
}

/// Measures the decisions of one client about names that it may and may not read.
fn decide(broker: &Broker, what: &str, identity: &Identity, topics: &[String]) {
    let begun = Instant::now();
    for at in 0..DECISIONS as usize {
        let resource = Resource::topic(&topics[at % topics.len()]);
        black_box(broker.security.allows(identity, Operation::Read, &resource));
    }
    report(what, DECISIONS, begun.elapsed());
}

#[tokio::main]
async fn main() {
    let security = SecuritySettings { is_authorizing: true, ..SecuritySettings::default() };
    let settings = Settings { security, ..Settings::default() };
    let broker = Broker::start(settings, &[tokio::runtime::Handle::current()]).expect("a broker");
    let of_user = |user: usize| {
        let name = name(user);
        (0..ENTRIES_PER_USER).map(move |entry| {
            let matching = if entry % 2 == 0 { PatternKind::Literal } else { PatternKind::Prefix };
            acl(&name, format!("topic{user}.{entry}"), matching)
        })
    };
    for first in (0..USERS).step_by(1000) {
        broker.security.create_acls((first..first + 1000).flat_map(of_user).collect()).await.expect("created");
    }
    let many = UserName::parse("many").expect("a name");
    let entries = (0..1000).map(|entry| acl(&many, format!("many{entry}."), PatternKind::Prefix)).collect();
    broker.security.create_acls(entries).await.expect("created");
    println!("{} entries of {USERS} users", broker.security.acls(&AclFilter::default()).await.expect("read").len());

    let topics: Vec<String> = (0..20).map(|at| format!("topic77.{at}")).collect();
    let host = "10.0.0.1";
    decide(&broker, "decision, a user with 10 entries", &Identity::new(name(77), [], host), &topics);
    let of_many: Vec<String> = (0..2000).map(|at| format!("many{at}.orders")).collect();
    decide(&broker, "decision, a user with 1,000 entries", &Identity::new(many, [], host), &of_many);
    let begun = Instant::now();
    for user in 0..USERS {
        let identity = Identity::new(name(user), [], host);
        black_box(broker.security.allows(&identity, Operation::Read, &Resource::topic("topic77.0")));
    }
    report("first decision of a client", USERS as u32, begun.elapsed());

    let identity = Identity::new(name(5), [], host);
    let mut slowest = Duration::ZERO;
    let begun = Instant::now();
    for change in 0..CHANGES {
        let topic = format!("changed{change}");
        let changed = Instant::now();
        broker.security.create_acls(vec![acl(&name(5), topic.clone(), PatternKind::Literal)]).await.expect("created");
        assert!(broker.security.allows(&identity, Operation::Read, &Resource::topic(&topic)));
        slowest = slowest.max(changed.elapsed());
    }
    report("change until it is visible, in memory", CHANGES, begun.elapsed());
    report("the slowest of them", 1, slowest);

    let credential = Credential::of_password(Mechanism::Sha512, "secret", vec![7; 16], 4096).expect("a credential");
    broker.security.put_credentials(vec![(name(0), credential)]).await.expect("kept");
    let text = TokenText::of_random(&[9; TokenText::RANDOM_BYTES]);
    let token =
        Token { user: name(0), roles: Vec::new(), created_ms: 0, expires_ms: None, hash: text.hash(), is_own: false };
    broker.security.put_token(text.id, token).await.expect("kept");
    let text = text.reveal();
    let begun = Instant::now();
    for _ in 0..LOGINS {
        broker.security.log_in_with_token(&text, None, SOURCE).await.expect("it is right");
    }
    report("login with a token", LOGINS, begun.elapsed());
    let begun = Instant::now();
    for _ in 0..LOGINS {
        broker.security.log_in(name(0), "secret".into(), SOURCE).await.expect("it is right");
    }
    report("login with a password that is remembered", LOGINS, begun.elapsed());
    let begun = Instant::now();
    let wrong = 100;
    for at in 0..wrong {
        // Each from another address, and of another user, so that no pause adds to the time.
        let source = LoginSource { door: Door::Kafka, address: Some(IpAddr::from([10, 0, 0, at as u8])) };
        let refused = broker.security.log_in(name(at as usize + 1), format!("wrong{at}").into(), source).await;
        refused.expect_err("no such user");
    }
    report("login with a password that is hashed", wrong, begun.elapsed());
}
