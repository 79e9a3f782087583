//! Tests of the translation between rules of `ACL SETUSER` and access control entries.

use proptest::prelude::*;

use super::*;

fn ann() -> Principal {
    Principal::User(UserName::parse("ann").expect("a name"))
}

fn rules(text: &str) -> Rules {
    Rules::parse(text).unwrap_or_else(|why| panic!("{text}: {why}"))
}

/// Returns the entries as `OPERATION KIND NAME`, in their order.
fn lines(rules: &Rules) -> Vec<String> {
    let line = |acl: Acl| {
        assert!(acl.is_allowed && acl.host == "*" && acl.principal == ann());
        assert!(acl.validate().is_ok(), "{acl:?}");
        format!("{} {} {}", acl.operation.name(), acl.pattern.kind.name(), acl.pattern.name)
    };
    rules.entries(&ann()).into_iter().map(line).collect()
}

fn refused(before: &str, rule: &str) -> String {
    rules(before).apply(rule).expect_err(rule)
}

#[test]
fn patterns_and_sets_are_entries_together() {
    for (text, wanted) in [
        ("~a*", &[][..]),
        ("+@read", &[]),
        ("~a* +@read", &["read cache db1[0-5]/a*", "read cache db[0-9]/a*"]),
        ("%R~a %W~b +@read", &["read cache db1[0-5]/a", "read cache db[0-9]/a"]),
        (
            "%R~a %W~b +@read +@write",
            &["read cache db1[0-5]/a", "write cache db1[0-5]/b", "read cache db[0-9]/a", "write cache db[0-9]/b"],
        ),
        ("&news.* +@pubsub", &["read channel news.*", "write channel news.*"]),
        ("allchannels +@pubsub", &["read channel *", "write channel *"]),
        ("+@admin", &["alter cluster cluster", "alter_configs cluster cluster"]),
        ("~* &* +@all nocommands", &[]),
        ("~* resetkeys &x resetchannels +@all -@admin", &[]),
    ] {
        assert_eq!(lines(&rules(text)), wanted, "{text}");
    }
    let all = rules("allkeys allchannels allcommands");
    assert_eq!((all.clone(), all.line().as_str()), (Rules::everything(), "~* &* +@all"));
}

/// Texts and forms are those of redis-server 7.0.15, whose `ACL GETUSER` returned the same.
#[test]
fn rules_are_shown_as_by_redis() {
    for (text, keys, channels, commands) in [
        ("~cached:* %R~ro:* %W~wo &news.* +@read", "~cached:* %R~ro:* %W~wo", "&news.*", "-@all +@read"),
        ("%R~a %W~a", "~a", "", "-@all"),
        ("%RW~a %r~b", "~a %R~b", "", "-@all"),
        ("&a allchannels", "", "&*", "-@all"),
        ("~a allkeys", "~*", "", "-@all"),
        ("+@all", "", "", "+@all"),
        ("+@pubsub +@write +@read", "", "", "-@all +@read +@write +@pubsub"),
    ] {
        let rules = rules(text);
        assert_eq!((&*rules.keys(), &*rules.channels(), &*rules.commands()), (keys, channels, commands), "{text}");
    }
    assert_eq!(rules("~a +@read").line(), "~a resetchannels -@all +@read");
    let after = "Adding a pattern after the * pattern (or the 'allkeys' flag)";
    assert!(["~b", "%R~*", "%W~b"].iter().all(|rule| refused("~*", rule).starts_with(after)));
    assert!(refused("&*", "&x").starts_with("Adding a pattern after the * pattern (or the 'allchannels' flag)"));
    for rule in ["foo", "~a b", "%X~a", "%~a", "%R", "&a b", "", "\u{440}~a"] {
        assert_eq!(refused("", rule), "Syntax error", "{rule}");
    }
    for rule in ["+nope", "+@nope", "-nope", "-@nope", "+", "-@", "+client|nope", "+get|x", "+g\u{435}t"] {
        assert_eq!(refused("", rule), "Unknown command or category name in ACL", "{rule}");
    }
}

/// Rules for all keys once gave other entries when they were read back from their line.
#[test]
fn access_to_all_keys_from_two_rules_is_that_of_allkeys() {
    let split = rules("~a %R~* %W~* +@read");
    assert_eq!(split, rules("~a allkeys +@read"));
    assert_eq!(rules(&split.line()), split);
}

#[test]
fn rules_that_need_another_distinction_are_refused() {
    for (before, rule, part) in [
        ("", "+get", "'get' cannot be allowed by itself. The broker knows commands in sets: +@all"),
        ("", "+@string", "cannot be allowed by itself"),
        ("+@read", "+@keyspace", "cannot be allowed by itself"),
        ("+@all", "-@dangerous", "'flush"),
        ("+@read", "-keys", "'keys' cannot be refused by itself"),
        ("+@all", "-config|set", "'config|set' cannot be refused by itself"),
        ("+@all", "+@stream", "about streams, which are topics of all doors"),
        ("+@all", "+xadd", "'xadd' is about streams"),
        ("+@all", "-@geo", "cannot be refused by itself"),
        ("+@all", "-ping", "'ping' is about its connection"),
        ("", "-@connection", "about its connection"),
        ("", "+@geo", "cannot be allowed by itself"),
        ("", "(~a +@read)", "Selectors are not supported"),
    ] {
        let why = refused(before, rule);
        assert!(why.contains(part) || part == "'flush" && why.contains("cannot be refused"), "{rule}: {why}");
    }
    // What makes no difference is no reason to refuse.
    for (before, rule) in [
        ("+@read", "+get"),
        ("+@read", "+mget"),
        ("", "+ping"),
        ("+@read", "+@transaction"),
        ("+@all", "-@stream"),
        ("+@all", "-xadd"),
        ("+@all", "-flushall"),
        ("+@read", "-@admin"),
        ("+@read", "-set"),
        ("", "clearselectors"),
    ] {
        let mut after = rules(before);
        assert_eq!((after.apply(rule), &after), (Ok(()), &rules(before)), "{before} {rule}");
    }
    assert!(rules("+@write ~a").check().is_err_and(|why| why.contains("+@read")));
    assert!(rules("+@write +@read").check().is_ok() && rules("").check().is_ok());
    let long = "x".repeat(ACL_NAME_BYTES_MAX);
    assert!(
        refused("", &format!("~{long}")).contains("at most 246 bytes") && refused("", "~a\u{7}").contains("control")
    );
    assert!(refused("", &format!("&{long}x")).contains("255"));
    let mut many = Rules::default();
    (0..PATTERNS_MAX).for_each(|at| many.apply(&format!("~{at}")).expect("there is room"));
    assert!(many.apply("~x").is_err_and(|why| why.contains("256")) && many.apply("%R~0").is_ok());
}

/// A pattern covers keys of all sixteen databases, and nothing else.
#[test]
fn patterns_cover_keys_of_every_database_only() {
    let rules = rules("~user:* +@read");
    let covers = |name: &str| {
        let resource = Resource::new(ResourceKind::Cache, name);
        rules.entries(&ann()).iter().any(|acl| acl.pattern.covers(&resource))
    };
    assert!((0..16).all(|database| covers(&format!("db{database}/user:1"))));
    let others =
        ["db16/user:1", "db0/x/user:1", "dbx/user:1", "db/user:1", "db00/user:1", "sessions/user:1", "db0/use"];
    assert!(others.iter().all(|name| !covers(name)));
}

#[test]
fn entries_of_others_show_if_rules_say_the_same() {
    let mut entries = rules("~a* %R~b &c +@read +@write +@pubsub").entries(&ann());
    let own = entries.clone();
    let acl = |kind, name: &str, matching, operation| Acl {
        pattern: Pattern { kind, name: name.into(), matching },
        principal: ann(),
        host: "*".into(),
        operation,
        is_allowed: true,
    };
    let topic = acl(ResourceKind::Topic, "t", PatternKind::Literal, Operation::Read);
    entries.extend([
        topic.clone(),
        acl(ResourceKind::Cache, "db0/x", PatternKind::Prefix, Operation::Read),
        acl(ResourceKind::Cache, "db[0-9]/x", PatternKind::Glob, Operation::Read),
        acl(ResourceKind::Channel, "half", PatternKind::Glob, Operation::Read),
        Acl { is_allowed: false, ..acl(ResourceKind::Cache, "db[0-9]/y", PatternKind::Glob, Operation::Read) },
        acl(ResourceKind::Cluster, "cluster", PatternKind::Literal, Operation::Alter),
    ]);
    let shown = Rules::of(&ann(), &entries);
    assert_eq!(shown.line(), "~a* %R~b resetchannels &c -@all +@read +@write +@pubsub");
    assert_eq!(shown.entries(&ann()), own);
    let outdated = Rules::effective(&ann(), &[topic].into(), Some("~a* +@read"));
    assert_eq!(outdated, Rules::default());
}

const RULES: [&str; 19] = [
    "~a*",
    "~b",
    "%R~a*",
    "%W~c?",
    "%R~*",
    "%W~*",
    "~*",
    "resetkeys",
    "&x.*",
    "&y",
    "&*",
    "resetchannels",
    "+@read",
    "+@write",
    "+@pubsub",
    "+@admin",
    "+@all",
    "-@write",
    "-@pubsub",
];

proptest! {
    /// Rules read back as they were written, and without their text as rules that say the same.
    #[test]
    fn rules_read_back(given in prop::collection::vec(prop::sample::select(RULES.to_vec()), 0..8)) {
        // One after allkeys is refused.
        prop_assert!(check_rules(&given.join(" ")) <= given.len());
    }

    #[test]
    fn any_text_is_a_rule_or_refused(text in ".{0,40}") {
        let mut rules = Rules::default();
        if rules.apply(&text).is_ok() {
            prop_assert!(rules.entries(&ann()).iter().all(|acl| acl.validate().is_ok()));
        }
    }
}
