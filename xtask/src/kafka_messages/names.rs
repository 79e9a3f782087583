//! Fields that hold names: of topics, of groups, of transactions, and texts that may quote such names.
//!
//! Kafka's schemas tell most of them (`entityType`). The others are in the table below.

use super::schema::{Field, Schema};
use crate::run::Outcome;

/// Fields whose schemas do not tell what they name: the message, the field, and what it names in the tables of the
/// door. Names of configured resources are of the kind in another field of their struct.
const UNTOLD: &[(&str, &str, &str)] = &[
    ("AlterConfigsRequest", "ResourceName", "Configured(resource_type)"),
    ("AlterConfigsResponse", "ResourceName", "Configured(resource_type)"),
    ("ConsumerGroupDescribeResponse", "SubscribedTopicRegex", "TopicPattern"),
    ("ConsumerGroupHeartbeatRequest", "SubscribedTopicRegex", "TopicPattern"),
    ("ConsumerProtocolSubscription", "Topics", "Topic"),
    ("DescribeConfigsRequest", "ResourceName", "Configured(resource_type)"),
    ("DescribeConfigsResponse", "ResourceName", "Configured(resource_type)"),
    ("FindCoordinatorRequest", "CoordinatorKeys", "Coordinated"),
    ("FindCoordinatorRequest", "Key", "Coordinated"),
    ("FindCoordinatorResponse", "Key", "Coordinated"),
    ("IncrementalAlterConfigsRequest", "ResourceName", "Configured(resource_type)"),
    ("IncrementalAlterConfigsResponse", "ResourceName", "Configured(resource_type)"),
    ("ListConfigResourcesResponse", "ResourceName", "Configured(resource_type)"),
];

/// Checks that the table has no row without a field, because a field that was renamed would lose its row.
pub fn check(schemas: &[Schema]) -> Outcome {
    for (message, name, _) in UNTOLD {
        let schema = schemas.iter().find(|schema| schema.name == *message);
        let has_field = |fields: &[Field]| fields.iter().any(|field| field.has(name));
        if !schema.is_some_and(|schema| has_field(&schema.fields)) {
            return Err(format!("the table of names has {message}.{name}, which no schema has"));
        }
    }
    Ok(())
}

/// Returns what a field names in the tables of the door, such as `Topic`; `None` if it holds no name.
pub fn of(schema: &Schema, field: &Field) -> Outcome<Option<&'static str>> {
    if !matches!(field.kind.as_str(), "string" | "[]string") {
        return Ok(None);
    }
    let untold = UNTOLD.iter().find(|(message, name, _)| *message == schema.name && *name == field.name);
    Ok(match (field.entity_type.as_deref(), untold) {
        (Some(told), Some(_)) => {
            return Err(format!("{} tells that {} is a {told}: remove it from the table", schema.name, field.name));
        }
        (None, Some((_, _, named))) => Some(named),
        (Some("topicName"), None) => Some("Topic"),
        (Some("groupId"), None) => Some("Group"),
        (Some("transactionalId"), None) => Some("Transaction"),
        (Some(other), None) => return Err(format!("a text names a {other}, which the door does not know")),
        (None, None) if field.name.ends_with("ErrorMessage") => Some("Text"),
        (None, None) => None,
    })
}
