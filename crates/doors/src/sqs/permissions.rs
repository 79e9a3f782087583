//! Tags and permissions of a queue. Without authorization both are only stored.

use engine::security::Account;
use serde_json::{Map as JsonMap, Value, json};

use super::address::Place;
use super::attributes::{self, Attributes, tag_note};
use super::codec::Answer;
use super::errors::{Failure, OVER_LIMIT, Result};
use super::map::{RequestContext, Sqs};
use super::model::{
    Action, AddPermission, List, ListQueueTags, Map, RemovePermission, TagQueue, Text, UntagQueue, required,
    required_text,
};
use super::policy::{ACTIONS_MAX, STATEMENTS_MAX};

const TAGS_MAX: usize = 50;
const TAG_KEY_CHARS_MAX: usize = 128;
const TAG_VALUE_CHARS_MAX: usize = 256;
const LABEL_CHARS_MAX: usize = 80;

impl Sqs {
    pub async fn tag_queue(&self, context: &RequestContext<'_>, request: TagQueue<'_>) -> Result<Answer> {
        let found = self.find(context, &request.queue_url).await?;
        let tags = required("Tags", &request.tags)?;
        if tags.0.is_empty() {
            return Err(Failure::missing("Tags"));
        }
        self.alter(&found, |attributes| add_tags(attributes, &found.place, tags)).await
    }

    pub async fn untag_queue(&self, context: &RequestContext<'_>, request: UntagQueue<'_>) -> Result<Answer> {
        let found = self.find(context, &request.queue_url).await?;
        let List(keys) = required("TagKeys", &request.tag_keys)?;
        let is_key = |key: &Text<'_>| (1..=TAG_KEY_CHARS_MAX).contains(&key.as_str().chars().count());
        if keys.is_empty() || !keys.iter().all(is_key) {
            return Err(Failure::parameter("Tag keys must be between 1 and 128 characters in length."));
        }
        let remove = |attributes: &mut Attributes| {
            for key in keys {
                attributes.notes.remove(&tag_note(key.as_str()));
            }
            Ok(())
        };
        self.alter(&found, remove).await
    }

    pub async fn list_tags(&self, context: &RequestContext<'_>, request: ListQueueTags<'_>) -> Result<Answer> {
        let found = self.find(context, &request.queue_url).await?;
        let tags = attributes::tags(&found.definition.notes);
        Ok(Answer::Tags(tags.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()))
    }

    pub async fn add_permission(&self, context: &RequestContext<'_>, request: AddPermission<'_>) -> Result<Answer> {
        let turn = self.policy_turn(true).await;
        let found = self.find(context, &request.queue_url).await?;
        let label = label(&request.label)?;
        if request.account_ids.as_ref().is_some_and(|List(accounts)| accounts.is_empty()) {
            return Err(Failure::value("PrincipalId", "[]", "Unable to verify."));
        }
        let accounts = texts("AWSAccountIds", &request.account_ids)?;
        let actions = texts("Actions", &request.actions)?;
        if let Some(wrong) = accounts.iter().find(|account| !Account::is_valid(account)) {
            let reason = "Invalid account id.";
            return Err(Failure::value("PrincipalId", wrong, reason));
        }
        if actions.len() > ACTIONS_MAX {
            let message = format!("{} Actions were found, maximum allowed is {ACTIONS_MAX}.", actions.len());
            return Err(Failure::new(&OVER_LIMIT, message));
        }
        let is_known = |name: &str| name == "*" || Action::parse(name).is_some();
        if let Some(unknown) = actions.iter().find(|action| !is_known(action)) {
            let reason = "Please refer to the appropriate WSDL for a list of valid actions. ";
            return Err(Failure::value("ActionName", format!("SQS:{unknown}"), reason));
        }
        let is_owners = |name: &str| Action::parse(name).is_some_and(is_for_owner);
        if let Some(wrong) = actions.iter().find(|action| is_owners(action)) {
            let reason = "Only the queue owner is allowed to invoke this action.";
            return Err(Failure::value("ActionName", format!("SQS:{wrong}"), reason));
        }
        let principals = accounts.iter().map(|account| found.place.home.principal(account));
        let statement = json!({
            "Sid": label,
            "Effect": "Allow",
            "Principal": { "AWS": one_or_all(principals.collect()) },
            "Action": one_or_all(actions.iter().map(|action| format!("SQS:{action}")).collect()),
            "Resource": found.place.arn(),
        });
        self.change_policy(context, turn, &found, |attributes| allow(attributes, &found.place, label, statement)).await
    }

    pub async fn remove_permission(
        &self,
        context: &RequestContext<'_>,
        request: RemovePermission<'_>,
    ) -> Result<Answer> {
        let turn = self.policy_turn(true).await;
        let found = self.find(context, &request.queue_url).await?;
        let label = label(&request.label)?;
        self.change_policy(context, turn, &found, |attributes| forbid(attributes, label)).await
    }
}

/// Returns `true` if an action is reserved for the owner of a queue, and cannot be allowed to others.
pub(super) fn is_for_owner(action: Action) -> bool {
    match action {
        Action::AddPermission
        | Action::CancelMessageMoveTask
        | Action::CreateQueue
        | Action::DeleteQueue
        | Action::ListMessageMoveTasks
        | Action::ListQueueTags
        | Action::ListQueues
        | Action::RemovePermission
        | Action::SetQueueAttributes
        | Action::StartMessageMoveTask
        | Action::TagQueue
        | Action::UntagQueue => true,
        Action::ChangeMessageVisibility
        | Action::ChangeMessageVisibilityBatch
        | Action::DeleteMessage
        | Action::DeleteMessageBatch
        | Action::GetQueueAttributes
        | Action::GetQueueUrl
        | Action::ListDeadLetterSourceQueues
        | Action::PurgeQueue
        | Action::ReceiveMessage
        | Action::SendMessage
        | Action::SendMessageBatch => false,
    }
}

/// Adds tags, or replaces their values.
pub(super) fn add_tags(attributes: &mut Attributes, place: &Place, tags: &Map<'_, Text<'_>>) -> Result<()> {
    for (key, value) in tags.iter() {
        let value = value.as_str();
        if key.is_empty() || key.chars().count() > TAG_KEY_CHARS_MAX {
            return Err(Failure::value("Key", key, "Tag keys must be between 1 and 128 characters in length."));
        }
        if key.to_ascii_lowercase().starts_with("aws:") {
            return Err(Failure::value("Key", key, "Tag keys must not start with 'aws:'."));
        }
        if value.chars().count() > TAG_VALUE_CHARS_MAX {
            return Err(Failure::value("Value", value, "Tag values must be at most 256 characters in length."));
        }
        attributes.notes.insert(tag_note(key), value.to_owned());
    }
    if attributes::tags(&attributes.notes).count() > TAGS_MAX {
        Err(Failure::parameter(format!("Too many tags added for queue {}.", place.name)))
    } else {
        Ok(())
    }
}

fn label<'t>(label: &'t Option<Text<'_>>) -> Result<&'t str> {
    let label = required_text("Label", label)?;
    let is_char = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if label.len() <= LABEL_CHARS_MAX && label.bytes().all(is_char) {
        Ok(label)
    } else {
        let reason = "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length.";
        Err(Failure::value("Label", label, reason))
    }
}

fn texts<'t>(name: &str, list: &'t Option<List<Text<'_>>>) -> Result<Vec<&'t str>> {
    let texts: Vec<&str> = list.iter().flat_map(|List(texts)| texts.iter().map(Text::as_str)).collect();
    if texts.is_empty() { Err(Failure::missing(name)) } else { Ok(texts) }
}

/// Returns the form in policies: a single text, or a list of several.
fn one_or_all(mut texts: Vec<String>) -> Value {
    match texts.len() {
        1 => Value::String(texts.remove(0)),
        _ => texts.into(),
    }
}

/// Returns the statements of a policy.
fn statements(policy: &mut JsonMap<String, Value>) -> &mut Vec<Value> {
    let statements = policy.entry("Statement").or_insert_with(|| Value::Array(Vec::new()));
    // A single statement may be present without a list.
    if !statements.is_array() {
        *statements = Value::Array(vec![statements.take()]);
    }
    statements.as_array_mut().expect("invariant: it is a list now")
}

fn allow(attributes: &mut Attributes, place: &Place, label: &str, statement: Value) -> Result<()> {
    let new = || {
        let mut policy = JsonMap::new();
        policy.insert("Version".into(), "2008-10-17".into());
        policy.insert("Id".into(), format!("{}/SQSDefaultPolicy", place.arn()).into());
        policy
    };
    let mut policy = attributes::policy(&attributes.notes).unwrap_or_else(new);
    let statements = statements(&mut policy);
    if statements.iter().any(|statement| statement["Sid"] == label) {
        return Err(Failure::value("Label", label, "Already exists."));
    }
    if statements.len() >= STATEMENTS_MAX {
        let message = format!("{} Statements were found, maximum allowed is {STATEMENTS_MAX}.", statements.len() + 1);
        return Err(Failure::new(&OVER_LIMIT, message));
    }
    statements.push(statement);
    attributes::set_policy(&mut attributes.notes, Some(&policy));
    Ok(())
}

fn forbid(attributes: &mut Attributes, label: &str) -> Result<()> {
    let mut policy = attributes::policy(&attributes.notes).unwrap_or_default();
    let statements = statements(&mut policy);
    let count = statements.len();
    statements.retain(|statement| statement["Sid"] != label);
    if statements.len() == count {
        return Err(Failure::value("Label", label, "can't find label."));
    }
    let is_empty = statements.is_empty();
    attributes::set_policy(&mut attributes.notes, if is_empty { None } else { Some(&policy) });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::address::Home;
    use super::super::names::Names;
    use super::*;

    #[test]
    fn statements_come_and_go_by_their_label() {
        let home = Home { account: "000000000000".into(), region: "us-east-1".into() };
        let place = Place::new(&home, "q");
        let names = Names { default: &home, tenant: None };
        let mut attributes = Attributes::new(false);
        allow(&mut attributes, &place, "a", json!({"Sid": "a"})).expect("allowed");
        let twice = allow(&mut attributes, &place, "a", json!({"Sid": "a"})).expect_err("refused");
        assert_eq!(twice.message, "Value a for parameter Label is invalid. Reason: Already exists.");
        allow(&mut attributes, &place, "b", json!({"Sid": "b"})).expect("allowed");
        let policy = attributes.get("Policy", &place, names).expect("a policy");
        let policy: Value = serde_json::from_str(&policy).expect("JSON");
        assert_eq!(policy["Id"], "arn:aws:sqs:us-east-1:000000000000:q/SQSDefaultPolicy");
        assert_eq!(policy["Statement"], json!([{"Sid": "a"}, {"Sid": "b"}]));
        forbid(&mut attributes, "a").expect("forbidden");
        let unknown = forbid(&mut attributes, "a").expect_err("refused");
        assert_eq!(unknown.message, "Value a for parameter Label is invalid. Reason: can't find label.");
        forbid(&mut attributes, "b").expect("forbidden");
        assert_eq!(attributes.get("Policy", &place, names), None);
    }

    #[test]
    fn tags_have_a_length_and_a_number() {
        let home = Home { account: "000000000000".into(), region: "us-east-1".into() };
        let place = Place::new(&home, "q");
        let add = |attributes: &mut Attributes, key: &str, value: &str| {
            let tags = Map(vec![(Text(key.to_owned().into()), Text(value.to_owned().into()))]);
            add_tags(attributes, &place, &tags)
        };
        let mut attributes = Attributes::new(false);
        for (key, value) in [("", "x"), (&*"k".repeat(129), "x"), ("k", &*"v".repeat(257)), ("AWS:x", "x")] {
            assert!(add(&mut attributes, key, value).is_err(), "{key} {value}");
        }
        for i in 0..50 {
            add(&mut attributes, &format!("key.{i}=,"), "").expect("a tag");
        }
        add(&mut attributes, "key.1=,", "again").expect("a tag that was there");
        let many = add(&mut attributes.clone(), "one more", "x").expect_err("refused");
        assert_eq!(many.message, "Too many tags added for queue q.");
    }
}
