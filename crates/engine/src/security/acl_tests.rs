//! Decisions of access control entries, and the entries that a filter matches.

use super::*;

fn user(name: &str) -> UserName {
    UserName::parse(name).expect("a name")
}

/// Parses `allow|deny PRINCIPAL OPERATION KIND NAME HOST`; a name that ends with `...` is a prefix.
fn acl(text: &str) -> Acl {
    let [is_allowed, principal, operation, kind, name, host] = text.split(' ').collect::<Vec<_>>()[..] else {
        panic!("six words: {text}");
    };
    let prefix = name.strip_suffix("...");
    let acl = Acl {
        pattern: Pattern {
            kind: kind.parse().expect("a kind"),
            name: prefix.unwrap_or(name).to_owned(),
            is_prefix: prefix.is_some(),
        },
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
    let all = ["allow User:a read topic t *", "allow User:a read topic t... *", "allow User:b read topic * h"];
    let acls = acls(&all);
    let found = |matching, name: Option<&str>| {
        let filter = AclFilter { matching, name: name.map(str::to_owned), ..AclFilter::default() };
        let found = acls.found(&filter);
        all.iter().map(|text| acl(text)).map(|acl| u8::from(found.contains(&acl))).collect::<Vec<_>>()
    };
    assert_eq!(found(Match::Any, None), [1, 1, 1]);
    assert_eq!(found(Match::Any, Some("t")), [1, 1, 0]);
    assert_eq!(found(Match::Literal, Some("t")), [1, 0, 0]);
    assert_eq!(found(Match::Prefix, None), [0, 1, 0]);
    assert_eq!(found(Match::Covering, Some("t")), [1, 1, 1]);
    assert_eq!(found(Match::Covering, Some("tt")), [0, 1, 1]);
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
    assert!(acls.check_room(ACLS_MAX - 1).is_ok() && acls.check_room(ACLS_MAX).is_err());
}

#[test]
fn entries_that_make_no_sense_are_refused() {
    let good = acl("allow User:a read cluster cluster *");
    let pattern = |name: &str, is_prefix| Pattern { name: name.into(), is_prefix, ..good.pattern.clone() };
    for bad in [
        Acl { pattern: pattern("mine", false), ..good.clone() },
        Acl { pattern: pattern("cluster", true), ..good.clone() },
        Acl { pattern: pattern("", false), ..good.clone() },
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
        acls(entries).allow(&user(name), "10.0.0.1", Operation::Read, &Resource::topic(topic))
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
