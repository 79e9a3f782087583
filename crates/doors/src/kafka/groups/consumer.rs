//! ConsumerGroupHeartbeat: the only request of members to which the broker assigns partitions.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use broker::{Beat, Broker};
use engine::groups::{Assignor, Identity, Join, Turn};
use engine::limits::{GROUP_TOPICS_BYTES_MAX, REBALANCE_TIMEOUT_MS_MAX, SESSION_TIMEOUT_MS_MIN};
use engine::security::{Operation, Resource};
use engine::{Error, Pattern, Rule, TopicName, TopicPartition};
use regex_lite::{Regex, RegexBuilder};

use super::super::caller::Caller;
use super::super::errors::Code;
use super::super::messages::Uuid;
use super::super::messages::consumer_group_heartbeat::{
    Assignment, ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, TopicPartitions,
};
use super::super::tenants;
use super::{
    CONSUMER_GROUP_HEARTBEAT, GroupSettings, Outcome, Refused, by_topic, group_for, identity, partition_of,
    topics_named,
};

/// Values of the epoch for a member that leaves, and for a static member that leaves temporarily.
const LEAVES: i32 = -1;
const GOES_AWAY: i32 = -2;
/// Maximum size of a compiled regular expression in bytes, and its maximum nesting.
const REGEX_BYTES_MAX: usize = 16 << 10;
const REGEX_NESTING_MAX: u32 = 32;
/// Maximum number of groups of an expression. A match takes 32 bytes for each of them, and for the whole match, in each
/// state. [`REGEX_BYTES_MAX`] allows 512 states: at most 144 KiB for each thread that has matched the expression.
const REGEX_GROUPS_MAX: usize = 8;

pub(in super::super) async fn consumer_heartbeat(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: ConsumerGroupHeartbeatRequest,
) -> ConsumerGroupHeartbeatResponse {
    match try_heartbeat(broker, caller, &request).await {
        Ok((member, heartbeat_ms, turn)) => ConsumerGroupHeartbeatResponse {
            member_id: Some(member),
            member_epoch: turn.as_ref().map_or(request.member_epoch, |turn| turn.epoch as i32),
            heartbeat_interval_ms: heartbeat_ms as i32,
            assignment: turn.and_then(|turn| turn.assignment).map(|partitions| self::assignment(broker, partitions)),
            ..Default::default()
        },
        Err(refused) => ConsumerGroupHeartbeatResponse {
            error_code: refused.code.0,
            error_message: Some(refused.message),
            ..Default::default()
        },
    }
}

/// Returns the member's id, its heartbeat interval, and its assignment; no assignment if it leaves.
async fn try_heartbeat(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: &ConsumerGroupHeartbeatRequest,
) -> Outcome<(String, u32, Option<Turn>)> {
    let group = group_for(broker, caller, CONSUMER_GROUP_HEARTBEAT, &request.group_id)?;
    let names = request.subscribed_topic_names.as_deref().unwrap_or_default();
    let named = topics_named(broker, caller, CONSUMER_GROUP_HEARTBEAT, names)?;
    let settings = GroupSettings::of(broker, &group).await?;
    // In version 0, the broker generates the id of a member.
    let id = match request.member_id.as_str() {
        "" if request.member_epoch == 0 && caller.version == 0 => {
            broker.groups.new_member_id(&caller.client)?.to_string()
        }
        id => id.to_owned(),
    };
    let who = identity(&id, request.instance_id.as_deref())?;
    let turn = match request.member_epoch {
        0 => {
            let join = join(broker, caller, who, named, &settings, request)?;
            Some(broker.groups.join(&group, join).await?)
        }
        LEAVES | GOES_AWAY => {
            broker.groups.leave(&group, &who, request.member_epoch == GOES_AWAY).await?;
            None
        }
        epoch => {
            let topics = match (&request.subscribed_topic_names, &request.subscribed_topic_regex) {
                (None, None) => None,
                _ => Some(topics(broker, caller, named, request)?),
            };
            let session_timeout_ms = Some(settings.consumer_session_timeout_ms);
            let owned = request.topic_partitions.as_ref().map(|owned| self::owned(broker, caller, owned));
            let beat = Beat { who, epoch: epoch as u32, owned, topics, session_timeout_ms, wait: Duration::ZERO };
            Some(broker.groups.heartbeat(&group, beat).await?)
        }
    };
    Ok((id, settings.consumer_heartbeat_ms, turn))
}

fn join(
    broker: &Arc<Broker>,
    caller: &Caller,
    who: Identity,
    named: Vec<Pattern>,
    settings: &GroupSettings,
    request: &ConsumerGroupHeartbeatRequest,
) -> Outcome<Join> {
    let assignor = match request.server_assignor.as_deref() {
        None | Some("") => Assignor::default(),
        Some(name) => {
            name.parse().map_err(|error: Error| Refused { code: Code::UNSUPPORTED_ASSIGNOR, message: error.message })?
        }
    };
    let timeout_ms = u32::try_from(request.rebalance_timeout_ms).unwrap_or(settings.consumer_session_timeout_ms);
    Ok(Join {
        who,
        client: caller.client.clone(),
        host: caller.identity.host().to_owned(),
        topics: topics(broker, caller, named, request)?,
        assignor,
        session_timeout_ms: settings.consumer_session_timeout_ms,
        rebalance_timeout_ms: timeout_ms.clamp(SESSION_TIMEOUT_MS_MIN, REBALANCE_TIMEOUT_MS_MAX),
        // As in Kafka, a live member is not replaced.
        takes_over: false,
    })
}

/// Returns all subscriptions of a member: the topics that it names, and its regular expression.
fn topics(
    broker: &Arc<Broker>,
    caller: &Caller,
    mut topics: Vec<Pattern>,
    request: &ConsumerGroupHeartbeatRequest,
) -> Outcome<Vec<Pattern>> {
    if let Some(regex) = request.subscribed_topic_regex.as_deref().filter(|regex| !regex.is_empty()) {
        topics.push(rule(broker, caller, regex)?);
    }
    Ok(topics)
}

/// Returns a pattern for the topics whose whole name matches a regular expression, and that the caller may see. For the
/// client of a tenant, the name is that without the prefix.
fn rule(broker: &Arc<Broker>, caller: &Caller, text: &str) -> Outcome<Pattern> {
    let invalid = |message| Refused { code: Code::INVALID_REGULAR_EXPRESSION, message };
    // Checked before it is compiled.
    if text.len() > GROUP_TOPICS_BYTES_MAX {
        return Err(invalid(format!("a regular expression has at most {GROUP_TOPICS_BYTES_MAX} bytes")));
    }
    let is_unknown = |error| invalid(format!("'{text}' is not a supported regular expression: {error}"));
    let regex = expression(text).map_err(is_unknown)?;
    let tenant = caller.tenant().cloned();
    let shown = tenant.as_ref().map_or_else(|| text.to_owned(), |tenant| tenants::broker_pattern(tenant, text));
    let identity = caller.identity.clone();
    let whose = if broker.is_authorizing() { identity.decided_by() } else { String::new() };
    let broker = Arc::downgrade(broker);
    let takes = move |topic: &TopicName| {
        let topic = topic.as_str();
        let may_see = |broker: Arc<Broker>| {
            broker.security.authorize(&identity, Operation::Describe, &Resource::topic(topic)).is_ok()
        };
        let name = tenant.as_ref().map_or(Some(topic), |tenant| tenant.outer(topic));
        name.is_some_and(|name| regex.is_match(name)) && broker.upgrade().is_some_and(may_see)
    };
    Ok(Pattern::Rule(Rule::new(&shown, &whose, takes)))
}

/// Compiles an expression for ASCII names. Its memory is limited, because each member may have one.
fn expression(text: &str) -> Result<Regex, String> {
    let build = |text: &str| {
        let mut builder = RegexBuilder::new(text);
        builder.size_limit(REGEX_BYTES_MAX).nest_limit(REGEX_NESTING_MAX).build().map_err(|error| error.to_string())
    };
    // Also compiled on its own: the surrounding text could complete an invalid expression such as `a)|(b`.
    let groups = build(text)?.captures_len() - 1;
    if groups > REGEX_GROUPS_MAX {
        return Err(format!("it has {groups} groups, at most {REGEX_GROUPS_MAX}: write (?:..) instead of (..)"));
    }
    build(&format!("^(?:{text})$"))
}

/// Returns the partitions that a member reads; those of deleted topics are left out.
fn owned(broker: &Broker, caller: &Caller, owned: &[TopicPartitions]) -> BTreeSet<TopicPartition> {
    let of_topic = |of: &TopicPartitions| {
        let topic = caller.topic_by_id(broker, of.topic_id)?;
        Some(of.partitions.iter().filter_map(|number| partition_of(&topic, *number)).collect::<Vec<_>>())
    };
    owned.iter().filter_map(of_topic).flatten().collect()
}

fn assignment(broker: &Broker, partitions: Vec<TopicPartition>) -> Assignment {
    let of_topic = |(topic, partitions): (TopicName, Vec<i32>)| {
        let (id, _) = broker.find_topic(topic.as_str())?;
        Some(TopicPartitions { topic_id: Uuid(u128::from_be_bytes(id.to_bytes())), partitions })
    };
    Assignment { topic_partitions: by_topic(partitions).into_iter().filter_map(of_topic).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_expressions_match_whole_names() {
        let is_match = |text: &str, name: &str| expression(text).map(|regex| regex.is_match(name));
        let cases = [
            ("orders", "orders", Some(true)),
            ("orders", "orders-2", Some(false)),
            ("orders|bills-1", "bills-1", Some(true)),
            ("orders|bills", "bills-1", Some(false)),
            ("^orders.*", "orders-2", Some(true)),
            ("orders.*", "my-orders", Some(false)),
            ("orders\\.[a-z]+", "orders.eu", Some(true)),
            ("orders\\d", "orders7", Some(true)),
            ("(?i)ORDERS", "orders", Some(true)),
            ("a)|(b", "b", None),
            ("[", "[", None),
            ("(a)\\1", "aa", None),
            ("(((a{100}){100}){100})", "a", None),
        ];
        for (text, name, expected) in cases {
            assert_eq!(is_match(text, name).ok(), expected, "{text} {name}");
        }
        assert!(expression(&"(".repeat(4000)).is_err());
        assert!(expression(&"(a)".repeat(REGEX_GROUPS_MAX)).is_ok());
        let refused =
            expression(&"(a)".repeat(REGEX_GROUPS_MAX + 1)).expect_err("each group takes memory in each state");
        assert!(refused.contains("write (?:..) instead of (..)"), "{refused}");
    }
}
