//! Documented limitations of a peer: those scenarios do not prove anything against it. The limitations of a broker of
//! this tree are documented in the same way.

use std::fs;

use super::report::{Report, Verdict};
use crate::run::{Outcome, root};

/// Lines of `SCENARIO: why`, or `CLIENT/SCENARIO: why` if only one client is affected. `SCENARIO?: why` is for a
/// scenario that fails on a peer only sometimes.
pub struct Lacks {
    peer: String,
    lines: Vec<Line>,
}

struct Line {
    scenario: String,
    is_certain: bool,
    why: String,
}

impl Lacks {
    /// Reads the limitations of a peer. Without a file it has no limitations.
    pub fn of(system: &str, peer: &str) -> Outcome<Self> {
        let path = root().join(format!("compat/{system}/suite/{peer}.lacks"));
        let text = if path.exists() {
            fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?
        } else {
            String::new()
        };
        Self::read(peer, &text)
    }

    fn read(peer: &str, text: &str) -> Outcome<Self> {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let lines = lines.map(|line| {
            let (name, why) = line.split_once(": ").ok_or_else(|| format!("{peer}.lacks: '{line}' has no reason"))?;
            let scenario = name.trim_end_matches('?').to_owned();
            Ok(Line { scenario, is_certain: !name.ends_with('?'), why: why.to_owned() })
        });
        Ok(Self { peer: peer.to_owned(), lines: lines.collect::<Outcome<_>>()? })
    }

    /// Accepts documented failures. A line that is no longer true becomes a failure.
    pub fn apply(&self, report: &mut Report) {
        for (scenario, verdict) in &mut report.scenarios {
            let own = format!("{}/{scenario}", report.client);
            let is_it = |line: &&Line| line.scenario == *scenario || line.scenario == own;
            let Some(Line { is_certain, why, .. }) = self.lines.iter().find(is_it) else { continue };
            match verdict {
                Verdict::Failed(_) => *verdict = Verdict::Skipped(format!("{}: {why}", self.peer)),
                Verdict::Passed if *is_certain => {
                    *verdict = Verdict::Failed(format!("it passes, although {}.lacks lists it: {why}", self.peer));
                }
                Verdict::Passed | Verdict::Skipped(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_scenarios_are_skipped_and_fail_if_the_peer_passes_them() {
        let text = "# Why\n\nnulls: it has none\nkcat/headers: with one client\nother: it has none\nlock?: a race\n";
        let lacks = Lacks::read("peer", text).expect("lines");
        let mut report = Report::new("kcat");
        for line in ["FAILED nulls: x", "FAILED headers: x", "ok lock (1 s)", "ok other (1 s)", "FAILED codecs: x"] {
            report.take(line);
        }
        lacks.apply(&mut report);
        let verdicts: Vec<&Verdict> = report.scenarios.iter().map(|(_, verdict)| verdict).collect();
        let skipped = |why: &str| Verdict::Skipped(format!("peer: {why}"));
        assert_eq!(verdicts[..3], [&skipped("it has none"), &skipped("with one client"), &Verdict::Passed]);
        assert!(matches!(verdicts[3..], [Verdict::Failed(_), Verdict::Failed(_)]), "{verdicts:?}");
        assert!(Lacks::read("peer", "nulls").is_err());
    }
}
