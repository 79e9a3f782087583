//! Names of a client with a tenant: the prefix is added to each name in a request, and removed from each in a response.
//!
//! This is the only place of the door that knows of prefixes: requests enter here before they are checked, and
//! responses leave here. Numbers that stand for names, of caches and subscriptions, are not changed. Records are not
//! either: a header of the client's own that has the name of a topic is returned as it was published.

use broker::Identity;
use bytes::Bytes;
use engine::cache::{CacheName, CacheStatus};
use engine::queue::header;
use engine::security::TenantName;
use futures_util::{FutureExt, StreamExt};
use net::service::{Reply, once};
use wire::groups::{ByTopic, Heartbeat, OffsetCommit, OffsetReset, Step};
use wire::queues::{MessageInfo, Named, NewQueue, QueueInfo, Receive, RedriveInfo};
use wire::response::TopicInfo;
use wire::{
    CacheRequest, CacheResponse, GroupRequest, GroupResponse, QueueRequest, QueueResponse, Request, Response, Subscribe,
};

use super::access::DEAD_LETTER;
use super::codec::Answer;
use super::connection::Later;

/// Adds the prefix of the client's tenant to the names of a request. Returns the tenant if there is one, whose prefix
/// has to be removed from the response.
pub(super) fn enter(identity: &Identity, request: &mut Request) -> Option<TenantName> {
    let tenant = identity.tenant()?;
    Entering(tenant).request(request);
    Some(tenant.clone())
}

/// Removes the prefix of a tenant from the names of the response.
pub(super) fn leave(tenant: TenantName, reply: Reply<Answer, Later>) -> Reply<Answer, Later> {
    match reply {
        Reply::Now(answer) => Reply::Now(left(&tenant, answer)),
        Reply::Last(answer) => Reply::Last(left(&tenant, answer)),
        Reply::Later(later) => Reply::Later(leave_later(tenant, later)),
        Reply::Alone(later) => Reply::Alone(leave_later(tenant, later)),
        Reply::Blocked(later) => Reply::Blocked(leave_later(tenant, later)),
        Reply::Again(held) => Reply::Again(held),
    }
}

fn leave_later(tenant: TenantName, mut later: Later) -> Later {
    let answer = async move {
        let answer = later.next().await;
        left(&tenant, answer.expect("invariant: a later reply is one answer"))
    };
    once(answer.boxed_local())
}

fn left(tenant: &TenantName, mut answer: Answer) -> Answer {
    match &mut answer {
        Answer::Response(response) | Answer::Charged(response, _) => Leaving(tenant).response(response),
        Answer::LastWords(_) => {}
    }
    answer
}

/// Names of requests, which get the prefix of a tenant.
struct Entering<'t>(&'t TenantName);

impl Entering<'_> {
    fn name(&self, name: &mut String) {
        *name = self.0.inner(name);
    }

    fn names<'n>(&self, names: impl IntoIterator<Item = &'n mut String>) {
        names.into_iter().for_each(|name| self.name(name));
    }

    fn topics<T>(&self, topics: &mut ByTopic<T>) {
        self.names(topics.iter_mut().map(|(topic, _)| topic));
    }

    /// Adds the prefix to the beginning of a list. Without a beginning, it is that of the tenant's names.
    fn beginning(&self, beginning: &mut String) {
        beginning.insert_str(0, self.0.prefix());
    }

    fn request(&self, request: &mut Request) {
        match request {
            Request::Hello { .. }
            | Request::Login { .. }
            | Request::Ping
            | Request::Credit { .. }
            | Request::Unsubscribe { .. }
            | Request::Stats
            | Request::InitProducer
            // Those of tenants have no names.
            | Request::Security(_)
            | Request::Cluster(_)
            | Request::Mesh(_)
            | Request::Backup(_)
            | Request::Connection(_) => {}
            // A queue group is one of its topic, so its name has no prefix.
            Request::Subscribe(Subscribe { topic, .. })
            | Request::Publish { topic, .. }
            | Request::Fetch { topic, .. }
            | Request::TopicCreate { topic, .. }
            | Request::TopicDelete { topic }
            | Request::TopicDescribe { topic }
            | Request::TopicGrow { topic, .. }
            | Request::TopicAlter { topic, .. }
            | Request::RecordsDelete { topic, .. } => self.name(topic),
            Request::TopicList { after, .. } => self.beginning(after),
            Request::Group(request) => self.group(request),
            Request::Queue(request) => self.queue(request),
            Request::Cache(request) => self.cache(request),
        }
    }

    fn group(&self, request: &mut GroupRequest) {
        match request {
            GroupRequest::Heartbeat(Heartbeat { group, step, .. }) => {
                self.name(group);
                match step {
                    Step::Join { topics, .. } => self.names(topics),
                    Step::Alive { owned, topics, .. } => {
                        owned.iter_mut().for_each(|owned| self.topics(owned));
                        self.names(topics.iter_mut().flatten());
                    }
                    Step::Leave | Step::Away => {}
                }
            }
            GroupRequest::Commit(OffsetCommit { group, offsets, .. }) => {
                self.name(group);
                self.topics(offsets);
            }
            GroupRequest::Fetch { group, partitions } => {
                self.name(group);
                self.topics(partitions);
            }
            GroupRequest::List { after, .. } => self.beginning(after),
            GroupRequest::Describe { group } | GroupRequest::Delete { group } => self.name(group),
            GroupRequest::Reset(OffsetReset { group, topic, .. }) => self.names([group, topic]),
        }
    }

    fn queue(&self, request: &mut QueueRequest) {
        match request {
            QueueRequest::Create(NewQueue { queue, topic, settings, .. }) => {
                self.names([queue, topic]);
                self.settings(settings);
            }
            QueueRequest::Alter { queue, settings } => {
                self.name(queue);
                self.settings(settings);
            }
            QueueRequest::List { prefix, after, .. } => {
                self.beginning(prefix);
                self.beginning(after);
            }
            QueueRequest::Send { queue, messages, .. } => {
                self.name(queue);
                let headers = messages.iter_mut().flat_map(|message| &mut message.headers);
                each_source(headers, |source| Some(self.0.inner(source)));
            }
            QueueRequest::StartRedrive { queue, to, .. } => self.names([queue].into_iter().chain(to)),
            QueueRequest::Delete { queue }
            | QueueRequest::Describe { queue }
            | QueueRequest::Receive(Receive { queue, .. })
            | QueueRequest::Ack { queue, .. }
            | QueueRequest::Nack { queue, .. }
            | QueueRequest::Extend { queue, .. }
            | QueueRequest::Peek { queue, .. }
            | QueueRequest::Purge { queue }
            | QueueRequest::Seek { queue, .. }
            | QueueRequest::ListRedrives { queue } => self.name(queue),
            QueueRequest::CancelRedrive { .. } => {}
        }
    }

    fn settings(&self, settings: &mut Named) {
        self.names(settings.iter_mut().filter(|(name, _)| name == DEAD_LETTER).map(|(_, topic)| topic));
    }

    fn cache(&self, request: &mut CacheRequest) {
        match request {
            CacheRequest::Create { cache, .. }
            | CacheRequest::Open { cache }
            | CacheRequest::Delete { cache }
            | CacheRequest::Describe { cache } => self.name(cache),
            CacheRequest::List { after, .. } => self.beginning(after),
            CacheRequest::Get { .. }
            | CacheRequest::MultiGet { .. }
            | CacheRequest::Put { .. }
            | CacheRequest::Remove { .. }
            | CacheRequest::Add { .. }
            | CacheRequest::Touch { .. }
            | CacheRequest::Scan { .. }
            | CacheRequest::Watch { .. }
            | CacheRequest::Flush { .. } => {}
        }
    }
}

/// Names of responses, which lose the prefix of a tenant. A name without it, such as that of an inbox, is not changed.
struct Leaving<'t>(&'t TenantName);

impl Leaving<'_> {
    fn name(&self, name: &mut String) {
        if let Some(outer) = self.0.outer(name) {
            *name = outer.to_owned();
        }
    }

    fn names<'n>(&self, names: impl IntoIterator<Item = &'n mut String>) {
        names.into_iter().for_each(|name| self.name(name));
    }

    fn topics<T>(&self, topics: &mut ByTopic<T>) {
        self.names(topics.iter_mut().map(|(topic, _)| topic));
    }

    fn response(&self, response: &mut Response) {
        match response {
            Response::Hello(_)
            | Response::Published(_)
            | Response::Unsubscribed
            | Response::Fetched { .. }
            | Response::TopicDeleted
            | Response::RecordsDeleted { .. }
            | Response::Stats(_)
            | Response::Pong
            | Response::Login { .. }
            | Response::Producer { .. }
            | Response::Security(_)
            | Response::Cluster(_)
            | Response::Mesh(_)
            | Response::Backup(_)
            | Response::Connection(_)
            // Its text has the names of the broker.
            | Response::Error(_) => {}
            Response::Subscribed { sources, .. } => self.names(sources.iter_mut().map(|source| &mut source.topic)),
            Response::TopicCreated(topic)
            | Response::TopicDescribed(topic)
            | Response::TopicGrown(topic)
            | Response::TopicAltered(topic) => self.topic(topic),
            Response::Topics { topics, .. } => topics.iter_mut().for_each(|topic| self.topic(topic)),
            Response::Group(response) => self.group(response),
            Response::Queue(response) => self.queue(response),
            Response::Cache(response) => self.cache(response),
        }
    }

    fn topic(&self, TopicInfo { topic, owner, .. }: &mut TopicInfo) {
        self.names([topic, owner]);
    }

    fn group(&self, response: &mut GroupResponse) {
        match response {
            GroupResponse::Turn { assignment, .. } => assignment.iter_mut().for_each(|topics| self.topics(topics)),
            GroupResponse::Offsets(topics) => self.topics(topics),
            GroupResponse::Groups { groups, .. } => self.names(groups.iter_mut().map(|group| &mut group.group)),
            GroupResponse::Described(group) => {
                self.name(&mut group.group);
                self.names(group.members.iter_mut().flat_map(|member| &mut member.topics));
                self.topics(&mut group.partitions);
            }
            GroupResponse::Committed | GroupResponse::Deleted | GroupResponse::Reset(_) => {}
        }
    }

    fn queue(&self, response: &mut QueueResponse) {
        match response {
            QueueResponse::Created(queue) | QueueResponse::Altered(queue) | QueueResponse::Described(queue) => {
                self.queue_info(queue);
            }
            QueueResponse::Queues { queues, .. } => queues.iter_mut().for_each(|queue| self.queue_info(queue)),
            QueueResponse::Received { messages, .. } => {
                self.messages(messages.iter_mut().map(|received| &mut received.message));
            }
            QueueResponse::Peeked(messages) => self.messages(messages.iter_mut().map(|peeked| &mut peeked.message)),
            QueueResponse::Redrives(redrives) => redrives.iter_mut().for_each(|redrive| self.redrive(redrive)),
            QueueResponse::RedriveCancelled(redrive) => self.redrive(redrive),
            QueueResponse::Deleted
            | QueueResponse::Sent(_)
            | QueueResponse::Acked(_)
            | QueueResponse::Nacked(_)
            | QueueResponse::Extended(_)
            | QueueResponse::Purged(_)
            | QueueResponse::Sought
            | QueueResponse::RedriveStarted(_) => {}
        }
    }

    fn queue_info(&self, QueueInfo { queue, topic, settings, .. }: &mut QueueInfo) {
        self.names([queue, topic]);
        self.names(settings.iter_mut().filter(|(name, _)| name == DEAD_LETTER).map(|(_, topic)| topic));
    }

    fn messages<'m>(&self, messages: impl Iterator<Item = &'m mut MessageInfo>) {
        let headers = messages.flat_map(|message| &mut message.headers);
        each_source(headers, |source| self.0.outer(source).map(str::to_owned));
    }

    fn redrive(&self, RedriveInfo { from, to, .. }: &mut RedriveInfo) {
        self.names([from].into_iter().chain(to));
    }

    fn cache(&self, response: &mut CacheResponse) {
        match response {
            CacheResponse::Created(open) | CacheResponse::Opened(open) => self.status(&mut open.status),
            CacheResponse::Described(status) => self.status(status),
            CacheResponse::Caches { caches, .. } => caches.iter_mut().for_each(|status| self.status(status)),
            CacheResponse::Deleted
            | CacheResponse::Got(_)
            | CacheResponse::MultiGot(_)
            | CacheResponse::Put(_)
            | CacheResponse::Removed(_)
            | CacheResponse::Added(_)
            | CacheResponse::Touched(_)
            | CacheResponse::Scanned { .. }
            | CacheResponse::Watched(_)
            | CacheResponse::Flushed(_) => {}
        }
    }

    fn status(&self, status: &mut CacheStatus) {
        let outer = self.0.outer(status.name.as_str()).and_then(|name| CacheName::parse(name).ok());
        status.name = outer.unwrap_or_else(|| status.name.clone());
    }
}

/// Replaces the names in the headers that say from which queue a message came.
fn each_source<'h>(headers: impl Iterator<Item = &'h mut (String, Bytes)>, replace: impl Fn(&str) -> Option<String>) {
    for (_, value) in headers.filter(|(name, _)| name == header::SOURCE) {
        if let Some(replaced) = std::str::from_utf8(value).ok().and_then(&replace) {
            *value = replaced.into();
        }
    }
}
