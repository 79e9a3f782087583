//! `thalweg doctor`: what on this machine would cause problems for a broker with this configuration.

mod collect;
mod facts;
mod findings;

use std::io::Write;

use serde_json::json;

use super::units::{count, table};
use crate::args::{Doctor, Global};
use crate::output::{FAILED, Failure, Result};
use crate::{block_on, load_without_context};
use findings::{Finding, Severity, findings, worst};

pub fn run(global: &Global, args: &Doctor) -> Result {
    let data = args.data.as_ref().map(|data| ("data", data.to_string_lossy().into_owned()));
    let mut flags: Vec<_> = data.into_iter().collect();
    flags.extend(args.addresses.iter().map(|(door, address)| (door.key(), address.clone())));
    let config = load_without_context(global, flags)?;
    let facts = block_on(collect::facts(&config))?;
    let found = findings(&facts);
    let mut out = std::io::stdout();
    if global.json {
        let value = json!({ "result": worst(&found), "findings": found, "facts": facts });
        writeln!(out, "{value}")?;
    } else {
        write!(out, "{}", text(&found))?;
    }
    match of(&found, Severity::Problem) {
        0 => Ok(()),
        problems => Err(Failure::new(FAILED, format!("found {}", count(problems, "problem")))),
    }
}

fn of(found: &[Finding], severity: Severity) -> u64 {
    found.iter().filter(|finding| finding.severity == severity).count() as u64
}

/// Returns a table of all findings, what to do about them, and a summary.
fn text(found: &[Finding]) -> String {
    let mut rows = table();
    rows.set_header(["CHECK", "RESULT", "FOUND"]);
    for finding in found {
        rows.add_row([finding.check, finding.severity.name(), &finding.found]);
    }
    let mut text = format!("{rows}\n");
    let mut actions: Vec<&Finding> = found.iter().filter(|finding| !finding.action.is_empty()).collect();
    // The most important first; findings of one severity stay in their order.
    actions.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    if !actions.is_empty() {
        let mut rows = table();
        rows.set_header(["FOR", "WHAT TO DO"]);
        for finding in actions {
            rows.add_row([finding.check, &finding.action]);
        }
        text += &format!("\n{rows}\n");
    }
    let summary = Severity::ALL.iter().rev().filter_map(|severity| {
        let n = of(found, *severity);
        (n > 0 || *severity == Severity::Problem).then(|| match severity {
            Severity::Ok => format!("{n} ok"),
            other => count(n, other.name()),
        })
    });
    text += &format!("\n{}\n", summary.collect::<Vec<_>>().join(", "));
    text
}
