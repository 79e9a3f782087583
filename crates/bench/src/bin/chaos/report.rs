//! Report: a JSON line for each round that has ended, by which an interrupted run is resumed.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::network::Outcome;

/// Effect of a fault.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hit {
    pub fault: String,
    /// Node that led before, and the one that led after.
    pub leader: u64,
    pub next_leader: u64,
    pub hold_ms: u64,
    /// Longest time without an acknowledged native publish, from the fault until the cluster had recovered.
    pub stall_ms: u64,
    /// Time from the end of the fault until a record that was sent after it was acknowledged.
    pub recovery_ms: u64,
    /// Processes that were killed.
    pub kills: u64,
}

/// Round that has ended.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Finished {
    pub seed: u64,
    pub nodes: usize,
    pub network: String,
    pub seconds: f64,
    pub hits: Vec<Hit>,
    /// Events in all histories, and native records that were sent and acknowledged.
    pub events: usize,
    pub sent: u64,
    pub acknowledged: u64,
    pub clients: Vec<String>,
    pub violations: Vec<String>,
    /// Folder with histories, logs and data, if there was a violation.
    pub folder: Option<PathBuf>,
}

impl Finished {
    pub fn summary(&self) -> String {
        format!(
            "{} faults, {} kills, {} of {} native records acknowledged, {} events, {} violations, {:.0} s, {}",
            self.hits.len(),
            self.hits.iter().map(|hit| hit.kills).sum::<u64>(),
            self.acknowledged,
            self.sent,
            self.events,
            self.violations.len(),
            self.seconds,
            self.network,
        )
    }
}

/// Sums of the rounds of a run.
#[derive(Default)]
pub struct Totals {
    rounds: usize,
    faults: usize,
    kills: u64,
    acknowledged: u64,
    pub violations: usize,
    /// Stalls of killed leaders, and of all other faults, in ms.
    of_kills: Vec<u64>,
    of_others: Vec<u64>,
}

impl Totals {
    pub fn add(&mut self, finished: &Finished) {
        self.rounds += 1;
        self.faults += finished.hits.len();
        self.kills += finished.hits.iter().map(|hit| hit.kills).sum::<u64>();
        self.acknowledged += finished.acknowledged;
        self.violations += finished.violations.len();
        for hit in &finished.hits {
            let stalls = if hit.fault == "KillLeader" { &mut self.of_kills } else { &mut self.of_others };
            stalls.push(hit.stall_ms);
        }
    }

    pub fn summary(&mut self) -> String {
        let (of_kills, of_others) = (quantiles(&mut self.of_kills), quantiles(&mut self.of_others));
        format!(
            "{} rounds, {} faults, {} kills, {} records acknowledged, {} violations; longest stall of a killed leader \
             {of_kills}; of other faults {of_others}",
            self.rounds, self.faults, self.kills, self.acknowledged, self.violations
        )
    }
}

/// Returns the median, the 99th percentile and the maximum, in words.
fn quantiles(values: &mut [u64]) -> String {
    values.sort_unstable();
    let Some(max) = values.last() else { return "not measured".to_owned() };
    let at = |share: f64| values[((values.len() as f64 * share).ceil() as usize).clamp(1, values.len()) - 1];
    format!("p50 {} ms, p99 {} ms, max {max} ms ({})", at(0.5), at(0.99), values.len())
}

/// File of the report.
pub struct Report {
    file: File,
    known: Vec<(u64, usize)>,
}

impl Report {
    pub fn open(folder: &Path) -> Outcome<Self> {
        let path = folder.join("report.jsonl");
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        std::fs::create_dir_all(folder).map_err(failed)?;
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let rounds = text.lines().filter_map(|line| serde_json::from_str::<Finished>(line).ok());
        let known = rounds.map(|round| (round.seed, round.nodes)).collect();
        let file = File::options().create(true).append(true).open(&path).map_err(failed)?;
        Ok(Self { file, known })
    }

    /// Returns `true` if a round of this seed has ended before.
    pub fn has(&self, seed: u64, nodes: usize) -> bool {
        self.known.contains(&(seed, nodes))
    }

    pub fn add(&mut self, finished: &Finished) -> Outcome {
        let line = serde_json::to_string(finished).map_err(|error| error.to_string())?;
        writeln!(self.file, "{line}").map_err(|error| format!("the report: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_that_ended_are_known_to_the_next_run() {
        let folder = std::env::temp_dir().join(format!("thalweg-chaos-report-{}", std::process::id()));
        let mut report = Report::open(&folder).expect("a report");
        report.add(&Finished { seed: 7, nodes: 3, ..Finished::default() }).expect("written");
        // Half a line, of a run that was killed.
        write!(report.file, "{{\"seed\":8").expect("written");
        let report = Report::open(&folder).expect("a report");
        assert!(report.has(7, 3) && !report.has(7, 5) && !report.has(8, 3));
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn quantiles_are_of_the_values() {
        assert_eq!(quantiles(&mut [3, 1, 2]), "p50 2 ms, p99 3 ms, max 3 ms (3)");
        assert_eq!(quantiles(&mut []), "not measured");
    }
}
