//! Tests of the translation between IAM policies and access control entries.

use engine::security::{PatternKind, ResourceKind};
use proptest::prelude::*;

use super::super::errors::Code;
use super::super::proto::google::r#type::Expr;
use super::super::proto::iam::AuditConfig;
use super::*;

fn granted(kind: Kind) -> Granted {
    let pattern = Pattern { kind: ResourceKind::Topic, name: "orders".into(), matching: PatternKind::Literal };
    Granted { kind, pattern, is_login_required: true }
}

fn binding(role: &str, members: &[&str]) -> Binding {
    Binding { role: role.into(), members: members.iter().map(|member| (*member).to_owned()).collect(), condition: None }
}

fn policy(bindings: Vec<Binding>) -> Policy {
    Policy { version: 1, bindings, ..Policy::default() }
}

/// Returns the entries as `PRINCIPAL OPERATION`, in their order.
fn lines(entries: &BTreeSet<Acl>) -> Vec<String> {
    entries.iter().map(|acl| format!("{} {}", acl.principal, acl.operation.name())).collect()
}

/// The permissions of each role are in the table of <https://cloud.google.com/pubsub/docs/access-control#roles>.
#[test]
fn a_role_is_a_set_of_operations() {
    let of = |kind, role: &str| {
        granted(kind).entries(&policy(vec![binding(role, &["user:ann"])])).map(|entries| lines(&entries).join(", "))
    };
    for (kind, role, wanted) in [
        (Kind::Topic, "roles/pubsub.publisher", "User:ann write"),
        (Kind::Topic, "roles/pubsub.subscriber", "User:ann read"),
        (Kind::Subscription, "roles/pubsub.subscriber", "User:ann read"),
        (Kind::Snapshot, "roles/viewer", "User:ann describe"),
        (Kind::Schema, "roles/pubsub.viewer", "User:ann describe"),
        (Kind::Topic, "roles/owner", "User:ann all"),
        (Kind::Subscription, "roles/editor", "User:ann read, User:ann create, User:ann delete, User:ann alter"),
    ] {
        assert_eq!(of(kind, role).as_deref(), Ok(wanted), "{role}");
    }
    for (kind, role) in [
        (Kind::Subscription, "roles/pubsub.publisher"),
        (Kind::Schema, "roles/pubsub.subscriber"),
        (Kind::Topic, "roles/pubsub"),
        (Kind::Topic, "roles/pubsub.Publisher"),
        (Kind::Topic, "roles/pubsub.publisher "),
        // The first letter is Cyrillic.
        (Kind::Topic, "roles/pubsub.\u{440}ublisher"),
        (Kind::Topic, "projects/p/roles/mine"),
    ] {
        let refused = of(kind, role).expect_err(role);
        assert_eq!(refused.code, Code::InvalidArgument);
        assert!(refused.message.starts_with(&format!("Role {role} is not supported")), "{refused}");
        assert!(refused.message.contains("roles/pubsub.viewer"), "{refused}");
    }
}

#[test]
fn a_member_is_a_principal_or_refused() {
    let of = |member: &str| {
        let entries = granted(Kind::Topic).entries(&policy(vec![binding("roles/pubsub.viewer", &[member])]))?;
        Ok::<_, Failure>(entries.into_iter().map(|acl| acl.principal.to_string()).collect::<Vec<_>>().join(","))
    };
    for (member, wanted) in [
        ("user:ann@example.com", "User:ann@example.com"),
        ("serviceAccount:robot@p.iam.gserviceaccount.com", "User:robot@p.iam.gserviceaccount.com"),
        ("group:auditors", "Role:auditors"),
        ("allUsers", "User:*"),
        ("allAuthenticatedUsers", "User:*"),
        // A look-alike is another user.
        ("user:\u{430}nn", "User:\u{430}nn"),
        ("user:a:b", "User:a:b"),
    ] {
        assert_eq!(of(member).as_deref(), Ok(wanted), "{member}");
    }
    let long = format!("user:{}", "x".repeat(256));
    for member in [
        "",
        "user",
        "user:",
        "user:*",
        "serviceAccount:*",
        "group:*",
        "group:",
        "group:a,b",
        "user:a\nb",
        "domain:example.com",
        "projectOwner:p",
        "deleted:user:ann?uid=1",
        "principalSet://goog/public:all",
        "User:ann",
        "ALLUSERS",
        "allUsers:",
        &long,
    ] {
        let refused = of(member).expect_err(member);
        assert_eq!(refused.code, Code::InvalidArgument, "{member}");
    }
    let without_logins = Granted { is_login_required: false, ..granted(Kind::Topic) };
    let of_all = |member| without_logins.entries(&policy(vec![binding("roles/pubsub.viewer", &[member])]));
    assert!(of_all("allUsers").is_ok());
    assert!(of_all("allAuthenticatedUsers").expect_err("refused").message.contains("auth = required"));
}

#[test]
fn what_entries_cannot_say_is_refused() {
    let viewer = || binding("roles/pubsub.viewer", &["user:ann"]);
    let with = |change: &dyn Fn(&mut Policy)| {
        let mut policy = policy(vec![viewer()]);
        change(&mut policy);
        granted(Kind::Topic).entries(&policy).map(|entries| entries.len())
    };
    assert_eq!((with(&|_| {}), with(&|policy| policy.version = 3)), (Ok(1), Ok(1)));
    let refused = |change: &dyn Fn(&mut Policy), part: &str| {
        let failure = with(change).expect_err(part);
        assert!(failure.code == Code::InvalidArgument && failure.message.contains(part), "{failure}");
    };
    refused(&|policy| policy.version = 2, "version 2");
    refused(&|policy| policy.bindings[0].condition = Some(Expr::default()), "Conditions");
    refused(&|policy| policy.audit_configs = vec![AuditConfig::default()], "Audit");
    refused(&|policy| policy.bindings = vec![Binding { members: vec!["user:a".into(); 1501], ..viewer() }], "1500");
}

#[test]
fn entries_of_others_show_if_a_role_says_the_same() {
    let topic = granted(Kind::Topic);
    let entry = |principal: &str, operation| topic.entry(Principal::parse(principal).expect("a principal"), operation);
    let entries: BTreeSet<Acl> = [
        entry("User:ann", Operation::Write),
        entry("Role:sales", Operation::Describe),
        entry("User:*", Operation::Read),
        Acl { is_allowed: false, ..entry("User:ann", Operation::Read) },
        Acl { host: "10.0.0.1".into(), ..entry("User:ann", Operation::Read) },
        entry("User:ann", Operation::DescribeConfigs),
        entry("User:bob", Operation::All),
        entry("User:bob", Operation::Alter),
    ]
    .into();
    let shown = [
        binding("roles/pubsub.admin", &["user:bob"]),
        binding("roles/pubsub.publisher", &["user:ann"]),
        binding("roles/pubsub.subscriber", &["allUsers"]),
        binding("roles/pubsub.viewer", &["group:sales"]),
    ];
    assert_eq!(topic.policy(&entries, None).bindings, shown);
    assert_eq!(lines(&topic.shown(&entries)), ["User:* read", "User:ann write", "User:bob all", "Role:sales describe"]);
    let written = policy(vec![binding("roles/pubsub.publisher", &["user:ann"])]);
    assert_eq!(topic.policy(&entries, Some(written)).bindings, shown, "it is outdated");
    assert_eq!(topic.policy(&BTreeSet::new(), None), Policy::default());
}

const ROLES: [&str; 8] = [
    "roles/pubsub.admin",
    "roles/pubsub.editor",
    "roles/pubsub.publisher",
    "roles/pubsub.subscriber",
    "roles/pubsub.viewer",
    "roles/owner",
    "roles/editor",
    "roles/viewer",
];
const MEMBERS: [&str; 7] =
    ["user:a", "serviceAccount:a", "user:b", "group:a", "allUsers", "allAuthenticatedUsers", "user:\u{e4}"];

proptest! {
    /// A policy reads back as written, and without the text of it as one that says the same.
    #[test]
    fn a_policy_reads_back(
        kind in prop::sample::select(Kind::ALL.to_vec()),
        parts in prop::collection::vec(
            (prop::sample::select(ROLES.to_vec()), prop::collection::vec(prop::sample::select(MEMBERS.to_vec()), 0..4)),
            0..5,
        ),
    ) {
        let granted = granted(kind);
        let is_for_kind = |role: &str| Role::of_binding(kind, role).is_ok();
        let written =
            policy(parts.iter().filter(|(role, _)| is_for_kind(role)).map(|(role, of)| binding(role, of)).collect());
        let mut entries = granted.entries(&written).expect("all of it is supported");
        prop_assert_eq!(granted.shown(&entries), entries.clone());
        let generated = granted.policy(&entries, None);
        prop_assert_eq!(granted.entries(&generated), Ok(entries.clone()));
        // An entry that no role says makes no difference.
        entries.insert(Acl { is_allowed: false, ..granted.entry(Principal::Everyone, Operation::Write) });
        prop_assert_eq!(granted.policy(&entries, Some(written.clone())), written);
    }
}
