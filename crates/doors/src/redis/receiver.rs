//! Connections to which other threads write messages that the broker does not keep: those of shard channels, of
//! keyspace events, and of `MONITOR`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use broker::{Answers, Identity, Security};
use bytes::Bytes;
use engine::security::{Operation, Resource, ResourceKind};
use parking_lot::Mutex;

use super::clients::Client;

/// Maximum number of bytes of messages queued for a slow connection. Beyond it the connection is disconnected, as in
/// Redis.
const QUEUE_BYTES_MAX: usize = 8 << 20;
/// Number of bytes of messages from which on they are written to the socket before the last message.
const FLUSH_BYTES: usize = 64 << 10;

/// Connection that receives the messages of one subscription, or the lines of `MONITOR`.
pub(super) struct Receiver {
    pub(super) client: Arc<Client>,
    pub(super) identity: Arc<Identity>,
    /// Generation of the permissions in which the client was last permitted to read the channel.
    permitted_in: AtomicU64,
    /// Messages from before the subscription was confirmed, and their bytes; `None` after the confirmation.
    early: Mutex<Option<(Vec<Bytes>, usize)>>,
}

impl Receiver {
    pub(super) fn new(client: Arc<Client>, identity: Arc<Identity>) -> Self {
        Self { client, identity, permitted_in: AtomicU64::new(0), early: Mutex::new(Some((Vec::new(), 0))) }
    }

    /// Writes a message and returns `true` if the connection keeps up.
    pub(super) fn send(&self, message: Bytes) -> bool {
        let keeps_up = self.queue(message);
        self.client.outbox.flush();
        keeps_up
    }

    /// Writes a message, but not necessarily to the socket: the caller flushes the connection after the last message.
    /// Returns `true` if the connection keeps up.
    pub(super) fn queue(&self, message: Bytes) -> bool {
        let mut early = self.early.lock();
        let waiting = match &mut *early {
            Some((early, bytes)) => {
                *bytes += message.len();
                early.push(message);
                *bytes
            }
            None => {
                let (outbox, queued) = (&self.client.outbox, &self.client.messages);
                // Replies wait there, too: a client that reads a large one may be fast enough.
                let bytes = queued.load(Ordering::Relaxed).min(outbox.waiting()) + message.len();
                queued.store(bytes, Ordering::Relaxed);
                outbox.push([message]);
                if bytes >= FLUSH_BYTES {
                    outbox.flush();
                }
                bytes.min(outbox.waiting())
            }
        };
        waiting <= QUEUE_BYTES_MAX
    }

    /// Returns `true` if the connection has unread bytes, and there is no memory for more.
    pub(super) fn has_no_room(&self, answers: &Answers) -> bool {
        let outbox = &self.client.outbox;
        if outbox.is_empty() || !answers.is_full(self.client.ip) {
            return false;
        }
        // They may not have been flushed yet.
        outbox.flush();
        !outbox.is_empty()
    }

    /// Returns `true` if the client may read its only channel.
    pub(super) fn is_permitted(&self, security: &Security, name: &[u8]) -> bool {
        let generation = security.generation();
        if self.permitted_in.load(Ordering::Relaxed) == generation {
            return true;
        }
        let may = self.may_read(security, name);
        if may {
            self.permitted_in.store(generation, Ordering::Relaxed);
        }
        may
    }

    /// Returns `true` if the client may read a channel.
    pub(super) fn may_read(&self, security: &Security, name: &[u8]) -> bool {
        security.is_valid(&self.identity)
            && security.allows(&self.identity, Operation::Read, &Resource::new(ResourceKind::Channel, name))
    }

    /// Writes the early messages after the subscription is confirmed.
    pub(super) fn confirm(&self) {
        // Held during the write, so that a later message is not written before.
        let mut early = self.early.lock();
        let (messages, _) = early.take().unwrap_or_default();
        if !messages.is_empty() {
            self.client.outbox.push(messages);
            self.client.outbox.flush();
        }
    }
}
