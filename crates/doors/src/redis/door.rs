//! The door: what all connections and scripts share.

use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::Broker;
use net::Connections;

use super::channels::Channels;
use super::clients::Clients;
use super::commands;
use super::commands::work::Slices;
use super::monitors::Monitors;
use super::notices::Notices;
use super::pause::Pause;
use super::refusals::Refusals;
use super::scripts::Scripts;
use super::shard_channels::ShardChannels;
use super::stats::Stats;

/// Handler that passes requests to the broker. Its parts are shared by all connections and scripts.
#[derive(Clone)]
pub(super) struct Door(Arc<Parts>);

impl Door {
    pub(super) fn new(parts: Parts) -> Self {
        Self(Arc::new(parts))
    }
}

impl Deref for Door {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

/// Parts of the door.
pub(super) struct Parts {
    pub(super) broker: Arc<Broker>,
    pub(super) clients: Arc<Clients>,
    pub(super) channels: Arc<Channels>,
    pub(super) shard_channels: Arc<ShardChannels>,
    pub(super) notices: Arc<Notices>,
    pub(super) monitors: Arc<Monitors>,
    pub(super) stats: Arc<Stats>,
    /// Log of refused commands and logins.
    pub(super) refusals: Arc<Refusals>,
    /// Held while a user is changed, so that its entries and the text of its rules are the same.
    pub(super) changing_acl: commands::acl::Turn,
    /// Settings that `CONFIG SET` changes.
    pub(super) settings: Arc<commands::config::Settings>,
    pub(super) pause: Arc<Pause>,
    pub(super) connections: Arc<Connections>,
    /// Time at which the door opened, in ms since 1970.
    pub(super) began_ms: u64,
    pub(super) is_login_required: bool,
    pub(super) began: Instant,
    pub(super) port: u16,
    /// `true` if databases that are created by their first use are durable.
    pub(super) is_durable: bool,
    pub(super) slices: Arc<Slices>,
    /// Time limit of a transaction.
    pub(super) transaction_time_max: Duration,
    pub(super) scripts: Arc<Scripts>,
}
