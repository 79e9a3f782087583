//! Which quota is effective, against a naive model, and the arithmetic of buckets.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;

const S: u64 = NS_PER_S;

fn user(name: &str) -> UserName {
    UserName::parse(name).expect("a name")
}

fn tenant(name: &str) -> TenantName {
    TenantName::parse(name).expect("a name")
}

fn role(name: &str) -> RoleName {
    RoleName::parse(name).expect("a name")
}

/// Parses `user=ann client=* role=r tenant=t address=*`.
fn entity(text: &str) -> QuotaEntity {
    let mut entity = QuotaEntity::default();
    for (kind, name) in text.split(' ').filter_map(|word| word.split_once('=')) {
        match (kind, name) {
            ("user", "*") => entity.subject = Some(QuotaSubject::EachUser),
            ("user", name) => entity.subject = Some(QuotaSubject::User(user(name))),
            ("role", name) => entity.subject = Some(QuotaSubject::Role(role(name))),
            ("tenant", name) => entity.subject = Some(QuotaSubject::Tenant(tenant(name))),
            ("client", "*") => entity.client = Some(Which::Default),
            ("client", name) => entity.client = Some(Which::One(name.into())),
            ("address", "*") => entity.address = Some(Which::Default),
            (_, name) => entity.address = Some(Which::One(name.parse().expect("an address"))),
        }
    }
    entity
}

fn quotas(entries: &[(&str, f64)]) -> Quotas {
    let mut quotas = Quotas::default();
    entries.iter().for_each(|(text, value)| quotas.set(entity(text), QuotaKind::BytesIn, *value));
    quotas
}

/// The order of `ClientQuotaManager` in Kafka's source, each more specific than those after it.
#[test]
fn the_most_specific_quota_is_effective() {
    let order = [
        "user=ann client=app",
        "user=ann client=*",
        "user=ann",
        "role=ops client=app",
        "role=ops client=*",
        "role=ops",
        "user=* client=app",
        "user=* client=*",
        "user=*",
        "client=app",
        "client=*",
    ];
    let ops = role("ops");
    let find = |quotas: &Quotas, name: &str, client| {
        quotas.of_client(&user(name), [&ops], client, QuotaKind::BytesIn).map(|(key, value)| (key.entity, value))
    };
    for first in 0..order.len() {
        let all: Vec<(&str, f64)> =
            order[first..].iter().copied().zip(1..).map(|(text, n)| (text, f64::from(n))).collect();
        assert_eq!(find(&quotas(&all), "ann", Some("app")), Some((entity(order[first]), 1.0)), "{}", order[first]);
    }
    let all: Vec<(&str, f64)> = order.iter().map(|text| (*text, 1.0)).collect();
    let of = |name, client| find(&quotas(&all), name, client).expect("a quota").0;
    assert_eq!(of("ann", Some("other")), entity("user=ann client=*"));
    assert_eq!(of("ann", None), entity("user=ann"), "a client of another door has no client id");
    assert_eq!(of("bob", None), entity("role=ops"));
    let other = quotas(&all).of_client(&user("bob"), [], Some("app"), QuotaKind::Requests);
    assert_eq!(other, None, "each kind has its own quotas");
}

#[test]
fn buckets_belong_to_those_who_have_the_rate_alone() {
    let bucket = |text: &str, name: &str, client: &str| {
        let (key, _) = quotas(&[(text, 1.0)])
            .of_client(&user(name), [&role("ops")], Some(client), QuotaKind::BytesIn)
            .expect("a quota");
        key
    };
    for (text, is_per_user, is_per_client) in [
        ("user=*", true, false),
        ("role=ops", true, false),
        ("client=*", false, true),
        ("user=* client=*", true, true),
        ("role=ops client=*", true, true),
        ("user=* client=a", true, false),
        ("client=a", false, false),
    ] {
        assert_eq!(bucket(text, "ann", "a") != bucket(text, "bob", "a"), is_per_user, "{text}");
        if !text.contains("client=a") {
            assert_eq!(bucket(text, "ann", "a") != bucket(text, "ann", "b"), is_per_client, "{text}");
        }
        assert_eq!(bucket(text, "ann", "a").shared(), bucket(text, "bob", "a").shared());
    }
    let long = "x".repeat(40_000);
    let key = bucket("client=*", "ann", &long);
    assert_eq!(key.client.map(|client| client.len()), Some(QUOTA_CLIENT_BYTES_MAX));
}

#[test]
fn an_address_has_its_own_quota_or_that_of_each() {
    let quotas = quotas(&[("address=10.0.0.1", 5.0), ("address=*", 1.0)]);
    let of = |address: &str| quotas.of_address(address.parse().expect("an address"), QuotaKind::BytesIn).expect("one");
    assert_eq!((of("10.0.0.1").1, of("::ffff:10.0.0.1").1, of("10.0.0.2").1), (5.0, 5.0, 1.0));
    assert_ne!(of("10.0.0.2").0, of("10.0.0.3").0);
    assert_eq!(of("2001:db8::1").0, of("2001:db8::2").0, "one client may use all addresses of its network");
    assert_ne!(of("2001:db8::1").0, of("2001:db8:0:1::1").0);
    assert_eq!(quotas.of_client(&user("ann"), [], None, QuotaKind::BytesIn), None);
}

#[test]
fn wrong_quotas_are_refused() {
    for (text, kind, value) in [
        ("user=ann", QuotaKind::BytesIn, 0.0),
        ("user=ann", QuotaKind::BytesIn, -1.0),
        ("user=ann", QuotaKind::BytesIn, f64::NAN),
        ("user=ann", QuotaKind::Requests, f64::INFINITY),
        ("user=ann", QuotaKind::BytesOut, 1.5),
        ("user=ann", QuotaKind::BytesOut, 1e19),
        ("address=*", QuotaKind::Connections, 2_147_483_648.0),
        ("user=ann", QuotaKind::Connections, 1.0),
        ("user=ann address=*", QuotaKind::Requests, 1.0),
        ("", QuotaKind::Requests, 1.0),
    ] {
        assert!(entity(text).validate_value(kind, value).is_err(), "{text} {kind:?} {value}");
    }
    let no_name = QuotaEntity { client: Some(Which::One("".into())), ..QuotaEntity::default() };
    let too_long = Which::One("x".repeat(QUOTA_CLIENT_BYTES_MAX + 1).into());
    let too_long = QuotaEntity { client: Some(too_long), ..QuotaEntity::default() };
    assert!(no_name.validate().is_err() && too_long.validate().is_err());
    assert_eq!(entity("user=* client=*").validate_value(QuotaKind::Requests, 0.5), Ok(()));
    assert_eq!(entity("address=*").validate_value(QuotaKind::Connections, 3.0), Ok(()));
    assert_eq!(entity("user=ann client=app").to_string(), "user ann, client app");
}

#[test]
fn the_table_is_bounded_and_counts_its_quotas() {
    let mut quotas = Quotas::default();
    let name = |n: usize| entity(&format!("user=u{n}"));
    (0..QUOTAS_MAX).for_each(|n| quotas.set(name(n), QuotaKind::Requests, 1.0));
    quotas.set(name(0), QuotaKind::Requests, 2.0);
    assert_eq!(quotas.len(), QUOTAS_MAX);
    assert!(quotas.check_room(1).is_err() && quotas.check_room(0).is_ok());
    quotas.remove(&name(0), QuotaKind::BytesIn);
    quotas.remove(&name(1), QuotaKind::Requests);
    assert_eq!((quotas.len(), quotas.check_room(1)), (QUOTAS_MAX - 1, Ok(())));
    assert_eq!(quotas.iter().next(), Some((&name(0), vec![(QuotaKind::Requests, 2.0)])));
}

#[test]
fn a_bucket_saves_a_second_and_then_delays() {
    let begin = 100 * S;
    // Ten per second: ten at once are free, and each further one costs 0.1 s.
    let mut until = 0;
    (0..10).for_each(|_| until = charged_until(until, begin, 1, 10.0));
    assert_eq!(until, begin);
    until = charged_until(until, begin, 1, 10.0);
    assert_eq!(until, begin + S / 10);
    // After a pause of half a second there are tokens for four more.
    (0..4).for_each(|_| until = charged_until(until, begin + S / 2, 1, 10.0));
    assert_eq!(until, begin + S / 2);
    assert!(!is_full(until, begin + S) && is_full(until, begin + S * 3 / 2));
    // A charge larger than a second of the rate is made in full.
    assert_eq!(charged_until(0, begin, 300, 10.0), begin + 29 * S);
    assert_eq!(charged_until(0, begin, u64::MAX, 1.0), begin + DEBT_NS_MAX);
    assert_eq!(charged_until(0, begin, 1, f64::MIN_POSITIVE), begin + DEBT_NS_MAX);
}

#[test]
fn a_debt_is_paid_at_the_new_rate() {
    let now = 100 * S;
    assert_eq!(debt_at_rate(now + 600 * S, now, 1.0, 1000.0), now + 600 * S / 1000);
    assert_eq!(debt_at_rate(now + S, now, 10.0, 1.0), now + 10 * S);
    assert_eq!(debt_at_rate(now + S, now, 1e18, 1.0), now + DEBT_NS_MAX);
    assert_eq!(debt_at_rate(now - S, now, 1.0, 7.0), now - S, "tokens are saved as time");
}

fn entities() -> impl Strategy<Value = QuotaEntity> {
    let subjects = ["user=ann", "user=bob", "user=*", "role=r", "role=s", ""];
    let clients = ["client=a", "client=b", "client=*", ""];
    (0..subjects.len(), 0..clients.len())
        .prop_map(move |(subject, client)| entity(&format!("{} {}", subjects[subject], clients[client])))
        .prop_filter("not empty", |entity| entity.validate().is_ok())
}

proptest! {
    /// The model tests each quota whether it matches, and takes the one with the lowest rank and then the highest
    /// value.
    #[test]
    fn the_effective_quota_is_that_of_a_naive_model(
        entries in vec((entities(), 1..9u32), 0..12),
        name in prop::sample::select(vec!["ann", "bob", "eve"]),
        roles in prop::sample::subsequence(vec!["r", "s"], 0..=2),
        client in option::of(prop::sample::select(vec!["a", "b", "c"])),
    ) {
        let mut quotas = Quotas::default();
        entries.iter().for_each(|(entity, value)| quotas.set(entity.clone(), QuotaKind::Requests, f64::from(*value)));
        let rank = |entity: &QuotaEntity| {
            let of_subject = match &entity.subject {
                Some(QuotaSubject::User(user)) => (user.as_str() == name).then_some(0),
                Some(QuotaSubject::Role(role)) => roles.contains(&role.as_str()).then_some(1),
                Some(QuotaSubject::EachUser) => Some(2),
                Some(QuotaSubject::Tenant(_)) => None,
                None => Some(3),
            };
            let of_client = match &entity.client {
                Some(Which::One(id)) => (client == Some(&**id)).then_some(0),
                Some(Which::Default) => client.map(|_| 1),
                None => Some(2),
            };
            of_subject.zip(of_client)
        };
        let matching = quotas.iter().filter_map(|(entity, values)| Some((rank(entity)?, -values[0].1)));
        let expected = matching.min_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))).map(|(_, value)| -value);
        let roles: Vec<RoleName> = roles.iter().map(|name| role(name)).collect();
        let found = quotas.of_client(&user(name), &roles, client, QuotaKind::Requests).map(|(_, value)| value);
        prop_assert_eq!(found, expected);
    }

    /// However charges are spread, no more passes without delay than a second of the rate and what the time brought.
    #[test]
    fn no_more_passes_than_the_rate(
        rate in 1..1000u32,
        charges in vec((0..500u64, 0..2_000_000_000u64), 1..60),
    ) {
        let rate = f64::from(rate);
        let (mut until, mut now, mut passed) = (0, 10 * S, 0);
        let begin = now;
        for (amount, wait) in charges {
            now += wait;
            if until <= now {
                passed += amount;
                until = charged_until(until, now, amount, rate);
                // The last charge may exceed the tokens, and is paid later.
                let allowed = (now - begin) as f64 / S as f64 * rate + rate + amount as f64;
                prop_assert!(passed as f64 <= allowed * 1.000_001 + 1.0, "{passed} of {allowed}");
            }
        }
    }
}

#[test]
fn the_quota_of_a_tenant_is_that_of_no_client_and_shared_by_all_of_its_users() {
    let all = quotas(&[("tenant=acme", 5.0), ("user=ann", 3.0)]);
    let (key, value) = all.of_tenant(&tenant("acme"), QuotaKind::BytesIn).expect("a quota");
    assert_eq!((key.entity.clone(), key.clone().shared(), value), (entity("tenant=acme"), key, 5.0));
    assert_eq!(all.of_tenant(&tenant("acme"), QuotaKind::BytesOut), None);
    assert_eq!(all.of_tenant(&tenant("other"), QuotaKind::BytesIn), None);
    assert_eq!(all.of_client(&user("bob"), [], None, QuotaKind::BytesIn), None, "it is effective in addition");
}

#[test]
fn each_quota_is_of_those_who_can_have_it() {
    use QuotaKind::{
        BytesIn, Caches, Connections, OpenConnections, Queues, Requests, StoredBytes, Subscriptions, Topics,
    };
    let rates = [BytesIn, QuotaKind::BytesOut, Requests];
    let of_tenants = [Topics, Queues, Caches, StoredBytes];
    let holdings = [OpenConnections, Subscriptions];
    let cases: [(&str, &[&[QuotaKind]]); 7] = [
        ("user=ann", &[&rates, &holdings]),
        ("user=*", &[&rates, &holdings]),
        ("role=ops", &[&rates, &holdings]),
        ("tenant=acme", &[&rates, &holdings, &of_tenants]),
        ("user=ann client=app", &[&rates]),
        ("client=*", &[&rates]),
        ("address=*", &[&rates, &[Connections]]),
    ];
    for (text, kinds) in cases {
        for kind in QuotaKind::ALL {
            let is_valid = entity(text).validate_value(kind, 7.0).is_ok();
            assert_eq!(is_valid, kinds.concat().contains(&kind), "{text} {}", kind.name());
        }
    }
    assert!(entity("tenant=acme client=app").validate().is_err());
    assert!(entity("tenant=acme").validate_value(Topics, 1.5).is_err(), "a count is a whole number");
    for kind in QuotaKind::ALL {
        assert_eq!((QuotaKind::from_code(kind as u8), kind.name().parse()), (Some(kind), Ok(kind)));
    }
}
