//! Settings of this broker's site in a mesh.

use ::mesh::Settings;
use engine::mesh::{CacheSettings, check_address};

use super::{Config, ConfigError, Result};

impl Config {
    /// Returns the settings of this broker's site in a mesh.
    pub(crate) fn mesh(&self) -> Result<Settings> {
        let advertise = Some(self.text("mesh_advertise")).filter(|address| !address.is_empty());
        if let Some(address) = advertise {
            check_address(address).map_err(|error| ConfigError(format!("mesh_advertise: {}", error.message)))?;
        }
        let role = self.text("mesh_role").parse().map_err(|error: engine::Error| ConfigError(error.message))?;
        let cache = CacheSettings {
            ttl_ms: self.count("mesh_subscribers_ttl_ms"),
            min_discovery_interval_ms: self.count("mesh_discovery_interval_min_ms"),
            is_adaptive: true,
            ..CacheSettings::default()
        };
        Ok(Settings {
            listen: self.address("mesh")?,
            advertise: advertise.map(str::to_owned),
            role,
            cache,
            sent_bytes_per_s: self.bytes("mesh_sent_bytes_per_s"),
            received_bytes_per_s: self.bytes("mesh_received_bytes_per_s"),
        })
    }
}
