//! Maps requests to calls of the broker: the function for each request, and their common context.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::{Broker, Delivered, Held};
use engine::queue::{QueueDefinition, QueueId};
use net::Drain;
use parking_lot::Mutex;

use super::address::{Home, Place, host_in, is_anybodys, name_of_host};
use super::attributes;
use super::check::{self, Rules};
use super::codec::Answer;
use super::errors::{Failure, INVALID_ADDRESS, Result};
use super::model::{List, Request, SendEntry, Text, required_text};
use super::names::Names;
use super::sigv4::Auth;

/// Maximum number of recently deleted or purged queues whose names are remembered.
const LATELY_MAX: usize = 65_536;
/// Maximum number of receive attempts that can be repeated, and the time during which they can.
const ATTEMPTS_MAX: usize = 4096;
const ATTEMPT_KEPT: Duration = Duration::from_secs(300);
/// Maximum number of hosts in the URLs of queues, in addition to the host of the request, and the time during which
/// they are remembered.
const HOSTS_MAX: usize = 1024;
const HOST_KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

/// State of the SQS door.
pub(super) struct Sqs {
    pub broker: Arc<Broker>,
    /// Access keys with their accounts, if signatures are verified.
    pub auth: Arc<Auth>,
    /// Held while a policy is changed, so that its entries and its text are of the same one.
    pub changing_policy: Arc<tokio::sync::Mutex<()>>,
    /// Account and region of requests that do not specify their own.
    pub default: Home,
    /// Base of the URLs of queues; by default the address to which the request was sent.
    pub url: Option<String>,
    /// Time during which the name of a deleted queue stays taken, and a purged queue cannot be purged again.
    pub cooldown: Duration,
    pub deleted: Arc<Mutex<Lately<String, ()>>>,
    pub purged: Mutex<Lately<String, ()>>,
    /// Receipts of messages that were received under an attempt id, which the receiver may repeat.
    pub attempts: Mutex<Attempts>,
    /// Hosts in the URLs of queues that this door has returned.
    pub hosts: Mutex<Lately<String, ()>>,
}

/// Received messages by queue and attempt id. Their contents are read again from the queue, so that an attempt takes a
/// kilobyte or so, whatever the size of its messages.
pub(super) type Attempts = Lately<(QueueId, String), Arc<[Delivered]>>;

/// Map of recent events, which expire after some time. If there are too many, the oldest ones are removed early.
pub(super) struct Lately<K, V> {
    found: HashMap<K, (Instant, V)>,
    by_age: VecDeque<(Instant, K)>,
    kept: Duration,
    max: usize,
}

impl<K: Hash + Eq + Clone, V: Clone> Lately<K, V> {
    fn new(kept: Duration, max: usize) -> Self {
        Self { found: HashMap::new(), by_age: VecDeque::new(), kept, max }
    }

    pub fn get(&mut self, key: &K, now: Instant) -> Option<V> {
        self.forget(now);
        self.found.get(key).map(|(_, value)| value.clone())
    }

    pub fn insert(&mut self, key: K, value: V, now: Instant) {
        self.forget(now);
        self.found.insert(key.clone(), (now, value));
        self.by_age.push_back((now, key));
        if self.by_age.len() > self.max {
            self.forget_oldest();
        }
    }

    pub fn remove(&mut self, key: &K) {
        self.found.remove(key);
    }

    fn forget(&mut self, now: Instant) {
        while self.by_age.front().is_some_and(|(at, _)| *at + self.kept <= now) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        // A key that was inserted again in the meantime stays.
        if let Some((at, key)) = self.by_age.pop_front()
            && self.found.get(&key).is_some_and(|(newest, _)| *newest == at)
        {
            self.found.remove(&key);
        }
    }
}

/// Context in which a request is answered: its account and region, its addresses, and its connection.
pub(super) struct RequestContext<'t> {
    /// Account and region for queues that are given by name alone.
    pub home: Home,
    /// `true` if the client has proved that it acts for this account.
    pub is_bound: bool,
    /// Base of the URLs of queues that lead back to this door.
    pub base: String,
    /// Host to which the request was sent.
    pub host: &'t str,
    /// Trace to which the request belongs.
    pub trace: Option<&'t str>,
    pub drain: Drain,
    /// Address of the client.
    pub address: IpAddr,
    /// On whose behalf the client acts: the user of its access key, if its signature was verified.
    pub identity: broker::Identity,
    /// Memory of the response, if the call reserves it before the response exists.
    pub held: Mutex<Option<Held>>,
}

/// Queue that a request names.
pub(super) struct Found {
    pub place: Place,
    pub definition: Arc<QueueDefinition>,
}

impl Found {
    pub fn name(&self) -> &str {
        self.definition.name.as_str()
    }

    /// Returns the requirements of the queue for its messages.
    pub fn rules(&self, is_in_batch: bool) -> Rules {
        let notes = &self.definition.notes;
        Rules {
            is_fifo: self.place.is_fifo(),
            dedups_by_content: attributes::dedups_by_content(notes),
            bytes_max: attributes::message_bytes_max(notes),
            is_in_batch,
        }
    }
}

impl Sqs {
    pub fn new(broker: Arc<Broker>, auth: Arc<Auth>, default: Home, url: Option<String>, cooldown: Duration) -> Self {
        Self {
            broker,
            auth,
            changing_policy: Arc::default(),
            default,
            url,
            cooldown,
            deleted: Arc::new(Mutex::new(Lately::new(cooldown, LATELY_MAX))),
            purged: Mutex::new(Lately::new(cooldown, LATELY_MAX)),
            attempts: Mutex::new(Lately::new(ATTEMPT_KEPT, ATTEMPTS_MAX)),
            hosts: Mutex::new(Lately::new(HOST_KEPT, HOSTS_MAX)),
        }
    }

    /// Returns the URL of a queue, which leads back to the address to which the request was sent.
    pub fn url_of(&self, context: &RequestContext<'_>, place: &Place) -> String {
        let url = place.url(&context.base, &self.default);
        if let Some(host) = host_in(&url) {
            let mut hosts = self.hosts.lock();
            let host = host.to_ascii_lowercase();
            let now = Instant::now();
            if hosts.get(&host, now).is_none() {
                hosts.insert(host, (), now);
            }
        }
        url
    }

    /// Refuses the URL of a queue of another service. A host belongs to this door if the request was sent to it, if
    /// URLs with it were returned here, or if it does not identify a service: a host of this machine, of AWS, or of an
    /// emulator.
    fn expect_own_host(&self, context: &RequestContext<'_>, url: &str) -> Result<()> {
        let Some(host) = host_in(url) else {
            return Ok(());
        };
        let is_same = |other: &str| name_of_host(other).eq_ignore_ascii_case(host);
        let is_own = is_same(context.host)
            || is_anybodys(host)
            || self.url.as_deref().and_then(host_in).is_some_and(is_same)
            || self.hosts.lock().get(&host.to_ascii_lowercase(), Instant::now()).is_some();
        if is_own {
            Ok(())
        } else {
            Err(Failure::new(
                &INVALID_ADDRESS,
                format!(
                    "The address {url} is not valid for this endpoint. Its host is not {}: use a URL that this \
                 endpoint gives out, or set sqs_url to the host that clients use.",
                    name_of_host(context.host)
                ),
            ))
        }
    }

    /// Returns the queue that a request names.
    pub async fn find(&self, context: &RequestContext<'_>, queue_url: &Option<Text<'_>>) -> Result<Found> {
        let url = required_text("QueueUrl", queue_url)?;
        let place = Place::parse(url, &context.home)?;
        self.expect_own_host(context, url)?;
        self.find_place(context, place).await
    }

    pub async fn find_place(&self, context: &RequestContext<'_>, place: Place) -> Result<Found> {
        let definition = self.broker.queues.get(&self.names(context).inner(&place)).await?;
        Ok(Found { place, definition })
    }

    pub async fn answer(&self, context: &RequestContext<'_>, request: Request<'_>) -> Result<Answer> {
        self.authorize(context, &request).await?;
        match request {
            Request::SendMessage(request) => self.send(context, request).await,
            Request::SendMessageBatch(request) => self.send_batch(context, request).await,
            // The future of a long poll is the memory of a waiting connection. It is boxed separately to keep the
            // others out of it.
            Request::ReceiveMessage(request) => Box::pin(self.receive(context, request)).await,
            Request::DeleteMessage(request) => self.delete(context, request).await,
            Request::DeleteMessageBatch(request) => self.delete_batch(context, request).await,
            Request::ChangeMessageVisibility(request) => self.change_visibility(context, request).await,
            Request::ChangeMessageVisibilityBatch(request) => self.change_visibility_batch(context, request).await,
            other => Box::pin(self.answer_control(context, other)).await,
        }
    }

    /// Executes a request that is not about messages.
    async fn answer_control(&self, context: &RequestContext<'_>, request: Request<'_>) -> Result<Answer> {
        match request {
            Request::CreateQueue(request) => self.create_queue(context, request).await,
            Request::DeleteQueue(request) => self.delete_queue(context, request).await,
            Request::GetQueueUrl(request) => self.queue_url(context, request).await,
            Request::ListQueues(request) => self.list_queues(context, request).await,
            Request::ListDeadLetterSourceQueues(request) => self.list_sources(context, request).await,
            Request::GetQueueAttributes(request) => self.queue_attributes(context, request).await,
            Request::SetQueueAttributes(request) => self.set_queue_attributes(context, request).await,
            Request::PurgeQueue(request) => self.purge_queue(context, request).await,
            Request::TagQueue(request) => self.tag_queue(context, request).await,
            Request::UntagQueue(request) => self.untag_queue(context, request).await,
            Request::ListQueueTags(request) => self.list_tags(context, request).await,
            Request::AddPermission(request) => self.add_permission(context, request).await,
            Request::RemovePermission(request) => self.remove_permission(context, request).await,
            Request::StartMessageMoveTask(request) => self.start_move(context, request).await,
            Request::CancelMessageMoveTask(request) => self.cancel_move(context, request).await,
            Request::ListMessageMoveTasks(request) => self.list_moves(context, request).await,
            Request::SendMessage(_)
            | Request::SendMessageBatch(_)
            | Request::ReceiveMessage(_)
            | Request::DeleteMessage(_)
            | Request::DeleteMessageBatch(_)
            | Request::ChangeMessageVisibility(_)
            | Request::ChangeMessageVisibilityBatch(_) => {
                unreachable!("invariant: requests about messages are answered elsewhere")
            }
        }
    }
}

/// Checks the parts of a request that need no broker: its messages, and the attributes of a new queue.
pub(super) fn check(request: Request<'_>) -> Result<()> {
    let home = Home { account: "000000000000".to_owned(), region: "us-east-1".to_owned() };
    let rules = |is_fifo| Rules {
        is_fifo,
        dedups_by_content: false,
        bytes_max: attributes::MESSAGE_BYTES_MAX,
        is_in_batch: false,
    };
    match request {
        Request::SendMessage(request) => {
            Place::parse(required_text("QueueUrl", &request.queue_url)?, &home)?;
            let entry = SendEntry::from(request);
            check::check(&entry, rules(false)).map(drop).or(check::check(&entry, rules(true)).map(drop))
        }
        Request::SendMessageBatch(request) => {
            let List(entries) = request.entries.unwrap_or_default();
            check::check_batch("Entry", &entries, |entry| entry.id.as_ref().map(Text::as_str))?;
            check::check_send_batch(&entries, rules(true))
        }
        Request::CreateQueue(request) => {
            let place = Place::new(&home, required_text("QueueName", &request.queue_name)?);
            let given = request.attributes.unwrap_or_default();
            let given = given.iter().map(|(name, value)| (name, value.as_str()));
            let names = Names { default: &home, tenant: None };
            attributes::Attributes::new(place.is_fifo()).apply(&place, names, given)
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_entries_expire_and_are_evicted_for_new_ones() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut lately = Lately::new(Duration::from_secs(10), 2);
        lately.insert("a", 1, at(0));
        lately.insert("a", 2, at(5));
        assert_eq!((lately.get(&"a", at(10)), lately.get(&"a", at(15))), (Some(2), None));
        for (i, key) in ["x", "y", "z"].into_iter().enumerate() {
            lately.insert(key, i, at(20));
        }
        assert_eq!(
            (lately.get(&"x", at(20)), lately.get(&"y", at(20)), lately.get(&"z", at(20))),
            (None, Some(1), Some(2))
        );
        lately.remove(&"z");
        assert_eq!(lately.get(&"z", at(20)), None);
    }
}
