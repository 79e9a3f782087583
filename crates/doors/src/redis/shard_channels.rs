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

use super::clients::Client;
use super::mouth::Mouth;
use super::names::{Tenant, channel_name, channel_of};
use super::writer::Writer;

/// Subscribers of each shard channel.
#[derive(Default)]
pub(super) struct ShardChannels {
    by_name: Mutex<BTreeMap<Vec<u8>, Vec<Arc<Mouth>>>>,
    slow: AtomicU64,
}

/// Subscription to a shard channel. Dropping it ends the subscription.
pub(super) struct ShardListener {
    channels: Arc<ShardChannels>,
    name: Vec<u8>,
    mouth: Arc<Mouth>,
    _hold: Hold,
}

impl Drop for ShardListener {
    fn drop(&mut self) {
        let mut by_name = self.channels.by_name.lock();
        if let Some(mouths) = by_name.get_mut(&self.name) {
            mouths.retain(|mouth| !Arc::ptr_eq(mouth, &self.mouth));
            if mouths.is_empty() {
                by_name.remove(&self.name);
            }
        }
    }
}

impl ShardChannels {
    pub(super) fn listen(
        self: &Arc<Self>,
        client: &Arc<Client>,
        identity: &Arc<Identity>,
        name: &[u8],
        hold: Hold,
    ) -> ShardListener {
        let mouth = Arc::new(Mouth::new(client.clone(), identity.clone()));
        self.by_name.lock().entry(name.to_vec()).or_default().push(mouth.clone());
        let opened = mouth.clone();
        // A task that this thread spawns runs after the confirmation is written.
        tokio::spawn(async move { opened.open() });
        ShardListener { channels: self.clone(), name: name.to_vec(), mouth, _hold: hold }
    }

    /// Publishes a message to the channel with this name of the broker, and returns the number of its receivers. They
    /// share its bytes, which are held until the last receiver has read them. A connection is disconnected if it has
    /// unread messages, and no memory for more, or if its client may no longer read the channel.
    pub(super) fn publish(&self, broker: &Broker, name: &[u8], message: &[u8]) -> usize {
        let answers = broker.answers();
        let mut receivers = 0;
        let mouths = self.by_name.lock().get(name).cloned().unwrap_or_default();
        // By the protocol of the receiver, and by the name that it uses. All tenants of one channel are the same.
        let mut written: [Option<Bytes>; 4] = [const { None }; 4];
        for mouth in &mouths {
            if !mouth.is_permitted(&broker.security, name) {
                mouth.client.outbox.close();
                continue;
            }
            receivers += 1;
            let is_resp3 = mouth.client.about.lock().is_resp3;
            let tenant = mouth.identity.tenant();
            let bytes = written[usize::from(is_resp3) + 2 * usize::from(tenant.is_some())].get_or_insert_with(|| {
                let mut writer = Writer::new(is_resp3);
                writer.push(3);
                let channel = channel_of(tenant, name).unwrap_or_default();
                [&b"smessage"[..], channel, message].iter().for_each(|part| writer.bulk(part));
                answers.overdraw(mouth.client.ip, writer.bytes.len()).charge(writer.bytes)
            });
            let has_no_room = !mouth.client.outbox.is_empty() && answers.is_full(mouth.client.ip);
            if has_no_room || !mouth.say(bytes.clone()) {
                tracing::info!(client = mouth.client.address, "closed a connection that reads its channels slowly");
                self.slow.fetch_add(1, Ordering::Relaxed);
                mouth.client.outbox.close();
            }
        }
        receivers
    }

    /// Returns the channels of a tenant, with the number of subscribers of each.
    pub(super) fn all(&self, tenant: Tenant<'_>) -> Vec<(Vec<u8>, usize)> {
        let by_name = self.by_name.lock();
        let channels = by_name.iter();
        channels.filter_map(|(name, mouths)| Some((channel_of(tenant, name)?.to_vec(), mouths.len()))).collect()
    }

    pub(super) fn listeners(&self, tenant: Tenant<'_>, channel: &[u8]) -> usize {
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
