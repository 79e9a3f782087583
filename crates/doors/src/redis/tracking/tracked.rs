//! A tracking client: its options, and the invalidations that wait for the end of its turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use broker::Identity;
use bytes::Bytes;
use engine::security::TenantName;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::redis::clients::{Client, Clients};
use crate::redis::writer::Writer;

/// Channel on which a client of RESP2 receives the invalidations of another one.
const CHANNEL: &[u8] = b"__redis__:invalidate";
/// Maximum number of bytes of keys that wait for one client. Beyond it, all its keys are invalidated instead.
const WAITING_BYTES_MAX: usize = 1 << 20;

/// Options of `CLIENT TRACKING`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::redis) struct Options {
    pub(in crate::redis) is_broadcast: bool,
    pub(in crate::redis) opts_in: bool,
    pub(in crate::redis) opts_out: bool,
    pub(in crate::redis) skips_own: bool,
    /// Connection that receives the invalidations; 0 if it is the client's own.
    pub(in crate::redis) redirect: u64,
    /// Prefixes of the broadcast keys; the empty one is that of all keys.
    pub(in crate::redis) prefixes: Vec<Vec<u8>>,
}

/// State of a tracking client.
pub(in crate::redis) struct Tracked {
    pub(in crate::redis) options: Options,
    pub(super) client: Arc<Client>,
    pub(super) identity: Arc<Identity>,
    pub(super) tenant: Option<TenantName>,
    waiting: Mutex<Waiting>,
    news: Notify,
    /// Number of replies that are not written yet. Invalidations are written after them: a reply must not bring a value
    /// after its invalidation.
    replies: AtomicUsize,
    /// `true` if the connection that should receive the invalidations has closed.
    is_broken: Arc<AtomicBool>,
}

#[derive(Default)]
struct Waiting {
    /// Invalidated keys in their order; `None` invalidates all keys.
    keys: Vec<Option<Box<[u8]>>>,
    bytes: usize,
    is_over: bool,
}

/// A reply that is not written yet. Dropping it lets invalidations follow.
pub(in crate::redis) struct Replying(Arc<Tracked>);

impl Drop for Replying {
    fn drop(&mut self) {
        if self.0.replies.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.news.notify_one();
        }
    }
}

impl Tracked {
    /// Starts the delivery of invalidations, on the thread of the client's connection.
    pub(super) fn begin(
        options: Options,
        client: &Arc<Client>,
        identity: Arc<Identity>,
        tenant: Option<TenantName>,
        clients: &Arc<Clients>,
    ) -> Arc<Self> {
        let tracked = Arc::new(Self {
            options,
            client: client.clone(),
            identity,
            tenant,
            waiting: Mutex::default(),
            news: Notify::new(),
            replies: AtomicUsize::new(0),
            is_broken: Arc::default(),
        });
        tokio::spawn(tracked.clone().deliver(clients.clone()));
        tracked
    }

    pub(super) fn end(&self) {
        self.waiting.lock().is_over = true;
        self.news.notify_one();
    }

    /// Returns the mark of a client whose invalidations can no longer be redirected.
    pub(in crate::redis) fn broken(&self) -> &Arc<AtomicBool> {
        &self.is_broken
    }

    /// Delays invalidations until a reply is written.
    pub(in crate::redis) fn reply(self: &Arc<Self>) -> Replying {
        self.replies.fetch_add(1, Ordering::AcqRel);
        Replying(self.clone())
    }

    /// Queues the invalidation of a key, or of all keys.
    pub(super) fn invalidate(&self, key: Option<&[u8]>) {
        let mut waiting = self.waiting.lock();
        if key.is_none() && waiting.keys.last() == Some(&None) {
            return;
        }
        let bytes = key.map_or(0, <[u8]>::len) + size_of::<Option<Box<[u8]>>>();
        if waiting.bytes + bytes > WAITING_BYTES_MAX {
            waiting.keys = vec![None];
            waiting.bytes = 0;
        } else {
            waiting.keys.push(key.map(Into::into));
            waiting.bytes += bytes;
        }
        drop(waiting);
        self.news.notify_one();
    }

    /// Writes the invalidations after the replies of each turn. This task runs on the thread of the connection, whose
    /// turns it cannot interrupt.
    async fn deliver(self: Arc<Self>, clients: Arc<Clients>) {
        loop {
            self.news.notified().await;
            if self.replies.load(Ordering::Acquire) > 0 {
                continue;
            }
            let (keys, is_over) = {
                let mut waiting = self.waiting.lock();
                waiting.bytes = 0;
                (std::mem::take(&mut waiting.keys), waiting.is_over)
            };
            if is_over {
                return;
            }
            self.write(&clients, keys);
        }
    }

    fn write(&self, clients: &Clients, keys: Vec<Option<Box<[u8]>>>) {
        if keys.is_empty() {
            return;
        }
        if self.options.redirect == 0 {
            return self.write_to(&self.client, keys, false);
        }
        let target = clients.get(self.options.redirect).filter(|target| !target.outbox.is_closed());
        match target.filter(|target| target.about.lock().tenant == self.tenant) {
            Some(target) => self.write_to(&target, keys, true),
            None => {
                self.is_broken.store(true, Ordering::Relaxed);
                let mut writer = Writer::new(self.client.about.lock().is_resp3);
                if writer.is_resp3 {
                    writer.push(2);
                    writer.bulk(b"tracking-redir-broken");
                    writer.int(self.options.redirect as i64);
                    self.client.outbox.push([Bytes::from(writer.bytes)]);
                    self.client.outbox.flush();
                }
            }
        }
    }

    fn write_to(&self, target: &Client, mut keys: Vec<Option<Box<[u8]>>>, is_redirected: bool) {
        let (is_resp3, is_listening) = {
            let about = target.about.lock();
            (about.is_resp3, about.channels + about.patterns + about.shard_channels > 0)
        };
        // As in Redis, a client of RESP2 that is not subscribed receives nothing.
        if !(is_resp3 || is_redirected && is_listening) {
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
        if self.options.is_broadcast {
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
        target.outbox.push([Bytes::from(writer.bytes)]);
        target.outbox.flush();
    }
}
