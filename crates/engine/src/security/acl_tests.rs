//! Decisions of access control entries, and the entries that a filter matches.

use super::*;

/// Returns the principals of a user without roles.
fn user(name: &str) -> [Principal; 2] {
    [Principal::User(UserName::parse(name).expect("a name")), Principal::Everyone]
}

/// Parses `allow|deny PRINCIPAL OPERATION KIND NAME HOST`; a name that ends with `...` is a prefix, and one that begins
/// with `~` is a glob pattern.
fn acl(text: &str) -> Acl {
    let [is_allowed, principal, operation, kind, name, host] = text.split(' ').collect::<Vec<_>>()[..] else {
        panic!("six words: {text}");
    };
    let (name, matching) = match (name.strip_suffix("..."), name.strip_prefix('~')) {
        (Some(prefix), _) => (prefix, PatternKind::Prefix),
        (None, Some(glob)) => (glob, PatternKind::Glob),
        (None, None) => (name, PatternKind::Literal),
    };
    let acl = Acl {
        pattern: Pattern { kind: kind.parse().expect("a kind"), name: name.to_owned(), matching },
        principal: Principal::parse(principal).expect("a principal"),
        host: host.to_owned(),
        operation: operation.parse().expect("an operation"),
        is_allowed: is_allowed == "allow",
    };
    acl.validate().expect("it is valid");
    acl
}

fn acls(entries: &[&str]) -> Acls {
    let mut acls = Acls::default();
    entries.iter().for_each(|text| acls.insert(acl(text)));
    acls
}

#[test]
fn nothing_is_allowed_that_is_not_said() {
    let acls = acls(&["allow User:ann read topic orders *"]);
    let may = |name, operation, topic| acls.allow(&user(name), "10.0.0.1", operation, &Resource::topic(topic));
    assert!(may("ann", Operation::Read, "orders"));
    for (name, operation, topic) in [
        ("ann", Operation::Write, "orders"),
        ("ann", Operation::Read, "orders2"),
        ("ann", Operation::All, "orders"),
        ("bob", Operation::Read, "orders"),
    ] {
        assert!(!may(name, operation, topic), "{name} {operation:?} {topic}");
    }
    assert!(!acls.allow(&user("ann"), "h", Operation::Read, &Resource::group("orders")), "another kind");
}

#[test]
fn denying_entries_override_allowing_ones() {
    let acls = acls(&[
        "allow User:* all topic * *",
        "allow User:ann read topic secret.plans *",
        "deny User:ann read topic secret.... *",
        "deny User:* write topic frozen 10.0.0.9",
    ]);
    let may = |name, host, operation, topic| acls.allow(&user(name), host, operation, &Resource::topic(topic));
    assert!(!may("ann", "h", Operation::Read, "secret.plans"));
    assert!(may("bob", "h", Operation::Read, "secret.plans"));
    // Only the named operation is denied, not the ones that it implies.
    assert!(may("ann", "h", Operation::Describe, "secret.plans"));
    assert!(!may("bob", "10.0.0.9", Operation::Write, "frozen") && may("bob", "10.0.0.8", Operation::Write, "frozen"));
}

/// The table and the rules of a few patterns decide alike.
#[test]
fn a_resource_by_name_is_allowed_by_entries_that_name_it_and_by_nothing_wider() {
    let admin = || Principal::Role(RoleName::parse("admin").expect("a name"));
    for (entries, may_write) in [
        (&["allow User:ann write queue q *"][..], true),
        (&["allow User:* write queue q *"], true),
        (&["allow User:ann all queue * *", "allow User:ann all queue q... *", "allow User:ann all queue ~q* *"], false),
        (&["allow User:ann write queue q *", "deny User:* write queue * *"], false),
        (&["allow User:ann read queue q *"], false),
        (&[], false),
    ] {
        let acls = acls(entries);
        let principals = user("ann").into_iter().chain([admin()]).collect::<Vec<_>>();
        let queue = Resource::queue("q").by_name();
        assert_eq!(acls.allow(&principals, "h", Operation::Write, &queue), may_write, "{entries:?}");
        let rules = acls.rules(&principals, "h", ResourceKind::Queue).expect("a few");
        assert_eq!(rules.allow(Operation::Write, &queue), may_write, "{entries:?}");
        let is_denied = entries.iter().any(|entry| entry.starts_with("deny"));
        assert_eq!(rules.allow(Operation::Write, &Resource::queue("q")), !is_denied, "the role allows all of them");
    }
}

#[test]
fn operations_bring_others_with_them() {
    for (given, brings) in [
        (Operation::Read, vec![Operation::Describe]),
        (Operation::Write, vec![Operation::Describe]),
        (Operation::Delete, vec![Operation::Describe]),
        (Operation::Alter, vec![Operation::Describe]),
        (Operation::AlterConfigs, vec![Operation::DescribeConfigs]),
        (Operation::Create, vec![]),
        (Operation::All, Operation::ALL.to_vec()),
    ] {
        let acls = acls(&[&format!("allow User:ann {} topic t *", given.name())]);
        for wanted in Operation::ALL {
            let may = acls.allow(&user("ann"), "h", *wanted, &Resource::topic("t"));
            assert_eq!(may, *wanted == given || brings.contains(wanted), "{given:?} {wanted:?}");
        }
    }
}

#[test]
fn all_names_with_a_beginning_are_allowed_if_each_is() {
    let may = |entries: &[&str], prefix: &str| {
        let acls = acls(entries);
        let resource = Resource::all(ResourceKind::Cache, prefix);
        let said = acls.allow(&user("ann"), "h", Operation::Read, &resource);
        let rules = acls.rules(&user("ann"), "h", ResourceKind::Cache).expect("few patterns");
        assert_eq!(rules.allow(Operation::Read, &resource), said, "{entries:?}");
        said
    };
    for (entry, prefix, wanted) in [
        ("allow User:ann read cache * *", "db0/", true),
        ("allow User:ann read cache db0/... *", "db0/", true),
        ("allow User:ann read cache db0/... *", "db0/a", true),
        ("allow User:ann read cache db0/a... *", "db0/", false),
        // A name that looks like a pattern is one key.
        ("allow User:ann read cache db0/* *", "db0/", false),
        ("allow User:ann read cache db0/a *", "db0/a", false),
        ("allow User:ann read cache ~db0/* *", "db0/", true),
        ("allow User:ann read cache ~db* *", "db0/", true),
        ("allow User:ann read cache ~db0/a* *", "db0/", false),
        ("allow User:ann read cache ~db0/? *", "db0/", false),
        ("allow User:ann read cache ~db0/[^x]* *", "db0/", false),
        ("allow User:ann read cache ~*0/* *", "db0/", true),
        ("allow User:ann read cache ~db[0-9]/* *", "db0/", true),
        ("allow User:ann read cache ~db[0-9]/* *", "db10/", false),
        ("allow User:ann read cache ~db[0-9]/* *", "db0/a", true),
        ("allow User:ann read cache ~db[0-9]/* *", "db", false),
        ("allow User:ann read cache ~db[0-9]/\\* *", "db0/", false),
        ("allow User:ann read cache ~db[0-9]/[* *", "db0/", false),
        ("allow User:ann write cache db0/... *", "db0/", false),
    ] {
        assert_eq!(may(&[entry], prefix), wanted, "{entry} {prefix}");
    }
    let all = "allow User:ann read cache * *";
    for (denied, prefix, wanted) in [
        ("deny User:ann read cache db0/secret *", "db0/", false),
        ("deny User:ann read cache db0/secret *", "db0/public", true),
        ("deny User:ann read cache db0/secret... *", "db0/s", false),
        ("deny User:ann read cache db0/s... *", "db0/secret", false),
        ("deny User:ann read cache ~*secret* *", "db0/", false),
        ("deny User:ann read cache ~db0/?ecret *", "db0/", false),
        ("deny User:ann read cache ~db1/?ecret *", "db0/", true),
        ("deny User:ann write cache db0/secret *", "db0/", true),
        ("deny User:ann read cache db0/secret 10.0.0.9", "db0/", true),
    ] {
        assert_eq!(may(&[all, denied], prefix), wanted, "{denied} {prefix}");
    }
}

#[test]
fn something_may_be_allowed_where_not_all_of_it_is_denied() {
    let may = |entries: &[&str]| acls(entries).allow_any(&user("ann"), "h", Operation::Write, ResourceKind::Topic);
    for (entries, wanted) in [
        (&["allow User:ann write topic a *"][..], true),
        (&["allow User:ann write group a *"], false),
        (&["allow User:ann read topic a *"], false),
        (&["allow User:ann write topic a *", "deny User:ann write topic b *"], true),
        (&["allow User:ann write topic a *", "deny User:* all topic * *"], false),
        (&["allow User:ann write topic ab *", "deny User:ann write topic a... *"], false),
        (&["allow User:ann write topic a... *", "deny User:ann write topic ab... *"], true),
        (&["allow User:ann write topic * *", "deny User:ann write topic a... *"], true),
        (&["allow User:ann write topic a... *", "deny User:ann write topic a *"], true),
    ] {
        assert_eq!(may(entries), wanted, "{entries:?}");
    }
}

#[test]
fn filters_find_entries_by_name_or_by_resource() {
    let all = [
        "allow User:a read topic t *",
        "allow User:a read topic t... *",
        "allow User:b read topic * h",
        "allow User:c read topic ~t? *",
    ];
    let acls = acls(&all);
    let found = |matching, name: Option<&str>| {
        let filter = AclFilter { matching, name: name.map(str::to_owned), ..AclFilter::default() };
        let found = acls.found(&filter);
        all.iter().map(|text| acl(text)).map(|acl| u8::from(found.contains(&acl))).collect::<Vec<_>>()
    };
    assert_eq!(found(Match::Any, None), [1, 1, 1, 1]);
    assert_eq!(found(Match::Any, Some("t")), [1, 1, 0, 0]);
    assert_eq!(found(Match::Literal, Some("t")), [1, 0, 0, 0]);
    assert_eq!(found(Match::Prefix, None), [0, 1, 0, 0]);
    assert_eq!(found(Match::Glob, None), [0, 0, 0, 1]);
    assert_eq!(found(Match::Covering, Some("t")), [1, 1, 1, 0]);
    assert_eq!(found(Match::Covering, Some("tt")), [0, 1, 1, 1]);
    let of_b = AclFilter { principal: Some(Principal::parse("User:b").expect("b")), ..AclFilter::default() };
    assert_eq!(acls.found(&of_b), [acl(all[2])]);
    let denied = AclFilter { is_allowed: Some(false), ..AclFilter::default() };
    assert!(acls.found(&denied).is_empty());
}

#[test]
fn duplicate_entries_are_stored_once_and_counted() {
    let mut acls = acls(&["allow User:a read topic t *", "allow User:a read topic t *", "deny User:a read topic t *"]);
    assert_eq!(acls.len(), 2);
    let gone = acl("allow User:a read topic t *");
    acls.remove(&gone);
    acls.remove(&gone);
    assert!(acls.len() == 1 && !acls.contains(&gone));
    let others = |count| std::iter::repeat_n(&gone, count);
    assert!(acls.check_room(others(ACLS_MAX - 1)).is_ok() && acls.check_room(others(ACLS_MAX)).is_err());
    let long = Acl { host: "h".repeat(ACL_NAME_BYTES_MAX), ..gone.clone() };
    assert!(acls.check_room(std::iter::repeat_n(&long, ACLS_BYTES_MAX / ACL_NAME_BYTES_MAX)).is_err());
}

#[test]
fn entries_that_make_no_sense_are_refused() {
    let good = acl("allow User:a read cluster cluster *");
    let pattern = |name: &str, matching| Pattern { name: name.into(), matching, ..good.pattern.clone() };
    let admin = Principal::parse("Role:admin").expect("a principal");
    for bad in [
        Acl { pattern: pattern("mine", PatternKind::Literal), ..good.clone() },
        Acl { pattern: pattern("cluster", PatternKind::Prefix), ..good.clone() },
        Acl { pattern: pattern("", PatternKind::Literal), ..good.clone() },
        Acl { principal: admin, ..good.clone() },
        Acl { host: String::new(), ..good.clone() },
        Acl { host: "h\n".into(), ..good.clone() },
    ] {
        assert!(bad.validate().is_err(), "{bad:?}");
    }
    assert!(Principal::parse("Group:a").is_err() && Principal::parse("User:").is_err());
}

/// Topics of the broker itself hold data of others: a user who may read all topics cannot read them.
#[test]
fn a_topic_of_the_broker_itself_is_allowed_by_its_name_alone() {
    let all = ["allow User:ann all topic * *", "allow User:ann all topic _... *", "allow User:* read topic _q... *"];
    let named =
        ["allow User:ann read topic _queues *", "deny User:eve all topic * *", "allow User:eve read topic _queues *"];
    let may = |entries: &[&str], name, topic| {
        let acls = acls(entries);
        let resource = Resource::topic(topic);
        let may = acls.allow(&user(name), "10.0.0.1", Operation::Read, &resource);
        let rules = acls.rules(&user(name), "10.0.0.1", ResourceKind::Topic).expect("they are few");
        assert_eq!(rules.allow(Operation::Read, &resource), may, "{entries:?} {name} {topic}");
        may
    };
    for topic in crate::ids::INTERNAL_TOPICS {
        assert!(!may(&all, "ann", topic), "{topic}");
    }
    assert!(may(&all, "ann", "_mine") && may(&all, "bob", "_quick"));
    assert!(may(&named, "ann", "_queues") && !may(&named, "ann", "_offsets"));
    assert!(!may(&named, "eve", "_queues"), "one that denies all denies these as well");
    // A group may have such a name.
    let group = acls(&["allow User:ann read group * *"]);
    assert!(group.allow(&user("ann"), "10.0.0.1", Operation::Read, &Resource::group("_queues")));
}

#[test]
fn a_role_gives_its_members_what_its_entries_say() {
    let acls = acls(&["allow Role:sales read topic orders... *", "deny Role:interns all topic orders.secret *"]);
    let may = |roles: &[&str], operation, topic| {
        let role = |name: &&str| Principal::Role(RoleName::parse(name).expect("a name"));
        let principals: Vec<Principal> = roles.iter().map(role).chain(user("ann")).collect();
        acls.allow(&principals, "h", operation, &Resource::topic(topic))
    };
    assert!(may(&["sales"], Operation::Read, "orders.secret") && !may(&[], Operation::Read, "orders.secret"));
    assert!(!may(&["sales", "interns"], Operation::Read, "orders.secret"));
    assert!(may(&["publisher"], Operation::Write, "t") && !may(&["publisher"], Operation::Read, "t"));
    assert!(may(&["admin"], Operation::Delete, "t") && !may(&["admin"], Operation::Read, "_queues"));
    assert!(!may(&["admin", "interns"], Operation::Delete, "orders.secret"), "an entry may deny what a role allows");
}

#[test]
fn keys_of_a_cache_are_covered_by_a_glob_whatever_their_bytes() {
    let acls = acls(&["allow User:ann read cache ~db0/user:*:name *", "allow User:ann write cache db1/... *"]);
    let may =
        |operation, key: &[u8]| acls.allow(&user("ann"), "h", operation, &Resource::new(ResourceKind::Cache, key));
    assert!(may(Operation::Read, b"db0/user:\xff\0:name") && may(Operation::Write, b"db1/\xfe"));
    assert!(!may(Operation::Read, b"db0/user:7:mail") && !may(Operation::Read, b"db1/user:7:name"));
}

/// Decides as the definition says, without an index.
fn decide(entries: &[Acl], principals: &[Principal], host: &str, operation: Operation, at: &Resource<'_>) -> bool {
    let covering = |acl: &&Acl| {
        principals.contains(&acl.principal) && acl.pattern.covers(at) && (acl.host == "*" || acl.host == host)
    };
    let is_denied = |acl: &Acl| !acl.is_allowed && [operation, Operation::All].contains(&acl.operation);
    let is_allowed = |acl: &Acl| {
        let implies_describe = [Operation::Read, Operation::Write, Operation::Delete, Operation::Alter];
        acl.is_allowed
            && (acl.operation == operation
                || acl.operation == Operation::All
                || operation == Operation::Describe && implies_describe.contains(&acl.operation)
                || operation == Operation::DescribeConfigs && acl.operation == Operation::AlterConfigs)
    };
    !entries.iter().filter(covering).any(is_denied) && entries.iter().filter(covering).any(is_allowed)
}

/// `ACL_TRIPLES` sets the number of decisions.
#[test]
fn random_decisions_are_those_of_the_definition() {
    let triples: usize = std::env::var("ACL_TRIPLES").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000);
    let mut random = Random(7);
    let mut decided = 0;
    let mut allowed = 0;
    while decided < triples {
        let mut table = Acls::default();
        let mut entries: Vec<Acl> = Vec::new();
        for _ in 0..random.below(40) {
            let acl = random.acl();
            table.insert(acl.clone());
            entries.push(acl);
            if random.below(4) == 0 {
                let gone = entries.swap_remove(random.below(entries.len()));
                table.remove(&gone);
                entries.retain(|acl| *acl != gone);
            }
        }
        entries.sort();
        entries.dedup();
        assert_eq!(table.found(&AclFilter::default()), entries);
        for _ in 0..200 {
            let principals = [random.principal(), random.principal(), Principal::Everyone];
            let name = random.name();
            let resource = Resource::new(random.kind(), &name);
            let operation = Operation::ALL[random.below(Operation::ALL.len())];
            let host = ["h", "i"][random.below(2)];
            let wanted = decide(&entries, &principals, host, operation, &resource);
            let found = table.allow(&principals, host, operation, &resource);
            assert_eq!(found, wanted, "{principals:?} {host} {operation:?} {resource:?} with {entries:#?}");
            if let Some(rules) = table.rules(&principals, host, resource.kind) {
                let by_rules = rules.allow(operation, &resource);
                assert_eq!(by_rules, wanted, "{rules:?} {operation:?} {resource:?} with {entries:#?}");
            }
            decided += 1;
            allowed += usize::from(found);
        }
    }
    assert!(allowed > decided / 20 && allowed < decided / 2, "{allowed} of {decided} say something");
}

/// Numbers that look random and are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, max: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % max
    }

    fn name(&mut self) -> String {
        (0..1 + self.below(3)).map(|_| ['a', 'b'][self.below(2)]).collect()
    }

    fn kind(&mut self) -> ResourceKind {
        [ResourceKind::Topic, ResourceKind::Cache][self.below(2)]
    }

    fn principal(&mut self) -> Principal {
        let texts = ["User:ann", "User:bob", "Role:r", "Role:s", "User:*"];
        Principal::parse(texts[self.below(texts.len())]).expect("a principal")
    }

    fn acl(&mut self) -> Acl {
        let matching = PatternKind::ALL[self.below(3)];
        let mut name = self.name();
        match matching {
            PatternKind::Literal if self.below(4) == 0 => name = "*".to_owned(),
            PatternKind::Glob => name.insert(self.below(name.len() + 1), ['*', '?'][self.below(2)]),
            _ => {}
        }
        Acl {
            pattern: Pattern { kind: self.kind(), name, matching },
            principal: self.principal(),
            host: ["*", "h"][self.below(2)].to_owned(),
            operation: Operation::ALL[self.below(Operation::ALL.len())],
            is_allowed: self.below(4) > 0,
        }
    }
}

/// `ACL LIST` and Kafka's `DescribeAcls` filter for each of many users or topics.
#[test]
fn a_filter_visits_only_entries_of_its_principal_and_its_name() {
    const USERS: usize = 10_000;
    let mut acls = Acls::default();
    let of = |number: usize| Acl {
        pattern: Pattern {
            kind: ResourceKind::Topic,
            name: format!("t{number}"),
            matching: PatternKind::ALL[number % PatternKind::ALL.len()],
        },
        principal: Principal::User(UserName::parse(&format!("u{number}")).expect("a name")),
        host: "*".into(),
        operation: Operation::Read,
        is_allowed: true,
    };
    (0..USERS).for_each(|number| acls.insert(of(number)));
    let mut visited = 0;
    for number in 0..USERS {
        let by_principal = AclFilter::of_principal(of(number).principal);
        visited += acls.candidates(&by_principal).count();
        assert_eq!(acls.found(&by_principal), [of(number)]);
    }
    assert_eq!(visited, USERS, "each entry is visited once");
    let own = Acl { pattern: Pattern { name: "t7".into(), ..of(0).pattern }, ..of(0) };
    acls.insert(own.clone());
    let filter = AclFilter { name: Some("t7".into()), principal: Some(own.principal.clone()), ..AclFilter::default() };
    assert_eq!(
        (acls.candidates(&filter).count(), acls.found(&filter)),
        (1, vec![own]),
        "not the other one of the user"
    );
    let all = acls.found(&AclFilter::default());
    assert_eq!(all.len(), USERS + 1);
    for matching in [Match::Any, Match::Covering, Match::Literal, Match::Prefix, Match::Glob] {
        for name in ["t7", "t8", "t", "t77"] {
            let filter = AclFilter { name: Some(name.into()), matching, ..AclFilter::default() };
            let expected: Vec<Acl> = all.iter().filter(|acl| filter.means(acl)).cloned().collect();
            assert_eq!(acls.found(&filter), expected, "{matching:?} {name}");
        }
    }
}

#[test]
fn pages_of_any_size_have_each_entry_once_and_continue_after_one_that_was_deleted() {
    let mut acls = Acls::default();
    for principal in ["User:*", "User:ann", "User:bob", "Role:ops", "Role:dev"] {
        for resource in ["topic a", "topic a...", "topic ~a*", "topic b", "queue a", "group *"] {
            for operation in ["read", "all"] {
                acls.insert(acl(&format!("allow {principal} {operation} {resource} *")));
                acls.insert(acl(&format!("deny {principal} {operation} {resource} 10.0.0.1")));
            }
        }
    }
    let key = |acl: &Acl| {
        let Acl { pattern: Pattern { kind, name, matching }, principal, host, operation, is_allowed } = acl.clone();
        (principal, kind, matching, name, host, operation, is_allowed)
    };
    let of_ann = || Some(Principal::parse("User:ann").expect("a principal"));
    let filters = [
        AclFilter::default(),
        AclFilter { principal: of_ann(), ..AclFilter::default() },
        AclFilter { kind: Some(ResourceKind::Topic), name: Some("a".into()), ..AclFilter::default() },
        AclFilter { operation: Some(Operation::All), is_allowed: Some(false), ..AclFilter::default() },
        AclFilter { name: Some("none".into()), ..AclFilter::default() },
    ];
    for filter in filters {
        for is_wanted in [|_: &Acl| true, |acl: &Acl| acl.host == "*"] {
            let mut expected: Vec<Acl> = acls.found(&filter).into_iter().filter(is_wanted).collect();
            expected.sort_unstable_by_key(key);
            for count_max in [1, 3, 1000] {
                let mut all: Vec<Acl> = Vec::new();
                let mut rest = acls.clone();
                loop {
                    let (page, is_last) = rest.page(&filter, all.last(), count_max, is_wanted);
                    assert!(page.len() == count_max || is_last, "{} of {count_max}", page.len());
                    all.extend(page);
                    if is_last {
                        break;
                    }
                    rest.remove(all.last().expect("a page that is not the last has some"));
                }
                assert_eq!(all, expected, "{filter:?} in pages of {count_max}");
            }
        }
    }
    // A cursor after all entries of the only principal of a filter finds nothing.
    let filter = AclFilter { principal: of_ann(), ..AclFilter::default() };
    let later = acl("allow User:bob read topic a *");
    assert_eq!(acls.page(&filter, Some(&later), 10, |_| true), (Vec::new(), true));
}
