//! Access control lists in Kafka's numbers: describe, create, delete.
//!
//! A client of a tenant sees and changes the entries on names of the tenant that it may alter, and gives no more than
//! it may do itself. Its pattern for all names, `*`, is the broker's pattern for all names with the tenant's prefix.

use std::sync::Arc;

use broker::Broker;
use engine::security::{
    Acl, AclFilter, Match, Operation, Pattern, PatternKind, Principal, Resource, ResourceKind, TenantName,
};
use engine::{Error, ErrorKind, Result};
use tokio::task::yield_now;

use super::access::{self, kind_code, operation_code};
use super::caller::Caller;
use super::errors::Code;
use super::messages::create_acls::{AclCreation, AclCreationResult, CreateAclsRequest, CreateAclsResponse};
use super::messages::delete_acls::{
    DeleteAclsFilter, DeleteAclsFilterResult, DeleteAclsMatchingAcl, DeleteAclsRequest, DeleteAclsResponse,
};
use super::messages::describe_acls::{AclDescription, DescribeAclsRequest, DescribeAclsResource, DescribeAclsResponse};

/// Value that matches any kind, operation, permission or pattern in a filter.
const ANY: i8 = 1;
const DENY: i8 = 2;
const ALLOW: i8 = 3;
/// Kinds of resources and operations that Kafka has entries for and this broker does not: delegation tokens and users;
/// creating and describing tokens, and two-phase commits.
const KINDS_OF_OTHERS: [i8; 2] = [6, 7];
const OPERATIONS_OF_OTHERS: [i8; 3] = [13, 14, 15];
/// Entries that are described before other tasks of the thread get their turn.
const ENTRIES_PER_TURN: usize = 256;
/// Name that stands for any, in a literal pattern.
const WILDCARD: &str = "*";
/// Types of patterns.
const COVERING: i8 = 2;
const LITERAL: i8 = 3;
const PREFIXED: i8 = 4;

/// Refuses as Kafka does if it has no authorizer (`AclApis` in its source): without authorization no entry takes
/// effect. For a client of a tenant, each entry is checked instead of the broker as a whole.
fn check_enabled(broker: &Broker, caller: &Caller, key: i16) -> std::result::Result<(), (Code, Option<String>)> {
    if caller.tenant().is_none() {
        caller.may_use(broker, key, &Resource::CLUSTER).map_err(|code| (code, None))?;
    }
    if broker.is_authorizing() {
        Ok(())
    } else {
        Err((
            Code::SECURITY_DISABLED,
            Some("No Authorizer is configured: set authorization = true; thalweg acl prepares entries".to_owned()),
        ))
    }
}

pub(super) async fn describe_acls(
    broker: &Broker,
    caller: &Caller,
    request: DescribeAclsRequest,
) -> DescribeAclsResponse {
    let found = match check_enabled(broker, caller, 29) {
        Err(why) => Err(why),
        Ok(()) => {
            let filter = Wanted::of(
                caller,
                DeleteAclsFilter {
                    resource_type_filter: request.resource_type_filter,
                    resource_name_filter: request.resource_name_filter,
                    pattern_type_filter: request.pattern_type_filter,
                    principal_filter: request.principal_filter,
                    host_filter: request.host_filter,
                    operation: request.operation,
                    permission_type: request.permission_type,
                },
            );
            match filter {
                Ok(Some(wanted)) => entries(broker, caller, wanted).await.map_err(of_error),
                Ok(None) => Ok(Vec::new()),
                Err(error) => Err(of_error(error)),
            }
        }
    };
    let (acls, (code, error_message)) = match found {
        Ok(acls) => (acls, (Code::NONE, None)),
        Err(why) => (Vec::new(), why),
    };
    let mut resources = Vec::new();
    for (done, of_one) in acls.chunk_by(|a, b| a.pattern == b.pattern).enumerate() {
        if done % ENTRIES_PER_TURN == ENTRIES_PER_TURN - 1 {
            yield_now().await;
        }
        let Some(shown) = Shown::of(caller.tenant(), &of_one[0].pattern) else {
            continue;
        };
        let Shown { resource_type, resource_name, pattern_type } = shown;
        let acls = of_one.iter().map(describe).collect();
        resources.push(DescribeAclsResource { resource_type, resource_name, pattern_type, acls });
    }
    DescribeAclsResponse { error_code: code.0, error_message, resources, ..Default::default() }
}

/// Returns the entries that the client may see, in the order of their patterns.
async fn entries(broker: &Broker, caller: &Caller, wanted: Wanted) -> Result<Vec<Acl>> {
    let found = broker.security.acls_by_pattern(wanted.filter.clone()).await?;
    let mut shown = Vec::new();
    for (done, acl) in found.into_iter().enumerate() {
        if done % ENTRIES_PER_TURN == ENTRIES_PER_TURN - 1 {
            yield_now().await;
        }
        shown.extend(wanted.includes(broker, caller, &acl).then_some(acl));
    }
    Ok(shown)
}

pub(super) async fn create_acls(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: CreateAclsRequest,
) -> CreateAclsResponse {
    let allowed = check_enabled(broker, caller, 30);
    let mut results = Vec::with_capacity(request.creations.len());
    for creation in request.creations {
        let outcome = match &allowed {
            Err(why) => Err(why.clone()),
            Ok(()) => match acl_of(caller.tenant(), creation) {
                Ok(acl) if !may_give(broker, caller, &acl) => Err((
                    Code::CLUSTER_AUTHORIZATION_FAILED,
                    Some("a client of a tenant gives what it may do itself, on names that it may alter".to_owned()),
                )),
                Ok(acl) => broker.security.create_acls(vec![acl]).await.map_err(of_error),
                Err(error) => Err(of_error(error)),
            },
        };
        let (Code(error_code), error_message) = outcome.err().unwrap_or((Code::NONE, None));
        results.push(AclCreationResult { error_code, error_message });
    }
    CreateAclsResponse { results, ..Default::default() }
}

pub(super) async fn delete_acls(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: DeleteAclsRequest,
) -> DeleteAclsResponse {
    let allowed = check_enabled(broker, caller, 31);
    let mut filter_results = Vec::with_capacity(request.filters.len());
    for filter in request.filters {
        let outcome = match &allowed {
            Err(why) => Err(why.clone()),
            Ok(()) => match Wanted::of(caller, filter) {
                Ok(Some(wanted)) => {
                    let is_known = |acl: &Acl| wanted.includes(broker, caller, acl);
                    broker.security.delete_acls(vec![wanted.filter.clone()], is_known).await.map_err(of_error)
                }
                Ok(None) => Ok(Vec::new()),
                Err(error) => Err(of_error(error)),
            },
        };
        filter_results.push(match outcome {
            Ok(gone) => DeleteAclsFilterResult {
                error_message: None,
                matching_acls: gone.iter().flatten().filter_map(|acl| deleted(caller.tenant(), acl)).collect(),
                ..Default::default()
            },
            Err((Code(error_code), error_message)) => {
                DeleteAclsFilterResult { error_code, error_message, ..Default::default() }
            }
        });
    }
    DeleteAclsResponse { filter_results, ..Default::default() }
}

fn of_error(error: Error) -> (Code, Option<String>) {
    let code = match error.kind {
        ErrorKind::Invalid | ErrorKind::Unsupported => Code::INVALID_REQUEST,
        _ => Code::UNKNOWN_SERVER_ERROR,
    };
    (code, Some(error.message))
}

fn acl_of(tenant: Option<&TenantName>, creation: AclCreation) -> Result<Acl> {
    let kind = kind_of(creation.resource_type)?
        .ok_or_else(|| Error::invalid("the resource type is missing: name one type"))?;
    let operation = operation_of(creation.operation)?
        .ok_or_else(|| Error::invalid("the operation is missing: name one operation"))?;
    let is_allowed = permission_of(creation.permission_type)?
        .ok_or_else(|| Error::invalid("the permission type is missing: use allow or deny"))?;
    let matching = match creation.resource_pattern_type {
        LITERAL => PatternKind::Literal,
        PREFIXED => PatternKind::Prefix,
        other => {
            return Err(Error::invalid(format!("the pattern type of an entry is literal or prefixed, not {other}")));
        }
    };
    Ok(Acl {
        pattern: pattern_of(tenant, kind, creation.resource_name, matching),
        principal: Principal::parse(&creation.principal)?,
        host: creation.host,
        operation,
        is_allowed,
    })
}

/// Entries that a request is about.
struct Wanted {
    filter: AclFilter,
    /// Type that the pattern has for the client; `None` for any.
    pattern_type: Option<i8>,
}

impl Wanted {
    /// Converts a filter. Returns `None` if it matches no entry that the client could have.
    fn of(caller: &Caller, filter: DeleteAclsFilter) -> Result<Option<Self>> {
        let pattern_type = filter.pattern_type_filter;
        let Some(mut filter) = filter_of(filter)? else {
            return Ok(None);
        };
        let Some(tenant) = caller.tenant() else {
            return Ok(Some(Self { filter, pattern_type: None }));
        };
        match &mut filter.name {
            // Any name: a pattern for all names is literal for the client, and not for the broker.
            None => filter.matching = Match::Any,
            Some(name) if name == WILDCARD => {
                *name = tenant.prefix().to_owned();
                filter.matching = if filter.matching == Match::Literal { Match::Prefix } else { filter.matching };
            }
            Some(name) => name.insert_str(0, tenant.prefix()),
        }
        Ok(Some(Self { filter, pattern_type: matches!(pattern_type, LITERAL | PREFIXED).then_some(pattern_type) }))
    }

    /// Returns `true` for an entry that the client may see and delete, of those that match the filter.
    fn includes(&self, broker: &Broker, caller: &Caller, acl: &Acl) -> bool {
        let shown = Shown::of(caller.tenant(), &acl.pattern);
        shown.is_some_and(|shown| self.pattern_type.is_none_or(|wanted| wanted == shown.pattern_type))
            && (caller.tenant().is_none() || may_alter(broker, caller, &acl.pattern, &[Operation::Alter]))
    }
}

/// Returns `true` if a client may create an entry. Those without a tenant were asked for a permission already.
fn may_give(broker: &Broker, caller: &Caller, acl: &Acl) -> bool {
    caller.tenant().is_none() || may_alter(broker, caller, &acl.pattern, &[Operation::Alter, acl.operation])
}

/// Returns `true` if a client may perform all these operations on all that a pattern is for.
fn may_alter(broker: &Broker, caller: &Caller, pattern: &Pattern, operations: &[Operation]) -> bool {
    let resource = match pattern.matching {
        PatternKind::Literal => Resource::new(pattern.kind, &pattern.name),
        PatternKind::Prefix => Resource::all(pattern.kind, &pattern.name),
        PatternKind::Glob => return false,
    };
    operations.iter().all(|operation| broker.security.allows(&caller.identity, *operation, &resource))
}

/// Converts a filter of a client without a tenant. Returns `None` if it names values that no entry here can have, so
/// that it matches nothing. Kafka compares principals and kinds with those of its entries, and parses none of them.
fn filter_of(filter: DeleteAclsFilter) -> Result<Option<AclFilter>> {
    let is_of_others =
        KINDS_OF_OTHERS.contains(&filter.resource_type_filter) || OPERATIONS_OF_OTHERS.contains(&filter.operation);
    let (kind, operation) = if is_of_others {
        (None, None)
    } else {
        (kind_of(filter.resource_type_filter)?, operation_of(filter.operation)?)
    };
    let matching = match filter.pattern_type_filter {
        ANY => Match::Any,
        COVERING => Match::Covering,
        LITERAL => Match::Literal,
        PREFIXED => Match::Prefix,
        other => return Err(Error::invalid(format!("{other} is not a pattern type"))),
    };
    let is_allowed = permission_of(filter.permission_type)?;
    let principal = match filter.principal_filter.as_deref().map(Principal::parse) {
        _ if is_of_others => return Ok(None),
        Some(Err(_)) => return Ok(None),
        Some(Ok(principal)) => Some(principal),
        None => None,
    };
    // If any kind matches, Kafka's name of the cluster still stands for the cluster.
    let name = filter.resource_name_filter.map(|name| to_ours(kind.unwrap_or(ResourceKind::Cluster), name));
    Ok(Some(AclFilter { kind, name, matching, principal, host: filter.host_filter, operation, is_allowed }))
}

/// Parses a kind of resource; `None` means any.
fn kind_of(code: i8) -> Result<Option<ResourceKind>> {
    if code == ANY {
        return Ok(None);
    }
    let known = ResourceKind::ALL.iter().copied().find(|kind| kind_code(*kind) == Some(code));
    known.map(Some).ok_or_else(|| Error::invalid(format!("access control of resource type {code} is not supported")))
}

fn operation_of(code: i8) -> Result<Option<Operation>> {
    if code == ANY {
        return Ok(None);
    }
    let known = Operation::ALL.iter().copied().find(|operation| operation_code(*operation) == code);
    known.map(Some).ok_or_else(|| Error::invalid(format!("access control of operation {code} is not supported")))
}

fn permission_of(code: i8) -> Result<Option<bool>> {
    match code {
        ANY => Ok(None),
        DENY => Ok(Some(false)),
        ALLOW => Ok(Some(true)),
        other => Err(Error::invalid(format!("{other} is not a permission type"))),
    }
}

fn permission_code(acl: &Acl) -> i8 {
    if acl.is_allowed { ALLOW } else { DENY }
}

/// Returns the type of resource and the type of pattern in Kafka's numbers; `None` if Kafka has no entries for such a
/// pattern, so that its clients neither see nor delete them.
fn codes_of(pattern: &Pattern) -> Option<(i8, i8)> {
    let of_pattern = match pattern.matching {
        PatternKind::Literal => LITERAL,
        PatternKind::Prefix => PREFIXED,
        PatternKind::Glob => return None,
    };
    Some((kind_code(pattern.kind)?, of_pattern))
}

/// Returns the pattern of an entry in the broker.
fn pattern_of(tenant: Option<&TenantName>, kind: ResourceKind, name: String, matching: PatternKind) -> Pattern {
    match (tenant, matching) {
        (None, _) => Pattern { kind, name: to_ours(kind, name), matching },
        (Some(tenant), PatternKind::Literal) if name == WILDCARD => {
            Pattern { kind, name: tenant.prefix().to_owned(), matching: PatternKind::Prefix }
        }
        (Some(tenant), _) => Pattern { kind, name: format!("{}{name}", tenant.prefix()), matching },
    }
}

/// Pattern of an entry as clients see it.
struct Shown {
    resource_type: i8,
    resource_name: String,
    pattern_type: i8,
}

impl Shown {
    /// Returns `None` if Kafka has no such patterns, or if it is not one of the tenant's names.
    fn of(tenant: Option<&TenantName>, pattern: &Pattern) -> Option<Self> {
        let (resource_type, pattern_type) = codes_of(pattern)?;
        let (resource_name, pattern_type) = match tenant {
            None => (name_of(pattern), pattern_type),
            Some(tenant) if pattern_type == PREFIXED && pattern.name == tenant.prefix() => {
                (WILDCARD.to_owned(), LITERAL)
            }
            Some(tenant) => (tenant.outer(&pattern.name)?.to_owned(), pattern_type),
        };
        Some(Self { resource_type, resource_name, pattern_type })
    }
}

fn to_ours(kind: ResourceKind, name: String) -> String {
    match (kind, name.as_str()) {
        (ResourceKind::Cluster, access::CLUSTER) => Resource::CLUSTER_NAME.to_owned(),
        _ => name,
    }
}

fn name_of(pattern: &Pattern) -> String {
    match pattern.kind {
        ResourceKind::Cluster => access::CLUSTER.to_owned(),
        _ => pattern.name.clone(),
    }
}

fn describe(acl: &Acl) -> AclDescription {
    AclDescription {
        principal: acl.principal.to_string(),
        host: acl.host.clone(),
        operation: operation_code(acl.operation),
        permission_type: permission_code(acl),
    }
}

fn deleted(tenant: Option<&TenantName>, acl: &Acl) -> Option<DeleteAclsMatchingAcl> {
    let Shown { resource_type, resource_name, pattern_type } = Shown::of(tenant, &acl.pattern)?;
    let AclDescription { principal, host, operation, permission_type } = describe(acl);
    Some(DeleteAclsMatchingAcl {
        error_code: Code::NONE.0,
        error_message: None,
        resource_type,
        resource_name,
        pattern_type,
        principal,
        host,
        operation,
        permission_type,
    })
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Handle;

    use super::super::admin::tests::caller;
    use super::*;

    /// All entries are collected on another thread, and other tasks of this one run while they are described.
    #[tokio::test]
    async fn other_tasks_have_their_turn_while_many_entries_are_described() {
        const MANY: usize = 600;
        let broker = Broker::start(broker::Settings::default(), &[Handle::current()]).expect("started");
        let acl = |number: usize| Acl {
            pattern: Pattern {
                kind: ResourceKind::Topic,
                name: format!("t{:04}", MANY - number),
                matching: PatternKind::Literal,
            },
            principal: Principal::parse(&format!("User:u{number}")).expect("a principal"),
            host: "*".into(),
            operation: Operation::Read,
            is_allowed: true,
        };
        broker.security.create_acls((0..MANY).map(acl).collect()).await.expect("created");
        let caller = caller();
        let wanted = Wanted { filter: AclFilter::default(), pattern_type: None };
        let mut described = std::pin::pin!(entries(&broker, &caller, wanted));
        let mut turns = 0;
        let found = std::future::poll_fn(|context| {
            let polled = described.as_mut().poll(context);
            turns += usize::from(polled.is_pending());
            polled
        });
        let found = found.await.expect("found");
        assert_eq!(found.len(), MANY);
        assert!(found.is_sorted_by(|a, b| a.pattern < b.pattern));
        assert!(turns >= 2, "{turns}");
    }
}
