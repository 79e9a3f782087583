//! Plan of a run: the configurations, and the arguments.

use std::path::PathBuf;
use std::time::Duration;

use bench::wan::{Link, Outcome};
use serde::Serialize;

const USAGE: &str = "options: --program PATH, --seconds N, --warm-up N, --interval-ms X, --one-way-ms X, \
    --loss X (a share of the packets), --mbit-per-s X, --loopback, --only NAME,NAME (none, cache, direct, limit), \
    --no-storms, --folder PATH, --json";

/// Configuration of the sites. Each has one optimisation more than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Configuration {
    /// Each publish is looked up, and a hub relays.
    None,
    /// The subscriber cache has its default time to live.
    Cache,
    /// All sites have an address, so each has a link to every other one.
    Direct,
    /// Lookups of a topic have their default interval.
    Limit,
}

impl Configuration {
    pub const ALL: [Self; 4] = [Self::None, Self::Cache, Self::Direct, Self::Limit];

    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Cache => "cache",
            Self::Direct => "direct",
            Self::Limit => "limit",
        }
    }

    /// Returns the heading of its column.
    pub fn title(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Cache => "+ subscriber cache",
            Self::Direct => "+ direct routes",
            Self::Limit => "+ rate limit",
        }
    }

    pub fn has_cache(self) -> bool {
        self != Self::None
    }

    pub fn is_direct(self) -> bool {
        matches!(self, Self::Direct | Self::Limit)
    }

    /// Returns the keys that differ between configurations, with their values.
    pub fn keys(self) -> [(&'static str, u64); 2] {
        let ttl_ms = if self.has_cache() { 5000 } else { 0 };
        let interval_ms = if self == Self::Limit { 2000 } else { 0 };
        [("mesh_subscribers_ttl_ms", ttl_ms), ("mesh_discovery_interval_min_ms", interval_ms)]
    }

    /// Returns the maxima that this configuration has to keep: of the added p50 and p99 in ms, and of lookups per
    /// second.
    pub fn targets(self) -> Option<[f64; 3]> {
        match self {
            Self::None => None,
            Self::Cache => Some([0.6, 0.9, 0.2]),
            Self::Direct | Self::Limit => Some([0.4, 0.8, 0.05]),
        }
    }
}

/// Settings of a run.
pub struct Settings {
    pub program: PathBuf,
    /// Duration of the measurement of each configuration, after the warm-up.
    pub time: Duration,
    pub warm_up: Duration,
    /// Interval between two records.
    pub interval: Duration,
    /// Each direction between two sites, if they are not on the loopback interface.
    pub link: Link,
    pub is_loopback: bool,
    pub configurations: Vec<Configuration>,
    pub has_storms: bool,
    /// Folder of the raw samples and the report.
    pub folder: PathBuf,
    pub is_json: bool,
}

impl Settings {
    pub fn read(args: impl Iterator<Item = String>) -> Outcome<Self> {
        let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join("thalweg")));
        let mut settings = Self {
            program: beside.unwrap_or_else(|| "thalweg".into()),
            time: Duration::from_secs(300),
            warm_up: Duration::from_secs(10),
            interval: Duration::from_millis(100),
            link: Link::with_delay(Duration::from_micros(12_500)),
            is_loopback: false,
            configurations: Configuration::ALL.to_vec(),
            has_storms: true,
            folder: "target/mesh".into(),
            is_json: false,
        };
        let mut args = args;
        while let Some(name) = args.next() {
            match name.as_str() {
                "--loopback" => settings.is_loopback = true,
                "--no-storms" => settings.has_storms = false,
                "--json" => settings.is_json = true,
                _ => settings.set(&name, args.next())?,
            }
        }
        Ok(settings)
    }

    fn set(&mut self, name: &str, value: Option<String>) -> Outcome {
        let value = value.ok_or_else(|| format!("{name} is not an option, or needs a value; {USAGE}"))?;
        let number = || {
            let number = value.parse::<f64>().ok().filter(|number| (0.0..=86_400.0).contains(number));
            number.ok_or_else(|| format!("{name} {value}: choose a number from 0 to 86400"))
        };
        match name {
            "--program" => self.program = value.into(),
            "--folder" => self.folder = value.into(),
            "--seconds" => self.time = Duration::from_secs_f64(number()?),
            "--warm-up" => self.warm_up = Duration::from_secs_f64(number()?),
            "--interval-ms" => self.interval = Duration::from_secs_f64(number()?.max(0.1) / 1e3),
            "--one-way-ms" => self.link.delay = Duration::from_secs_f64(number()? / 1e3),
            "--loss" => self.link.loss = number()?,
            "--mbit-per-s" => self.link.bits_per_s = Some((number()? * 1e6) as u64),
            "--only" => self.configurations = value.split(',').map(configuration).collect::<Outcome<_>>()?,
            _ => return Err(format!("the option {name} is unknown; {USAGE}")),
        }
        Ok(())
    }

    /// Returns the delay of the wire between the publisher and a subscriber.
    pub fn wire(&self, configuration: Configuration) -> Duration {
        match (self.is_loopback, configuration.is_direct()) {
            (true, _) => Duration::ZERO,
            (false, true) => self.link.delay,
            (false, false) => self.link.delay * 2,
        }
    }
}

fn configuration(name: &str) -> Outcome<Configuration> {
    let found = Configuration::ALL.into_iter().find(|of| of.name() == name);
    found.ok_or_else(|| format!("no configuration is called '{name}'; {USAGE}"))
}
