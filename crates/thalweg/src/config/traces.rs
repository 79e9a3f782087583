//! Settings of the traces of records.

use super::{Config, ConfigError, Result};
use crate::otlp::OtlpSettings;

impl Config {
    /// Returns the collector for metrics and the export interval, if a collector is set.
    pub fn otlp(&self) -> Option<(&str, std::time::Duration)> {
        let endpoint = self.text("otlp_endpoint");
        (!endpoint.is_empty()).then(|| (endpoint, self.millis("otlp_interval_ms")))
    }

    /// Checks that spans have a collector.
    pub(super) fn check_tracing(&self) -> Result<()> {
        if !self.bool("tracing") {
            return Ok(());
        }
        let Some((endpoint, every)) = self.otlp() else {
            let message = "tracing = true has no effect without a collector: set otlp_endpoint, such as to \
                           http://localhost:4318";
            return Err(ConfigError(message.into()));
        };
        OtlpSettings::parse_for_traces(endpoint, every).map_err(|error| ConfigError(error.to_string()))?;
        Ok(())
    }

    /// Returns which records are traced, if any are.
    pub(super) fn tracing(&self) -> Option<broker::TracingSettings> {
        let ratio = self.text("tracing_sample_ratio").parse();
        let ratio = ratio.unwrap_or_else(|e| unreachable!("invariant: it was checked: {e}"));
        let settings = broker::TracingSettings { ratio, carriers: doors::TRACE_CARRIERS };
        self.bool("tracing").then_some(settings)
    }
}

/// Checks a number from 0 to 1, and returns its plain form.
pub(super) fn parse_ratio(value: &str) -> std::result::Result<String, String> {
    match value.parse::<f64>() {
        Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(ratio.to_string()),
        _ => Err(format!("'{value}' is not a number from 0 to 1")),
    }
}
