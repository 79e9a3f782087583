//! Shard channels (`SSUBSCRIBE`, `SPUBLISH`), as on a single node of Redis. They have a separate namespace, which no
//! other door sees; those of a tenant have its prefix. The publisher's thread writes each message to the subscribed
//! connections.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use broker::metrics::Exposition;
use broker::{Broker, Hold, Identity};
use bytes::Bytes;
use parking_lot::Mutex;

use super::channels::page;
use super::clients::Client;
use super::names::{Tenant, channel_name, channel_of};
use super::receiver::Receiver;
use super::writer::Writer;

/// Subscribers of each shard channel.
#[derive(Default)]
pub(super) struct ShardChannels {
    by_name: Mutex<BTreeMap<Vec<u8>, Vec<Arc<Receiver>>>>,
    slow: AtomicU64,
}

/// Subscription to a shard channel. Dropping it ends the subscription.
pub(super) struct ShardSubscription {
    channels: Arc<ShardChannels>,
    name: Vec<u8>,
    receiver: Arc<Receiver>,
    _hold: Hold,
}

impl Drop for ShardSubscription {
    fn drop(&mut self) {
        let mut by_name = self.channels.by_name.lock();
        if let Some(receivers) = by_name.get_mut(&self.name) {
            receivers.retain(|receiver| !Arc::ptr_eq(receiver, &self.receiver));
            if receivers.is_empty() {
                by_name.remove(&self.name);
            }
        }
    }
}

impl ShardSubscription {
    /// Returns the receiver, which is confirmed once the confirmation of the subscription is written.
    pub(super) fn receiver(&self) -> Arc<Receiver> {
        self.receiver.clone()
    }
}

impl ShardChannels {
    pub(super) fn subscribe(
        self: &Arc<Self>,
        client: &Arc<Client>,
        identity: &Arc<Identity>,
        name: &[u8],
        hold: Hold,
    ) -> ShardSubscription {
        let receiver = Arc::new(Receiver::new(client.clone(), identity.clone()));
        self.by_name.lock().entry(name.to_vec()).or_default().push(receiver.clone());
        ShardSubscription { channels: self.clone(), name: name.to_vec(), receiver, _hold: hold }
    }

    /// Publishes a message to the channel with this name of the broker, and returns the number of its receivers. They
    /// share its bytes, which are held until the last receiver has read them. A connection is disconnected if it has
    /// unread messages, and no memory for more, or if its client may no longer read the channel.
    pub(super) fn publish(&self, broker: &Broker, name: &[u8], message: &[u8]) -> usize {
        let answers = broker.answers();
        let mut count = 0;
        let receivers = self.by_name.lock().get(name).cloned().unwrap_or_default();
        // By the protocol of the receiver, and by the name that it uses. All tenants of one channel are the same.
        let mut written: [Option<Bytes>; 4] = [const { None }; 4];
        for receiver in &receivers {
            if !receiver.is_permitted(&broker.security, name) {
                receiver.client.outbox.close();
                continue;
            }
            count += 1;
            let is_resp3 = receiver.client.about.lock().is_resp3;
            let tenant = receiver.identity.tenant();
            let bytes = written[usize::from(is_resp3) + 2 * usize::from(tenant.is_some())].get_or_insert_with(|| {
                let mut writer = Writer::new(is_resp3);
                writer.push(3);
                let channel = channel_of(tenant, name).unwrap_or_default();
                [&b"smessage"[..], channel, message].iter().for_each(|part| writer.bulk(part));
                answers.overdraw(receiver.client.ip, writer.bytes.len()).charge(writer.bytes)
            });
            if receiver.has_no_room(answers) || !receiver.send(bytes.clone()) {
                tracing::info!(client = receiver.client.address, "closed a connection that reads its channels slowly");
                self.slow.fetch_add(1, Ordering::Relaxed);
                receiver.client.outbox.close();
            }
        }
        count
    }

    /// Returns the first channels of a tenant whose broker's names are after this one, in the order of these names. Few
    /// at a time, because publishers wait in the meantime.
    pub(super) fn page(&self, tenant: Tenant<'_>, after: Option<&[u8]>) -> Vec<Vec<u8>> {
        page(&self.by_name.lock(), tenant, after)
    }

    /// Returns the number of channels of all tenants.
    pub(super) fn len(&self) -> usize {
        self.by_name.lock().len()
    }

    pub(super) fn subscribers(&self, tenant: Tenant<'_>, channel: &[u8]) -> usize {
        self.by_name.lock().get(&channel_name(tenant, channel)).map_or(0, Vec::len)
    }

    pub(super) fn expose(&self, out: &mut Exposition<'_>) -> std::fmt::Result {
        let count = self.by_name.lock().len() as u64;
        out.gauge("thalweg_redis_shard_channels", "Shard channels that Redis clients subscribe to", count)?;
        let slow = self.slow.load(Ordering::Relaxed);
        out.counter(
            "thalweg_redis_slow_shard_subscribers",
            "Connections closed because they did not read their shard channels",
            slow,
        )
    }
}
