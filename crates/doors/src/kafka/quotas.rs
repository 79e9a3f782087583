//! Quotas in Kafka's terms (KIP-546): describe and alter. A broker has the same quotas at all doors.
//!
//! Answers follow `ClientQuotasImage` and `ClientQuotaControlManager` in Kafka's source. In addition there is
//! the key `request_rate`, in requests per second: `request_percentage` is a share of the time of a broker's threads,
//! which this broker does not measure, so that key is refused. Quotas of roles and tenants, which Kafka does not have,
//! are entities of the types `role` and `tenant`; the keys of counts are their names in this broker.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use broker::{Broker, QuotaChange};
use engine::security::{QuotaEntity, QuotaKind, QuotaSubject, Resource, RoleName, TenantName, UserName, Which};

use super::caller::Caller;
use super::errors::{self, Code};
use super::messages::alter_client_quotas::{
    self as alter, AlterClientQuotasRequest, AlterClientQuotasResponse, ResponseEntityData, ResponseEntryData,
};
use super::messages::describe_client_quotas::{
    ComponentData, DescribeClientQuotasRequest, DescribeClientQuotasResponse, EntityData, EntryData, ValueData,
};
use super::outcome::{Failure, of_error, outcome_code};

const USER: &str = "user";
const CLIENT_ID: &str = "client-id";
const IP: &str = "ip";
/// Types of entities that Kafka does not have.
const ROLE: &str = "role";
const TENANT: &str = "tenant";
const TYPES: [&str; 5] = [USER, CLIENT_ID, IP, ROLE, TENANT];
/// Types of which an entity has at most one.
const SUBJECTS: [&str; 3] = [USER, ROLE, TENANT];

/// Ways in which a component of a filter matches.
const EXACT: i8 = 0;
const DEFAULT: i8 = 1;
const SPECIFIED: i8 = 2;

/// Keys that Kafka has for users and client ids and this broker does not.
const REQUEST_PERCENTAGE: &str = "request_percentage";
const CONTROLLER_MUTATION_RATE: &str = "controller_mutation_rate";

/// Entity in Kafka's terms: each of its types with its name, or none for the default.
type Named = BTreeMap<&'static str, Option<String>>;

fn key_of(kind: QuotaKind) -> &'static str {
    match kind {
        QuotaKind::BytesIn => "producer_byte_rate",
        QuotaKind::BytesOut => "consumer_byte_rate",
        QuotaKind::Requests => "request_rate",
        QuotaKind::Connections => "connection_creation_rate",
        count => count.name(),
    }
}

pub(super) async fn describe(
    broker: &Broker,
    caller: &Caller,
    request: DescribeClientQuotasRequest,
) -> DescribeClientQuotasResponse {
    let found = async {
        caller.may_use(broker, 48, &Resource::CLUSTER).map_err(|code| (code, None))?;
        let filter = Filter::parse(request.components, request.strict).map_err(|(code, why)| (code, Some(why)))?;
        let quotas = broker.security.quotas().await.map_err(|error| (errors::code(&error), Some(error.message)))?;
        let matching = quotas.into_iter().map(|(entity, values)| (named(&entity), values));
        Ok(matching.filter(|(entity, _)| filter.matches(entity)).map(entry).collect())
    };
    match found.await {
        Ok(entries) => DescribeClientQuotasResponse {
            error_message: None,
            entries: Some(entries),
            ..DescribeClientQuotasResponse::default()
        },
        Err((Code(error_code), error_message)) => DescribeClientQuotasResponse {
            error_code,
            error_message,
            entries: None,
            ..DescribeClientQuotasResponse::default()
        },
    }
}

/// Converts an entity.
fn named(entity: &QuotaEntity) -> Named {
    let QuotaEntity { subject, client, address } = entity;
    let mut named = Named::new();
    match subject {
        Some(QuotaSubject::Role(role)) => drop(named.insert(ROLE, Some(role.as_str().to_owned()))),
        Some(QuotaSubject::Tenant(tenant)) => drop(named.insert(TENANT, Some(tenant.as_str().to_owned()))),
        Some(QuotaSubject::User(user)) => drop(named.insert(USER, Some(user.as_str().to_owned()))),
        Some(QuotaSubject::EachUser) => drop(named.insert(USER, None)),
        None => {}
    }
    match client {
        Some(Which::One(client)) => drop(named.insert(CLIENT_ID, Some(client.to_string()))),
        Some(Which::Default) => drop(named.insert(CLIENT_ID, None)),
        None => {}
    }
    match address {
        Some(Which::One(address)) => drop(named.insert(IP, Some(address.to_string()))),
        Some(Which::Default) => drop(named.insert(IP, None)),
        None => {}
    }
    named
}

fn entry((entity, values): (Named, Vec<(QuotaKind, f64)>)) -> EntryData {
    let part = |(entity_type, entity_name): (&str, _)| EntityData { entity_type: entity_type.to_owned(), entity_name };
    let value = |(kind, value)| ValueData { key: key_of(kind).to_owned(), value };
    EntryData { entity: entity.into_iter().map(part).collect(), values: values.into_iter().map(value).collect() }
}

/// Filter of entities.
struct Filter {
    /// Types that an entity must have, with this name or as the default.
    exact: BTreeMap<String, Option<String>>,
    /// Types that an entity must have.
    present: BTreeSet<String>,
    /// `true` if an entity must not have other types.
    is_strict: bool,
}

impl Filter {
    fn parse(components: Vec<ComponentData>, is_strict: bool) -> Result<Self, Failure> {
        let mut filter = Self { exact: BTreeMap::new(), present: BTreeSet::new(), is_strict };
        for ComponentData { entity_type, match_type, r#match } in components {
            if entity_type.is_empty() {
                return Err(invalid("Invalid empty entity type."));
            }
            if filter.has(&entity_type) {
                return Err(invalid(format!("Entity type {entity_type} cannot appear more than once in the filter.")));
            }
            if !TYPES.contains(&entity_type.as_str()) {
                return Err((Code::UNSUPPORTED_VERSION, format!("Unsupported entity type {entity_type}")));
            }
            match (match_type, r#match) {
                (EXACT, Some(name)) => drop(filter.exact.insert(entity_type, Some(name))),
                (EXACT, None) => {
                    return Err(invalid("Request specified MATCH_TYPE_EXACT, but set match string to null."));
                }
                (DEFAULT, None) => drop(filter.exact.insert(entity_type, None)),
                (SPECIFIED, None) => drop(filter.present.insert(entity_type)),
                (DEFAULT | SPECIFIED, Some(_)) => {
                    let name = if match_type == DEFAULT { "DEFAULT" } else { "SPECIFIED" };
                    let message = format!("Request specified MATCH_TYPE_{name}, but also specified a match string.");
                    return Err(invalid(message));
                }
                (other, _) => return Err(invalid(format!("Unknown match type {other}"))),
            }
        }
        if filter.has(IP) && (filter.has(USER) || filter.has(CLIENT_ID)) {
            return Err(invalid(
                "Invalid entity filter component combination. IP filter component should not be used with user or \
                 clientId filter component.",
            ));
        }
        Ok(filter)
    }

    fn has(&self, entity_type: &str) -> bool {
        self.exact.contains_key(entity_type) || self.present.contains(entity_type)
    }

    fn matches(&self, entity: &Named) -> bool {
        let Self { exact, present, is_strict } = self;
        (!is_strict || entity.len() == exact.len() + present.len())
            && exact.iter().all(|(entity_type, name)| entity.get(entity_type.as_str()) == Some(name))
            && present.iter().all(|entity_type| entity.contains_key(entity_type.as_str()))
    }
}

pub(super) async fn alter(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: AlterClientQuotasRequest,
) -> AlterClientQuotasResponse {
    let allowed = caller.may_use(broker, 49, &Resource::CLUSTER);
    let mut entries = Vec::with_capacity(request.entries.len());
    let mut seen = BTreeSet::new();
    for alter::EntryData { entity, ops } in request.entries {
        let outcome = match allowed {
            Err(code) => Err((code, String::new())),
            Ok(()) => match changes_of(&entity, ops, &mut seen) {
                Ok(_) if request.validate_only => Ok(()),
                Ok(changes) => broker.security.change_quotas(changes).await.map_err(of_error),
                Err(failure) => Err(failure),
            },
        };
        let (Code(error_code), error_message) = outcome_code(outcome);
        let part = |alter::EntityData { entity_type, entity_name }| ResponseEntityData { entity_type, entity_name };
        let entity = entity.into_iter().map(part).collect();
        entries.push(ResponseEntryData { error_code, error_message, entity });
    }
    AlterClientQuotasResponse { entries, ..AlterClientQuotasResponse::default() }
}

/// Returns the changes of an entry of a request. `seen` has the entities of the entries before it.
fn changes_of(
    parts: &[alter::EntityData],
    ops: Vec<alter::OpData>,
    seen: &mut BTreeSet<QuotaEntity>,
) -> Result<Vec<QuotaChange>, Failure> {
    let entity = entity_of(parts)?;
    if !seen.insert(entity.clone()) {
        return Err(invalid("Ignoring duplicate entity"));
    }
    let mut keys = BTreeSet::new();
    let mut changes = Vec::new();
    for alter::OpData { key, value, remove } in ops {
        if !keys.insert(key.clone()) {
            return Err(invalid(format!("Duplicate quota key {key} not updating quota for this entity")));
        }
        let kind = kind_of(&entity, &key);
        match (kind, remove) {
            (Ok(kind), true) => changes.push((entity.clone(), kind, None)),
            // Kafka checks only the keys of values that are set.
            (Err(_), true) => {}
            (Ok(kind), false) => {
                // Kafka accepts a value that is not a number.
                let in_kafkas_words = |message: String| message.replace(kind.name(), &key);
                let checked = entity.validate_value(kind, value);
                checked.map_err(|error| of_error(error.map_message(in_kafkas_words)))?;
                changes.push((entity.clone(), kind, Some(value)));
            }
            (Err(failure), false) => return Err(failure),
        }
    }
    Ok(changes)
}

/// Kinds of quotas that a tenant can have. The first ones are those of users and roles without a client id.
const OF_TENANTS: [QuotaKind; 9] = [
    QuotaKind::BytesIn,
    QuotaKind::BytesOut,
    QuotaKind::Requests,
    QuotaKind::OpenConnections,
    QuotaKind::Subscriptions,
    QuotaKind::Topics,
    QuotaKind::Queues,
    QuotaKind::Caches,
    QuotaKind::StoredBytes,
];

fn kind_of(entity: &QuotaEntity, key: &str) -> Result<QuotaKind, Failure> {
    let is_of_address = entity.address.is_some();
    let kinds: &[QuotaKind] = match entity {
        _ if is_of_address => &[QuotaKind::Connections],
        QuotaEntity { subject: Some(QuotaSubject::Tenant(_)), .. } => &OF_TENANTS,
        QuotaEntity { subject: Some(_), client: None, .. } => &OF_TENANTS[..5],
        _ => &QuotaKind::CHARGED,
    };
    let known = kinds.iter().copied().find(|kind| key_of(*kind) == key);
    known.ok_or_else(|| {
        invalid(match key {
            REQUEST_PERCENTAGE if !is_of_address => format!(
                "this broker does not measure the time of its threads, so it has no {key}: set request_rate, in \
                 requests per second"
            ),
            CONTROLLER_MUTATION_RATE if !is_of_address => format!(
                "this broker has no {key}: the keys peer_topics_per_minute and others limit what an address creates"
            ),
            _ => format!("Invalid configuration key {key}"),
        })
    })
}

fn entity_of(parts: &[alter::EntityData]) -> Result<QuotaEntity, Failure> {
    let mut entity = QuotaEntity::default();
    if parts.is_empty() {
        return Err(invalid("Invalid empty client quota entity"));
    }
    let mut types = BTreeSet::new();
    for alter::EntityData { entity_type, entity_name } in parts {
        if !types.insert(entity_type) {
            return Err(invalid(format!("Invalid client quota entity, duplicate entity entry {entity_type}")));
        }
        let name = entity_name.as_deref();
        match entity_type.as_str() {
            USER => entity.subject = Some(name.map_or(Ok(QuotaSubject::EachUser), subject_of)?),
            CLIENT_ID => entity.client = Some(name.map_or(Which::Default, |name| Which::One(name.into()))),
            IP => entity.address = Some(name.map_or(Ok(Which::Default), address_of)?),
            ROLE | TENANT => entity.subject = Some(named_subject(entity_type, name)?),
            other => return Err(invalid(format!("Unhandled client quota entity type: {other}"))),
        }
        if name == Some("") {
            return Err(invalid(format!("Empty {entity_type} not supported")));
        }
    }
    if SUBJECTS.iter().filter(|subject| types.iter().any(|name| name == *subject)).count() > 1 {
        return Err(invalid(format!("An entity has at most one of the types {}.", SUBJECTS.join(", "))));
    }
    entity.validate().map_err(of_error)?;
    Ok(entity)
}

/// Returns the role or the tenant of this name, which has no default.
fn named_subject(entity_type: &str, name: Option<&str>) -> Result<QuotaSubject, Failure> {
    let name = name.ok_or_else(|| invalid(format!("The entity type {entity_type} has no default: name one.")))?;
    if name.is_empty() {
        return Err(invalid(format!("Empty {entity_type} not supported")));
    }
    let subject = match entity_type {
        ROLE => RoleName::parse(name).map(QuotaSubject::Role),
        _ => TenantName::parse(name).map(QuotaSubject::Tenant),
    };
    subject.map_err(of_error)
}

fn subject_of(name: &str) -> Result<QuotaSubject, Failure> {
    match name {
        "" => Err(invalid(format!("Empty {USER} not supported"))),
        name => UserName::parse(name).map(QuotaSubject::User).map_err(of_error),
    }
}

/// Kafka also resolves the names of hosts, whose addresses may be others later.
fn address_of(text: &str) -> Result<Which<IpAddr>, Failure> {
    let address = text.parse::<IpAddr>().map_err(|error| invalid(format!("{text} is not a valid IP ({error}).")))?;
    Ok(Which::One(address.to_canonical()))
}

fn invalid(message: impl Into<String>) -> Failure {
    (Code::INVALID_REQUEST, message.into())
}
