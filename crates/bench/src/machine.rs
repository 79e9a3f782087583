//! Conditions of a measurement: the machine, its load, and the program.

use std::collections::BTreeSet;
use std::fs;

use serde::{Deserialize, Serialize};

/// Machine of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Host {
    pub cpu: String,
    pub cores: usize,
    pub kernel: String,
}

impl Host {
    pub fn here() -> Self {
        let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model =
            cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ").map(|(_, name)| name));
        Self {
            cpu: model.unwrap_or("unknown").to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
        }
    }
}

/// System load averages over 1, 5 and 15 minutes.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct LoadAverage(pub [f64; 3]);

impl LoadAverage {
    pub fn now() -> Self {
        let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let mut values = text.split_whitespace().filter_map(|word| word.parse().ok());
        Self(std::array::from_fn(|_| values.next().unwrap_or_default()))
    }
}

/// Program that generated the load, as it is known externally.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Program {
    pub client: String,
    /// Commit from which it was built.
    pub commit: String,
    pub allocator: String,
    pub command: String,
}

impl Program {
    /// Returns this program, with its version, its commit and the allocator that it was built with.
    pub fn this(version: &str, commit: &str, allocator: &str) -> Self {
        let settings = std::env::vars().filter(|(name, _)| name.starts_with("MIMALLOC_"));
        let settings = settings.map(|(name, value)| format!(", {name}={value}")).collect::<String>();
        Self {
            client: version.to_owned(),
            commit: commit.to_owned(),
            allocator: format!("{allocator}{settings}"),
            command: std::env::args().collect::<Vec<_>>().join(" "),
        }
    }
}

/// Returns the frequency governors of all processors.
pub(crate) fn governor() -> String {
    let cpus = fs::read_dir("/sys/devices/system/cpu").into_iter().flatten().flatten();
    let governors: BTreeSet<String> =
        cpus.filter_map(|cpu| fs::read_to_string(cpu.path().join("cpufreq/scaling_governor")).ok()).collect();
    if governors.is_empty() {
        "not exposed".to_owned()
    } else {
        governors.iter().map(|name| name.trim()).collect::<Vec<_>>().join(", ")
    }
}

/// Returns the list of processors that this process may run on.
pub(crate) fn cpus_allowed() -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    Some(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim().to_owned())
}
