//! Reports of the programs, line by line, and their table.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde_json::{Value, json};

/// Explanation of the marks of the tables, after the head of a page.
const MARKS: &str = "
✓ passed, – skipped, ✗ failed, with the [reasons](#skipped-and-failed-scenarios). An empty cell
means that the client has no such scenario.

";

/// Result of a scenario. The texts are reasons.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    Passed,
    Failed(String),
    Skipped(String),
}

/// Results of one client, with its scenarios in the order in which they ran.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    pub client: String,
    pub version: String,
    pub scenarios: Vec<(String, Verdict)>,
    /// Calls of the service, each with the scenarios that passed and used it.
    pub calls: BTreeMap<String, BTreeSet<String>>,
    pub libraries: Vec<Library>,
}

/// Library that a scenario tests, if it is another one than the client.
#[derive(Clone, Debug, PartialEq)]
pub struct Library {
    /// Name of its scenario.
    pub name: String,
    pub version: String,
    /// Features that the scenario uses.
    pub used: String,
}

impl Report {
    pub fn new(client: &str) -> Self {
        Self { client: client.to_owned(), ..Self::default() }
    }

    /// Parses a line: `client NAME VERSION`, `library SCENARIO VERSION: features`, `ok SCENARIO (TIME)`,
    /// `FAILED SCENARIO: why`, `skipped SCENARIO: why` or `calls SCENARIO CALL..`. All other output of libraries is
    /// ignored.
    pub fn take(&mut self, line: &str) {
        let Some((word, rest)) = line.split_once(' ') else { return };
        let (name, why) = rest.split_once(": ").unwrap_or((rest, ""));
        let verdict = match word {
            "client" => {
                self.version = rest.rsplit(' ').next().unwrap_or_default().to_owned();
                return;
            }
            "library" => {
                let Some((name, version)) = name.split_once(' ') else { return };
                let [name, version, used] = [name, version, why].map(str::to_owned);
                self.libraries.push(Library { name, version, used });
                return;
            }
            "calls" => {
                let mut words = rest.split(' ');
                let scenario = words.next().unwrap_or_default();
                for call in words {
                    self.calls.entry(call.to_owned()).or_default().insert(scenario.to_owned());
                }
                return;
            }
            "ok" => Verdict::Passed,
            "FAILED" => Verdict::Failed(why.to_owned()),
            "skipped" => Verdict::Skipped(why.to_owned()),
            _ => return,
        };
        let name = name.split(' ').next().unwrap_or_default().to_owned();
        self.scenarios.push((name, verdict));
    }

    pub fn fail(&mut self, scenario: &str, why: String) {
        self.scenarios.push((scenario.to_owned(), Verdict::Failed(why)));
    }

    fn verdict(&self, scenario: &str) -> Option<&Verdict> {
        self.scenarios.iter().find(|(name, _)| name == scenario).map(|(_, verdict)| verdict)
    }

    fn count(&self, is: impl Fn(&Verdict) -> bool) -> usize {
        self.scenarios.iter().filter(|(_, verdict)| is(verdict)).count()
    }
}

pub fn failed(reports: &[Report]) -> usize {
    reports.iter().map(|report| report.count(|verdict| matches!(verdict, Verdict::Failed(_)))).sum()
}

/// Returns all scenarios, in the order in which they ran; those of the client with the most scenarios come first.
fn names(reports: &[Report]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    let mut reports: Vec<&Report> = reports.iter().collect();
    reports.sort_by_key(|report| Reverse(report.scenarios.len()));
    for (name, _) in reports.into_iter().flat_map(|report| &report.scenarios) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    names
}

/// Returns a table with a row for each scenario and a column for each client, the reasons of failed and skipped
/// scenarios, and the totals.
pub fn table(reports: &[Report]) -> String {
    let names = names(reports);
    let first = names.iter().map(|name| name.len()).max().unwrap_or(0);
    let mut out = String::new();
    let mut row = |head: &str, cells: &mut dyn Iterator<Item = String>| {
        out.push_str(format!("{head:first$}  {}", cells.collect::<Vec<_>>().join("  ")).trim_end());
        out.push('\n');
    };
    let cell = |report: &Report, text: &str| format!("{text:width$}", width = width(report));
    row("", &mut reports.iter().map(|report| cell(report, &report.client)));
    row("", &mut reports.iter().map(|report| cell(report, &report.version)));
    for name in &names {
        let mark = |report: &Report| match report.verdict(name) {
            Some(Verdict::Passed) => "ok",
            Some(Verdict::Failed(_)) => "FAILED",
            Some(Verdict::Skipped(_)) => "skipped",
            None => "",
        };
        row(name, &mut reports.iter().map(|report| cell(report, mark(report))));
    }
    out.push_str(&reasons(reports));
    let sum = |is: fn(&Verdict) -> bool| reports.iter().map(|report| report.count(is)).sum::<usize>();
    let passed = sum(|verdict| *verdict == Verdict::Passed);
    let skipped = sum(|verdict| matches!(verdict, Verdict::Skipped(_)));
    let _ = writeln!(out, "\n{passed} passed, {} failed, {skipped} skipped", failed(reports));
    out
}

fn width(report: &Report) -> usize {
    [report.client.len(), report.version.len(), "skipped".len()].into_iter().max().unwrap_or(0)
}

fn reasons(reports: &[Report]) -> String {
    let mut out = String::new();
    for (is_failed, word) in [(false, "skipped"), (true, "FAILED")] {
        for report in reports {
            for (name, verdict) in &report.scenarios {
                match verdict {
                    Verdict::Failed(why) if is_failed => {
                        out.push_str(&format!("\n{word} {} {name}: {why}", report.client))
                    }
                    Verdict::Skipped(why) if !is_failed => {
                        out.push_str(&format!("\n{word} {} {name}: {why}", report.client));
                    }
                    _ => {}
                }
            }
        }
    }
    if out.is_empty() { out } else { out + "\n" }
}

/// Returns the results as a page of the documentation that begins with `begin`.
pub fn page(begin: &str, reports: &[Report]) -> String {
    let mut out = format!("{begin}{MARKS}");
    out.push_str("| Client | Version | Passed | Skipped | Failed |\n|---|---|---|---|---|\n");
    for report in reports {
        let passed = report.count(|verdict| *verdict == Verdict::Passed);
        let skipped = report.count(|verdict| matches!(verdict, Verdict::Skipped(_)));
        let failed = failed(std::slice::from_ref(report));
        let _ = writeln!(out, "| {} | {} | {passed} | {skipped} | {failed} |", report.client, report.version);
    }
    out.push_str("\n## Scenarios\n\n");
    let row = |head: &str, cells: Vec<&str>| format!("| {head} | {} |\n", cells.join(" | "));
    out.push_str(&row("", reports.iter().map(|report| report.client.as_str()).collect()));
    out.push_str(&format!("|---|{}\n", ":-:|".repeat(reports.len())));
    for name in names(reports) {
        let marks = reports.iter().map(|report| mark(report.verdict(name)));
        out.push_str(&row(&format!("`{name}`"), marks.collect()));
    }
    out.push_str(&libraries(reports));
    out.push_str(&calls(reports));
    out.push_str("\n## Skipped and failed scenarios\n\n");
    for report in reports {
        for (why, names) in whys(report) {
            let _ = writeln!(out, "- **{}**, `{}`: {why}", report.client, names.join("`, `"));
        }
    }
    out
}

/// Returns the mark of a result in the tables of a page.
fn mark(verdict: Option<&Verdict>) -> &'static str {
    match verdict {
        Some(Verdict::Passed) => "✓",
        Some(Verdict::Failed(_)) => "**✗**",
        Some(Verdict::Skipped(_)) => "–",
        None => "",
    }
}

/// Returns the tested libraries, if the programs report any.
fn libraries(reports: &[Report]) -> String {
    let mut rows = String::new();
    for report in reports {
        for Library { name, version, used } in &report.libraries {
            let _ = writeln!(rows, "| `{name}` | {version} | {used} | {} |", mark(report.verdict(name)));
        }
    }
    if rows.is_empty() {
        return rows;
    }
    format!("\n## Libraries\n\n| Scenario | Version of the library | Features | Result |\n|---|---|---|:-:|\n{rows}")
}

/// Returns the scenarios that prove each call of the service, if the programs report their calls.
fn calls(reports: &[Report]) -> String {
    let mut calls: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (call, scenarios) in reports.iter().flat_map(|report| &report.calls) {
        calls.entry(call).or_default().extend(scenarios.iter().map(String::as_str));
    }
    if calls.is_empty() {
        return String::new();
    }
    let mut out = "\n## Calls\n\n| Call | Scenarios that make it |\n|---|---|\n".to_owned();
    for (call, scenarios) in calls {
        let scenarios: Vec<&str> = scenarios.into_iter().collect();
        let _ = writeln!(out, "| `{call}` | `{}` |", scenarios.join("`, `"));
    }
    out
}

/// Returns each reason for which scenarios did not pass, with their names.
fn whys(report: &Report) -> Vec<(&str, Vec<&str>)> {
    let mut whys: Vec<(&str, Vec<&str>)> = Vec::new();
    for (name, verdict) in &report.scenarios {
        let (Verdict::Failed(why) | Verdict::Skipped(why)) = verdict else { continue };
        match whys.iter_mut().find(|(known, _)| known == why) {
            Some((_, names)) => names.push(name),
            None => whys.push((why, vec![name])),
        }
    }
    whys
}

pub fn to_json(reports: &[Report]) -> Value {
    let scenario = |(name, verdict): &(String, Verdict)| match verdict {
        Verdict::Passed => json!({"scenario": name, "verdict": "ok"}),
        Verdict::Failed(why) => json!({"scenario": name, "verdict": "failed", "why": why}),
        Verdict::Skipped(why) => json!({"scenario": name, "verdict": "skipped", "why": why}),
    };
    let client = |report: &Report| {
        let scenarios: Vec<Value> = report.scenarios.iter().map(scenario).collect();
        json!({"client": report.client, "version": report.version, "scenarios": scenarios})
    };
    Value::Array(reports.iter().map(client).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reports() -> [Report; 2] {
        let mut one = Report::new("kcat");
        for line in ["client kcat 1.7", "ok nulls (1.5 s)", "% noise of a library", "FAILED headers: a: not b"] {
            one.take(line);
        }
        let mut two = Report::new("franz-go");
        for line in ["client franz-go 1.22.2", "skipped headers: no such call"] {
            two.take(line);
        }
        [one, two]
    }

    #[test]
    fn lines_become_verdicts() {
        let [one, two] = reports();
        let failed = Verdict::Failed("a: not b".into());
        assert_eq!(one.scenarios, [("nulls".to_owned(), Verdict::Passed), ("headers".to_owned(), failed)]);
        assert_eq!((two.version.as_str(), two.scenarios.len()), ("1.22.2", 1));
    }

    #[test]
    fn the_table_has_a_row_for_each_scenario() {
        let expected = "         kcat     franz-go
         1.7      1.22.2
nulls    ok
headers  FAILED   skipped

skipped franz-go headers: no such call
FAILED kcat headers: a: not b

1 passed, 1 failed, 1 skipped
";
        assert_eq!(table(&reports()), expected);
        assert_eq!(to_json(&reports())[0]["scenarios"][1]["why"], "a: not b");
    }

    #[test]
    fn the_page_says_the_same_with_each_reason_once() {
        let [mut one, two] = reports();
        for line in ["FAILED timestamps: a: not b", "calls nulls Send Receive", "calls groups Receive"] {
            one.take(line);
        }
        for line in ["library nulls 1.2: keys: nulls", "library headers 4.5: headers", "library nothing"] {
            one.take(line);
        }
        let page = page("# Tried\n", &[one, two]);
        let rows = [
            "# Tried\n\n✓ passed",
            "| kcat | 1.7 | 1 | 0 | 2 |\n",
            "|  | kcat | franz-go |\n|---|:-:|:-:|\n| `nulls` | ✓ |  |\n| `headers` | **✗** | – |\n",
            "|---|---|---|:-:|\n| `nulls` | 1.2 | keys: nulls | ✓ |\n| `headers` | 4.5 | headers | **✗** |\n\n",
            "| Call | Scenarios that make it |\n|---|---|\n| `Receive` | `groups`, `nulls` |\n| `Send` | `nulls` |\n",
            "- **kcat**, `headers`, `timestamps`: a: not b\n- **franz-go**, `headers`: no such call\n",
        ];
        for row in rows {
            assert!(page.contains(row), "{row} is not in {page}");
        }
    }
}
