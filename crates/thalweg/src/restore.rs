//! Restoring what a broker knew: once per broker, before its doors open.

use std::io;
use std::sync::Arc;

use broker::Broker;

use crate::config::Config;

/// Restores the views of a broker from its data, and creates what the configuration defines and does not exist yet.
///
/// A single broker is restored at the start of its process, and in a cluster at the start of each leadership.
pub(crate) async fn restore(config: &Config, broker: &Arc<Broker>) -> io::Result<()> {
    broker.security.open().await.map_err(io::Error::other)?;
    broker.caches.restore().await.map_err(io::Error::other)?;
    broker.restore_arrivals().await;
    broker.restore_streams(doors::redis::place_of).await.map_err(io::Error::other)?;
    // If these settings cannot be read, topics keep their settings: other defaults could delete their records.
    if let Err(error) = doors::kafka::restore_settings(broker).await {
        tracing::error!(%error, "settings of the broker that Kafka clients changed are not effective");
    }
    config.definitions().create(broker).await.map_err(io::Error::other)?;
    // The last, because the sessions of members begin.
    if let Err(error) = broker.groups.open().await {
        tracing::error!(%error, "consumer groups cannot be restored");
    }
    Ok(())
}
