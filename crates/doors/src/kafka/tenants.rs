//! Names of tenants: a request of a tenant's client gets the broker's names right after it is decoded, and the response
//! gets the client's names right before it is encoded. All that is between works with the names of the broker.
//!
//! Bytes that members of a group send to each other stay as they are: both ends use the tenant's names. Where the
//! broker reads or writes them itself, in `groups`, it translates them with [`to_broker`] and [`to_client`].
//!
//! A name that is not the tenant's never leaves: an array loses the element, and any other text is emptied.

use std::sync::Arc;

use engine::security::TenantName;

use super::codec::{Answer, Body};
use super::configs;
use super::messages::Entity;
use super::produce::ProduceRequest;

/// Translates the names in a request of a tenant's client.
pub(super) fn enter(tenant: &TenantName, body: &mut Body) {
    match body {
        Body::Produce(request) => enter_produce(tenant, request),
        Body::Fetch(request) => request.topics.iter_mut().for_each(|(topic, _)| prefix(tenant, topic)),
        Body::Control(request) => request.names(&mut |entity, name| to_broker(tenant, entity, name)),
        Body::NewerApiVersions => {}
    }
}

pub(super) fn enter_produce(tenant: &TenantName, request: &mut ProduceRequest) {
    request.transactional_id.iter_mut().for_each(|id| prefix(tenant, id));
    request.topics.iter_mut().for_each(|topic| prefix(tenant, &mut topic.name));
}

/// Translates the names in a response to a tenant's client.
pub(super) fn leave(tenant: &TenantName, answer: &mut Answer) {
    match answer {
        Answer::Produced(produced) => {
            for (topic, partitions) in &mut produced.topics {
                *topic = Arc::from(client_name(tenant, topic).unwrap_or_default());
                let messages = partitions.iter_mut().filter_map(|partition| partition.message.as_mut());
                messages.for_each(|message| strip_text(tenant, message));
            }
        }
        Answer::Fetched(fetched) => {
            for (topic, _) in &mut fetched.topics {
                *topic = client_name(tenant, topic).unwrap_or_default().to_owned();
            }
        }
        Answer::Control(response) => response.names(&mut |entity, name| to_client(tenant, entity, name)),
        // They have no names of topics, only ids.
        Answer::Shared(_) | Answer::Versions(_) | Answer::Silence => {}
    }
}

/// Translates a name from a client into that of the broker. Always returns `true`: a request is not shortened.
pub(super) fn to_broker(tenant: &TenantName, entity: Entity, name: &mut String) -> bool {
    match entity {
        Entity::Topic | Entity::Group | Entity::Transaction | Entity::Coordinated => prefix(tenant, name),
        Entity::Configured(kind) if configs::has_name(kind) => prefix(tenant, name),
        // The group translates its pattern, after it has checked that it is one.
        Entity::TopicPattern | Entity::Configured(_) | Entity::Text | Entity::None => {}
    }
    true
}

/// Translates a name of the broker into that for a client. Returns `false`, and empties it, if it is not the tenant's.
pub(super) fn to_client(tenant: &TenantName, entity: Entity, name: &mut String) -> bool {
    let stripped = match entity {
        Entity::Topic | Entity::Group | Entity::Transaction | Entity::Coordinated => client_name(tenant, name),
        Entity::Configured(kind) if configs::has_name(kind) => client_name(tenant, name),
        Entity::TopicPattern => {
            let text = client_pattern(tenant, name).unwrap_or_default().to_owned();
            *name = text;
            return true;
        }
        Entity::Text => {
            strip_text(tenant, name);
            return true;
        }
        Entity::Configured(_) | Entity::None => return true,
    };
    let is_own = stripped.is_some();
    *name = stripped.unwrap_or_default().to_owned();
    is_own
}

/// Adds the prefix. Unlike for other doors, an inbox has no other meaning for Kafka's clients than any name. The empty
/// name stands for none.
fn prefix(tenant: &TenantName, name: &mut String) {
    if !name.is_empty() {
        name.insert_str(0, tenant.prefix());
    }
}

/// Returns the name for a client; `None` if it is not the tenant's.
fn client_name<'n>(tenant: &TenantName, name: &'n str) -> Option<&'n str> {
    if name.is_empty() { Some(name) } else { tenant.outer(name) }
}

/// Returns the regular expression for the broker's names that is equivalent to one for the tenant's names.
pub(super) fn broker_pattern(tenant: &TenantName, text: &str) -> String {
    format!("{}{text})", pattern_start(tenant))
}

/// Returns the regular expression that [`broker_pattern`] was given; `None` if the text is not from there.
fn client_pattern<'t>(tenant: &TenantName, text: &'t str) -> Option<&'t str> {
    text.strip_prefix(&pattern_start(tenant))?.strip_suffix(')')
}

fn pattern_start(tenant: &TenantName) -> String {
    format!("{}(?:", regex_lite::escape(tenant.prefix()))
}

/// Removes the prefix from the names that a text quotes.
fn strip_text(tenant: &TenantName, text: &mut String) {
    let prefix = tenant.prefix();
    if !text.contains(prefix) {
        return;
    }
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let mut stripped = String::with_capacity(text.len());
    let mut copied = 0;
    for (at, _) in text.match_indices(prefix) {
        // The end of a longer name is no prefix.
        if !text[..at].ends_with(is_of_name) {
            stripped.push_str(&text[copied..at]);
            copied = at + prefix.len();
        }
    }
    stripped.push_str(&text[copied..]);
    *text = stripped;
}

#[cfg(test)]
#[path = "tenants_tests.rs"]
mod tests;
