//! Permissions that each request requires.

use broker::{Broker, Identity};
use engine::security::{Operation, Resource, ResourceKind};
use engine::{Missing, Pattern, Result, TopicName};
use wire::groups::{Heartbeat, OffsetCommit, OffsetReset, Step};
use wire::queues::{Named, NewQueue, Receive};
use wire::security::SecurityRequest;
use wire::{CacheRequest, GroupRequest, QueueRequest, Request};

/// Setting of a queue with the topic to which its failed messages are published.
pub(super) const DEAD_LETTER: &str = "dead_letter";

/// Checks that a client may send a request, except for one about queues: see [`check_queue`]. Each partition that a
/// subscription joins is checked when it does.
pub(super) fn check(broker: &Broker, identity: &Identity, request: &Request) -> Result<()> {
    let security = &broker.security;
    if security.is_unlimited(identity) {
        return Ok(());
    }
    let topic = |operation, name: &str| security.authorize(identity, operation, &Resource::topic(name));
    let cluster = |operation| security.authorize(identity, operation, &Resource::CLUSTER);
    match request {
        Request::Hello { .. }
        | Request::Login { .. }
        | Request::Ping
        | Request::Credit { .. }
        | Request::Unsubscribe { .. }
        // Lists show what the client may describe.
        | Request::TopicList { .. } => Ok(()),
        Request::Publish { topic, .. } => broker.authorize_publish(identity, topic),
        Request::Subscribe(subscribe) => match (Pattern::parse(&subscribe.topic), subscribe.missing) {
            (Ok(Pattern::Topic(name)), Missing::Create) if !name.is_inbox() && !broker.has_topic(name.as_str()) => {
                broker.authorize_creation(identity, name.as_str())
            }
            _ => Ok(()),
        },
        Request::Fetch { topic: name, .. } => topic(Operation::Read, name),
        Request::TopicCreate { topic, .. } => broker.authorize_creation(identity, topic),
        Request::TopicDelete { topic: name } | Request::RecordsDelete { topic: name, .. } => {
            topic(Operation::Delete, name)
        }
        Request::TopicDescribe { topic: name } => topic(Operation::Describe, name),
        Request::TopicGrow { topic: name, .. } => topic(Operation::Alter, name),
        Request::TopicAlter { topic: name, .. } => topic(Operation::AlterConfigs, name),
        Request::Stats => cluster(Operation::Describe),
        Request::InitProducer => security
            .authorize_any(identity, Operation::Write, ResourceKind::Topic)
            .or_else(|_| cluster(Operation::IdempotentWrite)),
        Request::Group(request) => check_group(broker, identity, request),
        Request::Security(request) => check_security(broker, identity, request),
        Request::Queue(_) => Ok(()),
        Request::Cache(request) => check_cache(broker, identity, request),
    }
}

fn check_security(broker: &Broker, identity: &Identity, request: &SecurityRequest) -> Result<()> {
    let cluster = |operation| broker.security.authorize(identity, operation, &Resource::CLUSTER);
    match request {
        SecurityRequest::PutUser { .. }
        | SecurityRequest::DeleteUser { .. }
        | SecurityRequest::CreateAcls(_)
        | SecurityRequest::DeleteAcls(_)
        | SecurityRequest::SetMember { .. }
        | SecurityRequest::PutToken { .. }
        | SecurityRequest::PutAccessKey { .. }
        | SecurityRequest::DeleteAccessKey(_)
        | SecurityRequest::SetTenant { .. } => cluster(Operation::Alter),
        SecurityRequest::DeleteToken(id) => broker.security.authorize_token_deletion(identity, id),
        SecurityRequest::ListUsers
        | SecurityRequest::ListAcls(_)
        | SecurityRequest::ListMembers
        | SecurityRequest::ListAccessKeys
        | SecurityRequest::ListTenants => cluster(Operation::Describe),
        // As Kafka requires for its requests about quotas.
        SecurityRequest::ChangeQuotas(_) => cluster(Operation::AlterConfigs),
        SecurityRequest::ListQuotas => cluster(Operation::DescribeConfigs),
        // It shows the tokens that the client may see.
        SecurityRequest::ListTokens => Ok(()),
        // How the client logged in decides, also without access control: the broker checks it.
        SecurityRequest::PutOwnToken { .. } => Ok(()),
    }
}

fn check_group(broker: &Broker, identity: &Identity, request: &GroupRequest) -> Result<()> {
    let group = |operation, name: &str| broker.security.authorize(identity, operation, &Resource::group(name));
    let reads = |name: &str| broker.security.authorize(identity, Operation::Read, &Resource::topic(name));
    match request {
        GroupRequest::Heartbeat(Heartbeat { group: name, step, .. }) => {
            group(Operation::Read, name)?;
            let topics = match step {
                Step::Join { topics, .. } => Some(topics),
                Step::Alive { topics, .. } => topics.as_ref(),
                Step::Away | Step::Leave => None,
            };
            // A member of a pattern reads only the topics that it may read: each fetch is checked.
            let named =
                topics.into_iter().flatten().filter(|topic| matches!(Pattern::parse(topic), Ok(Pattern::Topic(_))));
            named.map(String::as_str).try_for_each(reads)
        }
        GroupRequest::Commit(OffsetCommit { group: name, offsets, .. }) => {
            group(Operation::Read, name)?;
            offsets.iter().try_for_each(|(topic, _)| reads(topic))
        }
        GroupRequest::Fetch { group: name, .. } | GroupRequest::Describe { group: name } => {
            group(Operation::Describe, name)
        }
        // It shows what the client may describe.
        GroupRequest::List { .. } => Ok(()),
        GroupRequest::Delete { group: name } => group(Operation::Delete, name),
        GroupRequest::Reset(OffsetReset { group: name, topic, .. }) => {
            group(Operation::Read, name)?;
            reads(topic)
        }
    }
}

/// Checks that a client may send a request about queues.
pub(super) async fn check_queue(broker: &Broker, identity: &Identity, request: &QueueRequest) -> Result<()> {
    if broker.security.is_unlimited(identity) {
        return Ok(());
    }
    let (operation, queue) = match request {
        QueueRequest::Create(NewQueue { queue, topic, settings, .. }) => {
            check_dead_letters(broker, identity, settings).await?;
            let topic = Some(topic.as_str()).filter(|topic| !topic.is_empty());
            return broker.authorize_queue_creation(identity, queue, topic).await;
        }
        QueueRequest::Alter { queue, settings } => {
            check_dead_letters(broker, identity, settings).await?;
            (Operation::Alter, queue)
        }
        QueueRequest::StartRedrive { queue, to, .. } => {
            return broker.authorize_redrive(identity, queue, to.as_deref()).await;
        }
        QueueRequest::CancelRedrive { .. } => {
            return broker.security.authorize(identity, Operation::Alter, &Resource::CLUSTER);
        }
        // It shows what the client may describe.
        QueueRequest::List { .. } => return Ok(()),
        QueueRequest::Seek { queue, .. } => (Operation::Alter, queue),
        QueueRequest::Delete { queue } | QueueRequest::Purge { queue } => (Operation::Delete, queue),
        QueueRequest::Describe { queue } | QueueRequest::ListRedrives { queue } => (Operation::Describe, queue),
        QueueRequest::Send { queue, .. } => (Operation::Write, queue),
        QueueRequest::Receive(Receive { queue, .. })
        | QueueRequest::Ack { queue, .. }
        | QueueRequest::Nack { queue, .. }
        | QueueRequest::Extend { queue, .. }
        | QueueRequest::Peek { queue, .. } => (Operation::Read, queue),
    };
    broker.authorize_queue(identity, operation, queue).await
}

async fn check_dead_letters(broker: &Broker, identity: &Identity, settings: &Named) -> Result<()> {
    for (_, topic) in settings.iter().filter(|(name, _)| name == DEAD_LETTER) {
        broker.authorize_dead_letters(identity, topic).await?;
    }
    Ok(())
}

fn check_cache(broker: &Broker, identity: &Identity, request: &CacheRequest) -> Result<()> {
    let of_name = |operation, cache: &str| broker.authorize_entries(identity, operation, cache, b"");
    let of_key = |operation, cache: &u64, key: &[u8]| {
        let cache = broker.caches.by_id(*cache)?;
        broker.authorize_entry(identity, operation, cache.name().as_str(), key)
    };
    let of_prefix = |operation, cache: &u64, prefix: &[u8]| {
        let cache = broker.caches.by_id(*cache)?;
        broker.authorize_entries(identity, operation, cache.name().as_str(), prefix)
    };
    match request {
        CacheRequest::Create { cache, .. } => of_name(Operation::Create, cache),
        // Opening gives no data, but creates a cache that is missing.
        CacheRequest::Open { cache } if is_own(identity, cache) && broker.caches.describe(cache).is_ok() => Ok(()),
        CacheRequest::Open { cache } => of_name(Operation::Create, cache),
        CacheRequest::Delete { cache } => of_name(Operation::Delete, cache),
        CacheRequest::Describe { cache } => of_name(Operation::Describe, cache),
        // It shows what the client may describe.
        CacheRequest::List { .. } => Ok(()),
        CacheRequest::Get { cache, key } => of_key(Operation::Read, cache, key),
        CacheRequest::MultiGet { cache, keys } => keys.iter().try_for_each(|key| of_key(Operation::Read, cache, key)),
        CacheRequest::Put { cache, key, .. }
        | CacheRequest::Remove { cache, key, .. }
        | CacheRequest::Touch { cache, key, .. } => of_key(Operation::Write, cache, key),
        // The answer has the sum.
        CacheRequest::Add { cache, key, .. } => {
            of_key(Operation::Write, cache, key)?;
            of_key(Operation::Read, cache, key)
        }
        CacheRequest::Scan { cache, prefix, .. } | CacheRequest::Watch { cache, prefix, .. } => {
            of_prefix(Operation::Read, cache, prefix)
        }
        CacheRequest::Flush { cache } => of_prefix(Operation::Delete, cache, b""),
    }
}

/// Returns `false` for the name of another tenant than the client's.
fn is_own(identity: &Identity, name: &str) -> bool {
    identity.tenant().is_none_or(|tenant| tenant.owns(name))
}

/// Returns `true` if a subscription of a client may read a topic. An inbox has a name that cannot be guessed.
pub(super) fn may_read(broker: &Broker, identity: &Identity, topic: &TopicName) -> bool {
    topic.is_inbox() || broker.security.allows(identity, Operation::Read, &Resource::topic(topic.as_str()))
}
