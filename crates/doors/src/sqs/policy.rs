//! Translation of a queue's policy into access control entries of the queue, and back.
//!
//! A policy is a JSON document of statements
//! (<https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements.html>). What entries of one queue
//! cannot say is refused. The broker's permissions are coarser than AWS's actions, so a statement has to name the
//! action that matters most of each permission: one that only allowed to delete messages would allow to receive them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::marker::PhantomData;

use broker::Security;
use engine::glob;
use engine::security::{Account, Acl, Operation, Pattern, PatternKind, Principal, ResourceKind, RoleName, UserName};
use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer, StrDeserializer};
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value, json};

use super::access::{Needs, needs};
use super::address::{Home, Place};
use super::model::Action;
use super::permissions::is_for_owner;
use super::sigv4::Auth;

/// Limits of a policy
/// (<https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/quotas-policies.html>).
const BYTES_MAX: usize = 8192;
pub(super) const STATEMENTS_MAX: usize = 20;
const PRINCIPALS_MAX: usize = 50;
/// Maximum number of actions that one statement names.
pub(super) const ACTIONS_MAX: usize = 7;

const VERSIONS: [&str; 2] = ["2012-10-17", "2008-10-17"];
const ALL: &str = "*";
const SERVICE: &str = "sqs:";
/// Beginning of the name of the role of all keys of an account.
const ACCOUNT_ROLE: &str = "aws-account-";

/// Why a policy is refused, for its author.
pub(super) type Refused = String;

/// Returns the role that a client has whose verified access key belongs to an account.
pub(super) fn role_of(account: &str) -> Option<RoleName> {
    Account::is_valid(account).then(|| RoleName::parse(&format!("{ACCOUNT_ROLE}{account}")).ok()).flatten()
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct Document {
    version: Option<String>,
    #[serde(rename = "Id")]
    _id: Option<String>,
    statement: Many<Statement>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct Statement {
    sid: Option<String>,
    effect: Effect,
    principal: Principals,
    action: Many<String>,
    resource: Many<String>,
    #[serde(default)]
    condition: BTreeMap<String, IgnoredAny>,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
enum Effect {
    Allow,
    Deny,
}

impl Effect {
    fn name(self) -> &'static str {
        match self {
            Self::Allow => "Allow",
            Self::Deny => "Deny",
        }
    }
}

/// One value, or a list of them. Values are not tried as one and then as the other, so that errors say what is wrong.
struct Many<T>(Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Many<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMany<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for OneOrMany<T> {
            type Value = Many<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("one value or a list")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                T::deserialize(StrDeserializer::new(text)).map(|one| Many(vec![one]))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(|one| Many(vec![one]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(list)).map(Many)
            }
        }

        deserializer.deserialize_any(OneOrMany(PhantomData))
    }
}

/// Principals of AWS. Those of other kinds, such as services, are none of this broker.
struct Principals(Vec<String>);

impl<'de> Deserialize<'de> for Principals {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Named {
            #[serde(rename = "AWS")]
            aws: Many<String>,
        }

        struct AllOrNamed;

        impl<'de> Visitor<'de> for AllOrNamed {
            type Value = Principals;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"*\", or {\"AWS\": ..}")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                match text {
                    ALL => Ok(Principals(vec![text.to_owned()])),
                    other => Err(E::invalid_value(de::Unexpected::Str(other), &self)),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                Named::deserialize(MapAccessDeserializer::new(map)).map(|named| Principals(named.aws.0))
            }
        }

        deserializer.deserialize_any(AllOrNamed)
    }
}

/// Actions that a statement names, by the operation that they need.
#[derive(Default)]
struct Named {
    /// `true` if it names all.
    is_all: bool,
    of: BTreeMap<Operation, Actions>,
}

struct Actions {
    any: Action,
    /// `true` if the action is named that matters most of the operation.
    has_main: bool,
}

/// Returns the operation that an action needs on a queue; `None` if it is not about one queue.
fn operation_of(action: Action) -> Option<Operation> {
    match needs(action) {
        Needs::Listed | Needs::Cluster(_) => None,
        of_queue => Some(of_queue.operation()),
    }
}

/// Returns the action that a statement has to name for the permission for an operation.
fn main_of(operation: Operation) -> Option<Action> {
    match operation {
        Operation::Read => Some(Action::ReceiveMessage),
        Operation::Write => Some(Action::SendMessage),
        Operation::Create => Some(Action::CreateQueue),
        Operation::Delete => Some(Action::DeleteQueue),
        Operation::Alter => Some(Action::SetQueueAttributes),
        Operation::Describe => Some(Action::GetQueueAttributes),
        Operation::All
        | Operation::DescribeConfigs
        | Operation::AlterConfigs
        | Operation::ClusterAction
        | Operation::IdempotentWrite => None,
    }
}

/// Returns the action of a policy that stands for the permission for an operation.
fn action_of(operation: Operation) -> String {
    format!("{SERVICE}{}", main_of(operation).map_or(ALL, Action::name))
}

/// Returns the part of an action that follows `sqs:`, which is written in any case.
fn without_service(action: &str) -> Option<&str> {
    let (service, name) = action.split_at_checked(SERVICE.len())?;
    service.eq_ignore_ascii_case(SERVICE).then_some(name)
}

impl Named {
    /// Parses names and patterns of actions. Those that only the owner of a queue may take are `for_owner`.
    fn parse(actions: &[String], for_owner: bool) -> Result<Self, Refused> {
        let mut named = Self::default();
        for text in actions {
            let name = if text == ALL { ALL } else { without_service(text).unwrap_or_default() };
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'*' | b'?');
            if name.is_empty() || !name.bytes().all(is_plain) {
                return Err(format!("Action {text} is not one of SQS: write sqs:SendMessage, for example."));
            }
            if name == ALL {
                named.is_all = true;
                continue;
            }
            let is_pattern = name.contains(['*', '?']);
            let pattern = name.to_ascii_lowercase();
            let is_meant =
                |action: &&Action| glob::matches(pattern.as_bytes(), action.name().to_ascii_lowercase().as_bytes());
            let mut count = 0;
            for action in Action::ALL.iter().filter(is_meant) {
                let Some(operation) = operation_of(*action).filter(|_| for_owner || !is_for_owner(*action)) else {
                    if is_pattern {
                        continue;
                    }
                    return Err(format!(
                        "Action {text} cannot be given on a queue, or not to principals of other accounts."
                    ));
                };
                count += 1;
                let of = named.of.entry(operation).or_insert(Actions { any: *action, has_main: false });
                of.has_main |= main_of(operation) == Some(*action);
            }
            if count == 0 {
                return Err(format!("Action {text} is not one of SQS that can be given on a queue."));
            }
        }
        Ok(named)
    }

    /// Returns the operations that a statement with this effect allows or denies.
    fn operations(&self, effect: Effect, for_owner: bool) -> Result<BTreeSet<Operation>, Refused> {
        if self.is_all {
            return Ok(match effect {
                Effect::Allow if !for_owner => [Operation::Read, Operation::Write, Operation::Describe].into(),
                Effect::Allow | Effect::Deny => [Operation::All].into(),
            });
        }
        let mut operations = BTreeSet::new();
        for (operation, actions) in &self.of {
            let is_harmless = effect == Effect::Allow && *operation == Operation::Describe;
            if !actions.has_main && !is_harmless {
                let main = main_of(*operation).map_or("", Action::name);
                return Err(format!(
                    "Action sqs:{} is one with sqs:{main} here, the permission {}: name sqs:{main} as well.",
                    actions.any.name(),
                    operation.name()
                ));
            }
            operations.insert(*operation);
        }
        Ok(operations)
    }
}

/// Queue with a policy.
pub(super) struct Policied<'a> {
    pub place: &'a Place,
    /// Name of the queue at other doors, which is that of its entries.
    pub known_as: &'a str,
    pub accounts: Accounts<'a>,
}

/// Accounts of users, which are those of their access keys.
#[derive(Clone, Copy)]
pub(super) struct Accounts<'a> {
    /// Keys of the configuration.
    pub auth: &'a Auth,
    /// Keys of the broker, with the account of those that name none.
    pub stored: Option<(&'a Security, &'a str)>,
}

impl Accounts<'_> {
    /// Returns the account of a user: this one if any of their keys belongs to it. `None` if they have no key.
    fn of(&self, user: &UserName, wanted: &str) -> Option<String> {
        if let Some(account) = self.auth.account_of(user.as_str()) {
            return Some(account.to_owned());
        }
        let (security, default) = self.stored?;
        let accounts = security.accounts_of(user);
        let mut accounts = accounts.iter().map(|account| account.as_ref().map_or(default, Account::as_str));
        let first = accounts.next()?;
        let found = std::iter::once(first).chain(accounts).find(|account| *account == wanted);
        Some(found.unwrap_or(first).to_owned())
    }
}

impl Policied<'_> {
    /// Returns the pattern of all entries of the policy.
    pub fn pattern(&self) -> Pattern {
        Pattern { kind: ResourceKind::Queue, name: self.known_as.to_owned(), matching: PatternKind::Literal }
    }

    /// Returns the entries of a policy. Fails if they would not mean what the policy says.
    pub fn entries(&self, policy: &str) -> Result<BTreeSet<Acl>, Refused> {
        let document = self.document(policy)?;
        let mut entries = BTreeSet::new();
        for statement in &document.statement.0 {
            for text in &statement.principal.0 {
                entries.extend(self.entries_of(statement, text)?);
            }
        }
        Ok(entries)
    }

    fn document(&self, policy: &str) -> Result<Document, Refused> {
        if policy.len() > BYTES_MAX {
            return Err(format!("A policy has at most {BYTES_MAX} bytes, not {}.", policy.len()));
        }
        let document: Document = serde_json::from_str(policy).map_err(|error| {
            format!(
                "{} A policy has Version, Id and Statement; a statement has Sid, Effect, Principal (\"*\" or AWS), \
                 Action and Resource.",
                malformed(&error)
            )
        })?;
        if let Some(version) = &document.version
            && !VERSIONS.contains(&version.as_str())
        {
            return Err(format!("Version {version} is not one of {}.", VERSIONS.join(" and ")));
        }
        let statements = &document.statement.0;
        if statements.is_empty() || statements.len() > STATEMENTS_MAX {
            return Err(format!("A policy has 1 to {STATEMENTS_MAX} statements, not {}.", statements.len()));
        }
        let principals: usize = statements.iter().map(|statement| statement.principal.0.len()).sum();
        if principals > PRINCIPALS_MAX {
            return Err(format!("A policy has at most {PRINCIPALS_MAX} principals, not {principals}."));
        }
        let mut sids = BTreeSet::new();
        for statement in statements {
            self.check(statement)?;
            if let Some(sid) = &statement.sid
                && !sids.insert(sid)
            {
                return Err(format!("Two statements have the Sid {sid}."));
            }
        }
        Ok(document)
    }

    fn check(&self, statement: &Statement) -> Result<(), Refused> {
        if let Some(operator) = statement.condition.keys().next() {
            return Err(format!("Condition {operator} is not supported: remove the conditions."));
        }
        let actions = statement.action.0.len();
        if actions == 0 || actions > ACTIONS_MAX {
            return Err(format!("A statement has 1 to {ACTIONS_MAX} actions, not {actions}."));
        }
        if statement.principal.0.is_empty() {
            return Err("A statement has at least one principal.".to_owned());
        }
        let arn = self.place.arn();
        match statement.resource.0.iter().find(|resource| **resource != arn && *resource != ALL) {
            Some(other) => Err(format!("Resource {other} is not this queue: write {arn} or {ALL}.")),
            None if statement.resource.0.is_empty() => Err(format!("A statement has a resource: {arn}.")),
            None => Ok(()),
        }
    }

    /// Returns the entries of a statement for one of its principals.
    fn entries_of(&self, statement: &Statement, principal: &str) -> Result<Vec<Acl>, Refused> {
        let (principal, is_own) = self.principal(principal)?;
        let is_allowed = statement.effect == Effect::Allow;
        let for_owner = is_own || !is_allowed;
        let operations = Named::parse(&statement.action.0, for_owner)?.operations(statement.effect, for_owner)?;
        let pattern = self.pattern();
        let entry = |operation| Acl {
            pattern: pattern.clone(),
            principal: principal.clone(),
            host: ALL.to_owned(),
            operation,
            is_allowed,
        };
        Ok(operations.into_iter().map(entry).collect())
    }

    /// Parses a principal. Returns it with `true` if it belongs to the account of the queue.
    fn principal(&self, text: &str) -> Result<(Principal, bool), Refused> {
        let own = &self.place.home.account;
        let of_account = |account: &str| {
            let role = role_of(account).ok_or_else(|| format!("Principal {text} has no account of 12 digits."))?;
            Ok((Principal::Role(role), account == own))
        };
        if text == ALL {
            return Ok((Principal::Everyone, false));
        }
        if Account::is_valid(text) {
            return of_account(text);
        }
        let unknown = || {
            let partition = self.place.home.partition();
            format!(
                "Principal {text} is not supported: write {ALL}, an account id, arn:{partition}:iam::ACCOUNT:root, \
                 arn:{partition}:iam::ACCOUNT:user/NAME or arn:{partition}:iam::ACCOUNT:role/NAME."
            )
        };
        let parts: Vec<&str> = text.splitn(6, ':').collect();
        let &["arn", partition, "iam", "", account, name] = parts.as_slice() else {
            return Err(unknown());
        };
        if partition != self.place.home.partition() || !Account::is_valid(account) {
            return Err(unknown());
        }
        if name == "root" {
            return of_account(account);
        }
        // "You cannot use a wildcard to match part of a principal name or ARN" (AWS JSON policy elements: Principal).
        if name.contains(['*', '?']) {
            return Err(format!("Principal {text} has a wildcard: name one user or role, or {ALL}."));
        }
        let (principal, home) = match name.split_once('/') {
            Some(("user", name)) => {
                let user = UserName::parse(name).map_err(|error| format!("Principal {text}: {}.", error.message))?;
                let home = self.accounts.of(&user, account).unwrap_or_else(|| own.clone());
                (Principal::User(user), home)
            }
            Some(("role", name)) => {
                let role = RoleName::parse(name).map_err(|error| format!("Principal {text}: {}.", error.message))?;
                (Principal::Role(role), own.clone())
            }
            _ => return Err(unknown()),
        };
        if account == home {
            Ok((principal, account == own))
        } else {
            Err(format!("Principal {text} does not exist: the account of {name} is {home}."))
        }
    }

    /// Returns the part of a policy that entries say: all of it, unless some were deleted at another door.
    pub fn shown(&self, policy: &str, entries: &BTreeSet<Acl>) -> Option<String> {
        if self.entries(policy).ok()?.is_subset(entries) {
            return Some(policy.to_owned());
        }
        let document = self.document(policy).ok()?;
        let mut sids: BTreeSet<String> = document.statement.0.iter().filter_map(|one| one.sid.clone()).collect();
        let left = |statement| self.left(statement, entries, &mut sids);
        let statements: Vec<Value> = document.statement.0.iter().flat_map(left).collect();
        if statements.is_empty() {
            return None;
        }
        let mut whole: Map<String, Value> = serde_json::from_str(policy).ok()?;
        whole.insert("Statement".to_owned(), statements.into());
        Some(Value::Object(whole).to_string())
    }

    /// Returns statements that say what is left of one: one for all principals of which the same actions are left. Adds
    /// the Sids of several to those of the policy, which differ.
    fn left(&self, statement: &Statement, entries: &BTreeSet<Acl>, sids: &mut BTreeSet<String>) -> Vec<Value> {
        let mut by_actions: BTreeMap<Vec<String>, Vec<&str>> = BTreeMap::new();
        for principal in &statement.principal.0 {
            let Ok(said) = self.entries_of(statement, principal) else { continue };
            let left: Vec<&Acl> = said.iter().filter(|acl| entries.contains(acl)).collect();
            let actions = if left.len() == said.len() {
                statement.action.0.clone()
            } else {
                left.iter().map(|acl| action_of(acl.operation)).collect()
            };
            if !actions.is_empty() {
                by_actions.entry(actions).or_default().push(principal);
            }
        }
        let has_several = by_actions.len() > 1;
        let with_sid = |(actions, principals): (Vec<String>, Vec<&str>)| {
            let mut left = json!({
                "Effect": statement.effect.name(),
                "Principal": { "AWS": principals },
                "Action": actions,
                "Resource": self.place.arn(),
            });
            if let Some(sid) = &statement.sid {
                left["Sid"] = if has_several { numbered(sid, sids) } else { sid.clone() }.into();
            }
            left
        };
        by_actions.into_iter().map(with_sid).collect()
    }
}

/// Returns a Sid with the first number that none of a policy has, and adds it to them.
fn numbered(sid: &str, sids: &mut BTreeSet<String>) -> String {
    let mut number = 1;
    loop {
        let numbered = format!("{sid}-{number}");
        if sids.insert(numbered.clone()) {
            return numbered;
        }
        number += 1;
    }
}

/// Returns why a policy cannot be read, in the words of policies instead of those of the parser.
fn malformed(error: &serde_json::Error) -> String {
    let at = format!("at line {}, column {}", error.line(), error.column());
    if !error.is_data() {
        return format!("The policy is not valid JSON {at}.");
    }
    let text = error.to_string();
    let name = text.split('`').nth(1).unwrap_or_default();
    let is = |begin: &str| text.starts_with(begin);
    if is("missing field") {
        format!("{name} is missing before line {}, column {}.", error.line(), error.column())
    } else if is("unknown field") {
        format!("{name} {at} is not supported.")
    } else if is("duplicate field") {
        format!("{name} {at} is given twice.")
    } else if is("unknown variant") {
        format!("Effect {name} {at} is neither Allow nor Deny.")
    } else {
        let expected = text.rsplit_once(", expected ").map_or("of the right type", |(_, expected)| expected);
        let expected = expected.rsplit_once(" at line ").map_or(expected, |(expected, _)| expected);
        format!("The value {at} is not {expected}.")
    }
}

/// Parses a policy as the door does, and renders it without the entries whose bits are set in `gone`. For fuzzing.
/// Returns `true` if it is valid, and panics if it is rendered as a policy with other entries.
pub fn check_policy(policy: &str, gone: u64) -> bool {
    let home = Home { account: "000000000000".to_owned(), region: "us-east-1".to_owned() };
    let place = Place::new(&home, "q");
    let accounts = Accounts { auth: &Auth::Off, stored: None };
    let queue = Policied { place: &place, known_as: "q", accounts };
    let Ok(all) = queue.entries(policy) else { return false };
    assert!(all.iter().all(|acl| acl.validate().is_ok()), "entries are valid");
    assert_eq!(queue.shown(policy, &all).as_deref(), Some(policy), "nothing has changed");
    let is_left = |at: usize| gone & 1 << (at % 64) == 0;
    let left = all.iter().enumerate().filter(|(at, _)| is_left(*at));
    let left: BTreeSet<Acl> = left.map(|(_, acl)| acl.clone()).collect();
    match queue.shown(policy, &left) {
        None => assert!(left.is_empty(), "nothing is left"),
        Some(shown) => match queue.entries(&shown) {
            Ok(entries) => assert_eq!(entries, left, "{shown}"),
            // Several statements take more room than one.
            Err(why) => assert!(why.starts_with("A policy has "), "{why}: {shown}"),
        },
    }
    true
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
