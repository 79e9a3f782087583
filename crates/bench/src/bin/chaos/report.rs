//! Report: a JSON line for each round that has ended, by which an interrupted run is resumed.

use std::collections::BTreeMap;
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
    /// Cuts of the network.
    #[serde(default)]
    pub cuts: u64,
    /// Nodes that joined or left.
    #[serde(default)]
    pub changes: u64,
    #[serde(default)]
    pub note: Option<String>,
}

/// Round that has ended.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Finished {
    pub seed: u64,
    pub nodes: usize,
    #[serde(default)]
    pub pace: String,
    /// Build of the program: debug or release.
    #[serde(default)]
    pub build: String,
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
            "{} faults, {} kills, {} cuts, {} changes, {} of {} native records acknowledged, {} events, {} violations, \
             {:.0} s, {}",
            self.hits.len(),
            self.hits.iter().map(|hit| hit.kills).sum::<u64>(),
            self.hits.iter().map(|hit| hit.cuts).sum::<u64>(),
            self.hits.iter().map(|hit| hit.changes).sum::<u64>(),
            self.acknowledged,
            self.sent,
            self.events,
            self.violations.len(),
            self.seconds,
            self.network,
        )
    }
}

/// Numbers that all rounds of a report together should reach, without a violation.
const GOALS: [(&str, u64); 3] = [("kills", 1000), ("cuts", 500), ("changes of the members", 100)];

/// Sums of rounds.
#[derive(Default)]
pub struct Totals {
    rounds: usize,
    acknowledged: u64,
    pub violations: usize,
    kinds: BTreeMap<String, Kind>,
}

/// Sums of one kind of fault.
#[derive(Default)]
struct Kind {
    hits: u64,
    kills: u64,
    cuts: u64,
    changes: u64,
    stalls: Vec<u64>,
    recoveries: Vec<u64>,
}

impl Totals {
    pub fn add(&mut self, finished: &Finished) {
        self.rounds += 1;
        self.acknowledged += finished.acknowledged;
        self.violations += finished.violations.len();
        for hit in &finished.hits {
            let kind = self.kinds.entry(hit.fault.clone()).or_default();
            kind.hits += 1;
            kind.kills += hit.kills;
            kind.cuts += hit.cuts;
            kind.changes += hit.changes;
            kind.stalls.push(hit.stall_ms);
            kind.recoveries.push(hit.recovery_ms);
        }
    }

    fn sum(&self, of: impl Fn(&Kind) -> u64) -> u64 {
        self.kinds.values().map(of).sum()
    }

    pub fn summary(&self) -> String {
        let stalls = |is_kill: bool| {
            let of = self.kinds.iter().filter(|(name, _)| (*name == "KillLeader") == is_kill);
            quantiles(&mut of.flat_map(|(_, kind)| &kind.stalls).copied().collect::<Vec<_>>())
        };
        format!(
            "{} rounds, {} faults, {} kills, {} cuts, {} changes of the members, {} records acknowledged, {} \
             violations; longest stall of a killed leader {}; of other faults {}",
            self.rounds,
            self.sum(|kind| kind.hits),
            self.sum(|kind| kind.kills),
            self.sum(|kind| kind.cuts),
            self.sum(|kind| kind.changes),
            self.acknowledged,
            self.violations,
            stalls(true),
            stalls(false),
        )
    }

    /// Returns a line for each kind of fault.
    pub fn table(&mut self) -> String {
        let mut lines = String::new();
        for (name, kind) in &mut self.kinds {
            let Kind { hits, kills, cuts, changes, stalls, recoveries } = kind;
            let (stall, recovery) = (quantiles(stalls), quantiles(recoveries));
            lines += &format!(
                "   {name:<18} {hits:>4} faults, {kills:>4} kills, {cuts:>4} cuts, {changes:>3} changes; \
                 stall {stall}; recovery {recovery}\n"
            );
        }
        lines
    }

    /// Compares the sums with what a report should have.
    pub fn goals(&self) -> String {
        let reached = [self.sum(|kind| kind.kills), self.sum(|kind| kind.cuts), self.sum(|kind| kind.changes)];
        let lines = GOALS.iter().zip(reached).map(|((name, goal), reached)| format!("   {reached} of {goal} {name}\n"));
        lines.collect()
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
    path: PathBuf,
    known: Vec<Finished>,
}

/// Reads the rounds that have ended; a run that was killed may have left half a line.
fn rounds(path: &Path) -> Vec<Finished> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

impl Report {
    pub fn open(folder: &Path) -> Outcome<Self> {
        let path = folder.join("report.jsonl");
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        std::fs::create_dir_all(folder).map_err(failed)?;
        let known = rounds(&path);
        let file = File::options().create(true).append(true).open(&path).map_err(failed)?;
        Ok(Self { file, path, known })
    }

    /// Returns `true` if such a round has ended before.
    pub fn has(&self, seed: u64, nodes: usize, pace: &str, build: &str) -> bool {
        let is_same = |round: &Finished| round.pace == pace && round.build == build;
        self.known.iter().any(|round| round.seed == seed && round.nodes == nodes && is_same(round))
    }

    /// Returns the sums of all rounds that have ended, also of earlier runs.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        rounds(&self.path).iter().for_each(|round| totals.add(round));
        totals
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
        assert!(report.has(7, 3, "", "") && !report.has(7, 5, "", "") && !report.has(8, 3, "", ""));
        assert!(!report.has(7, 3, "dense", "") && !report.has(7, 3, "", "release"));
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn kinds_of_faults_are_summed_and_compared_with_the_goals() {
        let hit = |fault: &str, kills, cuts, stall_ms| Hit {
            fault: fault.into(),
            leader: 1,
            next_leader: 2,
            hold_ms: 0,
            stall_ms,
            recovery_ms: 1,
            kills,
            cuts,
            changes: 0,
            note: None,
        };
        let hits = vec![hit("KillLeader", 1, 0, 300), hit("KillDuringCut", 1, 1, 900), hit("KillLeader", 1, 0, 500)];
        let mut totals = Totals::default();
        totals.add(&Finished { hits, ..Finished::default() });
        let table = totals.table();
        assert!(table.contains("KillLeader            2 faults,    2 kills,    0 cuts"), "{table}");
        assert!(table.contains("stall p50 300 ms, p99 500 ms, max 500 ms (2)"), "{table}");
        assert!(totals.goals().starts_with("   3 of 1000 kills\n   1 of 500 cuts\n"), "{}", totals.goals());
    }

    #[test]
    fn quantiles_are_of_the_values() {
        assert_eq!(quantiles(&mut [3, 1, 2]), "p50 2 ms, p99 3 ms, max 3 ms (3)");
        assert_eq!(quantiles(&mut []), "not measured");
    }
}
