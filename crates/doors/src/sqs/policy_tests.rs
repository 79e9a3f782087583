//! Tests of the translation of a queue's policy into access control entries.

use proptest::prelude::*;

use super::super::address::Home;
use super::super::sigv4::Credentials;
use super::*;

const OWN: &str = "000000000000";
const OTHER: &str = "111122223333";
const ARN: &str = "arn:aws:sqs:us-east-1:000000000000:q";

fn place() -> Place {
    Place::new(&Home { account: OWN.into(), region: "us-east-1".into() }, "q")
}

fn auth() -> Auth {
    let keys = ["AKIDEXAMPLE:secret", "111122223333:secret", "THEIRS:secret:111122223333"];
    Auth::Verify(Credentials::parse(keys.into_iter(), OWN).expect("credentials"))
}

/// Returns the entries of a policy as `PRINCIPAL PERMISSION OPERATION`, or why it is refused.
fn said(policy: &str) -> Result<Vec<String>, Refused> {
    let (place, auth) = (place(), auth());
    let queue = Policied { place: &place, known_as: "q", accounts: Accounts { auth: &auth, stored: None } };
    let line = |acl: Acl| {
        assert_eq!((&acl.pattern, acl.host.as_str()), (&queue.pattern(), "*"));
        let may = if acl.is_allowed { "allow" } else { "deny" };
        format!("{} {may} {}", acl.principal, acl.operation.name())
    };
    queue.entries(policy).map(|entries| entries.into_iter().map(line).collect())
}

fn statement(effect: &str, principal: Value, action: Value) -> Value {
    json!({"Effect": effect, "Principal": principal, "Action": action, "Resource": ARN})
}

fn policy(statements: Value) -> String {
    json!({"Version": "2012-10-17", "Statement": statements}).to_string()
}

fn of_principal(principal: &str) -> Result<Vec<String>, Refused> {
    said(&policy(json!([statement("Allow", json!({"AWS": principal}), json!("sqs:SendMessage"))])))
}

fn of_actions(principal: &str, actions: &[&str]) -> Result<String, Refused> {
    let lines = said(&policy(statement("Allow", json!({"AWS": principal}), json!(actions))))?;
    let operation = |line: &String| line.rsplit(' ').next().unwrap_or_default().to_owned();
    Ok(lines.iter().map(operation).collect::<Vec<_>>().join(","))
}

/// Forms of principals are from
/// <https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_principal.html>.
#[test]
fn a_principal_is_a_user_a_role_an_account_or_everyone() {
    for (principal, wanted) in [
        ("*", "User:*"),
        ("111122223333", "Role:aws-account-111122223333"),
        ("arn:aws:iam::111122223333:root", "Role:aws-account-111122223333"),
        ("arn:aws:iam::000000000000:user/AKIDEXAMPLE", "User:AKIDEXAMPLE"),
        ("arn:aws:iam::000000000000:user/ann", "User:ann"),
        ("arn:aws:iam::000000000000:user/team/ann", "User:team/ann"),
        ("arn:aws:iam::111122223333:user/THEIRS", "User:THEIRS"),
        ("arn:aws:iam::000000000000:role/auditors", "Role:auditors"),
    ] {
        assert_eq!(of_principal(principal), Ok(vec![format!("{wanted} allow write")]), "{principal}");
    }
    for principal in [
        "",
        "ann",
        "User:ann",
        "arn:aws:iam::000000000000:user/*",
        "arn:aws:iam::000000000000:user/a?",
        "arn:aws:iam::000000000000:user/",
        "arn:aws:iam::000000000000:user",
        // It belongs to another account.
        "arn:aws:iam::000000000000:user/THEIRS",
        "arn:aws:iam::111122223333:user/AKIDEXAMPLE",
        "arn:aws:iam::111122223333:user/ann",
        "arn:aws:iam::111122223333:role/auditors",
        "arn:aws-cn:iam::000000000000:root",
        "arn:aws:iam:us-east-1:000000000000:root",
        "arn:aws:iam::1:root",
        // Arabic digits.
        "\u{661}11122223333",
        "arn:aws:sts::000000000000:assumed-role/a/b",
        "arn:aws:iam::000000000000:role/a,b",
        "AIDAJQABLZS4A3QDU576Q",
    ] {
        let refused = of_principal(principal).expect_err(principal);
        assert!(refused.contains("Principal"), "{refused}");
    }
    let built_in = of_principal("arn:aws:iam::000000000000:role/admin").expect("the broker refuses it itself");
    assert_eq!(built_in, ["Role:admin allow write"]);
}

#[test]
fn actions_are_permissions_of_which_the_main_one_is_named() {
    let own = "arn:aws:iam::000000000000:user/ann";
    for (actions, wanted) in [
        (&["sqs:SendMessage"][..], "write"),
        (&["SQS:sendmessage", "sqs:SendMessageBatch"], "write"),
        (&["sqs:ReceiveMessage"], "read"),
        (&["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueUrl"], "read,describe"),
        (&["sqs:GetQueueUrl"], "describe"),
        (&["sqs:Get*"], "describe"),
        (&["sqs:*Message"], "read,write"),
        (&["sqs:DeleteQueue", "sqs:PurgeQueue", "sqs:CreateQueue"], "create,delete"),
        (&["sqs:SetQueueAttributes", "sqs:AddPermission", "sqs:StartMessageMoveTask"], "alter"),
        (&["sqs:*"], "all"),
        (&["*"], "all"),
    ] {
        assert_eq!(of_actions(own, actions).as_deref(), Ok(wanted), "{actions:?}");
    }
    for actions in [
        &["sqs:DeleteMessage"][..],
        &["sqs:ChangeMessageVisibility", "sqs:SendMessage"],
        &["sqs:PurgeQueue"],
        &["sqs:AddPermission"],
        &["sqs:Delete*"],
        &["sqs:ListQueues"],
        &["sqs:CancelMessageMoveTask"],
        &["sqs:Fly"],
        &["sqs:"],
        &["SendMessage"],
        &["sns:Publish"],
        // The first letter is Cyrillic.
        &["sqs:\u{405}endMessage"],
        &["sqs:[S]endMessage"],
        &[],
    ] {
        let refused = of_actions(own, actions).expect_err(&format!("{actions:?}"));
        assert!(refused.contains("ction"), "{refused}");
    }
    // "Cross-account permissions don't apply to the following actions" (AddPermission, Amazon SQS API Reference).
    for other in ["*", OTHER] {
        assert_eq!(of_actions(other, &["sqs:*"]).as_deref(), Ok("read,write,describe"), "{other}");
        for owners in ["sqs:DeleteQueue", "sqs:SetQueueAttributes", "sqs:CreateQueue"] {
            assert!(of_actions(other, &[owners]).is_err(), "{other} {owners}");
        }
    }
    let denied = said(&policy(statement("Deny", json!("*"), json!(["sqs:*"]))));
    assert_eq!(denied, Ok(vec!["User:* deny all".to_owned()]));
    assert!(said(&policy(statement("Deny", json!("*"), json!("sqs:DeleteMessage")))).is_err());
    assert!(said(&policy(statement("Deny", json!("*"), json!("sqs:GetQueueUrl")))).is_err());
}

#[test]
fn what_entries_cannot_say_is_refused() {
    let fine = || statement("Allow", json!("*"), json!("sqs:SendMessage"));
    let with = |name: &str, value: Value| {
        let mut one = fine();
        one[name] = value;
        said(&policy(json!([one])))
    };
    assert!(said(&policy(json!([fine()]))).is_ok() && with("Condition", json!({})).is_ok());
    assert!(with("Resource", json!("*")).is_ok() && with("Resource", json!([ARN])).is_ok());
    for (name, value, part) in [
        ("Condition", json!({"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}), "Condition IpAddress"),
        ("Resource", json!("arn:aws:sqs:us-east-1:000000000000:other"), "is not this queue"),
        ("Resource", json!([ARN, "arn:aws:sqs:us-east-1:111122223333:q"]), "is not this queue"),
        ("Resource", json!("arn:aws:sqs:*:*:q"), "is not this queue"),
        ("Resource", json!([]), "resource"),
        ("Principal", json!({"Service": "sns.amazonaws.com"}), "Service"),
        ("Principal", json!({"AWS": "*", "Federated": "x"}), "Federated"),
        ("Principal", json!({"AWS": []}), "principal"),
        ("Principal", json!("111122223333"), "AWS"),
        ("NotAction", json!("sqs:SendMessage"), "NotAction"),
        ("NotPrincipal", json!("*"), "NotPrincipal"),
        ("Effect", json!("allow"), "Allow"),
        ("Action", json!(vec!["sqs:SendMessage"; 8]), "7 actions"),
        ("Action", json!([["sqs:SendMessage"]]), "string"),
    ] {
        let refused = with(name, value.clone()).expect_err(&value.to_string());
        assert!(refused.contains(part), "{value}: {refused}");
    }
    let long = json!({"Statement": fine(), "Id": "x".repeat(BYTES_MAX)}).to_string();
    let deep = format!(r#"{{"Statement": {}1{}}}"#, "[".repeat(3000), "]".repeat(3000));
    let same = json!({"Effect": "Allow", "Principal": "*", "Action": "sqs:*", "Resource": "*", "Sid": "a"});
    let accounts: Vec<String> = (0..51).map(|n| format!("{n:012}")).collect();
    for (text, part) in [
        (long.as_str(), "8192"),
        (deep.as_str(), "The value at line 1, column 16 is not a string."),
        ("", "The policy is not valid JSON at line 1, column 0."),
        ("[]", "The value at line 1, column "),
        ("{}", "Statement is missing before line 1, column 2."),
        (r#"{"Statement": {"Effect": "Maybe"}}"#, "is neither Allow nor Deny."),
        (r#"{"Statement": 5}"#, " is not one value or a list. A policy has"),
        (r#"{"Statement": []}"#, "1 to 20"),
        (&policy(json!(vec![fine(); 21])), "1 to 20"),
        (&policy(json!([same, same])), "Sid a"),
        (&policy(statement("Allow", json!({ "AWS": accounts }), json!("sqs:SendMessage"))), "50"),
        (&json!({"Version": "2013", "Statement": fine()}).to_string(), "2012-10-17"),
        (&json!({"Version": "2012-10-17", "statement": fine()}).to_string(), "statement at line"),
        (r#"{"Statement": [], "Statement": []}"#, " is given twice. A policy has"),
        (
            r#"{"Statement": {"Effect": "Deny", "Effect": "Allow", "Principal": "*", "Action": "*", "Resource": "*"}}"#,
            "Effect at line 1, column ",
        ),
        (r#"{"Statement": {"Effect": "Deny", "Principal": {"AWS": "1", "AWS": "*"}, "Action": "*"}}"#, "AWS at line"),
    ] {
        let refused = said(text).expect_err(part);
        assert!(refused.contains(part), "{part}: {refused}");
    }
}

#[test]
fn a_policy_shows_what_is_left_of_it() {
    let (place, auth) = (place(), auth());
    let queue = Policied { place: &place, known_as: "q", accounts: Accounts { auth: &auth, stored: None } };
    let own = |name: &str| format!("arn:aws:iam::{OWN}:user/{name}");
    let text = policy(json!([
        {
            "Sid": "a",
            "Effect": "Allow",
            "Principal": {"AWS": [own("ann"), own("bob")]},
            "Action": ["sqs:SendMessage", "sqs:ReceiveMessage", "sqs:DeleteMessage"],
            "Resource": ARN,
        },
        {"Effect": "Deny", "Principal": "*", "Action": "sqs:DeleteQueue", "Resource": "*"},
    ]));
    let all = queue.entries(&text).expect("it is supported");
    assert_eq!(queue.shown(&text, &all).as_ref(), Some(&text));
    let left: BTreeSet<Acl> = all
        .iter()
        .filter(|acl| acl.is_allowed && (acl.principal.to_string() != "User:bob" || acl.operation != Operation::Read))
        .cloned()
        .collect();
    let shown = queue.shown(&text, &left).expect("some is left");
    assert_eq!(queue.entries(&shown), Ok(left));
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(shown["Version"], "2012-10-17");
    let sids = shown["Statement"].as_array().expect("a list").iter().map(|one| one["Sid"].clone());
    assert_eq!(sids.collect::<Vec<_>>(), ["a-1", "a-2"]);
    assert_eq!((queue.shown(&text, &BTreeSet::new()), queue.shown("{}", &all)), (None, None));
}

/// Two statements that were left of a policy once had one Sid, and the policy was refused when it was sent back.
#[test]
fn statements_that_are_left_have_sids_of_their_own() {
    let (place, auth) = (place(), auth());
    let queue = Policied { place: &place, known_as: "q", accounts: Accounts { auth: &auth, stored: None } };
    let mut split = statement("Allow", json!({"AWS": [OTHER, "*"]}), json!(["sqs:SendMessage", "sqs:ReceiveMessage"]));
    split["Sid"] = "a".into();
    let mut other = statement("Deny", json!("*"), json!("sqs:DeleteQueue"));
    other["Sid"] = "a-1".into();
    let text = policy(json!([split, other]));
    let mut left = queue.entries(&text).expect("it is supported");
    left.retain(|acl| acl.principal != Principal::Everyone || acl.operation != Operation::Read);
    let shown = queue.shown(&text, &left).expect("some is left");
    assert_eq!(queue.entries(&shown), Ok(left));
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    let sids = shown["Statement"].as_array().expect("a list").iter().map(|one| one["Sid"].clone());
    assert_eq!(sids.collect::<Vec<_>>(), ["a-2", "a-3", "a-1"]);
}

const PRINCIPALS: [&str; 5] = [
    "*",
    OTHER,
    "arn:aws:iam::000000000000:user/ann",
    "arn:aws:iam::000000000000:role/r",
    "arn:aws:iam::000000000000:root",
];
/// Sids that an earlier statement gets if it is shown as several.
const SIDS: [&str; 3] = ["a", "a-1", "a-2"];
const ACTIONS: [&str; 9] = [
    "sqs:SendMessage",
    "sqs:ReceiveMessage",
    "sqs:DeleteMessage",
    "sqs:GetQueueAttributes",
    "sqs:GetQueueUrl",
    "sqs:DeleteQueue",
    "sqs:SetQueueAttributes",
    "sqs:*",
    "sqs:Get*",
];

proptest! {
    /// A policy is shown as it was written, and what is left of it says the entries that are left.
    #[test]
    fn a_policy_reads_back(
        statements in prop::collection::vec(
            (
                any::<bool>(),
                prop::collection::vec(prop::sample::select(PRINCIPALS.to_vec()), 1..3),
                prop::collection::vec(prop::sample::select(ACTIONS.to_vec()), 1..4),
            ),
            1..4,
        ),
        gone in any::<u64>(),
    ) {
        let effect = |is_allowed| if is_allowed { "Allow" } else { "Deny" };
        let one = |(at, (is_allowed, principals, actions)): (usize, &(bool, Vec<&str>, Vec<&str>))| {
            let mut one = statement(effect(*is_allowed), json!({ "AWS": principals }), json!(actions));
            one["Sid"] = SIDS[at].into();
            one
        };
        check_policy(&policy(statements.iter().enumerate().map(one).collect()), gone);
    }

    #[test]
    fn any_text_is_a_policy_or_refused(text in ".{0,200}") {
        prop_assert!(said(&text).is_err());
    }
}
