//! A tracking client: its options, and the invalidations that wait for the replies before them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use broker::{Answers, Identity};
use bytes::Bytes;
use engine::security::TenantName;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use super::Group;
use crate::redis::clients::{Client, Clients};
use crate::redis::writer::Writer;

/// Channel on which a client of RESP2 receives the invalidations of another one.
const CHANNEL: &[u8] = b"__redis__:invalidate";
/// Maximum number of bytes of keys that wait for one client. Beyond it, all its keys are invalidated instead.
const WAITING_BYTES_MAX: usize = 1 << 20;

/// Memory of a prefix in addition to its bytes, which are in the options and in the map of the group.
const PREFIX_BYTES: usize = 192;

/// Options of `CLIENT TRACKING`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::redis) struct Options {
    pub(in crate::redis) is_broadcast: bool,
    pub(in crate::redis) opts_in: bool,
    pub(in crate::redis) opts_out: bool,
    pub(in crate::redis) skips_own: bool,
    /// Connection that receives the invalidations; 0 if it is the client's own.
    pub(in crate::redis) redirect: u64,
    /// Prefixes of the broadcast keys, in their order; the empty one is that of all keys. None is a prefix of another.
    pub(in crate::redis) prefixes: Vec<Vec<u8>>,
}

impl Options {
    /// Returns the memory of the prefixes.
    pub(super) fn prefix_bytes(&self) -> usize {
        self.prefixes.iter().map(|prefix| 2 * prefix.len() + PREFIX_BYTES).sum()
    }
}

/// Connections to which invalidations are written, and the memory that is charged for them.
pub(super) struct Delivery {
    pub(super) clients: Arc<Clients>,
    pub(super) answers: Answers,
    /// Number of connections that were closed because they did not read their invalidations.
    pub(super) slow: AtomicU64,
}

/// State of a tracking client.
pub(in crate::redis) struct Tracked {
    options: RwLock<Arc<Options>>,
    pub(super) client: Arc<Client>,
    identity: Mutex<Arc<Identity>>,
    pub(super) tenant: Option<TenantName>,
    /// Tracking clients of the same tenant.
    pub(super) group: Arc<Group>,
    waiting: Mutex<Waiting>,
    news: Notify,
    /// `true` if the connection that should receive the invalidations has closed.
    is_broken: Arc<AtomicBool>,
}

/// Invalidations and replies that are not written yet. A reply must not bring a value after its invalidation, so an
/// invalidation waits for the replies that are outstanding when it is queued, but for no later ones.
#[derive(Default)]
struct Waiting {
    keys: VecDeque<Invalidation>,
    bytes: usize,
    is_over: bool,
    /// Number of the next reply.
    next: u64,
    /// Numbers of the outstanding replies, in their order.
    replies: VecDeque<u64>,
}

struct Invalidation {
    /// Number of the first reply that may be written after it.
    before: u64,
    /// Invalidated key; `None` invalidates all keys.
    key: Option<Box<[u8]>>,
}

/// A reply that is not written yet. Dropping it lets invalidations follow.
pub(in crate::redis) struct Replying {
    tracked: Arc<Tracked>,
    number: u64,
}

impl fmt::Debug for Replying {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replying").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Drop for Replying {
    fn drop(&mut self) {
        let mut waiting = self.tracked.waiting.lock();
        // Replies are written in their order, so it is the first one unless a connection ends.
        if let Some(at) = waiting.replies.iter().position(|number| *number == self.number) {
            waiting.replies.remove(at);
        }
        let has_news = !waiting.keys.is_empty();
        drop(waiting);
        if has_news {
            self.tracked.news.notify_one();
        }
    }
}

impl Waiting {
    fn add(&mut self, key: Option<&[u8]>) {
        let before = self.next;
        let last = self.keys.len().saturating_sub(1);
        // Of several in sequence the first one remains, so that more of them do not delay it.
        if key.is_none() && last > 0 && self.keys.range(last - 1..).all(|it| it.key.is_none()) {
            self.keys[last].before = before;
            return;
        }
        let bytes = bytes_of(key);
        if self.bytes + bytes > WAITING_BYTES_MAX {
            // An invalidation of all keys that is the next one is not delayed by this one.
            let next = self.keys.pop_front().filter(|it| it.key.is_none());
            self.keys.clear();
            self.keys.extend(next);
            self.keys.push_back(Invalidation { before, key: None });
            self.bytes = self.keys.len() * bytes_of(None);
        } else {
            self.keys.push_back(Invalidation { before, key: key.map(Into::into) });
            self.bytes += bytes;
        }
    }

    /// Removes the invalidations that wait for no reply any more.
    fn take_due(&mut self) -> Vec<Option<Box<[u8]>>> {
        let first = self.replies.front().copied().unwrap_or(u64::MAX);
        let mut due = Vec::new();
        while let Some(invalidation) = self.keys.pop_front_if(|it| it.before <= first) {
            self.bytes -= bytes_of(invalidation.key.as_deref());
            due.push(invalidation.key);
        }
        due
    }
}

fn bytes_of(key: Option<&[u8]>) -> usize {
    key.map_or(0, <[u8]>::len) + size_of::<Invalidation>()
}

impl Tracked {
    /// Starts the delivery of invalidations, on the thread of the client's connection.
    pub(super) fn begin(
        options: Options,
        client: &Arc<Client>,
        identity: Arc<Identity>,
        tenant: Option<TenantName>,
        group: Arc<Group>,
        delivery: &Arc<Delivery>,
    ) -> Arc<Self> {
        let tracked = Arc::new(Self {
            options: RwLock::new(Arc::new(options)),
            client: client.clone(),
            identity: Mutex::new(identity),
            tenant,
            group,
            waiting: Mutex::default(),
            news: Notify::new(),
            is_broken: Arc::default(),
        });
        tokio::spawn(tracked.clone().deliver(delivery.clone()));
        tracked
    }

    pub(super) fn end(&self) {
        let mut waiting = self.waiting.lock();
        waiting.is_over = true;
        waiting.keys.clear();
        waiting.bytes = 0;
        drop(waiting);
        self.news.notify_one();
    }

    pub(in crate::redis) fn options(&self) -> Arc<Options> {
        self.options.read().clone()
    }

    /// Continues with other options. The queued invalidations remain.
    pub(super) fn set(&self, options: Options) {
        *self.options.write() = Arc::new(options);
        self.is_broken.store(false, Ordering::Relaxed);
    }

    pub(super) fn identity(&self) -> Arc<Identity> {
        self.identity.lock().clone()
    }

    /// Continues on behalf of another identity, after the client has logged in again. One of another tenant must not
    /// be told of these keys.
    pub(in crate::redis) fn act_as(&self, identity: Arc<Identity>) {
        if identity.tenant() != self.tenant.as_ref() {
            self.end();
        }
        *self.identity.lock() = identity;
    }

    /// Returns the mark of a client whose invalidations can no longer be redirected.
    pub(in crate::redis) fn broken(&self) -> &Arc<AtomicBool> {
        &self.is_broken
    }

    /// Delays the following invalidations until a reply is written.
    pub(in crate::redis) fn reply(self: &Arc<Self>) -> Replying {
        let mut waiting = self.waiting.lock();
        let number = waiting.next;
        waiting.next += 1;
        waiting.replies.push_back(number);
        Replying { tracked: self.clone(), number }
    }

    /// Queues the invalidation of a key, or of all keys.
    pub(super) fn invalidate(&self, key: Option<&[u8]>) {
        let mut waiting = self.waiting.lock();
        if waiting.is_over {
            return;
        }
        waiting.add(key);
        drop(waiting);
        self.news.notify_one();
    }

    /// Writes the invalidations after the replies that they wait for. This task runs on the thread of the connection,
    /// whose turns it cannot interrupt.
    async fn deliver(self: Arc<Self>, delivery: Arc<Delivery>) {
        loop {
            self.news.notified().await;
            // Keys for a connection that has much to read wait here, where they are bounded.
            while let Some(target) = self.target(&delivery, &self.options()).filter(|it| !it.outbox.has_room()) {
                if self.waiting.lock().is_over {
                    return;
                }
                tokio::select! {
                    () = target.outbox.room() => {}
                    () = self.news.notified() => {}
                }
            }
            let keys = {
                let mut waiting = self.waiting.lock();
                if waiting.is_over {
                    return;
                }
                waiting.take_due()
            };
            self.write(&delivery, keys);
        }
    }

    /// Returns the connection that receives the invalidations, if it is open.
    fn target(&self, delivery: &Delivery, options: &Options) -> Option<Arc<Client>> {
        if options.redirect == 0 {
            return Some(self.client.clone());
        }
        let target = delivery.clients.get(options.redirect).filter(|target| !target.outbox.is_closed())?;
        let is_of_tenant = target.about.lock().tenant == self.tenant;
        is_of_tenant.then_some(target)
    }

    fn write(&self, delivery: &Delivery, keys: Vec<Option<Box<[u8]>>>) {
        if keys.is_empty() {
            return;
        }
        let options = self.options();
        if options.redirect != 0 {
            // On this connection, the replies before are not written by what is written to the other one.
            self.client.outbox.flush();
        }
        match self.target(delivery, &options) {
            Some(target) => delivery.write_to(&target, options.is_broadcast, keys, options.redirect != 0),
            None => {
                self.is_broken.store(true, Ordering::Relaxed);
                let mut writer = Writer::new(self.client.about.lock().is_resp3);
                if writer.is_resp3 {
                    writer.push(2);
                    writer.bulk(b"tracking-redir-broken");
                    writer.int(options.redirect as i64);
                    delivery.push(&self.client, writer);
                }
            }
        }
    }
}

impl Delivery {
    fn write_to(&self, target: &Client, is_broadcast: bool, mut keys: Vec<Option<Box<[u8]>>>, is_redirected: bool) {
        let (is_resp3, is_subscribed) = {
            let about = target.about.lock();
            (about.is_resp3, about.channels + about.patterns + about.shard_channels > 0)
        };
        // As in Redis, a client of RESP2 that is not subscribed receives nothing.
        if !(is_resp3 || is_redirected && is_subscribed) {
            return;
        }
        let mut writer = Writer::new(is_resp3);
        let head = |writer: &mut Writer| {
            if is_resp3 {
                writer.push(2);
                writer.bulk(b"invalidate");
            } else {
                writer.push(3);
                writer.bulk(b"message");
                writer.bulk(CHANNEL);
            }
        };
        if is_broadcast {
            // One message for all keys of a turn, as in Redis.
            for part in keys.split_mut(Option::is_none) {
                part.sort_unstable();
            }
            keys.dedup();
            for part in keys.chunk_by(|a, b| a.is_some() && b.is_some()) {
                head(&mut writer);
                match part {
                    [None] => writer.null(),
                    part => {
                        writer.array(part.len());
                        part.iter().flatten().for_each(|key| writer.bulk(key));
                    }
                }
            }
        } else {
            for key in &keys {
                head(&mut writer);
                match key {
                    Some(key) => {
                        writer.array(1);
                        writer.bulk(key);
                    }
                    None => writer.null(),
                }
            }
        }
        self.push(target, writer);
    }

    /// Writes to a connection. If it does not read, and there is no memory for more, it is closed: it must not keep
    /// values that are no longer valid.
    fn push(&self, target: &Client, writer: Writer) {
        let outbox = &target.outbox;
        // Answers may not have been flushed yet.
        outbox.flush();
        let has_no_room = !outbox.is_empty() && self.answers.is_full(target.ip);
        let bytes: Bytes = self.answers.overdraw(target.ip, writer.bytes.len()).charge(writer.bytes);
        outbox.push([bytes]);
        outbox.flush();
        if has_no_room {
            tracing::info!(client = target.address, "closed a connection that reads its invalidations slowly");
            self.slow.fetch_add(1, Ordering::Relaxed);
            outbox.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(waiting: &mut Waiting) -> Vec<String> {
        let text = |key: Option<Box<[u8]>>| key.map_or("all".into(), |key| String::from_utf8_lossy(&key).into_owned());
        waiting.take_due().into_iter().map(text).collect()
    }

    #[test]
    fn an_invalidation_waits_only_for_the_replies_before_it() {
        let mut waiting = Waiting { next: 2, replies: VecDeque::from([0, 1]), ..Waiting::default() };
        waiting.add(Some(b"a"));
        waiting.next = 3;
        waiting.replies.push_back(2);
        waiting.add(Some(b"b"));
        assert_eq!(due(&mut waiting), [""; 0]);
        waiting.replies.pop_front();
        assert_eq!(due(&mut waiting), [""; 0]);
        // On a busy connection, some reply is always outstanding.
        waiting.replies.pop_front();
        assert_eq!(due(&mut waiting), ["a"]);
        waiting.replies.pop_front();
        assert_eq!((due(&mut waiting), waiting.bytes), (vec!["b".to_owned()], 0));
    }

    #[test]
    fn waiting_invalidations_are_bounded_by_invalidating_all_keys_after_all_replies() {
        let mut waiting = Waiting { next: 1, replies: VecDeque::from([0]), ..Waiting::default() };
        for _ in 0..4 {
            waiting.add(Some(&[b'k'; 300_000]));
        }
        assert_eq!((waiting.keys.len(), waiting.bytes), (1, bytes_of(None)));
        // More of them do not delay the first one.
        for reply in 1..4 {
            waiting.next = reply + 1;
            waiting.replies.push_back(reply);
            waiting.add(None);
        }
        assert_eq!((waiting.keys.len(), due(&mut waiting)), (2, vec![]));
        waiting.replies.pop_front();
        assert_eq!(due(&mut waiting), ["all"]);
        waiting.replies.drain(..2);
        assert_eq!(due(&mut waiting), [""; 0]);
        waiting.replies.pop_front();
        assert_eq!(due(&mut waiting), ["all"]);
    }
}
