//! What a figure was measured on and by: the load of the machine, and the program.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// The system's load averages over 1, 5 and 15 minutes.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct LoadAverage(pub [f64; 3]);

impl LoadAverage {
    pub fn now() -> Self {
        let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let mut values = text.split_whitespace().filter_map(|word| word.parse().ok());
        Self(std::array::from_fn(|_| values.next().unwrap_or_default()))
    }
}

/// The program that made the load, as it is known outside of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Program {
    pub client: String,
    pub commit: String,
    /// Where that is known from: the build, or the checkout that the program lies in, as it is now.
    pub commit_from: String,
    pub allocator: String,
    pub command: String,
}

impl Program {
    /// This one, with the allocator that it was built with.
    pub fn this(version: &str, allocator: &str) -> Self {
        let (commit, commit_from) = match (option_env!("THALWEG_COMMIT"), commit_of_checkout()) {
            (Some(commit), _) => (commit.to_owned(), "build"),
            (None, Some(commit)) => (commit, "checkout"),
            (None, None) => ("unknown".to_owned(), "nowhere"),
        };
        let settings = std::env::vars().filter(|(name, _)| name.starts_with("MIMALLOC_"));
        let settings = settings.map(|(name, value)| format!(", {name}={value}")).collect::<String>();
        Self {
            client: version.to_owned(),
            commit,
            commit_from: commit_from.to_owned(),
            allocator: format!("{allocator}{settings}"),
            command: std::env::args().collect::<Vec<_>>().join(" "),
        }
    }
}

fn commit_of_checkout() -> Option<String> {
    let program = std::env::current_exe().ok()?;
    let git = |args: &[&str]| {
        let output = Command::new("git").arg("-C").arg(program.parent()?).args(args).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        (output.status.success() && !text.is_empty()).then_some(text)
    };
    let root = PathBuf::from(git(&["rev-parse", "--show-toplevel"])?);
    // A program that was installed may lie in a checkout of anything.
    root.join("crates/thalweg").is_dir().then(|| git(&["describe", "--always", "--dirty"]))?
}

/// How the clock of the processor is governed, of all that there are.
pub(crate) fn governor() -> String {
    let cpus = fs::read_dir("/sys/devices/system/cpu").into_iter().flatten().flatten();
    let governors: BTreeSet<String> =
        cpus.filter_map(|cpu| fs::read_to_string(cpu.path().join("cpufreq/scaling_governor")).ok()).collect();
    match governors.is_empty() {
        true => "not exposed".to_owned(),
        false => governors.iter().map(|name| name.trim()).collect::<Vec<_>>().join(", "),
    }
}

/// The processors that this process may run on, as a list.
pub(crate) fn cpus_allowed() -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    Some(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim().to_owned())
}
